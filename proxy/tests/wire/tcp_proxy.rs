//! tcp_proxy over real sockets: bulk by splice, resets, what a slow reader costs.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::thread::Scope;
use std::time::Duration;

use tokio::time::Instant;

use socket2::SockRef;

use crate::running::RunningProxy;

const MIB: usize = 1 << 20;

/// A proxy to `host`, which is a `socket_address` or `pipe` in YAML.
fn proxy_to(host: &str) -> RunningProxy {
    RunningProxy::start(
        &format!(
            r#"
static_resources:
  listeners:
  - name: in
    address: {{socket_address: {{address: 127.0.0.1, port_value: 0}}}}
    filter_chains:
    - filters:
      - name: tcp
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy
          stat_prefix: t
          cluster: c
  clusters:
  - name: c
    connect_timeout: 5s
    load_assignment: {{cluster_name: c, endpoints: [{{lb_endpoints: [{{endpoint: {{address: {host}}}}}]}}]}}
"#
        ),
        1,
    )
}

fn host(address: SocketAddr) -> String {
    format!("{{socket_address: {{address: {}, port_value: {}}}}}", address.ip(), address.port())
}

fn pair() -> (RunningProxy, TcpListener) {
    let upstream = TcpListener::bind("127.0.0.1:0").unwrap();
    (proxy_to(&host(upstream.local_addr().unwrap())), upstream)
}

/// Bytes that tell every place from every other.
fn pattern(length: usize) -> Vec<u8> {
    let mut seed = 0x9e37_79b9_u32;
    let next = std::iter::from_fn(|| {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        Some((seed >> 24) as u8)
    });
    next.take(length).collect()
}

fn send_and_end<'s>(scope: &'s Scope<'s, '_>, mut stream: TcpStream, bytes: &'s [u8]) {
    scope.spawn(move || {
        stream.write_all(bytes).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
    });
}

fn read_to_end(mut stream: TcpStream) -> Vec<u8> {
    let mut got = Vec::new();
    stream.read_to_end(&mut got).unwrap();
    got
}

#[test]
fn bulk_passes_whole_in_both_directions_at_once() {
    let (proxy, upstream) = pair();
    let (there, back) = (pattern(24 * MIB + 17), pattern(16 * MIB + 5));
    let client = TcpStream::connect(proxy.socket("in")).unwrap();
    let (server, _) = upstream.accept().unwrap();
    std::thread::scope(|scope| {
        send_and_end(scope, client.try_clone().unwrap(), &there);
        send_and_end(scope, server.try_clone().unwrap(), &back);
        let arrived = scope.spawn(|| read_to_end(server));
        assert!(read_to_end(client) == back, "host to client");
        assert!(arrived.join().unwrap() == there, "client to host");
    });
}

#[test]
fn small_and_large_messages_change_places_without_loss() {
    let (proxy, upstream) = pair();
    let mut client = TcpStream::connect(proxy.socket("in")).unwrap();
    let (mut server, _) = upstream.accept().unwrap();
    for size in [1, 3 * MIB, 10, 5 * MIB, 1, 1, 2 * MIB] {
        let sent = pattern(size);
        let mut got = vec![0; size];
        std::thread::scope(|scope| {
            scope.spawn(|| client.write_all(&sent).unwrap());
            server.read_exact(&mut got).unwrap();
        });
        assert!(got == sent, "{size}");
        server.write_all(&sent[..1]).unwrap();
        client.read_exact(&mut [0]).unwrap();
    }
}

#[test]
fn a_host_behind_a_unix_socket_is_reached() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("up.sock");
    let upstream = UnixListener::bind(&path).unwrap();
    let proxy = proxy_to(&format!("{{pipe: {{path: {}}}}}", path.display()));
    let client = TcpStream::connect(proxy.socket("in")).unwrap();
    let (mut server, _) = upstream.accept().unwrap();
    let there = pattern(4 * MIB);
    std::thread::scope(|scope| {
        send_and_end(scope, client.try_clone().unwrap(), &there);
        let mut got = Vec::new();
        server.read_to_end(&mut got).unwrap();
        assert!(got == there);
        server.write_all(b"done").unwrap();
        drop(server);
        assert_eq!(read_to_end(client), b"done");
    });
}

#[test]
fn a_reset_of_either_side_reaches_the_other_as_a_reset() {
    let (proxy, upstream) = pair();
    let reset = |stream: TcpStream| SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
    let mut client = TcpStream::connect(proxy.socket("in")).unwrap();
    let (mut server, _) = upstream.accept().unwrap();
    server.write_all(b"x").unwrap();
    client.read_exact(&mut [0]).unwrap();
    reset(server);
    assert_eq!(client.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);

    let client = TcpStream::connect(proxy.socket("in")).unwrap();
    let (mut server, _) = upstream.accept().unwrap();
    reset(client);
    assert_eq!(server.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[test]
fn a_host_that_does_not_read_stops_the_client_soon() {
    let (proxy, upstream) = pair();
    let mut client = TcpStream::connect(proxy.socket("in")).unwrap();
    let (server, _) = upstream.accept().unwrap();
    client.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    let block = pattern(MIB);
    let (mut sent, begun) = (0, Instant::now());
    while let Ok(n) = client.write(&block) {
        sent += n;
        assert!(begun.elapsed() < Duration::from_secs(20) && sent < 100 * MIB, "somebody swallows it all");
    }
    // What the kernel holds on both sides, and one buffer of the proxy.
    assert!(sent < 40 * MIB, "{sent} bytes went nowhere");
    drop(server);
}
