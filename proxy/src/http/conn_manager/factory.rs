//! From the protobuf message to the checked [`Config`]. As long as the message: each part of it is one small function.

mod routes;

use std::sync::Arc;
use std::time::Duration;

use nuncio_api::any::unpack;
use nuncio_api::pb::envoy::config::accesslog::v3::AccessLog;
use nuncio_api::pb::envoy::config::core::v3::{ExtensionConfigSource, HttpProtocolOptions};
use nuncio_api::pb::envoy::extensions::filters::http::router::v3::Router as RouterProto;
use nuncio_api::pb::envoy::extensions::filters::network::http_connection_manager::v3::{
    ForwardProtoConfig, HttpConnectionManager as Proto, HttpFilter as FilterProto, http_connection_manager as proto,
    http_filter::ConfigType,
};
use nuncio_api::pb::envoy::r#type::v3::Percent;
use nuncio_api::pb::google::protobuf::Duration as DurationProto;
use nuncio_api::supports;
use nuncio_core::access_log::AccessLogConfig;
use nuncio_core::error::ConfigError;
use nuncio_core::extension::FactoryContext;
use nuncio_core::matcher::StringMatcher;
use nuncio_core::net::CidrRange;
use nuncio_core::stats::lists;

use super::Handle;
use super::client_cert::{self, ClientCertPolicy, ClientCertRules};
use super::config::{
    AccessLogOptions, CodecType, Config, ConfiguredFilter, FilterSource, ForwardProto, Identity, Jittered,
    RouterConfig, Scopes, ServerHeader, Timeouts, UserAgent,
};
use super::early_mutation::EarlyMutations;
use super::host::{HostRules, StripPort};
use super::local_reply_config::{self, LocalReplyConfig};
use super::origin::Detection;
use super::path::{EscapedSlashes, PathRules};
use super::proxy_status::ProxyStatus;
use super::upgrade::Upgrades;
use crate::codec::http1::{HeaderCase, ServerOptions, Underscores};
use crate::codec::http2::{self, Http2Options};
use crate::http::ecds::{self, DiscoveredFilter};
use crate::http::filters::HttpFilters;
use crate::http::router::StrictHeaders;
use crate::network::{ListenerInfo, TerminalFilterConfig, TerminalFilterFactory};

