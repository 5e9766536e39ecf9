//! A worker's listeners: accept loops, and the connections they made. A long file, because what is counted and limited of
//! a connection is taken and given back here, in one place.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::Poll;
use std::time::{Duration, SystemTime};

use nuncio_core::access_log::{AccessLog, LogContext};
use nuncio_core::metadata::Metadata;
use nuncio_core::net::{Accept, Address, Connected, ConnectionInfo, ConnectionTimings, Io};
use nuncio_core::stats::lists::listener as names;
use nuncio_core::stats::lists::listener::{Listener, PerWorker, Times};
use nuncio_core::stats::{Counter, GaugeGuard, Stats};
use nuncio_core::stream_info::{ResponseFlag, ResponseFlags, StreamInfo};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::filter_chain::{FilterChain, FilterChains};
use super::filters::ListenerFilters;
use super::pending::{self, Early, Pending};
use super::{ListenerCommand, ListenerConfig, ListenerId};
use crate::lifecycle::{Drain, DrainStrategy, Lifecycle};
use crate::net::accept::descriptor;
use crate::net::{Acceptor, ListeningSocket};
use crate::network::{Connection, ConnectionRecord};
use crate::overload::Action;
use crate::upstream::Worker;

/// How long a loop rests that cannot accept: from the first, doubled up to the second.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(100));

/// The runtime key that bounds the connections of all listeners together.
const GLOBAL_LIMIT: &str = "overload.global_downstream_max_connections";

/// How long a loop rests while connections are not taken.
const OVERLOADED: Duration = Duration::from_millis(50);

/// What all listeners of a worker share.
pub struct AcceptPolicy {
    pub lifecycle: Arc<Lifecycle>,
    pub drain_strategy: DrainStrategy,
    pub drain_time: Duration,
}

/// The listeners of one worker.
pub struct ActiveListeners {
    worker: Rc<Worker>,
    policy: AcceptPolicy,
    active: BTreeMap<ListenerId, ActiveListener>,
    directory: Rc<Directory>,
}

struct ActiveListener {
    serving: Rc<Serving>,
    /// Where it accepts, which clusters must not connect to.
    accepting: Vec<SocketAddr>,
    /// One loop for each address.
    loops: Vec<AbortHandle>,
}

/// What an accept loop and the connections it made share.
pub(super) struct Serving {
    pub worker: Rc<Worker>,
    pub config: Arc<ListenerConfig>,
    /// For logs.
    name: Arc<str>,
    metadata: Arc<Metadata>,
    pub listener_filters: ListenerFilters,
    pub chains: FilterChains<Rc<FilterChain>>,
    logs: Rc<[Box<dyn AccessLog>]>,
    pub counts: Rc<Counts>,
    pub drain: Rc<Drain>,
    /// It takes no more connections.
    stopped: Cell<bool>,
    /// Told when it stops.
    leave: Notify,
    directory: Rc<Directory>,
    lifecycle: Arc<Lifecycle>,
}

/// The listeners of a worker by address, for those that hand connections off.
#[derive(Default)]
struct Directory(RefCell<BTreeMap<Address, Vec<Weak<Serving>>>>);

pub(super) struct Counts {
    pub listener: Stats<Listener>,
    times: Stats<Times>,
    per_worker: Stats<PerWorker>,
    connections: RefCell<Connections>,
}

/// The tasks of a listener's connections, so that what outlives the drain can be ended.
#[derive(Default)]
struct Connections {
    tasks: Vec<Option<AbortHandle>>,
    free: Vec<u32>,
}

/// A task's place among those of its listener, and of the server.
pub(super) struct Place {
    counts: Rc<Counts>,
    config: Arc<ListenerConfig>,
    lifecycle: Arc<Lifecycle>,
    number: u32,
}

/// Lives as long as the connection.
pub(super) struct Accepted {
    counts: Rc<Counts>,
    since: Instant,
    _active: GaugeGuard<Listener>,
    _on_worker: GaugeGuard<PerWorker>,
}

// === impl ActiveListeners ===

