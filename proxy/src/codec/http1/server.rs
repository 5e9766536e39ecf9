//! The downstream role: requests come in, responses go out, one after the other.

use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use nuncio_core::http::{Chunk, HeaderMap, RequestHead, ResponseHead, Version};
use nuncio_core::net::Io;

use super::ClientConn;
use super::body::{BodyFault, Incoming, Piece, TrailerRules};
use super::encode::{self, Answering, Outgoing};
use super::error::{BodyError, RequestError};
use super::options::ServerOptions;
use super::request::{self, MethodKind, ParsedRequest};
use super::wire::{HeadFault, Piped, Sink, Source, Wire};
use crate::codec::{Body, Buffers, GoneReason};

/// A downstream connection.
///
/// In order: [`poll_request`](Self::poll_request); then, as they come, [`poll_body`](Self::poll_body)
/// on one side and [`send_head`](Self::send_head), [`send_data`](Self::send_data) on the other;
/// [`poll_flush`](Self::poll_flush); and [`next_request`](Self::next_request) if
/// [`reusable_after_response`](Self::reusable_after_response), else
/// [`poll_drain_and_close`](Self::poll_drain_and_close).
pub struct ServerConn {
    wire: Wire,
    options: Rc<ServerOptions>,
    incoming: Incoming,
    outgoing: Outgoing,
    /// Of the last head that came, and of those that went out for it.
    head_bytes: (u32, u32),
    dropped_underscores: u16,
    answering: Answering,
    keep_alive: bool,
    /// The request asked for a tunnel: behind any other answer nothing is read as a request.
    wants_tunnel: bool,
    /// The client said that this request is its last.
    last: bool,
    expects_continue: bool,
    head_sent: bool,
    closing: bool,
    closed_write: bool,
}

impl ServerConn {
    /// `preread` is what was read of the connection before it came here.
    pub fn new(io: Io, preread: Vec<u8>, options: Rc<ServerOptions>) -> Self {
        Self {
            wire: Wire::new(io, preread),
            options,
            incoming: Incoming::Done,
            outgoing: Outgoing::Done,
            head_bytes: (0, 0),
            dropped_underscores: 0,
            answering: Answering::default(),
            keep_alive: true,
            wants_tunnel: false,
            last: false,
            expects_continue: false,
            head_sent: false,
            closing: false,
            closed_write: false,
        }
    }

    // === the request ===

    /// Reads the next request's head into `head`, whatever it holds. `Ok(None)` is the end of the connection,
    /// between requests or within a head. After an error: answer it, then close.
    pub fn poll_request(
        &mut self,
        cx: &mut Context<'_>,
        buffers: &Buffers,
        scratch: &mut [u8],
        head: &mut RequestHead,
    ) -> Poll<Result<Option<()>, RequestError>> {
        let options = &self.options;
        let parse = |bytes: &[u8]| {
            let parsed = request::parse_request(bytes, options, head)?;
            Ok(parsed.map(|parsed| {
                let len = parsed.head_len;
                (parsed, len)
            }))
        };
        let Poll::Ready(read) = self.wire.poll_head(cx, buffers, scratch, options.max_head_bytes, parse) else {
            self.wire.release(buffers);
            return Poll::Pending;
        };
        Poll::Ready(match read {
            Ok(parsed) => {
                self.begin(&parsed, head);
                Ok(Some(()))
            }
            Err(HeadFault::Refused(e)) => Err(self.refuse(e, head)),
            Err(HeadFault::TooLarge) => Err(self.refuse(RequestError::TOO_LARGE, head)),
            Err(HeadFault::End | HeadFault::Io(_)) => Ok(None),
        })
    }

    fn begin(&mut self, parsed: &ParsedRequest, head: &RequestHead) {
        self.incoming = Incoming::of(head.framing);
        self.outgoing = Outgoing::Done;
        self.head_bytes = (parsed.head_len as u32, 0);
        self.dropped_underscores = parsed.dropped_underscores;
        self.answering = Answering { method: parsed.method, version: head.version };
        self.keep_alive = parsed.keep_alive;
        self.wants_tunnel = parsed.wants_tunnel;
        self.last = !parsed.keep_alive;
        self.expects_continue = parsed.expects_continue;
        self.head_sent = false;
    }

