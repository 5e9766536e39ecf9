//! The terminal filter: a stream's route, its cluster, and the attempts to get a response from it.
//!
//! One [`Router`] lives in each stream record and is reset with it. It owns the attempt (the
//! upstream stream), the timeouts that belong to the route, and the decision what a failure means:
//! another attempt, or the answer that the client gets.

use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use nuncio_api::supports;
use nuncio_core::access_log::LogContext;
use nuncio_core::http::{Chunk, HeaderMap, LocalReply, RequestHead, ResponseHead, RouteView, StreamControl};
use nuncio_core::stats::lists::cluster::{self as stat};
use nuncio_core::stats::lists::http as http_stat;
use nuncio_core::stream_info::ResponseFlag;
use tokio::time::Instant;

use super::failure::{Failure, Reset};
use super::upstream_request::UpstreamRequest;
use super::{Action, HashInput, MatchContext, Route};
use crate::codec::{Body, Buffers};
use crate::http::conn_manager::HttpConnectionManager;
use crate::upstream::ThreadLocalCluster;
use crate::upstream::circuit_breaker::Priority;

supports!(pub(super) ACTION = "envoy.config.route.v3.RouteAction" {
    idle_timeout, max_stream_duration, priority, hash_policy
});
supports!(pub(super) MAX_STREAM_DURATION = "envoy.config.route.v3.RouteAction.MaxStreamDuration" {
    max_stream_duration
});
supports!(pub(super) HASH_POLICY = "envoy.config.route.v3.RouteAction.HashPolicy" {
    header, cookie, connection_properties, query_parameter, filter_state, terminal
});
supports!(pub(super) HASH_HEADER = "envoy.config.route.v3.RouteAction.HashPolicy.Header" { header_name, regex_rewrite });
supports!(pub(super) HASH_COOKIE = "envoy.config.route.v3.RouteAction.HashPolicy.Cookie" {
    name, ttl, path, attributes
});
supports!(pub(super) HASH_ATTRIBUTE = "envoy.config.route.v3.RouteAction.HashPolicy.CookieAttribute" { name, value });
supports!(pub(super) HASH_CONNECTION = "envoy.config.route.v3.RouteAction.HashPolicy.ConnectionProperties" { source_ip });
supports!(pub(super) HASH_QUERY = "envoy.config.route.v3.RouteAction.HashPolicy.QueryParameter" { name });
supports!(pub(super) HASH_STATE = "envoy.config.route.v3.RouteAction.HashPolicy.FilterState" { key });
supports!(pub(super) HOST = "envoy.config.route.v3.VirtualHost" {
    include_request_attempt_count, include_attempt_count_in_response
});

/// Request controls that end here: the upstream is no party to them.
const CONTROLS: &[&str] = &[
    "x-envoy-upstream-rq-timeout-ms",
    "x-envoy-upstream-rq-per-try-timeout-ms",
    "x-envoy-upstream-rq-timeout-alt-response",
    "x-envoy-retry-on",
    "x-envoy-retry-grpc-on",
    "x-envoy-max-retries",
    "x-envoy-hedge-on-per-try-timeout",
    "x-envoy-retriable-status-codes",
    "x-envoy-retriable-header-names",
];

/// A stream's routing state.
#[derive(Default)]
pub struct Router {
    /// The request's `x-envoy-*` controls may be honoured.
    pub internal: bool,
    route: Option<Arc<Route>>,
    cluster: Option<Rc<ThreadLocalCluster>>,
    upstream: UpstreamRequest,
    attempts: u32,
    /// A connection that closed under an idempotent request was replaced already.
    replaced_stale: bool,
    /// The request may be sent again: nothing of its body was taken from the client.
    replayable: bool,
    /// The whole exchange, from the request's end; `None` is for ever.
    timeout: Option<Duration>,
    deadline: Option<Instant>,
    /// `x-envoy-upstream-rq-timeout-alt-response`: a timeout is answered with 204.
    alt_response: bool,
    response_ended: bool,
    /// When the first attempt began, for `x-envoy-upstream-service-time`.
    started: Option<Instant>,
    set_cookies: Vec<String>,
    hash: Option<u64>,
}

