//! `local_ratelimit`: at most so many requests in a time, for the whole process or for each client
//! connection (`envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit`, also per route,
//! where the route has its own bucket). Requests with certain descriptors have buckets of their own beside.
//!
//! Over the limit: 429 (or `status`), flag `RL`, details `local_rate_limited`. Stats
//! `<stat_prefix>.http_local_rate_limit.{enabled,enforced,ok,rate_limited,shadow_mode}`.

use std::any::Any;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use nuncio_api::pb::envoy::extensions::common::ratelimit::v3::VhRateLimitsOptions;
use nuncio_api::pb::envoy::extensions::filters::http::local_ratelimit::v3 as pb;
use nuncio_api::pb::google::protobuf::Any as ProtoAny;
use nuncio_api::support::Entry;
use nuncio_api::{supports, unpack};
use nuncio_core::error::ConfigError;
use nuncio_core::extension::{FactoryContext, WorkerContext};
use nuncio_core::http::{
    DecodeFilter, EncodeFilter, FilterHalves, HttpFilter, HttpFilterFactory, LocalReply, MakeFilter, RequestHead,
    ResponseHead, Step, StreamControl,
};
use nuncio_core::runtime::RuntimeFraction;
use nuncio_core::stats::{List, Scope, ScopeId, Stats};
use nuncio_core::stream_info::ResponseFlag;

use super::{declared, with_log_context};
use crate::format::{HeaderMutations, MutationValues};
use crate::http::rate_limits::{Asked, RateLimits, VirtualHostLimits, of_route};
use crate::network::local_ratelimit::{TokenBucket, bucket};
use descriptors::{Descriptors, Matched};

mod descriptors;

supports!(CONFIG = "envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit" {
    stat_prefix, status, token_bucket, filter_enabled, filter_enforced, request_headers_to_add_when_not_enforced,
    response_headers_to_add, enable_x_ratelimit_headers, rate_limited_as_resource_exhausted, descriptors, stage,
    vh_rate_limits, always_consume_default_token_bucket, rate_limits, max_dynamic_descriptors
});
supports!(DESCRIPTOR = "envoy.extensions.common.ratelimit.v3.LocalRateLimitDescriptor" {
    entries, token_bucket, shadow_mode
});
supports!(ENTRY = "envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.Entry" { key, value });
supports!(STATUS = "envoy.type.v3.HttpStatus" { code });
supports!(BUCKET = "envoy.type.v3.TokenBucket" { max_tokens, tokens_per_fill, fill_interval });
pub(super) static SUPPORTED: &[&Entry] = &[&CONFIG, &STATUS, &BUCKET, &DESCRIPTOR, &ENTRY];

static SCOPE: Scope = Scope { root: "", lists: &[HttpLocalRateLimit::descriptors] };

nuncio_core::stats! {
    /// What became of requests.
    pub HttpLocalRateLimit at ["http_local_rate_limit."] {
        counter ENABLED;
        counter ENFORCED;
        counter OK;
        counter RATE_LIMITED;
        counter SHADOW_MODE;
    }
}

pub struct Factory;

impl HttpFilterFactory for Factory {
    fn name(&self) -> &'static str {
        "envoy.filters.http.local_ratelimit"
    }

    fn config_type(&self) -> &'static str {
        CONFIG.message
    }

    fn route_config_type(&self) -> Option<&'static str> {
        Some(CONFIG.message)
    }

    fn create(&self, config: &ProtoAny, context: &FactoryContext<'_>) -> Result<Arc<dyn HttpFilter>, ConfigError> {
        let limit = Arc::new(Limit::new(&unpack(config)?, context)?);
        Ok(Arc::new(Config { name: context.name.into(), limit }))
    }

    fn create_route_config(
        &self,
        config: &ProtoAny,
        context: &FactoryContext<'_>,
    ) -> Result<Arc<dyn Any + Send + Sync>, ConfigError> {
        let proto: pb::LocalRateLimit = unpack(config)?;
        if proto.token_bucket.is_none() {
            return Err(ConfigError::new(
                "token_bucket",
                "local rate limit token bucket must be set for per filter configs",
            ));
        }
        Ok(Arc::new(Limit::new(&proto, context)?))
    }
}

struct Config {
    name: Arc<str>,
    limit: Arc<Limit>,
}

