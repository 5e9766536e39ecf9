//! One cluster as its owner knows it.

use std::rc::Rc;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use nuncio_core::runtime::Runtime;
use nuncio_core::stats::lists::cluster::{
    self as stat, CircuitBreakers as OpenList, CircuitBreakersRemaining as RemainingList, Discovery,
    LoadBalancer as LbStats, Maglev as MaglevList, Membership, RingHash as RingList, Subscription, Updates,
};
use nuncio_core::stats::lists::tls::{SocketFactory, Ssl};
use nuncio_core::stats::{AmountGuard, Gauge, List, ScopeId, Stats, Store};
use nuncio_core::upstream::{Host, HostSet, PrioritySet};
use nuncio_discovery::{Assignment, HostSource};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::super::circuit_breaker::{CircuitBreakers, Priority, Resource, Thresholds};
use super::super::cluster::{ClusterConfig, LbConfig, LbPolicy};
use super::super::lb::shared::{Report, Shared};
use super::super::membership::{self, Applied, Rules};
use super::super::snapshot::ClusterSnapshot;
use super::health::Wellness;
use super::said::{Provenance, Said};
use super::{Awaited, ClusterStatus};

/// A configuration and what became of it.
pub(super) struct Cluster {
    pub(super) id: u64,
    pub(super) snapshot: Arc<ClusterSnapshot>,
    pub(super) bytes: Bytes,
    version: Option<Arc<str>>,
    last_updated: SystemTime,
    /// Where its hosts are checked or watched.
    pub(super) wellness: Option<Box<Wellness>>,
    source: Option<Box<dyn HostSource>>,
    /// What it said; none of one that says what the configuration says.
    pub(super) said: Option<Box<Said>>,
    pub(super) running: Option<Running>,
    /// Looks after hosts that requests bring.
    pub(super) tended: Option<Running>,
    warm: bool,
    membership: Stats<Membership>,
    updates: Option<Box<Stats<Updates>>>,
    subscription: Option<Box<Stats<Subscription>>>,
    pub(super) merge: Option<Box<Merge>>,
    gauges: Option<Box<BreakerGauges>>,
    balancing: Option<Box<Balancing>>,
}

/// What came with a configuration.
pub(super) struct Told {
    pub(super) bytes: Bytes,
    pub(super) version: Option<Arc<str>>,
    pub(super) at: SystemTime,
}

/// A task that ends when this is dropped.
pub(super) struct Running(pub(super) AbortHandle);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Where a cluster is in its `update_merge_window`.
#[derive(Default)]
pub(super) struct Merge {
    pub(super) last: Option<Instant>,
    pub(super) timer: Option<Running>,
}

/// By priority; made when there is something to show.
struct BreakerGauges {
    open: [Stats<OpenList>; 2],
    remaining: [Stats<RemainingList>; 2],
}

impl Cluster {
    pub(super) fn new(
        id: u64,
        config: Arc<ClusterConfig>,
        told: Told,
        source: Box<dyn HostSource>,
        wellness: Option<Box<Wellness>>,
        runtime: &Rc<dyn Runtime>,
        store: &mut Store,
    ) -> Self {
        let scope = store.scope(&stat::SCOPE, &config.info.observability_name);
        for priority in Priority::ALL {
            if config.thresholds(priority).track_remaining {
                store.declare(scope, &RemainingList::descriptors()[priority as usize]);
            }
        }
        let lists = wellness.as_ref().and_then(|wellness| wellness.plan()).map(|plan| plan.lists());
        lists.into_iter().flatten().for_each(|list| store.declare(scope, list));
        if let Some(sockets) = config.transport() {
            sockets.contexts().for_each(|tls| tls.count_at(scope));
            store.declare(scope, &Ssl::descriptors()[0]);
            store.declare(scope, &SocketFactory::descriptors()[0]);
            if sockets.contexts().any(|tls| tls.verifies_nothing()) {
                tracing::warn!(
                    cluster = &*config.info.name,
                    "its TLS context trusts whoever answers: it has no trusted_ca, name or pin to verify"
                );
            }
        }
        let breakers = Arc::<CircuitBreakers>::default();
        let shared = Shared::new(&config.lb);
        Self {
            id,
            balancing: shared.as_ref().map(|_| Box::new(Balancing::new(store, scope, runtime))),
            snapshot: Arc::new(ClusterSnapshot { config, breakers, shared, hosts: Arc::default(), scope }),
            bytes: told.bytes,
            version: told.version,
            last_updated: told.at,
            wellness,
            source: Some(source),
            said: None,
            running: None,
            tended: None,
            warm: false,
            membership: Stats::new(store.main(), scope),
            updates: None,
            subscription: None,
            merge: None,
            gauges: None,
        }
    }

