//! Clients over real sockets, each on a thread of its own, that send requests at a fixed rate and tell what became of
//! them. A request is lost if whoever sent it may not send it again: it was cut, refused with an error, or left without an
//! answer on a connection that was new. RFC 9112 §9.3.1 lets a client repeat what a connection that had been used before
//! closed on; RFC 9113 §8.7 what a GOAWAY or REFUSED_STREAM says was not looked at. Those are counted apart.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::time::Instant;

use crate::http2::frame::{Frame, code, flag, kind};
use crate::http2::{Client as Http2Client, hpack};
use crate::tls::{TlsClient, TlsConnection, Versions};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Speaks {
    Http1,
    Http2,
    /// HTTP/1.1 in TLS.
    Tls,
}

/// What became of the requests.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    pub answered: u64,
    /// Of those, how many were answered only when they were sent again.
    pub repeated: u64,
    pub lost: u64,
    /// The first losses in words.
    pub losses: Vec<String>,
}

/// Clients at work.
pub struct Load {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    answered: AtomicU64,
    repeated: AtomicU64,
    lost: AtomicU64,
    losses: Mutex<Vec<String>>,
}

/// Why there is no answer.
enum Failed {
    /// The server says that it did not look at the request.
    Refused,
    /// Not a byte came before the end.
    Silent(String),
    Broken(String),
}

impl Load {
    /// `connections` to each target, `rate` requests a second of all together, for `path`.
    pub fn start(targets: &[(Speaks, SocketAddr)], connections: u32, rate: u32, path: &'static str) -> Self {
        let shared = Arc::<Shared>::default();
        let clients = targets.len() as u32 * connections;
        let step = Duration::from_secs_f64(f64::from(clients) / f64::from(rate));
        let threads = (0..clients).map(|n| {
            let (speaks, address) = targets[n as usize % targets.len()];
            let (shared, first) = (shared.clone(), Instant::now() + step * n / clients);
            let work = move || Client::new(speaks, address, path).work(first, step, &shared);
            std::thread::Builder::new().spawn(work).expect("a thread")
        });
        let threads = threads.collect();
        Self { shared, threads }
    }

    pub fn answered(&self) -> u64 {
        self.shared.answered.load(Relaxed)
    }

    /// Lets every request that was sent end.
    pub fn finish(self) -> Outcome {
        self.shared.stop.store(true, Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().expect("a client"));
        let shared = &self.shared;
        let count = |n: &AtomicU64| n.load(Relaxed);
        let losses = shared.losses.lock().map(|l| l.clone()).unwrap_or_default();
        Outcome {
            answered: count(&shared.answered),
            repeated: count(&shared.repeated),
            lost: count(&shared.lost),
            losses,
        }
    }
}

impl Shared {
    fn note(&self, answer: Result<bool, String>) {
        match answer {
            Ok(repeated) => {
                self.answered.fetch_add(1, Relaxed);
                self.repeated.fetch_add(repeated.into(), Relaxed);
            }
            Err(why) => {
                self.lost.fetch_add(1, Relaxed);
                if let Ok(mut losses) = self.losses.lock()
                    && losses.len() < 10
                {
                    losses.push(why);
                }
            }
        }
    }
}

/// One connection at a time.
struct Client {
    speaks: Speaks,
    address: SocketAddr,
    path: &'static str,
    tls: Option<TlsClient>,
    connection: Option<Connection>,
}

enum Connection {
    Plain(TcpStream),
    Tls(Box<TlsConnection>),
    Http2 { runtime: Runtime, client: Http2Client<tokio::net::TcpStream>, next: u32 },
}

impl Client {
    fn new(speaks: Speaks, address: SocketAddr, path: &'static str) -> Self {
        let tls = (speaks == Speaks::Tls).then(|| TlsClient::new(None, Versions::Both, &["http/1.1"]));
        Self { speaks, address, path, tls, connection: None }
    }

    fn work(mut self, first: Instant, step: Duration, shared: &Shared) {
        let mut due = first;
        while !shared.stop.load(Relaxed) {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            due += step;
            shared.note(self.ask());
        }
    }

    /// Whether the request had to be repeated.
    fn ask(&mut self) -> Result<bool, String> {
        let used = self.connection.is_some();
        match self.once() {
            Ok(()) => return Ok(false),
            Err(Failed::Refused) => {}
            Err(Failed::Silent(_)) if used && self.speaks != Speaks::Http2 => {}
            Err(failed) => return Err(failed.said(self.speaks, used)),
        }
        self.once().map(|()| true).map_err(|failed| failed.said(self.speaks, false))
    }

