//! The response side of a stream.

use std::borrow::Cow;

use super::*;

impl ActiveStream {
    /// Ready: something moved. Pending: `cx` will be woken.
    pub(super) fn poll_encode(
        &mut self,
        cx: &mut Context<'_>,
        down: &mut Down<'_>,
        manager: &HttpConnectionManager,
        scratch: &mut [u8],
    ) -> Poll<()> {
        match self.encode {
            Encode::Wait => match ready!(self.router.poll_response(cx, &mut self.response, manager, scratch)) {
                Ok(()) if self.response.is_interim() => self.interim(down, manager),
                Ok(()) => self.response_heard(manager),
                Err(failure) => self.upstream_failed(failure, manager),
            },
            Encode::Head => {
                if let Some(fields) = self.own_fields.take() {
                    self.local_head(fields, manager);
                }
                let end = self.response.framing.is_none() || self.request.is_head();
                let outcome = ready!(self.encode_chain.poll_head(cx, &mut self.response, end, &self.control));
                self.response_decided(cx, outcome, down, manager);
            }
            Encode::Collect { limit, partial } => {
                ready!(self.poll_collect_response(cx, down, manager, scratch, limit, partial))
            }
            Encode::Body => ready!(self.poll_response_body(cx, down, manager, scratch)),
            Encode::Trailers => {
                if let Some(mut trailers) = self.response_trailers.take() {
                    let outcome = self.encode_chain.poll_trailers(cx, &mut trailers, &mut self.response, &self.control);
                    match outcome {
                        Poll::Pending => {
                            self.response_trailers = Some(trailers);
                            return Poll::Pending;
                        }
                        Poll::Ready(DataOutcome::Reply(reply)) => self.reply(*reply),
                        Poll::Ready(DataOutcome::Passed(tail)) => {
                            let sent = self.send_tail(cx, tail, &trailers, down, manager);
                            self.response_trailers = Some(trailers);
                            match sent {
                                Ok(()) => self.response_complete(down),
                                Err(_) => self.encode = Encode::Done(End::Reset),
                            }
                        }
                    }
                }
            }
            Encode::Flush => match ready!(down.poll_flush(cx, &manager.worker.buffers)) {
                Ok(()) => {
                    let end = if self.close_after { End::Close } else { End::KeepAlive };
                    self.encode = Encode::Done(end);
                }
                Err(_) => {
                    let end = self.client_lost(cx, down, manager, scratch);
                    self.encode = Encode::Done(end);
                }
            },
            Encode::Done(_) => return Poll::Pending,
        }
        Poll::Ready(())
    }

    /// The upstream agreed to an upgrade, and bytes flow; or it did not, and this is a response like any other.
    fn upgrade_answered(&mut self) {
        if self.upgrade != Upgrade::Wanted {
            return;
        }
        if self.router.is_tunnel() {
            self.upgrade = Upgrade::Accepted;
            self.response.framing = Framing::Streamed;
        } else {
            self.upgrade = Upgrade::None;
            self.decode = Decode::Done;
            self.drop_body_of_failed_handshake();
        }
    }

    /// As Envoy: what answers a WebSocket's handshake without 101, and yet without an error, is not understood by anybody;
    /// its body stays here. A client of HTTP/2, where 200 is what accepts, would read it as the WebSocket's bytes.
    fn drop_body_of_failed_handshake(&mut self) {
        let websocket = upgrade::wanted(&self.request).is_some_and(|kind| kind.eq_ignore_ascii_case(b"websocket"));
        if websocket && self.response.status < 400 {
            self.response.framing = Framing::None;
            self.control.info_mut().set_details("websocket_handshake_unsuccessful");
        }
    }

    /// A final head of an upstream: the client gets it, or another attempt is made or waited for.
    fn response_heard(&mut self, manager: &HttpConnectionManager) {
        match self.router.judge(&self.response, &mut self.request, &self.control, manager) {
            Heard::Pass => {
                self.upgrade_answered();
                if matches!(self.decode, Decode::Open) {
                    // An earlier attempt was faster than the one that was to replace it.
                    self.decode = Decode::Done;
                }
                self.source = Source::Upstream;
                self.encode = Encode::Head;
                return self.router.response_head(&mut self.response, &self.request, &self.control, manager);
            }
            Heard::Again => self.decode = Decode::Open,
            Heard::Wait => {}
            Heard::Redirect => self.start_over(manager),
        }
        self.response.clear();
    }

