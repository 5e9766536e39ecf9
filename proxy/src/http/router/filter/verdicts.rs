//! What a failure, a response or a passed deadline means: another attempt, or what the client gets.

use std::time::Duration;

use nuncio_core::http::{LocalReply, RequestHead, ResponseHead, StreamControl};
use nuncio_core::stats::lists::cluster as stat;
use nuncio_core::stats::lists::http as http_stat;
use nuncio_core::stats::lists::vhost as vhost_stat;
use nuncio_core::stream_info::{Attempt, ResponseFlag};
use tokio::time::Instant;

use super::super::failure::{Failure, Reset};
use super::super::internal_redirect::Refusal;
use super::super::policy::InternalRedirectPolicy;
use super::super::retry_state::RetryStatus;
use super::super::route::Route;
use super::super::upstream_request::UpstreamRequest;
use super::Router;
use crate::http::conn_manager::HttpConnectionManager;

/// After a response's head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// The client gets it.
    Pass,
    /// The request is opened again.
    Again,
    /// Another attempt may still bring a better one.
    Wait,
    /// The request was changed by it and begins again.
    Redirect,
}

/// After a failure.
#[derive(Debug)]
pub enum Next {
    /// The request is opened again.
    Again,
    /// Another attempt may still bring a response.
    Wait,
    Reply(LocalReply),
}

/// After a deadline.
#[derive(Debug)]
pub enum Expired {
    /// Nothing that the stream must act on.
    Nothing,
    /// An attempt is slow: the request is opened again beside it.
    Again,
    Failed(Failure),
}

impl Router {
    // === after a response ===

    /// A final head has come: taken for the client, or not.
    pub fn judge(
        &mut self,
        head: &ResponseHead,
        request: &mut RequestHead,
        control: &StreamControl,
        manager: &HttpConnectionManager,
    ) -> Heard {
        let raced = self.answering.take();
        raced.map_or(&mut self.upstream, |at| &mut self.raced[at]).report_answer(head, control.now());
        let mut unwanted = false;
        if let Some(mut retry) = self.retry.take() {
            let context = &manager.worker.context;
            let status = match (raced, self.tally()) {
                // It was given up for slow: no third attempt because of it.
                (Some(_), _) if retry.would_retry_response(head) => RetryStatus::LimitExceeded,
                (None, Some(tally)) => retry.ask_response(head, &tally, &context.clock, &context.rng),
                _ => RetryStatus::No,
            };
            self.retry = Some(retry);
            if let RetryStatus::Yes(wait) = status {
                if let Some(tally) = self.tally() {
                    tally.charge_retried(head.status);
                }
                self.upstream.discard();
                self.schedule(wait, false, control);
                return Heard::Again;
            }
            if raced.is_none() {
                flag(status, control);
            }
            unwanted = status != RetryStatus::No;
        }
        if self.redirects(head, request, control, manager) {
            match raced {
                Some(at) => self.raced.swap_remove(at).set_aside(),
                None => self.upstream.set_aside(),
            }
            self.abandon();
            return Heard::Redirect;
        }
        if unwanted && self.others_under_way(raced) {
            match raced {
                Some(at) => self.raced.swap_remove(at).discard(),
                None => self.upstream.discard(),
            }
            return Heard::Wait;
        }
        if let Some(at) = raced {
            std::mem::swap(&mut self.upstream, &mut self.raced[at]);
            self.upstream.describe(control);
        }
        self.raced.clear();
        self.retry = None;
        self.retry_at = None;
        self.accepted = true;
        self.upstream.timers.answered();
        Heard::Pass
    }

