//! What goes out. Frames gather until the connection's task has its turn, and leave in one write.

use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use nuncio_core::net::Io;
use tokio::time::Instant;

use super::super::PREFACE;
use super::super::account::Backlog;
use super::super::block::Block;
use super::super::frame::{self, HEAD, MAX_PAYLOAD, flag, kind, put_number};
use super::super::stream_error::StreamError;
use super::Session;
use super::frames::Frames;
use crate::codec::Buffers;

/// Bodies are laid in until so much waits; heads and replies may come on top.
const GATHER: usize = 64 * 1024;
/// Less room than this is none.
const LEAST_ROOM: usize = 1024;
/// Replies that may wait for a peer that takes nothing, before nothing more is read from it.
const MAX_REPLIES: usize = 16 * 1024;
/// And everything: heads come on top of bodies, and answers that are nothing but a head leave no stream that would count.
const MAX_WAITING: usize = 256 * 1024;

pub(super) struct Output {
    bytes: Vec<u8>,
    written: usize,
    /// Of the bytes, those that only the peer's frames caused.
    replies: usize,
    buffers: Rc<Buffers>,
    /// The connection's task knows that something waits.
    asked: bool,
    /// Streams that wait for room.
    writers: Vec<Waker>,
    /// Since when the socket takes nothing.
    blocked_since: Option<Instant>,
    /// Of the bytes, while that is so.
    frames: Frames,
    sent: u64,
}

impl Output {
    pub(super) fn new(buffers: Rc<Buffers>) -> Self {
        Self {
            bytes: Vec::new(),
            written: 0,
            replies: 0,
            buffers,
            asked: false,
            writers: Vec::new(),
            blocked_since: None,
            frames: Frames::default(),
            sent: 0,
        }
    }

    /// The client's preface, which is no frame; it comes first.
    pub(super) fn put_preface(&mut self) {
        self.put(|out| out.extend_from_slice(PREFACE));
        self.frames.begin_at(PREFACE.len());
    }

    pub(super) fn put<T>(&mut self, write: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        if self.bytes.capacity() == 0 {
            self.bytes = self.buffers.take();
        }
        write(&mut self.bytes)
    }

    /// An answer that the peer can cause as often as it likes.
    pub(super) fn put_reply(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let before = self.bytes.len();
        self.put(write);
        self.replies += self.bytes.len() - before;
    }

    /// What comes may cause more of it, and is not looked at.
    pub(super) fn has_enough(&self) -> bool {
        self.replies > MAX_REPLIES || self.waiting() > MAX_WAITING
    }

    /// The peer takes nothing of a lot.
    pub(super) fn is_stuck(&self) -> bool {
        self.blocked_since.is_some() && self.has_enough()
    }

    /// Whether the connection's task must be woken for what waits.
    pub(super) fn ask(&mut self) -> bool {
        !std::mem::replace(&mut self.asked, true)
    }

    fn waiting(&self) -> usize {
        self.bytes.len() - self.written
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting() == 0
    }

    /// How much of a body may be laid in; if nothing, `cx` is woken when that changes.
    pub(super) fn room(&mut self, cx: &Context<'_>) -> usize {
        let room = GATHER.saturating_sub(self.waiting() + HEAD);
        if room >= LEAST_ROOM {
            return room;
        }
        if !self.writers.iter().any(|w| w.will_wake(cx.waker())) {
            self.writers.push(cx.waker().clone());
        }
        0
    }

    pub(super) fn wake_writers(&mut self) {
        self.writers.drain(..).for_each(Waker::wake);
    }

    pub(super) fn blocked_since(&self) -> Option<Instant> {
        self.blocked_since
    }

    pub(super) fn sent(&self) -> u64 {
        self.sent
    }

    /// Frames that the socket has not taken whole.
    pub(super) fn frames(&self) -> &Frames {
        &self.frames
    }

    /// Ready when everything has left.
    pub(super) fn flush(&mut self, io: &mut Io, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.asked = false;
        if self.bytes.is_empty() {
            return Poll::Ready(Ok(()));
        }
        let flushed = self.write_out(io, cx);
        if flushed.is_pending() {
            self.blocked_since.get_or_insert_with(Instant::now);
            self.frames.follow(&self.bytes, self.written);
        } else {
            self.blocked_since = None;
            self.replies = 0;
            self.written = 0;
            self.frames = Frames::default();
            self.buffers.give(std::mem::take(&mut self.bytes));
        }
        self.wake_writers_if_room();
        flushed
    }

