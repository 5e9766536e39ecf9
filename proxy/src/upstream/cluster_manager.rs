//! All clusters, on the main thread: the only writer of what workers see of them.
//!
//! A cluster is checked, its source told to run, and once it is warm (the source spoke for the first time) it is
//! published. What changes afterwards is collected until main has nothing else to do and goes to the workers as one
//! message, in which a cluster stands once, in its latest state. Changes of health and weight alone are collected
//! longer, for `update_merge_window`. `health` is what checks and traffic have to say in that.

mod destinations;
mod entry;
mod health;
pub mod history;
mod publish;
mod said;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::collections::hash_map::Entry as MapEntry;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use nuncio_api::pb::envoy::config::cluster::v3 as pb;
use nuncio_core::error::ConfigError;
use nuncio_core::stats::lists::cluster as stat;
use nuncio_core::stats::lists::server;
use nuncio_core::stats::{Stats, Store};
use nuncio_discovery::{
    Assignment, HostSink, HostSource, HostSourceFactory, HostUpdates, SourceContext, UpdateEvent, sources,
};
use tokio::sync::Notify;

use self::entry::{Cluster, Running, Told};
use self::health::Wellness;
pub use self::health::{ClusterView, HealthView};
use self::history::History;
pub use self::said::{Good, Protection, Provenance, Removed, Trouble};
use super::cluster::{ClusterConfig, ClusterDefaults};
use super::dial::DialContext;
use super::snapshot::{ClusterSnapshot, ClusterUpdate, Publish};

/// Owner of all clusters. A cheap handle; stays on the main thread.
#[derive(Clone)]
pub struct ClusterManager(Rc<Inner>);

struct Inner {
    state: RefCell<State>,
    factories: Vec<Box<dyn HostSourceFactory>>,
    defaults: ClusterDefaults,
    store: Rc<RefCell<Store>>,
    stats: Stats<server::ClusterManager>,
    context: SourceContext,
    history: RefCell<History>,
    /// A cluster of the bootstrap became warm.
    warm: Notify,
}

#[derive(Default)]
struct State {
    slots: HashMap<Arc<str>, Slot>,
    /// Changed since the last message to the workers, each once.
    dirty: Vec<Arc<str>>,
    failed: Vec<ClusterUpdate>,
    /// Clusters with hosts whose flags changed since their picture was taken.
    stale: Vec<(Arc<str>, u64)>,
    /// What checks are made with, once the event loop runs.
    probing: Option<DialContext>,
    publisher: Option<Rc<dyn Publish>>,
    /// Sources run; before that, clusters are only checked.
    started: bool,
    flush_scheduled: bool,
    /// Clusters of the bootstrap that are not warm yet.
    cold: usize,
    next_id: u64,
}

#[derive(Default)]
struct Slot {
    active: Option<Box<Cluster>>,
    /// The next one of that name, until it is warm.
    warming: Option<Box<Cluster>>,
    /// Stands in `dirty`.
    dirty: bool,
    /// Workers know it.
    published: bool,
}

/// What `/clusters` and `/config_dump` show of one cluster.
#[derive(Debug, Clone)]
pub struct ClusterStatus {
    pub snapshot: Arc<ClusterSnapshot>,
    /// The encoded `Cluster` message.
    pub bytes: Bytes,
    pub last_updated: SystemTime,
    /// Of the CDS answer that brought it.
    pub version: Option<Arc<str>>,
    pub warming: bool,
}

/// What a start waits for.
#[derive(Debug, Clone)]
pub struct Awaited {
    pub name: Arc<str>,
    /// Who has not answered yet; none of a cluster whose hosts are known.
    pub who: Option<Arc<str>>,
    pub since: SystemTime,
}

/// A cluster that was found right and is in no slot yet.
pub struct PreparedCluster(Box<Cluster>);

/// Holds a cluster back until it is dropped.
struct Warming {
    manager: Weak<Inner>,
    name: Arc<str>,
    id: u64,
}

// === impl ClusterManager ===

impl ClusterManager {
    pub fn new(
        store: &Rc<RefCell<Store>>,
        factories: Vec<Box<dyn HostSourceFactory>>,
        defaults: ClusterDefaults,
        context: SourceContext,
    ) -> Self {
        let stats = {
            let mut store = store.borrow_mut();
            let scope = store.scope(&server::CLUSTER_MANAGER_SCOPE, &Arc::default());
            Stats::new(store.main(), scope)
        };
        let manager = Rc::new(Inner {
            state: RefCell::default(),
            factories,
            defaults,
            store: store.clone(),
            stats,
            context,
            history: RefCell::default(),
            warm: Notify::new(),
        });
        let weak = Rc::downgrade(&manager);
        store.borrow_mut().before_reading(move |store| {
            if let Some(manager) = weak.upgrade() {
                manager.update_breaker_gauges(store);
            }
        });
        Self(manager)
    }

