//! A worker's listeners: accept loops, and the connections they made.

use std::any::Any;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, SystemTime};

use nuncio_core::access_log::{AccessLog, LogContext};
use nuncio_core::metadata::Metadata;
use nuncio_core::net::{Accept, Connected, ConnectionInfo, ConnectionTimings};
use nuncio_core::stats::lists::listener as names;
use nuncio_core::stats::lists::listener::{Listener, PerWorker, Times};
use nuncio_core::stats::{GaugeGuard, Stats};
use nuncio_core::stream_info::{ResponseFlag, ResponseFlags, StreamInfo};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::filter_chain::{FilterChain, FilterChains};
use super::{ListenerCommand, ListenerConfig, ListenerId};
use crate::lifecycle::{Drain, DrainStrategy, Lifecycle};
use crate::net::accept::descriptor;
use crate::net::{Acceptor, ListeningSocket};
use crate::network::{Connection, ConnectionRecord};
use crate::upstream::Worker;

/// How long a loop rests that cannot accept: from the first, doubled up to the second.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(100));

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
}

struct ActiveListener {
    serving: Rc<Serving>,
    /// One loop for each address.
    loops: Vec<AbortHandle>,
}

/// What an accept loop and the connections it made share.
struct Serving {
    worker: Rc<Worker>,
    config: Arc<ListenerConfig>,
    /// For logs.
    name: Arc<str>,
    metadata: Arc<Metadata>,
    chains: FilterChains<FilterChain>,
    logs: Rc<[Box<dyn AccessLog>]>,
    counts: Rc<Counts>,
    drain: Rc<Drain>,
}

struct Counts {
    listener: Stats<Listener>,
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

/// Lives as long as the connection.
struct Accepted {
    counts: Rc<Counts>,
    slot: u32,
    since: Instant,
    _log: Option<Box<LogAtEnd>>,
    _active: GaugeGuard<Listener>,
    _on_worker: GaugeGuard<PerWorker>,
}

// === impl ActiveListeners ===

impl ActiveListeners {
    pub fn new(worker: Rc<Worker>, policy: AcceptPolicy) -> Self {
        Self { worker, policy, active: BTreeMap::new() }
    }

    pub fn apply(&mut self, command: ListenerCommand) {
        match command {
            ListenerCommand::Start { id, config, sockets } => self.start(id, config, sockets),
            ListenerCommand::Stop { id, drain } => {
                if let Some(active) = self.active.get_mut(&id) {
                    active.loops.drain(..).for_each(|l| l.abort());
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
                    active.loops.iter().for_each(AbortHandle::abort);
                    active.serving.counts.connections.borrow().tasks.iter().flatten().for_each(AbortHandle::abort);
                }
            }
        }
    }

    fn start(&mut self, id: ListenerId, config: Arc<ListenerConfig>, sockets: Vec<ListeningSocket>) {
        let serving = Rc::new(Serving::new(&self.worker, &self.policy, config));
        let mut loops = Vec::with_capacity(sockets.len());
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
        self.active.insert(id, ActiveListener { serving, loops });
    }
}

// === impl Serving ===

impl Serving {
    fn new(worker: &Rc<Worker>, policy: &AcceptPolicy, config: Arc<ListenerConfig>) -> Self {
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
            chains: config.chains.instantiate(worker),
            logs: config.logs.iter().map(|log| log.instantiate(&worker.context)).collect(),
            worker: worker.clone(),
            name: config.name().into(),
            metadata: Arc::new(config.info.metadata.clone()),
            config,
            counts: Rc::new(counts),
            drain: Rc::new(drain),
        }
    }

