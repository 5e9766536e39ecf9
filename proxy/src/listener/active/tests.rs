//! The accept loop over a scripted socket and a paused clock.

mod pending;

use std::cell::Cell;
use std::collections::VecDeque;
use std::task::Context;

use nix::libc;
use nuncio_api::pb::envoy::config::cluster::v3::Cluster;
use nuncio_core::net::Address;
use nuncio_core::runtime::{FractionalPercent, NoRuntime, Runtime};
use nuncio_core::stats::lists;
use tokio::io::DuplexStream;

use super::*;
use crate::network::{ListenerInfo, TerminalFilter, TrafficDirection};
use crate::upstream::testing::{House, memory, settle};

/// Holds every connection until it is told to end.
struct Hold {
    worker: Rc<Worker>,
    served: Rc<Cell<u32>>,
    last: Rc<Cell<Option<Instant>>>,
}

impl TerminalFilter for Hold {
    fn serve(&self, connection: Connection) -> AbortHandle {
        self.served.set(self.served.get() + 1);
        self.last.set(Some(Instant::now()));
        self.worker.spawn(connection.info.id, async move {
            let _held = connection;
            std::future::pending::<()>().await;
        })
    }
}

/// `Err`: the code the next accept fails with. Empty: nobody waits.
#[derive(Clone, Default)]
struct Socket(Rc<RefCell<VecDeque<Result<(), i32>>>>, Rc<RefCell<Vec<DuplexStream>>>, Rc<Cell<u32>>);

impl Accept for Socket {
    fn poll_accept(&mut self, _: &mut Context<'_>) -> Poll<io::Result<Connected>> {
        self.2.set(self.2.get() + 1);
        match self.0.borrow_mut().pop_front() {
            None => Poll::Pending,
            Some(Err(code)) => Poll::Ready(Err(io::Error::from_raw_os_error(code))),
            Some(Ok(())) => {
                let (io, client) = memory();
                self.1.borrow_mut().push(client);
                let remote = Address::Ip(([127, 0, 0, 1], 9).into());
                Poll::Ready(Ok(Connected { io, local: None, remote }))
            }
        }
    }

    fn local_address(&self) -> &Address {
        static LOCAL: std::sync::LazyLock<Address> =
            std::sync::LazyLock::new(|| Address::Ip(([127, 0, 0, 1], 8).into()));
        &LOCAL
    }
}

struct Bench {
    house: House,
    serving: Rc<Serving>,
    served: Rc<Cell<u32>>,
    last: Rc<Cell<Option<Instant>>>,
}

impl Bench {
    fn new() -> Self {
        Self::with(Rc::new(NoRuntime))
    }

    fn with(runtime: Rc<dyn Runtime>) -> Self {
        let house = House::new(Cluster::default(), 1);
        let mut worker = Rc::try_unwrap(house.worker()).unwrap_or_else(|_| panic!("made for the test"));
        worker.context.runtime = runtime;
        let worker = Rc::new(worker);
        let (scope, worker_scope) = {
            let mut store = house.store.borrow_mut();
            (
                store.scope(&lists::listener::SCOPE, &"in".into()),
                store.scope(&lists::listener::WORKER_SCOPE, &"in.worker_0".into()),
            )
        };
        let info = ListenerInfo {
            name: "in".into(),
            stat_name: "in".into(),
            buffer_limit: 1,
            direction: TrafficDirection::Unspecified,
            metadata: Default::default(),
        };
        let config = ListenerConfig {
            info: Arc::new(info),
            addresses: Vec::new(),
            bind_to_port: true,
            use_original_dst: false,
            listener_filters: Vec::new(),
            listener_filters_timeout: None,
            continue_on_listener_filters_timeout: false,
            chains: FilterChains::default(),
            drain_with_health: true,
            accepts_per_event: u32::MAX,
            logs: Vec::new(),
            open: Default::default(),
            connection_limit_key: "limit".into(),
            ignore_global_conn_limit: false,
            scope,
            worker_scopes: vec![worker_scope],
        };
        let mut serving = Serving::new(&worker, &policy(), Arc::new(config), &Rc::default());
        let (served, last) = (Rc::<Cell<u32>>::default(), Rc::<Cell<Option<Instant>>>::default());
        let hold = Rc::new(Hold { worker, served: served.clone(), last: last.clone() });
        serving.chains.default = Some(Rc::new(FilterChain {
            name: "".into(),
            metadata: None,
            transport_socket: None,
            transport_socket_connect_timeout: None,
            filters: Vec::new(),
            terminal: Some(hold),
        }));
        Self { house, serving: Rc::new(serving), served, last }
    }

