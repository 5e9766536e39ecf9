//! Where a connection manager's routes come from.

use std::sync::Arc;

use nuncio_api::pb::envoy::config::core::v3::ConfigSource as SourceProto;
use nuncio_api::pb::envoy::config::route::v3::{RouteConfiguration, ScopedRouteConfiguration};
use nuncio_api::pb::envoy::extensions::filters::network::http_connection_manager::v3::{
    HttpConnectionManager as Proto, Rds as RdsProto, ScopedRouteConfigurationsList, ScopedRoutes as ScopedRoutesProto,
    http_connection_manager::RouteSpecifier, scoped_routes::ConfigSpecifier,
};
use nuncio_core::error::ConfigError;
use nuncio_core::extension::FactoryContext;
use nuncio_discovery::xds::ConfigSource;

use super::Check;
use crate::http::router::{
    DiscoveredRoutes, DiscoveredScopes, RouteSource, Routes, ScopeKeyBuilder, ScopeTable, ScopedRoutes, Scopes,
    compile, scope_key, unreachable_scope,
};

impl Check<'_> {
    pub(super) fn routes(&mut self, proto: &Proto) -> Option<Routes> {
        match &proto.route_specifier {
            Some(RouteSpecifier::RouteConfig(routes)) => self.inline_routes("route_config", routes).map(Routes::Of),
            Some(RouteSpecifier::Rds(rds)) => self.discovered_routes(rds).map(Routes::Of),
            Some(RouteSpecifier::ScopedRoutes(scoped)) => {
                self.scoped_routes(scoped).map(|scoped| Routes::Scoped(Box::new(scoped)))
            }
            None => {
                self.error("route_specifier", "value is required");
                None
            }
        }
    }

    fn inline_routes(&mut self, path: &str, routes: &RouteConfiguration) -> Option<RouteSource> {
        let context = FactoryContext { stat_prefix: &self.stat_prefix, ..*self.context };
        match compile(routes, self.filters, true, &context) {
            Ok(config) => Some(RouteSource::Inline(Arc::new(config))),
            Err(errors) => {
                self.errors.extend(errors.into_iter().map(|e| e.within(path)));
                None
            }
        }
    }

    fn discovered_routes(&mut self, rds: &RdsProto) -> Option<RouteSource> {
        let source = self.source("rds.config_source", rds.config_source.as_ref())?;
        let routes = DiscoveredRoutes::new(source, &rds.route_config_name, &self.stat_prefix, self.filters);
        Some(RouteSource::Discovered(Arc::new(routes)))
    }

    fn scoped_routes(&mut self, proto: &ScopedRoutesProto) -> Option<ScopedRoutes> {
        let builder = match &proto.scope_key_builder {
            Some(builder) => ScopeKeyBuilder::from_proto(builder),
            None => Err(ConfigError::new("", "value is required")),
        };
        let builder = builder.map_err(|e| self.errors.push(e.within("scope_key_builder").within("scoped_routes")));
        let parts = builder.as_ref().map_or(0, ScopeKeyBuilder::parts);
        let scopes = match &proto.config_specifier {
            Some(ConfigSpecifier::ScopedRouteConfigurationsList(list)) => self.inline_scopes(list, parts),
            Some(ConfigSpecifier::ScopedRds(scoped_rds)) => {
                let at = "scoped_routes.scoped_rds.scoped_rds_config_source";
                let source = self.source(at, scoped_rds.scoped_rds_config_source.as_ref())?;
                let routes = match &proto.rds_config_source {
                    Some(routes) => Some(self.source("scoped_routes.rds_config_source", Some(routes))?),
                    None => None,
                };
                Some(Scopes::Discovered(Arc::new(DiscoveredScopes {
                    source,
                    routes,
                    name: proto.name.clone(),
                    stat_prefix: self.stat_prefix.clone(),
                    filters: self.filters.clone(),
                    parts,
                    state: Default::default(),
                })))
            }
            None => {
                self.error("scoped_routes.config_specifier", "value is required");
                None
            }
        };
        Some(ScopedRoutes { builder: builder.ok()?, scopes: scopes? })
    }

    /// As in Envoy the last of two scopes with one name, or with one key, is the one that counts.
    fn inline_scopes(&mut self, list: &ScopedRouteConfigurationsList, parts: usize) -> Option<Scopes> {
        let mut table = ScopeTable::default();
        let all = &list.scoped_route_configurations;
        for (i, scope) in all.iter().enumerate() {
            let path = format!("scoped_routes.scoped_route_configurations_list.scoped_route_configurations[{i}]");
            let source = self.inline_scope(&path, scope);
            let key = scope_key(scope);
            if key.len() != parts {
                self.context.warn(format!("{path}.key"), unreachable_scope(&scope.name, key.len(), parts));
            }
            if all[i + 1..].iter().any(|later| later.name == scope.name) {
                self.context.warn(format!("{path}.name"), "a later scope has this name: this one is left out");
                continue;
            }
            if let Some(source) = source
                && table.insert(&key, source).is_some()
            {
                self.context.warn(format!("{path}.key"), "an earlier scope has this key: that one is left out");
            }
        }
        Some(Scopes::Inline(table))
    }

    fn inline_scope(&mut self, path: &str, scope: &ScopedRouteConfiguration) -> Option<RouteSource> {
        if !scope.route_configuration_name.is_empty() {
            let reason =
                "Fetching routes via RDS (route_configuration_name) is not supported with inline scoped routes.";
            self.error(format!("{path}.route_configuration_name"), reason);
            return None;
        }
        let Some(routes) = &scope.route_configuration else {
            self.error(path, "You must specify a route_configuration with inline scoped routes.");
            return None;
        };
        self.inline_routes(&format!("{path}.route_configuration"), routes)
    }

    fn source(&mut self, path: &str, message: Option<&SourceProto>) -> Option<ConfigSource> {
        let source = match message {
            Some(message) => ConfigSource::from_proto(message),
            None => Err(ConfigError::new("", "value is required")),
        };
        source.map_err(|error| self.errors.push(error.within(path))).ok()
    }
}
