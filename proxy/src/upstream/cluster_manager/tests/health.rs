//! Discovery against health, with a manager, its checks and hosts in memory: the table cell by cell, and chance.

use std::collections::{BTreeSet, HashMap};

use nuncio_core::net::{Connect, ConnectOptions, Connected};
use nuncio_core::random::Rng;
use nuncio_core::runtime::NoRuntime;
use nuncio_core::upstream::{Host, Outcome};
use proptest::prelude::{Just, ProptestConfig, Strategy, prop_oneof, proptest};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::upstream::dial::DialContext;
use crate::upstream::testing::memory;

/// How a host answers checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Well,
    Failing,
    Silent,
    Refusing,
    Degraded,
    /// A good head, and a body that never ends its ten megabytes in time.
    Dripping,
    /// Ten megabytes at once.
    Huge,
    Noise,
    /// The first bytes of a TLS alert.
    Tls,
    /// Half a head, then the end.
    Half,
}

/// Hosts by port, which change their ways.
#[derive(Clone, Default)]
struct Peers {
    ways: Rc<RefCell<HashMap<u16, Way>>>,
    asked: Rc<Cell<usize>>,
}

impl Peers {
    fn way(&self, port: u16) -> Way {
        self.ways.borrow().get(&port).copied().unwrap_or(Way::Well)
    }

    fn set(&self, port: u16, way: Way) {
        self.ways.borrow_mut().insert(port, way);
    }

    async fn serve(self, port: u16, mut far: tokio::io::DuplexStream) {
        let mut head = Vec::new();
        while let Ok(byte) = far.read_u8().await {
            head.push(byte);
            if !head.ends_with(b"\r\n\r\n") {
                continue;
            }
            head.clear();
            self.asked.set(self.asked.get() + 1);
            let told = match self.way(port) {
                Way::Well => far.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await,
                Way::Failing => far.write_all(b"HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n").await,
                Way::Degraded => {
                    far.write_all(b"HTTP/1.1 200 OK\r\nx-envoy-degraded: 1\r\ncontent-length: 0\r\n\r\n").await
                }
                Way::Silent => std::future::pending().await,
                Way::Refusing => return,
                Way::Dripping => loop {
                    if head.is_empty() {
                        head.extend_from_slice(b"HTTP/1.1 200 OK\r\ncontent-length: 10000000\r\n\r\n");
                        far.write_all(&head).await.unwrap();
                    }
                    if far.write_all(b"x").await.is_err() {
                        return;
                    }
                    tokio::time::sleep(Duration::from_secs(1)).await;
                },
                Way::Huge => {
                    let sent = far.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10000000\r\n\r\n").await;
                    sent.and(far.write_all(&vec![b'x'; 10_000_000]).await)
                }
                Way::Noise => far.write_all(&[0xff, 0, 0x80, 7, b'\n', 1, 2, 3]).await,
                Way::Tls => far.write_all(&[0x15, 3, 1, 0, 2, 2, 10]).await,
                Way::Half => {
                    let _ = far.write_all(b"HTTP/1.1 200 OK\r\nconte").await;
                    return;
                }
            };
            if told.is_err() {
                return;
            }
        }
    }
}

impl Connect for Peers {
    fn connect(&self, address: &Address, _: &ConnectOptions) -> LocalBoxFuture<'static, std::io::Result<Connected>> {
        let (peers, remote) = (self.clone(), address.clone());
        Box::pin(async move {
            let port = remote.port().unwrap();
            if peers.way(port) == Way::Refusing {
                return Err(std::io::ErrorKind::ConnectionRefused.into());
            }
            let (io, far) = memory();
            tokio::task::spawn_local(peers.serve(port, far));
            Ok(Connected { io, local: None, remote })
        })
    }
}

/// How the discovery types word a host.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Eds,
    Sds,
    StrictDns,
}

impl Kind {
    fn spec(self, port: u16) -> HostSpec {
        let spec = HostSpec::new(Address::Ip(([127, 0, 0, 1], port).into()));
        match self {
            Self::Eds => spec,
            Self::Sds => HostSpec { weight: 3, canary: port == 2, ..spec },
            Self::StrictDns => HostSpec { hostname: "web.test".into(), ..spec },
        }
    }
}

struct Town {
    main: Main,
    peers: Peers,
    kind: Kind,
}

