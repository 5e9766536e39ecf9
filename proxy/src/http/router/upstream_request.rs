//! One attempt: a host, a connection to it, and the upstream stream on that connection.

use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use nuncio_core::http::grpc_status;
use nuncio_core::http::{Chunk, HeaderMap, RequestHead, ResponseHead, StreamControl, Version};
use nuncio_core::stats::lists::cluster as stat;
use nuncio_core::upstream::{Choice, Host, Outcome};
use tokio::time::Instant;

use super::attempt_timers::AttemptTimers;
use super::failure::{Failure, Reset};
use super::upstream_log::AttemptRecord;
use crate::codec::http1::ClientConn;
use crate::codec::{Body, Buffers};
use crate::tls::ServerWanted;
use crate::upstream::ThreadLocalCluster;
use crate::upstream::circuit_breaker::Priority;
use crate::upstream::pool::stream::{AcquireStream, NotSent, PendingStream, UpstreamEnd, UpstreamStream};
use crate::upstream::pool::{PoolFailure, PoolFailureReason};

/// How much may wait for the upstream's socket before the client is read no further.
const HIGH_WATERMARK: usize = 64 * 1024;

// Part of the stream's recycled record: nothing is moved or allocated for it.
#[allow(clippy::large_enum_variant)]
#[derive(Default)]
enum State {
    #[default]
    Idle,
    /// The balancer is finding a host.
    Choosing(futures_util::future::LocalBoxFuture<'static, Option<Arc<Host>>>),
    Waiting(PendingStream),
    Open(UpstreamStream),
    /// The response is complete; what is left belongs to the pool.
    Over,
}

/// What is asked of the upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kind {
    #[default]
    Request,
    /// An upgrade or CONNECT, which goes on to the upstream.
    Upgrade,
    /// CONNECT ends here: the upstream gets its bytes.
    Terminated,
}

/// An attempt in its states.
#[derive(Default)]
pub struct UpstreamRequest {
    state: State,
    cluster: Option<Rc<ThreadLocalCluster>>,
    host: Option<Arc<Host>>,
    /// What the client speaks; some clusters follow it.
    downstream: Version,
    kind: Kind,
    wanted: Option<Rc<ServerWanted>>,
    head_sent: bool,
    /// Something of a response came.
    answered: bool,
    pub(super) timers: AttemptTimers,
    /// For `upstream_log`, where there is one.
    pub(super) record: Option<Box<AttemptRecord>>,
}

