//! Which priority takes a request, and which of its hosts by health: load by availability, overprovisioning, spill to
//! the next priority, degraded hosts, panic.
//!
//! The arithmetic is in whole percents with Envoy's order of divisions, because its rounding can be seen from outside.

use std::sync::Arc;

use nuncio_core::upstream::{Host, HostSet, Hosts, PriorityLoad, PrioritySet};

/// Which hosts of a priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Availability {
    Healthy,
    Degraded,
    /// In panic: whatever their health.
    All,
}

/// How traffic is spread over the priorities of one picture of the hosts.
#[derive(Debug, Default)]
pub struct PriorityState {
    load: PriorityLoad,
    panic: Vec<bool>,
    /// Takes all traffic, so that no chance is needed.
    only: Option<(usize, Availability)>,
}

/// Below how many percent of available hosts a priority is in panic: `healthy_panic_threshold`, unless an operator set
/// another one while the proxy runs. As in Envoy it is asked for when hosts change.
pub fn panic_threshold(configured: u32, runtime: impl FnOnce(&str) -> Option<u64>) -> u32 {
    runtime("upstream.healthy_panic_threshold").map_or(configured, |percent| percent.min(100) as u32)
}

impl PriorityState {
    /// `panic_threshold` is in percent; 0 switches panic off.
    pub fn new(hosts: &PrioritySet, panic_threshold: u32) -> Self {
        let sets = &hosts.priorities;
        if sets.is_empty() {
            return Self::default();
        }
        let healthy: Vec<u32> = sets.iter().map(|set| share(set, &set.healthy)).collect();
        let degraded: Vec<u32> = sets.iter().map(|set| share(set, &set.degraded)).collect();
        let total = healthy.iter().chain(&degraded).sum::<u32>().min(100);
        let mut state = Self { load: spread(&healthy, &degraded, total), panic: vec![false; sets.len()], only: None };
        let threshold = panic_threshold.min(100);
        if threshold == 0 && total == 0 {
            // Nobody is there and panic is off: the balancer will find no host in priority 0.
            state.load.healthy[0] = 100;
        } else if total < 100 {
            state.panic = sets.iter().map(|set| is_in_panic(set, threshold)).collect();
            if state.panic.iter().all(|panic| *panic) {
                state.load = spread_by_size(hosts);
            }
        }
        let whole = |list: &[u32]| list.iter().position(|load| *load == 100);
        state.only = whole(&state.load.healthy)
            .map(|at| (at, Availability::Healthy))
            .or_else(|| whole(&state.load.degraded).map(|at| (at, Availability::Degraded)));
        state
    }

    pub fn load(&self) -> &PriorityLoad {
        &self.load
    }

    pub fn in_panic(&self, priority: usize) -> bool {
        self.panic.get(priority).copied().unwrap_or(false)
    }

    pub fn choose(&self, random: u64) -> Option<(usize, Availability)> {
        self.only.or_else(|| choose(&self.load, random))
    }
}

/// The load when some priorities must not be used; `None` if nothing else is available.
pub fn load_without(hosts: &PrioritySet, excluded: impl Fn(usize) -> bool) -> Option<PriorityLoad> {
    let shares = |part: fn(&HostSet) -> &Hosts| -> Vec<u32> {
        let each = hosts.priorities.iter().enumerate();
        each.map(|(at, set)| if excluded(at) { 0 } else { share(set, part(set)) }).collect()
    };
    let (healthy, degraded) = (shares(|set| &set.healthy), shares(|set| &set.degraded));
    let total = healthy.iter().chain(&degraded).sum::<u32>().min(100);
    (total > 0).then(|| spread(&healthy, &degraded, total))
}

/// Where a random number falls in a load of altogether 100.
pub fn choose(load: &PriorityLoad, random: u64) -> Option<(usize, Availability)> {
    let point = (random % 100 + 1) as u32;
    let mut reached = 0;
    let healthy = load.healthy.iter().enumerate().map(|(at, load)| (at, Availability::Healthy, load));
    let degraded = load.degraded.iter().enumerate().map(|(at, load)| (at, Availability::Degraded, load));
    healthy.chain(degraded).find_map(|(at, availability, load)| {
        reached += load;
        (point <= reached).then_some((at, availability))
    })
}

fn counted(set: &HostSet) -> usize {
    set.hosts.len() - set.excluded
}

