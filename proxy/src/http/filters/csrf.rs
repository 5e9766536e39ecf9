//! `csrf`: requests that change something must come from their own origin
//! (`envoy.extensions.filters.http.csrf.v3.CsrfPolicy`, also per route).
//!
//! POST, PUT, DELETE and PATCH whose `origin` (else `referer`) is neither the host nor one of
//! `additional_origins` are answered with 403. Schemes do not count, ports do. Stats
//! `http.<prefix>.csrf.missing_source_origin`, `request_invalid`, `request_valid`.

use std::any::Any;
use std::rc::Rc;
use std::sync::Arc;

use nuncio_api::pb::envoy::extensions::filters::http::csrf::v3 as pb;
use nuncio_api::pb::google::protobuf::Any as ProtoAny;
use nuncio_api::support::Entry;
use nuncio_api::{supports, unpack};
use nuncio_core::error::ConfigError;
use nuncio_core::extension::{FactoryContext, WorkerContext};
use nuncio_core::http::{
    DecodeFilter, FilterHalves, HttpFilter, HttpFilterFactory, LocalReply, MakeFilter, RequestHead, Step, StreamControl,
};
use nuncio_core::matcher::StringMatcher;
use nuncio_core::runtime::RuntimeFraction;
use nuncio_core::stats::{ScopeId, Stats};

use super::http_scope;

supports!(CONFIG = "envoy.extensions.filters.http.csrf.v3.CsrfPolicy" {
    filter_enabled, shadow_enabled, additional_origins
});
pub(super) static SUPPORTED: &[&Entry] = &[&CONFIG];

nuncio_core::stats! {
    /// What was thought of requests that change something.
    pub Csrf at ["csrf."] {
        counter MISSING_SOURCE_ORIGIN;
        counter REQUEST_INVALID;
        counter REQUEST_VALID;
    }
}

pub struct Factory;

impl HttpFilterFactory for Factory {
    fn name(&self) -> &'static str {
        "envoy.filters.http.csrf"
    }

    fn config_type(&self) -> &'static str {
        CONFIG.message
    }

    fn route_config_type(&self) -> Option<&'static str> {
        Some(CONFIG.message)
    }

    fn create(&self, config: &ProtoAny, context: &FactoryContext<'_>) -> Result<Arc<dyn HttpFilter>, ConfigError> {
        let policy = Arc::new(Policy::new(&unpack(config)?)?);
        Ok(Arc::new(Config { name: context.name.into(), scope: http_scope::<Csrf>(context), policy }))
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
    policy: Arc<Policy>,
}

struct Policy {
    enabled: RuntimeFraction,
    shadow: RuntimeFraction,
    additional_origins: Vec<StringMatcher>,
}

impl Policy {
    fn new(proto: &pb::CsrfPolicy) -> Result<Self, ConfigError> {
        let fraction = |f: &Option<_>| {
            f.as_ref().map_or_else(|| RuntimeFraction::from_proto(&Default::default()), RuntimeFraction::from_proto)
        };
        let origins = proto.additional_origins.iter().map(StringMatcher::from_proto);
        Ok(Self {
            enabled: fraction(&proto.filter_enabled),
            shadow: fraction(&proto.shadow_enabled),
            additional_origins: origins.collect::<Result<_, _>>().map_err(|e| e.within("additional_origins"))?,
        })
    }
}

impl HttpFilter for Config {
    fn on_worker(&self, worker: &WorkerContext) -> MakeFilter {
        let filter = Filter {
            name: self.name.clone(),
            policy: self.policy.clone(),
            worker: worker.clone(),
            stats: Rc::new(Stats::new(&worker.stats, self.scope)),
        };
        Box::new(move || FilterHalves { decode: Some(Box::new(filter.clone())), encode: None })
    }
}

#[derive(Clone)]
struct Filter {
    name: Arc<str>,
    policy: Arc<Policy>,
    worker: WorkerContext,
    stats: Rc<Stats<Csrf>>,
}

