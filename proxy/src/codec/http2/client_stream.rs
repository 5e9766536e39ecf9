//! A request and its response on an upstream connection.

use std::io;
use std::task::{Context, Poll, ready};

use nuncio_core::http::{Chunk, Framing, HeaderMap, RequestHead, ResponseHead};

use super::frame::code;
use super::inlet::Inlet;
use super::outlet::Outlet;
use super::session::{BodyEnd, Shared};
use super::stream_error::StreamError;
use crate::codec::Body;

/// The methods are those of [`http1::ClientConn`](crate::codec::http1::ClientConn), where they mean the same. Dropping it
/// before both messages are complete resets the stream.
pub struct ClientStream {
    session: Shared,
    slot: usize,
    inlet: Inlet,
    outlet: Outlet,
    is_connect: bool,
    /// The upgrade that was asked for.
    upgrade: Option<Box<[u8]>>,
    tunnel: bool,
    /// The last head was read.
    answered: bool,
}

impl ClientStream {
    pub(super) fn new(
        session: Shared,
        slot: usize,
        head: &RequestHead,
        end: bool,
        is_connect: bool,
        upgrade: bool,
    ) -> Self {
        let length = match head.framing {
            Framing::Length(n) if !is_connect => Some(n),
            _ => None,
        };
        let mut outlet = Outlet::new(true);
        outlet.begin(end, length);
        Self {
            inlet: Inlet::new(session.clone(), slot),
            session,
            slot,
            outlet,
            is_connect,
            upgrade: head.headers.get("upgrade").filter(|_| upgrade).map(Into::into),
            tunnel: false,
            answered: false,
        }
    }

    // === the request ===

    /// What flow control does not let through now waits here. An upstream that wants no more is no error: its answer
    /// says what happened.
    pub fn send_data(&mut self, cx: &mut Context<'_>, data: &Chunk<'_>, end: bool) -> io::Result<()> {
        self.outlet.send_data(cx, &self.session, self.slot, data, end)
    }

    pub fn send_trailers(&mut self, trailers: &HeaderMap) -> io::Result<()> {
        self.outlet.send_trailers(&self.session, self.slot, trailers)
    }

    /// Ready when everything was handed to the connection.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.outlet.poll_flush(cx, &self.session, self.slot)
    }

    /// Ready when the upstream takes more.
    pub fn poll_writable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.outlet.poll_writable(cx, &self.session, self.slot)
    }

    /// How much is worth reading for it at once.
    pub fn read_size(&self) -> usize {
        self.outlet.read_size()
    }

    pub fn write_buffered(&self) -> usize {
        self.outlet.buffered()
    }

    /// The request was sent to its end, or is not wanted any more.
    pub fn request_complete(&self) -> bool {
        self.outlet.is_done()
    }

    // === the response ===

    /// Reads the next response head into `head`, whatever it holds: interim ones too, and then it is asked again.
    pub fn poll_response(&mut self, cx: &mut Context<'_>, head: &mut ResponseHead) -> Poll<Result<(), StreamError>> {
        ready!(self.session.borrow_mut().poll_head(cx, self.slot, head))?;
        if head.is_interim() {
            return Poll::Ready(Ok(()));
        }
        self.answered = true;
        if self.is_connect && (200..300).contains(&head.status) {
            self.tunnel = true;
            head.framing = Framing::Streamed;
            if let Some(upgrade) = &self.upgrade {
                head.status = 101;
                head.headers.append("connection", "upgrade");
                head.headers.append("upgrade", upgrade);
            }
        }
        Poll::Ready(Ok(()))
    }

    /// The next piece of the response's body.
    pub fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<Result<Body<'static>, StreamError>> {
        if !self.answered {
            return Poll::Ready(Ok(Body::End));
        }
        self.inlet.poll(cx).map_err(|end| match end {
            BodyEnd::Trailers => StreamError::Protocol("too many trailers"),
            BodyEnd::Stream(error) => error,
        })
    }

    /// The response was read to its end.
    pub fn response_complete(&self) -> bool {
        self.answered && self.inlet.is_ended()
    }

    /// The response made the stream a tunnel: 2xx to CONNECT, which also stands for 101.
    pub fn is_tunnel(&self) -> bool {
        self.tunnel
    }

    /// Nobody wants the response any more.
    pub fn reset(&mut self) {
        self.outlet.stop();
        self.session.borrow_mut().reset_stream(self.slot, code::CANCEL);
    }
}
