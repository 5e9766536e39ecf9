//! A host as workers report on it: counts that every thread adds to, and the few words that main must hear at once.

use std::sync::{Arc, Weak};

use nuncio_core::upstream::{Host, HostMonitor, Outcome};
use tokio::sync::mpsc::UnboundedSender;

use crate::outlier::{Cause, Tally};

/// From a worker to main, where the cluster's judges are. Rare: a host that fails is told of once until main has
/// answered by counting anew.
#[derive(Debug, Clone)]
pub struct Report {
    pub host: Arc<Host>,
    pub what: Told,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    /// So many failures in a row as configured.
    Consecutive(Cause),
    /// `x-envoy-immediate-health-check-fail` in an answer.
    FailsAtOnce,
    /// `x-envoy-degraded` in an answer, where that counts.
    Degraded,
}

/// One host's.
#[derive(Debug)]
pub struct Monitor {
    host: Weak<Host>,
    tally: Option<Arc<Tally>>,
    /// Active checks ask it, so that what it says of itself counts.
    checked: bool,
    reports: UnboundedSender<Report>,
}

impl Monitor {
    pub fn new(host: &Arc<Host>, tally: Option<Arc<Tally>>, checked: bool, reports: UnboundedSender<Report>) -> Self {
        Self { host: Arc::downgrade(host), tally, checked, reports }
    }

    fn tell(&self, what: Told) {
        if let Some(host) = self.host.upgrade() {
            // Main ends only with the process.
            let _ = self.reports.send(Report { host, what });
        }
    }
}

impl HostMonitor for Monitor {
    fn report(&self, outcome: Outcome) {
        match (outcome, &self.tally) {
            (Outcome::FailsAtOnce, _) if self.checked => self.tell(Told::FailsAtOnce),
            (Outcome::Degraded, Some(tally)) if tally.becomes_degraded() => self.tell(Told::Degraded),
            (outcome, Some(tally)) => tally.add(outcome, |cause| self.tell(Told::Consecutive(cause))),
            (_, None) => {}
        }
    }
}
