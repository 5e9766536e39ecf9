//! Circuit breakers: how much of a cluster may be in use at once, by priority and over all threads.
//!
//! The counts of a cluster are one cache line that every worker writes, because a limit that each worker kept for
//! itself would be another limit. They are exact; a check and the increment that follows are two steps, so that workers
//! who check at the same moment may pass a limit by one each, as in Envoy.

use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use nuncio_api::pb::envoy::config::cluster::v3::CircuitBreakers as Message;
use nuncio_api::pb::envoy::config::cluster::v3::circuit_breakers::{Thresholds as Limits, thresholds};
use nuncio_api::pb::google::protobuf::UInt32Value;
use nuncio_api::support::Entry;
use nuncio_api::supports;
use nuncio_core::error::ConfigError;

use super::thread_local::ClusterLocal;

supports!(BREAKERS = "envoy.config.cluster.v3.CircuitBreakers" { thresholds, per_host_thresholds });
supports!(THRESHOLDS = "envoy.config.cluster.v3.CircuitBreakers.Thresholds" {
    priority, max_connections, max_pending_requests, max_requests, max_retries, retry_budget, track_remaining,
    max_connection_pools
});
supports!(RETRY_BUDGET = "envoy.config.cluster.v3.CircuitBreakers.Thresholds.RetryBudget" {
    budget_percent, min_retry_concurrency
});

/// What is honoured of the messages read here.
pub static SUPPORTED: &[&Entry] = &[&BREAKERS, &THRESHOLDS, &RETRY_BUDGET];

/// `core.v3.RoutingPriority`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Priority {
    #[default]
    Default = 0,
    High = 1,
}

impl Priority {
    pub const ALL: [Self; 2] = [Self::Default, Self::High];
}

/// What is limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Resource {
    Connections = 0,
    PendingRequests = 1,
    Requests = 2,
    Retries = 3,
    Pools = 4,
}

/// The limits of one priority.
#[derive(Debug, Clone, PartialEq)]
pub struct Thresholds {
    pub max_connections: u32,
    pub max_pending_requests: u32,
    pub max_requests: u32,
    pub max_retries: u32,
    pub max_connection_pools: u32,
    pub max_connections_per_host: u32,
    pub retry_budget: Option<RetryBudget>,
    pub track_remaining: bool,
}

/// Retries as a share of what is going on; replaces `max_retries`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RetryBudget {
    pub percent: f64,
    pub min_concurrency: u32,
}

impl Thresholds {
    pub const DEFAULT: Self = Self {
        max_connections: 1024,
        max_pending_requests: 1024,
        max_requests: 1024,
        max_retries: 3,
        max_connection_pools: u32::MAX,
        max_connections_per_host: u32::MAX,
        retry_budget: None,
        track_remaining: false,
    };

    /// The limits of both priorities; `None` where all are the defaults.
    pub fn from_proto(message: &Message) -> Option<Box<[Self; 2]>> {
        let both = Priority::ALL.map(|priority| {
            let of = |list: &[Limits]| list.iter().find(|entry| entry.priority == priority as i32).cloned();
            let mut limits = of(&message.thresholds).map_or(Self::DEFAULT, |entry| Self::read(&entry));
            if let Some(per_host) = of(&message.per_host_thresholds) {
                limits.max_connections_per_host = value(&per_host.max_connections, u32::MAX);
            }
            limits
        });
        both.iter().any(|limits| *limits != Self::DEFAULT).then(|| Box::new(both))
    }

    /// What operators were surprised by, with paths relative to the cluster.
    pub fn warnings(message: &Message) -> Vec<ConfigError> {
        let mut warnings = Vec::new();
        for (at, entry) in message.thresholds.iter().enumerate() {
            let mut warn = |field: &str, reason: &str| {
                let path = format!("circuit_breakers.thresholds[{at}].{field}");
                warnings.push(ConfigError::new(path, reason));
            };
            if entry.max_pending_requests.is_some_and(|max| max.value == 0) {
                let reason = "with 0, a request that finds no free connection is refused, so also the first one";
                warn("max_pending_requests", reason);
            }
            let raised = entry.max_connections.is_some_and(|max| max.value > 1024);
            if raised && entry.max_requests.is_none() {
                let reason = "more connections than 1024 are of no use while max_requests is 1024: each request counts, \
                              whatever the protocol";
                warn("max_connections", reason);
            }
        }
        warnings
    }

    fn read(entry: &Limits) -> Self {
        let budget = |budget: &thresholds::RetryBudget| RetryBudget {
            percent: budget.budget_percent.as_ref().map_or(20.0, |percent| percent.value),
            min_concurrency: value(&budget.min_retry_concurrency, 3),
        };
        Self {
            max_connections: value(&entry.max_connections, 1024),
            max_pending_requests: value(&entry.max_pending_requests, 1024),
            max_requests: value(&entry.max_requests, 1024),
            max_retries: value(&entry.max_retries, 3),
            max_connection_pools: value(&entry.max_connection_pools, u32::MAX),
            max_connections_per_host: u32::MAX,
            retry_budget: entry.retry_budget.as_ref().map(budget),
            track_remaining: entry.track_remaining,
        }
    }

    fn max(&self, resource: Resource) -> u32 {
        match resource {
            Resource::Connections => self.max_connections,
            Resource::PendingRequests => self.max_pending_requests,
            Resource::Requests => self.max_requests,
            Resource::Retries => self.max_retries,
            Resource::Pools => self.max_connection_pools,
        }
    }
}

