//! `fault`: delays and aborts requests on purpose (`envoy.extensions.filters.http.fault.v3.HTTPFault`,
//! also per route, where it replaces the filter's own).
//!
//! What happens may come from the configuration, from runtime keys (`fault.http.…`) or from the
//! request's own headers (`x-envoy-fault-…`) where that is configured. Flags `DI` and `FI`; stats
//! `http.<prefix>.fault.{delays,aborts}_injected`, `faults_overflow`, `active_faults`, and the
//! counters also under the caller's cluster. A limited response is held back in the pieces in which it
//! comes; `response_rl_injected` counts it.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use nuncio_api::pb::envoy::extensions::filters::common::fault::v3::{
    FaultDelay, FaultRateLimit, fault_delay::FaultDelaySecifier, fault_rate_limit::LimitType,
};
use nuncio_api::pb::envoy::extensions::filters::http::fault::v3::{self as pb, fault_abort::ErrorType};
use nuncio_api::pb::google::protobuf::Any as ProtoAny;
use nuncio_api::support::Entry;
use nuncio_api::{supports, unpack};
use nuncio_core::error::ConfigError;
use nuncio_core::extension::{FactoryContext, WorkerContext};
use nuncio_core::http::{
    Chunk, DecodeFilter, EncodeFilter, FilterHalves, HttpFilter, HttpFilterFactory, LocalReply, MakeFilter, Outcome,
    RequestHead, Step, StreamControl,
};
use nuncio_core::matcher::HeaderMatcher;
use nuncio_core::runtime::FractionalPercent;
use nuncio_core::stats::{GaugeGuard, Kind, NamedCounter, ScopeId, Stats};
use nuncio_core::stream_info::ResponseFlag;

use tokio::time::Instant;

use super::http_scope;

supports!(CONFIG = "envoy.extensions.filters.http.fault.v3.HTTPFault" {
    delay, abort, upstream_cluster, headers, downstream_nodes, max_active_faults, delay_percent_runtime,
    abort_percent_runtime, delay_duration_runtime, abort_http_status_runtime, max_active_faults_runtime,
    abort_grpc_status_runtime, disable_downstream_cluster_stats, response_rate_limit,
    response_rate_limit_percent_runtime
});
supports!(RATE = "envoy.extensions.filters.common.fault.v3.FaultRateLimit" { percentage, fixed_limit, header_limit });
supports!(FIXED_LIMIT = "envoy.extensions.filters.common.fault.v3.FaultRateLimit.FixedLimit" { limit_kbps });
supports!(HEADER_LIMIT = "envoy.extensions.filters.common.fault.v3.FaultRateLimit.HeaderLimit" {});
supports!(ABORT = "envoy.extensions.filters.http.fault.v3.FaultAbort" {
    percentage, http_status, grpc_status, header_abort, response_body
});
supports!(HEADER_ABORT = "envoy.extensions.filters.http.fault.v3.FaultAbort.HeaderAbort" {});
supports!(DELAY = "envoy.extensions.filters.common.fault.v3.FaultDelay" { percentage, fixed_delay, header_delay });
supports!(HEADER_DELAY = "envoy.extensions.filters.common.fault.v3.FaultDelay.HeaderDelay" {});
pub(super) static SUPPORTED: &[&Entry] =
    &[&CONFIG, &ABORT, &HEADER_ABORT, &DELAY, &HEADER_DELAY, &RATE, &FIXED_LIMIT, &HEADER_LIMIT];

nuncio_core::stats! {
    /// What was done to requests.
    pub Fault at ["fault."] {
        counter ABORTS_INJECTED;
        counter DELAYS_INJECTED;
        counter FAULTS_OVERFLOW;
        counter RESPONSE_RL_INJECTED;
        gauge ACTIVE_FAULTS;
    }
}

/// Callers say their cluster in a header, so only so many get stats of their own.
const MAX_CALLERS: usize = 256;

pub struct Factory;

