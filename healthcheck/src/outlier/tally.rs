//! What all workers counted of one host. Relaxed atomics: a count that is one off decides nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use nuncio_core::runtime::Runtime;
use nuncio_core::upstream::Outcome;

use super::Cause;
use super::config::{OutlierConfig, Setting};

/// How many failures in a row main wants to hear of; one for the hosts of a cluster. Main writes it at every interval,
/// so that what runtime says counts from then on.
#[derive(Debug, Default)]
pub struct Limits {
    consecutive_5xx: AtomicU32,
    gateway: AtomicU32,
    local_origin: AtomicU32,
}

impl Limits {
    pub fn read(&self, config: &OutlierConfig, runtime: &dyn Runtime) {
        let set = |cell: &AtomicU32, setting| {
            cell.store(u32::try_from(config.get(setting, runtime)).unwrap_or(u32::MAX), Relaxed);
        };
        set(&self.consecutive_5xx, Setting::Consecutive5xx);
        set(&self.gateway, Setting::ConsecutiveGatewayFailure);
        set(&self.local_origin, Setting::ConsecutiveLocalOriginFailure);
    }
}

/// Whose fault a failure is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The host's: its answer.
    External = 0,
    /// Ours or the network's: no connection, no answer. Only counted apart with
    /// `split_external_local_origin_errors`.
    Local = 1,
}

impl Origin {
    pub const ALL: [Self; 2] = [Self::External, Self::Local];
}

#[derive(Debug, Default)]
struct Rate {
    total: AtomicU64,
    good: AtomicU64,
}

/// One host's, on a cache line of its own.
#[derive(Debug)]
#[repr(align(64))]
pub struct Tally {
    consecutive_5xx: AtomicU32,
    gateway: AtomicU32,
    local_origin: AtomicU32,
    split: bool,
    /// Main hears of a host that is degraded once, until it forgets; for ever where that does not count.
    degraded: AtomicBool,
    rates: [Rate; 2],
    limits: Arc<Limits>,
}

impl Tally {
    pub fn new(limits: Arc<Limits>, split: bool, detects_degraded: bool) -> Self {
        Self {
            consecutive_5xx: AtomicU32::new(0),
            gateway: AtomicU32::new(0),
            local_origin: AtomicU32::new(0),
            split,
            degraded: AtomicBool::new(!detects_degraded),
            rates: Default::default(),
            limits,
        }
    }

    /// On a worker. `tell` is called when a limit is reached, not when it is passed.
    pub fn add(&self, outcome: Outcome, tell: impl Fn(Cause)) {
        match (outcome, self.split) {
            (Outcome::Answered { status }, _) => self.answered(status, tell),
            (Outcome::Connected | Outcome::ConnectedForBytes, true) => self.local(true, tell),
            (Outcome::Failed | Outcome::TimedOut { .. }, true) => self.local(false, tell),
            // Without the split, what went wrong here is an answer that the host did not give.
            (Outcome::ConnectedForBytes, false) => self.answered(200, tell),
            (Outcome::Failed, false) => self.answered(503, tell),
            (Outcome::TimedOut { status }, false) => self.answered(status, tell),
            (Outcome::Connected, false) | (Outcome::FailsAtOnce | Outcome::Degraded, _) => {}
        }
    }

    /// On a worker, of a host whose answer says that it is degraded: whether main must hear of it.
    pub fn becomes_degraded(&self) -> bool {
        !self.degraded.load(Relaxed) && !self.degraded.swap(true, Relaxed)
    }

    /// On main: it is not degraded any more.
    pub fn forget_degraded(&self) {
        self.degraded.store(false, Relaxed);
    }

    fn answered(&self, status: u16, tell: impl Fn(Cause)) {
        let rate = &self.rates[Origin::External as usize];
        rate.total.fetch_add(1, Relaxed);
        if status < 500 {
            rate.good.fetch_add(1, Relaxed);
            clear(&self.consecutive_5xx);
            clear(&self.gateway);
            return;
        }
        if matches!(status, 502..=504) {
            if reached(&self.gateway, &self.limits.gateway) {
                tell(Cause::ConsecutiveGatewayFailure);
            }
        } else {
            clear(&self.gateway);
        }
        if reached(&self.consecutive_5xx, &self.limits.consecutive_5xx) {
            tell(Cause::Consecutive5xx);
        }
    }

    fn local(&self, good: bool, tell: impl Fn(Cause)) {
        let rate = &self.rates[Origin::Local as usize];
        rate.total.fetch_add(1, Relaxed);
        if good {
            rate.good.fetch_add(1, Relaxed);
            clear(&self.local_origin);
        } else if reached(&self.local_origin, &self.limits.local_origin) {
            tell(Cause::ConsecutiveLocalOriginFailure);
        }
    }

