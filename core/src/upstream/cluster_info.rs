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
    pub metadata: Metadata,
    /// Known through CDS rather than the bootstrap file.
    pub added_via_api: bool,
    pub eds_service_name: Option<String>,
}
