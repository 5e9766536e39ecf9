//! What a `config.listener.v3.Listener` means, checked once on main and shared by all workers.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use nuncio_api::pb::envoy::config::core::v3 as core;
use nuncio_api::pb::envoy::config::listener::v3 as pb;
use nuncio_api::support::Entry;
use nuncio_api::supports;
use nuncio_core::access_log::AccessLogConfig;
use nuncio_core::error::ConfigError;
use nuncio_core::extension::FactoryContext;
use nuncio_core::metadata::Metadata;
use nuncio_core::net::Address;
use nuncio_core::stats::{ScopeId, lists};
use nuncio_core::time::duration;

use super::filter_chain::{FilterChainConfig, FilterChains};
use super::filters::{self, ListenerFilterEntry};
use crate::access_log;
use crate::net::{BindOptions, options};
use crate::network::{ListenerInfo, NetworkExtensions, TrafficDirection};

supports!(LISTENER = "envoy.config.listener.v3.Listener" {
    name, address, additional_addresses, stat_prefix, filter_chains, default_filter_chain,
    per_connection_buffer_limit_bytes, metadata, drain_type, transparent, freebind, socket_options,
    tcp_fast_open_queue_length, traffic_direction, enable_reuse_port, tcp_backlog_size,
    max_connections_to_accept_per_socket_event, bind_to_port, tcp_keepalive, access_log, listener_filters,
    listener_filters_timeout, continue_on_listener_filters_timeout, use_original_dst, ignore_global_conn_limit
} noop {
    bypass_overload_manager: "there is no overload manager",
    reuse_port: "superseded by enable_reuse_port",
    connection_balance_config: "the kernel spreads connections over the workers",
    enable_mptcp: "plain TCP is spoken, as with any peer that has no MPTCP"
});
supports!(ADDITIONAL = "envoy.config.listener.v3.AdditionalAddress" { address, socket_options });
supports!(OVERRIDE = "envoy.config.core.v3.SocketOptionsOverride" { socket_options });
supports!(ADDRESS = "envoy.config.core.v3.Address" { socket_address, pipe });
supports!(SOCKET_ADDRESS = "envoy.config.core.v3.SocketAddress" {
    address, port_value, ipv4_compat
} noop {
    resolver_name: "an IP address needs no resolver"
} values {
    protocol: ["TCP"]
});
supports!(PIPE = "envoy.config.core.v3.Pipe" { path, mode });
supports!(SOCKET_OPTION = "envoy.config.core.v3.SocketOption" {
    level, name, int_value, buf_value, state, r#type
} noop { description: "for people" });
supports!(SOCKET_TYPE = "envoy.config.core.v3.SocketOption.SocketType" { stream, datagram });
supports!(STREAM_TYPE = "envoy.config.core.v3.SocketOption.SocketType.Stream" {});
supports!(DATAGRAM_TYPE = "envoy.config.core.v3.SocketOption.SocketType.Datagram" {});
supports!(KEEPALIVE = "envoy.config.core.v3.TcpKeepalive" {
    keepalive_probes, keepalive_time, keepalive_interval
});
supports!(METADATA = "envoy.config.core.v3.Metadata" { filter_metadata });
supports!(FILTER_CHAIN = "envoy.config.listener.v3.FilterChain" {
    name, filters, transport_socket, transport_socket_connect_timeout, filter_chain_match, metadata
});
supports!(FILTER = "envoy.config.listener.v3.Filter" { name, typed_config });
supports!(CHAIN_MATCH = "envoy.config.listener.v3.FilterChainMatch" {
    destination_port, prefix_ranges, server_names, transport_protocol, application_protocols,
    direct_source_prefix_ranges, source_type, source_prefix_ranges, source_ports
});
supports!(LISTENER_FILTER = "envoy.config.listener.v3.ListenerFilter" { name, typed_config, filter_disabled });
supports!(PREDICATE = "envoy.config.listener.v3.ListenerFilterChainMatchPredicate" {
    or_match, and_match, not_match, any_match, destination_port_range
});
supports!(PREDICATES = "envoy.config.listener.v3.ListenerFilterChainMatchPredicate.MatchSet" { rules });
supports!(PORT_RANGE = "envoy.type.v3.Int32Range" { start, end });
supports!(TRANSPORT_SOCKET = "envoy.config.core.v3.TransportSocket" { name, typed_config });
supports!(RAW_BUFFER = "envoy.extensions.transport_sockets.raw_buffer.v3.RawBuffer" {});

