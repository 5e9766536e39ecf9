//! A cluster's configuration, checked: what all threads read and nobody writes.
//!
//! Ten thousand of these lie idle in some proxies, so what is rarely set is boxed and what is usually the default is
//! shared.

use std::rc::Rc;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use nuncio_api::pb::envoy::config::cluster::v3 as pb;
use nuncio_api::pb::envoy::config::core::v3 as core_pb;
use nuncio_api::support::Entry;
use nuncio_api::supports;
use nuncio_core::access_log::{LogFile, LogFiles};
use nuncio_core::error::ConfigError;
use nuncio_core::metadata::Metadata;
use nuncio_core::net::ConnectOptions;
use nuncio_core::runtime::{NoRuntime, Runtime};
use nuncio_core::time::duration;
use nuncio_core::upstream::{ClusterInfo, HealthFlag, HealthFlags};

use super::circuit_breaker::{Priority, Thresholds};
use super::cluster_manager::Protection;
use super::http_options::{self, HttpOptions, UpstreamProtocol};
use super::lb_config;
pub use super::lb_config::{LbConfig, LbPolicy};
use super::transport::{self, TransportSockets};
use crate::net::options;
use crate::tls::Secrets;

supports!(CLUSTER = "envoy.config.cluster.v3.Cluster" {
    name, alt_stat_name, cluster_type, connect_timeout, per_connection_buffer_limit_bytes, load_assignment,
    max_requests_per_connection, circuit_breakers, common_http_protocol_options, http_protocol_options,
    typed_extension_protocol_options, wait_for_warm_on_init, upstream_bind_config, common_lb_config, transport_socket,
    transport_socket_matches,
    metadata, upstream_connection_options, close_connections_on_host_health_failure, ignore_health_on_host_removal,
    load_balancing_policy, least_request_lb_config, round_robin_lb_config, ring_hash_lb_config, maglev_lb_config,
    lb_policy, lb_subset_config, original_dst_lb_config, cleanup_interval
} noop {
    preconnect_policy: "connections are made when they are needed",
    track_timeout_budgets: "these statistics are not kept",
    track_cluster_stats: "these statistics are not kept",
} values {
    // What each of them reads stands beside it.
    r#type: ["STATIC", "STRICT_DNS", "LOGICAL_DNS", "EDS", "ORIGINAL_DST"],
    protocol_selection: ["USE_CONFIGURED_PROTOCOL"],
});
supports!(CUSTOM_TYPE = "envoy.config.cluster.v3.Cluster.CustomClusterType" { name, typed_config });
supports!(COMMON_LB = "envoy.config.cluster.v3.Cluster.CommonLbConfig" {
    healthy_panic_threshold, update_merge_window, ignore_new_hosts_until_first_hc, close_connections_on_host_set_change,
    override_host_status, zone_aware_lb_config, locality_weighted_lb_config, consistent_hashing_lb_config
});
supports!(ROUND_ROBIN_LB = "envoy.config.cluster.v3.Cluster.RoundRobinLbConfig" { slow_start_config });
supports!(LEAST_REQUEST_LB = "envoy.config.cluster.v3.Cluster.LeastRequestLbConfig" {
    choice_count, active_request_bias, slow_start_config
});
supports!(HOST_STATUSES = "envoy.config.core.v3.HealthStatusSet" { statuses });
supports!(CONNECTION_OPTIONS = "envoy.config.cluster.v3.UpstreamConnectionOptions" {
    tcp_keepalive
} noop {
    set_local_interface_name_on_upstream_connections: "nothing here reads that name",
    happy_eyeballs_config: "addresses are tried in the order of the answer, families in turn",
});
supports!(BIND = "envoy.config.core.v3.BindConfig" {
    source_address, socket_options
} values {
    freebind: ["false"],
});
supports!(TRACK = "envoy.config.cluster.v3.TrackClusterStats" {
    timeout_budgets, request_response_sizes, per_endpoint_stats
});
supports!(PRECONNECT = "envoy.config.cluster.v3.Cluster.PreconnectPolicy" {
    per_upstream_preconnect_ratio, predictive_preconnect_ratio
});
supports!(CLUSTER_MANAGER = "envoy.config.bootstrap.v3.ClusterManager" {
    upstream_bind_config, outlier_detection, local_cluster_name
} noop {
    enable_deferred_cluster_creation: "what a worker needs of a cluster is always made at its first use",
});

