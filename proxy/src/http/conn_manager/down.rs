//! The client's end of a stream, whatever the client speaks.

use std::io;
use std::task::{Context, Poll};

use nuncio_core::http::{HeaderMap, ResponseHead};

use crate::codec::http1::{BodyError, ServerConn};
use crate::codec::{Body, Buffers, GoneReason};

/// Where a stream reads its request from and writes its response to.
pub enum Down<'a> {
    Http1(&'a mut ServerConn),
}

impl Down<'_> {
    pub fn poll_body<'s>(&mut self, cx: &mut Context<'_>, scratch: &'s mut [u8]) -> Poll<Result<Body<'s>, BodyError>> {
        match self {
            Self::Http1(conn) => conn.poll_body(cx, scratch),
        }
    }

    pub fn request_complete(&self) -> bool {
        match self {
            Self::Http1(conn) => conn.request_complete(),
        }
    }

    pub fn send_interim(&mut self, buffers: &Buffers, head: &ResponseHead) {
        match self {
            Self::Http1(conn) => conn.send_interim(buffers, head),
        }
    }

    pub fn send_head(&mut self, buffers: &Buffers, head: &ResponseHead, end: bool, close: bool) {
        match self {
            Self::Http1(conn) => conn.send_head(buffers, head, end, close),
        }
    }

    pub fn send_data(&mut self, cx: &mut Context<'_>, buffers: &Buffers, data: &[u8], end: bool) -> io::Result<()> {
        match self {
            Self::Http1(conn) => conn.send_data(cx, buffers, data, end),
        }
    }

    pub fn send_trailers(&mut self, buffers: &Buffers, trailers: &HeaderMap) -> io::Result<()> {
        match self {
            Self::Http1(conn) => conn.send_trailers(buffers, trailers),
        }
    }

    pub fn poll_flush(&mut self, cx: &mut Context<'_>, buffers: &Buffers) -> Poll<io::Result<()>> {
        match self {
            Self::Http1(conn) => conn.poll_flush(cx, buffers),
        }
    }

    /// Bytes that the socket did not take yet.
    pub fn write_buffered(&self) -> usize {
        match self {
            Self::Http1(conn) => conn.write_buffered(),
        }
    }

    /// While nobody reads the body: ready when the client has left.
    pub fn poll_gone(&mut self, cx: &mut Context<'_>, scratch: &mut [u8]) -> Poll<GoneReason> {
        match self {
            Self::Http1(conn) => conn.poll_gone(cx, scratch),
        }
    }
}
