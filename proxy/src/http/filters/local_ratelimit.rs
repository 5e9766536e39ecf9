//! `local_ratelimit`: at most so many requests in a time, for the whole process or for each client
//! connection (`envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit`, also per route,
//! where the route has its own bucket). Descriptors are not implemented.
//!
//! Over the limit: 429 (or `status`), flag `RL`, details `local_rate_limited`. Stats
//! `<stat_prefix>.http_local_rate_limit.{enabled,enforced,ok,rate_limited}`.

use std::any::Any;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

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
use crate::network::local_ratelimit::{TokenBucket, bucket};

supports!(CONFIG = "envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit" {
    stat_prefix, status, token_bucket, filter_enabled, filter_enforced, request_headers_to_add_when_not_enforced,
    response_headers_to_add, enable_x_ratelimit_headers, rate_limited_as_resource_exhausted
});
supports!(STATUS = "envoy.type.v3.HttpStatus" { code });
supports!(BUCKET = "envoy.type.v3.TokenBucket" { max_tokens, tokens_per_fill, fill_interval });
pub(super) static SUPPORTED: &[&Entry] = &[&CONFIG, &STATUS, &BUCKET];

static SCOPE: Scope = Scope { root: "", lists: &[HttpLocalRateLimit::descriptors] };

nuncio_core::stats! {
    /// What became of requests.
    pub HttpLocalRateLimit at ["http_local_rate_limit."] {
        counter ENABLED;
        counter ENFORCED;
        counter OK;
        counter RATE_LIMITED;
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
    bucket: Option<TokenBucket>,
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
        let bucket = proto.token_bucket.as_ref().map(bucket);
        let status = proto.status.as_ref().map_or(0, |status| status.code as u16);
        let list = |options: &[_], field: &str| HeaderMutations::new(options, &[]).map_err(|e| e.within(field));
        Ok(Self {
            scope: declared::<HttpLocalRateLimit>(context, &SCOPE, &proto.stat_prefix),
            bucket: bucket.transpose()?,
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

impl HttpFilter for Config {
    fn on_worker(&self, worker: &WorkerContext) -> MakeFilter {
        let shared = Rc::new(Shared {
            name: self.name.clone(),
            own: self.limit.clone(),
            worker: worker.clone(),
            stats: RefCell::default(),
        });
        Box::new(move || {
            let used = Rc::<RefCell<Option<Arc<Limit>>>>::default();
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
    used: Rc<RefCell<Option<Arc<Limit>>>>,
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
        let passes = limit.bucket.as_ref().is_none_or(TokenBucket::take);
        *self.used.borrow_mut() = Some(limit.clone());
        if passes {
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
    used: Rc<RefCell<Option<Arc<Limit>>>>,
}

impl EncodeFilter for Encode {
    fn encode_headers(&mut self, head: &mut ResponseHead, _end: bool, _stream: &StreamControl) -> Step {
        if let Some(limit) = &*self.used.borrow()
            && let (true, Some(bucket)) = (limit.tell, &limit.bucket)
        {
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
}