impl Router {
    /// Matches the route for the head as it is now. Returns which filters it disables, a bit each.
    pub fn select(&mut self, request: &RequestHead, control: &StreamControl, manager: &HttpConnectionManager) -> u64 {
        let connection = control.connection();
        let route = {
            let info = control.info();
            let context = MatchContext {
                random: manager.worker.context.rng.u64(),
                runtime: &*manager.runtime,
                connection: connection.as_deref(),
                info: Some(&info),
            };
            manager.config.routes.find(request, &context).cloned()
        };
        let skip = manager.disabled_filters(route.as_deref());
        let mut info = control.info_mut();
        info.route_name = route.as_ref().and_then(|r| r.shared_name().cloned());
        info.virtual_host_name = route.as_ref().map(|r| r.virtual_host().name.clone());
        *control.state().route.borrow_mut() = route.clone().map(|r| r as Arc<dyn RouteView>);
        self.route = route;
        skip
    }

    /// The route's own `idle_timeout`, if it has one: `Some(None)` switches it off.
    pub fn idle_timeout(&self) -> Option<Option<Duration>> {
        let idle = self.route.as_ref()?.policy()?.idle_timeout?;
        Some((!idle.is_zero()).then_some(idle))
    }

    /// The route's own limit on the whole stream, if it has one.
    pub fn max_stream_duration(&self) -> Option<Option<Duration>> {
        let max = self.route.as_ref()?.policy()?.max_stream_duration?.max?;
        Some((!max.is_zero()).then_some(max))
    }

    /// The filters are through: finds where the request goes, or the answer why it goes nowhere.
    pub fn start(
        &mut self,
        request: &mut RequestHead,
        control: &StreamControl,
        manager: &HttpConnectionManager,
    ) -> Option<LocalReply> {
        let Some(route) = self.route.clone() else {
            manager.router.inc(http_stat::NO_ROUTE);
            return Some(LocalReply::new(404, "route_not_found").flag(ResponseFlag::NoRouteFound));
        };
        match route.action() {
            // `rq_redirect` stays 0 in Envoy 1.40.
            Action::Redirect(_) | Action::DirectResponse(_) => manager.router.inc(http_stat::RQ_DIRECT_RESPONSE),
            Action::NonForwarding => {
                return Some(LocalReply::new(404, "route_not_found").flag(ResponseFlag::NoRouteFound));
            }
            Action::Forward { .. } => {
                manager.router.inc(http_stat::RQ_TOTAL);
                return self.forward(&route, request, control, manager);
            }
        }
        let keep_original = !manager.config.router.suppress_envoy_headers;
        manager.with_scratch(control, |context, scratch| route.local_reply(request, context, keep_original, scratch))
    }

    fn forward(
        &mut self,
        route: &Arc<Route>,
        request: &mut RequestHead,
        control: &StreamControl,
        manager: &HttpConnectionManager,
    ) -> Option<LocalReply> {
        let policy = route.policy()?.clone();
        let cluster = manager.worker.clusters.get(route.cluster(request).unwrap_or_default());
        let Some(cluster) = cluster else {
            manager.router.inc(http_stat::NO_CLUSTER);
            return Some(
                LocalReply::new(policy.cluster_not_found_status, "cluster_not_found")
                    .flag(ResponseFlag::NoClusterFound),
            );
        };
        control.info_mut().upstream_cluster = Some(cluster.info().clone());
        if !policy.hash_policy.is_empty() {
            let connection = control.connection();
            let info = control.info();
            let input = HashInput { head: request, connection: connection.as_deref(), info: Some(&info) };
            self.hash = policy.hash_policy.hash(&input, Some(&mut self.set_cookies));
        }
        self.set_timeouts(request, (!policy.timeout.is_zero()).then_some(policy.timeout), manager);
        let keep_original = !manager.config.router.suppress_envoy_headers;
        manager
            .with_scratch(control, |context, scratch| route.finalize_request(request, context, keep_original, scratch));
        if keep_original {
            if let Some(timeout) = self.timeout {
                request.headers.set_u64("x-envoy-expected-rq-timeout-ms", timeout.as_millis() as u64);
            }
            if route.virtual_host().include_request_attempt_count {
                request.headers.set_u64("x-envoy-attempt-count", 1);
            }
        }
        self.replayable = request.framing.is_none();
        self.cluster = Some(cluster);
        None
    }

    /// The route's timeout, or what an internal client asks for.
    fn set_timeouts(&mut self, request: &mut RequestHead, route: Option<Duration>, manager: &HttpConnectionManager) {
        let headers = &mut request.headers;
        self.timeout = route;
        let mut asked = milliseconds(headers.get("x-envoy-upstream-rq-timeout-ms"));
        if asked.is_none() && manager.config.router.respect_expected_rq_timeout {
            asked = milliseconds(headers.get("x-envoy-expected-rq-timeout-ms"));
        }
        if let Some(asked) = asked {
            self.timeout = (!asked.is_zero()).then_some(asked);
        }
        self.alt_response = headers.contains("x-envoy-upstream-rq-timeout-alt-response");
        for name in CONTROLS {
            headers.remove(name);
        }
    }

