//! A worker: one thread, one event loop, its own sockets, connections, balancers and pools. It
//! learns what changes from its inbox and shares nothing that it writes.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;

use futures_util::future::LocalBoxFuture;
use nuncio_core::extension::{Membership, Vitals, WorkerContext};
use nuncio_core::random::Rng;
use nuncio_core::runtime::Runtime;
use nuncio_core::stats::WorkerStats;
use nuncio_core::time::WallClock;
use nuncio_core::upstream::AsyncClient;
use nuncio_core::upstream::client::{AsyncFailure, AsyncRequest, AsyncResponse};
use tokio::runtime::{Builder, LocalOptions, LocalRuntime};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::inbox::{MainEvent, WorkerCommand};
use super::runtime::RuntimeHandle;
use crate::admin::EventLoops;
use crate::codec::Buffers;
use crate::lifecycle::{DrainStrategy, Lifecycle};
use crate::listener::ActiveListeners;
use crate::listener::active::AcceptPolicy;
use crate::net::limits::DescriptorLimit;
use crate::net::{Sockets, flusher};
use crate::upstream::thread_local::ClusterContext;
use crate::upstream::worker::ConnectionIds;
use crate::upstream::{ClusterClient, Clusters, Worker};

/// What a worker is given when it starts.
#[derive(Clone)]
pub struct Seed {
    pub events: UnboundedSender<MainEvent>,
    pub connection_ids: ConnectionIds,
    pub clock: WallClock,
    pub lifecycle: Arc<Lifecycle>,
    pub drain_strategy: DrainStrategy,
    pub drain_time: std::time::Duration,
    pub descriptors: DescriptorLimit,
    pub runtime: RuntimeHandle,
    pub loops: EventLoops,
}

/// Main's end of a worker.
pub struct WorkerThread {
    inbox: UnboundedSender<WorkerCommand>,
    thread: JoinHandle<u64>,
}

/// Tells main when the thread ends for whatever reason.
struct Leaving {
    index: u32,
    events: UnboundedSender<MainEvent>,
    told: bool,
}

// === impl WorkerThread ===

impl WorkerThread {
    /// Starts `wrk:<index>`.
    pub fn start(index: u32, seed: Seed) -> io::Result<Self> {
        let (inbox, commands) = unbounded_channel();
        let thread = std::thread::Builder::new().name(format!("wrk:{index}")).spawn(move || {
            let mut leaving = Leaving { index, events: seed.events.clone(), told: false };
            match runtime() {
                Ok(runtime) => {
                    let panics = runtime.block_on(run(index, seed, commands));
                    leaving.told = true;
                    panics
                }
                Err(e) => {
                    tracing::error!("no event loop for worker {index}: {e}");
                    0
                }
            }
        })?;
        Ok(Self { inbox, thread })
    }

    /// A worker that is gone has told so already.
    pub fn send(&self, command: WorkerCommand) {
        let _ = self.inbox.send(command);
    }

    /// For those who send by themselves.
    pub fn inbox(&self) -> UnboundedSender<WorkerCommand> {
        self.inbox.clone()
    }

    /// Ends the worker; tells how many of its tasks panicked.
    pub fn shutdown(self) -> u64 {
        self.send(WorkerCommand::Shutdown);
        self.thread.join().unwrap_or(1)
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        if !self.told {
            let _ = self.events.send(MainEvent::WorkerLost { index: self.index });
        }
    }
}

/// The process's own health and that of its clusters, as this worker knows them.
struct WorkerVitals {
    lifecycle: Arc<Lifecycle>,
    clusters: Rc<Clusters>,
}

impl Vitals for WorkerVitals {
    fn health_failed(&self) -> bool {
        self.lifecycle.health_failed()
    }

    fn membership(&self, cluster: &str) -> Option<Membership> {
        let hosts = self.clusters.hosts(cluster)?;
        let available = hosts.priorities.iter().map(|set| set.healthy.len() + set.degraded.len()).sum();
        Some(Membership { total: hosts.host_count(), available })
    }
}

/// Turns of tasks before the next look at the sockets. The runtime's own 61, when each of them writes a head of 60 KiB, keep
/// what comes meanwhile waiting for ten milliseconds; a look costs less than a microsecond.
const TURNS_BETWEEN_LOOKS: u32 = 16;

/// An event loop for the thread that asks.
pub fn runtime() -> io::Result<LocalRuntime> {
    Builder::new_current_thread().enable_all().event_interval(TURNS_BETWEEN_LOOKS).build_local(LocalOptions::default())
}

async fn run(index: u32, seed: Seed, mut commands: UnboundedReceiver<WorkerCommand>) -> u64 {
    seed.loops.add_worker(index);
    let events = seed.events;
    // Main is gone only when the process ends.
    let stats = WorkerStats::new(move |birth| drop(events.send(MainEvent::StatsBorn(birth))));
    let (rng, buffers, connect) =
        (Rng::from_os(), Buffers::of_this_thread(), Rc::new(Sockets { descriptors: seed.descriptors }));
    buffers.pipes.spare(seed.descriptors);
    let runtime: Rc<dyn Runtime> = Rc::new(seed.runtime);
    let context = ClusterContext {
        connect: connect.clone(),
        buffers: buffers.clone(),
        rng: rng.clone(),
        stats: stats.clone(),
        connection_ids: seed.connection_ids.clone(),
        own_listeners: Rc::default(),
    };
    let clusters = Clusters::with_runtime(context, runtime.clone());
    let worker = Rc::new(Worker {
        context: WorkerContext {
            index: Some(index),
            rng,
            clock: seed.clock,
            stats,
            client: Rc::new(ClusterClient::new(&clusters)),
            runtime,
            vitals: Rc::new(WorkerVitals { lifecycle: seed.lifecycle.clone(), clusters: clusters.clone() }),
        },
        buffers,
        clusters,
        connect,
        connection_ids: seed.connection_ids,
        descriptors: seed.descriptors,
        panics: 0.into(),
    });
    let policy =
        AcceptPolicy { lifecycle: seed.lifecycle, drain_strategy: seed.drain_strategy, drain_time: seed.drain_time };
    tokio::task::spawn_local(flusher::run());
    let mut listeners = ActiveListeners::new(worker.clone(), policy);
    while let Some(command) = commands.recv().await {
        match command {
            WorkerCommand::Clusters(updates) => worker.clusters.apply(&updates),
            WorkerCommand::Listener(command) => listeners.apply(command),
            WorkerCommand::Shutdown => break,
        }
    }
    worker.panics.get()
}

/// A thread without clusters: every call fails.
pub(super) struct NoClusters;

impl AsyncClient for NoClusters {
    fn call(
        &self,
        _cluster: &str,
        _request: AsyncRequest,
    ) -> LocalBoxFuture<'static, Result<AsyncResponse, AsyncFailure>> {
        Box::pin(async { Err(AsyncFailure::UnknownCluster) })
    }
}
