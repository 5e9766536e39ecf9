//! The main thread: the one writer of listeners and clusters, and the order in which things start
//! and end. Workers tell it what they saw; it tells them what is. A long file, because this order is one story: what each step
//! does stands in the rooms it calls.

mod drain;
pub mod dynamic;
mod handover;
mod reload;

use std::any::Any;
use std::cell::RefCell;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use nuncio_api::pb::envoy::config::bootstrap::v3::{Bootstrap, bootstrap::StatsFlush};
use nuncio_api::pb::envoy::config::core::v3::Node;
use nuncio_api::pb::envoy::config::listener::v3::Listener;
use nuncio_api::release_pool;
use nuncio_core::error::ConfigError;
use nuncio_core::extension::FactoryContext;
use nuncio_core::net::Address;
use nuncio_core::random::Rng;
use nuncio_core::stats::Store;
use nuncio_core::stats::lists::{server, subscription as subscription_stat};
use nuncio_core::time::WallClock;
use nuncio_discovery::SourceContext;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::MissedTickBehavior;

use super::admin::{Act, AdminInterface, Facts};
use super::bootstrap::Assembly;
use super::inbox::{Inboxes, MainEvent, WorkerCommand};
use super::options::{Mode, Options};
use super::overload::OverloadManager;
use super::process_stats::Flusher;
use super::runtime::LayeredRuntime;
use super::signals::{Ended, Request, Requests};
use super::worker::{Seed, WorkerThread, runtime};
use crate::access_log::file::LogWriter;
use crate::admin::{Configs, EventLoops, ListenerDrain, ListenerView, Shown, ShownListener};
use crate::http::discovered::{DiscoveryContext, DiscoveryManager, DiscoverySubscription};
use crate::lifecycle::{Lifecycle, ServerState};
use crate::listener::manager::Entry;
use crate::listener::{Change, ListenerCommand, ListenerId, ListenerManager, Origin, Prepared};
use crate::logging::Loggers;
use crate::net::Sockets;
use crate::net::limits::{DescriptorLimit, raise_descriptor_limit};
use crate::net::sys::trim_memory;
use crate::network::TrafficDirection;
use crate::subscription::{Strictness, SubscriptionStats};
use crate::tls::Secrets;
use crate::upstream::{ClusterManager, DialContext};
use drain::Ending;
use dynamic::{Feed, Sources, Warming};
use handover::{Asked, Predecessor};
use reload::Reload;

/// Envoy's default of `stats_flush_interval`.
const FLUSH_INTERVAL: Duration = Duration::from_secs(5);

/// What blocking work may still take at the end.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// Told once, when connections are taken.
pub struct Started {
    /// Names and bound addresses.
    pub listeners: Vec<(String, Vec<Address>)>,
    pub admin: Option<Address>,
}

/// What main owns while the server runs.
struct Main {
    store: Rc<RefCell<Store>>,
    clusters: ClusterManager,
    listeners: ListenerManager,
    workers: Vec<WorkerThread>,
    lifecycle: Arc<Lifecycle>,
    secrets: Secrets,
    flusher: Rc<Flusher>,
    log_files: Rc<LogWriter>,
    loggers: Arc<Loggers>,
    admin: AdminInterface,
    drain_time: Duration,
    /// Listeners whose drain time is over.
    drained: UnboundedReceiver<ListenerId>,
    drained_sender: UnboundedSender<ListenerId>,
    /// Listeners that `/drain_listeners?graceful` stops when the drain time is over.
    stopping: UnboundedReceiver<Vec<ListenerId>>,
    stop_sender: UnboundedSender<Vec<ListenerId>>,
    /// Its disk layers are watched while it lives.
    _runtime: Rc<LayeredRuntime>,
    node: Arc<Node>,
    sources: Sources,
    context: SourceContext,
    strictness: Strictness,
    discovery: DiscoveryManager,
    /// Of the listeners of the bootstrap, which the start waits for.
    awaited: Vec<Rc<DiscoverySubscription>>,
    warming: Vec<Warming>,
    /// Workers take connections.
    live: bool,
    /// For `/config_dump`.
    shown: Rc<RefCell<Shown>>,
    shown_configs: Rc<RefCell<Arc<Configs>>>,
    options: Options,
    bootstrap_bytes: Vec<u8>,
    overload: OverloadManager,
    /// The end that has begun.
    ending: Option<Ending>,
    reloading: Option<Reload>,
    reloads: SubscriptionStats,
    /// Until this server has taken over.
    predecessor: Option<Predecessor>,
    /// Where successors ask; none once one has taken over.
    hot_restart: Option<PathBuf>,
    successors: Option<UnboundedReceiver<Asked>>,
    parent_shutdown_time: Duration,
}

