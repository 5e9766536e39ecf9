//! A compiled route configuration: request head → route.
//!
//! Built once on the main thread, one virtual host and one route at a time so that a large
//! configuration never exists as messages in full; then shared by all workers.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use nuncio_api::pb::envoy::config::route::v3::route::Action as ActionProto;
use nuncio_api::pb::envoy::config::route::v3::route_action::ClusterSpecifier;
use nuncio_api::pb::envoy::config::route::v3::virtual_host::TlsRequirementType;
use nuncio_api::pb::envoy::config::route::v3::weighted_cluster::{ClusterWeight, cluster_weight::HostRewriteSpecifier};
use nuncio_api::pb::envoy::config::route::v3::{self as pb, RouteAction, RouteConfiguration};
use nuncio_api::prost::Message;
use nuncio_core::error::ConfigError;
use nuncio_core::http::RequestHead;
use nuncio_core::matcher::UriTemplate;
use nuncio_core::matcher::header::lookup_name;
use nuncio_core::matcher::path::without_query;
use nuncio_core::metadata::Metadata;
use nuncio_core::stats::ScopeId;

use super::direct_response::DirectResponse;
use super::domains::Domains;
use super::filter_config::{FilterConfigs, ReadFilterConfig};
use super::mutations::{LevelMutations, mutation_fields};
use super::path_index::PathIndex;
use super::policy::{ForwardPolicy, Mirror, MirrorTarget, subset};
use super::redirect::{Redirect, needs_tls};
use super::route::{Action, ClusterName, Extras, Route, WeightedExtras};
use super::route_match::{MatchContext, MatchedPart, RouteMatch};
use super::virtual_host::{Common, VirtualHost, buffer_limit};
use super::weighted::Weighted;
use crate::http::rate_limits;

/// All routes of a `RouteConfiguration`.
pub struct RouteConfig {
    common: Arc<Common>,
    domains: Domains,
    hosts: Vec<HostRoutes>,
}

/// The routes of one virtual host, in order.
struct HostRoutes {
    require_tls: TlsRequirementType,
    to_https: Option<Arc<Route>>,
    routes: Vec<Entry>,
    index: Option<Box<PathIndex>>,
}

struct Entry {
    matches: RouteMatch,
    target: Target,
}

enum Target {
    One(Arc<Route>),
    Weighted(Box<Weighted>),
}

impl RouteConfig {
    /// Compiles a whole configuration; all of its errors.
    pub fn from_proto(message: &RouteConfiguration, context: &BuildContext<'_>) -> Result<Self, Vec<ConfigError>> {
        let mut builder = RouteConfigBuilder::new(message, context).map_err(|e| vec![e])?;
        let mut errors = Vec::new();
        for (i, host) in message.virtual_hosts.iter().enumerate() {
            let at = |e: ConfigError| e.within(&format!("virtual_hosts[{i}]"));
            if let Err(e) = builder.virtual_host(host) {
                errors.push(at(e));
                continue;
            }
            for (j, route) in host.routes.iter().enumerate() {
                if let Err(e) = builder.route(route) {
                    errors.push(at(e.within(&format!("routes[{j}]"))));
                }
            }
        }
        if errors.is_empty() { Ok(builder.finish()) } else { Err(errors) }
    }

    pub fn name(&self) -> &Arc<str> {
        &self.common.name
    }

    pub fn common(&self) -> &Arc<Common> {
        &self.common
    }

    /// The route for a request: the first that matches in its virtual host.
    pub fn find(&self, head: &RequestHead, context: &MatchContext<'_>) -> Option<&Arc<Route>> {
        let host = self.host(head)?;
        if let Some(to_https) = &host.to_https
            && needs_tls(host.require_tls, head)
        {
            return Some(to_https);
        }
        let path = self.path_to_match(head);
        let fits = |i: &u32| host.routes[*i as usize].matches.matches(path, head, context);
        let found = match host.index.as_ref().map(|index| index.first(path, |i| fits(&i))) {
            Some(Ok(found)) => found,
            _ => (0..host.routes.len() as u32).find(fits),
        };
        match &host.routes[found? as usize].target {
            Target::One(route) => Some(route),
            Target::Weighted(weighted) => weighted.pick(head, context),
        }
    }

