//! Who is ejected, for how long, and when a host comes back. On the main thread.
//!
//! An ejected host is flagged and nothing else: it leaves the rotation as a host does whose checks fail. Each ejection is
//! longer than the one before it, and every interval without one makes the next shorter again.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use nuncio_core::random::Rng;
use nuncio_core::runtime::Runtime;
use nuncio_core::stats::{Counter, Stats};
use nuncio_core::upstream::{HealthFlag, Host};
use tokio::time::Instant;

use super::config::{OutlierConfig, Setting};
use super::success_rate::Threshold;
use super::tally::{Limits, Origin, Tally};
use super::{Cause, Ejection, Rates};
use crate::cluster::{HealthSink, key};
use crate::event_log::EventLog;
use crate::probe::is_enabled;

nuncio_core::stats! {
    /// Who was ejected and why. Main counts this. `detected` also counts what was not enforced.
    pub OutlierDetection at ["outlier_detection."] {
        gauge EJECTIONS_ACTIVE;
        counter EJECTIONS_CONSECUTIVE_5XX;
        counter EJECTIONS_DETECTED_CONSECUTIVE_5XX;
        counter EJECTIONS_DETECTED_CONSECUTIVE_GATEWAY_FAILURE;
        counter EJECTIONS_DETECTED_CONSECUTIVE_LOCAL_ORIGIN_FAILURE;
        counter EJECTIONS_DETECTED_DEGRADATION;
        counter EJECTIONS_DETECTED_FAILURE_PERCENTAGE;
        counter EJECTIONS_DETECTED_LOCAL_ORIGIN_FAILURE_PERCENTAGE;
        counter EJECTIONS_DETECTED_LOCAL_ORIGIN_SUCCESS_RATE;
        counter EJECTIONS_DETECTED_SUCCESS_RATE;
        counter EJECTIONS_ENFORCED_CONSECUTIVE_5XX;
        counter EJECTIONS_ENFORCED_CONSECUTIVE_GATEWAY_FAILURE;
        counter EJECTIONS_ENFORCED_CONSECUTIVE_LOCAL_ORIGIN_FAILURE;
        counter EJECTIONS_ENFORCED_FAILURE_PERCENTAGE;
        counter EJECTIONS_ENFORCED_LOCAL_ORIGIN_FAILURE_PERCENTAGE;
        counter EJECTIONS_ENFORCED_LOCAL_ORIGIN_SUCCESS_RATE;
        counter EJECTIONS_ENFORCED_SUCCESS_RATE;
        counter EJECTIONS_ENFORCED_TOTAL;
        counter EJECTIONS_OVERFLOW;
        counter EJECTIONS_SUCCESS_RATE;
        counter EJECTIONS_TOTAL;
    }
}

/// What the detector of a cluster needs.
pub struct DetectorContext {
    pub sink: Rc<dyn HealthSink>,
    pub rng: Rng,
    pub runtime: Rc<dyn Runtime>,
    pub stats: Stats<OutlierDetection>,
    pub events: EventLog,
}

/// One cluster's.
pub struct OutlierDetector {
    config: OutlierConfig,
    context: DetectorContext,
    limits: Arc<Limits>,
    hosts: RefCell<HashMap<usize, Entry>>,
    ejected: Cell<u64>,
    thresholds: Cell<[Threshold; 2]>,
}

struct Entry {
    host: Arc<Host>,
    tally: Arc<Tally>,
    ejection: Term,
    degradation: Term,
    ejections: u32,
    returned_at: Option<Instant>,
    /// By origin; -1 if too little was heard.
    rates: [f64; 2],
    cause: Option<&'static str>,
}

/// For how long a host is put aside.
#[derive(Default)]
struct Term {
    /// How many times the base time.
    times: u32,
    /// The last one.
    began: Option<Instant>,
    jitter: Duration,
}

/// What `/clusters` shows of a cluster, by origin.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClusterRates {
    pub external: Threshold,
    pub local: Threshold,
}

/// The rates of the last interval, for `/clusters`.
#[derive(Debug, Clone)]
pub struct Outliers {
    pub cluster: ClusterRates,
    hosts: HashMap<usize, [f64; 2]>,
}

