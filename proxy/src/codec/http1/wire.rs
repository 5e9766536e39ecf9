//! A connection as its codec sees it: what was read too early, and the [`Socket`] with what was not written yet.
//!
//! Reads go through the worker's scratch buffer; what belongs to somebody later is kept in `input`. That vector, like the
//! socket's, is borrowed from the worker and goes back when it is empty.

use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use nuncio_core::http::{HeaderMap, Held};
use nuncio_core::net::Io;

use super::encode::{self, Outgoing};
use super::header_case::HeaderCase;
use super::socket::Socket;
use crate::codec::Buffers;

mod piped;

pub use self::piped::Piped;
pub(super) use self::piped::{Sink, Source};

/// Read at most so much where what lies behind a head is copied once more.
pub(super) const HEAD_READ: usize = 8 * 1024;
/// Read at most so much where it stays in its buffer: a head and 64 KiB behind it come in one read, for which the kernel
/// opens the window once.
const HEAD_AND_BODY_READ: usize = HEAD_READ + 64 * 1024;
/// Read at most so much where the body behind a head is to stay in the socket, for a pipe.
const HEAD_ONLY_READ: usize = 2 * 1024;
/// What is worth keeping a whole buffer for.
const MUCH: usize = 4 * 1024;
/// What is read ahead while nobody asks for it.
const READ_AHEAD: usize = 64 * 1024;

/// Why there is no head.
pub(super) enum HeadFault<E> {
    /// What `parse` said.
    Refused(E),
    TooLarge,
    /// The peer's end, between heads or within one.
    End,
    Io(io::Error),
}

/// How the next head is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NextHead {
    Usual,
    /// The last one came with more than [`HEAD_READ`] holds, so this one gets more room.
    WithBody,
    /// The last one's body was one for a pipe.
    Alone,
}

pub(super) struct Wire {
    pub(super) socket: Rc<Socket>,
    input: Vec<u8>,
    /// What came behind a head, in the buffer that both were read into; `input` is empty then.
    held: Option<Held>,
    received: u64,
    /// `input` is consumed up to here.
    consumed: u32,
    /// Of an incomplete head: the length at which it was last parsed.
    tried: u32,
    /// The last read filled its buffer: there may be more.
    full: bool,
    next_head: NextHead,
    /// The body comes in small pieces, for which no pipe is worth its calls.
    trickles: bool,
    eof: bool,
}

impl Wire {
    pub(super) fn new(io: Io, preread: Vec<u8>) -> Self {
        Self {
            socket: Socket::new(io),
            received: preread.len() as u64,
            input: preread,
            held: None,
            consumed: 0,
            tried: 0,
            full: false,
            next_head: NextHead::Usual,
            trickles: false,
            eof: false,
        }
    }

    /// Bytes received, and bytes sent, in all.
    pub(super) fn totals(&self) -> (u64, u64) {
        (self.received, self.socket.sent())
    }

    /// Nothing waits in either direction, as far as the last read and write could tell.
    pub(super) fn is_quiet(&self) -> bool {
        self.pending().is_empty() && !self.full && self.socket.unsent() == 0
    }

    pub(super) fn is_eof(&self) -> bool {
        self.eof
    }

    pub(super) fn held_capacity(&self) -> usize {
        self.input.capacity() + self.socket.held_capacity() + self.held.as_ref().map_or(0, Held::capacity)
    }

    // === reading ===

    /// Read and not consumed.
    pub(super) fn pending(&self) -> &[u8] {
        match &self.held {
            Some(held) => held,
            None => &self.input[self.consumed as usize..],
        }
    }

    pub(super) fn consume(&mut self, n: usize) {
        self.tried = 0;
        if let Some(held) = &mut self.held {
            held.narrow(n..held.len());
            if held.is_empty() {
                self.held = None;
            }
            return;
        }
        self.consumed += n as u32;
        if self.consumed as usize >= self.input.len() {
            self.input.clear();
            self.consumed = 0;
        }
    }

