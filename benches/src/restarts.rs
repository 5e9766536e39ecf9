//! Processes that follow one another and configurations that change, with what must hold: under HTTP/1.1, HTTP/2 and TLS
//! at a fixed rate no request is lost, and a thousand reloads leave nothing behind.

use std::time::Duration;

use anyhow::ensure;
use clap::Args;
use nuncio_testkit::load::{Load, Speaks};
use tokio::time::Instant;

use crate::machine;
use crate::site::Site;
use crate::target::Process;

#[derive(Args)]
pub struct RestartArgs {
    /// Requests a second of all clients together.
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rate: u32,
    /// Connections of each kind: HTTP/1.1, HTTP/2 and TLS.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1000))]
    connections: u32,
    /// Hot restarts, and as many reloads.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    times: u32,
    /// How long all of it lasts at least, in seconds.
    #[arg(long, default_value_t = 160, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
}

/// A hot restart and a reload in turns.
pub fn restarts(args: &RestartArgs) -> anyhow::Result<()> {
    println!("{}", machine::describe());
    let mut site = Site::new()?;
    let mut process = site.start(None)?;
    let targets = [(Speaks::Http1, site.plain()), (Speaks::Http2, site.plain()), (Speaks::Tls, site.tls())];
    let began = Instant::now();
    let load = Load::start(&targets, args.connections, args.rate, "/load?size=64");
    let turn = Duration::from_secs(args.seconds) / (2 * args.times);
    let mut slowest = Duration::ZERO;
    for n in 0..2 * args.times {
        std::thread::sleep((turn * n).saturating_sub(began.elapsed()));
        if n % 2 == 1 {
            site.reload()?;
            continue;
        }
        let from = Instant::now();
        let successor = site.start(None)?;
        std::mem::replace(&mut process, successor).wait_for_end()?;
        slowest = slowest.max(from.elapsed());
    }
    std::thread::sleep(Duration::from_secs(args.seconds).saturating_sub(began.elapsed()));
    let outcome = load.finish();
    let took = began.elapsed().as_secs_f64();
    println!(
        "{} hot restarts and {0} reloads: {} requests ({:.0} a second), {} of them sent again, {} lost; from the start of a successor \
         to the end of the process before it at most {:.1} s",
        args.times,
        outcome.answered,
        outcome.answered as f64 / took,
        outcome.repeated,
        outcome.lost,
        slowest.as_secs_f64(),
    );
    outcome.losses.iter().for_each(|loss| println!("lost: {loss}"));
    ensure!(outcome.lost == 0, "requests were lost");
    println!("holds: no request is lost");
    Ok(())
}

/// A thousand, without any load.
pub fn reloads() -> anyhow::Result<()> {
    println!("{}", machine::describe());
    let mut site = Site::new()?;
    let process = site.start(None)?;
    let mut seen = Vec::new();
    for n in 1..=1000 {
        site.reload()?;
        if n % 100 == 0 {
            site.wait_for("listener_manager.total_listeners_draining", 0)?;
            let (memory, holds) = (process.memory(), fewest(&process, &site)?);
            println!("after {n}: RSS {:.2} MiB, {holds:?} descriptors, threads and tasks", mib(memory));
            seen.push((memory, holds));
        }
    }
    let ((first, held), (last, holds)) = (seen[0], seen[9]);
    ensure!(holds == held, "descriptors, threads or tasks are left behind");
    ensure!(last <= first + (1 << 20), "memory grows by {:.2} MiB", mib(last - first));
    println!("holds: RSS after reload 1,000 within 1 MiB of that after 100; descriptors, threads and tasks equal");
    Ok(())
}

/// Descriptors, threads and tasks; those of clients that have just left do not count.
fn fewest(process: &Process, site: &Site) -> anyhow::Result<(usize, usize, u64)> {
    let mut fewest = (usize::MAX, usize::MAX, u64::MAX);
    for _ in 0..20 {
        let ((descriptors, threads), tasks) = (process.holds(), site.admin().tasks()?);
        fewest = (fewest.0.min(descriptors), fewest.1.min(threads), fewest.2.min(tasks));
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(fewest)
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
