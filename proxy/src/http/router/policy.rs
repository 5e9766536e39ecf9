//! `config.route.v3.RouteAction` without its cluster: how a request is forwarded. Many routes say
//! the same, so equal policies are one object.

use std::sync::Arc;
use std::time::Duration;

use nuncio_api::any::type_name;
use nuncio_api::pb::envoy::config::core::v3::RoutingPriority;
use nuncio_api::pb::envoy::config::route::v3::route_action::{
    ClusterNotFoundResponseCode, InternalRedirectAction, MaxStreamDuration as MaxStreamDurationProto,
    RequestMirrorPolicy, UpgradeConfig,
};
use nuncio_api::pb::envoy::config::route::v3::{InternalRedirectPolicy as InternalRedirectProto, RouteAction};
use nuncio_api::pb::envoy::extensions::internal_redirect::allow_listed_routes::v3::AllowListedRoutesConfig;
use nuncio_api::pb::google::protobuf::{Duration as DurationProto, Struct};
use nuncio_api::supports;
use nuncio_api::unpack;
use nuncio_core::error::ConfigError;
use nuncio_core::matcher::UriTemplate;
use nuncio_core::matcher::header::lookup_name;
use nuncio_core::runtime::{FractionalPercent, Runtime, RuntimeFraction};
use nuncio_core::typed::unknown;

use super::retry::{HedgePolicy, RetryPolicy};
use super::rewrite::{HostRewrite, PathRewrite};
use crate::upstream::hash_policy::HashPolicy;

// What the router filter must carry out (retries, mirrors, limits, upgrades and so on) is listed beside it.
supports!(pub(super) ACTION = "envoy.config.route.v3.RouteAction" {
    cluster, cluster_header, weighted_clusters, cluster_not_found_response_code, metadata_match, prefix_rewrite,
    regex_rewrite, path_rewrite_policy, path_rewrite, host_rewrite, host_rewrite_literal, host_rewrite_header, host_rewrite_path_regex,
    append_x_forwarded_host, timeout
} noop {
    early_data_policy: "no early data is accepted"
});

/// Envoy's route timeout if nothing is said.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(15);