    /// Drops what was read and not consumed.
    pub(super) fn discard_pending(&mut self) {
        self.consume(self.pending().len());
    }

    /// Whether an incomplete head in `pending` is worth parsing again: always while it is short,
    /// then only when it has doubled or its empty line is there, so that a head that comes byte by
    /// byte does not cost its length squared.
    pub(super) fn worth_parsing(&self) -> bool {
        const ALWAYS: usize = 1024;
        let pending = self.pending();
        let tried = self.tried as usize;
        if pending.len() <= tried {
            return false;
        }
        let fresh = &pending[tried.saturating_sub(3)..];
        tried == 0
            || pending.len() <= ALWAYS
            || pending.len() >= 2 * tried
            || memchr::memchr_iter(b'\n', fresh).any(|i| matches!(&fresh[i + 1..], [b'\n', ..] | [b'\r', b'\n', ..]))
    }

    /// `pending` was parsed and is incomplete.
    pub(super) fn mark_tried(&mut self) {
        self.tried = self.pending().len() as u32;
    }

    /// Reads into `scratch`; 0 is the peer's end.
    pub(super) fn poll_read(&mut self, cx: &mut Context<'_>, scratch: &mut [u8]) -> Poll<io::Result<usize>> {
        if self.eof {
            return Poll::Ready(Ok(0));
        }
        let n = ready!(self.socket.io().poll_read(cx, scratch))?;
        self.received += n as u64;
        self.full = n == scratch.len();
        self.eof = n == 0;
        Poll::Ready(Ok(n))
    }

    /// Reads until `parse` has a head, whose length it says with it. What follows the head is kept.
    pub(super) fn poll_head<T, E>(
        &mut self,
        cx: &mut Context<'_>,
        buffers: &Buffers,
        scratch: &mut [u8],
        max: usize,
        mut parse: impl FnMut(&[u8]) -> Result<Option<(T, usize)>, E>,
    ) -> Poll<Result<T, HeadFault<E>>> {
        self.trickles = false;
        loop {
            if self.worth_parsing() {
                match parse(self.pending()).map_err(HeadFault::Refused)? {
                    Some((head, len)) => {
                        self.consume(len);
                        return Poll::Ready(Ok(head));
                    }
                    None => self.mark_tried(),
                }
            } else if self.pending().len() > max {
                return Poll::Ready(Err(HeadFault::TooLarge));
            }
            let mut own = (self.next_head == NextHead::WithBody).then(Buffers::hold).flatten();
            let room = match &mut own {
                Some(own) => &mut own[..HEAD_AND_BODY_READ],
                None => {
                    let most = if self.next_head == NextHead::Alone { HEAD_ONLY_READ } else { HEAD_READ };
                    let most = scratch.len().min(most);
                    &mut scratch[..most]
                }
            };
            let n = match ready!(self.poll_read(cx, room)) {
                Ok(0) => return Poll::Ready(Err(HeadFault::End)),
                Ok(n) => n,
                Err(e) => return Poll::Ready(Err(HeadFault::Io(e))),
            };
            self.next_head = if n >= HEAD_READ { NextHead::WithBody } else { NextHead::Usual };
            let read = own.as_deref().unwrap_or(scratch);
            if !self.pending().is_empty() {
                self.keep(buffers, &read[..n]);
                continue;
            }
            // The usual case: a whole head in one read is parsed where it lies.
            let Some((head, len)) = parse(&read[..n]).map_err(HeadFault::Refused)? else {
                self.keep(buffers, &read[..n]);
                self.mark_tried();
                continue;
            };
            match own {
                Some(mut own) if n - len > MUCH => {
                    own.narrow(len..n);
                    self.held = Some(own);
                }
                _ => self.keep(buffers, &read[len..n]),
            }
            return Poll::Ready(Ok(head));
        }
    }