impl HttpFilterFactory for Factory {
    fn name(&self) -> &'static str {
        "envoy.filters.http.fault"
    }

    fn config_type(&self) -> &'static str {
        CONFIG.message
    }

    fn route_config_type(&self) -> Option<&'static str> {
        Some(CONFIG.message)
    }

    fn create(&self, config: &ProtoAny, context: &FactoryContext<'_>) -> Result<Arc<dyn HttpFilter>, ConfigError> {
        let settings = Arc::new(Settings::new(unpack(config)?)?);
        Ok(Arc::new(Config { name: context.name.into(), scope: http_scope::<Fault>(context), settings }))
    }

    fn create_route_config(
        &self,
        config: &ProtoAny,
        _context: &FactoryContext<'_>,
    ) -> Result<Arc<dyn Any + Send + Sync>, ConfigError> {
        Ok(Arc::new(Settings::new(unpack(config)?)?))
    }
}

struct Config {
    name: Arc<str>,
    scope: ScopeId,
    settings: Arc<Settings>,
}

/// How long, or which status: as configured, or as the request's header says.
#[derive(Clone, Copy)]
enum From<T> {
    Fixed(T),
    Header,
}

struct Settings {
    delay: Option<(FractionalPercent, From<u64>)>,
    abort: Option<Abort>,
    /// Of responses, in KiB a second.
    rate: Option<(FractionalPercent, From<u64>)>,
    upstream_cluster: String,
    headers: Vec<HeaderMatcher>,
    nodes: Vec<String>,
    max_active: Option<u64>,
    keys: Keys,
    caller_stats: bool,
}

struct Abort {
    percentage: FractionalPercent,
    http: Option<From<u16>>,
    grpc: Option<From<u32>>,
    body: String,
}

/// Runtime keys.
struct Keys {
    delay_percent: String,
    delay_ms: String,
    abort_percent: String,
    http_status: String,
    grpc_status: String,
    max_active: String,
    rate_percent: String,
}

impl Settings {
    fn new(proto: pb::HttpFault) -> Result<Self, ConfigError> {
        let or = |text: String, default: &str| if text.is_empty() { default.to_owned() } else { text };
        Ok(Self {
            delay: proto.delay.as_ref().and_then(delay),
            abort: proto.abort.map(|abort| {
                let (http, grpc) = match abort.error_type {
                    Some(ErrorType::HttpStatus(status)) => (Some(From::Fixed(status as u16)), None),
                    Some(ErrorType::GrpcStatus(status)) => (None, Some(From::Fixed(status))),
                    Some(ErrorType::HeaderAbort(_)) => (Some(From::Header), Some(From::Header)),
                    None => (None, None),
                };
                Abort { percentage: percent(abort.percentage.as_ref()), http, grpc, body: abort.response_body }
            }),
            rate: proto.response_rate_limit.as_ref().and_then(rate),
            upstream_cluster: proto.upstream_cluster,
            headers: HeaderMatcher::list(&proto.headers).map_err(|e| e.within("headers"))?,
            nodes: proto.downstream_nodes,
            max_active: proto.max_active_faults.map(|v| v.value.into()),
            keys: Keys {
                delay_percent: or(proto.delay_percent_runtime, "fault.http.delay.fixed_delay_percent"),
                delay_ms: or(proto.delay_duration_runtime, "fault.http.delay.fixed_duration_ms"),
                abort_percent: or(proto.abort_percent_runtime, "fault.http.abort.abort_percent"),
                http_status: or(proto.abort_http_status_runtime, "fault.http.abort.http_status"),
                grpc_status: or(proto.abort_grpc_status_runtime, "fault.http.abort.grpc_status"),
                max_active: or(proto.max_active_faults_runtime, "fault.http.max_active_faults"),
                rate_percent: or(proto.response_rate_limit_percent_runtime, "fault.http.rate_limit.response_percent"),
            },
            caller_stats: !proto.disable_downstream_cluster_stats,
        })
    }