impl Outliers {
    /// Of one host: of its answers, and of what was not its fault; -1 if too little was heard.
    pub fn of(&self, host: &Arc<Host>) -> [f64; 2] {
        self.hosts.get(&key(host)).copied().unwrap_or([-1.0; 2])
    }
}

/// What is known of one host.
#[derive(Debug, Clone, PartialEq)]
pub struct OutlierReport {
    /// -1 if too little was heard.
    pub success_rate: f64,
    pub local_origin_success_rate: f64,
    pub ejections: u32,
    /// For how long it is ejected, and why.
    pub ejected: Option<(Duration, &'static str)>,
}

// === impl OutlierDetector ===

impl OutlierDetector {
    pub fn new(config: OutlierConfig, context: DetectorContext) -> Self {
        let limits = Arc::<Limits>::default();
        limits.read(&config, &*context.runtime);
        let (hosts, thresholds) = (RefCell::default(), Cell::new([Threshold::NONE; 2]));
        Self { config, context, limits, hosts, ejected: Cell::new(0), thresholds }
    }

    /// How long until the next [`sweep`](Self::sweep).
    pub fn interval(&self) -> Duration {
        self.config.time(Setting::IntervalMs, &*self.context.runtime).max(Duration::from_millis(1))
    }

    /// A host is known now; its workers' reports go to what is returned.
    pub fn add(&self, host: &Arc<Host>) -> Arc<Tally> {
        let OutlierConfig { split_external_local_origin_errors: split, detect_degraded_hosts, .. } = self.config;
        let tally = Arc::new(Tally::new(self.limits.clone(), split, detect_degraded_hosts));
        let entry = Entry {
            host: host.clone(),
            tally: tally.clone(),
            ejection: Term::default(),
            degradation: Term::default(),
            ejections: 0,
            returned_at: None,
            rates: [-1.0; 2],
            cause: None,
        };
        self.hosts.borrow_mut().insert(key(host), entry);
        tally
    }

    pub fn remove(&self, host: &Arc<Host>) {
        if self.hosts.borrow_mut().remove(&key(host)).is_some() && is_ejected(host) {
            self.count_ejected(self.ejected.get().saturating_sub(1));
        }
    }

    /// Workers saw so many failures in a row.
    pub fn reported(&self, host: &Arc<Host>, cause: Cause) {
        match self.hosts.borrow().get(&key(host)) {
            Some(entry) if !is_ejected(host) => entry.tally.forget(cause),
            _ => return,
        }
        if cause == Cause::Consecutive5xx {
            self.context.stats.inc(EJECTIONS_CONSECUTIVE_5XX);
        }
        self.eject(host, cause);
    }

    /// An active check of the host passed: then it is not an outlier either, if configured so.
    pub fn passed_check(&self, host: &Arc<Host>) {
        if self.config.uneject_on_active_check && is_ejected(host) {
            self.bring_back(host, "an active check passed");
        }
    }

    /// At every interval: hosts come back, and the rates of the interval are compared.
    pub fn sweep(&self) {
        self.limits.read(&self.config, &*self.context.runtime);
        let now = Instant::now();
        let hosts: Vec<Arc<Host>> = self.hosts.borrow().values().map(|entry| entry.host.clone()).collect();
        for host in &hosts {
            if self.is_over(host, HealthFlag::FailedOutlierCheck, now) {
                self.bring_back(host, "its ejection time is over");
            }
            if self.is_over(host, HealthFlag::DegradedOutlierDetection, now) {
                self.degraded_no_longer(host);
            }
        }
        for origin in Origin::ALL {
            for (host, cause) in self.compare(origin) {
                if let Cause::SuccessRate(_) | Cause::SuccessRateLocalOrigin(_) = cause {
                    self.context.stats.inc(EJECTIONS_SUCCESS_RATE);
                }
                if !is_ejected(&host) {
                    self.eject(&host, cause);
                }
            }
        }
    }

