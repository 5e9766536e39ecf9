//! The downstream role: requests come in as streams, each answered on its own.

use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use h2::Reason;
use h2::server::{Builder, Connection, Handshake};
use nuncio_core::http::RequestHead;
use nuncio_core::net::Io;
use nuncio_core::random::Rng;
use tokio::time::Instant;

use super::fields::{self, Violation};
use super::flood::{Fault, FaultKind, Inbound};
use super::guard::{GuardedIo, Socket};
use super::keepalive::Pinger;
use super::options::ServerOptions;
use super::scan::kind;
use super::server_stream::ServerStream;
use super::shared::{Ended, FrameCounts, Shared};
use super::window::Window;
use crate::codec::Buffers;

/// Streams that may be reset by a peer's malformed frames before the connection is given up.
const MAX_LOCAL_RESETS: usize = 250;
/// Unread bytes that the library keeps for a stream.
pub(super) const MAX_SEND_BUFFER: usize = 64 * 1024;

enum State {
    Handshake(Box<Handshake<GuardedIo, Bytes>>),
    Serving(Box<Connection<GuardedIo, Bytes>>),
    Closed,
}

/// A downstream connection.
///
/// [`poll_accept`](Self::poll_accept) drives it, for its streams too: it must be polled while any of them lives. After
/// an error, [`poll_close`](Self::poll_close).
pub struct ServerConn {
    state: State,
    shared: Rc<Shared>,
    socket: Socket,
    options: Rc<ServerOptions>,
    keepalive: Option<Pinger>,
    window: Window,
    rng: Rng,
    reported: bool,
    shutdown_wanted: bool,
}

/// What came.
#[allow(clippy::large_enum_variant, reason = "it is moved once, into its stream's task")]
pub enum Accepted {
    Stream(ServerStream),
    /// A head that broke a rule or a limit. Its stream was reset; the text is `%RESPONSE_CODE_DETAILS%`.
    Refused(&'static str),
}

/// Why a connection ends before its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionError {
    /// The peer broke a rule or a limit.
    Peer {
        details: &'static str,
        /// By a head: there would have been a stream.
        head: bool,
        fault: Option<FaultKind>,
    },
    /// It is gone, or the socket failed.
    Lost,
}

impl ServerConn {
    /// `preread` is what was read of the connection before it came here.
    pub fn new(io: Io, preread: Vec<u8>, options: Rc<ServerOptions>, buffers: Rc<Buffers>, rng: &Rng) -> Self {
        let shared = Rc::new(Shared::new(options.buffer_limit));
        let counts = Inbound::new(&options.http2, options.max_head_bytes, true);
        let stream_errors = options.http2.stream_error_on_invalid;
        let (guard, socket) = GuardedIo::server(io, preread, counts, stream_errors, shared.clone(), buffers);
        let window = Window::new(&options.http2, options.buffer_limit);
        Self {
            state: State::Handshake(Box::new(builder(&options, &window).handshake(guard))),
            shared,
            socket,
            options,
            keepalive: None,
            window,
            rng: rng.clone(),
            reported: false,
            shutdown_wanted: false,
        }
    }

