use super::super::cluster::{LbConfig, LbPolicy};
use super::super::lb_config::{Fallback, Hashing, Maglev, RingHash, SlowStart, SubsetConfig};
use super::*;
use nuncio_core::net::Address;
use nuncio_core::runtime::{FractionalPercent, NoRuntime, Runtime};
use nuncio_core::upstream::{HealthFlag, HealthFlags, HostSpec, Locality};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;

fn host(port: u16, weight: u32) -> Arc<Host> {
    Arc::new(Host::new(HostSpec { weight, ..HostSpec::new(Address::Ip(([127, 0, 0, 1], port).into())) }))
}

fn set(hosts: &[Arc<Host>]) -> Arc<PrioritySet> {
    Arc::new(PrioritySet {
        priorities: vec![Arc::new(HostSet::new(hosts.to_vec(), |_| 0, 140))],
        ..PrioritySet::default()
    })
}

pub(super) struct Nobody;

impl Observer for Nobody {}

pub(super) fn around(observer: impl Observer + 'static) -> Surroundings {
    Surroundings { rng: Rng::with_seed(1), observer: Rc::new(observer) }
}

fn made(policy: LbPolicy, hosts: &Arc<PrioritySet>) -> Box<dyn LoadBalancer> {
    configured(LbConfig { policy, ..LbConfig::default() }, hosts)
}

fn configured(config: LbConfig, hosts: &Arc<PrioritySet>) -> Box<dyn LoadBalancer> {
    let shared = Shared::new(&config);
    if let Some(shared) = &shared {
        shared.update(&config, &NoRuntime, hosts);
    }
    balancer(&config, hosts, shared.as_ref(), &around(Nobody))
}

const LEAST_REQUEST: LbPolicy = LbPolicy::LeastRequest { choices: 2, bias: 1.0, full_scan: false };

fn port(lb: &mut dyn LoadBalancer, context: &LbContext<'_>) -> Option<u16> {
    match lb.choose_host(context) {
        Choice::Host(host) => host.address().port(),
        _ => None,
    }
}

fn ports(lb: &mut dyn LoadBalancer, n: usize) -> Vec<u16> {
    (0..n).filter_map(|_| port(lb, &LbContext::default())).collect()
}

fn count(ports: &[u16], wanted: u16) -> usize {
    ports.iter().filter(|port| **port == wanted).count()
}

#[test]
fn round_robin_visits_each_in_turn() {
    let hosts = set(&[host(1, 1), host(2, 1), host(3, 1)]);
    let seen = ports(&mut *made(LbPolicy::RoundRobin, &hosts), 9);
    for turn in seen.windows(3) {
        let mut turn = turn.to_vec();
        turn.sort_unstable();
        assert_eq!(turn, [1, 2, 3]);
    }
}

#[test]
fn round_robin_by_weight_gives_exact_shares() {
    // The counts that Envoy 1.40 gave for 5:3:2 over 100.
    let hosts = set(&[host(1, 5), host(2, 3), host(3, 2)]);
    let seen = ports(&mut *made(LbPolicy::RoundRobin, &hosts), 100);
    assert_eq!([count(&seen, 1), count(&seen, 2), count(&seen, 3)], [50, 30, 20]);
}

#[test]
fn a_weight_changed_in_place_counts_at_once() {
    let (a, b) = (host(1, 1), host(2, 1));
    let mut lb = made(LbPolicy::RoundRobin, &set(&[a.clone(), b.clone()]));
    assert_eq!(count(&ports(&mut *lb, 10), 1), 5);
    b.set_weight(4);
    lb.hosts_changed(&set(&[a, b]));
    assert_eq!(count(&ports(&mut *lb, 10), 2), 8);
}

#[test]
fn turns_go_on_when_another_priority_changes() {
    let hosts = set(&[host(1, 1), host(2, 1), host(3, 1)]);
    let mut lb = made(LbPolicy::RoundRobin, &hosts);
    let before = ports(&mut *lb, 2);
    let second = Arc::new(HostSet::new(vec![host(9, 1)], |_| 0, 140));
    lb.hosts_changed(&Arc::new(PrioritySet {
        priorities: vec![hosts.priorities[0].clone(), second],
        ..PrioritySet::default()
    }));
    let after = ports(&mut *lb, 1);
    assert!(!before.contains(&after[0]));
}

#[test]
fn random_reaches_every_host_and_ignores_weights() {
    let hosts = set(&[host(1, 100), host(2, 1), host(3, 1)]);
    let seen = ports(&mut *made(LbPolicy::Random, &hosts), 300);
    assert!((1..=3).all(|port| (60..=140).contains(&count(&seen, port))), "{seen:?}");
}

#[test]
fn least_request_avoids_the_busy_host() {
    let busy = host(1, 1);
    busy.load.active_requests.fetch_add(1, Relaxed);
    let hosts = set(&[busy.clone(), host(2, 1)]);
    let mut lb = made(LbPolicy::LeastRequest { choices: 10, bias: 1.0, full_scan: false }, &hosts);
    assert_eq!(count(&ports(&mut *lb, 10), 1), 0);
    busy.load.active_requests.fetch_sub(1, Relaxed);
    assert!(count(&ports(&mut *lb, 40), 1) > 0);
}