impl UpstreamRequest {
    /// Nothing is under way: an attempt may begin.
    pub fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle)
    }

    /// A host, a connection or a response is waited for, or a response is being read.
    pub fn is_under_way(&self) -> bool {
        matches!(self.state, State::Choosing(_) | State::Waiting(_) | State::Open(_))
    }

    pub fn is_answered(&self) -> bool {
        self.answered
    }

    /// Something of the request went to the upstream.
    pub fn is_sent(&self) -> bool {
        self.head_sent
    }

    /// Once it is chosen.
    pub fn host(&self) -> Option<&Arc<Host>> {
        self.host.as_ref()
    }

    /// `choice` is the balancer's answer to this attempt.
    pub fn begin(
        &mut self,
        cluster: &Rc<ThreadLocalCluster>,
        priority: Priority,
        choice: Choice,
        (downstream, kind): (Version, Kind),
        wanted: Option<Rc<ServerWanted>>,
    ) -> Result<(), Failure> {
        self.wanted = wanted;
        self.cluster = Some(cluster.clone());
        self.downstream = downstream;
        self.kind = kind;
        self.host = None;
        self.head_sent = false;
        self.answered = false;
        match choice {
            Choice::Host(host) => self.acquire(cluster, host, priority),
            Choice::Wait(future) => {
                self.state = State::Choosing(future);
                Ok(())
            }
            Choice::None => Err(Failure::new(Reset::NoHealthyHost)),
            Choice::Refused(why) => Err(Failure { transport: Some(why.into()), ..Failure::new(Reset::NoHealthyHost) }),
        }
    }

    fn acquire(
        &mut self,
        cluster: &Rc<ThreadLocalCluster>,
        host: Arc<Host>,
        priority: Priority,
    ) -> Result<(), Failure> {
        if let Some(record) = &mut self.record {
            record.asks(&host);
        }
        let acquired = match self.kind {
            Kind::Terminated => match cluster.connect_tcp(&host, self.wanted.clone()) {
                Ok(connecting) => AcquireStream::Pending(PendingStream::Tcp(connecting)),
                Err(failure) => AcquireStream::Failed(failure),
            },
            Kind::Request | Kind::Upgrade => cluster.stream(&host, priority, self.downstream, self.wanted.as_ref()),
        };
        match acquired {
            AcquireStream::Ready(conn) => self.state = State::Open(conn),
            AcquireStream::Pending(waiting) => self.state = State::Waiting(waiting),
            AcquireStream::Failed(failure) => {
                // Refused by a limit: no host was asked.
                return Err(pool_failure(&failure));
            }
        }
        self.host = Some(host);
        Ok(())
    }

    /// Ready when the request can be sent.
    pub fn poll_open(
        &mut self,
        cx: &mut Context<'_>,
        cluster: &Rc<ThreadLocalCluster>,
        priority: Priority,
        control: &StreamControl,
    ) -> Poll<Result<(), Failure>> {
        loop {
            match &mut self.state {
                State::Choosing(future) => match ready!(future.as_mut().poll(cx)) {
                    Some(host) => self.acquire(cluster, host, priority)?,
                    None => return Poll::Ready(Err(Failure::new(Reset::NoHealthyHost))),
                },
                State::Waiting(waiting) => match ready!(waiting.poll(cx)) {
                    Ok(conn) => self.state = State::Open(conn),
                    Err(failure) => {
                        if failure.reason != PoolFailureReason::Overflow {
                            control.info_mut().upstream_host = self.host.clone();
                        }
                        return Poll::Ready(Err(pool_failure(&failure)));
                    }
                },
                State::Open(_) => {
                    self.report(Outcome::Connected);
                    self.describe(control);
                    return Poll::Ready(Ok(()));
                }
                State::Idle | State::Over => return Poll::Pending,
            }
        }
    }

    /// Tells the stream's record which upstream it is that answers.
    pub fn describe(&self, control: &StreamControl) {
        let State::Open(conn) = &self.state else { return };
        let mut info = control.info_mut();
        info.upstream_host = Some(conn.host().clone());
        info.upstream_connection_id = Some(conn.id());
        info.upstream_local_address = conn.local_address().cloned();
        info.upstream_protocol = conn.version();
        info.upstream_tls = conn.tls().cloned();
    }

    pub fn send_head(
        &mut self,
        request: &RequestHead,
        end: bool,
        control: &StreamControl,
        buffers: &Buffers,
    ) -> Result<(), Failure> {
        let State::Open(conn) = &mut self.state else { return Ok(()) };
        self.head_sent = true;
        let sent = match self.kind {
            Kind::Request => conn.send_head(buffers, request, end),
            Kind::Upgrade | Kind::Terminated => conn.send_upgrade_head(buffers, request),
        };
        match sent {
            Ok(()) => {}
            Err(NotSent::Unwritable(what)) => {
                // Filters or routes made it unsendable; it never left this process.
                tracing::warn!(target: "router", "request not sent: {what}");
                return Err(Failure::new(Reset::ProtocolError));
            }
            Err(NotSent::Upstream(_)) => {
                return Err(Failure { stale_connection: true, ..Failure::new(Reset::RemoteRefusedStream) });
            }
        }
        let (mut info, now, bytes) = (control.info_mut(), control.now(), request.headers.byte_size() as u64);
        info.timings.first_upstream_tx = Some(now);
        info.upstream_header_bytes_sent = bytes;
        if let Some(record) = &mut self.record {
            record.sent_head(bytes, now);
        }
        Ok(())
    }

    pub fn send_data(
        &mut self,
        cx: &mut Context<'_>,
        buffers: &Buffers,
        data: &Chunk<'_>,
        end: bool,
    ) -> Result<(), Failure> {
        let State::Open(conn) = &mut self.state else { return Ok(()) };
        if let Some(record) = &mut self.record {
            record.sent(data.as_slice().len());
        }
        conn.send_data(cx, buffers, data, end).map_err(|_| self.cut())
    }

    pub fn send_trailers(&mut self, trailers: &HeaderMap, buffers: &Buffers) -> Result<(), Failure> {
        let State::Open(conn) = &mut self.state else { return Ok(()) };
        conn.send_trailers(buffers, trailers).map_err(|_| self.cut())
    }

    /// Ready when the upstream takes more.
    pub fn poll_writable(&mut self, cx: &mut Context<'_>, buffers: &Buffers) -> Poll<Result<(), Failure>> {
        let State::Open(conn) = &mut self.state else { return Poll::Ready(Ok(())) };
        ready!(conn.poll_writable(cx, buffers, HIGH_WATERMARK)).map_err(|_| self.cut())?;
        Poll::Ready(Ok(()))
    }

    /// How much is worth reading for it at once.
    pub fn read_size(&self) -> usize {
        match &self.state {
            State::Open(conn) => conn.read_size(),
            _ => usize::MAX,
        }
    }

    pub fn flush(&mut self, cx: &mut Context<'_>, buffers: &Buffers) -> Result<(), Failure> {
        match &mut self.state {
            State::Open(conn) if conn.write_buffered() > 0 => match conn.poll_flush_soon(cx, buffers) {
                // An answer may be there although it takes nothing more: the response side decides.
                Poll::Ready(Err(_)) if self.head_sent && !conn.is_reused() => Ok(()),
                Poll::Ready(Err(_)) => Err(self.cut()),
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// The connection ended under the request.
    pub(super) fn cut(&self) -> Failure {
        let State::Open(conn) = &self.state else { return Failure::new(Reset::ConnectionTermination) };
        Failure { stale_connection: conn.is_reused() && !self.answered, ..Failure::new(Reset::ConnectionTermination) }
    }

    pub fn poll_response(
        &mut self,
        cx: &mut Context<'_>,
        head: &mut ResponseHead,
        buffers: &Buffers,
        scratch: &mut [u8],
    ) -> Poll<Result<(), Failure>> {
        let State::Open(conn) = &mut self.state else { return Poll::Pending };
        if !self.head_sent {
            return Poll::Pending;
        }
        match ready!(conn.poll_response(cx, buffers, scratch, head)) {
            Ok(()) => {
                self.answered = true;
                head.limits = self.cluster.as_ref().map(|cluster| cluster.response_limits()).unwrap_or_default();
                Poll::Ready(Ok(()))
            }
            Err(error) => Poll::Ready(Err(self.broken(error))),
        }
    }

    pub fn poll_body<'s>(&mut self, cx: &mut Context<'_>, scratch: &'s mut [u8]) -> Poll<Result<Body<'s>, Failure>> {
        let State::Open(conn) = &mut self.state else { return Poll::Ready(Ok(Body::End)) };
        match ready!(conn.poll_body(cx, scratch)) {
            Ok(body) => {
                if let (Some(record), Body::Data(data)) = (&mut self.record, &body) {
                    record.received(data.as_slice().len());
                }
                Poll::Ready(Ok(body))
            }
            Err(error) => Poll::Ready(Err(self.broken(error))),
        }
    }

    /// The connection of an attempt under way, where a body may go by a pipe.
    pub(super) fn http1(&mut self) -> Option<&mut ClientConn> {
        match &mut self.state {
            State::Open(conn) => conn.http1(),
            _ => None,
        }
    }

    /// The answer agreed to an upgrade.
    pub fn is_tunnel(&self) -> bool {
        matches!(&self.state, State::Open(conn) if conn.is_tunnel())
    }

    pub(super) fn broken(&mut self, end: UpstreamEnd) -> Failure {
        tracing::debug!(target: "router", "upstream: {end:?}");
        let count = |counter| {
            if let Some(cluster) = &self.cluster {
                cluster.stats().failures.inc(counter);
            }
        };
        match end {
            UpstreamEnd::Protocol(_) => {
                // The pool counts those of connections that carry many requests.
                if matches!(&self.state, State::Open(conn) if conn.version() != Some(Version::Http2)) {
                    count(stat::UPSTREAM_CX_PROTOCOL_ERROR);
                }
                Failure::new(Reset::ProtocolError)
            }
            UpstreamEnd::Closed => self.cut(),
            UpstreamEnd::TunnelClosed => Failure { tunnel_closed: true, ..self.cut() },
            UpstreamEnd::Reset => {
                count(stat::UPSTREAM_RQ_RX_RESET);
                Failure::new(Reset::RemoteReset)
            }
            UpstreamEnd::Refused => Failure::new(Reset::RemoteRefusedStream),
        }
    }

    /// For the host's own counters: its answer was good or bad.
    pub fn count_status(&self, status: u16) {
        if let Some(host) = &self.host {
            if status < 500 { host.load.request_succeeded() } else { host.load.request_failed() }
        }
    }

    /// `status` is what the client gets for it.
    pub fn count_timeout(&self, status: u16) {
        if let Some(host) = &self.host {
            host.load.request_timed_out();
        }
        self.report(Outcome::TimedOut { status });
    }

    /// What the answer tells of the host, whatever becomes of it.
    pub fn report_answer(&mut self, head: &ResponseHead, now: Instant) {
        if let Some(record) = &mut self.record {
            record.answered(head, now);
        }
        if !self.host.as_ref().is_some_and(|host| host.is_watched()) {
            return;
        }
        // In a head without a body gRPC tells its status, which HTTP's hides.
        let grpc = head.headers.contains("grpc-status").then(|| grpc_status::of_response(Some(head), None)).flatten();
        let status = grpc.map_or(head.status, grpc_status::to_http);
        self.report(Outcome::Answered { status });
        if head.headers.contains("x-envoy-immediate-health-check-fail") {
            self.report(Outcome::FailsAtOnce);
        }
        if status < 500 && head.headers.contains("x-envoy-degraded") {
            self.report(Outcome::Degraded);
        }
    }

    fn report(&self, outcome: Outcome) {
        if let Some(host) = &self.host {
            host.report(outcome);
        }
    }

    /// The attempt failed; its connection is closed.
    pub fn failed(&mut self, failure: &Failure) {
        if let Some(record) = &mut self.record {
            record.failed(failure);
        }
        // What was late was reported when its time was up, and our own limits say nothing of the host.
        if !failure.is_timeout() && !matches!(failure.reset, Reset::Overflow | Reset::NoHealthyHost) {
            self.report(Outcome::Failed);
        }
        let state = std::mem::take(&mut self.state);
        if let (State::Open(conn), Reset::ConnectionTermination) = (state, failure.reset) {
            conn.closed_by_peer();
        }
        if let Some(host) = &self.host
            && !self.answered
            && !matches!(failure.reset, Reset::Overflow | Reset::NoHealthyHost)
        {
            host.load.request_failed();
        }
    }

    /// Whatever is under way is given up: an unfinished HTTP/1 exchange closes its connection, and is no
    /// `upstream_rq_tx_reset`.
    pub fn cancel(&mut self) {
        if matches!(&self.state, State::Open(conn) if conn.version() == Some(Version::Http2))
            && let Some(cluster) = &self.cluster
        {
            cluster.stats().failures.inc(stat::UPSTREAM_RQ_TX_RESET);
        }
        self.state = State::Over;
    }

    /// A response that nobody wants: counts against the host whatever its status is.
    pub fn discard(&mut self) {
        if let Some(host) = &self.host {
            host.load.request_failed();
        }
        self.set_aside();
    }

    /// The rest of the response is not read: its connection serves others only if there is none.
    pub fn set_aside(&mut self) {
        if let State::Open(conn) = &mut self.state
            && conn.response_complete()
        {
            conn.give_back();
        }
        self.state = State::Over;
    }

    /// The response was read to its end: the connection serves others, or closes if it cannot.
    pub fn complete(&mut self, control: &StreamControl) {
        if let State::Open(conn) = &mut self.state {
            let (head_sent, head_received) = conn.head_bytes();
            {
                let mut info = control.info_mut();
                info.upstream_wire_bytes_sent = u64::from(head_sent);
                info.upstream_wire_bytes_received = u64::from(head_received);
            }
            conn.give_back();
        }
        self.state = State::Over;
    }

    /// Nothing is under way, and nothing was.
    pub fn reset(&mut self) {
        let Self { state, cluster, host, downstream, kind, wanted, head_sent, answered, timers, record } = self;
        *state = State::Idle;
        (*cluster, *host, *wanted, *record) = (None, None, None, None);
        (*head_sent, *answered) = (false, false);
        *downstream = Version::default();
        *kind = Kind::default();
        *timers = AttemptTimers::default();
    }
}

fn pool_failure(failure: &PoolFailure) -> Failure {
    let reset = match failure.reason {
        PoolFailureReason::RemoteConnectionFailure => Reset::RemoteConnectionFailure,
        PoolFailureReason::LocalConnectionFailure => Reset::LocalConnectionFailure,
        PoolFailureReason::ConnectionTimeout => Reset::ConnectionTimeout,
        PoolFailureReason::Overflow => Reset::Overflow,
        PoolFailureReason::NoPool | PoolFailureReason::Switched => Reset::NoHealthyHost,
    };
    let transport = (!failure.transport.is_empty()).then(|| failure.transport.to_string().into());
    Failure { transport, ..Failure::new(reset) }
}
