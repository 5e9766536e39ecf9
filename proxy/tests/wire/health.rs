//! Active checks over real sockets: servers that change their ways while the proxy asks them.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tonic::codegen::Service as _;

use crate::running::RunningProxy;

/// What a server does with each request, or each line of bytes.
const WELL: u8 = 0;
const WRONG: u8 = 1;
const SILENT: u8 = 2;
/// Closes with bytes unread, which resets.
const RESET: u8 = 3;
const HALF: u8 = 4;
const SLOW: u8 = 5;
/// Ten megabytes.
const HUGE: u8 = 6;
/// A byte now and then, of an answer that would be good.
const DRIPPING: u8 = 7;
const NOISE: u8 = 8;
/// A TLS alert, as servers answer who does not speak TLS to them.
const TLS: u8 = 9;

/// A server of its own thread; it lives as long as the test's process.
struct Server {
    address: SocketAddr,
    way: Arc<AtomicU8>,
}

impl Server {
    fn start(answer: fn(&mut TcpStream, u8) -> std::io::Result<bool>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, way) = (listener.local_addr().unwrap(), Arc::new(AtomicU8::new(WELL)));
        let server = Self { address, way: way.clone() };
        std::thread::Builder::new()
            .spawn(move || {
                for mut stream in listener.incoming().flatten() {
                    let way = way.clone();
                    let _ = std::thread::Builder::new()
                        .spawn(move || while matches!(answer(&mut stream, way.load(Relaxed)), Ok(true)) {});
                }
            })
            .unwrap();
        server
    }

    fn becomes(&self, way: u8) {
        self.way.store(way, Relaxed);
    }
}

/// Connects and is never answered: the queue of the one socket that listens there is full.
struct BlackHole {
    address: SocketAddr,
    _listener: socket2::Socket,
    _queued: Vec<socket2::Socket>,
}

impl BlackHole {
    fn start() -> Self {
        let socket = || socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        let listener = socket();
        listener.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        listener.listen(0).unwrap();
        let address = listener.local_addr().unwrap().as_socket().unwrap();
        let queued = (0..4).map(|_| {
            let stream = socket();
            stream.set_nonblocking(true).unwrap();
            // In progress, for ever.
            let _ = stream.connect(&address.into());
            stream
        });
        Self { address, _queued: queued.collect(), _listener: listener }
    }
}

/// True: another request may come on the connection.
fn http(stream: &mut TcpStream, way: u8) -> std::io::Result<bool> {
    let mut byte = [0];
    if way == RESET {
        return Ok(false);
    }
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    match way {
        WELL => stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")?,
        WRONG => stream.write_all(b"HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n")?,
        // Until the proxy gives up and closes.
        SILENT => return Ok(stream.read(&mut byte)? > 0),
        HALF => {
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-le")?;
            return Ok(false);
        }
        HUGE => {
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10000000\r\n\r\n")?;
            stream.write_all(&vec![b'x'; 10_000_000])?;
        }
        DRIPPING => {
            for byte in b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n" {
                stream.write_all(&[*byte])?;
                std::thread::sleep(Duration::from_millis(100));
            }
        }
        NOISE => {
            stream.write_all(&[0xff, 0, 0x80, 7, b'\n', 1, 2, 3])?;
            return Ok(stream.read(&mut byte)? > 0);
        }
        TLS => {
            stream.write_all(&[0x15, 3, 1, 0, 2, 2, 10])?;
            return Ok(stream.read(&mut byte)? > 0);
        }
        _ => {
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nslow")?;
            return Ok(stream.read(&mut byte)? > 0);
        }
    }
    Ok(true)
}

fn ping(stream: &mut TcpStream, way: u8) -> std::io::Result<bool> {
    let mut asked = [0; 4];
    stream.read_exact(&mut asked)?;
    match way {
        WELL => stream.write_all(b"PONG")?,
        SILENT => return Ok(stream.read(&mut asked)? > 0),
        HALF => {
            stream.write_all(b"PO")?;
            return Ok(false);
        }
        HUGE => stream.write_all(&vec![b'x'; 10_000_000])?,
        _ => stream.write_all(b"GONE")?,
    }
    Ok(true)
}