impl DecodeFilter for Filter {
    fn decode_headers(&mut self, head: &mut RequestHead, _end: bool, stream: &StreamControl) -> Step {
        let policy = stream.route_config::<Policy>(&self.name).unwrap_or_else(|| self.policy.clone());
        let on = |fraction: &RuntimeFraction| fraction.enabled(&*self.worker.runtime, self.worker.rng.u64());
        let enabled = on(&policy.enabled);
        if !enabled && !on(&policy.shadow) {
            return Step::CONTINUE;
        }
        if !matches!(head.method(), b"POST" | b"PUT" | b"DELETE" | b"PATCH") {
            return Step::CONTINUE;
        }
        let source = source_origin(head);
        let target = host_and_port(head.authority().unwrap_or_default());
        if source.is_empty() {
            self.stats.inc(MISSING_SOURCE_ORIGIN);
        } else if source == target || policy.additional_origins.iter().any(|m| m.matches(source)) {
            self.stats.inc(REQUEST_VALID);
            return Step::CONTINUE;
        } else {
            self.stats.inc(REQUEST_INVALID);
        }
        if !enabled {
            return Step::CONTINUE;
        }
        Step::respond(LocalReply::new(403, "csrf_origin_mismatch").body("Invalid origin"))
    }

    fn reset(&mut self) {}
}

/// Where the request says that it comes from. `null` is a browser that will not tell.
fn source_origin(head: &RequestHead) -> &[u8] {
    match head.headers.get("origin") {
        Some(b"null") => b"",
        Some(origin) if !origin.is_empty() => host_and_port(origin),
        _ => host_and_port(head.headers.get("referer").unwrap_or_default()),
    }
}

/// Of an absolute URL, or of what stands there without a scheme.
fn host_and_port(url: &[u8]) -> &[u8] {
    let start = memchr::memmem::find(url, b"://").map_or(0, |i| i + 3);
    let rest = &url[start..];
    let end = rest.iter().position(|b| matches!(b, b'/' | b'?' | b'#')).unwrap_or(rest.len());
    &rest[..end]
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Bench, FILTERS};

    // Expected: recorded from Envoy 1.40 (filter_csrf_metadata).
    #[tokio::test(flavor = "local", start_paused = true)]
    async fn only_the_host_itself_and_its_friends_may_change_something() {
        let filter = format!(
            r#"{{name: csrf, typed_config: {{"@type": {FILTERS}.csrf.v3.CsrfPolicy, filter_enabled: {{default_value:
            {{numerator: 100}}}}, additional_origins: [{{suffix: .friend.test}}, {{exact: "ally.test:81"}}]}}}}"#
        );
        let bench = Bench::new(&filter, "{match: {prefix: /}, route: {cluster: c}}");
        for (fields, status) in [
            ("", "403"),
            ("origin: http://web.test\r\n", "200"),
            ("origin: https://web.test\r\n", "200"),
            ("origin: http://web.test:80\r\n", "403"),
            ("origin: null\r\n", "403"),
            ("origin: web.test\r\n", "200"),
            ("referer: http://web.test/page?q\r\n", "200"),
            ("referer: http://evil.test/web.test\r\n", "403"),
            ("origin: http://evil.test\r\nreferer: http://web.test/\r\n", "403"),
            ("origin: http://a.friend.test\r\n", "200"),
            ("origin: http://ally.test:81\r\n", "200"),
            ("origin: http://ally.test\r\n", "403"),
        ] {
            assert_eq!(bench.request("POST", "/", fields, "b").await.status(), status, "{fields}");
        }
        let answer = bench.request("DELETE", "/", "", "").await;
        assert_eq!((answer.status(), answer.body()), ("403", "Invalid origin"));
        assert_eq!(bench.get("/", "origin: http://evil.test\r\n").await.status(), "200");
        let stats = ["missing_source_origin", "request_invalid", "request_valid"];
        assert_eq!(stats.map(|s| bench.stat(&format!("http.in.csrf.{s}"))), [3, 4, 6]);
    }
}
