//! `lb_policy`, `load_balancing_policy` and `common_lb_config`: how a cluster balances, checked.

use nuncio_api::pb::envoy::config::cluster::v3 as pb;
use nuncio_api::pb::envoy::extensions::load_balancing_policies as policies;
use nuncio_api::pb::google::protobuf::Any;
use nuncio_api::support::Entry;
use nuncio_api::supports;
use nuncio_core::error::ConfigError;

supports!(POLICIES = "envoy.config.cluster.v3.LoadBalancingPolicy" { policies });
supports!(POLICY = "envoy.config.cluster.v3.LoadBalancingPolicy.Policy" { typed_extension_config });
supports!(ROUND_ROBIN = "envoy.extensions.load_balancing_policies.round_robin.v3.RoundRobin" {});
supports!(RANDOM = "envoy.extensions.load_balancing_policies.random.v3.Random" {});
supports!(LEAST_REQUEST = "envoy.extensions.load_balancing_policies.least_request.v3.LeastRequest" {
    choice_count, active_request_bias
} values {
    selection_method: ["N_CHOICES"],
});
supports!(RUNTIME_DOUBLE = "envoy.config.core.v3.RuntimeDouble" {
    default_value
} noop {
    runtime_key: "there are no runtime layers, so the default holds",
});

/// What is honoured of the messages read here.
pub static SUPPORTED: &[&Entry] = &[&POLICIES, &POLICY, &ROUND_ROBIN, &RANDOM, &LEAST_REQUEST, &RUNTIME_DOUBLE];

/// How a cluster balances.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LbConfig {
    pub policy: LbPolicy,
    /// `healthy_panic_threshold` in whole percent.
    pub panic_threshold: u32,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LbPolicy {
    RoundRobin,
    Random,
    LeastRequest { choices: u32, bias: f64 },
}

impl Default for LbConfig {
    fn default() -> Self {
        Self { policy: LbPolicy::RoundRobin, panic_threshold: 50 }
    }
}

pub(super) fn from_cluster(message: &pb::Cluster) -> Result<LbConfig, ConfigError> {
    let threshold = message.common_lb_config.as_ref().and_then(|common| common.healthy_panic_threshold.as_ref());
    // A fraction of a percent is cut off, as Envoy does.
    let panic_threshold = threshold.map_or(50, |percent| percent.value.clamp(0.0, 100.0) as u32);
    let by_enum = pb::cluster::LbPolicy::try_from(message.lb_policy).unwrap_or_default();
    let policy = match &message.load_balancing_policy {
        Some(list) => {
            if message.lb_subset_config.is_some() {
                let reason = "cluster: load_balancing_policy cannot be combined with lb_subset_config";
                return Err(ConfigError::new("load_balancing_policy", reason));
            }
            from_list(&message.name, list)?
        }
        None => from_enum(message, by_enum)?,
    };
    Ok(LbConfig { policy, panic_threshold })
}

fn from_enum(message: &pb::Cluster, policy: pb::cluster::LbPolicy) -> Result<LbPolicy, ConfigError> {
    use pb::cluster::LbPolicy as Enum;
    match policy {
        Enum::RoundRobin => Ok(LbPolicy::RoundRobin),
        Enum::Random => Ok(LbPolicy::Random),
        Enum::LeastRequest => {
            let config = match &message.lb_config {
                Some(pb::cluster::LbConfig::LeastRequestLbConfig(config)) => config.clone(),
                _ => Default::default(),
            };
            Ok(LbPolicy::LeastRequest {
                choices: config.choice_count.map_or(2, |count| count.value),
                bias: config.active_request_bias.map_or(1.0, |bias| bias.default_value),
            })
        }
        Enum::ClusterProvided => {
            let reason = format!(
                "cluster manager: cluster provided LB specified but cluster '{}' did not provide one. \
                 Check cluster documentation.",
                message.name
            );
            Err(ConfigError::new("lb_policy", reason))
        }
        Enum::LoadBalancingPolicyConfig => {
            Err(ConfigError::new("lb_policy", "cluster: field load_balancing_policy need to be set"))
        }
        Enum::RingHash | Enum::Maglev => Err(ConfigError::new("lb_policy", "this policy is not implemented")),
    }
}

/// The first policy that is known wins.
fn from_list(cluster: &str, list: &pb::LoadBalancingPolicy) -> Result<LbPolicy, ConfigError> {
    let extensions = list.policies.iter().filter_map(|policy| policy.typed_extension_config.as_ref());
    for (at, any) in extensions.clone().enumerate().filter_map(|(at, e)| Some((at, e.typed_config.as_ref()?))) {
        if let Some(read) = from_any(any) {
            return read.map_err(|e| {
                e.within(&format!("load_balancing_policy.policies[{at}].typed_extension_config.typed_config"))
            });
        }
    }
    let names: Vec<&str> = extensions.map(|extension| extension.name.as_str()).collect();
    let reason = format!(
        "cluster: didn't find a registered load balancer factory implementation for cluster: '{cluster}' \
         with names from [{}]",
        names.join(", ")
    );
    Err(ConfigError::new("load_balancing_policy", reason))
}

fn from_any(any: &Any) -> Option<Result<LbPolicy, ConfigError>> {
    use policies::{least_request::v3::LeastRequest, random::v3::Random, round_robin::v3::RoundRobin};
    Some(match nuncio_api::any::type_name(&any.type_url) {
        "envoy.extensions.load_balancing_policies.round_robin.v3.RoundRobin" => {
            nuncio_api::unpack::<RoundRobin>(any).map(|_| LbPolicy::RoundRobin)
        }
        "envoy.extensions.load_balancing_policies.random.v3.Random" => {
            nuncio_api::unpack::<Random>(any).map(|_| LbPolicy::Random)
        }
        "envoy.extensions.load_balancing_policies.least_request.v3.LeastRequest" => {
            let read = |config: LeastRequest| LbPolicy::LeastRequest {
                choices: config.choice_count.map_or(2, |count| count.value),
                bias: config.active_request_bias.map_or(1.0, |bias| bias.default_value),
            };
            nuncio_api::unpack(any).map(read)
        }
        _ => return None,
    })
}
