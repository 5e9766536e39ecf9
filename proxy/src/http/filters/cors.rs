//! `cors`: answers preflights and marks responses for origins that the route allows
//! (`envoy.extensions.filters.http.cors.v3.Cors`; the policy is the per-route `CorsPolicy`).
//!
//! Stats `http.<prefix>.cors.origin_valid` and `origin_invalid`. A preflight of an origin that is
//! not allowed goes upstream like any request, unless `forward_not_matching_preflights` is false.

use std::any::Any;
use std::rc::Rc;
use std::sync::Arc;

use nuncio_api::pb::envoy::extensions::filters::http::cors::v3 as pb;
use nuncio_api::pb::google::protobuf::{Any as ProtoAny, BoolValue};
use nuncio_api::support::Entry;
use nuncio_api::{supports, unpack};
use nuncio_core::error::ConfigError;
use nuncio_core::extension::{FactoryContext, WorkerContext};
use nuncio_core::http::{
    DecodeFilter, EncodeFilter, FilterHalves, HeaderMap, HttpFilter, HttpFilterFactory, LocalReply, MakeFilter,
    RequestHead, ResponseHead, Step, StreamControl,
};
use nuncio_core::matcher::StringMatcher;
use nuncio_core::runtime::RuntimeFraction;
use nuncio_core::stats::{ScopeId, Stats};

use super::http_scope;

supports!(CONFIG = "envoy.extensions.filters.http.cors.v3.Cors" {});
supports!(POLICY = "envoy.extensions.filters.http.cors.v3.CorsPolicy" {
    allow_origin_string_match, allow_methods, allow_headers, expose_headers, max_age, allow_credentials,
    filter_enabled, shadow_enabled, allow_private_network_access, forward_not_matching_preflights
});
pub(super) static SUPPORTED: &[&Entry] = &[&CONFIG, &POLICY];

nuncio_core::stats! {
    /// What origins were seen.
    pub Cors at ["cors."] {
        counter ORIGIN_VALID;
        counter ORIGIN_INVALID;
    }
}

pub struct Factory;

impl HttpFilterFactory for Factory {
    fn name(&self) -> &'static str {
        "envoy.filters.http.cors"
    }

    fn config_type(&self) -> &'static str {
        CONFIG.message
    }

    fn route_config_type(&self) -> Option<&'static str> {
        Some(POLICY.message)
    }

    fn create(&self, _config: &ProtoAny, context: &FactoryContext<'_>) -> Result<Arc<dyn HttpFilter>, ConfigError> {
        Ok(Arc::new(Config { name: context.name.into(), scope: http_scope::<Cors>(context) }))
    }

    fn create_route_config(
        &self,
        config: &ProtoAny,
        _context: &FactoryContext<'_>,
    ) -> Result<Arc<dyn Any + Send + Sync>, ConfigError> {
        Ok(Arc::new(Policy::new(&unpack(config)?)?))
    }
}

struct Config {
    name: Arc<str>,
    scope: ScopeId,
}

/// One level's words; where a level is silent the more general one speaks.
struct Policy {
    origins: Vec<StringMatcher>,
    methods: Box<str>,
    headers: Box<str>,
    expose: Box<str>,
    max_age: Box<str>,
    credentials: Option<bool>,
    private_network: Option<bool>,
    forward_preflights: Option<bool>,
    enabled: Option<RuntimeFraction>,
    shadow: Option<RuntimeFraction>,
}

impl Policy {
    fn new(proto: &pb::CorsPolicy) -> Result<Self, ConfigError> {
        let origins = proto.allow_origin_string_match.iter().map(StringMatcher::from_proto);
        let flag = |value: &Option<BoolValue>| value.as_ref().map(|v| v.value);
        Ok(Self {
            origins: origins.collect::<Result<_, _>>().map_err(|e| e.within("allow_origin_string_match"))?,
            methods: proto.allow_methods.as_str().into(),
            headers: proto.allow_headers.as_str().into(),
            expose: proto.expose_headers.as_str().into(),
            max_age: proto.max_age.as_str().into(),
            credentials: flag(&proto.allow_credentials),
            private_network: flag(&proto.allow_private_network_access),
            forward_preflights: flag(&proto.forward_not_matching_preflights),
            enabled: proto.filter_enabled.as_ref().map(RuntimeFraction::from_proto),
            shadow: proto.shadow_enabled.as_ref().map(RuntimeFraction::from_proto),
        })
    }
}

