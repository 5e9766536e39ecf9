//! Where what discovery says of hosts meets what is known of their health: the manager's side of health checks and
//! outlier detection.
//!
//! Flags change here and nowhere else. What follows from a change is collected like any other change of a cluster, but
//! two things happen at once: a host that failed loses its idle connections, and one that discovery does not name any
//! more and that fails its check is deleted.

use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::SystemTime;

use nuncio_api::pb::envoy::config::cluster::v3 as pb;
use nuncio_core::access_log::LogContext;
use nuncio_core::access_log::{LogFile, LogFiles, LogTarget};
use nuncio_core::error::ConfigError;
use nuncio_core::http::RequestHead;
use nuncio_core::runtime::Runtime;
use nuncio_core::stream_info::StreamInfo;
use nuncio_core::time::WallClock;
use nuncio_core::upstream::{Health, HealthFlag, HealthFlags, Host, HostDialer};
use nuncio_healthcheck::config::Reading;
use nuncio_healthcheck::outlier::detector::Outliers;
use nuncio_healthcheck::probe::HeaderMutation;
use nuncio_healthcheck::{ClusterHealth, HealthContext, HealthPlan, HealthSink, HostReport};

use tokio::time::Instant;

use super::entry::Cluster;
use super::history::{Decision, Transition};
use super::{ClusterManager, Inner, Warming};
use crate::format::header_mutation::{HeaderMutations, MutationValues};
use crate::upstream::cluster::ClusterConfig;
use crate::upstream::dial::{CheckTls, DialContext, Dialer};
use crate::upstream::http_options::UpstreamProtocol;
use crate::upstream::lb::priority::{PriorityState, panic_threshold};
use crate::upstream::membership::Applied;
use crate::upstream::snapshot::{ClusterSnapshot, ClusterUpdate};

/// Whether the hosts of a cluster are well, and whether they must have been asked before it serves.
#[derive(Default)]
pub(super) struct Wellness {
    /// Until it starts.
    plan: Option<HealthPlan>,
    tls: CheckTls,
    running: Option<ClusterHealth>,
    /// Active checks count in the table of discovery and health.
    pub(super) checked: bool,
    /// Checks that must be complete before the cluster is warm, and what holds it back until then.
    awaited: usize,
    held: Option<Warming>,
    /// Priorities of which the picture is older than the flags of their hosts.
    stale: Vec<u32>,
}

/// What `/clusters` shows.
pub struct ClusterView {
    pub snapshot: Arc<ClusterSnapshot>,
    /// With outlier detection.
    pub outliers: Option<Outliers>,
}

/// What `/health` shows.
pub struct HealthView {
    pub snapshot: Arc<ClusterSnapshot>,
    pub warming: bool,
    /// Active checks decide.
    pub checked: bool,
    /// Priorities of which so few hosts are available that health does not count there.
    pub panic: Vec<usize>,
    /// In the order of the snapshot.
    pub hosts: Vec<(Arc<Host>, HostReport)>,
}

struct NoLogFiles;

impl LogFiles for NoLogFiles {
    fn open(&self, _: &LogTarget) -> Result<Arc<dyn LogFile>, ConfigError> {
        Err(ConfigError::new("", "there are no log files here"))
    }
}

/// What a cluster wants to be done.
pub(super) fn plan(
    message: &pb::Cluster,
    config: &ClusterConfig,
    files: Option<&dyn LogFiles>,
    clock: WallClock,
) -> Result<Option<HealthPlan>, Vec<ConfigError>> {
    let reading = Reading {
        cluster: &message.name,
        http2: config.http.protocol == UpstreamProtocol::Http2,
        log_files: files.unwrap_or(&NoLogFiles),
        mutation: &|add, remove| {
            let mutations = HeaderMutations::new(add, remove)?;
            Ok(Rc::new(move |head: &mut RequestHead, host: &Arc<Host>| {
                let info =
                    StreamInfo { upstream_host: Some(host.clone()), ..StreamInfo::new(clock.now(), Instant::now()) };
                mutations.apply_to_request(head, &LogContext::new(&info), &mut MutationValues::default());
            }) as HeaderMutation)
        },
    };
    HealthPlan::from_proto(message, &reading)
}