supports!(OUTLIER_LOG = "envoy.config.bootstrap.v3.ClusterManager.OutlierDetection" { event_log_path });

/// What is honoured of the messages read here.
pub static SUPPORTED: &[&Entry] = &[
    &OUTLIER_LOG,
    &CLUSTER,
    &CUSTOM_TYPE,
    &COMMON_LB,
    &ROUND_ROBIN_LB,
    &LEAST_REQUEST_LB,
    &HOST_STATUSES,
    &CONNECTION_OPTIONS,
    &BIND,
    &TRACK,
    &PRECONNECT,
    &CLUSTER_MANAGER,
    &transport::MATCH,
    &transport::RAW_BUFFER,
    &transport::PROXY_PROTOCOL,
    &transport::PROXY_PROTOCOL_CONFIG,
];

/// Everything about a cluster but its hosts.
#[derive(Debug)]
pub struct ClusterConfig {
    pub info: Arc<ClusterInfo>,
    pub lb: LbConfig,
    /// How its connections speak HTTP, and how long they live.
    pub http: Arc<HttpOptions>,
    thresholds: Option<Box<[Thresholds; 2]>>,
    connect: Option<Box<ConnectOptions>>,
    transport: Option<Box<TransportSockets>>,
    rare: Option<Box<Rare>>,
}

/// What few clusters set.
#[derive(Debug, Clone, PartialEq)]
struct Rare {
    update_merge_window: Duration,
    override_host_status: HostStatuses,
    protection: Protection,
    flags: ClusterFlags,
}

impl Rare {
    const DEFAULT: Self = Self {
        update_merge_window: Duration::from_secs(1),
        override_host_status: HostStatuses::DEFAULT,
        protection: Protection { keep_last_good: Duration::ZERO, refuse_older: Duration::ZERO },
        flags: ClusterFlags {
            ignore_health_on_host_removal: false,
            close_connections_on_host_health_failure: false,
            close_connections_on_host_set_change: false,
            ignore_new_hosts_until_first_hc: false,
            wait_for_warm_on_init: true,
        },
    };
}

/// Envoy's fields of the same names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClusterFlags {
    pub ignore_health_on_host_removal: bool,
    pub close_connections_on_host_health_failure: bool,
    pub close_connections_on_host_set_change: bool,
    pub ignore_new_hosts_until_first_hc: bool,
    pub wait_for_warm_on_init: bool,
}

/// `override_host_status`: in which state a host that a filter asks for is still taken; a set of
/// `core.v3.HealthStatus` values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostStatuses(u8);

impl HostStatuses {
    const DEFAULT: Self = Self(
        1 << core_pb::HealthStatus::Unknown as u8
            | 1 << core_pb::HealthStatus::Healthy as u8
            | 1 << core_pb::HealthStatus::Degraded as u8,
    );

    fn from_proto(message: &core_pb::HealthStatusSet) -> Self {
        Self(message.statuses.iter().fold(0, |set, status| set | u8::try_from(*status).map_or(0, |s| 1 << (s & 7))))
    }

    /// Whether a host with these flags is in one of the states.
    pub fn admits(self, flags: HealthFlags) -> bool {
        use core_pb::HealthStatus::*;
        let status = if flags.contains(HealthFlag::EdsStatusDraining) {
            Draining
        } else {
            match flags.health() {
                nuncio_core::upstream::Health::Healthy => Healthy,
                nuncio_core::upstream::Health::Degraded => Degraded,
                nuncio_core::upstream::Health::Unhealthy => Unhealthy,
            }
        };
        self.0 & 1 << status as u8 != 0
    }
}

