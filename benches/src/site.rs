//! One place that several processes of the proxy serve, one after the other, and its configuration, which changes.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::ensure;
use nuncio_testkit::certificates::{Wanted, self_signed};
use tokio::time::Instant;

use crate::admin::Admin;
use crate::peers::free_port;
use crate::target::{self, Process};

const PATIENCE: Duration = Duration::from_secs(40);

pub struct Site {
    folder: tempfile::TempDir,
    admin: Admin,
    plain: u16,
    tls: u16,
    upstream: Process,
    /// Of the configuration, from a number that is fit for a buffer.
    version: u32,
}

impl Site {
    pub fn new() -> anyhow::Result<Self> {
        let (folder, upstream) = (tempfile::tempdir()?, Process::upstream()?);
        let issued = self_signed(&Wanted { name: "load", dns: vec!["load.test"], ..Wanted::default() });
        fs::write(folder.path().join("cert.pem"), issued.chain)?;
        fs::write(folder.path().join("key.pem"), issued.key)?;
        let (admin, plain, tls) = (free_port()?, free_port()?, free_port()?);
        let mut site = Self { folder, admin: Admin(admin), plain, tls, upstream, version: 1 << 20 };
        site.change()?;
        Ok(site)
    }

    /// Another configuration is in the file.
    pub fn change(&mut self) -> anyhow::Result<()> {
        self.version += 1;
        let text = include_str!("../configs/restarts.yaml")
            .replace("@ADMIN@", &self.admin.0.to_string())
            .replace("@PORT@", &self.plain.to_string())
            .replace("@TLS@", &self.tls.to_string())
            .replace("@UPSTREAM@", &self.upstream.port.to_string())
            .replace("@VERSION@", &self.version.to_string())
            .replace("@FOLDER@", &self.path().display().to_string());
        let new = self.path().join("new.yaml");
        fs::write(&new, text)?;
        Ok(fs::rename(new, self.path().join("nuncio.yaml"))?)
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The next process, within `descriptors` if that is said.
    pub fn start(&self, descriptors: Option<u32>) -> anyhow::Result<Process> {
        let mut command = target::own_proxy(&self.path().join("nuncio.yaml"), 2)?;
        command.arg("--hot-restart").arg(self.path().join("restart"));
        command.args(["--drain-time-s", "2", "--parent-shutdown-time-s", "30"]);
        if let Some(limit) = descriptors {
            command = target::limited(&command, limit);
        }
        Process::start(command, self.plain, "nuncio")
    }

    pub fn plain(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.plain).into()
    }

    pub fn tls(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.tls).into()
    }

    pub fn admin(&self) -> Admin {
        self.admin
    }

    /// A changed configuration is in use when this returns.
    pub fn reload(&mut self) -> anyhow::Result<()> {
        let before = self.admin.stat("server.reload.update_success")?;
        self.change()?;
        self.admin.ask("POST", "/reload")?;
        self.wait_for("server.reload.update_success", before + 1)
    }

    pub fn wait_for(&self, name: &str, value: u64) -> anyhow::Result<()> {
        let began = Instant::now();
        while self.admin.stat(name)? != value {
            ensure!(began.elapsed() < PATIENCE, "{name} does not become {value}");
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Without holding the clients that share the thread.
    pub async fn wait_for_at_least(&self, name: &str, value: u64) -> anyhow::Result<()> {
        let began = Instant::now();
        while self.admin.stat(name)? < value {
            ensure!(began.elapsed() < PATIENCE, "{name} does not reach {value}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }
}
