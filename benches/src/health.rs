//! What active checks cost, how evenly they are spread, and how soon a host that fails is out of the rotation: ten
//! thousand hosts behind loopback addresses, their server in another process.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use tokio::time::Instant;

use crate::discovery::{free_port, line, median, nuncio};
use crate::machine;
use crate::target::Process;

const HOSTS: usize = 10_000;
const INTERVAL: Duration = Duration::from_secs(5);
/// What the proxy and the server need beside the connections of checks.
const SPARE_DESCRIPTORS: usize = 500;
const ROUNDS: usize = 20;

pub fn run() -> anyhow::Result<()> {
    println!("{}", machine::describe());
    let hosts = HOSTS.min(descriptors().saturating_sub(SPARE_DESCRIPTORS));
    if hosts < HOSTS {
        println!("only {hosts} hosts: the hard limit of descriptors allows no more; goals are scaled");
    }
    let folder = tempfile::tempdir()?;
    let server = Process::own("health-server")?;
    let (admin, web) = (free_port()?, free_port()?);
    let path = folder.path().join("health.yaml");
    std::fs::write(&path, config(server.port, admin, web, hosts))?;
    let path = path.to_string_lossy().into_owned();
    let proxy = Process::start(nuncio(&["-c", &path, "--concurrency", "1", "-l", "error"])?, web, "nuncio")?;
    let mut control = Talk::to(server.port)?;
    let mut admin = Talk::to(admin)?;
    await_health(&mut admin, hosts)?;
    // Two rounds: the first comes at once, the second spreads.
    std::thread::sleep(INTERVAL * 2);
    cost(&proxy, &mut control, hosts)?;
    out_of_rotation(&mut control, web)?;
    Ok(())
}

/// The hard limit, which the proxy raises itself to.
fn descriptors() -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find(|line| line.starts_with("Max open files"));
    line.and_then(|line| line.split_whitespace().nth(4)?.parse().ok()).unwrap_or(usize::MAX)
}

fn address(at: usize) -> Ipv4Addr {
    Ipv4Addr::from(0x7f01_0001 + u32::try_from(at).unwrap_or_default())
}

/// Maglev, so that a request of one path goes to one host, and the worst of what a failure makes anew is made.
fn config(port: u16, admin: u16, web: u16, hosts: usize) -> String {
    let mut text = format!(
        r#"
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
            virtual_hosts: [{{name: all, domains: ["*"], routes: [{{match: {{prefix: /}}, route: {{cluster: crowd, hash_policy: [{{header: {{header_name: x-key}}}}]}}}}]}}]
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {{"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}
  clusters:
  - name: crowd
    lb_policy: MAGLEV
    common_lb_config: {{update_merge_window: 0s}}
    health_checks:
    - {{timeout: 3s, interval: 5s, no_traffic_interval: 5s, interval_jitter_percent: 10, unhealthy_threshold: 2, healthy_threshold: 1, http_health_check: {{path: /hc}}}}
    load_assignment:
      cluster_name: crowd
      endpoints:
      - lb_endpoints:
"#
    );
    for at in 0..hosts {
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "        - {{endpoint: {{address: {{socket_address: {{address: {}, port_value: {port}}}}}}}}}",
            address(at)
        );
    }
    text
}

/// A kept connection.
struct Talk(TcpStream);

impl Talk {
    fn to(port: u16) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        Ok(Self(stream))
    }

    /// The head and the body.
    fn ask(&mut self, path: &str, more: &str) -> anyhow::Result<(String, String)> {
        write!(self.0, "GET {path} HTTP/1.1\r\nhost: x\r\n{more}\r\n")?;
        let mut reader = BufReader::new(&self.0);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            ensure!(reader.read_line(&mut head)? > 0, "{path}: closed");
        }
        let lower = head.to_ascii_lowercase();
        let mut body = Vec::new();
        if let Some((_, rest)) = lower.split_once("content-length: ") {
            body.resize(rest.lines().next().unwrap_or_default().trim().parse()?, 0);
            reader.read_exact(&mut body)?;
        } else if lower.contains("transfer-encoding: chunked") {
            loop {
                let mut size = String::new();
                reader.read_line(&mut size)?;
                let size = usize::from_str_radix(size.trim(), 16)?;
                let at = body.len();
                body.resize(at + size + 2, 0);
                reader.read_exact(&mut body[at..])?;
                body.truncate(at + size);
                if size == 0 {
                    break;
                }
            }
        }
        Ok((head, String::from_utf8_lossy(&body).into_owned()))
    }

    /// Which host answers a request with that key.
    fn host(&mut self, key: &str) -> anyhow::Result<String> {
        let (head, _) = self.ask("/", &format!("x-key: {key}\r\n"))?;
        let found = head.lines().find_map(|line| line.strip_prefix("x-host: "));
        Ok(found.with_context(|| format!("no host answered: {head}"))?.trim().to_owned())
    }
}

