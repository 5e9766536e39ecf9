//! A client's HTTP/1 connection: one small future that waits for a head, runs a stream, and either
//! waits for the next head or closes.
//!
//! An idle connection holds the socket, two counted references and one timer: everything a stream
//! needs is in an [`ActiveStream`] that comes from the worker's free list and goes back to it.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use nuncio_core::http::{LocalReply, Version};
use nuncio_core::net::ConnectionInfo;
use nuncio_core::stats::lists::http as stat;
use nuncio_core::stream_info::ResponseFlag;
use tokio::time::Instant;

use super::account::ConnectionAccount;
use super::stream::{ActiveStream, Broken, End};
use super::{HttpConnectionManager, down::Down};
use crate::alarm::Alarm;
use crate::codec::http1::{RequestError, ServerConn};
use crate::lifecycle::Drain;
use crate::network::Connection;
use crate::turn::Turn;

/// Where the connection is between its first byte and its last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// No stream; perhaps part of a head.
    Waiting,
    Streaming,
    /// Our last bytes are written; the client, which may still be sending, gets
    /// `delayed_close_timeout` to read them and to close by itself.
    Delaying,
    /// Our last bytes are written, then FIN; what the client still sends is read and dropped until
    /// it closes too.
    Closing,
    Closed,
}

/// A client that is still sending when we close may send this much more before it is reset.
const LINGER: usize = 64 * 1024;

pub struct HttpConnection {
    conn: ServerConn,
    manager: Rc<HttpConnectionManager>,
    info: Rc<ConnectionInfo>,
    drain: Rc<Drain>,
    active: Option<Box<ActiveStream>>,
    phase: Phase,
    requests: u32,
    /// The last thing read was no acceptable request: nothing that follows is looked at.
    refused: bool,
    /// How much of an unwanted body is still read after we closed.
    linger: usize,
    /// What the current phase ends by; for a stream, the stream's own deadlines are asked instead.
    until: Option<Instant>,
    /// When the first byte of the head came that is not complete yet.
    head_since: Option<Instant>,
    drain_after: Option<Instant>,
    /// `max_connection_duration` is over: the next response is the last.
    too_old: bool,
    turn: Turn,
    alarm: Alarm,
    account: ConnectionAccount,
}

impl HttpConnection {
    pub fn new(connection: Connection, mut account: ConnectionAccount, manager: Rc<HttpConnectionManager>) -> Self {
        account.speaks_http1();
        let since = account.started;
        Self {
            conn: ServerConn::new(connection.io, connection.preread, manager.codec_options.clone()),
            info: connection.info,
            drain: connection.drain,
            active: None,
            phase: Phase::Waiting,
            requests: 0,
            refused: false,
            linger: LINGER,
            until: manager.config.timeouts.idle.map(|d| since + d),
            head_since: None,
            drain_after: manager.config.timeouts.max_connection.map(|d| since + d.draw(&manager.worker.context.rng)),
            too_old: false,
            turn: Turn::default(),
            alarm: Alarm::default(),
            account,
            manager,
        }
    }