#[derive(Debug)]
pub struct ForwardPolicy {
    /// From the end of the request to the end of the response; zero is none.
    pub timeout: Duration,
    /// Instead of the connection manager's `stream_idle_timeout`; zero is none.
    pub idle_timeout: Option<Duration>,
    pub flush_timeout: Option<Duration>,
    pub max_stream_duration: Option<MaxStreamDuration>,
    /// The deprecated pair that `max_stream_duration` replaces.
    pub max_grpc_timeout: Option<Duration>,
    pub grpc_timeout_offset: Option<Duration>,
    pub cluster_not_found_status: u16,
    pub high_priority: bool,
    pub append_x_forwarded_host: bool,
    pub(super) path_rewrite: PathRewrite,
    pub(super) host_rewrite: HostRewrite,
    pub hash_policy: HashPolicy,
    pub(super) retry: Option<Arc<RetryPolicy>>,
    pub(super) hedge: Option<HedgePolicy>,
    pub(super) mirrors: Arc<[Mirror]>,
    pub upgrades: Vec<Upgrade>,
    pub internal_redirect: Option<InternalRedirectPolicy>,
    /// `envoy.lb` of `metadata_match`: which subset of the cluster.
    pub metadata_match: Option<Arc<Struct>>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MaxStreamDuration {
    pub max: Option<Duration>,
    /// `grpc-timeout` is honoured up to this; zero is without bound.
    pub grpc_timeout_header_max: Option<Duration>,
    pub grpc_timeout_header_offset: Option<Duration>,
}

impl ForwardPolicy {
    #[allow(deprecated)]
    pub(super) fn from_proto(action: &RouteAction, template: Option<&UriTemplate>) -> Result<Self, ConfigError> {
        let optional = |d: &Option<DurationProto>| d.as_ref().map(duration);
        let retry = action.retry_policy.as_ref().map(RetryPolicy::from_proto).transpose();
        Ok(Self {
            timeout: action.timeout.as_ref().map_or(DEFAULT_TIMEOUT, duration),
            idle_timeout: optional(&action.idle_timeout),
            flush_timeout: optional(&action.flush_timeout),
            max_stream_duration: action.max_stream_duration.as_ref().map(MaxStreamDuration::from_proto),
            max_grpc_timeout: optional(&action.max_grpc_timeout),
            grpc_timeout_offset: optional(&action.grpc_timeout_offset),
            cluster_not_found_status: match action.cluster_not_found_response_code() {
                ClusterNotFoundResponseCode::ServiceUnavailable => 503,
                ClusterNotFoundResponseCode::NotFound => 404,
                ClusterNotFoundResponseCode::InternalServerError => 500,
            },
            high_priority: action.priority() == RoutingPriority::High,
            append_x_forwarded_host: action.append_x_forwarded_host,
            path_rewrite: PathRewrite::from_proto(action, template)?,
            host_rewrite: HostRewrite::from_proto(action.host_rewrite_specifier.as_ref())?,
            hash_policy: HashPolicy::from_proto(&action.hash_policy).map_err(|e| e.within("hash_policy"))?,
            retry: retry.map_err(|e| e.within("retry_policy"))?.map(Arc::new),
            hedge: action.hedge_policy.as_ref().map(HedgePolicy::from_proto),
            mirrors: Mirror::list(&action.request_mirror_policies).map_err(|e| e.within("request_mirror_policies"))?,
            upgrades: Upgrade::list(&action.upgrade_configs).map_err(|e| e.within("upgrade_configs"))?,
            internal_redirect: InternalRedirectPolicy::of(action)?,
            metadata_match: action.metadata_match.as_ref().and_then(subset).map(Arc::new),
        })
    }
}

/// What `metadata_match` asks of hosts.
pub(super) fn subset(metadata: &nuncio_api::pb::envoy::config::core::v3::Metadata) -> Option<Struct> {
    metadata.filter_metadata.get("envoy.lb").cloned()
}

impl MaxStreamDuration {
    fn from_proto(message: &MaxStreamDurationProto) -> Self {
        Self {
            max: message.max_stream_duration.as_ref().map(duration),
            grpc_timeout_header_max: message.grpc_timeout_header_max.as_ref().map(duration),
            grpc_timeout_header_offset: message.grpc_timeout_header_offset.as_ref().map(duration),
        }
    }
}

/// Whole milliseconds, as Envoy keeps its timeouts; negative is zero.
pub(super) fn duration(d: &DurationProto) -> Duration {
    let millis = i128::from(d.seconds) * 1000 + i128::from(d.nanos / 1_000_000);
    Duration::from_millis(millis.clamp(0, i128::from(u32::MAX) * 1000) as u64)
}

/// A copy of a fraction of the requests goes to another cluster.
#[derive(Debug)]
pub struct Mirror {
    pub target: MirrorTarget,
    fraction: Option<RuntimeFraction>,
    /// `-shadow` is not appended to the host.
    pub keep_host: bool,
    pub host_rewrite: Option<Box<str>>,
}

#[derive(Debug)]
pub enum MirrorTarget {
    Cluster(Arc<str>),
    /// Named by the first value of a request header.
    Header(Box<str>),
}

impl Mirror {
    pub(super) fn list(messages: &[RequestMirrorPolicy]) -> Result<Arc<[Self]>, ConfigError> {
        let each = |(i, m)| Self::from_proto(m).map_err(|e| e.within(&format!("[{i}]")));
        messages.iter().enumerate().map(each).collect()
    }

    fn from_proto(message: &RequestMirrorPolicy) -> Result<Self, ConfigError> {
        let target = match (message.cluster.as_str(), message.cluster_header.as_str()) {
            ("", "") => {
                let reason = "Exactly one of cluster or cluster_header in request mirror policy need to be specified";
                return Err(ConfigError::new("", reason));
            }
            (cluster, "") => MirrorTarget::Cluster(cluster.into()),
            ("", header) => MirrorTarget::Header(lookup_name(header).into()),
            (cluster, header) => {
                let reason = format!(
                    "Only one of cluster '{cluster}' or cluster_header '{header}' in request mirror policy can be specified"
                );
                return Err(ConfigError::new("", reason));
            }
        };
        let host = &message.host_rewrite_literal;
        Ok(Self {
            target,
            fraction: message.runtime_fraction.as_ref().map(RuntimeFraction::from_proto),
            keep_host: message.disable_shadow_host_suffix_append,
            host_rewrite: (!host.is_empty()).then(|| host.as_str().into()),
        })
    }