impl Town {
    /// A cluster `c`, with or without checks; `more` is YAML of its fields.
    fn new(kind: Kind, checks: bool, more: &str) -> Self {
        let checks = if checks {
            "health_checks: [{timeout: 1s, interval: 5s, no_traffic_interval: 5s, unhealthy_threshold: 1, \
             healthy_threshold: 1, http_health_check: {path: /hc}}],"
        } else {
            ""
        };
        let yaml = format!(
            "{{name: c, type: EDS, eds_cluster_config: {{eds_config: {{ads: {{}}}}}}, {checks} {more} common_lb_config: \
             {{update_merge_window: 0s, healthy_panic_threshold: {{value: 0}}}}}}"
        );
        let source = nuncio_api::Source::text("test", nuncio_api::Format::Yaml, yaml);
        let loaded = nuncio_api::load_message::<pb::Cluster>(source, &nuncio_api::LoadOptions::default());
        let message = loaded.unwrap_or_else(|problems| panic!("{problems:#?}")).message;
        let (main, peers) = (Main::new(), Peers::default());
        let dial = DialContext { connect: Rc::new(peers.clone()), buffers: Rc::default(), rng: Rng::with_seed(1) };
        main.manager.probe_with(dial, Rc::new(NoRuntime));
        main.add(&message).unwrap();
        main.start();
        Self { main, peers, kind }
    }

    async fn discover(&self, ports: &[u16]) {
        let specs: Vec<HostSpec> = ports.iter().map(|port| self.kind.spec(*port)).collect();
        self.main.sink(0).replace(specs);
        settle().await;
    }

    /// Long enough for every check that is due in it to end.
    async fn pass(&self, seconds: u64) {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        settle().await;
    }

    /// Its flags; none if it is gone.
    fn flags(&self, port: u16) -> Option<String> {
        let clusters = self.main.manager.active();
        let hosts = clusters.iter().flat_map(|cluster| cluster.hosts.hosts());
        hosts.filter(|host| host.address().port() == Some(port)).map(|host| host.flags().to_string()).next()
    }

    fn host(&self, port: u16) -> Option<Arc<Host>> {
        let clusters = self.main.manager.active();
        clusters.iter().flat_map(|cluster| cluster.hosts.hosts()).find(|h| h.address().port() == Some(port)).cloned()
    }

    /// Where a worker sends requests to.
    fn routed(&self) -> BTreeSet<u16> {
        (0..40).filter_map(|_| self.main.port("c")).collect()
    }

    fn last_reason(&self) -> String {
        self.main.manager.transitions().first().map(|transition| transition.reason.to_string()).unwrap_or_default()
    }
}

const KINDS: [Kind; 3] = [Kind::Eds, Kind::Sds, Kind::StrictDns];

/// One cell of the table: host 2 ends up so, beside host 1 which is always there and well.
#[derive(Debug, Clone, Copy)]
struct Cell2 {
    kind: Kind,
    present: bool,
    /// None: the cluster has no checks.
    way: Option<Way>,
    discovery_first: bool,
    ignores_health: bool,
}

/// Flags, and whether it is routed to; none if it is deleted.
fn expected(cell: &Cell2) -> Option<(&'static str, bool)> {
    match (cell.present, cell.way) {
        (true, None | Some(Way::Well)) => Some(("healthy", true)),
        (true, Some(Way::Silent)) => Some(("/failed_active_hc/active_hc_timeout", false)),
        (true, Some(_)) => Some(("/failed_active_hc", false)),
        (false, Some(Way::Well)) if !cell.ignores_health => Some(("/pending_dynamic_removal", true)),
        (false, _) => None,
    }
}