    /// The response is a redirect that is followed here; the request has become what it asks for.
    fn redirects(
        &mut self,
        head: &ResponseHead,
        request: &mut RequestHead,
        control: &StreamControl,
        manager: &HttpConnectionManager,
    ) -> bool {
        let Some(route) = self.route.clone() else { return false };
        let Some(policy) = route.policy().and_then(|p| p.internal_redirect.as_ref()) else { return false };
        if !policy.follows(head.status) {
            return false;
        }
        let refused = self.redirect(&route, policy, head, request, control, manager).err();
        if let Some(cluster) = &self.cluster {
            cluster.stats().rare.inc(match refused {
                None => stat::UPSTREAM_INTERNAL_REDIRECT_SUCCEEDED_TOTAL,
                Some(_) => stat::UPSTREAM_INTERNAL_REDIRECT_FAILED_TOTAL,
            });
        }
        if let Some(Some(reason)) = refused {
            manager.router.inc(reason.counter());
        }
        refused.is_none()
    }

    fn redirect(
        &mut self,
        route: &Route,
        policy: &InternalRedirectPolicy,
        head: &ResponseHead,
        request: &mut RequestHead,
        control: &StreamControl,
        manager: &HttpConnectionManager,
    ) -> Result<(), Option<Refusal>> {
        // The whole request is needed again.
        if self.request_end.is_none() || !self.kept.is_whole() || !head.headers.contains("location") {
            return Err(None);
        }
        let saved = self.redirects.begin(policy, request, head).map_err(Some)?;
        let target = self.find(request, control, manager);
        let name = |route: &Route| route.shared_name().cloned().unwrap_or_default();
        let refused = match target {
            None => Some(Refusal::NoRoute),
            Some(target) => {
                let admitted = self.redirects.admits(policy, (&name(route), &name(&target)), &saved, request);
                (!admitted).then_some(Refusal::Predicate)
            }
        };
        if let Some(reason) = refused {
            saved.restore(request);
            return Err(Some(reason));
        }
        self.redirects.finish(request, head.status, &saved);
        Ok(())
    }

    /// Some attempt beside this one may still answer.
    fn others_under_way(&self, raced: Option<usize>) -> bool {
        match raced {
            Some(_) => self.raced.len() > 1 || self.retry_at.is_some() || self.upstream.is_under_way(),
            None => !self.raced.is_empty(),
        }
    }