/// A health service that knows nothing of us; what is sent to it is what it says from then on.
struct GrpcServer {
    address: SocketAddr,
    says: tokio::sync::mpsc::UnboundedSender<tonic_health::ServingStatus>,
}

impl GrpcServer {
    #[allow(clippy::disallowed_methods, reason = "a server that knows nothing of our threads")]
    fn start() -> Self {
        let (says, mut said) = tokio::sync::mpsc::unbounded_channel();
        let (bound, address) = std::sync::mpsc::channel();
        let serve = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
                bound.send(listener.local_addr().unwrap()).unwrap();
                let (reporter, service) = tonic_health::server::health_reporter();
                reporter.set_service_status("shop", tonic_health::ServingStatus::Serving).await;
                loop {
                    tokio::select! {
                        status = said.recv() => match status {
                            Some(status) => reporter.set_service_status("shop", status).await,
                            None => return,
                        },
                        accepted = listener.accept() => {
                            let service = service.clone();
                            let answer = service_fn(move |request: Request<Incoming>| {
                                let mut service = service.clone();
                                async move { service.call(request.map(tonic::body::Body::new)).await }
                            });
                            let builder = http2::Builder::new(TokioExecutor::new());
                            tokio::spawn(builder.serve_connection(TokioIo::new(accepted.unwrap().0), answer));
                        }
                    }
                }
            });
        };
        std::thread::Builder::new().spawn(serve).unwrap();
        Self { address: address.recv().unwrap(), says }
    }
}

