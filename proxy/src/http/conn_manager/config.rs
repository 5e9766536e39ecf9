//! The checked configuration of an HTTP connection manager, shared by all workers.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use nuncio_api::pb::envoy::config::accesslog::v3::AccessLog;
use nuncio_core::access_log::AccessLogConfig;
use nuncio_core::http::HttpFilter;
use nuncio_core::net::CidrRange;
use nuncio_core::random::Rng;
use nuncio_core::stats::ScopeId;

use super::client_cert::ClientCertRules;
use super::early_mutation::EarlyMutations;
use super::host::HostRules;
use super::local_reply_config::LocalReplyConfig;
use super::origin::Detection;
use super::path::PathRules;
use super::proxy_status::ProxyStatus;
use super::upgrade::Upgrades;
use crate::codec::http1::ServerOptions;
use crate::codec::http2;
use crate::http::ecds::DiscoveredFilter;
use crate::http::router::{Routes, StrictHeaders};

/// Who a request is said to be from, and what we say about ourselves.
#[derive(Debug, Clone)]
pub struct Identity {
    pub use_remote_address: bool,
    pub forward_proto: Option<ForwardProto>,
    pub skip_xff_append: bool,
    pub xff_num_trusted_hops: u32,
    /// Asked in turn without `use_remote_address`.
    pub detections: Vec<Detection>,
    /// `scheme_header_transformation.scheme_to_overwrite`
    pub scheme: Option<&'static str>,
    pub append_x_forwarded_port: bool,
    /// Empty: nobody is internal.
    pub internal_ranges: Vec<CidrRange>,
    pub generate_request_id: bool,
    pub preserve_external_request_id: bool,
    pub always_set_request_id_in_response: bool,
    pub add_user_agent: Option<UserAgent>,
    pub via: Option<Arc<str>>,
    pub client_cert: ClientCertRules,
    pub server_name: Arc<str>,
    pub server_header: ServerHeader,
}

/// `add_user_agent`: this node's names for upstreams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserAgent {
    pub cluster: String,
    pub node: String,
}

impl Default for Identity {
    fn default() -> Self {
        Self {
            use_remote_address: false,
            forward_proto: None,
            skip_xff_append: false,
            xff_num_trusted_hops: 0,
            detections: vec![Detection::Xff { hops: 0, skip_append: true }],
            scheme: None,
            append_x_forwarded_port: false,
            internal_ranges: Vec::new(),
            generate_request_id: true,
            preserve_external_request_id: false,
            always_set_request_id_in_response: false,
            add_user_agent: None,
            via: None,
            client_cert: ClientCertRules::default(),
            server_name: "envoy".into(),
            server_header: ServerHeader::Overwrite,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerHeader {
    Overwrite,
    AppendIfAbsent,
    PassThrough,
}

/// A time that each connection has drawn out by chance, so that those that began together do not end together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Jittered {
    pub base: Duration,
    /// At most by this part of `base`.
    pub part: f64,
}

impl Jittered {
    pub fn draw(&self, rng: &Rng) -> Duration {
        self.base + self.base.mul_f64(self.part * rng.f64())
    }
}

/// Deadlines; `None` is "for ever".
#[derive(Debug, Clone, PartialEq)]
pub struct Timeouts {
    /// A connection without streams.
    pub idle: Option<Duration>,
    /// A stream without progress.
    pub stream_idle: Option<Duration>,
    /// From the head's arrival to the request's end.
    pub request: Option<Duration>,
    /// From a head's first byte to its last.
    pub request_headers: Option<Duration>,
    /// From the last byte of a response to its being taken by the client, where it is not `stream_idle`.
    pub stream_flush: Option<Option<Duration>>,
    pub max_connection: Option<Jittered>,
    /// `http1_safe_max_connection_duration`: an HTTP/1 connection that is too old waits for one more request.
    pub safe_max_connection: bool,
    pub max_stream: Option<Duration>,
    /// Between telling a client to go and closing.
    pub drain: Jittered,
    /// How long a connection that we close may take to read our last bytes.
    pub delayed_close: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            idle: Some(Duration::from_secs(3600)),
            stream_idle: Some(Duration::from_secs(300)),
            request: None,
            request_headers: None,
            stream_flush: None,
            max_connection: None,
            safe_max_connection: false,
            max_stream: None,
            drain: Jittered { base: Duration::from_secs(5), part: 0.0 },
            delayed_close: Duration::from_secs(1),
        }
    }
}