    fn once(&mut self) -> Result<(), Failed> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.connect().map_err(|e| Failed::Broken(format!("no connection: {e}")))?,
        };
        if connection.exchange(self.path)? {
            self.connection = Some(connection);
        }
        Ok(())
    }

    fn connect(&self) -> io::Result<Connection> {
        if let Some(tls) = &self.tls {
            return Ok(Connection::Tls(Box::new(tls.connect(self.address, "load.test")?)));
        }
        let stream = TcpStream::connect(self.address)?;
        stream.set_nodelay(true)?;
        if self.speaks == Speaks::Http1 {
            stream.set_read_timeout(Some(PATIENCE))?;
            return Ok(Connection::Plain(stream));
        }
        stream.set_nonblocking(true)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let mut client = {
            let _inside = runtime.enter();
            Http2Client::new(tokio::net::TcpStream::from_std(stream)?)
        };
        runtime.block_on(client.greet(&[]));
        Ok(Connection::Http2 { runtime, client, next: 1 })
    }
}

impl Connection {
    /// One request. Whether another may follow.
    fn exchange(&mut self, path: &str) -> Result<bool, Failed> {
        match self {
            Self::Plain(stream) => exchange(stream, path),
            Self::Tls(stream) => exchange(stream, path),
            Self::Http2 { runtime, client, next } => {
                let stream = std::mem::replace(next, *next + 2);
                let asked = async { tokio::time::timeout(PATIENCE, exchange_http2(client, stream, path)).await };
                runtime.block_on(asked).unwrap_or_else(|_| Err(Failed::Broken("no answer in time".to_owned())))
            }
        }
    }
}

fn exchange(stream: &mut (impl Read + Write), path: &str) -> Result<bool, Failed> {
    let mut answer = Vec::new();
    match talk(stream, path, &mut answer) {
        Ok(goes_on) => Ok(goes_on),
        Err(e) if answer.is_empty() && e.kind() != io::ErrorKind::WouldBlock => Err(Failed::Silent(e.to_string())),
        Err(e) => Err(Failed::Broken(format!("{e}, after {:.60?}", String::from_utf8_lossy(&answer)))),
    }
}

fn talk(stream: &mut (impl Read + Write), path: &str, answer: &mut Vec<u8>) -> io::Result<bool> {
    stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: load.test\r\n\r\n").as_bytes())?;
    stream.flush()?;
    let mut buf = [0; 4096];
    loop {
        let n = stream.read(&mut buf)?;
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        answer.extend_from_slice(&buf[..n]);
        let Some(head) = answer.windows(4).position(|w| w == b"\r\n\r\n") else { continue };
        let text = String::from_utf8_lossy(&answer[..head]).to_ascii_lowercase();
        if !text.starts_with("http/1.1 200") {
            return Err(io::Error::other("another status"));
        }
        let length = text.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
        let length = length.ok_or_else(|| io::Error::other("no length"))?;
        if answer.len() >= head + 4 + length {
            return Ok(!text.contains("\nconnection: close"));
        }
    }
}

async fn exchange_http2(
    client: &mut Http2Client<tokio::net::TcpStream>,
    stream: u32,
    path: &str,
) -> Result<bool, Failed> {
    let fields = [(":method", "GET"), (":scheme", "http"), (":authority", "load.test"), (":path", path)];
    client.request(stream, &fields).await;
    let mut goes_on = true;
    loop {
        // What came in between matters only if it ends something.
        let Some(frame) = client.read().await else { return Err(Failed::Silent("closed".to_owned())) };
        match frame.kind {
            kind::GOAWAY if frame.last_stream() < stream => return Err(Failed::Refused),
            kind::GOAWAY => goes_on = false,
            kind::RST_STREAM if frame.code() == code::REFUSED_STREAM => return Err(Failed::Refused),
            kind::RST_STREAM => return Err(Failed::Broken(format!("reset with {}", frame.code()))),
            kind::HEADERS if !is_ok(&frame) => return Err(Failed::Broken("another status".to_owned())),
            kind::HEADERS | kind::DATA if frame.has(flag::END_STREAM) => return Ok(goes_on),
            _ => {}
        }
    }
}

fn is_ok(head: &Frame) -> bool {
    hpack::status(&head.payload) == Some(200)
}

impl Failed {
    fn said(self, speaks: Speaks, used: bool) -> String {
        let which = if used { "used" } else { "new" };
        match self {
            Self::Refused => format!("{speaks:?}, {which} connection: refused again"),
            Self::Silent(why) => format!("{speaks:?}, {which} connection: not a byte: {why}"),
            Self::Broken(why) => format!("{speaks:?}, {which} connection: {why}"),
        }
    }
}
