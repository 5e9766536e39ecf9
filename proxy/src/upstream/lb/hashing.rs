//! Consistent hashing: the same hash goes to the same host, and few hashes move when hosts come or go.
//!
//! [`Tables`] holds, for one picture of the hosts, a ring or a Maglev table for each priority. It is built once, on main,
//! and shared by all workers. Placement is exactly Envoy's for the same hosts and keys.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use nuncio_core::runtime::Runtime;
use nuncio_core::upstream::{Choice, Host, HostSet, LbContext, PrioritySet};

use super::priority::{self, Availability, PriorityState};
use super::{Surroundings, labels, maglev, ring};
use crate::upstream::lb_config::{Hashing, LbConfig, LbPolicy};

/// Where every hash goes.
pub struct Tables {
    hosts: Arc<PrioritySet>,
    state: PriorityState,
    priorities: Vec<[Option<Arc<Lookup>>; 3]>,
}

/// Where every hash goes in one list of hosts.
struct Lookup {
    /// With their share of all weight.
    hosts: Vec<(Arc<Host>, f64)>,
    places: Places,
}

enum Places {
    Ring(ring::Ring),
    Maglev(maglev::Table),
}

/// How evenly hosts got places: of all, the least and the most of one host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Evenness {
    pub size: u64,
    pub min: u64,
    pub max: u64,
}

impl Tables {
    /// What did not change is taken from `before`.
    pub fn build(config: &LbConfig, runtime: &dyn Runtime, hosts: &Arc<PrioritySet>, before: Option<&Self>) -> Self {
        let threshold = priority::panic_threshold(config.panic_threshold, |key| runtime.integer(key));
        let state = PriorityState::new(hosts, threshold);
        let each = hosts.priorities.iter().enumerate().map(|(at, set)| {
            let known = before.filter(|old| old.hosts.priorities.get(at).is_some_and(|old| Arc::ptr_eq(old, set)));
            let make = |availability: Availability, wanted: bool| {
                let known = known.and_then(|old| old.priorities.get(at)?[availability as usize].clone());
                known.or_else(|| wanted.then(|| Lookup::new(config, set, availability).map(Arc::new)).flatten())
            };
            let panic = state.in_panic(at);
            [
                make(Availability::Healthy, !panic),
                make(Availability::Degraded, !panic && !set.degraded.is_empty()),
                make(Availability::All, panic),
            ]
        });
        Self { priorities: each.collect(), hosts: hosts.clone(), state }
    }

    /// Of the last priority that has a table, as Envoy's gauges show it.
    pub fn evenness(&self) -> Evenness {
        let all = self.priorities.iter().flatten().flatten();
        all.last().map_or_else(Evenness::default, |lookup| match &lookup.places {
            Places::Ring(ring) => ring.evenness,
            Places::Maglev(table) => table.evenness,
        })
    }
}

impl Lookup {
    fn new(config: &LbConfig, set: &HostSet, availability: Availability) -> Option<Self> {
        let hosts = normalized(set, availability, config.locality_weighted);
        if hosts.is_empty() {
            return None;
        }
        let places = match config.policy {
            LbPolicy::RingHash(ring) => Places::Ring(ring::Ring::new(&ring, &hosts)),
            LbPolicy::Maglev(maglev) => Places::Maglev(maglev::Table::new(&maglev, &hosts)),
            LbPolicy::RoundRobin | LbPolicy::Random | LbPolicy::LeastRequest { .. } | LbPolicy::OriginalDst => {
                return None;
            }
        };
        Some(Self { hosts, places })
    }

    /// `attempt` is above 0 if the hosts of the attempts before were refused.
    fn choose(&self, hash: u64, attempt: u32) -> usize {
        match &self.places {
            Places::Ring(ring) => ring.choose(hash, attempt),
            Places::Maglev(table) => table.choose(hash, attempt),
        }
    }

    /// The chosen host, or if it has more than its share of `active` requests, another; the same ones in the same order
    /// for the same hash. If all have too much, the one that has least.
    fn choose_bounded(&self, hash: u64, attempt: u32, factor: u32, active: u32) -> usize {
        let chosen = self.choose(hash, attempt);
        let slots = ((u64::from(active) + 1) * u64::from(factor)).div_ceil(100) as f64;
        let load = |at: usize| {
            let (host, weight) = &self.hosts[at];
            f64::from(host.load.active_requests.load(Relaxed)) / (slots * weight).ceil().max(1.0)
        };
        let (mut best, mut least) = (chosen, load(chosen));
        if least <= 1.0 {
            return chosen;
        }
        let n = self.hosts.len();
        let mixed = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let mut step = mixed as usize % n + 1;
        while gcd(step, n) != 1 {
            step += 1;
        }
        for i in 1..=n {
            let other = (chosen + i * step) % n;
            let load = load(other);
            if load <= 1.0 {
                return other;
            }
            if load < least {
                (best, least) = (other, load);
            }
        }
        best
    }
}