/// How far the start is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The clusters of the bootstrap become warm.
    Clusters,
    /// Those that come by CDS come, and become warm.
    MoreClusters,
    /// Listeners that come by LDS come, and all routes.
    Listeners,
    Live,
}

/// Serves until `ended` resolves. `started` hears of the addresses when clients may come. Tells how
/// many connections ended by a panic: none, unless there is a bug.
pub fn run(assembly: Assembly, loggers: Arc<Loggers>, ended: Ended, started: impl FnOnce(Started)) -> io::Result<u64> {
    let runtime = runtime()?;
    let result = runtime.block_on(serve(assembly, loggers, ended, started));
    // A page that a slow client reads, or a file on a slow disk, does not hold the process.
    runtime.shutdown_timeout(LAST_WORDS);
    result
}

async fn serve(
    assembly: Assembly,
    loggers: Arc<Loggers>,
    ended: Ended,
    started: impl FnOnce(Started),
) -> io::Result<u64> {
    let mode = assembly.options.mode;
    let flush = flush_interval(&assembly);
    let flushes = !flushes_on_admin(&assembly.bootstrap);
    let mut ended = ended()?;
    let mut requests = Requests::new()?;
    let (mut main, mut events) = Main::start(assembly, loggers)?;
    let (clusters, secrets) = (main.clusters.clone(), main.secrets.clone());
    let mut started = Some(started);
    let mut stage = Stage::Clusters;
    let (mut cds, mut lds) = (None, None);
    let discovery = main.discovery.clone();
    let mut looks = tokio::time::interval(drain::LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut pressure = tokio::time::interval(main.overload.interval().unwrap_or(Duration::from_secs(3600)));
    pressure.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut flush = tokio::time::interval(flush);
    flush.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            reason = &mut ended => {
                if !main.options.drain_on_sigterm || main.ending.is_some() {
                    return main.end(&reason);
                }
                // The next signal ends it at once.
                ended = super::signals::ended()()?;
                let time = main.drain_time;
                main.begin_to_end(reason, true, time);
            }
            Some(event) = events.recv() => main.event(event)?,
            Some(act) = main.admin.acts.recv() => match act {
                Act::Quit => return main.end("asked to quit by the admin interface"),
                Act::ReopenLogs => main.reopen_logs(),
                Act::DrainListeners(drain) => main.drain_listeners(drain),
                Act::Reload => main.reload(),
            },
            Some(id) = main.drained.recv() => main.close(id),
            Some(ids) = main.stopping.recv() => main.stop(ids),
            request = requests.next() => match request {
                Request::ReopenLogs => main.reopen_logs(),
                Request::Reload => main.reload(),
            },
            Some(asked) = next(&mut main.successors) => main.answer_successor(asked),
            _ = looks.tick(), if main.ending.is_some() => {
                if let Some(reason) = main.has_ended() {
                    return main.end(&reason);
                }
            }
            _ = pressure.tick(), if main.overload.interval().is_some() => main.overload.refresh(),
            () = clusters.all_warm(), if main.reloading.is_some() => main.finish_reload()?,
            () = initialized(&clusters, &secrets), if stage == Stage::Clusters => {
                cds = main.ask_for_clusters();
                stage = Stage::MoreClusters;
            }
            () = clusters.all_warm(), if stage == Stage::MoreClusters && Feed::was_heard(&cds) => {
                lds = main.ask_for_listeners();
                stage = Stage::Listeners;
            }
            news = Feed::next(&mut cds) => main.cluster_news(&mut cds, news),
            news = Feed::next(&mut lds) => main.listener_news(&mut lds, news)?,
            () = discovery.warmed() => main.look_for_warm(),
            _ = flush.tick() => {
                if flushes {
                    main.flusher.flush();
                }
                // An update or a page may have needed the descriptors again.
                if started.is_none() && release_pool() {
                    trim_memory();
                }
            }
        }
        if stage == Stage::Listeners && Feed::was_heard(&lds) && main.listeners_are_warm() {
            stage = Stage::Live;
            let live = main.go_live()?;
            main.take_over()?;
            if let Some(started) = started.take() {
                started(live);
            }
            // The text of the configuration and what was made on the way to it are garbage by now.
            release_pool();
            trim_memory();
            if mode == Mode::InitOnly {
                return main.end("initialized, as --mode init_only asks");
            }
        }
    }
}

