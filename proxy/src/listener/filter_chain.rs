//! Filter chains: what a connection passes through, from its transport socket to its terminal filter.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use nuncio_api::pb::envoy::config::core::v3::{TransportSocket, transport_socket};
use nuncio_api::pb::envoy::config::listener::v3 as pb;
use nuncio_api::pb::google::protobuf::Any;
use nuncio_core::error::ConfigError;
use nuncio_core::extension::FactoryContext;
use nuncio_core::metadata::Metadata;
use nuncio_core::net::ConnectionInfo;
use nuncio_core::network::{
    DownstreamTransportSocket, DownstreamTransportSocketConfig, MakeNetworkFilter, NetworkFilterConfig,
};
use nuncio_core::time::duration;

use super::chain_match::ChainMatcher;
use crate::http::discovered::Discovered;
use crate::network::{ListenerInfo, NetworkExtensions, TerminalFilter, TerminalFilterConfig};
use crate::upstream::Worker;

/// One checked chain.
pub struct FilterChainConfig {
    pub name: Arc<str>,
    metadata: Option<Arc<Metadata>>,
    /// `None`: clear text.
    transport_socket: Option<Arc<dyn DownstreamTransportSocketConfig>>,
    transport_socket_connect_timeout: Option<Duration>,
    filters: Vec<Arc<dyn NetworkFilterConfig>>,
    /// A chain without filters is valid; it closes its connections.
    terminal: Option<Arc<dyn TerminalFilterConfig>>,
}

/// The same chain on a worker.
pub struct FilterChain {
    pub name: Arc<str>,
    pub metadata: Option<Arc<Metadata>>,
    /// Turns the wire's bytes into those of the filters, before any of them runs.
    pub transport_socket: Option<Rc<dyn DownstreamTransportSocket>>,
    pub transport_socket_connect_timeout: Option<Duration>,
    /// In front of the terminal filter.
    pub filters: Vec<MakeNetworkFilter>,
    pub terminal: Option<Rc<dyn TerminalFilter>>,
}

/// The chains of a listener, in either form.
pub struct FilterChains<T> {
    chains: Vec<T>,
    matcher: Arc<ChainMatcher>,
    /// Takes what no other chain takes.
    pub(super) default: Option<T>,
}

impl<T> Default for FilterChains<T> {
    fn default() -> Self {
        Self { chains: Vec::new(), matcher: Arc::default(), default: None }
    }
}

impl<T> FilterChains<T> {
    /// The chain for a connection, after its listener filters.
    pub fn find(&self, connection: &ConnectionInfo) -> Option<&T> {
        let place = if self.chains.is_empty() { None } else { self.matcher.find(connection) };
        place.and_then(|place| self.chains.get(place)).or(self.default.as_ref())
    }

    pub fn count(&self) -> usize {
        self.chains.len() + usize::from(self.default.is_some())
    }
}

impl FilterChains<FilterChainConfig> {
    /// `address`: how Envoy names the listener in errors. Paths are relative to the listener.
    pub(super) fn check(
        message: &pb::Listener,
        address: &str,
        info: &Arc<ListenerInfo>,
        extensions: &NetworkExtensions,
        context: &FactoryContext<'_>,
    ) -> Result<Self, Vec<ConfigError>> {
        let mut errors = Vec::new();
        let mut check =
            |chain: &pb::FilterChain, path: &str| match FilterChainConfig::check(chain, info, extensions, context) {
                Ok(chain) => Some(chain),
                Err(e) => {
                    errors.extend(e.into_iter().map(|e| e.within(path)));
                    None
                }
            };
        let listed = message.filter_chains.iter().enumerate();
        let chains = listed.filter_map(|(i, chain)| check(chain, &format!("filter_chains[{i}]"))).collect();
        let default = message.default_filter_chain.as_ref().and_then(|c| check(c, "default_filter_chain"));
        match ChainMatcher::compile(&message.filter_chains, address) {
            Ok(matcher) if errors.is_empty() => Ok(Self { chains, matcher: Arc::new(matcher), default }),
            Ok(_) => Err(errors),
            Err(e) => {
                errors.extend(e);
                Err(errors)
            }
        }
    }

    /// What somebody must bring.
    pub fn discovered(&self) -> impl Iterator<Item = Arc<Discovered>> {
        let all = self.chains.iter().chain(&self.default).filter_map(|chain| chain.terminal.as_ref());
        all.flat_map(|terminal| terminal.awaits()).filter_map(|awaited| awaited.downcast().ok())
    }

    pub fn instantiate(&self, worker: &Rc<Worker>) -> FilterChains<Rc<FilterChain>> {
        FilterChains {
            chains: self.chains.iter().map(|chain| Rc::new(chain.instantiate(worker))).collect(),
            matcher: self.matcher.clone(),
            default: self.default.as_ref().map(|chain| Rc::new(chain.instantiate(worker))),
        }
    }
}

// === impl FilterChainConfig ===

