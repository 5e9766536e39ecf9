use super::super::cluster::{LbConfig, LbPolicy};
use super::*;
use nuncio_core::net::Address;
use nuncio_core::upstream::{HealthFlag, HealthFlags, HostSpec};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;

fn host(port: u16, weight: u32) -> Arc<Host> {
    Arc::new(Host::new(HostSpec { weight, ..HostSpec::new(Address::Ip(([127, 0, 0, 1], port).into())) }))
}

fn set(hosts: &[Arc<Host>]) -> Arc<PrioritySet> {
    Arc::new(PrioritySet { priorities: vec![Arc::new(HostSet::new(hosts.to_vec(), |_| 0, 140))] })
}

fn made(policy: LbPolicy, hosts: &Arc<PrioritySet>) -> Box<dyn LoadBalancer> {
    let config = LbConfig { policy, ..LbConfig::default() };
    balancer(&config, hosts, &Rng::with_seed(1), Box::new(|| ()))
}

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
    lb.hosts_changed(&Arc::new(PrioritySet { priorities: vec![hosts.priorities[0].clone(), second] }));
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
    let mut lb = made(LbPolicy::LeastRequest { choices: 10, bias: 1.0 }, &hosts);
    assert_eq!(count(&ports(&mut *lb, 10), 1), 0);
    busy.load.active_requests.fetch_sub(1, Relaxed);
    assert!(count(&ports(&mut *lb, 40), 1) > 0);
}

#[test]
fn least_request_by_weight_shares_like_turns_while_idle() {
    let hosts = set(&[host(1, 3), host(2, 1)]);
    let seen = ports(&mut *made(LbPolicy::LeastRequest { choices: 2, bias: 1.0 }, &hosts), 40);
    assert_eq!(count(&seen, 1), 30);
}

#[test]
fn an_unhealthy_host_gets_nothing_until_panic() {
    let (a, b, c) = (host(1, 1), host(2, 1), host(3, 1));
    let failed = HealthFlags::default().with(HealthFlag::FailedActiveHc);
    a.set_flags(failed);
    let panics = Rc::new(Cell::new(0));
    let counted = panics.clone();
    let on_panic = Box::new(move || counted.set(counted.get() + 1));
    let all = [a, b, c];
    let mut lb = balancer(&LbConfig::default(), &set(&all), &Rng::with_seed(1), on_panic);
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
