//! What discovery is told that is no answer: garbage, wrong types, halves, silence, streams without end. None of it takes
//! a good host away, all of it is counted, and the next good answer counts.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use nuncio_testkit::dns::{Act, Data, NameServer, ResponseCode, a};

use crate::running::{RunningProxy, web};

#[derive(Clone)]
enum Answer {
    /// These bytes, and the end of the connection.
    Bytes(String),
    /// Nothing, on an open connection.
    Silence,
    /// A body that does not end.
    Endless,
}

/// Gives every connection the answer that it is told at the time.
fn server(answer: &Arc<Mutex<Answer>>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let answer = answer.clone();
    let serve = move || {
        let mut silent = Vec::new();
        for mut stream in listener.incoming().flatten() {
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let (mut line, mut length) = (String::new(), 0);
            while reader.read_line(&mut line).is_ok_and(|read| read > 2) {
                if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                line.clear();
            }
            let mut body = vec![0; length];
            let _ = reader.read_exact(&mut body);
            let now = answer.lock().unwrap().clone();
            match now {
                Answer::Bytes(bytes) => drop(stream.write_all(bytes.as_bytes())),
                Answer::Silence => silent.push(stream),
                Answer::Endless => {
                    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n{\"hosts\":[");
                    while stream.write_all(&[b' '; 65536]).is_ok() {}
                }
            }
        }
    };
    std::thread::Builder::new().spawn(serve).unwrap();
    address
}

fn ok(body: &str) -> Answer {
    Answer::Bytes(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len()))
}

fn get(to: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(to).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

struct House {
    proxy: RunningProxy,
}

impl House {
    fn start(clusters: &str) -> Self {
        let yaml = web("route: {cluster: web}", "", clusters);
        Self { proxy: RunningProxy::start(&yaml, 1) }
    }

    fn stat(&self, name: &str) -> u64 {
        let stats = get(self.proxy.admin(), &format!("/stats?filter=cluster.web.{name}$"));
        let (_, rest) = stats.split_once(&format!("cluster.web.{name}: ")).unwrap_or_default();
        rest.split(|c: char| !c.is_ascii_digit()).next().and_then(|value| value.parse().ok()).unwrap_or(0)
    }

    fn troubles(&self) -> u64 {
        self.stat("update_failure") + self.stat("update_rejected")
    }

    /// Until what is asked for is so.
    fn until(&self, what: &str, so: impl Fn(&Self) -> bool) {
        assert!((0..20_000).any(|_| so(self)), "{what} never came: {}", get(self.proxy.admin(), "/discovery"));
    }

    /// Two troubles later the host is still there and serves.
    fn keeps_its_host(&self, what: &str, port: u16) {
        let before = self.troubles();
        self.until(what, |house| house.troubles() >= before + 2);
        assert!(get(self.proxy.admin(), "/clusters").contains(&format!("web::127.0.0.1:{port}::")), "{what}");
        assert!(get(self.proxy.socket("web"), "/").starts_with("HTTP/1.1 200"), "{what}");
    }
}

fn upstream() -> u16 {
    server(&Arc::new(Mutex::new(ok("hi")))).port()
}

fn polled(good: impl Fn(u16) -> String, cluster: &str, refused: &[&str]) {
    let (first, second) = (upstream(), upstream());
    let answer = Arc::new(Mutex::new(ok(&good(first))));
    let registry = server(&answer).port();
    let house = House::start(&format!(
        r#"{cluster}
  - name: registry
    load_assignment: {{cluster_name: registry, endpoints: [{{lb_endpoints: [{{endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {registry}}}}}}}}}]}}]}}
"#
    ));
    let bytes = |text: &str| Answer::Bytes(text.to_owned());
    let half = format!("HTTP/1.1 200 OK\r\ncontent-length: 5000\r\n\r\n{}", good(second));
    let mut bad = vec![
        bytes(""),
        bytes("garbage\r\n\r\n"),
        bytes("HTTP/1.1 500 no\r\ncontent-length: 0\r\n\r\n"),
        bytes(&half),
        Answer::Silence,
        Answer::Endless,
        ok(""),
        ok("[]"),
        ok(&good(second)[..40]),
        ok(&"[".repeat(100_000)),
    ];
    bad.extend(refused.iter().map(|body| ok(body)));
    for (at, bad) in bad.into_iter().enumerate() {
        *answer.lock().unwrap() = bad;
        house.keeps_its_host(&format!("bad answer {at}"), first);
    }
    *answer.lock().unwrap() = ok(&good(second));
    house.until("the next good answer", |house| {
        let hosts = get(house.proxy.admin(), "/clusters");
        hosts.contains(&format!("web::127.0.0.1:{second}::")) && !hosts.contains(&format!("web::127.0.0.1:{first}::"))
    });
}

