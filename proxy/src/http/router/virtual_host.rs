//! What a route configuration and a virtual host say for all their routes.

use std::sync::Arc;

use nuncio_api::pb::envoy::config::route::v3::{self as pb, RouteConfiguration};
use nuncio_api::supports;
use nuncio_core::error::ConfigError;
use nuncio_core::http::{HeaderMap, RequestHead};
use nuncio_core::matcher::HeaderMatcher;
use nuncio_core::matcher::header::lookup_name;
use nuncio_core::metadata::Metadata;
use nuncio_core::stats::ScopeId;

use super::filter_config::{FilterConfigs, ReadFilterConfig};
use super::mutations::{LevelMutations, mutation_fields};
use super::policy::Mirror;
use super::retry::{HedgePolicy, RetryPolicy};
use super::table::BuildContext;
use crate::http::rate_limits;

supports!(pub(super) CONFIG = "envoy.config.route.v3.RouteConfiguration" {
    name, virtual_hosts, validate_clusters, max_direct_response_body_size_bytes, ignore_port_in_host_matching,
    ignore_path_parameters_in_path_matching, typed_per_filter_config, metadata, request_headers_to_add,
    request_headers_to_remove, response_headers_to_add, response_headers_to_remove,
    most_specific_header_mutations_wins, vhost_header, internal_only_headers
});
supports!(pub(super) HOST = "envoy.config.route.v3.VirtualHost" {
    name, domains, routes, require_tls, typed_per_filter_config, metadata, request_headers_to_add,
    request_headers_to_remove, response_headers_to_add, response_headers_to_remove
});

/// Envoy's limit for bodies of direct responses.
const DEFAULT_MAX_DIRECT_RESPONSE: u32 = 4096;

/// The route configuration's own words.
pub struct Common {
    pub name: Arc<str>,
    /// Chooses the virtual host instead of the authority.
    pub(super) host_header: Option<Box<str>>,
    pub(super) ignore_port: bool,
    pub(super) ignore_path_parameters: bool,
    pub(super) max_direct_response: u32,
    pub(super) mirrors: Arc<[Mirror]>,
    pub(super) mutations: LevelMutations,
    /// Header changes are made from the configuration inwards, not from the route outwards; the
    /// last one to set a header wins.
    pub(super) most_specific_wins: bool,
    pub(super) filter_configs: Option<Arc<FilterConfigs>>,
    pub metadata: Metadata,
    /// Lower case; removed from requests of external clients.
    pub(super) internal_only_headers: Vec<String>,
}

impl Common {
    pub(super) fn from_proto(message: &RouteConfiguration, read: &ReadFilterConfig<'_>) -> Result<Self, ConfigError> {
        let mirrors = Mirror::list(&message.request_mirror_policies);
        Ok(Self {
            name: message.name.as_str().into(),
            host_header: (!message.vhost_header.is_empty()).then(|| lookup_name(&message.vhost_header).into()),
            ignore_port: message.ignore_port_in_host_matching,
            ignore_path_parameters: message.ignore_path_parameters_in_path_matching,
            max_direct_response: message
                .max_direct_response_body_size_bytes
                .map_or(DEFAULT_MAX_DIRECT_RESPONSE, |v| v.value),
            mirrors: mirrors.map_err(|e| e.within("request_mirror_policies"))?,
            mutations: LevelMutations::new(&mutation_fields!(message))?,
            most_specific_wins: message.most_specific_header_mutations_wins,
            filter_configs: FilterConfigs::extend(None, &message.typed_per_filter_config, read)?,
            metadata: message.metadata.as_ref().map(Metadata::from_proto).unwrap_or_default(),
            internal_only_headers: message.internal_only_headers.iter().map(|h| h.to_ascii_lowercase()).collect(),
        })
    }

    /// Removes what only internal clients may say.
    pub fn clean_external(&self, head: &mut RequestHead) {
        for name in &self.internal_only_headers {
            head.headers.remove(name);
        }
    }
}

/// A virtual host's own words.
pub struct VirtualHost {
    pub name: Arc<str>,
    pub(super) common: Arc<Common>,
    pub(super) retry: Option<Arc<RetryPolicy>>,
    pub(super) hedge: Option<HedgePolicy>,
    /// Its own, or the configuration's if it has none.
    pub(super) mirrors: Arc<[Mirror]>,
    pub(super) mutations: LevelMutations,
    pub(super) filter_configs: Option<Arc<FilterConfigs>>,
    pub metadata: Metadata,
    pub include_request_attempt_count: bool,
    pub include_attempt_count_in_response: bool,
    pub include_is_timeout_retry_header: bool,
    pub(super) buffer_limit: Option<u64>,
    virtual_clusters: Vec<VirtualCluster>,
}

