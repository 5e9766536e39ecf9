//! MAGLEV: a table with a place for every hash modulo its size, which hosts fill in turns, each in an order of its own
//! (Eisenbud et al., "Maglev: A Fast and Reliable Software Network Load Balancer", NSDI 2016, §3.4).

use std::sync::Arc;

use nuncio_core::upstream::Host;
use xxhash_rust::xxh64::xxh64;

use super::hashing::{Evenness, with_key};
use crate::upstream::lb_config::Maglev;

/// The host (its place in the list) of each place.
pub(super) struct Table {
    places: Box<[u32]>,
    pub evenness: Evenness,
}

/// A host while the table is being filled.
struct Turn {
    /// The next place it would take, and the step from there to the one after.
    next: u64,
    skip: u64,
    index: u32,
    weight: f64,
    /// It takes a place in the round in which its weights add up to this.
    due: f64,
    count: u64,
}

impl Table {
    /// `hosts` are not empty.
    pub fn new(config: &Maglev, hosts: &[(Arc<Host>, f64)]) -> Self {
        const FREE: u32 = u32::MAX;
        let size = u64::from(config.table_size);
        let heaviest = hosts.iter().map(|(_, share)| *share).fold(0.0, f64::max);
        let key = |(host, _): &(Arc<Host>, f64)| with_key(host, config.hashing.use_hostname, <[u8]>::to_vec);
        let mut by_key: Vec<(Vec<u8>, u32)> = hosts.iter().map(key).zip(0..).collect();
        // Turns go by the key, not by the order in which discovery gives the hosts.
        by_key.sort_unstable();
        let turn = |(key, index): &(Vec<u8>, u32)| {
            let (next, skip) = (xxh64(key, 0) % size, xxh64(key, 1) % (size - 1).max(1) + 1);
            Turn { next, skip, index: *index, weight: hosts[*index as usize].1, due: 0.0, count: 0 }
        };
        let mut turns: Vec<Turn> = by_key.iter().map(turn).collect();
        let mut places = vec![FREE; size as usize].into_boxed_slice();
        let mut left = size;
        let mut round = 0.0;
        while left > 0 {
            round += 1.0;
            for turn in &mut turns {
                if left == 0 {
                    break;
                }
                if round * turn.weight < turn.due {
                    continue;
                }
                turn.due += heaviest;
                // The size is prime, so that the steps reach every place.
                while places[turn.next as usize] != FREE {
                    turn.next = (turn.next + turn.skip) % size;
                }
                places[turn.next as usize] = turn.index;
                turn.next = (turn.next + turn.skip) % size;
                turn.count += 1;
                left -= 1;
            }
        }
        let counts = || turns.iter().map(|turn| turn.count);
        let evenness =
            Evenness { size, min: counts().min().unwrap_or_default(), max: counts().max().unwrap_or_default() };
        Self { places, evenness }
    }

    /// After a refused host the hash is another one.
    pub fn choose(&self, hash: u64, attempt: u32) -> usize {
        let hash = if attempt == 0 { hash } else { hash ^ u64::from(attempt).wrapping_neg() };
        self.places[(hash % self.places.len() as u64) as usize] as usize
    }
}
