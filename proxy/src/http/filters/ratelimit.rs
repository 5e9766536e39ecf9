//! `ratelimit`: asks a service whether a request is too many
//! (`envoy.extensions.filters.http.ratelimit.v3.RateLimit`, per route `RateLimitPerRoute`).
//!
//! What is asked are the descriptors of `http::rate_limits`. Over the limit: 429 (or `rate_limited_status`),
//! flag `RL`, details `request_rate_limited`. Without an answer the request passes, or with
//! `failure_mode_deny` gets 500, flag `RLSE`, details `rate_limiter_error`. Stats
//! `cluster.<route's>.ratelimit.[<stat_prefix>.]{ok,over_limit,error,failure_mode_allowed}`.

use std::any::Any;
use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use nuncio_api::pb::envoy::config::core::v3::HeaderValue;
use nuncio_api::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use nuncio_api::pb::envoy::extensions::filters::http::ratelimit::v3 as pb;
use nuncio_api::pb::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use nuncio_api::pb::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus};
use nuncio_api::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use nuncio_api::pb::google::protobuf::Any as ProtoAny;
use nuncio_api::support::Entry;
use nuncio_api::{supports, unpack};
use nuncio_core::error::ConfigError;
use nuncio_core::extension::{FactoryContext, WorkerContext};
use nuncio_core::http::{
    DecodeFilter, EncodeFilter, FilterHalves, HttpFilter, HttpFilterFactory, LocalReply, MakeFilter, Outcome,
    RequestHead, ResponseHead, Step, StreamControl,
};
use nuncio_core::runtime::{FractionalPercent, RuntimeFraction};
use nuncio_core::stats::{CodeStats, Codes, Kind, NamedCounter, ScopeId};
use nuncio_core::stream_info::ResponseFlag;
use nuncio_core::time::duration;
use nuncio_core::upstream::grpc::{GrpcFailure, GrpcService};

use super::with_log_context;
use crate::format::{HeaderMutations, MutationValues};
use crate::http::rate_limits::{Asked, RateLimits, VirtualHostLimits, of_route};

supports!(CONFIG = "envoy.extensions.filters.http.ratelimit.v3.RateLimit" {
    domain, stage, request_type, timeout, failure_mode_deny, rate_limited_as_resource_exhausted, rate_limit_service,
    enable_x_ratelimit_headers, disable_x_envoy_ratelimited_header, rate_limited_status, response_headers_to_add,
    status_on_error, stat_prefix, filter_enabled, filter_enforced, failure_mode_deny_percent, rate_limits
});
supports!(ROUTE = "envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute" {
    vh_rate_limits, domain, rate_limits
});
supports!(SERVICE = "envoy.config.ratelimit.v3.RateLimitServiceConfig" { grpc_service, transport_api_version });
supports!(LIMIT = "envoy.config.route.v3.RateLimit" { hits_addend });
supports!(HITS = "envoy.config.route.v3.RateLimit.HitsAddend" { number });
pub(super) static SUPPORTED: &[&Entry] = &[&CONFIG, &ROUTE, &SERVICE, &LIMIT, &HITS];

const METHOD: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const NAMESPACE: &str = "envoy.filters.http.ratelimit";
/// Envoy's.
const TIMEOUT: Duration = Duration::from_millis(20);

pub struct Factory;

impl HttpFilterFactory for Factory {
    fn name(&self) -> &'static str {
        NAMESPACE
    }

    fn config_type(&self) -> &'static str {
        CONFIG.message
    }

    fn route_config_type(&self) -> Option<&'static str> {
        Some(ROUTE.message)
    }

    fn create(&self, config: &ProtoAny, context: &FactoryContext<'_>) -> Result<Arc<dyn HttpFilter>, ConfigError> {
        Ok(Arc::new(Config(Arc::new(Settings::new(unpack(config)?, context)?))))
    }

    fn create_route_config(
        &self,
        config: &ProtoAny,
        _context: &FactoryContext<'_>,
    ) -> Result<Arc<dyn Any + Send + Sync>, ConfigError> {
        let proto: pb::RateLimitPerRoute = unpack(config)?;
        Ok(Arc::new(Route {
            beside: match proto.vh_rate_limits() {
                pb::rate_limit_per_route::VhRateLimitsOptions::Override => VirtualHostLimits::Override,
                pb::rate_limit_per_route::VhRateLimitsOptions::Include => VirtualHostLimits::Include,
                pb::rate_limit_per_route::VhRateLimitsOptions::Ignore => VirtualHostLimits::Ignore,
            },
            domain: proto.domain,
            limits: RateLimits::new(&proto.rate_limits)?,
        }))
    }
}