impl FilterChainConfig {
    fn check(
        message: &pb::FilterChain,
        listener: &Arc<ListenerInfo>,
        extensions: &NetworkExtensions,
        context: &FactoryContext<'_>,
    ) -> Result<Self, Vec<ConfigError>> {
        let mut errors = Vec::new();
        let names = message.filter_chain_match.as_ref().map_or(&[][..], |m| &m.server_names);
        let context = &FactoryContext { stat_prefix: &listener.stat_name, ..*context };
        let transport_socket = match &message.transport_socket {
            None => None,
            Some(socket) => transport_socket(socket, names, extensions, context).unwrap_or_else(|e| {
                errors.extend(e.into_iter().map(|e| e.within("transport_socket")));
                None
            }),
        };
        let (mut filters, mut terminal) = (Vec::new(), None);
        for (i, filter) in message.filters.iter().enumerate() {
            match check_filter(filter, i + 1 == message.filters.len(), listener, extensions, context) {
                Ok(Checked::Filter(checked)) => filters.push(checked),
                Ok(Checked::Terminal(checked)) => terminal = Some(checked),
                Err(e) => errors.extend(e.into_iter().map(|e| e.within(&format!("filters[{i}]")))),
            }
        }
        if !errors.is_empty() {
            return Err(errors);
        }
        Ok(Self {
            name: message.name.as_str().into(),
            metadata: message.metadata.as_ref().map(|m| Arc::new(Metadata::from_proto(m))),
            transport_socket,
            transport_socket_connect_timeout: message
                .transport_socket_connect_timeout
                .as_ref()
                .map(duration)
                .filter(|d| !d.is_zero()),
            filters,
            terminal,
        })
    }

    fn instantiate(&self, worker: &Rc<Worker>) -> FilterChain {
        FilterChain {
            name: self.name.clone(),
            metadata: self.metadata.clone(),
            transport_socket: self.transport_socket.as_ref().map(|s| s.on_worker(&worker.context)),
            transport_socket_connect_timeout: self.transport_socket_connect_timeout,
            filters: self.filters.iter().map(|f| f.on_worker(&worker.context)).collect(),
            terminal: self.terminal.as_ref().map(|t| t.instantiate(worker)),
        }
    }
}

// === impl FilterChain ===

impl FilterChain {
    /// The terminal filter may have the connection as it is.
    pub fn is_plain(&self) -> bool {
        self.transport_socket.is_none() && self.filters.is_empty()
    }
}

/// `Ok(None)`: clear text, asked for by name. Bytes that should be encrypted must never leave in clear text because
/// nobody knew how.
fn transport_socket(
    socket: &TransportSocket,
    server_names: &[String],
    extensions: &NetworkExtensions,
    context: &FactoryContext<'_>,
) -> Result<Option<Arc<dyn DownstreamTransportSocketConfig>>, Vec<ConfigError>> {
    let none = Any::default();
    let any = match &socket.config_type {
        Some(transport_socket::ConfigType::TypedConfig(any)) => any,
        None => &none,
    };
    let opened = nuncio_api::any::open(any).map_err(|e| vec![e.within("typed_config")])?;
    if opened.type_name == "envoy.extensions.transport_sockets.raw_buffer.v3.RawBuffer" {
        return Ok(None);
    }
    let Some(factory) = extensions.transport_sockets.iter().find(|f| f.message() == opened.type_name) else {
        return Err(vec![match opened.type_name.starts_with("envoy.extensions.transport_sockets.") {
            true => ConfigError::new("typed_config", format!("transport socket '{}' is not implemented", socket.name)),
            false => unregistered(&socket.name, &opened.type_name),
        }]);
    };
    let checked = factory.check(&opened.bytes, server_names, context);
    checked.map(Some).map_err(|e| e.into_iter().map(|e| e.within("typed_config")).collect())
}

pub(super) fn unregistered(name: &str, type_url: &str) -> ConfigError {
    ConfigError::new("", format!("Didn't find a registered implementation for '{name}' with type URL: '{type_url}'"))
}

/// A filter of either kind.
enum Checked {
    Filter(Arc<dyn NetworkFilterConfig>),
    Terminal(Arc<dyn TerminalFilterConfig>),
}

fn check_filter(
    message: &pb::Filter,
    last: bool,
    listener: &Arc<ListenerInfo>,
    extensions: &NetworkExtensions,
    context: &FactoryContext<'_>,
) -> Result<Checked, Vec<ConfigError>> {
    let none = Any::default();
    let config = match &message.config_type {
        Some(pb::filter::ConfigType::TypedConfig(any)) => any,
        Some(pb::filter::ConfigType::ConfigDiscovery(_)) => {
            return Err(vec![ConfigError::new("config_discovery", "is not implemented")]);
        }
        None => &none,
    };
    let opened = nuncio_api::any::open(config).map_err(|e| vec![e.within("typed_config")])?;
    let (checked, kind, terminal) = if let Some(factory) = extensions.terminal(&opened.type_name) {
        (factory.check(&opened.bytes, listener, context).map(Checked::Terminal), factory.name(), true)
    } else if let Some(factory) = extensions.filter(&opened.type_name) {
        (factory.check(&opened.bytes, context).map(Checked::Filter), factory.name(), false)
    } else {
        return Err(vec![unregistered(&message.name, &opened.type_name)]);
    };
    let misplaced = match (terminal, last) {
        (true, false) => Some(format!(
            "Error: terminal filter named {} of type {kind} must be the last filter in a network filter chain.",
            message.name
        )),
        (false, true) => Some(format!(
            "Error: non-terminal filter named {} of type {kind} is the last filter in a network filter chain.",
            message.name
        )),
        _ => None,
    };
    let mut errors: Vec<_> = misplaced.map(|reason| ConfigError::new("", reason)).into_iter().collect();
    match checked {
        Ok(checked) if errors.is_empty() => Ok(checked),
        Ok(_) => Err(errors),
        Err(e) => {
            errors.extend(e.into_iter().map(|e| e.within("typed_config")));
            Err(errors)
        }
    }
}