fn await_health(admin: &mut Talk, hosts: usize) -> anyhow::Result<()> {
    let wanted = format!("cluster.crowd.membership_healthy: {hosts}");
    let began = Instant::now();
    loop {
        let (_, page) = admin.ask("/stats?filter=cluster.crowd.membership_healthy", "")?;
        if page.trim() == wanted {
            return Ok(());
        }
        if began.elapsed() > Duration::from_secs(60) {
            bail!("not all hosts become well: {page}");
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn cost(proxy: &Process, control: &mut Talk, hosts: usize) -> anyhow::Result<()> {
    control.ask("/begin", "")?;
    let (cpu, began) = (proxy.cpu(), Instant::now());
    std::thread::sleep(INTERVAL * 6);
    let (cpu, took) = (proxy.cpu() - cpu, began.elapsed());
    let (_, slots) = control.ask("/slots", "")?;
    let mut slots: Vec<u32> = slots.split_whitespace().map(|count| count.parse().unwrap_or_default()).collect();
    // The last one is not over.
    slots.pop();
    let checks: u32 = slots.iter().sum();
    let mean = f64::from(checks) / slots.len().max(1) as f64;
    let most = slots.iter().max().copied().unwrap_or_default();
    let part = cpu.as_secs_f64() / took.as_secs_f64();
    let scale = hosts as f64 / HOSTS as f64;
    let goal = format!("{:.1} %", 15.0 * scale);
    line(&format!("{hosts} hosts checked every 5 s, of a core"), format!("{:.2} %", part * 100.0), &goal);
    let each = cpu.as_secs_f64() * 1e6 / f64::from(checks.max(1));
    println!("  {checks} checks in {:.1} s, {each:.1} µs of CPU each", took.as_secs_f64());
    line("the fullest 100 ms from the second round on, x the mean", format!("{:.2}", f64::from(most) / mean), "2");
    Ok(())
}

/// The host that a key leads to fails its check while requests of that key run without a pause.
fn out_of_rotation(control: &mut Talk, web: u16) -> anyhow::Result<()> {
    let mut client = Talk::to(web)?;
    let mut times = Vec::new();
    let mut late = BTreeMap::<u32, usize>::new();
    for round in 0..ROUNDS {
        let key = format!("k{round}");
        let host = client.host(&key)?;
        let ip = host.split(':').next().unwrap_or_default();
        control.ask(&format!("/fail?{ip}"), "")?;
        let began = Instant::now();
        while client.host(&key)? == host {
            ensure!(began.elapsed() < INTERVAL * 3, "{host} never leaves the rotation");
        }
        // What was on its way is there.
        std::thread::sleep(Duration::from_millis(20));
        let (_, left) = control.ask("/left", "")?;
        let mut words = left.split_whitespace();
        let mut next = || words.next().and_then(|word| word.parse::<u64>().ok()).context("no check failed yet");
        times.push(Duration::from_micros(next()?));
        *late.entry(u32::try_from(next()?)?).or_default() += 1;
    }
    control.ask("/fail?", "")?;
    let worst = times.iter().max().copied().unwrap_or_default();
    let text = format!("{:.1} / {:.1} ms", median(times).as_secs_f64() * 1e3, worst.as_secs_f64() * 1e3);
    line("from the failing answer to the last request, median / worst", text, "50 ms");
    let most = late.keys().last().copied().unwrap_or_default();
    println!("  {ROUNDS} rounds, at most {most} requests after the answer that failed");
    Ok(())
}
