//! The request side of a stream.

use nuncio_core::http::RouteView;

use super::*;

impl ActiveStream {
    /// Ready: something moved. Pending: `cx` will be woken.
    pub(super) fn poll_decode(
        &mut self,
        cx: &mut Context<'_>,
        down: &mut Down<'_>,
        manager: &HttpConnectionManager,
        scratch: &mut [u8],
    ) -> Poll<()> {
        match self.decode {
            Decode::Head => {
                let end = self.request.framing.is_none();
                let outcome = ready!(self.decode_chain.poll_head(cx, &mut self.request, end, &self.control));
                self.head_decided(outcome, manager);
            }
            Decode::Collect { limit, partial } => ready!(self.poll_collect(cx, down, manager, scratch, limit, partial)),
            Decode::Route => match self.router.start(&mut self.request, &self.control, manager) {
                Some(reply) => self.reply(reply),
                None => {
                    if self.request.framing.is_none() && self.collected.is_empty() {
                        self.router.request_complete(None, &self.control);
                    }
                    self.decode = Decode::Open;
                }
            },
            Decode::Open => match ready!(self.router.poll_open(cx, &mut self.request, &self.control, manager)) {
                Ok(()) => self.send_head(cx, down, manager),
                Err(failure) => self.upstream_failed(failure, manager),
            },
            Decode::Body => loop {
                ready!(self.poll_body(cx, down, manager, scratch));
                // An upstream that has all of the request may answer at once: the end is told before its answer is looked
                // at, or it would seem early.
                let sends = matches!((&self.decode, &self.encode), (Decode::Body, Encode::Wait));
                if !sends || !down.request_complete() {
                    break;
                }
            },
            Decode::Trailers => {
                let Some(trailers) = self.request_trailers.as_mut() else {
                    self.request_sent();
                    return Poll::Ready(());
                };
                match ready!(self.decode_chain.poll_trailers(cx, trailers, &mut self.request, &self.control)) {
                    DataOutcome::Reply(reply) => self.reply(*reply),
                    DataOutcome::Passed(tail) => {
                        let buffers = &manager.worker.buffers;
                        let sent = tail.map_or(Ok(()), |tail| self.router.send_data(cx, buffers, &Chunk::Own(tail)));
                        match sent.and_then(|()| self.router.send_trailers(trailers, buffers)) {
                            Ok(()) => self.request_sent(),
                            Err(failure) => self.upstream_failed(failure, manager),
                        }
                    }
                }
            }
            Decode::Held | Decode::Done => return Poll::Pending,
        }
        Poll::Ready(())
    }

    fn head_decided(&mut self, outcome: HeadOutcome, manager: &HttpConnectionManager) {
        match outcome {
            HeadOutcome::Passed => self.decode = Decode::Route,
            HeadOutcome::Reply(reply) => self.reply(*reply),
            HeadOutcome::Collect { limit, partial } => self.decode = Decode::Collect { limit, partial },
            HeadOutcome::Reroute => {
                let decided = self.control.state().route_decided.get();
                let before = self.control.route();
                self.find_route(manager);
                if decided && !is_same_route(before.as_deref(), self.control.route().as_deref()) {
                    let reply = LocalReply::new(403, "route_changed_after_authorization");
                    return self.reply(reply.flag(ResponseFlag::UnauthorizedExternalService));
                }
                self.decode = Decode::Head;
            }
        }
    }

    /// Pulls the body for the filter that wants to see it whole.
    fn poll_collect(
        &mut self,
        cx: &mut Context<'_>,
        down: &mut Down<'_>,
        manager: &HttpConnectionManager,
        scratch: &mut [u8],
        limit: usize,
        partial: bool,
    ) -> Poll<()> {
        let complete = self.request.framing.is_none() || down.request_complete();
        if !complete && self.collected.len() < limit.saturating_add(usize::from(!partial)) {
            match ready!(down.poll_body(cx, scratch)) {
                Ok(Body::Data(chunk)) => {
                    self.control.info_mut().bytes_received += chunk.len() as u64;
                    self.collected.extend_from_slice(chunk.as_slice());
                }
                Ok(Body::Trailers(trailers)) => self.request_trailers = Some(trailers),
                Ok(Body::End) => {}
                Err(error) => self.request_broken(error, down, manager),
            }
            return Poll::Ready(());
        }
        if self.collected.len() > limit && !partial {
            manager.failures.inc(stat::DOWNSTREAM_RQ_TOO_LARGE);
            self.close_after |= !down.is_shared();
            self.reply(LocalReply::new(413, "request_payload_too_large").body("Payload Too Large"));
            return Poll::Ready(());
        }
        self.decode = Decode::Head;
        let outcome = self.decode_chain.collected(&mut self.request, &mut self.collected, complete, &self.control);
        if let Some(outcome) = outcome {
            self.head_decided(outcome, manager);
        }
        Poll::Ready(())
    }

