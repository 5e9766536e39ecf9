//! The sidecar as it is shipped, behind real rules of the kernel's packet filter: two network namespaces joined by a
//! pair of interfaces, `configs/sidecar.yaml`, `nuncio iptables`. Needs root, the one test that does; elsewhere it says
//! that it is skipped, and where `NUNCIO_REQUIRE_ROOT` is set that is a failure.

// What fails ends the test.
#![allow(clippy::unwrap_used)]

mod namespaces;

use std::io::{Read, Write};
use std::net::{SocketAddr, SocketAddrV6, TcpStream};
use std::time::Duration;

use namespaces::{Namespace, Pair, may_run};
use nuncio_testkit::certificates::{Authority, Issued, Wanted};

/// In the namespace of whoever calls.
fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect_timeout(&to, Duration::from_secs(5)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    stream
}

fn get(to: SocketAddr, path: &str) -> String {
    let mut stream = connect(to);
    // Whoever is not let in may be told so before all is written.
    let _ = write!(stream, "GET {path} HTTP/1.1\r\nhost: {to}\r\nconnection: close\r\n\r\n");
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

/// What Kubernetes asks, by the deployment that we ship.
fn readiness_probe() -> (String, u16) {
    let deployment = include_str!("../../../configs/deploy/kubernetes.yaml");
    let (_, probe) = deployment.split_once("readinessProbe: {httpGet: {path: ").unwrap();
    let (path, rest) = probe.split_once(", port: ").unwrap();
    (path.to_owned(), rest.split_once('}').unwrap().0.parse().unwrap())
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
            let (path, port) = readiness_probe();
            let health = pair.client.run(move || get(SocketAddr::new(address, port), &path));
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

/// What `extension` (an up- or downstream context) says of an identity in the sidecar's folder, and whom it believes.
fn mutual(extension: &str, peer: &str, more: &str) -> String {
    format!(
        "transport_socket: {{name: tls, typed_config: {{'@type': \
         type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.{extension}, {more} common_tls_context: \
         {{tls_certificates: [{{certificate_chain: {{filename: '@FOLDER@/cert.pem'}}, private_key: {{filename: \
         '@FOLDER@/key.pem'}}}}], validation_context: {{trusted_ca: {{filename: '@FOLDER@/ca.pem'}}, \
         match_typed_subject_alt_names: [{{san_type: URI, matcher: {{exact: '{peer}'}}}}]}}}}}}}}"
    )
}

#[test]
fn two_sidecars_know_each_other_by_their_certificates_and_a_client_without_one_is_refused() {
    if !may_run() {
        return;
    }
    let authority = Authority::new("mesh");
    let issue = |name, uri| authority.issue(&Wanted { name, uris: vec![uri], ..Wanted::default() });
    let (ours, theirs) = (issue("client", "spiffe://mesh/client"), issue("server", "spiffe://mesh/server"));
    fn files<'a>(of: &'a Issued, authority: &'a Authority) -> [(&'static str, &'a str); 3] {
        [("cert.pem", &of.chain), ("key.pem", &of.key), ("ca.pem", &authority.pem)]
    }
    let outbound = |text: &str| {
        let socket = mutual("UpstreamTlsContext", "spiffe://mesh/server", "");
        let plain = "{name: passthrough, type: ORIGINAL_DST, ";
        assert!(text.contains(plain));
        text.replace(plain, &format!("{plain}{socket}, "))
    };
    let inbound = |text: &str| {
        let socket = mutual("DownstreamTlsContext", "spiffe://mesh/client", "require_client_certificate: true,");
        let (before, after) = text.split_once("- name: inbound").unwrap();
        // Whatever comes is TLS, or is not taken.
        let (chains, after) = after.split_once("    filter_chains:\n").unwrap();
        let (_, bytes) = after.split_once("    default_filter_chain:\n").unwrap();
        let (chain, rest) = bytes.split_once("  - name: health").unwrap();
        let chain = chain.replacen("      name: bytes", "    - name: bytes", 1);
        format!(
            "{before}- name: inbound{chains}    filter_chains:\n{chain}      filter_chain_match: {{transport_protocol: tls}}\n      \
             {socket}\n  - name: health{rest}"
        )
    };
    let pair = Pair::new("mtls");
    pair.serve();
    pair.client.iptables(&["--apply", "--uid", "1337"]);
    pair.server.iptables(&["--apply", "--uid", "1337"]);
    let _theirs = pair.server.sidecar_with("1337", inbound, &files(&theirs, &authority));
    let _ours = pair.client.sidecar_with("1337", outbound, &files(&ours, &authority));
    for address in pair.server_addresses() {
        let answer = pair.client.run(move || get(SocketAddr::new(address, 8080), "/hello"));
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("x-request-id"), "{address}: {answer}");
        pair.client.run(move || {
            let mut stream = connect(SocketAddr::new(address, 9000));
            let mut buf = [0; 6];
            stream.read_exact(&mut buf).unwrap();
            assert_eq!(&buf, b"hello\n");
            stream.write_all(b"ping\r\n").unwrap();
            stream.read_exact(&mut buf).unwrap();
            assert_eq!(&buf, b"ping\r\n");
        });
    }
    assert_eq!(stat(&pair.server, "listener.0.0.0.0_15006.ssl.handshake"), 4);
    assert_eq!(stat(&pair.client, "cluster.passthrough.ssl.handshake"), 4);
    // Without a sidecar, and so without a certificate, nobody is let in.
    pair.client.iptables(&["--clean"]);
    for address in pair.server_addresses() {
        let answer = pair.client.run(move || get(SocketAddr::new(address, 8080), "/hello"));
        assert_eq!(answer, "", "{address}");
    }
}