/// `forward_proto_config`: which ports of a PROXY header stand for which protocol.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ForwardProto {
    pub https: Vec<u16>,
    pub http: Vec<u16>,
}

/// One configured HTTP filter, in its place.
pub struct ConfiguredFilter {
    /// Its name in the configuration: the key of per-route configuration.
    pub name: Arc<str>,
    pub config: FilterSource,
    /// `disabled: true`: only where a route enables it.
    pub disabled: bool,
}

impl ConfiguredFilter {
    pub fn discovered(&self) -> Option<&Arc<DiscoveredFilter>> {
        match &self.config {
            FilterSource::Given(_) => None,
            FilterSource::Discovered(filter) => Some(filter),
        }
    }
}

/// Where the configuration of a filter stands.
#[derive(Clone)]
pub enum FilterSource {
    Given(Arc<dyn HttpFilter>),
    /// It comes by itself.
    Discovered(Arc<DiscoveredFilter>),
}

/// `envoy.extensions.filters.http.router.v3.Router`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RouterConfig {
    /// No `x-envoy-*` headers of ours on requests and responses.
    pub suppress_envoy_headers: bool,
    pub respect_expected_rq_timeout: bool,
    pub strict_headers: StrictHeaders,
    /// `suppress_grpc_request_failure_code_stats`
    pub suppress_grpc_code_stats: bool,
    /// Records of attempts when they get a connection, beside those when they end.
    pub upstream_log_on_stream: bool,
    /// Made ready in [`Config::upstream_logs`].
    pub upstream_log: Vec<AccessLog>,
}

/// `codec_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CodecType {
    Auto,
    Http1,
    Http2,
}

/// `access_log_options`: records beside the one at the end of a stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AccessLogOptions {
    pub interval: Option<Duration>,
    pub on_new_request: bool,
    pub on_tunnel: bool,
}

/// Where the manager's objects count.
#[derive(Debug, Clone, Copy)]
pub struct Scopes {
    /// `http.<stat_prefix>.`
    pub http: ScopeId,
    /// `listener.<address>.http.<stat_prefix>.`
    pub listener: ScopeId,
    /// `http1.`: the codec's own.
    pub codec: ScopeId,
    /// `http2.`: that codec's own.
    pub http2: ScopeId,
}

/// All of it.
pub struct Config {
    pub identity: Identity,
    pub timeouts: Timeouts,
    /// The lists of filters: first that of requests, then those of upgrades that have their own.
    pub filters: Vec<Vec<ConfiguredFilter>>,
    pub router: RouterConfig,
    pub early_mutations: EarlyMutations,
    pub path: PathRules,
    pub host: HostRules,
    pub local_replies: Option<LocalReplyConfig>,
    pub proxy_status: Option<ProxyStatus>,
    pub routes: Routes,
    pub access_logs: Vec<Arc<dyn AccessLogConfig>>,
    pub access_log_options: AccessLogOptions,
    /// Of the router: a record for each attempt.
    pub upstream_logs: Vec<Arc<dyn AccessLogConfig>>,
    pub codec_type: CodecType,
    pub upgrades: Upgrades,
    pub codec: ServerOptions,
    pub http2: http2::ServerOptions,
    pub max_requests_per_connection: Option<u32>,
    /// How much of a body may be kept, unless a route says otherwise; 0 is without bound.
    pub buffer_limit: u32,
    pub proxy_100_continue: bool,
    /// `stream_error_on_invalid_http_message` of HTTP/1: a request that was understood and is no good ends alone.
    pub keeps_after_400: bool,
    /// Answers that the overload manager gives say so.
    pub append_local_overload: bool,
    /// What a loopback peer is called in `x-forwarded-for`.
    pub local_ip: Option<IpAddr>,
    pub scopes: Scopes,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jittered_time_is_never_shorter_and_at_most_so_much_longer() {
        let (rng, ten) = (Rng::with_seed(7), Duration::from_secs(10));
        let drawn: Vec<Duration> = (0..100).map(|_| Jittered { base: ten, part: 0.5 }.draw(&rng)).collect();
        assert!(drawn.iter().all(|time| (ten..=ten * 3 / 2).contains(time)));
        assert!(drawn.iter().any(|time| *time > ten * 5 / 4) && drawn.iter().any(|time| *time < ten * 5 / 4));
        assert_eq!(Jittered { base: ten, part: 0.0 }.draw(&rng), ten);
    }
}