    pub fn applies(&self, runtime: &dyn Runtime, random: u64) -> bool {
        self.fraction.as_ref().map_or_else(|| FractionalPercent::ALL.includes(random), |f| f.enabled(runtime, random))
    }
}

/// Whether an upgrade is allowed on this route, whatever the connection manager says.
#[derive(Debug, PartialEq, Eq)]
pub struct Upgrade {
    /// Lower case; `connect` for CONNECT.
    pub kind: Box<str>,
    pub enabled: bool,
    /// CONNECT ends here: what it carries is TCP to the upstream.
    pub terminates_connect: bool,
    pub allow_post: bool,
}

impl Upgrade {
    fn list(messages: &[UpgradeConfig]) -> Result<Vec<Self>, ConfigError> {
        let mut all: Vec<Self> = Vec::with_capacity(messages.len());
        for (i, message) in messages.iter().enumerate() {
            let kind = message.upgrade_type.to_ascii_lowercase();
            let error = |reason: String| Err(ConfigError::new(format!("[{i}]"), reason));
            if all.iter().any(|u| *u.kind == *kind) {
                return error(format!("Duplicate upgrade {}", message.upgrade_type));
            }
            if message.connect_config.is_some() && !matches!(kind.as_str(), "connect" | "connect-udp") {
                return error(format!("Non-CONNECT upgrade type {} has ConnectConfig", message.upgrade_type));
            }
            all.push(Self {
                kind: kind.into(),
                enabled: message.enabled.is_none_or(|v| v.value),
                terminates_connect: message.connect_config.is_some(),
                allow_post: message.connect_config.as_ref().is_some_and(|c| c.allow_post),
            });
        }
        Ok(all)
    }
}

/// Follows redirects of the upstream by itself.
#[derive(Debug)]
pub struct InternalRedirectPolicy {
    pub max: u32,
    pub codes: Vec<u16>,
    pub predicates: Vec<RedirectPredicate>,
    pub allow_cross_scheme: bool,
    pub response_headers_to_copy: Vec<String>,
}

#[derive(Debug, PartialEq, Eq)]
pub enum RedirectPredicate {
    /// Not to a route that this request was on before.
    PreviousRoutes,
    AllowListedRoutes(Vec<String>),
    /// From https to http only over a secure connection.
    SafeCrossScheme,
}

impl InternalRedirectPolicy {
    fn of(action: &RouteAction) -> Result<Option<Self>, ConfigError> {
        if let Some(message) = &action.internal_redirect_policy {
            return Self::from_proto(message).map(Some).map_err(|e| e.within("internal_redirect_policy"));
        }
        // The deprecated spelling.
        #[allow(deprecated)]
        if action.internal_redirect_action() == InternalRedirectAction::HandleInternalRedirect {
            let max_internal_redirects = action.max_internal_redirects;
            return Self::from_proto(&InternalRedirectProto { max_internal_redirects, ..Default::default() }).map(Some);
        }
        Ok(None)
    }