/// What is honoured of the messages read here, in `filter_chain` and in `net`.
pub static SUPPORTED: &[&Entry] = &[
    &LISTENER,
    &ADDITIONAL,
    &OVERRIDE,
    &ADDRESS,
    &SOCKET_ADDRESS,
    &PIPE,
    &SOCKET_OPTION,
    &SOCKET_TYPE,
    &STREAM_TYPE,
    &DATAGRAM_TYPE,
    &KEEPALIVE,
    &METADATA,
    &FILTER_CHAIN,
    &FILTER,
    &CHAIN_MATCH,
    &LISTENER_FILTER,
    &PREDICATE,
    &PREDICATES,
    &PORT_RANGE,
    &TRANSPORT_SOCKET,
    &RAW_BUFFER,
];

/// Envoy's default of `per_connection_buffer_limit_bytes`.
const BUFFER_LIMIT: u32 = 1024 * 1024;

/// Envoy's default of `listener_filters_timeout`.
const LISTENER_FILTERS_TIMEOUT: Duration = Duration::from_secs(15);

/// A checked listener.
pub struct ListenerConfig {
    pub info: Arc<ListenerInfo>,
    /// The first is the listener's own, the others are `additional_addresses`.
    pub addresses: Vec<(Address, BindOptions)>,
    /// `false`: no socket; connections come from a listener that looked at their original destination.
    pub bind_to_port: bool,
    /// Connections whose destination was restored go to the listener of that address, if there is one.
    pub use_original_dst: bool,
    pub listener_filters: Vec<ListenerFilterEntry>,
    pub listener_filters_timeout: Option<Duration>,
    pub continue_on_listener_filters_timeout: bool,
    pub chains: FilterChains<FilterChainConfig>,
    /// `drain_type: DEFAULT`: a failed health check asks connections to go as well.
    pub drain_with_health: bool,
    /// `max_connections_to_accept_per_socket_event`; Envoy takes all that wait.
    pub accepts_per_event: u32,
    /// Told of every connection when it ends.
    pub logs: Vec<Arc<dyn AccessLogConfig>>,
    /// What all workers have accepted and not closed.
    pub open: AtomicU64,
    /// The runtime key that bounds it.
    pub connection_limit_key: String,
    pub ignore_global_conn_limit: bool,
    pub scope: ScopeId,
    /// One for each worker.
    pub worker_scopes: Vec<ScopeId>,
}

/// What the whole server says about sockets.
#[derive(Debug, Clone, Copy)]
pub struct SocketPolicy {
    pub workers: usize,
    /// Join a predecessor's sockets.
    pub share: bool,
}

impl ListenerConfig {
    /// All that is wrong with it, with paths relative to the listener.
    pub fn check(
        message: &pb::Listener,
        name: &str,
        extensions: &NetworkExtensions,
        sockets: SocketPolicy,
        context: &FactoryContext<'_>,
    ) -> Result<Self, Vec<ConfigError>> {
        let mut errors = unimplemented(message);
        let addresses = addresses(message, sockets.share).unwrap_or_else(|e| {
            errors.push(if message.address.is_none() { homeless(&message.name) } else { e });
            Vec::new()
        });
        let shown = addresses.first().map_or(String::new(), |(a, _)| a.to_string());
        if message.filter_chains.is_empty() && message.default_filter_chain.is_none() && !is_internal(message) {
            errors.push(ConfigError::new(
                "filter_chains",
                format!("error adding listener '{shown}': no filter chains specified"),
            ));
        }
        let stat_name: Arc<str> =
            if message.stat_prefix.is_empty() { shown.as_str().into() } else { message.stat_prefix.as_str().into() };
        let info = Arc::new(ListenerInfo {
            name: name.to_owned(),
            stat_name: stat_name.clone(),
            buffer_limit: message.per_connection_buffer_limit_bytes.as_ref().map_or(BUFFER_LIMIT, |v| v.value),
            direction: match message.traffic_direction() {
                core::TrafficDirection::Unspecified => TrafficDirection::Unspecified,
                core::TrafficDirection::Inbound => TrafficDirection::Inbound,
                core::TrafficDirection::Outbound => TrafficDirection::Outbound,
            },
            metadata: message.metadata.as_ref().map(Metadata::from_proto).unwrap_or_default(),
        });
        let chains = FilterChains::check(message, &shown, &info, extensions, context).unwrap_or_else(|e| {
            errors.extend(e);
            FilterChains::default()
        });
        let listener_filters = filters::check(message, extensions, context).unwrap_or_else(|e| {
            errors.extend(e);
            Vec::new()
        });
        let logs = access_log::check("access_log", &message.access_log, context).unwrap_or_else(|e| {
            errors.extend(e);
            Vec::new()
        });
        if !errors.is_empty() {
            return Err(errors);
        }
        let scope = context.scope(&lists::listener::SCOPE, &stat_name);
        let worker =
            |n: usize| context.scope(&lists::listener::WORKER_SCOPE, &format!("{stat_name}.worker_{n}").into());
        Ok(Self {
            info,
            addresses,
            bind_to_port: message.bind_to_port.as_ref().is_none_or(|v| v.value),
            use_original_dst: message.use_original_dst.as_ref().is_some_and(|v| v.value),
            listener_filters,
            listener_filters_timeout: match message.listener_filters_timeout.as_ref().map(duration) {
                None => Some(LISTENER_FILTERS_TIMEOUT),
                Some(Duration::ZERO) => None,
                set => set,
            },
            continue_on_listener_filters_timeout: message.continue_on_listener_filters_timeout,
            chains,
            drain_with_health: message.drain_type() == pb::listener::DrainType::Default,
            accepts_per_event: message
                .max_connections_to_accept_per_socket_event
                .as_ref()
                .map_or(u32::MAX, |v| v.value.max(1)),
            logs,
            open: AtomicU64::new(0),
            connection_limit_key: format!("envoy.resource_limits.listener.{name}.connection_limit"),
            ignore_global_conn_limit: message.ignore_global_conn_limit,
            scope,
            worker_scopes: (0..sockets.workers).map(worker).collect(),
        })
    }

