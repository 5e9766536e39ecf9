//! The upstream role: one request at a time goes out, its response comes in.

use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use nuncio_core::http::{Chunk, HeaderMap, RequestHead, ResponseHead};
use nuncio_core::net::Io;

use super::body::{BodyFault, Incoming, Piece, TrailerRules};
use super::encode::{self, Outgoing};
use super::error::UpstreamError;
use super::options::ClientOptions;
use super::request::MethodKind;
use super::response::{self, Asked, ParsedResponse};
use super::server::ServerConn;
use super::wire::{HeadFault, Piped, Sink, Source, Wire};
use crate::codec::{Body, Buffers};

/// Interim responses that one request may get.
const MAX_INTERIM: u8 = 32;

/// An upstream connection.
///
/// In order: [`send_head`](Self::send_head), [`send_data`](Self::send_data) and
/// [`poll_flush`](Self::poll_flush) on one side, [`poll_response`](Self::poll_response) until a
/// head that is not interim and [`poll_body`](Self::poll_body) on the other; then
/// [`release`](Self::release) if [`is_reusable`](Self::is_reusable), and
/// [`poll_idle`](Self::poll_idle) while nobody uses it.
pub struct ClientConn {
    wire: Wire,
    options: Rc<ClientOptions>,
    incoming: Incoming,
    outgoing: Outgoing,
    /// Of the request's head, and of the response's.
    head_bytes: (u32, u32),
    asked: Asked,
    interim: u8,
    head_received: bool,
    keep_alive: bool,
    tunnel: bool,
    broken: bool,
}

impl ClientConn {
    pub fn new(io: Io, options: Rc<ClientOptions>) -> Self {
        Self {
            wire: Wire::new(io, Vec::new()),
            options,
            incoming: Incoming::Done,
            outgoing: Outgoing::Done,
            head_bytes: (0, 0),
            asked: Asked::default(),
            interim: 0,
            head_received: true,
            keep_alive: true,
            tunnel: false,
            broken: false,
        }
    }

    // === the request ===