/// What a route says.
struct Route {
    beside: VirtualHostLimits,
    domain: String,
    limits: RateLimits,
}

struct Settings {
    name: Arc<str>,
    service_cluster: String,
    domain: String,
    stage: u32,
    /// Only requests that are internal, or are not.
    only_internal: Option<bool>,
    service: GrpcService,
    deny_on_failure: bool,
    deny_percent: Option<RuntimeFraction>,
    status: u16,
    status_on_error: u16,
    grpc_status: Option<u32>,
    tell: bool,
    ratelimited_header: bool,
    when_limited: HeaderMutations,
    enabled: Option<RuntimeFraction>,
    enforced: Option<RuntimeFraction>,
    limits: RateLimits,
    stat_prefix: String,
}

impl Settings {
    fn new(proto: pb::RateLimit, context: &FactoryContext<'_>) -> Result<Self, ConfigError> {
        let missing = || ConfigError::new("rate_limit_service.grpc_service", "value is required");
        let mut service = proto.rate_limit_service.and_then(|s| s.grpc_service).ok_or_else(missing)?;
        // The filter's own timeout is the call's.
        service.timeout = None;
        let timeout = proto.timeout.as_ref().map_or(TIMEOUT, duration);
        let service = GrpcService::from_proto(&service, Some(timeout), context);
        let status = |status: Option<nuncio_api::pb::envoy::r#type::v3::HttpStatus>, least: u16, default: u16| {
            status.map(|s| s.code as u16).filter(|code| *code >= least).unwrap_or(default)
        };
        let mutations = HeaderMutations::new(&proto.response_headers_to_add, &[]);
        let dot = if proto.stat_prefix.is_empty() { "" } else { "." };
        Ok(Self {
            name: context.name.into(),
            service_cluster: context.node.cluster.clone(),
            domain: proto.domain,
            stage: proto.stage,
            only_internal: match &*proto.request_type {
                "internal" => Some(true),
                "external" => Some(false),
                _ => None,
            },
            service: service.map_err(|e| e.within("rate_limit_service"))?,
            deny_on_failure: proto.failure_mode_deny,
            deny_percent: proto.failure_mode_deny_percent.as_ref().map(RuntimeFraction::from_proto),
            status: status(proto.rate_limited_status, 400, 429),
            status_on_error: status(proto.status_on_error, 100, 500),
            grpc_status: proto.rate_limited_as_resource_exhausted.then_some(8),
            tell: proto.enable_x_ratelimit_headers != 0,
            ratelimited_header: !proto.disable_x_envoy_ratelimited_header,
            when_limited: mutations.map_err(|e| e.within("response_headers_to_add"))?,
            enabled: proto.filter_enabled.as_ref().map(RuntimeFraction::from_proto),
            enforced: proto.filter_enforced.as_ref().map(RuntimeFraction::from_proto),
            limits: RateLimits::new(&proto.rate_limits)?,
            stat_prefix: format!("ratelimit.{}{dot}", proto.stat_prefix),
        })
    }
}

struct Config(Arc<Settings>);

impl HttpFilter for Config {
    fn on_worker(&self, worker: &WorkerContext) -> MakeFilter {
        let shared = Rc::new(Shared { settings: self.0.clone(), worker: worker.clone(), clusters: RefCell::default() });
        Box::new(move || {
            let added = Rc::<RefCell<Vec<HeaderValue>>>::default();
            let decode = Decode { shared: shared.clone(), added: added.clone(), values: MutationValues::default() };
            FilterHalves { decode: Some(Box::new(decode)), encode: Some(Box::new(Encode { added })) }
        })
    }
}

/// Of so many clusters at most the counters are kept; then all are made anew.
const MOST_CLUSTERS: usize = 4096;

struct Shared {
    settings: Arc<Settings>,
    worker: WorkerContext,
    clusters: RefCell<HashMap<ScopeId, Rc<OfCluster>>>,
}

/// What is counted under the route's cluster, each once it happens.
struct OfCluster {
    scope: ScopeId,
    events: [OnceCell<NamedCounter>; 4],
    codes: [OnceCell<CodeStats>; 3],
}

#[derive(Debug, Clone, Copy)]
enum Event {
    Ok,
    OverLimit,
    Error,
    FailureModeAllowed,
}

impl Event {
    const NAMES: [&'static str; 4] = ["ok", "over_limit", "error", "failure_mode_allowed"];
}

impl Shared {
    fn of_cluster(&self, stream: &StreamControl) -> Option<Rc<OfCluster>> {
        let route = stream.route()?;
        let scope = self.worker.client.stats_scope(route.cluster_name()?)?;
        let mut clusters = self.clusters.borrow_mut();
        if clusters.len() >= MOST_CLUSTERS && !clusters.contains_key(&scope) {
            clusters.clear();
        }
        let new = || Rc::new(OfCluster { scope, events: Default::default(), codes: Default::default() });
        Some(clusters.entry(scope).or_insert_with(new).clone())
    }

