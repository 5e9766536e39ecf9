//! What a process of its own pays for thousands of slow clients and for floods: time, descriptors, processor.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use nuncio_testkit::tls::{TlsClient, Versions};
use tokio::time::Instant;

use super::hostile::{allow_descriptors, floods, hello, server_name};
use super::{ECHO, Pki, TYPE, eventually, hcm, listener, own_certificate};

/// The program with these listeners, each of which has its name's place in `NAMES` as its port's.
struct Process {
    child: Child,
    ports: Vec<u16>,
    _folder: tempfile::TempDir,
}

const NAMES: [&str; 5] = ["admin", "tls", "inspected", "plain", "echo"];

impl Process {
    fn start(listeners: &[String]) -> Self {
        // Held until all are known, so that no two are the same.
        let free: Vec<_> = NAMES.iter().map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let ports: Vec<_> = free.iter().map(|socket| socket.local_addr().unwrap().port()).collect();
        let on = |name: &str, text: &str| text.replace("port_value: 0", &format!("port_value: {}", ports[place(name)]));
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("nuncio.yaml");
        let listeners = listeners.iter().map(|text| {
            let name = NAMES.iter().find(|name| text.contains(&format!("- name: {name}\n")));
            on(name.unwrap(), text)
        });
        let admin = on("admin", "admin: {address: {socket_address: {address: 127.0.0.1, port_value: 0}}}\n");
        fs::write(&file, format!("{admin}static_resources:\n  listeners:{}", listeners.collect::<String>())).unwrap();
        drop(free);
        let mut command = Command::new(env!("CARGO_BIN_EXE_nuncio"));
        command.arg("-c").arg(&file).args(["--concurrency", "2", "-l", "error"]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let process = Self { child, ports, _folder: folder };
        eventually("it is ready", || process.ask("/ready").contains("LIVE"));
        process
    }

    fn at(&self, name: &str) -> SocketAddr {
        ([127, 0, 0, 1], self.ports[place(name)]).into()
    }

    fn ask(&self, path: &str) -> String {
        let mut answer = String::new();
        if let Ok(mut stream) = TcpStream::connect(self.at("admin")) {
            let _ = write!(stream, "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
            let _ = stream.read_to_string(&mut answer);
        }
        answer
    }

    fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count()
    }

    /// What it has used of the processor, in ticks of 10 ms.
    fn processor(&self) -> Duration {
        let line = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let fields: Vec<u64> = line.rsplit(") ").next().unwrap().split(' ').skip(11).flat_map(str::parse).collect();
        Duration::from_millis(10 * (fields[0] + fields[1]))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn place(name: &str) -> usize {
    NAMES.iter().position(|other| *other == name).unwrap()
}

/// Says what it has to say byte by byte.
struct Slow {
    socket: TcpStream,
    rest: Vec<u8>,
    began: Instant,
    ended: Option<Duration>,
}

impl Slow {
    fn new(to: SocketAddr, at_once: &[u8], rest: &[u8]) -> Self {
        let mut socket = TcpStream::connect(to).unwrap();
        socket.write_all(at_once).unwrap();
        socket.set_nonblocking(true).unwrap();
        Self { socket, rest: rest.to_vec(), began: Instant::now(), ended: None }
    }

    fn say(&mut self) {
        if self.ended.is_none() && !self.rest.is_empty() {
            // Where nobody listens any more the next look will tell.
            let _ = self.socket.write(&[self.rest.remove(0)]);
        }
    }

    /// Whether there is an answer or the connection is closed. What follows an answer is `delayed_close_timeout`.
    fn look(&mut self) {
        if self.ended.is_some() {
            return;
        }
        let mut answer = [0; 512];
        if !self.socket.read(&mut answer).is_err_and(|e| e.kind() == ErrorKind::WouldBlock) {
            self.ended = Some(self.began.elapsed());
        }
    }
}

/// Said when it is dropped.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

// R58.
#[test]
fn five_thousand_slow_clients_end_in_time_and_hurt_nobody() {
    const EACH: usize = 1250;
    const TIMEOUT: Duration = Duration::from_secs(2);
    const LOOK: Duration = Duration::from_millis(250);
    allow_descriptors(4 * EACH as u64 + 500);
    let pki = Pki::new();
    let certificate = own_certificate(&pki);
    // Two seconds for a handshake, for the inspector, for a head and for a request.
    let tls = listener("tls", &hcm(), "", &certificate, &pki);
    let inspector =
        format!("{{name: i, typed_config: {{\"@type\": {TYPE}.filters.listener.tls_inspector.v3.TlsInspector}}}}");
    let inspected = listener("inspected", &hcm(), "", &certificate, &pki).replace(
        "    filter_chains:",
        &format!("    listener_filters: [{inspector}]\n    listener_filters_timeout: 2s\n    filter_chains:"),
    );
    // Without it the answer would not wait for the body.
    let buffer = format!(
        "{{name: b, typed_config: {{\"@type\": {TYPE}.filters.http.buffer.v3.Buffer, max_request_bytes: 5000}}}}"
    );
    let plain = format!(
        "\n  - name: plain\n    address: {{socket_address: {{address: 127.0.0.1, port_value: 0}}}}\n    \
         filter_chains: [{{filters: [{}]}}]\n",
        hcm()
            .replace("stat_prefix: h", "stat_prefix: h, request_headers_timeout: 2s, request_timeout: 2s")
            .replace("http_filters: [", &format!("http_filters: [{buffer}, "))
    );
    let process = Process::start(&[tls, inspected, plain]);
    let served = || TlsClient::new(None, Versions::Both, &[]).get(process.at("tls"), "web.test", "/").unwrap();
    assert!(served().ends_with("served"));
    let before = process.descriptors();

    let hello = hello(&server_name(b"web.test"));
    let upload = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1000\r\n\r\n";
    let kinds: [(&str, &[u8], &[u8]); 4] = [
        ("tls", b"", &hello),
        ("inspected", b"", &hello),
        // The time for a head runs from its first byte.
        ("plain", b"G", b"ET / HTTP/1.1\r\nhost: a\r\n\r\n"),
        ("plain", upload, &[b'x'; 1000]),
    ];
    let over = AtomicBool::new(false);
    let (clients, lag, slowest) = std::thread::scope(|scope| {
        // Also if this thread fails.
        let until = Over(&over);
        let normal = scope.spawn(|| {
            let mut slowest = Duration::ZERO;
            while !over.load(Relaxed) {
                let began = Instant::now();
                assert!(served().ends_with("served"));
                slowest = slowest.max(began.elapsed());
            }
            slowest
        });
        let of_all = |(to, at_once, rest)| (0..EACH).map(move |_| Slow::new(to, at_once, rest));
        let mut clients: Vec<_> =
            kinds.iter().map(|(to, at_once, rest)| (process.at(to), *at_once, *rest)).flat_map(of_all).collect();
        let (began, mut last, mut lag) = (Instant::now(), Instant::now(), Duration::ZERO);
        for n in 1.. {
            std::thread::sleep((began + LOOK * n).saturating_duration_since(Instant::now()));
            clients.iter_mut().for_each(Slow::look);
            lag = lag.max(last.elapsed());
            last = Instant::now();
            if began.elapsed() > 10 * TIMEOUT || clients.iter().all(|client| client.ended.is_some()) {
                break;
            }
            if n.is_multiple_of(4) {
                clients.iter_mut().for_each(Slow::say);
            }
        }
        drop(until);
        (clients, lag, normal.join().unwrap())
    });
    // Nobody sees an end earlier than he looks, and on a busy machine the proxy is late for everybody.
    let in_time = TIMEOUT - Duration::from_secs(1)..=TIMEOUT + Duration::from_secs(1) + lag + slowest;
    for (kind, clients) in kinds.iter().zip(clients.chunks(EACH)) {
        let late: Vec<_> =
            clients.iter().filter(|client| !client.ended.is_some_and(|t| in_time.contains(&t))).collect();
        let first = late.first().map(|client| client.ended);
        assert!(late.is_empty(), "{}: {} of {EACH}, first at {first:?}, lag {lag:?}", kind.0, late.len());
    }
    assert!(slowest < TIMEOUT + lag, "a normal client waited for the slow ones: {slowest:?}");
    drop(clients);
    eventually("the descriptors are back", || process.descriptors() <= before);
}

// R59: the floods of `hostile`, and what they cost.
#[test]
fn floods_cost_half_a_second_of_the_processor_at_most() {
    let pki = Pki::new();
    let process = Process::start(&[listener("echo", ECHO, "", &own_certificate(&pki), &pki)]);
    // The first handshakes make what all others use.
    for versions in [Versions::Only12, Versions::Only13] {
        TlsClient::new(None, versions, &[]).connect(process.at("echo"), "web.test").unwrap();
    }
    let before = process.processor();
    floods(process.at("echo"));
    let used = process.processor() - before;
    assert!(used <= Duration::from_millis(500), "{used:?}");
    let errors = process.ask("/stats?filter=^listener.echo.ssl.connection_error$");
    assert!(errors.contains("ssl.connection_error: 5"), "{errors}");
}