fn gcd(mut a: usize, mut b: usize) -> usize {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// Hosts with their share of all weight; by localities first, where those have weights.
fn normalized(set: &HostSet, availability: Availability, by_locality: bool) -> Vec<(Arc<Host>, f64)> {
    let mut shares = Vec::new();
    let mut add = |hosts: &[Arc<Host>], of: f64| {
        let sum: u64 = hosts.iter().map(|host| u64::from(host.weight())).sum();
        shares.extend(hosts.iter().map(|host| (host.clone(), f64::from(host.weight()) * of / sum as f64)));
    };
    let sum: u64 = set.localities.iter().map(|locality| u64::from(locality.weight)).sum();
    if !by_locality || sum == 0 {
        add(super::listed(set, availability), 1.0);
    } else {
        for locality in set.localities.iter().filter(|locality| locality.weight > 0) {
            let hosts = match availability {
                Availability::Healthy => &locality.healthy,
                Availability::Degraded => &locality.degraded,
                Availability::All => &locality.hosts,
            };
            add(hosts, f64::from(locality.weight) / sum as f64);
        }
    }
    shares
}

/// What a host's places are computed from: `hash_key` of its metadata, else its name or address.
pub(super) fn with_key<T>(host: &Host, use_hostname: bool, then: impl FnOnce(&[u8]) -> T) -> T {
    use nuncio_api::pb::google::protobuf::value::Kind;
    let metadata = host.metadata();
    if let Some(Kind::StringValue(key)) = metadata.get(labels::NAMESPACE, &["hash_key"]).and_then(|v| v.kind.as_ref())
        && !key.is_empty()
    {
        return then(key.as_bytes());
    }
    if use_hostname { then(host.hostname().as_bytes()) } else { then(host.address_text().as_bytes()) }
}

/// RING_HASH or MAGLEV on one worker.
pub struct HashBalancer {
    tables: Arc<Tables>,
    hashing: Hashing,
    fail_on_panic: bool,
    around: Surroundings,
}

impl HashBalancer {
    pub fn new(config: &LbConfig, tables: Arc<Tables>, around: &Surroundings) -> Self {
        let hashing = match config.policy {
            LbPolicy::RingHash(ring) => ring.hashing,
            LbPolicy::Maglev(maglev) => maglev.hashing,
            LbPolicy::RoundRobin | LbPolicy::Random | LbPolicy::LeastRequest { .. } | LbPolicy::OriginalDst => {
                Hashing::default()
            }
        };
        Self { tables, hashing, fail_on_panic: config.fail_on_panic, around: around.clone() }
    }

    pub fn set_tables(&mut self, tables: Arc<Tables>) {
        self.tables = tables;
    }

    pub fn choose(&self, context: &LbContext<'_>) -> Choice {
        let hash = context.hash.unwrap_or_else(|| self.around.rng.u64());
        let Some(lookup) = self.lookup(context, hash) else { return Choice::None };
        let rejected = |at: usize| context.reject.is_some_and(|reject| reject(&lookup.hosts[at].0));
        let mut last = 0;
        for attempt in 0..=context.reselections {
            last = match self.hashing.balance_factor {
                0 => lookup.choose(hash, attempt),
                factor => lookup.choose_bounded(hash, attempt, factor, self.around.observer.active_requests()),
            };
            if !rejected(last) {
                return Choice::Host(lookup.hosts[last].0.clone());
            }
        }
        // Another one, if there is any; Envoy takes the last one it met.
        let n = lookup.hosts.len();
        let found = (1..n).map(|i| (last + i) % n).find(|at| !rejected(*at)).unwrap_or(last);
        Choice::Host(lookup.hosts[found].0.clone())
    }

    fn lookup(&self, context: &LbContext<'_>, hash: u64) -> Option<&Lookup> {
        let state = &self.tables.state;
        let (at, availability) = match context.priority_load {
            Some(load) => priority::choose(load, hash)?,
            None => state.choose(hash)?,
        };
        if !state.in_panic(at) {
            return self.tables.priorities.get(at)?[availability as usize].as_deref();
        }
        self.around.observer.panic();
        if self.fail_on_panic { None } else { self.tables.priorities.get(at)?[Availability::All as usize].as_deref() }
    }
}

#[cfg(test)]
mod tests;