    /// A cluster of the bootstrap. Paths of errors are relative to it.
    pub fn add_static(&self, message: &pb::Cluster, bytes: Bytes) -> Result<(), Vec<ConfigError>> {
        if self.contains(&message.name) {
            let reason = format!("cluster manager: duplicate cluster '{}'", message.name);
            return Err(vec![ConfigError::new("name", reason)]);
        }
        let cluster = self.check(message, bytes, None)?;
        let name = cluster.name().clone();
        {
            let mut state = self.0.state.borrow_mut();
            state.cold += 1;
            state.slots.entry(name.clone()).or_default().active = Some(cluster);
        }
        self.count_added(false);
        self.run_if_started(&name);
        Ok(())
    }

    /// A cluster of a CDS answer; false if it is what it was. The old one serves until the new one is warm.
    pub fn add_or_update(
        &self,
        message: &pb::Cluster,
        bytes: Bytes,
        version: &Arc<str>,
    ) -> Result<bool, Vec<ConfigError>> {
        if let Some(slot) = self.0.state.borrow().slots.get(&*message.name) {
            let latest = slot.warming.as_ref().or(slot.active.as_ref());
            let is_static = slot.active.as_ref().is_some_and(|active| !active.config().info.added_via_api);
            // Clusters of the bootstrap are not CDS's to change.
            if is_static || latest.is_some_and(|latest| latest.bytes == bytes) {
                return Ok(false);
            }
        }
        let cluster = self.check(message, bytes, Some(version.clone()))?;
        self.install(PreparedCluster(cluster));
        Ok(true)
    }

    /// Reads a cluster of a bootstrap that is read again; none if it is what it was.
    pub fn prepare_static(
        &self,
        message: &pb::Cluster,
        bytes: Bytes,
    ) -> Result<Option<PreparedCluster>, Vec<ConfigError>> {
        if let Some(slot) = self.0.state.borrow().slots.get(&*message.name) {
            let latest = slot.warming.as_ref().or(slot.active.as_ref());
            if latest.is_some_and(|latest| latest.config().info.added_via_api) {
                return Err(vec![ConfigError::new("name", "a cluster of this name came by CDS")]);
            }
            if latest.is_some_and(|latest| latest.bytes == bytes) {
                return Ok(None);
            }
        }
        Ok(Some(PreparedCluster(self.check(message, bytes, None)?)))
    }

    /// It takes the place of the one of its name once it is warm.
    pub fn install(&self, prepared: PreparedCluster) {
        let PreparedCluster(cluster) = prepared;
        let name = cluster.name().clone();
        let (replaced, modified) = {
            let mut state = self.0.state.borrow_mut();
            let slot = state.slots.entry(name.clone()).or_default();
            let modified = slot.active.is_some() || slot.warming.is_some();
            (slot.warming.replace(cluster), modified)
        };
        if let Some(replaced) = replaced {
            self.discard(*replaced);
        }
        self.count_added(modified);
        self.run_if_started(&name);
    }

    /// It is not wanted after all.
    pub fn forget(&self, prepared: PreparedCluster) {
        self.discard(*prepared.0);
    }

    /// Removes the clusters of the bootstrap that it does not name any more.
    pub fn retire_static(&self, stays: impl Fn(&str) -> bool) {
        let leaves = |slot: &Slot| {
            let mut both = [&slot.active, &slot.warming].into_iter().flatten();
            both.next().is_some_and(|cluster| !cluster.config().info.added_via_api)
        };
        let names: Vec<Arc<str>> = {
            let state = self.0.state.borrow();
            let leaving = state.slots.iter().filter(|(name, slot)| leaves(slot) && !stays(name));
            leaving.map(|(name, _)| name.clone()).collect()
        };
        for name in &names {
            self.take_out(name, |_| true);
        }
    }

    /// Removes a cluster that came by CDS; false if there is none of that name.
    pub fn remove(&self, name: &str) -> bool {
        self.take_out(name, |cluster| cluster.config().info.added_via_api)
    }

