//! The filter's two halves: the request waits for the answer, the response gets the fields that came with it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use nuncio_api::pb::envoy::config::core::v3::header_value_option::HeaderAppendAction;
use nuncio_api::pb::google::protobuf::{Struct, Value, value::Kind};
use nuncio_core::access_log::LogContext;
use nuncio_core::extension::WorkerContext;
use nuncio_core::http::{
    DecodeFilter, EncodeFilter, FilterHalves, LocalReply, MakeFilter, Outcome, RequestHead, ResponseHead, Step,
    StreamControl, Verdict as Decision,
};
use nuncio_core::stats::{ScopeId, Stats};
use nuncio_core::stream_info::{FilterStateObject, ResponseFlag};
use tokio::time::Instant;

use super::answer::{Answer, Changes, Field, Refusal, Verdict};
use super::check_request::{self, Collected};
use super::config::{BodySettings, RouteSettings, Service, Settings, status_in_range};
use super::mutations::{Invalid, frames};
use super::stats::{
    ClusterCounts, DENIED, DISABLED, ERROR, Event, ExtAuthz, FAILURE_MODE_ALLOWED, FILTER_STATE_NAME_COLLISION,
    IGNORED_DYNAMIC_METADATA, INVALID, OK, REQUEST_HEADER_LIMITS_REACHED, RESPONSE_HEADER_LIMITS_REACHED,
    SHADOW_DENIED, SHADOW_ERROR,
};
use super::{grpc_client, hardening};

/// Told upstream about a request that went on without an answer.
const FAILURE_MODE_HEADER: &str = "x-envoy-auth-failure-mode-allowed";

/// The filter on one worker.
pub(super) fn on_worker(settings: &Arc<Settings>, scope: ScopeId, worker: &WorkerContext) -> MakeFilter {
    let shared = Rc::new(Shared {
        settings: settings.clone(),
        stats: Stats::new(&worker.stats, scope),
        clusters: ClusterCounts::new(worker, &settings.stat_prefix),
        worker: worker.clone(),
    });
    Box::new(move || {
        let response = Rc::new(RefCell::new(Vec::new()));
        let request = Request { shared: shared.clone(), body: None, since: None, response: response.clone() };
        let response = Response { shared: shared.clone(), fields: response };
        FilterHalves { decode: Some(Box::new(request)), encode: Some(Box::new(response)) }
    })
}

struct Shared {
    settings: Arc<Settings>,
    stats: Stats<ExtAuthz>,
    clusters: ClusterCounts,
    worker: WorkerContext,
}

type ResponseFields = Rc<RefCell<Vec<(HeaderAppendAction, Field)>>>;

struct Request {
    shared: Rc<Shared>,
    /// How the body that was asked for is wanted.
    body: Option<BodySettings>,
    /// When the check began.
    since: Option<Instant>,
    response: ResponseFields,
}

impl DecodeFilter for Request {
    fn decode_headers(&mut self, head: &mut RequestHead, end: bool, stream: &StreamControl) -> Step {
        let settings = &*self.shared.settings;
        let runtime = &*self.shared.worker.runtime;
        if stream.route().is_none() && !hardening::checks_without_route(runtime) {
            return Step::CONTINUE;
        }
        let route = stream.route_config::<RouteSettings>(&settings.name);
        if route.as_ref().is_some_and(|route| route.disabled) {
            return Step::CONTINUE;
        }
        if !self.shared.is_enabled(stream) {
            self.shared.stats.inc(DISABLED);
            if settings.deny_at_disable.as_ref().is_some_and(|flag| flag.is_set(runtime)) {
                return refuse(settings.status_on_error, "ext_authz_error");
            }
            return Step::CONTINUE;
        }
        let body = match &route {
            Some(route) if route.without_body => None,
            Some(route) => route.body.or(settings.body),
            None => settings.body,
        };
        // Bytes of a tunnel are no body, and would be waited for until the other side spoke.
        let tunnel = stream.state().is_upgrade.get() || head.method() == b"CONNECT" || is_upgrade(head);
        match body {
            Some(body) if !end && !tunnel => {
                self.body = Some(body);
                Step::Now(Decision::NeedBody { limit: body.most, partial: body.partial })
            }
            _ => self.check(head, None, stream),
        }
    }

