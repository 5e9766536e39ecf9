mod health;

use super::super::thread_local::{ClusterContext, Clusters};
use super::*;
use futures_util::future::LocalBoxFuture;
use nuncio_api::pb::envoy::config::core::v3 as core_pb;
use nuncio_api::pb::envoy::config::endpoint::v3 as ep;
use nuncio_core::net::Address;
use nuncio_core::random::Rng;
use nuncio_core::time::WallClock;
use nuncio_core::upstream::{AsyncClient, Choice, HealthFlag, HealthFlags, HostSpec, LbContext};
use nuncio_discovery::HostSource;
use nuncio_discovery::dns::{DnsResolvers, SharedResolvers};
use nuncio_discovery::xds::Files;
use prost::Message;
use std::time::Duration;

use crate::upstream::testing::{Net, NoCalls, settle};

/// A worker that takes messages when they are sent.
struct OneWorker {
    clusters: Rc<Clusters>,
    messages: RefCell<Vec<usize>>,
}

impl Publish for OneWorker {
    fn publish(&self, updates: Arc<[ClusterUpdate]>) {
        self.messages.borrow_mut().push(updates.len());
        self.clusters.apply(&updates);
    }
}

type Sinks = Rc<RefCell<Vec<HostSink>>>;

/// `type: EDS` here: the test speaks for the source.
struct Told(Sinks);

impl HostSourceFactory for Told {
    fn name(&self) -> &'static str {
        "told"
    }

    fn discovery_type(&self) -> Option<pb::cluster::DiscoveryType> {
        Some(pb::cluster::DiscoveryType::Eds)
    }

    fn check(&self, _: &pb::Cluster) -> Result<Box<dyn HostSource>, Vec<ConfigError>> {
        Ok(Box::new(Told(self.0.clone())))
    }
}

impl HostSource for Told {
    fn who(&self) -> Option<String> {
        Some("the test".to_owned())
    }

    fn run(self: Box<Self>, _: SourceContext, sink: HostSink) -> LocalBoxFuture<'static, ()> {
        Box::pin(async move {
            self.0.borrow_mut().push(sink);
            std::future::pending().await
        })
    }
}

struct Main {
    manager: ClusterManager,
    store: Rc<RefCell<Store>>,
    worker: Rc<OneWorker>,
    sinks: Sinks,
}

impl Main {
    /// Where the test speaks for EDS, and nobody answers.
    fn new() -> Self {
        let sinks = Sinks::default();
        let told = Box::new(Told(sinks.clone()));
        let store = Rc::new(RefCell::new(Store::new()));
        let dns = Rc::new(SharedResolvers::new(Rc::default(), &store, |_| true));
        Self { sinks, ..Self::made(store, Some(told), dns, Rc::new(NoCalls)) }
    }

    /// With the sources that the proxy has.
    fn in_world(dns: Rc<dyn DnsResolvers>, client: Rc<dyn AsyncClient>) -> Self {
        Self::made(Rc::new(RefCell::new(Store::new())), None, dns, client)
    }

    fn made(
        store: Rc<RefCell<Store>>,
        told: Option<Box<Told>>,
        dns: Rc<dyn DnsResolvers>,
        client: Rc<dyn AsyncClient>,
    ) -> Self {
        let clusters = Clusters::new(ClusterContext {
            connect: Rc::new(Net::default()),
            buffers: Rc::default(),
            rng: Rng::with_seed(1),
            stats: store.borrow().main().clone(),
            connection_ids: Default::default(),
            own_listeners: Rc::default(),
        });
        let mut factories = sources::factories();
        if let Some(told) = told {
            factories.insert(0, told);
        }
        let clock = WallClock::fixed(SystemTime::UNIX_EPOCH);
        let node = Arc::new(core_pb::Node { id: "n".into(), cluster: "c".into(), ..Default::default() });
        let context = SourceContext { rng: Rng::with_seed(1), clock, dns, client, node, files: Files::default() };
        let manager = ClusterManager::new(&store, factories, ClusterDefaults::default(), context);
        Self {
            manager,
            store,
            worker: Rc::new(OneWorker { clusters, messages: RefCell::default() }),
            sinks: Sinks::default(),
        }
    }

