use super::*;
use crate::outlier::success_rate::Threshold;
use nuncio_api::pb::envoy::config::cluster::v3::OutlierDetection as Message;
use nuncio_api::pb::google::protobuf::{BoolValue, Duration as Span, UInt32Value};
use nuncio_core::net::Address;
use nuncio_core::runtime::NoRuntime;
use nuncio_core::stats::Store;
use nuncio_core::stats::lists::cluster::SCOPE;
use nuncio_core::time::WallClock;
use nuncio_core::upstream::{HealthFlags, HostSpec, Outcome};

/// Sets flags as the owner of a cluster does.
#[derive(Default)]
struct Owner(RefCell<Vec<String>>);

impl HealthSink for Owner {
    fn flags(&self, host: &Arc<Host>, flags: HealthFlags, reason: &str) {
        host.set_flags(flags);
        self.0.borrow_mut().push(reason.to_owned());
    }

    fn never_well(&self, _: &Arc<Host>, _: &str) {}

    fn checked(&self) {}

    fn has_traffic(&self) -> bool {
        true
    }
}

struct World {
    detector: OutlierDetector,
    hosts: Vec<(Arc<Host>, Arc<Tally>)>,
    store: Store,
}

impl World {
    fn new(hosts: u16, message: Message) -> Self {
        let mut store = Store::new();
        let scope = store.scope(&SCOPE, &"c".into());
        let context = DetectorContext {
            sink: Rc::new(Owner::default()),
            rng: Rng::with_seed(1),
            runtime: Rc::new(NoRuntime),
            stats: Stats::new(store.main(), scope),
            events: EventLog::new(&[], WallClock::System, "c".into()),
        };
        let detector = OutlierDetector::new(OutlierConfig::from_proto(&message).unwrap(), context);
        let spec = |port| HostSpec::new(Address::Ip(([127, 0, 0, 1], port).into()));
        let hosts = (1..=hosts).map(|port| {
            let host = Arc::new(Host::new(spec(port)));
            let tally = detector.add(&host);
            (host, tally)
        });
        Self { hosts: hosts.collect(), detector, store }
    }

    /// What a host answered in this interval.
    fn answers(&self, host: usize, good: u32, bad: u32) {
        let tally = &self.hosts[host].1;
        (0..good).for_each(|_| tally.add(Outcome::Answered { status: 200 }, |_| ()));
        (0..bad).for_each(|_| tally.add(Outcome::Answered { status: 500 }, |_| ()));
    }

    fn eject(&self, host: usize) {
        self.detector.reported(&self.hosts[host].0, Cause::Consecutive5xx);
    }

    fn ejected(&self) -> Vec<usize> {
        (0..self.hosts.len()).filter(|at| is_ejected(&self.hosts[*at].0)).collect()
    }

    fn stat(&mut self, name: &str) -> u64 {
        self.store.value(&format!("cluster.c.outlier_detection.{name}")).unwrap_or_default()
    }

    /// So many milliseconds, with a sweep in each hundred.
    async fn pass(&self, millis: u64) {
        for _ in 0..millis / 100 {
            tokio::time::advance(Duration::from_millis(100)).await;
            self.detector.sweep();
        }
    }
}

fn number(value: u32) -> Option<UInt32Value> {
    Some(UInt32Value { value })
}

fn seconds(seconds: i64) -> Option<Span> {
    Some(Span { seconds, nanos: 0 })
}

fn all() -> Message {
    Message { max_ejection_percent: number(100), base_ejection_time: seconds(1), ..Default::default() }
}