/// A named part of the requests, for statistics.
pub struct VirtualCluster {
    pub name: Arc<str>,
    pub(super) scope: ScopeId,
    /// The last of all, `other`, has none.
    headers: Vec<HeaderMatcher>,
}

impl VirtualHost {
    #[allow(deprecated)]
    pub(super) fn from_proto(
        message: &pb::VirtualHost,
        common: Arc<Common>,
        context: &BuildContext<'_>,
    ) -> Result<Self, ConfigError> {
        let read = context.filter_config;
        let retry = message.retry_policy.as_ref().map(RetryPolicy::from_proto).transpose();
        let mirrors = Mirror::list(&message.request_mirror_policies);
        let mirrors = mirrors.map_err(|e| e.within("request_mirror_policies"))?;
        let clusters = message.virtual_clusters.iter().enumerate();
        let make = |(i, c)| {
            VirtualCluster::from_proto(c, &message.name, context)
                .map_err(|e| e.within(&format!("virtual_clusters[{i}]")))
        };
        let mut virtual_clusters: Vec<_> = clusters.map(make).collect::<Result<_, _>>()?;
        if !virtual_clusters.is_empty() {
            virtual_clusters.push(VirtualCluster::new("other", Vec::new(), &message.name, context));
        }
        Ok(Self {
            name: message.name.as_str().into(),
            retry: retry.map_err(|e| e.within("retry_policy"))?.map(Arc::new),
            hedge: message.hedge_policy.as_ref().map(HedgePolicy::from_proto),
            mutations: LevelMutations::new(&mutation_fields!(message))?,
            mirrors: if mirrors.is_empty() { common.mirrors.clone() } else { mirrors },
            filter_configs: FilterConfigs::and(
                FilterConfigs::extend(common.filter_configs.as_ref(), &message.typed_per_filter_config, read)?,
                common.filter_configs.as_ref(),
                rate_limits::LIMITS,
                rate_limits::OfVirtualHost::read(message)?,
            ),
            metadata: message.metadata.as_ref().map(Metadata::from_proto).unwrap_or_default(),
            include_request_attempt_count: message.include_request_attempt_count,
            include_attempt_count_in_response: message.include_attempt_count_in_response,
            include_is_timeout_retry_header: message.include_is_timeout_retry_header,
            buffer_limit: buffer_limit(message.request_body_buffer_limit, message.per_request_buffer_limit_bytes),
            virtual_clusters,
            common,
        })
    }

    pub fn config(&self) -> &Common {
        &self.common
    }

    /// The first virtual cluster that the request belongs to, else `other`; `None` if there are none.
    pub fn virtual_cluster(&self, headers: &HeaderMap) -> Option<&VirtualCluster> {
        self.virtual_clusters.iter().find(|c| c.headers.iter().all(|m| m.matches(headers)))
    }

    pub(super) fn filter_configs(&self) -> Option<&Arc<FilterConfigs>> {
        self.filter_configs.as_ref().or(self.common.filter_configs.as_ref())
    }
}

/// The new field wins over the deprecated one.
pub(super) fn buffer_limit(
    new: Option<nuncio_api::pb::google::protobuf::UInt64Value>,
    old: Option<nuncio_api::pb::google::protobuf::UInt32Value>,
) -> Option<u64> {
    new.map(|v| v.value).or(old.map(|v| u64::from(v.value)))
}

impl VirtualCluster {
    fn new(name: &str, headers: Vec<HeaderMatcher>, host: &str, context: &BuildContext<'_>) -> Self {
        let scope = (context.scope)(&format!("{host}.vcluster.{name}"));
        Self { name: name.into(), scope, headers }
    }

    fn from_proto(message: &pb::VirtualCluster, host: &str, context: &BuildContext<'_>) -> Result<Self, ConfigError> {
        if message.headers.is_empty() {
            return Err(ConfigError::new("headers", "virtual clusters must define 'headers'"));
        }
        let headers = HeaderMatcher::list(&message.headers).map_err(|e| e.within("headers"))?;
        Ok(Self::new(&message.name, headers, host, context))
    }
}
