//! External authorization over real connections: a foreign authorizer, the one of this binary killed under load, and
//! what an authorizer may not do.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use nuncio_api::pb::envoy::config::core::v3::{HeaderValue, HeaderValueOption};
use nuncio_api::pb::envoy::service::auth::v3::authorization_server::{Authorization, AuthorizationServer};
use nuncio_api::pb::envoy::service::auth::v3::check_response::HttpResponse;
use nuncio_api::pb::envoy::service::auth::v3::{CheckRequest, CheckResponse, OkHttpResponse};
use nuncio_api::pb::google::rpc::Status;
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

fn stat(proxy: &RunningProxy, name: &str) -> u64 {
    let mut stream = TcpStream::connect(proxy.admin()).unwrap();
    write!(stream, "GET /stats?filter={name} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let line = answer.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")));
    line.unwrap_or_else(|| panic!("no {name} in {answer}")).parse().unwrap()
}

// === A foreign authorizer ===

/// Refuses `/no`, says far too much about `/big`, and never answers `/hang`.
struct Foreign {
    /// Told of each check of `/hang`, and of its end.
    hanging: mpsc::SyncSender<&'static str>,
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
        let attributes = request.into_inner().attributes.unwrap_or_default();
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
}

// A server that knows nothing of our threads.
#[allow(clippy::disallowed_methods)]
fn foreign() -> ForeignServer {
    let (hanging, told) = mpsc::sync_channel(100);
    let (bound, address) = mpsc::channel();
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = connections.clone();
    let serve = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            bound.send(listener.local_addr().unwrap()).unwrap();
            let service = AuthorizationServer::new(Foreign { hanging });
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
    ForeignServer { address: address.recv().unwrap(), connections, hanging: told }
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

// === Our own, killed ===

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

#[test]
fn an_authorizer_killed_under_load_leaves_only_refusals_and_is_back_within_a_second() {
    let mut server = OwnServer::start("127.0.0.1:0");
    let proxy = RunningProxy::start(&config(server.address, ""), 2);
    let to = proxy.socket("web");
    let over = Arc::new(AtomicBool::new(false));
    let load: Vec<_> = (0..4)
        .map(|_| {
            let over = over.clone();
            let ask = move || {
                let (mut client, mut statuses) = (Client::new(to), BTreeMap::<u16, usize>::new());
                while !over.load(Ordering::Relaxed) {
                    *statuses.entry(client.get("/")).or_default() += 1;
                }
                statuses
            };
            std::thread::Builder::new().spawn(ask).unwrap()
        })
        .collect();
    let mut client = Client::new(to);
    (0..200).for_each(|_| assert_eq!(client.get("/"), 200));
    assert_eq!(client.get("/private"), 403);
    server.kill();
    // Some checks were on their way when it died; what is asked from now on is refused.
    (0..200).for_each(|_| assert_eq!(client.get("/"), 403));
    let address = server.address.to_string();
    let _again = OwnServer::start(&address);
    let began = Instant::now();
    while client.get("/") != 200 {
        assert!(began.elapsed() < Duration::from_secs(1), "still refused");
    }
    (0..200).for_each(|_| assert_eq!(client.get("/"), 200));
    over.store(true, Ordering::Relaxed);
    for statuses in load {
        let statuses = statuses.join().unwrap();
        assert_eq!(statuses.keys().copied().collect::<Vec<_>>(), [200, 403], "{statuses:?}");
    }
    assert_eq!(stat(&proxy, "http.web.ext_authz.failure_mode_allowed"), 0);
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

// === The doctor ===

fn doctor(yaml: &str, admin: SocketAddr) -> (bool, String) {
    let file = tempfile::Builder::new().suffix(".yaml").tempfile().unwrap();
    std::fs::write(file.path(), yaml).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_nuncio"));
    command.args(["doctor", "--admin", &admin.to_string(), "-c"]).arg(file.path());
    let output = command.output().unwrap();
    (
        output.status.success(),
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr),
    )
}

#[test]
fn the_doctor_finds_where_the_chain_to_the_authorizer_breaks() {
    let mut server = OwnServer::start("127.0.0.1:0");
    let yaml = config(server.address, "");
    let proxy = RunningProxy::start(&yaml, 1);
    let (sound, text) = doctor(&yaml, proxy.admin());
    assert!(sound && text.contains("ok      the service answers within the timeout: it lets GET / pass"), "{text}");
    server.kill();
    let (sound, text) = doctor(&yaml, proxy.admin());
    assert!(
        !sound && text.contains("FAILED  TCP connects: ") && text.contains("ok      one is healthy: 1 of 1"),
        "{text}"
    );
}
