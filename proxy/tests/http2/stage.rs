//! What stands around the proxy: a configuration, an HTTP/1 upstream that remembers what it was
//! asked, and clients that write frames.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use nuncio_testkit::http2::Client;
use nuncio_testkit::http2::frame::PREFACE;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::oneshot;
use tokio::task::spawn_local;

use crate::running::{MANAGER, RunningProxy};
use crate::strict::{Broken, Reader, Request};

/// Longer than anything takes; a test that waits for it has failed.
const PATIENCE: Duration = Duration::from_secs(20);

/// What `future` says, or a failed test.
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(said) => said,
        Err(_) => panic!("{what}: nothing happened"),
    }
}

/// A listener `in` for both versions, whose requests all go to a cluster at this address. `manager` is put among the
/// fields of the connection manager, and `cluster` among the cluster's.
pub fn configuration(upstream: SocketAddr, manager: &str, cluster: &str) -> String {
    const TYPES: &str = "type.googleapis.com/envoy.extensions.filters";
    format!(
        r#"
admin: {{address: {{socket_address: {{address: 127.0.0.1, port_value: 0}}}}}}
{MANAGER}          route_config:
            virtual_hosts:
            - name: v
              domains: ["*"]
              routes: [{{match: {{prefix: "/"}}, route: {{cluster: c, timeout: 0s}}}}]
          http_filters:
          - {{name: router, typed_config: {{"@type": {TYPES}.http.router.v3.Router}}}}
          {manager}
  clusters:
  - name: c
    connect_timeout: 5s
    load_assignment:
      cluster_name: c
      endpoints: [{{lb_endpoints: [{{endpoint: {{address: {{socket_address: {{address: {}, port_value: {}}}}}}}}}]}}]
    {cluster}
"#,
        upstream.ip(),
        upstream.port()
    )
}

/// A connection to the proxy that writes frames; nothing is said yet.
pub async fn connect(proxy: &RunningProxy) -> Client<TcpStream> {
    let stream = TcpStream::connect(proxy.socket("in")).await.unwrap();
    stream.set_nodelay(true).unwrap();
    Client::new(stream)
}

/// An HTTP/2 upstream that takes one connection and does with it what it is told, behind the client's preface.
pub async fn raw_upstream(serve: impl AsyncFnOnce(Client<TcpStream>) + 'static) -> SocketAddr {
    use tokio::io::AsyncReadExt;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    spawn_local(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.read_exact(&mut [0; PREFACE.len()]).await.unwrap();
        serve(Client::new(stream)).await;
    });
    address
}

/// The value of a statistic, as the admin listener tells it.
pub async fn stat(proxy: &RunningProxy, name: &str) -> u64 {
    use tokio::io::AsyncReadExt;
    let mut admin = TcpStream::connect(proxy.admin()).await.unwrap();
    let ask = format!("GET /stats?filter=^{name}$ HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    admin.write_all(ask.as_bytes()).await.unwrap();
    let mut said = String::new();
    admin.read_to_string(&mut said).await.unwrap();
    let value = said.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    value.unwrap_or_else(|| panic!("no {name} in {said}")).trim().parse().unwrap()
}

/// Waits until a statistic has a value.
pub async fn stat_becomes(proxy: &RunningProxy, name: &str, wanted: u64) {
    stat_is(proxy, name, &format!("becomes {wanted}"), |value| value == wanted).await;
}

/// Waits until a statistic is as `wanted`, which `what` says in words.
pub async fn stat_is(proxy: &RunningProxy, name: &str, what: &str, wanted: impl Fn(u64) -> bool) {
    let reached = async {
        while !wanted(stat(proxy, name).await) {
            tokio::task::yield_now().await;
        }
    };
    within(&format!("{name} {what}"), reached).await;
}

/// An HTTP/1 upstream on a thread of its own. `/hold` is never answered, `/size/N` with so many bytes, everything else
/// with `body`. `/neighbour` is not remembered.
pub struct Upstream {
    pub address: SocketAddr,
    state: Arc<State>,
    _end: oneshot::Sender<()>,
}

#[derive(Default)]
struct State {
    requests: Mutex<Vec<Request>>,
    broken: Mutex<Vec<Broken>>,
    /// Requests that were not answered and whose connection is open.
    held: AtomicUsize,
}

impl Upstream {
    pub fn start() -> Self {
        let (state, (tell, told)) = (Arc::new(State::default()), mpsc::channel());
        let (end, ended) = oneshot::channel::<()>();
        let shared = state.clone();
        let thread = std::thread::Builder::new().name("upstream".into());
        let run = move || {
            let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default()).unwrap();
            runtime.block_on(async {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                tell.send(listener.local_addr().unwrap()).unwrap();
                tokio::select! {
                    () = accept(listener, shared) => {}
                    _ = ended => {}
                }
            });
        };
        thread.spawn(run).unwrap();
        Self { address: told.recv().unwrap(), state, _end: end }
    }

    /// The requests since it was last asked.
    pub fn take(&self) -> Vec<Request> {
        std::mem::take(&mut self.state.requests.lock().unwrap())
    }

    /// What came and was no request.
    pub fn broken(&self) -> Vec<Broken> {
        std::mem::take(&mut self.state.broken.lock().unwrap())
    }

    /// Waits until so many requests wait for an answer which will not come.
    pub async fn holds(&self, wanted: usize) {
        let reached = async {
            while self.state.held.load(Relaxed) != wanted {
                tokio::task::yield_now().await;
            }
        };
        within(&format!("{wanted} requests upstream"), reached).await;
    }
}

async fn accept(listener: TcpListener, state: Arc<State>) {
    while let Ok((stream, _)) = listener.accept().await {
        stream.set_nodelay(true).unwrap();
        spawn_local(serve(stream, state.clone()));
    }
}

async fn serve(stream: TcpStream, state: Arc<State>) {
    let mut reader = Reader::new(stream);
    loop {
        let request = match reader.request().await {
            Ok(Some(request)) => request,
            Ok(None) => return,
            Err(broken) => return state.broken.lock().unwrap().push(broken),
        };
        if !reader.surplus().is_empty() {
            let surplus = reader.surplus().escape_ascii().to_string();
            state.broken.lock().unwrap().push(format!("{surplus:?} behind a request"));
        }
        let (target, is_head) = (request.target.clone(), request.method == "HEAD");
        // A witness asks often, and what is remembered takes memory.
        if target != "/neighbour" {
            state.requests.lock().unwrap().push(request);
        }
        if target.starts_with("/hold") {
            state.held.fetch_add(1, Relaxed);
            // Ends when the proxy gives the request up.
            let _ = reader.request().await;
            state.held.fetch_sub(1, Relaxed);
            return;
        }
        let size = target.strip_prefix("/size/").and_then(|n| n.parse().ok());
        let body = size.map_or_else(|| b"body".to_vec(), |n| vec![b'x'; n]);
        let mut answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len()).into_bytes();
        if !is_head {
            answer.extend(body);
        }
        if reader.stream.write_all(&answer).await.is_err() {
            return;
        }
    }
}
