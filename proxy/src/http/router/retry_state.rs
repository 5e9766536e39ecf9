//! A retry policy over the attempts of one request: whether there is another one, when, and which hosts it avoids.
//!
//! The order of questions is Envoy's, because its counters can be seen: a request that is not retried after a retry
//! counts that retry as a success, the number of retries is asked before the circuit breaker, and a permit of the
//! breaker is held until the next question.

use std::sync::Arc;
use std::time::Duration;

use nuncio_core::http::{HeaderMap, ResponseHead};
use nuncio_core::random::Rng;
use nuncio_core::stats::lists::cluster as stat;
use nuncio_core::stats::lists::vhost;
use nuncio_core::time::WallClock;
use nuncio_core::upstream::{Host, PriorityLoad, PrioritySet};

use super::failure::{Failure, Reset};
use super::retry::{BackOff, HostPredicate, PreviousPriorities, RateLimitedBackOff, ResetFormat, RetryOn, RetryPolicy};
use super::tally::Tally;
use crate::upstream::circuit_breaker::Permit;
use crate::upstream::lb::{labels, priority};

/// What was decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RetryStatus {
    /// Another attempt after so long.
    Yes(Duration),
    No,
    /// It would be retried, but was often enough.
    LimitExceeded,
    /// It would be retried, but a circuit breaker is open.
    Overflow,
}

pub(super) struct RetryState {
    policy: Option<Arc<RetryPolicy>>,
    on: RetryOn,
    left: u32,
    /// From the request's own headers, beside those of the policy.
    status_codes: Vec<u16>,
    header_names: Vec<String>,
    /// The next back-off is below this.
    interval: Duration,
    /// Held while a retry waits or runs.
    permit: Option<Permit>,
    /// What the upstream said of when to come back.
    rate_limited: Option<Duration>,
    attempted: Vec<Arc<Host>>,
    priorities: PrioritiesTried,
}

/// Which priorities retries leave out.
#[derive(Default)]
struct PrioritiesTried {
    hosts: Vec<Arc<Host>>,
    excluded: Vec<bool>,
    load: Option<PriorityLoad>,
}

impl RetryState {
    /// What policy and request together ask for, if either asks for anything. The request's own words are taken out
    /// of it.
    pub fn new(policy: Option<&Arc<RetryPolicy>>, headers: &mut HeaderMap) -> Option<Self> {
        let asks = policy.is_some_and(|p| !p.on.is_empty())
            || headers.contains("x-envoy-retry-on")
            || headers.contains("x-envoy-retry-grpc-on");
        let state = asks.then(|| Self::of(policy.cloned(), headers));
        for name in [
            "x-envoy-retry-on",
            "x-envoy-retry-grpc-on",
            "x-envoy-max-retries",
            "x-envoy-retriable-header-names",
            "x-envoy-retriable-status-codes",
        ] {
            headers.remove(name);
        }
        state
    }

    fn of(policy: Option<Arc<RetryPolicy>>, headers: &HeaderMap) -> Self {
        let mut on = policy.as_ref().map(|p| p.on).unwrap_or_default();
        on.insert(RetryOn::parse(headers.get_str("x-envoy-retry-on").unwrap_or_default()).0.http());
        on.insert(RetryOn::parse(headers.get_str("x-envoy-retry-grpc-on").unwrap_or_default()).0.grpc());
        let limited = policy.as_ref().map(|p| &p.request_headers).filter(|matchers| !matchers.is_empty());
        if limited.is_some_and(|matchers| !matchers.iter().any(|m| m.matches(headers))) {
            on = RetryOn::default();
        }
        let asked = headers.get_str("x-envoy-max-retries").and_then(|v| v.trim().parse::<u32>().ok());
        let list = |name| headers.get_str(name).unwrap_or_default().split(',').map(str::trim).filter(|w| !w.is_empty());
        Self {
            on,
            left: asked.unwrap_or(policy.as_ref().map_or(1, |p| p.num_retries)),
            status_codes: list("x-envoy-retriable-status-codes").filter_map(|code| code.parse().ok()).collect(),
            header_names: list("x-envoy-retriable-header-names").map(str::to_ascii_lowercase).collect(),
            interval: policy.as_ref().map_or(BackOff::DEFAULT, |p| p.back_off).base,
            permit: None,
            rate_limited: None,
            attempted: Vec::new(),
            priorities: PrioritiesTried::default(),
            policy,
        }
    }

    /// There may be a retry, so that what was sent has to be kept.
    pub fn is_enabled(&self) -> bool {
        !self.on.is_empty()
    }

    // === whether ===