#[tokio::test(start_paused = true)]
async fn each_ejection_is_longer_and_quiet_intervals_make_the_next_shorter() {
    let world = World::new(3, all());
    for length in [1000, 2000, 3000] {
        world.eject(0);
        assert_eq!(world.ejected(), [0]);
        world.pass(length - 100).await;
        assert_eq!(world.ejected(), [0], "{length}");
        world.pass(100).await;
        assert!(world.ejected().is_empty(), "{length}");
    }
    // Two sweeps without an ejection.
    world.pass(200).await;
    world.eject(0);
    world.pass(2000).await;
    assert!(world.ejected().is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_ejection_has_a_longest_time() {
    let world = World::new(3, Message { max_ejection_time: seconds(2), ..all() });
    for length in [1000, 2000, 2000, 2000] {
        world.eject(0);
        world.pass(length).await;
        assert!(world.ejected().is_empty());
    }
}

// Expected: Envoy 1.40 (hc_outlier_detection) for the only host of a cluster.
#[tokio::test(start_paused = true)]
async fn no_more_hosts_than_the_maximum_percentage_are_ejected() {
    let mut world = World::new(4, Message { max_ejection_percent: number(50), ..all() });
    (0..4).for_each(|host| world.eject(host));
    assert_eq!(world.ejected(), [0, 1]);
    assert_eq!((world.stat("ejections_active"), world.stat("ejections_overflow")), (2, 2));
    assert_eq!(world.stat("ejections_detected_consecutive_5xx"), 4);
    // A host that leaves the cluster is no longer ejected.
    world.detector.remove(&world.hosts[0].0.clone());
    assert_eq!(world.stat("ejections_active"), 1);
    let only = World::new(1, Message::default());
    only.eject(0);
    assert!(only.ejected().is_empty());
    let always = Message { always_eject_one_host: Some(BoolValue { value: true }), ..Message::default() };
    let only = World::new(1, always);
    only.eject(0);
    assert_eq!(only.ejected(), [0]);
}

#[tokio::test(start_paused = true)]
async fn what_is_not_enforced_is_only_counted() {
    let mut world = World::new(3, Message { enforcing_consecutive_5xx: number(0), ..all() });
    world.eject(0);
    assert!(world.ejected().is_empty());
    assert_eq!(world.stat("ejections_detected_consecutive_5xx"), 1);
    assert_eq!(world.stat("ejections_enforced_total"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_host_whose_success_rate_lies_far_below_the_others_is_ejected() {
    let mut world = World::new(6, all());
    (0..5).for_each(|host| world.answers(host, 100, 0));
    world.answers(5, 50, 50);
    world.detector.sweep();
    assert_eq!(world.ejected(), [5]);
    assert_eq!(world.stat("ejections_enforced_success_rate"), 1);
    let Threshold { average, threshold } = world.detector.outliers().cluster.external;
    // (5 × 100 + 50) / 6, and 1.9 deviations of √(5 × 8.33² + 41.67²)/√6 = 18.63 below it.
    assert!((average - 91.667).abs() < 0.01 && (threshold - 56.256).abs() < 0.01, "{average} {threshold}");
    assert_eq!(world.detector.outliers().of(&world.hosts[5].0), [50.0, -1.0]);
    // The next interval begins with nothing; too little was heard in it.
    (0..5).for_each(|host| world.answers(host, 10, 10));
    world.detector.sweep();
    assert_eq!(world.detector.outliers().cluster.external, Threshold::NONE);
}

#[tokio::test(start_paused = true)]
async fn a_host_that_fails_too_large_a_part_is_ejected_where_that_is_enforced() {
    let failing = Message { enforcing_failure_percentage: number(100), ..all() };
    let mut world = World::new(5, failing);
    (0..4).for_each(|host| world.answers(host, 60, 0));
    world.answers(4, 8, 52);
    world.detector.sweep();
    // 86.7 % of 60 requests: enough for this, not for the success rate.
    assert_eq!(world.ejected(), [4]);
    assert_eq!(world.stat("ejections_enforced_failure_percentage"), 1);
    assert_eq!(world.stat("ejections_detected_success_rate"), 0);
    let world = World::new(5, all());
    (0..4).for_each(|host| world.answers(host, 60, 0));
    world.answers(4, 8, 52);
    world.detector.sweep();
    assert!(world.ejected().is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_active_check_that_passes_brings_a_host_back_if_configured_so() {
    let world = World::new(3, all());
    world.eject(0);
    world.detector.passed_check(&world.hosts[0].0);
    assert!(world.ejected().is_empty());
    let stays = Message { successful_active_health_check_uneject_host: Some(BoolValue { value: false }), ..all() };
    let world = World::new(3, stays);
    world.eject(0);
    world.detector.passed_check(&world.hosts[0].0);
    assert_eq!(world.ejected(), [0]);
}

// The times: Envoy 1.40 for the same configuration, rounded up to its interval.
#[tokio::test(start_paused = true)]
async fn a_host_that_says_it_is_degraded_is_so_for_longer_and_longer() {
    let millis = |millis: i32| Some(Span { seconds: 0, nanos: millis * 1_000_000 });
    let message = Message {
        base_ejection_time: millis(600),
        max_ejection_time: Some(Span { seconds: 1, nanos: 300_000_000 }),
        max_ejection_percent: Some(UInt32Value { value: 0 }),
        detect_degraded_hosts: Some(BoolValue { value: true }),
        ..Message::default()
    };
    let mut world = World::new(1, message);
    let (host, tally) = world.hosts[0].clone();
    let flags = || host.flags().to_string();
    for lasts in [600, 1200, 1300, 1300] {
        assert!(tally.becomes_degraded());
        world.detector.degraded(&host);
        assert!(!tally.becomes_degraded());
        world.pass(lasts - 100).await;
        assert_eq!(flags(), "/degraded_outlier_detection", "{lasts}");
        world.pass(100).await;
        assert_eq!(flags(), "healthy", "{lasts}");
    }
    assert_eq!((world.stat("ejections_detected_degradation"), world.stat("ejections_active")), (4, 0));
    // Well for some intervals, it begins anew; and it may be ejected beside that.
    world.pass(1000).await;
    world.detector.degraded(&host);
    host.set_flags(host.flags().with(HealthFlag::FailedOutlierCheck));
    world.pass(600).await;
    assert_eq!(flags(), "healthy");
}