    /// Nothing that follows a refused head is read as a request.
    fn refuse(&mut self, e: RequestError, head: &mut RequestHead) -> RequestError {
        self.last = false;
        if e.protocol_error {
            head.clear();
        }
        self.wire.discard_pending();
        self.incoming = Incoming::Done;
        self.answering = Answering { method: MethodKind::of(head.method()), version: head.version };
        self.keep_alive = false;
        self.expects_continue = false;
        self.head_sent = false;
        self.closing = true;
        e
    }

    /// Bytes of a head lie there that is not complete.
    pub fn head_begun(&self) -> bool {
        !self.wire.pending().is_empty()
    }

    /// The client waits for a 100 before it sends the body (HTTP/1.1 only). Envoy answers it at
    /// once, with [`send_continue`](Self::send_continue), unless `proxy_100_continue`.
    pub fn expects_continue(&self) -> bool {
        self.expects_continue
    }

    /// Fields of this head that `headers_with_underscores_action` dropped.
    pub fn dropped_underscores(&self) -> u16 {
        self.dropped_underscores
    }

    /// The next piece of the request's body. After `Data`, ask
    /// [`request_complete`](Self::request_complete): the end may be known already.
    pub fn poll_body<'s>(&mut self, cx: &mut Context<'_>, scratch: &'s mut [u8]) -> Poll<Result<Body<'s>, BodyError>> {
        let rules = TrailerRules {
            keep: self.options.enable_trailers,
            max_bytes: self.options.max_head_bytes,
            max_fields: self.options.max_headers,
        };
        match ready!(self.incoming.poll(&mut self.wire, rules, cx, scratch)) {
            Ok(Piece::Data(n)) => Poll::Ready(Ok(Body::Data(Chunk::Lent(&scratch[..n])))),
            Ok(Piece::Held(held)) => Poll::Ready(Ok(Body::Data(Chunk::Held(held)))),
            Ok(Piece::Trailers(map)) => Poll::Ready(Ok(Body::Trailers(map))),
            Ok(Piece::End) => Poll::Ready(Ok(Body::End)),
            Err(fault) => Poll::Ready(Err(self.body_error(fault))),
        }
    }

    /// The next piece without a look at it: to the upstream, if that is possible and worth it now. `limit`: so much may be held.
    pub fn pipe_body(
        &mut self,
        to: &mut ClientConn,
        cx: &mut Context<'_>,
        buffers: &Buffers,
        limit: usize,
    ) -> Piped<BodyError, io::Error> {
        let from = Source { wire: &mut self.wire, incoming: &mut self.incoming };
        from.pipe(to.sink(), cx, buffers, limit).map_unread(|e| self.body_error(BodyFault::Io(e)))
    }

    #[cold]
    fn body_error(&mut self, fault: BodyFault) -> BodyError {
        self.last = false;
        self.keep_alive = false;
        self.closing = true;
        // Where the body ends is not known any more, so nothing may be read as a head.
        self.wire.discard_pending();
        match fault {
            BodyFault::Chunk => BodyError::Refused(RequestError::MALFORMED),
            BodyFault::Trailers(e) => BodyError::Refused(e.into()),
            BodyFault::Eof => BodyError::Gone(GoneReason::Eof),
            BodyFault::Io(e) => BodyError::Gone(GoneReason::Reset(e)),
        }
    }

    /// The request was read to its end.
    pub fn request_complete(&self) -> bool {
        self.incoming.is_done()
    }

    /// The request has arrived to its end, read or not.
    pub fn request_arrived(&self) -> bool {
        match self.incoming {
            Incoming::Done => true,
            Incoming::Length(n) => self.wire.pending().len() as u64 >= n,
            _ => false,
        }
    }

    /// While nobody reads: reads ahead, and is ready when the client has gone.
    pub fn poll_gone(&mut self, cx: &mut Context<'_>, scratch: &mut [u8]) -> Poll<GoneReason> {
        match ready!(self.wire.poll_gone(cx, scratch)) {
            Ok(()) => Poll::Ready(GoneReason::Eof),
            Err(e) => Poll::Ready(GoneReason::Reset(e)),
        }
    }