    fn concerns(&self, head: &RequestHead, stream: &StreamControl) -> bool {
        let cluster = |name: &str| stream.route().and_then(|r| r.cluster_name().map(|c| c == name));
        let node = || head.headers.get("x-envoy-downstream-service-node");
        (self.upstream_cluster.is_empty() || cluster(&self.upstream_cluster) == Some(true))
            && self.headers.iter().all(|m| m.matches(&head.headers))
            && (self.nodes.is_empty() || self.nodes.iter().any(|n| Some(n.as_bytes()) == node()))
    }
}

fn delay(proto: &FaultDelay) -> Option<(FractionalPercent, From<u64>)> {
    let how = match proto.fault_delay_secifier.as_ref()? {
        FaultDelaySecifier::FixedDelay(d) => From::Fixed(nuncio_core::time::duration(d).as_millis() as u64),
        FaultDelaySecifier::HeaderDelay(_) => From::Header,
    };
    Some((percent(proto.percentage.as_ref()), how))
}

fn rate(proto: &FaultRateLimit) -> Option<(FractionalPercent, From<u64>)> {
    let how = match proto.limit_type.as_ref()? {
        LimitType::FixedLimit(limit) => From::Fixed(limit.limit_kbps),
        LimitType::HeaderLimit(_) => From::Header,
    };
    Some((percent(proto.percentage.as_ref()), how))
}

fn percent(proto: Option<&nuncio_api::pb::envoy::r#type::v3::FractionalPercent>) -> FractionalPercent {
    proto.map_or(FractionalPercent { numerator: 0, denominator: 100 }, FractionalPercent::from_proto)
}

fn number(head: &RequestHead, name: &str) -> Option<u64> {
    head.headers.get_str(name)?.parse().ok()
}

/// Below the configured fraction a request may ask for less, by a numerator of its own.
fn lowered(head: &RequestHead, name: &str, configured: FractionalPercent) -> FractionalPercent {
    let asked = number(head, name).unwrap_or(u64::from(configured.numerator));
    FractionalPercent { numerator: configured.numerator.min(asked.min(u64::from(u32::MAX)) as u32), ..configured }
}

impl HttpFilter for Config {
    fn on_worker(&self, worker: &WorkerContext) -> MakeFilter {
        let shared = Rc::new(Shared {
            name: self.name.clone(),
            own: self.settings.clone(),
            worker: worker.clone(),
            stats: Stats::new(&worker.stats, self.scope),
            callers: RefCell::default(),
            active: Rc::default(),
        });
        Box::new(move || {
            let slowed = Rc::<Cell<Option<u64>>>::default();
            let filter = Filter {
                shared: shared.clone(),
                settings: shared.own.clone(),
                active: None,
                limiting: None,
                caller: None,
                slowed: slowed.clone(),
            };
            FilterHalves { decode: Some(Box::new(filter)), encode: Some(Box::new(Slow { slowed, free: None })) }
        })
    }
}

struct Shared {
    name: Arc<str>,
    own: Arc<Settings>,
    worker: WorkerContext,
    stats: Stats<Fault>,
    /// By what callers said their cluster is: delays, aborts.
    callers: RefCell<BTreeMap<String, [NamedCounter; 2]>>,
    /// Streams of this worker that wait.
    active: Rc<()>,
}

impl Shared {
    fn chance(&self, key: &str, caller: Option<&str>, default: FractionalPercent) -> bool {
        let runtime = &*self.worker.runtime;
        let default = runtime.fraction(key).unwrap_or(default);
        let of_caller = caller.and_then(|caller| runtime.fraction(&of_caller(key, caller)));
        of_caller.unwrap_or(default).includes(self.worker.rng.u64())
    }

    fn number(&self, key: &str, caller: Option<&str>, default: u64) -> u64 {
        let runtime = &*self.worker.runtime;
        let of_caller = caller.and_then(|caller| runtime.integer(&of_caller(key, caller)));
        of_caller.or_else(|| runtime.integer(key)).unwrap_or(default)
    }

