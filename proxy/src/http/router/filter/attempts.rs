//! One attempt after the other: a host, a connection, the request on it, and its response.

use std::task::{Context, Poll, ready};

use nuncio_api::pb::google::protobuf::Struct;
use nuncio_core::http::{Chunk, HeaderMap, RequestHead, ResponseHead, StreamControl};
use nuncio_core::stats::lists::vhost as vhost_stat;
use nuncio_core::upstream::{Choice, Host, LbContext};
use tokio::time::Instant;

use super::super::failure::{Failure, Reset};
use super::super::rewrite::set_authority;
use super::super::shadow;
use super::Router;
use crate::codec::{Body, Buffers};
use crate::http::conn_manager::HttpConnectionManager;
use crate::upstream::ThreadLocalCluster;

/// The namespace of metadata that chooses among a cluster's subsets.
const LABELS: &str = "envoy.lb";

impl Router {
    // === the request ===

    /// Gets an upstream stream: waits until the attempt may begin, chooses a host and waits for a
    /// connection to it.
    pub fn poll_open(
        &mut self,
        cx: &mut Context<'_>,
        request: &mut RequestHead,
        control: &StreamControl,
        manager: &HttpConnectionManager,
    ) -> Poll<Result<(), Failure>> {
        if let Some(at) = self.retry_at {
            if Instant::now() < at {
                return Poll::Pending;
            }
            self.retry_at = None;
            self.prepare_retry(request, manager)?;
        }
        let Some(cluster) = self.cluster.clone() else { return Poll::Pending };
        let priority = self.priority();
        if self.upstream.is_idle() {
            self.attempts += 1;
            control.info_mut().attempt_count = self.attempts;
            let choice = self.choose(&cluster, request, control);
            let downstream = control.info().protocol.unwrap_or_default();
            let header = cluster.wanted_header().and_then(|name| request.headers.get(name));
            let connection = control.connection();
            let of_listener = connection.as_ref().and_then(|connection| connection.original_source);
            let source = control.state().original_source.get().or(of_listener);
            let authority = request.authority().unwrap_or_default();
            let wanted = cluster.wanted(authority, header, connection.as_deref(), source);
            self.upstream.record = self.attempt_log.as_ref().map(|log| {
                let clock = &manager.worker.context.clock;
                Box::new(log.begin(control.now(), clock.now()))
            });
            self.upstream.begin(&cluster, priority, choice, (downstream, self.kind), wanted)?;
            self.begin_copies(control, manager);
        }
        let opened = ready!(self.upstream.poll_open(cx, &cluster, priority, control));
        if let (Some(retry), Some(host)) = (&mut self.retry, self.upstream.host()) {
            retry.attempted(host);
        }
        opened?;
        self.opened(&cluster, request, control.now(), manager);
        self.log_opened(request, control, manager);
        Poll::Ready(Ok(()))
    }

    /// Those before it that are over are told first.
    fn log_opened(&mut self, request: &RequestHead, control: &StreamControl, manager: &HttpConnectionManager) {
        let (Some(log), Some(record)) = (&self.attempt_log, &mut self.upstream.record) else { return };
        log.write(request, control, manager);
        record.opened(&control.info());
        if manager.config.router.upstream_log_on_stream {
            record.write_opened(request, control, manager);
        }
    }

    /// The stream is over: what `upstream_log` tells of its attempts, before the stream's own record.
    pub fn log_attempts(&mut self, request: &RequestHead, control: &StreamControl, manager: &HttpConnectionManager) {
        let Some(log) = self.attempt_log.take() else { return };
        self.raced.iter_mut().chain([&mut self.upstream]).for_each(|attempt| attempt.record = None);
        log.write(request, control, manager);
    }

    /// What the next attempt tells its upstream.
    fn prepare_retry(&mut self, request: &mut RequestHead, manager: &HttpConnectionManager) -> Result<(), Failure> {
        // It may have been removed or replaced in the meantime.
        let name = self.cluster.as_ref().map(|cluster| cluster.info().name.clone());
        let Some(cluster) = name.and_then(|name| manager.worker.clusters.get(&name)) else {
            return Err(Failure::new(Reset::NoHealthyHost));
        };
        self.cluster = Some(cluster);
        let Some(route) = &self.route else { return Ok(()) };
        let host = route.virtual_host();
        let headers = &mut request.headers;
        if host.include_request_attempt_count {
            headers.set_u64("x-envoy-attempt-count", u64::from(self.attempts) + 1);
        }
        if host.include_is_timeout_retry_header {
            headers.set("x-envoy-is-timeout-retry", if self.timed_out { "true" } else { "false" });
        }
        let elapsed = self.request_end.map(|end| end.elapsed()).unwrap_or_default();
        self.timeouts.tell(headers, elapsed, !manager.config.router.suppress_envoy_headers);
        Ok(())
    }

