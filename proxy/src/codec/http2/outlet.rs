//! A stream's sending half. What flow control does not let through stays here, at most one read of
//! the other side, and nothing more is taken meanwhile.

use std::collections::VecDeque;
use std::io;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use nuncio_core::http::{Chunk, HeaderMap};

use super::session::{Session, Shared};
use super::stream_error::StreamError;

/// As much as is read at first, and again after a wait.
const FIRST_READ: usize = 16 * 1024;
/// As much as is read while everything is taken at once.
const MOST_READ: usize = 64 * 1024;

#[derive(Debug, PartialEq, Eq, Clone, Copy)]
enum End {
    /// More may come.
    Open,
    /// The last byte is known, and waits.
    Told,
    /// The connection has all of it.
    Given,
    /// The peer wants no more; what comes is dropped.
    Refused,
}

pub(super) struct Outlet {
    waiting: VecDeque<Bytes>,
    trailers: Option<HeaderMap>,
    /// Of the length that the head said.
    remaining: Option<u64>,
    read_size: usize,
    end: End,
    /// An upstream that stops listening may still answer: sending is not an error then.
    forgiving: bool,
}

impl Outlet {
    pub(super) fn new(forgiving: bool) -> Self {
        Self {
            waiting: VecDeque::new(),
            trailers: None,
            remaining: None,
            read_size: FIRST_READ,
            end: End::Open,
            forgiving,
        }
    }

    /// The head goes. `ended`: it says that nothing follows. `length`: the body's, if it tells it.
    pub(super) fn begin(&mut self, ended: bool, length: Option<u64>) {
        self.remaining = length;
        if ended && self.end == End::Open {
            self.end = End::Given;
        }
    }

    /// All of the message was handed over, or nobody wants the rest.
    pub(super) fn is_done(&self) -> bool {
        matches!(self.end, End::Given | End::Refused)
    }

    /// What waits for flow control; never 0 while something does.
    pub(super) fn buffered(&self) -> usize {
        self.waiting_bytes() + usize::from(self.end == End::Told)
    }

    fn waiting_bytes(&self) -> usize {
        self.waiting.iter().map(Bytes::len).sum()
    }

    /// How much may be read for it at once.
    pub(super) fn read_size(&self) -> usize {
        self.read_size
    }

    pub(super) fn send_data(
        &mut self,
        cx: &mut Context<'_>,
        session: &Shared,
        slot: usize,
        data: &Chunk<'_>,
        end: bool,
    ) -> io::Result<()> {
        match self.end {
            End::Refused => return Ok(()),
            End::Open => {}
            End::Told | End::Given if data.is_empty() => return Ok(()),
            End::Told | End::Given => return Err(wrong_length()),
        }
        self.count(data.len(), end)?;
        if end {
            self.end = End::Told;
        }
        let mut session = session.borrow_mut();
        if let Some(error) = session.send_error(slot) {
            return self.refused(&mut session, slot, error);
        }
        if self.waiting.is_empty() {
            let taken = self.give(cx, &mut session, slot, data.as_slice());
            if taken < data.len() {
                self.waiting.push_back(data.share().slice(taken..));
                self.read_size = FIRST_READ;
                session.hold(slot, data.len() - taken);
                return Ok(());
            }
            if self.end == End::Told && !data.is_empty() {
                self.end = End::Given;
                return Ok(());
            }
        } else if !data.is_empty() {
            self.waiting.push_back(data.share());
        }
        match self.push(cx, &mut session, slot) {
            Poll::Ready(pushed) => pushed,
            Poll::Pending => Ok(()),
        }
    }

    /// Holds the body to the length that the head said.
    fn count(&mut self, len: usize, end: bool) -> io::Result<()> {
        let Some(remaining) = &mut self.remaining else { return Ok(()) };
        *remaining = remaining.checked_sub(len as u64).ok_or_else(wrong_length)?;
        if end && *remaining > 0 { Err(wrong_length()) } else { Ok(()) }
    }