// === impl Wellness ===

impl Wellness {
    pub(super) fn new(plan: Option<HealthPlan>, message: &pb::Cluster) -> Option<Box<Self>> {
        let checked = plan.as_ref().is_some_and(HealthPlan::is_checked);
        let tls = CheckTls::from_cluster(message);
        plan.map(|plan| Box::new(Self { checked, plan: Some(plan), tls, ..Self::default() }))
    }

    pub(super) fn plan(&self) -> Option<&HealthPlan> {
        self.plan.as_ref()
    }

    pub(super) fn hosts_changed(&mut self, applied: &Applied) {
        if let Some(running) = &self.running {
            running.hosts_changed(&applied.added, &applied.removed);
        }
    }

    fn lost(&mut self, host: &Arc<Host>) {
        if let Some(running) = &self.running {
            running.hosts_changed(&[], std::slice::from_ref(host));
        }
    }

    pub(super) fn take_stale(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.stale)
    }

    /// Every host must have answered, or failed to, before the cluster serves: what held it back until its source
    /// spoke goes on to do so. What is returned is let go, outside of whatever is borrowed here.
    #[must_use]
    fn hold(&mut self, warming: Warming) -> Option<Warming> {
        self.awaited = self.running.as_ref().map_or(0, ClusterHealth::checked_hosts);
        if self.awaited == 0 {
            return Some(warming);
        }
        self.held.replace(warming)
    }

    fn check_done(&mut self) -> Option<Warming> {
        self.awaited = self.awaited.saturating_sub(1);
        if self.awaited == 0 { self.held.take() } else { None }
    }
}

// === impl ClusterManager ===

impl ClusterManager {
    /// Before it starts: what health checks are made with.
    pub fn probe_with(&self, dial: DialContext) {
        self.0.state.borrow_mut().probing = Some(dial);
    }

    /// What checks or traffic say of a host's health, all flags of it. A host that became unhealthy loses its idle
    /// connections at once; balancers hear of it within `update_merge_window`.
    pub fn set_health(&self, cluster: &str, host: &Arc<Host>, flags: HealthFlags, reason: &str) {
        let owner = {
            let state = self.0.state.borrow();
            let slot = state.slots.get(cluster);
            let both = slot.into_iter().flat_map(|slot| [slot.active.as_ref(), slot.warming.as_ref()]);
            both.flatten().find(|owner| owner.owns(host)).map(|owner| (owner.name().clone(), owner.id))
        };
        if let Some((name, id)) = owner {
            self.0.health_changed(&name, id, host, flags, reason);
        }
    }

    /// The active clusters, in the order in which they were added.
    pub fn views(&self) -> Vec<ClusterView> {
        let state = self.0.state.borrow();
        let mut active: Vec<_> = state.slots.values().filter_map(|slot| slot.active.as_ref()).collect();
        active.sort_unstable_by_key(|cluster| cluster.id);
        let view = |cluster: &Cluster| {
            let running = cluster.wellness.as_ref().and_then(|wellness| wellness.running.as_ref());
            ClusterView { snapshot: cluster.snapshot.clone(), outliers: running.and_then(ClusterHealth::outliers) }
        };
        active.into_iter().map(|cluster| view(cluster)).collect()
    }

    /// What is known of the health of every host.
    pub fn health(&self) -> Vec<HealthView> {
        let state = self.0.state.borrow();
        let mut all: Vec<(bool, &Cluster)> = Vec::with_capacity(state.slots.len());
        for slot in state.slots.values() {
            all.extend(slot.active.as_deref().map(|cluster| (false, cluster)));
            all.extend(slot.warming.as_deref().map(|cluster| (true, cluster)));
        }
        all.sort_unstable_by_key(|(warming, cluster)| (*warming, cluster.id));
        let runtime = &*self.0.defaults.runtime;
        all.into_iter().map(|(warming, cluster)| cluster.health_view(warming, runtime)).collect()
    }

