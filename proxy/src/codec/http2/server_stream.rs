//! A request and its response on a downstream connection.

use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use nuncio_core::http::{Chunk, HeaderMap, ResponseHead};

use super::fields::{self, ReadRequest};
use super::inlet::{Inlet, InletError, Piece};
use super::options::ServerOptions;
use super::outlet::Outlet;
use super::shared::Shared;
use super::stream_error::StreamError;
use crate::codec::http1::{BodyError, RequestError};
use crate::codec::{Body, GoneReason};

/// The methods are those of [`http1::ServerConn`](crate::codec::http1::ServerConn), where they mean the same. Dropping
/// it before both messages are complete resets the stream.
pub struct ServerStream {
    inlet: Inlet,
    respond: SendResponse<Bytes>,
    outlet: Option<Outlet>,
    shared: Rc<Shared>,
    read: ReadRequest,
    is_head: bool,
    /// The response could not be begun.
    failed: bool,
}

impl ServerStream {
    pub(super) fn new(
        recv: RecvStream,
        respond: SendResponse<Bytes>,
        shared: Rc<Shared>,
        options: &ServerOptions,
        read: ReadRequest,
        is_head: bool,
    ) -> Self {
        shared.stream_opened();
        Self {
            inlet: Inlet::new(recv, shared.clone(), options.max_headers),
            respond,
            outlet: None,
            shared,
            read,
            is_head,
            failed: false,
        }
    }

    // === the request ===

    /// The client waits for a 100 before it sends the body.
    pub fn expects_continue(&self) -> bool {
        self.read.expects_continue
    }

    /// Fields of the head that `headers_with_underscores_action` dropped.
    pub fn dropped_underscores(&self) -> u16 {
        self.read.dropped_underscores
    }

    pub fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<Result<Body<'static>, BodyError>> {
        Poll::Ready(match ready!(self.inlet.poll(cx)) {
            Ok(Piece::Data(bytes)) => Ok(Body::Data(Chunk::Own(bytes))),
            Ok(Piece::Trailers(trailers)) => Ok(Body::Trailers(trailers)),
            Ok(Piece::End) => Ok(Body::End),
            Err(InletError::Trailers) => Err(BodyError::Refused(RequestError::TOO_MANY)),
            Err(InletError::Library(error)) => {
                self.inlet.end();
                Err(BodyError::Gone(GoneReason::Stream(StreamError::of(&error, &self.shared))))
            }
        })
    }

    pub fn request_complete(&self) -> bool {
        self.inlet.is_ended()
    }

    /// While nobody reads: ready when the client has reset the stream or the connection is gone.
    pub fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<GoneReason> {
        let reset = match &mut self.outlet {
            None if self.failed => return Poll::Ready(GoneReason::Stream(StreamError::Closed)),
            None => self.respond.poll_reset(cx),
            Some(outlet) => outlet.stream_mut().poll_reset(cx),
        };
        Poll::Ready(GoneReason::Stream(match ready!(reset) {
            Ok(reason) => StreamError::of_reset(reason, &self.shared),
            Err(error) => StreamError::of(&error, &self.shared),
        }))
    }

    // === the response ===

    /// `100 Continue`, if it is expected and no response has begun.
    pub fn send_continue(&mut self) {
        if std::mem::take(&mut self.read.expects_continue) {
            self.send_interim(&ResponseHead::new(100));
        }
    }

    pub fn send_interim(&mut self, head: &ResponseHead) {
        if self.outlet.is_none() && !self.failed {
            self.read.expects_continue &= head.status != 100;
            let response = fields::write_response(head, false, false, false);
            // A failure is the next call's too.
            let _ = self.respond.send_informational(response);
        }
    }

    /// `end`: no body follows.
    pub fn send_head(&mut self, head: &ResponseHead, end: bool) {
        self.put_head(head, end || self.is_head, false);
    }

    /// The head of an accepted upgrade or CONNECT.
    pub fn send_upgrade_head(&mut self, head: &ResponseHead) {
        self.put_head(head, false, true);
    }

    fn put_head(&mut self, head: &ResponseHead, end: bool, tunnel: bool) {
        let bodiless = matches!(head.status, 204 | 304);
        let length = fields::response_length(head).filter(|_| !tunnel);
        let end = (end || bodiless || length == Some(0)) && !tunnel;
        let response = fields::write_response(head, end, self.is_head, tunnel);
        match self.respond.send_response(response, end) {
            Ok(send) => {
                let mut outlet = Outlet::new(send, self.shared.clone(), end, length, false);
                if end && (self.is_head || bodiless) {
                    // Whatever follows of a body is dropped.
                    outlet.stop();
                }
                self.outlet = Some(outlet);
            }
            Err(_) => self.failed = true,
        }
    }

    /// What flow control does not let through now waits here. An error, also one about the length that the head said:
    /// reset the stream.
    pub fn send_data(&mut self, cx: &mut Context<'_>, data: Bytes, end: bool) -> io::Result<()> {
        self.outlet()?.send_data(cx, data, end)
    }

    pub fn send_trailers(&mut self, trailers: &HeaderMap) -> io::Result<()> {
        self.outlet()?.send_trailers(fields::write_trailers(trailers))
    }

    /// Ready when everything was handed to the connection.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.outlet.is_none() && !self.failed {
            return Poll::Ready(Ok(()));
        }
        self.outlet()?.poll_flush(cx)
    }

    /// Ready when the client takes more.
    pub fn poll_writable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.outlet()?.poll_writable(cx)
    }

    /// How much is worth reading for it at once.
    pub fn read_size(&self) -> usize {
        self.outlet.as_ref().map_or(usize::MAX, Outlet::read_size)
    }

    pub fn write_buffered(&self) -> usize {
        self.outlet.as_ref().map_or(0, Outlet::buffered)
    }

    fn outlet(&mut self) -> io::Result<&mut Outlet> {
        self.outlet.as_mut().ok_or_else(|| io::ErrorKind::BrokenPipe.into())
    }

    pub fn response_begun(&self) -> bool {
        self.outlet.is_some()
    }

    pub fn response_complete(&self) -> bool {
        self.outlet.as_ref().is_some_and(Outlet::is_done)
    }

    /// The client must not take what it got for the whole response. Envoy says NO_ERROR here, which some clients read
    /// as a regular end.
    pub fn reset(&mut self) {
        match &mut self.outlet {
            Some(outlet) => {
                outlet.stop();
                outlet.stream_mut().send_reset(Reason::INTERNAL_ERROR);
            }
            None => self.respond.send_reset(Reason::INTERNAL_ERROR),
        }
    }
}

impl Drop for ServerStream {
    fn drop(&mut self) {
        self.shared.stream_closed(self.respond.stream_id().as_u32());
        // The connection may wait for its last stream.
        self.shared.wake_driver();
    }
}