    fn decode_body(
        &mut self,
        head: &mut RequestHead,
        body: &mut Vec<u8>,
        complete: bool,
        stream: &StreamControl,
    ) -> Step {
        let Some(settings) = self.body.take() else { return Step::CONTINUE };
        let told = &body[..body.len().min(settings.most)];
        let complete = complete && told.len() == body.len();
        self.check(head, Some(Collected { body: told, complete, as_bytes: settings.as_bytes }), stream)
    }

    fn resume(&mut self, outcome: Outcome, head: &mut RequestHead, stream: &StreamControl) -> Step {
        match outcome.downcast::<Answer>() {
            Ok(answer) => self.decide(*answer, head, stream),
            Err(_) => self.failed(Refusal::default(), head, stream),
        }
    }

    fn reset(&mut self) {
        self.body = None;
        self.since = None;
        self.response.borrow_mut().clear();
    }
}

impl Request {
    fn check(&mut self, head: &RequestHead, body: Option<Collected<'_>>, stream: &StreamControl) -> Step {
        let settings = &*self.shared.settings;
        let worker = &self.shared.worker;
        let route = stream.route();
        let levels = route.as_ref().map_or(&[][..], |route| route.filter_configs(&settings.name));
        let levels = || levels.iter().filter_map(|level| level.downcast_ref::<RouteSettings>());
        let mut extensions = HashMap::new();
        for level in levels() {
            extensions.extend(level.extensions.iter().map(|(k, v)| (k.clone(), v.clone())));
        }
        let service = levels().next_back().and_then(|level| level.service.clone()).unwrap_or(settings.service.clone());
        let question = check_request::of_request(&settings.telling, &settings.headers, head, body, extensions, stream);
        self.since = Some(stream.now());
        let connection = stream.connection();
        let info = stream.info();
        let told = LogContext {
            request: Some(head),
            connection: connection.as_deref(),
            route: route.as_deref(),
            rng: Some(&worker.rng),
            ..LogContext::new(&info)
        };
        match service {
            Service::Grpc(service) => Step::later(grpc_client::check(&service, &question, &told, worker)),
            Service::Http(service) => Step::later(service.check(question, &told, worker)),
        }
    }

    fn decide(&mut self, answer: Answer, head: &mut RequestHead, stream: &StreamControl) -> Step {
        let shared = self.shared.clone();
        shared.tell_cost(self.since, stream);
        let allowed = matches!(answer.verdict, Verdict::Allowed(_));
        shared.keep(answer.metadata, self.since.filter(|_| allowed), stream);
        match answer.verdict {
            Verdict::Allowed(changes) => self.allowed(*changes, head, stream),
            Verdict::Denied(refusal) if hardening::is_error(refusal.code, &*shared.worker.runtime) => {
                self.failed(Refusal::default(), head, stream)
            }
            Verdict::Denied(refusal) => shared.denied(refusal, stream),
            Verdict::Error(refusal) => self.failed(refusal, head, stream),
        }
    }

    fn allowed(&mut self, changes: Changes, head: &mut RequestHead, stream: &StreamControl) -> Step {
        let shared = &self.shared;
        let settings = &*shared.settings;
        let valid = changes.check(settings.strict).and_then(|()| changes.apply(head, settings.rules.as_ref()));
        if let Err(why) = valid {
            if why == Invalid::TooLarge {
                shared.stats.inc(REQUEST_HEADER_LIMITS_REACHED);
            }
            return shared.invalid(stream);
        }
        shared.count(stream, OK, Event::Ok);
        if settings.shadow {
            shared.note(Shadow { result: "OK", status: 200, headers: Vec::new() }, stream);
        }
        if settings.clear_route_cache && changes.touch_request() {
            stream.clear_route();
        } else if hardening::holds_the_route(&*shared.worker.runtime) {
            stream.state().route_decided.set(true);
        }
        *self.response.borrow_mut() = changes.response;
        Step::CONTINUE
    }

