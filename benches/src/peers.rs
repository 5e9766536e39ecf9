//! The contenders: nuncio, and whichever peers are installed, each with an equal configuration: one
//! listener, route by host and prefix, one upstream, a timeout, forwarding headers, a request id
//! where it has such a thing.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::target::{self, Process};
use crate::{LoadArgs, generator, report};

/// A running proxy.
pub struct Contender {
    pub name: String,
    process: Process,
}

impl Contender {
    /// One warm-up of a fifth of the time, then one measured round.
    pub async fn measure(&self, args: &LoadArgs) -> anyhow::Result<report::Sample> {
        let target = self.process.address();
        generator::run(target, args, args.duration() / 5).await;
        let before = self.process.cpu();
        let outcome = generator::run(target, args, args.duration()).await;
        let cpu = self.process.cpu().saturating_sub(before);
        Ok(report::Sample { outcome, cpu, memory: self.process.memory() })
    }
}

/// A port nobody has right now.
pub fn free_port() -> anyhow::Result<u16> {
    Ok(std::net::TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

fn bootstrap(port: u16, upstream: u16) -> String {
    let text = include_str!("../configs/envoy.yaml");
    text.replace("@PORT@", &port.to_string()).replace("@UPSTREAM@", &upstream.to_string())
}

pub fn nuncio(folder: &Path, upstream: &Process, args: &LoadArgs) -> anyhow::Result<Contender> {
    let port = free_port()?;
    let file = folder.join("nuncio.yaml");
    fs::write(&file, bootstrap(port, upstream.port))?;
    let process = Process::start(target::own_proxy(&file, args.concurrency)?, port, "nuncio")?;
    Ok(Contender { name: "nuncio".to_owned(), process })
}

/// Every peer found on this machine. One that does not start is left out, and said.
pub fn installed(folder: &Path, upstream: &Process, args: &LoadArgs) -> Vec<Contender> {
    let found = [("envoy", envoy()), ("haproxy", find("haproxy")), ("nginx", find("nginx"))];
    let mut all = Vec::new();
    for (name, program) in found {
        let Some(program) = program else { continue };
        match start(name, program, folder, upstream, args) {
            Ok(contender) => all.push(contender),
            Err(error) => eprintln!("{name} is left out: {error:#}"),
        }
    }
    all
}

fn start(
    name: &str,
    program: PathBuf,
    folder: &Path,
    upstream: &Process,
    args: &LoadArgs,
) -> anyhow::Result<Contender> {
    let port = free_port()?;
    let mut command = Command::new(program);
    let (file, text) = match name {
        "envoy" => ("envoy.yaml", bootstrap(port, upstream.port)),
        "haproxy" => ("haproxy.cfg", fill(include_str!("../configs/haproxy.cfg"), port, upstream.port, args)),
        _ => ("nginx.conf", fill(include_str!("../configs/nginx.conf"), port, upstream.port, args)),
    };
    let file = folder.join(file);
    fs::write(&file, text.replace("@FOLDER@", &folder.display().to_string()))?;
    let threads = args.concurrency.to_string();
    match name {
        "envoy" => command.args(["--disable-hot-restart", "-l", "error", "--concurrency", &threads, "-c"]),
        "haproxy" => command.args(["-db", "-f"]),
        _ => command.arg("-p").arg(folder).arg("-c"),
    };
    command.arg(&file);
    Ok(Contender { name: name.to_owned(), process: Process::start(command, port, name)? })
}

fn fill(text: &str, port: u16, upstream: u16, args: &LoadArgs) -> String {
    text.replace("@PORT@", &port.to_string())
        .replace("@UPSTREAM@", &upstream.to_string())
        .replace("@THREADS@", &args.concurrency.to_string())
        // Each takes file descriptors for as many, and nginx counts those to the upstream too.
        .replace("@CONNECTIONS@", &(args.connections + 100).to_string())
        .replace("@SOCKETS@", &(2 * args.connections + 1000).to_string())
}

/// The real Envoy, where there is one.
pub fn envoy() -> Option<PathBuf> {
    std::env::var_os("ENVOY_BIN").map(PathBuf::from).or_else(|| find("envoy"))
}

fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin"), PathBuf::from("/usr/local/sbin")]);
    dirs.map(|dir| dir.join(name)).find(|file| file.is_file())
}
