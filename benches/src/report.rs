//! Tables for people, and runs for later comparison.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;

use crate::generator::Outcome;
use crate::{LoadArgs, machine};

/// One round of one contender.
pub struct Sample {
    pub outcome: Outcome,
    pub cpu: Duration,
    pub memory: u64,
}

impl Sample {
    fn cpu_per_request(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.outcome.requests.max(1) as f64
    }

    fn rate(&self) -> f64 {
        self.outcome.requests as f64 / self.outcome.took.as_secs_f64().max(1e-9)
    }
}

/// All rounds of one contender.
pub struct Results {
    pub name: String,
    pub rounds: Vec<Sample>,
}

impl Results {
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), rounds: Vec::new() }
    }

    fn median(&self, of: impl Fn(&Sample) -> f64) -> f64 {
        let mut all: Vec<f64> = self.rounds.iter().map(of).collect();
        all.sort_by(f64::total_cmp);
        all.get(all.len() / 2).copied().unwrap_or(f64::NAN)
    }

    /// Median over rounds of the ratio inside each round.
    fn ratio(&self, base: &Self) -> f64 {
        let mut all: Vec<f64> =
            self.rounds.iter().zip(&base.rounds).map(|(a, b)| a.cpu_per_request() / b.cpu_per_request()).collect();
        all.sort_by(f64::total_cmp);
        all.get(all.len() / 2).copied().unwrap_or(f64::NAN)
    }
}

fn ms(d: Duration) -> f64 {
    d.as_secs_f64() * 1e3
}

/// Medians over the rounds; the ratio is CPU a request against the first contender.
pub fn table(results: &[Results]) -> String {
    let mut out = String::from(
        "| proxy | requests/s | CPU µs/request | × first | p50 ms | p99 ms | max ms | RSS MiB | errors |\n|---|---|---|---|---|---|---|---|---|\n",
    );
    for r in results {
        let errors: u64 = r.rounds.iter().map(|s| s.outcome.errors).sum();
        let _ = writeln!(
            out,
            "| {} | {:.0} | {:.1} | {:.2} | {:.2} | {:.2} | {:.1} | {:.1} | {} |",
            r.name,
            r.median(Sample::rate),
            r.median(Sample::cpu_per_request),
            r.ratio(&results[0]),
            r.median(|s| ms(s.outcome.latency.quantile(0.5))),
            r.median(|s| ms(s.outcome.latency.quantile(0.99))),
            r.median(|s| ms(s.outcome.latency.max())),
            r.median(|s| s.memory as f64 / 1048576.0),
            errors,
        );
    }
    out
}

/// `<out>/<date>-<n>/result.{md,json}`; returns the folder.
pub fn write(out: &Path, args: &LoadArgs, results: &[Results], table: &str) -> anyhow::Result<PathBuf> {
    let mut number = 1;
    let folder = loop {
        let folder = out.join(format!("{}-{number}", machine::date()));
        if !folder.exists() {
            break folder;
        }
        number += 1;
    };
    std::fs::create_dir_all(&folder)?;
    let settings = format!(
        "{} connections, {} rounds of {} s, response {} B, request body {} B, rate {}, {} worker(s){}",
        args.connections,
        args.rounds,
        args.seconds,
        args.response,
        args.body,
        args.rate.map_or("closed loop".to_owned(), |r| format!("{r}/s")),
        args.concurrency,
        if args.close { ", a connection for each request" } else { "" },
    );
    std::fs::write(folder.join("result.md"), format!("{}\n\n{settings}\n\n{table}", machine::describe()))?;
    let json = json!({
        "machine": machine::describe(),
        "settings": settings,
        "proxies": results.iter().map(|r| json!({
            "name": r.name,
            "requests_per_second": r.median(Sample::rate),
            "cpu_us_per_request": r.median(Sample::cpu_per_request),
            "p99_ms": r.median(|s| ms(s.outcome.latency.quantile(0.99))),
            "rss_bytes": r.median(|s| s.memory as f64),
        })).collect::<Vec<_>>(),
    });
    std::fs::write(folder.join("result.json"), serde_json::to_string_pretty(&json)? + "\n")?;
    Ok(folder)
}
