//! What STRICT_DNS and LOGICAL_DNS have in common: their settings, in the fields of the cluster or in the `DnsCluster`
//! message that replaces these, and targets that are names.

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use nuncio_api::any::unpack;
use nuncio_api::pb::envoy::config::cluster::v3::{Cluster, cluster::ClusterDiscoveryType};
use nuncio_api::pb::envoy::config::core::v3 as pb;
use nuncio_api::pb::envoy::extensions::clusters::dns::v3::DnsCluster;
use nuncio_api::support::Entry;
use nuncio_api::supports;
use nuncio_core::error::ConfigError;
use nuncio_core::net::Address;
use nuncio_core::upstream::HostSpec;

use super::logical_dns::LogicalDns;
use super::strict_dns::StrictDns;
use crate::assignment::Reader;
use crate::dns::ResolverConfig;
use crate::dns::family::LookupFamily;
use crate::dns::refresh::Refresh;
use crate::{Assignment, HostSource, HostSourceFactory};

supports!(CLUSTER = "envoy.config.cluster.v3.Cluster" {
    dns_refresh_rate, dns_failure_refresh_rate, respect_dns_ttl, dns_jitter, dns_lookup_family, dns_resolvers,
    use_tcp_for_dns_lookups, dns_resolution_config, typed_dns_resolver_config
});
supports!(DNS_CLUSTER = "envoy.extensions.clusters.dns.v3.DnsCluster" {
    dns_refresh_rate, dns_failure_refresh_rate, respect_dns_ttl, dns_jitter, typed_dns_resolver_config,
    dns_lookup_family, all_addresses_in_single_endpoint, dns_min_refresh_rate
});

/// What is honoured of the messages read here.
pub static SUPPORTED: &[&Entry] = &[&CLUSTER, &DNS_CLUSTER];

/// `cluster_type` with a `DnsCluster`: one or the other of the two, by a flag.
pub struct Factory;

impl HostSourceFactory for Factory {
    fn name(&self) -> &'static str {
        "envoy.cluster.dns"
    }

    fn message(&self) -> Option<&'static str> {
        Some("envoy.extensions.clusters.dns.v3.DnsCluster")
    }

    fn check(&self, cluster: &Cluster) -> Result<Box<dyn HostSource>, Vec<ConfigError>> {
        let message = dns_cluster(cluster).map_err(|e| vec![e])?.unwrap_or_default();
        if message.all_addresses_in_single_endpoint {
            Ok(Box::new(LogicalDns::check(cluster)?))
        } else {
            Ok(Box::new(StrictDns::check(cluster)?))
        }
    }
}

fn dns_cluster(cluster: &Cluster) -> Result<Option<DnsCluster>, ConfigError> {
    let Some(ClusterDiscoveryType::ClusterType(custom)) = &cluster.cluster_discovery_type else { return Ok(None) };
    let any = custom.typed_config.as_ref();
    any.map(unpack).transpose().map_err(|e| e.within("cluster_type.typed_config"))
}

/// How names are looked up, and when again.
#[derive(Debug, Clone)]
pub(super) struct Lookups {
    pub(super) refresh: Refresh,
    pub(super) family: LookupFamily,
    /// None: as the bootstrap says.
    pub(super) resolver: Option<Rc<ResolverConfig>>,
}

impl Lookups {
    pub(super) fn from_cluster(cluster: &Cluster) -> Result<Self, ConfigError> {
        if let Some(message) = dns_cluster(cluster)? {
            let within = |e: ConfigError| e.within("cluster_type.typed_config");
            let resolver = message.typed_dns_resolver_config.as_ref().map(ResolverConfig::from_typed);
            return Ok(Self {
                refresh: Refresh::from_dns_cluster(&message).map_err(within)?,
                family: LookupFamily::of_dns_cluster(message.dns_lookup_family),
                resolver: resolver.transpose().map_err(within)?,
            });
        }
        #[allow(deprecated)]
        let family = LookupFamily::of_cluster(cluster.dns_lookup_family);
        let (refresh, resolver) = (Refresh::from_cluster(cluster)?, ResolverConfig::from_cluster(cluster)?);
        Ok(Self { refresh, family, resolver })
    }
}

/// A name with a port, and what each of its addresses becomes.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) name: Arc<str>,
    pub(super) template: HostSpec,
}

/// Stands for the address that the name will have.
const UNKNOWN: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

impl Target {
    /// What the configuration says of one of the name's addresses.
    pub(super) fn host(&self, address: IpAddr) -> HostSpec {
        let place = |known: &Address| match known {
            Address::Ip(socket) if socket.ip() == UNKNOWN => Address::Ip(SocketAddr::new(address, socket.port())),
            other => other.clone(),
        };
        HostSpec {
            address: place(&self.template.address),
            health_check_address: self.template.health_check_address.as_ref().map(place),
            ..self.template.clone()
        }
    }
}

/// The targets of a cluster, and the assignment without hosts. `kind` is for errors.
pub(super) fn targets(cluster: &Cluster, kind: &str) -> Result<(Vec<Target>, Assignment), Vec<ConfigError>> {
    if cluster.eds_cluster_config.is_some() {
        let reason = "eds_cluster_config set in a non-EDS cluster";
        return Err(vec![ConfigError::new("eds_cluster_config", reason)]);
    }
    let Some(message) = &cluster.load_assignment else { return Ok(Default::default()) };
    let names = RefCell::new(Vec::new());
    let reader = Reader::new(|message: &pb::Address| {
        let (name, port) = name_and_port(message, kind)?;
        names.borrow_mut().push(name);
        Ok(Address::Ip(SocketAddr::new(UNKNOWN, port)))
    });
    let within = |errors: Vec<ConfigError>| errors.into_iter().map(|e| e.within("load_assignment")).collect::<Vec<_>>();
    let mut assignment = reader.read(message).map_err(within)?;
    let hosts = std::mem::take(&mut assignment.hosts);
    let named = |(name, mut template): (Arc<str>, HostSpec)| {
        if template.hostname.is_empty() {
            template.hostname = name.clone();
        }
        Target { name, template }
    };
    Ok((names.into_inner().into_iter().zip(hosts).map(named).collect(), assignment))
}

fn name_and_port(message: &pb::Address, kind: &str) -> Result<(Arc<str>, u16), ConfigError> {
    use pb::address::Address as Kind;
    use pb::socket_address::PortSpecifier;
    let Some(Kind::SocketAddress(socket)) = &message.address else {
        return Err(ConfigError::new(
            "",
            format!("{kind} clusters need a socket_address with a name or an IP address"),
        ));
    };
    if !socket.resolver_name.is_empty() {
        let reason = format!("{kind} clusters must NOT have a custom resolver name set");
        return Err(ConfigError::new("socket_address.resolver_name", reason));
    }
    let port = match &socket.port_specifier {
        Some(PortSpecifier::PortValue(port)) => u16::try_from(*port).ok(),
        _ => Some(0),
    };
    let port = port.ok_or_else(|| ConfigError::new("socket_address.port_value", "no such port"))?;
    Ok((socket.address.as_str().into(), port))
}
