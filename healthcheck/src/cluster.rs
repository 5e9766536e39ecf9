//! Everything about the health of one cluster's hosts, as the owner of the cluster holds it.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use nuncio_api::pb::envoy::config::cluster::v3::Cluster;
use nuncio_api::support::Entry;
use nuncio_api::supports;
use nuncio_core::access_log::LogFile;
use nuncio_core::error::ConfigError;
use nuncio_core::random::Rng;
use nuncio_core::runtime::Runtime;
use nuncio_core::stats::{Descriptor, List, ScopeId, Stats, WorkerStats};
use nuncio_core::time::WallClock;
use nuncio_core::upstream::{HealthFlags, Host, HostDialer};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep};

use crate::checker::{CheckResult, CheckerContext, HealthCheck, HealthChecker};
use crate::config::{CheckConfig, Reading};
use crate::event_log::EventLog;
use crate::monitor::{Monitor, Report, Told};
use crate::outlier::detector::{DetectorContext, OutlierDetection, OutlierReport, Outliers};
use crate::outlier::{OutlierConfig, OutlierDetector};
use crate::probe::ProbeContext;

supports!(CLUSTER = "envoy.config.cluster.v3.Cluster" { health_checks, outlier_detection });

/// What is honoured of the messages read here.
pub static SUPPORTED: &[&Entry] = &[&CLUSTER];

/// Where decisions go: the owner of the cluster.
pub trait HealthSink {
    /// These are the host's flags now, for the reason given. They are not set yet.
    fn flags(&self, host: &Arc<Host>, flags: HealthFlags, reason: &str);

    /// A host that was never well failed its first check. Nothing changes by that.
    fn never_well(&self, host: &Arc<Host>, reason: &str);

    /// One more check is complete, whatever its result.
    fn checked(&self);

    /// A connection for traffic was ever made in the cluster.
    fn has_traffic(&self) -> bool;
}

/// What a cluster wants to be done about health, checked.
pub struct HealthPlan {
    check: Option<CheckConfig>,
    outlier: Option<OutlierConfig>,
}

/// What that needs when it begins.
pub struct HealthContext {
    pub cluster: Arc<str>,
    pub dialer: Rc<dyn HostDialer>,
    pub sink: Rc<dyn HealthSink>,
    pub rng: Rng,
    pub clock: WallClock,
    pub runtime: Rc<dyn Runtime>,
    /// Where the cluster counts on this thread.
    pub stats: Rc<WorkerStats>,
    pub scope: ScopeId,
    /// `cluster_manager.outlier_detection.event_log_path`
    pub outlier_log: Option<Arc<dyn LogFile>>,
}

/// Runs until it is dropped.
pub struct ClusterHealth {
    checker: Option<Rc<HealthChecker>>,
    detector: Option<Rc<OutlierDetector>>,
    reports: UnboundedSender<Report>,
    listening: AbortHandle,
}

/// What is known of one host's health beyond its flags.
#[derive(Debug, Clone, Default)]
pub struct HostReport {
    /// The latest first.
    pub results: Vec<CheckResult>,
    pub next_check: Option<Instant>,
    pub checked: bool,
    pub outlier: Option<OutlierReport>,
}

/// Hosts are known by the object.
pub(crate) fn key(host: &Arc<Host>) -> usize {
    Arc::as_ptr(host) as usize
}

// === impl HealthPlan ===

impl HealthPlan {
    /// `None` if nothing is to be done.
    pub fn from_proto(message: &Cluster, reading: &Reading<'_>) -> Result<Option<Self>, Vec<ConfigError>> {
        let mut errors = Vec::new();
        if message.health_checks.len() > 1 {
            let reason = "health check at index 0 is missing a name; all health checks must have a name when multiple \
                          health checks are configured";
            errors.push(ConfigError::new("health_checks", reason));
        }
        let check = message.health_checks.first().and_then(|check| {
            let read = CheckConfig::from_proto(check, reading);
            read.map_err(|e| errors.push(e.within("health_checks[0]"))).ok()
        });
        let outlier = message.outlier_detection.as_ref().and_then(|outlier| {
            let read = OutlierConfig::from_proto(outlier);
            read.map_err(|e| errors.push(e.within("outlier_detection"))).ok()
        });
        match errors.is_empty() {
            false => Err(errors),
            true if check.is_none() && outlier.is_none() => Ok(None),
            true => Ok(Some(Self { check, outlier })),
        }
    }

