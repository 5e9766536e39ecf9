//! `load_balancing_policy`: the first extension of the list that is known.

use std::sync::Arc;

use nuncio_api::any::type_name;
use nuncio_api::pb::envoy::config::cluster::v3 as pb;
use nuncio_api::pb::envoy::extensions::load_balancing_policies::common::v3::{
    ConsistentHashingLbConfig, LocalityLbConfig, locality_lb_config::LocalityConfigSpecifier,
    locality_lb_config::zone_aware_lb_config::LocalityBasis,
};
use nuncio_api::pb::envoy::extensions::load_balancing_policies::{
    least_request::v3::{LeastRequest, least_request::SelectionMethod},
    maglev::v3 as maglev_pb,
    random::v3::Random,
    ring_hash::v3::{self as ring_pb, ring_hash::HashFunction},
    round_robin::v3::RoundRobin,
    subset::v3::Subset,
    wrr_locality::v3::WrrLocality,
};
use nuncio_api::pb::google::protobuf::Any;
use nuncio_api::support::Entry;
use nuncio_api::{supports, unpack};
use nuncio_core::error::ConfigError;

use super::{Hashing, LbConfig, LbPolicy, Maglev, OwnHash, RingHash, ZoneConfig, rounded_percent, slow_start, subset};
use crate::upstream::hash_policy::HashPolicy;

supports!(POLICIES = "envoy.config.cluster.v3.LoadBalancingPolicy" { policies });
supports!(POLICY = "envoy.config.cluster.v3.LoadBalancingPolicy.Policy" { typed_extension_config });
supports!(ROUND_ROBIN = "envoy.extensions.load_balancing_policies.round_robin.v3.RoundRobin" {
    slow_start_config, locality_lb_config
});
supports!(RANDOM = "envoy.extensions.load_balancing_policies.random.v3.Random" { locality_lb_config });
supports!(LEAST_REQUEST = "envoy.extensions.load_balancing_policies.least_request.v3.LeastRequest" {
    choice_count, active_request_bias, slow_start_config, locality_lb_config, enable_full_scan, selection_method
});
supports!(RING_HASH = "envoy.extensions.load_balancing_policies.ring_hash.v3.RingHash" {
    hash_function, minimum_ring_size, maximum_ring_size, use_hostname_for_hashing, hash_balance_factor,
    consistent_hashing_lb_config, locality_weighted_lb_config
});
supports!(MAGLEV = "envoy.extensions.load_balancing_policies.maglev.v3.Maglev" {
    table_size, consistent_hashing_lb_config, locality_weighted_lb_config
});
supports!(WRR_LOCALITY = "envoy.extensions.load_balancing_policies.wrr_locality.v3.WrrLocality" {
    endpoint_picking_policy
});
supports!(LOCALITY = "envoy.extensions.load_balancing_policies.common.v3.LocalityLbConfig" {
    zone_aware_lb_config, locality_weighted_lb_config
});
supports!(ZONE_AWARE = "envoy.extensions.load_balancing_policies.common.v3.LocalityLbConfig.ZoneAwareLbConfig" {
    fail_traffic_on_panic, routing_enabled, min_cluster_size, force_local_zone, force_locality_direct_routing,
    locality_basis
});
supports!(FORCE_ZONE =
    "envoy.extensions.load_balancing_policies.common.v3.LocalityLbConfig.ZoneAwareLbConfig.ForceLocalZone" { min_size });
supports!(LOCALITY_WEIGHTED =
    "envoy.extensions.load_balancing_policies.common.v3.LocalityLbConfig.LocalityWeightedLbConfig" {});
supports!(SLOW_START = "envoy.extensions.load_balancing_policies.common.v3.SlowStartConfig" {
    slow_start_window, aggression, min_weight_percent
});
supports!(HASHING = "envoy.extensions.load_balancing_policies.common.v3.ConsistentHashingLbConfig" {
    use_hostname_for_hashing, hash_balance_factor, hash_policy
});

/// What is honoured of the messages read here.
pub static SUPPORTED: &[&Entry] = &[
    &POLICIES,
    &POLICY,
    &ROUND_ROBIN,
    &RANDOM,
    &LEAST_REQUEST,
    &RING_HASH,
    &MAGLEV,
    &WRR_LOCALITY,
    &LOCALITY,
    &ZONE_AWARE,
    &FORCE_ZONE,
    &LOCALITY_WEIGHTED,
    &SLOW_START,
    &HASHING,
];

/// `defaults` has what the cluster itself says.
pub(super) fn from_list(
    cluster: &str,
    list: &pb::LoadBalancingPolicy,
    defaults: &LbConfig,
) -> Result<LbConfig, ConfigError> {
    let extensions = list.policies.iter().filter_map(|policy| policy.typed_extension_config.as_ref());
    for (at, any) in extensions.clone().enumerate().filter_map(|(at, e)| Some((at, e.typed_config.as_ref()?))) {
        if let Some(read) = from_any(cluster, any, defaults) {
            return read.map_err(|e| e.within(&format!("policies[{at}].typed_extension_config.typed_config")));
        }
    }
    let names: Vec<&str> = extensions.map(|extension| extension.name.as_str()).collect();
    let reason = format!(
        "cluster: didn't find a registered load balancer factory implementation for cluster: '{cluster}' \
         with names from [{}]",
        names.join(", ")
    );
    Err(ConfigError::new("", reason))
}

