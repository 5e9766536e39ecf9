//! A stream's sending half. What flow control does not let through stays here, at most one read of
//! the other side, and nothing more is taken meanwhile: the library would buffer without bound.

use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::SendStream;
use http::HeaderMap;

use super::shared::Shared;
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
    /// The library has all of it.
    Given,
    /// The peer wants no more; what comes is dropped.
    Refused,
}

pub(super) struct Outlet {
    send: SendStream<Bytes>,
    shared: Rc<Shared>,
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
    /// `ended`: the head said that nothing follows. `length`: the body's, if the head told it.
    pub(super) fn new(
        send: SendStream<Bytes>,
        shared: Rc<Shared>,
        ended: bool,
        length: Option<u64>,
        forgiving: bool,
    ) -> Self {
        Self {
            send,
            shared,
            waiting: VecDeque::new(),
            trailers: None,
            remaining: length,
            read_size: FIRST_READ,
            end: if ended { End::Given } else { End::Open },
            forgiving,
        }
    }

    pub(super) fn stream_mut(&mut self) -> &mut SendStream<Bytes> {
        &mut self.send
    }

    /// All of the message was handed over, or nobody wants the rest.
    pub(super) fn is_done(&self) -> bool {
        matches!(self.end, End::Given | End::Refused)
    }

    /// What waits for flow control; never 0 while something does.
    pub(super) fn buffered(&self) -> usize {
        self.waiting.iter().map(Bytes::len).sum::<usize>() + usize::from(self.end == End::Told)
    }

    /// How much may be read for it at once.
    pub(super) fn read_size(&self) -> usize {
        self.read_size
    }

    pub(super) fn send_data(&mut self, cx: &mut Context<'_>, data: Bytes, end: bool) -> io::Result<()> {
        match self.end {
            End::Refused => return Ok(()),
            End::Open => {}
            End::Told | End::Given if data.is_empty() => return Ok(()),
            End::Told | End::Given => return Err(wrong_length()),
        }
        self.count(data.len(), end)?;
        if !data.is_empty() {
            self.waiting.push_back(data);
        }
        if end {
            self.end = End::Told;
        }
        match self.push(cx) {
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
    pub(super) fn send_trailers(&mut self, trailers: HeaderMap) -> io::Result<()> {
        if self.end != End::Open {
            return Ok(());
        }
        self.count(0, true)?;
        self.end = End::Told;
        self.trailers = Some(trailers).filter(|t| !t.is_empty());
        if self.waiting.is_empty() { self.finish() } else { Ok(()) }
    }

    /// Ready when nothing waits here.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.waiting.is_empty() && self.end != End::Told {
            return Poll::Ready(Ok(()));
        }
        self.push(cx)
    }

    /// Ready when something may be read for it: all that was read before is with the connection.
    pub(super) fn poll_writable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_flush(cx))?;
        if self.end == End::Open && self.shared.is_full(cx) { Poll::Pending } else { Poll::Ready(Ok(())) }
    }

    fn poll_capacity(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        loop {
            // First what is there: the library reports only increases.
            let capacity = self.send.capacity();
            if capacity > 0 {
                return Poll::Ready(Ok(capacity));
            }
            match ready!(self.send.poll_capacity(cx)) {
                Some(Ok(0)) => {}
                Some(Ok(n)) => return Poll::Ready(Ok(n)),
                Some(Err(error)) => return Poll::Ready(self.refused(&error).map(|()| 0)),
                None => return Poll::Ready(self.cut().map(|()| 0)),
            }
        }
    }

    /// Hands over what can be handed over.
    fn push(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(front) = self.waiting.front() {
            if self.shared.is_full(cx) {
                self.read_size = FIRST_READ;
                return Poll::Pending;
            }
            let wanted = front.len();
            self.send.reserve_capacity(wanted);
            let Poll::Ready(capacity) = self.poll_capacity(cx) else {
                self.read_size = FIRST_READ;
                return Poll::Pending;
            };
            let n = capacity?.min(wanted);
            if self.end == End::Refused {
                return Poll::Ready(Ok(()));
            }
            let Some(front) = self.waiting.front_mut() else { break };
            let piece = front.split_to(n);
            if front.is_empty() {
                self.waiting.pop_front();
            }
            let last = self.end == End::Told && self.waiting.is_empty() && self.trailers.is_none();
            self.shared.queue(n);
            if let Err(error) = self.send.send_data(piece, last) {
                return Poll::Ready(self.refused(&error));
            }
            if last {
                self.end = End::Given;
                return Poll::Ready(Ok(()));
            }
        }
        self.read_size = (self.read_size * 2).min(MOST_READ);
        Poll::Ready(if self.end == End::Told { self.finish() } else { Ok(()) })
    }

    /// The end, once nothing waits before it.
    fn finish(&mut self) -> io::Result<()> {
        self.end = End::Given;
        let sent = match self.trailers.take() {
            Some(trailers) => self.send.send_trailers(trailers),
            None => self.send.send_data(Bytes::new(), true),
        };
        sent.or_else(|error| self.refused(&error))
    }

    fn refused(&mut self, error: &h2::Error) -> io::Result<()> {
        self.stop();
        if self.forgiving {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::BrokenPipe, StreamError::of(error, &self.shared).to_string()))
    }

    fn cut(&mut self) -> io::Result<()> {
        self.stop();
        if self.forgiving { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
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