    /// Active checks decide about new and absent hosts.
    pub fn is_checked(&self) -> bool {
        self.check.is_some()
    }

    /// Lists that are shown from the beginning.
    pub fn lists(&self) -> Vec<&'static Descriptor> {
        let check = self.check.iter().flat_map(|_| HealthCheck::descriptors());
        check.chain(self.outlier.iter().flat_map(|_| OutlierDetection::descriptors())).collect()
    }
}

// === impl ClusterHealth ===

impl ClusterHealth {
    /// Begins, without hosts.
    pub fn start(plan: HealthPlan, context: HealthContext) -> Self {
        let HealthContext { cluster, dialer, sink, rng, clock, runtime, stats, scope, outlier_log } = context;
        let log = |files: &[Arc<dyn LogFile>]| EventLog::new(files, clock, cluster.clone());
        let detector = plan.outlier.map(|config| {
            let context = DetectorContext {
                sink: sink.clone(),
                rng: rng.clone(),
                runtime: runtime.clone(),
                stats: Stats::new(&stats, scope),
                events: log(outlier_log.as_slice()),
            };
            Rc::new(OutlierDetector::new(config, context))
        });
        let checker = plan.check.map(|config| {
            let detector = detector.clone();
            let context = CheckerContext {
                probes: ProbeContext {
                    dialer,
                    cluster: cluster.clone(),
                    reuse_connection: config.reuse_connection,
                    runtime: runtime.clone(),
                    rng: rng.clone(),
                },
                sink,
                clock,
                stats: Stats::new(&stats, scope),
                events: log(&config.event_logs),
                passed: Box::new(move |host| {
                    if let Some(detector) = &detector {
                        detector.passed_check(host);
                    }
                }),
            };
            Rc::new(HealthChecker::new(config, context))
        });
        let (reports, told) = unbounded_channel();
        let listening = tokio::task::spawn_local(listen(told, checker.clone(), detector.clone())).abort_handle();
        Self { checker, detector, reports, listening }
    }

    /// Before any worker knows the added ones.
    pub fn hosts_changed(&self, added: &[Arc<Host>], removed: &[Arc<Host>]) {
        for host in removed {
            self.checker.iter().for_each(|checker| checker.remove(host));
            self.detector.iter().for_each(|detector| detector.remove(host));
        }
        for host in added {
            let tally = self.detector.as_ref().map(|detector| detector.add(host));
            let checked = self.checker.is_some() && !host.spec().disable_active_health_check;
            host.set_monitor(Arc::new(Monitor::new(host, tally, checked, self.reports.clone())));
        }
        self.checker.iter().for_each(|checker| checker.add(added));
    }

    /// Hosts that active checks ask.
    pub fn checked_hosts(&self) -> usize {
        self.checker.as_ref().map_or(0, |checker| checker.len())
    }

    /// What `/clusters` shows; none without outlier detection.
    pub fn outliers(&self) -> Option<Outliers> {
        self.detector.as_ref().map(|detector| detector.outliers())
    }

    pub fn report(&self, host: &Arc<Host>) -> HostReport {
        let checks = self.checker.as_ref().and_then(|checker| checker.report(host));
        let checked = checks.is_some();
        let (results, next_check) = checks.unwrap_or_default();
        let outlier = self.detector.as_ref().and_then(|detector| detector.report(host));
        HostReport { results, next_check, checked, outlier }
    }
}

impl Drop for ClusterHealth {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

/// What workers say, and the detector's interval.
async fn listen(
    mut told: UnboundedReceiver<Report>,
    checker: Option<Rc<HealthChecker>>,
    detector: Option<Rc<OutlierDetector>>,
) {
    // Without a detector nothing is ever due.
    let interval = || detector.as_ref().map_or(Duration::MAX, |detector| detector.interval());
    let mut tick = Box::pin(sleep(interval()));
    loop {
        tokio::select! {
            biased;
            () = &mut tick, if detector.is_some() => {
                if let Some(detector) = &detector {
                    detector.sweep();
                }
                tick.set(sleep(interval()));
            }
            report = told.recv() => match (report, &checker, &detector) {
                (None, ..) => return,
                (Some(Report { host, what: Told::FailsAtOnce }), Some(checker), _) => checker.fails_at_once(&host),
                (Some(Report { host, what: Told::Consecutive(cause) }), _, Some(detector)) => {
                    detector.reported(&host, cause);
                }
                (Some(Report { host, what: Told::Degraded }), _, Some(detector)) => detector.degraded(&host),
                _ => {}
            },
        }
    }
}