    /// There was no answer.
    fn failed(&mut self, refusal: Refusal, head: &mut RequestHead, stream: &StreamControl) -> Step {
        let shared = &self.shared;
        let settings = &*shared.settings;
        shared.count(stream, ERROR, Event::Error);
        let status = refusal.status.map_or(settings.status_on_error, status_in_range);
        if settings.shadow {
            shared.stats.inc(SHADOW_ERROR);
            shared.note(Shadow { result: "ERROR", status, headers: Vec::new() }, stream);
            return Step::CONTINUE;
        }
        if settings.failure_mode_allow {
            shared.count(stream, FAILURE_MODE_ALLOWED, Event::FailureModeAllowed);
            if settings.mark_failure {
                head.headers.set(FAILURE_MODE_HEADER, "true");
            }
            return Step::CONTINUE;
        }
        if refusal.check().is_err() {
            return shared.invalid(stream);
        }
        shared.answer(status, refusal, "ext_authz_error")
    }
}

impl Shared {
    fn is_enabled(&self, stream: &StreamControl) -> bool {
        let settings = &*self.settings;
        let chance = settings.enabled.as_ref();
        let metadata = settings.enabled_metadata.as_ref();
        chance.is_none_or(|enabled| enabled.enabled(&*self.worker.runtime, self.worker.rng.u64()))
            && metadata.is_none_or(|matcher| matcher.matches(&stream.info().dynamic_metadata))
    }

    fn count(&self, stream: &StreamControl, counter: nuncio_core::stats::Counter<ExtAuthz>, event: Event) {
        self.stats.inc(counter);
        let route = stream.route();
        self.clusters.count(route.as_ref().and_then(|route| route.cluster_name()), event);
    }

    /// With `emit_filter_state_stats`: for `%FILTER_STATE(<this filter>:FIELD:latency_us)%`.
    fn tell_cost(&self, since: Option<Instant>, stream: &StreamControl) {
        let Some(since) = since.filter(|_| self.settings.tell_cost) else { return };
        let state = &mut stream.info_mut().filter_state;
        if state.get(&self.settings.name).is_some() {
            return self.stats.inc(FILTER_STATE_NAME_COLLISION);
        }
        state.set(&self.settings.name, Arc::new(Cost { latency: Instant::now().duration_since(since) }));
    }

    /// Leaves what the service told in the stream's metadata; of an allowed request also how long it took.
    fn keep(&self, mut metadata: Struct, since: Option<Instant>, stream: &StreamControl) {
        if metadata.fields.is_empty() {
            return;
        }
        if !self.settings.take_metadata {
            self.stats.inc(IGNORED_DYNAMIC_METADATA);
            return;
        }
        if let Some(since) = since {
            let took = Instant::now().duration_since(since).as_millis() as f64;
            metadata.fields.insert("ext_authz_duration".into(), Value { kind: Some(Kind::NumberValue(took)) });
        }
        stream.info_mut().dynamic_metadata.merge(&self.settings.name, metadata);
    }

    fn denied(&self, refusal: Refusal, stream: &StreamControl) -> Step {
        let settings = &*self.settings;
        self.count(stream, DENIED, Event::Denied);
        let status = refusal.status.map_or(403, status_in_range);
        if settings.shadow {
            self.stats.inc(SHADOW_DENIED);
            self.note(Shadow { result: "DENIED", status, headers: refusal.headers }, stream);
            return Step::CONTINUE;
        }
        if refusal.check().is_err() {
            return self.invalid(stream);
        }
        if settings.charge {
            let route = stream.route();
            self.clusters.charge(route.as_ref().and_then(|route| route.cluster_name()), status);
        }
        self.answer(status, refusal, "ext_authz_denied")
    }