    fn take_out(&self, name: &str, may: impl Fn(&Cluster) -> bool) -> bool {
        let slot = {
            let mut state = self.0.state.borrow_mut();
            let may = |slot: &&mut Slot| {
                let both = [&slot.active, &slot.warming];
                both.into_iter().flatten().next().is_some_and(|cluster| may(cluster))
            };
            let Some(slot) = state.slots.get_mut(name).filter(may) else { return false };
            let taken = (slot.active.take(), slot.warming.take());
            let published = slot.published;
            if published {
                self.0.mark(&mut state, &Arc::from(name));
            } else {
                state.slots.remove(name);
            }
            taken
        };
        let (active, warming) = slot;
        for cluster in [active, warming].into_iter().flatten() {
            self.discard(*cluster);
        }
        self.0.stats.inc(server::CLUSTER_REMOVED);
        self.0.warm.notify_waiters();
        self.0.schedule_flush();
        true
    }

    /// Whether a cluster of that name is configured, warm or not.
    pub fn contains(&self, name: &str) -> bool {
        let state = self.0.state.borrow();
        state.slots.get(name).is_some_and(|slot| slot.active.is_some() || slot.warming.is_some())
    }

    /// Sets the sources off and publishes to `publisher` from now on. Clusters that are warm at once are published
    /// before this returns.
    pub fn start(&self, publisher: Rc<dyn Publish>) {
        let names: Vec<Arc<str>> = {
            let mut state = self.0.state.borrow_mut();
            state.publisher = Some(publisher);
            state.started = true;
            // Nobody else is told of changes while sources that end at once are run one after the other.
            state.flush_scheduled = true;
            state.slots.keys().cloned().collect()
        };
        for name in &names {
            self.run(name);
        }
        self.flush();
    }

    /// Resolves when every cluster of the bootstrap is warm.
    pub async fn initialized(&self) {
        loop {
            let warm = self.0.warm.notified();
            if self.0.state.borrow().cold == 0 {
                return;
            }
            warm.await;
        }
    }

    /// Resolves when every cluster is warm, wherever it came from.
    pub async fn all_warm(&self) {
        loop {
            let warm = self.0.warm.notified();
            if self.awaited().is_empty() {
                return;
            }
            warm.await;
        }
    }

    /// The clusters that are not warm, the one that is waited for longest first.
    pub fn awaited(&self) -> Vec<Awaited> {
        let state = self.0.state.borrow();
        let both = state.slots.values().flat_map(|slot| [&slot.active, &slot.warming]).flatten();
        let mut cold: Vec<_> = both.filter(|cluster| !cluster.is_warm()).map(|cluster| cluster.awaited()).collect();
        cold.sort_unstable_by(|a, b| (a.since, &a.name).cmp(&(b.since, &b.name)));
        cold
    }

    /// What is known of where the hosts of clusters come from; of all clusters whose name is wanted, in the order in
    /// which they were added, those that warm included.
    pub fn provenance(&self, wanted: impl Fn(&str) -> bool) -> Vec<(ClusterStatus, Option<Provenance>)> {
        let state = self.0.state.borrow();
        let slots = state.slots.iter().filter(|(name, _)| wanted(name));
        let both = slots.flat_map(|(_, slot)| [(&slot.active, false), (&slot.warming, true)]);
        let mut all: Vec<_> = both.filter_map(|(cluster, warming)| Some((cluster.as_ref()?, warming))).collect();
        all.sort_unstable_by_key(|(cluster, _)| cluster.id);
        all.into_iter().map(|(cluster, warming)| (cluster.status(warming), cluster.provenance())).collect()
    }

    /// Every cluster, in the order in which they were added; those that warm come after the active ones.
    pub fn statuses(&self) -> Vec<ClusterStatus> {
        let state = self.0.state.borrow();
        let mut all: Vec<(bool, u64, ClusterStatus)> = Vec::with_capacity(state.slots.len());
        for slot in state.slots.values() {
            for (cluster, warming) in [(&slot.active, false), (&slot.warming, true)] {
                if let Some(cluster) = cluster {
                    all.push((warming, cluster.id, cluster.status(warming)));
                }
            }
        }
        all.sort_unstable_by_key(|(warming, id, _)| (*warming, *id));
        all.into_iter().map(|(_, _, status)| status).collect()
    }

    /// The active clusters, in the order in which they were added.
    pub fn active(&self) -> Vec<Arc<ClusterSnapshot>> {
        let state = self.0.state.borrow();
        let mut active: Vec<_> = state.slots.values().filter_map(|slot| slot.active.as_ref()).collect();
        active.sort_unstable_by_key(|cluster| cluster.id);
        active.into_iter().map(|cluster| cluster.snapshot.clone()).collect()
    }