    /// The last transitions, the latest first.
    pub fn transitions(&self) -> Vec<Transition> {
        self.0.history.borrow().transitions().rev().cloned().collect()
    }
}

impl Cluster {
    fn health_view(&self, warming: bool, runtime: &dyn Runtime) -> HealthView {
        let running = self.wellness.as_ref().and_then(|wellness| wellness.running.as_ref());
        let hosts = self.snapshot.hosts.hosts();
        let report = |host: &Arc<Host>| running.map(|running| running.report(host)).unwrap_or_default();
        let threshold = panic_threshold(self.config().lb.panic_threshold, |key| runtime.integer(key));
        let priorities = PriorityState::new(&self.snapshot.hosts, threshold);
        let sets = self.snapshot.hosts.priorities.iter().enumerate();
        let in_panic = sets.filter(|(at, set)| !set.hosts.is_empty() && priorities.in_panic(*at));
        HealthView {
            snapshot: self.snapshot.clone(),
            warming,
            panic: in_panic.map(|(at, _)| at).collect(),
            checked: self.wellness.as_ref().is_some_and(|wellness| wellness.checked),
            hosts: hosts.map(|host| (host.clone(), report(host))).collect(),
        }
    }
}

// === impl Inner ===

impl Inner {
    /// Before the source speaks.
    pub(super) fn start_health(self: &Rc<Self>, name: &Arc<str>, id: u64) {
        let Some(dial) = self.state.borrow().probing.clone() else { return };
        let reports = Reports { manager: Rc::downgrade(self), name: name.clone(), id };
        let stats = self.store.borrow().main().clone();
        self.with(name, id, |cluster| {
            let wellness = cluster.wellness.as_mut();
            let begun = wellness.and_then(|wellness| Some((wellness.plan.take()?, std::mem::take(&mut wellness.tls))));
            let Some((plan, tls)) = begun else { return };
            let (config, scope) = (cluster.config().clone(), cluster.snapshot.scope);
            let dialer: Rc<dyn HostDialer> = Rc::new(Dialer::new(dial, config, tls, (&stats, scope)));
            let running = ClusterHealth::start(
                plan,
                HealthContext {
                    cluster: name.clone(),
                    dialer,
                    sink: Rc::new(reports),
                    rng: self.context.rng.clone(),
                    clock: self.context.clock,
                    runtime: self.defaults.runtime.clone(),
                    stats,
                    scope: cluster.snapshot.scope,
                    outlier_log: self.defaults.outlier_log.clone(),
                },
            );
            if let Some(wellness) = &mut cluster.wellness {
                wellness.running = Some(running);
            }
        });
    }

    /// The source of a cluster has said what there is: the first round of checks may still hold it back.
    pub(super) fn source_spoke(&self, name: &str, id: u64, warming: Option<Warming>) {
        let Some(warming) = warming else { return };
        let mut warming = Some(warming);
        let released = self.with(name, id, |cluster| match &mut cluster.wellness {
            Some(wellness) => warming.take().and_then(|warming| wellness.hold(warming)),
            None => None,
        });
        // Letting go of it may publish the cluster, which needs what was borrowed.
        drop((released, warming));
    }

    fn check_done(&self, name: &str, id: u64) {
        let released =
            self.with(name, id, |cluster| cluster.wellness.as_mut().and_then(|wellness| wellness.check_done()));
        drop(released);
    }

