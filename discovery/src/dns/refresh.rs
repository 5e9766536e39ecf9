//! When a name is asked for again: the refresh rate or the answer's own time to live, with jitter, after an answer; a
//! growing, jittered wait after a failure.

use std::time::Duration;

use nuncio_api::pb::envoy::config::cluster::v3::{Cluster, cluster};
use nuncio_api::pb::envoy::extensions::clusters::dns::v3::{DnsCluster, dns_cluster};
use nuncio_api::pb::google::protobuf::Duration as Pb;
use nuncio_api::support::Entry;
use nuncio_api::supports;
use nuncio_core::error::ConfigError;
use nuncio_core::random::Rng;
use nuncio_core::time::duration;

supports!(REFRESH_RATE = "envoy.config.cluster.v3.Cluster.RefreshRate" { base_interval, max_interval });
supports!(DNS_REFRESH_RATE = "envoy.extensions.clusters.dns.v3.DnsCluster.RefreshRate" {
    base_interval, max_interval
});

/// What is honoured of the messages read here.
pub static SUPPORTED: &[&Entry] = &[&REFRESH_RATE, &DNS_REFRESH_RATE];

/// Checked configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refresh {
    rate: Duration,
    respect_ttl: bool,
    /// What a time to live counts as at least.
    least: Duration,
    jitter: Duration,
    failure: Option<Backoff>,
}

/// `dns_failure_refresh_rate`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Backoff {
    base: Duration,
    max: Duration,
}

/// Where one name is in its failures.
#[derive(Debug, Clone, Copy, Default)]
pub struct Failures(u32);

impl Refresh {
    const RATE: Duration = Duration::from_secs(5);
    /// A record that claims to hold for years is asked for once a day.
    const LONGEST: Duration = Duration::from_secs(24 * 3600);

    pub fn from_cluster(cluster: &Cluster) -> Result<Self, ConfigError> {
        #[allow(deprecated)]
        let (rate, jitter, failure, respect_ttl) = (
            &cluster.dns_refresh_rate,
            &cluster.dns_jitter,
            &cluster.dns_failure_refresh_rate,
            cluster.respect_dns_ttl,
        );
        let failure = failure.as_ref().map(|cluster::RefreshRate { base_interval, max_interval }| {
            Backoff::new(base_interval.as_ref(), max_interval.as_ref())
        });
        Self::new(rate.as_ref(), jitter.as_ref(), failure.transpose()?, respect_ttl, None)
    }

    pub fn from_dns_cluster(message: &DnsCluster) -> Result<Self, ConfigError> {
        let failure = message.dns_failure_refresh_rate.as_ref();
        let failure = failure.map(|dns_cluster::RefreshRate { base_interval, max_interval }| {
            Backoff::new(base_interval.as_ref(), max_interval.as_ref())
        });
        let (rate, jitter) = (message.dns_refresh_rate.as_ref(), message.dns_jitter.as_ref());
        let least = message.dns_min_refresh_rate.as_ref();
        Self::new(rate, jitter, failure.transpose()?, message.respect_dns_ttl, least)
    }

    fn new(
        rate: Option<&Pb>,
        jitter: Option<&Pb>,
        failure: Option<Backoff>,
        respect_ttl: bool,
        least: Option<&Pb>,
    ) -> Result<Self, ConfigError> {
        Ok(Self {
            rate: rate.map_or(Self::RATE, duration),
            respect_ttl,
            least: least.map_or(Duration::ZERO, duration),
            jitter: jitter.map_or(Duration::ZERO, duration),
            failure,
        })
    }

    /// Answers that are a little older than now are new enough for one who asks this often.
    pub fn max_age(&self) -> Duration {
        (self.rate / 10).min(Duration::from_secs(1))
    }

    /// After an answer; `ttl` if it had records.
    pub fn after_answer(&self, ttl: Option<Duration>, failures: &mut Failures, rng: &Rng) -> Duration {
        failures.0 = 0;
        // A time to live of zero, or none, must not end in a tight loop.
        let ttl = ttl.filter(|ttl| self.respect_ttl && !ttl.is_zero());
        let wait = ttl.map_or(self.rate, |ttl| ttl.clamp(self.least, Self::LONGEST.max(self.least)));
        wait + fraction(self.jitter, rng)
    }

    /// After a failure that took `spent`. Without a rate of its own, questions begin as far from each other as after
    /// answers, but never with jitter: silence that took its time has been waited for, and servers that are back are
    /// asked within the rate.
    pub fn after_failure(&self, spent: Duration, failures: &mut Failures, rng: &Rng) -> Duration {
        let Some(Backoff { base, max }) = self.failure else {
            return self.rate.saturating_sub(spent).max(self.rate.min(Duration::from_secs(1)) / 10);
        };
        failures.0 = failures.0.saturating_add(1);
        // Fully jittered and exponential: somewhere in [0, base * 2^n), at most `max`.
        let factor = 1u32.checked_shl(failures.0 - 1).unwrap_or(u32::MAX);
        let ceiling = base.saturating_mul(factor).min(max);
        // Never a tight loop, whatever chance says.
        fraction(ceiling, rng).max(base.min(Duration::from_secs(1)) / 10)
    }
}