    /// What the route says of an answer of the proxy's own: first, so that the answer's own fields win. Envoy knows the
    /// type of a body only if there is one.
    fn local_head(&mut self, fields: Vec<(Cow<'static, str>, Bytes)>, manager: &HttpConnectionManager) {
        self.router.finalize_response(&mut self.response, &self.request, &self.control, manager);
        let headers = &mut self.response.headers;
        // Redirects and direct responses are the route's own words.
        if !self.router.answers() {
            for (name, _) in &fields {
                headers.remove(name);
            }
            fields.iter().for_each(|(name, value)| headers.append(name.as_bytes(), value));
        }
        let says_nothing = matches!(&self.source, Source::Local(body) if body.is_empty());
        if says_nothing && !self.request.is_head() && !self.request.is_grpc() {
            headers.remove("content-type");
        }
    }

    /// 100 is ours to send (the codec did when it saw `expect`), others are dropped as Envoy drops them.
    fn interim(&mut self, down: &mut Down<'_>, manager: &HttpConnectionManager) {
        if self.response.status == 100 && manager.config.proxy_100_continue {
            down.send_interim(&manager.worker.buffers, &self.response);
            self.continued(manager);
        }
        self.response.clear();
    }

    fn response_decided(
        &mut self,
        cx: &mut Context<'_>,
        outcome: HeadOutcome,
        down: &mut Down<'_>,
        manager: &HttpConnectionManager,
    ) {
        match outcome {
            HeadOutcome::Passed => self.send_response_head(cx, down, manager),
            HeadOutcome::Reply(reply) => self.reply(*reply),
            HeadOutcome::Collect { limit, partial } => self.encode = Encode::Collect { limit, partial },
            // The route matters no more.
            HeadOutcome::Reroute => self.control.state().route_cleared.set(false),
        }
    }

    fn send_response_head(&mut self, cx: &mut Context<'_>, down: &mut Down<'_>, manager: &HttpConnectionManager) {
        let date = manager.date.text(manager.worker.context.clock.since_epoch());
        hygiene::mutate_response(&mut self.response, &self.request, &manager.config.identity, &date);
        if let Some(status) = &manager.config.proxy_status {
            status.apply(&mut self.response, &self.control.info(), self.control.connection().as_deref());
        }
        let collected = std::mem::take(&mut self.encode_collected);
        let bodiless = (self.response.framing.is_none() || self.request.is_head()) && collected.is_empty();
        if !down.is_shared() && !self.request_over(down) && matches!(self.source, Source::Local(_)) {
            // An answer before the request was read: HTTP/1 cannot go on after it.
            self.close_after = true;
        }
        if !self.close_after && self.drain.as_ref().is_some_and(|d| d.should_close(&manager.worker.context.rng)) {
            self.close_after = true;
            manager.failures.inc(stat::DOWNSTREAM_CX_DRAIN_CLOSE);
        }
        let rng = &manager.worker.context.rng;
        let overloaded = |drain: &Rc<Drain>| drain.overload().befalls(Action::DisableHttpKeepalive, rng);
        if !self.close_after && self.drain.as_ref().is_some_and(overloaded) {
            self.close_after = true;
            manager.failures.inc(stat::DOWNSTREAM_CX_OVERLOAD_DISABLE_KEEPALIVE);
        }
        let close = self.close_after;
        if self.upgrade == Upgrade::Accepted && matches!(self.source, Source::Upstream) {
            down.send_upgrade_head(&manager.worker.buffers, &self.response);
            // What the client sent meanwhile goes on now.
            self.decode = Decode::Body;
            if manager.config.access_log_options.on_tunnel {
                self.log(manager, LogType::DownstreamTunnelSuccessfullyEstablished);
            }
        } else {
            down.send_head(&manager.worker.buffers, &self.response, bodiless, close);
        }
        self.response_started = true;
        {
            let mut info = self.control.info_mut();
            info.response_code = Some(self.response.status);
            info.timings.first_downstream_tx = Some(self.control.now());
            info.downstream_header_bytes_sent = self.response.headers.byte_size() as u64;
            if info.response_code_details.is_none() {
                info.set_details("via_upstream");
            }
        }
        if bodiless {
            if matches!(self.source, Source::Upstream) {
                self.router.response_complete(&self.control);
            }
            return self.response_complete(down);
        }
        self.encode = Encode::Body;
        if !collected.is_empty() {
            let mut chunk = Chunk::Own(collected.into());
            if let Poll::Ready(outcome) =
                self.encode_chain.poll_data(cx, &mut chunk, false, &mut self.response, &self.control)
            {
                self.response_data_decided(cx, outcome, &chunk, down, manager);
            }
        }
    }

    fn poll_collect_response(
        &mut self,
        cx: &mut Context<'_>,
        down: &mut Down<'_>,
        manager: &HttpConnectionManager,
        scratch: &mut [u8],
        limit: usize,
        partial: bool,
    ) -> Poll<()> {
        let complete = match &mut self.source {
            Source::Local(body) => {
                self.encode_collected.extend_from_slice(body);
                *body = Bytes::new();
                true
            }
            Source::Upstream => {
                self.response.framing.is_none() || self.router.response_ended() || self.request.is_head()
            }
        };
        if !complete && self.encode_collected.len() <= limit {
            match ready!(self.router.poll_body(cx, scratch)) {
                Ok(Body::Data(chunk)) => self.encode_collected.extend_from_slice(chunk.as_slice()),
                Ok(Body::Trailers(trailers)) => self.response_trailers = Some(trailers),
                Ok(Body::End) => {}
                Err(failure) => self.upstream_failed(failure, manager),
            }
            return Poll::Ready(());
        }
        if self.encode_collected.len() > limit && !partial {
            manager.failures.inc(stat::RS_TOO_LARGE);
            self.reply(LocalReply::new(500, "response_payload_too_large").body("Internal Server Error"));
            return Poll::Ready(());
        }
        self.encode = Encode::Head;
        let outcome =
            self.encode_chain.collected(&mut self.response, &mut self.encode_collected, complete, &self.control);
        if let Some(outcome) = outcome {
            self.response_decided(cx, outcome, down, manager);
        }
        Poll::Ready(())
    }

    fn poll_response_body(
        &mut self,
        cx: &mut Context<'_>,
        down: &mut Down<'_>,
        manager: &HttpConnectionManager,
        scratch: &mut [u8],
    ) -> Poll<()> {
        if self.encode_chain.has_parked() {
            let outcome = ready!(self.encode_chain.poll_parked(cx, &mut self.response, &self.control));
            self.response_data_decided(cx, outcome, &Chunk::Lent(&[]), down, manager);
            return Poll::Ready(());
        }
        if self.response_ended {
            self.end_response(cx, down, manager);
            return Poll::Ready(());
        }
        if ready!(down.poll_writable(cx, &manager.worker.buffers)).is_err() {
            let end = self.client_lost(cx, down, manager, scratch);
            self.encode = Encode::Done(end);
            return Poll::Ready(());
        }
        if matches!(self.source, Source::Upstream) && self.pipe_response(cx, down, manager) {
            return Poll::Ready(());
        }
        let most = scratch.len().min(down.read_size());
        match &mut self.source {
            Source::Local(body) => {
                let mut chunk = Chunk::Own(std::mem::take(body));
                self.response_ended = true;
                let outcome =
                    ready!(self.encode_chain.poll_data(cx, &mut chunk, true, &mut self.response, &self.control));
                self.response_data_decided(cx, outcome, &chunk, down, manager);
            }
            Source::Upstream => match ready!(self.router.poll_body(cx, &mut scratch[..most])) {
                Ok(Body::Data(mut chunk)) => {
                    let outcome =
                        ready!(self.encode_chain.poll_data(cx, &mut chunk, false, &mut self.response, &self.control));
                    self.response_data_decided(cx, outcome, &chunk, down, manager);
                }
                Ok(Body::Trailers(trailers)) => {
                    self.router.response_complete(&self.control);
                    self.response_trailers = Some(trailers);
                    self.encode = Encode::Trailers;
                }
                Ok(Body::End) => {
                    self.router.response_complete(&self.control);
                    self.response_ended = true;
                    if !self.encode_chain.is_empty() {
                        let mut chunk = Chunk::Lent(&[]);
                        let outcome = ready!(self.encode_chain.poll_data(
                            cx,
                            &mut chunk,
                            true,
                            &mut self.response,
                            &self.control
                        ));
                        self.response_data_decided(cx, outcome, &chunk, down, manager);
                    }
                }
                Err(failure) => self.upstream_failed(failure, manager),
            },
        }
        Poll::Ready(())
    }

    fn response_data_decided(
        &mut self,
        cx: &mut Context<'_>,
        outcome: DataOutcome,
        chunk: &Chunk<'_>,
        down: &mut Down<'_>,
        manager: &HttpConnectionManager,
    ) {
        let passed;
        let chunk = match outcome {
            DataOutcome::Reply(reply) => return self.reply(*reply),
            DataOutcome::Passed(Some(bytes)) => {
                passed = Chunk::Own(bytes);
                &passed
            }
            DataOutcome::Passed(None) => chunk,
        };
        if chunk.is_empty() {
            return;
        }
        self.control.info_mut().bytes_sent += chunk.len() as u64;
        if let Err(error) = down.send_data(cx, &manager.worker.buffers, chunk, false) {
            self.not_sent(cx, &error, down, manager);
        }
    }

    /// The trailers and what filters say before them; a filter may also have made the end of the body of them.
    fn send_tail(
        &mut self,
        cx: &mut Context<'_>,
        tail: Option<Bytes>,
        trailers: &HeaderMap,
        down: &mut Down<'_>,
        manager: &HttpConnectionManager,
    ) -> std::io::Result<()> {
        let buffers = &manager.worker.buffers;
        if let Some(tail) = tail {
            self.control.info_mut().bytes_sent += tail.len() as u64;
            down.send_data(cx, buffers, &Chunk::Own(tail), false)?;
        }
        if trailers.is_empty() {
            return down.send_data(cx, buffers, &Chunk::Lent(&[]), true);
        }
        down.send_trailers(buffers, trailers)
    }

    fn end_response(&mut self, cx: &mut Context<'_>, down: &mut Down<'_>, manager: &HttpConnectionManager) {
        match down.send_data(cx, &manager.worker.buffers, &Chunk::Lent(&[]), true) {
            Ok(()) => self.response_complete(down),
            Err(error) => self.not_sent(cx, &error, down, manager),
        }
    }

    /// A body that is not as long as its head said is our fault or the upstream's; anything else
    /// means that the client is gone.
    pub(super) fn not_sent(
        &mut self,
        cx: &mut Context<'_>,
        error: &std::io::Error,
        down: &mut Down<'_>,
        manager: &HttpConnectionManager,
    ) {
        if error.kind() == std::io::ErrorKind::InvalidData {
            self.encode = Encode::Done(End::Reset);
            return;
        }
        // Only HTTP/1 needs room to find out, and does not ask.
        let end = self.client_lost(cx, down, manager, &mut []);
        self.encode = Encode::Done(end);
    }

    /// All of the request is here, so that another one may follow. What came with the head counts once the stream
    /// had to wait for something.
    fn request_over(&self, down: &Down<'_>) -> bool {
        down.request_complete() || (self.waited && down.request_arrived())
    }

    fn response_complete(&mut self, down: &Down<'_>) {
        self.encode = Encode::Flush;
        let now = self.control.now();
        self.control.info_mut().timings.last_downstream_tx = Some(now);
        if !self.request_over(down) && !down.is_shared() {
            self.close_after = true;
        }
        if let Some(flush) = self.config.timeouts.stream_flush {
            self.idle_timeout = flush;
            self.idle_deadline = flush.map(|d| now + d);
        }
        // Nobody wants the rest of the request.
        self.decode = Decode::Done;
    }
}