/// Clusters are warm, and what listeners and clusters encrypt with is there or was waited for.
async fn initialized(clusters: &ClusterManager, secrets: &Secrets) {
    clusters.initialized().await;
    secrets.settled().await;
}

fn flush_interval(assembly: &Assembly) -> Duration {
    let set = assembly.bootstrap.stats_flush_interval.as_ref();
    set.map(nuncio_core::time::duration).filter(|d| !d.is_zero()).unwrap_or(FLUSH_INTERVAL)
}

/// What a channel brings next, if there is one.
async fn next<T>(channel: &mut Option<UnboundedReceiver<T>>) -> Option<T> {
    match channel {
        Some(channel) => channel.recv().await,
        None => std::future::pending().await,
    }
}

/// Stats are not flushed by time but when they are read.
fn flushes_on_admin(bootstrap: &Bootstrap) -> bool {
    matches!(bootstrap.stats_flush, Some(StatsFlush::StatsFlushOnAdmin(true)))
}

// === impl Main ===

impl Main {
    /// Binds the sockets and starts the workers, which then wait for their first command.
    fn start(assembly: Assembly, loggers: Arc<Loggers>) -> io::Result<(Self, UnboundedReceiver<MainEvent>)> {
        let Assembly {
            options,
            bootstrap,
            node,
            store,
            clusters,
            own_clusters,
            connection_ids,
            mut listeners,
            secrets,
            sources,
            overload,
            bytes: bootstrap_bytes,
            source_context: context,
            strictness,
            log_files,
            admin,
            stats,
            runtime: layered_runtime,
            configs,
            warnings,
            unknown_fields,
            ..
        } = assembly;
        for warning in &warnings {
            tracing::warn!(target: "config", "{warning}");
        }
        log_files.start()?;
        let lifecycle = Arc::new(Lifecycle::default());
        let flusher = Rc::new(Flusher::new(&store, &lifecycle, &log_files, &secrets, options.concurrency));
        flusher.process.unknown_fields(unknown_fields);
        let has_cluster = {
            let clusters = clusters.clone();
            Box::new(move |name: &str| clusters.contains(name))
        };
        let discovery = DiscoveryManager::new(DiscoveryContext {
            sources: context.clone(),
            store: store.clone(),
            node: node.clone(),
            log_files: log_files.clone(),
            has_cluster,
            strictness: strictness.clone(),
        });
        let shown = Rc::<RefCell<Shown>>::default();
        let shown_configs = Rc::new(RefCell::new(configs));
        let asked = options.hot_restart.as_deref().map(Predecessor::ask).transpose()?.flatten();
        let (predecessor, inherited) = asked.map_or((None, None), |(p, i)| (Some(p), Some(i)));
        let inherited_admin = inherited.map_or_else(Vec::new, |inherited| {
            listeners.inherit(inherited.listeners);
            inherited.admin
        });
        let overload = OverloadManager::new(overload, &lifecycle, &mut store.borrow_mut());
        let reloads = {
            let (mut store, clock) = (store.borrow_mut(), context.clock);
            SubscriptionStats::new(&mut store, &subscription_stat::RELOAD_SCOPE, &"".into(), clock)
        };
        let loops = EventLoops::new(options.concurrency);
        let facts = Facts {
            options: &options,
            node: &node,
            store: &store,
            stats,
            flush: flushes_on_admin(&bootstrap).then(|| flusher.clone()),
            configs: &shown_configs,
            clusters: &clusters,
            secrets: &secrets,
            connection_ids: &connection_ids,
            lifecycle: &lifecycle,
            loggers: &loggers,
            runtime: &layered_runtime,
            shown: &shown,
            discovery: &discovery,
            loops: &loops,
        };
        layered_runtime.watch(bootstrap.layered_runtime.as_ref());
        // First of all, so that whoever watches the start can see it, and a taken address ends it.
        let admin = AdminInterface::start(admin, inherited_admin, &facts)?;
        listeners.bind()?;
        store.borrow_mut().before_reading(secrets.expiry_gauges());
        tokio::task::spawn_local(secrets.clone().fetch(context.clone(), store.clone()));
        let (sender, events) = unbounded_channel();
        let seed = Seed {
            events: sender,
            connection_ids,
            clock: WallClock::System,
            lifecycle: lifecycle.clone(),
            drain_strategy: options.drain_strategy,
            drain_time: options.drain_time,
            descriptors: DescriptorLimit::new(raise_descriptor_limit()),
            runtime: layered_runtime.handle(),
            loops,
        };
        let workers =
            (0..options.concurrency).map(|i| WorkerThread::start(i, seed.clone())).collect::<io::Result<Vec<_>>>()?;
        let dial = DialContext { connect: Rc::new(Sockets::default()), buffers: Rc::default(), rng: Rng::from_os() };
        clusters.probe_with(dial);
        clusters
            .start(Rc::new(Inboxes { main: own_clusters, workers: workers.iter().map(WorkerThread::inbox).collect() }));
        let (drained_sender, drained) = unbounded_channel();
        let (stop_sender, stopping) = unbounded_channel();
        let drain_time = options.drain_time;
        let mut main = Self {
            store,
            clusters,
            listeners,
            secrets,
            workers,
            lifecycle,
            flusher,
            log_files,
            loggers,
            admin,
            drain_time,
            drained,
            drained_sender,
            stopping,
            stop_sender,
            _runtime: layered_runtime,
            node,
            sources,
            context,
            strictness,
            discovery,
            awaited: Vec::new(),
            warming: Vec::new(),
            live: false,
            shown,
            shown_configs,
            bootstrap_bytes,
            overload,
            ending: None,
            reloading: None,
            reloads,
            predecessor,
            hot_restart: options.hot_restart.clone(),
            successors: None,
            parent_shutdown_time: options.parent_shutdown_time,
            options,
        };
        main.ask_for_awaited();
        Ok((main, events))
    }