    // === the response ===

    /// `100 Continue`, if it is expected and no response has begun. Says whether it was.
    pub fn send_continue(&mut self, buffers: &Buffers) -> bool {
        let wanted = std::mem::take(&mut self.expects_continue) && !self.head_sent;
        if wanted {
            self.wire.socket.output(buffers).extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
        }
        wanted
    }

    /// An interim response (1xx, not 101). HTTP/1.0 clients do not know them and get none.
    pub fn send_interim(&mut self, buffers: &Buffers, head: &ResponseHead) {
        if self.answering.version == Version::Http11 && !self.head_sent {
            self.expects_continue &= head.status != 100;
            let case = self.options.header_case;
            encode::interim_head(&mut self.wire.socket.output(buffers), head, case);
        }
    }

    /// Buffers a response's head. `end`: no body follows. `close`: nothing may follow on this
    /// connection. It also closes if the client asked for that or for a tunnel, if the request has
    /// not arrived to its end, and if only closing can end the body.
    pub fn send_head(&mut self, buffers: &Buffers, head: &ResponseHead, end: bool, close: bool) {
        let close = close || self.closing || self.wants_tunnel || !self.keep_alive || !self.request_arrived();
        self.put_head(buffers, head, end, close, false);
    }

    /// Buffers the head of an accepted upgrade or CONNECT. What follows is sent as it is, and what
    /// comes is a body up to the client's FIN.
    pub fn send_upgrade_head(&mut self, buffers: &Buffers, head: &ResponseHead) {
        self.put_head(buffers, head, false, false, true);
        self.incoming = Incoming::UntilClose;
    }

    fn put_head(&mut self, buffers: &Buffers, head: &ResponseHead, end: bool, close: bool, tunnel: bool) {
        let (answering, case) = (self.answering, self.options.header_case);
        let mut output = self.wire.socket.output(buffers);
        let before = output.len();
        let (outgoing, close) = encode::response_head(&mut output, head, answering, end, close, tunnel, case);
        self.head_bytes.1 = (output.len() - before) as u32;
        drop(output);
        self.outgoing = outgoing;
        if end && outgoing != Outgoing::Tunnel {
            self.outgoing = Outgoing::Done;
        }
        self.closing |= close || tunnel;
        self.head_sent = true;
    }

    /// Small pieces are copied behind the head, large ones written at once; what the socket did
    /// not take is kept. An error, also one about the length that the head said: abort the connection.
    pub fn send_data(&mut self, cx: &mut Context<'_>, buffers: &Buffers, data: &[u8], end: bool) -> io::Result<()> {
        let sent = self.wire.send_data(&mut self.outgoing, cx, buffers, data, end);
        self.closing |= sent.is_err();
        sent
    }

    /// Ends the body; the trailers are sent if `enable_trailers` and the framing has a place for them.
    pub fn send_trailers(&mut self, buffers: &Buffers, trailers: &HeaderMap) -> io::Result<()> {
        let trailers = Some(trailers).filter(|_| self.options.enable_trailers);
        let sent = self.wire.send_trailers(&mut self.outgoing, buffers, trailers, self.options.header_case);
        self.closing |= sent.is_err();
        sent
    }

