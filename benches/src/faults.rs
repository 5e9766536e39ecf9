//! What upstreams that die or fail cost, with what must hold: each run says so, and the process fails
//! if it does not.
//!
//! - one of three is killed while 2,000 requests a second run: no client of an idempotent request sees an error
//! - every upstream answers 503: retries are bounded by their budget, and so is the CPU that they cost

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::ensure;

use crate::generator::{self, Outcome};
use crate::target::{self, Process};
use crate::{LoadArgs, machine, peers};

/// Retries on what an idempotent request may be repeated for, on another host each time.
const REPEAT: &str = r#"retry_policy: {retry_on: "connect-failure,reset,refused-stream", num_retries: 3, retry_host_predicate: [{name: envoy.retry_host_predicates.previous_hosts, typed_config: {"@type": type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate}}], host_selection_retry_max_attempts: 5}"#;
/// A dead host fails a third of the requests until somebody takes it out, and the default allows three retries at a time.
const MANY: &str = "circuit_breakers: {thresholds: [{max_retries: 1024}]}";
const ON_5XX: &str = "retry_policy: {retry_on: 5xx, num_retries: 3}";
const BUDGET: &str =
    "circuit_breakers: {thresholds: [{retry_budget: {budget_percent: {value: 20}, min_retry_concurrency: 3}}]}";

/// A proxy before these upstreams.
fn proxy(folder: &Path, upstreams: &[Process], args: &LoadArgs, route: &str, cluster: &str) -> anyhow::Result<Process> {
    let port = peers::free_port()?;
    let endpoints: Vec<String> = upstreams
        .iter()
        .map(|up| {
            format!("{{endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {}}}}}}}}}", up.port)
        })
        .collect();
    let text = include_str!("../configs/faults.yaml")
        .replace("@PORT@", &port.to_string())
        .replace("@ROUTE@", route)
        .replace("@CLUSTER@", cluster)
        .replace("@ENDPOINTS@", &endpoints.join(", "));
    let file = folder.join(format!("faults-{port}.yaml"));
    fs::write(&file, text)?;
    Process::start(target::own_proxy(&file, args.concurrency)?, port, "nuncio")
}

fn upstreams(count: usize) -> anyhow::Result<Vec<Process>> {
    (0..count).map(|_| Process::upstream()).collect()
}

/// The rate that is meant, unless another was asked for.
fn at_a_rate(args: &LoadArgs) -> LoadArgs {
    LoadArgs { rate: args.rate.or(Some(2000)), ..args.clone() }
}

fn tell(what: &str, outcome: &Outcome) {
    let seconds = outcome.took.as_secs_f64();
    println!(
        "{what}: {} requests ({:.0} a second), {} errors, {} cut answers, p99 {:.1} ms, longest {:.1} ms",
        outcome.requests,
        outcome.requests as f64 / seconds,
        outcome.errors,
        outcome.cut,
        outcome.latency.quantile(0.99).as_secs_f64() * 1e3,
        outcome.latency.max().as_secs_f64() * 1e3,
    );
}

/// Kills one upstream of three in the middle of each round.
pub fn kill(args: &LoadArgs) -> anyhow::Result<()> {
    let args = at_a_rate(args);
    let folder = tempfile::tempdir()?;
    println!("{}", machine::describe());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    for round in 1..=args.rounds {
        let mut alive = upstreams(3)?;
        let proxy = proxy(folder.path(), &alive, &args, REPEAT, MANY)?;
        let victim = alive.swap_remove(1);
        let half = args.duration() / 2;
        let outcome = runtime.block_on(async {
            let killer = async move {
                tokio::time::sleep(half).await;
                // SIGKILL: the kernel resets its connections.
                drop(victim);
            };
            tokio::join!(generator::run(proxy.address(), &args, args.duration()), killer).0
        });
        tell(&format!("round {round}"), &outcome);
        ensure!(outcome.errors == 0, "clients saw errors");
        let connections = u64::from(args.connections);
        ensure!(outcome.cut <= connections, "more answers were cut than the upstream had connections");
    }
    println!("holds: 0 client errors with retries on connect-failure and reset");
    Ok(())
}

/// Requests that succeed, then as many whose upstreams all fail, with retries.
pub fn storm(args: &LoadArgs) -> anyhow::Result<()> {
    let args = at_a_rate(args);
    let folder = tempfile::tempdir()?;
    println!("{}", machine::describe());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let failing = LoadArgs { failing: true, ..args.clone() };
    let upstreams = upstreams(3)?;
    let mut worst: f64 = 0.0;
    for round in 1..=args.rounds {
        let mut cpu = [Duration::ZERO; 2];
        for (cpu, args) in cpu.iter_mut().zip([&args, &failing]) {
            let proxy = proxy(folder.path(), &upstreams, args, ON_5XX, BUDGET)?;
            let before = proxy.cpu();
            let outcome = runtime.block_on(generator::run(proxy.address(), args, args.duration()));
            *cpu = proxy.cpu().saturating_sub(before);
            let each = cpu.as_secs_f64() * 1e6 / outcome.requests.max(1) as f64;
            let what = if args.failing { "all fail" } else { "quiet" };
            tell(&format!("round {round}, {what}: {each:.1} µs of CPU each"), &outcome);
            ensure!(outcome.errors == 0, "what was not expected came back");
        }
        worst = worst.max(cpu[1].as_secs_f64() / cpu[0].as_secs_f64().max(1e-9));
    }
    println!("CPU of the storm is at most {worst:.2} times the quiet one");
    ensure!(worst <= 2.0, "a storm costs more than twice as much");
    Ok(())
}
