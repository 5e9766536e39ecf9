//! One request and its response.
//!
//! Two state machines, polled by one task: the request side pulls the head through the decode
//! filters, picks the route, opens the upstream stream and pulls the body; the response side pulls
//! the upstream's (or a local) response through the encode filters to the client. Each runs while
//! the other waits. Nothing is pushed: a side reads its next chunk only when the last one has been
//! taken, so back-pressure needs no callbacks.
//!
//! A long file, since what decides about both sides at once stands together: how a stream begins, is answered by the
//! proxy itself, or fails. The sides themselves are in `decode` and `encode`, the end in `finish`.

use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use nuncio_core::access_log::{LogContext, LogType};
use nuncio_core::http::{
    Chunk, Framing, HeadLimits, HeaderMap, LocalReply, RequestHead, ResponseHead, StreamControl, Version,
};
use nuncio_core::net::ConnectionInfo;
use nuncio_core::random::Rng;
use nuncio_core::runtime::Runtime;
use nuncio_core::stats::GaugeGuard;
use nuncio_core::stats::lists::http::{self as stat, Hcm, HcmFailures};
use nuncio_core::stream_info::{ResponseFlag, StreamInfo};
use tokio::time::Instant;

use super::config::Config;
use super::down::Down;
use super::filter_chain::{DataOutcome, DecodeChain, EncodeChain, HeadOutcome};
use super::upgrade::{self, Upgrade};
use super::{HttpConnectionManager, hygiene, local_reply};
use crate::alarm::Alarm;
use crate::codec::http1::BodyError;
use crate::codec::http2::StreamError;
use crate::codec::{Body, GoneReason};
use crate::http::router::{Expired, Failure, Heard, Next, Router};
use crate::lifecycle::Drain;
use crate::overload::Action;

mod decode;
mod encode;
mod finish;
mod piped;

/// How a stream ended, for its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Both messages are complete.
    KeepAlive,
    /// The response is complete, the connection must not be used again.
    Close,
    /// The response was cut: the client must notice.
    Reset,
    ClientGone,
    /// An upgrade took the connection over.
    HandedOver,
}

/// A head that never became a request, for the log.
#[derive(Debug, Clone, Copy)]
pub struct Broken {
    pub version: Version,
    pub flag: ResponseFlag,
    pub details: &'static str,
}

impl Broken {
    pub fn http2(details: &'static str) -> Self {
        Self { version: Version::Http2, flag: ResponseFlag::DownstreamProtocolError, details }
    }
}

/// Where the request is.
enum Decode {
    /// In the filters' hands.
    Head,
    Collect {
        limit: usize,
        partial: bool,
    },
    /// Filters are through: the router finds where it goes.
    Route,
    /// Waiting for an upstream connection.
    Open,
    /// Nothing of the client goes on until the upstream agrees to the upgrade.
    Held,
    Body,
    Trailers,
    /// All of it is sent, or nobody wants the rest.
    Done,
}

/// Where the response is.
enum Encode {
    /// None yet.
    Wait,
    Head,
    Collect {
        limit: usize,
        partial: bool,
    },
    Body,
    Trailers,
    Flush,
    Done(End),
}

/// Whose response it is.
enum Source {
    Upstream,
    Local(Bytes),
}