    fn choose(&mut self, cluster: &ThreadLocalCluster, request: &RequestHead, control: &StreamControl) -> Choice {
        let route = self.route.clone();
        let of_route = route.as_ref().and_then(|r| r.metadata_match()).map(|labels| &**labels);
        let of_stream = labels_of_stream(of_route, control);
        let mut context = LbContext {
            hash: self.hash,
            headers: Some(&request.headers),
            stream: Some(control),
            metadata_match: of_stream.as_ref().or(of_route),
            ..LbContext::default()
        };
        let Some(retry) = self.retry.as_mut().filter(|_| self.retried) else { return cluster.choose(&context) };
        let load = retry.priority_load(&cluster.hosts()).cloned();
        let reject = |host: &Host| retry.rejects(host);
        context.priority_load = load.as_ref();
        if retry.has_host_predicates() {
            context.reject = Some(&reject);
            context.reselections = retry.reselections();
        }
        cluster.choose(&context)
    }

    fn opened(
        &mut self,
        cluster: &ThreadLocalCluster,
        request: &mut RequestHead,
        now: Instant,
        manager: &HttpConnectionManager,
    ) {
        if let Some(tally) = self.tally() {
            tally.count_apart(vhost_stat::UPSTREAM_RQ_TOTAL);
        }
        let limit = self.timeouts.stream_duration.or(cluster.info().max_stream_duration);
        self.upstream.timers.opened(now, limit);
        if self.request_end.is_some() {
            self.upstream.timers.start(now, &self.timeouts);
        }
        let Some(route) = self.route.as_ref().filter(|route| route.auto_host_rewrite()) else { return };
        if let Some(name) = self.upstream.host().map(|host| host.hostname()).filter(|name| !name.is_empty()) {
            let append = route.policy().is_some_and(|policy| policy.append_x_forwarded_host);
            // Of an earlier attempt's host nobody wants to know.
            let first = self.attempts == 1;
            let keep_original = first && !manager.config.router.suppress_envoy_headers;
            let mut host = manager.worker.buffers.take();
            host.extend_from_slice(name.as_bytes());
            set_authority(request, &mut host, append && first, keep_original);
            manager.worker.buffers.give(host);
        }
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
        if !self.kept.add(data.as_slice(), buffers) {
            self.abandon_retries();
        }
        if !self.copies.is_empty() {
            let piece = data.share();
            self.copies.iter().for_each(|copy| copy.push(piece.clone()));
        }
        self.upstream.send_data(cx, buffers, data, false)
    }

    pub fn send_end(&mut self, cx: &mut Context<'_>, buffers: &Buffers) -> Result<(), Failure> {
        self.upstream.send_data(cx, buffers, &Chunk::Lent(&[]), true)
    }

    pub fn send_trailers(&mut self, trailers: &HeaderMap, buffers: &Buffers) -> Result<(), Failure> {
        self.upstream.send_trailers(trailers, buffers)
    }

    /// Something of the body went upstream in an earlier attempt.
    pub fn has_body(&self) -> bool {
        !self.kept.bytes().is_empty()
    }

    /// Sends what was sent of the body before. True: that was all of it, and the trailers with it.
    pub fn replay(
        &mut self,
        cx: &mut Context<'_>,
        buffers: &Buffers,
        trailers: Option<&HeaderMap>,
    ) -> Result<bool, Failure> {
        let whole = self.request_end.is_some();
        if !self.kept.bytes().is_empty() {
            self.upstream.send_data(cx, buffers, &Chunk::Lent(self.kept.bytes()), false)?;
        }
        if whole {
            match trailers {
                Some(trailers) => self.upstream.send_trailers(trailers, buffers)?,
                None => self.upstream.send_data(cx, buffers, &Chunk::Lent(&[]), true)?,
            }
        }
        Ok(whole)
    }

    /// Ready when the upstream takes more, and every mirror.
    pub fn poll_writable(&mut self, cx: &mut Context<'_>, buffers: &Buffers) -> Poll<Result<(), Failure>> {
        ready!(self.upstream.poll_writable(cx, buffers))?;
        for copy in &self.copies {
            ready!(copy.poll_room(cx));
        }
        Poll::Ready(Ok(()))
    }