/// Availability of a priority in percent: the share of `part`, times overprovisioning, at most 100.
fn share(set: &HostSet, part: &Hosts) -> u32 {
    let (part, counted) = if set.weighted_health {
        let weight = |hosts: &mut dyn Iterator<Item = &Arc<Host>>| hosts.map(|host| u64::from(host.weight())).sum();
        let counted: u64 = weight(&mut set.hosts.iter().filter(|host| !host.flags().is_excluded()));
        (weight(&mut part.iter()), counted)
    } else {
        (part.len() as u64, counted(set) as u64)
    };
    (u64::from(set.overprovisioning_factor) * part).checked_div(counted).unwrap_or(0).min(100) as u32
}

pub(super) fn is_in_panic(set: &HostSet, threshold: u32) -> bool {
    let percent = |part: usize| match counted(set) {
        0 => 0.0,
        counted => 100.0 * part as f64 / counted as f64,
    };
    percent(set.healthy.len()) + percent(set.degraded.len()) < f64::from(threshold)
}

/// 100 over the healthy by availability, what is left over the degraded; what rounding left goes to the first that is
/// available.
fn spread(healthy: &[u32], degraded: &[u32], total: u32) -> PriorityLoad {
    let mut left = 100;
    let mut take = |availability: &[u32]| -> Vec<u32> {
        let part = |percent: &u32| {
            let load = (percent * 100).checked_div(total).unwrap_or(0).min(left);
            left -= load;
            load
        };
        availability.iter().map(part).collect()
    };
    let mut load = PriorityLoad { healthy: take(healthy), degraded: take(degraded) };
    if total > 0 {
        if let Some(first) = healthy.iter().position(|percent| *percent > 0) {
            load.healthy[first] += left;
        } else if let Some(first) = degraded.iter().position(|percent| *percent > 0) {
            load.degraded[first] += left;
        }
    }
    load
}

/// When every priority is in panic: by the number of hosts, whatever their health.
fn spread_by_size(hosts: &PrioritySet) -> PriorityLoad {
    let sets = &hosts.priorities;
    let mut load = PriorityLoad { healthy: vec![0; sets.len()], degraded: vec![0; sets.len()] };
    let total = hosts.host_count();
    if total == 0 {
        load.healthy[0] = 100;
        return load;
    }
    let mut left = 100;
    for (part, set) in load.healthy.iter_mut().zip(sets) {
        *part = (100 * set.hosts.len() / total) as u32;
        left -= *part;
    }
    if let Some(first) = sets.iter().position(|set| !set.hosts.is_empty()) {
        load.healthy[first] += left;
    }
    load
}

#[cfg(test)]
mod tests {
    use super::*;
    use nuncio_core::net::Address;
    use nuncio_core::upstream::{HealthFlag, HealthFlags, HostSpec};
    use proptest::prelude::*;

    /// One priority for each (hosts, healthy, degraded).
    fn sets(counts: &[(usize, usize, usize)]) -> PrioritySet {
        let host = |at: usize, healthy: usize, degraded: usize| {
            let host = Host::new(HostSpec::new(Address::Ip(([127, 0, 0, 1], at as u16).into())));
            if at >= healthy + degraded {
                host.set_flags(HealthFlags::default().with(HealthFlag::FailedActiveHc));
            } else if at >= healthy {
                host.set_flags(HealthFlags::default().with(HealthFlag::DegradedActiveHc));
            }
            Arc::new(host)
        };
        let set = |(all, healthy, degraded)| {
            let hosts = (0..all).map(|at| host(at, healthy, degraded)).collect();
            Arc::new(HostSet::new(hosts, |_| 0, HostSet::DEFAULT_OVERPROVISIONING))
        };
        PrioritySet { priorities: counts.iter().copied().map(set).collect(), ..PrioritySet::default() }
    }

    fn loads(counts: &[(usize, usize, usize)]) -> (Vec<u32>, Vec<u32>, Vec<bool>) {
        let state = PriorityState::new(&sets(counts), 50);
        (state.load.healthy, state.load.degraded, state.panic)
    }

