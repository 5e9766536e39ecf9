//! `core.v3.HealthCheck` of a cluster, checked.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use nuncio_api::pb::envoy::config::core::v3 as pb;
use nuncio_api::pb::envoy::config::core::v3::health_check::HealthChecker;
use nuncio_api::pb::envoy::extensions::health_check::event_sinks::file::v3::HealthCheckEventFileSink;
use nuncio_api::support::Entry;
use nuncio_api::{supports, unpack};
use nuncio_core::access_log::{LogFile, LogFiles, LogTarget};
use nuncio_core::error::ConfigError;
use nuncio_core::time::duration;

use crate::interval::Intervals;
use crate::judge::Thresholds;
use crate::probe::ReadMutation;
use crate::probes::Protocol;
use crate::probes::grpc::GrpcCheck;
use crate::probes::http::HttpCheck;
use crate::probes::tcp::TcpCheck;

supports!(CHECK = "envoy.config.core.v3.HealthCheck" {
    timeout, interval, initial_jitter, interval_jitter, interval_jitter_percent, unhealthy_threshold, healthy_threshold,
    reuse_connection, no_traffic_interval, no_traffic_healthy_interval, unhealthy_interval, unhealthy_edge_interval,
    healthy_edge_interval, event_log_path, event_logger, always_log_health_check_failures,
    always_log_health_check_success, http_health_check, tcp_health_check, grpc_health_check
});
supports!(HTTP = "envoy.config.core.v3.HealthCheck.HttpHealthCheck" {
    host, path, send, receive, response_buffer_size, request_headers_to_add, request_headers_to_remove,
    expected_statuses, retriable_statuses, service_name_matcher, method
} values {
    codec_client_type: ["HTTP1", "HTTP2"],
});
supports!(TCP = "envoy.config.core.v3.HealthCheck.TcpHealthCheck" { send, receive });
supports!(GRPC = "envoy.config.core.v3.HealthCheck.GrpcHealthCheck" { service_name, authority, initial_metadata });
supports!(PAYLOAD = "envoy.config.core.v3.HealthCheck.Payload" { text, binary });
supports!(STATUSES = "envoy.type.v3.Int64Range" { start, end });
supports!(SINK = "envoy.config.core.v3.TypedExtensionConfig" { name, typed_config });
supports!(FILE_SINK = "envoy.extensions.health_check.event_sinks.file.v3.HealthCheckEventFileSink" { event_log_path });

/// What is honoured of the messages read here.
pub static SUPPORTED: &[&Entry] = &[&CHECK, &HTTP, &TCP, &GRPC, &PAYLOAD, &STATUSES, &SINK, &FILE_SINK];

/// How the hosts of one cluster are asked.
pub struct CheckConfig {
    pub protocol: Protocol,
    pub timeout: Duration,
    pub intervals: Intervals,
    pub thresholds: Thresholds,
    pub reuse_connection: bool,
    pub always_log_failures: bool,
    pub always_log_success: bool,
    pub event_logs: Vec<Arc<dyn LogFile>>,
}

/// What a check is read with.
pub struct Reading<'a> {
    pub cluster: &'a str,
    /// The cluster's connections speak HTTP/2.
    pub http2: bool,
    pub log_files: &'a dyn LogFiles,
    pub mutation: ReadMutation<'a>,
}

impl CheckConfig {
    pub fn from_proto(message: &pb::HealthCheck, reading: &Reading<'_>) -> Result<Self, ConfigError> {
        let protocol = match &message.health_checker {
            Some(HealthChecker::HttpHealthCheck(http)) => {
                let check = HttpCheck::from_proto(http, reading.mutation);
                Protocol::Http(Rc::new(check.map_err(|e| e.within("http_health_check"))?))
            }
            Some(HealthChecker::TcpHealthCheck(tcp)) => {
                let check = TcpCheck::from_proto(tcp);
                Protocol::Tcp(Rc::new(check.map_err(|e| e.within("tcp_health_check"))?))
            }
            Some(HealthChecker::GrpcHealthCheck(grpc)) => {
                if !reading.http2 {
                    let reason = format!("{} cluster must support HTTP/2 for gRPC healthchecking", reading.cluster);
                    return Err(ConfigError::new("grpc_health_check", reason));
                }
                let check = GrpcCheck::from_proto(grpc, reading.mutation);
                Protocol::Grpc(Rc::new(check.map_err(|e| e.within("grpc_health_check"))?))
            }
            Some(HealthChecker::CustomHealthCheck(custom)) => {
                let url = custom.config_type.as_ref().map_or("", |config| {
                    let pb::health_check::custom_health_check::ConfigType::TypedConfig(any) = config;
                    &any.type_url
                });
                return Err(unregistered("custom_health_check", &custom.name, url));
            }
            None => return Err(ConfigError::new("health_checker", "is required")),
        };
        let count = |field: &Option<nuncio_api::pb::google::protobuf::UInt32Value>| {
            field.as_ref().map_or(0, |field| field.value)
        };
        Ok(Self {
            protocol,
            timeout: message.timeout.as_ref().map_or(Duration::from_secs(1), duration),
            intervals: Intervals::from_proto(message),
            thresholds: Thresholds {
                unhealthy: count(&message.unhealthy_threshold),
                healthy: count(&message.healthy_threshold),
            },
            reuse_connection: message.reuse_connection.as_ref().is_none_or(|reuse| reuse.value),
            always_log_failures: message.always_log_health_check_failures,
            always_log_success: message.always_log_health_check_success,
            event_logs: event_logs(message, reading.log_files)?,
        })
    }
}

fn unregistered(path: &str, name: &str, url: &str) -> ConfigError {
    let reason = format!("Didn't find a registered implementation for '{name}' with type URL: '{url}'");
    ConfigError::new(path, reason)
}

fn event_logs(message: &pb::HealthCheck, files: &dyn LogFiles) -> Result<Vec<Arc<dyn LogFile>>, ConfigError> {
    let mut logs = Vec::new();
    #[allow(deprecated, reason = "configurations still have it")]
    let path = &message.event_log_path;
    if !path.is_empty() {
        logs.push(files.open(&LogTarget::Path(path.clone())).map_err(|e| e.within("event_log_path"))?);
    }
    for (at, sink) in message.event_logger.iter().enumerate() {
        let field = format!("event_logger[{at}]");
        let Some(any) = &sink.typed_config else {
            return Err(unregistered(&field, &sink.name, ""));
        };
        if nuncio_api::any::type_name(&any.type_url) != FILE_SINK.message {
            return Err(unregistered(&field, &sink.name, &any.type_url));
        }
        let sink: HealthCheckEventFileSink = unpack(any).map_err(|e| e.within(&field))?;
        logs.push(files.open(&LogTarget::Path(sink.event_log_path)).map_err(|e| e.within(&field))?);
    }
    Ok(logs)
}
