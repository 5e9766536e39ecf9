//! The byte stream of a connection, read into the worker's scratch buffer and written from it.
//!
//! A closed set for the plain kinds, so that the hot path has no dynamic call; TLS and the
//! in-memory network of the tests come in as [`Stream`].

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::coop;

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

/// What one unit of a task's turn moves. The runtime ends a turn after 128 calls, however much each of them moves: of
/// 64 KiB each, that could be eight megabytes. So it is two, which take some tenths of a millisecond.
const SHARE: usize = 16 * 1024;

/// Counts what a call moved beyond its first share. Who moves a connection's bytes by other calls than those of [`Io`]
/// does it himself.
pub fn counted(cx: &mut Context<'_>, moved: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
    if let Poll::Ready(Ok(n)) = moved {
        for _ in 0..n.saturating_sub(1) / SHARE {
            // One that has nothing left is stopped by its next call.
            if !coop::has_budget_remaining() {
                break;
            }
            if let Poll::Ready(unit) = coop::poll_proceed(cx) {
                unit.made_progress();
            }
        }
    }
    moved
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
        let read = match self {
            Self::Tcp(s) => read(s, cx, buf),
            Self::Unix(s) => read(s, cx, buf),
            Self::Other(s) => s.poll_read(cx, buf),
        };
        counted(cx, read)
    }

    pub fn poll_write(&mut self, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = match self {
            Self::Tcp(s) => Pin::new(s).poll_write(cx, buf),
            Self::Unix(s) => Pin::new(s).poll_write(cx, buf),
            Self::Other(s) => s.poll_write(cx, &[IoSlice::new(buf)]),
        };
        counted(cx, written)
    }

    pub fn poll_write_vectored(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let written = match self {
            Self::Tcp(s) => Pin::new(s).poll_write_vectored(cx, bufs),
            Self::Unix(s) => Pin::new(s).poll_write_vectored(cx, bufs),
            Self::Other(s) => s.poll_write(cx, bufs),
        };
        counted(cx, written)
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

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    /// Moves whatever it is asked to.
    struct Endless;

    impl Stream for Endless {
        fn poll_read(&mut self, _: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
            Poll::Ready(Ok(buf.len()))
        }

        fn poll_write(&mut self, _: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
            Poll::Ready(Ok(bufs.iter().map(|b| b.len()).sum()))
        }

        fn poll_flush(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_read_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_turn_moves_so_many_bytes_whichever_way() {
        type Move = fn(&mut Io, &mut Context<'_>, &mut [u8]) -> Poll<io::Result<usize>>;
        let ways: [Move; 3] = [
            |io, cx, bytes| io.poll_read(cx, bytes),
            |io, cx, bytes| io.poll_write(cx, bytes),
            |io, cx, bytes| io.poll_write_vectored(cx, &[IoSlice::new(bytes)]),
        ];
        for poll in ways {
            let (mut io, mut bytes) = (Io::Other(Box::new(Endless)), vec![0; 64 * 1024]);
            let moved = poll_fn(|cx| {
                let mut moved = 0;
                while coop::has_budget_remaining() {
                    let Poll::Ready(Ok(n)) = poll(&mut io, cx, &mut bytes) else { break };
                    moved += n;
                }
                Poll::Ready(moved)
            })
            .await;
            // A socket's call costs a unit besides.
            assert!((1 << 20..3 << 20).contains(&moved), "{moved}");
            tokio::task::yield_now().await;
        }
    }

    /// What is small costs nothing beyond its call.
    #[tokio::test(flavor = "current_thread")]
    async fn small_pieces_are_not_counted_here() {
        let mut io = Io::Other(Box::new(Endless));
        poll_fn(|cx| {
            for _ in 0..1000 {
                assert!(io.poll_read(cx, &mut [0; 16 * 1024]).is_ready());
            }
            Poll::Ready(())
        })
        .await;
        assert!(coop::has_budget_remaining());
    }
}
