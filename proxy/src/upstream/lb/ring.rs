//! RING_HASH: hosts have points on a ring of hashes, more of them the heavier they are, and a request goes to the next
//! point after its hash (ketama).

use std::io::Write;
use std::sync::Arc;

use nuncio_core::upstream::Host;
use xxhash_rust::xxh64::xxh64;

use super::hashing::{Evenness, with_key};
use crate::upstream::lb_config::RingHash;

/// Points in order, with the host (its place in the list) of each.
pub(super) struct Ring {
    hashes: Box<[u64]>,
    hosts: Box<[u32]>,
    pub evenness: Evenness,
}

impl Ring {
    /// `hosts` are not empty; their shares sum up to 1.
    pub fn new(config: &RingHash, hosts: &[(Arc<Host>, f64)]) -> Self {
        let least = hosts.iter().map(|(_, share)| *share).fold(1.0, f64::min);
        // The lightest host gets a whole number of points, unless the ring would get too large.
        let scale = ((least * config.min_size as f64).ceil() / least).min(config.max_size as f64);
        let size = scale.ceil() as u64;
        let mut points: Vec<(u64, u32)> = Vec::with_capacity(size as usize);
        let mut evenness = Evenness { size, min: size, max: 0 };
        // Running sums keep the shares right where they are no whole numbers.
        let (mut have, mut want) = (0.0, 0.0);
        let mut key = Vec::with_capacity(64);
        for (index, (host, share)) in (0..).zip(hosts) {
            key.clear();
            with_key(host, config.hashing.use_hostname, |own| key.extend_from_slice(own));
            key.push(b'_');
            let prefix = key.len();
            want += scale * share;
            let mut n = 0;
            while have < want {
                key.truncate(prefix);
                let written = write!(key, "{n}");
                debug_assert!(written.is_ok(), "a vector takes what is written");
                let hash = if config.murmur { murmur_hash_2(&key) } else { xxh64(&key, 0) };
                points.push((hash, index));
                n += 1;
                have += 1.0;
            }
            evenness.min = evenness.min.min(n);
            evenness.max = evenness.max.max(n);
        }
        points.sort_unstable();
        Self {
            hashes: points.iter().map(|(hash, _)| *hash).collect(),
            hosts: points.iter().map(|(_, index)| *index).collect(),
            evenness,
        }
    }

    /// A refused point's successors follow in order.
    pub fn choose(&self, hash: u64, attempt: u32) -> usize {
        let point = self.hashes.partition_point(|point| *point < hash) % self.hashes.len();
        self.hosts[(point + attempt as usize) % self.hosts.len()] as usize
    }
}

/// MurmurHash2 with 64 bits in the form and with the seed of libstdc++'s `std::hash`, which Envoy keeps for those who
/// come from it.
fn murmur_hash_2(key: &[u8]) -> u64 {
    const SEED: u64 = 0xc70f_6907;
    const FACTOR: u64 = 0xc6a4_a793_5bd1_e995;
    let mix = |v: u64| v ^ v >> 47;
    let mut hash = SEED ^ (key.len() as u64).wrapping_mul(FACTOR);
    let (words, rest) = key.as_chunks::<8>();
    for word in words {
        let word = u64::from_le_bytes(*word).wrapping_mul(FACTOR);
        hash = (hash ^ mix(word).wrapping_mul(FACTOR)).wrapping_mul(FACTOR);
    }
    if !rest.is_empty() {
        let last = rest.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        hash = (hash ^ last).wrapping_mul(FACTOR);
    }
    mix(mix(hash).wrapping_mul(FACTOR))
}