    fn add(&self, message: &pb::Cluster) -> Result<(), String> {
        let added = self.manager.add_static(message, message.encode_to_vec().into());
        added.map_err(|errors| errors[0].to_string())
    }

    fn update(&self, message: &pb::Cluster) -> bool {
        self.manager.add_or_update(message, message.encode_to_vec().into(), &"1".into()).unwrap()
    }

    fn start(&self) {
        self.manager.start(self.worker.clone());
    }

    fn stat(&self, name: &str) -> u64 {
        self.store.borrow_mut().value(name).unwrap_or_else(|| panic!("no stat {name}"))
    }

    fn sink(&self, at: usize) -> HostSink {
        self.sinks.borrow()[at].clone()
    }

    fn messages(&self) -> Vec<usize> {
        std::mem::take(&mut *self.worker.messages.borrow_mut())
    }

    /// Where the worker would send a request to.
    fn port(&self, cluster: &str) -> Option<u16> {
        match self.worker.clusters.get(cluster)?.choose(&LbContext::default()) {
            Choice::Host(host) => host.address().port(),
            _ => None,
        }
    }
}

fn fixed(name: &str, ports: &[u32]) -> pb::Cluster {
    let endpoint = |port: &u32| {
        let socket = core_pb::SocketAddress {
            address: "127.0.0.1".into(),
            port_specifier: Some(core_pb::socket_address::PortSpecifier::PortValue(*port)),
            ..Default::default()
        };
        let address = core_pb::Address { address: Some(core_pb::address::Address::SocketAddress(socket)) };
        let endpoint = ep::Endpoint { address: Some(address), ..Default::default() };
        ep::LbEndpoint {
            host_identifier: Some(ep::lb_endpoint::HostIdentifier::Endpoint(endpoint)),
            ..Default::default()
        }
    };
    let group = ep::LocalityLbEndpoints { lb_endpoints: ports.iter().map(endpoint).collect(), ..Default::default() };
    let assignment = ep::ClusterLoadAssignment { endpoints: vec![group], ..Default::default() };
    pb::Cluster { name: name.into(), load_assignment: Some(assignment), ..Default::default() }
}

fn told(name: &str) -> pb::Cluster {
    let discovery = pb::cluster::ClusterDiscoveryType::Type(pb::cluster::DiscoveryType::Eds.into());
    pb::Cluster { name: name.into(), cluster_discovery_type: Some(discovery), ..Default::default() }
}

