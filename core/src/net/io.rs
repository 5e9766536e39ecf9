//! The byte stream of a connection, read into the worker's scratch buffer and written from it.
//!
//! A closed set for the plain kinds, so that the hot path has no dynamic call; TLS and the
//! in-memory network of the tests come in as [`Stream`].

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

/// A byte stream that somebody else implements.
pub trait Stream {
    /// Reads what is there; `Ok(0)` is the peer's FIN. Must not return `Ok(0)` for an empty read.
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>>;
    fn poll_write(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>>;
    /// Sends whatever a lower layer (TLS) still holds.
    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
    /// Half-close of the write side.
    fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
    /// Registers for readability without reading; ready when a read would not block.
    fn poll_read_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
    /// The next close sends RST instead of FIN, where the transport has such a thing.
    fn abort(&mut self) {}
}

/// A connection's bytes.
pub enum Io {
    Tcp(TcpStream),
    Unix(UnixStream),
    Other(Box<dyn Stream>),
}

impl Io {
    pub fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        fn read<S: AsyncRead + Unpin>(s: &mut S, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
            let mut buf = ReadBuf::new(buf);
            ready!(Pin::new(s).poll_read(cx, &mut buf))?;
            Poll::Ready(Ok(buf.filled().len()))
        }
        match self {
            Self::Tcp(s) => read(s, cx, buf),
            Self::Unix(s) => read(s, cx, buf),
            Self::Other(s) => s.poll_read(cx, buf),
        }
    }

    pub fn poll_write(&mut self, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            Self::Tcp(s) => Pin::new(s).poll_write(cx, buf),
            Self::Unix(s) => Pin::new(s).poll_write(cx, buf),
            Self::Other(s) => s.poll_write(cx, &[IoSlice::new(buf)]),
        }
    }

    pub fn poll_write_vectored(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        match self {
            Self::Tcp(s) => Pin::new(s).poll_write_vectored(cx, bufs),
            Self::Unix(s) => Pin::new(s).poll_write_vectored(cx, bufs),
            Self::Other(s) => s.poll_write(cx, bufs),
        }
    }

    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(_) | Self::Unix(_) => Poll::Ready(Ok(())),
            Self::Other(s) => s.poll_flush(cx),
        }
    }

    /// Dropping it is all there is to a close: the peer gets what was written, then FIN.
    pub fn closes_by_drop(&self) -> bool {
        matches!(self, Self::Tcp(_) | Self::Unix(_))
    }

    pub fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(s) => Pin::new(s).poll_shutdown(cx),
            Self::Unix(s) => Pin::new(s).poll_shutdown(cx),
            Self::Other(s) => s.poll_shutdown(cx),
        }
    }

    /// Ready when a read would not block (data, FIN or error). Registers `cx` otherwise.
    pub fn poll_read_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(s) => s.poll_read_ready(cx),
            Self::Unix(s) => s.poll_read_ready(cx),
            Self::Other(s) => s.poll_read_ready(cx),
        }
    }

    /// Makes the close that follows a reset (RST): for a peer that must not take what it got for
    /// the whole message.
    pub fn abort(&mut self) {
        match self {
            // A failure only means that the peer sees FIN.
            Self::Tcp(s) => drop(s.set_zero_linger()),
            Self::Unix(_) => {}
            Self::Other(s) => s.abort(),
        }
    }
}
