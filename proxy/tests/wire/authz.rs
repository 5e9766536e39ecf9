//! External authorization over real connections: a foreign authorizer, what it is asked, what it may not do, and requests
//! of every kind.

mod absent;
mod doctor;
mod outage;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use nuncio_api::pb::envoy::config::core::v3::address::Address as Kind;
use nuncio_api::pb::envoy::config::core::v3::socket_address::PortSpecifier;
use nuncio_api::pb::envoy::config::core::v3::{HeaderValue, HeaderValueOption};
use nuncio_api::pb::envoy::service::auth::v3::authorization_server::{Authorization, AuthorizationServer};
use nuncio_api::pb::envoy::service::auth::v3::check_response::HttpResponse;
use nuncio_api::pb::envoy::service::auth::v3::{CheckRequest, CheckResponse, OkHttpResponse};
use nuncio_api::pb::google::rpc::Status;
use nuncio_api::{Format, LoadOptions, Source, load_message};
use tokio::time::Instant;
use tonic::codegen::Service as _;

use crate::running::{RunningProxy, web};

const EXT_AUTHZ: &str = r#"- name: envoy.filters.http.ext_authz
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.filters.http.ext_authz.v3.ExtAuthz
    transport_api_version: V3
    grpc_service: {envoy_grpc: {cluster_name: authz}, timeout: 5s}"#;

fn config(authorizer: SocketAddr, cluster: &str) -> String {
    let clusters = format!(
        r#"- name: authz
  connect_timeout: 1s
  {cluster}
  typed_extension_protocol_options:
    envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
      "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
      explicit_http_config: {{http2_protocol_options: {{}}}}
  load_assignment:
    cluster_name: authz
    endpoints: [{{lb_endpoints: [{{endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {}}}}}}}}}]}}]"#,
        authorizer.port()
    );
    web("direct_response: {status: 200}", EXT_AUTHZ, &clusters)
}

/// A connection that asks again and again.
struct Client(BufReader<TcpStream>);

impl Client {
    fn new(to: SocketAddr) -> Self {
        let stream = TcpStream::connect(to).unwrap();
        // What takes longer hangs.
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Self(BufReader::new(stream))
    }

    fn send(&mut self, path: &str) {
        write!(self.0.get_mut(), "GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    }

    fn status(&mut self) -> u16 {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(self.0.read_line(&mut head).unwrap() > 0, "closed after {head:?}");
        }
        let length =
            head.lines().find_map(|line| line.strip_prefix("content-length: ")).map_or(0, |n| n.parse().unwrap());
        self.0.read_exact(&mut vec![0; length]).unwrap();
        head.split(' ').nth(1).unwrap().parse().unwrap()
    }

    fn get(&mut self, path: &str) -> u16 {
        self.send(path);
        self.status()
    }
}

fn admin(proxy: &RunningProxy, path: &str) -> String {
    let mut stream = TcpStream::connect(proxy.admin()).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn stat(proxy: &RunningProxy, name: &str) -> u64 {
    let answer = admin(proxy, &format!("/stats?filter={name}"));
    let line = answer.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")));
    line.unwrap_or_else(|| panic!("no {name} in {answer}")).parse().unwrap()
}

// === A foreign authorizer ===

/// Refuses `/no`, says far too much about `/big`, and never answers `/hang`.
struct Foreign {
    /// Told of each check of `/hang`, and of its end.
    hanging: mpsc::SyncSender<&'static str>,
    asked: Arc<Mutex<Option<CheckRequest>>>,
}

struct Ended(mpsc::SyncSender<&'static str>);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.send("ended");
    }
}

#[tonic::async_trait]
impl Authorization for Foreign {
    async fn check(
        &self,
        request: tonic::Request<CheckRequest>,
    ) -> Result<tonic::Response<CheckResponse>, tonic::Status> {
        let question = request.into_inner();
        *self.asked.lock().unwrap() = Some(question.clone());
        let attributes = question.attributes.unwrap_or_default();
        let path = attributes.request.and_then(|r| r.http).map(|http| http.path).unwrap_or_default();
        let mut answer = CheckResponse::default();
        match &*path {
            "/no" => answer.status = Some(Status { code: 7, ..Status::default() }),
            "/big" => {
                let header = HeaderValue { key: "x".into(), value: "x".repeat(5 << 20), ..HeaderValue::default() };
                let headers = vec![HeaderValueOption { header: Some(header), ..HeaderValueOption::default() }];
                let ok = OkHttpResponse { headers, ..OkHttpResponse::default() };
                answer.http_response = Some(HttpResponse::OkResponse(ok));
            }
            "/hang" => {
                let _ended = Ended(self.hanging.clone());
                let _ = self.hanging.send("asked");
                std::future::pending::<()>().await;
            }
            _ => {}
        }
        Ok(tonic::Response::new(answer))
    }
}

struct ForeignServer {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
    hanging: mpsc::Receiver<&'static str>,
    /// The last question.
    asked: Arc<Mutex<Option<CheckRequest>>>,
}

// A server that knows nothing of our threads.
#[allow(clippy::disallowed_methods)]
fn foreign() -> ForeignServer {
    let (hanging, told) = mpsc::sync_channel(100);
    let (bound, address) = mpsc::channel();
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = connections.clone();
    let asked = Arc::new(Mutex::new(None));
    let foreign = Foreign { hanging, asked: asked.clone() };
    let serve = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            bound.send(listener.local_addr().unwrap()).unwrap();
            let service = AuthorizationServer::new(foreign);
            while let Ok((stream, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::Relaxed);
                stream.set_nodelay(true).unwrap();
                let service = service.clone();
                let answer = service_fn(move |request: Request<Incoming>| {
                    let mut service = service.clone();
                    async move { service.call(request.map(tonic::body::Body::new)).await }
                });
                let builder = http2::Builder::new(TokioExecutor::new());
                tokio::spawn(builder.serve_connection(TokioIo::new(stream), answer));
            }
        });
    };
    std::thread::Builder::new().spawn(serve).unwrap();
    ForeignServer { address: address.recv().unwrap(), connections, hanging: told, asked }
}