    fn priority(&self) -> Priority {
        match self.route.as_ref().and_then(|r| r.policy()) {
            Some(policy) if policy.high_priority => Priority::High,
            _ => Priority::Default,
        }
    }

    // === the request ===

    /// Gets an upstream stream: chooses a host and waits for a connection to it.
    pub fn poll_open(&mut self, cx: &mut Context<'_>, control: &StreamControl) -> Poll<Result<(), Failure>> {
        let Some(cluster) = self.cluster.clone() else { return Poll::Pending };
        if self.upstream.is_idle() {
            self.attempts += 1;
            control.info_mut().attempt_count = self.attempts;
            self.started.get_or_insert(control.now());
            let downstream = control.info().protocol.unwrap_or_default();
            self.upstream.begin(&cluster, self.priority(), self.hash, downstream)?;
        }
        self.upstream.poll_open(cx, &cluster, self.priority(), control)
    }

    pub fn send_head(
        &mut self,
        request: &RequestHead,
        end: bool,
        control: &StreamControl,
        buffers: &Buffers,
    ) -> Result<(), Failure> {
        self.upstream.send_head(request, end, control, buffers)
    }

    pub fn send_data(&mut self, cx: &mut Context<'_>, buffers: &Buffers, data: &Chunk<'_>) -> Result<(), Failure> {
        if data.is_empty() {
            return Ok(());
        }
        self.replayable = false;
        self.upstream.send_data(cx, buffers, data, false)
    }

    pub fn send_end(&mut self, cx: &mut Context<'_>, buffers: &Buffers) -> Result<(), Failure> {
        self.upstream.send_data(cx, buffers, &Chunk::Lent(&[]), true)
    }

    pub fn send_trailers(&mut self, trailers: &HeaderMap, buffers: &Buffers) -> Result<(), Failure> {
        self.upstream.send_trailers(trailers, buffers)
    }

    /// Ready when the upstream takes more.
    pub fn poll_writable(&mut self, cx: &mut Context<'_>, buffers: &Buffers) -> Poll<Result<(), Failure>> {
        self.upstream.poll_writable(cx, buffers)
    }

    /// How much is worth reading for the upstream at once.
    pub fn read_size(&self) -> usize {
        self.upstream.read_size()
    }

    /// Writes what can be written now.
    pub fn flush(&mut self, cx: &mut Context<'_>, buffers: &Buffers) -> Result<(), Failure> {
        self.upstream.flush(cx, buffers)
    }

    /// The request is with the upstream: the route's timeout begins.
    pub fn request_sent(&mut self, now: Instant) {
        if self.deadline.is_none() {
            self.deadline = self.timeout.map(|d| now + d);
        }
    }

    // === the response ===

    pub fn poll_response(
        &mut self,
        cx: &mut Context<'_>,
        head: &mut ResponseHead,
        manager: &HttpConnectionManager,
        scratch: &mut [u8],
    ) -> Poll<Result<(), Failure>> {
        self.upstream.poll_response(cx, head, &manager.worker.buffers, scratch)
    }

    /// A final head has come: completed by what the route says, and counted.
    pub fn response_head(
        &mut self,
        head: &mut ResponseHead,
        request: &RequestHead,
        control: &StreamControl,
        manager: &HttpConnectionManager,
    ) {
        let now = control.now();
        {
            let mut info = control.info_mut();
            info.timings.first_upstream_rx = Some(now);
            info.response_code = Some(head.status);
            info.upstream_header_bytes_received = head.headers.byte_size() as u64;
        }
        self.upstream.count_status(head.status);
        if let Some(cluster) = &self.cluster {
            cluster.stats().charge(head.status, self.internal);
        }
        if !manager.config.router.suppress_envoy_headers {
            let started = self.started.unwrap_or(now);
            head.headers.set_u64("x-envoy-upstream-service-time", now.duration_since(started).as_millis() as u64);
            if self.route.as_ref().is_some_and(|r| r.virtual_host().include_attempt_count_in_response) {
                head.headers.set_u64("x-envoy-attempt-count", self.attempts.into());
            }
        }
        for cookie in &self.set_cookies {
            head.headers.append("set-cookie", cookie.as_bytes());
        }
        self.finalize_response(head, request, control, manager);
    }