    pub(super) fn config(&self) -> &Arc<ClusterConfig> {
        &self.snapshot.config
    }

    pub(super) fn name(&self) -> &Arc<str> {
        self.config().name()
    }

    pub(super) fn is_warm(&self) -> bool {
        self.warm
    }

    pub(super) fn set_warm(&mut self) {
        self.warm = true;
    }

    /// Before it runs.
    pub(super) fn source(&self) -> Option<&dyn HostSource> {
        self.source.as_deref()
    }

    /// To be run; once.
    pub(super) fn take_source(&mut self, now: SystemTime) -> Option<Box<dyn HostSource>> {
        let source = self.source.take()?;
        self.said = source.who().map(|who| Box::new(Said::new(who.into(), now)));
        Some(source)
    }

    pub(super) fn updates(&mut self) -> &Stats<Updates> {
        let (membership, scope) = (&self.membership, self.snapshot.scope);
        self.updates.get_or_insert_with(|| Box::new(Stats::new(membership.worker(), scope)))
    }

    /// Born, and so listed, when it is first asked for.
    pub(super) fn subscription(&mut self) -> &Stats<Subscription> {
        let (membership, scope) = (&self.membership, self.snapshot.scope);
        self.subscription.get_or_insert_with(|| {
            let stats = Stats::new(membership.worker(), scope);
            stats.add(stat::UPDATE_REJECTED, 0);
            Box::new(stats)
        })
    }

    /// Born when the cluster was protected for the first time.
    pub(super) fn discovery(&mut self) -> &Stats<Discovery> {
        let (membership, scope, now) = (&self.membership, self.snapshot.scope, self.last_updated);
        let said = self.said.get_or_insert_with(|| Box::new(Said::new(Arc::default(), now)));
        said.stats(|| Stats::new(membership.worker(), scope))
    }

    pub(super) fn show_version(&mut self, version: &str) {
        self.updates().set(stat::VERSION, xxhash_rust::xxh64::xxh64(version.as_bytes(), 0));
    }

    /// For the record.
    pub(super) fn note(&mut self, applied: &Applied, at: SystemTime) {
        if let Some(said) = &mut self.said {
            said.applied(applied, self.snapshot.hosts.host_count(), at);
        }
    }

    pub(super) fn provenance(&self) -> Option<Provenance> {
        self.said.as_ref().map(|said| said.show())
    }

    /// Since when, and for whom, it is waited.
    pub(super) fn awaited(&self) -> Awaited {
        let said = self.said.as_ref();
        Awaited {
            name: self.name().clone(),
            who: said.map(|said| said.awaited()),
            since: said.map_or(self.last_updated, |said| said.asked_first()),
        }
    }

    pub(super) fn status(&self, warming: bool) -> ClusterStatus {
        ClusterStatus {
            snapshot: self.snapshot.clone(),
            bytes: self.bytes.clone(),
            last_updated: self.last_updated,
            version: self.version.clone(),
            warming,
        }
    }