#[test]
fn a_foreign_authorizer_is_asked_over_one_connection_for_each_worker() {
    let server = foreign();
    let proxy = RunningProxy::start(&config(server.address, ""), 2);
    let mut clients: Vec<_> = (0..8).map(|_| Client::new(proxy.socket("web"))).collect();
    for round in 0..20 {
        let path = if round % 2 == 0 { "/yes" } else { "/no" };
        clients.iter_mut().for_each(|client| client.send(path));
        for client in &mut clients {
            assert_eq!(client.status(), if round % 2 == 0 { 200 } else { 403 });
        }
    }
    assert!(server.connections.load(Ordering::Relaxed) <= 2);
    assert_eq!(stat(&proxy, "http.web.ext_authz.denied"), 80);
    // Five megabytes are no answer.
    assert_eq!(clients[0].get("/big"), 403);
    assert_eq!((stat(&proxy, "http.web.ext_authz.error"), clients[0].get("/yes")), (1, 200));
}

/// Ports, the time and the stream's number differ from run to run.
fn without_what_differs(mut question: CheckRequest) -> CheckRequest {
    let attributes = question.attributes.as_mut().unwrap();
    for peer in [&mut attributes.source, &mut attributes.destination] {
        let address = peer.as_mut().and_then(|peer| peer.address.as_mut()?.address.as_mut());
        let Some(Kind::SocketAddress(address)) = address else { panic!("no address") };
        assert!(matches!(
            address.port_specifier.replace(PortSpecifier::PortValue(0)),
            Some(PortSpecifier::PortValue(1..))
        ));
    }
    let request = attributes.request.as_mut().unwrap();
    assert!(request.time.take().unwrap().seconds > 1_700_000_000);
    assert!(std::mem::take(&mut request.http.as_mut().unwrap().id).parse::<u64>().is_ok());
    question
}

#[test]
fn a_check_says_what_envoy_says_field_by_field() {
    let server = foreign();
    let more = "timeout: 5s}\n              include_peer_certificate: true\n              include_tls_session: true\n              \
                metadata_context_namespaces: [none]\n              \
                with_request_body: {max_request_bytes: 10, allow_partial_message: true}";
    let extensions = "typed_per_filter_config: {envoy.filters.http.ext_authz: {\"@type\": \
                      type.googleapis.com/envoy.extensions.filters.http.ext_authz.v3.ExtAuthzPerRoute, \
                      check_settings: {context_extensions: {level: route}}}}, direct_response";
    let yaml = config(server.address, "").replace("timeout: 5s}", more).replace("direct_response", extensions);
    let proxy = RunningProxy::start(&yaml, 1);
    let request = b"POST /a%20b/../c?q=1&q=%41 HTTP/1.1\r\nHost: Web.Test:8080\r\nX-Dup: a\r\nX-Dup: b, c\r\nX-Odd: a\xff\xfeb\r\n\
        X-Empty:\r\nCookie: c=d\r\nCookie: e=f\r\nx-envoy-downstream-service-cluster: caller\r\nx-request-id: 7\r\n\
        content-length: 11\r\nconnection: close\r\n\r\n01234567890";
    assert!(raw(&proxy, request).starts_with("HTTP/1.1 200 "));
    let source = Source::text("golden", Format::Yaml, include_str!("../golden/check_request.yaml"));
    let golden = load_message::<CheckRequest>(source, &LoadOptions::default()).unwrap().message;
    let asked = server.asked.lock().unwrap().take().unwrap();
    assert_eq!(without_what_differs(asked), golden);
}

