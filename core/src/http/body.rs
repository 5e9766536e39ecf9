//! Bodies: how they end, and the pieces they pass in.

use std::ops::{Deref, DerefMut, Range};

use bytes::Bytes;

/// How the end of a body is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Framing {
    /// There is no body: the head ends the message.
    #[default]
    None,
    Length(u64),
    /// Chunked on HTTP/1, END_STREAM on HTTP/2.
    Streamed,
    /// Until the connection closes: HTTP/1 responses only.
    UntilClose,
}

impl Framing {
    pub fn is_none(self) -> bool {
        matches!(self, Self::None)
    }
}

/// Body bytes: lent from the worker's scratch buffer (HTTP/1, no allocation), in the buffer that they were read into
/// together with their head, or owned (HTTP/2, or parked while a filter waits).
#[derive(Debug)]
pub enum Chunk<'a> {
    Lent(&'a [u8]),
    Held(Held),
    Own(Bytes),
}

/// A part of a read buffer, which goes back to where it came from when this is dropped. For the moment: whoever keeps
/// the bytes copies them.
#[derive(Debug)]
pub struct Held {
    buffer: Box<[u8]>,
    start: u32,
    end: u32,
    give_back: fn(Box<[u8]>),
}

impl Held {
    /// All of `buffer`, which `give_back` takes in the end.
    pub fn new(buffer: Box<[u8]>, give_back: fn(Box<[u8]>)) -> Self {
        Self { start: 0, end: buffer.len() as u32, buffer, give_back }
    }

    /// Only this part of what it was.
    pub fn narrow(&mut self, part: Range<usize>) {
        let part = part.start.min(self.len())..part.end.min(self.len());
        (self.start, self.end) = (self.start + part.start as u32, self.start + part.end.max(part.start) as u32);
    }

    /// Puts `bytes` before what is left, if they fit there.
    pub fn put_back(&mut self, bytes: &[u8]) -> bool {
        let Some(start) = (self.start as usize).checked_sub(bytes.len()) else { return false };
        self.buffer[start..self.start as usize].copy_from_slice(bytes);
        self.start = start as u32;
        true
    }

    /// Bytes of memory.
    pub fn capacity(&self) -> usize {
        self.buffer.len()
    }
}

impl Deref for Held {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer[self.start as usize..self.end as usize]
    }
}

impl DerefMut for Held {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[self.start as usize..self.end as usize]
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        (self.give_back)(std::mem::take(&mut self.buffer));
    }
}

impl Chunk<'_> {
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Self::Lent(b) => b,
            Self::Held(b) => b,
            Self::Own(b) => b,
        }
    }

    pub fn len(&self) -> usize {
        self.as_slice().len()
    }

    pub fn is_empty(&self) -> bool {
        self.as_slice().is_empty()
    }

    /// Owned bytes, of which `self` keeps its own: a copy unless they are owned already.
    pub fn share(&self) -> Bytes {
        match self {
            Self::Own(b) => b.clone(),
            other => Bytes::copy_from_slice(other.as_slice()),
        }
    }

    /// Owned bytes: a copy unless they are owned already.
    pub fn into_bytes(self) -> Bytes {
        match self {
            Self::Own(b) => b,
            other => Bytes::copy_from_slice(other.as_slice()),
        }
    }
}