    /// On main: a row is counted anew.
    pub fn forget(&self, cause: Cause) {
        match cause {
            Cause::Consecutive5xx => self.consecutive_5xx.store(0, Relaxed),
            Cause::ConsecutiveGatewayFailure => self.gateway.store(0, Relaxed),
            Cause::ConsecutiveLocalOriginFailure => self.local_origin.store(0, Relaxed),
            _ => {}
        }
    }

    pub fn forget_rows(&self) {
        [&self.consecutive_5xx, &self.gateway, &self.local_origin].into_iter().for_each(|row| row.store(0, Relaxed));
    }

    /// On main, at the end of an interval: what came of so many, in percent. The next interval begins.
    pub fn take_rate(&self, origin: Origin) -> Option<(f64, u64)> {
        let rate = &self.rates[origin as usize];
        let (total, good) = (rate.total.swap(0, Relaxed), rate.good.swap(0, Relaxed));
        // A worker may be between the two: what it added last belongs to the next interval.
        (total > 0).then(|| (100.0 * good.min(total) as f64 / total as f64, total))
    }
}

/// One line that is only read stays in every worker's cache.
fn clear(row: &AtomicU32) {
    if row.load(Relaxed) != 0 {
        row.store(0, Relaxed);
    }
}

fn reached(row: &AtomicU32, limit: &AtomicU32) -> bool {
    row.fetch_add(1, Relaxed).wrapping_add(1) == limit.load(Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nuncio_api::pb::envoy::config::cluster::v3::OutlierDetection;
    use nuncio_api::pb::google::protobuf::UInt32Value;
    use nuncio_core::runtime::NoRuntime;
    use std::cell::RefCell;

    fn tally(split: bool) -> Tally {
        let limit = |value| Some(UInt32Value { value });
        let message = OutlierDetection {
            consecutive_5xx: limit(3),
            consecutive_gateway_failure: limit(2),
            consecutive_local_origin_failure: limit(2),
            ..Default::default()
        };
        let limits = Arc::<Limits>::default();
        limits.read(&OutlierConfig::from_proto(&message).unwrap(), &NoRuntime);
        Tally::new(limits, split, true)
    }

    fn told(tally: &Tally, outcomes: &[Outcome]) -> Vec<&'static str> {
        let told = RefCell::new(Vec::new());
        outcomes.iter().for_each(|outcome| tally.add(*outcome, |cause| told.borrow_mut().push(cause.as_str())));
        told.into_inner()
    }

    fn status(status: u16) -> Outcome {
        Outcome::Answered { status }
    }

    #[test]
    fn rows_of_failures_are_told_when_they_are_long_enough_and_only_then() {
        let row = [500, 500, 404, 500, 500, 500, 500].map(status);
        assert_eq!(told(&tally(false), &row), ["CONSECUTIVE_5XX"]);
        let gateway = [502, 500, 503, 504].map(status);
        assert_eq!(told(&tally(false), &gateway), ["CONSECUTIVE_5XX", "CONSECUTIVE_GATEWAY_FAILURE"]);
    }

    #[test]
    fn failures_of_our_own_are_answers_unless_they_are_split_off() {
        let failed = [Outcome::Failed, Outcome::TimedOut { status: 504 }, Outcome::Failed];
        assert_eq!(told(&tally(false), &failed), ["CONSECUTIVE_GATEWAY_FAILURE", "CONSECUTIVE_5XX"]);
        let split = tally(true);
        assert_eq!(told(&split, &failed), ["CONSECUTIVE_LOCAL_ORIGIN_FAILURE"]);
        let mended = [Outcome::Connected, Outcome::Failed, Outcome::ConnectedForBytes, Outcome::Failed];
        assert!(told(&split, &mended).is_empty());
        assert_eq!((split.take_rate(Origin::External), split.take_rate(Origin::Local).unwrap().1), (None, 7));
    }

    #[test]
    fn a_degraded_host_is_told_of_once_where_that_counts() {
        let (counts, does_not) = (tally(false), Tally::new(Arc::default(), false, false));
        assert_eq!([(); 3].map(|()| counts.becomes_degraded()), [true, false, false]);
        counts.forget_degraded();
        assert!(counts.becomes_degraded() && !does_not.becomes_degraded());
        assert!(told(&counts, &[Outcome::Degraded; 9]).is_empty());
    }

    #[test]
    fn rates_are_of_one_interval() {
        let tally = tally(false);
        told(&tally, &[200, 200, 200, 500].map(status));
        assert_eq!(tally.take_rate(Origin::External), Some((75.0, 4)));
        assert_eq!(tally.take_rate(Origin::External), None);
    }
}
