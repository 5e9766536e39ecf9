//! Which filter chain takes a connection: the `FilterChainMatch`es of a listener, compiled once on main.
//!
//! Envoy's order: destination port, destination address (longest prefix), server name (exact, then the longest wildcard,
//! then none), transport protocol, application protocols (the client's order), directly connected address, source type,
//! source address, source port. At each step the most specific entry is taken, and there is no way back from it: a
//! chain that fails further down is not replaced by one that was less specific further up.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use nuncio_api::pb::envoy::config::core::v3::CidrRange as CidrMessage;
use nuncio_api::pb::envoy::config::listener::v3::{FilterChain, FilterChainMatch, filter_chain_match};
use nuncio_core::error::ConfigError;
use nuncio_core::net::{Address, CidrRange, ConnectionInfo};
use prost::Message;

/// Says which chain, by its place in the listener's list, takes a connection.
#[derive(Debug, Default)]
pub struct ChainMatcher {
    ports: DestinationPorts,
}

/// By destination port; 0 is any.
type DestinationPorts = BTreeMap<u16, Prefixes<ServerNames>>;
/// By server name; `.example.com` is a wildcard, the empty name is any.
type ServerNames = BTreeMap<String, TransportProtocols>;
type TransportProtocols = BTreeMap<String, ApplicationProtocols>;
type ApplicationProtocols = BTreeMap<Vec<u8>, Prefixes<SourceTypes>>;
/// ANY, SAME_IP_OR_LOOPBACK, EXTERNAL.
type SourceTypes = [Prefixes<SourcePorts>; 3];
/// By source port, 0 is any; the chain's place.
type SourcePorts = BTreeMap<u16, usize>;

/// Address ranges by the length of their prefix, longest last.
#[derive(Debug)]
struct Prefixes<T> {
    v4: BTreeMap<u8, BTreeMap<IpAddr, T>>,
    v6: BTreeMap<u8, BTreeMap<IpAddr, T>>,
}

/// Where a unix socket is, for matching, as in Envoy.
const NOWHERE: IpAddr = IpAddr::V4(Ipv4Addr::BROADCAST);

const LOCAL: usize = filter_chain_match::ConnectionSourceType::SameIpOrLoopback as usize;
const EXTERNAL: usize = filter_chain_match::ConnectionSourceType::External as usize;

// === impl Prefixes ===

impl<T> Default for Prefixes<T> {
    fn default() -> Self {
        Self { v4: BTreeMap::new(), v6: BTreeMap::new() }
    }
}

impl<T: Default> Prefixes<T> {
    fn entry(&mut self, range: CidrRange) -> &mut T {
        let family = if range.address().is_ipv4() { &mut self.v4 } else { &mut self.v6 };
        family.entry(range.prefix_len()).or_default().entry(range.address()).or_default()
    }
}

impl<T> Prefixes<T> {
    /// The entry with the longest prefix of that address.
    fn find(&self, address: IpAddr) -> Option<&T> {
        let family = if address.is_ipv4() { &self.v4 } else { &self.v6 };
        family.iter().rev().find_map(|(len, entries)| entries.get(&CidrRange::new(address, *len).address()))
    }

    fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty()
    }
}

// === impl ChainMatcher ===

impl ChainMatcher {
    /// `listener` is how Envoy names it in errors: its address.
    pub fn compile(chains: &[FilterChain], listener: &str) -> Result<Self, Vec<ConfigError>> {
        let mut matcher = Self::default();
        let mut errors = Vec::new();
        for (i, chain) in chains.iter().enumerate() {
            let none = FilterChainMatch::default();
            let message = chain.filter_chain_match.as_ref().unwrap_or(&none);
            let same = |c: &&FilterChain| c.filter_chain_match.as_ref().unwrap_or(&none) == message;
            let refuse = |reason: String| {
                ConfigError::new(format!("filter_chains[{i}]"), format!("error adding listener '{listener}': {reason}"))
            };
            if let Some(first) = chains[..i].iter().find(same) {
                errors.push(refuse(format!(
                    "filter chain '{}' has the same matching rules defined as '{}'. duplicate matcher is: {}",
                    chain.name,
                    first.name,
                    nuncio_api::dump::json_value("envoy.config.listener.v3.FilterChainMatch", &message.encode_to_vec())
                )));
                continue;
            }
            if !message.address_suffix.is_empty() || message.suffix_len.is_some() {
                errors.push(refuse(format!("filter chain '{}' contains unimplemented fields", chain.name)));
                continue;
            }
            match Criteria::read(message) {
                Err(Wrong::Config(e)) => {
                    errors.push(e.within("filter_chain_match").within(&format!("filter_chains[{i}]")));
                }
                Err(Wrong::Listener(reason)) => errors.push(refuse(reason.into())),
                Ok(criteria) => {
                    if !matcher.insert(&criteria, i) {
                        errors
                            .push(refuse("multiple filter chains with overlapping matching rules are defined".into()));
                    }
                }
            }
        }
        if errors.is_empty() { Ok(matcher) } else { Err(errors) }
    }

    /// `false`: a chain has one of its places already.
    fn insert(&mut self, criteria: &Criteria, chain: usize) -> bool {
        let mut alone = true;
        let ports = self.ports.entry(criteria.destination_port).or_default();
        for destination in &criteria.destinations {
            for name in &criteria.server_names {
                let transports = ports.entry(*destination).entry(name.clone()).or_default();
                let applications = transports.entry(criteria.transport_protocol.clone()).or_default();
                for application in &criteria.application_protocols {
                    for direct in &criteria.direct_sources {
                        let types = applications.entry(application.clone()).or_default().entry(*direct);
                        for source in &criteria.sources {
                            let places = types[criteria.source_type].entry(*source);
                            for port in &criteria.source_ports {
                                alone &= places.insert(*port, chain).is_none();
                            }
                        }
                    }
                }
            }
        }
        alone
    }