/// What the bootstrap says for all clusters.
#[derive(Clone)]
pub struct ClusterDefaults {
    /// `cluster_manager.upstream_bind_config`.
    pub bind: Option<core_pb::BindConfig>,
    /// `cluster_manager.local_cluster_name`, and where this proxy is.
    pub local: Option<Arc<lb_config::Local>>,
    /// What TLS contexts are made of.
    pub secrets: Secrets,
    /// What events are written to.
    pub log_files: Option<Rc<dyn LogFiles>>,
    /// `cluster_manager.outlier_detection.event_log_path`.
    pub outlier_log: Option<Arc<dyn LogFile>>,
    /// What operators change while the proxy runs.
    pub runtime: Rc<dyn Runtime>,
}

impl Default for ClusterDefaults {
    fn default() -> Self {
        Self {
            bind: None,
            local: None,
            secrets: Secrets::default(),
            log_files: None,
            outlier_log: None,
            runtime: Rc::new(NoRuntime),
        }
    }
}

impl ClusterConfig {
    const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
    const BUFFER_LIMIT: u32 = 1024 * 1024;

    /// Reads all but the hosts, which are the discovery type's. Paths of errors are relative to the cluster.
    pub fn from_proto(
        message: &pb::Cluster,
        added_via_api: bool,
        defaults: &ClusterDefaults,
    ) -> Result<Self, Vec<ConfigError>> {
        let mut errors = Vec::new();
        let mut keep = |result: Result<(), ConfigError>| errors.extend(result.err());
        let mut http = HttpOptions::shared_default();
        keep(http_options::from_cluster(message).map(|read| http = read));
        let mut lb = LbConfig::default();
        keep(lb_config::from_cluster(message).map(|read| lb = read));
        lb.zone.local = defaults.local.clone();
        let mut connect = None;
        keep(connect_options(message, defaults).map(|read| connect = read));
        let mut transport = None;
        keep(TransportSockets::from_cluster(message, &defaults.secrets).map(|read| transport = read));
        keep(check_negotiation(message, &http, transport.as_deref()));
        let mut protection = Protection::default();
        keep(Protection::from_proto(message).map(|read| protection = read));
        if !errors.is_empty() {
            return Err(errors);
        }
        let thresholds = message.circuit_breakers.as_ref().and_then(Thresholds::from_proto);
        let rare = rare(message, protection);
        let info = Arc::new(info(message, added_via_api, &http));
        Ok(Self { info, lb, http, thresholds, connect: connect.map(Box::new), transport, rare })
    }

    pub fn name(&self) -> &Arc<str> {
        &self.info.name
    }

    pub fn thresholds(&self, priority: Priority) -> &Thresholds {
        match &self.thresholds {
            Some(both) => &both[priority as usize],
            None => &Thresholds::DEFAULT,
        }
    }

    pub fn connect_options(&self) -> &ConnectOptions {
        static NONE: LazyLock<ConnectOptions> = LazyLock::new(ConnectOptions::default);
        self.connect.as_deref().unwrap_or(&NONE)
    }

    /// None: all in clear text.
    pub fn transport(&self) -> Option<&TransportSockets> {
        self.transport.as_deref()
    }

    fn rare(&self) -> &Rare {
        self.rare.as_deref().unwrap_or(&Rare::DEFAULT)
    }

    pub fn flags(&self) -> ClusterFlags {
        self.rare().flags
    }

    /// For how long changes of health, weight and metadata are collected before balancers hear of them.
    pub fn update_merge_window(&self) -> Duration {
        self.rare().update_merge_window
    }

    /// Against what its source says.
    pub fn protection(&self) -> Protection {
        self.rare().protection
    }