fn from_any(cluster: &str, any: &Any, defaults: &LbConfig) -> Option<Result<LbConfig, ConfigError>> {
    let name = type_name(&any.type_url).strip_prefix("envoy.extensions.load_balancing_policies.")?;
    Some(match name {
        "round_robin.v3.RoundRobin" => read(any, |message: RoundRobin| {
            let slow_start = slow_start(message.slow_start_config.as_ref());
            let config = LbConfig { policy: LbPolicy::RoundRobin, slow_start, ..defaults.clone() };
            Ok(with_locality(config, message.locality_lb_config.as_ref()))
        }),
        "random.v3.Random" => read(any, |message: Random| {
            let config = LbConfig { policy: LbPolicy::Random, ..defaults.clone() };
            Ok(with_locality(config, message.locality_lb_config.as_ref()))
        }),
        "least_request.v3.LeastRequest" => read(any, |message| least_request(&message, defaults)),
        "ring_hash.v3.RingHash" => read(any, |message| ring_hash(&message, defaults)),
        "maglev.v3.Maglev" => read(any, |message: maglev_pb::Maglev| {
            let hashing = hashing(message.consistent_hashing_lb_config.as_ref());
            let policy = Maglev::policy(message.table_size.map(|v| v.value), hashing)?;
            let locality_weighted = message.locality_weighted_lb_config.is_some();
            let hash_policy = own_hash(message.consistent_hashing_lb_config.as_ref())?;
            Ok(LbConfig { policy, locality_weighted, hash_policy, ..defaults.clone() })
        }),
        "subset.v3.Subset" => read(any, |message: Subset| {
            let subsets = subset::from_proto(&message)?;
            let Some(inner) = &message.subset_lb_policy else {
                return Err(ConfigError::new("subset_lb_policy", "value is required"));
            };
            let config = from_list(cluster, inner, defaults).map_err(|e| e.within("subset_lb_policy"))?;
            Ok(LbConfig { subsets: (!subsets.selectors.is_empty()).then_some(subsets), ..config })
        }),
        "wrr_locality.v3.WrrLocality" => read(any, |message: WrrLocality| {
            let Some(inner) = &message.endpoint_picking_policy else {
                return Err(ConfigError::new("endpoint_picking_policy", "value is required"));
            };
            let config = from_list(cluster, inner, defaults).map_err(|e| e.within("endpoint_picking_policy"))?;
            Ok(LbConfig { locality_weighted: true, ..config })
        }),
        _ => return None,
    })
}

fn read<M: nuncio_api::prost::Name + Default>(
    any: &Any,
    config: impl FnOnce(M) -> Result<LbConfig, ConfigError>,
) -> Result<LbConfig, ConfigError> {
    config(unpack(any)?)
}

#[allow(deprecated)]
fn least_request(message: &LeastRequest, defaults: &LbConfig) -> Result<LbConfig, ConfigError> {
    let full_scan = message.selection_method() == SelectionMethod::FullScan
        || message.enable_full_scan.is_some_and(|enabled| enabled.value);
    let policy = LbPolicy::LeastRequest {
        choices: message.choice_count.map_or(2, |count| count.value),
        bias: message.active_request_bias.as_ref().map_or(1.0, |bias| bias.default_value),
        full_scan,
    };
    let slow_start = slow_start(message.slow_start_config.as_ref());
    let config = LbConfig { policy, slow_start, ..defaults.clone() };
    Ok(with_locality(config, message.locality_lb_config.as_ref()))
}

#[allow(deprecated)]
fn ring_hash(message: &ring_pb::RingHash, defaults: &LbConfig) -> Result<LbConfig, ConfigError> {
    let hashing = match &message.consistent_hashing_lb_config {
        Some(config) => hashing(Some(config)),
        None => Hashing {
            use_hostname: message.use_hostname_for_hashing,
            balance_factor: message.hash_balance_factor.map_or(0, |v| v.value),
        },
    };
    let murmur = message.hash_function() == HashFunction::MurmurHash2;
    let (min, max) = (message.minimum_ring_size, message.maximum_ring_size);
    let policy = RingHash::policy(min.map(|v| v.value), max.map(|v| v.value), murmur, hashing)?;
    let locality_weighted = message.locality_weighted_lb_config.is_some();
    let hash_policy = own_hash(message.consistent_hashing_lb_config.as_ref())?;
    Ok(LbConfig { policy, locality_weighted, hash_policy, ..defaults.clone() })
}