    /// How much is worth reading for the upstream at once.
    pub fn read_size(&self) -> usize {
        self.upstream.read_size()
    }

    /// Writes what can be written now.
    pub fn flush(&mut self, cx: &mut Context<'_>, buffers: &Buffers) -> Result<(), Failure> {
        for attempt in &mut self.raced {
            // Its response side will tell what went wrong.
            let _ = attempt.flush(cx, buffers);
        }
        self.upstream.flush(cx, buffers)
    }

    /// All of the request has come: the route's timeout begins, and that of the attempt.
    pub fn request_complete(&mut self, trailers: Option<&HeaderMap>, control: &StreamControl) {
        if self.request_end.is_some() {
            return;
        }
        let now = control.now();
        self.request_end = Some(now);
        self.deadline = self.timeouts.global.map(|d| now + d);
        for copy in self.copies.drain(..) {
            copy.finish(trailers.cloned());
        }
        if self.upstream.is_under_way() && self.upstream.is_sent() {
            self.upstream.timers.start(now, &self.timeouts);
        }
    }

    /// Copies go out with the first attempt that has a host.
    fn begin_copies(&mut self, control: &StreamControl, manager: &HttpConnectionManager) {
        let (Some(route), Some(head)) = (&self.route, self.original.take()) else { return };
        let original = shadow::Original {
            head: *head,
            timeout: self.timeouts.global,
            connection: control.connection().map_or(0, |connection| connection.id),
            limit: shadow::limit(manager.config.buffer_limit),
        };
        let mirrors = route.mirrors();
        for mirror in self.mirrored.drain(..).filter_map(|at| mirrors.get(at)) {
            let Some(copy) = shadow::begin(mirror, &original, manager.config.local_ip, &manager.worker) else {
                continue;
            };
            if self.request_end.is_some() {
                copy.finish(None);
            } else {
                self.copies.push(copy);
            }
        }
    }

    // === the response ===

    /// The next head of any attempt. A failure is that of the newest one.
    pub fn poll_response(
        &mut self,
        cx: &mut Context<'_>,
        head: &mut ResponseHead,
        manager: &HttpConnectionManager,
        scratch: &mut [u8],
    ) -> Poll<Result<(), Failure>> {
        self.answering = None;
        let buffers = &manager.worker.buffers;
        if let Poll::Ready(result) = self.upstream.poll_response(cx, head, buffers, scratch) {
            return Poll::Ready(result);
        }
        let mut at = 0;
        while at < self.raced.len() {
            match self.raced[at].poll_response(cx, head, buffers, scratch) {
                Poll::Pending => at += 1,
                Poll::Ready(Ok(())) => {
                    self.answering = Some(at);
                    return Poll::Ready(Ok(()));
                }
                Poll::Ready(Err(failure)) => {
                    if let Some(failure) = self.raced_failed(at, failure) {
                        return Poll::Ready(Err(failure));
                    }
                }
            }
        }
        Poll::Pending
    }

    pub fn poll_body<'s>(&mut self, cx: &mut Context<'_>, scratch: &'s mut [u8]) -> Poll<Result<Body<'s>, Failure>> {
        let event = ready!(self.upstream.poll_body(cx, scratch));
        match &event {
            Ok(Body::End | Body::Trailers(_)) => self.response_ended = true,
            Ok(Body::Data(_)) => self.upstream.timers.progress(),
            Err(_) => {}
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
        if let (Some(tally), Some(end)) = (self.tally(), self.request_end) {
            tally.charge_time(now.duration_since(end).as_millis() as u64, self.internal);
        }
        self.upstream.complete(control);
        self.upstream.timers.clear();
    }
}

/// What filters said of the wanted hosts, over what the connection's and the route say. None if they said nothing.
fn labels_of_stream(of_route: Option<&Struct>, control: &StreamControl) -> Option<Struct> {
    let info = control.info();
    let connection = control.connection();
    let of_connection = connection.as_ref().map(|connection| connection.metadata.borrow());
    let of_connection = of_connection.as_ref().and_then(|metadata| metadata.0.get(LABELS));
    let of_stream = info.dynamic_metadata.0.get(LABELS);
    if of_connection.is_none() && of_stream.is_none() {
        return None;
    }
    let levels = [of_route, of_connection, of_stream];
    let fields = levels.into_iter().flatten().flat_map(|labels| labels.fields.clone());
    Some(Struct { fields: fields.collect() })
}
