//! `ClusterLoadAssignment` to host specs: the form in which configuration and EDS alike list hosts.

use std::sync::Arc;

use nuncio_api::pb::envoy::config::core::v3 as core_pb;
use nuncio_api::pb::envoy::config::endpoint::v3 as pb;
use nuncio_api::pb::google::protobuf::value::Kind;
use nuncio_api::support::Entry;
use nuncio_api::supports;
use nuncio_core::error::ConfigError;
use nuncio_core::metadata::Metadata;
use nuncio_core::net::Address;
use nuncio_core::runtime::FractionalPercent;
use nuncio_core::upstream::{HealthFlag, HealthFlags, HostSet, HostSpec, Locality};

supports!(ASSIGNMENT = "envoy.config.endpoint.v3.ClusterLoadAssignment" {
    cluster_name, endpoints, policy
});
supports!(POLICY = "envoy.config.endpoint.v3.ClusterLoadAssignment.Policy" {
    overprovisioning_factor, drop_overloads, weighted_priority_health
});
supports!(DROP = "envoy.config.endpoint.v3.ClusterLoadAssignment.Policy.DropOverload" { category, drop_percentage });
supports!(LOCALITY_ENDPOINTS = "envoy.config.endpoint.v3.LocalityLbEndpoints" {
    locality, lb_endpoints, load_balancing_weight, priority
});
supports!(LB_ENDPOINT = "envoy.config.endpoint.v3.LbEndpoint" {
    endpoint, health_status, metadata, load_balancing_weight
});
supports!(ENDPOINT = "envoy.config.endpoint.v3.Endpoint" { address, health_check_config, hostname });
supports!(CHECKS = "envoy.config.endpoint.v3.Endpoint.HealthCheckConfig" {
    port_value, hostname, address, disable_active_health_check
});
supports!(METADATA = "envoy.config.core.v3.Metadata" { filter_metadata });

/// What is honoured of the messages read here.
pub static SUPPORTED: &[&Entry] =
    &[&ASSIGNMENT, &POLICY, &DROP, &LOCALITY_ENDPOINTS, &LB_ENDPOINT, &ENDPOINT, &CHECKS, &METADATA];

/// All hosts of a cluster, every priority and locality, and how to spread over them.
#[derive(Debug, Clone, PartialEq)]
pub struct Assignment {
    pub hosts: Vec<HostSpec>,
    /// Localities with a weight of their own.
    pub locality_weights: Vec<LocalityWeight>,
    pub overprovisioning_factor: u32,
    /// So many of a million requests are to be turned away.
    pub drop_overload: u32,
    /// Weights, not numbers, of hosts say how well a priority is.
    pub weighted_health: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalityWeight {
    pub priority: u32,
    pub locality: Arc<Locality>,
    pub weight: u32,
}

impl Default for Assignment {
    fn default() -> Self {
        let overprovisioning_factor = HostSet::DEFAULT_OVERPROVISIONING;
        Self {
            hosts: Vec::new(),
            locality_weights: Vec::new(),
            overprovisioning_factor,
            drop_overload: 0,
            weighted_health: false,
        }
    }
}

impl From<Vec<HostSpec>> for Assignment {
    fn from(hosts: Vec<HostSpec>) -> Self {
        Self { hosts, ..Self::default() }
    }
}

/// After so many mistakes nobody wants to hear of more.
const MOST_ERRORS: usize = 100;

/// Reads a message; how an address is understood depends on the discovery type.
pub struct Reader<F> {
    address: F,
    errors: Vec<ConfigError>,
}

impl<F: Fn(&core_pb::Address) -> Result<Address, ConfigError>> Reader<F> {
    pub fn new(address: F) -> Self {
        Self { address, errors: Vec::new() }
    }

    /// The whole message, or everything that is wrong with it.
    pub fn read(mut self, message: &pb::ClusterLoadAssignment) -> Result<Assignment, Vec<ConfigError>> {
        let mut assignment = Assignment::default();
        let factor = message.policy.as_ref().and_then(|policy| policy.overprovisioning_factor.as_ref());
        assignment.overprovisioning_factor = factor.map_or(HostSet::DEFAULT_OVERPROVISIONING, |factor| factor.value);
        assignment.weighted_health = message.policy.as_ref().is_some_and(|policy| policy.weighted_priority_health);
        match drop_overload(message) {
            Ok(part) => assignment.drop_overload = part,
            Err(error) => self.errors.push(error),
        }
        for (at, group) in message.endpoints.iter().enumerate() {
            let locality = read_locality(group.locality.as_ref());
            if let Some(weight) = &group.load_balancing_weight {
                let (priority, locality, weight) = (group.priority, locality.clone(), weight.value);
                assignment.locality_weights.push(LocalityWeight { priority, locality, weight });
            }
            for (i, endpoint) in group.lb_endpoints.iter().enumerate() {
                match self.host(endpoint, &locality, group.priority) {
                    Ok(host) => assignment.hosts.push(host),
                    Err(e) => self.errors.push(e.within(&format!("endpoints[{at}].lb_endpoints[{i}]"))),
                }
                if self.errors.len() >= MOST_ERRORS {
                    return Err(self.errors);
                }
            }
        }
        if self.errors.is_empty() { Ok(assignment) } else { Err(self.errors) }
    }