    /// What is held, as it is, if it is no more than `most` bytes: a body's first piece.
    pub(super) fn take_held(&mut self, most: u64) -> Option<Held> {
        self.held.take_if(|held| held.len() as u64 <= most)
    }

    /// What is held moves to `input`, where more can follow it.
    fn settle(&mut self) {
        if let Some(held) = self.held.take() {
            self.input.extend_from_slice(&held);
        }
    }

    /// Keeps bytes that were read for somebody later.
    pub(super) fn keep(&mut self, buffers: &Buffers, bytes: &[u8]) {
        if self.input.capacity() == 0 && !bytes.is_empty() {
            self.input = buffers.take();
        }
        self.keep_more(bytes);
    }

    pub(super) fn keep_more(&mut self, bytes: &[u8]) {
        self.settle();
        if self.consumed > 0 {
            self.input.drain(..self.consumed as usize);
            self.consumed = 0;
        }
        self.input.extend_from_slice(bytes);
    }

    /// Gives empty buffers back to the worker.
    pub(super) fn release(&mut self, buffers: &Buffers) {
        if self.input.is_empty() && self.input.capacity() > 0 {
            buffers.give(std::mem::take(&mut self.input));
        }
        self.socket.release(buffers);
    }

    /// Moves up to `most` bytes into `scratch`: those kept, and those of one read if there may be
    /// more, so that what came behind a head goes on in one write with it. 0 is the peer's end.
    pub(super) fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        scratch: &mut [u8],
        most: usize,
    ) -> Poll<io::Result<usize>> {
        let most = most.min(scratch.len());
        let kept = self.pending().len().min(most);
        scratch[..kept].copy_from_slice(&self.pending()[..kept]);
        self.consume(kept);
        if kept == most || (kept > 0 && !self.full) {
            return Poll::Ready(Ok(kept));
        }
        let read = self.poll_read(cx, &mut scratch[kept..most]);
        self.note_piece(&read);
        match read {
            Poll::Ready(Ok(0)) | Poll::Pending if kept > 0 => Poll::Ready(Ok(kept)),
            other => other.map_ok(|n| kept + n),
        }
    }

    /// What `poll_fill` brought and the body did not want goes back before what is still kept.
    pub(super) fn put_back(&mut self, bytes: &[u8]) {
        // They came from there, so there is room before what is left.
        if bytes.is_empty() || self.held.as_mut().is_some_and(|held| held.put_back(bytes)) {
            return;
        }
        self.settle();
        let at = self.consumed as usize;
        if at >= bytes.len() {
            let start = at - bytes.len();
            self.input[start..at].copy_from_slice(bytes);
            self.consumed = start as u32;
        } else {
            self.input.splice(..at, bytes.iter().copied());
            self.consumed = 0;
        }
    }

    /// Reads ahead while nobody asks; ready when the peer has gone (`Ok` for its FIN). Once
    /// [`READ_AHEAD`] bytes lie unread, its going away is not seen any more.
    pub(super) fn poll_gone(&mut self, cx: &mut Context<'_>, scratch: &mut [u8]) -> Poll<io::Result<()>> {
        loop {
            if self.eof {
                return Poll::Ready(Ok(()));
            }
            let room = READ_AHEAD.saturating_sub(self.pending().len()).min(scratch.len());
            if room == 0 {
                return Poll::Pending;
            }
            let n = ready!(self.poll_read(cx, &mut scratch[..room]))?;
            self.keep_more(&scratch[..n]);
        }
    }

    // === writing ===

    /// Writes a piece of a body as `outgoing` frames it.
    pub(super) fn send_data(
        &mut self,
        outgoing: &mut Outgoing,
        cx: &mut Context<'_>,
        buffers: &Buffers,
        data: &[u8],
        end: bool,
    ) -> io::Result<()> {
        let mut line = [0; 18];
        let (before, after): (&[u8], &[u8]) = match outgoing {
            Outgoing::Discard => (b"", b""),
            Outgoing::Done if data.is_empty() => (b"", b""),
            Outgoing::Done => return Err(wrong_length()),
            Outgoing::Length(remaining) => {
                *remaining = remaining.checked_sub(data.len() as u64).ok_or_else(wrong_length)?;
                if end && *remaining > 0 {
                    return Err(wrong_length());
                }
                (b"", b"")
            }
            Outgoing::Chunked if data.is_empty() => (b"", if end { b"0\r\n\r\n" } else { b"" }),
            Outgoing::Chunked => {
                (encode::chunk_line(data.len(), &mut line), if end { b"\r\n0\r\n\r\n" } else { b"\r\n" })
            }
            Outgoing::UntilClose | Outgoing::Tunnel => (b"", b""),
        };
        let written =
            if *outgoing == Outgoing::Discard { Ok(()) } else { self.socket.send(cx, buffers, [before, data, after]) };
        if end || *outgoing == Outgoing::Length(0) {
            *outgoing = Outgoing::Done;
        }
        written
    }

    /// The end of a chunked body with trailers; other framings have no place for them.
    pub(super) fn send_trailers(
        &mut self,
        outgoing: &mut Outgoing,
        buffers: &Buffers,
        trailers: Option<&HeaderMap>,
        case: HeaderCase,
    ) -> io::Result<()> {
        match (std::mem::take(outgoing), trailers) {
            (Outgoing::Chunked, Some(trailers)) => encode::trailers(&mut self.socket.output(buffers), trailers, case),
            (Outgoing::Chunked, None) => self.socket.output(buffers).extend_from_slice(b"0\r\n\r\n"),
            (Outgoing::Length(n), _) if n > 0 => return Err(wrong_length()),
            _ => {}
        }
        Ok(())
    }
}

