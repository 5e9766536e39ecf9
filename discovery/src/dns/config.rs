//! Which name servers are asked, and how. Envoy has five ways to say it; the later one wins: `dns_resolvers` and
//! `use_tcp_for_dns_lookups`, `dns_resolution_config`, `typed_dns_resolver_config`, each in the cluster or, for all that
//! say nothing, in the bootstrap.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use nuncio_api::any::{type_name, unpack};
use nuncio_api::pb::envoy::config::bootstrap::v3::Bootstrap;
use nuncio_api::pb::envoy::config::cluster::v3::Cluster;
use nuncio_api::pb::envoy::config::core::v3 as pb;
use nuncio_api::pb::envoy::extensions::network::dns_resolver::cares::v3::CaresDnsResolverConfig;
use nuncio_api::pb::envoy::extensions::network::dns_resolver::getaddrinfo::v3::GetAddrInfoDnsResolverConfig;
use nuncio_api::pb::envoy::extensions::network::dns_resolver::hickory::v3::HickoryDnsResolverConfig;
use nuncio_api::support::Entry;
use nuncio_api::supports;
use nuncio_core::error::ConfigError;
use nuncio_core::net::Address;
use nuncio_core::time::duration;

supports!(CARES = "envoy.extensions.network.dns_resolver.cares.v3.CaresDnsResolverConfig" {
    resolvers, use_resolvers_as_fallback, dns_resolver_options, query_timeout_seconds, query_tries,
    rotate_nameservers, edns0_max_payload_size, filter_unroutable_families
} noop {
    udp_max_queries: "every question has a socket of its own",
    max_udp_channel_duration: "every question has a socket of its own",
    reinit_channel_on_timeout: "every failure is followed by fresh sockets",
    qcache_max_ttl: "answers are not kept longer than the refresh asks for",
});
supports!(HICKORY = "envoy.extensions.network.dns_resolver.hickory.v3.HickoryDnsResolverConfig" {
    resolvers, use_system_config, query_timeout, query_tries
} noop {
    cache_size: "answers are not kept longer than the refresh asks for",
    num_resolver_threads: "resolving needs no threads",
} values {
    enable_dnssec: ["false"],
});
supports!(GETADDRINFO = "envoy.extensions.network.dns_resolver.getaddrinfo.v3.GetAddrInfoDnsResolverConfig" {
    num_retries
} noop {
    num_resolver_threads: "resolving needs no threads",
});
supports!(OPTIONS = "envoy.config.core.v3.DnsResolverOptions" { use_tcp_for_dns_lookups, no_default_search_domain });
supports!(RESOLUTION = "envoy.config.core.v3.DnsResolutionConfig" { resolvers, dns_resolver_options });

/// What is honoured of the messages read here.
pub static SUPPORTED: &[&Entry] = &[&CARES, &HICKORY, &GETADDRINFO, &OPTIONS, &RESOLUTION];

/// How names are resolved. Equal ones share their questions.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ResolverConfig {
    /// Asked in this order; none: as the system does.
    pub servers: Vec<SocketAddr>,
    /// `servers` only if the system names none.
    pub servers_as_fallback: bool,
    pub tcp: bool,
    pub no_search_domain: bool,
    pub rotate: bool,
    pub query_timeout: Duration,
    pub query_tries: u32,
    pub edns_payload: Option<u16>,
    /// Addresses of a family in which this machine has none are not looked for.
    pub only_reachable_families: bool,
}

impl Default for ResolverConfig {
    fn default() -> Self {
        Self {
            servers: Vec::new(),
            servers_as_fallback: false,
            tcp: false,
            no_search_domain: false,
            rotate: false,
            query_timeout: Duration::from_secs(5),
            query_tries: 4,
            edns_payload: None,
            only_reachable_families: false,
        }
    }
}

impl ResolverConfig {
    /// What the cluster says; none if it says nothing.
    pub fn from_cluster(cluster: &Cluster) -> Result<Option<Rc<Self>>, ConfigError> {
        if let Some(typed) = &cluster.typed_dns_resolver_config {
            return Self::from_typed(typed).map(Some);
        }
        #[allow(deprecated)]
        let (resolution, servers, tcp) =
            (&cluster.dns_resolution_config, &cluster.dns_resolvers, cluster.use_tcp_for_dns_lookups);
        if let Some(resolution) = resolution {
            return Self::from_resolution(resolution).map(Some);
        }
        if servers.is_empty() && !tcp {
            return Ok(None);
        }
        let servers = addresses("dns_resolvers", servers)?;
        Ok(Some(Rc::new(Self { servers, tcp, ..Self::default() })))
    }