struct Limit {
    scope: ScopeId,
    bucket: Option<Arc<TokenBucket>>,
    descriptors: Descriptors,
    /// Also a request that a descriptor's bucket lets pass takes from `bucket`.
    always_default: bool,
    stage: u32,
    beside: VirtualHostLimits,
    /// Instead of those of route and virtual host.
    limits: RateLimits,
    service_cluster: String,
    enabled: RuntimeFraction,
    enforced: RuntimeFraction,
    status: u16,
    grpc_status: Option<u32>,
    when_not_enforced: HeaderMutations,
    when_limited: HeaderMutations,
    tell: bool,
}

impl Limit {
    fn new(proto: &pb::LocalRateLimit, context: &FactoryContext<'_>) -> Result<Self, ConfigError> {
        let fraction = |f: &Option<_>| RuntimeFraction::from_proto(f.as_ref().unwrap_or(&Default::default()));
        let default = proto.token_bucket.as_ref().map(bucket);
        let most = proto.max_dynamic_descriptors.map_or(MAX_DYNAMIC_DESCRIPTORS, |v| v.value);
        let status = proto.status.as_ref().map_or(0, |status| status.code as u16);
        let list = |options: &[_], field: &str| HeaderMutations::new(options, &[]).map_err(|e| e.within(field));
        Ok(Self {
            scope: declared::<HttpLocalRateLimit>(context, &SCOPE, &proto.stat_prefix),
            bucket: default.transpose()?.map(Arc::new),
            descriptors: Descriptors::new(&proto.descriptors, most as usize)?,
            always_default: proto.always_consume_default_token_bucket.is_none_or(|v| v.value),
            stage: proto.stage,
            beside: match proto.vh_rate_limits() {
                VhRateLimitsOptions::Override => VirtualHostLimits::Override,
                VhRateLimitsOptions::Include => VirtualHostLimits::Include,
                VhRateLimitsOptions::Ignore => VirtualHostLimits::Ignore,
            },
            limits: RateLimits::new(&proto.rate_limits)?,
            service_cluster: context.node.cluster.clone(),
            enabled: fraction(&proto.filter_enabled),
            enforced: fraction(&proto.filter_enforced),
            status: if status >= 400 { status } else { 429 },
            grpc_status: proto.rate_limited_as_resource_exhausted.then_some(8),
            when_not_enforced: list(
                &proto.request_headers_to_add_when_not_enforced,
                "request_headers_to_add_when_not_enforced",
            )?,
            when_limited: list(&proto.response_headers_to_add, "response_headers_to_add")?,
            tell: proto.enable_x_ratelimit_headers != 0,
        })
    }
}

/// Envoy's.
const MAX_DYNAMIC_DESCRIPTORS: u32 = 20;

/// Whether a request passes, and whose state is told.
struct Taken {
    passes: bool,
    bucket: Option<Arc<TokenBucket>>,
}

impl Limit {
    fn take(&self, matched: &[Matched], stats: &Stats<HttpLocalRateLimit>) -> Taken {
        for Matched { bucket, shadow } in matched {
            if bucket.take() {
                continue;
            }
            if !shadow {
                return Taken { passes: false, bucket: Some(bucket.clone()) };
            }
            stats.inc(SHADOW_MODE);
        }
        let first = matched.first().map(|matched| matched.bucket.clone());
        if (first.is_none() || self.always_default)
            && let Some(default) = &self.bucket
            && !default.take()
        {
            return Taken { passes: false, bucket: Some(default.clone()) };
        }
        Taken { passes: true, bucket: first.or_else(|| self.bucket.clone()) }
    }

    fn matched(&self, head: &RequestHead, stream: &StreamControl, worker: &WorkerContext) -> Vec<Matched> {
        if self.descriptors.is_empty() {
            return Vec::new();
        }
        let asked = Asked {
            head,
            stream,
            service_cluster: &self.service_cluster,
            runtime: &*worker.runtime,
            random: worker.rng.u64(),
        };
        if self.limits.is_empty() {
            return self.descriptors.matching(&of_route(&asked, self.stage, self.beside));
        }
        let mut own = Vec::new();
        self.limits.describe(self.stage, &asked, false, &mut own);
        self.descriptors.matching(&own)
    }
}

