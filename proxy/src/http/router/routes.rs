//! The routes of a connection manager: one table, or one for each scope, from wherever they come.

use std::sync::Arc;

use nuncio_api::pb::envoy::config::route::v3::RouteConfiguration;
use nuncio_api::pb::google::protobuf::Any;
use nuncio_core::error::ConfigError;
use nuncio_core::extension::FactoryContext;
use nuncio_core::http::RequestHead;
use nuncio_core::stats::lists;

use super::scopes::{RouteSource, ScopedRoutes, Scopes};
use super::{BuildContext, MatchContext, Route, RouteConfig};
use crate::http::discovered::Discovered;
use crate::http::filters::HttpFilters;

/// Where a connection manager finds the route of a request.
pub enum Routes {
    Of(RouteSource),
    Scoped(Box<ScopedRoutes>),
}

impl Routes {
    /// Removes what only internal clients may say.
    pub fn clean_external(&self, head: &mut RequestHead) {
        match self {
            Self::Of(source) => source.clean_external(head),
            Self::Scoped(scopes) => scopes.clean_external(head),
        }
    }

    pub fn find(&self, request: &RequestHead, context: &MatchContext<'_>) -> Option<Arc<Route>> {
        match self {
            Self::Of(source) => source.find(request, context),
            Self::Scoped(scopes) => scopes.find(request, context),
        }
    }

    /// What somebody must bring.
    pub fn discovered(&self) -> Option<Discovered> {
        match self {
            Self::Of(RouteSource::Discovered(routes)) => Some(Discovered::Routes(routes.clone())),
            Self::Scoped(scoped) => match &scoped.scopes {
                Scopes::Discovered(scopes) => Some(Discovered::Scopes(scopes.clone())),
                Scopes::Inline(_) => None,
            },
            Self::Of(RouteSource::Inline(_)) => None,
        }
    }
}

/// Compiles routes whose filters are configured by `filters`. `validate_clusters`: unless the message says.
pub fn compile(
    message: &RouteConfiguration,
    filters: &HttpFilters,
    validate_clusters: bool,
    context: &FactoryContext<'_>,
) -> Result<RouteConfig, Vec<ConfigError>> {
    let filter_config = |name: &str, config: &Any| {
        let context = FactoryContext { name, ..*context };
        let factory = filters.find_route(&config.type_url);
        factory.map(|factory| factory.create_route_config(config, &context)).transpose()
    };
    let context = BuildContext {
        has_cluster: context.has_cluster,
        validate_clusters,
        filter_config: &filter_config,
        scope: &|name| context.scope(&lists::vhost::SCOPE, &name.into()),
    };
    RouteConfig::from_proto(message, &context)
}