    #[test]
    fn two_priorities_share_as_envoys_documentation_tabulates() {
        // arch_overview/upstream/load_balancing/priority: P=0 health, P=1 health, traffic to each.
        for (p0, p1, want) in [
            (100, 100, [100, 0]),
            (72, 72, [100, 0]),
            (71, 71, [99, 1]),
            (50, 50, [70, 30]),
            (35, 100, [49, 51]),
            (25, 100, [35, 65]),
            (0, 100, [0, 100]),
        ] {
            assert_eq!(loads(&[(100, p0, 0), (100, p1, 0)]).0, want, "{p0} {p1}");
        }
        // The sum of availabilities is below 100: it is scaled up to it.
        assert_eq!(loads(&[(100, 25, 0), (100, 25, 0)]), (vec![50, 50], vec![0, 0], vec![true, true]));
        // The page says 7/93; whole percents leave 1 over, which Envoy 1.40 was seen to give to the first.
        assert_eq!(loads(&[(100, 5, 0), (100, 65, 0)]).0, [8, 92]);
    }

    #[test]
    fn health_can_count_by_weight() {
        let mut hosts = sets(&[(2, 1, 0), (1, 1, 0)]);
        hosts.priorities[0].hosts[0].set_weight(9);
        assert_eq!(PriorityState::new(&hosts, 50).load.healthy, [70, 30]);
        Arc::make_mut(&mut hosts.priorities[0]).weighted_health = true;
        assert_eq!(PriorityState::new(&hosts, 50).load.healthy, [100, 0]);
        hosts.priorities[0].hosts[1].set_weight(81);
        assert_eq!(PriorityState::new(&hosts, 0).load.healthy, [14, 86]);
    }

    #[test]
    fn what_rounding_leaves_goes_to_the_first_priority() {
        // Forty priorities of 2 % each, panic off: Envoy 1.40 sent 81 of 400 requests to the first.
        let state = PriorityState::new(&sets(&[(70, 1, 0); 40]), 0);
        assert_eq!((state.load.healthy[0], state.load.healthy[1]), (22, 2));
    }

    #[test]
    fn degraded_hosts_take_what_healthy_ones_cannot() {
        // The same page: P=0 healthy/degraded, P=1 healthy/degraded.
        assert_eq!(loads(&[(100, 0, 100)]), (vec![0], vec![100], vec![false]));
        assert_eq!(loads(&[(100, 25, 100 - 25)]).0, [35]);
        assert_eq!(loads(&[(100, 25, 100 - 25)]).1, [65]);
        assert_eq!(loads(&[(100, 5, 0), (100, 0, 100)]), (vec![7, 0], vec![0, 93], vec![false, false]));
    }

    #[test]
    fn panic_begins_below_the_threshold_and_only_if_all_together_is_not_enough() {
        // 40 % × 1.4 = 56 < 100, and 40 < 50.
        assert_eq!(loads(&[(10, 4, 0)]).2, [true]);
        // 50 is not below 50.
        assert_eq!(loads(&[(10, 5, 0)]).2, [false]);
        // The other priority makes up for it.
        assert_eq!(loads(&[(10, 1, 0), (10, 10, 0)]).2, [false, false]);
        let off = PriorityState::new(&sets(&[(10, 0, 0)]), 0);
        assert_eq!((off.load.healthy, off.panic), (vec![100], vec![false]));
    }

    #[test]
    fn all_in_panic_share_by_their_number_of_hosts() {
        assert_eq!(loads(&[(0, 0, 0), (10, 1, 0), (20, 2, 0)]).0, [0, 34, 66]);
        assert_eq!(loads(&[(0, 0, 0)]).0, [100]);
    }

    #[test]
    fn priorities_can_be_left_out() {
        let sets = sets(&[(10, 10, 0), (10, 5, 0), (10, 10, 0)]);
        assert_eq!(load_without(&sets, |at| at == 0).map(|load| load.healthy), Some(vec![0, 70, 30]));
        assert_eq!(load_without(&sets, |_| true), None);
    }

    proptest! {
        #[test]
        fn loads_are_always_a_hundred_and_every_point_finds_a_priority(
            counts in proptest::collection::vec((0usize..20, 0usize..20, 0usize..20), 1..5),
            threshold in 0u32..=100, random: u64,
        ) {
            let counts: Vec<_> = counts.into_iter().map(|(bad, good, soso)| (bad + good + soso, good, soso)).collect();
            let state = PriorityState::new(&sets(&counts), threshold);
            let load = state.load();
            prop_assert_eq!(load.healthy.iter().chain(&load.degraded).sum::<u32>(), 100);
            let (at, availability) = choose(load, random).expect("a priority");
            let part = match availability {
                Availability::Healthy => load.healthy[at],
                Availability::Degraded => load.degraded[at],
                Availability::All => 0,
            };
            prop_assert!(part > 0);
        }
    }
}
