//! One direction of a TCP session: bytes from one connection to the other, and the end after them.
//!
//! A read goes into the worker's scratch buffer and is written at once; what the other side does
//! not take is kept, and nothing more is read until it is gone. So a direction never holds more
//! than one scratch buffer, and an idle one holds nothing. When reads fill the buffer again and
//! again the direction changes to splice(2), and back when they do not.

use std::io;
use std::task::{Context, Poll};

use nuncio_core::net::Io;

use crate::codec::Buffers;
use crate::net::splice::{self, Pipe};
use crate::turn::go_on_later;

/// Full reads in a row that mean bulk.
const BULK_AFTER: u8 = 2;
/// Splices in a row that a plain read would have done as well.
const COPY_AFTER: u8 = 16;
/// What such a splice moves at most.
const SMALL: usize = 16 * 1024;
/// Rounds before other connections of the worker have their turn.
const ROUNDS: usize = 8;

/// One direction.
#[derive(Default)]
pub struct Direction {
    /// Read and not yet taken by the other side, from `written` on.
    pending: Vec<u8>,
    written: usize,
    /// The pipe that holds bytes, or will in the next round.
    pipe: Option<Pipe>,
    bulk: bool,
    /// Full reads while copying, small ones while splicing.
    streak: u8,
    end: End,
    blocked: bool,
}

#[derive(Default, PartialEq, Eq, Clone, Copy)]
enum End {
    /// The source may still send.
    #[default]
    Open,
    /// It has sent its FIN.
    Read,
    /// And the other side has been told.
    Passed,
}

/// What the worker lends.
pub struct Lent<'a> {
    pub buffers: &'a Buffers,
    /// Most that may be held of one direction.
    pub limit: usize,
}

/// What one call moved.
#[derive(Default, Debug, PartialEq, Eq)]
pub struct Moved {
    pub read: u64,
    pub written: u64,
    /// Reading stopped, or went on again, because of the other side.
    pub paused: bool,
    pub resumed: bool,
}

/// Which connection failed.
#[derive(Debug)]
pub enum Failed {
    Reading(io::Error),
    Writing(io::Error),
}

impl Direction {
    /// With bytes that were read before.
    pub fn with(pending: Vec<u8>) -> Self {
        Self { pending, ..Self::default() }
    }

    /// The end was passed on: nothing will move any more.
    pub fn is_done(&self) -> bool {
        self.end == End::Passed
    }

    /// Bytes that are held here.
    pub fn held(&self) -> usize {
        self.pending.len() - self.written + self.pipe.as_ref().map_or(0, Pipe::filled)
    }

    /// Moves what can be moved now. What was moved counts even if it failed after that.
    pub fn poll(
        &mut self,
        from: &mut Io,
        to: &mut Io,
        cx: &mut Context<'_>,
        lent: &Lent<'_>,
        moved: &mut Moved,
    ) -> Result<(), Failed> {
        for _ in 0..ROUNDS {
            let flushed = self.flush(to, cx, moved)?;
            self.note_blocked(!flushed, moved);
            if !flushed || self.end == End::Passed {
                return Ok(());
            }
            self.return_buffer(lent);
            if self.end == End::Read {
                if let Poll::Ready(done) = to.poll_shutdown(cx) {
                    // A peer that is gone needs no FIN; its own direction tells of it.
                    drop(done);
                    self.end = End::Passed;
                }
                return Ok(());
            }
            let more = if self.bulk && splice::possible(from, to) {
                self.splice(from, cx, lent, moved)?
            } else {
                self.copy(from, to, cx, lent, moved)?
            };
            if !more {
                return Ok(());
            }
        }
        go_on_later(cx);
        Ok(())
    }