fn hosts(ports: &[u16]) -> Vec<HostSpec> {
    ports.iter().map(|port| HostSpec::new(Address::Ip(([127, 0, 0, 1], *port).into()))).collect()
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn static_clusters_reach_the_workers_in_one_message() {
    let main = Main::new();
    for at in 0..50 {
        main.add(&fixed(&format!("c{at}"), &[at + 1])).unwrap();
    }
    assert_eq!(main.stat("cluster_manager.cluster_added"), 50);
    main.start();
    main.manager.initialized().await;
    settle().await;
    assert_eq!(main.messages(), [50]);
    assert_eq!(main.port("c7"), Some(8));
    let names = ["cluster_manager.active_clusters", "cluster.c7.membership_total", "cluster.c7.membership_change"];
    assert_eq!(names.map(|name| main.stat(name)), [50, 1, 1]);
    let statuses = main.manager.statuses();
    assert_eq!((&**statuses[7].snapshot.config.name(), statuses[7].warming), ("c7", false));
}

#[test]
fn a_second_cluster_of_a_name_is_refused_in_envoys_words() {
    let main = Main::new();
    main.add(&fixed("c", &[])).unwrap();
    assert_eq!(main.add(&fixed("c", &[])).unwrap_err(), "name: cluster manager: duplicate cluster 'c'");
}

#[test]
fn what_is_wrong_with_configuration_and_hosts_is_told_together() {
    let main = Main::new();
    let mut message = fixed("c", &[1]);
    message.lb_policy = pb::cluster::LbPolicy::ClusterProvided.into();
    message.eds_cluster_config = Some(Default::default());
    let errors = main.manager.add_static(&message, Bytes::new()).unwrap_err();
    let paths: Vec<_> = errors.iter().map(|e| e.path.as_str()).collect();
    assert_eq!(paths, ["lb_policy", "eds_cluster_config"]);
    assert!(!main.manager.contains("c"));
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn a_cluster_is_published_when_its_source_has_spoken_even_of_failure() {
    let main = Main::new();
    main.add(&told("a")).unwrap();
    main.add(&told("b")).unwrap();
    main.start();
    assert!(!main.worker.clusters.contains("a"));
    let waiting = main.manager.awaited();
    let names: Vec<_> = waiting.iter().map(|one| (&*one.name, one.who.as_deref())).collect();
    assert_eq!(names, [("a", Some("the test")), ("b", Some("the test"))]);
    let ready = tokio::task::spawn_local({
        let manager = main.manager.clone();
        async move { manager.initialized().await }
    });
    main.sink(0).replace(hosts(&[1]));
    settle().await;
    assert!(!ready.is_finished());
    main.sink(1).failed("nobody answers");
    ready.await.unwrap();
    settle().await;
    assert!(main.worker.clusters.contains("a") && main.worker.clusters.contains("b"));
    assert_eq!(main.manager.awaited().len(), 0);
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn a_burst_of_updates_is_one_message_with_the_latest() {
    let main = Main::new();
    main.add(&told("a")).unwrap();
    main.add(&told("b")).unwrap();
    main.start();
    main.sink(0).replace(hosts(&[1]));
    main.sink(1).replace(hosts(&[1]));
    settle().await;
    main.messages();
    for port in 2..20 {
        main.sink(0).replace(hosts(&[port]));
        main.sink(1).replace(hosts(&[port]));
    }
    settle().await;
    assert_eq!(main.messages(), [2]);
    let both = [main.port("a"), main.port("b")];
    assert_eq!(both.map(|port| port.is_some()), [true, true]);
    // The same truth again is no news, and a failure keeps the hosts.
    main.sink(0).replace(hosts(&[main.port("a").unwrap()]));
    main.sink(0).failed("no answer");
    settle().await;
    assert_eq!(main.messages(), [0; 0]);
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn changes_of_weight_alone_wait_for_the_merge_window() {
    let main = Main::new();
    main.add(&told("a")).unwrap();
    main.start();
    main.sink(0).replace(hosts(&[1]));
    settle().await;
    let weighted = |weight| vec![HostSpec { weight, ..hosts(&[1]).remove(0) }];
    // The first is out of any window, and opens one.
    main.sink(0).replace(weighted(2));
    settle().await;
    main.messages();
    main.sink(0).replace(weighted(3));
    main.sink(0).replace(weighted(4));
    settle().await;
    assert_eq!(main.messages(), [0; 0]);
    tokio::time::sleep(Duration::from_millis(1001)).await;
    settle().await;
    assert_eq!(main.messages(), [1]);
    assert_eq!(main.stat("cluster_manager.cluster_updated_via_merge"), 1);
    // A new host does not wait, and takes what waits with it.
    main.sink(0).replace(weighted(5));
    main.sink(0).replace(hosts(&[1, 2]));
    settle().await;
    assert_eq!(main.messages(), [1]);
    assert_eq!(main.stat("cluster_manager.update_merge_cancelled"), 1);
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn an_update_by_cds_serves_when_it_is_warm_and_the_old_one_until_then() {
    let main = Main::new();
    main.start();
    assert!(main.update(&told("a")));
    main.sink(0).replace(hosts(&[1]));
    settle().await;
    assert_eq!(main.port("a"), Some(1));
    assert!(!main.update(&told("a")));
    let mut next = told("a");
    next.lb_policy = pb::cluster::LbPolicy::Random.into();
    assert!(main.update(&next));
    settle().await;
    assert_eq!(main.stat("cluster_manager.warming_clusters"), 1);
    assert_eq!(main.manager.statuses().iter().map(|s| s.warming).collect::<Vec<_>>(), [false, true]);
    // The old source may still speak.
    main.sink(0).replace(hosts(&[2]));
    settle().await;
    assert_eq!(main.port("a"), Some(2));
    main.sink(1).replace(hosts(&[3]));
    settle().await;
    assert_eq!(main.port("a"), Some(3));
    // It is nobody's source any more.
    main.sink(0).replace(hosts(&[4]));
    settle().await;
    assert_eq!(main.port("a"), Some(3));
    let names = ["cluster_added", "cluster_modified", "active_clusters", "warming_clusters"];
    assert_eq!(names.map(|name| main.stat(&format!("cluster_manager.{name}"))), [1, 1, 1, 0]);
    // The members of the replaced one are not shown beside the new ones.
    assert_eq!(["total", "healthy"].map(|name| main.stat(&format!("cluster.a.membership_{name}"))), [1, 1]);
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn a_removed_cluster_is_gone_and_may_come_back() {
    let main = Main::new();
    main.add(&fixed("fixed", &[1])).unwrap();
    main.start();
    main.update(&fixed("a", &[1]));
    settle().await;
    assert!(main.worker.clusters.contains("a"));
    assert!(!main.manager.remove("fixed") && !main.manager.remove("nobody"));
    assert!(main.manager.remove("a") && !main.manager.remove("a"));
    settle().await;
    assert!(!main.worker.clusters.contains("a") && !main.manager.contains("a"));
    assert_eq!(main.store.borrow_mut().value("cluster.a.membership_total"), None);
    main.update(&fixed("a", &[2]));
    settle().await;
    assert_eq!(main.port("a"), Some(2));
    // Gone and back within one message.
    main.messages();
    main.manager.remove("a");
    main.update(&fixed("a", &[3]));
    settle().await;
    assert_eq!((main.messages(), main.port("a")), (vec![1], Some(3)));
    assert!(!main.update(&fixed("fixed", &[9])));
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn health_changes_the_picture_and_drains_the_host() {
    let main = Main::new();
    main.add(&fixed("c", &[1, 2])).unwrap();
    main.start();
    let host = main.manager.statuses()[0].snapshot.hosts.priorities[0].hosts[0].clone();
    main.manager.set_health("c", &host, HealthFlags::default().with(HealthFlag::FailedActiveHc), "test");
    settle().await;
    assert_eq!(main.messages(), [1, 2]);
    assert_eq!([main.port("c"), main.port("c")], [Some(2), Some(2)]);
    assert_eq!(main.stat("cluster.c.membership_healthy"), 1);
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn gauges_of_breakers_follow_what_is_in_use() {
    let main = Main::new();
    let thresholds = vec![pb::circuit_breakers::Thresholds {
        max_retries: Some(nuncio_api::pb::google::protobuf::UInt32Value { value: 1 }),
        track_remaining: true,
        ..Default::default()
    }];
    let breakers = pb::CircuitBreakers { thresholds, ..Default::default() };
    main.add(&pb::Cluster { circuit_breakers: Some(breakers), ..fixed("c", &[1]) }).unwrap();
    main.start();
    let names = ["circuit_breakers.default.rq_retry_open", "circuit_breakers.default.remaining_retries"];
    let read = || names.map(|name| main.stat(&format!("cluster.c.{name}")));
    assert_eq!(read(), [0, 1]);
    let cluster = main.worker.clusters.get("c").unwrap();
    let permit = cluster.admit_retry(crate::upstream::Priority::Default);
    assert!(permit.is_some() && cluster.admit_retry(crate::upstream::Priority::Default).is_none());
    assert_eq!(read(), [1, 0]);
    drop(permit);
    assert_eq!(read(), [0, 1]);
}

/// With metadata that asks for protection.
fn protected(name: &str, fields: &[(&str, &str)]) -> pb::Cluster {
    use nuncio_api::pb::google::protobuf::{Struct, Value, value::Kind};
    let value = |text: &str| Value { kind: Some(Kind::StringValue(text.into())) };
    let fields = fields.iter().map(|(key, text)| ((*key).to_owned(), value(text))).collect();
    let filter_metadata = [("nuncio.discovery".to_owned(), Struct { fields })].into();
    pb::Cluster { metadata: Some(core_pb::Metadata { filter_metadata, ..Default::default() }), ..told(name) }
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn an_empty_answer_empties_a_protected_cluster_only_after_a_while() {
    let main = Main::new();
    main.add(&protected("a", &[("keep_last_good", "60s")])).unwrap();
    main.start();
    main.sink(0).replace(hosts(&[1]));
    for _ in 0..5 {
        tokio::time::sleep(Duration::from_secs(10)).await;
        main.sink(0).replace(hosts(&[]));
    }
    assert_eq!(main.port("a"), Some(1));
    assert_eq!((main.stat("cluster.a.discovery.kept_on_empty"), main.stat("cluster.a.discovery.keeping")), (5, 1));
    // The time counts from the first empty answer, and nobody needs to speak when it is over.
    tokio::time::sleep(Duration::from_secs(21)).await;
    settle().await;
    assert_eq!((main.port("a"), main.stat("cluster.a.discovery.keeping")), (None, 0));
    // Somebody comes back in time: all is forgotten.
    main.sink(0).replace(hosts(&[2]));
    main.sink(0).replace(hosts(&[]));
    main.sink(0).replace(hosts(&[3]));
    tokio::time::sleep(Duration::from_secs(61)).await;
    settle().await;
    assert_eq!((main.port("a"), main.stat("cluster.a.discovery.keeping")), (Some(3), 0));
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn of_two_servers_that_disagree_the_older_one_is_not_believed() {
    let main = Main::new();
    main.add(&protected("a", &[("refuse_older", "60s")])).unwrap();
    main.start();
    let say = |version: &str, port| {
        main.sink(0).version(version);
        main.sink(0).replace(hosts(&[port]));
    };
    say("old", 1);
    settle().await;
    let gauge = main.stat("cluster.a.version");
    say("new", 2);
    say("old", 1);
    say("old", 1);
    settle().await;
    assert_eq!((main.port("a"), main.stat("cluster.a.discovery.refused_older")), (Some(2), 2));
    assert_ne!(main.stat("cluster.a.version"), gauge);
    tokio::time::sleep(Duration::from_secs(61)).await;
    say("old", 1);
    settle().await;
    assert_eq!((main.port("a"), main.stat("cluster.a.version")), (Some(1), gauge));
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn who_named_a_host_and_who_did_not_is_on_record() {
    let main = Main::new();
    main.add(&told("a")).unwrap();
    main.add(&fixed("b", &[1])).unwrap();
    main.start();
    main.sink(0).version("7");
    main.sink(0).replace(hosts(&[1, 2]));
    main.sink(0).version("8");
    main.sink(0).replace(hosts(&[2, 3]));
    main.sink(0).failed("nobody answers");
    let known = main.manager.provenance(|_| true);
    let (status, said) = &known[0];
    let origins = status.snapshot.hosts.hosts().map(|host| host.origin().map(|o| (&*o.who, &*o.version)));
    assert_eq!(origins.collect::<Vec<_>>(), [Some(("the test", "7")), Some(("the test", "8"))]);
    let said = said.as_ref().unwrap();
    assert_eq!(said.good.as_ref().map(|good| (&*good.version, good.hosts)), Some(("8", 2)));
    assert_eq!(&*said.failed.as_ref().unwrap().reason, "nobody answers");
    let removed: Vec<_> = said.removed.iter().map(|gone| (&*gone.address, gone.why.as_str())).collect();
    assert_eq!(removed, [("127.0.0.1:1", "version 8 of the test does not name it")]);
    assert!(known[1].1.is_none());
}
