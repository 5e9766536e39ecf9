//! A connection as hyper wants it, for the small servers of the control side.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::rt::{Read, ReadBufCursor, Write};
use nuncio_core::net::Io;

/// A write that makes no progress for a while ends the connection.
pub struct HyperIo {
    io: Io,
    stall: Duration,
    stalled: Option<Pin<Box<tokio::time::Sleep>>>,
}

impl HyperIo {
    pub fn new(io: Io, stall: Duration) -> Self {
        Self { io, stall, stalled: None }
    }
}

impl Read for HyperIo {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, mut buf: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        let mut scratch = [0; 4096];
        let room = buf.remaining().min(scratch.len());
        let read = ready!(self.io.poll_read(cx, &mut scratch[..room]))?;
        buf.put_slice(&scratch[..read]);
        Poll::Ready(Ok(()))
    }
}

impl Write for HyperIo {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        if let Poll::Ready(result) = this.io.poll_write(cx, buf) {
            this.stalled = None;
            return Poll::Ready(result);
        }
        let stall = this.stall;
        let sleep = this.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(stall)));
        ready!(sleep.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.poll_shutdown(cx)
    }
}

/// tokio's clock for hyper, which is told moments of the standard library's.
pub struct HyperClock;

struct ClockSleep(Pin<Box<tokio::time::Sleep>>);

impl hyper::rt::Timer for HyperClock {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn hyper::rt::Sleep>> {
        Box::pin(ClockSleep(Box::pin(tokio::time::sleep(duration))))
    }

    #[allow(clippy::disallowed_types)]
    fn sleep_until(&self, deadline: std::time::Instant) -> Pin<Box<dyn hyper::rt::Sleep>> {
        Box::pin(ClockSleep(Box::pin(tokio::time::sleep_until(tokio::time::Instant::from_std(deadline)))))
    }
}

impl hyper::rt::Sleep for ClockSleep {}

impl Future for ClockSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(cx)
    }
}
