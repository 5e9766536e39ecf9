//! The terminal filter: a stream's route, its cluster, and the attempts to get a response from it.
//!
//! One [`Router`] lives in each stream record and is reset with it. It owns the attempts (the
//! upstream streams), the timeouts that belong to the route, and the decision what a failure or a
//! response means: another attempt, or what the client gets. Here is what happens once for a
//! request; `attempts` has what happens for each attempt, `verdicts` what is decided after it.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use nuncio_api::supports;
use nuncio_core::access_log::LogContext;
use nuncio_core::http::{LocalReply, RequestHead, ResponseHead, RouteView, StreamControl};
use nuncio_core::stats::lists::http as http_stat;
use nuncio_core::stream_info::ResponseFlag;
use tokio::time::Instant;

use super::internal_redirect::Redirects;
use super::policy::ForwardPolicy;
use super::replay::Kept;
use super::retry_state::RetryState;
use super::shadow::Feed;
use super::tally::{Apart, Tally};
use super::timeouts::{Timeouts, grpc_timeout, grpc_timeout_text};
use super::upstream_log::AttemptLog;
use super::upstream_request::{Kind, UpstreamRequest};
use super::{Action, HashInput, MatchContext, Route};
use crate::codec::Buffers;
use crate::http::conn_manager::HttpConnectionManager;
use crate::upstream::ThreadLocalCluster;
use crate::upstream::circuit_breaker::Priority;

mod attempts;
mod piped;
mod verdicts;

pub use verdicts::{Expired, Heard, Next};

supports!(pub(super) ACTION = "envoy.config.route.v3.RouteAction" {
    idle_timeout, max_stream_duration, max_grpc_timeout, grpc_timeout_offset, priority, hash_policy, retry_policy,
    hedge_policy, request_mirror_policies, auto_host_rewrite, internal_redirect_policy, internal_redirect_action,
    max_internal_redirects, upgrade_configs
});
supports!(pub(super) UPGRADE = "envoy.config.route.v3.RouteAction.UpgradeConfig" {
    upgrade_type, enabled, connect_config
});
supports!(pub(super) CONNECT_CONFIG = "envoy.config.route.v3.RouteAction.UpgradeConfig.ConnectConfig" {
} values {
    allow_post: ["false"],
});
supports!(pub(super) ROUTE = "envoy.config.route.v3.Route" {
    per_request_buffer_limit_bytes, request_body_buffer_limit, stat_prefix
});
supports!(pub(super) MAX_STREAM_DURATION = "envoy.config.route.v3.RouteAction.MaxStreamDuration" {
    max_stream_duration, grpc_timeout_header_max, grpc_timeout_header_offset
});
supports!(pub(super) RETRY = "envoy.config.route.v3.RetryPolicy" {
    retry_on, num_retries, per_try_timeout, per_try_idle_timeout, retry_priority, retry_host_predicate,
    host_selection_retry_max_attempts, retriable_status_codes, retry_back_off, rate_limited_retry_back_off,
    retriable_headers, retriable_request_headers
});
supports!(pub(super) RETRY_PRIORITY = "envoy.config.route.v3.RetryPolicy.RetryPriority" { name, typed_config });
supports!(pub(super) RETRY_HOST = "envoy.config.route.v3.RetryPolicy.RetryHostPredicate" { name, typed_config });
supports!(pub(super) BACK_OFF = "envoy.config.route.v3.RetryPolicy.RetryBackOff" { base_interval, max_interval });
supports!(pub(super) RATE_LIMITED = "envoy.config.route.v3.RetryPolicy.RateLimitedRetryBackOff" {
    reset_headers, max_interval
});
supports!(pub(super) RESET_HEADER = "envoy.config.route.v3.RetryPolicy.ResetHeader" { name, format });
supports!(pub(super) PREVIOUS_HOSTS = "envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate" {});
supports!(pub(super) OMIT_CANARY = "envoy.extensions.retry.host.omit_canary_hosts.v3.OmitCanaryHostsPredicate" {});
supports!(pub(super) OMIT_METADATA = "envoy.extensions.retry.host.omit_host_metadata.v3.OmitHostMetadataConfig" {
    metadata_match
});
supports!(pub(super) PREVIOUS_PRIORITIES =
    "envoy.extensions.retry.priority.previous_priorities.v3.PreviousPrioritiesConfig" { update_frequency });