/// The policies of the matched route, the most specific first.
struct Levels<'a>(&'a [Arc<dyn Any + Send + Sync>]);

impl<'a> Levels<'a> {
    fn iter(&self) -> impl Iterator<Item = &'a Policy> {
        self.0.iter().rev().filter_map(|config| config.downcast_ref())
    }

    fn text(&self, field: impl Fn(&'a Policy) -> &'a str) -> Option<&'a str> {
        self.iter().map(field).find(|text| !text.is_empty())
    }

    fn flag(&self, field: impl Fn(&Policy) -> Option<bool>) -> Option<bool> {
        self.iter().find_map(field)
    }

    fn allows(&self, origin: &[u8]) -> bool {
        let origins = self.iter().map(|p| &p.origins).find(|origins| !origins.is_empty());
        // `*` as an exact match is every origin.
        origins.is_some_and(|all| all.iter().any(|m| m.as_exact() == Some(b"*") || m.matches(origin)))
    }

    fn switch(
        &self,
        field: impl Fn(&Policy) -> Option<&RuntimeFraction>,
        default: bool,
        worker: &WorkerContext,
    ) -> bool {
        let first = self.iter().next().and_then(field);
        first.map_or(default, |fraction| fraction.enabled(&*worker.runtime, worker.rng.u64()))
    }

    /// What every response to an allowed origin says.
    fn mark(&self, origin: &[u8], headers: &mut HeaderMap) {
        headers.set("access-control-allow-origin", origin);
        if self.flag(|p| p.credentials) == Some(true) {
            headers.set("access-control-allow-credentials", "true");
        }
        if let Some(text) = self.text(|p| &p.expose) {
            headers.set("access-control-expose-headers", text);
        }
    }
}

impl HttpFilter for Config {
    fn on_worker(&self, worker: &WorkerContext) -> MakeFilter {
        let stats = Rc::new(Stats::<Cors>::new(&worker.stats, self.scope));
        let (name, worker) = (self.name.clone(), worker.clone());
        Box::new(move || {
            let origin = Rc::<std::cell::RefCell<Option<Vec<u8>>>>::default();
            let (name, worker, stats) = (name.clone(), worker.clone(), stats.clone());
            let encode = Encode { name: name.clone(), origin: origin.clone() };
            let decode = Decode { name, worker, stats, origin };
            FilterHalves { decode: Some(Box::new(decode)), encode: Some(Box::new(encode)) }
        })
    }
}

struct Decode {
    name: Arc<str>,
    worker: WorkerContext,
    stats: Rc<Stats<Cors>>,
    /// Set once an allowed origin asks: then the response is marked.
    origin: Rc<std::cell::RefCell<Option<Vec<u8>>>>,
}

impl DecodeFilter for Decode {
    fn decode_headers(&mut self, head: &mut RequestHead, _end: bool, stream: &StreamControl) -> Step {
        let Some(route) = stream.route() else { return Step::CONTINUE };
        let levels = Levels(route.filter_configs(&self.name));
        if levels.iter().next().is_none() {
            return Step::CONTINUE;
        }
        let enabled = levels.switch(|p| p.enabled.as_ref(), true, &self.worker);
        if !enabled && !levels.switch(|p| p.shadow.as_ref(), false, &self.worker) {
            return Step::CONTINUE;
        }
        let origin = match head.headers.get("origin") {
            Some(origin) if !origin.is_empty() => origin,
            _ => return Step::CONTINUE,
        };
        let wanted = head.headers.get("access-control-request-method").filter(|m| !m.is_empty());
        let preflight = head.method() == b"OPTIONS" && wanted.is_some();
        if !levels.allows(origin) {
            self.stats.inc(ORIGIN_INVALID);
            if preflight && enabled && levels.flag(|p| p.forward_preflights) == Some(false) {
                return Step::respond(LocalReply::new(200, "cors_response"));
            }
            return Step::CONTINUE;
        }
        self.stats.inc(ORIGIN_VALID);
        if !enabled {
            return Step::CONTINUE;
        }
        *self.origin.borrow_mut() = Some(origin.to_vec());
        if !preflight {
            return Step::CONTINUE;
        }
        let mut reply = LocalReply::new(200, "cors_response");
        for (name, value) in [
            ("access-control-allow-methods", levels.text(|p| &p.methods)),
            ("access-control-allow-headers", levels.text(|p| &p.headers)),
            ("access-control-max-age", levels.text(|p| &p.max_age)),
        ] {
            if let Some(value) = value {
                reply = reply.header(name, value.to_owned());
            }
        }
        let asks_private = head.headers.get("access-control-request-private-network") == Some(b"true");
        if asks_private && levels.flag(|p| p.private_network) == Some(true) {
            reply = reply.header("access-control-allow-private-network", "true");
        }
        Step::respond(reply)
    }