    fn count_for(&self, caller: Option<&str>, which: usize) {
        let Some(caller) = caller else { return };
        let mut callers = self.callers.borrow_mut();
        if !callers.contains_key(caller) {
            if callers.len() >= MAX_CALLERS {
                return;
            }
            let counter = |what: &str| {
                self.stats.worker().named(self.stats.scope(), &format!("fault.{caller}.{what}"), Kind::Counter)
            };
            callers.insert(caller.to_owned(), [counter("delays_injected"), counter("aborts_injected")]);
        }
        if let Some(counters) = callers.get(caller) {
            counters[which].inc();
        }
    }
}

/// `fault.http.<caller>.delay.…`, as Envoy names what is said of one caller only.
fn of_caller(key: &str, caller: &str) -> String {
    match key.strip_prefix("fault.http.") {
        Some(rest) => format!("fault.http.{caller}.{rest}"),
        None => format!("{key}.{caller}"),
    }
}

struct Filter {
    shared: Rc<Shared>,
    settings: Arc<Settings>,
    active: Option<Active>,
    /// The same, for a response that is held back.
    limiting: Option<Active>,
    caller: Option<String>,
    /// Bytes a second of the response.
    slowed: Rc<Cell<Option<u64>>>,
}

type Active = (GaugeGuard<Fault>, Rc<()>);

impl Filter {
    /// The delay in milliseconds, if chance and the request want one.
    fn delay(&self, head: &RequestHead) -> Option<u64> {
        let (configured, how) = self.settings.delay?;
        let (caller, keys) = (self.caller.as_deref(), &self.settings.keys);
        let fraction = match how {
            From::Fixed(_) => configured,
            From::Header => lowered(head, "x-envoy-fault-delay-request-percentage", configured),
        };
        if !self.shared.chance(&keys.delay_percent, caller, fraction) {
            return None;
        }
        let millis = match how {
            From::Fixed(millis) => millis,
            From::Header => number(head, "x-envoy-fault-delay-request")?,
        };
        Some(self.shared.number(&keys.delay_ms, caller, millis)).filter(|millis| *millis > 0)
    }

    fn abort(&self, head: &RequestHead) -> Option<LocalReply> {
        let abort = self.settings.abort.as_ref()?;
        let (caller, keys) = (self.caller.as_deref(), &self.settings.keys);
        let by_header = matches!(abort.http, Some(From::Header));
        let fraction = match by_header {
            false => abort.percentage,
            true => lowered(head, "x-envoy-fault-abort-request-percentage", abort.percentage),
        };
        if !self.shared.chance(&keys.abort_percent, caller, fraction) {
            return None;
        }
        let body = if abort.body.is_empty() { "fault filter abort" } else { &abort.body };
        let reply = |status| {
            let reply = LocalReply::new(status, "fault_filter_abort").body(body.to_owned());
            reply.flag(ResponseFlag::FaultInjected)
        };
        let http = match abort.http {
            Some(From::Fixed(status)) => Some(u64::from(status)),
            Some(From::Header) => number(head, "x-envoy-fault-abort-request"),
            None => None,
        };
        if let Some(status) = http {
            let status = self.shared.number(&keys.http_status, caller, status);
            return (200..600).contains(&status).then(|| reply(status as u16));
        }
        let grpc = match abort.grpc {
            Some(From::Fixed(status)) => u64::from(status),
            Some(From::Header) => number(head, "x-envoy-fault-abort-grpc-request")?,
            None => return None,
        };
        let status = self.shared.number(&keys.grpc_status, caller, grpc);
        Some(reply(200).grpc_status(u32::try_from(status).ok()?))
    }

    /// Aborts, or lets the request go on.
    fn decide(&mut self, head: &RequestHead) -> Step {
        self.active = None;
        let Some(reply) = self.abort(head) else { return Step::CONTINUE };
        if !self.admit() {
            return Step::CONTINUE;
        }
        self.shared.stats.inc(ABORTS_INJECTED);
        self.shared.count_for(self.caller.as_deref().filter(|_| self.settings.caller_stats), 1);
        Step::respond(reply)
    }