supports!(pub(super) HEDGE = "envoy.config.route.v3.HedgePolicy" {
    hedge_on_per_try_timeout
} noop {
    initial_requests: "Envoy 1.40 does not read it either",
    additional_request_chance: "Envoy 1.40 does not read it either",
});
supports!(pub(super) MIRROR = "envoy.config.route.v3.RouteAction.RequestMirrorPolicy" {
    cluster, cluster_header, runtime_fraction, disable_shadow_host_suffix_append, host_rewrite_literal
} noop {
    trace_sampled: "no tracer is implemented",
});
supports!(pub(super) INTERNAL_REDIRECT = "envoy.config.route.v3.InternalRedirectPolicy" {
    max_internal_redirects, redirect_response_codes, predicates, allow_cross_scheme_redirect, response_headers_to_copy
});
supports!(pub(super) PREVIOUS_ROUTES =
    "envoy.extensions.internal_redirect.previous_routes.v3.PreviousRoutesConfig" {});
supports!(pub(super) SAFE_CROSS_SCHEME =
    "envoy.extensions.internal_redirect.safe_cross_scheme.v3.SafeCrossSchemeConfig" {});
supports!(pub(super) ALLOW_LISTED =
    "envoy.extensions.internal_redirect.allow_listed_routes.v3.AllowListedRoutesConfig" { allowed_route_names });
supports!(pub(super) CONFIG = "envoy.config.route.v3.RouteConfiguration" { request_mirror_policies });
supports!(pub(super) VIRTUAL_CLUSTER = "envoy.config.route.v3.VirtualCluster" { name, headers });
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
    include_request_attempt_count, include_attempt_count_in_response, include_is_timeout_retry_header, retry_policy,
    hedge_policy, virtual_clusters, per_request_buffer_limit_bytes, request_body_buffer_limit, request_mirror_policies
});

/// A stream's routing state.
#[derive(Default)]
pub struct Router {
    /// The request's `x-envoy-*` controls may be honoured.
    pub internal: bool,
    route: Option<Arc<Route>>,
    cluster: Option<Rc<ThreadLocalCluster>>,
    /// The newest attempt.
    upstream: UpstreamRequest,
    /// Slow attempts that a newer one races (hedging). Each has sent all of the request and waits for its response.
    raced: Vec<UpstreamRequest>,
    /// Which of them the response head is from that was read last.
    answering: Option<usize>,
    attempts: u32,
    retry: Option<RetryState>,
    /// Another attempt begins then.
    retry_at: Option<Instant>,
    /// At least one attempt was a retry.
    retried: bool,
    /// The last attempt ended because it took too long.
    timed_out: bool,
    /// A connection that closed under an idempotent request was replaced already.
    replaced_stale: bool,
    /// Some attempt has sent something of the request.
    request_sent: bool,
    /// What was sent of the body.
    kept: Kept,
    /// The mirrors that get a copy, by their place in the route's list, and the head that they get.
    mirrored: Vec<usize>,
    original: Option<Box<RequestHead>>,
    /// Copies under way whose request is not complete.
    copies: Vec<Feed>,
    /// Redirects of upstreams that were followed.
    redirects: Redirects,
    timeouts: Timeouts,
    /// When the last byte of the request came.
    request_end: Option<Instant>,
    deadline: Option<Instant>,
    /// A response was taken for the client.
    accepted: bool,
    response_ended: bool,
    set_cookies: Vec<String>,
    hash: Option<u64>,
    kind: Kind,
    /// Virtual cluster and route, where they are counted apart.
    apart: Apart,
    /// A gRPC call whose codes of HTTP say nothing to whoever counts them.
    hides_code: bool,
    /// For `upstream_log`, where there is one.
    attempt_log: Option<AttemptLog>,
}

impl Router {
    /// Matches the route for the head as it is now.
    pub fn select(&mut self, request: &RequestHead, control: &StreamControl, manager: &HttpConnectionManager) {
        let route = self.find(request, control, manager);
        let mut info = control.info_mut();
        info.route_name = route.as_ref().and_then(|r| r.shared_name().cloned());
        info.virtual_host_name = route.as_ref().map(|r| r.virtual_host().name.clone());
        *control.state().route.borrow_mut() = route.clone().map(|r| r as Arc<dyn RouteView>);
        self.route = route;
    }

    fn find(
        &self,
        request: &RequestHead,
        control: &StreamControl,
        manager: &HttpConnectionManager,
    ) -> Option<Arc<Route>> {
        let connection = control.connection();
        let info = control.info();
        let context = MatchContext {
            random: manager.worker.context.rng.u64(),
            runtime: &*manager.runtime,
            connection: connection.as_deref(),
            info: Some(&info),
        };
        manager.config.routes.find(request, &context)
    }