    /// Ready when everything is on the wire.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>, buffers: &Buffers) -> Poll<io::Result<()>> {
        self.wire.socket.poll_flush(cx, buffers)
    }

    /// The same, but what is no hurry may be [put off](crate::net::flusher) for the moment. An answer after which the
    /// connection ends is not: what ends it looks at what is unsent.
    pub fn poll_flush_soon(&mut self, cx: &mut Context<'_>, buffers: &Buffers) -> Poll<io::Result<()>> {
        if self.response_complete() && !self.reusable_after_response() {
            return self.poll_flush(cx, buffers);
        }
        self.wire.socket.poll_flush_soon(cx, buffers)
    }

    /// Bytes that wait for the socket.
    pub fn write_buffered(&self) -> usize {
        self.wire.socket.buffered()
    }

    /// Bytes wait for the socket, and it is this connection's task that has to write them.
    pub fn must_flush(&self) -> bool {
        !self.wire.socket.is_put_off() && self.write_buffered() > 0
    }

    /// Ready for more of a body, although some of it may wait for the socket.
    pub fn takes_more(&self, watermark: usize) -> bool {
        self.wire.socket.takes_more(watermark)
    }

    pub(super) fn sink(&mut self) -> Sink<'_> {
        Sink { socket: &self.wire.socket, outgoing: &mut self.outgoing, broken: &mut self.closing }
    }

    /// A response's head was sent (or waits to be).
    pub fn response_begun(&self) -> bool {
        self.head_sent
    }

    /// The response was sent to its end (or waits to be).
    pub fn response_complete(&self) -> bool {
        self.head_sent && self.outgoing == Outgoing::Done
    }

    // === between requests, and the end ===

    /// Whether another request may be read after this response.
    pub fn reusable_after_response(&self) -> bool {
        self.response_complete() && !self.closing && self.request_arrived()
    }

    /// Ready for [`poll_request`](Self::poll_request) again: an unread body that has arrived is
    /// dropped, what was read beyond it is kept.
    pub fn next_request(&mut self, buffers: &Buffers) {
        if let Incoming::Length(n) = self.incoming {
            self.wire.consume(usize::try_from(n).unwrap_or(usize::MAX).min(self.wire.pending().len()));
        }
        self.incoming = Incoming::Done;
        self.head_sent = false;
        self.wire.release(buffers);
    }

    /// Nothing read, nothing to write.
    pub fn is_idle(&self) -> bool {
        self.wire.pending().is_empty() && self.write_buffered() == 0 && self.incoming.is_done()
    }

    /// The connection may be dropped as it is: the client called this request its last and has sent all of it, the
    /// response is on the wire, and no unread byte turns the close into a reset. Everybody else is waited for with
    /// [`poll_drain_and_close`](Self::poll_drain_and_close) (RFC 9112 9.6).
    pub fn may_be_dropped(&self) -> bool {
        self.last
            && self.response_complete()
            && self.request_complete()
            && self.wire.is_quiet()
            && self.wire.socket.io().closes_by_drop()
    }

    /// Sends FIN once everything is written, then reads and drops until the client's FIN, so that
    /// the close does not turn into a reset that takes the response with it. Ready also after
    /// `allowance` bytes; the time limit (`delayed_close_timeout`) is the caller's.
    pub fn poll_drain_and_close(
        &mut self,
        cx: &mut Context<'_>,
        buffers: &Buffers,
        scratch: &mut [u8],
        allowance: &mut usize,
    ) -> Poll<()> {
        if !self.closed_write {
            if ready!(self.wire.socket.poll_flush(cx, buffers)).is_err() {
                return Poll::Ready(());
            }
            if ready!(self.wire.socket.io().poll_shutdown(cx)).is_err() {
                return Poll::Ready(());
            }
            self.closed_write = true;
        }
        self.wire.discard_pending();
        self.wire.release(buffers);
        loop {
            match ready!(self.wire.poll_read(cx, scratch)) {
                Ok(n) if n > 0 && n <= *allowance => *allowance -= n,
                _ => return Poll::Ready(()),
            }
        }
    }

    /// Only the close of the connection ends the response that is being sent: cut short, it must not look complete.
    pub fn ends_by_closing(&self) -> bool {
        matches!(self.outgoing, Outgoing::UntilClose | Outgoing::Tunnel)
    }

    /// The next close is a reset: the client must not take what it got for the whole response.
    pub fn abort(&mut self) {
        self.wire.socket.io().abort();
    }

    /// Bytes received, and bytes sent, on this connection.
    pub fn totals(&self) -> (u64, u64) {
        self.wire.totals()
    }

    /// Bytes of the request's head, and of the response's.
    pub fn head_bytes(&self) -> (u32, u32) {
        self.head_bytes
    }

    /// The client's FIN was seen.
    pub fn is_eof(&self) -> bool {
        self.wire.is_eof()
    }

    /// Bytes of memory that its buffers hold: 0 while it is idle.
    pub fn held_capacity(&self) -> usize {
        self.wire.held_capacity()
    }
}