    /// Buffers a request's head. `end`: no body follows. An error means that it holds something
    /// that must not be written (the text says what); nothing was, and the connection is as before.
    pub fn send_head(&mut self, buffers: &Buffers, head: &RequestHead, end: bool) -> Result<(), &'static str> {
        self.put_head(buffers, head, end, false)
    }

    /// The same for an HTTP/1.1 upgrade: `connection` and `upgrade` are passed on. What the client
    /// sends is held until the answer says [`is_tunnel`](Self::is_tunnel), which is the caller's duty.
    pub fn send_upgrade_head(&mut self, buffers: &Buffers, head: &RequestHead) -> Result<(), &'static str> {
        self.put_head(buffers, head, false, true)
    }

    fn put_head(
        &mut self,
        buffers: &Buffers,
        head: &RequestHead,
        end: bool,
        upgrade: bool,
    ) -> Result<(), &'static str> {
        let case = self.options.header_case;
        let mut output = self.wire.socket.output(buffers);
        let before = output.len();
        let outgoing = encode::request_head(&mut output, head, end, upgrade, case).map_err(|e| e.0)?;
        self.head_bytes = ((output.len() - before) as u32, 0);
        drop(output);
        self.outgoing = outgoing;
        self.asked = Asked { method: MethodKind::of(head.method()), upgrade };
        self.incoming = Incoming::Done;
        self.interim = 0;
        self.head_received = false;
        self.tunnel = false;
        Ok(())
    }

    /// For a connection that carries bytes from its beginning: as if a CONNECT had been answered.
    pub fn tunnel(io: Io, options: Rc<ClientOptions>) -> Self {
        Self { incoming: Incoming::UntilClose, outgoing: Outgoing::Tunnel, tunnel: true, ..Self::new(io, options) }
    }

    /// See [`ServerConn::send_data`](super::ServerConn::send_data). After an error the connection
    /// must be closed. The end of what a tunnel sends is FIN.
    pub fn send_data(&mut self, cx: &mut Context<'_>, buffers: &Buffers, data: &[u8], end: bool) -> io::Result<()> {
        if end && self.outgoing == Outgoing::Tunnel {
            self.wire.socket.finish();
        }
        let sent = self.wire.send_data(&mut self.outgoing, cx, buffers, data, end);
        self.broken |= sent.is_err();
        sent
    }

    /// Ends the body; the trailers are sent if `enable_trailers` and the framing has a place for them.
    pub fn send_trailers(&mut self, buffers: &Buffers, trailers: &HeaderMap) -> io::Result<()> {
        let trailers = Some(trailers).filter(|_| self.options.enable_trailers);
        let sent = self.wire.send_trailers(&mut self.outgoing, buffers, trailers, self.options.header_case);
        self.broken |= sent.is_err();
        sent
    }

    /// Ready when everything is on the wire.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>, buffers: &Buffers) -> Poll<io::Result<()>> {
        let flushed = self.wire.socket.poll_flush(cx, buffers);
        self.note(flushed)
    }

    /// The same, but what is no hurry may be [put off](crate::net::flusher) for the moment.
    pub fn poll_flush_soon(&mut self, cx: &mut Context<'_>, buffers: &Buffers) -> Poll<io::Result<()>> {
        let flushed = self.wire.socket.poll_flush_soon(cx, buffers);
        self.note(flushed)
    }

    fn note(&mut self, flushed: Poll<io::Result<()>>) -> Poll<io::Result<()>> {
        self.broken |= matches!(flushed, Poll::Ready(Err(_)));
        flushed
    }

    /// Bytes that wait for the socket.
    pub fn write_buffered(&self) -> usize {
        self.wire.socket.unsent()
    }

    /// Ready for more of a body, although some of it may wait for the socket.
    pub fn takes_more(&self, watermark: usize) -> bool {
        self.wire.socket.takes_more(watermark)
    }

    pub(super) fn sink(&mut self) -> Sink<'_> {
        Sink { socket: &self.wire.socket, outgoing: &mut self.outgoing, broken: &mut self.broken }
    }

    /// The request was sent to its end (or waits to be).
    pub fn request_complete(&self) -> bool {
        self.outgoing == Outgoing::Done
    }

    // === the response ===

    /// Reads the next response head into `head`, whatever it holds: interim ones too, and then it is
    /// asked again.
    pub fn poll_response(
        &mut self,
        cx: &mut Context<'_>,
        buffers: &Buffers,
        scratch: &mut [u8],
        head: &mut ResponseHead,
    ) -> Poll<Result<(), UpstreamError>> {
        let result = ready!(self.poll_head(cx, buffers, scratch, head));
        if result.is_err() {
            self.broken = true;
            head.clear();
        }
        Poll::Ready(result)
    }

    fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
        buffers: &Buffers,
        scratch: &mut [u8],
        head: &mut ResponseHead,
    ) -> Poll<Result<(), UpstreamError>> {
        let (asked, options) = (self.asked, &self.options);
        let parse = |bytes: &[u8]| {
            let parsed = response::parse_response(bytes, asked, options, head)?;
            Ok(parsed.map(|parsed| {
                let len = parsed.head_len;
                (parsed, len)
            }))
        };
        match ready!(self.wire.poll_head(cx, buffers, scratch, options.max_head_bytes, parse)) {
            Ok(parsed) => Poll::Ready(self.begin(&parsed, head)),
            Err(fault) => Poll::Ready(Err(match fault {
                HeadFault::Refused(e) => e,
                HeadFault::TooLarge => UpstreamError::Protocol("headers too large"),
                HeadFault::End if self.wire.pending().is_empty() => UpstreamError::Closed,
                // As within a body, Envoy calls this a protocol error.
                HeadFault::End => UpstreamError::Protocol("closed within a head"),
                HeadFault::Io(e) => UpstreamError::Reset(e),
            })),
        }
    }

    fn begin(&mut self, parsed: &ParsedResponse, head: &ResponseHead) -> Result<(), UpstreamError> {
        if head.is_interim() {
            self.interim += 1;
            if self.interim > MAX_INTERIM {
                return Err(UpstreamError::Protocol("too many interim responses"));
            }
            return Ok(());
        }
        self.head_bytes.1 = parsed.head_len as u32;
        self.head_received = true;
        self.incoming = if parsed.tunnel { Incoming::UntilClose } else { Incoming::of(parsed.body) };
        self.tunnel = parsed.tunnel;
        self.keep_alive &= parsed.keep_alive && !matches!(self.incoming, Incoming::UntilClose);
        Ok(())
    }

    /// The next piece of the response's body. After `Data`, ask
    /// [`response_complete`](Self::response_complete): the end may be known already.
    pub fn poll_body<'s>(
        &mut self,
        cx: &mut Context<'_>,
        scratch: &'s mut [u8],
    ) -> Poll<Result<Body<'s>, UpstreamError>> {
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

    #[cold]
    fn body_error(&mut self, fault: BodyFault) -> UpstreamError {
        self.broken = true;
        match fault {
            BodyFault::Chunk => UpstreamError::Protocol("malformed chunk"),
            BodyFault::Trailers(e) => e.into(),
            // Envoy calls this a protocol error, not a closed connection.
            BodyFault::Eof => UpstreamError::Protocol("closed before the end of the body"),
            BodyFault::Io(e) => UpstreamError::Reset(e),
        }
    }

    /// The next piece without a look at it: to the client, if that is possible and worth it now. `limit`: so much may be held.
    pub fn pipe_body(
        &mut self,
        to: &mut ServerConn,
        cx: &mut Context<'_>,
        buffers: &Buffers,
        limit: usize,
    ) -> Piped<UpstreamError, io::Error> {
        let from = Source { wire: &mut self.wire, incoming: &mut self.incoming };
        from.pipe(to.sink(), cx, buffers, limit).map_unread(|e| self.body_error(BodyFault::Io(e)))
    }

    /// The response was read to its end.
    pub fn response_complete(&self) -> bool {
        self.head_received && self.incoming.is_done() && !self.tunnel
    }

    /// The last response made the connection a tunnel: 101 to an upgrade, 2xx to CONNECT.
    pub fn is_tunnel(&self) -> bool {
        self.tunnel
    }

    // === between requests ===

    /// Whether another request may be sent: both messages are complete, nobody said close, and
    /// nothing came that no request asked for.
    pub fn is_reusable(&self) -> bool {
        self.response_complete()
            && self.request_complete()
            && self.keep_alive
            && !self.broken
            && !self.wire.is_eof()
            && self.wire.pending().is_empty()
            && self.wire.socket.unsent() == 0
    }

    /// Gives the buffers back; before it is pooled.
    pub fn release(&mut self, buffers: &Buffers) {
        self.wire.release(buffers);
    }

    /// While it is pooled: ready when the upstream closed or sent something, so that it must not
    /// be used again.
    pub fn poll_idle(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // A real read: readiness alone may be a remainder of bytes that were read already.
        let mut byte = [0; 1];
        let read = ready!(self.wire.poll_read(cx, &mut byte));
        self.broken = true;
        drop(read);
        Poll::Ready(())
    }

    /// Bytes received, and bytes sent, on this connection.
    pub fn totals(&self) -> (u64, u64) {
        self.wire.totals()
    }

    /// Bytes of the request's head, and of the response's.
    pub fn head_bytes(&self) -> (u32, u32) {
        self.head_bytes
    }

    /// Bytes of memory that its buffers hold: 0 while it is idle.
    pub fn held_capacity(&self) -> usize {
        self.wire.held_capacity()
    }
}
