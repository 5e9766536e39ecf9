use nuncio_api::pb::google::protobuf::{Struct, Value, value::Kind};
use nuncio_core::metadata::Metadata;
use nuncio_core::net::Address;
use nuncio_core::runtime::NoRuntime;
use nuncio_core::upstream::{HealthFlag, HealthFlags, HostSpec, LocalityHosts};
use xxhash_rust::xxh64::xxh64;

use super::super::tests::around;
use super::*;
use crate::upstream::lb_config::{Maglev, RingHash};

/// Hosts `h0`, `h1`, … by their `hash_key`, of these weights.
fn hosts(weights: &[u32]) -> Vec<Arc<Host>> {
    let host = |(n, weight): (usize, &u32)| {
        let mut metadata = Metadata::default();
        let key = Value { kind: Some(Kind::StringValue(format!("h{n}"))) };
        metadata.merge(labels::NAMESPACE, Struct { fields: [("hash_key".to_owned(), key)].into() });
        let address = Address::Ip(([127, 0, 0, 1], n as u16).into());
        Arc::new(Host::new(HostSpec { weight: *weight, metadata: Arc::new(metadata), ..HostSpec::new(address) }))
    };
    weights.iter().enumerate().map(host).collect()
}

fn picture(hosts: Vec<Arc<Host>>) -> Arc<PrioritySet> {
    Arc::new(PrioritySet { priorities: vec![Arc::new(HostSet::new(hosts, |_| 0, 140))], ..PrioritySet::default() })
}

fn ring(min_size: u64, max_size: u64, murmur: bool) -> LbConfig {
    let ring = RingHash { min_size, max_size, murmur, hashing: Hashing::default() };
    LbConfig { policy: LbPolicy::RingHash(ring), ..LbConfig::default() }
}

fn maglev(table_size: u32) -> LbConfig {
    let maglev = Maglev { table_size, hashing: Hashing::default() };
    LbConfig { policy: LbPolicy::Maglev(maglev), ..LbConfig::default() }
}

fn balancer(config: &LbConfig, hosts: Vec<Arc<Host>>) -> HashBalancer {
    HashBalancer::new(
        config,
        Arc::new(Tables::build(config, &NoRuntime, &picture(hosts), None)),
        &around(super::super::tests::Nobody),
    )
}

fn chosen(balancer: &HashBalancer, context: &LbContext<'_>) -> u16 {
    match balancer.choose(context) {
        Choice::Host(host) => host.address().port().unwrap(),
        _ => panic!("no host"),
    }
}

/// Where the keys `k0`, `k1`, … go: a digit each.
fn placement(balancer: &HashBalancer, keys: usize) -> String {
    let place =
        |n| chosen(balancer, &LbContext { hash: Some(xxh64(format!("k{n}").as_bytes(), 0)), ..Default::default() });
    (0..keys).map(|n| place(n).to_string()).collect()
}

// All placements are those of Envoy 1.40 for the same hosts and keys (the ring's from lb_ring_hash).

#[test]
fn keys_go_where_envoys_ring_sends_them() {
    let wanted = "1321232021130132120000012313311310131313";
    assert_eq!(placement(&balancer(&ring(1024, 8 << 20, false), hosts(&[1; 4])), 40), wanted);
    let wanted = "10311311211100122103";
    assert_eq!(placement(&balancer(&ring(64, 64, true), hosts(&[1; 4])), 20), wanted);
    let wanted = "122123202112012212022021231121231113122321130202122120111122";
    let weighted = balancer(&ring(1024, 8 << 20, false), hosts(&[1, 2, 3, 1]));
    assert_eq!(placement(&weighted, 60), wanted);
    assert_eq!(weighted.tables.evenness(), Evenness { size: 1029, min: 147, max: 441 });
}

#[test]
fn keys_go_where_envoys_maglev_sends_them() {
    let wanted = "001011121030223111332322022203003212033321110321001332000023";
    let full = balancer(&maglev(65537), hosts(&[1; 4]));
    assert_eq!(placement(&full, 60), wanted);
    assert_eq!(full.tables.evenness(), Evenness { size: 65537, min: 16384, max: 16385 });
    let wanted = "232210313012130221202312130131013001332120302203210211110303";
    assert_eq!(placement(&balancer(&maglev(11), hosts(&[1; 4])), 60), wanted);
    // The order in which discovery gives them does not matter.
    let mut reversed = hosts(&[1; 4]);
    reversed.reverse();
    assert_eq!(placement(&balancer(&maglev(11), reversed), 60), wanted);
    let weighted = balancer(&maglev(101), hosts(&[1, 2, 3, 1]));
    assert_eq!(placement(&weighted, 60), "220330113223020232230221201003222312000222221202132031333213");
    assert_eq!(weighted.tables.evenness(), Evenness { size: 101, min: 15, max: 42 });
}

