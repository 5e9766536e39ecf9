//! The discovery types, one file each.

mod dns;
mod eds;
mod logical_dns;
mod original_dst;
mod sds_rest;
mod static_;
mod strict_dns;
#[cfg(test)]
pub(crate) mod testing;

use nuncio_api::pb::envoy::config::cluster::v3::{Cluster, cluster::ClusterDiscoveryType};
use nuncio_api::support::Entry;
use nuncio_core::error::ConfigError;

use crate::{HostSource, HostSourceFactory};

/// What is honoured of the messages that the discovery types read.
pub static SUPPORTED: &[&[&Entry]] = &[
    dns::SUPPORTED,
    eds::SUPPORTED,
    sds_rest::SUPPORTED,
    crate::xds::config_source::SUPPORTED,
    crate::dns::config::SUPPORTED,
    crate::dns::refresh::SUPPORTED,
    crate::assignment::SUPPORTED,
];

pub fn factories() -> Vec<Box<dyn HostSourceFactory>> {
    vec![
        Box::new(static_::Factory),
        Box::new(strict_dns::Factory),
        Box::new(logical_dns::Factory),
        Box::new(dns::Factory),
        Box::new(eds::Factory),
        Box::new(original_dst::Factory),
        Box::new(sds_rest::Factory),
    ]
}

/// The source that `type` or `cluster_type` asks for, checked.
pub fn source(
    factories: &[Box<dyn HostSourceFactory>],
    cluster: &Cluster,
) -> Result<Box<dyn HostSource>, Vec<ConfigError>> {
    let found = match &cluster.cluster_discovery_type {
        Some(ClusterDiscoveryType::ClusterType(custom)) => {
            let message = custom.typed_config.as_ref().map(|any| any.type_url.rsplit('/').next().unwrap_or_default());
            let by_message = factories.iter().find(|f| message.is_some_and(|message| f.message() == Some(message)));
            by_message.or_else(|| factories.iter().find(|f| f.name() == custom.name)).ok_or_else(|| {
                let reason =
                    format!("Didn't find a registered cluster factory implementation for name: '{}'", custom.name);
                ConfigError::new("cluster_type", reason)
            })
        }
        other => {
            let wanted = match other {
                Some(ClusterDiscoveryType::Type(number)) => *number,
                _ => 0,
            };
            let by_type = factories.iter().find(|f| f.discovery_type().is_some_and(|t| t as i32 == wanted));
            by_type.ok_or_else(|| ConfigError::new("type", "this discovery type is not implemented"))
        }
    };
    found.map_err(|e| vec![e])?.check(cluster)
}