    fn host(&self, head: &RequestHead) -> Option<&HostRoutes> {
        let name = match &self.common.host_header {
            None => head.authority(),
            Some(header) => head.headers.get(header),
        };
        let host = self.domains.find(name, self.common.ignore_port)?;
        self.hosts.get(host as usize)
    }

    fn path_to_match<'a>(&self, head: &'a RequestHead) -> &'a [u8] {
        let path = without_query(head.path().unwrap_or_default());
        if !self.common.ignore_path_parameters {
            return path;
        }
        memchr::memchr(b';', path).map_or(path, |end| &path[..end])
    }
}

/// What the compiler needs to know of the rest of the configuration.
#[derive(Clone, Copy)]
pub struct BuildContext<'a> {
    pub has_cluster: &'a dyn Fn(&str) -> bool,
    /// Whether unknown clusters are errors if the message does not say: yes for routes inside a
    /// listener, no for those that come by themselves.
    pub validate_clusters: bool,
    pub filter_config: &'a ReadFilterConfig<'a>,
    /// The scope of that name below `vhost.`, held for as long as the configuration.
    pub scope: &'a dyn Fn(&str) -> ScopeId,
}

/// Takes a route configuration piece by piece: [`new`](Self::new), then for each virtual host
/// [`virtual_host`](Self::virtual_host) and its routes in order, then [`finish`](Self::finish).
pub struct RouteConfigBuilder<'a> {
    context: BuildContext<'a>,
    config: RouteConfig,
    current: Option<Arc<VirtualHost>>,
    names: HashSet<Arc<str>>,
    /// Policies by their encoded message.
    policies: HashMap<Vec<u8>, Arc<ForwardPolicy>>,
}

impl<'a> RouteConfigBuilder<'a> {
    /// Reads everything of `message` but its virtual hosts.
    pub fn new(message: &RouteConfiguration, context: &BuildContext<'a>) -> Result<Self, ConfigError> {
        let validate_clusters = message.validate_clusters.map_or(context.validate_clusters, |v| v.value);
        let common = Arc::new(Common::from_proto(message, context.filter_config)?);
        let builder = Self {
            context: BuildContext { validate_clusters, ..*context },
            config: RouteConfig { common, domains: Domains::default(), hosts: Vec::new() },
            current: None,
            names: HashSet::new(),
            policies: HashMap::new(),
        };
        Ok(builder)
    }

    /// Begins a virtual host; reads everything of it but its routes. After an error the routes
    /// that follow are passed over.
    pub fn virtual_host(&mut self, message: &pb::VirtualHost) -> Result<(), ConfigError> {
        self.close_host();
        let number = self.config.hosts.len() as u32;
        for (i, domain) in message.domains.iter().enumerate() {
            let inserted = self.config.domains.insert(domain, number, &self.config.common.name);
            inserted.map_err(|e| e.within(&format!("domains[{i}]")))?;
        }
        let host = Arc::new(VirtualHost::from_proto(message, self.config.common.clone(), &self.context)?);
        let require_tls = message.require_tls();
        let to_https = (require_tls != TlsRequirementType::None).then(|| {
            Arc::new(Route {
                name: None,
                virtual_host: host.clone(),
                action: Action::Redirect(Box::new(Redirect::to_https())),
                matched: MatchedPart::WHOLE_PATH,
                extras: None,
                weighted: None,
            })
        });
        self.config.hosts.push(HostRoutes { require_tls, to_https, routes: Vec::new(), index: None });
        self.current = Some(host);
        Ok(())
    }