impl ActiveListeners {
    pub fn new(worker: Rc<Worker>, policy: AcceptPolicy) -> Self {
        Self { worker, policy, active: BTreeMap::new(), directory: Rc::default() }
    }

    pub fn apply(&mut self, command: ListenerCommand) {
        match command {
            ListenerCommand::Start { id, config, sockets } => self.start(id, config, sockets),
            ListenerCommand::Stop { id, drain } => {
                if let Some(active) = self.active.get_mut(&id) {
                    // The loops take what waits in the queues, and end.
                    active.loops.clear();
                    let own = self.worker.clusters.own_listeners();
                    active.accepting.drain(..).for_each(|address| own.remove(address));
                    active.serving.stopped.set(true);
                    active.serving.leave.notify_waiters();
                    if drain {
                        active.serving.drain.start();
                    }
                }
            }
            ListenerCommand::Drain { id } => {
                if let Some(active) = self.active.get(&id) {
                    active.serving.drain.start();
                }
            }
            ListenerCommand::Close { id } => {
                if let Some(active) = self.active.remove(&id) {
                    let own = self.worker.clusters.own_listeners();
                    active.accepting.iter().for_each(|address| own.remove(*address));
                    active.loops.iter().for_each(AbortHandle::abort);
                    active.serving.counts.connections.borrow().tasks.iter().flatten().for_each(AbortHandle::abort);
                }
            }
        }
    }

    fn start(&mut self, id: ListenerId, config: Arc<ListenerConfig>, sockets: Vec<ListeningSocket>) {
        let serving = Rc::new(Serving::new(&self.worker, &self.policy, config, &self.directory));
        self.directory.add(&serving);
        let mut loops = Vec::with_capacity(sockets.len());
        let accepting: Vec<_> = sockets.iter().filter_map(|socket| socket.local().socket()).collect();
        accepting.iter().for_each(|address| self.worker.clusters.own_listeners().add(*address));
        for socket in sockets {
            let local = socket.local().to_string();
            match Acceptor::new(socket) {
                Ok(acceptor) => {
                    let task = serving.clone().run(acceptor);
                    loops.push(tokio::task::spawn_local(task).abort_handle());
                }
                Err(e) => tracing::error!(listener = serving.config.name(), "cannot accept on '{local}': {e}"),
            }
        }
        self.active.insert(id, ActiveListener { serving, accepting, loops });
    }
}

// === impl Serving ===

impl Serving {
    fn new(worker: &Rc<Worker>, policy: &AcceptPolicy, config: Arc<ListenerConfig>, directory: &Rc<Directory>) -> Self {
        let index = worker.context.index.unwrap_or(0) as usize;
        let stats = &worker.context.stats;
        let counts = Counts {
            listener: Stats::new(stats, config.scope),
            times: Stats::new(stats, config.scope),
            per_worker: Stats::new(stats, config.worker_scopes.get(index).copied().unwrap_or(config.scope)),
            connections: RefCell::default(),
        };
        let drain =
            Drain::new(policy.lifecycle.clone(), config.drain_with_health, policy.drain_strategy, policy.drain_time);
        Self {
            listener_filters: ListenerFilters::new(&config.listener_filters, &worker.context),
            chains: config.chains.instantiate(worker),
            logs: config.logs.iter().map(|log| log.instantiate(&worker.context)).collect(),
            worker: worker.clone(),
            name: config.name().into(),
            metadata: Arc::new(config.info.metadata.clone()),
            config,
            counts: Rc::new(counts),
            drain: Rc::new(drain),
            stopped: Cell::new(false),
            leave: Notify::new(),
            directory: directory.clone(),
            lifecycle: policy.lifecycle.clone(),
        }
    }