    pub fn name(&self) -> &str {
        &self.info.name
    }
}

/// What must never be served as if it were not set: it decides who may connect, or to what.
fn unimplemented(message: &pb::Listener) -> Vec<ConfigError> {
    let mut errors = Vec::new();
    let mut refuse = |set: bool, path: &str| {
        if set {
            errors.push(ConfigError::new(path, "is not implemented"));
        }
    };
    refuse(message.filter_chain_matcher.is_some(), "filter_chain_matcher");
    refuse(message.fcds_config.is_some(), "fcds_config");
    refuse(message.udp_listener_config.is_some(), "udp_listener_config");
    refuse(message.api_listener.is_some(), "api_listener");
    refuse(is_internal(message), "internal_listener");
    errors
}

fn is_internal(message: &pb::Listener) -> bool {
    matches!(message.listener_specifier, Some(pb::listener::ListenerSpecifier::InternalListener(_)))
}

fn homeless(name: &str) -> ConfigError {
    ConfigError::new("address", format!("error adding listener named '{name}': address is necessary"))
}

fn addresses(message: &pb::Listener, share: bool) -> Result<Vec<(Address, BindOptions)>, ConfigError> {
    let Some(own) = message.address.clone() else { return Err(ConfigError::new("address", "address is necessary")) };
    let mut all = vec![(
        options::address(&own).map_err(|e| e.within("address"))?,
        bind_options(message, &own, &message.socket_options, share),
    )];
    for (i, more) in message.additional_addresses.iter().enumerate() {
        let address = more.address.clone().unwrap_or_default();
        // Its own socket options take the place of the listener's.
        let set = more.socket_options.as_ref().map_or(&message.socket_options, |o| &o.socket_options);
        let bind = bind_options(message, &address, set, share);
        let path = format!("additional_addresses[{i}].address");
        all.push((options::address(&address).map_err(|e| e.within(&path))?, bind));
    }
    if let Some(core::socket_address::Protocol::Udp) = socket_address(&own).map(|s| s.protocol()) {
        return Err(ConfigError::new("address.socket_address.protocol", "UDP listeners are not implemented"));
    }
    Ok(all)
}

fn socket_address(address: &core::Address) -> Option<&core::SocketAddress> {
    match &address.address {
        Some(core::address::Address::SocketAddress(socket)) => Some(socket),
        _ => None,
    }
}

fn bind_options(
    message: &pb::Listener,
    address: &core::Address,
    set: &[core::SocketOption],
    share: bool,
) -> BindOptions {
    let mode = match &address.address {
        Some(core::address::Address::Pipe(pipe)) => pipe.mode,
        _ => 0,
    };
    BindOptions {
        reuse_port: message.enable_reuse_port.as_ref().is_none_or(|v| v.value),
        share,
        freebind: message.freebind.as_ref().is_some_and(|v| v.value),
        transparent: message.transparent.as_ref().is_some_and(|v| v.value),
        ipv4_compat: socket_address(address).is_some_and(|s| s.ipv4_compat),
        backlog: message.tcp_backlog_size.as_ref().map(|v| v.value),
        fast_open_queue: message.tcp_fast_open_queue_length.as_ref().map(|v| v.value),
        keepalive: message.tcp_keepalive.as_ref().map(options::keepalive),
        socket_options: options::socket_options(set),
        pipe_mode: mode,
    }
}
