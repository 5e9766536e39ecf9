//! The client's end of a stream, whatever the client speaks.

use std::io;
use std::task::{Context, Poll};

use nuncio_core::http::{Chunk, HeaderMap, ResponseHead};

use crate::codec::http1::{BodyError, ServerConn};
use crate::codec::http2::ServerStream;
use crate::codec::{Body, Buffers, GoneReason};

/// With less than this unsent, an HTTP/1 client counts as keeping up.
const LOW_WATERMARK: usize = 16 * 1024;

/// Where a stream reads its request from and writes its response to.
pub enum Down<'a> {
    Http1(&'a mut ServerConn),
    Http2(&'a mut ServerStream),
}

impl Down<'_> {
    /// The connection serves other streams too: this one's end is not the connection's.
    pub fn is_shared(&self) -> bool {
        matches!(self, Self::Http2(_))
    }

    /// Its connection, where the body may go by a pipe.
    pub fn http1(&mut self) -> Option<&mut ServerConn> {
        match self {
            Self::Http1(conn) => Some(conn),
            Self::Http2(_) => None,
        }
    }

    pub fn poll_body<'s>(&mut self, cx: &mut Context<'_>, scratch: &'s mut [u8]) -> Poll<Result<Body<'s>, BodyError>> {
        match self {
            Self::Http1(conn) => conn.poll_body(cx, scratch),
            Self::Http2(stream) => stream.poll_body(cx),
        }
    }

    pub fn request_complete(&self) -> bool {
        match self {
            Self::Http1(conn) => conn.request_complete(),
            Self::Http2(stream) => stream.request_complete(),
        }
    }

    /// The request has come to its end, read or not.
    pub fn request_arrived(&self) -> bool {
        match self {
            Self::Http1(conn) => conn.request_arrived(),
            Self::Http2(stream) => stream.request_complete(),
        }
    }

    pub fn send_interim(&mut self, buffers: &Buffers, head: &ResponseHead) {
        match self {
            Self::Http1(conn) => conn.send_interim(buffers, head),
            Self::Http2(stream) => stream.send_interim(head),
        }
    }

    pub fn send_head(&mut self, buffers: &Buffers, head: &ResponseHead, end: bool, close: bool) {
        match self {
            Self::Http1(conn) => conn.send_head(buffers, head, end, close),
            Self::Http2(stream) => stream.send_head(head, end),
        }
    }

    /// The head of an accepted upgrade or CONNECT: bytes follow both ways.
    pub fn send_upgrade_head(&mut self, buffers: &Buffers, head: &ResponseHead) {
        match self {
            Self::Http1(conn) => conn.send_upgrade_head(buffers, head),
            Self::Http2(stream) => stream.send_upgrade_head(head),
        }
    }

    pub fn send_data(
        &mut self,
        cx: &mut Context<'_>,
        buffers: &Buffers,
        data: &Chunk<'_>,
        end: bool,
    ) -> io::Result<()> {
        match self {
            Self::Http1(conn) => conn.send_data(cx, buffers, data.as_slice(), end),
            Self::Http2(stream) => stream.send_data(cx, data, end),
        }
    }

    pub fn send_trailers(&mut self, buffers: &Buffers, trailers: &HeaderMap) -> io::Result<()> {
        match self {
            Self::Http1(conn) => conn.send_trailers(buffers, trailers),
            Self::Http2(stream) => stream.send_trailers(trailers),
        }
    }

    /// Ready when everything is on the wire, or will be when the other connections of this worker have read.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>, buffers: &Buffers) -> Poll<io::Result<()>> {
        match self {
            Self::Http1(conn) => conn.poll_flush_soon(cx, buffers),
            Self::Http2(stream) => stream.poll_flush(cx),
        }
    }

    /// Ready when the client takes more: nothing is read for it before.
    pub fn poll_writable(&mut self, cx: &mut Context<'_>, buffers: &Buffers) -> Poll<io::Result<()>> {
        match self {
            // A head that waits for its first body bytes is no reason: both go out in one write.
            Self::Http1(conn) if conn.takes_more(LOW_WATERMARK) => Poll::Ready(Ok(())),
            Self::Http1(conn) => conn.poll_flush(cx, buffers),
            Self::Http2(stream) => stream.poll_writable(cx),
        }
    }

    /// How much is worth reading for it at once.
    pub fn read_size(&self) -> usize {
        match self {
            Self::Http1(_) => usize::MAX,
            Self::Http2(stream) => stream.read_size(),
        }
    }

    /// While nobody reads the body: ready when the client has left.
    pub fn poll_gone(&mut self, cx: &mut Context<'_>, scratch: &mut [u8]) -> Poll<GoneReason> {
        match self {
            Self::Http1(conn) => conn.poll_gone(cx, scratch),
            Self::Http2(stream) => stream.poll_gone(cx),
        }
    }
}
