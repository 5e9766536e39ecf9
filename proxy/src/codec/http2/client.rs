//! The upstream role: one connection carries many requests.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use h2::client::{Builder, Connection, SendRequest};
use nuncio_core::http::RequestHead;
use nuncio_core::net::Io;
use nuncio_core::random::Rng;
use tokio::time::Instant;

use super::client_stream::ClientStream;
use super::fields;
use super::flood::{Fault, FaultKind, Inbound};
use super::guard::GuardedIo;
use super::keepalive::Pinger;
use super::options::ClientOptions;
use super::server::{MAX_SEND_BUFFER, head_list_size};
use super::shared::{Ended, FrameCounts, Shared};
use super::stream_error::StreamError;
use crate::codec::Buffers;

/// An upstream connection, as requests see it. It lives while its [`ClientDriver`] is polled; when it is dropped and its
/// last stream has ended, the connection closes.
pub struct ClientConn {
    send: SendRequest<Bytes>,
    shared: Rc<Shared>,
    options: Rc<ClientOptions>,
}

/// The connection's own task: it reads and writes for all streams. Ready when the connection has ended.
pub struct ClientDriver {
    connection: Connection<GuardedIo, Bytes>,
    keepalive: Option<Pinger>,
    shared: Rc<Shared>,
    failed: bool,
}

