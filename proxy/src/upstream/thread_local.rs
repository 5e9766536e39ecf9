//! A worker's clusters: balancers, pools and counters, all of them of this thread alone. One long file: what a request
//! asks of its cluster stands together.
//!
//! The map holds every cluster's snapshot; what costs memory is built when a cluster is first used, so that ten
//! thousand idle clusters cost a worker ten thousand map entries and no more.
//!
//! The file is long because all that a request asks of its cluster stands here, from the host to the connection.

mod wanted;

use std::cell::{Cell, OnceCell, Ref, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use nuncio_core::http::{HeadLimits, Version};
use nuncio_core::net::Connect;
use nuncio_core::random::Rng;
use nuncio_core::runtime::{NoRuntime, Runtime};
use nuncio_core::stats::lists::cluster::{
    self as stat, Connections, Failures, LoadBalancer as LbStats, Rare, ResponseTime, Retries, Traffic,
};
use nuncio_core::stats::lists::http2::Codec as Http2Codec;
use nuncio_core::stats::{AmountGuard, CodeStats, Codes, ScopeId, Stats, WorkerStats};
use nuncio_core::upstream::{Choice, ClusterInfo, Host, LbContext, LoadBalancer, PrioritySet};

use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

use super::circuit_breaker::{CircuitBreakers, Permit, Priority, Resource};
use super::cluster::ClusterConfig;
use super::http_options::UpstreamProtocol;
use super::lb::{self, LocalHosts, ZoneEvent, shared::SubsetCounts};
use super::original_dst::OwnListeners;
use super::pool::connecting::Parked;
use super::pool::http1::{Acquire, Http1Pool};
use super::pool::http2::Http2Pool;
use super::pool::stream::{AcquireStream, Negotiating, PendingStream};
use super::pool::tcp::TcpConnecting;
use super::pool::{Pool, PoolFailure, PoolFailureReason, PoolKey, PoolMap, PoolProtocol, PoolUse};
use super::snapshot::{ClusterSnapshot, ClusterUpdate};
use super::worker::ConnectionIds;
use crate::codec::Buffers;
use crate::codec::http1::ClientOptions;
use crate::tls::upstream::Connectors;
use crate::tls::{ServerWanted, TlsCounts};

/// What pools use of their thread.
pub struct ClusterContext {
    pub connect: Rc<dyn Connect>,
    pub buffers: Rc<Buffers>,
    pub rng: Rng,
    pub stats: Rc<WorkerStats>,
    pub connection_ids: ConnectionIds,
    /// Where this thread's listeners accept.
    pub own_listeners: Rc<OwnListeners>,
}

/// All clusters, as one thread sees them.
pub struct Clusters {
    context: Rc<ClusterContext>,
    entries: RefCell<HashMap<Arc<str>, Entry>>,
    /// Of the cluster that this proxy belongs to.
    local: Rc<LocalHosts>,
    runtime: Rc<dyn Runtime>,
    /// How many of them go where a request's header says.
    believing: Cell<usize>,
}

struct Entry {
    snapshot: Arc<ClusterSnapshot>,
    built: Option<Rc<ThreadLocalCluster>>,
}

impl Clusters {
    /// Where no operator says anything.
    pub fn new(context: ClusterContext) -> Rc<Self> {
        Self::with_runtime(context, Rc::new(NoRuntime))
    }

    pub fn with_runtime(context: ClusterContext, runtime: Rc<dyn Runtime>) -> Rc<Self> {
        let (context, entries, local) = (Rc::new(context), RefCell::default(), Rc::default());
        Rc::new(Self { context, entries, local, runtime, believing: Cell::default() })
    }

    fn build(&self, snapshot: &ClusterSnapshot, stats: Option<Rc<ClusterStats>>) -> Rc<ThreadLocalCluster> {
        ThreadLocalCluster::new(&self.context, (&self.local, &self.runtime), snapshot, stats)
    }

    /// The cluster of that name, if there is one.
    pub fn get(&self, name: &str) -> Option<Rc<ThreadLocalCluster>> {
        let mut entries = self.entries.borrow_mut();
        let Entry { snapshot, built } = entries.get_mut(name)?;
        Some(built.get_or_insert_with(|| self.build(snapshot, None)).clone())
    }

    /// Where this thread's listeners accept.
    pub fn own_listeners(&self) -> &Rc<OwnListeners> {
        &self.context.own_listeners
    }

    /// Its hosts, without making what requests need of it.
    pub fn hosts(&self, name: &str) -> Option<Arc<PrioritySet>> {
        self.entries.borrow().get(name).map(|entry| entry.snapshot.hosts.clone())
    }

    pub fn contains(&self, name: &str) -> bool {
        self.entries.borrow().contains_key(name)
    }

    /// Whether there is a cluster that goes where a request's header says.
    pub fn headers_name_destinations(&self) -> bool {
        self.believing.get() > 0
    }

    /// Takes a message of the cluster manager.
    pub fn apply(&self, updates: &[ClusterUpdate]) {
        let mut entries = self.entries.borrow_mut();
        let known = entries.len();
        entries.reserve(updates.len().saturating_sub(known));
        for update in updates {
            self.apply_to_local(update);
            self.count_believing(&entries, update);
            match update {
                ClusterUpdate::Set(snapshot) => match entries.get_mut(snapshot.config.name()) {
                    Some(entry) => self.replace(entry, snapshot),
                    None => {
                        let entry = Entry { snapshot: snapshot.clone(), built: None };
                        entries.insert(snapshot.config.name().clone(), entry);
                    }
                },
                ClusterUpdate::Removed(name) => {
                    if let Some(cluster) = entries.remove(name).and_then(|entry| entry.built) {
                        cluster.retire();
                    }
                }
                ClusterUpdate::HostFailed { cluster, host } => {
                    if let Some(cluster) = entries.get(cluster).and_then(|entry| entry.built.as_ref()) {
                        cluster.drain_host(host);
                    }
                }
            }
        }
    }

    fn count_believing(&self, entries: &HashMap<Arc<str>, Entry>, update: &ClusterUpdate) {
        let (name, new) = match update {
            ClusterUpdate::Set(snapshot) => (snapshot.config.name(), snapshot.believes_headers()),
            ClusterUpdate::Removed(name) => (name, false),
            ClusterUpdate::HostFailed { .. } => return,
        };
        let old = entries.get(name).is_some_and(|entry| entry.snapshot.believes_headers());
        self.believing.set(self.believing.get() + usize::from(new) - usize::from(old));
    }

    /// Balancing by zones looks at the local cluster.
    fn apply_to_local(&self, update: &ClusterUpdate) {
        let ClusterUpdate::Set(snapshot) = update else { return };
        let local = snapshot.config.lb.zone.local.as_ref();
        if local.is_some_and(|local| local.cluster == *snapshot.config.name()) {
            self.local.set(snapshot.hosts.clone());
        }
    }

    fn replace(&self, entry: &mut Entry, snapshot: &Arc<ClusterSnapshot>) {
        if let Some(built) = &entry.built {
            if Arc::ptr_eq(&entry.snapshot.config, &snapshot.config) {
                built.hosts_changed(&snapshot.hosts);
            } else {
                let new = self.build(snapshot, Some(built.local.stats.clone()));
                built.retire();
                entry.built = Some(new);
            }
        }
        entry.snapshot = snapshot.clone();
    }
}

/// What one cluster counts on one thread.
pub struct ClusterStats {
    pub traffic: Stats<Traffic>,
    pub connections: Stats<Connections>,
    pub failures: Stats<Failures>,
    pub retries: Stats<Retries>,
    pub rare: Stats<Rare>,
    pub load_balancer: Stats<LbStats>,
    /// `http2.`.
    pub http2: Stats<Http2Codec>,
    codes: CodeStats,
    codes_internal: CodeStats,
    codes_external: CodeStats,
    codes_retry: OnceCell<Box<CodeStats>>,
    response_time: Stats<ResponseTime>,
    response_time_internal: Stats<ResponseTime>,
    response_time_external: Stats<ResponseTime>,
}

impl ClusterStats {
    fn new(worker: &Rc<WorkerStats>, scope: ScopeId) -> Self {
        Self {
            traffic: Stats::new(worker, scope),
            connections: Stats::new(worker, scope),
            failures: Stats::new(worker, scope),
            retries: Stats::new(worker, scope),
            rare: Stats::new(worker, scope),
            load_balancer: Stats::new(worker, scope),
            http2: Stats::under(worker, scope, 1),
            codes: CodeStats::new(worker, scope, Codes::Cluster),
            codes_internal: CodeStats::new(worker, scope, Codes::Internal),
            codes_external: CodeStats::new(worker, scope, Codes::External),
            codes_retry: OnceCell::new(),
            response_time: Stats::new(worker, scope),
            response_time_internal: Stats::under(worker, scope, 1),
            response_time_external: Stats::under(worker, scope, 2),
        }
    }
}

impl ClusterStats {
    /// An answer with this status, of the host or our own; `internal`: to whom.
    pub fn charge(&self, status: u16, internal: bool) {
        self.codes.charge(status);
        self.charge_origin(status, internal);
    }

    /// The same, but of which code it was is told only where answers are told apart by whom they are for, as by Envoy.
    pub fn charge_without_code(&self, status: u16, internal: bool) {
        self.codes.charge_any();
        self.charge_origin(status, internal);
    }

    fn charge_origin(&self, status: u16, internal: bool) {
        if internal { self.codes_internal.charge(status) } else { self.codes_external.charge(status) }
    }

    /// Answers that nobody gets, because the request is tried again.
    pub fn retried(&self) -> &CodeStats {
        let make = || Box::new(CodeStats::new(self.traffic.worker(), self.traffic.scope(), Codes::Retry));
        self.codes_retry.get_or_init(make)
    }

    /// A whole answer took so many milliseconds.
    pub fn charge_time(&self, took: u64, internal: bool) {
        self.response_time.record(stat::UPSTREAM_RQ_TIME, took);
        let origin = if internal { &self.response_time_internal } else { &self.response_time_external };
        origin.record(stat::UPSTREAM_RQ_TIME, took);
    }
}

/// What pools, permits and connections of a cluster share on one thread; it lives as long as any of them.
pub struct ClusterLocal {
    pub(super) context: Rc<ClusterContext>,
    config: Arc<ClusterConfig>,
    breakers: Arc<CircuitBreakers>,
    stats: Rc<ClusterStats>,
    client_options: OnceCell<Rc<ClientOptions>>,
    tls: OnceCell<Box<TlsLocal>>,
    /// By host, whoever must know when it fails: bare connections, with `close_connections_on_host_health_failure`.
    failing: RefCell<HashMap<usize, Arc<Notify>>>,
    /// `lb_subsets_active`, this worker's share.
    subsets: RefCell<Option<Box<AmountGuard<LbStats>>>>,
    local_hosts: Rc<LocalHosts>,
    runtime: Rc<dyn Runtime>,
}

/// What connections of a cluster that speaks TLS share on one thread.
pub(super) struct TlsLocal {
    pub(super) connectors: Connectors,
    wanted: wanted::Known,
    /// What the last handshake with a host chose, by the host's address in memory.
    protocols: RefCell<HashMap<usize, PoolProtocol>>,
    /// Connections on their way to another pool, which whoever waits for them asks next.
    parked: RefCell<Vec<(Arc<Host>, Parked)>>,
}

impl lb::Observer for ClusterLocal {
    fn panic(&self) {
        self.stats.load_balancer.inc(stat::LB_HEALTHY_PANIC);
    }

    fn active_requests(&self) -> u32 {
        Priority::ALL.iter().map(|priority| self.breakers.in_use(*priority, Resource::Requests)).sum()
    }

    fn invalid_destination(&self) {
        self.stats.rare.inc(stat::ORIGINAL_DST_HOST_INVALID);
    }

    fn cluster(&self) -> Arc<str> {
        self.config.name().clone()
    }

    fn own_listeners(&self) -> Rc<OwnListeners> {
        self.context.own_listeners.clone()
    }

    fn local_hosts(&self) -> Option<&LocalHosts> {
        Some(&self.local_hosts)
    }

    fn runtime(&self, key: &str) -> Option<u64> {
        self.runtime.integer(key)
    }

    fn zone(&self, event: ZoneEvent) {
        self.stats.load_balancer.inc(match event {
            ZoneEvent::Recalculated => stat::LB_RECALCULATE_ZONE_STRUCTURES,
            ZoneEvent::ClusterTooSmall => stat::LB_ZONE_CLUSTER_TOO_SMALL,
            ZoneEvent::LocalClusterNotOk => stat::LB_LOCAL_CLUSTER_NOT_OK,
            ZoneEvent::AllDirectly => stat::LB_ZONE_ROUTING_ALL_DIRECTLY,
            ZoneEvent::Sampled => stat::LB_ZONE_ROUTING_SAMPLED,
            ZoneEvent::CrossZone => stat::LB_ZONE_ROUTING_CROSS_ZONE,
            ZoneEvent::NoCapacityLeft => stat::LB_ZONE_NO_CAPACITY_LEFT,
        });
    }

    fn subset_selected(&self) {
        self.stats.load_balancer.inc(stat::LB_SUBSETS_SELECTED);
    }

    fn subset_fallback(&self, panic: bool) {
        let counter = if panic { stat::LB_SUBSETS_FALLBACK_PANIC } else { stat::LB_SUBSETS_FALLBACK };
        self.stats.load_balancer.inc(counter);
    }

    fn subsets(&self, counts: SubsetCounts) {
        let stats = &self.stats.load_balancer;
        stats.add(stat::LB_SUBSETS_CREATED, counts.created);
        stats.add(stat::LB_SUBSETS_REMOVED, counts.removed);
        let mut gauge = self.subsets.borrow_mut();
        gauge.get_or_insert_with(|| Box::new(stats.amount(stat::LB_SUBSETS_ACTIVE))).set(counts.active);
    }
}

impl ClusterLocal {
    /// Of its HTTP/1 connections.
    pub(super) fn client_options(&self) -> Rc<ClientOptions> {
        let make = || Rc::new(self.config.http.client_options());
        self.client_options.get_or_init(make).clone()
    }

    pub(super) fn tls(&self) -> &TlsLocal {
        self.tls.get_or_init(|| {
            let traffic = &self.stats.traffic;
            Box::new(TlsLocal {
                connectors: Connectors::new(TlsCounts::new(traffic.worker(), traffic.scope())),
                wanted: wanted::Known::default(),
                protocols: RefCell::default(),
                parked: RefCell::default(),
            })
        })
    }

    /// What a handshake with the host chose: the next connection is looked for where that is spoken.
    pub(super) fn remember_protocol(&self, host: &Arc<Host>, protocol: PoolProtocol) {
        self.tls().protocols.borrow_mut().insert(Arc::as_ptr(host) as usize, protocol);
    }

    /// For the other pool.
    pub(super) fn park(&self, host: &Arc<Host>, parked: Parked) {
        self.tls().parked.borrow_mut().push((host.clone(), parked));
    }

    /// Resolves when the host fails its checks, if connections to it must end with that.
    pub(super) fn host_fails(&self, host: &Arc<Host>) -> Option<OwnedNotified> {
        if !self.config.flags().close_connections_on_host_health_failure {
            return None;
        }
        let mut failing = self.failing.borrow_mut();
        failing.retain(|_, notify| Arc::strong_count(notify) > 1);
        let notify = failing.entry(Arc::as_ptr(host) as usize).or_default();
        Some(notify.clone().notified_owned())
    }

    fn host_failed(&self, host: &Arc<Host>) {
        if let Some(notify) = self.failing.borrow().get(&(Arc::as_ptr(host) as usize)) {
            notify.notify_waiters();
        }
    }

    pub fn config(&self) -> &Arc<ClusterConfig> {
        &self.config
    }

    pub fn breakers(&self) -> &CircuitBreakers {
        &self.breakers
    }

    pub fn stats(&self) -> &ClusterStats {
        &self.stats
    }
}

/// One cluster on one thread.
pub struct ThreadLocalCluster {
    local: Rc<ClusterLocal>,
    hosts: RefCell<Arc<PrioritySet>>,
    balancer: RefCell<Box<dyn LoadBalancer>>,
    pools: RefCell<PoolMap>,
    /// With so many pools, those that are empty are dropped before another is made.
    crowded: Cell<usize>,
}

/// Fewer pools than this are not worth looking through.
const CROWDED: usize = 16;

impl ThreadLocalCluster {
    fn new(
        context: &Rc<ClusterContext>,
        (local_hosts, runtime): (&Rc<LocalHosts>, &Rc<dyn Runtime>),
        snapshot: &ClusterSnapshot,
        stats: Option<Rc<ClusterStats>>,
    ) -> Rc<Self> {
        let stats = stats.unwrap_or_else(|| Rc::new(ClusterStats::new(&context.stats, snapshot.scope)));
        let local = Rc::new(ClusterLocal {
            context: context.clone(),
            config: snapshot.config.clone(),
            breakers: snapshot.breakers.clone(),
            stats,
            client_options: OnceCell::new(),
            tls: OnceCell::new(),
            failing: RefCell::default(),
            subsets: RefCell::default(),
            local_hosts: local_hosts.clone(),
            runtime: runtime.clone(),
        });
        let around = lb::Surroundings { rng: context.rng.clone(), observer: local.clone() };
        let balancer = lb::balancer(&snapshot.config.lb, &snapshot.hosts, snapshot.shared.as_ref(), &around);
        Rc::new(Self {
            local,
            hosts: RefCell::new(snapshot.hosts.clone()),
            balancer: RefCell::new(balancer),
            pools: RefCell::default(),
            crowded: Cell::new(CROWDED),
        })
    }

    pub fn info(&self) -> &Arc<ClusterInfo> {
        &self.local.config.info
    }

    pub fn config(&self) -> &Arc<ClusterConfig> {
        &self.local.config
    }

    pub fn stats(&self) -> &ClusterStats {
        &self.local.stats
    }

    /// Of the responses of its hosts.
    pub fn response_limits(&self) -> HeadLimits {
        let http = &self.local.config.http;
        HeadLimits { fields: http.max_headers_count, bytes: http.max_response_head_bytes }
    }

    /// Of this thread.
    pub fn buffers(&self) -> &Buffers {
        &self.local.context.buffers
    }

    pub fn hosts(&self) -> Ref<'_, Arc<PrioritySet>> {
        self.hosts.borrow()
    }

    /// The host for a request. None counts `upstream_cx_none_healthy`.
    pub fn choose(&self, context: &LbContext<'_>) -> Choice {
        if let Some(wanted) = &context.override_host {
            let found = self.hosts.borrow().hosts().find(|host| *host.address_text() == *wanted.address).cloned();
            let admitted = self.local.config.override_host_status();
            match found.filter(|host| admitted.admits(host.flags())) {
                Some(host) => return Choice::Host(host),
                None if wanted.strict => return self.none_healthy(),
                None => {}
            }
        }
        match self.balancer.borrow_mut().choose_host(context) {
            Choice::None => self.none_healthy(),
            Choice::Refused(why) => {
                self.none_healthy();
                Choice::Refused(why)
            }
            choice => choice,
        }
    }

    fn none_healthy(&self) -> Choice {
        self.local.stats.failures.inc(stat::UPSTREAM_CX_NONE_HEALTHY);
        Choice::None
    }

    /// An exchange with the host, for one request of a client that speaks `downstream`.
    pub fn stream(
        self: &Rc<Self>,
        host: &Arc<Host>,
        priority: Priority,
        downstream: Version,
        wanted: Option<&Rc<ServerWanted>>,
    ) -> AcquireStream {
        let protocol = match self.local.config.http.protocol {
            UpstreamProtocol::Auto => {
                return match self.acquire_auto(host, priority, wanted) {
                    AcquireStream::Pending(waiting) => {
                        let (cluster, host, wanted) = (self.clone(), host.clone(), wanted.cloned());
                        let negotiating = Negotiating { cluster, host, priority, wanted, waiting };
                        AcquireStream::Pending(PendingStream::Auto(Box::new(negotiating)))
                    }
                    other => other,
                };
            }
            UpstreamProtocol::Http1 => PoolProtocol::Http1,
            UpstreamProtocol::Http2 => PoolProtocol::Http2,
            UpstreamProtocol::Downstream if downstream == Version::Http2 => PoolProtocol::Http2,
            UpstreamProtocol::Downstream => PoolProtocol::Http1,
        };
        match self.pool_of(host, priority, protocol, wanted) {
            Some(pool) => pool.acquire(),
            None => AcquireStream::Failed(PoolFailure::new(PoolFailureReason::NoPool, None)),
        }
    }

    /// Of the pool of what the last handshake chose; before the first, HTTP/2 is guessed.
    pub(super) fn acquire_auto(
        &self,
        host: &Arc<Host>,
        priority: Priority,
        wanted: Option<&Rc<ServerWanted>>,
    ) -> AcquireStream {
        let tls = self.local.tls();
        let known = tls.protocols.borrow().get(&(Arc::as_ptr(host) as usize)).copied();
        let Some(pool) = self.pool_of(host, priority, known.unwrap_or(PoolProtocol::Http2), wanted) else {
            return AcquireStream::Failed(PoolFailure::new(PoolFailureReason::NoPool, None));
        };
        let parked = {
            let mut parked = tls.parked.borrow_mut();
            parked.iter().position(|(of, _)| Arc::ptr_eq(of, host)).map(|at| parked.swap_remove(at).1)
        };
        if let Some(parked) = parked {
            pool.adopt(parked);
        }
        pool.acquire()
    }

    /// An HTTP/1 connection to the host, for one request.
    pub fn acquire(&self, host: &Arc<Host>, priority: Priority) -> Acquire {
        match self.pool(host, priority) {
            Some(pool) => pool.acquire(),
            None => Acquire::Failed(PoolFailure::new(PoolFailureReason::NoPool, None)),
        }
    }

    pub(super) fn pool(&self, host: &Arc<Host>, priority: Priority) -> Option<Rc<Http1Pool>> {
        match self.pool_of(host, priority, PoolProtocol::Http1, None)? {
            Pool::Http1(pool) => Some(pool),
            Pool::Http2(_) => None,
        }
    }

    pub(super) fn pool_of(
        &self,
        host: &Arc<Host>,
        priority: Priority,
        protocol: PoolProtocol,
        wanted: Option<&Rc<ServerWanted>>,
    ) -> Option<Pool> {
        let key = PoolKey::new(host, priority, protocol, wanted);
        let mut pools = self.pools.borrow_mut();
        if let Some(pool) = pools.get(&key) {
            return Some(pool.clone());
        }
        if pools.len() >= self.crowded.get() {
            // Hosts that are chosen once in a while leave pools behind whose connections ended long ago.
            pools.retain(|_, pool| !pool.is_empty());
            self.crowded.set(CROWDED.max(2 * pools.len()));
        }
        let mut permit = Permit::ask(&self.local, priority, Resource::Pools);
        if permit.is_none() {
            // As Envoy: one that nobody uses makes room.
            if let Some(idle) = pools.iter().find(|(_, pool)| pool.is_unused()).map(|(key, _)| *key) {
                pools.remove(&idle);
                permit = Permit::ask(&self.local, priority, Resource::Pools);
            }
        }
        let Some(permit) = permit else {
            self.local.stats.failures.inc(stat::UPSTREAM_CX_POOL_OVERFLOW);
            return None;
        };
        let auto = self.local.config.http.protocol == UpstreamProtocol::Auto;
        let purpose = PoolUse { wanted: wanted.cloned(), auto };
        let pool = match protocol {
            PoolProtocol::Http1 => Pool::Http1(Http1Pool::new(&self.local, host, priority, purpose, permit)),
            PoolProtocol::Http2 => Pool::Http2(Http2Pool::new(&self.local, host, priority, purpose, permit)),
        };
        pools.insert(key, pool.clone());
        Some(pool)
    }

    /// Whether the breakers leave room for one more connection. None counts `upstream_cx_overflow`.
    /// Envoy's TCP proxy asks this before it asks for a host.
    pub fn has_room_for_connection(&self) -> bool {
        let limits = self.local.config.thresholds(Priority::Default);
        let room = self.local.breakers.has_room(limits, Priority::Default, Resource::Connections);
        if !room {
            self.local.stats.failures.inc(stat::UPSTREAM_CX_OVERFLOW);
        }
        room
    }

    #[cfg(test)]
    pub(super) fn pool_count(&self) -> usize {
        self.pools.borrow().len()
    }

    /// A connection of one's own, for bytes: counted and limited like those of the pools.
    pub fn connect_tcp(
        &self,
        host: &Arc<Host>,
        wanted: Option<Rc<ServerWanted>>,
    ) -> Result<TcpConnecting, PoolFailure> {
        TcpConnecting::begin(&self.local, host, wanted)
    }

    /// Leave to retry, if the breakers or the budget have room for one more.
    pub fn admit_retry(&self, priority: Priority) -> Option<Permit> {
        Permit::ask(&self.local, priority, Resource::Retries)
    }

    fn hosts_changed(&self, hosts: &Arc<PrioritySet>) {
        *self.hosts.borrow_mut() = hosts.clone();
        self.balancer.borrow_mut().hosts_changed(hosts);
        let on_change = self.local.config.flags().close_connections_on_host_set_change;
        self.pools.borrow_mut().retain(|_, pool| {
            let gone = pool.host().is_removed();
            if gone {
                pool.retire();
            } else if on_change {
                pool.drain();
            }
            !gone
        });
        if let Some(tls) = self.local.tls.get() {
            let live = |of: &usize| hosts.hosts().any(|host| Arc::as_ptr(host) as usize == *of);
            tls.protocols.borrow_mut().retain(|of, _| live(of));
        }
    }

    /// Connections that lie idle close now, those in use after their request.
    fn drain_host(&self, host: &Arc<Host>) {
        self.local.host_failed(host);
        // Taken out of the map: what a connection that ends wakes may look at the pools.
        let of_host = |(key, pool): (&PoolKey, &Pool)| key.is_of(host).then(|| pool.clone());
        let pools: Vec<Pool> = self.pools.borrow().iter().filter_map(of_host).collect();
        pools.iter().for_each(Pool::drain);
    }

    /// The cluster is gone, or another one has its name: requests that run end in peace.
    fn retire(&self) {
        self.pools.borrow_mut().drain().for_each(|(_, pool)| pool.retire());
    }
}
