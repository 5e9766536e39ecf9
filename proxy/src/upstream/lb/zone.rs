//! Zone aware balancing: as much as possible of the traffic stays in the zone of this proxy.
//!
//! That must not load the hosts of one zone more than those of another. So the part of the proxies that are in each
//! zone (the hosts of the local cluster) is compared with the part of the hosts: where there are at least as many hosts
//! as proxies, all of a zone's traffic stays in it; otherwise as much as its hosts can take, and the rest goes where
//! there are more hosts than proxies, in proportion. The arithmetic is Envoy's, in ten thousandths.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;

use nuncio_core::random::Rng;
use nuncio_core::upstream::{Host, HostSet, Locality, PrioritySet};

use super::priority::{is_in_panic, panic_threshold};
use super::{Availability, Observer};
use crate::upstream::lb_config::{LbConfig, ZoneConfig};

/// The hosts of the local cluster as one thread knows them.
#[derive(Default)]
pub struct LocalHosts {
    hosts: RefCell<Arc<PrioritySet>>,
    generation: Cell<u64>,
}

/// What happens where zones count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ZoneEvent {
    Recalculated,
    ClusterTooSmall,
    LocalClusterNotOk,
    AllDirectly,
    Sampled,
    CrossZone,
    NoCapacityLeft,
}

/// Which of the hosts.
pub(super) enum Zone {
    Whole,
    /// Its place in [`HostSet::localities`].
    Of(usize),
    Nobody,
}

/// Zones of the hosts of priority 0.
pub(super) struct Zones {
    config: ZoneConfig,
    panic_threshold: u32,
    fail_on_panic: bool,
    /// Of the local hosts that `routing` was made of.
    generation: u64,
    stale: bool,
    routing: Routing,
}

#[derive(Debug, PartialEq)]
enum Routing {
    Off,
    /// All to one place in [`HostSet::localities`].
    Direct(usize),
    Residual(Residual),
}

#[derive(Debug, PartialEq)]
struct Residual {
    /// The local zone, and how much of the traffic stays there, of 10,000.
    local: Option<usize>,
    stays: u64,
    /// Places, each with the sum of what it and those before it can take in addition.
    others: Vec<(usize, u64)>,
}

impl LocalHosts {
    pub fn set(&self, hosts: Arc<PrioritySet>) {
        self.hosts.replace(hosts);
        self.generation.set(self.generation.get() + 1);
    }
}

impl Zones {
    /// None where zones do not count.
    pub(super) fn new(config: &LbConfig) -> Option<Box<Self>> {
        if config.locality_weighted || config.zone.local.is_none() {
            return None;
        }
        Some(Box::new(Self {
            config: config.zone.clone(),
            panic_threshold: config.panic_threshold,
            fail_on_panic: config.fail_on_panic,
            generation: 0,
            stale: true,
            routing: Routing::Off,
        }))
    }

    pub(super) fn hosts_changed(&mut self) {
        self.stale = true;
    }

    /// Where a request goes that priority 0 takes with its healthy or degraded hosts.
    pub(super) fn choose(&mut self, set: &HostSet, observer: &dyn Observer, rng: &Rng) -> Zone {
        let Some(local) = observer.local_hosts() else { return Zone::Whole };
        let local_hosts = local.hosts.borrow();
        let local_set = local_hosts.priorities.first().map(|first| &**first);
        if self.stale || self.generation != local.generation.get() {
            self.stale = false;
            self.generation = local.generation.get();
            observer.zone(ZoneEvent::Recalculated);
            self.routing = self.recalculate(set, local_set, observer);
        }
        if self.routing == Routing::Off || rng.below(100) >= self.enabled(observer) {
            return Zone::Whole;
        }
        let threshold = panic_threshold(self.panic_threshold, |key| observer.runtime(key));
        if local_set.is_none_or(|set| is_in_panic(set, threshold)) {
            observer.zone(ZoneEvent::LocalClusterNotOk);
            return if self.fail_on_panic { Zone::Nobody } else { Zone::Whole };
        }
        match &self.routing {
            Routing::Off => Zone::Whole,
            Routing::Direct(at) => {
                observer.zone(ZoneEvent::AllDirectly);
                Zone::Of(*at)
            }
            Routing::Residual(residual) => residual.choose(observer, rng),
        }
    }