    /// Sends what changed to the workers now, rather than when main has nothing else to do.
    pub fn flush(&self) {
        self.0.flush();
    }

    // === the way in ===

    fn check(
        &self,
        message: &pb::Cluster,
        bytes: Bytes,
        version: Option<Arc<str>>,
    ) -> Result<Box<Cluster>, Vec<ConfigError>> {
        let config = ClusterConfig::from_proto(message, version.is_some(), &self.0.defaults);
        let source = sources::source(&self.0.factories, message);
        let source = source.and_then(|source| match self.lacks_node(&*source) {
            Some(error) => Err(vec![error]),
            None => Ok(source),
        });
        let plan = match &config {
            Ok(config) => health::plan(message, config, self.0.defaults.log_files.as_deref(), self.0.context.clock),
            Err(_) => Ok(None),
        };
        let (config, source, plan) = match (config, source, plan) {
            (Ok(config), Ok(source), Ok(plan)) => (config, source, plan),
            (config, source, plan) => {
                let errors = config.err().into_iter().chain(source.err()).chain(plan.err()).flatten();
                return Err(errors.collect());
            }
        };
        let id = {
            let mut state = self.0.state.borrow_mut();
            state.next_id += 1;
            state.next_id
        };
        let now = self.0.context.clock.now();
        let told = Told { bytes, version, at: now };
        let wellness = Wellness::new(plan, message);
        let runtime = &self.0.defaults.runtime;
        let mut store = self.0.store.borrow_mut();
        Ok(Box::new(Cluster::new(id, Arc::new(config), told, source, wellness, runtime, &mut store)))
    }

    /// Who is told of the node wants to know it.
    fn lacks_node(&self, source: &dyn HostSource) -> Option<ConfigError> {
        let node = &self.0.context.node;
        if !source.needs().node || !node.id.is_empty() && !node.cluster.is_empty() {
            return None;
        }
        let reason = "node 'id' and 'cluster' are required. Set it either in 'node' config or via --service-node and \
                      --service-cluster options.";
        Some(ConfigError::new("", reason))
    }

    /// Of the bootstrap's clusters, by name: what is wrong with the clusters that their sources ask. One that was
    /// `refused` is a mistake already.
    pub fn check_asked(&self, refused: impl Fn(&str) -> bool) -> Vec<(Arc<str>, ConfigError)> {
        let state = self.0.state.borrow();
        let needs = |cluster: &Cluster| cluster.source().and_then(|source| source.needs().cluster);
        let can_be_asked = |name: &str| {
            let found = state.slots.get(name).and_then(|slot| slot.active.as_ref());
            found.is_some_and(|cluster| needs(cluster).is_none())
        };
        let active = state.slots.values().filter_map(|slot| slot.active.as_ref());
        let asking = active.filter_map(|cluster| Some((cluster.name().clone(), needs(cluster)?)));
        let wrong = asking.filter(|(_, (_, asked))| !refused(asked) && !can_be_asked(asked));
        let refused = |(name, (path, asked)): (Arc<str>, (String, String))| {
            let reason = format!(
                "there must be a statically defined non-EDS cluster: '{asked}' does not exist, was added via api, or is \
                 an EDS cluster"
            );
            (name, ConfigError::new(path, reason))
        };
        wrong.map(refused).collect()
    }

    fn count_added(&self, modified: bool) {
        self.0.stats.inc(if modified { server::CLUSTER_MODIFIED } else { server::CLUSTER_ADDED });
        self.0.schedule_flush();
    }

    fn run_if_started(&self, name: &Arc<str>) {
        let started = self.0.state.borrow().started;
        if started {
            self.run(name);
        }
    }

