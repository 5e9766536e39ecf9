//! The program as a process of its own, with its configuration in a file that a test may change.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use nuncio_testkit::certificates::{Wanted, self_signed};
use tempfile::TempDir;
use tokio::time::Instant;

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A configuration whose processes follow one another.
pub struct Site {
    folder: TempDir,
    ports: [u16; 4],
    /// Of the configuration in the file.
    version: u32,
}

/// Ends when it is dropped.
pub struct Process(Child);

/// Asks until it is so.
pub fn until(what: &str, mut so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !so() {
        assert!(Instant::now() < end, "in vain: {what}");
        std::thread::yield_now();
    }
}

/// Everything that is answered to one request; nothing if nobody answers.
pub fn ask(method: &str, to: SocketAddr, path: &str) -> String {
    let mut answer = String::new();
    if let Ok(mut stream) = TcpStream::connect(to) {
        let _ = write!(stream, "{method} {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
        let _ = stream.read_to_string(&mut answer);
    }
    answer
}

impl Site {
    pub fn new() -> Self {
        // Held until all are known, so that no two are the same.
        let free: Vec<TcpListener> = (0..4).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let ports = [0, 1, 2, 3].map(|i: usize| free[i].local_addr().unwrap().port());
        let site = Self { folder: tempfile::tempdir().unwrap(), ports, version: 0 };
        let issued = self_signed(&Wanted { name: "load", dns: vec!["load.test"], ..Wanted::default() });
        fs::write(site.path("cert.pem"), issued.chain).unwrap();
        fs::write(site.path("key.pem"), issued.key).unwrap();
        site.write(&site.config());
        site
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn local(&self, n: usize) -> SocketAddr {
        ([127, 0, 0, 1], self.ports[n]).into()
    }

    pub fn admin(&self) -> SocketAddr {
        self.local(0)
    }

    pub fn plain(&self) -> SocketAddr {
        self.local(1)
    }

    pub fn tls(&self) -> SocketAddr {
        self.local(2)
    }

    /// Wants a PROXY header first.
    pub fn behind_proxy(&self) -> SocketAddr {
        self.local(3)
    }

    pub fn write(&self, text: &str) {
        fs::write(self.path("new.yaml"), text).unwrap();
        fs::rename(self.path("new.yaml"), self.path("nuncio.yaml")).unwrap();
    }

    /// As it is in the file. Each version answers with its number.
    pub fn config(&self) -> String {
        let hcm =
            "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
        let router = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router";
        let version = self.version;
        let manager = format!(
            "{{name: hcm, typed_config: {{'@type': {hcm}, stat_prefix: web, route_config: {{virtual_hosts: [{{name: v, domains: \
             ['*'], routes: [{{match: {{prefix: /}}, direct_response: {{status: 200, body: {{inline_string: 'v{version}.'}}}}}}]}}]}}, \
             http_filters: [{{name: r, typed_config: {{'@type': {router}}}}}]}}}}"
        );
        let listener = |name: &str, port: u16, more: &str, chain: &str| {
            format!(
                "  - name: {name}\n    address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}\n{more}    \
                 filter_chains:\n    - filters: [{manager}]\n{chain}"
            )
        };
        let tls = format!(
            "      transport_socket: {{name: tls, typed_config: {{'@type': \
             type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext, common_tls_context: \
             {{tls_certificates: [{{certificate_chain: {{filename: '{}'}}, private_key: {{filename: '{}'}}}}]}}}}}}\n",
            self.path("cert.pem").display(),
            self.path("key.pem").display()
        );
        let proxied = "    listener_filters: [{name: p, typed_config: {'@type': \
                       type.googleapis.com/envoy.extensions.filters.listener.proxy_protocol.v3.ProxyProtocol}}]\n";
        [
            format!(
                "admin: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {}}}}}}}\nstatic_resources:\n  listeners:\n",
                self.ports[0]
            ),
            listener("plain", self.ports[1], "", ""),
            listener("tls", self.ports[2], "", &tls),
            listener("proxied", self.ports[3], proxied, ""),
        ]
        .concat()
    }

    /// Another version is in the file.
    pub fn change(&mut self) -> u32 {
        self.version += 1;
        self.write(&self.config());
        self.version
    }

    /// The next process of this site; ready when this returns, if it is the first.
    pub fn start(&self) -> Process {
        let log = fs::File::options().create(true).append(true).open(self.path("log")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_nuncio"));
        command.arg("-c").arg(self.path("nuncio.yaml")).arg("--hot-restart").arg(self.path("restart"));
        command.args(["--concurrency", "2", "--drain-time-s", "2", "--parent-shutdown-time-s", "30"]);
        Process(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap())
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap()
    }

    pub fn stat(&self, name: &str) -> u64 {
        let page = ask("GET", self.admin(), &format!("/stats?filter=^{name}$"));
        let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        line.and_then(|value| value.parse().ok()).unwrap_or(0)
    }

    /// Of all event loops.
    pub fn tasks(&self) -> u64 {
        let page = ask("GET", self.admin(), "/threads");
        let tasks = |line: &str| line.split_once(" tasks,")?.0.rsplit(' ').next()?.parse::<u64>().ok();
        page.lines().filter_map(tasks).sum()
    }
}

impl Process {
    pub fn hang_up(&self) {
        let id = nix::unistd::Pid::from_raw(self.0.id().cast_signed());
        nix::sys::signal::kill(id, nix::sys::signal::Signal::SIGHUP).unwrap();
    }

    pub fn ended(mut self) -> ExitStatus {
        let mut status = None;
        until("the process ends", || {
            status = self.0.try_wait().unwrap();
            status.is_some()
        });
        status.expect("it has ended")
    }

    /// How many descriptors it has.
    pub fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.0.id())).unwrap().count()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