#[test]
fn least_request_by_weight_shares_like_turns_while_idle() {
    let hosts = set(&[host(1, 3), host(2, 1)]);
    let seen = ports(&mut *made(LEAST_REQUEST, &hosts), 40);
    assert_eq!(count(&seen, 1), 30);
}

#[test]
fn an_unhealthy_host_gets_nothing_until_panic() {
    let (a, b, c) = (host(1, 1), host(2, 1), host(3, 1));
    let failed = HealthFlags::default().with(HealthFlag::FailedActiveHc);
    a.set_flags(failed);
    struct Counting(Rc<Cell<u32>>);
    impl Observer for Counting {
        fn panic(&self) {
            self.0.set(self.0.get() + 1);
        }
    }
    let panics = Rc::new(Cell::new(0));
    let all = [a, b, c];
    let mut lb = balancer(&LbConfig::default(), &set(&all), None, &around(Counting(panics.clone())));
    assert_eq!(count(&ports(&mut *lb, 12), 1), 0);
    all[1].set_flags(failed);
    lb.hosts_changed(&set(&all));
    assert_eq!(count(&ports(&mut *lb, 12), 1), 4);
    assert_eq!(panics.get(), 12);
}

#[test]
fn no_hosts_no_choice() {
    assert!(matches!(made(LbPolicy::RoundRobin, &set(&[])).choose_host(&LbContext::default()), Choice::None));
    let none = Arc::new(PrioritySet::default());
    assert!(matches!(made(LbPolicy::RoundRobin, &none).choose_host(&LbContext::default()), Choice::None));
}

#[test]
fn a_rejected_host_is_taken_when_reselections_run_out() {
    let hosts = set(&[host(1, 1), host(2, 1)]);
    let mut lb = made(LbPolicy::RoundRobin, &hosts);
    let reject = |host: &Host| host.address().port() == Some(1);
    let context = LbContext { reject: Some(&reject), reselections: 1, ..LbContext::default() };
    assert_eq!((0..4).filter_map(|_| port(&mut *lb, &context)).collect::<Vec<_>>(), [2, 2, 2, 2]);
    let both = |_: &Host| true;
    let context = LbContext { reject: Some(&both), reselections: 3, ..LbContext::default() };
    assert!(port(&mut *lb, &context).is_some());
}

/// One priority of localities with these weights, in each a number of hosts of which so many are healthy.
fn localities(parts: &[(u32, u16, u16)]) -> Arc<PrioritySet> {
    let mut hosts = Vec::new();
    let zone = |at: usize| Arc::new(Locality { zone: format!("{at}").into(), ..Locality::default() });
    for (at, (_, all, healthy)) in parts.iter().enumerate() {
        for n in 0..*all {
            let address = Address::Ip(([127, 0, 0, 1], at as u16 * 100 + n).into());
            let host = Host::new(HostSpec { locality: zone(at), ..HostSpec::new(address) });
            if n >= *healthy {
                host.set_flags(HealthFlags::default().with(HealthFlag::FailedActiveHc));
            }
            hosts.push(Arc::new(host));
        }
    }
    let weight = |locality: &Locality| locality.zone.parse().map_or(0, |at: usize| parts[at].0);
    Arc::new(PrioritySet { priorities: vec![Arc::new(HostSet::new(hosts, weight, 140))], ..PrioritySet::default() })
}

// arch_overview/upstream/load_balancing/locality_weight: effective weights by availability times 1.4.
#[test]
fn localities_with_weights_share_by_weight_and_health() {
    let shares = |parts: &[(u32, u16, u16)]| {
        let config = LbConfig { locality_weighted: true, ..LbConfig::default() };
        let seen = ports(&mut *configured(config, &localities(parts)), 100);
        let of = |at: u16| seen.iter().filter(|port| **port / 100 == at).count();
        [of(0), of(1)]
    };
    assert_eq!(shares(&[(1, 2, 2), (2, 2, 2)]).map(|n| (n + 1) / 33), [1, 2]);
    // 50 % of the second are left: 0.7 of its weight.
    assert!((40..=42).contains(&shares(&[(1, 4, 4), (2, 4, 2)])[0]));
    assert_eq!(shares(&[(1, 2, 2), (0, 2, 2)]), [100, 0]);
    // Without any weight the localities do not count.
    assert_eq!(shares(&[(0, 1, 1), (0, 3, 3)]), [25, 75]);
}