    /// The upstream stream is open: the head goes, and what was collected or sent before.
    fn send_head(&mut self, cx: &mut Context<'_>, down: &Down<'_>, manager: &HttpConnectionManager) {
        let buffers = &manager.worker.buffers;
        if self.upgrade == Upgrade::Wanted {
            match self.router.send_head(&self.request, false, &self.control, buffers) {
                Ok(()) => self.decode = Decode::Held,
                Err(failure) => self.upstream_failed(failure, manager),
            }
            return;
        }
        let bodiless = self.request.framing.is_none() && self.collected.is_empty() && !self.router.has_body();
        if let Err(failure) = self.router.send_head(&self.request, bodiless, &self.control, buffers) {
            return self.upstream_failed(failure, manager);
        }
        if bodiless {
            return self.request_sent();
        }
        match self.router.replay(cx, buffers, self.request_trailers.as_ref()) {
            Ok(false) => self.decode = Decode::Body,
            Ok(true) => return self.request_sent(),
            Err(failure) => return self.upstream_failed(failure, manager),
        }
        if self.collected.is_empty() {
            return;
        }
        let body = std::mem::take(&mut self.collected);
        let end = down.request_complete() && self.request_trailers.is_none();
        let mut chunk = Chunk::Own(body.into());
        if let Poll::Ready(outcome) = self.decode_chain.poll_data(cx, &mut chunk, end, &mut self.request, &self.control)
        {
            self.data_decided(cx, outcome, &chunk, manager);
        }
    }

    fn poll_body(
        &mut self,
        cx: &mut Context<'_>,
        down: &mut Down<'_>,
        manager: &HttpConnectionManager,
        scratch: &mut [u8],
    ) -> Poll<()> {
        let buffers = &manager.worker.buffers;
        if self.decode_chain.has_parked() {
            let outcome = ready!(self.decode_chain.poll_parked(cx, &mut self.request, &self.control));
            self.data_decided(cx, outcome, &Chunk::Lent(&[]), manager);
            return Poll::Ready(());
        }
        // The end needs no room, neither upstream nor with a mirror that takes its time.
        if !down.request_complete()
            && let Err(failure) = ready!(self.router.poll_writable(cx, buffers))
        {
            self.upstream_failed(failure, manager);
            return Poll::Ready(());
        }
        if self.request_trailers.is_some() {
            self.decode = Decode::Trailers;
            return Poll::Ready(());
        }
        if self.request_ended {
            match self.router.send_end(cx, buffers) {
                Ok(()) => self.request_sent(),
                Err(failure) => self.upstream_failed(failure, manager),
            }
            return Poll::Ready(());
        }
        if self.pipe_request(cx, down, manager) {
            return Poll::Ready(());
        }
        let most = scratch.len().min(self.router.read_size());
        match ready!(down.poll_body(cx, &mut scratch[..most])) {
            Ok(Body::Data(mut chunk)) => {
                self.control.info_mut().bytes_received += chunk.len() as u64;
                let end = false;
                let outcome =
                    ready!(self.decode_chain.poll_data(cx, &mut chunk, end, &mut self.request, &self.control));
                self.data_decided(cx, outcome, &chunk, manager);
            }
            Ok(Body::Trailers(trailers)) => {
                self.request_trailers = Some(trailers);
                self.decode = Decode::Trailers;
            }
            Ok(Body::End) if self.upgrade == Upgrade::Accepted && !down.is_shared() => {
                // As Envoy: the client's FIN ends an upgraded connection.
                let end = self.client_gone(None);
                self.encode = Encode::Done(end);
            }
            Ok(Body::End) => {
                self.request_ended = true;
                if !self.decode_chain.is_empty() {
                    let mut chunk = Chunk::Lent(&[]);
                    let outcome =
                        ready!(self.decode_chain.poll_data(cx, &mut chunk, true, &mut self.request, &self.control));
                    self.data_decided(cx, outcome, &chunk, manager);
                }
            }
            Err(error) => self.request_broken(error, down, manager),
        }
        Poll::Ready(())
    }

    fn data_decided(
        &mut self,
        cx: &mut Context<'_>,
        outcome: DataOutcome,
        chunk: &Chunk<'_>,
        manager: &HttpConnectionManager,
    ) {
        let sent = match outcome {
            DataOutcome::Reply(reply) => return self.reply(*reply),
            DataOutcome::Passed(Some(bytes)) => self.router.send_data(cx, &manager.worker.buffers, &Chunk::Own(bytes)),
            DataOutcome::Passed(None) => self.router.send_data(cx, &manager.worker.buffers, chunk),
        };
        if let Err(failure) = sent {
            self.upstream_failed(failure, manager);
        }
    }

    fn request_sent(&mut self) {
        self.decode = Decode::Done;
        self.request_deadline = None;
        let now = self.control.now();
        let mut info = self.control.info_mut();
        info.timings.last_downstream_rx.get_or_insert(now);
        info.timings.last_upstream_tx = Some(now);
        drop(info);
        self.router.request_complete(self.request_trailers.as_ref(), &self.control);
    }

    /// The client's body is not what its head promised.
    pub(super) fn request_broken(&mut self, error: BodyError, down: &Down<'_>, manager: &HttpConnectionManager) {
        self.close_after |= !down.is_shared();
        match error {
            BodyError::Gone(reason) => {
                let end = self.client_left(&reason, manager);
                self.encode = Encode::Done(end);
            }
            BodyError::Refused(error) => {
                manager.failures.inc(stat::DOWNSTREAM_CX_PROTOCOL_ERROR);
                let reply = LocalReply::new(error.status, error.details).body(error.body);
                self.reply(reply.flag(ResponseFlag::DownstreamProtocolError));
            }
        }
    }
}

/// Routes are told apart by where they lead and what they are called; of those without a name only the same one is.
fn is_same_route(before: Option<&dyn RouteView>, now: Option<&dyn RouteView>) -> bool {
    match (before, now) {
        (Some(before), Some(now)) => {
            let told = |route: &dyn RouteView| {
                (route.name().to_owned(), route.virtual_host_name().to_owned(), route.cluster_name().map(str::to_owned))
            };
            std::ptr::addr_eq(before, now) || (!now.name().is_empty() && told(before) == told(now))
        }
        (None, None) => true,
        _ => false,
    }
}
