//! What main publishes of a cluster, and how it reaches the workers.

use std::sync::Arc;

use nuncio_core::stats::ScopeId;
use nuncio_core::upstream::{Host, PrioritySet};

use super::circuit_breaker::CircuitBreakers;
use super::cluster::ClusterConfig;
use super::lb;

/// A cluster at one moment: immutable but for what lies behind its hosts and permits, shared by all threads.
#[derive(Debug)]
pub struct ClusterSnapshot {
    /// The same object for as long as the configuration stays the same.
    pub config: Arc<ClusterConfig>,
    pub breakers: Arc<CircuitBreakers>,
    /// What main builds of the hosts for balancers that need it; the same object for as long as the configuration.
    pub shared: Option<Arc<lb::shared::Shared>>,
    pub hosts: Arc<PrioritySet>,
    /// Where the cluster's stats are counted; the same over changes of its configuration.
    pub scope: ScopeId,
}

impl ClusterSnapshot {
    /// Its hosts are where a request's header says.
    pub fn believes_headers(&self) -> bool {
        self.config.lb.original_dst.as_ref().is_some_and(|config| config.believes_headers())
    }
}

/// A step from one picture of all clusters to the next.
#[derive(Debug, Clone)]
pub enum ClusterUpdate {
    /// New, or its configuration, hosts or health changed.
    Set(Arc<ClusterSnapshot>),
    Removed(Arc<str>),
    /// A host became unhealthy: its connections are drained. The `Set` that takes it out of balancing is another.
    HostFailed {
        cluster: Arc<str>,
        host: Arc<Host>,
    },
}

/// Brings updates to every worker, in order. The server's inboxes implement it.
pub trait Publish {
    /// One message for each worker, whatever the number of updates in it.
    fn publish(&self, updates: Arc<[ClusterUpdate]>);
}