    pub fn route(&self) -> Option<&Route> {
        self.route.as_deref()
    }

    pub fn has_route(&self) -> bool {
        self.route.is_some()
    }

    /// Whether the request may be upgraded, and how that goes upstream.
    pub fn allow_upgrade(&mut self, kind: &[u8], request: &RequestHead, manager: &HttpConnectionManager) -> bool {
        let upgrades = self.route.as_ref().and_then(|r| r.policy()).map_or(&[][..], |policy| &policy.upgrades);
        let allowed = manager.config.upgrades.allow(kind, upgrades);
        let ends_here = request.method() == b"CONNECT"
            && upgrades.iter().any(|upgrade| *upgrade.kind == *"connect" && upgrade.terminates_connect);
        self.kind = if ends_here { Kind::Terminated } else { Kind::Upgrade };
        allowed
    }

    /// The upstream agreed to the upgrade.
    pub fn is_tunnel(&self) -> bool {
        self.upstream.is_tunnel()
    }

    /// The route's own `idle_timeout`, if it has one: `Some(None)` switches it off.
    pub fn idle_timeout(&self) -> Option<Option<Duration>> {
        let idle = self.route.as_ref()?.policy()?.idle_timeout?;
        Some((!idle.is_zero()).then_some(idle))
    }

    /// The route's own limit on the whole stream, if it has one. A gRPC call may ask for less.
    pub fn max_stream_duration(&self, request: &mut RequestHead) -> Option<Option<Duration>> {
        let limits = self.route.as_ref()?.policy()?.max_stream_duration?;
        if let (Some(max), Some(mut asked)) = (limits.grpc_timeout_header_max, grpc_timeout(&request.headers)) {
            if !max.is_zero() {
                asked = asked.min(max);
            }
            let asked = asked.saturating_sub(limits.grpc_timeout_header_offset.unwrap_or_default());
            // The upstream hears what the call really has.
            if !asked.is_zero() {
                request.headers.set("grpc-timeout", grpc_timeout_text(asked));
            }
            return Some(Some(asked));
        }
        let max = limits.max?;
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
                if let Some(refused) = manager.config.router.strict_headers.check(&request.headers) {
                    return Some(refused);
                }
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
        self.count_apart(route, request, control, manager);
        self.attempt_log = (!manager.upstream_loggers.is_empty()).then(AttemptLog::default);
        self.hides_code = manager.config.router.suppress_grpc_code_stats && request.is_grpc();
        if let Some(reply) = self.drop_overload(&cluster, manager) {
            return Some(reply);
        }
        self.hash_for(&policy, &cluster, request, control);
        let config = &manager.config.router;
        let (retry, hedge) = (route.retry_policy(), route.hedge_policy());
        let respect = config.respect_expected_rq_timeout;
        self.timeouts = Timeouts::new(&policy, retry.map(|r| &**r), hedge, request, respect);
        let keep_original = !config.suppress_envoy_headers;
        self.timeouts.tell(&mut request.headers, Duration::ZERO, keep_original);
        // Only kept for statistics that are not.
        request.headers.remove("x-envoy-upstream-alt-stat-name");
        if route.virtual_host().include_request_attempt_count {
            request.headers.set_u64("x-envoy-attempt-count", 1);
        }
        manager
            .with_scratch(control, |context, scratch| route.finalize_request(request, context, keep_original, scratch));
        self.retry = RetryState::new(retry, &mut request.headers);
        self.choose_mirrors(route, request, manager);
        let keep = self.retry.as_ref().is_some_and(RetryState::is_enabled) || policy.internal_redirect.is_some();
        if keep {
            self.kept.start(body_limit(route, manager));
        }
        self.cluster = Some(cluster);
        None
    }

    /// The number by which balancers choose that hash: the policy of the balancer goes before that of the route.
    fn hash_for(
        &mut self,
        policy: &ForwardPolicy,
        cluster: &ThreadLocalCluster,
        request: &RequestHead,
        control: &StreamControl,
    ) {
        let own = cluster.config().lb.hash_policy.as_ref();
        if own.is_some() || !policy.hash_policy.is_empty() {
            let (info, connection) = (control.info(), control.connection());
            let input = HashInput { head: request, connection: connection.as_deref(), info: Some(&info) };
            self.hash = match own {
                Some(own) => own.0.hash(&input, None),
                None => policy.hash_policy.hash(&input, Some(&mut self.set_cookies)),
            };
        }
    }