    /// Runs until nothing more can be done now.
    fn step(&mut self, cx: &mut Context<'_>, scratch: &mut [u8]) -> Poll<()> {
        loop {
            match self.phase {
                // A client that sends on and on, and is answered here, is never waited for.
                Phase::Waiting if self.turn.ends(cx) => return Poll::Pending,
                // The last answer was put off and then not taken whole: nothing is read before it is.
                Phase::Waiting if self.conn.must_flush() => {
                    if ready!(self.conn.poll_flush(cx, &self.manager.worker.buffers)).is_err() {
                        self.phase = Phase::Closed;
                    }
                }
                Phase::Waiting => {
                    let mut active = self.active.take().unwrap_or_else(|| self.manager.take_stream());
                    match self.conn.poll_request(cx, &self.manager.worker.buffers, scratch, &mut active.request) {
                        Poll::Pending => {
                            self.manager.give_stream(active);
                            self.note_partial_head();
                            return Poll::Pending;
                        }
                        Poll::Ready(Ok(None)) => {
                            if self.conn.head_begun() {
                                self.note_cut_head(&mut active);
                            }
                            self.manager.give_stream(active);
                            // A client that has sent all it will may still wait for the last answer.
                            let _ = ready!(self.conn.poll_flush(cx, &self.manager.worker.buffers));
                            self.phase = Phase::Closed;
                        }
                        Poll::Ready(Ok(Some(()))) => self.begin(active),
                        Poll::Ready(Err(error)) => self.refuse(active, error),
                    }
                }
                Phase::Streaming => {
                    let Some(active) = self.active.as_mut() else {
                        self.phase = Phase::Closed;
                        continue;
                    };
                    let mut down = Down::Http1(&mut self.conn);
                    match active.poll(cx, &mut down, &self.manager, scratch) {
                        Poll::Pending => return Poll::Pending,
                        Poll::Ready(end) => self.stream_over(end),
                    }
                }
                Phase::Delaying => {
                    if self.conn.poll_flush(cx, &self.manager.worker.buffers).is_pending() {
                        return Poll::Pending;
                    }
                    match self.conn.poll_gone(cx, scratch) {
                        Poll::Pending => return Poll::Pending,
                        Poll::Ready(_) => self.phase = Phase::Closing,
                    }
                }
                Phase::Closing => {
                    let buffers = &self.manager.worker.buffers;
                    match self.conn.poll_drain_and_close(cx, buffers, scratch, &mut self.linger) {
                        Poll::Pending => return Poll::Pending,
                        Poll::Ready(()) => self.phase = Phase::Closed,
                    }
                }
                Phase::Closed => return Poll::Ready(()),
            }
        }
    }

    fn note_partial_head(&mut self) {
        if self.head_since.is_none() && self.conn.head_begun() {
            let now = Instant::now();
            self.head_since = Some(now);
            if let Some(limit) = self.manager.config.timeouts.request_headers {
                self.until = Some(now + limit);
            }
        }
    }

    /// A client that left within a head is told in the log: as Envoy, a request without a status.
    fn note_cut_head(&mut self, active: &mut ActiveStream) {
        let gone = Broken {
            version: Version::Http11,
            flag: ResponseFlag::DownstreamConnectionTermination,
            details: "downstream_remote_disconnect",
        };
        active.begin_broken(&self.manager, &self.info, &self.drain, gone);
        self.manager.failures.inc(stat::DOWNSTREAM_CX_DESTROY_ACTIVE_RQ);
        self.manager.failures.inc(stat::DOWNSTREAM_CX_DESTROY_REMOTE_ACTIVE_RQ);
    }

    /// A whole head is here.
    fn begin(&mut self, mut active: Box<ActiveStream>) {
        self.requests = self.requests.saturating_add(1);
        self.turn.spend_request(active.request.headers.byte_size());
        self.head_since = None;
        self.until = None;
        self.manager.stats.inc(stat::DOWNSTREAM_RQ_HTTP1_TOTAL);
        let continued =
            !self.manager.config.proxy_100_continue && self.conn.send_continue(&self.manager.worker.buffers);
        active.begin(&self.manager, &self.info, &self.drain, self.requests);
        if continued {
            active.continued(&self.manager);
        }
        if self.too_old {
            active.close_after_response();
        }
        self.active = Some(active);
        self.phase = Phase::Streaming;
    }

    /// What came is not a request: it is answered, logged, and nothing after it is looked at.
    fn refuse(&mut self, mut active: Box<ActiveStream>, error: RequestError) {
        self.head_since = None;
        self.until = None;
        self.refused = true;
        let mut reply = LocalReply::new(error.status, error.details).body(error.body);
        if error.protocol_error {
            self.manager.failures.inc(stat::DOWNSTREAM_CX_PROTOCOL_ERROR);
            reply = reply.flag(ResponseFlag::DownstreamProtocolError);
        }
        active.begin_refused(&self.manager, &self.info, &self.drain, reply);
        self.active = Some(active);
        self.phase = Phase::Streaming;
    }