    /// The listeners of the bootstrap hold what somebody must bring them.
    fn ask_for_awaited(&mut self) {
        let all = RefCell::new(Vec::new());
        let discovery = &self.discovery;
        self.listeners.guard(|config| {
            let own = config.chains.discovered().map(|awaited| Rc::new(discovery.subscribe(&awaited)));
            let own: Vec<Rc<DiscoverySubscription>> = own.collect();
            all.borrow_mut().extend(own.iter().cloned());
            own.into_iter().map(|awaited| Box::new(awaited) as Box<dyn Any>).collect()
        });
        self.awaited = all.into_inner();
    }

    /// Reads a listener of a running server.
    fn prepare(&self, message: &Listener, origin: Origin) -> Result<Prepared, Vec<ConfigError>> {
        self.prepare_with(message, origin, &|name| self.clusters.contains(name))
    }

    fn prepare_with(
        &self,
        message: &Listener,
        origin: Origin,
        has_cluster: &dyn Fn(&str) -> bool,
    ) -> Result<Prepared, Vec<ConfigError>> {
        let (warnings, scopes) = (RefCell::default(), RefCell::default());
        let context = FactoryContext {
            name: "",
            stat_prefix: "",
            has_cluster,
            warnings: &warnings,
            node: &self.node,
            stats: &self.store,
            log_files: &*self.log_files,
            formats: &crate::format::Formats,
            scopes: &scopes,
        };
        let prepared = self.listeners.check(message, origin, &context);
        for warning in warnings.take() {
            tracing::warn!(target: "config", "listener '{}': {warning}", message.name);
        }
        prepared
    }

    /// All is warm: the listeners go to the workers.
    fn go_live(&mut self) -> io::Result<Started> {
        self.lifecycle.set_initialization(ServerState::Initializing);
        tracing::info!(target: "main", "all dependencies initialized. starting workers");
        self.live = true;
        self.awaited.clear();
        self.listeners.disinherit();
        let changes = self.listeners.start();
        self.apply(changes)?;
        self.listeners.stats().set(server::WORKERS_STARTED, 1);
        self.lifecycle.set_initialization(ServerState::Live);
        self.flusher.process.initialized();
        self.flusher.process.certificates(&self.secrets);
        self.flusher.process.update(&self.lifecycle, &mut self.store.borrow_mut());
        let listeners = self.listeners.active();
        let listeners = listeners.iter().map(|l| (l.config.name().to_owned(), l.local_addresses())).collect();
        Ok(Started { listeners, admin: self.admin.address.clone() })
    }

