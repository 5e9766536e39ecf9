//! Active checks of one cluster: a task for each host, which asks, judges, and sleeps until the next time.
//!
//! Hosts that come together in large numbers would be asked together for ever. Their first check is as early as Envoy's,
//! but the second comes earlier than it would, by a random part of its interval: from then on they are spread evenly.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::SystemTime;

use nuncio_core::stats::Stats;
use nuncio_core::upstream::{HealthFlag, HealthFlags, Host};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::cluster::{HealthSink, key};
use crate::config::CheckConfig;
use crate::event_log::{CheckEvent, EventLog};
use crate::interval;
use crate::judge::{FailureType, Judge, Judgement};
use crate::probe::{Answer, Probe, ProbeContext, Verdict};

nuncio_core::stats! {
    /// How active checks went. Main counts this.
    pub HealthCheck at ["health_check."] {
        counter ATTEMPT;
        gauge DEGRADED;
        counter FAILURE;
        gauge HEALTHY;
        counter NETWORK_FAILURE;
        counter PASSIVE_FAILURE;
        counter SUCCESS;
        counter VERIFY_CLUSTER;
    }
}

/// From so many hosts on, those that come together are spread.
const CROWD: usize = 64;

/// Results that are kept of each host.
const KEPT_RESULTS: usize = 3;

/// Hears of a host that is well.
pub type OnPass = Box<dyn Fn(&Arc<Host>)>;

/// What the checker of a cluster needs.
pub struct CheckerContext {
    pub probes: ProbeContext,
    pub sink: Rc<dyn HealthSink>,
    pub clock: nuncio_core::time::WallClock,
    pub stats: Stats<HealthCheck>,
    pub events: EventLog,
    /// Called after a check that passed and left the host well.
    pub passed: OnPass,
}

/// One cluster's. Dropping it ends the checks.
pub struct HealthChecker {
    shared: Rc<Shared>,
    sessions: RefCell<HashMap<usize, Rc<Session>>>,
}

struct Shared {
    config: CheckConfig,
    context: CheckerContext,
    healthy: Cell<u64>,
    degraded: Cell<u64>,
}

struct Session {
    host: Arc<Host>,
    judge: RefCell<Judge>,
    results: RefCell<VecDeque<CheckResult>>,
    next: Cell<Option<Instant>>,
    /// It came in a crowd, and its second check is still to come.
    spread: Cell<bool>,
    task: Cell<Option<AbortHandle>>,
}

/// One answer, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckResult {
    pub at: SystemTime,
    pub passed: bool,
    /// The HTTP status, if there was one.
    pub status: Option<u16>,
    pub note: String,
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
        }
    }
}

// === impl HealthChecker ===

impl HealthChecker {
    pub fn new(config: CheckConfig, context: CheckerContext) -> Self {
        let shared = Shared { config, context, healthy: Cell::new(0), degraded: Cell::new(0) };
        Self { shared: Rc::new(shared), sessions: RefCell::default() }
    }

    /// These hosts are asked from now on, but for those that do not want to be.
    pub fn add(&self, hosts: &[Arc<Host>]) {
        let checked = |host: &&Arc<Host>| !host.spec().disable_active_health_check;
        let crowd = hosts.iter().filter(checked).count() >= CROWD;
        for host in hosts.iter().filter(checked) {
            self.shared.counted(HealthFlags::default().with(HealthFlag::FailedActiveHc), host.flags());
            let session = Rc::new(Session {
                host: host.clone(),
                judge: RefCell::default(),
                results: RefCell::default(),
                next: Cell::new(None),
                spread: Cell::new(crowd),
                task: Cell::new(None),
            });
            let probe = self.shared.config.protocol.probe(&self.shared.context.probes);
            // The task must not keep the session: it ends with it.
            let task = run(self.shared.clone(), Rc::downgrade(&session), host.clone(), probe);
            session.task.set(Some(tokio::task::spawn_local(task).abort_handle()));
            self.sessions.borrow_mut().insert(key(host), session);
        }
    }

    pub fn remove(&self, host: &Arc<Host>) {
        let removed = self.sessions.borrow_mut().remove(&key(host));
        if removed.is_some() {
            self.shared.counted(host.flags(), HealthFlags::default().with(HealthFlag::FailedActiveHc));
        }
    }