#[tokio::test(start_paused = true)]
async fn new_hosts_start_slowly() {
    let old = host(1, 1);
    tokio::time::advance(std::time::Duration::from_secs(60)).await;
    let slow = SlowStart { window: std::time::Duration::from_secs(10), aggression: 1.0, min_weight: 0.1 };
    let config = LbConfig { slow_start: Some(Arc::new(slow)), ..LbConfig::default() };
    let mut lb = configured(config, &set(&[old, host(2, 1)]));
    assert_eq!(count(&ports(&mut *lb, 110), 2), 10);
    tokio::time::advance(std::time::Duration::from_secs(10)).await;
    // What it was due to wait for its first turns still counts.
    assert!(count(&ports(&mut *lb, 100), 2) >= 44);
}

#[test]
fn a_full_scan_finds_the_one_idle_host() {
    let all: Vec<_> = (1..=9).map(|port| host(port, 1)).collect();
    all.iter().filter(|host| host.address().port() != Some(5)).for_each(|host| {
        host.load.active_requests.fetch_add(1, Relaxed);
    });
    let full_scan = LbPolicy::LeastRequest { choices: 2, bias: 1.0, full_scan: true };
    assert_eq!(ports(&mut *made(full_scan, &set(&all)), 5), [5; 5]);
}

#[test]
fn in_panic_traffic_can_be_refused() {
    let failed = host(1, 1);
    failed.set_flags(HealthFlags::default().with(HealthFlag::FailedActiveHc));
    let config = LbConfig { fail_on_panic: true, ..LbConfig::default() };
    assert!(ports(&mut *configured(config, &set(&[failed])), 3).is_empty());
}

#[test]
fn another_host_is_found_whenever_one_exists() {
    // Envoy gives up after so many draws and takes a rejected one.
    let hosts: Vec<_> = (1..=50).map(|port| host(port, 1)).collect();
    let mut lb = made(LbPolicy::Random, &set(&hosts));
    let reject = |host: &Host| host.address().port() != Some(33);
    let context = LbContext { reject: Some(&reject), reselections: 1, ..LbContext::default() };
    assert_eq!((0..20).filter_map(|_| port(&mut *lb, &context)).collect::<Vec<_>>(), [33; 20]);
}

/// What an operator set of `upstream.healthy_panic_threshold`.
#[derive(Clone, Default)]
struct Says(Rc<Cell<Option<u64>>>);

impl Observer for Says {
    fn runtime(&self, key: &str) -> Option<u64> {
        self.integer(key)
    }
}

impl Runtime for Says {
    fn integer(&self, key: &str) -> Option<u64> {
        self.0.get().filter(|_| key == "upstream.healthy_panic_threshold")
    }

    fn fraction(&self, _: &str) -> Option<FractionalPercent> {
        None
    }

    fn boolean(&self, _: &str) -> Option<bool> {
        None
    }
}

// Envoy 1.40, for the same hosts and values: how many of four hosts get traffic.
#[test]
fn when_hosts_change_runtime_may_say_another_threshold_of_panic() {
    let of = |policy| LbConfig { policy, ..LbConfig::default() };
    let hashing = Hashing::default();
    let subsets = SubsetConfig {
        fallback: Fallback::Any,
        default_subset: Default::default(),
        selectors: Vec::new(),
        locality_weight_aware: false,
        scale_locality_weight: false,
        panic_mode_any: false,
        list_as_any: false,
        fallback_list: false,
    };
    for config in [
        of(LbPolicy::RoundRobin),
        of(LbPolicy::Random),
        of(LEAST_REQUEST),
        of(LbPolicy::RingHash(RingHash { min_size: 1024, max_size: 8192, murmur: false, hashing })),
        of(LbPolicy::Maglev(Maglev { table_size: 251, hashing })),
        LbConfig { subsets: Some(Arc::new(subsets)), ..LbConfig::default() },
    ] {
        let (all, says) = ((1..5).map(|port| host(port, 1)).collect::<Vec<_>>(), Says::default());
        let shared = Shared::new(&config);
        let mut lb = balancer(&config, &set(&all), shared.as_ref(), &around(says.clone()));
        let mut reached = |healthy: usize, threshold: Option<u64>, changes: bool| {
            says.0.set(threshold);
            for (at, host) in all.iter().enumerate() {
                let flags = HealthFlags::default();
                host.set_flags(if at < healthy { flags } else { flags.with(HealthFlag::FailedActiveHc) });
            }
            if changes {
                let hosts = set(&all);
                if let Some(shared) = &shared {
                    shared.update(&config, &says, &hosts);
                }
                lb.hosts_changed(&hosts);
            }
            let mut ports = ports(&mut *lb, 100);
            ports.sort_unstable();
            ports.dedup();
            ports.len()
        };
        assert_eq!(reached(1, None, true), 4, "{config:?}");
        assert_eq!(reached(1, Some(20), true), 1, "{config:?}");
        assert_eq!(reached(1, Some(60), false), 1, "{config:?}");
        assert_eq!(reached(2, Some(60), true), 4, "{config:?}");
        assert_eq!(reached(0, Some(0), true), 0, "{config:?}");
        // Above 100 is 100, which three of four do not reach; but they are enough for all traffic.
        assert_eq!(reached(3, Some(500), true), 3, "{config:?}");
    }
}
