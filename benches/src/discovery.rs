//! What discovery costs: an update of a large cluster on main and in a worker, memory for each host, a thousand polled
//! clusters, and how soon a worker sends requests to where a change says.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use nuncio::net::Sockets;
use nuncio::upstream::membership::{self, Rules};
use nuncio::upstream::thread_local::ClusterContext;
use nuncio::upstream::{ClusterConfig, ClusterDefaults, ClusterSnapshot, ClusterUpdate, Clusters};
use nuncio_api::pb::envoy::config::cluster::v3::Cluster;
use nuncio_core::net::Address;
use nuncio_core::random::Rng;
use nuncio_core::stats::Store;
use nuncio_core::stats::lists::cluster;
use nuncio_core::upstream::{HostSpec, LbContext, Locality, PrioritySet};
use tokio::time::Instant;

use crate::machine;
use crate::target::Process;

const HOSTS: u32 = 10_000;
const POLLED: usize = 1000;
const ROUNDS: usize = 30;

pub fn run() -> anyhow::Result<()> {
    println!("{}", machine::describe());
    update_of_a_large_cluster()?;
    memory_of_hosts()?;
    polled_clusters()?;
    change_to_request()?;
    Ok(())
}

pub(crate) fn line(what: &str, value: impl std::fmt::Display, goal: &str) {
    println!("{what:<64} {value:>12}   goal {goal}");
}

/// Hosts of three zones; `from` moves the window, so that some are others.
fn specs(from: u32, hosts: u32) -> Vec<HostSpec> {
    let zone = |name: &str| Arc::new(Locality { zone: name.into(), ..Locality::default() });
    let zones = [zone("a"), zone("b"), zone("c")];
    let spec = |at: u32| {
        let ip = std::net::Ipv4Addr::from(0x0a00_0000 + at);
        let locality = zones[at as usize % 3].clone();
        HostSpec { locality, ..HostSpec::new(Address::Ip(SocketAddr::new(ip.into(), 8080))) }
    };
    (from..from + hosts).map(spec).collect()
}

pub(crate) fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn update_of_a_large_cluster() -> anyhow::Result<()> {
    let message = Cluster { name: "large".into(), ..Default::default() };
    let config = ClusterConfig::from_proto(&message, false, &ClusterDefaults::default());
    let config = Arc::new(config.map_err(|errors| anyhow::anyhow!("{errors:?}"))?);
    let mut store = Store::new();
    let scope = store.scope(&cluster::SCOPE, config.name());
    let clusters = Clusters::new(ClusterContext {
        connect: Rc::new(Sockets::default()),
        buffers: Rc::default(),
        rng: Rng::with_seed(1),
        stats: store.main().clone(),
        connection_ids: Default::default(),
        own_listeners: Rc::default(),
    });
    let snapshot = |hosts: &Arc<PrioritySet>| {
        let (config, hosts) = (config.clone(), hosts.clone());
        Arc::new(ClusterSnapshot { config, breakers: Arc::default(), shared: None, hosts, scope })
    };
    let mut hosts = membership::apply(&Arc::default(), specs(0, HOSTS).into(), Rules::default()).hosts;
    clusters.apply(&[ClusterUpdate::Set(snapshot(&hosts))]);
    let built = clusters.get("large").context("the cluster is there")?;
    let (mut main, mut worker) = (Vec::new(), Vec::new());
    for round in 1..=ROUNDS as u32 {
        // One of a hundred goes, and as many come.
        let new = specs(round * HOSTS / 100, HOSTS);
        let began = Instant::now();
        let applied = membership::apply(&hosts, new.into(), Rules::default());
        let update = ClusterUpdate::Set(snapshot(&applied.hosts));
        main.push(began.elapsed());
        assert_eq!((applied.added.len(), applied.removed.len()), (HOSTS as usize / 100, HOSTS as usize / 100));
        let began = Instant::now();
        clusters.apply(&[update]);
        built.choose(&LbContext::default());
        worker.push(began.elapsed());
        hosts = applied.hosts;
    }
    let millis = |times| format!("{:.2} ms", median(times).as_secs_f64() * 1e3);
    line("update of 10,000 hosts with 1 % changed, main", millis(main), "20 ms");
    line("the same, one worker, to the first request", millis(worker), "2 ms");
    Ok(())
}

fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}

fn memory_of_hosts() -> anyhow::Result<()> {
    const MANY: u32 = 100_000;
    let before = resident();
    let hosts = membership::apply(&Arc::default(), specs(0, MANY).into(), Rules::default()).hosts;
    let each = resident().saturating_sub(before) / u64::from(MANY);
    line("memory for each host", format!("{each} B"), "2 KiB");
    assert_eq!(hosts.host_count(), MANY as usize);
    Ok(())
}

pub(crate) fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

pub(crate) fn nuncio(arguments: &[&str]) -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("proxy").args(arguments);
    Ok(command)
}