supports!(pub HCM = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager" {
    stat_prefix, http_filters, add_user_agent, forward_client_cert_details, set_current_client_cert_details,
    common_http_protocol_options, http_protocol_options, server_name,
    server_header_transformation, max_request_headers_kb, stream_idle_timeout, request_timeout,
    request_headers_timeout, drain_timeout, delayed_close_timeout, access_log, use_remote_address, scoped_routes,
    xff_num_trusted_hops, internal_address_config, skip_xff_append, via, generate_request_id,
    preserve_external_request_id, always_set_request_id_in_response, proxy_100_continue, route_config, rds,
    append_x_forwarded_port, normalize_path, merge_slashes, path_with_escaped_slashes_action, http2_protocol_options,
    upgrade_configs, original_ip_detection_extensions, early_header_mutation_extensions, scheme_header_transformation,
    access_log_options, flush_access_log_on_new_request, access_log_flush_interval, stream_flush_timeout,
    http1_safe_max_connection_duration, request_id_extension, append_local_overload,
    stream_error_on_invalid_http_message, local_reply_config, strip_matching_host_port, strip_any_host_port,
    strip_trailing_host_dot, proxy_status_config, forward_proto_config, drain_timeout_jitter, forward_client_cert_matcher,
} noop {
    tracing: "no tracer is implemented: requests are not traced",
    http3_protocol_options: "HTTP/3 is not served",
} values {
    codec_type: ["AUTO", "HTTP1", "HTTP2"],
    add_proxy_protocol_connection_state: ["true"],
});
supports!(pub INTERNAL_ADDRESSES =
    "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager.InternalAddressConfig" {
    cidr_ranges, unix_sockets,
});
supports!(RDS = "envoy.extensions.filters.network.http_connection_manager.v3.Rds" { config_source, route_config_name });
supports!(FORWARD_PROTO = "envoy.extensions.filters.network.http_connection_manager.v3.ForwardProtoConfig" {
    https_destination_ports, http_destination_ports,
});
supports!(SCHEME = "envoy.config.core.v3.SchemeHeaderTransformation" { scheme_to_overwrite });
supports!(ACCESS_LOG_OPTIONS =
    "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager.HcmAccessLogOptions" {
    access_log_flush_interval, flush_access_log_on_new_request, flush_log_on_tunnel_successfully_established,
});
supports!(REQUEST_ID = "envoy.extensions.filters.network.http_connection_manager.v3.RequestIDExtension" { typed_config });
supports!(UUID = "envoy.extensions.request_id.uuid.v3.UuidRequestIdConfig" {} noop {
    pack_trace_reason: "no tracer is implemented: there is no reason to pack",
    use_request_id_for_trace_sampling: "no tracer is implemented",
});
supports!(pub HTTP_FILTER = "envoy.extensions.filters.network.http_connection_manager.v3.HttpFilter" {
    name, typed_config, config_discovery, disabled, is_optional,
});
supports!(pub ROUTER = "envoy.extensions.filters.http.router.v3.Router" {
    suppress_envoy_headers, respect_expected_rq_timeout, strict_check_headers,
    suppress_grpc_request_failure_code_stats, upstream_log, upstream_log_options,
} noop {
    start_child_span: "no tracer is implemented",
    dynamic_stats: "per-code counters cost nothing until used",
});
supports!(pub COMMON = "envoy.config.core.v3.HttpProtocolOptions" {
    idle_timeout, max_connection_duration, max_headers_count, max_stream_duration, headers_with_underscores_action,
    max_requests_per_connection, max_connection_duration_jitter,
});
supports!(pub HTTP1 = "envoy.config.core.v3.Http1ProtocolOptions" {
    allow_absolute_url, accept_http_10, default_host_for_http_10, header_key_format, enable_trailers,
    allow_chunked_length, ignore_http_11_upgrade, override_stream_error_on_invalid_http_message,
} noop {
    use_balsa_parser: "there is one parser",
});

/// All entries of this room.
pub static SUPPORTED: &[&nuncio_api::support::Entry] = &[
    &local_reply_config::CONFIG,
    &local_reply_config::MAPPER,
    &HCM,
    &super::upgrade::UPGRADE,
    &super::proxy_status::CONFIG,
    &INTERNAL_ADDRESSES,
    &RDS,
    &SCHEME,
    &FORWARD_PROTO,
    &ACCESS_LOG_OPTIONS,
    &REQUEST_ID,
    &UUID,
    &client_cert::DETAILS,
    &client_cert::ACTION,
    super::early_mutation::SUPPORTED[0],
    super::origin::SUPPORTED[0],
    super::origin::SUPPORTED[1],
    super::origin::SUPPORTED[2],
    &HTTP_FILTER,
    &ecds::SOURCE,
    &ecds::RESOURCE,
    &ROUTER,
    &COMMON,
    &HTTP1,
];

const ROUTER_TYPE: &str = "envoy.extensions.filters.http.router.v3.Router";

/// Reads connection managers.
pub struct Factory {
    filters: Arc<HttpFilters>,
}

impl Factory {
    pub fn new(filters: Arc<HttpFilters>) -> Self {
        Self { filters }
    }
}

impl TerminalFilterFactory for Factory {
    fn name(&self) -> &'static str {
        "envoy.filters.network.http_connection_manager"
    }

    fn message(&self) -> &'static str {
        "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
    }

    fn check(
        &self,
        config: &[u8],
        listener: &Arc<ListenerInfo>,
        context: &FactoryContext<'_>,
    ) -> Result<Arc<dyn TerminalFilterConfig>, Vec<ConfigError>> {
        let proto: Proto = nuncio_api::any::decode(config).map_err(|e| vec![ConfigError::new(e.path, e.reason)])?;
        let stat_prefix = proto.stat_prefix.clone();
        let mut check = Check { errors: Vec::new(), filters: &self.filters, listener, context, stat_prefix };
        let config = check.config(&proto);
        match config {
            Some(config) if check.errors.is_empty() => Ok(Arc::new(Handle(Arc::new(config)))),
            _ => Err(check.errors),
        }
    }
}

