//! A request and its response on a downstream connection.

use std::io;
use std::task::{Context, Poll};

use nuncio_core::http::{Chunk, HeaderMap, ResponseHead};

use super::block::response_length;
use super::fields::ReadRequest;
use super::frame::code;
use super::inlet::Inlet;
use super::outlet::Outlet;
use super::session::{BodyEnd, Shared};

use crate::codec::http1::{BodyError, RequestError};
use crate::codec::{Body, GoneReason};

/// The methods are those of [`http1::ServerConn`](crate::codec::http1::ServerConn), where they mean the same. Dropping
/// it before both messages are complete resets the stream.
pub struct ServerStream {
    session: Shared,
    slot: usize,
    inlet: Inlet,
    outlet: Outlet,
    read: ReadRequest,
    begun: bool,
}

impl ServerStream {
    pub(super) fn new(session: Shared, slot: usize, read: ReadRequest) -> Self {
        let outlet = Outlet::new(false);
        let inlet = Inlet::new(session.clone(), slot);
        Self { session, slot, inlet, outlet, read, begun: false }
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
        self.inlet.poll(cx).map_err(|end| match end {
            BodyEnd::Trailers => BodyError::Refused(RequestError::TOO_MANY),
            BodyEnd::Stream(error) => BodyError::Gone(GoneReason::Stream(error)),
        })
    }

    pub fn request_complete(&self) -> bool {
        self.inlet.is_ended()
    }

    /// While nobody reads: ready when the client has reset the stream or the connection is gone.
    pub fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<GoneReason> {
        self.session.borrow_mut().poll_gone(cx, self.slot).map(GoneReason::Stream)
    }

    // === the response ===

    /// `100 Continue`, if it is expected and no response has begun.
    pub fn send_continue(&mut self) {
        if std::mem::take(&mut self.read.expects_continue) {
            self.send_interim(&ResponseHead::new(100));
        }
    }

    pub fn send_interim(&mut self, head: &ResponseHead) {
        if !self.begun {
            self.read.expects_continue &= head.status != 100;
            self.put_fields(head, false, false);
        }
    }

    /// `end`: no body follows.
    pub fn send_head(&mut self, head: &ResponseHead, end: bool) {
        self.put_head(head, end || self.read.is_head, false);
    }

    /// The head of an accepted upgrade or CONNECT.
    pub fn send_upgrade_head(&mut self, head: &ResponseHead) {
        self.put_head(head, false, true);
    }

    fn put_head(&mut self, head: &ResponseHead, end: bool, tunnel: bool) {
        let bodiless = matches!(head.status, 204 | 304);
        let length = response_length(head).filter(|_| !tunnel);
        let end = (end || bodiless || length == Some(0)) && !tunnel;
        self.begun = true;
        self.outlet.begin(end, length);
        if end && (self.read.is_head || bodiless) {
            // Whatever follows of a body is dropped.
            self.outlet.stop();
        }
        self.put_fields(head, end, tunnel);
    }

    /// Nobody would read them if the stream is gone, which its task is told by the next call.
    fn put_fields(&mut self, head: &ResponseHead, end: bool, tunnel: bool) {
        let mut session = self.session.borrow_mut();
        if session.send_error(self.slot).is_none() {
            let is_head = self.read.is_head;
            session.send_fields(self.slot, end, |block| block.response(head, end, is_head, tunnel));
        }
    }

    /// What flow control does not let through now waits here. An error, also one about the length that the head said:
    /// reset the stream.
    pub fn send_data(&mut self, cx: &mut Context<'_>, data: &Chunk<'_>, end: bool) -> io::Result<()> {
        if !self.begun {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        self.outlet.send_data(cx, &self.session, self.slot, data, end)
    }

    pub fn send_trailers(&mut self, trailers: &HeaderMap) -> io::Result<()> {
        self.outlet.send_trailers(&self.session, self.slot, trailers)
    }

    /// Ready when everything was handed to the connection.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.outlet.poll_flush(cx, &self.session, self.slot)
    }

    /// Ready when the client takes more.
    pub fn poll_writable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.outlet.poll_writable(cx, &self.session, self.slot)
    }

    /// How much is worth reading for it at once.
    pub fn read_size(&self) -> usize {
        if self.begun { self.outlet.read_size() } else { usize::MAX }
    }

    pub fn write_buffered(&self) -> usize {
        self.outlet.buffered()
    }

    pub fn response_begun(&self) -> bool {
        self.begun
    }

    pub fn response_complete(&self) -> bool {
        self.begun && self.outlet.is_done()
    }

    /// The client must not take what it got for the whole response. Envoy says NO_ERROR here, which some clients read
    /// as a regular end.
    pub fn reset(&mut self) {
        self.outlet.stop();
        self.session.borrow_mut().reset_stream(self.slot, code::INTERNAL_ERROR);
    }
}