#[test]
fn a_refused_host_is_followed_by_another_one() {
    for config in [ring(1024, 8 << 20, false), maglev(101)] {
        let balancer = balancer(&config, hosts(&[1; 4]));
        for hash in (0..200u64).map(|n| xxh64(&n.to_le_bytes(), 0)) {
            let first = chosen(&balancer, &LbContext { hash: Some(hash), ..LbContext::default() });
            let reject = |host: &Host| host.address().port() != Some(3 - first);
            let context =
                LbContext { hash: Some(hash), reject: Some(&reject), reselections: 1, ..LbContext::default() };
            assert_eq!(chosen(&balancer, &context), 3 - first);
        }
    }
}

#[test]
fn hosts_that_come_or_go_move_few_keys() {
    let moved = |config: &LbConfig| {
        let (four, three) = (balancer(config, hosts(&[1; 4])), balancer(config, hosts(&[1; 3])));
        let (four, three) = (placement(&four, 1000), placement(&three, 1000));
        four.chars().zip(three.chars()).filter(|(a, b)| a != b && *a != '3').count()
    };
    assert!(moved(&ring(1024, 8 << 20, false)) < 200);
    assert!(moved(&maglev(65537)) < 100);
}

#[test]
fn only_healthy_hosts_have_places_until_panic() {
    let all = hosts(&[1; 4]);
    all[0].set_flags(HealthFlags::default().with(HealthFlag::FailedActiveHc));
    assert!(!placement(&balancer(&maglev(11), all.clone()), 60).contains('0'));
    for host in &all {
        host.set_flags(HealthFlags::default().with(HealthFlag::FailedActiveHc));
    }
    assert!(placement(&balancer(&maglev(11), all.clone()), 60).contains('0'));
    let quiet = LbConfig { fail_on_panic: true, ..maglev(11) };
    assert!(matches!(balancer(&quiet, all).choose(&LbContext::default()), Choice::None));
}

#[test]
fn a_host_with_more_than_its_share_lends_its_keys() {
    let maglev = Maglev { table_size: 101, hashing: Hashing { use_hostname: false, balance_factor: 150 } };
    let config = LbConfig { policy: LbPolicy::Maglev(maglev), ..LbConfig::default() };
    let all = hosts(&[1; 4]);
    let bounded = balancer(&config, all.clone());
    let context = LbContext { hash: Some(7), ..LbContext::default() };
    let own = chosen(&bounded, &context);
    all[usize::from(own)].load.active_requests.fetch_add(2, Relaxed);
    let other = chosen(&bounded, &context);
    assert_ne!(own, other);
    assert_eq!(chosen(&bounded, &context), other);
    for host in &all {
        host.load.active_requests.fetch_add(9, Relaxed);
    }
    assert_ne!(chosen(&bounded, &context), own);
}

#[test]
fn an_unchanged_priority_keeps_its_table() {
    let config = maglev(11);
    let one = picture(hosts(&[1; 4]));
    let before = Tables::build(&config, &NoRuntime, &one, None);
    let second = Arc::new(HostSet::new(hosts(&[1]), |_| 0, 140));
    let two = Arc::new(PrioritySet { priorities: vec![one.priorities[0].clone(), second], ..PrioritySet::default() });
    let after = Tables::build(&config, &NoRuntime, &two, Some(&before));
    let table = |tables: &Tables| tables.priorities[0][Availability::Healthy as usize].clone().unwrap();
    assert!(Arc::ptr_eq(&table(&before), &table(&after)));
}

#[test]
fn localities_share_by_their_weights() {
    let mut set = HostSet::new(hosts(&[1; 4]), |_| 0, 140);
    let whole = set.localities[0].clone();
    let part = |range: std::ops::Range<usize>, weight| {
        let hosts: Arc<[Arc<Host>]> = set.hosts[range].into();
        LocalityHosts { weight, healthy: hosts.clone(), hosts, ..whole.clone() }
    };
    set.localities = vec![part(0..1, 1), part(1..3, 2), part(3..4, 0)].into();
    let shares: Vec<f64> = normalized(&set, Availability::Healthy, true).iter().map(|(_, share)| *share).collect();
    assert_eq!(shares, [1.0 / 3.0; 3]);
}