    /// Turns the request away if discovery says that this cluster is to get less, and chance hits it.
    fn drop_overload(&self, cluster: &ThreadLocalCluster, manager: &HttpConnectionManager) -> Option<LocalReply> {
        let part = u64::from(cluster.hosts().drop_overload);
        if part == 0 {
            return None;
        }
        let limit = manager.runtime.integer("load_balancing_policy.drop_overload_limit").unwrap_or(100).min(100);
        if manager.worker.context.rng.below(1_000_000) >= part * limit / 100 {
            return None;
        }
        self.tally_of(cluster).charge(503, self.internal);
        let reply = LocalReply::new(503, "unconditional_drop_overload")
            .body("unconditional drop overload")
            .flag(ResponseFlag::UnconditionalDropOverload);
        if manager.config.router.suppress_envoy_headers {
            return Some(reply);
        }
        Some(reply.header("x-envoy-unconditional-drop-overload", "true"))
    }

    fn choose_mirrors(&mut self, route: &Route, request: &RequestHead, manager: &HttpConnectionManager) {
        let mirrors = route.mirrors();
        if mirrors.is_empty() || self.kind != Kind::Request {
            return;
        }
        let random = manager.worker.context.rng.u64();
        let chosen = mirrors.iter().enumerate().filter(|(_, mirror)| mirror.applies(&*manager.runtime, random));
        self.mirrored.extend(chosen.map(|(at, _)| at));
        if !self.mirrored.is_empty() {
            self.original = Some(Box::new(request.clone()));
        }
    }

    fn count_apart(
        &mut self,
        route: &Route,
        request: &RequestHead,
        control: &StreamControl,
        manager: &HttpConnectionManager,
    ) {
        let virtual_cluster = route.virtual_host().virtual_cluster(&request.headers);
        let stats = |scope| manager.vhosts.get(scope, &manager.worker.context.stats);
        self.apart = [virtual_cluster.map(|c| stats(c.scope)), route.stats_scope().map(stats)];
        control.info_mut().virtual_cluster_name = virtual_cluster.map(|c| c.name.clone());
    }

    fn priority(&self) -> Priority {
        match self.route.as_ref().and_then(|r| r.policy()) {
            Some(policy) if policy.high_priority => Priority::High,
            _ => Priority::Default,
        }
    }

    fn tally(&self) -> Option<Tally<'_>> {
        self.cluster.as_ref().map(|cluster| self.tally_of(cluster))
    }

    fn tally_of<'t>(&'t self, cluster: &'t ThreadLocalCluster) -> Tally<'t> {
        Tally { cluster, priority: self.priority(), apart: &self.apart, hides_code: self.hides_code }
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

    /// Ready for the next request. Field by field, since a fresh record would be made elsewhere and copied here.
    pub fn reset(&mut self, buffers: &Buffers) {
        self.kept.stop(buffers);
        let Self {
            internal,
            route,
            cluster,
            upstream,
            raced,
            answering,
            attempts,
            retry,
            retry_at,
            retried,
            timed_out,
            replaced_stale,
            request_sent,
            kept,
            mirrored,
            original,
            copies,
            redirects,
            timeouts,
            request_end,
            deadline,
            accepted,
            response_ended,
            set_cookies,
            hash,
            kind,
            apart,
            hides_code,
            attempt_log,
        } = self;
        upstream.reset();
        raced.clear();
        mirrored.clear();
        copies.clear();
        set_cookies.clear();
        (*route, *cluster, *retry, *original, *attempt_log) = (None, None, None, None, None);
        (*answering, *retry_at, *request_end, *deadline, *hash) = (None, None, None, None, None);
        (*internal, *retried, *timed_out, *replaced_stale) = (false, false, false, false);
        (*request_sent, *accepted, *response_ended, *hides_code) = (false, false, false, false);
        *attempts = 0;
        *kept = Kept::default();
        *redirects = Redirects::default();
        *timeouts = Timeouts::default();
        *kind = Kind::default();
        *apart = Apart::default();
    }

    /// The request begins again as what a redirect made of it. Returns its body.
    pub fn start_over(&mut self, buffers: &Buffers) -> Vec<u8> {
        let body = self.kept.take();
        let redirects = std::mem::take(&mut self.redirects);
        let internal = self.internal;
        self.reset(buffers);
        (self.redirects, self.internal) = (redirects, internal);
        body
    }
}

/// How much of a body is kept: what the route says, else what the connection may buffer.
fn body_limit(route: &Route, manager: &HttpConnectionManager) -> u64 {
    route.buffer_limit().unwrap_or(match manager.config.buffer_limit {
        0 => u64::MAX,
        limit => limit.into(),
    })
}