/// Streams that an upstream may be taken to allow before it has said how many: RFC 9113 §6.5.2 wants no fewer. More of
/// them would wait on the connection for others to end, perhaps for ever.
const UNTOLD_STREAMS: usize = 100;

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientEnd {
    /// We had no more use for it.
    Local,
    /// The upstream closed it.
    Remote,
    /// The upstream broke the protocol; the text is for debug logs.
    Protocol(&'static str),
    /// It did not answer pings.
    Dead,
}

/// Why a request got no stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenError {
    /// It holds something that must not be sent (the text says what).
    Unwritable(&'static str),
    Stream(StreamError),
}

impl ClientConn {
    pub fn new(io: Io, options: Rc<ClientOptions>, buffers: Rc<Buffers>, rng: &Rng) -> Option<(Self, ClientDriver)> {
        let shared = Rc::new(Shared::new(options.buffer_limit));
        let counts = Inbound::new(&options.http2, options.max_head_bytes, false);
        let guard = GuardedIo::client(io, counts, shared.clone(), buffers);
        let http2 = &options.http2;
        // Streams belong to different clients: one that does not read may hold no more than the buffer limit, so that
        // the connection's window is there for the others.
        let window = http2.initial_stream_window.min(options.buffer_limit.max(65_535));
        let mut handshake = Box::pin(
            Builder::new()
                .header_table_size(http2.header_table_size)
                .enable_push(false)
                .initial_window_size(window)
                .initial_connection_window_size(http2.initial_connection_window.max(65_535))
                .max_header_list_size(head_list_size(options.max_head_bytes, options.max_headers))
                .max_send_buffer_size(MAX_SEND_BUFFER)
                .initial_max_send_streams(UNTOLD_STREAMS)
                .handshake(guard),
        );
        // It only writes, and what is written is gathered: it does not wait.
        let polled = handshake.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        let Poll::Ready(Ok((send, mut connection))) = polled else { return None };
        let keepalive = http2.keepalive.and_then(|k| Some(Pinger::new(connection.ping_pong()?, k, rng)));
        let driver = ClientDriver { connection, keepalive, shared: shared.clone(), failed: false };
        Some((Self { send, shared, options }, driver))
    }

    /// Sends a request's head on a new stream. `end`: no body follows. `upgrade`: as extended CONNECT.
    pub fn open(&self, head: &RequestHead, end: bool, upgrade: bool) -> Result<ClientStream, OpenError> {
        if let Some(ended) = self.shared.ended() {
            return Err(OpenError::Stream(match ended {
                Ended::Protocol(details) => StreamError::Protocol(details),
                Ended::Closed => StreamError::Closed,
            }));
        }
        if upgrade && !self.send.is_extended_connect_protocol_enabled() {
            return Err(OpenError::Unwritable("the upstream takes no extended CONNECT"));
        }
        let request = fields::write_request(head, end, upgrade).map_err(OpenError::Unwritable)?;
        let is_connect = *request.method() == http::Method::CONNECT;
        self.try_before_use();
        let mut send = self.send.clone();
        match send.send_request(request, end) {
            Ok((response, body)) => Ok(ClientStream::new(
                response,
                body,
                self.shared.clone(),
                &self.options,
                head,
                end,
                (is_connect, upgrade),
            )),
            Err(error) => Err(OpenError::Stream(StreamError::of(&error, &self.shared))),
        }
    }

    /// After a long silence, a ping goes ahead of the request.
    fn try_before_use(&self) {
        let idle = self.options.http2.keepalive.and_then(|k| k.idle_interval);
        if idle.is_some_and(|idle| self.shared.streams() == 0 && self.shared.last_read.get() + idle <= Instant::now()) {
            self.shared.ping_wanted.set(true);
            self.shared.wake_driver();
        }
    }

    /// How many streams it may have at once: the smaller of what we and what the upstream say.
    pub fn max_streams(&self) -> u32 {
        let theirs = u32::try_from(self.send.current_max_send_streams()).unwrap_or(u32::MAX);
        self.options.http2.max_concurrent_streams.min(theirs)
    }

    /// The upstream has said its settings.
    pub fn is_settled(&self) -> bool {
        self.shared.settled.get()
    }

    /// Streams whose objects are alive.
    pub fn streams(&self) -> u32 {
        self.shared.streams()
    }

    /// No new stream may be opened: the upstream said GOAWAY, or the connection is gone.
    pub fn is_closing(&self) -> bool {
        self.shared.going_away.get() || self.shared.ended().is_some()
    }

    /// The upstream has said what it takes.
    pub fn allows_upgrades(&self) -> bool {
        self.send.is_extended_connect_protocol_enabled()
    }

    /// Bytes received, and bytes sent, on this connection.
    pub fn totals(&self) -> (u64, u64) {
        (self.shared.received.get(), self.shared.sent.get())
    }
}

impl ClientDriver {
    /// Bytes received, and bytes sent, on this connection.
    pub fn totals(&self) -> (u64, u64) {
        (self.shared.received.get(), self.shared.sent.get())
    }

    /// What came and went since it was last asked; `None` if that is nothing.
    pub fn take_counts(&self) -> Option<FrameCounts> {
        self.shared.take_counts()
    }
}

impl Future for ClientDriver {
    type Output = ClientEnd;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<ClientEnd> {
        let this = self.get_mut();
        this.shared.register_driver(cx);
        let polled = Pin::new(&mut this.connection).poll(cx);
        if let Some(fault) = this.shared.fault()
            && !this.failed
        {
            // The library offers the client no GOAWAY with a reason: the connection just ends.
            this.failed = true;
            this.shared.end(Ended::Protocol(fault.details));
            return Poll::Ready(match fault.kind {
                FaultKind::KeepaliveTimeout => ClientEnd::Dead,
                _ => ClientEnd::Protocol(fault.details),
            });
        }
        let shared = &this.shared;
        if this.keepalive.as_mut().is_some_and(|pinger| pinger.poll(cx, shared).is_ready()) {
            this.keepalive = None;
            // As Envoy: streams see a closed connection.
            this.shared.end(Ended::Closed);
            this.shared.fail(Fault::new(FaultKind::KeepaliveTimeout));
            return Poll::Ready(ClientEnd::Dead);
        }
        let Poll::Ready(result) = polled else { return Poll::Pending };
        let end = match result {
            Err(error) if error.is_library() => ClientEnd::Protocol("http2.protocol_error"),
            Ok(()) if !this.shared.going_away.get() && !this.shared.eof.get() => ClientEnd::Local,
            _ => ClientEnd::Remote,
        };
        this.shared.end(match end {
            ClientEnd::Protocol(details) => Ended::Protocol(details),
            _ => Ended::Closed,
        });
        Poll::Ready(end)
    }
}

impl Drop for ClientDriver {
    fn drop(&mut self) {
        // However it came: no stream may be opened on it any more.
        self.shared.end(Ended::Closed);
    }
}