    /// One more active fault, unless there are too many: `max_active_faults` is each worker's.
    fn admit(&mut self) -> bool {
        let configured = self.settings.max_active.unwrap_or(u64::MAX);
        let max = self.shared.number(&self.settings.keys.max_active, None, configured);
        if Rc::strong_count(&self.shared.active) as u64 > max {
            self.shared.stats.inc(FAULTS_OVERFLOW);
            return false;
        }
        self.active = Some((self.shared.stats.gauge(ACTIVE_FAULTS), self.shared.active.clone()));
        true
    }

    /// The response will be slow, if chance and the request want it.
    fn limit(&mut self, head: &RequestHead) {
        let Some((configured, how)) = self.settings.rate else { return };
        let fraction = match how {
            From::Fixed(_) => configured,
            From::Header => lowered(head, "x-envoy-fault-throughput-response-percentage", configured),
        };
        let kib = match how {
            From::Fixed(kib) => Some(kib),
            From::Header => number(head, "x-envoy-fault-throughput-response").filter(|kib| *kib > 0),
        };
        let Some(kib) = kib else { return };
        if self.shared.chance(&self.settings.keys.rate_percent, self.caller.as_deref(), fraction) && self.admit() {
            self.limiting = self.active.take();
            self.shared.stats.inc(RESPONSE_RL_INJECTED);
            self.slowed.set(Some(kib.saturating_mul(1024)));
        }
    }
}

impl DecodeFilter for Filter {
    fn decode_headers(&mut self, head: &mut RequestHead, _end: bool, stream: &StreamControl) -> Step {
        if let Some(settings) = stream.route_config::<Settings>(&self.shared.name) {
            self.settings = settings;
        }
        if !self.settings.concerns(head, stream) {
            return Step::CONTINUE;
        }
        self.caller = head.headers.get_str("x-envoy-downstream-service-cluster").map(str::to_owned);
        self.limit(head);
        if let Some(millis) = self.delay(head)
            && self.admit()
        {
            self.shared.stats.inc(DELAYS_INJECTED);
            self.shared.count_for(self.caller.as_deref().filter(|_| self.settings.caller_stats), 0);
            stream.info_mut().flags.insert(ResponseFlag::DelayInjected);
            return Step::later(tokio::time::sleep(Duration::from_millis(millis)));
        }
        self.decide(head)
    }

    fn resume(&mut self, _outcome: Outcome, head: &mut RequestHead, _stream: &StreamControl) -> Step {
        self.decide(head)
    }

    fn reset(&mut self) {
        self.active = None;
        self.limiting = None;
        self.slowed.set(None);
        self.caller = None;
        self.settings = self.shared.own.clone();
    }
}

/// The response half: each piece waits until the ones before it and its own bytes have had their time.
struct Slow {
    slowed: Rc<Cell<Option<u64>>>,
    free: Option<Instant>,
}

impl EncodeFilter for Slow {
    fn encode_data(&mut self, chunk: &mut Chunk<'_>, _end: bool, stream: &StreamControl) -> Step {
        let Some(rate) = self.slowed.get().filter(|_| !chunk.is_empty()) else { return Step::CONTINUE };
        let begin = self.free.map_or(stream.now(), |free| free.max(stream.now()));
        let free = begin + Duration::from_secs_f64(chunk.len() as f64 / rate as f64);
        self.free = Some(free);
        Step::later(tokio::time::sleep_until(free))
    }

    fn reset(&mut self) {
        self.free = None;
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Bench, FILTERS};
    use std::time::Duration;

