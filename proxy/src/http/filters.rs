//! The HTTP filters that the binary has. A new filter is one file and one entry here.

use nuncio_core::http::HttpFilterFactory;

/// Filters by the type of their configuration, as Envoy finds them.
pub struct HttpFilters(Vec<Box<dyn HttpFilterFactory>>);

impl HttpFilters {
    pub fn new(factories: Vec<Box<dyn HttpFilterFactory>>) -> Self {
        Self(factories)
    }

    /// By the message type of a `typed_config`.
    pub fn find(&self, type_url: &str) -> Option<&dyn HttpFilterFactory> {
        let message = type_url.rsplit('/').next().unwrap_or(type_url);
        self.0.iter().map(AsRef::as_ref).find(|f| f.config_type() == message)
    }

    /// By the message type of a per-route configuration.
    pub fn find_route(&self, type_url: &str) -> Option<&dyn HttpFilterFactory> {
        let message = type_url.rsplit('/').next().unwrap_or(type_url);
        self.0.iter().map(AsRef::as_ref).find(|f| f.route_config_type() == Some(message))
    }
}

/// One entry for each file of this room; filters of other rooms are added by `extensions`.
pub fn factories() -> Vec<Box<dyn HttpFilterFactory>> {
    vec![]
}