fn own_hash(message: Option<&ConsistentHashingLbConfig>) -> Result<Option<OwnHash>, ConfigError> {
    let Some(rules) = message.map(|message| &message.hash_policy).filter(|rules| !rules.is_empty()) else {
        return Ok(None);
    };
    let read = HashPolicy::from_proto(rules).map_err(|e| e.within("consistent_hashing_lb_config.hash_policy"))?;
    Ok(Some(OwnHash(Arc::new(read))))
}

fn hashing(message: Option<&ConsistentHashingLbConfig>) -> Hashing {
    message.map_or_else(Hashing::default, |config| Hashing {
        use_hostname: config.use_hostname_for_hashing,
        balance_factor: config.hash_balance_factor.map_or(0, |v| v.value),
    })
}

fn with_locality(mut config: LbConfig, message: Option<&LocalityLbConfig>) -> LbConfig {
    match message.and_then(|message| message.locality_config_specifier.as_ref()) {
        Some(LocalityConfigSpecifier::LocalityWeightedLbConfig(_)) => config.locality_weighted = true,
        Some(LocalityConfigSpecifier::ZoneAwareLbConfig(zone)) => {
            config.fail_on_panic = zone.fail_traffic_on_panic;
            #[allow(deprecated)]
            let forced = zone.force_locality_direct_routing.then_some(1);
            let least = zone.force_local_zone.as_ref().map(|force| force.min_size.map_or(1, |size| size.value));
            config.zone = ZoneConfig {
                routing_enabled: rounded_percent(zone.routing_enabled.as_ref().map(|percent| percent.value)),
                min_cluster_size: zone.min_cluster_size.map_or(6, |size| size.value),
                force_local_zone: least.or(forced),
                by_weight: zone.locality_basis() == LocalityBasis::HealthyHostsWeight,
                local: None,
            };
        }
        None => {}
    }
    config
}

#[cfg(test)]
mod tests {
    use nuncio_api::pack;
    use nuncio_api::pb::envoy::config::core::v3::TypedExtensionConfig;
    use nuncio_api::pb::envoy::extensions::load_balancing_policies::subset::v3::subset::LbSubsetSelector;
    use nuncio_api::pb::google::protobuf::{UInt32Value, UInt64Value};

    use super::*;

    fn list(any: Any) -> pb::LoadBalancingPolicy {
        let typed = TypedExtensionConfig { name: "x".into(), typed_config: Some(any) };
        let policy = pb::load_balancing_policy::Policy { typed_extension_config: Some(typed) };
        pb::LoadBalancingPolicy { policies: vec![policy] }
    }

    fn read_one(any: Any) -> Result<LbConfig, ConfigError> {
        from_list("c", &list(any), &LbConfig { panic_threshold: 7, ..LbConfig::default() })
    }

    #[test]
    fn policies_that_hash_have_their_own_settings() {
        let hashing = ConsistentHashingLbConfig {
            use_hostname_for_hashing: true,
            hash_balance_factor: Some(UInt32Value { value: 150 }),
            ..Default::default()
        };
        let maglev = maglev_pb::Maglev {
            table_size: Some(UInt64Value { value: 101 }),
            consistent_hashing_lb_config: Some(hashing),
            ..Default::default()
        };
        let config = read_one(pack(&maglev)).unwrap();
        let wanted = Maglev { table_size: 101, hashing: Hashing { use_hostname: true, balance_factor: 150 } };
        assert_eq!((config.policy, config.panic_threshold), (LbPolicy::Maglev(wanted), 7));
        let small = ring_pb::RingHash { minimum_ring_size: Some(UInt64Value { value: 16 }), ..Default::default() };
        assert!(matches!(read_one(pack(&small)).unwrap().policy, LbPolicy::RingHash(ring) if ring.min_size == 16));
        let wrong = maglev_pb::Maglev { table_size: Some(UInt64Value { value: 100 }), ..Default::default() };
        let error = read_one(pack(&wrong)).unwrap_err();
        assert!(error.path.starts_with("policies[0].typed_extension_config.typed_config"), "{}", error.path);
    }

    #[test]
    fn policies_can_stand_inside_of_others() {
        let random = list(pack(&Random::default()));
        let localities = WrrLocality { endpoint_picking_policy: Some(random.clone()) };
        let config = read_one(pack(&localities)).unwrap();
        assert_eq!((config.policy, config.locality_weighted), (LbPolicy::Random, true));
        let selector = LbSubsetSelector { keys: vec!["v".into()], ..Default::default() };
        let subset = Subset {
            subset_selectors: vec![selector],
            subset_lb_policy: Some(list(pack(&localities))),
            ..Default::default()
        };
        let config = read_one(pack(&subset)).unwrap();
        assert_eq!((config.policy, config.subsets.map(|s| s.selectors.len())), (LbPolicy::Random, Some(1)));
        assert_eq!(read_one(pack(&Subset::default())).unwrap_err().reason, "value is required");
    }
}