    fn stream_over(&mut self, end: End) {
        let mut now = None;
        if let Some(active) = self.active.take() {
            now = Some(active.control.now());
            self.manager.give_stream(active);
        }
        match end {
            End::KeepAlive if !self.conn.reusable_after_response() => self.close_gracefully(),
            End::KeepAlive => {
                self.conn.next_request(&self.manager.worker.buffers);
                self.phase = Phase::Waiting;
                self.until = self.manager.config.timeouts.idle.map(|d| now.unwrap_or_else(Instant::now) + d);
            }
            End::Close => self.close_gracefully(),
            End::ClientGone => {
                self.manager.failures.inc(stat::DOWNSTREAM_CX_DESTROY_ACTIVE_RQ);
                self.manager.failures.inc(stat::DOWNSTREAM_CX_DESTROY_REMOTE_ACTIVE_RQ);
                self.phase = Phase::Closed;
            }
            End::Reset if self.conn.ends_by_closing() => {
                // A FIN would say that this was all of it.
                self.account.ended_here = true;
                self.conn.abort();
                self.phase = Phase::Closed;
            }
            End::Reset => {
                // What was sent of the response still goes out: the client sees that it is short.
                self.close_gracefully();
            }
            End::HandedOver => self.phase = Phase::Closed,
        }
    }

    /// We close: what is buffered is written, FIN is sent, and the client gets a moment to read.
    fn close_gracefully(&mut self) {
        self.account.ended_here = true;
        if !self.refused && self.conn.may_be_dropped() {
            self.phase = Phase::Closed;
            return;
        }
        let unread = self.refused || !self.conn.request_arrived();
        self.phase = if unread { Phase::Delaying } else { Phase::Closing };
        self.until = Some(Instant::now() + self.manager.config.timeouts.delayed_close.max(Duration::from_millis(1)));
    }

    /// The earliest moment at which something must happen.
    fn deadline(&self) -> Option<Instant> {
        let stream = match (self.phase, &self.active) {
            (Phase::Streaming, Some(active)) => active.deadline(),
            _ => None,
        };
        [self.until, stream, self.drain_after].into_iter().flatten().min()
    }

    /// Something's time is up at `now`.
    fn expire(&mut self, now: Instant) {
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if due(self.drain_after) {
            self.drain_after = None;
            self.manager.failures.inc(stat::DOWNSTREAM_CX_MAX_DURATION_REACHED);
            match self.phase {
                Phase::Waiting if !self.manager.config.timeouts.safe_max_connection => self.close_gracefully(),
                Phase::Waiting => self.too_old = true,
                _ => self.active.iter_mut().for_each(|a| a.close_after_response()),
            }
        }
        if due(self.until) {
            self.until = None;
            match self.phase {
                Phase::Waiting
                    if self.head_since.is_some() && self.manager.config.timeouts.request_headers.is_some() =>
                {
                    self.manager.failures.inc(stat::DOWNSTREAM_RQ_HEADER_TIMEOUT);
                    let mut active = self.manager.take_stream();
                    active.begin_refused(
                        &self.manager,
                        &self.info,
                        &self.drain,
                        LocalReply::new(408, "request_header_timeout").body("request header timeout"),
                    );
                    self.active = Some(active);
                    self.head_since = None;
                    self.refused = true;
                    self.phase = Phase::Streaming;
                }
                Phase::Waiting => {
                    self.manager.failures.inc(stat::DOWNSTREAM_CX_IDLE_TIMEOUT);
                    self.close_gracefully();
                }
                Phase::Delaying => {
                    self.manager.failures.inc(stat::DOWNSTREAM_CX_DELAYED_CLOSE_TIMEOUT);
                    self.until = Some(now + self.manager.config.timeouts.delayed_close);
                    self.phase = Phase::Closing;
                }
                Phase::Closing => {
                    self.manager.failures.inc(stat::DOWNSTREAM_CX_DELAYED_CLOSE_TIMEOUT);
                    self.phase = Phase::Closed;
                }
                Phase::Streaming | Phase::Closed => {}
            }
        }
        if self.phase == Phase::Streaming
            && let Some(active) = self.active.as_mut()
        {
            active.expire(now, &mut Down::Http1(&mut self.conn), &self.manager);
        }
    }
}

