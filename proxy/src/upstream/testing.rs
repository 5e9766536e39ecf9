//! An in-memory upstream for this room's tests: each connect does what the script says next, and the test holds the
//! far end.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use nuncio_api::pb::envoy::config::cluster::v3 as pb;
use nuncio_core::extension::{NoVitals, WorkerContext};
use nuncio_core::net::{Address, Connect, ConnectOptions, Connected, Io, Stream};
use nuncio_core::random::Rng;
use nuncio_core::runtime::NoRuntime;
use nuncio_core::stats::lists::cluster;
use nuncio_core::stats::{ScopeId, Store};
use nuncio_core::time::WallClock;
use nuncio_core::upstream::AsyncClient;
use nuncio_core::upstream::client::{AsyncFailure, AsyncRequest, AsyncResponse};
use nuncio_core::upstream::{Host, HostSet, HostSpec, PrioritySet};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf};
use tokio::sync::Notify;

use super::cluster::{ClusterConfig, ClusterDefaults};
use super::snapshot::{ClusterSnapshot, ClusterUpdate};
use super::thread_local::{ClusterContext, Clusters, ThreadLocalCluster};
use super::worker::Worker;

/// What a connect does.
#[derive(Debug, Clone, Copy)]
pub enum Script {
    /// After so long.
    Accept(Duration),
    Refuse,
    Hang,
}

#[derive(Default)]
struct Shared {
    /// Empty: accept at once.
    script: RefCell<VecDeque<Script>>,
    accepted: RefCell<VecDeque<FarEnd>>,
    sources: RefCell<Vec<String>>,
    made: Notify,
}

#[derive(Clone, Default)]
pub struct Net(Rc<Shared>);

impl Net {
    pub fn script(&self, next: impl IntoIterator<Item = Script>) {
        self.0.script.borrow_mut().extend(next);
    }

    /// The far ends of connections that were made, oldest first.
    pub fn accepted(&self) -> Option<FarEnd> {
        self.0.accepted.borrow_mut().pop_front()
    }

    /// Where connections were to come from, those that were to come from anywhere in particular.
    pub fn sources(&self) -> Vec<String> {
        self.0.sources.borrow().clone()
    }
}

impl Net {
    /// The far end of the next connection, when it is made.
    pub async fn next(&self) -> FarEnd {
        loop {
            if let Some(far) = self.accepted() {
                return far;
            }
            self.0.made.notified().await;
        }
    }
}

impl Connect for Net {
    fn connect(&self, address: &Address, options: &ConnectOptions) -> LocalBoxFuture<'static, io::Result<Connected>> {
        let (net, remote) = (self.clone(), address.clone());
        self.0.sources.borrow_mut().extend(options.source.as_ref().map(ToString::to_string));
        let script = self.0.script.borrow_mut().pop_front().unwrap_or(Script::Accept(Duration::ZERO));
        Box::pin(async move {
            match script {
                Script::Accept(after) => tokio::time::sleep(after).await,
                Script::Refuse => {
                    tokio::task::yield_now().await;
                    return Err(io::Error::from_raw_os_error(nix::libc::ECONNREFUSED));
                }
                Script::Hang => std::future::pending().await,
            }
            let (near, far) = tokio::io::duplex(1 << 16);
            net.0.accepted.borrow_mut().push_back(FarEnd(far));
            net.0.made.notify_one();
            Ok(Connected { io: Io::Other(Box::new(Near(near))), local: None, remote })
        })
    }
}

/// The upstream's side of a connection; dropping it closes.
pub struct FarEnd(DuplexStream);

impl FarEnd {
    /// The head of a request.
    pub async fn request(&mut self) -> String {
        let mut read = Vec::new();
        while !read.ends_with(b"\r\n\r\n") {
            read.push(self.0.read_u8().await.expect("a request before the close"));
        }
        String::from_utf8(read).unwrap()
    }

    pub async fn read(&mut self, n: usize) -> String {
        let mut read = vec![0; n];
        self.0.read_exact(&mut read).await.unwrap();
        String::from_utf8(read).unwrap()
    }

    pub async fn answer(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).await.unwrap();
    }

    /// FIN; what the proxy sends is still read.
    pub async fn end(&mut self) {
        self.0.shutdown().await.unwrap();
    }

    /// For a peer that somebody else plays.
    pub fn into_stream(self) -> DuplexStream {
        self.0
    }

    /// Waits until the proxy closes.
    pub async fn closed(&mut self) {
        let mut byte = [0];
        assert_eq!(self.0.read(&mut byte).await.unwrap(), 0);
    }
}

