//! Polled SDS over real connections: the public reference server's answers into the proxy, its forms into
//! `nuncio sds-server`, and a server that is killed.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::running::{RunningProxy, web};

/// A server that gives every connection the same answer, and tells which requests came.
fn stand_in(answer: String) -> (SocketAddr, std::sync::mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, requests) = std::sync::mpsc::channel();
    let serve = move || {
        for mut stream in listener.incoming().flatten() {
            let mut head = String::new();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            while !head.ends_with("\r\n\r\n") && reader.read_line(&mut head).is_ok_and(|read| read > 0) {}
            let _ = sender.send(head);
            let _ = stream.write_all(answer.as_bytes());
        }
    };
    std::thread::Builder::new().spawn(serve).unwrap();
    (address, requests)
}

fn ask(to: SocketAddr, method: &str, path: &str, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(to).unwrap();
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{path}: {answer}"));
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// As the public reference server answers: HTTP/1.0 of its development server, keys in its order, fields that nobody
/// asked for.
fn reference_answer(ports: [u16; 2]) -> String {
    let host = |port: u16, az: &str, id: &str| {
        format!(
            r#"{{"ip_address": "127.0.0.1", "last_check_in": "2026-01-01 00:00:00.123456+00:00", "port": {port}, "revision": "f00", "service": "web", "service_repo_name": "web-repo", "tags": {{"az": "{az}", "canary": false, "instance_id": "{id}", "load_balancing_weight": 5, "onebox_name": "", "region": "us-east-1"}}}}"#
        )
    };
    let hosts = [host(ports[0], "us-east-1a", "i-1"), host(ports[1], "us-east-1b", "i-2")].join(", ");
    let body = format!(r#"{{"env": "production", "hosts": [{hosts}], "service": "web"}}"#);
    format!(
        "HTTP/1.0 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\nServer: Werkzeug/0.11 Python/2.7\r\n\r\n{body}",
        body.len()
    )
}

fn config(registry: SocketAddr) -> String {
    let clusters = format!(
        r#"- name: web
  cluster_type:
    name: nuncio.clusters.sds
    typed_config:
      "@type": type.googleapis.com/nuncio.extensions.clusters.sds.v1.SdsCluster
      sds_cluster: registry
      refresh_delay: 0.05s
- name: registry
  load_assignment:
    cluster_name: registry
    endpoints: [{{lb_endpoints: [{{endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {}}}}}}}}}]}}]"#,
        registry.port()
    );
    web("route: {cluster: web}", "", &clusters)
}

#[test]
fn the_public_reference_server_works_unchanged() {
    let upstream = || stand_in("HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nhi".to_owned()).0;
    let ports = [upstream().port(), upstream().port()];
    let (registry, requests) = stand_in(reference_answer(ports));
    let proxy = RunningProxy::start(&config(registry), 1);
    let first = requests.recv().unwrap();
    assert!(first.starts_with("GET /v1/registration/web HTTP/1.1\r\n"), "{first}");
    let (_, hosts) = ask(proxy.admin(), "GET", "/clusters", "");
    for (port, zone) in ports.into_iter().zip(["us-east-1a", "us-east-1b"]) {
        for said in [format!("zone::{zone}"), "region::us-east-1".into(), "weight::5".into(), "canary::false".into()] {
            let line = format!("web::127.0.0.1:{port}::{said}\n");
            assert!(hosts.contains(&line), "{line} is not in {hosts}");
        }
    }
    assert_eq!(ask(proxy.socket("web"), "GET", "/", ""), (200, "hi".to_owned()));
    // And again, with the same answer.
    requests.recv().unwrap();
    requests.recv().unwrap();
    let (_, stats) = ask(proxy.admin(), "GET", "/stats?filter=cluster.web.update", "");
    assert!(stats.contains("update_failure: 0") && stats.contains("update_no_rebuild: "), "{stats}");
}

struct SdsServer {
    child: Child,
    address: SocketAddr,
}

impl SdsServer {
    fn start(store: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nuncio"));
        command.args(["sds-server", "--listen", "127.0.0.1:0", "--store"]).arg(store).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().rsplit("http://").next().unwrap().parse();
        Self { child, address: address.unwrap_or_else(|e| panic!("{line}: {e}")) }
    }

    fn hosts(&self) -> usize {
        ask(self.address, "GET", "/v1/registration/web", "").1.matches("\"ip_address\"").count()
    }
}

impl Drop for SdsServer {
    fn drop(&mut self) {
        // SIGKILL: nothing is written on the way out.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_server_that_is_killed_has_lost_no_registration_that_it_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("registrations");
    let server = SdsServer::start(&store);
    let tags = "%7B%22az%22%3A%22us-east-1a%22%2C%22instance_id%22%3A%22i%22%2C%22region%22%3A%22us-east-1%22%7D";
    for i in 1..=40 {
        let form = format!("ip=10.0.0.{i}&port=8080&revision=f00&service_repo_name=web-repo&tags={tags}");
        assert_eq!(ask(server.address, "POST", "/v1/registration/web", &form), (204, String::new()));
    }
    let weight = "load_balancing_weight=50";
    assert_eq!(ask(server.address, "POST", "/v1/loadbalancing/web/10.0.0.7", weight).0, 204);
    assert_eq!(ask(server.address, "DELETE", "/v1/registration/web/10.0.0.1", "").0, 204);
    assert_eq!(ask(server.address, "POST", "/v1/registration/web", "ip=name.test&port=1").0, 400);
    assert_eq!(server.hosts(), 39);
    drop(server);
    let server = SdsServer::start(&store);
    let (_, said) = ask(server.address, "GET", "/v1/registration/web", "");
    assert_eq!(server.hosts(), 39);
    assert_eq!(said.matches("\"load_balancing_weight\":50").count(), 1);
    assert_eq!(ask(server.address, "GET", "/v1/registration/repo/web-repo", "").1.matches("ip_address").count(), 39);
}