    fn write_out(&mut self, io: &mut Io, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.bytes.len() {
            match ready!(io.poll_write(cx, &self.bytes[self.written..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                n => {
                    self.written += n;
                    self.sent += n as u64;
                    self.blocked_since = None;
                }
            }
        }
        io.poll_flush(cx)
    }

    fn wake_writers_if_room(&mut self) {
        if !self.writers.is_empty() && self.waiting() <= GATHER / 2 {
            let gone = self.frames.cut(self.written);
            self.bytes.drain(..gone);
            self.written -= gone;
            self.wake_writers();
        }
    }
}

impl Session {
    /// A stream's head or trailers: `fields` writes them.
    pub(in crate::codec::http2) fn send_fields(&mut self, slot: usize, end: bool, fields: impl FnOnce(&mut Block<'_>)) {
        let stream = self.streams.get(slot);
        let id = stream.id;
        stream.send_ended |= end;
        let flags = if end { flag::END_STREAM } else { 0 };
        let encoder = &mut self.encoder;
        self.output.put(|out| {
            let start = out.len();
            out.extend_from_slice(&[0; HEAD]);
            encoder.begin(out);
            fields(&mut Block { encoder, out });
            let len = out.len() - start - HEAD;
            if len <= MAX_PAYLOAD {
                let head = frame::head(len, kind::HEADERS, flags | flag::END_HEADERS, id);
                out[start..start + HEAD].copy_from_slice(&head);
            } else {
                split(out, start, flags, id);
            }
        });
        self.kick();
    }

    /// A piece of a body, of which there is [room](Self::allowance) for all; `end`: the last.
    pub(in crate::codec::http2) fn send_data(&mut self, slot: usize, data: &[u8], end: bool) {
        let stream = self.streams.get(slot);
        let id = stream.id;
        stream.send_ended |= end;
        stream.may_go -= data.len() as i64;
        self.flow.may_go -= data.len() as i64;
        let frames = data.len().div_ceil(MAX_PAYLOAD).max(1);
        self.inbound.data_sent += frames as u64;
        self.output.put(|out| {
            out.reserve(data.len() + frames * HEAD);
            for n in 0..frames {
                let piece = &data[n * MAX_PAYLOAD..data.len().min((n + 1) * MAX_PAYLOAD)];
                let flags = if end && n + 1 == frames { flag::END_STREAM } else { 0 };
                out.extend_from_slice(&frame::head(piece.len(), kind::DATA, flags, id));
                out.extend_from_slice(piece);
            }
        });
        self.kick();
    }

    /// So many bytes of a stream's body wait for flow control or for room.
    pub(in crate::codec::http2) fn hold(&mut self, slot: usize, bytes: usize) {
        let before = std::mem::replace(&mut self.streams.get(slot).held, bytes);
        if before != bytes {
            self.held = self.held - before + bytes;
            self.kick();
        }
    }

    /// What waits to be sent.
    pub(in crate::codec::http2) fn backlog(&self) -> Backlog {
        let frames = self.output.frames();
        Backlog { body_bytes: self.held as u64, frames: frames.all(), control_frames: frames.control() }
    }

    /// Ends a stream before its time, if its peer does not know it ended.
    pub(in crate::codec::http2) fn reset_stream(&mut self, slot: usize, code: u32) {
        self.hold(slot, 0);
        let over = self.ended.is_some();
        let stream = self.streams.get(slot);
        if stream.is_over_for_peer() || over {
            return;
        }
        stream.reset = true;
        let id = stream.id;
        self.put_reset(id, code);
        self.kick();
    }

    /// RST_STREAM, for a stream that may not have been let in.
    pub(super) fn put_reset(&mut self, id: u32, code: u32) {
        self.counts.tx_resets += 1;
        self.output.put_reply(|out| put_number(out, kind::RST_STREAM, id, code));
    }

    /// A stream ends for what its peer did.
    pub(super) fn fail_stream(&mut self, slot: usize, code: u32, details: &'static str) {
        self.reset_stream(slot, code);
        self.streams.get(slot).fail(StreamError::Protocol(details));
    }

    pub(in crate::codec::http2) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.output.flush(&mut self.io, cx)
    }

    pub(in crate::codec::http2) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.poll_shutdown(cx)
    }

    pub(in crate::codec::http2) fn poll_drop_input(
        &mut self,
        cx: &mut Context<'_>,
        scratch: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        self.io.poll_read(cx, scratch)
    }
}

/// A block that is larger than a frame may be: the rest goes in CONTINUATION frames.
#[cold]
fn split(out: &mut Vec<u8>, start: usize, flags: u8, id: u32) {
    let block = out.split_off(start + HEAD);
    out.truncate(start);
    let pieces = block.len().div_ceil(MAX_PAYLOAD);
    for (n, piece) in block.chunks(MAX_PAYLOAD).enumerate() {
        let last = if n + 1 == pieces { flag::END_HEADERS } else { 0 };
        let (kind, flags) = if n == 0 { (kind::HEADERS, flags | last) } else { (kind::CONTINUATION, last) };
        out.extend_from_slice(&frame::head(piece.len(), kind, flags, id));
        out.extend_from_slice(piece);
    }
}