struct Near(DuplexStream);

/// A connection in memory: the proxy's side and the peer's.
pub fn memory() -> (Io, DuplexStream) {
    let (near, far) = tokio::io::duplex(1 << 16);
    (Io::Other(Box::new(Near(near))), far)
}

impl Stream for Near {
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut buf = ReadBuf::new(buf);
        ready!(Pin::new(&mut self.0).poll_read(cx, &mut buf))?;
        Poll::Ready(Ok(buf.filled().len()))
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, bufs)
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }

    fn poll_read_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        unreachable!("pools read, they never wait for readability alone")
    }
}

/// One cluster of one thread, and main's stats.
pub struct House {
    pub net: Net,
    pub store: RefCell<Store>,
    pub clusters: Rc<Clusters>,
    pub scope: ScopeId,
    pub hosts: Vec<Arc<Host>>,
}

impl House {
    /// A cluster `c` with so many hosts.
    pub fn new(message: pb::Cluster, hosts: u16) -> Self {
        let net = Net::default();
        let mut store = Store::new();
        let scope = store.scope(&cluster::SCOPE, &Arc::from("c"));
        let clusters = Clusters::new(ClusterContext {
            connect: Rc::new(net.clone()),
            buffers: Rc::default(),
            rng: Rng::with_seed(1),
            stats: store.main().clone(),
            connection_ids: Default::default(),
            own_listeners: Rc::default(),
        });
        let spec = |port| HostSpec::new(Address::Ip(([127, 0, 0, 1], port).into()));
        let hosts: Vec<_> = (1..=hosts).map(|port| Arc::new(Host::new(spec(port)))).collect();
        let house = Self { net, store: RefCell::new(store), clusters, scope, hosts };
        house.configure(message);
        house
    }

    /// A new configuration under the same name.
    pub fn configure(&self, message: pb::Cluster) {
        let message = pb::Cluster { name: "c".into(), ..message };
        let config = ClusterConfig::from_proto(&message, false, &ClusterDefaults::default()).unwrap();
        self.publish(Arc::new(config), &self.hosts);
    }

    pub fn publish(&self, config: Arc<ClusterConfig>, hosts: &[Arc<Host>]) {
        let set = PrioritySet {
            priorities: vec![Arc::new(HostSet::new(hosts.to_vec(), |_| 0, 140))],
            ..PrioritySet::default()
        };
        let snapshot = ClusterSnapshot {
            config,
            breakers: Default::default(),
            shared: None,
            hosts: Arc::new(set),
            scope: self.scope,
        };
        self.clusters.apply(&[ClusterUpdate::Set(Arc::new(snapshot))]);
    }

    pub fn cluster(&self) -> Rc<ThreadLocalCluster> {
        self.clusters.get("c").unwrap()
    }

    /// The worker whose cluster it is.
    pub fn worker(&self) -> Rc<Worker> {
        let context = WorkerContext {
            index: Some(0),
            rng: Rng::with_seed(1),
            clock: WallClock::fixed(std::time::UNIX_EPOCH),
            stats: self.store.borrow().main().clone(),
            client: Rc::new(NoCalls),
            runtime: Rc::new(NoRuntime),
            vitals: Rc::new(NoVitals),
        };
        Rc::new(Worker {
            context,
            buffers: Rc::default(),
            clusters: self.clusters.clone(),
            connect: Rc::new(self.net.clone()),
            connection_ids: Default::default(),
            descriptors: Default::default(),
            panics: 0.into(),
        })
    }

    /// `cluster.c.<name>`.
    pub fn stat(&self, name: &str) -> u64 {
        self.store.borrow_mut().value(&format!("cluster.c.{name}")).unwrap_or_else(|| panic!("no stat {name}"))
    }

    pub fn stats<const N: usize>(&self, names: [&str; N]) -> [u64; N] {
        names.map(|name| self.stat(name))
    }
}

/// Lets every task run until nothing is left to do at this moment.
pub async fn settle() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

pub struct NoCalls;

impl AsyncClient for NoCalls {
    fn call(&self, _: &str, _: AsyncRequest) -> LocalBoxFuture<'static, Result<AsyncResponse, AsyncFailure>> {
        Box::pin(async { Err(AsyncFailure::UnknownCluster) })
    }
}