impl Future for HttpConnection {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        loop {
            let manager = this.manager.clone();
            let mut scratch = manager.worker.buffers.take_scratch();
            let result = this.step(cx, &mut scratch);
            manager.worker.buffers.give_scratch(scratch);
            if result.is_ready() {
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

impl Drop for HttpConnection {
    fn drop(&mut self) {
        if let Some(mut active) = self.active.take() {
            active.client_gone(None);
            self.manager.give_stream(active);
        }
        self.account.totals = self.conn.totals();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use crate::http::filters::testing::Bench;
    use crate::upstream::testing::settle;

    /// Bytes that a connection of the bench takes before somebody reads them.
    const ROOM: usize = 1 << 16;

    /// Every request is answered here, with this action of the route.
    fn answering(action: &str) -> Bench {
        Bench::with(&format!(
            "{{stat_prefix: in, http_filters: [ROUTER], route_config: {{virtual_hosts: [{{name: v, domains: ['*'], routes: \
             [{{match: {{prefix: /}}, {action}}}]}}]}}}}"
        ))
    }

    /// Nothing of an upstream's is waited for, so that nothing else would end the turn.
    #[tokio::test(flavor = "local", start_paused = true)]
    async fn pipelined_requests_that_are_answered_here_take_turns() {
        let bench = answering("direct_response: {status: 204}");
        let mut client = bench.connect();
        client.write_all("GET / HTTP/1.1\r\nhost: a\r\n\r\n".repeat(200).as_bytes()).await.unwrap();
        let (mut most, mut before) = (0, 0);
        while before < 200 {
            tokio::task::yield_now().await;
            let begun = bench.stat("http.in.downstream_rq_total");
            most = most.max(begun - before);
            before = begun;
        }
        assert!((16..=32).contains(&most), "{most} at once");
    }

    #[tokio::test(flavor = "local", start_paused = true)]
    async fn a_client_that_takes_no_answers_is_not_read_any_more() {
        let body = "X".repeat(1000);
        let bench = answering(&format!("direct_response: {{status: 200, body: {{inline_string: {body}}}}}"));
        let mut client = bench.connect();
        let requests = "GET / HTTP/1.1\r\nhost: a\r\n\r\n".repeat(1000);
        client.write_all(requests.as_bytes()).await.unwrap();
        settle().await;
        let begun = bench.stat("http.in.downstream_rq_total");
        // 64 KiB fit into the connection, and the answers of one turn wait behind them.
        assert!((60..=110).contains(&begun), "{begun} requests begun");
        settle().await;
        assert_eq!(bench.stat("http.in.downstream_rq_total"), begun);
        // Then it takes them, to the last byte.
        let (mut all, mut piece) = (0, vec![0; 4096]);
        while all < 1000 * 1000 {
            let n = client.read(&mut piece).await.unwrap();
            all += piece[..n].iter().filter(|byte| **byte == b'X').count();
        }
        assert_eq!(bench.stat("http.in.downstream_rq_2xx"), 1000);
    }

    /// It was put off, and then there was no room for all of it, and nothing else to do.
    #[tokio::test(flavor = "local", start_paused = true)]
    async fn the_rest_of_an_answer_follows_when_the_client_takes_it() {
        let body = "X".repeat(1000);
        let bench = answering(&format!("direct_response: {{status: 200, body: {{inline_string: {body}}}}}"));
        let mut client = bench.connect();
        let mut taken = vec![0; ROOM];
        let mut len = 0;
        let mut asked = 0;
        while asked <= ROOM / len.max(1) {
            client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
            settle().await;
            if len == 0 {
                len = client.read(&mut taken).await.unwrap();
            } else {
                asked += 1;
            }
        }
        let mut all = 0;
        while all < asked * len {
            let read = tokio::time::timeout(Duration::from_secs(1), client.read(&mut taken)).await;
            all += read.unwrap_or_else(|_| panic!("{all} bytes of {}", asked * len)).unwrap();
        }
    }

    #[tokio::test(flavor = "local", start_paused = true)]
    async fn a_client_that_has_sent_its_last_request_gets_its_answer() {
        let bench = answering("direct_response: {status: 200, body: {inline_string: here}}");
        let mut client = bench.connect();
        client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
        client.shutdown().await.unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("here"), "{answer}");
        assert_eq!(bench.stat("http.in.downstream_cx_tx_bytes_total"), answer.len() as u64);
    }
}
