//! The checked configuration, of the filter and of routes.

use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use nuncio_api::pb::envoy::config::core::v3::ApiVersion;
use nuncio_api::pb::envoy::extensions::filters::http::ext_authz::v3 as pb;
use nuncio_api::pb::envoy::r#type::matcher::v3::ListStringMatcher;
use nuncio_api::pb::google::protobuf::{Any as ProtoAny, value::Kind};
use nuncio_api::{supports, unpack};
use nuncio_core::error::ConfigError;
use nuncio_core::extension::{FactoryContext, WorkerContext};
use nuncio_core::http::{HttpFilter, HttpFilterFactory, MakeFilter};
use nuncio_core::matcher::{MetadataMatcher, StringMatcher};
use nuncio_core::runtime::{Runtime, RuntimeFraction};
use nuncio_core::stats::ScopeId;
use nuncio_core::upstream::GrpcService;

use super::check_request::{Headers, Telling};
use super::filter;
use super::http_client::HttpService;
use super::mutation_rules::MutationRules;
use super::stats;

supports!(pub(super) CONFIG = "envoy.extensions.filters.http.ext_authz.v3.ExtAuthz" {
    grpc_service, http_service, transport_api_version, failure_mode_allow, failure_mode_allow_header_add,
    with_request_body, clear_route_cache, status_on_error, validate_mutations, metadata_context_namespaces,
    route_metadata_context_namespaces, filter_enabled, filter_enabled_metadata, deny_at_disable,
    include_peer_certificate, stat_prefix, bootstrap_metadata_labels_key, allowed_headers, disallowed_headers,
    include_tls_session, charge_cluster_response_stats, encode_raw_headers, decoder_header_mutation_rules,
    enable_dynamic_metadata_ingestion, max_denied_response_body_bytes, shadow_mode, enforce_response_header_limits,
    emit_filter_state_stats
} noop {
    typed_metadata_context_namespaces: "no filter here writes typed metadata",
    filter_metadata: "Envoy keeps it for code of its own: no log, header or matcher can read it",
    emit_client_span: "there is no tracing yet"
});
supports!(pub(super) ROUTE = "envoy.extensions.filters.http.ext_authz.v3.ExtAuthzPerRoute" {
    disabled, check_settings
});
supports!(pub(super) CHECK_SETTINGS = "envoy.extensions.filters.http.ext_authz.v3.CheckSettings" {
    context_extensions, disable_request_body_buffering, with_request_body, grpc_service, http_service
} noop {
    emit_client_span: "there is no tracing yet"
});
supports!(pub(super) BUFFER = "envoy.extensions.filters.http.ext_authz.v3.BufferSettings" {
    max_request_bytes, allow_partial_message, pack_as_bytes
});
supports!(pub(super) STATUS = "envoy.type.v3.HttpStatus" { code });
supports!(pub(super) FLAG = "envoy.config.core.v3.RuntimeFeatureFlag" { default_value, runtime_key });
supports!(pub(super) LIST = "envoy.type.matcher.v3.ListStringMatcher" { patterns });

/// Of a check without a timeout of its own.
pub(crate) const DEFAULT_TIMEOUT: Duration = Duration::from_millis(200);

pub struct Factory;

impl HttpFilterFactory for Factory {
    fn name(&self) -> &'static str {
        "envoy.filters.http.ext_authz"
    }

    fn config_type(&self) -> &'static str {
        CONFIG.message
    }

    fn route_config_type(&self) -> Option<&'static str> {
        Some(ROUTE.message)
    }

    fn create(&self, config: &ProtoAny, context: &FactoryContext<'_>) -> Result<Arc<dyn HttpFilter>, ConfigError> {
        let proto: pb::ExtAuthz = unpack(config)?;
        let scope = stats::scope(context, &proto.stat_prefix);
        Ok(Arc::new(Config { scope, settings: Arc::new(Settings::new(proto, context)?) }))
    }

    fn create_route_config(
        &self,
        config: &ProtoAny,
        context: &FactoryContext<'_>,
    ) -> Result<Arc<dyn Any + Send + Sync>, ConfigError> {
        Ok(Arc::new(RouteSettings::new(unpack(config)?, context)?))
    }
}

struct Config {
    scope: ScopeId,
    settings: Arc<Settings>,
}

impl HttpFilter for Config {
    fn on_worker(&self, worker: &WorkerContext) -> MakeFilter {
        filter::on_worker(&self.settings, self.scope, worker)
    }
}

