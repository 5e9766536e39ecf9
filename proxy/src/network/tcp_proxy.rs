//! `envoy.filters.network.tcp_proxy`: the bytes of a client to a host of a cluster, and back.
//!
//! Config: `envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy`. Stats: `tcp.<stat_prefix>.`. Response flags: NC
//! (no such cluster), UH (no healthy host), UO (the cluster's connections are used up), UF (a host did not connect), URX
//! (all attempts failed), UR (the host reset), DT (`max_downstream_connection_duration`). An idle timeout has no flag,
//! as in Envoy.
//!
//! [`session`] is one connection's life, [`relay`] one direction of its bytes.

mod relay;
mod session;

use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use nuncio_api::pb::envoy::extensions::filters::network::tcp_proxy::v3 as pb;
use nuncio_api::pb::envoy::r#type::v3::{HashPolicy, hash_policy::PolicySpecifier};
use nuncio_api::support::Entry;
use nuncio_api::supports;
use nuncio_core::access_log::{AccessLog, AccessLogConfig};
use nuncio_core::error::ConfigError;
use nuncio_core::extension::FactoryContext;
use nuncio_core::net::ConnectionInfo;
use nuncio_core::stats::lists::tcp;
use nuncio_core::stats::{ScopeId, Stats};
use nuncio_core::time::duration;
use tokio::task::AbortHandle;
use xxhash_rust::xxh64::xxh64;

use super::{Connection, ConnectionRecord, ListenerInfo, TerminalFilter, TerminalFilterConfig, TerminalFilterFactory};
use crate::access_log;
use crate::upstream::Worker;
use session::Session;

supports!(TCP_PROXY = "envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy" {
    stat_prefix, cluster, weighted_clusters, idle_timeout, access_log, max_connect_attempts, hash_policy,
    max_downstream_connection_duration, max_downstream_connection_duration_jitter_percentage,
    access_log_flush_interval, flush_access_log_on_connected, access_log_options
} values {
    upstream_connect_mode: ["IMMEDIATE"], proxy_protocol_tlv_merge_policy: ["ADD_IF_ABSENT"]
});
supports!(WEIGHTED = "envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy.WeightedCluster" { clusters });
supports!(WEIGHT = "envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy.WeightedCluster.ClusterWeight" {
    name, weight
});
supports!(LOG_OPTIONS = "envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy.TcpAccessLogOptions" {
    access_log_flush_interval, flush_access_log_on_connected, flush_access_log_on_start
});
supports!(HASH_POLICY = "envoy.type.v3.HashPolicy" { source_ip });
supports!(SOURCE_IP = "envoy.type.v3.HashPolicy.SourceIp" {});
supports!(PERCENT = "envoy.type.v3.Percent" { value });

/// What is honoured of the messages read here.
pub static SUPPORTED: &[&Entry] = &[&TCP_PROXY, &WEIGHTED, &WEIGHT, &LOG_OPTIONS, &HASH_POLICY, &SOURCE_IP, &PERCENT];

/// The name in a connection's filter state of the cluster that is to be taken instead of the configured one.
pub const PER_CONNECTION_CLUSTER: &str = "envoy.tcp_proxy.cluster";

/// Envoy's default of `idle_timeout`.
const IDLE_TIMEOUT: Duration = Duration::from_secs(3600);

pub struct Factory;

/// A checked configuration.
struct Config {
    scope: ScopeId,
    target: Target,
    idle_timeout: Option<Duration>,
    /// And how much longer by chance, in percent.
    max_duration: Option<(Duration, f64)>,
    max_connect_attempts: u32,
    log_on_start: bool,
    log_on_connected: bool,
    log_interval: Option<Duration>,
    logs: Vec<Arc<dyn AccessLogConfig>>,
    hash_source_ip: bool,
    buffer_limit: usize,
}

/// Where connections go.
enum Target {
    Cluster(Arc<str>),
    /// Names and weights; the sum of all weights.
    Weighted(Vec<(Arc<str>, u32)>, u64),
}

/// The filter on one worker, as its sessions share it.
struct TcpProxy {
    worker: Rc<Worker>,
    config: Arc<Config>,
    stats: Stats<tcp::TcpProxy>,
    logs: Vec<Box<dyn AccessLog>>,
}

struct Filter(Rc<TcpProxy>);

impl TerminalFilterFactory for Factory {
    fn name(&self) -> &'static str {
        "envoy.filters.network.tcp_proxy"
    }

    fn message(&self) -> &'static str {
        "envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy"
    }

    fn check(
        &self,
        config: &[u8],
        listener: &Arc<ListenerInfo>,
        context: &FactoryContext<'_>,
    ) -> Result<Arc<dyn TerminalFilterConfig>, Vec<ConfigError>> {
        let message = nuncio_api::any::decode::<pb::TcpProxy>(config).map_err(|e| vec![e])?;
        let logs = access_log::check("access_log", &message.access_log, context)?;
        Ok(Arc::new(Shared(Arc::new(Config::check(&message, logs, listener, context)?))))
    }
}

