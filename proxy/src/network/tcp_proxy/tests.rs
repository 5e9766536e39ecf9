//! Sessions over an in-memory network and a paused clock. What is expected was seen at Envoy 1.40.

use std::cell::RefCell;
use std::sync::Mutex;

use nuncio_api::pb::envoy::config::cluster::v3 as cluster_pb;
use nuncio_api::pb::envoy::config::core::v3::Node;
use nuncio_api::pb::google::protobuf::{Duration as WireDuration, UInt32Value};
use nuncio_core::access_log::LogContext;
use nuncio_core::extension::WorkerContext;
use nuncio_core::net::{Address, ConnectionInfo};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use nuncio_core::stream_info::{ResponseFlag, ResponseFlags};

use super::*;
use crate::access_log::file::{FlushPolicy, LogWriter};
use crate::lifecycle::{Drain, DrainStrategy};
use crate::network::TrafficDirection;
use crate::upstream::testing::{House, Script, memory, settle};

/// Lines as `flags cluster host attempts received sent type`.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

impl AccessLogConfig for Lines {
    fn instantiate(&self, _: &WorkerContext) -> Box<dyn AccessLog> {
        Box::new(self.clone())
    }
}

impl AccessLog for Lines {
    fn log(&self, record: &LogContext<'_>) {
        let info = record.info;
        let line = format!(
            "{} {} {} {} {} {} {}",
            info.flags,
            info.upstream_cluster.as_ref().map_or("-", |c| &c.name),
            info.upstream_host.as_ref().map_or("-".into(), |h| h.address_text().to_shared()),
            info.attempt_count,
            info.bytes_received,
            info.bytes_sent,
            record.log_type.as_str()
        );
        self.0.lock().unwrap().push(line);
    }
}

struct Bench {
    house: House,
    filter: Rc<dyn TerminalFilter>,
    lines: Lines,
}

fn to_cluster(name: &str) -> pb::TcpProxy {
    pb::TcpProxy {
        stat_prefix: "t".into(),
        cluster_specifier: Some(pb::tcp_proxy::ClusterSpecifier::Cluster(name.into())),
        ..Default::default()
    }
}

fn millis(millis: i32) -> Option<WireDuration> {
    Some(WireDuration { seconds: 0, nanos: millis * 1_000_000 })
}

impl Bench {
    fn new(message: &pb::TcpProxy, house: House) -> Self {
        let lines = Lines::default();
        let listener = ListenerInfo {
            name: "in".into(),
            stat_name: "in".into(),
            buffer_limit: 1 << 20,
            direction: TrafficDirection::Unspecified,
            metadata: Default::default(),
        };
        let (warnings, scopes, node) = (RefCell::default(), RefCell::default(), Arc::new(Node::default()));
        let context = FactoryContext {
            name: "",
            stat_prefix: "",
            has_cluster: &|_| true,
            warnings: &warnings,
            node: &node,
            stats: &house.store,
            log_files: &LogWriter::new(FlushPolicy::default()),
            formats: &crate::format::Formats,
            scopes: &scopes,
        };
        let config = Config::check(message, vec![Arc::new(lines.clone())], &listener, &context).unwrap();
        let filter = Shared(Arc::new(config)).instantiate(&house.worker());
        Self { house, filter, lines }
    }

    fn with_hosts(message: &pb::TcpProxy, hosts: u16) -> Self {
        Self::new(message, House::new(cluster_pb::Cluster::default(), hosts))
    }

    /// The client's end of a new connection.
    fn connect(&self) -> (DuplexStream, AbortHandle) {
        self.connect_as(connection())
    }

    fn connect_as(&self, info: ConnectionInfo) -> (DuplexStream, AbortHandle) {
        let (io, client) = memory();
        let drain = Drain::new(Arc::default(), true, DrainStrategy::Gradual, Duration::ZERO);
        let task = self.filter.serve(Connection {
            io,
            info: Rc::new(info),
            preread: Vec::new(),
            drain: Rc::new(drain),
            record: None,
            guards: Box::new(()),
        });
        (client, task)
    }

    fn lines(&self) -> Vec<String> {
        self.lines.0.lock().unwrap().clone()
    }

    fn stat(&self, name: &str) -> u64 {
        self.house.store.borrow_mut().value(&format!("tcp.t.{name}")).unwrap()
    }
}

fn connection() -> ConnectionInfo {
    let address = |port: u16| Address::Ip(([127, 0, 0, 1], port).into());
    ConnectionInfo::new(1, address(1), address(2))
}

async fn read(client: &mut DuplexStream, expected: &str) {
    let mut got = vec![0; expected.len()];
    client.read_exact(&mut got).await.unwrap();
    assert_eq!(got, expected.as_bytes());
}

