//! `lb_policy`, `load_balancing_policy`, `lb_subset_config` and `common_lb_config`: how a cluster balances, checked.
//!
//! The old fields and the new extensions say the same things; both end in one [`LbConfig`].

mod subset;
mod typed;

use std::sync::Arc;
use std::time::Duration;

use nuncio_api::pb::envoy::config::cluster::v3 as pb;
use nuncio_api::pb::envoy::extensions::load_balancing_policies::common::v3 as common_pb;
use nuncio_api::prost::Message;
use nuncio_api::support::Entry;
use nuncio_api::supports;
use nuncio_core::error::ConfigError;
use nuncio_core::time::duration;
use nuncio_core::upstream::Locality;

use super::hash_policy::HashPolicy;
use super::original_dst::OriginalDstConfig;
pub use subset::{Fallback, Selector, SubsetConfig};

supports!(RING_HASH_LB = "envoy.config.cluster.v3.Cluster.RingHashLbConfig" {
    minimum_ring_size, maximum_ring_size, hash_function
});
supports!(MAGLEV_LB = "envoy.config.cluster.v3.Cluster.MaglevLbConfig" { table_size });
supports!(SLOW_START = "envoy.config.cluster.v3.Cluster.SlowStartConfig" {
    slow_start_window, aggression, min_weight_percent
});
supports!(HASHING = "envoy.config.cluster.v3.Cluster.CommonLbConfig.ConsistentHashingLbConfig" {
    use_hostname_for_hashing, hash_balance_factor
});
supports!(LOCALITY_WEIGHTED = "envoy.config.cluster.v3.Cluster.CommonLbConfig.LocalityWeightedLbConfig" {});
supports!(ZONE_AWARE = "envoy.config.cluster.v3.Cluster.CommonLbConfig.ZoneAwareLbConfig" {
    fail_traffic_on_panic, routing_enabled, min_cluster_size
});
supports!(RUNTIME_DOUBLE = "envoy.config.core.v3.RuntimeDouble" {
    default_value
} noop {
    runtime_key: "there are no runtime layers, so the default holds",
});

/// What is honoured of the messages read here.
pub static SUPPORTED: &[&Entry] =
    &[&RING_HASH_LB, &MAGLEV_LB, &SLOW_START, &HASHING, &LOCALITY_WEIGHTED, &ZONE_AWARE, &RUNTIME_DOUBLE];
/// The same of the extensions.
pub static SUPPORTED_POLICIES: &[&[&Entry]] = &[typed::SUPPORTED, subset::SUPPORTED];

/// How a cluster balances.
#[derive(Debug, Clone, PartialEq)]
pub struct LbConfig {
    pub policy: LbPolicy,
    /// `healthy_panic_threshold` in whole percent.
    pub panic_threshold: u32,
    /// In panic nobody gets traffic, rather than everybody.
    pub fail_on_panic: bool,
    /// Localities share traffic by their weights.
    pub locality_weighted: bool,
    pub slow_start: Option<Arc<SlowStart>>,
    pub subsets: Option<Arc<SubsetConfig>>,
    /// Of ORIGINAL_DST clusters.
    pub original_dst: Option<Arc<OriginalDstConfig>>,
    pub zone: ZoneConfig,
    /// Instead of the route's.
    pub hash_policy: Option<OwnHash>,
}

/// Whether traffic stays in the zone of this proxy.
#[derive(Debug, Clone, PartialEq)]
pub struct ZoneConfig {
    /// Of what part of the requests, in percent.
    pub routing_enabled: u32,
    /// Clusters with fewer healthy hosts are not divided.
    pub min_cluster_size: u64,
    /// With so many healthy hosts the own zone takes everything.
    pub force_local_zone: Option<u32>,
    /// Zones are as large as the weights of their hosts.
    pub by_weight: bool,
    /// None: the proxy belongs to no cluster, and zones do not count.
    pub local: Option<Arc<Local>>,
}