    /// Runs the connection; ready for each request, whose head is read into `head`, whatever it holds. `Ok(None)` is
    /// the end, after everything was said and done.
    pub fn poll_accept(
        &mut self,
        cx: &mut Context<'_>,
        head: &mut RequestHead,
    ) -> Poll<Result<Option<Accepted>, ConnectionError>> {
        self.shared.register_driver(cx);
        loop {
            if let Some(fault) = self.shared.fault()
                && !self.reported
            {
                return Poll::Ready(Err(self.give_up(fault)));
            }
            match &mut self.state {
                State::Closed => return Poll::Ready(Ok(None)),
                State::Handshake(handshake) => match std::pin::Pin::new(&mut **handshake).poll(cx) {
                    Poll::Pending if self.shared.fault().is_some() => {}
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Ok(connection)) => self.begin(connection),
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(self.broken(&error))),
                },
                State::Serving(connection) => match connection.poll_accept(cx) {
                    Poll::Ready(Some(Ok((request, respond)))) => {
                        let (parts, recv) = request.into_parts();
                        if let Some(accepted) = self.accept(&parts, recv, respond, head) {
                            return Poll::Ready(Ok(Some(accepted)));
                        }
                    }
                    // Nobody is hurt by the end of a connection without streams.
                    Poll::Ready(Some(Err(error))) if !error.is_io() || self.shared.streams() > 0 => {
                        return Poll::Ready(Err(self.broken(&error)));
                    }
                    Poll::Ready(_) => {
                        self.state = State::Closed;
                        self.shared.end(Ended::Closed);
                    }
                    Poll::Pending if self.shared.fault().is_some() && !self.reported => {}
                    Poll::Pending => {
                        if self.shared.heads_accepted() || self.housekeeping(cx) {
                            continue;
                        }
                        return Poll::Pending;
                    }
                },
            }
        }
    }

    fn begin(&mut self, mut connection: Connection<GuardedIo, Bytes>) {
        if let Some(keepalive) = self.options.http2.keepalive
            && let Some(pings) = connection.ping_pong()
        {
            self.keepalive = Some(Pinger::new(pings, keepalive, &self.rng));
        }
        if self.shutdown_wanted {
            connection.graceful_shutdown();
        }
        self.state = State::Serving(Box::new(connection));
    }

    fn accept(
        &mut self,
        parts: &http::request::Parts,
        recv: h2::RecvStream,
        mut respond: h2::server::SendResponse<Bytes>,
        head: &mut RequestHead,
    ) -> Option<Accepted> {
        match fields::read_request(parts, recv.is_end_stream(), &self.options, head) {
            Ok(read) => {
                let is_head = parts.method == http::Method::HEAD;
                let stream = ServerStream::new(recv, respond, self.shared.clone(), &self.options, read, is_head);
                Some(Accepted::Stream(stream))
            }
            Err(Violation::Messaging(details)) if !self.options.http2.stream_error_on_invalid => {
                self.shared.fail(Fault { kind: FaultKind::Messaging, details });
                None
            }
            Err(Violation::Messaging(details)) => {
                respond.send_reset(Reason::PROTOCOL_ERROR);
                Some(Accepted::Refused(details))
            }
            Err(Violation::Limit(details)) => {
                // As Envoy.
                respond.send_reset(Reason::INTERNAL_ERROR);
                Some(Accepted::Refused(details))
            }
        }
    }

    /// Keeps windows and pings going; whether there is something new to look at.
    fn housekeeping(&mut self, cx: &mut Context<'_>) -> bool {
        if let Some(size) = self.window.grown(&self.shared)
            && let State::Serving(connection) = &mut self.state
        {
            connection.set_target_window_size(size);
            return true;
        }
        let shared = &self.shared;
        if self.keepalive.as_mut().is_some_and(|pinger| pinger.poll(cx, shared).is_ready()) {
            self.keepalive = None;
            shared.fail(Fault::new(FaultKind::KeepaliveTimeout));
            return true;
        }
        false
    }

    /// Ends the connection for the peer's fault: GOAWAY, and every stream fails.
    fn give_up(&mut self, fault: Fault) -> ConnectionError {
        self.reported = true;
        self.shared.end(Ended::Protocol(fault.details));
        match &mut self.state {
            State::Serving(connection) => connection.abrupt_shutdown(fault.reason()),
            _ => self.state = State::Closed,
        }
        let head = fault.kind == FaultKind::Messaging;
        ConnectionError::Peer { details: fault.details, head, fault: Some(fault.kind) }
    }

    /// The library ended it, and has said so to the peer.
    fn broken(&mut self, error: &h2::Error) -> ConnectionError {
        self.state = State::Closed;
        let head = matches!(self.shared.last_kind.get(), kind::HEADERS | kind::CONTINUATION);
        if error.is_io() || !error.is_library() {
            self.shared.end(Ended::Closed);
            return ConnectionError::Lost;
        }
        if error.reason() == Some(Reason::ENHANCE_YOUR_CALM) {
            // The library has limits of its own, some of them lower than ours.
            let fault = Fault::new(match self.shared.last_kind.get() {
                kind::CONTINUATION => FaultKind::Continuations,
                kind::DATA => FaultKind::EmptyFrames,
                _ => FaultKind::Resets,
            });
            self.shared.end(Ended::Protocol(fault.details));
            return ConnectionError::Peer { details: fault.details, head: false, fault: Some(fault.kind) };
        }
        let details = if head { "http2.invalid.header.field" } else { "http2.protocol_error" };
        self.shared.end(Ended::Protocol(details));
        ConnectionError::Peer { details, head, fault: None }
    }

    // === the end ===

    /// No new streams: says GOAWAY, and again with the last stream's number once the client has seen the first. Those
    /// that run go on; then the connection ends by itself.
    pub fn shut_down(&mut self) {
        self.shutdown_wanted = true;
        if let State::Serving(connection) = &mut self.state {
            connection.graceful_shutdown();
        }
    }

    /// Ends it without a reproach: there are no streams, or they do not matter.
    pub fn end(&mut self) {
        if let State::Serving(connection) = &mut self.state {
            connection.abrupt_shutdown(Reason::NO_ERROR);
        } else {
            self.state = State::Closed;
        }
    }

    /// Ends it now. Poll it on until it is closed.
    pub fn abort(&mut self, kind: FaultKind) {
        self.shared.fail(Fault::new(kind));
    }

    /// Writes what is left to say and closes our side, then reads and drops until the client's FIN, so that the close
    /// does not turn into a reset which takes the GOAWAY with it. Ready also after `allowance` bytes; the time limit is
    /// the caller's.
    pub fn poll_close(&mut self, cx: &mut Context<'_>, scratch: &mut [u8], allowance: &mut usize) -> Poll<()> {
        if let State::Serving(connection) = &mut self.state {
            if connection.poll_closed(cx).is_pending() {
                return Poll::Pending;
            }
            self.state = State::Closed;
            self.shared.end(Ended::Closed);
        }
        loop {
            match self.socket.poll_read(cx, scratch) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(n)) if n > 0 && n <= *allowance => *allowance -= n,
                Poll::Ready(_) => return Poll::Ready(()),
            }
        }
    }

    // === what is known of it ===

    /// The client's preface has not come yet.
    pub fn is_handshaking(&self) -> bool {
        matches!(self.state, State::Handshake(_))
    }

    /// Streams whose objects are alive.
    pub fn streams(&self) -> u32 {
        self.shared.streams()
    }

    /// Since when the client's socket takes nothing of what waits.
    pub fn blocked_since(&self) -> Option<Instant> {
        self.shared.blocked_since.get()
    }

    /// Bytes received, and bytes sent, on this connection.
    pub fn totals(&self) -> (u64, u64) {
        (self.shared.received.get(), self.shared.sent.get())
    }

    /// What came and went since it was last asked; `None` if that is nothing.
    pub fn take_counts(&self) -> Option<FrameCounts> {
        self.shared.take_counts()
    }
}