#[test]
fn nothing_but_a_list_of_hosts_from_the_registry_counts() {
    let good = |port| {
        format!(r#"{{"service": "web", "hosts": [{{"ip_address": "127.0.0.1", "port": {port}, "tags": {{}}}}]}}"#)
    };
    let cluster = r#"
  - name: web
    cluster_type:
      name: nuncio.clusters.sds
      typed_config:
        "@type": type.googleapis.com/nuncio.extensions.clusters.sds.v1.SdsCluster
        sds_cluster: registry
        refresh_delay: 0.01s
        request_timeout: 0.2s"#;
    let wrong = [
        r#"{"hosts": {}}"#,
        r#"{"hosts": [{"ip_address": 1, "port": 2}]}"#,
        r#"{"hosts": [{"ip_address": "10.0.0.1", "port": 1e9}]}"#,
        r#"{"hosts": [{"ip_address": "10.0.0.1", "port": 1}, {"ip_address": "name.test", "port": 1}]}"#,
    ];
    polled(good, cluster, &wrong);
}

#[test]
fn nothing_but_an_assignment_from_the_management_server_counts() {
    const KIND: &str = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment";
    let good = |port| {
        format!(
            r#"{{"version_info": "1", "resources": [{{"@type": "{KIND}", "cluster_name": "web", "endpoints": [{{"lb_endpoints": [
            {{"endpoint": {{"address": {{"socket_address": {{"address": "127.0.0.1", "port_value": {port}}}}}}}}}]}}]}}]}}"#
        )
    };
    let cluster = r#"
  - name: web
    type: EDS
    eds_cluster_config:
      eds_config:
        resource_api_version: V3
        api_config_source: {api_type: REST, transport_api_version: V3, cluster_names: [registry], refresh_delay: 0.01s, request_timeout: 0.2s}"#;
    let other = good(1).replace("\"cluster_name\": \"web\"", "\"cluster_name\": \"other\"");
    let named = good(1).replace("127.0.0.1", "name.test");
    let unknown = good(1).replace("ClusterLoadAssignment", "Nonsense");
    let far = good(1).replace("\"port_value\": 1", "\"port_value\": 70000");
    polled(good, cluster, &[&other, &named, &unknown, &far]);
}

#[test]
fn nothing_but_an_authority_takes_the_hosts_of_a_name_away() {
    let names = NameServer::on_thread().unwrap();
    let port = upstream();
    let here = ("@", 1, Data::Address(IpAddr::V4(Ipv4Addr::LOCALHOST)));
    names.on("web.test.", Act::Records(vec![here]));
    let house = House::start(&format!(
        r#"
  - name: web
    type: STRICT_DNS
    dns_lookup_family: V4_ONLY
    dns_refresh_rate: 0.02s
    typed_dns_resolver_config:
      name: envoy.network.dns_resolver.cares
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.network.dns_resolver.cares.v3.CaresDnsResolverConfig
        resolvers: [{{socket_address: {{address: 127.0.0.1, port_value: {}}}}}]
        query_timeout_seconds: 1
        query_tries: 1
    load_assignment: {{cluster_name: web, endpoints: [{{lb_endpoints: [{{endpoint: {{address: {{socket_address: {{address: web.test, port_value: {port}}}}}}}}}]}}]}}
"#,
        names.address.port()
    ));
    let elsewhere = || (0..100).map(|i| ("@", 7, a(i))).collect::<Vec<_>>();
    let bad = [
        Act::Code(ResponseCode::ServFail),
        Act::Code(ResponseCode::Refused),
        Act::WrongQuestion,
        Act::Garbage(vec![0xff; 60]),
        Act::Half(elsewhere()),
        Act::Records(vec![("@", 1, Data::Alias("loop.test.")), ("loop.test.", 1, Data::Alias("web.test."))]),
        Act::WrongId(elsewhere()),
        Act::Silence,
    ];
    for act in bad {
        let what = format!("{act:?}");
        names.on("web.test.", act);
        house.keeps_its_host(&what[..what.len().min(40)], port);
    }
    // The server is back.
    let more = |n| (0..n).map(|i| ("@", 7, a(i))).collect::<Vec<_>>();
    names.on("web.test.", Act::Records(more(3)));
    house.until("three hosts", |house| house.stat("membership_total") == 3);
    // More than anybody needs: bounded.
    names.on("web.test.", Act::Truncated(more(4000)));
    house.until("many hosts", |house| house.stat("membership_total") == 1024);
    names.on("web.test.", Act::Code(ResponseCode::NXDomain));
    house.until("nobody", |house| house.stat("membership_total") == 0);
    let stats = get(house.proxy.admin(), "/stats?filter=dns.cares.not_found");
    assert!(stats.contains("dns.cares.not_found: ") && !stats.contains("not_found: 0"), "{stats}");
}
