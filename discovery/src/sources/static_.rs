//! STATIC: the hosts of the configuration itself. Addresses must not be names: nobody would resolve them.

use futures_util::future::LocalBoxFuture;
use nuncio_api::pb::envoy::config::cluster::v3::{Cluster, cluster::DiscoveryType};
use nuncio_api::pb::envoy::config::core::v3 as pb;
use nuncio_core::error::ConfigError;
use nuncio_core::net::Address;

use crate::assignment::{Assignment, Reader};
use crate::{HostSink, HostSource, HostSourceFactory, SourceContext};

pub struct Factory;

impl HostSourceFactory for Factory {
    fn name(&self) -> &'static str {
        "envoy.cluster.static"
    }

    fn discovery_type(&self) -> Option<DiscoveryType> {
        Some(DiscoveryType::Static)
    }

    fn check(&self, cluster: &Cluster) -> Result<Box<dyn HostSource>, Vec<ConfigError>> {
        if cluster.eds_cluster_config.is_some() {
            let reason = "eds_cluster_config set in a non-EDS cluster";
            return Err(vec![ConfigError::new("eds_cluster_config", reason)]);
        }
        let assignment = match &cluster.load_assignment {
            Some(message) => Reader::new(address)
                .read(message)
                .map_err(|errors| errors.into_iter().map(|e| e.within("load_assignment")).collect::<Vec<_>>())?,
            None => Assignment::default(),
        };
        Ok(Box::new(Static(assignment)))
    }
}

struct Static(Assignment);

impl HostSource for Static {
    fn run(self: Box<Self>, _: SourceContext, sink: HostSink) -> LocalBoxFuture<'static, ()> {
        Box::pin(async move { sink.replace(self.0) })
    }
}

/// A host's address, refused in Envoy's words.
fn address(message: &pb::Address) -> Result<Address, ConfigError> {
    use pb::address::Address as Kind;
    let hint = "Consider setting resolver_name or setting cluster type to 'STRICT_DNS' or 'LOGICAL_DNS'";
    if let Some(Kind::SocketAddress(socket)) = &message.address
        && !matches!(socket.resolver_name.as_str(), "" | "envoy.ip")
    {
        let reason = format!("Unknown address resolver: {}. {hint}", socket.resolver_name);
        return Err(ConfigError::new("socket_address.resolver_name", reason));
    }
    Address::from_proto(message).map_err(|mut error| {
        if !error.path.starts_with("pipe") {
            error.reason = format!("{}. {hint}", error.reason);
        }
        error
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dns::scripted::Scripted;
    use crate::sources::testing::{Heard, context};
    use std::rc::Rc;

    fn cluster(address: pb::address::Address) -> Cluster {
        use nuncio_api::pb::envoy::config::endpoint::v3 as ep;
        let endpoint = ep::Endpoint { address: Some(pb::Address { address: Some(address) }), ..Default::default() };
        let lb = ep::LbEndpoint {
            host_identifier: Some(ep::lb_endpoint::HostIdentifier::Endpoint(endpoint)),
            ..Default::default()
        };
        let group = ep::LocalityLbEndpoints { lb_endpoints: vec![lb], ..Default::default() };
        let assignment = ep::ClusterLoadAssignment { endpoints: vec![group], ..Default::default() };
        Cluster { load_assignment: Some(assignment), ..Default::default() }
    }

    fn socket(address: &str, resolver: &str) -> pb::address::Address {
        pb::address::Address::SocketAddress(pb::SocketAddress {
            address: address.into(),
            resolver_name: resolver.into(),
            port_specifier: Some(pb::socket_address::PortSpecifier::PortValue(80)),
            ..Default::default()
        })
    }

    fn refusal(cluster: &Cluster) -> String {
        match Factory.check(cluster) {
            Ok(_) => panic!("accepted"),
            Err(errors) => errors[0].to_string(),
        }
    }

    #[test]
    fn names_are_refused_in_envoys_words() {
        let at = "load_assignment.endpoints[0].lb_endpoints[0].endpoint.address.socket_address";
        let hint = "Consider setting resolver_name or setting cluster type to 'STRICT_DNS' or 'LOGICAL_DNS'";
        assert_eq!(
            refusal(&cluster(socket("localhost", ""))),
            format!("{at}.address: malformed IP address: localhost. {hint}")
        );
        assert_eq!(
            refusal(&cluster(socket("127.0.0.1", "x"))),
            format!("{at}.resolver_name: Unknown address resolver: x. {hint}")
        );
    }

    #[test]
    fn says_its_hosts_once_and_ends() {
        let heard = Rc::new(Heard::default());
        let source = Factory.check(&cluster(socket("::1", ""))).unwrap_or_else(|e| panic!("{e:?}"));
        let run = source.run(context(&Scripted::default()), HostSink::new(heard.clone()));
        assert!(futures_util::FutureExt::now_or_never(run).is_some());
        assert_eq!((heard.spoken(), heard.last()), (1, vec![" [::1]:80".to_owned()]));
    }

    #[test]
    fn an_absent_assignment_is_an_empty_one() {
        assert!(Factory.check(&Cluster::default()).is_ok());
        let eds = Cluster { eds_cluster_config: Some(Default::default()), ..Default::default() };
        assert_eq!(refusal(&eds), "eds_cluster_config: eds_cluster_config set in a non-EDS cluster");
    }
}
