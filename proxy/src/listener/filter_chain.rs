//! Filter chains: which network filters a connection is handed to.

use std::rc::Rc;
use std::sync::Arc;

use nuncio_api::pb::envoy::config::listener::v3 as pb;
use nuncio_api::pb::google::protobuf::Any;
use nuncio_core::error::ConfigError;
use nuncio_core::extension::FactoryContext;
use nuncio_core::net::ConnectionInfo;

use crate::network::{ListenerInfo, NetworkFilter, NetworkFilterConfig, NetworkFilters};
use crate::upstream::Worker;

/// One checked chain.
pub struct FilterChainConfig {
    pub name: Arc<str>,
    /// A chain without filters is valid; it closes its connections.
    terminal: Option<Arc<dyn NetworkFilterConfig>>,
}

/// The same chain on a worker.
pub struct FilterChain {
    pub name: Arc<str>,
    pub terminal: Option<Rc<dyn NetworkFilter>>,
}

/// The chains of a listener, in either form.
pub struct FilterChains<T> {
    /// The chain that takes every connection.
    pub(super) only: Option<T>,
    /// Takes what no other chain takes.
    pub(super) default: Option<T>,
}

impl<T> Default for FilterChains<T> {
    fn default() -> Self {
        Self { only: None, default: None }
    }
}

impl<T> FilterChains<T> {
    /// The chain for a connection, after its listener filters.
    pub fn find(&self, _connection: &ConnectionInfo) -> Option<&T> {
        self.only.as_ref().or(self.default.as_ref())
    }

    pub fn count(&self) -> usize {
        usize::from(self.only.is_some()) + usize::from(self.default.is_some())
    }
}

impl FilterChains<FilterChainConfig> {
    pub fn instantiate(&self, worker: &Rc<Worker>) -> FilterChains<FilterChain> {
        let make = |chain: &FilterChainConfig| FilterChain {
            name: chain.name.clone(),
            terminal: chain.terminal.as_ref().map(|t| t.instantiate(worker)),
        };
        FilterChains { only: self.only.as_ref().map(make), default: self.default.as_ref().map(make) }
    }
}

impl FilterChainConfig {
    pub(super) fn check(
        message: &pb::FilterChain,
        listener: &Arc<ListenerInfo>,
        filters: &NetworkFilters,
        context: &FactoryContext<'_>,
    ) -> Result<Self, Vec<ConfigError>> {
        let mut errors = Vec::new();
        if message.filter_chain_match.as_ref().is_some_and(|m| *m != pb::FilterChainMatch::default()) {
            errors.push(ConfigError::new("filter_chain_match", "is not implemented"));
        }
        if let Some(socket) = &message.transport_socket
            && let Err(e) = plain_text(socket)
        {
            errors.push(e.within("transport_socket"));
        }
        let mut terminal = None;
        for (i, filter) in message.filters.iter().enumerate() {
            match check_filter(filter, i + 1 == message.filters.len(), listener, filters, context) {
                Ok(checked) => terminal = Some(checked),
                Err(e) => errors.extend(e.into_iter().map(|e| e.within(&format!("filters[{i}]")))),
            }
        }
        if errors.is_empty() { Ok(Self { name: message.name.as_str().into(), terminal }) } else { Err(errors) }
    }
}

/// Bytes that should be encrypted must never leave in clear text because nobody knew how.
fn plain_text(socket: &nuncio_api::pb::envoy::config::core::v3::TransportSocket) -> Result<(), ConfigError> {
    use nuncio_api::pb::envoy::config::core::v3::transport_socket::ConfigType;
    let type_url = match &socket.config_type {
        Some(ConfigType::TypedConfig(any)) => any.type_url.as_str(),
        None => "",
    };
    if type_url.is_empty() {
        return Err(unregistered(&socket.name, type_url));
    }
    if type_url.ends_with("/envoy.extensions.transport_sockets.raw_buffer.v3.RawBuffer") {
        return Ok(());
    }
    Err(ConfigError::new("typed_config", format!("transport socket '{}' is not implemented", socket.name)))
}

fn unregistered(name: &str, type_url: &str) -> ConfigError {
    ConfigError::new("", format!("Didn't find a registered implementation for '{name}' with type URL: '{type_url}'"))
}

fn check_filter(
    message: &pb::Filter,
    last: bool,
    listener: &Arc<ListenerInfo>,
    filters: &NetworkFilters,
    context: &FactoryContext<'_>,
) -> Result<Arc<dyn NetworkFilterConfig>, Vec<ConfigError>> {
    let none = Any::default();
    let config = match &message.config_type {
        Some(pb::filter::ConfigType::TypedConfig(any)) => any,
        Some(pb::filter::ConfigType::ConfigDiscovery(_)) => {
            return Err(vec![ConfigError::new("config_discovery", "is not implemented")]);
        }
        None => &none,
    };
    let opened = nuncio_api::any::open(config).map_err(|e| vec![e.within("typed_config")])?;
    let Some(factory) = filters.find(&opened.type_name) else {
        return Err(vec![unregistered(&message.name, &opened.type_name)]);
    };
    let mut errors = Vec::new();
    if !last {
        errors.push(ConfigError::new(
            "",
            format!(
                "Error: terminal filter named {} of type {} must be the last filter in a network filter chain.",
                message.name,
                factory.name()
            ),
        ));
    }
    match factory.check(&opened.bytes, listener, context) {
        Ok(checked) if errors.is_empty() => Ok(checked),
        Ok(_) => Err(errors),
        Err(e) => {
            errors.extend(e.into_iter().map(|e| e.within("typed_config")));
            Err(errors)
        }
    }
}