impl Backoff {
    fn new(base: Option<&Pb>, max: Option<&Pb>) -> Result<Self, ConfigError> {
        let base = base.map_or(Duration::ZERO, duration);
        let max = max.map_or(base.saturating_mul(10), duration);
        if max < base {
            let reason = "dns_failure_refresh_rate must have max_interval greater than or equal to the base_interval";
            return Err(ConfigError::new("dns_failure_refresh_rate", reason));
        }
        Ok(Self { base, max })
    }
}

/// Uniform in `[0, span)`, in milliseconds as timers count.
fn fraction(span: Duration, rng: &Rng) -> Duration {
    Duration::from_micros(rng.below(u64::try_from(span.as_micros()).unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn refresh() -> Refresh {
        Refresh { rate: ms(5000), respect_ttl: true, least: Duration::ZERO, jitter: Duration::ZERO, failure: None }
    }

    #[test]
    fn the_time_to_live_wins_both_ways_and_zero_does_not_count() {
        let (rng, mut failures) = (Rng::with_seed(1), Failures::default());
        let mut after = |refresh: Refresh, ttl| refresh.after_answer(ttl, &mut failures, &rng);
        assert_eq!(after(refresh(), Some(ms(1000))), ms(1000));
        assert_eq!(after(refresh(), Some(ms(300_000))), ms(300_000));
        assert_eq!(after(refresh(), Some(ms(0))), ms(5000));
        assert_eq!(after(refresh(), None), ms(5000));
        assert_eq!(after(Refresh { respect_ttl: false, ..refresh() }, Some(ms(1000))), ms(5000));
        assert_eq!(after(Refresh { least: ms(3000), ..refresh() }, Some(ms(1000))), ms(3000));
        // RFC 2181 allows 2^31 - 1 seconds.
        assert_eq!(after(refresh(), Some(Duration::from_secs(u64::from(u32::MAX)))), Duration::from_secs(86_400));
    }

    #[test]
    fn jitter_stays_in_its_bounds_and_is_not_added_to_failures() {
        let (rng, mut failures) = (Rng::with_seed(2), Failures::default());
        let jittery = Refresh { jitter: ms(700), ..refresh() };
        let waits: Vec<_> = (0..1000).map(|_| jittery.after_answer(None, &mut failures, &rng)).collect();
        assert!(waits.iter().all(|wait| (ms(5000)..ms(5700)).contains(wait)));
        assert!(waits.iter().any(|wait| *wait < ms(5070)) && waits.iter().any(|wait| *wait > ms(5630)));
        assert_eq!(jittery.after_failure(ms(0), &mut failures, &rng), ms(5000));
    }

    #[test]
    fn what_a_failure_took_is_waited_for_already_unless_failures_have_a_rate() {
        let (rng, mut failures) = (Rng::with_seed(4), Failures::default());
        let mut after = |refresh: Refresh, spent| refresh.after_failure(ms(spent), &mut failures, &rng);
        assert_eq!(after(refresh(), 3000), ms(2000));
        assert_eq!(after(refresh(), 10_000), ms(100), "never a tight loop");
        assert_eq!(after(Refresh { rate: ms(20), ..refresh() }, 10_000), ms(2));
        let failing = Refresh { failure: Some(Backoff { base: ms(200), max: ms(200) }), ..refresh() };
        assert!((ms(20)..ms(200)).contains(&after(failing, 10_000)));
    }

    #[test]
    fn failures_wait_longer_and_longer_until_an_answer_comes() {
        let (rng, mut failures) = (Rng::with_seed(3), Failures::default());
        let failing = Refresh { failure: Some(Backoff { base: ms(200), max: ms(1000) }), ..refresh() };
        for ceiling in [200, 400, 800, 1000, 1000] {
            let wait = failing.after_failure(ms(0), &mut failures, &rng);
            assert!(wait < ms(ceiling) && wait >= ms(20), "{wait:?} {ceiling}");
        }
        failing.after_answer(None, &mut failures, &rng);
        assert!(failing.after_failure(ms(0), &mut failures, &rng) < ms(200));
        (0..100).for_each(|_| assert!(failing.after_failure(ms(0), &mut failures, &rng) < ms(1000)));
    }

    #[test]
    fn a_longest_wait_below_the_first_is_refused() {
        let pb = |seconds| Some(Pb { seconds, nanos: 0 });
        let failure = cluster::RefreshRate { base_interval: pb(5), max_interval: pb(1) };
        #[allow(deprecated)]
        let cluster = Cluster { dns_failure_refresh_rate: Some(failure), ..Default::default() };
        assert!(Refresh::from_cluster(&cluster).is_err());
    }
}
