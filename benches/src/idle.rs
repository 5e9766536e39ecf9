//! What an idle TLS connection costs in memory: resident bytes of the proxy with many of them less those with few, by
//! their number. Another process holds them, so that only the proxy's side is counted.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, bail, ensure};
use clap::Args;
use nuncio_testkit::certificates::{Authority, Wanted};
use nuncio_testkit::tls::{TlsClient, Versions};

use crate::target::{self, Process};
use crate::{machine, peers};

/// What holds for nuncio.
const MOST: u64 = 24 * 1024;
/// Connections of the first reading: they pay for what is made once.
const FEW: usize = 100;

#[derive(Args, Clone)]
pub struct IdleArgs {
    /// Idle connections at the second reading.
    #[arg(long, default_value_t = 4000, value_parser = clap::value_parser!(u32).range(200..=15_000))]
    connections: u32,
}

#[derive(Args, Clone)]
pub struct HoldArgs {
    to: SocketAddr,
    count: usize,
}

/// Connections that another process holds; they close with it.
struct Held(Child);

impl Held {
    fn open(to: SocketAddr, count: usize) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["hold", &to.to_string(), &count.to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut held = Self(command.spawn().context("starting who holds connections")?);
        let stdout = held.0.stdout.take().context("it has a standard output")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        ensure!(line.trim() == "held", "the connections could not be made");
        Ok(held)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Opens connections, uses each once, says so, and holds them until its parent is gone.
pub fn hold(args: &HoldArgs) -> anyhow::Result<()> {
    let client = TlsClient::new(None, Versions::Only13, &["http/1.1"]);
    let mut held = Vec::with_capacity(args.count);
    for _ in 0..args.count {
        let mut connection = client.connect(args.to, "web.test")?;
        connection.write_all(b"GET / HTTP/1.1\r\nhost: web.test\r\n\r\n")?;
        let mut answer = Vec::new();
        while !answer.ends_with(b"served") {
            let mut piece = [0; 4096];
            match connection.read(&mut piece)? {
                0 => bail!("closed after {} bytes", answer.len()),
                n => answer.extend_from_slice(&piece[..n]),
            }
        }
        held.push(connection);
    }
    println!("held");
    io::copy(&mut io::stdin(), &mut io::sink())?;
    Ok(())
}

/// Measures nuncio, and Envoy where it is installed.
pub fn run(args: &IdleArgs) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    println!("{}", machine::describe());
    println!("| proxy | idle TLS connections | MiB before | MiB with them | KiB each |\n|---|---|---|---|---|");
    let envoy = peers::envoy();
    let mut own = 0;
    for (name, program) in [("nuncio", None), ("envoy", envoy)] {
        if name == "envoy" && program.is_none() {
            eprintln!("no Envoy on this machine");
            continue;
        }
        let proxy = start(folder.path(), name, program)?;
        let _few = Held::open(proxy.address(), FEW)?;
        let before = proxy.memory();
        let _many = Held::open(proxy.address(), args.connections as usize)?;
        let after = proxy.memory();
        let each = after.saturating_sub(before) / u64::from(args.connections);
        let mib = |bytes: u64| bytes as f64 / 1048576.0;
        let kib = each as f64 / 1024.0;
        println!("| {name} | {} | {:.1} | {:.1} | {kib:.1} |", args.connections, mib(before), mib(after));
        if name == "nuncio" {
            own = each;
        }
    }
    ensure!(own <= MOST, "an idle TLS connection holds more than 24 KiB");
    println!("holds: at most 24 KiB for each");
    Ok(())
}

fn start(folder: &Path, name: &str, program: Option<PathBuf>) -> anyhow::Result<Process> {
    let wanted = Wanted { name: "web", dns: vec!["web.test"], serial: 1, ..Wanted::default() };
    let issued = Authority::new("authority").issue(&wanted);
    fs::write(folder.join("web.pem"), issued.chain)?;
    fs::write(folder.join("web.key"), issued.key)?;
    let port = peers::free_port()?;
    let text = include_str!("../configs/idle.yaml")
        .replace("@PORT@", &port.to_string())
        .replace("@FOLDER@", &folder.display().to_string());
    let file = folder.join(format!("{name}.yaml"));
    fs::write(&file, text)?;
    let command = match program {
        None => target::own_proxy(&file, 1)?,
        Some(program) => {
            let mut command = Command::new(program);
            command.args(["--disable-hot-restart", "-l", "error", "--concurrency", "1", "-c"]).arg(&file);
            command
        }
    };
    Process::start(command, port, name)
}
