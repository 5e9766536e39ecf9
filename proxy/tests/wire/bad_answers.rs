//! What discovery is told that is no answer: garbage, wrong types, halves, silence, streams without end. None of it takes
//! a good host away or much memory, all of it is counted and named in the log, and the next good answer counts.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};

use nuncio_testkit::dns::{Act, Data, NameServer, ResponseCode, a};

use crate::process::{Process, get};
use crate::running::web;

/// What an answer may add to the memory of a process: no more than 64 MiB of one are read, and what grows is copied.
const ROOM: u64 = 160 << 20;

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

struct House {
    proxy: Process,
    /// Where it listens.
    web: SocketAddr,
    /// The most memory that it took before the first bad answer.
    before: u64,
}

impl House {
    /// Until there is a host.
    fn start(clusters: &str) -> Self {
        let proxy = Process::start(&web("route: {cluster: web}", "", clusters));
        let house = Self { web: proxy.listener("web"), before: 0, proxy };
        house.until("a host", |house| house.stat("membership_total") == 1);
        Self { before: house.proxy.peak(), ..house }
    }

    fn stat(&self, name: &str) -> u64 {
        self.proxy.stat(&format!("cluster.web.{name}"))
    }

    fn troubles(&self) -> u64 {
        self.stat("update_failure") + self.stat("update_rejected")
    }

    /// Until what is asked for is so.
    fn until(&self, what: &str, so: impl Fn(&Self) -> bool) {
        self.proxy.until(what, |_| so(self));
    }

    /// Two troubles after `now` the host is still there and serves, and the log says who was asked and what is wrong.
    fn keeps_its_host(&self, what: &str, port: u16, (asked, wrong): (&str, &str), now: impl FnOnce()) {
        let (before, told) = (self.troubles(), self.proxy.log().len());
        now();
        self.until(what, |house| house.troubles() >= before + 2);
        assert!(self.proxy.page("/clusters").contains(&format!("web::127.0.0.1:{port}::")), "{what}");
        assert!(get(self.web, "/").starts_with("HTTP/1.1 200"), "{what}");
        let names_it = |line: &str| line.contains("kept") && line.contains(asked) && line.contains(wrong);
        self.until(&format!("{what}: a line with {asked} and {wrong}"), |house| {
            house.proxy.log()[told..].lines().any(names_it)
        });
        let grown = self.proxy.peak().saturating_sub(self.before);
        assert!(grown < ROOM, "{what}: {} MiB", grown >> 20);
    }
}

fn upstream() -> u16 {
    server(&Arc::new(Mutex::new(ok("hi")))).port()
}

/// `asked`: how the log names what was asked; `nested`: what is wrong with lists of lists of lists. `refused`: bodies, each with what is wrong with it.
fn polled(good: impl Fn(u16) -> String, cluster: &str, (asked, nested): (&str, &str), refused: &[(&str, &str)]) {
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
        (bytes(""), "connection termination"),
        (bytes("garbage\r\n\r\n"), "protocol"),
        (bytes("HTTP/1.1 500 no\r\ncontent-length: 0\r\n\r\n"), "answered 500"),
        (bytes(&half), "closed before the end of the body"),
        (Answer::Silence, "timeout"),
        // Too slow or too large, whichever is first.
        (Answer::Endless, "t"),
        (ok(""), "JSON"),
        (ok("[]"), "object"),
        (ok(&good(second)[..40]), "JSON"),
        (ok(&"[".repeat(100_000)), nested),
    ];
    bad.extend(refused.iter().map(|(body, wrong)| (ok(body), *wrong)));
    for (at, (bad, wrong)) in bad.into_iter().enumerate() {
        house.keeps_its_host(&format!("bad answer {at}"), first, (asked, wrong), || *answer.lock().unwrap() = bad);
    }
    *answer.lock().unwrap() = ok(&good(second));
    house.until("the next good answer", |house| {
        let hosts = house.proxy.page("/clusters");
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
    let numbers = format!(r#"{{"hosts": [{}1]}}"#, "1,".repeat(5_000_000));
    let unasked = format!(r#"{{"asked": [{}1]}}"#, "1,".repeat(5_000_000));
    let wrong = [
        (r#"{"hosts": {}}"#, "expected `hosts` to be a list"),
        (r#"{"hosts": [{"ip_address": 1, "port": 2}]}"#, "hosts[0].ip_address: must be a string"),
        (r#"{"hosts": [{"ip_address": "10.0.0.1", "port": 1e9}]}"#, "hosts[0].port: must be a number"),
        (
            r#"{"hosts": [{"ip_address": "10.0.0.1", "port": 1}, {"ip_address": "name.test", "port": 1}]}"#,
            "hosts[1].ip_address: `name.test` is no IP address",
        ),
        (&numbers, "invalid type: integer `1`, expected an object"),
        (&unasked, "`hosts` must be a list"),
    ];
    let asked = ("GET registry/v1/registration/web: ", "invalid type: sequence, expected an object");
    polled(good, cluster, asked, &wrong);
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
    let empty = good(1).replace("{\"lb_endpoints\": [", "{\"lb_endpoints\": [{}, ");
    let wrong = [
        (&*other, "Unexpected EDS cluster (expecting web): other"),
        (&named, "name.test"),
        (&unknown, "Nonsense"),
        (&far, "70000"),
        (&empty, "Address must be set"),
    ];
    polled(good, cluster, ("cluster=web", "nested more than 100 levels deep"), &wrong);
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
    let looped = vec![("@", 1, Data::Alias("loop.test.")), ("loop.test.", 1, Data::Alias("web.test."))];
    let bad = [
        (Act::Code(ResponseCode::ServFail), "Server Failure"),
        (Act::Code(ResponseCode::Refused), "Refused"),
        (Act::WrongQuestion, "no name server answered in time"),
        (Act::Garbage(vec![0xff; 60]), "protocol error"),
        (Act::Half(elsewhere()), "response was truncated"),
        (Act::Records(looped), "the aliases of web.test. do not end"),
        (Act::WrongId(elsewhere()), "no name server answered in time"),
        (Act::Silence, "no name server answered in time"),
    ];
    for (act, wrong) in bad {
        let what = format!("{act:?}");
        let what = &what[..what.len().min(40)];
        house.keeps_its_host(what, port, ("web.test: ", wrong), || names.on("web.test.", act));
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
    assert!(house.proxy.stat("dns.cares.not_found") > 0);
}