async fn at_end(client: &mut DuplexStream) {
    assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn an_end_from_the_host_leaves_the_session_open_until_the_client_ends_too() {
    let bench = Bench::with_hosts(&to_cluster("c"), 1);
    let (mut client, _) = bench.connect();
    settle().await;
    let mut host = bench.house.net.accepted().unwrap();
    host.answer("bye").await;
    host.end().await;
    read(&mut client, "bye").await;
    at_end(&mut client).await;
    settle().await;
    assert!(bench.lines().is_empty());
    client.write_all(b"still here\r\n\r\n").await.unwrap();
    assert_eq!(host.request().await, "still here\r\n\r\n");
    client.shutdown().await.unwrap();
    host.closed().await;
    settle().await;
    assert_eq!(bench.lines(), ["- c 127.0.0.1:1 1 14 3 TcpConnectionEnd"]);
    assert_eq!(bench.stat("downstream_cx_rx_bytes_total"), 14);
    assert_eq!(bench.stat("downstream_cx_tx_bytes_total"), 3);
    assert_eq!(bench.house.stats(["upstream_cx_rx_bytes_total", "upstream_cx_tx_bytes_total"]), [3, 14]);
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn the_idle_timeout_counts_from_the_last_byte_and_sets_no_flag() {
    let bench = Bench::with_hosts(&pb::TcpProxy { idle_timeout: millis(300), ..to_cluster("c") }, 1);
    let (mut client, _) = bench.connect();
    settle().await;
    let mut host = bench.house.net.accepted().unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    host.answer("x").await;
    read(&mut client, "x").await;
    let since = tokio::time::Instant::now();
    at_end(&mut client).await;
    assert_eq!(since.elapsed().as_millis(), 300);
    assert_eq!(bench.stat("idle_timeout"), 1);
    assert_eq!(bench.lines(), ["- c 127.0.0.1:1 1 0 1 TcpConnectionEnd"]);
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn the_longest_duration_ends_a_busy_session_too() {
    let message = pb::TcpProxy { max_downstream_connection_duration: millis(300), ..to_cluster("c") };
    let bench = Bench::with_hosts(&message, 1);
    let (mut client, _) = bench.connect();
    settle().await;
    let mut host = bench.house.net.accepted().unwrap();
    for _ in 0..2 {
        tokio::time::sleep(Duration::from_millis(140)).await;
        host.answer("x").await;
        read(&mut client, "x").await;
    }
    let since = tokio::time::Instant::now();
    at_end(&mut client).await;
    assert!(since.elapsed().as_millis() <= 21);
    assert_eq!(bench.lines(), ["DT c 127.0.0.1:1 1 0 2 TcpConnectionEnd"]);
    assert_eq!(bench.stat("max_downstream_connection_duration"), 1);
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn all_attempts_fail_one_after_the_other() {
    let message = pb::TcpProxy { max_connect_attempts: Some(UInt32Value { value: 3 }), ..to_cluster("c") };
    let bench = Bench::with_hosts(&message, 1);
    bench.house.net.script([Script::Refuse, Script::Hang, Script::Refuse]);
    let (mut client, _) = bench.connect();
    at_end(&mut client).await;
    assert_eq!(bench.lines(), ["UF,URX c 127.0.0.1:1 3 0 0 TcpConnectionEnd"]);
    let counts = ["upstream_cx_connect_fail", "upstream_cx_connect_timeout", "upstream_cx_connect_attempts_exceeded"];
    assert_eq!(bench.house.stats(counts), [3, 1, 1]);
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn a_later_attempt_may_succeed() {
    let message = pb::TcpProxy { max_connect_attempts: Some(UInt32Value { value: 2 }), ..to_cluster("c") };
    let bench = Bench::with_hosts(&message, 1);
    bench.house.net.script([Script::Refuse]);
    let (mut client, _) = bench.connect();
    client.write_all(b"early\r\n\r\n").await.unwrap();
    settle().await;
    let mut host = bench.house.net.accepted().unwrap();
    assert_eq!(host.request().await, "early\r\n\r\n");
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn without_a_host_the_flag_says_why() {
    let none = Bench::with_hosts(&to_cluster("c"), 0);
    at_end(&mut none.connect().0).await;
    assert_eq!(none.lines(), ["UH c - 0 0 0 TcpConnectionEnd"]);
    assert_eq!((none.stat("downstream_cx_no_route"), none.house.stat("upstream_cx_none_healthy")), (0, 1));

    let unknown = Bench::with_hosts(&to_cluster("nope"), 1);
    at_end(&mut unknown.connect().0).await;
    assert_eq!(unknown.lines(), ["NC - - 0 0 0 TcpConnectionEnd"]);
    assert_eq!((unknown.stat("downstream_cx_no_route"), unknown.stat("downstream_cx_total")), (1, 1));

    let thresholds = cluster_pb::circuit_breakers::Thresholds {
        max_connections: Some(UInt32Value { value: 0 }),
        ..Default::default()
    };
    let breakers = cluster_pb::CircuitBreakers { thresholds: vec![thresholds], ..Default::default() };
    let full = House::new(cluster_pb::Cluster { circuit_breakers: Some(breakers), ..Default::default() }, 1);
    let full = Bench::new(&to_cluster("c"), full);
    at_end(&mut full.connect().0).await;
    assert_eq!(full.lines(), ["UO c - 0 0 0 TcpConnectionEnd"]);
    assert_eq!(full.house.stat("upstream_cx_overflow"), 1);
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn a_log_line_comes_at_the_start_when_connected_at_each_interval_and_at_the_end() {
    let options = pb::tcp_proxy::TcpAccessLogOptions {
        access_log_flush_interval: millis(200),
        flush_access_log_on_connected: true,
        flush_access_log_on_start: true,
    };
    let bench = Bench::with_hosts(&pb::TcpProxy { access_log_options: Some(options), ..to_cluster("c") }, 1);
    let (client, _) = bench.connect();
    settle().await;
    let host = bench.house.net.accepted().unwrap();
    tokio::time::sleep(Duration::from_millis(550)).await;
    drop((client, host));
    settle().await;
    let kinds: Vec<_> = bench.lines().iter().map(|l| l.rsplit(' ').next().unwrap().to_owned()).collect();
    assert_eq!(kinds, ["TcpConnectionStart", "TcpUpstreamConnected", "TcpPeriodic", "TcpPeriodic", "TcpConnectionEnd"]);
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn a_session_that_is_cut_off_is_logged_and_gives_everything_back() {
    let bench = Bench::with_hosts(&to_cluster("c"), 1);
    let (mut client, task) = bench.connect();
    settle().await;
    assert_eq!(bench.house.stat("upstream_cx_active"), 1);
    task.abort();
    at_end(&mut client).await;
    settle().await;
    assert_eq!(bench.lines(), ["- c 127.0.0.1:1 1 0 0 TcpConnectionEnd"]);
    assert_eq!(bench.house.stats(["upstream_cx_active", "upstream_rq_active"]), [0, 0]);
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn what_a_slow_client_has_not_taken_is_a_gauge() {
    let bench = Bench::with_hosts(&to_cluster("c"), 1);
    let (mut client, task) = bench.connect();
    settle().await;
    let mut host = bench.house.net.accepted().unwrap();
    // The network of the tests holds 64 KiB of a connection.
    host.answer(&"x".repeat(1 << 16)).await;
    settle().await;
    host.answer("more").await;
    settle().await;
    assert_eq!(bench.stat("downstream_cx_tx_bytes_buffered"), 4);
    client.read_exact(&mut [0; 10]).await.unwrap();
    settle().await;
    assert_eq!(bench.stat("downstream_cx_tx_bytes_buffered"), 0);
    task.abort();
}

#[test]
fn clusters_are_drawn_by_their_weights() {
    let target = Target::Weighted(vec![("a".into(), 1), ("b".into(), 0), ("c".into(), 3)], 4);
    let drawn: Vec<_> = (0..4)
        .map(|n| {
            target
                .choose(|total| {
                    assert_eq!(total, 4);
                    n
                })
                .to_string()
        })
        .collect();
    assert_eq!(drawn, ["a", "c", "c", "c"]);
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn a_cluster_named_in_the_filter_state_is_taken_instead_of_the_configured_one() {
    let bench = Bench::with_hosts(&to_cluster("c"), 1);
    let info = connection();
    info.filter_state.borrow_mut().set(PER_CONNECTION_CLUSTER, Arc::new("elsewhere".to_owned()));
    let (mut client, _) = bench.connect_as(info);
    at_end(&mut client).await;
    assert_eq!(bench.lines(), ["NC - - 0 0 0 TcpConnectionEnd"]);
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn a_connection_that_a_filter_before_it_refused_counts_and_is_logged() {
    let bench = Bench::with_hosts(&to_cluster("c"), 1);
    let mut flags = ResponseFlags::default();
    flags.insert(ResponseFlag::UnauthorizedExternalService);
    let info = connection();
    info.flags.set(flags);
    bench.filter.refused(&Rc::new(info), None);
    assert_eq!(bench.lines(), ["UAEX - - 0 0 0 TcpConnectionEnd"]);
    assert_eq!(bench.stat("downstream_cx_total"), 1);
}
