//! Clusters: the manager on the main thread, balancers and pools on the workers.
//!
//! - [`worker`]: what the layers above find on their thread
//! - [`cluster`], [`lb_config`], [`http_options`], [`circuit_breaker`]: a cluster's configuration, checked, and its limits
//! - [`transport`]: in clear text or by TLS
//! - [`cluster_manager`]: all clusters on main; [`membership`]: what changed of their hosts
//! - [`original_dst`]: hosts that nobody lists, because requests bring them
//! - [`snapshot`]: what main publishes, and how it reaches the workers
//! - [`thread_local`](mod@thread_local): a worker's clusters; here requests begin: choose a host, acquire a connection
//! - [`lb`]: which host; [`hash_policy`]: the number by which equal requests get the same one
//! - [`pool`]: which connection
//! - [`async_client`]: calls of the proxy's own; [`dial`]: connections for health checks

pub mod async_client;
pub mod circuit_breaker;
pub mod cluster;
pub mod cluster_manager;
pub mod dial;
pub mod hash_policy;
pub mod http_options;
pub mod lb;
pub mod lb_config;
pub mod membership;
pub mod original_dst;
pub mod pool;
pub mod snapshot;
#[cfg(test)]
pub(crate) mod testing;
pub mod thread_local;
pub mod transport;
pub mod worker;

pub use async_client::ClusterClient;
pub use circuit_breaker::{Permit, Priority};
pub use cluster::{ClusterConfig, ClusterDefaults};
pub use cluster_manager::{
    Awaited, ClusterManager, ClusterStatus, ClusterView, HealthView, PreparedCluster, Provenance,
};
pub use dial::DialContext;
pub use pool::http1::{Acquire, PendingConn, PooledConn};
pub use pool::stream::{AcquireStream, PendingStream, UpstreamEnd, UpstreamStream};
pub use pool::{PoolFailure, PoolFailureReason};
pub use snapshot::{ClusterSnapshot, ClusterUpdate, Publish};
pub use thread_local::{Clusters, ThreadLocalCluster};
pub use worker::Worker;