    fn reset(&mut self) {
        self.origin.borrow_mut().take();
    }
}

struct Encode {
    name: Arc<str>,
    origin: Rc<std::cell::RefCell<Option<Vec<u8>>>>,
}

impl EncodeFilter for Encode {
    fn encode_headers(&mut self, head: &mut ResponseHead, _end: bool, stream: &StreamControl) -> Step {
        if let (Some(origin), Some(route)) = (&*self.origin.borrow(), stream.route()) {
            Levels(route.filter_configs(&self.name)).mark(origin, &mut head.headers);
        }
        Step::CONTINUE
    }

    fn reset(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Bench, FILTERS};

    fn bench() -> Bench {
        Bench::new(
            &format!(r#"{{name: cors, typed_config: {{"@type": {FILTERS}.cors.v3.Cors}}}}"#),
            &format!(
                r#"{{match: {{prefix: /c}}, route: {{cluster: c}}, typed_per_filter_config: {{cors: {{"@type":
                {FILTERS}.cors.v3.CorsPolicy, allow_origin_string_match: [{{exact: "http://good.test"}}], allow_methods:
                "GET, PUT", max_age: "600", expose_headers: x-e, allow_credentials: true}}}}}},
                {{match: {{prefix: /}}, route: {{cluster: c}}}}"#
            ),
        )
    }

    // Expected: recorded from Envoy 1.40 (filter_fault_cors_buffer).
    #[tokio::test(flavor = "local", start_paused = true)]
    async fn preflights_of_allowed_origins_are_answered_and_others_go_upstream() {
        let bench = bench();
        let preflight = |origin: &str| format!("origin: {origin}\r\naccess-control-request-method: PUT\r\n");
        let good = bench.request("OPTIONS", "/c", &preflight("http://good.test"), "").await;
        assert_eq!((good.status(), &*good.upstream), ("200", ""));
        assert_eq!(good.field("access-control-allow-origin"), Some("http://good.test"));
        assert_eq!(good.field("access-control-allow-methods"), Some("GET, PUT"));
        assert_eq!(good.field("access-control-max-age"), Some("600"));
        assert_eq!(good.field("access-control-expose-headers"), Some("x-e"));
        let bad = bench.request("OPTIONS", "/c", &preflight("http://evil.test"), "").await;
        assert_eq!((bad.body(), bad.field("access-control-allow-origin")), ("ok", None));
        let elsewhere = bench.request("OPTIONS", "/x", &preflight("http://good.test"), "").await;
        assert_eq!(elsewhere.body(), "ok");
        assert_eq!([bench.stat("http.in.cors.origin_valid"), bench.stat("http.in.cors.origin_invalid")], [1, 1]);
    }

    #[tokio::test(flavor = "local", start_paused = true)]
    async fn a_response_to_an_allowed_origin_is_marked() {
        let bench = bench();
        let answer = bench.get("/c", "origin: http://good.test\r\n").await;
        assert_eq!(answer.field("access-control-allow-origin"), Some("http://good.test"));
        assert_eq!(answer.field("access-control-allow-credentials"), Some("true"));
        assert_eq!(answer.field("access-control-allow-methods"), None);
        assert_eq!(bench.get("/c", "").await.field("access-control-allow-origin"), None);
    }
}
