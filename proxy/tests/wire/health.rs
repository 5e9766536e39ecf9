//! Active checks over real sockets: servers that change their ways while the proxy asks them.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::time::Duration;

use crate::running::RunningProxy;

/// What a server does with each request, or each line of bytes.
const WELL: u8 = 0;
const WRONG: u8 = 1;
const SILENT: u8 = 2;
/// Closes with bytes unread, which resets.
const RESET: u8 = 3;
const HALF: u8 = 4;
const SLOW: u8 = 5;

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
    stream.write_all(if way == WELL { b"PONG" } else { b"GONE" })?;
    Ok(true)
}

fn get(to: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(to).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

struct Town(RunningProxy);

impl Town {
    fn start(clusters: &[(&str, &Server, &str)]) -> Self {
        let clusters: String = clusters.iter().map(|(name, server, check)| {
            let (ip, port) = (server.address.ip(), server.address.port());
            format!(
                "{{name: {name}, common_lb_config: {{update_merge_window: 0s, healthy_panic_threshold: {{value: 0}}}}, \
                 health_checks: [{{timeout: 0.3s, interval: 0.05s, no_traffic_interval: 0.05s, unhealthy_threshold: 1, \
                 healthy_threshold: 1, {check}}}], load_assignment: {{cluster_name: {name}, endpoints: \
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
        ("web", &web, "http_health_check: {path: /hc}"),
        ("bytes", &bytes, "tcp_health_check: {send: {text: '50494e47'}, receive: [{text: '504f'}, {text: '4e47'}]}"),
    ]);
    town.shows("web", "healthy");
    town.shows("bytes", "healthy");
    for (way, flags, reason) in [
        (WRONG, "/failed_active_hc", "HTTP 503"),
        (SILENT, "/failed_active_hc/active_hc_timeout", "timeout"),
        (HALF, "/failed_active_hc", "closed within a head"),
        (SLOW, "/failed_active_hc/active_hc_timeout", "timeout"),
        (RESET, "/failed_active_hc", "clos"),
    ] {
        web.becomes(way);
        town.shows("web", flags);
        let page = get(town.0.admin(), "/health?cluster=web");
        let failed = page.lines().find(|line| line.contains("healthy -> ")).unwrap_or_default();
        assert!(failed.contains(reason) && failed.contains("/hc (Host: web)"), "{page}");
        web.becomes(WELL);
        town.shows("web", "healthy");
    }
    bytes.becomes(WRONG);
    town.shows("bytes", "/failed_active_hc/active_hc_timeout");
    bytes.becomes(WELL);
    town.shows("bytes", "healthy");
}
