//! The socket of a connection and what was not written to it yet: the half of [`Wire`](super::wire::Wire) that the
//! worker's flusher may hold too.
//!
//! Writes go to the socket at once where they are large, and otherwise wait in `output` behind the head. A body that comes
//! by a pipe follows what waits there, and nothing is written behind it before it is gone.

use std::cell::{Cell, RefCell, RefMut};
use std::io::{self, IoSlice};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use nuncio_core::net::{Io, counted};

use crate::codec::Buffers;
use crate::net::flusher::{self, Flush};
use crate::net::splice::{self, Pipe};

/// Data up to this size is copied behind what waits in `output`, to go in one write with it.
const COPY_LIMIT: usize = 4 * 1024;
/// More than this in `output` goes to the socket before more is copied behind it.
const OUTPUT_LIMIT: usize = 32 * 1024;
/// More than this is not put off: it is no longer a write's fixed cost that counts.
const PUT_OFF_LIMIT: usize = 16 * 1024;

pub(super) struct Socket {
    state: RefCell<State>,
    /// The flusher has it.
    put_off: Cell<bool>,
}

struct State {
    io: Io,
    output: Vec<u8>,
    /// What follows `output` and never passed through this process; and nothing else does until it is written.
    piped: Option<Pipe>,
    sent: u64,
    /// `output` is written up to here.
    written: u32,
    /// Our FIN follows what waits in `output`.
    finishing: bool,
    /// The socket took no more when it was last asked, and wakes whoever asked.
    blocked: bool,
    /// What the flusher heard; for the next who flushes.
    failed: Option<io::Error>,
}

impl Socket {
    pub(super) fn new(io: Io) -> Rc<Self> {
        let state = State {
            io,
            output: Vec::new(),
            piped: None,
            sent: 0,
            written: 0,
            finishing: false,
            blocked: false,
            failed: None,
        };
        Rc::new(Self { state: state.into(), put_off: false.into() })
    }

    pub(super) fn io(&self) -> RefMut<'_, Io> {
        RefMut::map(self.state.borrow_mut(), |state| &mut state.io)
    }

    /// Bytes sent in all.
    pub(super) fn sent(&self) -> u64 {
        self.state.borrow().sent
    }

    pub(super) fn buffered(&self) -> usize {
        self.state.borrow().buffered()
    }

    /// The same, with a FIN that waits counted.
    pub(super) fn unsent(&self) -> usize {
        let state = self.state.borrow();
        state.buffered() + usize::from(state.finishing)
    }

    /// Bytes in a pipe wait.
    pub(super) fn has_pipe(&self) -> bool {
        self.state.borrow().piped.is_some()
    }

    /// With less than this unsent the peer keeps up. What is in a pipe is sent before anything follows it.
    pub(super) fn takes_more(&self, watermark: usize) -> bool {
        !self.has_pipe() && self.unsent() < watermark
    }

    /// Nothing more is sent: FIN goes with the next flush.
    pub(super) fn finish(&self) {
        self.state.borrow_mut().finishing = true;
    }

    pub(super) fn held_capacity(&self) -> usize {
        self.state.borrow().output.capacity()
    }

    /// Gives an empty buffer back to the worker.
    pub(super) fn release(&self, buffers: &Buffers) {
        let mut state = self.state.borrow_mut();
        if state.output.is_empty() && state.output.capacity() > 0 {
            buffers.give(std::mem::take(&mut state.output));
        }
    }

    /// The vector that waits for the next write.
    pub(super) fn output(&self, buffers: &Buffers) -> RefMut<'_, Vec<u8>> {
        RefMut::map(self.state.borrow_mut(), |state| state.output(buffers))
    }

    /// Sends `parts` behind what waits.
    pub(super) fn send(&self, cx: &mut Context<'_>, buffers: &Buffers, parts: [&[u8]; 3]) -> io::Result<()> {
        self.state.borrow_mut().send(cx, buffers, parts)
    }

    /// Sends what is in `pipe` behind what waits, and `ahead` between them.
    pub(super) fn send_pipe(
        &self,
        cx: &mut Context<'_>,
        buffers: &Buffers,
        ahead: &[u8],
        pipe: Pipe,
    ) -> io::Result<()> {
        let mut state = self.state.borrow_mut();
        state.output(buffers).extend_from_slice(ahead);
        state.piped = Some(pipe);
        let sent = state.poll_drain(cx, buffers);
        state.blocked = sent.is_pending();
        if let Poll::Ready(sent) = sent { sent } else { Ok(()) }
    }

    /// Ready when everything is on the wire.
    pub(super) fn poll_flush(&self, cx: &mut Context<'_>, buffers: &Buffers) -> Poll<io::Result<()>> {
        self.state.borrow_mut().poll_flush(cx, buffers)
    }

    /// Ready when everything is on the wire, or will be when the others of this worker have read: then [`unsent`]
    /// tells. `cx` is woken if that meets with difficulties; then it is to be asked again.
    ///
    /// [`unsent`]: Self::unsent
    pub(super) fn poll_flush_soon(self: &Rc<Self>, cx: &mut Context<'_>, buffers: &Buffers) -> Poll<io::Result<()>> {
        let mut state = self.state.borrow_mut();
        let may_wait = (1..=PUT_OFF_LIMIT).contains(&state.waiting().len()) && !state.blocked && !state.finishing;
        if may_wait && (self.put_off.get() || flusher::flush_soon(self.clone(), cx.waker())) {
            self.put_off.set(true);
            return Poll::Ready(Ok(()));
        }
        state.poll_flush(cx, buffers)
    }

    /// It waits for the flusher, and nobody else needs to do anything.
    pub(super) fn is_put_off(&self) -> bool {
        self.put_off.get()
    }
}