    fn count(&self, stream: &StreamControl, event: Event) {
        let Some(cluster) = self.of_cluster(stream) else { return };
        let counter = cluster.events[event as usize].get_or_init(|| {
            let name = format!("{}{}", self.settings.stat_prefix, Event::NAMES[event as usize]);
            self.worker.stats.named(cluster.scope, &name, Kind::Counter)
        });
        counter.inc();
    }

    /// An answer in that cluster's place.
    fn charge(&self, stream: &StreamControl, internal: bool, status: u16) {
        let Some(cluster) = self.of_cluster(stream) else { return };
        let whose = if internal { (1, Codes::Internal) } else { (2, Codes::External) };
        for (at, codes) in [(0, Codes::Cluster), whose] {
            let stats = cluster.codes[at].get_or_init(|| CodeStats::new(&self.worker.stats, cluster.scope, codes));
            stats.charge(status);
        }
    }

    fn on(&self, fraction: Option<&RuntimeFraction>, key: &str) -> bool {
        let (runtime, random) = (&*self.worker.runtime, self.worker.rng.u64());
        match fraction {
            Some(fraction) => fraction.enabled(runtime, random),
            None => runtime.fraction(key).unwrap_or(FractionalPercent::ALL).includes(random),
        }
    }

    fn descriptors(
        &self,
        head: &RequestHead,
        stream: &StreamControl,
        route: Option<&Route>,
    ) -> Vec<RateLimitDescriptor> {
        let settings = &self.settings;
        let asked = Asked {
            head,
            stream,
            service_cluster: &settings.service_cluster,
            runtime: &*self.worker.runtime,
            random: self.worker.rng.u64(),
        };
        let mut own = Vec::new();
        match route.map(|route| &route.limits).filter(|limits| !limits.is_empty()) {
            Some(limits) => limits.describe(settings.stage, &asked, true, &mut own),
            None if !settings.limits.is_empty() => settings.limits.describe(settings.stage, &asked, true, &mut own),
            None => {
                let beside = route.map_or(VirtualHostLimits::Override, |route| route.beside);
                return of_route(&asked, settings.stage, beside);
            }
        }
        own
    }
}

struct Decode {
    shared: Rc<Shared>,
    /// For the response of a request that passed.
    added: Rc<RefCell<Vec<HeaderValue>>>,
    values: MutationValues,
}

fn is_internal(head: &RequestHead) -> bool {
    head.headers.get("x-envoy-internal") == Some(b"true")
}

impl Decode {
    fn failed(&self, stream: &StreamControl) -> Step {
        let (shared, settings) = (&self.shared, &self.shared.settings);
        shared.count(stream, Event::Error);
        let deny = match &settings.deny_percent {
            Some(percent) => percent.enabled(&*shared.worker.runtime, shared.worker.rng.u64()),
            None => settings.deny_on_failure,
        };
        if deny {
            let reply = LocalReply::new(settings.status_on_error, "rate_limiter_error");
            return Step::respond(reply.flag(ResponseFlag::RateLimitServiceError));
        }
        shared.count(stream, Event::FailureModeAllowed);
        Step::CONTINUE
    }

    fn limited(&mut self, answer: RateLimitResponse, internal: bool, stream: &StreamControl) -> Step {
        let (shared, settings) = (self.shared.clone(), self.shared.settings.clone());
        shared.charge(stream, internal, settings.status);
        let mut reply = LocalReply::new(settings.status, "request_rate_limited").body(answer.raw_body);
        reply.grpc_status = settings.grpc_status;
        if settings.ratelimited_header {
            reply = reply.header("x-envoy-ratelimited", "true");
        }
        for header in self.added.borrow_mut().drain(..) {
            reply = reply.header(header.key, header.value);
        }
        let mut more = ResponseHead::default();
        with_log_context(stream, &shared.worker, |context| {
            settings.when_limited.apply_to_response(&mut more, context, &mut self.values);
        });
        for (name, value) in more.headers.iter() {
            reply = reply.header(String::from_utf8_lossy(name).into_owned(), value.to_vec());
        }
        Step::respond(reply.flag(ResponseFlag::RateLimited))
    }
}

/// A header that may stand in a message: the service is trusted with limits, not with framing.
fn is_plain(header: &HeaderValue) -> bool {
    let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    let text = |b: u8| b >= b' ' && b != 0x7f || b == b'\t';
    !header.key.is_empty() && header.key.bytes().all(token) && header.value.bytes().all(text)
}

impl DecodeFilter for Decode {
    fn decode_headers(&mut self, head: &mut RequestHead, _end: bool, stream: &StreamControl) -> Step {
        let (shared, settings) = (&self.shared, &self.shared.settings);
        if !shared.on(settings.enabled.as_ref(), "ratelimit.http_filter_enabled")
            || settings.only_internal.is_some_and(|internal| internal != is_internal(head))
        {
            return Step::CONTINUE;
        }
        let route = stream.route_config::<Route>(&settings.name);
        let descriptors = shared.descriptors(head, stream, route.as_deref());
        if descriptors.is_empty() {
            return Step::CONTINUE;
        }
        let domain = route.as_ref().map(|route| &route.domain).filter(|domain| !domain.is_empty());
        let domain = domain.unwrap_or(&settings.domain).clone();
        let question = RateLimitRequest { domain, descriptors, hits_addend: 0 };
        let call = with_log_context(stream, &shared.worker, |told| {
            settings.service.call::<RateLimitResponse>(METHOD, &question, told, &shared.worker)
        });
        Step::later(call)
    }

