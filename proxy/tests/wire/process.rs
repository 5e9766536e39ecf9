//! The program as a process of its own: what it logs, and the most memory that it ever had.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use tokio::time::Instant;

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Ends when it is dropped.
pub struct Process {
    child: Child,
    folder: TempDir,
    admin: SocketAddr,
}

impl Process {
    /// Serves with one worker; the configuration has an admin listener.
    pub fn start(yaml: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let log = fs::File::create(folder.path().join("log")).unwrap();
        let place = folder.path().join("admin");
        let mut command = Command::new(env!("CARGO_BIN_EXE_nuncio"));
        command.args(["--config-yaml", yaml, "--concurrency", "1", "-l", "info", "--admin-address-path"]).arg(&place);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap();
        let mut process = Self { child, folder, admin: ([127, 0, 0, 1], 0).into() };
        let mut admin = None;
        process.until("an admin listener", |_| {
            admin = fs::read_to_string(&place).ok().and_then(|text| text.trim().parse().ok());
            admin.is_some()
        });
        process.admin = admin.expect("it was read");
        process
    }

    /// The page at that path of the admin listener.
    pub fn page(&self, path: &str) -> String {
        get(self.admin, path)
    }

    /// Where a listener accepts.
    pub fn listener(&self, name: &str) -> SocketAddr {
        let mut address = None;
        self.until("a listener", |process| {
            let page = process.page("/listeners");
            address = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix("::")?.parse().ok());
            address.is_some()
        });
        address.expect("it was read")
    }

    /// A number of `/stats`; nothing was counted if it is not there.
    pub fn stat(&self, name: &str) -> u64 {
        let page = self.page(&format!("/stats?filter=^{name}$"));
        let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        line.and_then(|value| value.parse().ok()).unwrap_or(0)
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    /// The most memory that was ever resident.
    pub fn peak(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let size = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        size.expect("the kernel counts it") * 1024
    }

    /// Pipes that are open, by their two ends.
    pub fn pipes(&self) -> usize {
        let open = fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().flatten();
        let is_pipe = |entry: &fs::DirEntry| {
            fs::read_link(entry.path()).is_ok_and(|target| target.to_string_lossy().starts_with("pipe:"))
        };
        open.filter(is_pipe).count() / 2
    }

    /// Asks until it is so.
    pub fn until(&self, what: &str, mut so: impl FnMut(&Self) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !so(self) {
            assert!(Instant::now() < end, "in vain: {what}; the log:\n{}", self.log());
            std::thread::yield_now();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Everything that is answered to one request.
pub fn get(to: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(to).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}
