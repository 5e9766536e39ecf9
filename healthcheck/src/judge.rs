//! What one answer means after those before it: thresholds, the decisive first answer, degraded hosts. No time, no
//! network: flags and an answer go in, flags come out.

use nuncio_core::upstream::{HealthFlag, HealthFlags};

/// How many answers of one kind change a host's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thresholds {
    /// Of failures of the network, time, and retriable statuses; anything else fails a host at once. 0: never.
    pub unhealthy: u32,
    pub healthy: u32,
}

/// `envoy.data.core.v3.HealthCheckFailureType`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureType {
    /// The host answered, and the answer is bad.
    Active,
    /// Traffic said it.
    Passive,
    Network,
    NetworkTimeout,
}

impl FailureType {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Active => "ACTIVE",
            Self::Passive => "PASSIVE",
            Self::Network => "NETWORK",
            Self::NetworkTimeout => "NETWORK_TIMEOUT",
        }
    }

    pub fn is_network(self) -> bool {
        matches!(self, Self::Network | Self::NetworkTimeout)
    }
}

/// What became of the host's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Unchanged,
    /// More of the same will change it.
    Pending,
    Changed,
}

/// What was decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Judgement {
    pub flags: HealthFlags,
    pub change: Change,
    /// It was the first answer ever.
    pub first: bool,
}

/// The memory of one host's answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judge {
    healthy: u32,
    unhealthy: u32,
    first: bool,
}

impl Default for Judge {
    fn default() -> Self {
        Self { healthy: 0, unhealthy: 0, first: true }
    }
}

impl Judge {
    /// No answer yet.
    pub fn is_new(&self) -> bool {
        self.first
    }

    pub fn passed(&mut self, flags: HealthFlags, degraded: bool, thresholds: Thresholds) -> Judgement {
        use HealthFlag::{ActiveHcTimeout, DegradedActiveHc, ExcludedViaImmediateHcFail, FailedActiveHc};
        self.unhealthy = 0;
        let first = std::mem::take(&mut self.first);
        let (mut flags, mut change) = (flags, Change::Unchanged);
        if flags.contains(FailedActiveHc) {
            self.healthy += 1;
            if first || self.healthy == thresholds.healthy {
                self.healthy = 0;
                flags = flags.without(FailedActiveHc).without(ActiveHcTimeout).without(ExcludedViaImmediateHcFail);
                change = Change::Changed;
            } else {
                change = Change::Pending;
            }
        }
        (flags, change) = no_longer_pending(flags, change);
        if degraded != flags.contains(DegradedActiveHc) {
            flags = if degraded { flags.with(DegradedActiveHc) } else { flags.without(DegradedActiveHc) };
            if change == Change::Unchanged {
                change = Change::Changed;
            }
        }
        Judgement { flags, change, first }
    }

    pub fn failed(
        &mut self,
        flags: HealthFlags,
        failure: FailureType,
        retriable: bool,
        thresholds: Thresholds,
    ) -> Judgement {
        use HealthFlag::{ActiveHcTimeout, FailedActiveHc};
        self.healthy = 0;
        let first = std::mem::take(&mut self.first);
        let (mut flags, mut change) = (flags, Change::Unchanged);
        if !flags.contains(FailedActiveHc) {
            let counts_up = failure.is_network() || retriable;
            if counts_up {
                self.unhealthy = self.unhealthy.saturating_add(1);
            }
            if !counts_up || self.unhealthy == thresholds.unhealthy {
                self.unhealthy = 0;
                flags = flags.with(FailedActiveHc);
                change = Change::Changed;
            } else {
                change = Change::Pending;
            }
        }
        if flags.contains(FailedActiveHc) {
            let timeout = failure == FailureType::NetworkTimeout;
            flags = if timeout { flags.with(ActiveHcTimeout) } else { flags.without(ActiveHcTimeout) };
        }
        (flags, change) = no_longer_pending(flags, change);
        Judgement { flags, change, first }
    }
}