    /// What the bootstrap says for all who say nothing.
    pub fn from_bootstrap(bootstrap: &Bootstrap) -> Result<Rc<Self>, ConfigError> {
        if let Some(typed) = &bootstrap.typed_dns_resolver_config {
            return Self::from_typed(typed);
        }
        #[allow(deprecated)]
        let (resolution, tcp) = (&bootstrap.dns_resolution_config, bootstrap.use_tcp_for_dns_lookups);
        match resolution {
            Some(resolution) => Self::from_resolution(resolution),
            None => Ok(Rc::new(Self { tcp, ..Self::default() })),
        }
    }

    /// `typed_dns_resolver_config`, wherever it stands.
    pub fn from_typed(typed: &pb::TypedExtensionConfig) -> Result<Rc<Self>, ConfigError> {
        read_typed(typed).map(Rc::new).map_err(|e| e.within("typed_dns_resolver_config"))
    }

    fn from_resolution(message: &pb::DnsResolutionConfig) -> Result<Rc<Self>, ConfigError> {
        let servers = addresses("resolvers", &message.resolvers).map_err(|e| e.within("dns_resolution_config"))?;
        let mut config = Self { servers, ..Self::default() };
        config.set_options(message.dns_resolver_options.as_ref());
        Ok(Rc::new(config))
    }

    fn set_options(&mut self, options: Option<&pb::DnsResolverOptions>) {
        if let Some(options) = options {
            self.tcp = options.use_tcp_for_dns_lookups;
            self.no_search_domain = options.no_default_search_domain;
        }
    }
}

fn read_typed(typed: &pb::TypedExtensionConfig) -> Result<ResolverConfig, ConfigError> {
    let Some(any) = &typed.typed_config else {
        return Err(ConfigError::new("typed_config", "a resolver's configuration must be given"));
    };
    let within = |e: ConfigError| e.within("typed_config");
    match type_name(&any.type_url) {
        "envoy.extensions.network.dns_resolver.cares.v3.CaresDnsResolverConfig" => cares(&unpack(any)?).map_err(within),
        "envoy.extensions.network.dns_resolver.hickory.v3.HickoryDnsResolverConfig" => {
            hickory(&unpack(any)?).map_err(within)
        }
        "envoy.extensions.network.dns_resolver.getaddrinfo.v3.GetAddrInfoDnsResolverConfig" => {
            let message: GetAddrInfoDnsResolverConfig = unpack(any)?;
            let retries = message.num_retries.map_or(0, |n| n.value);
            Ok(ResolverConfig { query_tries: retries.saturating_add(1).min(MOST_TRIES), ..ResolverConfig::default() })
        }
        _ => {
            let (name, url) = (&typed.name, &any.type_url);
            let reason = format!("Didn't find a registered implementation for '{name}' with type URL: '{url}'");
            Err(ConfigError::new("typed_config", reason))
        }
    }
}

/// A number of tries beyond this is taken for this.
const MOST_TRIES: u32 = 100;

fn cares(message: &CaresDnsResolverConfig) -> Result<ResolverConfig, ConfigError> {
    let default = ResolverConfig::default();
    let mut config = ResolverConfig {
        servers: addresses("resolvers", &message.resolvers)?,
        servers_as_fallback: message.use_resolvers_as_fallback,
        rotate: message.rotate_nameservers,
        query_timeout: message.query_timeout_seconds.map_or(default.query_timeout, |s| Duration::from_secs(s.value)),
        query_tries: message.query_tries.map_or(default.query_tries, |n| n.value.min(MOST_TRIES)),
        edns_payload: message.edns0_max_payload_size.and_then(|n| u16::try_from(n.value).ok()),
        only_reachable_families: message.filter_unroutable_families,
        ..default
    };
    config.set_options(message.dns_resolver_options.as_ref());
    Ok(config)
}

fn hickory(message: &HickoryDnsResolverConfig) -> Result<ResolverConfig, ConfigError> {
    let default = ResolverConfig::default();
    let servers = addresses("resolvers", &message.resolvers)?;
    // Unless told so, the system's servers are asked only where none are named.
    let servers_as_fallback = message.use_system_config.is_some_and(|system| system.value);
    Ok(ResolverConfig {
        servers,
        servers_as_fallback,
        query_timeout: message.query_timeout.as_ref().map_or(default.query_timeout, duration),
        query_tries: message.query_tries.map_or(default.query_tries, |n| n.value.min(MOST_TRIES)),
        ..default
    })
}