    /// Ends the message. What cannot be handed over now goes with the next [`poll_flush`](Self::poll_flush).
    pub(super) fn send_trailers(&mut self, session: &Shared, slot: usize, trailers: &HeaderMap) -> io::Result<()> {
        if self.end != End::Open {
            return Ok(());
        }
        self.count(0, true)?;
        self.end = End::Told;
        let mut session = session.borrow_mut();
        if let Some(error) = session.send_error(slot) {
            return self.refused(&mut session, slot, error);
        }
        if !self.waiting.is_empty() {
            self.trailers = Some(trailers.clone()).filter(|t| !t.is_empty());
            return Ok(());
        }
        self.end = End::Given;
        if trailers.is_empty() {
            session.send_data(slot, &[], true);
        } else {
            session.send_fields(slot, true, |block| block.trailers(trailers));
        }
        Ok(())
    }

    /// Ready when nothing waits here.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>, session: &Shared, slot: usize) -> Poll<io::Result<()>> {
        if self.waiting.is_empty() && self.end != End::Told {
            return Poll::Ready(Ok(()));
        }
        let mut session = session.borrow_mut();
        if let Some(error) = session.send_error(slot) {
            return Poll::Ready(self.refused(&mut session, slot, error));
        }
        self.push(cx, &mut session, slot)
    }

    /// Ready when something may be read for it: all that was read before is with the connection.
    pub(super) fn poll_writable(
        &mut self,
        cx: &mut Context<'_>,
        session: &Shared,
        slot: usize,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_flush(cx, session, slot))?;
        if self.end == End::Open && !session.borrow_mut().has_room(cx) { Poll::Pending } else { Poll::Ready(Ok(())) }
    }

    /// Hands over as much of `bytes` as may go, with the end if that is behind them; how much that was.
    fn give(&mut self, cx: &mut Context<'_>, session: &mut Session, slot: usize, bytes: &[u8]) -> usize {
        let mut taken = 0;
        while taken < bytes.len() {
            let n = session.allowance(cx, slot).min(bytes.len() - taken);
            if n == 0 {
                break;
            }
            let whole = taken + n == bytes.len();
            let last = whole && self.end == End::Told && self.waiting.len() <= 1 && self.trailers.is_none();
            session.send_data(slot, &bytes[taken..taken + n], last);
            taken += n;
        }
        taken
    }

    /// Hands over what can be handed over.
    fn push(&mut self, cx: &mut Context<'_>, session: &mut Session, slot: usize) -> Poll<io::Result<()>> {
        let pushed = self.push_waiting(cx, session, slot);
        session.hold(slot, self.waiting_bytes());
        pushed
    }

    fn push_waiting(&mut self, cx: &mut Context<'_>, session: &mut Session, slot: usize) -> Poll<io::Result<()>> {
        while let Some(front) = self.waiting.front().cloned() {
            let taken = self.give(cx, session, slot, &front);
            if taken < front.len() {
                if let Some(waiting) = self.waiting.front_mut() {
                    *waiting = front.slice(taken..);
                }
                self.read_size = FIRST_READ;
                return Poll::Pending;
            }
            self.waiting.pop_front();
            if self.end == End::Told && self.waiting.is_empty() && self.trailers.is_none() {
                self.end = End::Given;
            }
        }
        self.read_size = (self.read_size * 2).min(MOST_READ);
        if self.end == End::Told {
            self.end = End::Given;
            match self.trailers.take() {
                Some(trailers) => session.send_fields(slot, true, |block| block.trailers(&trailers)),
                None => session.send_data(slot, &[], true),
            }
        }
        Poll::Ready(Ok(()))
    }

    fn refused(&mut self, session: &mut Session, slot: usize, error: StreamError) -> io::Result<()> {
        self.stop();
        session.hold(slot, 0);
        if self.forgiving {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::BrokenPipe, error.to_string()))
    }

    /// Nothing more is sent.
    pub(super) fn stop(&mut self) {
        self.end = End::Refused;
        self.waiting.clear();
        self.trailers = None;
    }
}

fn wrong_length() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the body is not as long as its head said")
}