fn polled_clusters() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let (registry, admin) = (free_port()?, free_port()?);
    let listen = format!("127.0.0.1:{registry}");
    let _registry = Process::start(nuncio(&["sds-server", "--listen", &listen])?, registry, "sds-server")?;
    let mut stream = TcpStream::connect(("127.0.0.1", registry))?;
    for at in 0..POLLED {
        let form = format!("ip=127.0.0.1&port={}", 20_000 + at);
        let length = form.len();
        write!(stream, "POST /v1/registration/c{at} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n{form}")?;
        let mut reader = BufReader::new(&stream);
        let mut text = String::new();
        while reader.read_line(&mut text)? > 2 {}
    }
    let mut yaml = format!(
        "admin: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {admin}}}}}}}\nstatic_resources:\n  clusters:\n  \
         - {{name: registry, load_assignment: {{cluster_name: registry, endpoints: [{{lb_endpoints: [{{endpoint: \
         {{address: {{socket_address: {{address: 127.0.0.1, port_value: {registry}}}}}}}}}]}}]}}}}\n"
    );
    for at in 0..POLLED {
        writeln!(
            yaml,
            "  - {{name: c{at}, cluster_type: {{name: nuncio.clusters.sds, typed_config: {{'@type': \
             type.googleapis.com/nuncio.extensions.clusters.sds.v1.SdsCluster, sds_cluster: registry, refresh_delay: 3s}}}}}}"
        )?;
    }
    let path = folder.path().join("polled.yaml");
    std::fs::write(&path, yaml)?;
    let path = path.to_string_lossy().into_owned();
    let proxy = Process::start(nuncio(&["-c", &path, "--concurrency", "1", "-l", "error"])?, admin, "nuncio")?;
    std::thread::sleep(Duration::from_secs(10));
    let (cpu, began) = (proxy.cpu(), Instant::now());
    std::thread::sleep(Duration::from_secs(30));
    let part = (proxy.cpu() - cpu).as_secs_f64() / began.elapsed().as_secs_f64();
    // Polled ten times as often as by default.
    line("1,000 clusters polled over SDS every 30 s, of a core", format!("{:.2} %", part * 10.0), "2 %");
    Ok(())
}

fn put(path: &Path, port: u16) -> anyhow::Result<()> {
    const KIND: &str = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment";
    let new = path.with_extension("new");
    let text = format!(
        "resources: [{{'@type': {KIND}, cluster_name: web, endpoints: [{{lb_endpoints: [{{endpoint: {{address: \
         {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}}}}}]}}]}}]\n"
    );
    std::fs::write(&new, text)?;
    Ok(std::fs::rename(new, path)?)
}

fn change_to_request() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let upstreams = [Process::upstream()?, Process::upstream()?];
    let (eds, admin, web) = (folder.path().join("eds.yaml"), free_port()?, free_port()?);
    put(&eds, upstreams[0].port)?;
    let yaml = format!(
        r#"
node: {{id: bench, cluster: bench}}
admin: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {admin}}}}}}}
static_resources:
  listeners:
  - name: web
    address: {{socket_address: {{address: 127.0.0.1, port_value: {web}}}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: web
          route_config:
            response_headers_to_add: [{{header: {{key: x-host, value: "%UPSTREAM_HOST%"}}}}]
            virtual_hosts: [{{name: all, domains: ["*"], routes: [{{match: {{prefix: /}}, route: {{cluster: web}}}}]}}]
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {{"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}
  clusters:
  - name: web
    type: EDS
    eds_cluster_config: {{eds_config: {{resource_api_version: V3, path_config_source: {{path: {}}}}}}}
"#,
        eds.display()
    );
    let path = folder.path().join("change.yaml");
    std::fs::write(&path, yaml)?;
    let path = path.to_string_lossy().into_owned();
    let _proxy = Process::start(nuncio(&["-c", &path, "--concurrency", "1", "-l", "error"])?, web, "nuncio")?;
    let mut stream = TcpStream::connect(("127.0.0.1", web))?;
    stream.set_nodelay(true)?;
    let mut times = Vec::new();
    for round in 1..=ROUNDS {
        let port = upstreams[round % 2].port;
        put(&eds, port)?;
        let began = Instant::now();
        while !ask(&mut stream)?.contains(&format!("x-host: 127.0.0.1:{port}\r\n")) {
            if began.elapsed() > Duration::from_secs(10) {
                bail!("the change was never seen");
            }
        }
        times.push(began.elapsed());
    }
    let worst = times.iter().max().copied().unwrap_or_default();
    let text = format!("{:.1} / {:.1} ms", median(times).as_secs_f64() * 1e3, worst.as_secs_f64() * 1e3);
    line("from a new file to the first request there, median / worst", text, "100 ms");
    Ok(())
}

/// The head of an answer without a body.
fn ask(stream: &mut TcpStream) -> anyhow::Result<String> {
    stream.write_all(b"GET /?size=0 HTTP/1.1\r\nhost: x\r\n\r\n")?;
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}