    fn host(&self, message: &pb::LbEndpoint, locality: &Arc<Locality>, priority: u32) -> Result<HostSpec, ConfigError> {
        let Some(pb::lb_endpoint::HostIdentifier::Endpoint(endpoint)) = &message.host_identifier else {
            return Err((self.address)(&core_pb::Address::default())
                .err()
                .unwrap_or_else(|| ConfigError::new("host_identifier", "Address must be set")));
        };
        let address = endpoint.address.as_ref().map_or_else(Default::default, Clone::clone);
        let address = (self.address)(&address).map_err(|e| e.within("endpoint.address"))?;
        let mut host = HostSpec::new(address);
        host.hostname = shared(&endpoint.hostname);
        host.locality = locality.clone();
        host.priority = priority;
        host.weight = message.load_balancing_weight.as_ref().map_or(1, |weight| weight.value);
        host.eds_health = health(message.health_status);
        if let Some(metadata) = &message.metadata {
            let metadata = Metadata::from_proto(metadata);
            host.canary = is_canary(&metadata);
            host.metadata = Arc::new(metadata);
        }
        if let Some(config) = &endpoint.health_check_config {
            let read = read_checks(config, &mut host);
            read.map_err(|e| e.within("endpoint.health_check_config"))?;
        }
        Ok(host)
    }
}

/// Where and how active checks ask, if otherwise than requests.
fn read_checks(message: &pb::endpoint::HealthCheckConfig, host: &mut HostSpec) -> Result<(), ConfigError> {
    host.disable_active_health_check = message.disable_active_health_check;
    host.health_check_hostname = shared(&message.hostname);
    // Envoy adds no hint here about what to do with a name.
    let address = message.address.as_ref().map(Address::from_proto).transpose().map_err(|e| e.within("address"))?;
    let own = address.is_some();
    let mut address = address.unwrap_or_else(|| host.address.clone());
    if let Ok(port) = u16::try_from(message.port_value)
        && port != 0
    {
        let Address::Ip(socket) = &mut address else {
            let reason = "Invalid host configuration: non-zero port for non-IP address";
            return Err(ConfigError::new("port_value", reason));
        };
        socket.set_port(port);
    }
    host.health_check_address = (own || address != host.address).then_some(address);
    Ok(())
}

/// Of a million.
fn drop_overload(message: &pb::ClusterLoadAssignment) -> Result<u32, ConfigError> {
    const MILLION: u64 = 1_000_000;
    let drops = message.policy.as_ref().map_or(&[][..], |policy| &policy.drop_overloads);
    let drop = match drops {
        [] => return Ok(0),
        [drop] => drop,
        more => {
            let reason = format!("Cluster drop_overloads config has {} categories. Only one is supported.", more.len());
            return Err(ConfigError::new("policy.drop_overloads", reason));
        }
    };
    let Some(share) = drop.drop_percentage.as_ref().map(FractionalPercent::from_proto) else { return Ok(0) };
    let part = u64::from(share.numerator) * MILLION / u64::from(share.denominator);
    Ok(u32::try_from(part.min(MILLION)).unwrap_or(u32::MAX))
}

pub fn read_locality(message: Option<&core_pb::Locality>) -> Arc<Locality> {
    match message {
        Some(m) if !(m.region.is_empty() && m.zone.is_empty() && m.sub_zone.is_empty()) => {
            let [region, zone, sub_zone] = [&m.region, &m.zone, &m.sub_zone].map(|part| shared(part));
            Arc::new(Locality { region, zone, sub_zone })
        }
        _ => Locality::none(),
    }
}

/// What discovery says of health, as flags.
pub fn health(status: i32) -> HealthFlags {
    use core_pb::HealthStatus;
    let flag = match HealthStatus::try_from(status) {
        Ok(HealthStatus::Unhealthy | HealthStatus::Timeout) => HealthFlag::FailedEdsHealth,
        Ok(HealthStatus::Draining) => HealthFlag::EdsStatusDraining,
        Ok(HealthStatus::Degraded) => HealthFlag::DegradedEdsHealth,
        Ok(HealthStatus::Unknown | HealthStatus::Healthy) | Err(_) => return HealthFlags::default(),
    };
    HealthFlags::default().with(flag)
}

fn is_canary(metadata: &Metadata) -> bool {
    let value = metadata.get("envoy.lb", &["canary"]);
    matches!(value.and_then(|value| value.kind.as_ref()), Some(Kind::BoolValue(true)))
}

/// Empty texts share one allocation.
fn shared(text: &str) -> Arc<str> {
    if text.is_empty() { Arc::default() } else { text.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nuncio_api::pb::google::protobuf::UInt32Value;

    fn endpoint(address: core_pb::address::Address) -> pb::Endpoint {
        let address = core_pb::Address { address: Some(address) };
        pb::Endpoint { address: Some(address), ..Default::default() }
    }

    fn ip(port: u32) -> core_pb::address::Address {
        core_pb::address::Address::SocketAddress(core_pb::SocketAddress {
            address: "127.0.0.1".into(),
            port_specifier: Some(core_pb::socket_address::PortSpecifier::PortValue(port)),
            ..Default::default()
        })
    }

    fn read(groups: Vec<pb::LocalityLbEndpoints>) -> Result<Assignment, Vec<ConfigError>> {
        let message = pb::ClusterLoadAssignment { endpoints: groups, ..Default::default() };
        Reader::new(Address::from_proto).read(&message)
    }

    fn group(endpoints: Vec<pb::Endpoint>) -> pb::LocalityLbEndpoints {
        let lb = |endpoint| pb::LbEndpoint {
            host_identifier: Some(pb::lb_endpoint::HostIdentifier::Endpoint(endpoint)),
            ..Default::default()
        };
        pb::LocalityLbEndpoints { lb_endpoints: endpoints.into_iter().map(lb).collect(), ..Default::default() }
    }

    #[test]
    fn reads_place_weight_health_and_names() {
        let mut first = group(vec![pb::Endpoint { hostname: "named".into(), ..endpoint(ip(1)) }]);
        first.locality = Some(core_pb::Locality { region: "r1".into(), zone: "z1".into(), sub_zone: "s1".into() });
        first.priority = 1;
        first.load_balancing_weight = Some(UInt32Value { value: 7 });
        first.lb_endpoints[0].load_balancing_weight = Some(UInt32Value { value: 3 });
        first.lb_endpoints[0].health_status = core_pb::HealthStatus::Draining.into();
        let read = read(vec![first, group(vec![endpoint(ip(2))])]).unwrap();
        let host = &read.hosts[0];
        assert_eq!((host.priority, host.weight, &*host.hostname, &*host.locality.sub_zone), (1, 3, "named", "s1"));
        assert_eq!(host.eds_health.to_string(), "/eds_status_draining");
        assert_eq!(read.hosts[1], HostSpec::new(Address::Ip(([127, 0, 0, 1], 2).into())));
        assert_eq!(read.locality_weights.len(), 1);
        assert_eq!((read.locality_weights[0].priority, read.locality_weights[0].weight), (1, 7));
    }

    #[test]
    fn checks_may_go_elsewhere() {
        let checked =
            |config| read(vec![group(vec![pb::Endpoint { health_check_config: Some(config), ..endpoint(ip(1)) }])]);
        let port = pb::endpoint::HealthCheckConfig { port_value: 9, ..Default::default() };
        let there = checked(port).unwrap().hosts[0].health_check_address.clone();
        assert_eq!(there.unwrap().to_string(), "127.0.0.1:9");
        let same = pb::endpoint::HealthCheckConfig { port_value: 1, ..Default::default() };
        assert_eq!(checked(same).unwrap().hosts[0].health_check_address, None);
    }

    #[test]
    fn all_errors_are_told_at_once_each_with_its_place() {
        let pipe = core_pb::Pipe { path: "/tmp/x".into(), mode: 0 };
        let config = pb::endpoint::HealthCheckConfig { port_value: 4, ..Default::default() };
        let pipe = endpoint(core_pb::address::Address::Pipe(pipe));
        let bad = pb::Endpoint { health_check_config: Some(config), ..pipe };
        let errors = read(vec![group(vec![endpoint(ip(1)), bad]), group(vec![pb::Endpoint::default()])]).unwrap_err();
        let texts: Vec<_> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "endpoints[0].lb_endpoints[1].endpoint.health_check_config.port_value: \
                 Invalid host configuration: non-zero port for non-IP address",
                "endpoints[1].lb_endpoints[0].endpoint.address: Address must be set",
            ]
        );
    }

    #[test]
    fn the_canary_mark_is_metadata() {
        use nuncio_api::pb::google::protobuf::{Struct, Value};
        let mut canary = group(vec![endpoint(ip(1))]);
        let fields = [("canary".to_owned(), Value { kind: Some(Kind::BoolValue(true)) })].into();
        let filter_metadata = [("envoy.lb".to_owned(), Struct { fields })].into();
        canary.lb_endpoints[0].metadata = Some(core_pb::Metadata { filter_metadata, ..Default::default() });
        assert!(read(vec![canary]).unwrap().hosts[0].canary);
    }
}
