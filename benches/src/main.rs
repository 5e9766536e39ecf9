//! Load tests that need nothing installed: the proxy is linked in and run as a process of its own,
//! with an upstream and a bounded generator beside it.
//!
//! - [`generator`]: the clients, closed loop or at a fixed rate · [`upstream`]: what answers
//! - [`target`]: a proxy process and what it costs, [`admin`]: what it says of itself · [`peers`]: the other proxies, equal configs
//! - [`discovery`]: updates of large clusters, polled clusters, how soon a change counts
//! - [`health`]: what active checks cost, and how soon a failure counts · [`health_server`]: the hosts that are checked
//! - [`restarts`]: hot restarts and reloads under load, [`site`]: what they share · [`crowds`]: clients that do next to nothing
//! - [`idle`]: what connections cost that do nothing
//! - [`updates`]: files of clusters and routes replaced under load
//! - [`faults`]: upstreams that die or fail · [`latency`]: the histogram · [`report`]: tables, and runs under `benches/runs/`

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

mod admin;
mod crowds;
mod discovery;
mod faults;
mod generator;
mod health;
mod health_server;
mod idle;
mod latency;
mod machine;
mod peers;
mod report;
mod restarts;
mod site;
mod target;
mod updates;
mod upstream;

#[derive(Parser)]
#[command(name = "nuncio-benches", about = "Load tests of nuncio")]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Load nuncio: requests a second, latency, CPU a request, memory.
    Load(LoadArgs),
    /// Load nuncio and whichever of Envoy, HAProxy and nginx are on this machine, in turns.
    Compare(LoadArgs),
    /// Kill one of three upstreams with SIGKILL while requests run: no client may see an error.
    Kill(LoadArgs),
    /// Every upstream fails: what the retries cost is bounded.
    Storm(LoadArgs),
    /// Replace the files of clusters and routes a thousand times while requests run: none may fail, nothing may grow.
    Updates(LoadArgs),
    /// What discovery costs, and how soon a change counts.
    Discovery,
    /// What active checks of ten thousand hosts cost, and how soon one that fails is out of the rotation.
    Health,
    /// Hot restarts and reloads under HTTP/1.1, HTTP/2 and TLS: no request may be lost.
    Restarts(restarts::RestartArgs),
    /// A thousand reloads: memory, descriptors, threads and tasks stay.
    Reloads,
    /// Idle clients, slow clients, more clients than descriptors: what a normal client sees.
    Crowds(LoadArgs),
    /// What an idle TLS connection holds in memory, beside Envoy.
    Idle(idle::IdleArgs),
    /// Holds connections, in a process of its own.
    #[command(hide = true)]
    Hold(idle::HoldArgs),
    /// The proxy itself, in a process of its own.
    #[command(hide = true)]
    Proxy {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<std::ffi::OsString>,
    },
    /// The upstream, in a process of its own.
    #[command(hide = true)]
    Upstream,
    /// The hosts that are checked, in a process of their own.
    #[command(hide = true)]
    HealthServer,
}

#[derive(Args, Clone)]
pub struct LoadArgs {
    /// Connections that send requests.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    connections: u32,
    /// How long each round lasts, in seconds.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    seconds: u64,
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Requests a second over all connections; without it each connection sends as fast as it is answered.
    #[arg(long)]
    rate: Option<u32>,
    /// Bytes of each response body.
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(0..=16_777_216))]
    response: u32,
    /// Bytes of each request body; 0 sends GET.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=16_777_216))]
    body: u32,
    /// A new connection for each request.
    #[arg(long)]
    close: bool,
    /// Worker threads of the proxy.
    #[arg(long, default_value_t = 1)]
    concurrency: u32,
    /// The upstream is asked to answer 503, and that is what clients expect.
    #[arg(skip)]
    failing: bool,
    /// Write the result as a folder under this one.
    #[arg(long)]
    out: Option<std::path::PathBuf>,
}

impl LoadArgs {
    fn duration(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }
}

fn main() -> ExitCode {
    let outcome = match CommandLine::parse().command {
        Command::Proxy { args } => return target::become_proxy(args),
        Command::Upstream => upstream::serve(),
        Command::HealthServer => health_server::serve(),
        Command::Idle(args) => idle::run(&args),
        Command::Hold(args) => idle::hold(&args),
        Command::Discovery => discovery::run(),
        Command::Health => health::run(),
        Command::Restarts(args) => restarts::restarts(&args),
        Command::Reloads => restarts::reloads(),
        Command::Crowds(args) => crowds::run(&args),
        Command::Load(args) => run(&args, false),
        Command::Compare(args) => run(&args, true),
        Command::Kill(args) => faults::kill(&args),
        Command::Storm(args) => faults::storm(&args),
        Command::Updates(args) => updates::run(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Interleaved rounds (A B C A B C), so that what else the machine does hits all alike.
fn run(args: &LoadArgs, compare: bool) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let upstream = target::Process::upstream()?;
    let mut contenders = vec![peers::nuncio(folder.path(), &upstream, args)?];
    if compare {
        contenders.extend(peers::installed(folder.path(), &upstream, args));
        if contenders.len() == 1 {
            eprintln!("no peer found on this machine: looked for envoy (or ENVOY_BIN), haproxy, nginx");
        }
    }
    println!("{}", machine::describe());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut results: Vec<report::Results> = contenders.iter().map(|c| report::Results::new(&c.name)).collect();
    for round in 1..=args.rounds {
        for (contender, result) in contenders.iter().zip(&mut results) {
            eprint!("\rround {round}/{}: {:<12}", args.rounds, contender.name);
            let sample = runtime.block_on(contender.measure(args))?;
            result.rounds.push(sample);
        }
    }
    eprintln!("\r{:40}\r", "");
    let table = report::table(&results);
    print!("{table}");
    if let Some(out) = &args.out {
        let folder = report::write(out, args, &results, &table)?;
        println!("written to {}", folder.display());
    }
    Ok(())
}