async fn check(cell: Cell2) {
    let more = if cell.ignores_health { "ignore_health_on_host_removal: true," } else { "" };
    let town = Town::new(cell.kind, cell.way.is_some(), more);
    town.discover(&[1, 2]).await;
    town.pass(6).await;
    assert_eq!(town.routed(), BTreeSet::from([1, 2]), "{cell:?}: at first both");
    let listed: &[u16] = if cell.present { &[1, 2] } else { &[1] };
    let way = cell.way.unwrap_or(Way::Well);
    if cell.discovery_first {
        town.discover(listed).await;
        town.peers.set(2, way);
        town.pass(7).await;
    } else {
        town.peers.set(2, way);
        town.pass(7).await;
        town.discover(listed).await;
    }
    let flags = town.flags(2);
    let (want, routed) = expected(&cell).map_or((None, false), |(flags, routed)| (Some(flags), routed));
    assert_eq!(flags.as_deref(), want, "{cell:?}");
    assert_eq!(town.routed().contains(&2), routed, "{cell:?}");
    assert!(town.routed().contains(&1), "{cell:?}");
    assert_eq!(town.main.stat("cluster.c.membership_total"), 1 + u64::from(want.is_some()), "{cell:?}");
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn the_table_of_discovery_and_health_holds_in_every_cell_and_in_both_orders() {
    for kind in KINDS {
        for present in [true, false] {
            for way in [None, Some(Way::Well), Some(Way::Failing), Some(Way::Silent), Some(Way::Refusing)] {
                for discovery_first in [true, false] {
                    for ignores_health in [true, false] {
                        check(Cell2 { kind, present, way, discovery_first, ignores_health }).await;
                    }
                }
            }
        }
    }
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn a_host_that_comes_back_loses_the_mark_without_another_check() {
    let town = Town::new(Kind::Eds, true, "");
    town.discover(&[1, 2]).await;
    town.pass(6).await;
    town.discover(&[1]).await;
    let (asked, host) = (town.peers.asked.get(), town.host(2).unwrap());
    assert_eq!(town.flags(2).as_deref(), Some("/pending_dynamic_removal"));
    town.discover(&[1, 2]).await;
    assert_eq!((town.flags(2).as_deref(), town.peers.asked.get()), (Some("healthy"), asked));
    assert!(Arc::ptr_eq(&host, &town.host(2).unwrap()), "it is the same host");
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn an_empty_answer_makes_everything_absent_and_nothing_unroutable() {
    let town = Town::new(Kind::Sds, true, "");
    town.discover(&[1, 2, 3]).await;
    town.pass(6).await;
    town.discover(&[]).await;
    assert_eq!(town.routed(), BTreeSet::from([1, 2, 3]));
    // Each is deleted with the check that fails, and no sooner.
    town.peers.set(3, Way::Failing);
    town.pass(6).await;
    assert_eq!((town.flags(3), town.routed()), (None, BTreeSet::from([1, 2])));
    assert!(town.last_reason().contains("GET http://127.0.0.1:3/hc (Host: c): HTTP 503"));
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn discoverys_own_word_deletes_an_absent_host_and_an_ejection_does_not() {
    let ejects = "outlier_detection: {consecutive_5xx: 1, max_ejection_percent: 100, \
                  successful_active_health_check_uneject_host: false},";
    let town = Town::new(Kind::Eds, true, ejects);
    town.discover(&[1, 2, 3]).await;
    town.pass(6).await;
    let failed = HostSpec { eds_health: HealthFlags::default().with(HealthFlag::FailedEdsHealth), ..Kind::Eds.spec(2) };
    town.main.sink(0).replace(vec![Kind::Eds.spec(1), failed, Kind::Eds.spec(3)]);
    town.host(3).unwrap().report(Outcome::Answered { status: 500 });
    settle().await;
    assert_eq!(town.routed(), BTreeSet::from([1]));
    town.discover(&[1]).await;
    assert_eq!(town.flags(2), None);
    assert_eq!(town.flags(3).as_deref(), Some("/failed_outlier_check/pending_dynamic_removal"));
    assert_eq!(town.main.stat("cluster.c.outlier_detection.ejections_active"), 1);
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn a_cluster_serves_after_the_first_round_of_checks() {
    let town = Town::new(Kind::Eds, true, "");
    town.peers.set(2, Way::Silent);
    town.discover(&[1, 2]).await;
    assert_eq!(town.main.manager.awaited().len(), 1, "host 2 has not answered yet");
    town.pass(2).await;
    assert!(town.main.manager.awaited().is_empty());
    assert_eq!(town.routed(), BTreeSet::from([1]));
    // The failure is told with what was asked, although no flag changed by it.
    assert_eq!(town.last_reason(), "GET http://127.0.0.1:2/hc (Host: c): timeout");
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn bad_answers_fail_the_host_are_counted_and_are_named() {
    for (way, fails, reason, network) in [
        (Way::Huge, false, "", 0),
        (Way::Dripping, true, "timeout", 1),
        (Way::Silent, true, "timeout", 1),
        (Way::Noise, true, "protocol error", 1),
        (Way::Tls, true, "protocol error", 1),
        (Way::Half, true, "protocol error: closed within a head", 1),
        (Way::Refusing, true, "cannot connect: connection refused", 1),
        (Way::Failing, true, "HTTP 503", 0),
    ] {
        let town = Town::new(Kind::Eds, true, "");
        town.discover(&[1, 2]).await;
        town.pass(1).await;
        town.peers.set(2, way);
        town.pass(7).await;
        assert_eq!(town.routed().contains(&2), !fails, "{way:?}");
        let failures = town.main.stat("cluster.c.health_check.network_failure");
        assert_eq!(failures > 0, network > 0, "{way:?}");
        if fails {
            let told = town.last_reason();
            assert!(told.to_lowercase().contains(&reason.to_lowercase()), "{way:?}: {told}");
            assert!(told.contains("GET http://127.0.0.1:2/hc (Host: c)"), "{told}");
        }
        // And it comes back.
        town.peers.set(2, Way::Well);
        town.pass(7).await;
        assert!(town.routed().contains(&2), "{way:?}");
    }
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn a_crowd_is_spread_over_the_interval_from_the_second_round_on() {
    let town = Town::new(Kind::Eds, true, "");
    let ports: Vec<u16> = (1..=1000).collect();
    town.discover(&ports).await;
    town.pass(5).await;
    // 1000 in 5 s are 20 in each 100 ms.
    let mut most = 0;
    for _ in 0..50 {
        let before = town.peers.asked.get();
        tokio::time::sleep(Duration::from_millis(100)).await;
        most = most.max(town.peers.asked.get() - before);
    }
    assert!(most <= 40, "{most} in 100 ms");
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn degraded_hosts_and_immediate_failure_show_in_the_rotation() {
    let town = Town::new(Kind::Eds, true, "");
    town.discover(&[1, 2]).await;
    town.pass(1).await;
    town.peers.set(2, Way::Degraded);
    town.pass(6).await;
    assert_eq!(town.flags(2).as_deref(), Some("/degraded_active_hc"));
    town.host(1).unwrap().report(Outcome::FailsAtOnce);
    settle().await;
    assert_eq!(town.flags(1).as_deref(), Some("/failed_active_hc/excluded_via_immediate_hc_fail"));
    assert_eq!(town.routed(), BTreeSet::from([2]));
    assert_eq!(town.main.stat("cluster.c.health_check.passive_failure"), 1);
    town.pass(6).await;
    assert_eq!(town.flags(1).as_deref(), Some("healthy"));
}

#[derive(Debug, Clone)]
enum Step {
    Discover(BTreeSet<u16>),
    Becomes(u16, Way),
    Pass(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let way = prop_oneof![Just(Way::Well), Just(Way::Failing), Just(Way::Silent), Just(Way::Refusing)];
    let step = prop_oneof![
        proptest::collection::btree_set(1u16..5, 0..5).prop_map(Step::Discover),
        (1u16..5, way).prop_map(|(port, way)| Step::Becomes(port, way)),
        (1u64..8).prop_map(Step::Pass),
    ];
    proptest::collection::vec(step, 1..25)
}

async fn live(steps: Vec<Step>) {
    let town = Town::new(Kind::Eds, true, "");
    let mut listed = BTreeSet::from([1, 2, 3, 4]);
    town.discover(&[1, 2, 3, 4]).await;
    town.pass(2).await;
    for step in steps {
        let before: HashMap<u16, String> = (1..5).filter_map(|port| Some((port, town.flags(port)?))).collect();
        match &step {
            Step::Discover(ports) => {
                listed = ports.clone();
                town.discover(&ports.iter().copied().collect::<Vec<_>>()).await;
            }
            Step::Becomes(port, way) => town.peers.set(*port, *way),
            Step::Pass(seconds) => town.pass(*seconds).await,
        }
        settle().await;
        let routed = town.routed();
        for port in 1..5 {
            let flags = town.flags(port);
            let failed = flags.as_ref().is_none_or(|flags| flags.contains("/failed_active_hc"));
            assert!(listed.contains(&port) || !failed || !routed.contains(&port), "absent and failed: {port} {step:?}");
            assert!(listed.contains(&port) || flags.as_ref().is_none_or(|flags| !flags.contains("failed")), "{port}");
            let was_well = before.get(&port).is_some_and(|flags| !flags.contains("failed"));
            // Only a check that failed may delete a host that was well.
            let may_have_failed = matches!(step, Step::Pass(_)) && town.peers.way(port) != Way::Well;
            assert!(flags.is_some() || !was_well || may_have_failed, "deleted although well: {port} {step:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_a_well_host_is_not_deleted_and_a_failed_one_that_is_absent_not_used(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build_local(tokio::runtime::LocalOptions::default())
            .unwrap();
        runtime.block_on(live(steps));
    }
}