    /// `false`: the other side takes no more for now.
    fn flush(&mut self, to: &mut Io, cx: &mut Context<'_>, moved: &mut Moved) -> Result<bool, Failed> {
        while self.written < self.pending.len() {
            match to.poll_write(cx, &self.pending[self.written..]) {
                Poll::Ready(Ok(0)) => return Err(Failed::Writing(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(n)) => {
                    self.written += n;
                    moved.written += n as u64;
                }
                Poll::Ready(Err(e)) => return Err(Failed::Writing(e)),
                Poll::Pending => return Ok(false),
            }
        }
        if let Some(pipe) = &mut self.pipe {
            while pipe.filled() > 0 {
                match pipe.poll_drain(to, cx) {
                    Poll::Ready(Ok(0)) => return Err(Failed::Writing(io::ErrorKind::WriteZero.into())),
                    Poll::Ready(Ok(n)) => moved.written += n as u64,
                    Poll::Ready(Err(e)) => return Err(Failed::Writing(e)),
                    Poll::Pending => return Ok(false),
                }
            }
        }
        // Only what is layered above a socket holds bytes back.
        match to.poll_flush(cx) {
            Poll::Ready(Ok(())) => Ok(true),
            Poll::Ready(Err(e)) => Err(Failed::Writing(e)),
            Poll::Pending => Ok(false),
        }
    }

    /// `true`: there may be more at once.
    fn copy(
        &mut self,
        from: &mut Io,
        to: &mut Io,
        cx: &mut Context<'_>,
        lent: &Lent<'_>,
        moved: &mut Moved,
    ) -> Result<bool, Failed> {
        let mut scratch = lent.buffers.take_scratch();
        let room = lent.limit.clamp(1, scratch.len());
        let result = match from.poll_read(cx, &mut scratch[..room]) {
            Poll::Pending => Ok(false),
            Poll::Ready(Err(e)) => Err(Failed::Reading(e)),
            Poll::Ready(Ok(0)) => {
                self.end = End::Read;
                Ok(true)
            }
            Poll::Ready(Ok(n)) => {
                moved.read += n as u64;
                self.streak = if n == room { self.streak.saturating_add(1) } else { 0 };
                if self.streak >= BULK_AFTER && lent.limit >= splice::CAPACITY {
                    (self.bulk, self.streak) = (true, 0);
                }
                self.write_through(&scratch[..n], to, cx, lent, moved)
            }
        };
        lent.buffers.give_scratch(scratch);
        result
    }

    fn write_through(
        &mut self,
        bytes: &[u8],
        to: &mut Io,
        cx: &mut Context<'_>,
        lent: &Lent<'_>,
        moved: &mut Moved,
    ) -> Result<bool, Failed> {
        let taken = match to.poll_write(cx, bytes) {
            Poll::Ready(Ok(n)) => n,
            Poll::Ready(Err(e)) => return Err(Failed::Writing(e)),
            Poll::Pending => 0,
        };
        moved.written += taken as u64;
        if taken < bytes.len() {
            self.pending = lent.buffers.take();
            self.pending.extend_from_slice(&bytes[taken..]);
        }
        Ok(true)
    }

    fn splice(
        &mut self,
        from: &mut Io,
        cx: &mut Context<'_>,
        lent: &Lent<'_>,
        moved: &mut Moved,
    ) -> Result<bool, Failed> {
        let pipe = match self.pipe.take().map_or_else(|| lent.buffers.pipes.take(), Ok) {
            Ok(pipe) => self.pipe.insert(pipe),
            // No descriptors left: copying needs none.
            Err(_) => {
                self.bulk = false;
                return Ok(true);
            }
        };
        let result = match pipe.poll_fill(from, cx, splice::CAPACITY) {
            Poll::Ready(Ok(0)) => {
                self.end = End::Read;
                Ok(true)
            }
            Poll::Ready(Ok(n)) => {
                moved.read += n as u64;
                self.streak = if n <= SMALL { self.streak.saturating_add(1) } else { 0 };
                return Ok(true);
            }
            Poll::Ready(Err(e)) => Err(Failed::Reading(e)),
            Poll::Pending => {
                // Bulk that came in small pieces is none.
                if self.streak >= COPY_AFTER {
                    (self.bulk, self.streak) = (false, 0);
                }
                Ok(false)
            }
        };
        // It is empty, and nobody knows for how long.
        if let Some(pipe) = self.pipe.take() {
            lent.buffers.pipes.give(pipe);
        }
        result
    }

    fn return_buffer(&mut self, lent: &Lent<'_>) {
        if self.pending.capacity() > 0 {
            lent.buffers.give(std::mem::take(&mut self.pending));
            self.written = 0;
        }
    }

    fn note_blocked(&mut self, blocked: bool, moved: &mut Moved) {
        moved.paused |= blocked && !self.blocked;
        moved.resumed |= !blocked && self.blocked;
        self.blocked = blocked;
    }
}

#[cfg(test)]
mod tests;