/// Who is asked.
#[derive(Clone)]
pub(super) enum Service {
    Grpc(Arc<GrpcService>),
    Http(Arc<HttpService>),
}

#[derive(Debug, Clone, Copy)]
pub(super) struct BodySettings {
    pub(super) most: usize,
    pub(super) partial: bool,
    pub(super) as_bytes: bool,
}

/// A flag that a runtime key may override.
pub(super) struct Flag {
    default: bool,
    key: String,
}

impl Flag {
    pub(super) fn is_set(&self, runtime: &dyn Runtime) -> bool {
        runtime.boolean(&self.key).unwrap_or(self.default)
    }
}

pub(super) struct Settings {
    pub(super) name: Arc<str>,
    pub(super) stat_prefix: String,
    pub(super) service: Service,
    pub(super) failure_mode_allow: bool,
    pub(super) mark_failure: bool,
    pub(super) status_on_error: u16,
    pub(super) clear_route_cache: bool,
    pub(super) strict: bool,
    pub(super) body: Option<BodySettings>,
    pub(super) headers: Headers,
    pub(super) telling: Telling,
    pub(super) enabled: Option<RuntimeFraction>,
    pub(super) enabled_metadata: Option<MetadataMatcher>,
    pub(super) deny_at_disable: Option<Flag>,
    pub(super) charge: bool,
    pub(super) take_metadata: bool,
    pub(super) rules: Option<MutationRules>,
    pub(super) most_denied_body: Option<usize>,
    pub(super) shadow: bool,
    /// Responses with what an answer added may not be larger than their upstream may make them.
    pub(super) limit_response: bool,
    /// Leave in the filter state what a check cost.
    pub(super) tell_cost: bool,
}

impl Settings {
    fn new(proto: pb::ExtAuthz, context: &FactoryContext<'_>) -> Result<Self, ConfigError> {
        if proto.transport_api_version() != ApiVersion::V3 {
            return Err(ConfigError::new(
                "transport_api_version",
                "V2 (and AUTO) transport protocol versions are deprecated",
            ));
        }
        let service = match &proto.services {
            Some(pb::ext_authz::Services::GrpcService(service)) => {
                let service = GrpcService::from_proto(service, Some(DEFAULT_TIMEOUT), context);
                Service::Grpc(Arc::new(service.map_err(|e| e.within("grpc_service"))?))
            }
            Some(pb::ext_authz::Services::HttpService(service)) => {
                let service = HttpService::from_proto(service, context);
                Service::Http(Arc::new(service.map_err(|e| e.within("http_service"))?))
            }
            None => return Err(ConfigError::new("services", "grpc_service or http_service is required")),
        };
        let list = |field: &str, list: &Option<ListStringMatcher>| matchers(list.as_ref()).map_err(|e| e.within(field));
        let mut allowed = proto.allowed_headers.as_ref().map(|_| list("allowed_headers", &proto.allowed_headers));
        if let Service::Http(service) = &service {
            let mut all = service.allowed.clone();
            all.extend(allowed.take().transpose()?.unwrap_or_default());
            allowed = Some(Ok(all));
        }
        let rules = proto.decoder_header_mutation_rules.as_ref().map(MutationRules::from_proto).transpose();
        let enabled_metadata = proto.filter_enabled_metadata.as_ref().map(MetadataMatcher::from_proto).transpose();
        Ok(Self {
            name: context.name.into(),
            service,
            failure_mode_allow: proto.failure_mode_allow,
            mark_failure: proto.failure_mode_allow_header_add,
            status_on_error: proto.status_on_error.map_or(403, |status| status_in_range(status.code as u16)),
            clear_route_cache: proto.clear_route_cache,
            strict: proto.validate_mutations,
            body: proto.with_request_body.as_ref().map(BodySettings::new),
            headers: Headers {
                allowed: allowed.transpose()?,
                disallowed: list("disallowed_headers", &proto.disallowed_headers)?,
                raw: proto.encode_raw_headers,
            },
            telling: Telling {
                peer_certificate: proto.include_peer_certificate,
                tls_session: proto.include_tls_session,
                labels: labels(&proto.bootstrap_metadata_labels_key, context),
                namespaces: proto.metadata_context_namespaces,
                route_namespaces: proto.route_metadata_context_namespaces,
            },
            enabled: proto.filter_enabled.as_ref().map(RuntimeFraction::from_proto),
            enabled_metadata: enabled_metadata.map_err(|e| e.within("filter_enabled_metadata"))?,
            deny_at_disable: proto.deny_at_disable.map(|flag| Flag {
                default: flag.default_value.is_some_and(|value| value.value),
                key: flag.runtime_key,
            }),
            charge: proto.charge_cluster_response_stats.is_none_or(|charge| charge.value),
            take_metadata: proto.enable_dynamic_metadata_ingestion.is_none_or(|take| take.value),
            rules: rules.map_err(|e| e.within("decoder_header_mutation_rules"))?,
            most_denied_body: (proto.max_denied_response_body_bytes > 0)
                .then_some(proto.max_denied_response_body_bytes as usize),
            shadow: proto.shadow_mode,
            limit_response: proto.enforce_response_header_limits,
            tell_cost: proto.emit_filter_state_stats,
            stat_prefix: proto.stat_prefix,
        })
    }
}