struct Shared(Arc<Config>);

impl TerminalFilterConfig for Shared {
    fn instantiate(&self, worker: &Rc<Worker>) -> Rc<dyn TerminalFilter> {
        Rc::new(Filter(Rc::new(TcpProxy {
            stats: Stats::new(&worker.context.stats, self.0.scope),
            logs: self.0.logs.iter().map(|log| log.instantiate(&worker.context)).collect(),
            worker: worker.clone(),
            config: self.0.clone(),
        })))
    }
}

impl TerminalFilter for Filter {
    fn serve(&self, connection: Connection) -> AbortHandle {
        let id = connection.info.id;
        self.0.worker.spawn(id, Session::new(self.0.clone(), connection))
    }

    fn refused(&self, connection: &Rc<ConnectionInfo>, record: Option<Rc<ConnectionRecord>>) {
        session::refused(&self.0, connection, record);
    }
}

// === impl Config ===

impl Config {
    fn check(
        message: &pb::TcpProxy,
        logs: Vec<Arc<dyn AccessLogConfig>>,
        listener: &ListenerInfo,
        context: &FactoryContext<'_>,
    ) -> Result<Self, Vec<ConfigError>> {
        let options = message.access_log_options.as_ref();
        #[allow(deprecated)]
        let (old_interval, old_on_connected) =
            (message.access_log_flush_interval.as_ref(), message.flush_access_log_on_connected);
        if options.is_some() && (old_interval.is_some() || old_on_connected) {
            return Err(vec![ConfigError::new(
                "access_log_options",
                "Only one of access_log_flush_interval or access_log_options can be specified.",
            )]);
        }
        let interval = options.map_or(old_interval, |o| o.access_log_flush_interval.as_ref());
        let jitter = message.max_downstream_connection_duration_jitter_percentage.as_ref().map_or(0.0, |p| p.value);
        Ok(Self {
            scope: context.scope(&tcp::SCOPE, &message.stat_prefix.as_str().into()),
            target: Target::check(message.cluster_specifier.as_ref(), context),
            idle_timeout: match message.idle_timeout.as_ref().map(duration) {
                None => Some(IDLE_TIMEOUT),
                Some(Duration::ZERO) => None,
                set => set,
            },
            max_duration: message.max_downstream_connection_duration.as_ref().map(|d| (duration(d), jitter)),
            max_connect_attempts: message.max_connect_attempts.as_ref().map_or(1, |v| v.value),
            log_on_start: options.is_some_and(|o| o.flush_access_log_on_start),
            log_on_connected: options.map_or(old_on_connected, |o| o.flush_access_log_on_connected),
            log_interval: interval.map(duration),
            logs,
            hash_source_ip: message.hash_policy.iter().any(hashes_source_ip),
            buffer_limit: listener.buffer_limit as usize,
        })
    }
}

fn hashes_source_ip(policy: &HashPolicy) -> bool {
    matches!(policy.policy_specifier, Some(PolicySpecifier::SourceIp(_)))
}

/// As Envoy hashes it: the address as text, without its port.
fn hash_of(ip: IpAddr) -> u64 {
    xxh64(ip.to_string().as_bytes(), 0)
}

// === impl Target ===

impl Target {
    fn check(message: Option<&pb::tcp_proxy::ClusterSpecifier>, context: &FactoryContext<'_>) -> Self {
        use pb::tcp_proxy::ClusterSpecifier;
        // Envoy accepts a cluster that is not there, and closes every connection.
        let known = |name: &str, path: &str| {
            if !(context.has_cluster)(name) {
                context.warn(path, format!("unknown cluster '{name}': its connections will be closed"));
            }
            Arc::from(name)
        };
        match message {
            Some(ClusterSpecifier::Cluster(name)) => Self::Cluster(known(name, "cluster")),
            Some(ClusterSpecifier::WeightedClusters(weighted)) => {
                let list: Vec<_> = weighted
                    .clusters
                    .iter()
                    .map(|c| (known(&c.name, "weighted_clusters.clusters"), c.weight))
                    .collect();
                let total = list.iter().map(|(_, weight)| u64::from(*weight)).sum();
                Self::Weighted(list, total)
            }
            // The annotations of the message ask for one of the two.
            None => Self::Cluster("".into()),
        }
    }

    /// `draw`: a number below its argument, by chance.
    fn choose(&self, draw: impl FnOnce(u64) -> u64) -> &Arc<str> {
        match self {
            Self::Cluster(name) => name,
            Self::Weighted(list, total) => {
                let mut left = draw(*total);
                let found = list.iter().find(|(_, weight)| {
                    let here = left < u64::from(*weight);
                    left = left.saturating_sub(u64::from(*weight));
                    here
                });
                &found.unwrap_or(&list[0]).0
            }
        }
    }
}

#[cfg(test)]
mod tests;
