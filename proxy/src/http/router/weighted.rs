//! `weighted_clusters`: one of several routes to clusters, by chance.

use std::sync::Arc;

use nuncio_api::pb::envoy::config::route::v3::weighted_cluster::RandomValueSpecifier;
use nuncio_api::pb::envoy::config::route::v3::{WeightedCluster, weighted_cluster::ClusterWeight};
use nuncio_api::supports;
use nuncio_core::error::ConfigError;
use nuncio_core::http::RequestHead;
use nuncio_core::matcher::header::lookup_name;

use super::route::Route;
use super::route_match::MatchContext;

supports!(pub(super) WEIGHTED = "envoy.config.route.v3.WeightedCluster" {
    clusters, runtime_key_prefix, header_name, use_hash_policy
} noop {
    total_weight: "the sum of the weights counts, as in Envoy 1.40"
});
supports!(pub(super) CLUSTER_WEIGHT = "envoy.config.route.v3.WeightedCluster.ClusterWeight" {
    name, cluster_header, weight, metadata_match, typed_per_filter_config, host_rewrite_literal,
    request_headers_to_add, request_headers_to_remove, response_headers_to_add, response_headers_to_remove
});

#[derive(Debug)]
pub(super) struct Weighted {
    entries: Box<[Entry]>,
    total: u64,
    /// The one value of this field, if it is a number, is used instead of chance.
    random_header: Option<Box<str>>,
    use_hash_policy: bool,
}

#[derive(Debug)]
struct Entry {
    weight: u32,
    /// `<runtime_key_prefix>.<cluster>`: an operator may change the weight there.
    runtime_key: Option<Box<str>>,
    route: Arc<Route>,
}

impl Weighted {
    /// `make` turns each entry into its route.
    pub(super) fn from_proto(
        message: &WeightedCluster,
        route_name: &str,
        mut make: impl FnMut(&ClusterWeight) -> Result<Route, ConfigError>,
    ) -> Result<Self, ConfigError> {
        let mut total = 0u64;
        let mut entries = Vec::with_capacity(message.clusters.len());
        for (i, cluster) in message.clusters.iter().enumerate() {
            let at = |e: ConfigError| e.within(&format!("clusters[{i}]"));
            let Some(weight) = cluster.weight.map(|w| w.value) else {
                return Err(at(ConfigError::new("weight", "value is required")));
            };
            total += u64::from(weight);
            let prefix = &message.runtime_key_prefix;
            let runtime_key = (!prefix.is_empty()).then(|| format!("{prefix}.{}", cluster.name).into());
            entries.push(Entry { weight, runtime_key, route: Arc::new(make(cluster).map_err(at)?) });
        }
        if total > u64::from(u32::MAX) {
            let reason =
                format!("The sum of weights of all weighted clusters of route {route_name} exceeds {}", u32::MAX);
            return Err(ConfigError::new("clusters", reason));
        }
        if total == 0 {
            let reason = "Sum of weights in the weighted_cluster must be greater than 0.";
            return Err(ConfigError::new("clusters", reason));
        }
        let (random_header, use_hash_policy) = match &message.random_value_specifier {
            Some(RandomValueSpecifier::HeaderName(name)) if !name.is_empty() => (Some(lookup_name(name).into()), false),
            Some(RandomValueSpecifier::UseHashPolicy(on)) => (None, on.value),
            _ => (None, false),
        };
        Ok(Self { entries: entries.into(), total, random_header, use_hash_policy })
    }

    pub(super) fn pick(&self, head: &RequestHead, context: &MatchContext<'_>) -> Option<&Arc<Route>> {
        let weight = |e: &Entry| {
            let set = e.runtime_key.as_ref().and_then(|key| context.runtime.integer(key));
            set.map_or(e.weight, |w| w.min(u64::from(u32::MAX)) as u32)
        };
        let total = match self.entries.first()?.runtime_key {
            None => self.total,
            Some(_) => self.entries.iter().map(|e| u64::from(weight(e))).sum(),
        };
        if total == 0 {
            return None;
        }
        let mut left = self.random(head, context) % total;
        self.entries.iter().find_map(|e| {
            let weight = u64::from(weight(e));
            if left < weight {
                return Some(&e.route);
            }
            left -= weight;
            None
        })
    }

    fn random(&self, head: &RequestHead, context: &MatchContext<'_>) -> u64 {
        if let Some(name) = &self.random_header {
            let mut values = head.headers.get_all(name);
            if let (Some(value), None) = (values.next(), values.next()) {
                let number = std::str::from_utf8(value.trim_ascii()).ok().and_then(|v| v.parse().ok());
                return number.unwrap_or(context.random);
            }
        }
        if self.use_hash_policy {
            let hash = self.entries.first().and_then(|e| e.route.stable_hash(head, context));
            return hash.unwrap_or(context.random);
        }
        context.random
    }
}
