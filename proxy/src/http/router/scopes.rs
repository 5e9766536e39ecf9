//! Scoped routes: which of many route configurations a request is looked up in, by a key that is made of its headers.
//!
//! The keys are a tree with one level for each part of a key, so that a request walks down as it makes its own key, and
//! neither keeps nor copies any of it.

use std::collections::HashMap;
use std::sync::Arc;

use memchr::memmem;
use nuncio_api::pb::envoy::config::route::v3::{ScopedRouteConfiguration, scoped_route_configuration::key::fragment};
use nuncio_api::pb::envoy::extensions::filters::network::http_connection_manager::v3::scoped_routes as pb;
use nuncio_api::supports;
use nuncio_core::error::ConfigError;
use nuncio_core::http::RequestHead;
use pb::scope_key_builder::fragment_builder::{HeaderValueExtractor, Type, header_value_extractor::ExtractType};

use super::rds::DiscoveredRoutes;
use super::srds::DiscoveredScopes;
use super::{Common, MatchContext, Route, RouteConfig};

supports!(pub(super) ROUTES = "envoy.extensions.filters.network.http_connection_manager.v3.ScopedRoutes" {
    name, scope_key_builder, rds_config_source, scoped_route_configurations_list, scoped_rds,
});
supports!(pub(super) LIST =
    "envoy.extensions.filters.network.http_connection_manager.v3.ScopedRouteConfigurationsList" {
    scoped_route_configurations,
});
supports!(pub(super) SCOPED_RDS = "envoy.extensions.filters.network.http_connection_manager.v3.ScopedRds" {
    scoped_rds_config_source,
});
supports!(pub(super) BUILDER =
    "envoy.extensions.filters.network.http_connection_manager.v3.ScopedRoutes.ScopeKeyBuilder" { fragments });
supports!(pub(super) FRAGMENT_BUILDER =
    "envoy.extensions.filters.network.http_connection_manager.v3.ScopedRoutes.ScopeKeyBuilder.FragmentBuilder" {
    header_value_extractor,
});
supports!(pub(super) EXTRACTOR =
    "envoy.extensions.filters.network.http_connection_manager.v3.ScopedRoutes.ScopeKeyBuilder.FragmentBuilder.HeaderValueExtractor" {
    name, element_separator, index, element,
});
supports!(pub(super) ELEMENT =
    "envoy.extensions.filters.network.http_connection_manager.v3.ScopedRoutes.ScopeKeyBuilder.FragmentBuilder.HeaderValueExtractor.KvElement" {
    separator, key,
});
supports!(pub(super) SCOPE = "envoy.config.route.v3.ScopedRouteConfiguration" {
    name, route_configuration_name, route_configuration, key,
});
supports!(pub(super) KEY = "envoy.config.route.v3.ScopedRouteConfiguration.Key" { fragments });
supports!(pub(super) FRAGMENT = "envoy.config.route.v3.ScopedRouteConfiguration.Key.Fragment" { string_key });

/// Where the routes of a connection manager, or of one scope, come from.
#[derive(Clone)]
pub enum RouteSource {
    Inline(Arc<RouteConfig>),
    Discovered(Arc<DiscoveredRoutes>),
}

impl RouteSource {
    /// Removes what only internal clients may say.
    pub fn clean_external(&self, head: &mut RequestHead) {
        match self {
            Self::Inline(config) => config.common().clean_external(head),
            Self::Discovered(routes) => {
                if let Some(config) = &*routes.current() {
                    config.common().clean_external(head);
                }
            }
        }
    }

    pub fn find(&self, request: &RequestHead, context: &MatchContext<'_>) -> Option<Arc<Route>> {
        match self {
            Self::Inline(config) => config.find(request, context).cloned(),
            Self::Discovered(routes) => routes.current().as_ref()?.find(request, context).cloned(),
        }
    }

    fn common(&self) -> Option<Arc<Common>> {
        match self {
            Self::Inline(config) => Some(config.common().clone()),
            Self::Discovered(routes) => routes.current().as_ref().map(|config| config.common().clone()),
        }
    }
}

/// Scoped routes of one connection manager.
pub struct ScopedRoutes {
    pub builder: ScopeKeyBuilder,
    pub scopes: Scopes,
}

pub enum Scopes {
    Inline(ScopeTable),
    Discovered(Arc<DiscoveredScopes>),
}

impl ScopedRoutes {
    /// Removes what only internal clients may say.
    pub fn clean_external(&self, head: &mut RequestHead) {
        if let Some(Some(common)) = self.with_scope(head, RouteSource::common) {
            common.clean_external(head);
        }
    }

    /// As Envoy: a request of no scope has no route.
    pub fn find(&self, request: &RequestHead, context: &MatchContext<'_>) -> Option<Arc<Route>> {
        self.with_scope(request, |source| source.find(request, context))?
    }