    /// A change of what is known of a host.
    pub(super) fn health_changed(
        self: &Rc<Self>,
        name: &Arc<str>,
        id: u64,
        host: &Arc<Host>,
        flags: HealthFlags,
        reason: &str,
    ) {
        let before = host.flags();
        if before == flags || host.is_removed() {
            return;
        }
        host.set_flags(flags);
        let gone = flags.contains(HealthFlag::PendingDynamicRemoval) && flags.contains(HealthFlag::FailedActiveHc);
        let now = self.context.clock.now();
        let known = self.with(name, id, |cluster| {
            if gone {
                cluster.delete(host);
                if let Some(said) = &mut cluster.said {
                    said.gone(host, now, format!("{} does not name it, and its check failed", said.answer()));
                }
            }
            if let Some(wellness) = &mut cluster.wellness {
                if gone {
                    wellness.lost(host);
                } else if !wellness.stale.contains(&host.priority()) {
                    wellness.stale.push(host.priority());
                }
            } else if !gone {
                cluster.picture_anew(host.priority());
            }
        });
        if known.is_none() {
            return;
        }
        let decision = if gone { Decision::Deleted } else { Decision::of(flags) };
        self.history.borrow_mut().record(self.now(), name, host, (before, flags), decision, reason);
        {
            let mut state = self.state.borrow_mut();
            if !gone {
                state.stale.push((name.clone(), id));
            }
            if flags.health() == Health::Unhealthy && before.health() != Health::Unhealthy {
                state.failed.push(ClusterUpdate::HostFailed { cluster: name.clone(), host: host.clone() });
            }
        }
        self.schedule_flush();
        self.changed(name, id, !gone);
    }

    /// What discovery's word meant for hosts whose health counts.
    pub(super) fn membership_changed(&self, name: &Arc<str>, applied: &Applied, ignores_health: bool) {
        let mut history = self.history.borrow_mut();
        let pending = |flags: HealthFlags| flags.with(HealthFlag::PendingDynamicRemoval);
        let mut record = |host: &Host, flags, decision, reason: &str| {
            history.record(self.now(), name, host, flags, decision, reason);
        };
        for host in &applied.absent {
            let flags = host.flags();
            let before = flags.without(HealthFlag::PendingDynamicRemoval);
            let reason = "absent from discovery, but its checks pass";
            record(host, (before, flags), Decision::of(flags), reason);
        }
        for host in &applied.returned {
            let flags = host.flags();
            record(host, (pending(flags), flags), Decision::of(flags), "discovered again");
        }
        for host in &applied.removed {
            let flags = host.flags();
            let reason = match () {
                () if ignores_health => "absent from discovery (ignore_health_on_host_removal)",
                () if host.spec().disable_active_health_check => "absent from discovery, and not checked",
                () => "absent from discovery, and not well",
            };
            record(host, (flags, flags), Decision::Deleted, reason);
        }
    }

    pub(super) fn now(&self) -> SystemTime {
        self.context.clock.now()
    }

    /// Hosts of clusters change their health one by one; their pictures are taken anew together.
    pub(super) fn picture_stale(&self) {
        let stale = std::mem::take(&mut self.state.borrow_mut().stale);
        for (name, id) in stale {
            self.with(&name, id, |cluster| {
                let priorities = cluster.wellness.as_mut().map(|wellness| wellness.take_stale()).unwrap_or_default();
                priorities.into_iter().for_each(|priority| cluster.picture_anew(priority));
            });
        }
    }
}

// === impl Reports ===

/// The way of a cluster's judges to the manager.
struct Reports {
    manager: Weak<Inner>,
    name: Arc<str>,
    id: u64,
}

impl HealthSink for Reports {
    fn flags(&self, host: &Arc<Host>, flags: HealthFlags, reason: &str) {
        if let Some(manager) = self.manager.upgrade() {
            manager.health_changed(&self.name, self.id, host, flags, reason);
        }
    }

    fn never_well(&self, host: &Arc<Host>, reason: &str) {
        if let Some(manager) = self.manager.upgrade() {
            let flags = host.flags();
            let decision = Decision::of(flags);
            manager.history.borrow_mut().record(manager.now(), &self.name, host, (flags, flags), decision, reason);
        }
    }

    fn checked(&self) {
        if let Some(manager) = self.manager.upgrade() {
            manager.check_done(&self.name, self.id);
        }
    }

    fn has_traffic(&self) -> bool {
        let manager = self.manager.upgrade();
        let used = manager.and_then(|m| m.with(&self.name, self.id, |c| c.snapshot.breakers.has_been_used()));
        used.unwrap_or(false)
    }
}