    /// What discovery says now.
    pub(super) fn apply(&mut self, assignment: Assignment) -> Applied {
        let flags = self.config().flags();
        let rules = Rules {
            checked: self.wellness.as_ref().is_some_and(|wellness| wellness.checked),
            ignore_new_until_first_check: flags.ignore_new_hosts_until_first_hc,
            ignore_health_on_removal: flags.ignore_health_on_host_removal,
        };
        let applied = membership::apply(&self.snapshot.hosts, assignment, rules);
        if let Some(wellness) = &mut self.wellness {
            wellness.hosts_changed(&applied);
        }
        if applied.changed {
            if !applied.added.is_empty() || !applied.removed.is_empty() {
                self.membership.inc(stat::MEMBERSHIP_CHANGE);
                self.membership.add(stat::DEFAULT_TOTAL_MATCH_COUNT, applied.added.len() as u64);
            }
            self.picture(applied.hosts.clone());
        }
        applied
    }

    /// The hosts are these now, which were made elsewhere; true if they were others.
    pub(super) fn adopt(&mut self, hosts: &[Arc<Host>]) -> bool {
        let before = self.snapshot.hosts.hosts().cloned().collect::<Vec<_>>();
        let among = |list: &[Arc<Host>], host: &Arc<Host>| list.iter().any(|other| Arc::ptr_eq(other, host));
        let (kept, gone): (Vec<_>, Vec<_>) = before.into_iter().partition(|host| among(hosts, host));
        let mut added: Vec<_> = hosts.iter().filter(|host| !among(&kept, host)).cloned().collect();
        if gone.is_empty() && added.is_empty() {
            return false;
        }
        gone.iter().for_each(|host| host.set_removed());
        added.sort_unstable_by(|one, other| one.address().cmp(other.address()));
        self.membership.inc(stat::MEMBERSHIP_CHANGE);
        self.membership.add(stat::DEFAULT_TOTAL_MATCH_COUNT, added.len() as u64);
        let all = kept.into_iter().chain(added).collect();
        let set = HostSet::new(all, |_| 0, HostSet::DEFAULT_OVERPROVISIONING);
        self.picture(Arc::new(PrioritySet { priorities: [Arc::new(set)].into(), drop_overload: 0 }));
        true
    }

    pub(super) fn owns(&self, host: &Arc<Host>) -> bool {
        let set = self.snapshot.hosts.priorities.get(host.priority() as usize);
        set.is_some_and(|set| set.hosts.iter().any(|own| Arc::ptr_eq(own, host)))
    }

    /// A host is nobody's any more.
    pub(super) fn delete(&mut self, host: &Arc<Host>) {
        host.set_removed();
        self.membership.inc(stat::MEMBERSHIP_CHANGE);
        self.picture(membership::without(&self.snapshot.hosts, host));
    }

    /// Health changed in that priority.
    pub(super) fn picture_anew(&mut self, priority: u32) {
        self.picture(membership::picture_anew(&self.snapshot.hosts, priority));
    }

    fn picture(&mut self, hosts: Arc<PrioritySet>) {
        let ClusterSnapshot { config, breakers, shared, scope, .. } = &*self.snapshot;
        let (config, breakers, shared, scope) = (config.clone(), breakers.clone(), shared.clone(), *scope);
        if let (Some(shared), Some(balancing)) = (&shared, &mut self.balancing) {
            balancing.show(&config.lb, &shared.update(&config.lb, &*balancing.runtime, &hosts));
        }
        self.snapshot = Arc::new(ClusterSnapshot { config, breakers, shared, hosts, scope });
        self.count_members();
    }

    fn count_members(&self) {
        let sets = &self.snapshot.hosts.priorities;
        let sum = |count: fn(&HostSet) -> usize| sets.iter().map(|set| count(set) as u64).sum();
        self.show(stat::MEMBERSHIP_TOTAL, sum(|set| set.hosts.len()));
        self.show(stat::MEMBERSHIP_HEALTHY, sum(|set| set.healthy.len()));
        self.show(stat::MEMBERSHIP_DEGRADED, sum(|set| set.degraded.len()));
        self.show(stat::MEMBERSHIP_EXCLUDED, sum(|set| set.excluded));
    }

    /// A cluster that never had a member costs no block.
    fn show(&self, gauge: Gauge<Membership>, value: u64) {
        if value > 0 || self.membership.is_born() {
            self.membership.set(gauge, value);
        }
    }