fn builder(options: &ServerOptions, window: &Window) -> Builder {
    let http2 = &options.http2;
    let mut builder = Builder::new();
    builder
        .header_table_size(http2.header_table_size)
        .max_concurrent_streams(http2.max_concurrent_streams)
        .initial_window_size(http2.initial_stream_window)
        .initial_connection_window_size(window.size())
        .max_header_list_size(head_list_size(options.max_head_bytes, options.max_headers))
        .max_send_buffer_size(MAX_SEND_BUFFER)
        .max_local_error_reset_streams(Some(MAX_LOCAL_RESETS))
        // Those that come in one read, before any was looked at.
        .max_pending_accept_reset_streams(MAX_LOCAL_RESETS);
    if http2.allow_connect {
        builder.enable_connect_protocol();
    }
    builder
}

/// The library counts 32 bytes for each field, as the setting is defined; Envoy's limit does not.
pub(super) fn head_list_size(bytes: usize, fields: usize) -> u32 {
    u32::try_from(bytes.saturating_add(32 * fields)).unwrap_or(u32::MAX)
}

/// For a socket that is not the library's any more.
impl Socket {
    fn poll_read(&self, cx: &mut Context<'_>, scratch: &mut [u8]) -> Poll<io::Result<usize>> {
        self.0.borrow_mut().poll_read(cx, scratch)
    }
}
