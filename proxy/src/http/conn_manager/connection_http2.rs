//! A client's HTTP/2 connection: takes its requests, gives each a task of its own, and ends when it must.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use nuncio_core::net::ConnectionInfo;
use nuncio_core::stats::lists::http as stat;
use nuncio_core::stats::lists::http2 as codec_stat;
use tokio::time::Instant;

use super::HttpConnectionManager;
use super::account::ConnectionAccount;
use super::stream::{ActiveStream, Broken};
use super::stream_task::StreamTask;
use crate::alarm::Alarm;
use crate::codec::http2::{Accepted, ConnectionError, FaultKind, ServerConn};
use crate::lifecycle::Drain;
use crate::network::Connection;

/// A client that never says its preface is given up after this, if the idle timeout is not shorter.
pub(super) const PREFACE_TIMEOUT: Duration = Duration::from_secs(10);
/// A client that is still sending when we close may send this much more before it is reset.
const LINGER: usize = 64 * 1024;
/// Envoy's `overload.premature_reset_total_stream_count`: so many streams, half of them reset early, are an attack.
const PREMATURE_RESET_STREAMS: u64 = 500;

/// What a connection's streams tell it.
pub struct Streams {
    active: Cell<u32>,
    closed: Cell<u64>,
    premature: Cell<u64>,
    idle_since: Cell<Instant>,
    /// One of them wants the connection to end.
    close: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Streams {
    fn new(now: Instant) -> Rc<Self> {
        Rc::new(Self {
            active: Cell::new(0),
            closed: Cell::new(0),
            premature: Cell::new(0),
            idle_since: Cell::new(now),
            close: Cell::new(false),
            waker: RefCell::default(),
        })
    }

    pub fn begin(&self) {
        self.active.set(self.active.get() + 1);
    }

    /// `premature`: reset before it could have been answered. `close`: nothing may follow.
    pub fn end(&self, premature: bool, close: bool) {
        self.active.set(self.active.get() - 1);
        self.closed.set(self.closed.get() + 1);
        self.premature.set(self.premature.get() + u64::from(premature));
        let idle = self.active.get() == 0;
        if idle {
            self.idle_since.set(Instant::now());
        }
        if close {
            self.close.set(true);
        }
        if (idle || close || self.too_many_resets())
            && let Some(waker) = &*self.waker.borrow()
        {
            waker.wake_by_ref();
        }
    }

    /// Envoy's rule: half of the streams, as soon as it is sure that they will be.
    fn too_many_resets(&self) -> bool {
        self.premature.get() * 2 >= self.closed.get().max(PREMATURE_RESET_STREAMS)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Serving,
    /// GOAWAY was said: no new streams, those that run go on.
    Draining,
    /// What is left to say is written, and what the client still sends is dropped.
    Closing,
    Closed,
}

pub struct Http2Connection {
    conn: ServerConn,
    manager: Rc<HttpConnectionManager>,
    info: Rc<ConnectionInfo>,
    drain: Rc<Drain>,
    /// Resolves when the listener wants its connections to go.
    drained: Option<LocalBoxFuture<'static, ()>>,
    streams: Rc<Streams>,
    phase: Phase,
    requests: u32,
    linger: usize,
    /// The end of a phase that is no stream's.
    until: Option<Instant>,
    max_duration: Option<Instant>,
    /// A quiet connection is told to go then.
    drain_at: Option<Instant>,
    alarm: Alarm,
    account: ConnectionAccount,
}

impl Http2Connection {
    pub fn new(connection: Connection, mut account: ConnectionAccount, manager: Rc<HttpConnectionManager>) -> Self {
        account.speaks_http2();
        let Connection { io, info, preread, drain, .. } = connection;
        let (options, worker) = (manager.http2_options.clone(), &manager.worker);
        let since = account.started;
        let waits = drain.clone();
        Self {
            conn: ServerConn::new(io, preread, options, worker.buffers.clone(), &worker.context.rng),
            info,
            drain,
            drained: Some(Box::pin(async move { waits.wait().await })),
            streams: Streams::new(since),
            phase: Phase::Serving,
            requests: 0,
            linger: LINGER,
            until: None,
            max_duration: manager.config.timeouts.max_connection.map(|d| since + d.draw(&manager.worker.context.rng)),
            drain_at: None,
            alarm: Alarm::default(),
            account,
            manager,
        }
    }

    /// Runs until nothing more can be done now.
    fn step(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            match self.phase {
                Phase::Serving | Phase::Draining => match self.accept(cx) {
                    Poll::Ready(()) => {}
                    Poll::Pending => return Poll::Pending,
                },
                Phase::Closing => {
                    let mut scratch = self.manager.worker.buffers.take_scratch();
                    let closed = self.conn.poll_close(cx, &mut scratch, &mut self.linger);
                    self.manager.worker.buffers.give_scratch(scratch);
                    match closed {
                        Poll::Pending => return Poll::Pending,
                        Poll::Ready(()) => self.phase = Phase::Closed,
                    }
                }
                Phase::Closed => return Poll::Ready(()),
            }
        }
    }

    fn accept(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.drained.as_mut().is_some_and(|d| d.as_mut().poll(cx).is_ready()) {
            self.drained = None;
            self.drain_at = Some(Instant::now() + self.drain.delay(&self.manager.worker.context.rng));
        }
        if self.streams.close.get() && self.phase == Phase::Serving {
            self.begin_draining();
        }
        if self.streams.too_many_resets() {
            self.manager.failures.inc(stat::DOWNSTREAM_RQ_TOO_MANY_PREMATURE_RESETS);
            self.conn.abort(FaultKind::PrematureResets);
        }
        let mut active = self.manager.take_stream();
        match self.conn.poll_accept(cx, &mut active.request) {
            Poll::Pending => {
                self.manager.give_stream(active);
                return Poll::Pending;
            }
            Poll::Ready(Ok(Some(Accepted::Stream(mut stream)))) => {
                self.requests = self.requests.saturating_add(1);
                self.until = None;
                self.manager.stats.inc(stat::DOWNSTREAM_RQ_HTTP2_TOTAL);
                let dropped = stream.dropped_underscores();
                if dropped > 0 {
                    self.manager.http2.add(codec_stat::DROPPED_HEADERS_WITH_UNDERSCORES, dropped.into());
                }
                stream.send_continue();
                active.begin(&self.manager, &self.info, &self.drain, self.requests);
                let task = StreamTask::new(stream, active, self.manager.clone(), self.streams.clone());
                self.manager.worker.spawn(self.info.id, task);
            }
            Poll::Ready(Ok(Some(Accepted::Refused(details)))) => self.refused(active, details),
            Poll::Ready(Ok(None)) => {
                self.manager.give_stream(active);
                self.account.ended_here |= self.phase == Phase::Draining;
                self.close();
            }
            Poll::Ready(Err(error)) => self.broken(active, error),
        }
        Poll::Ready(())
    }

    /// A head that is no request; its stream was reset.
    fn refused(&mut self, mut active: Box<ActiveStream>, details: &'static str) {
        let count = match details {
            "http2.unexpected_underscore" => codec_stat::REQUESTS_REJECTED_WITH_UNDERSCORES_IN_HEADERS,
            "http2.too_many_headers" | "http2.headers_too_large" => codec_stat::HEADER_OVERFLOW,
            _ => codec_stat::RX_MESSAGING_ERROR,
        };
        self.manager.http2.inc(count);
        active.begin_broken(&self.manager, &self.info, &self.drain, Broken::http2(details));
        self.manager.give_stream(active);
    }

    fn broken(&mut self, mut active: Box<ActiveStream>, error: ConnectionError) {
        if let ConnectionError::Peer { details, head, fault } = error {
            self.account.ended_here = true;
            self.manager.failures.inc(stat::DOWNSTREAM_CX_PROTOCOL_ERROR);
            match fault {
                Some(FaultKind::EmptyFrames) => self.manager.http2.inc(codec_stat::INBOUND_EMPTY_FRAMES_FLOOD),
                Some(FaultKind::PriorityFrames) => self.manager.http2.inc(codec_stat::INBOUND_PRIORITY_FRAMES_FLOOD),
                Some(FaultKind::WindowUpdateFrames) => {
                    self.manager.http2.inc(codec_stat::INBOUND_WINDOW_UPDATE_FRAMES_FLOOD);
                }
                Some(FaultKind::KeepaliveTimeout) => self.manager.http2.inc(codec_stat::KEEPALIVE_TIMEOUT),
                Some(FaultKind::Messaging) => self.manager.http2.inc(codec_stat::RX_MESSAGING_ERROR),
                _ => {}
            }
            if head {
                active.begin_broken(&self.manager, &self.info, &self.drain, Broken::http2(details));
            }
        }
        self.manager.give_stream(active);
        if self.streams.active.get() > 0 {
            self.manager.failures.inc(stat::DOWNSTREAM_CX_DESTROY_ACTIVE_RQ);
            self.manager.failures.inc(if self.account.ended_here {
                stat::DOWNSTREAM_CX_DESTROY_LOCAL_ACTIVE_RQ
            } else {
                stat::DOWNSTREAM_CX_DESTROY_REMOTE_ACTIVE_RQ
            });
        }
        self.close();
    }

    /// The first step of the end: no new streams.
    fn begin_draining(&mut self) {
        if self.phase != Phase::Serving {
            return;
        }
        self.manager.http2.inc(codec_stat::GOAWAY_SENT);
        self.conn.shut_down();
        self.phase = Phase::Draining;
        let drain = self.manager.config.timeouts.drain.draw(&self.manager.worker.context.rng);
        self.until = Some(Instant::now() + drain);
    }

    fn close(&mut self) {
        self.phase = Phase::Closing;
        self.until = Some(Instant::now() + self.manager.config.timeouts.delayed_close.max(Duration::from_millis(1)));
    }

    // === deadlines ===

    /// When a connection without streams is given up.
    fn idle_deadline(&self) -> Option<Instant> {
        let timeouts = &self.manager.config.timeouts;
        if self.streams.active.get() > 0 || self.phase == Phase::Closing {
            return None;
        }
        let idle = timeouts.idle.map(|d| self.streams.idle_since.get() + d);
        if !self.conn.is_handshaking() {
            return idle;
        }
        let preface = self.account.started + PREFACE_TIMEOUT;
        Some(idle.map_or(preface, |idle| idle.min(preface)))
    }

    /// When a client that takes nothing of what waits for it is given up.
    fn stalled_deadline(&self) -> Option<Instant> {
        Some(self.conn.blocked_since()? + self.manager.config.timeouts.stream_idle?)
    }

    fn deadline(&self) -> Option<Instant> {
        [self.until, self.max_duration, self.drain_at, self.idle_deadline(), self.stalled_deadline()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Something's time is up at `now`.
    fn expire(&mut self, now: Instant) {
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if due(self.max_duration) {
            self.max_duration = None;
            self.manager.failures.inc(stat::DOWNSTREAM_CX_MAX_DURATION_REACHED);
            self.begin_draining();
        }
        if due(self.drain_at) {
            self.drain_at = None;
            self.begin_draining();
        }
        if due(self.stalled_deadline()) {
            self.conn.abort(FaultKind::Stalled);
        }
        if due(self.until) {
            self.until = None;
            match self.phase {
                // Without streams nothing is waited for.
                Phase::Draining if self.streams.active.get() == 0 => {
                    self.account.ended_here = true;
                    self.conn.end();
                    self.close();
                }
                Phase::Draining => self.conn.insist(),
                Phase::Closing => {
                    self.manager.failures.inc(stat::DOWNSTREAM_CX_DELAYED_CLOSE_TIMEOUT);
                    self.phase = Phase::Closed;
                }
                _ => {}
            }
        }
        if due(self.idle_deadline()) {
            self.manager.failures.inc(stat::DOWNSTREAM_CX_IDLE_TIMEOUT);
            self.account.ended_here = true;
            self.conn.end();
            self.close();
        }
    }
}

impl Future for Http2Connection {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        {
            let mut waker = this.streams.waker.borrow_mut();
            if !waker.as_ref().is_some_and(|w| w.will_wake(cx.waker())) {
                *waker = Some(cx.waker().clone());
            }
        }
        loop {
            let over = this.step(cx).is_ready();
            this.conn.count(&this.manager.http2);
            if over {
                return Poll::Ready(());
            }
            let Some(deadline) = this.deadline() else { return Poll::Pending };
            if !this.alarm.rings(cx, deadline) {
                return Poll::Pending;
            }
            this.expire(Instant::now());
        }
    }
}

impl Drop for Http2Connection {
    fn drop(&mut self) {
        self.conn.count(&self.manager.http2);
        self.account.totals = self.conn.totals();
    }
}