    /// The time of what is flagged so is over. A host that is well gets a shorter time next time.
    fn is_over(&self, host: &Arc<Host>, flag: HealthFlag, now: Instant) -> bool {
        let mut hosts = self.hosts.borrow_mut();
        let Some(entry) = hosts.get_mut(&key(host)) else { return false };
        let degraded = flag == HealthFlag::DegradedOutlierDetection;
        let term = if degraded { &mut entry.degradation } else { &mut entry.ejection };
        if !host.flags().contains(flag) {
            term.times = term.times.saturating_sub(1);
            return false;
        }
        let [base, most] = self.bounds();
        let length = base.saturating_mul(term.times).min(most).saturating_add(term.jitter);
        term.began.is_none_or(|at| now.saturating_duration_since(at) >= length)
    }

    /// The time that is multiplied, and the longest.
    fn bounds(&self) -> [Duration; 2] {
        [Setting::BaseEjectionTimeMs, Setting::MaxEjectionTimeMs]
            .map(|setting| self.config.time(setting, &*self.context.runtime))
    }

    fn begin(&self, term: &mut Term) {
        let jitter = self.config.time(Setting::MaxEjectionTimeJitterMs, &*self.context.runtime);
        term.jitter = crate::interval::part(jitter, &self.context.rng);
        term.began = Some(Instant::now());
        let [base, most] = self.bounds();
        if base.saturating_mul(term.times) < most.saturating_add(base) {
            term.times += 1;
        }
    }

    /// An answer said that the host is degraded.
    pub fn degraded(&self, host: &Arc<Host>) {
        let (count, since_last_action) = {
            let mut hosts = self.hosts.borrow_mut();
            let Some(entry) = hosts.get_mut(&key(host)) else { return };
            self.begin(&mut entry.degradation);
            (entry.ejections, entry.returned_at.map(|at| at.elapsed()))
        };
        self.context.stats.inc(EJECTIONS_DETECTED_DEGRADATION);
        let reason = "x-envoy-degraded in an answer to traffic";
        self.context.sink.flags(host, host.flags().with(HealthFlag::DegradedOutlierDetection), reason);
        let ejection = Ejection { cause: Cause::Degraded, ejects: true, enforced: true, count, since_last_action };
        self.context.events.outlier(host, &ejection);
    }

    fn degraded_no_longer(&self, host: &Arc<Host>) {
        let ejection = {
            let hosts = self.hosts.borrow();
            let Some(entry) = hosts.get(&key(host)) else { return };
            entry.tally.forget_degraded();
            entry.returns(Instant::now())
        };
        let reason = "no answer said that it is degraded for long enough";
        self.context.sink.flags(host, host.flags().without(HealthFlag::DegradedOutlierDetection), reason);
        self.context.events.outlier(host, &ejection);
    }

    /// The outliers of the interval that ends now.
    fn compare(&self, origin: Origin) -> Vec<(Arc<Host>, Cause)> {
        let get = |setting| self.config.get(setting, &*self.context.runtime);
        let (minimum, volume) = (get(Setting::SuccessRateMinimumHosts), get(Setting::SuccessRateRequestVolume));
        let failure_minimum = get(Setting::FailurePercentageMinimumHosts);
        let failure_volume = get(Setting::FailurePercentageRequestVolume);
        let mut hosts = self.hosts.borrow_mut();
        let enough = |n: usize, least: u64| n > 0 && n as u64 >= least;
        let comparable = enough(hosts.len(), minimum) || enough(hosts.len(), failure_minimum);
        let (mut by_rate, mut by_failures) = (Vec::new(), Vec::new());
        for entry in hosts.values_mut() {
            entry.rates[origin as usize] = -1.0;
            let Some((rate, requests)) = entry.tally.take_rate(origin) else { continue };
            if !comparable || is_ejected(&entry.host) {
                continue;
            }
            if requests >= volume.min(failure_volume) {
                entry.rates[origin as usize] = rate;
            }
            if requests >= volume {
                by_rate.push((entry.host.clone(), rate));
            }
            if requests >= failure_volume {
                by_failures.push((entry.host.clone(), rate));
            }
        }
        let mut outliers = Vec::new();
        let mut threshold = Threshold::NONE;
        if enough(by_rate.len(), minimum) {
            let rates: Vec<f64> = by_rate.iter().map(|(_, rate)| *rate).collect();
            threshold = Threshold::of(&rates, get(Setting::SuccessRateStdevFactor));
            let Threshold { average, threshold } = threshold;
            for (host, rate) in by_rate.into_iter().filter(|(_, rate)| *rate < threshold) {
                let rates = Rates { host: rate, average, threshold };
                outliers.push((
                    host,
                    match origin {
                        Origin::External => Cause::SuccessRate(rates),
                        Origin::Local => Cause::SuccessRateLocalOrigin(rates),
                    },
                ));
            }
        }
        let mut thresholds = self.thresholds.get();
        thresholds[origin as usize] = threshold;
        self.thresholds.set(thresholds);
        if enough(by_failures.len(), failure_minimum) {
            let most = get(Setting::FailurePercentageThreshold) as f64;
            for (host, rate) in by_failures.into_iter().filter(|(_, rate)| 100.0 - rate >= most) {
                let rates = Rates { host: rate, average: -1.0, threshold: 100.0 - most };
                outliers.push((
                    host,
                    match origin {
                        Origin::External => Cause::FailurePercentage(rates),
                        Origin::Local => Cause::FailurePercentageLocalOrigin(rates),
                    },
                ));
            }
        }
        outliers
    }