/// Everything of one stream; recycled by the worker.
pub struct ActiveStream {
    pub request: RequestHead,
    response: ResponseHead,
    pub control: StreamControl,
    request_trailers: Option<HeaderMap>,
    response_trailers: Option<HeaderMap>,
    decode: Decode,
    /// Which of the manager's lists the two chains are of, and which version of their configurations.
    filter_list: usize,
    filter_version: u64,
    decode_chain: DecodeChain,
    /// What a filter asked to see whole; sent on after the head.
    collected: Vec<u8>,
    encode: Encode,
    encode_chain: EncodeChain,
    encode_collected: Vec<u8>,
    source: Source,
    /// Of an answer of the proxy's own whose route was not heard yet.
    own_fields: Option<Vec<(Cow<'static, str>, Bytes)>>,
    request_ended: bool,
    response_ended: bool,
    response_started: bool,
    /// The client (or a limit) wants the connection closed after this stream.
    close_after: bool,
    drain: Option<Rc<Drain>>,
    router: Router,
    request_deadline: Option<Instant>,
    /// Renewed at each progress.
    idle_timeout: Option<std::time::Duration>,
    idle_deadline: Option<Instant>,
    duration_deadline: Option<Instant>,
    /// When the next record of `access_log_flush_interval` is due.
    log_deadline: Option<Instant>,
    /// It had to wait for something since its head came: by now the codec has seen what came behind the head.
    waited: bool,
    active: Option<GaugeGuard<Hcm>>,
    upgrade: Upgrade,
    upgraded: Option<GaugeGuard<HcmFailures>>,
    config: Arc<Config>,
    rng: Rng,
    runtime: Rc<dyn Runtime>,
    /// Of a stream that has a task of its own; HTTP/1 connections have theirs.
    pub alarm: Alarm,
}

impl ActiveStream {
    pub fn new(manager: &HttpConnectionManager) -> Self {
        let filter_version = manager.filters.version();
        let (decode_chain, encode_chain) = manager.filters.instantiate(0);
        Self {
            request: RequestHead::default(),
            response: ResponseHead::default(),
            control: StreamControl::new(StreamInfo::new(manager.worker.context.clock.now(), Instant::now())),
            request_trailers: None,
            response_trailers: None,
            decode: Decode::Head,
            filter_list: 0,
            filter_version,
            decode_chain,
            collected: Vec::new(),
            encode: Encode::Wait,
            encode_chain,
            encode_collected: Vec::new(),
            source: Source::Upstream,
            own_fields: None,
            request_ended: false,
            response_ended: false,
            response_started: false,
            close_after: false,
            drain: None,
            router: Router::default(),
            request_deadline: None,
            idle_timeout: None,
            idle_deadline: None,
            duration_deadline: None,
            log_deadline: None,
            waited: false,
            active: None,
            upgrade: Upgrade::None,
            upgraded: None,
            config: manager.config.clone(),
            rng: manager.worker.context.rng.clone(),
            runtime: manager.worker.context.runtime.clone(),
            alarm: Alarm::default(),
        }
    }

    /// A head has arrived in `self.request`; `count` is its number on the connection.
    pub fn begin(
        &mut self,
        manager: &HttpConnectionManager,
        connection: &Rc<ConnectionInfo>,
        drain: &Rc<Drain>,
        count: u32,
    ) {
        let now = self.admit(manager, connection, drain);
        let config = &manager.config;
        let timeouts = &config.timeouts;
        if !self.request.framing.is_none() {
            self.request_deadline = timeouts.request.map(|d| now + d);
        }
        self.duration_deadline = timeouts.max_stream.map(|d| now + d);
        self.idle_timeout = timeouts.stream_idle;
        self.idle_deadline = self.idle_timeout.map(|d| now + d);
        if config.max_requests_per_connection.is_some_and(|max| count >= max) {
            self.close_after = true;
            manager.failures.inc(stat::DOWNSTREAM_CX_MAX_REQUESTS_REACHED);
        }
        let rng = &manager.worker.context.rng;
        if drain.overload().befalls(Action::StopAcceptingRequests, rng) {
            manager.failures.inc(stat::DOWNSTREAM_RQ_OVERLOAD_CLOSE);
            let mut reply =
                LocalReply::new(503, "overload").flag(ResponseFlag::OverloadManagerTerminated).body("envoy overloaded");
            if config.append_local_overload {
                reply = reply.header("x-envoy-local-overloaded", "true");
            }
            return self.reply(reply);
        }
        config.host.apply(&mut self.request, connection.local.port());
        if let Some(reply) = manager.check_request(&mut self.request) {
            // As Envoy: what may be two different requests is perhaps not the only one.
            let stays = config.keeps_after_400 || self.request.version == Version::Http2;
            self.close_after |= reply.status == 400 && !stays;
            return self.reply(reply);
        }
        manager.mutate_early(&mut self.request, &self.control);
        let around = hygiene::Surroundings {
            local_ip: config.local_ip,
            rng: &manager.worker.context.rng,
            headers_name_destinations: manager.worker.clusters.headers_name_destinations(),
        };
        let origin = match hygiene::mutate_request(&mut self.request, connection, &config.identity, &around) {
            Ok(origin) => origin,
            Err(hygiene::OriginUnknown(status)) => {
                manager.failures.inc(stat::DOWNSTREAM_RQ_REJECTED_VIA_IP_DETECTION);
                return self.reply(LocalReply::new(status, "rejecting_because_detection_failed"));
            }
        };
        self.router.internal = origin.internal;
        if !origin.internal {
            config.routes.clean_external(&mut self.request);
        }
        if let Some(remote) = origin.remote {
            self.control.info_mut().remote_address = Some(remote);
        }
        self.find_route(manager);
        self.look_for_upgrade(manager);
        self.log_deadline = config.access_log_options.interval.map(|d| now + d);
        if config.access_log_options.on_new_request {
            self.log(manager, LogType::DownstreamStart);
        }
    }

    /// 100 was sent: until there is a response, that is the code.
    pub fn continued(&mut self, manager: &HttpConnectionManager) {
        self.control.info_mut().response_code = Some(100);
        manager.count_interim();
    }

