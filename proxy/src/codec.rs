//! The wall between bytes and messages: everything above it sees heads, chunks and trailers;
//! nothing above it sees a framing header, a frame, or a codec library.

pub mod http1;
pub mod http2;
mod syntax;

use std::io;

use nuncio_core::http::{Chunk, HeaderMap};

pub use crate::net::Buffers;

/// One event of a body. After `Trailers` or `End` there is nothing more.
#[derive(Debug)]
pub enum Body<'s> {
    /// Never empty.
    Data(Chunk<'s>),
    Trailers(HeaderMap),
    End,
}

/// How a peer went away while nobody was reading from it.
#[derive(Debug)]
pub enum GoneReason {
    Eof,
    Reset(io::Error),
    /// HTTP/2: only this stream, or the connection as the stream saw it.
    Stream(http2::StreamError),
}