    fn eject(&self, host: &Arc<Host>, cause: Cause) {
        let (stats, runtime) = (&self.context.stats, &*self.context.runtime);
        let Some(Kind { detected, enforced, enforcing }) = Kind::of(cause) else { return };
        stats.inc(detected);
        let most = self.config.get(Setting::MaxEjectionPercent, runtime).min(100);
        let ejected = self.ejected.get();
        let known = self.hosts.borrow().len() as u64;
        let fits = 100 * (ejected + 1) <= most * known || self.config.always_eject_one_host && ejected == 0;
        if !fits {
            stats.inc(EJECTIONS_OVERFLOW);
            return;
        }
        if matches!(cause, Cause::Consecutive5xx | Cause::SuccessRate(_)) {
            stats.inc(EJECTIONS_TOTAL);
        }
        let percent = self.config.get(enforcing, runtime);
        let enforces = is_enabled(runtime, &self.context.rng, enforcing.key(), percent);
        let since_last_action = {
            let mut hosts = self.hosts.borrow_mut();
            let Some(entry) = hosts.get_mut(&key(host)) else { return };
            let since = entry.returned_at.map(|at| at.elapsed());
            if enforces {
                entry.ejections += 1;
                entry.cause = Some(cause.as_str());
                self.begin(&mut entry.ejection);
            }
            (since, entry.ejections)
        };
        let (since_last_action, count) = since_last_action;
        if enforces {
            stats.inc(EJECTIONS_ENFORCED_TOTAL);
            stats.inc(enforced);
            self.count_ejected(ejected + 1);
            let reason = format!("ejected by outlier detection: {}", cause.as_str());
            self.context.sink.flags(host, host.flags().with(HealthFlag::FailedOutlierCheck), &reason);
        }
        let ejection = Ejection { cause, ejects: true, enforced: enforces, count, since_last_action };
        self.context.events.outlier(host, &ejection);
    }

    fn bring_back(&self, host: &Arc<Host>, why: &str) {
        let ejection = {
            let mut hosts = self.hosts.borrow_mut();
            let Some(entry) = hosts.get_mut(&key(host)) else { return };
            entry.tally.forget_rows();
            entry.cause = None;
            let now = Instant::now();
            entry.returned_at = Some(now);
            entry.returns(now)
        };
        self.count_ejected(self.ejected.get().saturating_sub(1));
        let reason = format!("no longer ejected by outlier detection: {why}");
        self.context.sink.flags(host, host.flags().without(HealthFlag::FailedOutlierCheck), &reason);
        self.context.events.outlier(host, &ejection);
    }

    fn count_ejected(&self, ejected: u64) {
        self.ejected.set(ejected);
        self.context.stats.set(EJECTIONS_ACTIVE, ejected);
    }