    pub fn override_host_status(&self) -> HostStatuses {
        self.rare().override_host_status
    }
}

fn info(message: &pb::Cluster, added_via_api: bool, http: &HttpOptions) -> ClusterInfo {
    let name: Arc<str> = message.name.as_str().into();
    let alt = message.alt_stat_name.as_str();
    let eds = message.eds_cluster_config.as_ref().map(|eds| eds.service_name.as_str());
    ClusterInfo {
        observability_name: if alt.is_empty() { name.clone() } else { alt.into() },
        name,
        connect_timeout: message.connect_timeout.as_ref().map_or(ClusterConfig::CONNECT_TIMEOUT, duration),
        per_connection_buffer_limit: message
            .per_connection_buffer_limit_bytes
            .as_ref()
            .map_or(ClusterConfig::BUFFER_LIMIT, |limit| limit.value),
        max_stream_duration: http.max_stream_duration,
        metadata: match &message.metadata {
            Some(metadata) => Arc::new(Metadata::from_proto(metadata)),
            None => Metadata::none(),
        },
        added_via_api,
        eds_service_name: eds.filter(|name| !name.is_empty()).map(Into::into),
    }
}

fn rare(message: &pb::Cluster, protection: Protection) -> Option<Box<Rare>> {
    let common = message.common_lb_config.as_ref();
    let rare = Rare {
        update_merge_window: common
            .and_then(|common| common.update_merge_window.as_ref())
            .map_or(Rare::DEFAULT.update_merge_window, duration),
        override_host_status: common
            .and_then(|common| common.override_host_status.as_ref())
            .map_or(HostStatuses::DEFAULT, HostStatuses::from_proto),
        protection,
        flags: ClusterFlags {
            ignore_health_on_host_removal: message.ignore_health_on_host_removal,
            close_connections_on_host_health_failure: message.close_connections_on_host_health_failure,
            close_connections_on_host_set_change: common.is_some_and(|c| c.close_connections_on_host_set_change),
            ignore_new_hosts_until_first_hc: common.is_some_and(|c| c.ignore_new_hosts_until_first_hc),
            wait_for_warm_on_init: message.wait_for_warm_on_init.as_ref().is_none_or(|wait| wait.value),
        },
    };
    (rare != Rare::DEFAULT).then(|| Box::new(rare))
}

/// Who lets the handshake choose needs one.
fn check_negotiation(
    message: &pb::Cluster,
    http: &HttpOptions,
    transport: Option<&TransportSockets>,
) -> Result<(), ConfigError> {
    if http.protocol != UpstreamProtocol::Auto || transport.is_some_and(TransportSockets::is_tls_by_default) {
        return Ok(());
    }
    let reason = format!("ALPN configured for cluster {} which has a non-ALPN transport socket", message.name);
    Err(ConfigError::new("transport_socket", reason))
}

/// What its sockets are told; `None` if nothing.
fn connect_options(message: &pb::Cluster, defaults: &ClusterDefaults) -> Result<Option<ConnectOptions>, ConfigError> {
    let mut read = ConnectOptions::default();
    if let Some(bind) = message.upstream_bind_config.as_ref().or(defaults.bind.as_ref()) {
        if let Some(source) = &bind.source_address {
            let source = core_pb::address::Address::SocketAddress(source.clone());
            let source = options::address(&core_pb::Address { address: Some(source) });
            read.source = Some(source.map_err(|mut e| {
                e.path = e.path.replace("socket_address", "source_address");
                e.within("upstream_bind_config")
            })?);
        }
        read.socket_options = options::socket_options(&bind.socket_options);
    }
    let keepalive = message.upstream_connection_options.as_ref().and_then(|o| o.tcp_keepalive.as_ref());
    read.keepalive = keepalive.map(options::keepalive);
    Ok((read != ConnectOptions::default()).then_some(read))
}

#[cfg(test)]
mod tests;
