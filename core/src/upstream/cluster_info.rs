//! What never changes while a cluster's configuration stays the same.

use std::sync::Arc;
use std::time::Duration;

use crate::metadata::Metadata;

/// Facts of a cluster, shared by all threads.
#[derive(Debug, Default)]
pub struct ClusterInfo {
    pub name: Arc<str>,
    /// `alt_stat_name`, else the name.
    pub observability_name: Arc<str>,
    pub connect_timeout: Duration,
    pub per_connection_buffer_limit: u32,
    /// Requests of this cluster longer than this are cut; from the cluster's HTTP options.
    pub max_stream_duration: Option<Duration>,
    /// Shared, because most clusters have none.
    pub metadata: Arc<Metadata>,
    /// Known through CDS rather than the bootstrap file.
    pub added_via_api: bool,
    pub eds_service_name: Option<Box<str>>,
}