/// One reading of one message; collects every error.
struct Check<'a> {
    errors: Vec<ConfigError>,
    filters: &'a Arc<HttpFilters>,
    listener: &'a Arc<ListenerInfo>,
    context: &'a FactoryContext<'a>,
    stat_prefix: String,
}

impl Check<'_> {
    fn error(&mut self, path: impl Into<String>, reason: impl Into<String>) {
        self.errors.push(ConfigError::new(path, reason));
    }

    fn config(&mut self, proto: &Proto) -> Option<Config> {
        let (filters, router) = self.filters("http_filters", &proto.http_filters);
        let mut filters = vec![filters];
        let upgrades = self.upgrades(proto, &mut filters, &router);
        let routes = self.routes(proto);
        let access_logs = self.access_logs("access_log", &proto.access_log);
        let last = proto.http_filters.len().saturating_sub(1);
        let upstream_logs = format!("http_filters[{last}].typed_config.upstream_log");
        let upstream_logs = self.access_logs(&upstream_logs, &router.upstream_log);
        let local_replies = self.local_replies(proto);
        let common = proto.common_http_protocol_options.unwrap_or_default();
        let prefix: Arc<str> = proto.stat_prefix.as_str().into();
        let listener: Arc<str> = format!("{}.http.{}", self.listener.stat_name, proto.stat_prefix).into();
        let scopes = Scopes {
            http: self.context.scope(&lists::http::SCOPE, &prefix),
            listener: self.context.scope(&lists::listener::HTTP_SCOPE, &listener),
            codec: self.context.scope(&lists::http1::SCOPE, &"http1".into()),
            http2: self.context.scope(&lists::http2::SCOPE, &"http2".into()),
        };
        let codec = self.codec_options(proto, &common);
        self.request_id(proto);
        Some(Config {
            identity: self.identity(proto),
            timeouts: timeouts(proto, &common),
            filters,
            router,
            early_mutations: self.kept(EarlyMutations::from_protos(&proto.early_header_mutation_extensions)),
            path: path_rules(proto),
            host: host_rules(proto),
            local_replies,
            proxy_status: self.proxy_status(proto),
            routes: routes?,
            access_logs,
            upstream_logs,
            access_log_options: self.access_log_options(proto),
            codec_type: match proto.codec_type() {
                proto::CodecType::Http1 => CodecType::Http1,
                proto::CodecType::Http2 => CodecType::Http2,
                proto::CodecType::Auto | proto::CodecType::Http3 => CodecType::Auto,
            },
            upgrades,
            http2: self.http2_options(proto, &codec),
            codec,
            buffer_limit: self.listener.buffer_limit,
            max_requests_per_connection: common.max_requests_per_connection.map(|v| v.value).filter(|n| *n > 0),
            proxy_100_continue: proto.proxy_100_continue,
            keeps_after_400: keeps_after_400(proto),
            append_local_overload: proto.append_local_overload,
            local_ip: crate::net::first_local_ip(),
            scopes,
        })
    }

    /// What was read, or its default beside the error.
    fn kept<T: Default>(&mut self, read: Result<T, ConfigError>) -> T {
        read.unwrap_or_else(|error| {
            self.errors.push(error);
            T::default()
        })
    }

    fn detections(&mut self, proto: &Proto) -> Vec<Detection> {
        let extensions = &proto.original_ip_detection_extensions;
        let hops = proto.xff_num_trusted_hops;
        if extensions.is_empty() {
            return vec![Detection::Xff { hops, skip_append: true }];
        }
        let remote = proto.use_remote_address.is_some_and(|v| v.value);
        for (mixed, field) in [(remote, "use_remote_address"), (hops > 0, "xff_num_trusted_hops")] {
            if mixed {
                let text = format!("Original IP detection extensions and {field} may not be mixed");
                self.error("original_ip_detection_extensions", text);
            }
        }
        self.kept(Detection::from_protos(extensions))
    }

    fn scheme(&mut self, proto: &Proto) -> Option<&'static str> {
        use nuncio_api::pb::envoy::config::core::v3::scheme_header_transformation::Transformation;
        match proto.scheme_header_transformation.as_ref()?.transformation.as_ref()? {
            Transformation::SchemeToOverwrite(scheme) if scheme == "https" => Some("https"),
            Transformation::SchemeToOverwrite(_) => Some("http"),
        }
    }

    /// Only UUIDs are known, and they have no options that matter here.
    fn request_id(&mut self, proto: &Proto) {
        let Some(config) = proto.request_id_extension.as_ref().and_then(|e| e.typed_config.as_ref()) else { return };
        if nuncio_api::any::type_name(&config.type_url) != UUID.message {
            let text = format!("Didn't find a registered implementation for type: '{}'", config.type_url);
            self.error("request_id_extension.typed_config", text);
        }
    }

    #[allow(deprecated)]
    fn access_log_options(&mut self, proto: &Proto) -> AccessLogOptions {
        let new = proto.access_log_options.unwrap_or_default();
        let old = proto.flush_access_log_on_new_request || proto.access_log_flush_interval.is_some();
        if proto.access_log_options.is_some() && old {
            let text = "Only one of access_log_options and the deprecated fields that it replaces may be set";
            self.error("access_log_options", text);
        }
        let interval = new.access_log_flush_interval.as_ref().or(proto.access_log_flush_interval.as_ref());
        AccessLogOptions {
            interval: limit(interval, None),
            on_new_request: new.flush_access_log_on_new_request || proto.flush_access_log_on_new_request,
            on_tunnel: new.flush_log_on_tunnel_successfully_established,
        }
    }

    fn codec_options(&mut self, proto: &Proto, common: &HttpProtocolOptions) -> ServerOptions {
        use nuncio_api::pb::envoy::config::core::v3::http_protocol_options::HeadersWithUnderscoresAction as Action;
        let default = ServerOptions::default();
        let http1 = proto.http_protocol_options.clone().unwrap_or_default();
        let header_case = HeaderCase::from_proto(http1.header_key_format.as_ref());
        let header_case = self.kept(header_case.map_err(|e| e.within("http_protocol_options")));
        let ignored = http1.ignore_http_11_upgrade.iter().enumerate().map(|(i, matcher)| {
            let at = format!("http_protocol_options.ignore_http_11_upgrade[{i}]");
            StringMatcher::from_proto(matcher).map_err(|e| e.within(&at))
        });
        let ignored: Result<Vec<_>, _> = ignored.collect();
        let ignored_upgrades = self.kept(ignored).into();
        ServerOptions {
            accept_http_10: http1.accept_http_10,
            default_host_for_http_10: (!http1.default_host_for_http_10.is_empty())
                .then(|| http1.default_host_for_http_10.as_str().into()),
            allow_absolute_url: http1.allow_absolute_url.is_none_or(|v| v.value),
            enable_trailers: http1.enable_trailers,
            allow_chunked_length: http1.allow_chunked_length,
            proxy_100_continue: proto.proxy_100_continue,
            max_head_bytes: proto.max_request_headers_kb.map_or(default.max_head_bytes, |kb| kb.value as usize * 1024),
            max_headers: common.max_headers_count.map_or(default.max_headers, |n| n.value as usize),
            underscores: match common.headers_with_underscores_action() {
                Action::Allow => Underscores::Allow,
                Action::RejectRequest => Underscores::Reject,
                Action::DropHeader => Underscores::Drop,
            },
            header_case,
            ignored_upgrades,
        }
    }

    /// Those with filters of their own add them to `lists`.
    fn upgrades(&mut self, proto: &Proto, lists: &mut Vec<Vec<ConfiguredFilter>>, router: &RouterConfig) -> Upgrades {
        let upgrades = Upgrades::from_proto(&proto.upgrade_configs, |i, filters| {
            let path = format!("upgrade_configs[{i}].filters");
            let (filters, own) = self.filters(&path, filters);
            if own != *router {
                self.error(&path, "a router with other settings than that of http_filters is not implemented");
            }
            lists.push(filters);
            lists.len() - 1
        });
        self.kept(upgrades.map_err(|error| error.within("upgrade_configs")))
    }

    fn http2_options(&self, proto: &Proto, codec: &ServerOptions) -> http2::ServerOptions {
        let stream_errors = proto.stream_error_on_invalid_http_message.as_ref().map(|v| v.value);
        let message = proto.http2_protocol_options.clone().unwrap_or_default();
        http2::ServerOptions {
            http2: Http2Options::from_proto(&message, stream_errors),
            max_head_bytes: codec.max_head_bytes,
            max_headers: codec.max_headers,
            underscores: codec.underscores,
            proxy_100_continue: codec.proxy_100_continue,
            buffer_limit: self.listener.buffer_limit,
        }
    }

    /// All filters of a list but the last, which must be the router.
    fn filters(&mut self, list: &str, protos: &[FilterProto]) -> (Vec<ConfiguredFilter>, RouterConfig) {
        let mut filters = Vec::new();
        let mut router = None;
        for (i, proto) in protos.iter().enumerate() {
            let path = format!("{list}[{i}]");
            let last = i + 1 == protos.len();
            let config = match &proto.config_type {
                Some(ConfigType::TypedConfig(config)) => config,
                Some(ConfigType::ConfigDiscovery(source)) => {
                    filters.extend(self.discovered_filter(proto, source, &path, last));
                    continue;
                }
                None => {
                    self.error(
                        path,
                        format!("Didn't find a registered implementation for '{}' with type URL: ''", proto.name),
                    );
                    continue;
                }
            };
            if nuncio_api::any::type_name(&config.type_url) == ROUTER_TYPE {
                if !last {
                    self.error(path, format!("Error: terminal filter named {} of type envoy.filters.http.router must be the last filter in a http filter chain.", proto.name));
                    continue;
                }
                match unpack::<RouterProto>(config) {
                    Ok(message) => {
                        router = Some(RouterConfig {
                            suppress_envoy_headers: message.suppress_envoy_headers,
                            respect_expected_rq_timeout: message.respect_expected_rq_timeout,
                            strict_headers: StrictHeaders::new(&message.strict_check_headers),
                            suppress_grpc_code_stats: message.suppress_grpc_request_failure_code_stats,
                            upstream_log_on_stream: message
                                .upstream_log_options
                                .is_some_and(|options| options.flush_upstream_log_on_upstream_stream),
                            upstream_log: message.upstream_log,
                        });
                    }
                    Err(e) => self.error(path, e.reason),
                }
                continue;
            }
            if last {
                self.error(
                    &path,
                    format!(
                        "Error: non-terminal filter named {} of type {} is the last filter in a http filter chain.",
                        proto.name,
                        self.type_label(&config.type_url)
                    ),
                );
            }
            if let Some(filter) = self.filter(proto, config, &path) {
                filters.push(filter);
            }
        }
        (filters, router.unwrap_or_default())
    }

    fn discovered_filter(
        &mut self,
        proto: &FilterProto,
        source: &ExtensionConfigSource,
        path: &str,
        last: bool,
    ) -> Option<ConfiguredFilter> {
        let router = source.type_urls.iter().any(|url| nuncio_api::any::type_name(url) == ROUTER_TYPE);
        if last || router {
            self.error(
                format!("{path}.config_discovery"),
                "a router that comes by itself is not implemented: the last filter must be a router with typed_config",
            );
            return None;
        }
        let context = FactoryContext { name: &proto.name, stat_prefix: &self.stat_prefix, ..*self.context };
        let filter = DiscoveredFilter::from_proto(source, self.filters, &context);
        let filter = filter.map_err(|e| self.errors.push(e.within("config_discovery").within(path))).ok()?;
        let config = FilterSource::Discovered(Arc::new(filter));
        Some(ConfiguredFilter { name: proto.name.as_str().into(), config, disabled: proto.disabled })
    }

    fn type_label(&self, type_url: &str) -> String {
        self.filters.find(type_url).map_or_else(|| type_url.to_owned(), |f| f.name().to_owned())
    }

    fn filter(
        &mut self,
        proto: &FilterProto,
        config: &nuncio_api::pb::google::protobuf::Any,
        path: &str,
    ) -> Option<ConfiguredFilter> {
        let Some(factory) = self.filters.find(&config.type_url) else {
            if proto.is_optional {
                self.context
                    .warn(path, format!("{} is not implemented; the filter is optional and left out", config.type_url));
            } else {
                let name = &proto.name;
                self.error(
                    path,
                    format!(
                        "Didn't find a registered implementation for '{name}' with type URL: '{}'",
                        config.type_url
                    ),
                );
            }
            return None;
        };
        let context = FactoryContext { name: &proto.name, stat_prefix: &self.stat_prefix, ..*self.context };
        match factory.create(config, &context) {
            Ok(made) => {
                let config = FilterSource::Given(made);
                Some(ConfiguredFilter { name: proto.name.as_str().into(), config, disabled: proto.disabled })
            }
            Err(error) => {
                self.errors.push(error.within(&format!("{path}.typed_config")));
                None
            }
        }
    }

    fn access_logs(&mut self, path: &str, logs: &[AccessLog]) -> Vec<Arc<dyn AccessLogConfig>> {
        crate::access_log::check(path, logs, self.context).unwrap_or_else(|errors| {
            self.errors.extend(errors);
            Vec::new()
        })
    }

    fn local_replies(&mut self, proto: &Proto) -> Option<LocalReplyConfig> {
        match LocalReplyConfig::from_proto(proto.local_reply_config.as_ref()?) {
            Ok(config) => Some(config),
            Err(error) => {
                self.errors.push(error.within("local_reply_config"));
                None
            }
        }
    }

    fn proxy_status(&self, proto: &Proto) -> Option<ProxyStatus> {
        let config = proto.proxy_status_config.as_ref()?;
        Some(ProxyStatus::from_proto(config, &self.context.node.id, server_name(proto)))
    }

    fn identity(&mut self, proto: &Proto) -> Identity {
        use proto::ServerHeaderTransformation as Transformation;
        let mut internal_ranges = Vec::new();
        if let Some(internal) = &proto.internal_address_config {
            for (i, range) in internal.cidr_ranges.iter().enumerate() {
                match range.address_prefix.parse() {
                    Ok(ip) => internal_ranges
                        .push(CidrRange::new(ip, range.prefix_len.as_ref().map_or(0, |l| l.value.min(128) as u8))),
                    Err(_) => self.error(
                        format!("internal_address_config.cidr_ranges[{i}].address_prefix"),
                        format!("malformed IP address: {}", range.address_prefix),
                    ),
                }
            }
        }
        let node = self.context.node;
        let detections = self.detections(proto);
        let scheme = self.scheme(proto);
        let fallback = ClientCertPolicy::from_proto(
            proto.forward_client_cert_details(),
            proto.set_current_client_cert_details.as_ref(),
        );
        let client_cert = ClientCertRules::new(fallback, proto.forward_client_cert_matcher.as_ref());
        let client_cert = self.kept(client_cert.map_err(|e| e.within("forward_client_cert_matcher")));
        Identity {
            detections,
            scheme,
            use_remote_address: proto.use_remote_address.is_some_and(|v| v.value),
            forward_proto: proto.forward_proto_config.as_ref().map(forward_proto),
            skip_xff_append: proto.skip_xff_append,
            xff_num_trusted_hops: proto.xff_num_trusted_hops,
            append_x_forwarded_port: proto.append_x_forwarded_port,
            internal_ranges,
            generate_request_id: proto.generate_request_id.is_none_or(|v| v.value),
            preserve_external_request_id: proto.preserve_external_request_id,
            always_set_request_id_in_response: proto.always_set_request_id_in_response,
            add_user_agent: proto
                .add_user_agent
                .is_some_and(|v| v.value)
                .then(|| UserAgent { cluster: node.cluster.clone(), node: node.id.clone() }),
            via: (!proto.via.is_empty()).then(|| proto.via.as_str().into()),
            client_cert,
            server_name: server_name(proto).into(),
            server_header: match proto.server_header_transformation() {
                Transformation::Overwrite => ServerHeader::Overwrite,
                Transformation::AppendIfAbsent => ServerHeader::AppendIfAbsent,
                Transformation::PassThrough => ServerHeader::PassThrough,
            },
        }
    }
}