fn value(field: &Option<UInt32Value>, default: u32) -> u32 {
    field.as_ref().map_or(default, |field| field.value)
}

/// What of a cluster is in use now, by priority and resource; and whether anything ever was, which health checks ask.
/// Shared by all threads.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct CircuitBreakers([[AtomicU32; 5]; 2], AtomicBool);

impl CircuitBreakers {
    fn cell(&self, priority: Priority, resource: Resource) -> &AtomicU32 {
        &self.0[priority as usize][resource as usize]
    }

    pub fn in_use(&self, priority: Priority, resource: Resource) -> u32 {
        self.cell(priority, resource).load(Relaxed)
    }

    /// A connection was made at some time.
    pub fn has_been_used(&self) -> bool {
        self.1.load(Relaxed)
    }

    pub(super) fn note_use(&self) {
        if !self.has_been_used() {
            self.1.store(true, Relaxed);
        }
    }

    /// How much there may be; for retries with a budget this follows the traffic.
    pub fn limit(&self, limits: &Thresholds, priority: Priority, resource: Resource) -> u32 {
        match (resource, limits.retry_budget) {
            (Resource::Retries, Some(budget)) => {
                let active = self.in_use(priority, Resource::Requests);
                let pending = self.in_use(priority, Resource::PendingRequests);
                let share = budget.percent / 100.0 * (f64::from(active) + f64::from(pending));
                (share as u32).max(budget.min_concurrency)
            }
            _ => limits.max(resource),
        }
    }

    pub fn has_room(&self, limits: &Thresholds, priority: Priority, resource: Resource) -> bool {
        self.in_use(priority, resource) < self.limit(limits, priority, resource)
    }
}

/// One unit of a resource in use; dropping it gives the unit back.
#[must_use = "dropping the permit gives it back at once"]
pub struct Permit {
    cluster: Rc<ClusterLocal>,
    priority: Priority,
    resource: Resource,
}

impl Permit {
    /// Takes a unit whether there is room or not.
    pub(super) fn take(cluster: &Rc<ClusterLocal>, priority: Priority, resource: Resource) -> Self {
        cluster.breakers().cell(priority, resource).fetch_add(1, Relaxed);
        Self { cluster: cluster.clone(), priority, resource }
    }

    /// Takes a unit if there is room.
    pub(super) fn ask(cluster: &Rc<ClusterLocal>, priority: Priority, resource: Resource) -> Option<Self> {
        let limits = cluster.config().thresholds(priority);
        let room = cluster.breakers().has_room(limits, priority, resource);
        room.then(|| Self::take(cluster, priority, resource))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.cluster.breakers().cell(self.priority, self.resource).fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nuncio_api::pb::envoy::r#type::v3::Percent;

    #[test]
    fn the_counts_of_a_cluster_are_one_cache_line() {
        assert_eq!(std::mem::size_of::<CircuitBreakers>(), 64);
    }

    #[test]
    fn limits_that_are_all_defaults_take_no_memory() {
        assert!(Thresholds::from_proto(&Message::default()).is_none());
        let entry = Limits { max_connections: Some(UInt32Value { value: 1024 }), ..Default::default() };
        assert!(Thresholds::from_proto(&Message { thresholds: vec![entry], ..Default::default() }).is_none());
    }

    #[test]
    fn each_priority_has_its_own_limits() {
        let high = Limits { priority: 1, max_requests: Some(UInt32Value { value: 7 }), ..Default::default() };
        let per_host = Limits { max_connections: Some(UInt32Value { value: 2 }), ..Default::default() };
        let message = Message { thresholds: vec![high], per_host_thresholds: vec![per_host] };
        let [default, high] = *Thresholds::from_proto(&message).expect("not the defaults");
        assert_eq!((default.max_requests, default.max_connections_per_host), (1024, 2));
        assert_eq!((high.max_requests, high.max_connections_per_host), (7, u32::MAX));
    }

    #[test]
    fn limits_that_surprise_are_warned_of() {
        let value = |value| Some(UInt32Value { value });
        let zero = Limits { max_pending_requests: value(0), ..Default::default() };
        let half = Limits { priority: 1, max_connections: value(5000), ..Default::default() };
        let message = Message { thresholds: vec![zero, half], ..Default::default() };
        let paths: Vec<_> = Thresholds::warnings(&message).into_iter().map(|w| w.path).collect();
        let at = "circuit_breakers.thresholds";
        assert_eq!(paths, [format!("{at}[0].max_pending_requests"), format!("{at}[1].max_connections")]);
        let both = Limits { max_requests: value(5000), ..half };
        assert!(Thresholds::warnings(&Message { thresholds: vec![both], ..Default::default() }).is_empty());
    }

    #[test]
    fn a_retry_budget_follows_the_traffic_and_has_a_floor() {
        let budget = thresholds::RetryBudget { budget_percent: Some(Percent { value: 50.0 }), ..Default::default() };
        let entry =
            Limits { retry_budget: Some(budget), max_retries: Some(UInt32Value { value: 0 }), ..Default::default() };
        let message = Message { thresholds: vec![entry], ..Default::default() };
        let [limits, _] = *Thresholds::from_proto(&message).expect("not the defaults");
        let breakers = CircuitBreakers::default();
        let limit = || breakers.limit(&limits, Priority::Default, Resource::Retries);
        assert_eq!(limit(), 3);
        breakers.cell(Priority::Default, Resource::Requests).fetch_add(10, Relaxed);
        breakers.cell(Priority::Default, Resource::PendingRequests).fetch_add(2, Relaxed);
        assert_eq!(limit(), 6);
    }
}