    fn with_scope<T>(&self, head: &RequestHead, then: impl FnOnce(&RouteSource) -> T) -> Option<T> {
        match &self.scopes {
            Scopes::Inline(table) => table.find(&self.builder, head).map(then),
            Scopes::Discovered(scopes) => scopes.current().as_ref()?.find(&self.builder, head).map(then),
        }
    }
}

/// Makes the key of a request, part by part.
#[derive(Debug)]
pub struct ScopeKeyBuilder(Vec<Extractor>);

impl ScopeKeyBuilder {
    pub fn from_proto(message: &pb::ScopeKeyBuilder) -> Result<Self, ConfigError> {
        let parts = message.fragments.iter().enumerate().map(|(i, fragment)| {
            let Some(Type::HeaderValueExtractor(extractor)) = &fragment.r#type else {
                return Err(ConfigError::new(format!("fragments[{i}].type"), "value is required"));
            };
            let at = format!("fragments[{i}].header_value_extractor");
            Extractor::from_proto(extractor).map_err(|e| e.within(&at))
        });
        parts.collect::<Result<_, _>>().map(Self)
    }

    /// How many parts its keys have.
    pub fn parts(&self) -> usize {
        self.0.len()
    }
}

/// One part of a key: out of the first header of that name.
#[derive(Debug)]
struct Extractor {
    header: Box<str>,
    /// Between the elements of the value; without one it is a single element.
    separator: Box<[u8]>,
    take: Take,
}

#[derive(Debug)]
enum Take {
    /// That element.
    Index(u32),
    /// What follows the separator in the first element of that key.
    Value { key: Box<[u8]>, separator: Box<[u8]> },
}

impl Extractor {
    fn from_proto(message: &HeaderValueExtractor) -> Result<Self, ConfigError> {
        let bytes = |text: &str| text.as_bytes().into();
        let take = match &message.extract_type {
            Some(ExtractType::Index(index)) if *index > 0 && message.element_separator.is_empty() => {
                return Err(ConfigError::new("index", "Index > 0 for empty string element separator."));
            }
            Some(ExtractType::Index(index)) => Take::Index(*index),
            Some(ExtractType::Element(pair)) => {
                Take::Value { key: bytes(&pair.key), separator: bytes(&pair.separator) }
            }
            None => return Err(ConfigError::new("", "HeaderValueExtractor extract_type not set.")),
        };
        let header = message.name.to_ascii_lowercase().into();
        Ok(Self { header, separator: bytes(&message.element_separator), take })
    }

    fn extract<'h>(&self, head: &'h RequestHead) -> Option<&'h [u8]> {
        let mut rest = Some(head.headers.get(&self.header)?);
        let mut elements = std::iter::from_fn(|| {
            let (element, others) = cut(rest?, &self.separator);
            rest = others;
            Some(element)
        });
        match &self.take {
            Take::Index(index) => elements.nth(*index as usize),
            Take::Value { key, separator } => elements.find_map(|element| {
                let (name, value) = cut(element, separator);
                (*name == **key).then(|| value.unwrap_or_default())
            }),
        }
    }
}

/// What stands before the first separator, and what stands behind it if there is one.
fn cut<'v>(value: &'v [u8], separator: &[u8]) -> (&'v [u8], Option<&'v [u8]>) {
    let found = if separator.is_empty() { None } else { memmem::find(value, separator) };
    found.map_or((value, None), |at| (&value[..at], Some(&value[at + separator.len()..])))
}

/// The parts of the key of a scope.
pub fn key(scope: &ScopedRouteConfiguration) -> Vec<&[u8]> {
    let fragments = scope.key.iter().flat_map(|key| &key.fragments);
    let text = fragments.map(|fragment| match &fragment.r#type {
        Some(fragment::Type::StringKey(text)) => text.as_bytes(),
        None => &[],
    });
    text.collect()
}

/// What an operator should hear of a scope whose key no request has; Envoy says nothing.
pub fn unreachable(scope: &str, parts: usize, made: usize) -> String {
    format!("scope '{scope}' has {parts} fragments, requests have {made} (scope_key_builder): none is in it")
}

/// Scopes by their keys.
#[derive(Default)]
pub struct ScopeTable(Level);

/// What may follow the parts of a key so far.
#[derive(Default)]
struct Level {
    next: HashMap<Box<[u8]>, Level>,
    /// Of the key that ends here.
    routes: Option<RouteSource>,
}

impl ScopeTable {
    /// The routes that had this key before, which had them no longer.
    pub fn insert(&mut self, key: &[&[u8]], routes: RouteSource) -> Option<RouteSource> {
        let level = key.iter().fold(&mut self.0, |level, &part| level.next.entry(part.into()).or_default());
        level.routes.replace(routes)
    }

    fn find(&self, builder: &ScopeKeyBuilder, head: &RequestHead) -> Option<&RouteSource> {
        let level = builder.0.iter().try_fold(&self.0, |level, part| level.next.get(part.extract(head)?));
        level?.routes.as_ref()
    }
}

#[cfg(test)]
mod tests;