    /// What the route says of a response: the upstream's, or the answer of a route that does not
    /// forward.
    pub fn finalize_response(
        &self,
        head: &mut ResponseHead,
        request: &RequestHead,
        control: &StreamControl,
        manager: &HttpConnectionManager,
    ) {
        let Some(route) = &self.route else { return };
        manager.with_scratch(control, |context, scratch| {
            route.finalize_response(head, &LogContext { request: Some(request), ..*context }, scratch);
        });
    }

    /// The route answers by itself.
    pub fn answers(&self) -> bool {
        self.route.as_ref().is_some_and(|r| matches!(r.action(), Action::Redirect(_) | Action::DirectResponse(_)))
    }

    pub fn poll_body<'s>(&mut self, cx: &mut Context<'_>, scratch: &'s mut [u8]) -> Poll<Result<Body<'s>, Failure>> {
        let event = ready!(self.upstream.poll_body(cx, scratch));
        if matches!(event, Ok(Body::End | Body::Trailers(_))) {
            self.response_ended = true;
        }
        Poll::Ready(event)
    }

    pub fn response_ended(&self) -> bool {
        self.response_ended
    }

    /// The response is read to its end: the connection may serve others.
    pub fn response_complete(&mut self, control: &StreamControl) {
        let now = control.now();
        control.info_mut().timings.last_upstream_rx = Some(now);
        self.response_ended = true;
        self.deadline = None;
        if let (Some(cluster), Some(started)) = (&self.cluster, self.started) {
            let took = now.duration_since(started).as_millis() as u64;
            cluster.stats().charge_time(took, self.internal);
        }
        self.upstream.complete(control);
    }

    // === ends ===

    /// The earliest of the route's deadlines.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// The route's time is up.
    pub fn expire(&mut self, now: Instant) -> Option<Failure> {
        if self.deadline.is_none_or(|at| at > now) {
            return None;
        }
        self.deadline = None;
        if let Some(cluster) = &self.cluster {
            cluster.stats().retries.inc(stat::UPSTREAM_RQ_TIMEOUT);
        }
        self.upstream.count_timeout();
        Some(Failure::new(Reset::ResponseTimeout))
    }

    /// An attempt failed before a response: `None` is another attempt, else what the client gets.
    pub fn failed(&mut self, failure: Failure, request: &RequestHead, control: &StreamControl) -> Option<LocalReply> {
        self.upstream.failed(&failure);
        let idempotent = matches!(request.method(), b"GET" | b"HEAD" | b"OPTIONS" | b"TRACE" | b"PUT" | b"DELETE");
        if failure.stale_connection && self.replayable && idempotent && !self.replaced_stale {
            // The upstream closed a kept connection just as the request was sent on it (RFC 9110
            // §9.2.2 allows to repeat these): once, on another connection.
            self.replaced_stale = true;
            if let Some(cluster) = &self.cluster {
                cluster.stats().retries.inc(stat::UPSTREAM_RQ_RETRY);
            }
            return None;
        }
        if let Some(transport) = &failure.transport {
            control.info_mut().upstream_transport_failure = Some(transport.clone());
        }
        let mut reply = match failure.reset {
            Reset::NoHealthyHost => LocalReply::new(503, "no_healthy_upstream")
                .body("no healthy upstream")
                .flag(ResponseFlag::NoHealthyUpstream),
            _ => failure.reply(self.attempts > 1 && !self.replaced_stale),
        };
        if failure.reset == Reset::ResponseTimeout && self.alt_response {
            reply.status = 204;
            reply.body = Default::default();
        }
        if let Some(cluster) = &self.cluster {
            cluster.stats().charge(reply.status, self.internal);
        }
        Some(reply)
    }

    /// The response was cut after its head had passed.
    pub fn failed_after_response(&mut self, failure: &Failure, manager: &HttpConnectionManager) {
        self.upstream.failed(failure);
        manager.router.inc(http_stat::RQ_RESET_AFTER_DOWNSTREAM_RESPONSE_STARTED);
    }

    /// An answer of the proxy's own goes out: the upstream stream, if there is one, is reset.
    pub fn abandon(&mut self) {
        self.deadline = None;
        self.upstream.cancel();
    }

    pub fn reset(&mut self) {
        self.upstream.reset();
        self.route = None;
        self.cluster = None;
        self.set_cookies.clear();
        *self = Self {
            upstream: std::mem::take(&mut self.upstream),
            set_cookies: std::mem::take(&mut self.set_cookies),
            ..Self::default()
        };
    }
}

/// A whole number of milliseconds in a header's value.
fn milliseconds(value: Option<&[u8]>) -> Option<Duration> {
    std::str::from_utf8(value?).ok()?.trim().parse().ok().map(Duration::from_millis)
}
