//! `lb_subset_config` and the extension `subset`: which parts of a cluster can be asked for by metadata.

use std::sync::Arc;

use nuncio_api::pb::envoy::config::cluster::v3 as pb;
use nuncio_api::pb::envoy::extensions::load_balancing_policies::subset::v3::Subset;
use nuncio_api::pb::envoy::extensions::load_balancing_policies::subset::v3::subset::{
    LbSubsetFallbackPolicy, LbSubsetMetadataFallbackPolicy, LbSubsetSelector,
    lb_subset_selector::LbSubsetSelectorFallbackPolicy,
};
use nuncio_api::pb::google::protobuf::Struct;
use nuncio_api::prost::Message;
use nuncio_api::support::Entry;
use nuncio_api::supports;
use nuncio_core::error::ConfigError;

supports!(OLD = "envoy.config.cluster.v3.Cluster.LbSubsetConfig" {
    fallback_policy, default_subset, subset_selectors, locality_weight_aware, scale_locality_weight, panic_mode_any,
    list_as_any, metadata_fallback_policy
});
supports!(OLD_SELECTOR = "envoy.config.cluster.v3.Cluster.LbSubsetConfig.LbSubsetSelector" {
    keys, single_host_per_subset, fallback_policy, fallback_keys_subset
});
supports!(SUBSET = "envoy.extensions.load_balancing_policies.subset.v3.Subset" {
    fallback_policy, default_subset, subset_selectors, locality_weight_aware, scale_locality_weight, panic_mode_any,
    list_as_any, subset_lb_policy, metadata_fallback_policy
} values {
    allow_redundant_keys: ["false"],
});
supports!(SELECTOR = "envoy.extensions.load_balancing_policies.subset.v3.Subset.LbSubsetSelector" {
    keys, single_host_per_subset, fallback_policy, fallback_keys_subset
});

/// What is honoured of the messages read here.
pub static SUPPORTED: &[&Entry] = &[&OLD, &OLD_SELECTOR, &SUBSET, &SELECTOR];

#[derive(Debug, Clone, PartialEq)]
pub struct SubsetConfig {
    pub fallback: Fallback,
    pub default_subset: Struct,
    pub selectors: Vec<Selector>,
    /// Weights of localities count inside of subsets too, and shrink with the part of the locality that is in it.
    pub locality_weight_aware: bool,
    pub scale_locality_weight: bool,
    /// If the fallback has no host to give, any host of the cluster is taken.
    pub panic_mode_any: bool,
    /// A list in a host's metadata stands for each of its values.
    pub list_as_any: bool,
    /// What is asked for may bring a list of what to ask for instead.
    pub fallback_list: bool,
}

/// Who takes a request that names no subset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fallback {
    None,
    Any,
    Default,
    /// The subset of only these keys of what was asked for.
    Keys(Vec<String>),
}

/// A subset for each combination of values of these keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selector {
    /// In order.
    pub keys: Vec<String>,
    /// Instead of the cluster's.
    pub fallback: Option<Fallback>,
    pub single_host: bool,
}

/// The two messages have the same fields under the same numbers.
pub(super) fn from_cluster(message: &pb::cluster::LbSubsetConfig) -> Result<Arc<SubsetConfig>, ConfigError> {
    let same = Subset::decode(message.encode_to_vec().as_slice());
    from_proto(&same.map_err(|e| ConfigError::new("", e.to_string()))?)
}

pub(super) fn from_proto(message: &Subset) -> Result<Arc<SubsetConfig>, ConfigError> {
    let mut selectors: Vec<Selector> = Vec::with_capacity(message.subset_selectors.len());
    for (i, selector) in message.subset_selectors.iter().enumerate() {
        let selector = Selector::from_proto(selector).map_err(|e| e.within(&format!("subset_selectors[{i}]")))?;
        // As in Envoy, a selector with the same keys does not count again.
        if !selectors.iter().any(|known| known.keys == selector.keys) {
            selectors.push(selector);
        }
    }
    Ok(Arc::new(SubsetConfig {
        fallback: match message.fallback_policy() {
            LbSubsetFallbackPolicy::NoFallback => Fallback::None,
            LbSubsetFallbackPolicy::AnyEndpoint => Fallback::Any,
            LbSubsetFallbackPolicy::DefaultSubset => Fallback::Default,
        },
        default_subset: message.default_subset.clone().unwrap_or_default(),
        selectors,
        locality_weight_aware: message.locality_weight_aware,
        scale_locality_weight: message.scale_locality_weight,
        panic_mode_any: message.panic_mode_any,
        list_as_any: message.list_as_any,
        fallback_list: message.metadata_fallback_policy() == LbSubsetMetadataFallbackPolicy::FallbackList,
    }))
}

