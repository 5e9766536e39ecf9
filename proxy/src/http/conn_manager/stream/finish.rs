//! How a stream ends: by its deadlines, by its client, and into the log.

use super::*;

impl ActiveStream {
    /// The earliest of this stream's deadlines.
    pub fn deadline(&self) -> Option<Instant> {
        [self.request_deadline, self.idle_deadline, self.duration_deadline, self.router.deadline(), self.log_deadline]
            .into_iter()
            .flatten()
            .min()
    }

    /// Acts on what is due at `now`. The next poll sends what was decided.
    pub fn expire(&mut self, now: Instant, down: &mut Down<'_>, manager: &HttpConnectionManager) {
        self.control.set_now(now);
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if matches!(self.encode, Encode::Done(_)) {
            return;
        }
        if due(self.log_deadline) {
            self.log_deadline = manager.config.access_log_options.interval.map(|d| now + d);
            self.log(manager, LogType::DownstreamPeriodic);
        }
        if due(self.duration_deadline) {
            self.duration_deadline = None;
            manager.failures.inc(stat::DOWNSTREAM_RQ_MAX_DURATION_REACHED);
            let status = if self.request_unread(down) { 408 } else { 504 };
            return self.time_out(
                LocalReply::new(status, "max_duration_timeout").body("downstream duration timeout").grpc_status(4),
                manager,
            );
        }
        if due(self.request_deadline) {
            self.request_deadline = None;
            manager.failures.inc(stat::DOWNSTREAM_RQ_TIMEOUT);
            return self.time_out(LocalReply::new(408, "request_overall_timeout").body("request timeout"), manager);
        }
        if due(self.idle_deadline) {
            self.idle_deadline = None;
            manager.failures.inc(stat::DOWNSTREAM_RQ_IDLE_TIMEOUT);
            let status = if self.request_unread(down) { 408 } else { 504 };
            let reply = LocalReply::new(status, "stream_idle_timeout")
                .body("stream timeout")
                .flag(ResponseFlag::StreamIdleTimeout);
            return self.time_out(reply, manager);
        }
        if due(self.router.deadline()) {
            match self.router.expire(now, &self.control, manager) {
                Expired::Nothing => {}
                Expired::Again => self.decode = Decode::Open,
                Expired::Failed(failure) => self.upstream_failed(failure, manager),
            }
        }
    }

    fn request_unread(&self, down: &Down<'_>) -> bool {
        !self.request.framing.is_none() && !down.request_complete()
    }

    fn time_out(&mut self, reply: LocalReply, manager: &HttpConnectionManager) {
        self.idle_deadline = None;
        if self.response_started {
            manager.failures.inc(stat::DOWNSTREAM_RQ_TX_RESET);
        }
        self.reply(reply);
    }

    /// The client left, or cannot be written to: everything of this stream is given up.
    pub fn client_gone(&mut self, reason: Option<&GoneReason>) -> End {
        self.decode_chain.abandon();
        self.encode_chain.abandon();
        self.router.abandon();
        let (flag, details) = match reason {
            Some(GoneReason::Stream(StreamError::Reset | StreamError::Satisfied)) => {
                (ResponseFlag::DownstreamRemoteReset, "http2.remote_reset")
            }
            Some(GoneReason::Stream(StreamError::Refused)) => {
                (ResponseFlag::DownstreamRemoteReset, "http2.remote_refuse")
            }
            Some(GoneReason::Stream(StreamError::Protocol(details))) => {
                (ResponseFlag::DownstreamProtocolError, *details)
            }
            _ => (ResponseFlag::DownstreamConnectionTermination, "downstream_remote_disconnect"),
        };
        let mut info = self.control.info_mut();
        info.flags.insert(flag);
        info.set_details(details);
        End::ClientGone
    }

    /// The same, and counted.
    pub(super) fn client_left(&mut self, reason: &GoneReason, manager: &HttpConnectionManager) -> End {
        if let GoneReason::Stream(StreamError::Reset | StreamError::Satisfied | StreamError::Refused) = reason {
            manager.failures.inc(stat::DOWNSTREAM_RQ_RX_RESET);
        }
        self.client_gone(Some(reason))
    }

    /// The client cannot be written to: the reason is asked of the connection.
    pub(super) fn client_lost(
        &mut self,
        cx: &mut Context<'_>,
        down: &mut Down<'_>,
        manager: &HttpConnectionManager,
        scratch: &mut [u8],
    ) -> End {
        match down.is_shared().then(|| down.poll_gone(cx, scratch)) {
            Some(Poll::Ready(reason)) => self.client_left(&reason, manager),
            _ => self.client_gone(None),
        }
    }

    /// Reset before it could have been answered: no status yet, and younger than Envoy's limit of one second, which it
    /// compares with whole seconds.
    pub fn is_premature(&self) -> bool {
        let info = self.control.info();
        info.response_code.is_none() && info.start.elapsed().as_secs() <= 1
    }