/// The caller's body is not as long as its head says: nobody may take it for whole.
fn wrong_length() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the body is not as long as its content-length")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wire() -> Wire {
        let (near, _far) = nuncio_testkit::net::pair(nuncio_testkit::net::Link::default());
        Wire::new(near.into_io(), Vec::new())
    }

    /// As if `rest` had been read behind 90 bytes of head.
    fn held(wire: &mut Wire, rest: &[u8]) {
        let mut buffer = Buffers::hold().unwrap();
        buffer[90..90 + rest.len()].copy_from_slice(rest);
        buffer.narrow(90..90 + rest.len());
        wire.held = Some(buffer);
    }

    #[test]
    fn what_is_held_is_consumed_put_back_and_added_to_like_what_is_kept() {
        let body: Vec<u8> = (0..3 * MUCH).map(|i| (i % 251) as u8).collect();
        let mut wire = wire();
        held(&mut wire, &body);
        wire.consume(30);
        wire.put_back(&body[10..30]);
        assert_eq!(wire.pending(), &body[10..]);
        assert!(wire.take_held(body.len() as u64 - 11).is_none());
        wire.keep_more(b"more");
        assert_eq!(wire.pending(), [&body[10..], b"more"].concat());
        wire.consume(body.len() - 10);
        assert_eq!(wire.pending(), b"more");
    }

    #[test]
    fn a_buffer_that_was_held_is_given_up_with_its_last_byte() {
        let mut wire = wire();
        held(&mut wire, &[b'x'; 2 * MUCH]);
        assert!(wire.held_capacity() > 0);
        wire.consume(2 * MUCH);
        assert_eq!((wire.pending(), wire.held_capacity()), (&b""[..], 0));
        held(&mut wire, &[b'x'; 2 * MUCH]);
        assert_eq!(wire.take_held(u64::MAX).map(|held| held.len()), Some(2 * MUCH));
        assert_eq!((wire.pending(), wire.held_capacity()), (&b""[..], 0));
    }
}