    fn from_proto(message: &InternalRedirectProto) -> Result<Self, ConfigError> {
        let codes: Vec<u16> = match message.redirect_response_codes.as_slice() {
            [] => vec![302],
            codes => [301, 302, 303, 307, 308].into_iter().filter(|c| codes.contains(&u32::from(*c))).collect(),
        };
        let mut predicates = Vec::new();
        for (i, extension) in message.predicates.iter().enumerate() {
            let at = |e: ConfigError| e.within(&format!("predicates[{i}]"));
            let Some(any) = &extension.typed_config else {
                return Err(at(ConfigError::new("typed_config", "value is required")));
            };
            predicates.push(match type_name(&any.type_url) {
                "envoy.extensions.internal_redirect.previous_routes.v3.PreviousRoutesConfig" => {
                    RedirectPredicate::PreviousRoutes
                }
                "envoy.extensions.internal_redirect.safe_cross_scheme.v3.SafeCrossSchemeConfig" => {
                    RedirectPredicate::SafeCrossScheme
                }
                "envoy.extensions.internal_redirect.allow_listed_routes.v3.AllowListedRoutesConfig" => {
                    let config: AllowListedRoutesConfig = unpack(any).map_err(at)?;
                    RedirectPredicate::AllowListedRoutes(config.allowed_route_names)
                }
                _ => return Err(at(unknown(&extension.name, any))),
            });
        }
        for (i, name) in message.response_headers_to_copy.iter().enumerate() {
            if name.starts_with(':') || name.eq_ignore_ascii_case("host") {
                let reason = ":-prefixed headers or Hosts may not be specified here.";
                return Err(ConfigError::new(format!("response_headers_to_copy[{i}]"), reason));
            }
        }
        Ok(Self {
            max: message.max_internal_redirects.map_or(1, |v| v.value),
            codes,
            predicates,
            allow_cross_scheme: message.allow_cross_scheme_redirect,
            response_headers_to_copy: message.response_headers_to_copy.iter().map(|n| n.to_ascii_lowercase()).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use nuncio_core::runtime::NoRuntime;

    use super::*;

    fn policy(action: RouteAction) -> Result<ForwardPolicy, ConfigError> {
        ForwardPolicy::from_proto(&action, None)
    }

    fn upgrade(kind: &str, connect: bool) -> UpgradeConfig {
        UpgradeConfig { upgrade_type: kind.into(), enabled: None, connect_config: connect.then(Default::default) }
    }

    #[test]
    fn a_silent_action_times_out_after_fifteen_seconds_and_knows_no_extras() {
        let policy = policy(RouteAction::default()).unwrap();
        assert_eq!((policy.timeout, policy.idle_timeout), (Duration::from_secs(15), None));
        assert_eq!(policy.cluster_not_found_status, 503);
        assert!(!policy.high_priority && policy.mirrors.is_empty() && policy.internal_redirect.is_none());
    }

    #[test]
    fn durations_are_whole_milliseconds_from_zero_up() {
        let of = |seconds, nanos| duration(&DurationProto { seconds, nanos });
        assert_eq!(of(1, 2_999_999), Duration::from_millis(1002));
        assert_eq!(of(-1, 0), Duration::ZERO);
        assert_eq!(of(i64::MAX, 999_999_999), Duration::from_secs(u64::from(u32::MAX)));
    }

    #[test]
    fn upgrades_are_named_once_and_only_connect_can_end_here() {
        let all = |upgrade_configs| policy(RouteAction { upgrade_configs, ..Default::default() });
        let two = all(vec![upgrade("WebSocket", false), upgrade("CONNECT", true)]).unwrap().upgrades;
        assert_eq!((&*two[0].kind, two[0].enabled, two[1].terminates_connect), ("websocket", true, true));
        // Envoy 1.40's words.
        let twice = all(vec![upgrade("w", false), upgrade("W", false)]).unwrap_err();
        assert_eq!(twice.to_string(), "upgrade_configs[1]: Duplicate upgrade W");
        let wrong = all(vec![upgrade("w", true)]).unwrap_err();
        assert_eq!(wrong.reason, "Non-CONNECT upgrade type w has ConnectConfig");
    }

    #[test]
    fn a_mirror_has_one_target_and_takes_everything_unless_told() {
        let one = |cluster: &str, header: &str| RequestMirrorPolicy {
            cluster: cluster.into(),
            cluster_header: header.into(),
            ..Default::default()
        };
        let mirrors = Mirror::list(&[one("a", ""), one("", "X-M")]).unwrap();
        assert!(matches!(&mirrors[0].target, MirrorTarget::Cluster(c) if **c == *"a"));
        assert!(matches!(&mirrors[1].target, MirrorTarget::Header(h) if **h == *"x-m"));
        assert!(mirrors[0].applies(&NoRuntime, u64::MAX));
        assert!(Mirror::list(&[one("", "")]).is_err() && Mirror::list(&[one("a", "b")]).is_err());
    }

    #[test]
    fn internal_redirects_follow_302_unless_other_codes_are_listed() {
        let of = |redirect_response_codes| {
            let message = InternalRedirectProto { redirect_response_codes, ..Default::default() };
            policy(RouteAction { internal_redirect_policy: Some(message), ..Default::default() }).unwrap()
        };
        let codes = |listed| of(listed).internal_redirect.map(|p| (p.max, p.codes));
        assert_eq!(codes(vec![]), Some((1, vec![302])));
        assert_eq!(codes(vec![308, 200, 301]), Some((1, vec![301, 308])));
    }

    #[test]
    fn only_one_way_to_rewrite_the_path_may_be_given() {
        let both = RouteAction { prefix_rewrite: "/".into(), path_rewrite: "/x".into(), ..Default::default() };
        let reason = "Specify only one of prefix_rewrite, regex_rewrite or path_rewrite_policy";
        assert_eq!(policy(both).unwrap_err().reason, reason);
    }
}