    /// Adds the next route of the current virtual host.
    pub fn route(&mut self, message: &pb::Route) -> Result<(), ConfigError> {
        let Some(host) = self.current.clone() else { return Ok(()) };
        let Some(route_match) = &message.r#match else { return Err(ConfigError::new("match", "value is required")) };
        let matches = RouteMatch::from_proto(route_match).map_err(|e| e.within("match"))?;
        let draft = Draft {
            name: (!message.name.is_empty()).then(|| message.name.as_str().into()),
            matched: matches.matched_part(),
            extras: self.extras(message, &host)?.map(Arc::new),
            host,
        };
        let target = match &message.action {
            Some(ActionProto::Route(action)) => {
                self.forward(action, matches.template(), &draft).map_err(|e| e.within("route"))?
            }
            Some(ActionProto::Redirect(redirect)) => {
                let redirect = Redirect::from_proto(redirect).map_err(|e| e.within("redirect"))?;
                draft.target(Action::Redirect(Box::new(redirect)))
            }
            Some(ActionProto::DirectResponse(response)) => {
                let limit = draft.host.common.max_direct_response;
                let response = DirectResponse::from_proto(response, limit).map_err(|e| e.within("direct_response"))?;
                draft.target(Action::DirectResponse(Arc::new(response)))
            }
            Some(ActionProto::NonForwardingAction(_)) => draft.target(Action::NonForwarding),
            Some(ActionProto::FilterAction(_)) => return Err(ConfigError::new("filter_action", "is not implemented")),
            None => return Err(ConfigError::new("action", "value is required")),
        };
        if let Some(current) = self.config.hosts.last_mut() {
            current.routes.push(Entry { matches, target });
        }
        Ok(())
    }

    pub fn finish(mut self) -> RouteConfig {
        self.close_host();
        self.config.domains.shrink();
        self.config.hosts.shrink_to_fit();
        self.config
    }

    fn close_host(&mut self) {
        self.current = None;
        if let Some(host) = self.config.hosts.last_mut() {
            host.routes.shrink_to_fit();
            host.index = PathIndex::build(host.routes.iter().map(|r| &r.matches)).map(Box::new);
        }
    }

    #[allow(deprecated)]
    fn extras(&self, message: &pb::Route, host: &VirtualHost) -> Result<Option<Extras>, ConfigError> {
        let limits = match &message.action {
            Some(pb::route::Action::Route(action)) => {
                rate_limits::OfRoute::read(action).map_err(|e| e.within("route"))?
            }
            _ => None,
        };
        let extras = Extras {
            metadata: message.metadata.as_ref().map(Metadata::from_proto).unwrap_or_default(),
            stats: (!message.stat_prefix.is_empty())
                .then(|| (self.context.scope)(&format!("{}.route.{}", host.name, message.stat_prefix))),
            buffer_limit: buffer_limit(message.request_body_buffer_limit, message.per_request_buffer_limit_bytes),
            mutations: LevelMutations::new(&mutation_fields!(message))?,
            filter_configs: FilterConfigs::and(
                FilterConfigs::extend(
                    host.filter_configs(),
                    &message.typed_per_filter_config,
                    self.context.filter_config,
                )?,
                host.filter_configs(),
                rate_limits::LIMITS,
                limits,
            ),
        };
        let any = !extras.metadata.is_empty()
            || extras.stats.is_some()
            || extras.buffer_limit.is_some()
            || !extras.mutations.is_empty()
            || extras.filter_configs.is_some();
        Ok(any.then_some(extras))
    }

    fn forward(
        &mut self,
        action: &RouteAction,
        template: Option<&UriTemplate>,
        draft: &Draft,
    ) -> Result<Target, ConfigError> {
        let policy = self.policy(action, template)?;
        let mirrors = if policy.mirrors.is_empty() { &draft.host.mirrors } else { &policy.mirrors };
        self.check_mirrors(mirrors)?;
        let cluster = match &action.cluster_specifier {
            Some(ClusterSpecifier::Cluster(name)) => {
                self.check_cluster(name, "cluster").map_err(|e| e.within("cluster"))?;
                ClusterName::Named(self.intern(name))
            }
            Some(ClusterSpecifier::ClusterHeader(name)) => ClusterName::Header(self.intern(&lookup_name(name))),
            Some(ClusterSpecifier::WeightedClusters(weighted)) => {
                let name = draft.name.as_deref().unwrap_or_default();
                let make = |cluster: &ClusterWeight| self.weighted_route(cluster, &policy, draft);
                let weighted = Weighted::from_proto(weighted, name, make).map_err(|e| e.within("weighted_clusters"))?;
                return Ok(Target::Weighted(Box::new(weighted)));
            }
            Some(ClusterSpecifier::ClusterSpecifierPlugin(_) | ClusterSpecifier::InlineClusterSpecifierPlugin(_)) => {
                return Err(ConfigError::new("cluster_specifier", "cluster specifier plugins are not implemented"));
            }
            None => return Err(ConfigError::new("cluster_specifier", "value is required")),
        };
        Ok(draft.target(Action::Forward { cluster, policy }))
    }