impl Flush for Socket {
    fn flush(&self, cx: &mut Context<'_>) {
        self.put_off.set(false);
        let mut state = self.state.borrow_mut();
        if let Poll::Ready(Err(e)) = state.poll_flush(cx, &Buffers::of_this_thread()) {
            state.failed = Some(e);
            cx.waker().wake_by_ref();
        }
    }
}

impl State {
    fn waiting(&self) -> &[u8] {
        &self.output[self.written as usize..]
    }

    fn buffered(&self) -> usize {
        self.waiting().len() + self.piped.as_ref().map_or(0, Pipe::filled)
    }

    fn output(&mut self, buffers: &Buffers) -> &mut Vec<u8> {
        if self.output.capacity() == 0 {
            self.output = buffers.take();
        }
        &mut self.output
    }

    fn send(&mut self, cx: &mut Context<'_>, buffers: &Buffers, parts: [&[u8]; 3]) -> io::Result<()> {
        let len: usize = parts.iter().map(|p| p.len()).sum();
        if len == 0 {
            return Ok(());
        }
        debug_assert!(self.piped.is_none(), "what follows a pipe's bytes would overtake them");
        let waiting = self.waiting().len();
        if len <= COPY_LIMIT && waiting + len <= OUTPUT_LIMIT {
            let output = self.output(buffers);
            parts.iter().for_each(|p| output.extend_from_slice(p));
            return Ok(());
        }
        let mut done = 0;
        // Until it blocks, so that whoever waits is woken when there is room again.
        while done < waiting + len {
            let all = [&self.output[self.written as usize..], parts[0], parts[1], parts[2]];
            match write_from(&mut self.io, cx, all, done) {
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(n)) => done += n,
                Poll::Ready(Err(e)) => return Err(e),
                Poll::Pending => break,
            }
        }
        self.sent += done as u64;
        self.advance(done.min(waiting));
        self.blocked = done < waiting + len;
        let mut skip = done.saturating_sub(waiting);
        for part in parts {
            let n = skip.min(part.len());
            skip -= n;
            if n < part.len() {
                self.output(buffers).extend_from_slice(&part[n..]);
            }
        }
        Ok(())
    }

    /// The first `n` bytes that waited are on the wire.
    fn advance(&mut self, n: usize) {
        const COMPACT: usize = 64 * 1024;
        self.written += n as u32;
        let written = self.written as usize;
        if written == self.output.len() {
            self.output.clear();
            self.written = 0;
        } else if written > COMPACT && written > self.output.len() / 2 {
            self.output.drain(..written);
            self.written = 0;
        }
    }

    /// Writes what is in a pipe, and what waits before it. Ready: no pipe is here any more.
    fn poll_drain(&mut self, cx: &mut Context<'_>, buffers: &Buffers) -> Poll<io::Result<()>> {
        while let Some(pipe) = &mut self.piped {
            let waiting = self.output.len() - self.written as usize;
            let written = if waiting > 0 {
                splice::poll_write_ahead(&self.io, cx, &self.output[self.written as usize..])
            } else {
                pipe.poll_drain(&self.io, cx)
            };
            let n = ready!(counted(cx, written))?;
            if n == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.sent += n as u64;
            if waiting > 0 {
                self.advance(n);
            } else if pipe.filled() == 0
                && let Some(pipe) = self.piped.take()
            {
                buffers.pipes.give(pipe);
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>, buffers: &Buffers) -> Poll<io::Result<()>> {
        if let Some(e) = self.failed.take() {
            return Poll::Ready(Err(e));
        }
        self.blocked = true;
        ready!(self.poll_drain(cx, buffers))?;
        while !self.waiting().is_empty() {
            let n = ready!(self.io.poll_write(cx, &self.output[self.written as usize..]))?;
            if n == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.sent += n as u64;
            self.advance(n);
        }
        self.blocked = false;
        if self.output.capacity() > 0 {
            buffers.give(std::mem::take(&mut self.output));
        }
        if self.finishing {
            ready!(self.io.poll_shutdown(cx))?;
            self.finishing = false;
        }
        self.io.poll_flush(cx)
    }
}

/// One vectored write of what follows the first `skip` bytes of `parts`.
fn write_from(io: &mut Io, cx: &mut Context<'_>, parts: [&[u8]; 4], skip: usize) -> Poll<io::Result<usize>> {
    let mut slices = [IoSlice::new(b""); 4];
    let (mut skip, mut count) = (skip, 0);
    for part in parts {
        let n = skip.min(part.len());
        skip -= n;
        if n < part.len() {
            slices[count] = IoSlice::new(&part[n..]);
            count += 1;
        }
    }
    io.poll_write_vectored(cx, &slices[..count])
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use nuncio_testkit::net::{Link, pair};
    use tokio::task::{spawn_local, yield_now};

    use super::*;

    async fn flushing() {
        spawn_local(flusher::run());
        yield_now().await;
    }

    fn say(socket: &Socket, bytes: &[u8]) {
        socket.output(&Buffers::default()).extend_from_slice(bytes);
    }

    async fn flush_soon(socket: &Rc<Socket>) -> io::Result<()> {
        poll_fn(|cx| socket.poll_flush_soon(cx, &Buffers::default())).await
    }

    #[tokio::test(flavor = "local", start_paused = true)]
    async fn what_is_put_off_goes_in_one_write_when_others_had_their_turn() {
        flushing().await;
        let (near, mut far) = pair(Link::default());
        let socket = Socket::new(near.into_io());
        for text in [b"one", b"two"] {
            say(&socket, text);
            flush_soon(&socket).await.unwrap();
        }
        assert_eq!((socket.unsent(), socket.sent(), socket.is_put_off()), (6, 0, true));
        assert_eq!(far.read().await.unwrap(), b"onetwo");
        assert_eq!((socket.unsent(), socket.sent(), socket.is_put_off(), socket.held_capacity()), (0, 6, false, 0));
    }

    #[tokio::test(flavor = "local", start_paused = true)]
    async fn what_is_much_or_the_last_or_has_no_flusher_is_not_put_off() {
        let written_at_once = async |bytes: usize, last: bool| {
            let (near, mut far) = pair(Link::default());
            let socket = Socket::new(near.into_io());
            say(&socket, &vec![b'x'; bytes]);
            if last {
                socket.finish();
            }
            flush_soon(&socket).await.unwrap();
            let sent = socket.sent();
            assert_eq!(far.read().await.unwrap().len(), bytes);
            sent == bytes as u64
        };
        assert!(written_at_once(1, false).await);
        flushing().await;
        assert!(!written_at_once(1, false).await);
        assert!(!written_at_once(PUT_OFF_LIMIT, false).await);
        assert!(written_at_once(PUT_OFF_LIMIT + 1, false).await);
        assert!(written_at_once(1, true).await);
    }

    #[tokio::test(flavor = "local", start_paused = true)]
    async fn who_put_it_off_writes_what_the_peer_did_not_take_at_once() {
        flushing().await;
        let (near, mut far) = pair(Link { window: 10, ..Link::default() });
        let socket = Socket::new(near.into_io());
        say(&socket, &[b'x'; 25]);
        let (mut turns, mut all) = (0, Vec::new());
        let owner = poll_fn(|cx| {
            turns += 1;
            if socket.poll_flush_soon(cx, &Buffers::default()).is_pending() || socket.unsent() > 0 {
                return Poll::Pending;
            }
            Poll::Ready(())
        });
        let peer = async {
            while all.len() < 25 {
                all.extend(far.read().await.unwrap());
            }
        };
        tokio::join!(owner, peer);
        assert_eq!((socket.sent(), all.len()), (25, 25));
        assert!(turns <= 4, "woken {turns} times");
    }

    #[tokio::test(flavor = "local", start_paused = true)]
    async fn who_put_it_off_hears_that_the_peer_is_gone() {
        flushing().await;
        let (near, far) = pair(Link::default());
        let socket = Socket::new(near.into_io());
        far.reset();
        say(&socket, b"lost");
        let mut soon = None;
        let heard = poll_fn(|cx| match socket.poll_flush_soon(cx, &Buffers::default()) {
            Poll::Ready(Ok(())) if soon.is_none() => {
                soon = Some(socket.unsent());
                Poll::Pending
            }
            other => other,
        });
        let heard = heard.await;
        assert_eq!(soon, Some(4));
        assert_eq!(heard.map_err(|e| e.kind()), Err(io::ErrorKind::ConnectionReset));
    }

    #[tokio::test(flavor = "local", start_paused = true)]
    async fn a_connection_that_is_dropped_leaves_nothing_behind() {
        flushing().await;
        let (near, mut far) = pair(Link::default());
        let socket = Socket::new(near.into_io());
        say(&socket, b"answer");
        flush_soon(&socket).await.unwrap();
        drop(socket);
        assert_eq!(far.read_to_end().await.unwrap(), b"answer");
    }
}
