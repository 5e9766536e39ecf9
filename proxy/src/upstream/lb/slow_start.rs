//! Slow start: a host that is new, or passed its active checks again, gets a growing part of its weight.

use std::sync::Arc;

use nuncio_core::upstream::{Health, Host};
use tokio::time::Instant;

use crate::upstream::lb_config::SlowStart;

/// Weights over time; of none, weights are what they are.
#[derive(Debug, Clone, Default)]
pub struct SlowStarts(Option<Arc<SlowStart>>);

impl SlowStarts {
    pub fn new(config: Option<Arc<SlowStart>>) -> Self {
        Self(config)
    }

    /// What counts as this host's weight now.
    pub fn weight(&self, host: &Host) -> f64 {
        let weight = f64::from(host.weight());
        match &self.0 {
            None => weight,
            Some(config) => weight * factor(config, host, Instant::now()),
        }
    }

    /// Some of them does not get its whole weight yet, so that turns must follow the weights.
    pub fn any(&self, hosts: &[Arc<Host>]) -> bool {
        let Some(config) = &self.0 else { return false };
        let now = Instant::now();
        hosts.iter().any(|host| factor(config, host, now) < 1.0)
    }
}

fn factor(config: &SlowStart, host: &Host, now: Instant) -> f64 {
    let well_for = host.well_for(now);
    if well_for >= config.window || host.health() != Health::Healthy {
        return 1.0;
    }
    let part = (well_for.as_millis().max(1) as f64) / config.window.as_millis().max(1) as f64;
    part.powf(1.0 / config.aggression).max(config.min_weight)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use nuncio_core::net::Address;
    use nuncio_core::upstream::{HealthFlag, HealthFlags, HostSpec};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_new_host_grows_into_its_weight() {
        let spec = HostSpec { weight: 10, ..HostSpec::new(Address::Ip(([127, 0, 0, 1], 1).into())) };
        let host = Arc::new(Host::new(spec));
        let config = SlowStart { window: Duration::from_secs(10), aggression: 1.0, min_weight: 0.1 };
        let starts = SlowStarts::new(Some(Arc::new(config)));
        assert!(starts.any(std::slice::from_ref(&host)));
        assert_eq!(starts.weight(&host), 1.0);
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(starts.weight(&host), 5.0);
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!((starts.weight(&host), starts.any(std::slice::from_ref(&host))), (10.0, false));
        // It failed its checks, and passes them again.
        host.set_flags(HealthFlags::default().with(HealthFlag::FailedActiveHc));
        host.set_flags(HealthFlags::default());
        assert_eq!(starts.weight(&host), 1.0);
        let steep = SlowStarts::new(Some(Arc::new(SlowStart { aggression: 2.0, ..config })));
        tokio::time::advance(Duration::from_millis(2500)).await;
        assert_eq!(steep.weight(&host), 5.0);
    }
}
