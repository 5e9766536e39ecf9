//! The sidecar as it is shipped, behind real rules of the kernel's packet filter: two network namespaces joined by a
//! pair of interfaces, `configs/sidecar.yaml`, `nuncio iptables`. Needs root, the one test that does; elsewhere it says
//! that it is skipped, and where `NUNCIO_REQUIRE_ROOT` is set that is a failure.

// What fails ends the test.
#![allow(clippy::unwrap_used)]

mod namespaces;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use namespaces::{Namespace, Pair, may_run};

/// In the namespace of whoever calls.
fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect_timeout(&to, Duration::from_secs(5)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    stream
}

fn get(to: SocketAddr, path: &str) -> String {
    let mut stream = connect(to);
    write!(stream, "GET {path} HTTP/1.1\r\nhost: {to}\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    // An end without a word is an answer too.
    let _ = stream.read_to_string(&mut answer);
    answer
}

fn stat(namespace: &Namespace, name: &str) -> u64 {
    let path = format!("/stats?filter=^{name}$");
    let page = namespace.run(move || get(([127, 0, 0, 1], 15000).into(), &path));
    page.lines()
        .find_map(|line| line.rsplit_once(": ").filter(|(n, _)| n == &name))
        .map_or(0, |(_, v)| v.parse().unwrap())
}

#[test]
fn http_and_bytes_reach_where_they_were_meant_for_through_the_clients_sidecar() {
    if !may_run() {
        return;
    }
    let pair = Pair::new("out");
    pair.serve();
    pair.client.iptables(&["--apply", "--uid", "1337"]);
    let _sidecar = pair.client.sidecar();
    for address in pair.server_addresses() {
        let answer = pair.client.run(move || get(SocketAddr::new(address, 8080), "/hello"));
        assert!(answer.starts_with("HTTP/1.1 200"), "{address}: {answer}");
        assert!(answer.contains("x-request-id"), "{address}: not through the proxy: {answer}");
        // A server that speaks first is heard, and bytes go both ways.
        let echoed = pair.client.run(move || {
            let mut stream = connect(SocketAddr::new(address, 9000));
            let mut buf = [0; 6];
            stream.read_exact(&mut buf).unwrap();
            assert_eq!(&buf, b"hello\n");
            stream.write_all(b"ping\r\n").unwrap();
            stream.read_exact(&mut buf).unwrap();
            buf
        });
        assert_eq!(&echoed, b"ping\r\n");
    }
    assert_eq!(stat(&pair.client, "http.outbound.downstream_rq_2xx"), 2);
    assert_eq!(stat(&pair.client, "tcp.passthrough.downstream_cx_total"), 2);
}

#[test]
fn connections_to_a_pod_go_through_its_sidecar_to_the_application() {
    if !may_run() {
        return;
    }
    let pair = Pair::new("in");
    pair.serve();
    pair.server.iptables(&["--apply", "--uid", "1337"]);
    let _sidecar = pair.server.sidecar();
    for address in pair.server_addresses() {
        let answer = pair.client.run(move || get(SocketAddr::new(address, 8080), "/hello"));
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("x-request-id"), "{address}: {answer}");
        // Health and metrics are asked past the rules.
        if address.is_ipv4() {
            let health = pair.client.run(move || get(SocketAddr::new(address, 15021), "/healthz/ready"));
            assert!(health.starts_with("HTTP/1.1 200"), "{health}");
            let metrics = pair.client.run(move || get(SocketAddr::new(address, 15090), "/stats/prometheus"));
            assert!(metrics.contains("envoy_http_downstream_cx_total"), "{metrics:.200}");
        }
    }
    assert_eq!(stat(&pair.server, "http.inbound.downstream_rq_2xx"), 2);
}

#[test]
fn a_connection_to_the_proxys_own_port_does_not_come_back_for_ever() {
    if !may_run() {
        return;
    }
    let pair = Pair::new("loop");
    pair.client.iptables(&["--apply", "--uid", "1337"]);
    let _sidecar = pair.client.sidecar();
    let own = pair.client_addresses()[0];
    // From outside, by the rules to the inbound listener; from inside, to the listener itself.
    for (from, port) in [(&pair.server, 15001), (&pair.server, 15006), (&pair.client, 15001), (&pair.client, 15006)] {
        let answer = from.run(move || get(SocketAddr::new(own, port), "/"));
        assert!(answer.starts_with("HTTP/1.1 503"), "{port}: {answer}");
    }
    let upstreams = stat(&pair.client, "cluster.application.upstream_cx_total")
        + stat(&pair.client, "cluster.passthrough.upstream_cx_total");
    assert_eq!(upstreams, 0, "nobody was connected to");
}

#[test]
fn rules_are_applied_once_however_often_and_cleaned_without_trace() {
    if !may_run() {
        return;
    }
    let pair = Pair::new("rules");
    let before = pair.client.nat_tables();
    pair.client.iptables(&["--clean"]);
    assert_eq!(pair.client.nat_tables(), before, "nothing to clean is no change");
    pair.client.iptables(&["--apply", "--exclude-outbound-ports", "3306", "--outbound-ranges", "10.0.0.0/8,fd00::/8"]);
    let once = pair.client.nat_tables();
    assert!(once.contains("--dport 3306") && once.contains("-d fd00::/8"), "{once}");
    pair.client.iptables(&["--apply", "--exclude-outbound-ports", "3306", "--outbound-ranges", "10.0.0.0/8,fd00::/8"]);
    assert_eq!(pair.client.nat_tables(), once);
    pair.client.iptables(&["--clean"]);
    assert_eq!(pair.client.nat_tables(), before);
}