    /// Asked once for the head of each response.
    pub fn ask_response(
        &mut self,
        head: &ResponseHead,
        tally: &Tally<'_>,
        clock: &WallClock,
        rng: &Rng,
    ) -> RetryStatus {
        let wanted = self.would_retry_response(head);
        if wanted {
            let policy = self.policy.as_ref().and_then(|p| p.rate_limited.as_ref());
            let told = policy.and_then(|limited| reset_interval(limited, &head.headers, clock));
            self.rate_limited = told.filter(|wait| wait.as_millis() > 1);
        }
        self.ask(wanted, tally, rng)
    }

    /// Asked once for each attempt that failed without a response.
    pub fn ask_failure(&mut self, failure: &Failure, request_sent: bool, tally: &Tally<'_>, rng: &Rng) -> RetryStatus {
        let wanted = self.would_retry_failure(failure, request_sent);
        self.ask(wanted, tally, rng)
    }

    /// For a second attempt beside one that is slow, whatever the conditions are.
    pub fn ask_hedge(&mut self, tally: &Tally<'_>, rng: &Rng) -> RetryStatus {
        self.ask(true, tally, rng)
    }

    pub fn would_retry_response(&self, head: &ResponseHead) -> bool {
        let on = |condition| self.on.contains(condition);
        let headers = &head.headers;
        // Another Envoy's word that it limits us.
        if headers.contains("x-envoy-ratelimited") {
            return on(RetryOn::ENVOY_RATELIMITED);
        }
        let status = head.status;
        on(RetryOn::FIVE_XX) && (500..600).contains(&status)
            || on(RetryOn::GATEWAY_ERROR) && (502..=504).contains(&status)
            || on(RetryOn::RETRIABLE_4XX) && status == 409
            || on(RetryOn::RETRIABLE_STATUS_CODES) && self.is_retriable_status(status)
            || on(RetryOn::RETRIABLE_HEADERS) && self.has_retriable_header(headers)
            || !self.on.grpc().is_empty() && grpc_condition(headers).is_some_and(on)
    }

    fn is_retriable_status(&self, status: u16) -> bool {
        self.policy.as_ref().is_some_and(|p| p.status_codes.contains(&status)) || self.status_codes.contains(&status)
    }

    fn has_retriable_header(&self, headers: &HeaderMap) -> bool {
        self.policy.as_ref().is_some_and(|p| p.headers.iter().any(|m| m.matches(headers)))
            || self.header_names.iter().any(|name| headers.contains(name))
    }

    fn would_retry_failure(&self, failure: &Failure, request_sent: bool) -> bool {
        let on = |condition| self.on.contains(condition);
        match failure.reset {
            // Our own limits, and what no other attempt would change.
            Reset::Overflow | Reset::NoHealthyHost | Reset::ResponseTimeout => return false,
            Reset::LocalConnectionFailure | Reset::RemoteConnectionFailure | Reset::ConnectionTimeout
                if on(RetryOn::CONNECT_FAILURE) =>
            {
                return true;
            }
            Reset::RemoteRefusedStream if on(RetryOn::REFUSED_STREAM) => return true,
            _ => {}
        }
        !request_sent && on(RetryOn::RESET_BEFORE_REQUEST)
            || on(RetryOn::RESET)
            || on(RetryOn::FIVE_XX)
            || on(RetryOn::GATEWAY_ERROR)
    }

    fn ask(&mut self, wanted: bool, tally: &Tally<'_>, rng: &Rng) -> RetryStatus {
        let before = self.permit.take().is_some();
        if !wanted {
            if before {
                tally.count(stat::UPSTREAM_RQ_RETRY_SUCCESS, vhost::UPSTREAM_RQ_RETRY_SUCCESS);
            }
            return RetryStatus::No;
        }
        if self.left == 0 {
            tally.count(stat::UPSTREAM_RQ_RETRY_LIMIT_EXCEEDED, vhost::UPSTREAM_RQ_RETRY_LIMIT_EXCEEDED);
            return RetryStatus::LimitExceeded;
        }
        self.left -= 1;
        let Some(permit) = tally.cluster.admit_retry(tally.priority) else {
            tally.count(stat::UPSTREAM_RQ_RETRY_OVERFLOW, vhost::UPSTREAM_RQ_RETRY_OVERFLOW);
            return RetryStatus::Overflow;
        };
        self.permit = Some(permit);
        tally.count(stat::UPSTREAM_RQ_RETRY, vhost::UPSTREAM_RQ_RETRY);
        let (wait, counter) = self.back_off(rng);
        tally.cluster.stats().retries.inc(counter);
        RetryStatus::Yes(wait)
    }