    /// For so many percent of the requests.
    fn enabled(&self, observer: &dyn Observer) -> u64 {
        observer.runtime("upstream.zone_routing.enabled").unwrap_or(self.config.routing_enabled.into())
    }

    fn recalculate(&self, set: &HostSet, local: Option<&HostSet>, observer: &dyn Observer) -> Routing {
        if set.localities.len() < 2 {
            return Routing::Off;
        }
        let least = observer.runtime("upstream.zone_routing.min_cluster_size").unwrap_or(self.config.min_cluster_size);
        if (set.healthy.len() as u64) < least {
            observer.zone(ZoneEvent::ClusterTooSmall);
            return Routing::Off;
        }
        let mut order: Vec<usize> = (0..set.localities.len()).collect();
        let own = self.config.local.as_ref().map(|local| &local.locality);
        order.sort_by_key(|at| {
            let locality = &set.localities[*at].locality;
            (own.is_none_or(|own| *own != **locality), locality.clone())
        });
        let has_local = order.first().is_some_and(|at| own.is_some_and(|own| *own == *set.localities[*at].locality));
        let shares = self.shares(set, local, &order);
        let own_hosts = set.localities[order[0]].healthy.len();
        if has_local {
            let (local_share, share) = shares[0];
            let forced = self.config.force_local_zone.is_some_and(|least| own_hosts >= least as usize);
            if share > 0 && share >= local_share || forced {
                return Routing::Direct(order[0]);
            }
        }
        let (local_share, share) = shares[0];
        let stays = if has_local && local_share > 0 { share * 10_000 / local_share } else { 0 };
        let mut sum = 0;
        let others = order.iter().zip(&shares).enumerate().map(|(i, (at, (local_share, share)))| {
            if !(has_local && i == 0) {
                sum += share.saturating_sub(*local_share);
            }
            (*at, sum)
        });
        Routing::Residual(Residual { others: others.collect(), local: has_local.then_some(order[0]), stays })
    }

    /// Of each locality: which part of the proxies, and which part of the hosts are there, of 10,000.
    fn shares(&self, set: &HostSet, local: Option<&HostSet>, order: &[usize]) -> Vec<(u64, u64)> {
        let size = |hosts: &[Arc<Host>]| match self.config.by_weight {
            true => hosts.iter().map(|host| u64::from(host.weight())).sum(),
            false => hosts.len() as u64,
        };
        let part = |one: u64, total: u64| (10_000 * one).checked_div(total).unwrap_or(0);
        let localities = local.map_or(&[][..], |local| &local.localities);
        let proxies: HashMap<&Locality, u64> =
            localities.iter().map(|local| (&*local.locality, size(&local.healthy))).collect();
        let all_proxies: u64 = proxies.values().sum();
        let all_hosts: u64 = set.localities.iter().map(|local| size(&local.healthy)).sum();
        let share = |at: &usize| {
            let locality = &set.localities[*at];
            if locality.healthy.is_empty() {
                return (0, 0);
            }
            let here = proxies.get(&*locality.locality).copied().unwrap_or(0);
            (part(here, all_proxies), part(size(&locality.healthy), all_hosts))
        };
        order.iter().map(share).collect()
    }
}

impl Residual {
    fn choose(&self, observer: &dyn Observer, rng: &Rng) -> Zone {
        if let Some(local) = self.local
            && rng.below(10_000) < self.stays
        {
            observer.zone(ZoneEvent::Sampled);
            return Zone::Of(local);
        }
        observer.zone(ZoneEvent::CrossZone);
        let total = self.others.last().map_or(0, |(_, sum)| *sum);
        if total == 0 {
            // Rounding can lead here.
            observer.zone(ZoneEvent::NoCapacityLeft);
            let at = rng.below(self.others.len() as u64) as usize;
            return self.others.get(at).map_or(Zone::Whole, |(at, _)| Zone::Of(*at));
        }
        let point = rng.below(total);
        let found = self.others.iter().find(|(_, sum)| point < *sum);
        found.map_or(Zone::Whole, |(at, _)| Zone::Of(*at))
    }
}