/// What comes from outside goes to the inbound listener without a change; only that, or the proxy's own connection to the
/// application would come back.
fn by_tproxy(namespace: &Namespace) {
    for (filter, family, all) in [("iptables", "-4", "0.0.0.0/0"), ("ip6tables", "-6", "::/0")] {
        namespace.sh(&format!(
            "{filter} -t mangle -A PREROUTING -i v0 -p tcp -m multiport --dports 8080,9000 -j TPROXY --on-port 15006 \
             --tproxy-mark 1"
        ));
        namespace.sh(&format!("ip {family} rule add fwmark 1 lookup 100"));
        namespace.sh(&format!("ip {family} route add local {all} dev lo table 100"));
    }
}

fn transparent(text: &str) -> String {
    text.replace("    traffic_direction: INBOUND\n", "    traffic_direction: INBOUND\n    transparent: true\n")
}

#[test]
fn connections_that_come_by_tproxy_keep_where_they_were_meant_for() {
    if !may_run() {
        return;
    }
    let pair = Pair::new("tproxy");
    pair.serve();
    by_tproxy(&pair.server);
    // A transparent socket is for those with rights over the network.
    let _sidecar = pair.server.sidecar_with("0", transparent, &[]);
    for address in pair.server_addresses() {
        let answer = pair.client.run(move || get(SocketAddr::new(address, 8080), "/hello"));
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("x-request-id"), "{address}: {answer}");
        let first = pair.client.run(move || {
            let mut buf = [0; 6];
            connect(SocketAddr::new(address, 9000)).read_exact(&mut buf).unwrap();
            buf
        });
        assert_eq!(&first, b"hello\n");
    }
    assert_eq!(stat(&pair.server, "http.inbound.downstream_rq_2xx"), 2);
    assert_eq!(stat(&pair.server, "tcp.application.downstream_cx_total"), 2);
}

/// The filters that look at a connection, with one that makes it go on from its client's address.
fn from_the_client(text: &str) -> String {
    let first = "    listener_filters: &look\n";
    let filter = "    - {name: o, typed_config: {'@type': \
                  type.googleapis.com/envoy.extensions.filters.listener.original_src.v3.OriginalSrc, mark: 1}}\n";
    assert!(text.contains(first));
    transparent(&text.replace(first, &format!("{first}{filter}")))
}

#[test]
fn the_application_sees_the_clients_address_with_original_src() {
    if !may_run() {
        return;
    }
    let pair = Pair::new("src");
    pair.serve();
    by_tproxy(&pair.server);
    // The application's answers go back to the proxy, and not to the client that it sees.
    for filter in ["iptables", "ip6tables"] {
        pair.server.sh(&format!("{filter} -t mangle -A PREROUTING -i lo -m mark --mark 1 -j CONNMARK --save-mark"));
        pair.server.sh(&format!("{filter} -t mangle -A OUTPUT -m connmark --mark 1 -j CONNMARK --restore-mark"));
    }
    let _sidecar = pair.server.sidecar_with("0", from_the_client, &[]);
    for (client, server) in pair.client_addresses().into_iter().zip(pair.server_addresses()) {
        let peer = format!("peer: {client}\r\n");
        // The second one finds a connection in the pool of its client.
        for _ in 0..2 {
            let answer = pair.client.run(move || get(SocketAddr::new(server, 8080), "/hello"));
            assert!(answer.contains(&peer) && answer.contains("x-request-id"), "{server}: {answer}");
        }
        let first = pair.client.run(move || {
            let mut buf = [0; 6];
            connect(SocketAddr::new(server, 9000)).read_exact(&mut buf).unwrap();
            buf
        });
        assert_eq!(&first, b"hello\n");
    }
    assert_eq!(stat(&pair.server, "cluster.application.upstream_cx_connect_fail"), 0);
}

// reliability.md P14: CVE-2026-73549 was a crash here.
#[test]
fn a_destination_that_only_its_interface_makes_an_address_is_refused_with_a_reason() {
    if !may_run() {
        return;
    }
    let pair = Pair::new("scope");
    pair.serve();
    pair.server.sh("ip addr add fe80::1234/64 dev v0 nodad");
    pair.server.iptables(&["--apply", "--uid", "1337"]);
    let details = |text: &str| {
        let routes = "            name: application\n";
        assert!(text.contains(routes));
        let header = "response_headers_to_add: [{header: {key: x-details, value: '%RESPONSE_CODE_DETAILS%'}}]";
        text.replace(routes, &format!("{routes}            {header}\n"))
    };
    let _sidecar = pair.server.sidecar_with("1337", details, &[]);
    let index: u32 = pair.client.sh("cat /sys/class/net/v0/ifindex").trim().parse().unwrap();
    let scoped = SocketAddrV6::new("fe80::1234".parse().unwrap(), 8080, 0, index);
    let answer = pair.client.run(move || get(scoped.into(), "/hello"));
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("original_dst_is_no_host"), "{answer}");
    assert_eq!(stat(&pair.server, "cluster.application.original_dst_host_invalid"), 1);
    // Nothing else suffers.
    let address = pair.server_addresses()[1];
    let answer = pair.client.run(move || get(SocketAddr::new(address, 8080), "/hello"));
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}