    fn stat(&self, name: &str) -> u64 {
        self.house.store.borrow_mut().value(&format!("listener.in.{name}")).unwrap()
    }
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn a_loop_without_descriptors_rests_ever_longer_and_goes_on() {
    let bench = Bench::new();
    let socket = Socket::default();
    socket.0.borrow_mut().extend([Err(libc::EMFILE); 6]);
    socket.0.borrow_mut().push_back(Ok(()));
    let begun = Instant::now();
    let task = tokio::task::spawn_local(bench.serving.clone().run(socket.clone()));
    tokio::time::sleep(Duration::from_secs(1)).await;
    // 10, 20, 40, 80, 100, 100.
    assert_eq!(bench.last.get().unwrap().duration_since(begun).as_millis(), 350);
    // Six failures, one connection, and twice nobody.
    assert_eq!(socket.2.get(), 9, "no attempt between the rests");
    task.abort();
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn a_loop_that_waits_when_overload_begins_takes_nobody_until_it_is_over() {
    let bench = Bench::new();
    let socket = Socket::default();
    let overload = &bench.serving.lifecycle.overload;
    let mut own = socket.clone();
    let mut batch = std::pin::pin!(bench.serving.accept_batch(&mut own));
    assert!(poll_fn(|cx| Poll::Ready(batch.as_mut().poll(cx))).await.is_pending());
    overload.set(Action::StopAcceptingConnections, 100);
    socket.0.borrow_mut().push_back(Ok(()));
    assert!(matches!(batch.await, Ok(0)));
    let task = tokio::task::spawn_local(bench.serving.clone().run(socket.clone()));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!((bench.served.get(), socket.0.borrow().len()), (0, 1), "it waits in the kernel");
    overload.set(Action::StopAcceptingConnections, 0);
    tokio::time::sleep(2 * OVERLOADED).await;
    assert_eq!(bench.served.get(), 1);
    task.abort();
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn a_connection_that_went_away_while_it_waited_costs_no_rest() {
    let bench = Bench::new();
    let socket = Socket::default();
    socket.0.borrow_mut().extend([Err(libc::ECONNABORTED), Ok(()), Ok(())]);
    let task = tokio::task::spawn_local(bench.serving.clone().run(socket));
    settle().await;
    assert_eq!(bench.served.get(), 2);
    task.abort();
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn what_outlives_the_drain_is_ended_and_counted() {
    let bench = Bench::new();
    let socket = Socket::default();
    socket.0.borrow_mut().extend([Ok(()); 3]);
    let task = tokio::task::spawn_local(bench.serving.clone().run(socket.clone()));
    settle().await;
    task.abort();
    assert_eq!((bench.stat("downstream_cx_total"), bench.stat("downstream_cx_active")), (3, 3));
    assert_eq!(bench.stat("worker_0.downstream_cx_active"), 3);
    let mut listeners = ActiveListeners::new(bench.house.worker(), policy());
    let active = ActiveListener { serving: bench.serving.clone(), accepting: Vec::new(), loops: Vec::new() };
    listeners.active.insert(ListenerId(1), active);
    listeners.apply(ListenerCommand::Close { id: ListenerId(1) });
    settle().await;
    assert_eq!((bench.stat("downstream_cx_destroy"), bench.stat("downstream_cx_active")), (3, 0));
    assert_eq!(bench.serving.counts.connections.borrow().free.len(), 3, "the places are free again");
}

/// Two keys of limits.
struct Limits {
    listener: Option<u64>,
    global: Option<u64>,
}

impl Runtime for Limits {
    fn fraction(&self, _: &str) -> Option<FractionalPercent> {
        None
    }

    fn integer(&self, key: &str) -> Option<u64> {
        match key {
            "limit" => self.listener,
            "overload.global_downstream_max_connections" => self.global,
            _ => None,
        }
    }

    fn boolean(&self, _: &str) -> Option<bool> {
        None
    }
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn connections_beyond_a_limit_are_closed_and_counted_and_there_is_room_again() {
    for (limits, counter) in [
        (Limits { listener: Some(2), global: None }, "downstream_cx_overflow"),
        (Limits { listener: None, global: Some(2) }, "downstream_global_cx_overflow"),
    ] {
        let bench = Bench::with(Rc::new(limits));
        let socket = Socket::default();
        socket.0.borrow_mut().extend([Ok(()); 5]);
        let task = tokio::task::spawn_local(bench.serving.clone().run(socket.clone()));
        settle().await;
        assert_eq!((bench.served.get(), bench.stat(counter)), (2, 3));
        bench.serving.counts.connections.borrow().tasks.iter().flatten().for_each(AbortHandle::abort);
        settle().await;
        task.abort();
        settle().await;
        socket.0.borrow_mut().push_back(Ok(()));
        let task = tokio::task::spawn_local(bench.serving.clone().run(socket));
        settle().await;
        assert_eq!((bench.served.get(), bench.stat(counter)), (3, 3));
        task.abort();
    }
}

fn policy() -> AcceptPolicy {
    AcceptPolicy { lifecycle: Arc::default(), drain_strategy: DrainStrategy::Gradual, drain_time: Duration::ZERO }
}
