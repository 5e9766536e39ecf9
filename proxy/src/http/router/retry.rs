//! Retry and hedge policies: read and checked here, carried out by the router filter.

use std::time::Duration;

use nuncio_api::any::type_name;
use nuncio_api::pb::envoy::config::route::v3::retry_policy::{
    ResetHeaderFormat, RetryHostPredicate as HostPredicateProto, RetryPriority as RetryPriorityProto,
    retry_host_predicate, retry_priority,
};
use nuncio_api::pb::envoy::config::route::v3::{HedgePolicy as HedgeProto, RetryPolicy as RetryProto};
use nuncio_api::pb::envoy::extensions::retry::host::omit_host_metadata::v3::OmitHostMetadataConfig;
use nuncio_api::pb::envoy::extensions::retry::priority::previous_priorities::v3::PreviousPrioritiesConfig;
use nuncio_api::pb::google::protobuf::Any;
use nuncio_api::prost::Name;
use nuncio_api::unpack;
use nuncio_core::error::ConfigError;
use nuncio_core::matcher::HeaderMatcher;
use nuncio_core::metadata::Metadata;
use nuncio_core::runtime::FractionalPercent;
use nuncio_core::typed::unknown;

use super::policy::duration;

macro_rules! retry_on {
    ($($(#[$doc:meta])* $name:ident = $bit:literal $text:literal,)*) => {
        impl RetryOn {
            $($(#[$doc])* pub const $name: Self = Self(1 << $bit);)*

            fn one(text: &str) -> Option<Self> {
                match text { $($text => Some(Self::$name),)* _ => None }
            }
        }
    };
}

/// Under which conditions a request is tried again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RetryOn(u32);

retry_on! {
    FIVE_XX = 0 "5xx",
    GATEWAY_ERROR = 1 "gateway-error",
    CONNECT_FAILURE = 2 "connect-failure",
    RETRIABLE_4XX = 3 "retriable-4xx",
    REFUSED_STREAM = 4 "refused-stream",
    RETRIABLE_STATUS_CODES = 5 "retriable-status-codes",
    RESET = 6 "reset",
    RETRIABLE_HEADERS = 7 "retriable-headers",
    ENVOY_RATELIMITED = 8 "envoy-ratelimited",
    HTTP3_POST_CONNECT_FAILURE = 9 "http3-post-connect-failure",
    RESET_BEFORE_REQUEST = 10 "reset-before-request",
    GRPC_CANCELLED = 16 "cancelled",
    GRPC_DEADLINE_EXCEEDED = 17 "deadline-exceeded",
    GRPC_RESOURCE_EXHAUSTED = 18 "resource-exhausted",
    GRPC_UNAVAILABLE = 19 "unavailable",
    GRPC_INTERNAL = 20 "internal",
}

impl RetryOn {
    /// A comma-separated list; words that are not known count for nothing, as in Envoy. The flag
    /// says whether all were known.
    pub fn parse(text: &str) -> (Self, bool) {
        let mut all = Self::default();
        let mut known = true;
        for word in text.split(',').map(str::trim).filter(|w| !w.is_empty()) {
            match Self::one(word) {
                Some(condition) => all.0 |= condition.0,
                None => known = false,
            }
        }
        (all, known)
    }

    pub fn contains(self, condition: Self) -> bool {
        self.0 & condition.0 != 0
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn insert(&mut self, other: Self) {
        self.0 |= other.0;
    }

    /// Without the conditions on gRPC statuses.
    pub fn http(self) -> Self {
        Self(self.0 & 0xffff)
    }

    /// Only the conditions on gRPC statuses.
    pub fn grpc(self) -> Self {
        Self(self.0 & !0xffff)
    }
}

#[derive(Debug)]
pub struct RetryPolicy {
    pub on: RetryOn,
    pub num_retries: u32,
    /// Zero means the route's timeout covers each try too.
    pub per_try_timeout: Duration,
    pub per_try_idle_timeout: Duration,
    pub status_codes: Vec<u16>,
    /// Of the response.
    pub headers: Vec<HeaderMatcher>,
    /// Of the request: if there are any, one must match.
    pub request_headers: Vec<HeaderMatcher>,
    pub back_off: BackOff,
    pub rate_limited: Option<RateLimitedBackOff>,
    pub host_predicates: Vec<HostPredicate>,
    pub priority: Option<PreviousPriorities>,
    /// How often host predicates may refuse before one is taken anyway.
    pub host_selection_attempts: u32,
}

/// Exponential, fully jittered: `[0, (2^n − 1) · base)`, at most `max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackOff {
    pub base: Duration,
    pub max: Duration,
}

const DEFAULT_RATE_LIMITED_MAX: Duration = Duration::from_secs(300);
const ONE_MS: Duration = Duration::from_millis(1);

/// Waits as long as the upstream says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RateLimitedBackOff {
    pub headers: Vec<(String, ResetFormat)>,
    pub max: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResetFormat {
    Seconds,
    UnixTimestamp,
}

/// Which hosts are not tried again.
#[derive(Debug, Clone, PartialEq)]
pub enum HostPredicate {
    PreviousHosts,
    CanaryHosts,
    /// Those whose metadata holds all of this.
    HostMetadata(Metadata),
}

/// Priorities tried before are left out, anew every `update_frequency` retries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PreviousPriorities {
    pub update_frequency: u32,
}

impl RetryPolicy {
    pub(super) fn from_proto(message: &RetryProto) -> Result<Self, ConfigError> {
        let predicates = message.retry_host_predicate.iter().enumerate();
        let rate_limited = message.rate_limited_retry_back_off.as_ref().map(|r| RateLimitedBackOff {
            headers: r.reset_headers.iter().map(|h| (h.name.to_ascii_lowercase(), reset_format(h.format()))).collect(),
            max: r.max_interval.as_ref().map_or(DEFAULT_RATE_LIMITED_MAX, |d| duration(d).max(ONE_MS)),
        });
        Ok(Self {
            on: RetryOn::parse(&message.retry_on).0,
            num_retries: message.num_retries.map_or(1, |v| v.value),
            per_try_timeout: message.per_try_timeout.as_ref().map_or(Duration::ZERO, duration),
            per_try_idle_timeout: message.per_try_idle_timeout.as_ref().map_or(Duration::ZERO, duration),
            status_codes: message.retriable_status_codes.iter().filter_map(|c| u16::try_from(*c).ok()).collect(),
            headers: HeaderMatcher::list(&message.retriable_headers).map_err(|e| e.within("retriable_headers"))?,
            request_headers: HeaderMatcher::list(&message.retriable_request_headers)
                .map_err(|e| e.within("retriable_request_headers"))?,
            back_off: BackOff::from_proto(message)?,
            rate_limited,
            host_predicates: predicates
                .map(|(i, p)| host_predicate(p).map_err(|e| e.within(&format!("retry_host_predicate[{i}]"))))
                .collect::<Result<_, _>>()?,
            priority: message
                .retry_priority
                .as_ref()
                .map(previous_priorities)
                .transpose()
                .map_err(|e| e.within("retry_priority"))?,
            host_selection_attempts: match message.host_selection_retry_max_attempts {
                n if n <= 0 => 1,
                n => n.min(i64::from(u32::MAX)) as u32,
            },
        })
    }
}

impl BackOff {
    pub const DEFAULT: Self = Self { base: Duration::from_millis(25), max: Duration::from_millis(250) };

    fn from_proto(message: &RetryProto) -> Result<Self, ConfigError> {
        let Some(back_off) = &message.retry_back_off else { return Ok(Self::DEFAULT) };
        let Some(base) = &back_off.base_interval else {
            return Err(ConfigError::new("retry_back_off.base_interval", "value is required"));
        };
        let base = duration(base).max(ONE_MS);
        let max = back_off.max_interval.as_ref().map_or(base.saturating_mul(10), |d| duration(d).max(ONE_MS));
        if max < base {
            let reason = "retry_policy.max_interval must greater than or equal to the base_interval";
            return Err(ConfigError::new("retry_back_off.max_interval", reason));
        }
        Ok(Self { base, max })
    }
}

fn reset_format(format: ResetHeaderFormat) -> ResetFormat {
    match format {
        ResetHeaderFormat::Seconds => ResetFormat::Seconds,
        ResetHeaderFormat::UnixTimestamp => ResetFormat::UnixTimestamp,
    }
}

fn host_predicate(message: &HostPredicateProto) -> Result<HostPredicate, ConfigError> {
    let any = message.config_type.as_ref().map(|retry_host_predicate::ConfigType::TypedConfig(any)| any);
    // By name alone is not enough any more.
    let Some(any) = any else { return Err(unknown(&message.name, &Any::default())) };
    match type_name(&any.type_url) {
        "envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate" => Ok(HostPredicate::PreviousHosts),
        "envoy.extensions.retry.host.omit_canary_hosts.v3.OmitCanaryHostsPredicate" => Ok(HostPredicate::CanaryHosts),
        "envoy.extensions.retry.host.omit_host_metadata.v3.OmitHostMetadataConfig" => {
            let config: OmitHostMetadataConfig = unpack(any).map_err(|e| e.within("typed_config"))?;
            let metadata = config.metadata_match.as_ref().map(Metadata::from_proto);
            Ok(HostPredicate::HostMetadata(metadata.unwrap_or_default()))
        }
        _ => Err(unknown(&message.name, any)),
    }
}

fn previous_priorities(message: &RetryPriorityProto) -> Result<PreviousPriorities, ConfigError> {
    let any = message.config_type.as_ref().map(|retry_priority::ConfigType::TypedConfig(any)| any);
    let Some(any) = any else { return Err(unknown(&message.name, &Any::default())) };
    if type_name(&any.type_url) != PreviousPrioritiesConfig::full_name() {
        return Err(unknown(&message.name, any));
    }
    let config: PreviousPrioritiesConfig = unpack(any).map_err(|e| e.within("typed_config"))?;
    Ok(PreviousPriorities { update_frequency: config.update_frequency.max(1) as u32 })
}

/// Sends a further copy of a request before the first has answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HedgePolicy {
    pub initial_requests: u32,
    pub additional_request_chance: Option<FractionalPercent>,
    pub on_per_try_timeout: bool,
}

impl HedgePolicy {
    pub(super) fn from_proto(message: &HedgeProto) -> Self {
        Self {
            initial_requests: message.initial_requests.map_or(1, |v| v.value),
            additional_request_chance: message.additional_request_chance.as_ref().map(FractionalPercent::from_proto),
            on_per_try_timeout: message.hedge_on_per_try_timeout,
        }
    }
}

#[cfg(test)]
mod tests {
    use nuncio_api::pack;
    use nuncio_api::pb::envoy::config::route::v3::retry_policy::{RateLimitedRetryBackOff, ResetHeader, RetryBackOff};
    use nuncio_api::pb::envoy::extensions::retry::host::previous_hosts::v3::PreviousHostsPredicate;
    use nuncio_api::pb::google::protobuf::Duration as DurationProto;

    use super::*;

    fn millis(n: i64) -> Option<DurationProto> {
        Some(DurationProto { seconds: n / 1000, nanos: (n % 1000) as i32 * 1_000_000 })
    }

    fn back_off(base: i64, max: Option<i64>) -> Result<BackOff, ConfigError> {
        let retry_back_off = RetryBackOff { base_interval: millis(base), max_interval: max.and_then(millis) };
        RetryPolicy::from_proto(&RetryProto { retry_back_off: Some(retry_back_off), ..Default::default() })
            .map(|p| p.back_off)
    }

    #[test]
    fn conditions_are_a_list_in_which_unknown_words_count_for_nothing() {
        let (on, known) = RetryOn::parse("5xx, reset,cancelled");
        assert!(known && on.contains(RetryOn::FIVE_XX) && on.contains(RetryOn::RESET));
        assert!(on.contains(RetryOn::GRPC_CANCELLED) && !on.contains(RetryOn::GATEWAY_ERROR));
        let (on, known) = RetryOn::parse("bogus,retriable-4xx");
        assert_eq!((on, known), (RetryOn::RETRIABLE_4XX, false));
        assert!(RetryOn::parse("").0.is_empty());
    }

    #[test]
    fn an_empty_policy_has_envoys_defaults() {
        let policy = RetryPolicy::from_proto(&RetryProto::default()).unwrap();
        assert_eq!((policy.num_retries, policy.host_selection_attempts), (1, 1));
        let defaults = BackOff { base: Duration::from_millis(25), max: Duration::from_millis(250) };
        assert_eq!(policy.back_off, defaults);
        assert!(policy.per_try_timeout.is_zero() && policy.rate_limited.is_none());
    }

    #[test]
    fn intervals_are_at_least_a_millisecond_and_in_order() {
        let both = |base, max| BackOff { base: Duration::from_millis(base), max: Duration::from_millis(max) };
        assert_eq!(back_off(40, None), Ok(both(40, 400)));
        assert_eq!(back_off(0, Some(0)), Ok(both(1, 1)));
        // Envoy 1.40's words.
        let reason = "retry_policy.max_interval must greater than or equal to the base_interval";
        assert_eq!(back_off(2000, Some(1000)).unwrap_err().reason, reason);
    }

    #[test]
    fn the_upstream_may_say_how_long_to_wait() {
        let header = ResetHeader { name: "Retry-After".into(), format: ResetHeaderFormat::UnixTimestamp.into() };
        let limited = RateLimitedRetryBackOff { reset_headers: vec![header], max_interval: None };
        let message = RetryProto { rate_limited_retry_back_off: Some(limited), ..Default::default() };
        let policy = RetryPolicy::from_proto(&message).unwrap();
        let expected = RateLimitedBackOff {
            headers: vec![("retry-after".into(), ResetFormat::UnixTimestamp)],
            max: Duration::from_secs(300),
        };
        assert_eq!(policy.rate_limited, Some(expected));
    }

    #[test]
    fn host_predicates_are_known_by_type_and_not_by_name() {
        let of = |config_type| {
            let name = "envoy.retry_host_predicates.previous_hosts".to_owned();
            let retry_host_predicate = vec![HostPredicateProto { name, config_type }];
            RetryPolicy::from_proto(&RetryProto { retry_host_predicate, ..Default::default() })
        };
        let typed = retry_host_predicate::ConfigType::TypedConfig(pack(&PreviousHostsPredicate {}));
        assert_eq!(of(Some(typed)).unwrap().host_predicates, [HostPredicate::PreviousHosts]);
        let error = of(None).unwrap_err();
        assert_eq!(error.path, "retry_host_predicate[0]");
        assert_eq!(
            error.reason,
            "Didn't find a registered implementation for 'envoy.retry_host_predicates.previous_hosts' with type URL: ''"
        );
    }
}