fn get(to: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(to).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// What checks over gRPC need their cluster to be.
const HTTP2: &str = "typed_extension_protocol_options: {envoy.extensions.upstreams.http.v3.HttpProtocolOptions: {'@type': \
                     type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions, explicit_http_config: \
                     {http2_protocol_options: {}}}},";

struct Town(RunningProxy);

impl Town {
    fn start(clusters: &[(&str, SocketAddr, &str)]) -> Self {
        let clusters: String = clusters.iter().map(|(name, address, check)| {
            let (ip, port) = (address.ip(), address.port());
            let http2 = if check.starts_with("grpc") { HTTP2 } else { "" };
            format!(
                "{{name: {name}, common_lb_config: {{update_merge_window: 0s, healthy_panic_threshold: {{value: 0}}}}, \
                 health_checks: [{{timeout: 0.3s, interval: 0.05s, no_traffic_interval: 0.05s, unhealthy_threshold: 1, \
                 healthy_threshold: 1, {check}}}], {http2} load_assignment: {{cluster_name: {name}, endpoints: \
                 [{{lb_endpoints: [{{endpoint: {{address: {{socket_address: {{address: {ip}, port_value: {port}}}}}}}}}]}}]}}}},"
            )
        }).collect();
        Self(RunningProxy::start(
            &format!(
                "{{admin: {{address: {{socket_address: {{address: 127.0.0.1, port_value: 0}}}}}}, static_resources: \
                 {{clusters: [{clusters}]}}}}"
            ),
            1,
        ))
    }

    /// Waits until a check of the cluster failed, and shows the page that says why.
    fn failed(&self, cluster: &str) -> String {
        let begun = tokio::time::Instant::now();
        loop {
            let page = get(self.0.admin(), &format!("/health?cluster={cluster}"));
            if page.contains("(Host: ") {
                return page;
            }
            assert!(begun.elapsed() < Duration::from_secs(20), "{cluster}: {page}");
            std::thread::yield_now();
        }
    }

    /// Waits until the flags of the cluster's host are these.
    fn shows(&self, cluster: &str, flags: &str) {
        let wanted = format!("health_flags::{flags}\n");
        let begun = tokio::time::Instant::now();
        loop {
            let page = get(self.0.admin(), &format!("/clusters?filter=^{cluster}$"));
            if page.contains(&wanted) {
                return;
            }
            assert!(begun.elapsed() < Duration::from_secs(20), "{cluster} is never {flags}: {page}");
            std::thread::yield_now();
        }
    }
}

#[test]
fn checks_follow_what_servers_become() {
    let (web, bytes) = (Server::start(http), Server::start(ping));
    let town = Town::start(&[
        ("web", web.address, "http_health_check: {path: /hc}"),
        (
            "bytes",
            bytes.address,
            "tcp_health_check: {send: {text: '50494e47'}, receive: [{text: '504f'}, {text: '4e47'}]}",
        ),
    ]);
    town.shows("web", "healthy");
    town.shows("bytes", "healthy");
    for (way, flags, reason) in [
        (WRONG, "/failed_active_hc", "HTTP 503"),
        (SILENT, "/failed_active_hc/active_hc_timeout", "timeout"),
        (HALF, "/failed_active_hc", "closed within a head"),
        (SLOW, "/failed_active_hc/active_hc_timeout", "timeout"),
        (RESET, "/failed_active_hc", "clos"),
        (DRIPPING, "/failed_active_hc/active_hc_timeout", "timeout"),
        (NOISE, "/failed_active_hc", "protocol error"),
        (TLS, "/failed_active_hc", "protocol error"),
    ] {
        web.becomes(way);
        town.shows("web", flags);
        let page = get(town.0.admin(), "/health?cluster=web");
        let failed = page.lines().find(|line| line.contains("healthy -> ")).unwrap_or_default();
        assert!(failed.contains(reason) && failed.contains("/hc (Host: web)"), "{way}: {page}");
        web.becomes(WELL);
        town.shows("web", "healthy");
    }
    for (way, flags, reason) in [
        (WRONG, "/failed_active_hc/active_hc_timeout", "timeout"),
        (SILENT, "/failed_active_hc/active_hc_timeout", "timeout"),
        (HALF, "/failed_active_hc", "closed before the expected bytes"),
        (HUGE, "/failed_active_hc", "more came than can be what is expected"),
    ] {
        bytes.becomes(way);
        town.shows("bytes", flags);
        let page = get(town.0.admin(), "/health?cluster=bytes");
        let failed = page.lines().find(|line| line.contains("healthy -> ")).unwrap_or_default();
        assert!(failed.contains(reason) && failed.contains("tcp 127.0.0.1"), "{way}: {page}");
        bytes.becomes(WELL);
        town.shows("bytes", "healthy");
    }
}

#[test]
fn a_grpc_server_is_believed_when_it_says_how_it_is() {
    use tonic_health::ServingStatus::{NotServing, Serving, Unknown};
    let server = GrpcServer::start();
    let check = "grpc_health_check: {service_name: shop}";
    let stranger = "grpc_health_check: {service_name: nobody}";
    let town = Town::start(&[("shop", server.address, check), ("nobody", server.address, stranger)]);
    town.shows("shop", "healthy");
    // grpc-status 5: it does not know that service.
    town.shows("nobody", "/failed_active_hc");
    for (says, reason) in [(NotServing, "NOT_SERVING"), (Unknown, "serving status 0")] {
        server.says.send(says).unwrap();
        town.shows("shop", "/failed_active_hc");
        let page = get(town.0.admin(), "/health?cluster=shop");
        let failed = page.lines().find(|line| line.contains("healthy -> ")).unwrap_or_default();
        assert!(failed.contains(reason) && failed.contains("service 'shop'"), "{page}");
        server.says.send(Serving).unwrap();
        town.shows("shop", "healthy");
    }
}

#[test]
fn what_is_no_grpc_server_fails_and_is_named() {
    let (plain, noise, huge) = (Server::start(http), Server::start(http), Server::start(http));
    let black_hole = BlackHole::start();
    noise.becomes(NOISE);
    huge.becomes(HUGE);
    let (grpc, web) = ("grpc_health_check: {}", "http_health_check: {path: /hc}");
    let town = Town::start(&[
        ("plain", plain.address, grpc),
        ("noise", noise.address, grpc),
        ("huge", huge.address, grpc),
        ("hole", black_hole.address, web),
    ]);
    for name in ["plain", "noise", "huge"] {
        let page = town.failed(name);
        assert!(page.contains("grpc 127.0.0.1"), "{page}");
    }
    let page = town.failed("hole");
    assert!(page.contains("timeout"), "{page}");
}