    /// The accept loop. It ends when the listener stops, with what waits by then: whatever `accept` fails with may
    /// pass.
    async fn run(self: Rc<Self>, mut acceptor: impl Accept) {
        let mut rest = BACK_OFF.0;
        let mut failing = false;
        loop {
            if self.stopped.get() {
                return self.accept_last(&mut acceptor).await;
            }
            let batch = tokio::select! {
                biased;
                () = self.leave.notified() => continue,
                batch = self.accept_batch(&mut acceptor) => batch,
            };
            match batch {
                Ok(0) => self.rest(OVERLOADED).await,
                Ok(count) => {
                    self.counts.times.record(names::CONNECTIONS_ACCEPTED_PER_SOCKET_EVENT, count.into());
                    if failing {
                        tracing::info!(listener = self.config.name(), "accepting connections again");
                    }
                    (rest, failing) = (BACK_OFF.0, false);
                    // Between two batches the connections of the first are served.
                    tokio::task::yield_now().await;
                }
                Err(e) if is_of_one_connection(&e) => {}
                Err(e) => {
                    if !failing {
                        tracing::warn!(listener = self.config.name(), "cannot accept connections: {e}; trying on");
                        failing = true;
                    }
                    self.rest(rest).await;
                    rest = (rest * 2).min(BACK_OFF.1);
                }
            }
        }
    }

    /// For so long, or until the listener stops.
    async fn rest(&self, time: Duration) {
        tokio::select! {
            () = self.leave.notified() => {}
            () = tokio::time::sleep(time) => {}
        }
    }

    /// What waits in the queue of a socket that closes.
    async fn accept_last(self: &Rc<Self>, acceptor: &mut impl Accept) {
        let all = poll_fn(|cx| {
            while let Poll::Ready(Ok(connected)) = acceptor.poll_accept(cx) {
                if self.accepted(connected, acceptor).is_err() {
                    break;
                }
            }
            Poll::Ready(())
        });
        tokio::task::unconstrained(all).await;
    }

    /// Takes what waits, up to `max_connections_to_accept_per_socket_event`. Nothing under overload, also if that began
    /// while nobody came.
    async fn accept_batch(self: &Rc<Self>, acceptor: &mut impl Accept) -> io::Result<u32> {
        let (overload, rng) = (&self.lifecycle.overload, &self.worker.context.rng);
        let mut count = 0;
        poll_fn(|cx| {
            if overload.befalls(Action::StopAcceptingConnections, rng) {
                return Poll::Ready(Ok(0));
            }
            while count < self.config.accepts_per_event {
                match acceptor.poll_accept(cx) {
                    Poll::Ready(Ok(connected)) => {
                        self.accepted(connected, acceptor)?;
                        count += 1;
                    }
                    Poll::Ready(Err(e)) => return Poll::Ready(Err(e)),
                    Poll::Pending if count == 0 => return Poll::Pending,
                    Poll::Pending => break,
                }
            }
            Poll::Ready(Ok(count))
        })
        .await
    }

    pub fn log_at_end(&self, info: &Rc<ConnectionInfo>, since: Instant) -> Option<Box<LogAtEnd>> {
        if self.logs.is_empty() {
            return None;
        }
        Some(Box::new(LogAtEnd {
            worker: self.worker.clone(),
            logs: self.logs.clone(),
            connection: info.clone(),
            since,
            since_wall: self.worker.context.clock.now(),
            flags: ResponseFlags::default(),
            record: Rc::default(),
        }))
    }

    /// The line of a socket that no chain got.
    pub fn log_early_end(&self, info: &Rc<ConnectionInfo>, since: Instant, flag: Option<ResponseFlag>) {
        let log = self.log_at_end(info, since);
        if let (Some(mut log), Some(flag)) = (log, flag) {
            log.flags.insert(flag);
        }
    }

    fn accepted(self: &Rc<Self>, connected: Connected, acceptor: &impl Accept) -> io::Result<()> {
        if descriptor(&connected.io).is_some_and(|fd| self.worker.descriptors.is_reserve(fd)) {
            self.counts.listener.inc(names::DOWNSTREAM_CX_OVERFLOW);
            return Err(io::Error::other("the last free descriptors are kept for the proxy itself"));
        }
        if self.lifecycle.overload.befalls(Action::RejectIncomingConnections, &self.worker.context.rng) {
            self.counts.listener.inc(names::DOWNSTREAM_CX_OVERLOAD_REJECT);
            return Ok(());
        }
        if let Some(overflow) = self.overflow() {
            self.counts.listener.inc(overflow);
            return Ok(());
        }
        let Connected { io, local, remote } = connected;
        let local = local.unwrap_or_else(|| acceptor.local_address().clone());
        let id = self.worker.connection_ids.next();
        self.take(io, Vec::new(), ConnectionInfo::new(id, remote, local), Instant::now(), true);
        Ok(())
    }

