//! The two ends of a connection.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use nuncio_core::net::{Io, Stream};
use tokio::time::{Instant, Sleep, sleep_until};

/// How a connection carries bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    /// From a write to the moment when the other end can read it.
    pub delay: Duration,
    /// Bytes in flight in one direction before a writer blocks.
    pub window: usize,
    /// A read brings no more than this, so that a test can split what a peer sent in one piece.
    pub most_per_read: usize,
}

impl Default for Link {
    fn default() -> Self {
        Self { delay: Duration::ZERO, window: 256 * 1024, most_per_read: usize::MAX }
    }
}

/// One direction.
struct Pipe {
    link: Link,
    segments: VecDeque<(Instant, Vec<u8>)>,
    /// Of the first segment, what was read.
    read: usize,
    in_flight: usize,
    /// When the writer's FIN arrives.
    fin: Option<Instant>,
    reset: bool,
    stalled: bool,
    reader_gone: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl Pipe {
    fn new(link: Link) -> Rc<RefCell<Self>> {
        Rc::new(RefCell::new(Self {
            link,
            segments: VecDeque::new(),
            read: 0,
            in_flight: 0,
            fin: None,
            reset: false,
            stalled: false,
            reader_gone: false,
            reader: None,
            writer: None,
        }))
    }

    fn wake_both(&mut self) {
        [self.reader.take(), self.writer.take()].into_iter().flatten().for_each(Waker::wake);
    }

    fn reset(&mut self) {
        self.reset = true;
        self.segments.clear();
        self.wake_both();
    }

    fn end(&mut self) {
        let at = Instant::now() + self.link.delay;
        self.fin.get_or_insert(at);
        self.wake_both();
    }

    /// When there is something to say to the reader; `None` as long as nothing was sent.
    fn due(&self) -> Option<Instant> {
        if self.reset {
            return Some(Instant::now());
        }
        if self.stalled {
            return None;
        }
        self.segments.front().map(|(at, _)| *at).or(self.fin)
    }

    fn take(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.reset {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        let Some((_, bytes)) = self.segments.front() else { return Ok(0) };
        let n = (bytes.len() - self.read).min(buf.len()).min(self.link.most_per_read);
        buf[..n].copy_from_slice(&bytes[self.read..self.read + n]);
        self.read += n;
        if self.read == bytes.len() {
            self.segments.pop_front();
            self.read = 0;
        }
        self.in_flight -= n;
        if let Some(writer) = self.writer.take() {
            writer.wake();
        }
        Ok(n)
    }
}

/// One end of a connection: a [`Stream`] for the code under test, or a peer in the test's hands.
/// Dropped, it closes; with bytes unread, it resets.
pub struct End {
    incoming: Rc<RefCell<Pipe>>,
    outgoing: Rc<RefCell<Pipe>>,
    sleep: Option<Pin<Box<Sleep>>>,
    abort: bool,
}

/// Makes a connection.
pub fn pair(link: Link) -> (End, End) {
    let (a, b) = (Pipe::new(link), Pipe::new(link));
    let end = |incoming: &Rc<_>, outgoing: &Rc<_>| End {
        incoming: Rc::clone(incoming),
        outgoing: Rc::clone(outgoing),
        sleep: None,
        abort: false,
    };
    (end(&a, &b), end(&b, &a))
}

impl End {
    pub fn into_io(self) -> Io {
        Io::Other(Box::new(self))
    }

    /// What a test may do to the connection while others hold its ends.
    pub fn trouble(&self) -> Trouble {
        Trouble { pipes: [Rc::clone(&self.incoming), Rc::clone(&self.outgoing)] }
    }

    /// Writes all of it, waiting for room.
    pub async fn write(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        let mut rest = bytes.as_ref();
        while !rest.is_empty() {
            let n = poll_fn(|cx| self.poll_write(cx, &[IoSlice::new(rest)])).await?;
            rest = &rest[n..];
        }
        Ok(())
    }

    /// What one read brings; empty at the peer's end.
    pub async fn read(&mut self) -> io::Result<Vec<u8>> {
        let mut buf = vec![0; 64 * 1024];
        let n = poll_fn(|cx| self.poll_read(cx, &mut buf)).await?;
        buf.truncate(n);
        Ok(buf)
    }

    /// Everything up to the peer's end.
    pub async fn read_to_end(&mut self) -> io::Result<Vec<u8>> {
        let mut all = Vec::new();
        loop {
            let piece = self.read().await?;
            if piece.is_empty() {
                return Ok(all);
            }
            all.extend(piece);
        }
    }

    /// Half-closes: the peer sees the end, and may go on writing.
    pub fn finish(&mut self) {
        self.outgoing.borrow_mut().end();
    }

    /// Resets the connection.
    pub fn reset(mut self) {
        self.abort = true;
    }
}

impl Stream for End {
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_read_ready(cx))?;
        Poll::Ready(self.incoming.borrow_mut().take(buf))
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let mut pipe = self.outgoing.borrow_mut();
        if pipe.reset {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        if pipe.reader_gone || pipe.fin.is_some() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let room = pipe.link.window.saturating_sub(pipe.in_flight);
        let mut bytes: Vec<u8> = bufs.iter().flat_map(|b| b.iter().copied()).take(room).collect();
        if bytes.is_empty() {
            if bufs.iter().all(|b| b.is_empty()) {
                return Poll::Ready(Ok(0));
            }
            pipe.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let n = bytes.len();
        pipe.in_flight += n;
        let due = Instant::now() + pipe.link.delay;
        match pipe.segments.back_mut() {
            // Like a socket's buffer: what was not read yet is read together.
            Some((at, last)) if *at == due => last.append(&mut bytes),
            _ => pipe.segments.push_back((due, bytes)),
        }
        if let Some(reader) = pipe.reader.take() {
            reader.wake();
        }
        Poll::Ready(Ok(n))
    }

    fn poll_flush(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.finish();
        Poll::Ready(Ok(()))
    }

    fn poll_read_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let due = self.incoming.borrow().due();
        if let Some(due) = due {
            if due <= Instant::now() {
                return Poll::Ready(Ok(()));
            }
            let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep_until(due)));
            sleep.as_mut().reset(due);
            if sleep.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Ok(()));
            }
        }
        // Also while it sleeps: a reset does not wait.
        self.incoming.borrow_mut().reader = Some(cx.waker().clone());
        Poll::Pending
    }

    fn abort(&mut self) {
        self.abort = true;
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let unread = {
            let mut incoming = self.incoming.borrow_mut();
            incoming.reader_gone = true;
            incoming.wake_both();
            !incoming.segments.is_empty()
        };
        let mut outgoing = self.outgoing.borrow_mut();
        if self.abort || unread {
            outgoing.reset();
            self.incoming.borrow_mut().reset();
        } else {
            outgoing.end();
        }
    }
}

/// Accidents of one connection.
#[derive(Clone)]
pub struct Trouble {
    pipes: [Rc<RefCell<Pipe>>; 2],
}

impl Trouble {
    /// Both ends see a reset; what is in flight is lost.
    pub fn cut(&self) {
        self.pipes.iter().for_each(|p| p.borrow_mut().reset());
    }

    /// Nothing arrives any more, in either direction, and nobody is told.
    pub fn stall(&self) {
        self.pipes.iter().for_each(|p| p.borrow_mut().stalled = true);
    }

    /// What was held back arrives.
    pub fn resume(&self) {
        for pipe in &self.pipes {
            let mut pipe = pipe.borrow_mut();
            pipe.stalled = false;
            pipe.wake_both();
        }
    }
}
