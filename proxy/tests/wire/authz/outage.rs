//! Authorizers that die and come back, under load and behind discovery: refusals or passes by mode, never a hang.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::time::Instant;

use super::{Client, OwnServer, admin, config, eventually, stat};
use crate::running::RunningProxy;

/// A thousand requests a second for as long as `over` is not set: what became of them.
fn load(to: SocketAddr, over: &Arc<AtomicBool>) -> Vec<JoinHandle<BTreeMap<u16, usize>>> {
    const CLIENTS: u32 = 5;
    const PACE: Duration = Duration::from_millis(CLIENTS as u64);
    let client = |_| {
        let over = over.clone();
        let ask = move || {
            let (mut client, mut statuses) = (Client::new(to), BTreeMap::<u16, usize>::new());
            let began = Instant::now();
            for n in 0.. {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                std::thread::sleep((began + PACE * n).saturating_duration_since(Instant::now()));
                *statuses.entry(client.get("/")).or_default() += 1;
            }
            statuses
        };
        std::thread::Builder::new().spawn(ask).unwrap()
    };
    (0..CLIENTS).map(client).collect()
}

/// Kills the authorizer under load and starts it again. `without` is what a request gets while there is none.
fn kill_under_load(filter: &str, without: u16) -> (RunningProxy, BTreeMap<u16, usize>) {
    let mut server = OwnServer::start("127.0.0.1:0");
    let yaml = config(server.address, "").replace("timeout: 5s}", &format!("timeout: 5s}}{filter}"));
    let proxy = RunningProxy::start(&yaml, 2);
    let to = proxy.socket("web");
    let over = Arc::new(AtomicBool::new(false));
    let load = load(to, &over);
    let mut client = Client::new(to);
    (0..200).for_each(|_| assert_eq!(client.get("/"), 200));
    assert_eq!(client.get("/private"), 403);
    server.kill();
    // Some checks were on their way when it died; what is asked from now on has no answer.
    (0..200).for_each(|_| assert_eq!(client.get("/private"), without));
    let address = server.address.to_string();
    let _again = OwnServer::start(&address);
    let began = Instant::now();
    while client.get("/private") != 403
        || client.get("/") != 200
        || stat(&proxy, "cluster.authz.upstream_cx_active") == 0
    {
        assert!(began.elapsed() < Duration::from_secs(1), "no answers yet");
    }
    let errors = stat(&proxy, "http.web.ext_authz.error");
    (0..200).for_each(|_| assert_eq!(client.get("/"), 200));
    assert_eq!(stat(&proxy, "http.web.ext_authz.error"), errors);
    over.store(true, Ordering::Relaxed);
    let mut all = BTreeMap::new();
    for (status, count) in load.into_iter().flat_map(|statuses| statuses.join().unwrap()) {
        *all.entry(status).or_default() += count;
    }
    (proxy, all)
}

#[test]
fn an_authorizer_killed_under_load_leaves_only_refusals_and_is_back_within_a_second() {
    let (proxy, statuses) = kill_under_load("", 403);
    assert_eq!(statuses.keys().copied().collect::<Vec<_>>(), [200, 403], "{statuses:?}");
    assert_eq!(stat(&proxy, "http.web.ext_authz.failure_mode_allowed"), 0);
}

#[test]
fn an_authorizer_killed_under_load_is_not_missed_where_failures_are_allowed() {
    let (proxy, statuses) = kill_under_load("\n              failure_mode_allow: true", 200);
    assert_eq!(statuses.keys().copied().collect::<Vec<_>>(), [200], "{statuses:?}");
    let [errors, allowed] = ["error", "failure_mode_allowed"].map(|n| stat(&proxy, &format!("http.web.ext_authz.{n}")));
    assert!(errors >= 200 && errors == allowed, "{errors} errors, {allowed} allowed");
}

// === The cluster's own life ===

/// A file that EDS reads, with one host in each priority.
fn endpoints(folder: &Path, ports: &[u16]) {
    let localities = ports.iter().enumerate().map(|(priority, port)| {
        let address = format!("{{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}");
        format!("{{priority: {priority}, lb_endpoints: [{{endpoint: {{address: {address}}}}}]}}")
    });
    let text = format!(
        "resources:\n- \"@type\": type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment\n  \
         cluster_name: authz\n  endpoints: [{}]\n",
        localities.collect::<Vec<_>>().join(", ")
    );
    std::fs::write(folder.join("eds.new"), text).unwrap();
    std::fs::rename(folder.join("eds.new"), folder.join("eds.yaml")).unwrap();
}

#[test]
fn checks_go_where_discovery_health_and_priorities_of_their_cluster_say() {
    let (mut first, second) = (OwnServer::start("127.0.0.1:0"), OwnServer::start("127.0.0.1:0"));
    let folder = tempfile::tempdir().unwrap();
    endpoints(folder.path(), &[first.address.port(), second.address.port()]);
    let yaml = config(first.address, "");
    let (before, _) = yaml.split_once("    load_assignment:").unwrap();
    let yaml = format!(
        "{before}    type: EDS\n    \
         ignore_health_on_host_removal: true\n    eds_cluster_config: {{eds_config: {{path_config_source: {{path: {}/eds.yaml}}}}}}\n    \
         health_checks: [{{timeout: 1s, interval: 0.1s, no_traffic_interval: 0.1s, unhealthy_threshold: 1, \
         healthy_threshold: 1, tcp_health_check: {{}}}}]\n",
        folder.path().display()
    );
    let proxy = RunningProxy::start(&yaml, 1);
    let mut client = Client::new(proxy.socket("web"));
    let connections = |server: &OwnServer| host_stat(&proxy, server.address, "rq_total");
    (0..20).for_each(|_| assert_eq!(client.get("/"), 200));
    assert_eq!((connections(&first), connections(&second)), (20, 0));
    // The host of the first priority fails: the second takes over.
    let at = first.address.to_string();
    first.kill();
    eventually("the second answers", || client.get("/") == 200);
    (0..20).for_each(|_| assert_eq!(client.get("/"), 200));
    assert!(connections(&second) >= 21);
    // It comes back, and so do the checks.
    first = OwnServer::start(&at);
    let seen = connections(&first);
    eventually("the first is asked again", || client.get("/") == 200 && connections(&first) > seen);
    // Discovery takes it away.
    endpoints(folder.path(), &[second.address.port()]);
    eventually("one host is left", || stat(&proxy, "cluster.authz.membership_total") == 1);
    let seen = connections(&second);
    (0..20).for_each(|_| assert_eq!(client.get("/"), 200));
    assert_eq!(connections(&second), seen + 20);
    assert_eq!(stat(&proxy, "cluster.authz.upstream_rq_active"), 0);
}

/// A number of a host, as `/clusters` tells it.
fn host_stat(proxy: &RunningProxy, host: SocketAddr, name: &str) -> u64 {
    let page = admin(proxy, "/clusters");
    let line = page.lines().find_map(|line| line.strip_prefix(&format!("authz::{host}::{name}::")));
    line.unwrap_or_else(|| panic!("no {host} in {page}")).trim().parse().unwrap()
}
