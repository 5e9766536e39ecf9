//! Two network namespaces with a wire between them, and what runs in them.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sched::{CloneFlags, setns};
use tokio::time::Instant;

/// Whether the rooted tests can be run here; says so if not.
pub fn may_run() -> bool {
    if fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0) {
        return true;
    }
    assert!(std::env::var_os("NUNCIO_REQUIRE_ROOT").is_none(), "these tests need root here");
    eprintln!("SKIPPED: the sidecar's tests make network namespaces and need root");
    false
}

fn sh(command: &str) -> String {
    let done = Command::new("sh").args(["-c", command]).output().unwrap();
    assert!(done.status.success(), "{command}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8_lossy(&done.stdout).into_owned()
}

/// Goes away with everything in it when it is dropped.
pub struct Namespace(String);

impl Namespace {
    fn new(name: String) -> Self {
        sh(&format!("ip netns add {name} && ip -n {name} link set lo up"));
        Self(name)
    }

    /// Does it on a thread that lives in the namespace.
    pub fn run<T: Send + 'static>(&self, act: impl FnOnce() -> T + Send + 'static) -> T {
        self.thread(act).join().unwrap()
    }

    fn thread<T: Send + 'static>(&self, act: impl FnOnce() -> T + Send + 'static) -> std::thread::JoinHandle<T> {
        let file = File::open(Path::new("/var/run/netns").join(&self.0)).unwrap();
        let inside = move || {
            setns(file, CloneFlags::CLONE_NEWNET).unwrap();
            act()
        };
        std::thread::Builder::new().spawn(inside).unwrap()
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0]).args(words);
        command
    }

    pub fn iptables(&self, arguments: &[&str]) {
        let done = self.command(&[&[env!("CARGO_BIN_EXE_nuncio"), "iptables"], arguments].concat()).output().unwrap();
        assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    }

    /// Without comments and counts.
    pub fn nat_tables(&self) -> String {
        let save = |program: &str| sh(&format!("ip netns exec {} {program} -t nat", self.0));
        let text = save("iptables-save") + &save("ip6tables-save");
        let bare = |line: &str| line.split(" [").next().unwrap_or_default().to_owned() + "\n";
        text.lines().filter(|line| !line.starts_with('#')).map(bare).collect()
    }

    /// `configs/sidecar.yaml`, as the user that the rules leave alone; ready when this returns.
    pub fn sidecar(&self) -> Sidecar {
        self.sidecar_with("1337", str::to_owned, &[])
    }

    /// Runs the programs of the system in here.
    pub fn sh(&self, command: &str) -> String {
        sh(&format!("ip netns exec {} {command}", self.0))
    }

    /// Another user, the configuration changed, and `files` at what `@FOLDER@` in it stands for.
    pub fn sidecar_with(&self, user: &str, change: impl Fn(&str) -> String, files: &[(&str, &str)]) -> Sidecar {
        let folder = tempfile::tempdir().unwrap();
        let copy = |from: PathBuf, name: &str| {
            let to = folder.path().join(name);
            fs::copy(from, &to).unwrap();
            fs::set_permissions(&to, fs::Permissions::from_mode(0o755)).unwrap();
            to
        };
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        // That user may not be able to read the source tree.
        let program = copy(env!("CARGO_BIN_EXE_nuncio").into(), "nuncio");
        let config = copy(Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs/sidecar.yaml"), "sidecar.yaml");
        let text = fs::read_to_string(&config).unwrap();
        fs::write(&config, change(&text).replace("@FOLDER@", folder.path().to_str().unwrap())).unwrap();
        for (name, text) in files {
            fs::write(folder.path().join(name), text).unwrap();
            fs::set_permissions(folder.path().join(name), fs::Permissions::from_mode(0o644)).unwrap();
        }
        let user = ["setpriv", "--reuid", user, "--regid", user, "--clear-groups"];
        let mut words: Vec<&str> = user.to_vec();
        words.extend([
            program.to_str().unwrap(),
            "-c",
            config.to_str().unwrap(),
            "--concurrency",
            "2",
            "-l",
            "warning",
        ]);
        let child = self.command(&words).stdin(Stdio::null()).spawn().unwrap();
        let sidecar = Sidecar { child, _folder: folder };
        let ready = self.run(|| {
            let end = Instant::now() + Duration::from_secs(20);
            while Instant::now() < end {
                if let Ok(mut stream) = TcpStream::connect(("127.0.0.1", 15000)) {
                    let _ = stream.write_all(b"GET /ready HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
                    let mut answer = String::new();
                    let _ = stream.read_to_string(&mut answer);
                    if answer.starts_with("HTTP/1.1 200") {
                        return true;
                    }
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            false
        });
        assert!(ready, "the sidecar is not ready");
        sidecar
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

pub struct Sidecar {
    child: Child,
    _folder: tempfile::TempDir,
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A client's namespace and a server's.
pub struct Pair {
    pub client: Namespace,
    pub server: Namespace,
}

impl Pair {
    pub fn new(name: &str) -> Self {
        let id = format!("nun-{}-{name}", std::process::id());
        let (client, server) = (Namespace::new(format!("{id}-c")), Namespace::new(format!("{id}-s")));
        sh(&format!("ip link add name v0 netns {} type veth peer name v0 netns {}", client.0, server.0));
        for (namespace, last) in [(&client, 1), (&server, 2)] {
            let ns = &namespace.0;
            sh(&format!(
                "ip -n {ns} addr add 10.77.0.{last}/24 dev v0 && ip -n {ns} addr add fd77::{last}/64 dev v0 nodad && \
                 ip -n {ns} link set v0 up"
            ));
        }
        Self { client, server }
    }

    pub fn client_addresses(&self) -> [IpAddr; 2] {
        [[10, 77, 0, 1].into(), "fd77::1".parse().unwrap()]
    }

    pub fn server_addresses(&self) -> [IpAddr; 2] {
        [[10, 77, 0, 2].into(), "fd77::2".parse().unwrap()]
    }

    /// On both of the server's addresses: HTTP on 8080, which answers with the request's head and who asked, and on 9000 a
    /// server that speaks first and sends back what it gets. They end with the test's process.
    pub fn serve(&self) {
        for address in self.server_addresses() {
            let listen = |port| self.server.run(move || TcpListener::bind(SocketAddr::new(address, port)).unwrap());
            let (http, bytes) = (listen(8080), listen(9000));
            std::thread::Builder::new().spawn(move || http.incoming().flatten().for_each(answer)).unwrap();
            std::thread::Builder::new().spawn(move || bytes.incoming().flatten().for_each(greet)).unwrap();
        }
    }
}

fn answer(mut stream: TcpStream) {
    let mut head = String::new();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    while !head.ends_with("\r\n\r\n") && reader.read_line(&mut head).is_ok_and(|n| n > 0) {}
    if let Ok(peer) = stream.peer_addr() {
        head.push_str(&format!("peer: {}\r\n", peer.ip()));
    }
    let _ = write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{head}", head.len());
}

fn greet(mut stream: TcpStream) {
    let mut line = String::new();
    let _ = stream.write_all(b"hello\n");
    let _ = BufReader::new(stream.try_clone().unwrap()).read_line(&mut line);
    let _ = stream.write_all(line.as_bytes());
}