    fn weighted_route(
        &mut self,
        message: &ClusterWeight,
        policy: &Arc<ForwardPolicy>,
        draft: &Draft,
    ) -> Result<Route, ConfigError> {
        let cluster = match (message.name.as_str(), message.cluster_header.as_str()) {
            ("", "") => {
                return Err(ConfigError::new("", "At least one of name or cluster_header need to be specified"));
            }
            (name, "") => {
                self.check_cluster(name, "weighted cluster").map_err(|e| e.within("name"))?;
                ClusterName::Named(self.intern(name))
            }
            ("", header) => ClusterName::Header(self.intern(&lookup_name(header))),
            _ => return Err(ConfigError::new("", "Only one of name or cluster_header can be specified")),
        };
        let parent_configs = draft.extras.as_ref().and_then(|e| e.filter_configs.as_ref());
        let parent_configs = parent_configs.or_else(|| draft.host.filter_configs());
        let metadata_match = message.metadata_match.as_ref().and_then(subset).map(|own| {
            let mut all = policy.metadata_match.as_deref().cloned().unwrap_or_default();
            all.fields.extend(own.fields);
            Arc::new(all)
        });
        let weighted = WeightedExtras {
            host_rewrite: match &message.host_rewrite_specifier {
                Some(HostRewriteSpecifier::HostRewriteLiteral(host)) => host.as_str().into(),
                None => Box::default(),
            },
            metadata_match,
            mutations: LevelMutations::new(&mutation_fields!(message))?,
            filter_configs: FilterConfigs::extend(
                parent_configs,
                &message.typed_per_filter_config,
                self.context.filter_config,
            )?,
        };
        let mut route = draft.route(Action::Forward { cluster, policy: policy.clone() });
        route.weighted = Some(Box::new(weighted));
        Ok(route)
    }

    /// The policy of `action`; one object for all routes that say the same.
    fn policy(
        &mut self,
        action: &RouteAction,
        template: Option<&UriTemplate>,
    ) -> Result<Arc<ForwardPolicy>, ConfigError> {
        if action.path_rewrite_policy.is_some() {
            // Depends on the route's template.
            return ForwardPolicy::from_proto(action, template).map(Arc::new);
        }
        let mut rest = action.clone();
        rest.cluster_specifier = None;
        let mut key = rest.encode_to_vec();
        // `prefix_rewrite` is refused for templates.
        key.push(u8::from(template.is_some()));
        if let Some(policy) = self.policies.get(&key) {
            return Ok(policy.clone());
        }
        let policy = Arc::new(ForwardPolicy::from_proto(&rest, template)?);
        self.policies.insert(key, policy.clone());
        Ok(policy)
    }

    fn intern(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.names.get(name) {
            return known.clone();
        }
        let shared: Arc<str> = name.into();
        self.names.insert(shared.clone());
        shared
    }

    fn check_cluster(&self, name: &str, what: &str) -> Result<(), ConfigError> {
        if !self.context.validate_clusters || (self.context.has_cluster)(name) {
            return Ok(());
        }
        Err(ConfigError::new("", format!("route: unknown {what} '{name}'")))
    }

    fn check_mirrors(&self, mirrors: &[Mirror]) -> Result<(), ConfigError> {
        mirrors.iter().try_for_each(|m| match &m.target {
            MirrorTarget::Cluster(name) => {
                self.check_cluster(name, "shadow cluster").map_err(|e| e.within("request_mirror_policies"))
            }
            MirrorTarget::Header(_) => Ok(()),
        })
    }
}

/// What all routes made from one message share.
struct Draft {
    name: Option<Arc<str>>,
    host: Arc<VirtualHost>,
    matched: MatchedPart,
    extras: Option<Arc<Extras>>,
}

impl Draft {
    fn route(&self, action: Action) -> Route {
        Route {
            name: self.name.clone(),
            virtual_host: self.host.clone(),
            action,
            matched: self.matched,
            extras: self.extras.clone(),
            weighted: None,
        }
    }

    fn target(&self, action: Action) -> Target {
        Target::One(Arc::new(self.route(action)))
    }
}

#[cfg(test)]
mod tests;