    /// The head that the client gets: completed by what the route says, and counted.
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
        if let Some(tally) = self.tally() {
            tally.charge(head.status, self.internal);
        }
        // An answer that came before the request was complete tells nothing of the upstream's time.
        if let Some(end) = self.request_end.filter(|_| !manager.config.router.suppress_envoy_headers) {
            head.headers.set_u64("x-envoy-upstream-service-time", now.duration_since(end).as_millis() as u64);
        }
        if self.tells_attempts() {
            head.headers.set_u64("x-envoy-attempt-count", self.attempts.into());
        }
        for cookie in &self.set_cookies {
            head.headers.append("set-cookie", cookie.as_bytes());
        }
        self.finalize_response(head, request, control, manager);
    }

    fn tells_attempts(&self) -> bool {
        self.route.as_ref().is_some_and(|r| r.virtual_host().include_attempt_count_in_response)
    }

    // === after a failure ===

    /// The newest attempt failed before a response.
    pub fn failed(
        &mut self,
        failure: Failure,
        request: &RequestHead,
        control: &StreamControl,
        manager: &HttpConnectionManager,
    ) -> Next {
        self.request_sent |= self.upstream.is_sent();
        self.upstream.failed(&failure);
        if let Some(mut retry) = self.retry.take() {
            let status = self.tally().map_or(RetryStatus::No, |tally| {
                retry.ask_failure(&failure, self.request_sent, &tally, &manager.worker.context.rng)
            });
            self.retry = Some(retry);
            match status {
                RetryStatus::Yes(wait) => {
                    self.schedule(wait, failure.is_timeout(), control);
                    return Next::Again;
                }
                _ if self.replace_stale(&failure, request, control, manager) => return Next::Again,
                status => flag(status, control),
            }
        } else if self.replace_stale(&failure, request, control, manager) {
            return Next::Again;
        }
        self.give_up(failure, control)
    }

    fn give_up(&mut self, failure: Failure, control: &StreamControl) -> Next {
        if let Some(transport) = &failure.transport {
            control.info_mut().upstream_transport_failure = Some(transport.clone());
        }
        let mut reply = failure.reply(self.retried);
        if failure.is_timeout() && self.timeouts.alt_response {
            reply.status = 204;
            reply.body = Default::default();
        }
        if failure.reset == Reset::MaxStreamDuration && self.request_end.is_none() {
            reply.status = 408;
        }
        // The route's timeout was charged for each attempt that it ended.
        if failure.reset != Reset::ResponseTimeout
            && !self.accepted
            && let Some(tally) = self.tally()
        {
            tally.charge(reply.status, self.internal);
        }
        if !self.raced.is_empty() {
            self.upstream.cancel();
            return Next::Wait;
        }
        self.retry = None;
        if self.tells_attempts() {
            reply = reply.header("x-envoy-attempt-count", self.attempts.to_string());
        }
        Next::Reply(reply)
    }

    /// The upstream closed a kept connection just as the request was sent on it (RFC 9110 §9.2.2 allows to repeat
    /// some), or says that it did nothing with it (RFC 9113 §8.7 allows to repeat any): once, on another connection,
    /// whatever the retry policy says.
    fn replace_stale(
        &mut self,
        failure: &Failure,
        request: &RequestHead,
        control: &StreamControl,
        manager: &HttpConnectionManager,
    ) -> bool {
        let idempotent = matches!(request.method(), b"GET" | b"HEAD" | b"OPTIONS" | b"TRACE" | b"PUT" | b"DELETE");
        let harmless = failure.stale_connection && idempotent || failure.reset == Reset::RemoteRefusedStream;
        let allowed = || manager.runtime.integer("nuncio.safe_replay") != Some(0);
        if !harmless || self.replaced_stale || !self.kept.is_whole() || !allowed() {
            return false;
        }
        self.replaced_stale = true;
        if let Some(cluster) = &self.cluster {
            cluster.stats().retries.inc(stat::UPSTREAM_RQ_RETRY);
        }
        self.begin_anew(control);
        true
    }

    /// Another attempt, after so long.
    fn schedule(&mut self, wait: Duration, timed_out: bool, control: &StreamControl) {
        self.retried = true;
        self.timed_out = timed_out;
        self.retry_at = Some(Instant::now() + wait);
        self.begin_anew(control);
    }

    fn begin_anew(&mut self, control: &StreamControl) {
        self.upstream.reset();
        let mut info = control.info_mut();
        if let (Some(host), Some(connection_id)) = (info.upstream_host.take(), info.upstream_connection_id.take()) {
            info.earlier_attempts.push(Attempt { host, connection_id });
        }
    }

    /// An attempt that was slow has failed. What it says counts only if nobody else is left.
    pub(super) fn raced_failed(&mut self, at: usize, failure: Failure) -> Option<Failure> {
        let mut attempt = self.raced.swap_remove(at);
        if self.raced.is_empty() && self.retry_at.is_none() && !self.upstream.is_under_way() {
            self.upstream = attempt;
            self.retry = None;
            return Some(failure);
        }
        attempt.failed(&failure);
        if let Some(tally) = self.tally() {
            tally.charge(failure.reply(true).status, self.internal);
        }
        None
    }

    /// The response was cut after its head had passed.
    pub fn failed_after_response(&mut self, failure: &Failure, manager: &HttpConnectionManager) {
        self.upstream.failed(failure);
        manager.router.inc(http_stat::RQ_RESET_AFTER_DOWNSTREAM_RESPONSE_STARTED);
    }

    /// More of the body was sent than may be kept: whatever happens now is what the client gets.
    pub(super) fn abandon_retries(&mut self) {
        self.retry = None;
        tracing::debug!(target: "router", "the request is longer than what may be kept: no retries");
        if let Some(cluster) = &self.cluster {
            cluster.stats().retries.inc(stat::RETRY_OR_SHADOW_ABANDONED);
        }
    }

    // === after a deadline ===

    /// The earliest of the route's and the attempt's deadlines.
    pub fn deadline(&self) -> Option<Instant> {
        [self.deadline, self.retry_at, self.upstream.timers.earliest()].into_iter().flatten().min()
    }

    /// Some time is up at `now`.
    pub fn expire(&mut self, now: Instant, control: &StreamControl, manager: &HttpConnectionManager) -> Expired {
        if self.deadline.is_some_and(|at| at <= now) {
            self.deadline = None;
            self.end_attempts();
            return Expired::Failed(Failure::new(Reset::ResponseTimeout));
        }
        let Some(reset) = self.upstream.timers.take_due(now) else { return Expired::Nothing };
        let counter = match reset {
            Reset::PerTryTimeout | Reset::PerTryIdleTimeout if self.timeouts.hedge && !self.accepted => {
                return self.race(control, manager);
            }
            Reset::PerTryTimeout => stat::UPSTREAM_RQ_PER_TRY_TIMEOUT,
            Reset::PerTryIdleTimeout => stat::UPSTREAM_RQ_PER_TRY_IDLE_TIMEOUT,
            _ => stat::UPSTREAM_RQ_MAX_DURATION_REACHED,
        };
        if let Some(cluster) = &self.cluster {
            cluster.stats().retries.inc(counter);
        }
        if reset != Reset::MaxStreamDuration {
            self.upstream.count_timeout(self.timeout_status());
        }
        Expired::Failed(Failure::new(reset))
    }

    /// Of what the client gets if the time is up.
    fn timeout_status(&self) -> u16 {
        if self.timeouts.alt_response { 204 } else { 504 }
    }

    /// The route's time is up: every attempt that runs ends, and counts.
    fn end_attempts(&mut self) {
        self.retry = None;
        self.retry_at = None;
        let status = self.timeout_status();
        let raced = std::mem::take(&mut self.raced);
        let running = raced.iter().chain([&self.upstream]).filter(|attempt| attempt.is_under_way());
        for attempt in running {
            attempt.count_timeout(status);
            let Some(tally) = self.tally() else { continue };
            tally.count(stat::UPSTREAM_RQ_TIMEOUT, vhost_stat::UPSTREAM_RQ_TIMEOUT);
            if !attempt.is_answered() {
                tally.charge(status, self.internal);
            }
        }
    }

    /// The attempt took too long, but may still answer: another one is begun beside it, if there may be one.
    fn race(&mut self, control: &StreamControl, manager: &HttpConnectionManager) -> Expired {
        let Some(mut retry) = self.retry.take() else { return Expired::Nothing };
        let status = self.tally().map_or(RetryStatus::No, |tally| retry.ask_hedge(&tally, &manager.worker.context.rng));
        self.retry = Some(retry);
        let RetryStatus::Yes(wait) = status else {
            flag(status, control);
            return Expired::Nothing;
        };
        self.upstream.timers.clear();
        let slow: UpstreamRequest = std::mem::take(&mut self.upstream);
        self.raced.push(slow);
        self.schedule(wait, true, control);
        Expired::Again
    }

    // === the end ===

    /// An answer of the proxy's own goes out: the upstream streams are reset.
    pub fn abandon(&mut self) {
        self.deadline = None;
        self.retry = None;
        self.retry_at = None;
        self.raced.clear();
        self.copies.clear();
        self.upstream.cancel();
        self.upstream.timers.clear();
    }
}

fn flag(status: RetryStatus, control: &StreamControl) {
    match status {
        RetryStatus::Overflow => control.info_mut().flags.insert(ResponseFlag::UpstreamOverflow),
        RetryStatus::LimitExceeded => control.info_mut().flags.insert(ResponseFlag::UpstreamRetryLimitExceeded),
        RetryStatus::Yes(_) | RetryStatus::No => {}
    }
}