/// Where this proxy is.
#[derive(Debug, PartialEq, Eq)]
pub struct Local {
    /// Its hosts are this proxy and its like.
    pub cluster: Arc<str>,
    pub locality: Locality,
}

impl Default for ZoneConfig {
    fn default() -> Self {
        Self { routing_enabled: 100, min_cluster_size: 6, force_local_zone: None, by_weight: false, local: None }
    }
}

/// A hash policy of a balancing policy; equal if it is the same.
#[derive(Debug, Clone)]
pub struct OwnHash(pub Arc<HashPolicy>);

impl PartialEq for OwnHash {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LbPolicy {
    RoundRobin,
    Random,
    LeastRequest {
        choices: u32,
        bias: f64,
        full_scan: bool,
    },
    RingHash(RingHash),
    Maglev(Maglev),
    /// `CLUSTER_PROVIDED`, by the one type of cluster that provides a policy.
    OriginalDst,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingHash {
    pub min_size: u64,
    pub max_size: u64,
    /// MURMUR_HASH_2 instead of XX_HASH.
    pub murmur: bool,
    pub hashing: Hashing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Maglev {
    pub table_size: u32,
    pub hashing: Hashing,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Hashing {
    pub use_hostname: bool,
    /// No host gets more than so many percent of an equal share; 0 is without bound.
    pub balance_factor: u32,
}

/// New hosts get less at first.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SlowStart {
    pub window: Duration,
    pub aggression: f64,
    /// Of 1.
    pub min_weight: f64,
}

impl Default for LbConfig {
    fn default() -> Self {
        Self {
            policy: LbPolicy::RoundRobin,
            panic_threshold: 50,
            fail_on_panic: false,
            locality_weighted: false,
            slow_start: None,
            subsets: None,
            original_dst: None,
            zone: ZoneConfig::default(),
            hash_policy: None,
        }
    }
}

pub(super) fn from_cluster(message: &pb::Cluster) -> Result<LbConfig, ConfigError> {
    use pb::cluster::common_lb_config::LocalityConfigSpecifier as Locality;
    let common = message.common_lb_config.as_ref();
    let threshold = common.and_then(|common| common.healthy_panic_threshold.as_ref());
    let locality = common.and_then(|common| common.locality_config_specifier.as_ref());
    let defaults = LbConfig {
        // A fraction of a percent is cut off, as Envoy does.
        panic_threshold: threshold.map_or(50, |percent| percent.value.clamp(0.0, 100.0) as u32),
        fail_on_panic: matches!(locality, Some(Locality::ZoneAwareLbConfig(zone)) if zone.fail_traffic_on_panic),
        locality_weighted: matches!(locality, Some(Locality::LocalityWeightedLbConfig(_))),
        zone: match locality {
            Some(Locality::ZoneAwareLbConfig(zone)) => ZoneConfig {
                routing_enabled: rounded_percent(zone.routing_enabled.as_ref().map(|percent| percent.value)),
                min_cluster_size: zone.min_cluster_size.map_or(6, |size| size.value),
                ..ZoneConfig::default()
            },
            _ => ZoneConfig::default(),
        },
        ..LbConfig::default()
    };
    if let Some(list) = &message.load_balancing_policy {
        if message.lb_subset_config.is_some() {
            let reason = "cluster: load_balancing_policy cannot be combined with lb_subset_config";
            return Err(ConfigError::new("load_balancing_policy", reason));
        }
        return typed::from_list(&message.name, list, &defaults).map_err(|e| e.within("load_balancing_policy"));
    }
    let mut config = from_enum(message, defaults)?;
    if let Some(subsets) = message.lb_subset_config.as_ref().filter(|subsets| !subsets.subset_selectors.is_empty()) {
        config.subsets = subset::from_cluster(subsets).map(Some).map_err(|e| e.within("lb_subset_config"))?;
    }
    Ok(config)
}

fn is_original_dst(message: &pb::Cluster) -> bool {
    use pb::cluster::{ClusterDiscoveryType, DiscoveryType};
    message.cluster_discovery_type == Some(ClusterDiscoveryType::Type(DiscoveryType::OriginalDst.into()))
}

fn from_enum(message: &pb::Cluster, mut config: LbConfig) -> Result<LbConfig, ConfigError> {
    use pb::cluster::LbConfig as Detail;
    use pb::cluster::LbPolicy as Enum;
    let detail = message.lb_config.as_ref();
    config.policy = match pb::cluster::LbPolicy::try_from(message.lb_policy).unwrap_or_default() {
        Enum::RoundRobin => {
            if let Some(Detail::RoundRobinLbConfig(detail)) = detail {
                config.slow_start = slow_start(detail.slow_start_config.as_ref());
            }
            LbPolicy::RoundRobin
        }
        Enum::Random => LbPolicy::Random,
        Enum::LeastRequest => {
            let detail = match detail {
                Some(Detail::LeastRequestLbConfig(detail)) => detail.clone(),
                _ => Default::default(),
            };
            config.slow_start = slow_start(detail.slow_start_config.as_ref());
            LbPolicy::LeastRequest {
                choices: detail.choice_count.map_or(2, |count| count.value),
                bias: detail.active_request_bias.map_or(1.0, |bias| bias.default_value),
                full_scan: false,
            }
        }
        Enum::RingHash => {
            let detail = match detail {
                Some(Detail::RingHashLbConfig(detail)) => *detail,
                _ => Default::default(),
            };
            let murmur = detail.hash_function() == pb::cluster::ring_hash_lb_config::HashFunction::MurmurHash2;
            let (min, max) = (detail.minimum_ring_size, detail.maximum_ring_size);
            RingHash::policy(min.map(|v| v.value), max.map(|v| v.value), murmur, hashing(message))?
        }
        Enum::Maglev => {
            let size = match detail {
                Some(Detail::MaglevLbConfig(detail)) => detail.table_size.map(|v| v.value),
                _ => None,
            };
            Maglev::policy(size, hashing(message))?
        }
        Enum::ClusterProvided if is_original_dst(message) && message.lb_subset_config.is_none() => {
            config.original_dst = Some(Arc::new(OriginalDstConfig::from_cluster(message)));
            LbPolicy::OriginalDst
        }
        Enum::ClusterProvided => {
            let reason = if message.lb_subset_config.is_some() {
                "cluster: LB policy CLUSTER_PROVIDED cannot be combined with lb_subset_config".to_owned()
            } else {
                format!(
                    "cluster manager: cluster provided LB specified but cluster '{}' did not provide one. \
                     Check cluster documentation.",
                    message.name
                )
            };
            return Err(ConfigError::new("lb_policy", reason));
        }
        Enum::LoadBalancingPolicyConfig => {
            return Err(ConfigError::new("lb_policy", "cluster: field load_balancing_policy need to be set"));
        }
    };
    Ok(config)
}

/// 100 if unset.
fn rounded_percent(percent: Option<f64>) -> u32 {
    percent.map_or(100, |percent| percent.clamp(0.0, 100.0).round() as u32)
}

fn hashing(message: &pb::Cluster) -> Hashing {
    let config = message.common_lb_config.as_ref().and_then(|common| common.consistent_hashing_lb_config.as_ref());
    config.map_or_else(Hashing::default, |config| Hashing {
        use_hostname: config.use_hostname_for_hashing,
        balance_factor: config.hash_balance_factor.map_or(0, |v| v.value),
    })
}

/// The message of the old field or of the extensions: they are the same.
fn slow_start(message: Option<&impl Message>) -> Option<Arc<SlowStart>> {
    let same = common_pb::SlowStartConfig::decode(message?.encode_to_vec().as_slice()).ok()?;
    let window = same.slow_start_window.as_ref().map(duration).filter(|window| !window.is_zero())?;
    let aggression = same.aggression.map_or(1.0, |aggression| aggression.default_value);
    Some(Arc::new(SlowStart {
        window,
        aggression: if aggression > 0.0 { aggression } else { 1.0 },
        min_weight: same.min_weight_percent.map_or(0.1, |percent| percent.value / 100.0),
    }))
}

impl RingHash {
    fn policy(min: Option<u64>, max: Option<u64>, murmur: bool, hashing: Hashing) -> Result<LbPolicy, ConfigError> {
        let (min_size, max_size) = (min.unwrap_or(1024), max.unwrap_or(8 * 1024 * 1024));
        if min_size > max_size {
            let reason = format!("ring hash: minimum_ring_size ({min_size}) > maximum_ring_size ({max_size})");
            return Err(ConfigError::new("ring_hash_lb_config", reason));
        }
        Ok(LbPolicy::RingHash(Self { min_size, max_size, murmur, hashing }))
    }
}

impl Maglev {
    fn policy(table_size: Option<u64>, hashing: Hashing) -> Result<LbPolicy, ConfigError> {
        let size = table_size.unwrap_or(65537);
        // The loader refuses what is above this bound already.
        let prime =
            (2..=5_000_011).contains(&size) && (2..).take_while(|n| n * n <= size).all(|n| !size.is_multiple_of(n));
        match u32::try_from(size) {
            Ok(table_size) if prime => Ok(LbPolicy::Maglev(Self { table_size, hashing })),
            _ => {
                let reason = "The table size of maglev must be prime number";
                Err(ConfigError::new("maglev_lb_config.table_size", reason))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nuncio_api::pb::google::protobuf::{Duration as DurationProto, UInt64Value};

    #[test]
    fn a_table_has_a_prime_number_of_places() {
        assert!(
            Maglev::policy(None, Hashing::default()).is_ok() && Maglev::policy(Some(2), Hashing::default()).is_ok()
        );
        for wrong in [0, 1, 4, 65536] {
            let error = Maglev::policy(Some(wrong), Hashing::default()).unwrap_err();
            assert_eq!(error.reason, "The table size of maglev must be prime number");
        }
    }

    #[test]
    fn a_ring_is_not_larger_than_it_may_be() {
        let ring = |min| {
            let config = pb::cluster::RingHashLbConfig {
                minimum_ring_size: Some(UInt64Value { value: min }),
                maximum_ring_size: Some(UInt64Value { value: 8 }),
                ..Default::default()
            };
            from_cluster(&pb::Cluster {
                lb_policy: pb::cluster::LbPolicy::RingHash as i32,
                lb_config: Some(pb::cluster::LbConfig::RingHashLbConfig(config)),
                ..Default::default()
            })
        };
        assert!(
            matches!(ring(8).unwrap().policy, LbPolicy::RingHash(ring) if (ring.min_size, ring.max_size) == (8, 8))
        );
        let reason = "ring hash: minimum_ring_size (9) > maximum_ring_size (8)";
        assert_eq!(ring(9).unwrap_err().reason, reason);
    }

    #[test]
    fn slow_start_is_read_from_both_messages() {
        let window = Some(DurationProto { seconds: 60, nanos: 0 });
        let old = pb::cluster::SlowStartConfig { slow_start_window: window, ..Default::default() };
        let new = common_pb::SlowStartConfig { slow_start_window: window, ..Default::default() };
        let wanted = SlowStart { window: Duration::from_secs(60), aggression: 1.0, min_weight: 0.1 };
        assert_eq!(slow_start(Some(&old)).as_deref(), Some(&wanted));
        assert_eq!(slow_start(Some(&new)).as_deref(), Some(&wanted));
        assert_eq!(slow_start(None::<&common_pb::SlowStartConfig>), None);
    }
}
