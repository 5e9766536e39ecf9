//! What clusters cost while they lie idle, and that a request on a warm pool allocates nothing.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::LocalBoxFuture;
use nuncio::upstream::thread_local::ClusterContext;
use nuncio::upstream::{
    Acquire, ClusterClient, ClusterDefaults, ClusterManager, ClusterUpdate, Clusters, PooledConn, Priority, Publish,
};
use nuncio_api::pb::envoy::config::cluster::v3::Cluster;
use nuncio_api::pb::envoy::config::core::v3 as core_pb;
use nuncio_api::pb::envoy::config::endpoint::v3 as ep;
use nuncio_api::prost::Message;
use nuncio_core::net::{Address, Connect, ConnectOptions, Connected, Io, Stream};
use nuncio_core::random::Rng;
use nuncio_core::stats::Store;
use nuncio_core::time::WallClock;
use nuncio_core::upstream::{Choice, LbContext};
use nuncio_discovery::SourceContext;
use nuncio_discovery::dns::SharedResolvers;
use nuncio_discovery::xds::Files;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
    static LIVE_BYTES: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: hands every call to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        LIVE_BYTES.set(LIVE_BYTES.get().wrapping_add(layout.size()));
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE_BYTES.set(LIVE_BYTES.get().wrapping_sub(layout.size()));
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A peer that takes everything and says nothing.
struct Silent;

impl Stream for Silent {
    fn poll_read(&mut self, _: &mut Context<'_>, _: &mut [u8]) -> Poll<io::Result<usize>> {
        Poll::Pending
    }
    fn poll_write(&mut self, _: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bufs.iter().map(|buf| buf.len()).sum()))
    }
    fn poll_flush(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
    fn poll_shutdown(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
    fn poll_read_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Pending
    }
}

struct SilentNet;

impl Connect for SilentNet {
    fn connect(&self, address: &Address, _: &ConnectOptions) -> LocalBoxFuture<'static, io::Result<Connected>> {
        let remote = address.clone();
        Box::pin(async move { Ok(Connected { io: Io::Other(Box::new(Silent)), local: None, remote }) })
    }
}

struct Worker(Rc<Clusters>);

impl Publish for Worker {
    fn publish(&self, updates: Arc<[ClusterUpdate]>) {
        self.0.apply(&updates);
    }
}

struct House {
    store: Rc<RefCell<Store>>,
    manager: ClusterManager,
    worker: Rc<Worker>,
}

fn house() -> House {
    let store = Rc::new(RefCell::new(Store::new()));
    let clusters = Clusters::new(ClusterContext {
        connect: Rc::new(SilentNet),
        buffers: Rc::default(),
        rng: Rng::with_seed(1),
        stats: store.borrow().main().clone(),
        connection_ids: Default::default(),
        own_listeners: Rc::default(),
    });
    let factories = nuncio_discovery::sources::factories();
    let dns = Rc::new(SharedResolvers::new(Rc::default(), &store, |_| true));
    let (client, node) = (Rc::new(ClusterClient::new(&clusters)), Arc::default());
    let context =
        SourceContext { rng: Rng::with_seed(1), clock: WallClock::System, dns, client, node, files: Files::default() };
    let manager = ClusterManager::new(&store, factories, ClusterDefaults::default(), context);
    House { store, manager, worker: Rc::new(Worker(clusters)) }
}

fn cluster(name: &str, ports: impl Iterator<Item = u32>) -> Cluster {
    let endpoint = |port| {
        let socket = core_pb::SocketAddress {
            address: "10.0.0.1".into(),
            port_specifier: Some(core_pb::socket_address::PortSpecifier::PortValue(port)),
            ..Default::default()
        };
        let address = Some(core_pb::Address { address: Some(core_pb::address::Address::SocketAddress(socket)) });
        let endpoint = ep::Endpoint { address, ..Default::default() };
        ep::LbEndpoint {
            host_identifier: Some(ep::lb_endpoint::HostIdentifier::Endpoint(endpoint)),
            ..Default::default()
        }
    };
    let group = ep::LocalityLbEndpoints { lb_endpoints: ports.map(endpoint).collect(), ..Default::default() };
    let assignment =
        ep::ClusterLoadAssignment { cluster_name: name.into(), endpoints: vec![group], ..Default::default() };
    Cluster { name: name.into(), load_assignment: Some(assignment), ..Default::default() }
}

fn add(house: &House, message: &Cluster) {
    house.manager.add_static(message, message.encode_to_vec().into()).unwrap_or_else(|e| panic!("{e:?}"));
}

#[tokio::test(flavor = "local")]
async fn an_idle_cluster_of_two_hosts_stays_small() {
    const N: usize = 1000;
    let house = house();
    add(&house, &cluster("first", 1..3));
    house.manager.start(house.worker.clone());
    let before = LIVE_BYTES.get();
    for at in 0..N {
        add(&house, &cluster(&format!("cluster_{at}"), 1..3));
    }
    house.manager.flush();
    house.store.borrow_mut().flush();
    let each = (LIVE_BYTES.get() - before) / N;
    println!("{each} bytes a cluster: main, one worker's entry, two hosts, stats");
    assert!(each <= 2688, "{each} bytes a cluster");
    let before = LIVE_BYTES.get();
    for at in 0..N {
        assert!(house.worker.0.get(&format!("cluster_{at}")).is_some());
    }
    let each = (LIVE_BYTES.get() - before) / N;
    println!("{each} bytes more once a worker has built it");
    // Answers are counted plainly, for internal and for external clients: three handles of each kind.
    // Pools are of two protocols.
    assert!(each <= 1536, "{each} bytes a built cluster");
}

#[tokio::test(flavor = "local")]
async fn a_host_costs_less_than_a_kilobyte() {
    const N: u32 = 1000;
    let house = house();
    house.manager.start(house.worker.clone());
    let message = cluster("big", 1..N + 1);
    let encoded = message.encoded_len();
    let before = LIVE_BYTES.get();
    add(&house, &message);
    house.manager.flush();
    let each = (LIVE_BYTES.get() - before - encoded) / N as usize;
    println!("{each} bytes a host");
    assert!(each <= 768, "{each} bytes a host");
}

#[tokio::test(flavor = "local")]
async fn a_request_on_a_warm_pool_allocates_nothing() {
    let house = house();
    add(&house, &cluster("c", 1..4));
    house.manager.start(house.worker.clone());
    let request = || -> PooledConn {
        let cluster = house.worker.0.get("c").expect("it was published");
        let Choice::Host(host) = cluster.choose(&LbContext::default()) else { panic!("no host") };
        match cluster.acquire(&host, Priority::Default) {
            Acquire::Ready(conn) => conn,
            _ => panic!("the pool is warm"),
        }
    };
    let cluster = house.worker.0.get("c").expect("it was published");
    for _ in 0..3 {
        let Choice::Host(host) = cluster.choose(&LbContext::default()) else { panic!("no host") };
        let Acquire::Pending(mut pending) = cluster.acquire(&host, Priority::Default) else { panic!("it is cold") };
        std::future::poll_fn(|cx| pending.poll(cx)).await.unwrap_or_else(|e| panic!("{e}")).release();
    }
    tokio::task::yield_now().await;
    request().release();
    let before = ALLOCATIONS.get();
    for _ in 0..1000 {
        let (a, b) = (request(), request());
        a.release();
        b.release();
    }
    assert_eq!(ALLOCATIONS.get() - before, 0);
}