    /// The admin pages show what is active now.
    fn publish(&self) {
        let view = |l: &Entry| ListenerView { name: l.config.name().to_owned(), addresses: l.local_addresses() };
        self.admin.publish_listeners(self.listeners.active().iter().map(view).collect());
        let dynamic = self.listeners.active().iter().filter_map(|l| {
            Some(ShownListener {
                name: l.config.name().to_owned(),
                version: l.origin.version.clone()?,
                bytes: l.origin.bytes.clone(),
                updated: l.origin.updated,
            })
        });
        self.shown.borrow_mut().listeners = dynamic.collect();
    }

    /// `/drain_listeners`. The listeners stay in the set, as in Envoy: only a restart brings them back.
    fn drain_listeners(&mut self, asked: ListenerDrain) {
        let inbound = |l: &&Entry| !asked.inbound_only || l.config.info.direction == TrafficDirection::Inbound;
        let ids: Vec<ListenerId> = self.listeners.active().iter().filter(inbound).map(|l| l.id).collect();
        match asked {
            ListenerDrain { graceful: false, skip_exit: false, .. } => return self.stop(ids),
            ListenerDrain { skip_exit: true, .. } => {}
            ListenerDrain { graceful: true, .. } => {
                let (time, done, ids) = (self.drain_time, self.stop_sender.clone(), ids.clone());
                tokio::task::spawn_local(async move {
                    tokio::time::sleep(time).await;
                    let _ = done.send(ids);
                });
            }
        }
        for id in ids {
            self.command(|| ListenerCommand::Drain { id });
        }
    }

    /// No more connections; those that are there are asked to go.
    fn stop(&mut self, ids: Vec<ListenerId>) {
        for id in ids {
            self.command(|| ListenerCommand::Stop { id, drain: true });
            self.listeners.close_sockets(id);
        }
    }

    fn command(&self, command: impl Fn() -> ListenerCommand) {
        self.workers.iter().for_each(|worker| worker.send(WorkerCommand::Listener(command())));
    }

    fn apply(&mut self, changes: Vec<Change>) -> io::Result<()> {
        // Before a listener's first connection comes, workers know every cluster.
        self.clusters.flush();
        for change in changes {
            for (worker, command) in self.workers.iter().zip(change.commands(self.workers.len())?) {
                worker.send(WorkerCommand::Listener(command));
            }
            match change {
                Change::Start { .. } => {
                    let workers = u64::try_from(self.workers.len()).unwrap_or(u64::MAX);
                    self.listeners.stats().add(server::LISTENER_CREATE_SUCCESS, workers);
                }
                Change::Drain { id } => {
                    let (time, done) = (self.drain_time, self.drained_sender.clone());
                    tokio::task::spawn_local(async move {
                        tokio::time::sleep(time).await;
                        let _ = done.send(id);
                    });
                }
            }
        }
        self.publish();
        Ok(())
    }

    /// The drain time of a removed listener is over.
    fn close(&mut self, id: ListenerId) {
        self.command(|| ListenerCommand::Close { id });
        self.listeners.closed(id, &mut self.store.borrow_mut());
    }

    fn event(&mut self, event: MainEvent) -> io::Result<()> {
        match event {
            MainEvent::StatsBorn(birth) => self.store.borrow_mut().accept(birth),
            // Its connections are gone and its sockets take no more: half a server is worse than none.
            MainEvent::WorkerLost { index } => {
                return Err(io::Error::other(format!("worker {index} ended by a bug; the server ends with it")));
            }
        }
        Ok(())
    }

    fn reopen_logs(&self) {
        if let Err(e) = self.loggers.reopen() {
            tracing::error!("cannot reopen the log: {e}");
        }
        self.log_files.reopen();
    }

    fn end(self, reason: &str) -> io::Result<u64> {
        tracing::info!(target: "main", "{reason}");
        let panics: u64 = self.workers.into_iter().map(WorkerThread::shutdown).sum();
        // The workers have handed over the last records.
        self.log_files.stop();
        tracing::info!(target: "main", "exiting");
        if panics > 0 {
            tracing::error!(bug = true, "{panics} connections ended by a panic while the server ran");
        }
        Ok(panics)
    }
}