fn forward_proto(proto: &ForwardProtoConfig) -> ForwardProto {
    let ports = |ports: &[u32]| ports.iter().filter_map(|port| u16::try_from(*port).ok()).collect();
    ForwardProto { https: ports(&proto.https_destination_ports), http: ports(&proto.http_destination_ports) }
}

fn server_name(proto: &Proto) -> &str {
    if proto.server_name.is_empty() { "envoy" } else { &proto.server_name }
}

/// What HTTP/1 says of itself goes first.
fn keeps_after_400(proto: &Proto) -> bool {
    let own =
        proto.http_protocol_options.as_ref().and_then(|http1| http1.override_stream_error_on_invalid_http_message);
    own.or(proto.stream_error_on_invalid_http_message).is_some_and(|v| v.value)
}

/// Unset is the default, zero is "for ever".
fn limit(proto: Option<&DurationProto>, default: Option<Duration>) -> Option<Duration> {
    match proto {
        None => default,
        Some(d) => Some(duration(d)).filter(|d| !d.is_zero()),
    }
}

fn part(percent: Option<&Percent>) -> f64 {
    percent.map_or(0.0, |percent| percent.value.clamp(0.0, 100.0) / 100.0)
}

fn duration(proto: &DurationProto) -> Duration {
    Duration::new(proto.seconds.max(0) as u64, proto.nanos.clamp(0, 999_999_999) as u32)
}

