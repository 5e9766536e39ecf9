//! Processes of a run: started, told their ports, measured, ended.

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::time::Instant;

/// A child that ends with this process.
pub struct Process {
    child: Child,
    // Its end of file tells the upstream to stop.
    _stdin: Option<ChildStdin>,
    pub port: u16,
}

impl Process {
    pub fn upstream() -> anyhow::Result<Self> {
        Self::own("upstream")
    }

    /// A subcommand of this program that prints its port.
    pub fn own(subcommand: &str) -> anyhow::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg(subcommand)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting the {subcommand}"))?;
        let stdout = child.stdout.take().context("a child has a standard output")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        let port = line.trim().parse().with_context(|| format!("the {subcommand} did not tell its port"))?;
        let stdin = child.stdin.take();
        Ok(Self { child, _stdin: stdin, port })
    }

    /// Starts `command` and waits until `port` takes connections.
    pub fn start(mut command: Command, port: u16, what: &str) -> anyhow::Result<Self> {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let mut process = Self { child: child.with_context(|| format!("starting {what}"))?, _stdin: None, port };
        let began = Instant::now();
        loop {
            if TcpStream::connect(process.address()).is_ok() {
                return Ok(process);
            }
            if let Some(status) = process.child.try_wait()? {
                bail!("{what} ended at once: {status}");
            }
            if began.elapsed() > Duration::from_secs(20) {
                bail!("{what} does not listen on port {port}");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn address(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.port).into()
    }

    /// CPU time of all its threads and children so far, from the scheduler's own clock.
    pub fn cpu(&self) -> Duration {
        family(self.child.id()).iter().map(|pid| cpu_of(*pid)).sum()
    }

    /// How many descriptors and threads it has.
    pub fn holds(&self) -> (usize, usize) {
        let count = |what: &str| fs::read_dir(format!("/proc/{}/{what}", self.child.id())).map_or(0, Iterator::count);
        (count("fd"), count("task"))
    }

    /// Waits until it ends by itself, and well.
    pub fn wait_for_end(&mut self) -> anyhow::Result<()> {
        let began = Instant::now();
        loop {
            match self.child.try_wait()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => bail!("it ended badly: {status}"),
                None if began.elapsed() > Duration::from_secs(40) => bail!("it does not end"),
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    /// Resident memory of it and its children in bytes.
    pub fn memory(&self) -> u64 {
        family(self.child.id()).iter().map(|pid| memory_of(*pid)).sum()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn family(root: u32) -> Vec<u32> {
    let mut all = vec![root];
    let mut i = 0;
    while i < all.len() {
        let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", all[i])).unwrap_or_default();
        all.extend(children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
        i += 1;
    }
    all
}

fn cpu_of(pid: u32) -> Duration {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks
        .filter_map(|task| fs::read_to_string(task.path().join("schedstat")).ok())
        .filter_map(|text| text.split_whitespace().next()?.parse::<u64>().ok())
        .map(Duration::from_nanos)
        .sum()
}

fn memory_of(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// This process is the proxy from here on.
pub fn become_proxy(args: Vec<OsString>) -> ExitCode {
    nuncio::cli::run(std::iter::once(OsString::from("nuncio")).chain(args))
}

/// Resolves when standard input ends, that is, when the parent is gone.
pub fn parent_gone() -> std::pin::Pin<Box<dyn Future<Output = ()>>> {
    Box::pin(async {
        let _ = tokio::task::spawn_blocking(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink())).await;
    })
}

/// The command that runs the linked-in proxy, or the one that `NUNCIO_BIN` names.
pub fn own_proxy(config: &Path, concurrency: u32) -> anyhow::Result<Command> {
    let mut command = match std::env::var_os("NUNCIO_BIN") {
        Some(program) => Command::new(program),
        None => {
            let mut command = Command::new(std::env::current_exe()?);
            command.args(["proxy", "--"]);
            command
        }
    };
    command.args(["-l", "error", "--concurrency", &concurrency.to_string(), "-c"]).arg(config);
    Ok(command)
}

/// The same command in a process that may have only so many descriptors.
pub fn limited(command: &Command, descriptors: u32) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("ulimit -n {descriptors} && exec \"$0\" \"$@\"")]);
    shell.arg(command.get_program()).args(command.get_args());
    shell
}
