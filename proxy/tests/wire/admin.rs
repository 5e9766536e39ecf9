//! Admin: what its pages do to a running server.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::running::RunningProxy;

const ADMIN: &str = r#"
admin: {address: {socket_address: {address: 127.0.0.1, port_value: 0}}}
node: {id: some, cluster: c, locality: {zone: z}}
static_resources:
  listeners:
  - name: in
    traffic_direction: INBOUND
    address: {socket_address: {address: 127.0.0.1, port_value: 0}}
    filter_chains: [{filters: [{name: echo, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.echo.v3.Echo}}]}]
  - name: out
    address: {socket_address: {address: 127.0.0.1, port_value: 0}}
    filter_chains: [{filters: [{name: echo, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.echo.v3.Echo}}]}]
"#;

/// Status and body.
fn ask(admin: SocketAddr, method: &str, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(admin).expect("the admin listener accepts");
    write!(stream, "{method} {path} HTTP/1.1\r\nhost: {admin}\r\nconnection: close\r\n\r\n")
        .expect("a request is sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer comes");
    let status = answer.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or_default();
    let (_, mut chunks) = answer.split_once("\r\n\r\n").expect("a head ends");
    let mut body = String::new();
    while let Some((size, rest)) = chunks.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).expect("a chunk has a size");
        body.push_str(&rest[..size]);
        chunks = &rest[size + 2..];
    }
    (status, body)
}

#[test]
fn pages_tell_of_the_running_server() {
    let proxy = RunningProxy::start(ADMIN, 1);
    let admin = proxy.admin();
    assert_eq!(ask(admin, "GET", "/ready"), (200, "LIVE\n".to_owned()));
    let lines = format!("in::{}\nout::{}\n", proxy.socket("in"), proxy.socket("out"));
    assert_eq!(ask(admin, "GET", "/listeners"), (200, lines));
    assert!(ask(admin, "GET", "/server_info").1.contains("  \"zone\": \"z\",\n"));
    let active = "/stats?filter=total_listeners_active";
    assert_eq!(ask(admin, "GET", active), (200, "listener_manager.total_listeners_active: 2\n".to_owned()));
    assert_eq!(ask(admin, "POST", "/healthcheck/fail"), (200, "OK\n".to_owned()));
    assert_eq!(ask(admin, "GET", "/ready"), (503, "DRAINING\n".to_owned()));
    assert_eq!(ask(admin, "POST", "/healthcheck/ok"), (200, "OK\n".to_owned()));
    assert_eq!(ask(admin, "GET", "/ready").0, 200);
    let total = "/stats?filter=listener.admin.downstream_cx_total";
    assert_ne!(ask(admin, "GET", total).1, "listener.admin.downstream_cx_total: 0\n");
    assert_eq!(ask(admin, "POST", "/reset_counters"), (200, "OK\n".to_owned()));
    // The connection that asks is the first after the reset.
    assert_eq!(ask(admin, "GET", total).1, "listener.admin.downstream_cx_total: 1\n");
}

#[test]
fn drained_listeners_take_no_more_connections_and_are_still_shown() {
    let proxy = RunningProxy::start(ADMIN, 2);
    let before = ask(proxy.admin(), "GET", "/listeners");
    let mut old = TcpStream::connect(proxy.socket("in")).unwrap();
    // What waits in a listening socket's queue is reset when that closes: this one must be a worker's.
    let mut echo = [0; 2];
    old.write_all(b"ho").unwrap();
    old.read_exact(&mut echo).unwrap();
    assert_eq!(ask(proxy.admin(), "POST", "/drain_listeners?inboundonly"), (200, "OK\n".to_owned()));
    // The workers hear of it after the answer: until then a connection may still be taken.
    while !matches!(TcpStream::connect(proxy.socket("in")), Err(e) if e.kind() == ErrorKind::ConnectionRefused) {
        std::thread::yield_now();
    }
    old.write_all(b"hi").unwrap();
    old.read_exact(&mut echo).unwrap();
    assert_eq!(&echo, b"hi");
    TcpStream::connect(proxy.socket("out")).unwrap();
    assert_eq!(ask(proxy.admin(), "GET", "/listeners"), before);
}

#[test]
fn quitquitquit_answers_and_then_ends_the_server() {
    let proxy = RunningProxy::start(ADMIN, 1);
    assert_eq!(ask(proxy.admin(), "POST", "/quitquitquit"), (200, "OK\n".to_owned()));
    while TcpStream::connect(proxy.socket("in")).is_ok() {
        std::thread::yield_now();
    }
}