impl Selector {
    fn from_proto(message: &LbSubsetSelector) -> Result<Self, ConfigError> {
        use LbSubsetSelectorFallbackPolicy as Policy;
        let sorted = |keys: &[String]| {
            let mut keys = keys.to_vec();
            keys.sort_unstable();
            keys.dedup();
            keys
        };
        let keys = sorted(&message.keys);
        let rest = sorted(&message.fallback_keys_subset);
        let error = |reason: &str| Err(ConfigError::new("fallback_keys_subset", reason));
        let fallback = match message.fallback_policy() {
            Policy::KeysSubset if rest.is_empty() => return error("fallback_keys_subset cannot be empty"),
            Policy::KeysSubset if rest == keys => return error("fallback_keys_subset cannot be equal to keys"),
            Policy::KeysSubset if !rest.iter().all(|key| keys.contains(key)) => {
                return error("fallback_keys_subset must be a subset of selector keys");
            }
            Policy::KeysSubset => Some(Fallback::Keys(rest)),
            _ if !rest.is_empty() => {
                return error("fallback_keys_subset can be set only for KEYS_SUBSET fallback_policy");
            }
            Policy::NotDefined => None,
            Policy::NoFallback => Some(Fallback::None),
            Policy::AnyEndpoint => Some(Fallback::Any),
            Policy::DefaultSubset => Some(Fallback::Default),
        };
        Ok(Self { keys, fallback, single_host: message.single_host_per_subset })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selector(keys: &[&str], rest: &[&str]) -> LbSubsetSelector {
        let own = |keys: &[&str]| keys.iter().map(|key| (*key).to_owned()).collect();
        LbSubsetSelector {
            keys: own(keys),
            fallback_keys_subset: own(rest),
            fallback_policy: LbSubsetSelectorFallbackPolicy::KeysSubset as i32,
            ..Default::default()
        }
    }

    #[test]
    fn a_fallback_to_fewer_keys_must_be_fewer_keys() {
        let read = |keys: &[&str], rest: &[&str]| Selector::from_proto(&selector(keys, rest));
        let good = read(&["b", "a"], &["a"]).unwrap();
        assert_eq!((good.keys, good.fallback), (vec!["a".into(), "b".into()], Some(Fallback::Keys(vec!["a".into()]))));
        for (rest, reason) in [
            (&[][..], "fallback_keys_subset cannot be empty"),
            (&["b", "a"], "fallback_keys_subset cannot be equal to keys"),
            (&["c"], "fallback_keys_subset must be a subset of selector keys"),
        ] {
            assert_eq!(read(&["a", "b"], rest).unwrap_err().reason, reason);
        }
    }

    #[test]
    fn the_old_message_says_the_same() {
        let old = pb::cluster::LbSubsetConfig {
            fallback_policy: pb::cluster::lb_subset_config::LbSubsetFallbackPolicy::AnyEndpoint as i32,
            subset_selectors: vec![pb::cluster::lb_subset_config::LbSubsetSelector {
                keys: vec!["v".into()],
                single_host_per_subset: true,
                ..Default::default()
            }],
            list_as_any: true,
            ..Default::default()
        };
        let read = from_cluster(&old).unwrap();
        assert_eq!((&read.fallback, read.list_as_any), (&Fallback::Any, true));
        assert_eq!((read.selectors[0].keys.as_slice(), read.selectors[0].single_host), (&["v".to_owned()][..], true));
    }
}