    fn bench() -> Bench {
        let fault = |rest: &str| format!(r#"{{"@type": {FILTERS}.fault.v3.HTTPFault, {rest}}}"#);
        let route = |prefix: &str, rest: &str| {
            format!(
                "{{match: {{prefix: {prefix}}}, route: {{cluster: c}}, typed_per_filter_config: {{f: {}}}}}, ",
                fault(rest)
            )
        };
        let all = "percentage: {numerator: 100}";
        let both = format!("delay: {{fixed_delay: 0.2s, {all}}}, abort: {{http_status: 501, {all}}}");
        let routes = [
            route("/abort", &format!("abort: {{http_status: 555, {all}}}")),
            route("/grpc", &format!("abort: {{grpc_status: 8, {all}}}")),
            route("/both", &format!("{both}, headers: [{{name: x-hurt, present_match: true}}]")),
            route("/none", &format!("max_active_faults: 0, abort: {{http_status: 555, {all}}}")),
            "{match: {prefix: /}, route: {cluster: c}}".to_owned(),
        ];
        let own = fault(&format!("abort: {{header_abort: {{}}, {all}}}, delay: {{header_delay: {{}}, {all}}}"));
        Bench::new(&format!("{{name: f, typed_config: {own}}}"), &routes.concat())
    }

    // Expected: recorded from Envoy 1.40 (filter_fault_cors_buffer).
    #[tokio::test(flavor = "local", start_paused = true)]
    async fn requests_are_aborted_and_delayed_as_the_route_says() {
        let bench = bench();
        let answer = bench.get("/abort", "").await;
        assert_eq!((answer.status(), answer.body()), ("555", "fault filter abort"));
        let answer = bench.get("/grpc", "").await;
        assert_eq!((answer.status(), answer.body()), ("200", "fault filter abort"));
        let answer = bench.get("/grpc", "content-type: application/grpc\r\n").await;
        assert_eq!(answer.field("grpc-status"), Some("8"));
        let answer = bench.get("/both", "x-hurt: 1\r\n").await;
        assert_eq!((answer.status(), answer.took >= Duration::from_millis(200)), ("501", true));
        assert_eq!(bench.get("/both", "").await.body(), "ok");
        assert_eq!(bench.get("/none", "").await.body(), "ok");
        let stats = ["aborts_injected", "delays_injected", "faults_overflow", "active_faults"];
        assert_eq!(stats.map(|s| bench.stat(&format!("http.in.fault.{s}"))), [4, 1, 1, 0]);
    }

    // Expected: recorded from Envoy 1.40: 3,000 bytes at 1 KiB/s take 2.9 s, at 2 KiB/s 1.5 s.
    #[tokio::test(flavor = "local", start_paused = true)]
    async fn a_response_is_as_slow_as_configured_or_asked_for() {
        let fault = |limit: &str| {
            format!(
                r#"{{name: f, typed_config: {{"@type": {FILTERS}.fault.v3.HTTPFault, response_rate_limit: {{{limit}, percentage: {{numerator: 100}}}}}}}}"#
            )
        };
        let route = "{match: {prefix: /}, route: {cluster: c}}";
        let response = format!("HTTP/1.1 200 OK\r\ncontent-length: 3000\r\n\r\n{}", "x".repeat(3_000));
        for (limit, fields, millis) in [
            ("fixed_limit: {limit_kbps: 1}", "", 2_929),
            ("header_limit: {}", "x-envoy-fault-throughput-response: 2\r\n", 1_464),
            ("header_limit: {}", "", 0),
        ] {
            let bench = Bench::new(&fault(limit), route);
            let request = format!("GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{fields}\r\n");
            let answer = bench.ask(request, &response).await;
            assert_eq!(answer.body().len(), 3_000);
            assert!(answer.took.as_millis().abs_diff(millis) < 5, "{limit}: {:?}", answer.took);
            let slowed = u64::from(millis > 0);
            assert_eq!(bench.stat("http.in.fault.response_rl_injected"), slowed);
            assert_eq!(bench.stat("http.in.fault.active_faults"), 0);
        }
    }

    #[tokio::test(flavor = "local", start_paused = true)]
    async fn a_request_may_ask_for_its_fault_where_that_is_configured() {
        let bench = bench();
        assert_eq!(bench.get("/h", "x-envoy-fault-abort-request: 418\r\n").await.status(), "418");
        assert_eq!(bench.get("/h", "x-envoy-fault-abort-request: banana\r\n").await.body(), "ok");
        assert_eq!(bench.get("/h", "x-envoy-fault-abort-request: 1000\r\n").await.body(), "ok");
        let answer = bench.get("/h", "x-envoy-fault-delay-request: 250\r\n").await;
        assert_eq!((answer.body(), answer.took >= Duration::from_millis(250)), ("ok", true));
    }
}