    /// Counts and logs the stream, and makes it ready for the next.
    pub fn complete(&mut self, manager: &HttpConnectionManager) {
        if self.active.take().is_none() {
            // Never begun.
            self.request.clear();
            return;
        }
        let now = self.control.now();
        {
            let mut info = self.control.info_mut();
            info.timings.end = Some(now);
            let status = info.response_code.filter(|code| *code != 100).unwrap_or(0);
            manager.count_response(status, now.duration_since(info.start), info.is_health_check);
        }
        self.router.log_attempts(&self.request, &self.control, manager);
        self.log(manager, LogType::DownstreamEnd);
        self.decode_chain.reset(&self.control);
        self.encode_chain.reset(&self.control);
        self.recycle(manager);
    }

    pub(super) fn log(&self, manager: &HttpConnectionManager, log_type: LogType) {
        if manager.loggers.is_empty() {
            return;
        }
        let connection = self.control.connection();
        let info = self.control.info();
        let route = self.control.route();
        let record = LogContext {
            request: Some(&self.request),
            response: Some(&self.response),
            trailers: self.response_trailers.as_ref(),
            connection: connection.as_deref(),
            log_type,
            route: route.as_deref(),
            rng: Some(&manager.worker.context.rng),
            ..LogContext::new(&info)
        };
        manager.loggers.iter().for_each(|logger| logger.log(&record));
    }

    /// An upstream's redirect is followed: the request, which says by now where it goes, begins anew with its filters,
    /// and is logged as if it were two.
    pub(super) fn start_over(&mut self, manager: &HttpConnectionManager) {
        let now = self.control.now();
        {
            let mut info = self.control.info_mut();
            info.response_code = Some(self.response.status);
            info.set_details("internal_redirect");
            info.timings.end = Some(now);
        }
        self.router.log_attempts(&self.request, &self.control, manager);
        self.log(manager, LogType::DownstreamEnd);
        self.decode_chain.reset(&self.control);
        self.encode_chain.reset(&self.control);
        self.response.clear();
        manager.stats.inc(stat::DOWNSTREAM_RQ_TOTAL);
        manager.stats.inc(match self.request.version {
            Version::Http2 => stat::DOWNSTREAM_RQ_HTTP2_TOTAL,
            Version::Http10 | Version::Http11 => stat::DOWNSTREAM_RQ_HTTP1_TOTAL,
        });
        let mut fresh = StreamInfo::new(manager.worker.context.clock.now(), now);
        {
            let mut info = self.control.info_mut();
            fresh.stream_id = manager.worker.context.rng.u64();
            fresh.protocol = info.protocol;
            fresh.remote_address = info.remote_address.take();
            fresh.bytes_received = info.bytes_received;
            fresh.downstream_header_bytes_received = self.request.headers.byte_size() as u64;
            fresh.timings.last_downstream_rx = Some(now);
            std::mem::swap(&mut fresh.filter_state, &mut info.filter_state);
            *info = fresh;
        }
        let body = self.router.start_over(&manager.worker.buffers);
        if self.request.framing.is_none() {
            self.request_trailers = None;
            manager.worker.buffers.give(body);
        } else {
            self.collected = body;
            self.request_ended = true;
        }
        self.decode = Decode::Head;
        self.find_route(manager);
    }

    fn recycle(&mut self, manager: &HttpConnectionManager) {
        let buffers = &manager.worker.buffers;
        self.request.clear();
        self.response.clear();
        self.request_trailers = None;
        self.response_trailers = None;
        buffers.give(std::mem::take(&mut self.collected));
        buffers.give(std::mem::take(&mut self.encode_collected));
        self.decode = Decode::Head;
        self.encode = Encode::Wait;
        self.source = Source::Upstream;
        self.own_fields = None;
        self.request_ended = false;
        self.response_ended = false;
        self.response_started = false;
        self.close_after = false;
        self.upgrade = Upgrade::None;
        self.upgraded = None;
        self.router.reset(buffers);
        self.request_deadline = None;
        self.idle_timeout = None;
        self.idle_deadline = None;
        self.duration_deadline = None;
        self.log_deadline = None;
        self.waited = false;
        let (wall, start) = {
            let info = self.control.info();
            (info.start_wall, info.start)
        };
        // The times are set when the next stream begins.
        let fresh = StreamInfo::new(wall, start);
        match self.control.recycle() {
            Some(state) => {
                *state.info.get_mut() = fresh;
                *state.connection.get_mut() = None;
                *state.route.get_mut() = None;
                *state.upstream_override.get_mut() = None;
                state.original_source.set(None);
                state.route_cleared.set(false);
                state.route_decided.set(false);
                state.buffer_limit.set(u64::MAX);
                state.is_upgrade.set(false);
            }
            // A filter's future still holds the handle: it keeps the old record.
            None => self.control = StreamControl::new(fresh),
        }
    }
}