/// Whatever the answer, the host has been checked now.
fn no_longer_pending(flags: HealthFlags, change: Change) -> (HealthFlags, Change) {
    if flags.contains(HealthFlag::PendingActiveHc) {
        (flags.without(HealthFlag::PendingActiveHc), Change::Changed)
    } else {
        (flags, change)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use FailureType::{Active, Network, NetworkTimeout, Passive};

    const LIMITS: Thresholds = Thresholds { unhealthy: 3, healthy: 2 };

    fn new_host() -> HealthFlags {
        HealthFlags::default().with(HealthFlag::FailedActiveHc)
    }

    fn text(judgement: Judgement) -> (String, Change) {
        (judgement.flags.to_string(), judgement.change)
    }

    fn well() -> Judge {
        let mut judge = Judge::default();
        judge.passed(new_host(), false, LIMITS);
        judge
    }

    #[test]
    fn the_first_answer_decides_alone() {
        let mut judge = Judge::default();
        let passed = judge.passed(new_host(), false, LIMITS);
        assert_eq!((text(passed), passed.first), (("healthy".into(), Change::Changed), true));
        let mut judge = Judge::default();
        let failed = judge.failed(new_host(), Network, false, LIMITS);
        assert_eq!((text(failed), failed.first), (("/failed_active_hc".into(), Change::Unchanged), true));
        // It failed for sure: from now on it takes as many good answers as configured.
        assert_eq!(text(judge.passed(failed.flags, false, LIMITS)).1, Change::Pending);
        assert_eq!(text(judge.passed(failed.flags, false, LIMITS)), ("healthy".into(), Change::Changed));
    }

    // Expected: recorded from Envoy 1.40 (hc_http_basics).
    #[test]
    fn networks_and_retriable_statuses_count_up_and_bad_answers_fail_at_once() {
        let healthy = HealthFlags::default();
        for (failure, retriable) in [(Network, false), (NetworkTimeout, false), (Active, true)] {
            let mut judge = well();
            assert_eq!(text(judge.failed(healthy, failure, retriable, LIMITS)), ("healthy".into(), Change::Pending));
            judge.failed(healthy, failure, retriable, LIMITS);
            assert_eq!(judge.failed(healthy, failure, retriable, LIMITS).change, Change::Changed);
        }
        for failure in [Active, Passive] {
            assert_eq!(text(well().failed(healthy, failure, false, LIMITS)).0, "/failed_active_hc");
        }
        // A good answer in between begins the count anew.
        let mut judge = well();
        judge.failed(healthy, Network, false, LIMITS);
        judge.failed(healthy, Network, false, LIMITS);
        judge.passed(healthy, false, LIMITS);
        judge.failed(healthy, Network, false, LIMITS);
        assert_eq!(judge.failed(healthy, Network, false, LIMITS).change, Change::Pending);
    }

    // Expected: recorded from Envoy 1.40.
    #[test]
    fn a_timeout_is_marked_once_the_host_failed_and_as_long_as_it_is_the_last_word() {
        let mut judge = well();
        let one = Thresholds { unhealthy: 1, healthy: 1 };
        let slow = judge.failed(HealthFlags::default(), NetworkTimeout, false, one);
        assert_eq!(text(slow).0, "/failed_active_hc/active_hc_timeout");
        let wrong = judge.failed(slow.flags, Active, false, one);
        assert_eq!(text(wrong), ("/failed_active_hc".into(), Change::Unchanged));
        let slow = judge.failed(wrong.flags, NetworkTimeout, false, one);
        assert_eq!(text(judge.passed(slow.flags, false, one)).0, "healthy");
    }

    #[test]
    fn a_host_that_waits_for_its_first_check_waits_no_more_whatever_comes() {
        let pending = new_host().with(HealthFlag::PendingActiveHc);
        let failed = Judge::default().failed(pending, Network, false, LIMITS);
        assert_eq!(text(failed), ("/failed_active_hc".into(), Change::Changed));
        assert_eq!(text(Judge::default().passed(pending, false, LIMITS)).0, "healthy");
    }

    #[test]
    fn degraded_comes_and_goes_with_the_last_good_answer() {
        let mut judge = well();
        let degraded = judge.passed(HealthFlags::default(), true, LIMITS);
        assert_eq!(text(degraded), ("/degraded_active_hc".into(), Change::Changed));
        assert_eq!(judge.passed(degraded.flags, true, LIMITS).change, Change::Unchanged);
        assert_eq!(text(judge.passed(degraded.flags, false, LIMITS)), ("healthy".into(), Change::Changed));
    }

    #[test]
    fn a_threshold_of_zero_is_never_reached() {
        let never = Thresholds { unhealthy: 0, healthy: 1 };
        let mut judge = well();
        assert!(
            (0..100).all(|_| judge.failed(HealthFlags::default(), Network, false, never).change == Change::Pending)
        );
    }
}