    fn resume(&mut self, outcome: Outcome, head: &mut RequestHead, stream: &StreamControl) -> Step {
        let answer = outcome.downcast::<Result<RateLimitResponse, GrpcFailure>>();
        let Ok(Ok(mut answer)) = answer.map(|answer| *answer) else { return self.failed(stream) };
        if let Some(metadata) = answer.dynamic_metadata.take() {
            stream.info_mut().dynamic_metadata.merge(NAMESPACE, metadata);
        }
        let settings = self.shared.settings.clone();
        let mut added: Vec<HeaderValue> = answer.response_headers_to_add.drain(..).filter(is_plain).collect();
        if settings.tell {
            added.extend(x_ratelimit(&answer.statuses));
        }
        *self.added.borrow_mut() = added;
        if answer.overall_code() == Code::OverLimit {
            self.shared.count(stream, Event::OverLimit);
            if self.shared.on(settings.enforced.as_ref(), "ratelimit.http_filter_enforcing") {
                return self.limited(answer, is_internal(head), stream);
            }
            return Step::CONTINUE;
        }
        self.shared.count(stream, Event::Ok);
        for header in answer.request_headers_to_add.iter().filter(|header| is_plain(header)) {
            head.headers.append(&header.key, &header.value);
        }
        Step::CONTINUE
    }

    fn reset(&mut self) {
        self.added.borrow_mut().clear();
    }
}

/// The limit that is nearest, and the policies of all
/// (<https://datatracker.ietf.org/doc/html/draft-polli-ratelimit-headers-03>).
fn x_ratelimit(statuses: &[DescriptorStatus]) -> Vec<HeaderValue> {
    let mut nearest: Option<(&DescriptorStatus, u32)> = None;
    let mut policies = String::new();
    for status in statuses {
        let Some(limit) = &status.current_limit else { continue };
        if nearest.is_none_or(|(known, _)| status.limit_remaining < known.limit_remaining) {
            nearest = Some((status, limit.requests_per_unit));
        }
        let window = match limit.unit() {
            Unit::Second => 1,
            Unit::Minute => 60,
            Unit::Hour => 3600,
            Unit::Day => 86_400,
            Unit::Week => 7 * 86_400,
            Unit::Month => 30 * 86_400,
            Unit::Year => 365 * 86_400,
            Unit::Unknown => 0,
        };
        if window > 0 {
            policies.push_str(&format!(", {};w={window}", limit.requests_per_unit));
            if !limit.name.is_empty() {
                policies.push_str(&format!(";name=\"{}\"", limit.name.replace(['"', '\r', '\n'], "")));
            }
        }
    }
    let Some((status, requests)) = nearest else { return Vec::new() };
    let reset = status.duration_until_reset.as_ref().map_or(0, |d| d.seconds);
    let header = |key: &str, value: String| HeaderValue { key: key.into(), value, ..HeaderValue::default() };
    vec![
        header("x-ratelimit-limit", format!("{requests}{policies}")),
        header("x-ratelimit-remaining", status.limit_remaining.to_string()),
        header("x-ratelimit-reset", reset.to_string()),
    ]
}

struct Encode {
    added: Rc<RefCell<Vec<HeaderValue>>>,
}

impl EncodeFilter for Encode {
    fn encode_headers(&mut self, head: &mut ResponseHead, _end: bool, _stream: &StreamControl) -> Step {
        for header in self.added.borrow_mut().drain(..) {
            head.headers.append(&header.key, &header.value);
        }
        Step::CONTINUE
    }

    fn reset(&mut self) {}
}

#[cfg(test)]
mod tests;