#[test]
fn a_full_breaker_refuses_and_a_client_that_leaves_ends_its_check() {
    let server = foreign();
    let breakers = "circuit_breakers: {thresholds: [{max_requests: 1}]}";
    let proxy = RunningProxy::start(&config(server.address, breakers), 1);
    let mut waiting = Client::new(proxy.socket("web"));
    waiting.send("/hang");
    assert_eq!(server.hanging.recv().unwrap(), "asked");
    let mut other = Client::new(proxy.socket("web"));
    assert_eq!(other.get("/yes"), 403);
    assert_eq!(stat(&proxy, "cluster.authz.upstream_rq_active_overflow"), 1);
    drop(waiting);
    assert_eq!(server.hanging.recv().unwrap(), "ended");
    assert_eq!(other.get("/yes"), 200);
    assert_eq!(stat(&proxy, "cluster.authz.upstream_rq_active"), 0);
}

// === Our own ===

struct OwnServer {
    child: Child,
    address: SocketAddr,
}

impl OwnServer {
    fn start(at: &str) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nuncio"));
        let mut child = command.args(["authz-server", "--listen", at]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().rsplit(' ').next().unwrap().parse();
        Self { child, address: address.unwrap_or_else(|e| panic!("{line}: {e}")) }
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Until it holds.
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < until, "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn a_route_that_changes_after_the_check_is_refused_on_request() {
    let server = OwnServer::start("127.0.0.1:0");
    let plain = "{match: {prefix: /}, direct_response: {status: 200}}";
    let marked = "{name: marked, match: {prefix: /, headers: [{name: x-authorized-by, present_match: true}]}, \
                  direct_response: {status: 201}}";
    let yaml = config(server.address, "").replace(plain, &format!("{marked}, {plain}"));
    let (before, rest) = yaml.split_once("          - name: envoy.filters.http.ext_authz\n").unwrap();
    let (filter, after) = rest.split_once("          - name: envoy.filters.http.router\n").unwrap();
    let [first, second] = ["first", "second"].map(|name| format!("          - name: {name}\n{filter}"));
    let second = second.replace("timeout: 5s}", "timeout: 5s}\n              clear_route_cache: true");
    let yaml = format!("{before}{first}{second}          - name: envoy.filters.http.router\n{after}");
    let keys = "layered_runtime: {layers: [{name: s, static_layer: {nuncio.ext_authz.refuse_route_change: true}}]}\n";
    for (more, status) in [("", 201), (keys, 403)] {
        let proxy = RunningProxy::start(&format!("{yaml}{more}"), 1);
        assert_eq!(Client::new(proxy.socket("web")).get("/"), status);
    }
}

// === Bodies: row R54 ===

/// The head of what is answered to `request`.
fn raw(proxy: &RunningProxy, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(proxy.socket("web")).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(request).unwrap();
    let (mut answer, mut piece) = (Vec::new(), [0; 1024]);
    while !answer.windows(4).any(|end| end == b"\r\n\r\n") {
        match stream.read(&mut piece) {
            Ok(n) if n > 0 => answer.extend_from_slice(&piece[..n]),
            _ => break,
        }
    }
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn a_body_longer_than_is_checked_is_refused_or_told_in_part() {
    let server = foreign();
    let body = "x".repeat(5000);
    let head = "POST /body HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 5000\r\n\r\n";
    for (partial, expected) in [(false, "HTTP/1.1 413 "), (true, "HTTP/1.1 200 ")] {
        let with = format!(
            "timeout: 5s}}\n              failure_mode_allow: true\n              \
             with_request_body: {{max_request_bytes: 4096, allow_partial_message: {partial}}}"
        );
        let proxy = RunningProxy::start(&config(server.address, "").replace("timeout: 5s}", &with), 1);
        let answer = raw(&proxy, format!("{head}{body}").as_bytes());
        assert!(answer.starts_with(expected), "{partial}: {answer}");
        // Byte by byte it is the same.
        let mut slow = TcpStream::connect(proxy.socket("web")).unwrap();
        slow.set_nodelay(true).unwrap();
        slow.write_all(head.as_bytes()).unwrap();
        let written = body.as_bytes().chunks(50).all(|piece| slow.write_all(piece).is_ok());
        assert!(written || !partial);
        let mut answer = String::new();
        let _ = slow.read_to_string(&mut answer);
        assert!(answer.is_empty() && !partial || answer.starts_with(expected), "{partial}, slow: {answer}");
        // A client that gives up in the middle of its body was never asked about.
        let asked = stat(&proxy, "cluster.authz.upstream_rq_total");
        let mut gone = TcpStream::connect(proxy.socket("web")).unwrap();
        gone.write_all(head.as_bytes()).unwrap();
        gone.write_all(b"half").unwrap();
        drop(gone);
        eventually("it is gone", || stat(&proxy, "http.web.downstream_rq_active") == 0);
        assert_eq!(stat(&proxy, "cluster.authz.upstream_rq_total"), asked);
    }
}
