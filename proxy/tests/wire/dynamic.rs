//! Listeners, clusters and routes from files that are replaced while requests run.

// Clients of real sockets, on threads and clocks of their own.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use crate::running::{MANAGER, RunningProxy};

const RDS: &str = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration";
const CDS: &str = "type.googleapis.com/envoy.config.cluster.v3.Cluster";

pub fn put(folder: &Path, name: &str, text: &str) {
    let new = folder.join(format!(".{name}"));
    fs::write(&new, text).unwrap();
    fs::rename(new, folder.join(name)).unwrap();
}

fn routes(version: u32, body: &str) -> String {
    format!(
        "version_info: '{version}'\nresources:\n- '@type': {RDS}\n  name: r\n  virtual_hosts:\n  - {{name: v, domains: \
         ['*'], routes: [{{match: {{prefix: /}}, {body}}}]}}\n"
    )
}

fn clusters(version: u32, port: u16, timeout: u32) -> String {
    format!(
        "version_info: '{version}'\nresources:\n- {{'@type': {CDS}, name: c, connect_timeout: {timeout}s, load_assignment: \
         {{cluster_name: c, endpoints: [{{lb_endpoints: [{{endpoint: {{address: {{socket_address: {{address: 127.0.0.1, \
         port_value: {port}}}}}}}}}]}}]}}}}\n"
    )
}

fn bootstrap(folder: &Path) -> String {
    let at = |name: &str| folder.join(name).display().to_string();
    format!(
        r#"
admin: {{address: {{socket_address: {{address: 127.0.0.1, port_value: 0}}}}}}
dynamic_resources: {{cds_config: {{path_config_source: {{path: {cds}}}}}}}
{MANAGER}          rds: {{route_config_name: r, config_source: {{path_config_source: {{path: {rds}}}}}}}
          http_filters: [{{name: r, typed_config: {{"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}}}]
"#,
        cds = at("cds.yaml"),
        rds = at("rds.yaml"),
    )
}

/// The whole answer to one request.
pub fn get(address: SocketAddr, path: &str) -> String {
    get_with(address, path, "")
}

/// `headers`: lines, each with its end.
pub fn get_with(address: SocketAddr, path: &str, headers: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    let head = format!("GET {path} HTTP/1.1\r\nhost: a\r\n{headers}connection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Asks until `wanted` is answered; five seconds at most.
pub fn until(proxy: &RunningProxy, listener: &str, path: &str, wanted: &str) {
    let end = Instant::now() + Duration::from_secs(5);
    loop {
        let answer = get(proxy.socket(listener), path);
        if answer.contains(wanted) {
            return;
        }
        assert!(Instant::now() < end, "{answer}");
        thread::yield_now();
    }
}

/// What the admin interface says of one statistic; "" if there is none.
pub fn stat(proxy: &RunningProxy, name: &str) -> String {
    let text = get(proxy.admin(), &format!("/stats?filter=^{name}$"));
    let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
    line.rsplit(' ').next().unwrap_or_default().to_owned()
}

/// Until a statistic has that value; five seconds at most.
pub fn until_stat(proxy: &RunningProxy, name: &str, wanted: &str) {
    let end = Instant::now() + Duration::from_secs(5);
    while stat(proxy, name) != wanted {
        assert!(Instant::now() < end, "{name} is {} and not {wanted}", stat(proxy, name));
        thread::yield_now();
    }
}

/// An upstream that answers everything with its name.
fn upstream(name: &'static str) -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            thread::spawn(move || {
                let mut bytes = [0; 4096];
                while stream.read(&mut bytes).is_ok_and(|n| n > 0) {
                    let text = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{name}", name.len());
                    if stream.write_all(text.as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    port
}

#[test]
fn routes_come_from_a_file_and_a_wrong_one_leaves_the_last_good_ones() {
    let folder = tempfile::tempdir().unwrap();
    put(folder.path(), "cds.yaml", &clusters(1, 9, 1));
    put(folder.path(), "rds.yaml", &routes(1, "direct_response: {status: 200, body: {inline_string: one}}"));
    let proxy = RunningProxy::start(&bootstrap(folder.path()), 2);
    assert!(get(proxy.socket("in"), "/").ends_with("one"));
    put(folder.path(), "rds.yaml", &routes(2, "direct_response: {status: 200, body: {inline_string: two}}"));
    until(&proxy, "in", "/", "two");
    put(folder.path(), "rds.yaml", &routes(3, "direct_response: {status: 200}").replace("['*']", "['*', '*']"));
    let stat = |name: &str| stat(&proxy, name);
    until_stat(&proxy, "http.in.rds.r.update_rejected", "1");
    assert!(get(proxy.socket("in"), "/").ends_with("two"));
    let dump = get(proxy.admin(), "/config_dump?resource=dynamic_route_configs");
    assert!(dump.contains("\"version_info\": \"2\""), "{dump}");
    assert_eq!(stat("http.in.rds.r.config_reload"), "2");
    assert_eq!(stat("http.in.rds.r.version_text"), "\"2\"");
}

#[test]
fn no_request_is_lost_while_clusters_and_routes_change_a_hundred_times() {
    let folder = tempfile::tempdir().unwrap();
    let ports = [upstream("a"), upstream("b")];
    put(folder.path(), "cds.yaml", &clusters(1, ports[0], 5));
    put(folder.path(), "rds.yaml", &routes(1, "route: {cluster: c}"));
    let proxy = RunningProxy::start(&bootstrap(folder.path()), 2);
    let address = proxy.socket("in");
    let (done, asked, lost) = (AtomicBool::new(false), Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
    thread::scope(|scope| {
        for _ in 0..2 {
            let (asked, lost, done) = (&asked, &lost, &done);
            scope.spawn(move || {
                let mut stream = TcpStream::connect(address).unwrap();
                let mut bytes = [0; 4096];
                while !done.load(Relaxed) {
                    stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
                    let n = stream.read(&mut bytes).unwrap();
                    asked.fetch_add(1, Relaxed);
                    if !bytes[..n].starts_with(b"HTTP/1.1 200") {
                        lost.fetch_add(1, Relaxed);
                    }
                }
            });
        }
        for version in 2..102u32 {
            let before = asked.load(Relaxed);
            put(folder.path(), "cds.yaml", &clusters(version, ports[version as usize % 2], 1 + version % 7));
            let timeout = 10 + version % 5;
            put(folder.path(), "rds.yaml", &routes(version, &format!("route: {{cluster: c, timeout: {timeout}s}}")));
            while asked.load(Relaxed) < before + 4 {
                thread::yield_now();
            }
        }
        done.store(true, Relaxed);
    });
    assert_eq!(lost.load(Relaxed), 0, "of {}", asked.load(Relaxed));
    let stats = get(proxy.admin(), "/stats?filter=update_success");
    assert!(stats.contains("cluster_manager.cds.update_success: "), "{stats}");
}