    /// The answer cannot be followed.
    fn invalid(&self, stream: &StreamControl) -> Step {
        self.count(stream, INVALID, Event::Invalid);
        refuse(500, "ext_authz_invalid")
    }

    fn answer(&self, status: u16, refusal: Refusal, details: &'static str) -> Step {
        let mut body = refusal.body;
        if let Some(most) = self.settings.most_denied_body {
            body.truncate(most);
        }
        let mut reply = LocalReply::new(status, details).flag(ResponseFlag::UnauthorizedExternalService).body(body);
        for (name, value) in refusal.headers {
            if !frames(&name) && !name.starts_with(':') {
                reply = reply.header(name, Bytes::from(value));
            }
        }
        Step::respond(reply)
    }

    fn note(&self, decision: Shadow, stream: &StreamControl) {
        stream.info_mut().filter_state.set(&format!("{}.shadow", self.settings.name), Arc::new(decision));
    }
}

fn refuse(status: u16, details: &'static str) -> Step {
    Step::respond(LocalReply::new(status, details).flag(ResponseFlag::UnauthorizedExternalService))
}

/// A request that asks for another protocol may wait for the answer before it says anything.
fn is_upgrade(head: &RequestHead) -> bool {
    let asks = head.headers.get("connection").unwrap_or_default();
    let asks = asks.split(|b| *b == b',').any(|token| token.trim_ascii().eq_ignore_ascii_case(b"upgrade"));
    asks && head.headers.contains("upgrade")
}

/// What a check cost.
struct Cost {
    latency: Duration,
}

impl FilterStateObject for Cost {
    fn text(&self) -> Option<String> {
        None
    }

    fn field(&self, name: &str) -> Option<String> {
        (name == "latency_us").then(|| self.latency.as_micros().to_string())
    }
}

/// `ShadowDecision`: what would have happened.
struct Shadow {
    result: &'static str,
    status: u16,
    headers: Vec<Field>,
}

impl FilterStateObject for Shadow {
    fn text(&self) -> Option<String> {
        let mut text = serde_json::json!({"checkResult": self.result, "statusCode": self.status});
        if !self.headers.is_empty() {
            let header =
                |(name, value): &Field| serde_json::json!({"key": name, "value": String::from_utf8_lossy(value)});
            text["responseHeaders"] = self.headers.iter().map(header).collect();
        }
        Some(text.to_string())
    }
}

/// The response's half: the fields that came with a yes.
struct Response {
    shared: Rc<Shared>,
    fields: ResponseFields,
}

impl EncodeFilter for Response {
    fn encode_headers(&mut self, head: &mut ResponseHead, _end: bool, _stream: &StreamControl) -> Step {
        let fields = self.fields.take();
        if fields.is_empty() {
            return Step::CONTINUE;
        }
        for (action, (name, value)) in fields {
            if frames(&name) || name.starts_with(':') {
                continue;
            }
            let there = head.headers.contains(&name);
            match action {
                HeaderAppendAction::AppendIfExistsOrAdd => head.headers.append(name, value),
                HeaderAppendAction::AddIfAbsent if !there => head.headers.append(name, value),
                HeaderAppendAction::OverwriteIfExistsOrAdd => head.headers.set_given(&name, value),
                HeaderAppendAction::OverwriteIfExists if there => head.headers.set_given(&name, value),
                HeaderAppendAction::AddIfAbsent | HeaderAppendAction::OverwriteIfExists => {}
            }
        }
        if self.shared.settings.limit_response && !head.is_within_limits() {
            self.shared.stats.inc(RESPONSE_HEADER_LIMITS_REACHED);
            return refuse(500, "ext_authz_invalid");
        }
        Step::CONTINUE
    }

    fn reset(&mut self) {}
}

#[cfg(test)]
mod tests;