    pub fn find(&self, connection: &ConnectionInfo) -> Option<usize> {
        let local = ip_of(&connection.local);
        // A port that is listed is never matched by the chains without port.
        let exact = connection.local.port().filter(|port| *port != 0).and_then(|port| self.ports.get(&port));
        let names = exact.or_else(|| self.ports.get(&0))?.find(local)?;
        let transports = by_server_name(names, connection.requested_server_name.as_deref().unwrap_or_default())?;
        let applications = exact_or_any(transports, connection.transport_protocol)?;
        let protocols = &connection.application_protocols;
        let directs = protocols.iter().find_map(|p| applications.get(p)).or_else(|| applications.get(&[][..]))?;
        let types = directs.find(ip_of(&connection.direct_remote))?;
        let own = if is_local(connection) { LOCAL } else { EXTERNAL };
        let sources = [&types[own], &types[0]].into_iter().find(|s| !s.is_empty())?;
        let ports = sources.find(ip_of(&connection.remote))?;
        let exact = connection.remote.port().filter(|port| *port != 0).and_then(|port| ports.get(&port));
        exact.or_else(|| ports.get(&0)).copied()
    }
}

fn ip_of(address: &Address) -> IpAddr {
    address.ip().unwrap_or(NOWHERE)
}

/// `SAME_IP_OR_LOOPBACK`; unix sockets are.
fn is_local(connection: &ConnectionInfo) -> bool {
    match (connection.remote.ip(), connection.local.ip()) {
        (Some(remote), local) => remote.is_loopback() || Some(remote) == local,
        (None, _) => true,
    }
}

fn exact_or_any<'a, V>(map: &'a BTreeMap<String, V>, key: &str) -> Option<&'a V> {
    map.get(key).or_else(|| map.get(""))
}

/// Exact, then `.b.c` and `.c` for `a.b.c`, then any.
fn by_server_name<'a, V>(names: &'a BTreeMap<String, V>, name: &str) -> Option<&'a V> {
    if name.is_empty() {
        return names.get("");
    }
    let suffixes = name.match_indices('.').map(|(at, _)| at).filter(|at| *at > 0 && at + 1 < name.len());
    names
        .get(name)
        .or_else(|| suffixes.map(|at| &name[at..]).find_map(|suffix| names.get(suffix)))
        .or_else(|| names.get(""))
}

/// One chain's match: each list with what "any" means in the map.
struct Criteria {
    destination_port: u16,
    destinations: Vec<CidrRange>,
    server_names: Vec<String>,
    transport_protocol: String,
    application_protocols: Vec<Vec<u8>>,
    direct_sources: Vec<CidrRange>,
    source_type: usize,
    sources: Vec<CidrRange>,
    source_ports: Vec<u16>,
}

enum Wrong {
    Config(ConfigError),
    /// In words that Envoy puts behind the listener's address.
    Listener(&'static str),
}

// === impl Criteria ===

impl Criteria {
    fn read(message: &FilterChainMatch) -> Result<Self, Wrong> {
        let ranges = |list: &[CidrMessage], path: &str| ranges(list).map_err(|e| Wrong::Config(e.within(path)));
        // The annotations of the message keep ports below 65536.
        let port = |port: u32| u16::try_from(port).unwrap_or_default();
        Ok(Self {
            destination_port: message.destination_port.as_ref().map_or(0, |p| port(p.value)),
            destinations: ranges(&message.prefix_ranges, "prefix_ranges")?,
            server_names: or_any(message.server_names.iter().map(|n| server_name(n)).collect::<Result<_, _>>()?),
            transport_protocol: message.transport_protocol.clone(),
            application_protocols: or_any(
                message.application_protocols.iter().map(|p| p.clone().into_bytes()).collect(),
            ),
            direct_sources: ranges(&message.direct_source_prefix_ranges, "direct_source_prefix_ranges")?,
            source_type: usize::try_from(message.source_type).ok().filter(|t| *t <= EXTERNAL).unwrap_or_default(),
            sources: ranges(&message.source_prefix_ranges, "source_prefix_ranges")?,
            source_ports: or_any(message.source_ports.iter().map(|p| port(*p)).collect()),
        })
    }
}

fn or_any<T: Default>(list: Vec<T>) -> Vec<T> {
    if list.is_empty() { vec![T::default()] } else { list }
}

fn ranges(list: &[CidrMessage]) -> Result<Vec<CidrRange>, ConfigError> {
    if list.is_empty() {
        return Ok(vec![CidrRange::new([0, 0, 0, 0].into(), 0), CidrRange::new([0; 16].into(), 0)]);
    }
    let one = |(i, range): (usize, &CidrMessage)| {
        let len = range.prefix_len.as_ref().map_or(0, |len| u8::try_from(len.value).unwrap_or(u8::MAX));
        let address: IpAddr = range.address_prefix.parse().map_err(|_| {
            ConfigError::new(format!("[{i}].address_prefix"), format!("malformed IP address: {}", range.address_prefix))
        })?;
        Ok(CidrRange::new(address, len))
    };
    list.iter().enumerate().map(one).collect()
}

/// As it is looked up: in lower case, without the star of a wildcard.
fn server_name(name: &str) -> Result<String, Wrong> {
    let (star, rest) = match name.strip_prefix('*') {
        Some(rest) => (true, rest),
        None => (false, name),
    };
    if (star && !rest.starts_with('.')) || (!star && name.contains('*')) {
        return Err(Wrong::Listener("partial wildcards are not supported in \"server_names\""));
    }
    Ok(rest.to_ascii_lowercase())
}

#[cfg(test)]
mod tests;