    /// Hosts that are asked.
    pub fn len(&self) -> usize {
        self.sessions.borrow().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// An answer on the request path said that the host must not be used.
    pub fn fails_at_once(&self, host: &Arc<Host>) {
        let Some(session) = self.sessions.borrow().get(&key(host)).cloned() else { return };
        let flags = host.flags().with(HealthFlag::ExcludedViaImmediateHcFail);
        let note = "x-envoy-immediate-health-check-fail in an answer to traffic";
        let answer = Answer::failed(FailureType::Passive, note);
        self.shared.context.stats.inc(PASSIVE_FAILURE);
        self.shared.judged(&session, &answer, flags, || note.to_owned());
    }

    /// The last answers, the latest first, and when the next check is.
    pub fn report(&self, host: &Arc<Host>) -> Option<(Vec<CheckResult>, Option<Instant>)> {
        let sessions = self.sessions.borrow();
        let session = sessions.get(&key(host))?;
        let results = session.results.borrow().iter().rev().cloned().collect();
        Some((results, session.next.get()))
    }
}

async fn run(shared: Rc<Shared>, session: std::rc::Weak<Session>, host: Arc<Host>, mut probe: Box<dyn Probe>) {
    let (config, context) = (&shared.config, &shared.context);
    let wait = config.intervals.initial(&context.probes.rng, &*context.probes.runtime);
    if !wait.is_zero() {
        if let Some(session) = session.upgrade() {
            session.next.set(Some(Instant::now() + wait));
        }
        sleep(wait).await;
    }
    loop {
        context.stats.inc(ATTEMPT);
        let answer = timeout(config.timeout, probe.check(&host)).await.unwrap_or_else(|_| Answer::timed_out());
        let Some(session) = session.upgrade() else { return };
        let wait = shared.completed(&session, &answer, &*probe);
        session.next.set(Some(Instant::now() + wait));
        drop(session);
        sleep(wait).await;
    }
}

// === impl Shared ===

impl Shared {
    /// An answer of an active check; tells how long until the next.
    fn completed(&self, session: &Rc<Session>, answer: &Answer, probe: &dyn Probe) -> std::time::Duration {
        let host = &session.host;
        let stats = &self.context.stats;
        if answer.verified {
            stats.inc(VERIFY_CLUSTER);
        }
        let mut flags = host.flags();
        if answer.fails_at_once {
            flags = flags.with(HealthFlag::ExcludedViaImmediateHcFail);
        }
        let judgement = self.judged(session, answer, flags, || format!("{}: {answer}", probe.describe(host)));
        let passed = answer.is_passed();
        if passed && !host.flags().contains(HealthFlag::FailedActiveHc) {
            (self.context.passed)(host);
        }
        self.context.sink.checked();
        let ProbeContext { rng, runtime, .. } = &self.context.probes;
        let traffic = self.context.sink.has_traffic();
        let wait = self.config.intervals.next(passed, judgement.change, traffic, rng, &**runtime);
        if session.spread.take() {
            return interval::part(wait, rng).max(std::time::Duration::from_millis(1));
        }
        wait
    }

    /// Counts, notes and tells what an answer means. `reason` is asked for if the state changes.
    fn judged(&self, session: &Session, answer: &Answer, flags: HealthFlags, reason: impl Fn() -> String) -> Judgement {
        let (host, before, stats) = (&session.host, session.host.flags(), &self.context.stats);
        let thresholds = self.config.thresholds;
        let judgement = match answer.verdict {
            Verdict::Passed { degraded } => {
                stats.inc(SUCCESS);
                session.judge.borrow_mut().passed(flags, degraded, thresholds)
            }
            Verdict::Failed { failure, retriable } => {
                stats.inc(FAILURE);
                if failure.is_network() {
                    stats.inc(NETWORK_FAILURE);
                }
                session.judge.borrow_mut().failed(flags, failure, retriable, thresholds)
            }
        };
        session.note(answer, self.context.clock.now());
        self.log(host, answer, before, judgement);
        self.counted(before, judgement.flags);
        if judgement.flags != before {
            self.context.sink.flags(host, judgement.flags, &reason());
        } else if judgement.first && !answer.is_passed() {
            self.context.sink.never_well(host, &reason());
        }
        judgement
    }

    fn log(&self, host: &Host, answer: &Answer, before: HealthFlags, judgement: Judgement) {
        let (protocol, events) = (self.config.protocol.name(), &self.context.events);
        let log = |event| events.checked(protocol, host, event);
        let changed = |flag| before.contains(flag) != judgement.flags.contains(flag);
        let (first, status) = (judgement.first, answer.status.unwrap_or(0));
        match answer.verdict {
            Verdict::Passed { .. } => {
                if changed(HealthFlag::FailedActiveHc) {
                    log(CheckEvent::AddHealthy { first });
                }
                if self.config.always_log_success {
                    log(CheckEvent::Successful);
                }
                if changed(HealthFlag::DegradedActiveHc) {
                    let degraded = judgement.flags.contains(HealthFlag::DegradedActiveHc);
                    log(if degraded { CheckEvent::Degraded } else { CheckEvent::NoLongerDegraded });
                }
            }
            Verdict::Failed { failure, .. } => {
                if changed(HealthFlag::FailedActiveHc) {
                    log(CheckEvent::EjectUnhealthy { failure, status });
                }
                if first || self.config.always_log_failures {
                    log(CheckEvent::Failure { failure, first, status });
                }
            }
        }
    }

    /// Moves the gauges from one state of a host to another.
    fn counted(&self, before: HealthFlags, after: HealthFlags) {
        let stats = &self.context.stats;
        let is_healthy = |flags: HealthFlags| !flags.contains(HealthFlag::FailedActiveHc);
        let is_degraded = |flags: HealthFlags| flags.contains(HealthFlag::DegradedActiveHc);
        let moved = |count: &Cell<u64>, from: bool, to: bool| {
            count.set((count.get() + u64::from(to)).saturating_sub(u64::from(from)));
            from != to
        };
        if moved(&self.healthy, is_healthy(before), is_healthy(after)) {
            stats.set(HEALTHY, self.healthy.get());
        }
        if moved(&self.degraded, is_degraded(before), is_degraded(after)) {
            stats.set(DEGRADED, self.degraded.get());
        }
    }
}

// === impl Session ===

impl Session {
    fn note(&self, answer: &Answer, at: SystemTime) {
        let mut results = self.results.borrow_mut();
        if results.len() == KEPT_RESULTS {
            results.pop_front();
        }
        let (passed, status, note) = (answer.is_passed(), answer.status, answer.to_string());
        results.push_back(CheckResult { at, passed, status, note });
    }
}