impl HttpFilter for Config {
    fn on_worker(&self, worker: &WorkerContext) -> MakeFilter {
        let shared = Rc::new(Shared {
            name: self.name.clone(),
            own: self.limit.clone(),
            worker: worker.clone(),
            stats: RefCell::default(),
        });
        Box::new(move || {
            let used = Rc::<RefCell<Option<Arc<TokenBucket>>>>::default();
            let decode = Decode { shared: shared.clone(), used: used.clone(), values: MutationValues::default() };
            FilterHalves { decode: Some(Box::new(decode)), encode: Some(Box::new(Encode { used })) }
        })
    }
}

/// What a worker's streams share.
struct Shared {
    name: Arc<str>,
    own: Arc<Limit>,
    worker: WorkerContext,
    /// The filter's own and each route's that was used.
    stats: RefCell<Vec<(ScopeId, Rc<Stats<HttpLocalRateLimit>>)>>,
}

impl Shared {
    fn stats(&self, scope: ScopeId) -> Rc<Stats<HttpLocalRateLimit>> {
        let mut all = self.stats.borrow_mut();
        if let Some((_, stats)) = all.iter().find(|(id, _)| *id == scope) {
            return stats.clone();
        }
        let stats = Rc::new(Stats::new(&self.worker.stats, scope));
        all.push((scope, stats.clone()));
        stats
    }
}

struct Decode {
    shared: Rc<Shared>,
    /// Whose bucket was asked: its state is told in the response.
    used: Rc<RefCell<Option<Arc<TokenBucket>>>>,
    values: MutationValues,
}

impl DecodeFilter for Decode {
    fn decode_headers(&mut self, head: &mut RequestHead, _end: bool, stream: &StreamControl) -> Step {
        let worker = &self.shared.worker;
        let limit = stream.route_config::<Limit>(&self.shared.name).unwrap_or_else(|| self.shared.own.clone());
        let on = |fraction: &RuntimeFraction| fraction.enabled(&*worker.runtime, worker.rng.u64());
        if !on(&limit.enabled) {
            return Step::CONTINUE;
        }
        let stats = self.shared.stats(limit.scope);
        stats.inc(ENABLED);
        let taken = limit.take(&limit.matched(head, stream, worker), &stats);
        *self.used.borrow_mut() = taken.bucket.filter(|_| limit.tell);
        if taken.passes {
            stats.inc(OK);
            return Step::CONTINUE;
        }
        stats.inc(RATE_LIMITED);
        if !on(&limit.enforced) {
            with_log_context(stream, worker, |context| {
                limit.when_not_enforced.apply_to_request(head, context, &mut self.values);
            });
            return Step::CONTINUE;
        }
        stats.inc(ENFORCED);
        let mut reply = LocalReply::new(limit.status, "local_rate_limited").body("local_rate_limited");
        reply.grpc_status = limit.grpc_status;
        let mut added = ResponseHead::default();
        with_log_context(stream, worker, |context| {
            limit.when_limited.apply_to_response(&mut added, context, &mut self.values);
        });
        for (name, value) in added.headers.iter() {
            reply = reply.header(String::from_utf8_lossy(name).into_owned(), value.to_vec());
        }
        Step::respond(reply.flag(ResponseFlag::RateLimited))
    }

    fn reset(&mut self) {
        self.used.borrow_mut().take();
    }
}

struct Encode {
    used: Rc<RefCell<Option<Arc<TokenBucket>>>>,
}

impl EncodeFilter for Encode {
    fn encode_headers(&mut self, head: &mut ResponseHead, _end: bool, _stream: &StreamControl) -> Step {
        if let Some(bucket) = &*self.used.borrow() {
            head.headers.set_u64("x-ratelimit-limit", bucket.max().into());
            head.headers.set_u64("x-ratelimit-remaining", bucket.left());
            head.headers.set_u64("x-ratelimit-reset", bucket.next_token().as_secs());
        }
        Step::CONTINUE
    }

    fn reset(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Bench, FILTERS};

    fn config(rest: &str) -> String {
        let on = "{default_value: {numerator: 100}}";
        format!(
            r#"{{"@type": {FILTERS}.local_ratelimit.v3.LocalRateLimit, filter_enabled: {on}, filter_enforced: {on}, {rest}}}"#
        )
    }