    /// What arrived was no acceptable request: it is answered and the connection closes.
    pub fn begin_refused(
        &mut self,
        manager: &HttpConnectionManager,
        connection: &Rc<ConnectionInfo>,
        drain: &Rc<Drain>,
        reply: LocalReply,
    ) {
        self.admit(manager, connection, drain);
        self.close_after = true;
        self.decode = Decode::Done;
        self.reply(reply);
    }

    /// A head that was no message: there is nobody to answer, but the log hears of it.
    pub fn begin_broken(
        &mut self,
        manager: &HttpConnectionManager,
        connection: &Rc<ConnectionInfo>,
        drain: &Rc<Drain>,
        broken: Broken,
    ) {
        self.request.clear();
        self.request.version = broken.version;
        self.admit(manager, connection, drain);
        let mut info = self.control.info_mut();
        info.flags.insert(broken.flag);
        info.set_details(broken.details);
    }

    fn admit(
        &mut self,
        manager: &HttpConnectionManager,
        connection: &Rc<ConnectionInfo>,
        drain: &Rc<Drain>,
    ) -> Instant {
        self.use_filters(0, manager);
        self.drain = Some(drain.clone());
        let now = Instant::now();
        self.control.set_now(now);
        self.control.state().is_grpc.set(self.request.is_grpc());
        let codec = &manager.codec_options;
        self.request.limits = HeadLimits { fields: codec.max_headers, bytes: codec.max_head_bytes };
        manager.stats.inc(stat::DOWNSTREAM_RQ_TOTAL);
        self.active = Some(manager.stats.gauge(stat::DOWNSTREAM_RQ_ACTIVE));
        *self.control.state().connection.borrow_mut() = Some(connection.clone());
        let mut info = self.control.info_mut();
        info.start = now;
        info.start_wall = manager.worker.context.clock.now();
        info.stream_id = manager.worker.context.rng.u64();
        info.protocol = Some(self.request.version);
        info.downstream_header_bytes_received = self.request.headers.byte_size() as u64;
        if self.request.framing.is_none() {
            info.timings.last_downstream_rx = Some(now);
        }
        now
    }

    /// A request for another protocol is allowed and then has no end, or is refused.
    fn look_for_upgrade(&mut self, manager: &HttpConnectionManager) {
        let Some(kind) = upgrade::wanted(&self.request) else { return };
        // Whatever comes of it, an HTTP/1 connection has no other request.
        self.close_after |= self.request.version != Version::Http2;
        if kind == b"connect" && !self.router.has_route() {
            // The router's 404, as in Envoy.
            return;
        }
        if !self.router.allow_upgrade(kind, &self.request, manager) {
            manager.failures.inc(stat::DOWNSTREAM_RQ_WS_ON_NON_WS_ROUTE);
            return self.reply(LocalReply::new(403, "upgrade_failed"));
        }
        let list = manager.config.upgrades.filters(kind);
        self.use_filters(list, manager);
        self.skip_filters(manager);
        self.upgrade = Upgrade::Wanted;
        self.control.state().is_upgrade.set(true);
        self.request.framing = Framing::Streamed;
        self.request_deadline = None;
        manager.failures.inc(stat::DOWNSTREAM_CX_UPGRADES_TOTAL);
        self.upgraded = Some(manager.failures.gauge(stat::DOWNSTREAM_CX_UPGRADES_ACTIVE));
    }

    /// Nothing may follow this stream on its connection.
    pub fn close_after_response(&mut self) {
        self.close_after = true;
    }

    fn find_route(&mut self, manager: &HttpConnectionManager) {
        self.control.state().route_cleared.set(false);
        self.router.select(&self.request, &self.control, manager);
        self.skip_filters(manager);
        if let Some(idle) = self.router.idle_timeout() {
            self.idle_timeout = idle;
            self.idle_deadline = idle.map(|d| self.control.info().start + d);
        }
        if let Some(limit) = self.router.max_stream_duration(&mut self.request) {
            self.duration_deadline = limit.map(|d| self.control.info().start + d);
        }
    }

    /// Those that the route switches off.
    fn skip_filters(&mut self, manager: &HttpConnectionManager) {
        let skip = manager.disabled_filters(self.filter_list, self.router.route());
        self.decode_chain.skip(skip);
        self.encode_chain.skip(skip);
    }

    /// The filters of another list of the manager, none of which has seen anything yet.
    fn use_filters(&mut self, list: usize, manager: &HttpConnectionManager) {
        let version = manager.filters.version();
        if self.filter_list != list || self.filter_version != version {
            (self.decode_chain, self.encode_chain) = manager.filters.instantiate(list);
            (self.filter_list, self.filter_version) = (list, version);
        }
    }