impl BodySettings {
    fn new(proto: &pb::BufferSettings) -> Self {
        Self {
            most: proto.max_request_bytes as usize,
            partial: proto.allow_partial_message,
            as_bytes: proto.pack_as_bytes,
        }
    }
}

/// `ExtAuthzPerRoute`. Context extensions of all levels are merged; the rest is the most specific level's alone.
#[derive(Default)]
pub(super) struct RouteSettings {
    pub(super) disabled: bool,
    pub(super) extensions: HashMap<String, String>,
    pub(super) without_body: bool,
    pub(super) body: Option<BodySettings>,
    pub(super) service: Option<Service>,
}

impl RouteSettings {
    fn new(proto: pb::ExtAuthzPerRoute, context: &FactoryContext<'_>) -> Result<Self, ConfigError> {
        let settings = match proto.r#override {
            Some(pb::ext_authz_per_route::Override::CheckSettings(settings)) => settings,
            Some(pb::ext_authz_per_route::Override::Disabled(disabled)) => {
                return Ok(Self { disabled, ..Self::default() });
            }
            None => return Err(ConfigError::new("override", "value is required")),
        };
        if settings.disable_request_body_buffering && settings.with_request_body.is_some() {
            let reason = "only one of disable_request_body_buffering or with_request_body can be set";
            return Err(ConfigError::new("check_settings", reason));
        }
        use pb::check_settings::ServiceOverride;
        let service = match &settings.service_override {
            Some(ServiceOverride::GrpcService(service)) => {
                let service = GrpcService::from_proto(service, Some(DEFAULT_TIMEOUT), context);
                Some(Service::Grpc(Arc::new(service.map_err(|e| e.within("check_settings.grpc_service"))?)))
            }
            Some(ServiceOverride::HttpService(service)) => {
                let service = HttpService::from_proto(service, context);
                Some(Service::Http(Arc::new(service.map_err(|e| e.within("check_settings.http_service"))?)))
            }
            None => None,
        };
        Ok(Self {
            disabled: false,
            without_body: settings.disable_request_body_buffering,
            body: settings.with_request_body.as_ref().map(BodySettings::new),
            extensions: settings.context_extensions,
            service,
        })
    }
}

pub(super) fn matchers(list: Option<&ListStringMatcher>) -> Result<Vec<StringMatcher>, ConfigError> {
    let patterns = list.map_or(&[][..], |list| &list.patterns);
    let compile =
        |(i, pattern)| StringMatcher::from_proto(pattern).map_err(|e: ConfigError| e.within(&format!("patterns[{i}]")));
    patterns.iter().enumerate().map(compile).collect()
}

/// A status that a final answer may have; 403 for what is none.
pub(super) fn status_in_range(status: u16) -> u16 {
    if (200..600).contains(&status) { status } else { 403 }
}

/// From this node's metadata. What is no text counts as an empty one, as in Envoy.
pub(crate) fn labels(key: &str, context: &FactoryContext<'_>) -> HashMap<String, String> {
    let value = context.node.metadata.as_ref().and_then(|metadata| metadata.fields.get(key));
    let Some(Kind::StructValue(labels)) = value.and_then(|value| value.kind.as_ref()) else { return HashMap::new() };
    let text = |kind: &Option<Kind>| match kind {
        Some(Kind::StringValue(text)) => text.clone(),
        _ => String::new(),
    };
    labels.fields.iter().map(|(name, value)| (name.clone(), text(&value.kind))).collect()
}
