//! Micro-benchmarks of what every request passes: `cargo bench -p nuncio-benches`.
//!
//! They are for comparing two versions of one piece on one machine; what a request costs as a whole
//! only `-- load` tells.

use std::cell::RefCell;
use std::hint::black_box;
use std::io::{self, IoSlice};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, UNIX_EPOCH};

use criterion::{Criterion, criterion_group, criterion_main};
use nuncio::codec::Buffers;
use nuncio::codec::http1::ServerConn;
use nuncio::http::conn_manager::filter_chain::{DecodeChain, HeadOutcome};
use nuncio::http::router::{BuildContext, MatchContext, RouteConfig, RouteConfigBuilder};
use nuncio::upstream::lb;
use nuncio::upstream::lb_config::{LbConfig, LbPolicy};
use nuncio_api::pb::envoy::config::route::v3 as pb;
use nuncio_core::http::{DecodeFilter, Framing, RequestHead, ResponseHead, Step, StreamControl};
use nuncio_core::net::{Address, Io, Stream};
use nuncio_core::random::Rng;
use nuncio_core::runtime::NoRuntime;
use nuncio_core::stats::lists::{self, cluster};
use nuncio_core::stats::{CodeStats, Codes, Stats, Store};
use nuncio_core::stream_info::StreamInfo;
use nuncio_core::upstream::{Host, HostSet, HostSpec, LbContext, PrioritySet};
use tokio::time::Instant;

// === heads ===

/// A peer that says the same whenever it is asked to, and takes everything.
#[derive(Clone)]
struct Peer(Rc<RefCell<Said>>);

struct Said {
    bytes: Vec<u8>,
    at: usize,
}

impl Stream for Peer {
    fn poll_read(&mut self, _: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        let Said { bytes, at } = &mut *self.0.borrow_mut();
        let n = (bytes.len() - *at).min(buf.len());
        if n == 0 {
            return Poll::Pending;
        }
        buf[..n].copy_from_slice(&bytes[*at..*at + n]);
        *at += n;
        Poll::Ready(Ok(n))
    }

    fn poll_write(&mut self, _: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bufs.iter().map(|b| b.len()).sum()))
    }

    fn poll_flush(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_read_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Pending
    }
}

fn heads(c: &mut Criterion) {
    let browser = "GET /shop/articles/4711?color=red HTTP/1.1\r\nHost: www.example.com\r\nUser-Agent: Mozilla/5.0 (X11; Linux x86_64)\r\n\
         Accept: text/html,application/xhtml+xml\r\nAccept-Language: de,en;q=0.7\r\nAccept-Encoding: gzip, deflate, br\r\n\
         Cookie: session=0123456789abcdef; theme=dark\r\nReferer: https://www.example.com/shop\r\nConnection: keep-alive\r\n\r\n";
    let small = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    for (name, text) in [("browser", browser), ("small", small)] {
        let peer = Peer(Rc::new(RefCell::new(Said { bytes: text.into(), at: 0 })));
        let mut server = ServerConn::new(Io::Other(Box::new(peer.clone())), Vec::new(), Rc::default());
        let (buffers, mut scratch) = (Buffers::default(), vec![0; 64 * 1024]);
        let (mut request, mut response) = (RequestHead::default(), ResponseHead::default());
        response.status = 204;
        response.framing = Framing::None;
        let cx = &mut Context::from_waker(Waker::noop());
        c.bench_function(&format!("request head in, response head out: {name}"), |b| {
            b.iter(|| {
                peer.0.borrow_mut().at = 0;
                assert!(server.poll_request(cx, &buffers, &mut scratch, &mut request).is_ready());
                server.send_head(&buffers, &response, true, false);
                assert!(server.poll_flush(cx, &buffers).is_ready());
                server.next_request(&buffers);
            });
        });
    }
}

// === routes ===

const VIRTUAL_HOSTS: usize = 10_000;

fn table() -> RouteConfig {
    let context = BuildContext {
        has_cluster: &|_| true,
        validate_clusters: false,
        filter_config: &|_, _| Ok(None),
        scope: &|name| Store::new().scope(&lists::vhost::SCOPE, &name.into()),
    };
    let mut builder = RouteConfigBuilder::new(&pb::RouteConfiguration::default(), &context).expect("an empty one");
    for host in 0..VIRTUAL_HOSTS {
        let domains = vec![format!("host-{host}.example.com"), format!("*.host-{host}.example.com")];
        builder.virtual_host(&pb::VirtualHost { domains, ..Default::default() }).expect("other domains");
        for path in ["/static/", "/api/v1/", "/"] {
            let specifier = pb::route_action::ClusterSpecifier::Cluster(format!("cluster-{host}"));
            let action = pb::RouteAction { cluster_specifier: Some(specifier), ..Default::default() };
            let path_specifier = Some(pb::route_match::PathSpecifier::Prefix(path.into()));
            let route = pb::Route {
                r#match: Some(pb::RouteMatch { path_specifier, ..Default::default() }),
                action: Some(pb::route::Action::Route(action)),
                ..Default::default()
            };
            builder.route(&route).expect("a route");
        }
    }
    builder.finish()
}