    /// `downstream_cx_overflow` or `downstream_global_cx_overflow`, if one of the limits is reached.
    fn overflow(&self) -> Option<Counter<Listener>> {
        let runtime = &self.worker.context.runtime;
        let reached =
            |key: &str, count: &AtomicU64| runtime.integer(key).is_some_and(|limit| count.load(Relaxed) >= limit);
        if !self.config.ignore_global_conn_limit && reached(GLOBAL_LIMIT, self.lifecycle.downstream_connections()) {
            return Some(names::DOWNSTREAM_GLOBAL_CX_OVERFLOW);
        }
        let most = self.lifecycle.overload.max_connections();
        if !self.config.ignore_global_conn_limit && self.lifecycle.downstream_connections().load(Relaxed) >= most {
            return Some(names::DOWNSTREAM_GLOBAL_CX_OVERFLOW);
        }
        reached(&self.config.connection_limit_key, &self.config.open).then_some(names::DOWNSTREAM_CX_OVERFLOW)
    }

    fn place(&self) -> Place {
        self.config.open.fetch_add(1, Relaxed);
        self.lifecycle.downstream_connections().fetch_add(1, Relaxed);
        Place {
            number: self.counts.connections.borrow_mut().reserve(),
            counts: self.counts.clone(),
            config: self.config.clone(),
            lifecycle: self.lifecycle.clone(),
        }
    }

    /// A connection that another listener accepted, and whose client meant this one.
    pub fn take_over(self: &Rc<Self>, io: Io, preread: Vec<u8>, info: ConnectionInfo, since: Instant) {
        self.take(io, preread, info, since, false);
    }

    fn take(self: &Rc<Self>, io: Io, preread: Vec<u8>, mut info: ConnectionInfo, since: Instant, own: bool) {
        info.listener_name = Some(self.name.clone());
        info.listener_metadata = Some(self.metadata.clone());
        info.timings = ConnectionTimings { begin: Some(since), ..ConnectionTimings::default() }.into();
        let id = info.id;
        let place = self.place();
        let number = place.number();
        if !self.listener_filters.is_empty() {
            let early = Early::new(self, info, since);
            let pending = Pending { io, preread, early, place, may_hand_off: own };
            self.counts.started(number, self.worker.spawn(id, pending.run()));
            return;
        }
        info.transport_protocol = "raw_buffer";
        let Some(chain) = self.chains.find(&info) else {
            self.counts.listener.inc(names::NO_FILTER_CHAIN_MATCH);
            return self.log_early_end(&Rc::new(info), since, Some(ResponseFlag::NoRouteFound));
        };
        if !chain.is_plain() {
            let early = Early::new(self, info, since);
            let task = pending::connect(self.clone(), chain.clone(), io, preread, early, place);
            self.counts.started(number, self.worker.spawn(id, task));
            return;
        }
        info.filter_chain_name = Some(chain.name.clone());
        info.filter_chain_metadata = chain.metadata.clone();
        let info = Rc::new(info);
        let log = self.log_at_end(&info, since);
        let record = log.as_ref().map(|log| log.record());
        let accepted = self.counts.accepted(since);
        let Some(filter) = &chain.terminal else { return };
        let guards: Box<dyn Any> = Box::new((accepted, log, place));
        let drain = self.drain.clone();
        let task = filter.serve(Connection { io, info, preread, drain, record, guards });
        self.counts.started(number, task);
    }

    /// The listener that accepts at that address, exactly or on all addresses of its port.
    pub fn listener_at(&self, address: &Address) -> Option<Rc<Self>> {
        let exact = self.directory.find(address);
        exact.or_else(|| {
            let any = match address.ip()? {
                IpAddr::V4(_) => IpAddr::from([0; 4]),
                IpAddr::V6(_) => IpAddr::from([0; 16]),
            };
            self.directory.find(&Address::Ip((any, address.port()?).into()))
        })
    }
}

