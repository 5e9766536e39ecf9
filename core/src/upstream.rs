//! Upstream words: hosts and their health, sets of hosts, facts of a cluster, calls to clusters.

pub mod client;
pub mod cluster_info;
pub mod host;
pub mod host_set;

pub use client::{AsyncClient, AsyncFailure, AsyncRequest, AsyncResponse};
pub use cluster_info::ClusterInfo;
pub use host::{HealthFlag, HealthFlags, Host, HostSpec, Locality};
pub use host_set::{HostSet, PrioritySet};
