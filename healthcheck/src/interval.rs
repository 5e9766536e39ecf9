//! How long until a host is asked again.
//!
//! ```text
//! after        state unchanged            one answer more may change it
//! a pass       interval                   healthy_edge_interval
//! a failure    unhealthy_interval         unhealthy_edge_interval
//! no traffic yet: no_traffic_healthy_interval after a pass that changes nothing more, else no_traffic_interval
//! ```

use std::time::Duration;

use nuncio_api::pb::envoy::config::core::v3::HealthCheck;
use nuncio_core::random::Rng;
use nuncio_core::runtime::Runtime;
use nuncio_core::time::duration;

use crate::judge::Change;

/// The configured times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Intervals {
    interval: Duration,
    healthy_edge: Duration,
    unhealthy: Duration,
    unhealthy_edge: Duration,
    no_traffic: Duration,
    no_traffic_healthy: Duration,
    initial_jitter: Duration,
    jitter: Duration,
    jitter_percent: u32,
}

const NO_TRAFFIC: Duration = Duration::from_secs(60);

impl Intervals {
    pub fn from_proto(message: &HealthCheck) -> Self {
        let interval = message.interval.as_ref().map_or(NO_TRAFFIC, duration);
        let or = |field: &Option<_>, default| field.as_ref().map_or(default, duration);
        let unhealthy = or(&message.unhealthy_interval, interval);
        let no_traffic = or(&message.no_traffic_interval, NO_TRAFFIC);
        Self {
            interval,
            healthy_edge: or(&message.healthy_edge_interval, interval),
            unhealthy,
            unhealthy_edge: or(&message.unhealthy_edge_interval, unhealthy),
            no_traffic,
            no_traffic_healthy: or(&message.no_traffic_healthy_interval, no_traffic),
            initial_jitter: or(&message.initial_jitter, Duration::ZERO),
            jitter: or(&message.interval_jitter, Duration::ZERO),
            jitter_percent: message.interval_jitter_percent,
        }
    }

    /// Before the first check.
    pub fn initial(&self, rng: &Rng, runtime: &dyn Runtime) -> Duration {
        if self.initial_jitter.is_zero() {
            return Duration::ZERO;
        }
        bounded(part(self.initial_jitter, rng), runtime)
    }

    /// After an answer. `traffic`: the cluster has ever carried any.
    pub fn next(&self, passed: bool, change: Change, traffic: bool, rng: &Rng, runtime: &dyn Runtime) -> Duration {
        let pending = change == Change::Pending;
        let base = match (traffic, passed) {
            (true, true) if pending => self.healthy_edge,
            (true, true) => self.interval,
            (true, false) if pending => self.unhealthy_edge,
            (true, false) => self.unhealthy,
            (false, true) if !pending => self.no_traffic_healthy,
            (false, _) => self.no_traffic,
        };
        let percent = base.saturating_mul(self.jitter_percent) / 100;
        let jittered = base.saturating_add(part(percent, rng)).saturating_add(part(self.jitter, rng));
        bounded(jittered, runtime)
    }
}

/// Some of it, by chance.
pub fn part(whole: Duration, rng: &Rng) -> Duration {
    Duration::from_micros(rng.below(u64::try_from(whole.as_micros()).unwrap_or(u64::MAX)))
}

/// Operators may hold checks back, or make them more often, while the proxy runs. Never zero, which would be a loop.
fn bounded(wait: Duration, runtime: &dyn Runtime) -> Duration {
    let least = Duration::from_millis(runtime.integer("health_check.min_interval").unwrap_or(0).max(1));
    let most = runtime.integer("health_check.max_interval").map_or(Duration::MAX, Duration::from_millis);
    wait.min(most).max(least)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nuncio_api::pb::google::protobuf::Duration as Message;
    use nuncio_core::runtime::{FractionalPercent, NoRuntime};

    fn seconds(seconds: i64) -> Option<Message> {
        Some(Message { seconds, nanos: 0 })
    }

    fn next(message: HealthCheck, passed: bool, change: Change, traffic: bool) -> u64 {
        Intervals::from_proto(&message).next(passed, change, traffic, &Rng::with_seed(1), &NoRuntime).as_secs()
    }

    #[test]
    fn each_state_has_its_interval_and_what_is_unset_follows_another() {
        let all = HealthCheck {
            interval: seconds(1),
            healthy_edge_interval: seconds(2),
            unhealthy_interval: seconds(3),
            unhealthy_edge_interval: seconds(4),
            no_traffic_interval: seconds(5),
            no_traffic_healthy_interval: seconds(6),
            ..Default::default()
        };
        let some = HealthCheck { interval: seconds(7), unhealthy_interval: seconds(8), ..Default::default() };
        for (passed, change, traffic, of_all, of_some) in [
            (true, Change::Unchanged, true, 1, 7),
            (true, Change::Changed, true, 1, 7),
            (true, Change::Pending, true, 2, 7),
            (false, Change::Unchanged, true, 3, 8),
            (false, Change::Pending, true, 4, 8),
            (true, Change::Unchanged, false, 6, 60),
            (true, Change::Pending, false, 5, 60),
            (false, Change::Unchanged, false, 5, 60),
        ] {
            assert_eq!(next(all.clone(), passed, change, traffic), of_all);
            assert_eq!(next(some.clone(), passed, change, traffic), of_some);
        }
    }

    #[test]
    fn jitter_adds_up_to_its_bounds() {
        let message = HealthCheck {
            interval: seconds(10),
            interval_jitter_percent: 10,
            interval_jitter: seconds(1),
            ..Default::default()
        };
        let (intervals, rng) = (Intervals::from_proto(&message), Rng::with_seed(1));
        let waits: Vec<_> =
            (0..1000).map(|_| intervals.next(true, Change::Unchanged, true, &rng, &NoRuntime).as_millis()).collect();
        assert!(waits.iter().all(|wait| (10_000..12_000).contains(wait)));
        assert!(waits.iter().any(|wait| *wait < 10_400) && waits.iter().any(|wait| *wait > 11_600));
        assert_eq!(intervals.initial(&rng, &NoRuntime), Duration::ZERO);
    }

    #[test]
    fn runtime_bounds_them() {
        struct Bounds;
        impl Runtime for Bounds {
            fn fraction(&self, _: &str) -> Option<FractionalPercent> {
                None
            }
            fn boolean(&self, _: &str) -> Option<bool> {
                None
            }
            fn integer(&self, key: &str) -> Option<u64> {
                Some(if key == "health_check.min_interval" { 200 } else { 500 })
            }
        }
        let of = |s| {
            let message = HealthCheck { interval: Some(Message { seconds: s, nanos: 1 }), ..Default::default() };
            Intervals::from_proto(&message).next(true, Change::Unchanged, true, &Rng::with_seed(1), &Bounds)
        };
        assert_eq!((of(0), of(9)), (Duration::from_millis(200), Duration::from_millis(500)));
    }
}
