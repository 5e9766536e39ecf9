//! Upstream words: hosts and their health, sets of hosts, the choice among them, facts of a cluster, calls to clusters,
//! connections of one's own to hosts, and what traffic tells of them.

pub mod client;
pub mod cluster_info;
pub mod dial;
pub mod grpc;
pub mod host;
mod host_load;
pub mod host_monitor;
pub mod host_set;
pub mod load_balancer;
pub mod retries;

pub use client::{AsyncClient, AsyncFailure, AsyncRequest, AsyncResponse};
pub use cluster_info::ClusterInfo;
pub use dial::{DialFailure, HostDialer, HttpAnswer, HttpCall, HttpConn};
pub use grpc::{GrpcFailure, GrpcService};
pub use host::{
    AddressText, Health, HealthFlag, HealthFlags, Host, HostCounts, HostLoad, HostSpec, Locality, Origin, Place,
};
pub use host_monitor::{HostMonitor, Outcome};
pub use host_set::{HostSet, Hosts, LocalityHosts, PrioritySet};
pub use load_balancer::{Choice, LbContext, LoadBalancer, OverrideHost, PriorityLoad};
