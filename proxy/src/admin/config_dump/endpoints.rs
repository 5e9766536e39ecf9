//! The hosts of a cluster as a `ClusterLoadAssignment`: what discovery and health checks made of it, not what was
//! configured.

use nuncio_api::dump::json_value;
use nuncio_api::pb::envoy::config::core::v3::Metadata;
use nuncio_api::prost::Message;
use nuncio_core::upstream::host::Health;
use nuncio_core::upstream::{HealthFlag, Host, HostSet};
use serde_json::{Map, Value, json};

use super::super::clusters::locality_json;
use super::super::listeners::address_json;
use crate::upstream::ClusterSnapshot;

/// The name that discovery knows the endpoints by.
pub(super) fn name(cluster: &ClusterSnapshot) -> &str {
    let info = &cluster.config.info;
    info.eds_service_name.as_deref().unwrap_or(&info.name)
}

/// With its `@type`, in the order of the message's fields.
pub(super) fn assignment(cluster: &ClusterSnapshot) -> Value {
    let priorities = cluster.hosts.priorities.iter().enumerate();
    let endpoints: Vec<Value> = priorities.flat_map(|(priority, set)| localities(priority, set)).collect();
    let mut json = json!({
        "@type": "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
        "cluster_name": name(cluster),
    });
    if !endpoints.is_empty() {
        json["endpoints"] = endpoints.into();
    }
    let factor =
        cluster.hosts.priorities.first().map_or(HostSet::DEFAULT_OVERPROVISIONING, |p| p.overprovisioning_factor);
    json["policy"] = json!({"overprovisioning_factor": factor});
    json
}

fn localities(priority: usize, set: &HostSet) -> Vec<Value> {
    let locality = |at: &nuncio_core::upstream::host_set::LocalityHosts| {
        let first = at.hosts.first().map_or_else(|| json!({}), |host| locality_json(host));
        let hosts: Vec<Value> = at.hosts.iter().map(|host| endpoint(host)).collect();
        let mut json = json!({"locality": first, "lb_endpoints": hosts, "load_balancing_weight": at.weight});
        if priority > 0 {
            json["priority"] = priority.into();
        }
        json
    };
    set.localities.iter().map(locality).collect()
}

fn endpoint(host: &Host) -> Value {
    let spec = host.spec();
    let mut check = Map::new();
    if let Some(address) = &spec.health_check_address {
        check.insert("address".into(), address_json(address));
    }
    if !spec.health_check_hostname.is_empty() {
        check.insert("hostname".into(), spec.health_check_hostname.as_ref().into());
    }
    let mut endpoint = json!({"address": address_json(&host.current_address()), "health_check_config": check});
    if !host.hostname().is_empty() {
        endpoint["hostname"] = host.hostname().into();
    }
    // Draining hosts take no new requests, and Envoy calls them unhealthy here.
    let status = match host.health() {
        _ if host.flags().contains(HealthFlag::EdsStatusDraining) => "UNHEALTHY",
        Health::Healthy => "HEALTHY",
        Health::Degraded => "DEGRADED",
        Health::Unhealthy => "UNHEALTHY",
    };
    let mut json = json!({"endpoint": endpoint, "health_status": status});
    let metadata = host.metadata();
    if !metadata.is_empty() {
        let filter_metadata = metadata.0.clone().into_iter().collect();
        let message = Metadata { filter_metadata, ..Metadata::default() };
        json["metadata"] = json_value("envoy.config.core.v3.Metadata", &message.encode_to_vec());
    }
    json["load_balancing_weight"] = host.weight().into();
    json
}
