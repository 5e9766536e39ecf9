//! What a proxy's admin port says of it.

use std::io::{Read, Write};
use std::net::TcpStream;

use anyhow::{Context, ensure};

/// The admin port.
#[derive(Debug, Clone, Copy)]
pub struct Admin(pub u16);

impl Admin {
    pub fn ask(self, method: &str, path: &str) -> anyhow::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.0))?;
        write!(stream, "{method} {path} HTTP/1.1\r\nhost: admin\r\nconnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        ensure!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
        Ok(answer)
    }

    pub fn stat(self, name: &str) -> anyhow::Result<u64> {
        let page = self.ask("GET", &format!("/stats?filter=^{name}$"))?;
        let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        value.with_context(|| format!("no {name} in the page of statistics"))?.parse().context("a number")
    }

    /// Tasks of all event loops.
    pub fn tasks(self) -> anyhow::Result<u64> {
        let page = self.ask("GET", "/threads")?;
        let tasks = |line: &str| line.split_once(" tasks,")?.0.rsplit(' ').next()?.parse::<u64>().ok();
        Ok(page.lines().filter_map(tasks).sum())
    }
}