fn addresses(field: &str, list: &[pb::Address]) -> Result<Vec<SocketAddr>, ConfigError> {
    let read = |(i, message): (usize, &pb::Address)| {
        let at = || format!("{field}[{i}]");
        match Address::from_proto(message).map_err(|e| e.within(&at()))? {
            // A name server without a port is at the port of name servers.
            Address::Ip(socket) if socket.port() == 0 => Ok(SocketAddr::new(socket.ip(), 53)),
            Address::Ip(socket) => Ok(socket),
            _ => Err(ConfigError::new(at(), "DNS resolvers must have an IP address")),
        }
    };
    list.iter().enumerate().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nuncio_api::any::pack;
    use nuncio_api::pb::google::protobuf::{UInt32Value, UInt64Value};

    fn server(port: u32) -> pb::Address {
        let socket = pb::SocketAddress {
            address: "127.0.0.1".into(),
            port_specifier: Some(pb::socket_address::PortSpecifier::PortValue(port)),
            ..Default::default()
        };
        pb::Address { address: Some(pb::address::Address::SocketAddress(socket)) }
    }

    fn typed(any: nuncio_api::pb::google::protobuf::Any) -> Option<pb::TypedExtensionConfig> {
        Some(pb::TypedExtensionConfig { name: "x".into(), typed_config: Some(any) })
    }

    #[test]
    fn the_typed_form_wins_over_the_deprecated_ones() {
        let cares = CaresDnsResolverConfig {
            resolvers: vec![server(5353), server(0)],
            dns_resolver_options: Some(pb::DnsResolverOptions {
                use_tcp_for_dns_lookups: true,
                no_default_search_domain: true,
            }),
            query_timeout_seconds: Some(UInt64Value { value: 2 }),
            query_tries: Some(UInt32Value { value: 3 }),
            ..Default::default()
        };
        #[allow(deprecated)]
        let cluster = Cluster {
            typed_dns_resolver_config: typed(pack(&cares)),
            dns_resolvers: vec![server(1)],
            ..Default::default()
        };
        let read = ResolverConfig::from_cluster(&cluster).unwrap().unwrap();
        assert_eq!(read.servers, ["127.0.0.1:5353".parse().unwrap(), "127.0.0.1:53".parse().unwrap()]);
        assert!(read.tcp && read.no_search_domain);
        assert_eq!((read.query_timeout, read.query_tries), (Duration::from_secs(2), 3));
    }

    #[test]
    fn the_deprecated_forms_still_count() {
        #[allow(deprecated)]
        let cluster = Cluster { dns_resolvers: vec![server(9)], use_tcp_for_dns_lookups: true, ..Default::default() };
        let read = ResolverConfig::from_cluster(&cluster).unwrap().unwrap();
        assert_eq!((read.servers[0].port(), read.tcp), (9, true));
        let resolution = pb::DnsResolutionConfig { resolvers: vec![server(7)], dns_resolver_options: None };
        #[allow(deprecated)]
        let cluster = Cluster { dns_resolution_config: Some(resolution), ..cluster };
        assert_eq!(ResolverConfig::from_cluster(&cluster).unwrap().unwrap().servers[0].port(), 7);
        assert_eq!(ResolverConfig::from_cluster(&Cluster::default()).unwrap(), None);
    }

    #[test]
    fn what_is_no_resolver_is_refused_with_its_place() {
        let any = pack(&pb::DnsResolverOptions::default());
        let cluster = Cluster { typed_dns_resolver_config: typed(any), ..Default::default() };
        let error = ResolverConfig::from_cluster(&cluster).unwrap_err().to_string();
        assert!(error.starts_with("typed_dns_resolver_config.typed_config: Didn't find a registered"), "{error}");
        let pipe = pb::Address { address: Some(pb::address::Address::Pipe(pb::Pipe { path: "/x".into(), mode: 0 })) };
        let cares = CaresDnsResolverConfig { resolvers: vec![pipe], ..Default::default() };
        let cluster = Cluster { typed_dns_resolver_config: typed(pack(&cares)), ..Default::default() };
        assert_eq!(
            ResolverConfig::from_cluster(&cluster).unwrap_err().to_string(),
            "typed_dns_resolver_config.typed_config.resolvers[0]: DNS resolvers must have an IP address"
        );
    }
}