    /// Runs both directions until neither can go on now.
    pub fn poll(
        &mut self,
        cx: &mut Context<'_>,
        down: &mut Down<'_>,
        manager: &HttpConnectionManager,
        scratch: &mut [u8],
    ) -> Poll<End> {
        self.control.set_now(Instant::now());
        let polled = self.poll_both(cx, down, manager, scratch);
        self.waited |= polled.is_pending();
        polled
    }

    fn poll_both(
        &mut self,
        cx: &mut Context<'_>,
        down: &mut Down<'_>,
        manager: &HttpConnectionManager,
        scratch: &mut [u8],
    ) -> Poll<End> {
        // The response side was asked since the request side last moved, and waits for the upstream.
        let mut awaited = false;
        loop {
            let decoded = self.poll_decode(cx, down, manager, scratch);
            // Nothing was asked of an upstream yet, so nothing can answer.
            let early = decoded.is_ready() && self.is_before_body();
            let idle = decoded.is_pending() && awaited && matches!(self.encode, Encode::Wait);
            let encoded = if early || idle { Poll::Pending } else { self.poll_encode(cx, down, manager, scratch) };
            if let Encode::Done(end) = self.encode {
                return Poll::Ready(end);
            }
            if decoded.is_pending() && encoded.is_pending() {
                break;
            }
            awaited = !early && encoded.is_pending();
            self.idle_deadline = self.idle_timeout.map(|d| self.control.now() + d);
        }
        let buffers = &manager.worker.buffers;
        if let Poll::Ready(Err(_)) = down.poll_flush(cx, buffers) {
            return Poll::Ready(self.client_lost(cx, down, manager, scratch));
        }
        if let Err(failure) = self.router.flush(cx, buffers) {
            self.upstream_failed(failure, manager);
            // What that decided is acted on in the next turn.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if (down.is_shared() || self.watches_client())
            && let Poll::Ready(reason) = down.poll_gone(cx, scratch)
        {
            return Poll::Ready(self.client_left(&reason, manager));
        }
        Poll::Pending
    }

    /// The request moves towards its upstream, and no response is under way.
    fn is_before_body(&self) -> bool {
        matches!(self.encode, Encode::Wait) && matches!(self.decode, Decode::Head | Decode::Route | Decode::Open)
    }

    /// Nobody reads the request now, so only a look at the socket can tell that the client left.
    fn watches_client(&self) -> bool {
        match self.decode {
            Decode::Head | Decode::Route | Decode::Open | Decode::Held | Decode::Done => true,
            Decode::Collect { .. } | Decode::Body | Decode::Trailers => self.decode_chain.is_waiting(),
        }
    }

    /// The answer is the proxy's own from here on; the upstream, if there is one, is given up.
    pub(super) fn reply(&mut self, reply: LocalReply) {
        self.decode_chain.abandon();
        self.encode_chain.abandon();
        self.router.abandon();
        {
            let mut info = self.control.info_mut();
            if let Some(flag) = reply.flag {
                info.flags.insert(flag);
            }
            info.set_details(reply.details.clone());
        }
        if self.response_started {
            self.encode = Encode::Done(End::Reset);
            return;
        }
        self.own_fields = Some(reply.headers.clone());
        let body = match &self.config.local_replies {
            None => {
                let grpc = self.control.state().is_grpc.get();
                local_reply::write(&reply, &self.request, grpc, &mut self.response)
            }
            Some(config) => {
                let runtime = &*self.runtime;
                config.write(reply, &self.request, &mut self.response, &self.control, &self.rng, runtime)
            }
        };
        self.source = Source::Local(body);
        self.encode_collected.clear();
        self.encode = Encode::Head;
        if !matches!(self.decode, Decode::Done) {
            // The rest of the request stays unread; whoever sends it is told by the close.
            self.decode = Decode::Done;
        }
    }

    /// The upstream stream failed: another attempt, an answer, or a cut.
    fn upstream_failed(&mut self, failure: Failure, manager: &HttpConnectionManager) {
        if self.response_started || !matches!(self.encode, Encode::Wait) {
            let mut info = self.control.info_mut();
            info.flags.insert(failure.flag());
            info.set_details(failure.details("upstream_reset_after_response_started"));
            drop(info);
            self.router.failed_after_response(&failure, manager);
            if self.response_started && failure.tunnel_closed && self.request.version != Version::Http2 {
                // The client gets what the upstream sent, and then its close.
                self.decode = Decode::Done;
                self.close_after = true;
                self.encode = Encode::Flush;
                return;
            }
            if self.response_started {
                self.encode = Encode::Done(End::Reset);
                return;
            }
        }
        match self.router.failed(failure, &self.request, &self.control, manager) {
            Next::Reply(reply) => self.reply(reply),
            Next::Again => self.decode = Decode::Open,
            Next::Wait => self.decode = Decode::Done,
        }
    }
}

#[cfg(test)]
mod tests;