// === impl Directory ===

impl Directory {
    fn add(&self, serving: &Rc<Serving>) {
        let mut listeners = self.0.borrow_mut();
        // Those that are gone are forgotten whenever one comes.
        listeners.retain(|_, list| {
            list.retain(|listener| listener.strong_count() > 0);
            !list.is_empty()
        });
        for (address, _) in &serving.config.addresses {
            listeners.entry(address.clone()).or_default().push(Rc::downgrade(serving));
        }
    }

    /// The newest that still accepts.
    fn find(&self, address: &Address) -> Option<Rc<Serving>> {
        let listeners = self.0.borrow();
        listeners.get(address)?.iter().rev().filter_map(Weak::upgrade).find(|listener| !listener.stopped.get())
    }
}

/// A connection's line in the listener's own logs, written when it is dropped.
pub(super) struct LogAtEnd {
    worker: Rc<Worker>,
    logs: Rc<[Box<dyn AccessLog>]>,
    connection: Rc<ConnectionInfo>,
    since: Instant,
    since_wall: SystemTime,
    flags: ResponseFlags,
    record: Rc<ConnectionRecord>,
}

impl LogAtEnd {
    /// Where the terminal filter leaves what it knows.
    pub fn record(&self) -> Rc<ConnectionRecord> {
        self.record.clone()
    }
}

impl Drop for LogAtEnd {
    fn drop(&mut self) {
        let mut info = self.record.take().unwrap_or_else(|| StreamInfo::new(self.since_wall, self.since));
        self.flags.iter().chain(self.connection.flags.get().iter()).for_each(|flag| info.flags.insert(flag));
        info.timings.end = Some(Instant::now());
        if self.flags.contains(ResponseFlag::NoRouteFound) {
            info.set_details("filter_chain_not_found");
        }
        if info.dynamic_metadata.is_empty() {
            info.dynamic_metadata = self.connection.metadata.take();
        }
        let context = LogContext {
            connection: Some(&self.connection),
            rng: Some(&self.worker.context.rng),
            ..LogContext::new(&info)
        };
        self.logs.iter().for_each(|log| log.log(&context));
    }
}

/// The connection was gone before it was accepted, or a signal came: nothing that a rest would help.
fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::Interrupted
    )
}

// === impl Counts ===

impl Counts {
    pub fn accepted(self: &Rc<Self>, since: Instant) -> Accepted {
        self.listener.inc(names::DOWNSTREAM_CX_TOTAL);
        self.per_worker.inc(names::WORKER_CX_TOTAL);
        Accepted {
            counts: self.clone(),
            since,
            _active: self.listener.gauge(names::DOWNSTREAM_CX_ACTIVE),
            _on_worker: self.per_worker.gauge(names::WORKER_CX_ACTIVE),
        }
    }

    /// The task that now has that place.
    pub fn started(&self, number: u32, task: AbortHandle) {
        self.connections.borrow_mut().started(number, task);
    }
}

// === impl Place ===

impl Place {
    pub fn number(&self) -> u32 {
        self.number
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.counts.connections.borrow_mut().ended(self.number);
        self.config.open.fetch_sub(1, Relaxed);
        self.lifecycle.downstream_connections().fetch_sub(1, Relaxed);
    }
}

// === impl Connections ===

impl Connections {
    fn reserve(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.tasks.push(None);
            u32::try_from(self.tasks.len() - 1).expect("fewer connections than descriptors")
        })
    }

    fn started(&mut self, slot: u32, task: AbortHandle) {
        // A task cannot have ended yet: it runs after the accept loop has yielded.
        self.tasks[slot as usize] = Some(task);
    }

    fn ended(&mut self, slot: u32) {
        self.tasks[slot as usize] = None;
        self.free.push(slot);
    }
}

impl Drop for Accepted {
    fn drop(&mut self) {
        self.counts.listener.inc(names::DOWNSTREAM_CX_DESTROY);
        let length = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.counts.times.record(names::DOWNSTREAM_CX_LENGTH_MS, length);
    }
}

#[cfg(test)]
mod tests;