/// Whether zones may count for hosts of that availability.
pub(super) fn counts(priority: usize, availability: Availability) -> bool {
    priority == 0 && availability != Availability::All
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::lb::{Surroundings, balancer};
    use crate::upstream::lb_config::Local;
    use nuncio_core::net::Address;
    use nuncio_core::upstream::{Choice, HealthFlag, HealthFlags, HostSpec, LbContext, LoadBalancer};
    use std::rc::Rc;

    fn host(port: u16, zone: &str, healthy: bool) -> Arc<Host> {
        let locality = Arc::new(Locality { zone: zone.into(), ..Locality::default() });
        let host = Host::new(HostSpec { locality, ..HostSpec::new(Address::Ip(([127, 0, 0, 1], port).into())) });
        if !healthy {
            host.set_flags(HealthFlags::default().with(HealthFlag::FailedActiveHc));
        }
        Arc::new(host)
    }

    fn pick(balancer: &mut dyn LoadBalancer) -> Option<Arc<Host>> {
        match balancer.choose_host(&LbContext::default()) {
            Choice::Host(host) => Some(host),
            _ => None,
        }
    }

    /// Zones by the letter of their hosts; a capital one is sick.
    fn set(zones: &str) -> Arc<PrioritySet> {
        let hosts = zones
            .chars()
            .enumerate()
            .map(|(at, zone)| host(at as u16 + 1, &zone.to_lowercase().to_string(), zone.is_lowercase()));
        let set = HostSet::new(hosts.collect(), |_| 0, 140);
        Arc::new(PrioritySet { priorities: vec![Arc::new(set)], ..PrioritySet::default() })
    }

    #[derive(Default)]
    struct Seen {
        local: LocalHosts,
        events: RefCell<Vec<ZoneEvent>>,
        runtime: RefCell<HashMap<&'static str, u64>>,
    }

    impl Observer for Rc<Seen> {
        fn local_hosts(&self) -> Option<&LocalHosts> {
            Some(&self.local)
        }

        fn zone(&self, event: ZoneEvent) {
            self.events.borrow_mut().push(event);
        }

        fn runtime(&self, key: &str) -> Option<u64> {
            self.runtime.borrow().get(key).copied()
        }
    }

    fn config(zone: ZoneConfig) -> LbConfig {
        let locality = Locality { zone: "a".into(), ..Locality::default() };
        let local = Some(Arc::new(Local { cluster: "local".into(), locality }));
        LbConfig { zone: ZoneConfig { local, ..zone }, ..LbConfig::default() }
    }

    /// Of 10,000 requests, how many went to each zone.
    fn spread(proxies: &str, hosts: &str, config: &LbConfig) -> (HashMap<char, u32>, Rc<Seen>) {
        spread_seen(Seen::default(), proxies, hosts, config)
    }

    fn spread_seen(seen: Seen, proxies: &str, hosts: &str, config: &LbConfig) -> (HashMap<char, u32>, Rc<Seen>) {
        let seen = Rc::new(seen);
        seen.local.set(set(proxies));
        let around = Surroundings { rng: Rng::with_seed(7), observer: Rc::new(seen.clone()) };
        let mut balancer = balancer(config, &set(hosts), None, &around);
        let mut counts = HashMap::new();
        for _ in 0..10_000 {
            let zone = pick(&mut *balancer).map_or('-', |host| host.spec().locality.zone.chars().next().unwrap_or('?'));
            *counts.entry(zone).or_default() += 1;
        }
        (counts, seen)
    }

    fn about(counts: &HashMap<char, u32>, wanted: &[(char, u32)]) {
        assert_eq!(counts.len(), wanted.len(), "{counts:?}");
        for (zone, wanted) in wanted {
            let got = counts.get(zone).copied().unwrap_or(0);
            assert!(got.abs_diff(*wanted) < 250, "{zone}: {counts:?}");
        }
    }

    #[test]
    fn all_stays_in_a_zone_that_has_its_share_of_hosts() {
        let (counts, seen) = spread("aabb", "aaabbb", &config(ZoneConfig::default()));
        about(&counts, &[('a', 10_000)]);
        assert_eq!(seen.events.borrow()[..2], [ZoneEvent::Recalculated, ZoneEvent::AllDirectly]);
    }

    #[test]
    fn what_the_zone_cannot_take_goes_where_there_is_room() {
        // As in the comment of Envoy's own calculation: proxies 40/40/20, hosts 25/50/25: of the local zone's traffic
        // 62.5 % stay, and the rest is shared 2 to 1.
        let (counts, seen) = spread("aabbc", "aabbbbcc", &config(ZoneConfig::default()));
        about(&counts, &[('a', 6_250), ('b', 2_500), ('c', 1_250)]);
        assert!(seen.events.borrow().contains(&ZoneEvent::CrossZone));
        // Nobody here: everything goes elsewhere.
        let (counts, _) = spread("ab", "bbbbbbcc", &config(ZoneConfig::default()));
        about(&counts, &[('b', 5_000), ('c', 5_000)]);
    }

    #[test]
    fn small_clusters_and_sick_local_ones_are_not_divided() {
        let (counts, seen) = spread("aabb", "aaabb", &config(ZoneConfig::default()));
        about(&counts, &[('a', 6_000), ('b', 4_000)]);
        assert_eq!(*seen.events.borrow(), [ZoneEvent::Recalculated, ZoneEvent::ClusterTooSmall]);
        let (counts, seen) = spread("AABb", "aaabbb", &config(ZoneConfig::default()));
        about(&counts, &[('a', 5_000), ('b', 5_000)]);
        assert_eq!(seen.events.borrow()[1], ZoneEvent::LocalClusterNotOk);
        let strict = LbConfig { fail_on_panic: true, ..config(ZoneConfig::default()) };
        about(&spread("AABb", "aaabbb", &strict).0, &[('-', 10_000)]);
    }

    #[test]
    fn operators_may_change_the_part_and_the_size_while_the_proxy_runs() {
        let with = |key, value| Seen { runtime: RefCell::new([(key, value)].into()), ..Seen::default() };
        let config = config(ZoneConfig::default());
        let half = with("upstream.zone_routing.enabled", 50);
        about(&spread_seen(half, "aabb", "aaabbb", &config).0, &[('a', 7_500), ('b', 2_500)]);
        let small = with("upstream.zone_routing.min_cluster_size", 5);
        about(&spread_seen(small, "aabb", "aaabb", &config).0, &[('a', 10_000)]);
        let large = with("upstream.zone_routing.min_cluster_size", 7);
        about(&spread_seen(large, "aabb", "aaabbb", &config).0, &[('a', 5_000), ('b', 5_000)]);
        // One local proxy of four is well: enough now.
        let brave = with("upstream.healthy_panic_threshold", 25);
        about(&spread_seen(brave, "AABb", "aaabbb", &config).0, &[('a', 10_000)]);
    }

    #[test]
    fn a_part_of_the_traffic_can_be_exempt_and_a_zone_can_be_forced() {
        let half = ZoneConfig { routing_enabled: 50, ..ZoneConfig::default() };
        about(&spread("aabb", "aaabbb", &config(half)).0, &[('a', 7_500), ('b', 2_500)]);
        let forced = ZoneConfig { force_local_zone: Some(2), ..ZoneConfig::default() };
        about(&spread("aaab", "aabbbb", &config(forced.clone())).0, &[('a', 10_000)]);
        let (counts, _) = spread("aaab", "abbbbb", &config(forced));
        assert!(counts[&'b'] > 5_000);
    }

    #[test]
    fn local_proxies_may_come_and_go() {
        let seen = Rc::new(Seen::default());
        seen.local.set(set("aabb"));
        let around = Surroundings { rng: Rng::with_seed(7), observer: Rc::new(seen.clone()) };
        let mut balancer = balancer(&config(ZoneConfig::default()), &set("aaabbb"), None, &around);
        pick(&mut *balancer);
        seen.local.set(set("aaab"));
        let picked = (0..1000).filter(|_| pick(&mut *balancer).is_some_and(|host| &*host.spec().locality.zone == "b"));
        assert!(picked.count() > 200);
        let recalculated = seen.events.borrow().iter().filter(|event| **event == ZoneEvent::Recalculated).count();
        assert_eq!(recalculated, 2);
    }
}