    /// Sets off the source of the latest cluster of that name.
    fn run(&self, name: &Arc<str>) {
        let now = self.0.context.clock.now();
        let taken = {
            let mut state = self.0.state.borrow_mut();
            let slot = state.slots.get_mut(name);
            let latest = slot.and_then(|slot| slot.warming.as_mut().or(slot.active.as_mut()));
            latest.and_then(|cluster| Some((cluster.id, cluster.take_source(now)?)))
        };
        let Some((id, source)) = taken else { return };
        self.0.start_health(name, id);
        self.0.with(name, id, |cluster| {
            let destinations = cluster.snapshot.shared.as_ref().and_then(|shared| shared.destinations());
            if let (Some(all), Some(config)) = (destinations, &cluster.config().lb.original_dst) {
                cluster.tended = Some(destinations::tend(&self.0, name, id, all, config.cleanup_interval));
            }
        });
        let warming = Warming { manager: Rc::downgrade(&self.0), name: name.clone(), id };
        let sink = HostSink::new(Rc::new(Sink {
            manager: Rc::downgrade(&self.0),
            name: name.clone(),
            id,
            warming: Cell::new(Some(warming)),
        }));
        let mut run = source.run(self.0.context.clone(), sink);
        // Most sources of most proxies have said everything after the first poll, and need no task.
        let mut noop = std::task::Context::from_waker(std::task::Waker::noop());
        if run.as_mut().poll(&mut noop).is_pending() {
            let running = Running(tokio::task::spawn_local(run).abort_handle());
            self.0.with(name, id, |cluster| cluster.running = Some(running));
        }
    }

    fn discard(&self, cluster: Cluster) {
        cluster.discard(&mut self.0.store.borrow_mut());
    }
}

// === impl Inner ===

impl Inner {
    /// The cluster with that id, if it is still there.
    fn with<T>(&self, name: &str, id: u64, act: impl FnOnce(&mut Cluster) -> T) -> Option<T> {
        let mut state = self.state.borrow_mut();
        let slot = state.slots.get_mut(name)?;
        let both = [slot.active.as_mut(), slot.warming.as_mut()];
        both.into_iter().flatten().find(|cluster| cluster.id == id).map(|cluster| act(cluster))
    }
}

// === impl Sink, Warming ===

/// A source's way to its cluster.
struct Sink {
    manager: Weak<Inner>,
    name: Arc<str>,
    id: u64,
    /// Until it spoke for the first time.
    warming: Cell<Option<Warming>>,
}

impl HostUpdates for Sink {
    fn replace(&self, assignment: Assignment) {
        if let Some(manager) = self.manager.upgrade() {
            manager.replace(&self.name, self.id, assignment);
            manager.source_spoke(&self.name, self.id, self.warming.take());
        }
    }

    fn failed(&self, reason: String) {
        if let Some(manager) = self.manager.upgrade() {
            tracing::warn!(cluster = &*self.name, "hosts are kept as they were: {reason}");
            manager.with(&self.name, self.id, |cluster| cluster.updates().inc(stat::UPDATE_FAILURE));
            manager.heard(&self.name, self.id, |said, at| said.failed(&reason, at));
        }
        self.warming.take();
    }

    fn rejected(&self, reason: String) {
        if let Some(manager) = self.manager.upgrade() {
            tracing::warn!(cluster = &*self.name, "hosts are kept as they were, the answer is refused: {reason}");
            manager.with(&self.name, self.id, |cluster| cluster.subscription().inc(stat::UPDATE_REJECTED));
            manager.heard(&self.name, self.id, |said, at| said.rejected(&reason, at));
        }
        self.warming.take();
    }

    fn count(&self, event: UpdateEvent) {
        if let Some(manager) = self.manager.upgrade() {
            manager.with(&self.name, self.id, |cluster| match event {
                UpdateEvent::Attempt => cluster.updates().inc(stat::UPDATE_ATTEMPT),
                UpdateEvent::Success => cluster.updates().inc(stat::UPDATE_SUCCESS),
                UpdateEvent::Empty => cluster.updates().inc(stat::UPDATE_EMPTY),
                UpdateEvent::InitFetchTimeout => cluster.subscription().inc(stat::INIT_FETCH_TIMEOUT),
                UpdateEvent::Stale => cluster.updates().inc(stat::ASSIGNMENT_STALE),
            });
        }
        if matches!(event, UpdateEvent::Empty | UpdateEvent::InitFetchTimeout) {
            self.warming.take();
        }
    }

    fn version(&self, version: &str) {
        let Some(manager) = self.manager.upgrade() else { return };
        let now = manager.context.clock.since_epoch().as_millis();
        manager.with(&self.name, self.id, |cluster| {
            cluster.show_version(version);
            if let Some(said) = &mut cluster.said {
                said.set_version(version);
            }
            cluster.subscription().set(stat::UPDATE_TIME, u64::try_from(now).unwrap_or(u64::MAX));
        });
    }
}

impl Drop for Warming {
    fn drop(&mut self) {
        if let Some(manager) = self.manager.upgrade() {
            manager.warmed(&self.name, self.id);
        }
    }
}

#[cfg(test)]
mod tests;