    // Expected: recorded from Envoy 1.40 (filter_local_ratelimit_http).
    #[tokio::test(flavor = "local", start_paused = true)]
    async fn the_bucket_is_emptied_told_and_refilled() {
        let own = config(
            "stat_prefix: lim, token_bucket: {max_tokens: 2, tokens_per_fill: 2, fill_interval: 60s}, \
             enable_x_ratelimit_headers: DRAFT_VERSION_03, response_headers_to_add: [{header: {key: x-l, value: l}}]",
        );
        let route = config(
            "stat_prefix: own, token_bucket: {max_tokens: 1, fill_interval: 60s}, status: {code: ServiceUnavailable}",
        );
        let bench = Bench::new(
            &format!("{{name: l, typed_config: {own}}}"),
            &format!(
                "{{match: {{prefix: /own}}, route: {{cluster: c}}, typed_per_filter_config: {{l: {route}}}}}, \
                 {{match: {{prefix: /}}, route: {{cluster: c}}}}"
            ),
        );
        let answer = bench.get("/", "").await;
        assert_eq!((answer.status(), answer.field("x-l")), ("200", None));
        assert_eq!((answer.field("x-ratelimit-limit"), answer.field("x-ratelimit-remaining")), (Some("2"), Some("1")));
        bench.get("/", "").await;
        let answer = bench.get("/", "").await;
        assert_eq!((answer.status(), answer.body()), ("429", "local_rate_limited"));
        assert_eq!((answer.field("x-l"), answer.field("x-ratelimit-remaining")), (Some("l"), Some("0")));
        let answer = bench.get("/", "content-type: application/grpc\r\n").await;
        assert_eq!(answer.field("grpc-status"), Some("14"));
        assert_eq!([bench.get("/own", "").await.status(), bench.get("/own", "").await.status()], ["200", "503"]);
        tokio::time::advance(std::time::Duration::from_secs(31)).await;
        assert_eq!(bench.get("/", "").await.status(), "200");
        let stats = ["lim.http_local_rate_limit.ok", "lim.http_local_rate_limit.enforced"];
        assert_eq!(stats.map(|s| bench.stat(s)), [3, 2]);
        assert_eq!(bench.stat("own.http_local_rate_limit.rate_limited"), 1);
    }

    // Expected: recorded from Envoy 1.40.
    #[tokio::test(flavor = "local", start_paused = true)]
    async fn descriptors_have_buckets_of_their_own_beside_the_common_one() {
        let bucket = |max: u32| format!("token_bucket: {{max_tokens: {max}, tokens_per_fill: 1, fill_interval: 60s}}");
        let descriptor = |entries: &str, max| format!("{{entries: [{entries}], {}}}", bucket(max));
        let own = config(&format!(
            "stat_prefix: lim, {}, enable_x_ratelimit_headers: DRAFT_VERSION_03, descriptors: [{}, {}, {}]",
            bucket(4),
            descriptor("{key: user, value: joe}", 1),
            descriptor("{key: user, value: ann}", 2),
            descriptor("{key: wild}", 1),
        ));
        let header = |name: &str, key: &str| {
            format!("{{actions: [{{request_headers: {{header_name: {name}, descriptor_key: {key}}}}}]}}")
        };
        let route = format!(
            "{{match: {{prefix: /}}, route: {{cluster: c, rate_limits: [{}, {}]}}}}",
            header("x-user", "user"),
            header("x-wild", "wild")
        );
        let bench = Bench::new(&format!("{{name: l, typed_config: {own}}}"), &route);
        for (fields, status, limit) in [
            ("x-user: joe\r\n", "200", "1"),
            ("x-user: joe\r\n", "429", "1"),
            ("x-wild: a\r\n", "200", "1"),
            ("x-wild: a\r\n", "429", "1"),
            ("x-wild: b\r\n", "200", "1"),
            ("x-user: ann\r\n", "200", "2"),
            // The common bucket is empty.
            ("x-user: ann\r\n", "429", "4"),
            ("x-user: bob\r\n", "429", "4"),
        ] {
            let answer = bench.get("/", fields).await;
            assert_eq!((answer.status(), answer.field("x-ratelimit-limit")), (status, Some(limit)), "{fields}");
        }
    }
}