    pub(super) fn update_breaker_gauges(&mut self, store: &mut Store) {
        for priority in Priority::ALL {
            let limits = self.snapshot.config.thresholds(priority);
            let breakers = &self.snapshot.breakers;
            // Envoy sees a limit as reached when something is taken or given, not before.
            let open = RESOURCES.map(|(resource, ..)| {
                let used = breakers.in_use(priority, resource);
                used > 0 && used >= breakers.limit(limits, priority, resource)
            });
            if self.gauges.is_none() && !limits.track_remaining && open == [false; 5] {
                continue;
            }
            let scope = self.snapshot.scope;
            let gauges = self.gauges.get_or_insert_with(|| {
                Box::new(BreakerGauges {
                    open: [0, 1].map(|prefix| Stats::under(store.main(), scope, prefix)),
                    remaining: [0, 1].map(|prefix| Stats::under(store.main(), scope, prefix)),
                })
            });
            gauges.show(priority, limits, breakers, open);
        }
    }

    /// Gone, or replaced: its hosts are nobody's any more.
    pub(super) fn discard(self, store: &mut Store) {
        self.snapshot.hosts.hosts().for_each(|host| host.set_removed());
        store.release(self.snapshot.scope);
    }
}

/// What is built for all balancers is built by it, and shown.
struct Balancing {
    runtime: Rc<dyn Runtime>,
    subsets: Stats<LbStats>,
    active: AmountGuard<LbStats>,
    ring: Stats<RingList>,
    maglev: Stats<MaglevList>,
}

impl Balancing {
    fn new(store: &Store, scope: ScopeId, runtime: &Rc<dyn Runtime>) -> Self {
        let subsets = Stats::<LbStats>::new(store.main(), scope);
        let active = subsets.amount(stat::LB_SUBSETS_ACTIVE);
        let (ring, maglev) = (Stats::new(store.main(), scope), Stats::new(store.main(), scope));
        Self { runtime: runtime.clone(), subsets, active, ring, maglev }
    }

    /// Main counts subsets as one of the threads, as in Envoy.
    fn show(&mut self, config: &LbConfig, report: &Report) {
        self.active.set(report.subsets.active);
        self.subsets.add(stat::LB_SUBSETS_CREATED, report.subsets.created);
        self.subsets.add(stat::LB_SUBSETS_REMOVED, report.subsets.removed);
        let Some(evenness) = report.evenness else { return };
        if let LbPolicy::Maglev(_) = config.policy {
            self.maglev.set(stat::MIN_ENTRIES_PER_HOST, evenness.min);
            self.maglev.set(stat::MAX_ENTRIES_PER_HOST, evenness.max);
        } else {
            self.ring.set(stat::RING_SIZE, evenness.size);
            self.ring.set(stat::MIN_HASHES_PER_HOST, evenness.min);
            self.ring.set(stat::MAX_HASHES_PER_HOST, evenness.max);
        }
    }
}

type Gauges = (Gauge<OpenList>, Gauge<RemainingList>);

const RESOURCES: [(Resource, Gauges); 5] = [
    (Resource::Connections, (stat::CX_OPEN, stat::REMAINING_CX)),
    (Resource::PendingRequests, (stat::RQ_PENDING_OPEN, stat::REMAINING_PENDING)),
    (Resource::Requests, (stat::RQ_OPEN, stat::REMAINING_RQ)),
    (Resource::Retries, (stat::RQ_RETRY_OPEN, stat::REMAINING_RETRIES)),
    (Resource::Pools, (stat::CX_POOL_OPEN, stat::REMAINING_CX_POOLS)),
];

impl BreakerGauges {
    fn show(&self, priority: Priority, limits: &Thresholds, breakers: &CircuitBreakers, open: [bool; 5]) {
        let at = priority as usize;
        for ((resource, (is_open, left)), open) in RESOURCES.into_iter().zip(open) {
            self.open[at].set(is_open, open.into());
            if limits.track_remaining {
                let limit = breakers.limit(limits, priority, resource);
                self.remaining[at].set(left, limit.saturating_sub(breakers.in_use(priority, resource)).into());
            }
        }
    }
}