fn host_rules(proto: &Proto) -> HostRules {
    let any = matches!(proto.strip_port_mode, Some(proto::StripPortMode::StripAnyHostPort(true)));
    let port = match (any, proto.strip_matching_host_port) {
        (true, _) => StripPort::Any,
        (false, true) => StripPort::Matching,
        (false, false) => StripPort::Keep,
    };
    HostRules { port, trailing_dot: proto.strip_trailing_host_dot }
}

fn path_rules(proto: &Proto) -> PathRules {
    use proto::PathWithEscapedSlashesAction as Action;
    PathRules {
        normalize: proto.normalize_path.is_some_and(|v| v.value),
        merge_slashes: proto.merge_slashes,
        escaped_slashes: match proto.path_with_escaped_slashes_action() {
            Action::ImplementationSpecificDefault | Action::KeepUnchanged => EscapedSlashes::Keep,
            Action::RejectRequest => EscapedSlashes::Reject,
            Action::UnescapeAndRedirect => EscapedSlashes::UnescapeAndRedirect,
            Action::UnescapeAndForward => EscapedSlashes::UnescapeAndForward,
        },
    }
}

fn timeouts(proto: &Proto, common: &HttpProtocolOptions) -> Timeouts {
    let default = Timeouts::default();
    Timeouts {
        idle: limit(common.idle_timeout.as_ref(), default.idle),
        stream_idle: limit(proto.stream_idle_timeout.as_ref(), default.stream_idle),
        request: limit(proto.request_timeout.as_ref(), None),
        request_headers: limit(proto.request_headers_timeout.as_ref(), None),
        stream_flush: proto.stream_flush_timeout.as_ref().map(|d| limit(Some(d), None)),
        safe_max_connection: proto.http1_safe_max_connection_duration,
        max_connection: limit(common.max_connection_duration.as_ref(), None)
            .map(|base| Jittered { base, part: part(common.max_connection_duration_jitter.as_ref()) }),
        max_stream: limit(common.max_stream_duration.as_ref(), None),
        drain: Jittered {
            base: proto.drain_timeout.as_ref().map_or(default.drain.base, duration),
            part: part(proto.drain_timeout_jitter.as_ref()),
        },
        delayed_close: proto.delayed_close_timeout.as_ref().map_or(default.delayed_close, duration),
    }
}