    // === when ===

    fn back_off(&mut self, rng: &Rng) -> (Duration, nuncio_core::stats::Counter<stat::Retries>) {
        let millis = |d: Duration| (d.as_millis() as u64).max(1);
        if let Some(wait) = self.rate_limited.take() {
            // Never earlier than told, and up to half as long more.
            let wait = millis(wait);
            return (Duration::from_millis(wait + rng.below(wait / 2)), stat::UPSTREAM_RQ_RETRY_BACKOFF_RATELIMITED);
        }
        let max = self.policy.as_ref().map_or(BackOff::DEFAULT, |p| p.back_off).max;
        let below = self.interval;
        self.interval = if below < max / 2 { below * 2 } else { max };
        (Duration::from_millis(rng.below(millis(below))), stat::UPSTREAM_RQ_RETRY_BACKOFF_EXPONENTIAL)
    }

    // === where ===

    /// An attempt went to this host, or tried to.
    pub fn attempted(&mut self, host: &Arc<Host>) {
        let Some(policy) = &self.policy else { return };
        if policy.host_predicates.contains(&HostPredicate::PreviousHosts) {
            self.attempted.push(host.clone());
        }
        if policy.priority.is_some() {
            self.priorities.hosts.push(host.clone());
        }
    }

    /// The next attempt should not go to this host.
    pub fn rejects(&self, host: &Host) -> bool {
        let Some(policy) = &self.policy else { return false };
        policy.host_predicates.iter().any(|predicate| match predicate {
            HostPredicate::PreviousHosts => self.attempted.iter().any(|tried| std::ptr::eq(&**tried, host)),
            HostPredicate::CanaryHosts => host.is_canary(),
            HostPredicate::HostMetadata(wanted) => {
                wanted.0.get(labels::NAMESPACE).is_some_and(|wanted| labels::matches(wanted, &host.metadata(), true))
            }
        })
    }

    pub fn has_host_predicates(&self) -> bool {
        self.policy.as_ref().is_some_and(|p| !p.host_predicates.is_empty())
    }

    pub fn reselections(&self) -> u32 {
        self.policy.as_ref().map_or(1, |p| p.host_selection_attempts)
    }

    /// The load over priorities for the next attempt, if it is not the usual one.
    pub fn priority_load(&mut self, hosts: &PrioritySet) -> Option<&PriorityLoad> {
        let PreviousPriorities { update_frequency } = self.policy.as_ref()?.priority?;
        self.priorities.load(hosts, update_frequency as usize)
    }
}

impl PrioritiesTried {
    fn load(&mut self, hosts: &PrioritySet, every: usize) -> Option<&PriorityLoad> {
        let tried = self.hosts.len();
        if tried < every {
            return None;
        }
        if tried.is_multiple_of(every) {
            self.excluded.resize(hosts.priorities.len(), false);
            for host in &self.hosts {
                if let Some(excluded) = self.excluded.get_mut(host.priority() as usize) {
                    *excluded = true;
                }
            }
            let excluded = &self.excluded;
            self.load = priority::load_without(hosts, |at| excluded[at]);
            if self.load.is_none() {
                // All were tried: the round begins again.
                self.excluded.fill(false);
                self.hosts.clear();
                self.load = priority::load_without(hosts, |_| false);
            }
        }
        self.load.as_ref()
    }
}

/// The condition that a gRPC status in a response's head stands for.
fn grpc_condition(headers: &HeaderMap) -> Option<RetryOn> {
    match headers.get_str("grpc-status")?.parse().ok()? {
        1u32 => Some(RetryOn::GRPC_CANCELLED),
        4 => Some(RetryOn::GRPC_DEADLINE_EXCEEDED),
        8 => Some(RetryOn::GRPC_RESOURCE_EXHAUSTED),
        13 => Some(RetryOn::GRPC_INTERNAL),
        14 => Some(RetryOn::GRPC_UNAVAILABLE),
        _ => None,
    }
}

/// How long the upstream wants us to wait; what is longer than allowed counts as not said.
fn reset_interval(limited: &RateLimitedBackOff, headers: &HeaderMap, clock: &WallClock) -> Option<Duration> {
    limited.headers.iter().find_map(|(name, format)| {
        let number: u64 = headers.get_str(name)?.trim().parse().ok()?;
        let wait = match format {
            ResetFormat::Seconds => Duration::from_secs(number),
            ResetFormat::UnixTimestamp => Duration::from_secs(number.checked_sub(clock.since_epoch().as_secs())?),
        };
        (wait <= limited.max).then_some(wait)
    })
}