    pub fn outliers(&self) -> Outliers {
        let [external, local] = self.thresholds.get();
        let hosts = self.hosts.borrow();
        let hosts = hosts.iter().map(|(key, entry)| (*key, entry.rates)).collect();
        Outliers { cluster: ClusterRates { external, local }, hosts }
    }

    pub fn report(&self, host: &Arc<Host>) -> Option<OutlierReport> {
        let hosts = self.hosts.borrow();
        let entry = hosts.get(&key(host))?;
        let since = || entry.ejection.began.map(|at| at.elapsed()).unwrap_or_default();
        Some(OutlierReport {
            success_rate: entry.rates[Origin::External as usize],
            local_origin_success_rate: entry.rates[Origin::Local as usize],
            ejections: entry.ejections,
            ejected: entry.cause.filter(|_| is_ejected(host)).map(|cause| (since(), cause)),
        })
    }
}

impl Entry {
    /// The event of its return. Envoy says no cause in it, which is the first of the list.
    fn returns(&self, now: Instant) -> Ejection {
        let since_last_action = self.ejection.began.map(|at| now.saturating_duration_since(at));
        let (cause, count) = (Cause::Consecutive5xx, self.ejections);
        Ejection { cause, ejects: false, enforced: false, count, since_last_action }
    }
}

fn is_ejected(host: &Host) -> bool {
    host.flags().contains(HealthFlag::FailedOutlierCheck)
}

/// How a cause is counted, and what decides whether it is enforced.
struct Kind {
    detected: Counter<OutlierDetection>,
    enforced: Counter<OutlierDetection>,
    enforcing: Setting,
}

impl Kind {
    /// None of what is no reason to eject.
    fn of(cause: Cause) -> Option<Self> {
        let (detected, enforced, enforcing) = match cause {
            Cause::Consecutive5xx => (
                EJECTIONS_DETECTED_CONSECUTIVE_5XX,
                EJECTIONS_ENFORCED_CONSECUTIVE_5XX,
                Setting::EnforcingConsecutive5xx,
            ),
            Cause::ConsecutiveGatewayFailure => (
                EJECTIONS_DETECTED_CONSECUTIVE_GATEWAY_FAILURE,
                EJECTIONS_ENFORCED_CONSECUTIVE_GATEWAY_FAILURE,
                Setting::EnforcingConsecutiveGatewayFailure,
            ),
            Cause::ConsecutiveLocalOriginFailure => (
                EJECTIONS_DETECTED_CONSECUTIVE_LOCAL_ORIGIN_FAILURE,
                EJECTIONS_ENFORCED_CONSECUTIVE_LOCAL_ORIGIN_FAILURE,
                Setting::EnforcingConsecutiveLocalOriginFailure,
            ),
            Cause::SuccessRate(_) => {
                (EJECTIONS_DETECTED_SUCCESS_RATE, EJECTIONS_ENFORCED_SUCCESS_RATE, Setting::EnforcingSuccessRate)
            }
            Cause::SuccessRateLocalOrigin(_) => (
                EJECTIONS_DETECTED_LOCAL_ORIGIN_SUCCESS_RATE,
                EJECTIONS_ENFORCED_LOCAL_ORIGIN_SUCCESS_RATE,
                Setting::EnforcingLocalOriginSuccessRate,
            ),
            Cause::FailurePercentage(_) => (
                EJECTIONS_DETECTED_FAILURE_PERCENTAGE,
                EJECTIONS_ENFORCED_FAILURE_PERCENTAGE,
                Setting::EnforcingFailurePercentage,
            ),
            Cause::FailurePercentageLocalOrigin(_) => (
                EJECTIONS_DETECTED_LOCAL_ORIGIN_FAILURE_PERCENTAGE,
                EJECTIONS_ENFORCED_LOCAL_ORIGIN_FAILURE_PERCENTAGE,
                Setting::EnforcingFailurePercentageLocalOrigin,
            ),
            Cause::Degraded => return None,
        };
        Some(Self { detected, enforced, enforcing })
    }
}

#[cfg(test)]
mod tests;
