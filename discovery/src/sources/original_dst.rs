//! ORIGINAL_DST: hosts are where clients wanted to go. Nobody lists them; the cluster begins empty, and the balancer that
//! comes with this type makes a host of every destination it meets.

use futures_util::future::LocalBoxFuture;
use nuncio_api::pb::envoy::config::cluster::v3::Cluster;
use nuncio_api::pb::envoy::config::cluster::v3::cluster::{DiscoveryType, LbConfig, LbPolicy};
use nuncio_core::error::ConfigError;

use crate::{Assignment, HostSink, HostSource, HostSourceFactory, SourceContext};

pub struct Factory;

struct OriginalDst;

impl HostSourceFactory for Factory {
    fn name(&self) -> &'static str {
        "envoy.cluster.original_dst"
    }

    fn discovery_type(&self) -> Option<DiscoveryType> {
        Some(DiscoveryType::OriginalDst)
    }

    fn check(&self, cluster: &Cluster) -> Result<Box<dyn HostSource>, Vec<ConfigError>> {
        let mut errors = Vec::new();
        let policy = LbPolicy::try_from(cluster.lb_policy).unwrap_or_default();
        if policy != LbPolicy::ClusterProvided || cluster.load_balancing_policy.is_some() {
            let reason = format!(
                "cluster: LB policy {} is not valid for Cluster type ORIGINAL_DST. Only 'CLUSTER_PROVIDED' is allowed \
                 with cluster type 'ORIGINAL_DST'",
                policy.as_str_name()
            );
            errors.push(ConfigError::new("lb_policy", reason));
        }
        if cluster.load_assignment.is_some() {
            let reason = "ORIGINAL_DST clusters must have no load assignment configured";
            errors.push(ConfigError::new("load_assignment", reason));
        }
        if let Some(LbConfig::OriginalDstLbConfig(config)) = &cluster.lb_config
            && !config.use_http_header
            && !config.http_header_name.is_empty()
        {
            let reason = format!(
                "ORIGINAL_DST cluster: invalid config http_header_name={} and use_http_header is false. Set \
                 use_http_header to true if http_header_name is desired.",
                config.http_header_name
            );
            errors.push(ConfigError::new("original_dst_lb_config.http_header_name", reason));
        }
        if errors.is_empty() { Ok(Box::new(OriginalDst)) } else { Err(errors) }
    }
}

impl HostSource for OriginalDst {
    fn run(self: Box<Self>, _: SourceContext, sink: HostSink) -> LocalBoxFuture<'static, ()> {
        Box::pin(async move { sink.replace(Assignment::default()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nuncio_api::pb::envoy::config::cluster::v3::cluster::OriginalDstLbConfig;

    /// In the words of Envoy 1.40.
    #[test]
    fn what_cannot_be_is_refused_in_envoys_words() {
        let refusal = |cluster: Cluster| match Factory.check(&cluster) {
            Ok(_) => String::new(),
            Err(errors) => errors[0].reason.clone(),
        };
        let right = || Cluster { lb_policy: LbPolicy::ClusterProvided.into(), ..Default::default() };
        assert_eq!(refusal(right()), "");
        assert_eq!(
            refusal(Cluster::default()),
            "cluster: LB policy ROUND_ROBIN is not valid for Cluster type ORIGINAL_DST. Only 'CLUSTER_PROVIDED' is \
             allowed with cluster type 'ORIGINAL_DST'"
        );
        assert_eq!(
            refusal(Cluster { load_assignment: Some(Default::default()), ..right() }),
            "ORIGINAL_DST clusters must have no load assignment configured"
        );
        let config = OriginalDstLbConfig { http_header_name: "x-a".into(), ..Default::default() };
        assert_eq!(
            refusal(Cluster { lb_config: Some(LbConfig::OriginalDstLbConfig(config)), ..right() }),
            "ORIGINAL_DST cluster: invalid config http_header_name=x-a and use_http_header is false. Set \
             use_http_header to true if http_header_name is desired."
        );
    }
}