fn head(authority: &str, path: &str) -> RequestHead {
    let fields = [(":method", "GET"), (":path", path), (":authority", authority), (":scheme", "http")];
    RequestHead { headers: fields.into_iter().collect(), ..Default::default() }
}

fn routes(c: &mut Criterion) {
    let table = table();
    let context = MatchContext { random: 1, runtime: &NoRuntime, connection: None, info: None };
    for (name, authority) in [
        ("exact domain", "host-4242.example.com"),
        ("suffix domain", "www.host-4242.example.com"),
        ("no domain", "elsewhere"),
    ] {
        let head = head(authority, "/api/v1/users?id=1");
        c.bench_function(&format!("route of {VIRTUAL_HOSTS} virtual hosts: {name}"), |b| {
            b.iter(|| black_box(table.find(black_box(&head), &context)).is_some());
        });
    }
}

// === hosts ===

struct Nobody;

impl lb::Observer for Nobody {}

fn picks(c: &mut Criterion) {
    let spec = |port| HostSpec::new(Address::Ip(([10, 0, 0, 1], port).into()));
    let hosts: Vec<_> = (1..=100).map(|port| Arc::new(Host::new(spec(port)))).collect();
    let set = HostSet::new(hosts, |_| 0, HostSet::DEFAULT_OVERPROVISIONING);
    let hosts = Arc::new(PrioritySet { priorities: vec![Arc::new(set)], ..PrioritySet::default() });
    let rng = Rng::with_seed(1);
    for (name, policy) in [
        ("ROUND_ROBIN", LbPolicy::RoundRobin),
        ("RANDOM", LbPolicy::Random),
        ("LEAST_REQUEST", LbPolicy::LeastRequest { choices: 2, bias: 1.0, full_scan: false }),
    ] {
        let config = LbConfig { policy, ..LbConfig::default() };
        let around = lb::Surroundings { rng: rng.clone(), observer: Rc::new(Nobody) };
        let mut balancer = lb::balancer(&config, &hosts, None, &around);
        let request = LbContext::default();
        c.bench_function(&format!("host of 100: {name}"), |b| {
            b.iter(|| matches!(balancer.choose_host(black_box(&request)), nuncio_core::upstream::Choice::Host(_)));
        });
    }
}

// === stats ===

fn stats(c: &mut Criterion) {
    let mut store = Store::new();
    let scope = store.scope(&cluster::SCOPE, &Arc::from("c"));
    let worker = store.main().clone();
    let traffic = Stats::<cluster::Traffic>::new(&worker, scope);
    let times = Stats::<cluster::ResponseTime>::new(&worker, scope);
    let codes = CodeStats::new(&worker, scope, Codes::Cluster);
    c.bench_function("counter", |b| b.iter(|| traffic.inc(cluster::UPSTREAM_RQ_TOTAL)));
    c.bench_function("gauge, taken and returned", |b| b.iter(|| traffic.gauge(cluster::UPSTREAM_RQ_ACTIVE)));
    c.bench_function("histogram", |b| b.iter(|| times.record(cluster::UPSTREAM_RQ_TIME, black_box(17))));
    c.bench_function("response code", |b| b.iter(|| codes.charge(black_box(200))));
}

// === filters ===

/// As most filters on most requests: looks at one header and goes on.
struct Looks;

impl DecodeFilter for Looks {
    fn decode_headers(&mut self, head: &mut RequestHead, _end: bool, _stream: &StreamControl) -> Step {
        black_box(head.headers.contains("x-something"));
        Step::CONTINUE
    }

    fn reset(&mut self) {}
}

fn filters(c: &mut Criterion) {
    let stream = StreamControl::new(StreamInfo::new(UNIX_EPOCH, Instant::now()));
    let cx = &mut Context::from_waker(Waker::noop());
    for count in [0u8, 1, 8] {
        let mut chain = DecodeChain::default();
        (0..count).for_each(|position| chain.push(position, Box::new(Looks)));
        let mut head = head("www.example.com", "/");
        c.bench_function(&format!("head through {count} filters"), |b| {
            b.iter(|| {
                let passed = chain.poll_head(cx, &mut head, true, &stream);
                assert!(matches!(passed, Poll::Ready(HeadOutcome::Passed)));
                chain.reset(&stream);
            });
        });
    }
}

fn quick() -> Criterion {
    Criterion::default()
        .sample_size(30)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_secs(1))
}

criterion_group! {
    name = hot_path;
    config = quick();
    targets = heads, routes, picks, stats, filters
}
criterion_main!(hot_path);