    /// The accept loop. It never ends by itself: whatever `accept` fails with may pass.
    async fn run(self: Rc<Self>, mut acceptor: impl Accept) {
        let mut rest = BACK_OFF.0;
        let mut failing = false;
        loop {
            match self.accept_batch(&mut acceptor).await {
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
                    tokio::time::sleep(rest).await;
                    rest = (rest * 2).min(BACK_OFF.1);
                }
            }
        }
    }

    /// Takes what waits, up to `max_connections_to_accept_per_socket_event`.
    async fn accept_batch(&self, acceptor: &mut impl Accept) -> io::Result<u32> {
        let mut count = 0;
        poll_fn(|cx| {
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

    fn log_end(&self, info: &Rc<ConnectionInfo>, since: Instant) -> Option<Box<LogAtEnd>> {
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

    fn accepted(&self, connected: Connected, acceptor: &impl Accept) -> io::Result<()> {
        if descriptor(&connected.io).is_some_and(|fd| self.worker.descriptors.is_reserve(fd)) {
            self.counts.listener.inc(names::DOWNSTREAM_CX_OVERFLOW);
            return Err(io::Error::other("the last free descriptors are kept for the proxy itself"));
        }
        let Connected { io, local, remote } = connected;
        let local = local.unwrap_or_else(|| acceptor.local_address().clone());
        let id = self.worker.connection_ids.next();
        let mut info = ConnectionInfo::new(id, remote, local);
        info.listener_name = Some(self.name.clone());
        info.listener_metadata = Some(self.metadata.clone());
        let since = Instant::now();
        info.timings = ConnectionTimings { begin: Some(since), ..ConnectionTimings::default() }.into();
        let Some(chain) = self.chains.find(&info) else {
            self.counts.listener.inc(names::NO_FILTER_CHAIN_MATCH);
            let mut log = self.log_end(&Rc::new(info), since);
            if let Some(log) = &mut log {
                log.flags.insert(ResponseFlag::NoRouteFound);
            }
            return Ok(());
        };
        info.filter_chain_name = Some(chain.name.clone());
        let info = Rc::new(info);
        let log = self.log_end(&info, since);
        let record = log.as_ref().map(|log| log.record.clone());
        let slot = self.counts.connections.borrow_mut().reserve();
        let accepted = self.counts.accepted(slot, since, log);
        let Some(filter) = &chain.terminal else { return Ok(()) };
        let guards: Box<dyn Any> = Box::new(accepted);
        let drain = self.drain.clone();
        let task = filter.serve(Connection { io, info, preread: Vec::new(), drain, record, guards });
        self.counts.connections.borrow_mut().started(slot, task);
        Ok(())
    }
}

/// A connection's line in the listener's own logs, written when it is dropped.
struct LogAtEnd {
    worker: Rc<Worker>,
    logs: Rc<[Box<dyn AccessLog>]>,
    connection: Rc<ConnectionInfo>,
    since: Instant,
    since_wall: SystemTime,
    flags: ResponseFlags,
    record: Rc<ConnectionRecord>,
}

impl Drop for LogAtEnd {
    fn drop(&mut self) {
        let mut info = self.record.take().unwrap_or_else(|| StreamInfo::new(self.since_wall, self.since));
        if !self.flags.is_empty() {
            info.flags = self.flags;
        }
        info.timings.end = Some(Instant::now());
        if self.flags.contains(ResponseFlag::NoRouteFound) {
            info.set_details("filter_chain_not_found");
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
    fn accepted(self: &Rc<Self>, slot: u32, since: Instant, log: Option<Box<LogAtEnd>>) -> Accepted {
        self.listener.inc(names::DOWNSTREAM_CX_TOTAL);
        self.per_worker.inc(names::WORKER_CX_TOTAL);
        Accepted {
            counts: self.clone(),
            slot,
            since,
            _log: log,
            _active: self.listener.gauge(names::DOWNSTREAM_CX_ACTIVE),
            _on_worker: self.per_worker.gauge(names::WORKER_CX_ACTIVE),
        }
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
        self.counts.connections.borrow_mut().ended(self.slot);
    }
}

#[cfg(test)]
mod tests;
