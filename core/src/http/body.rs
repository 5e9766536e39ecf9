//! Bodies: how they end, and the pieces they pass in.

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

/// Body bytes: lent from the worker's scratch buffer (HTTP/1, no allocation) or owned (HTTP/2, or
/// parked while a filter waits).
#[derive(Debug)]
pub enum Chunk<'a> {
    Lent(&'a [u8]),
    Own(Bytes),
}

impl Chunk<'_> {
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Self::Lent(b) => b,
            Self::Own(b) => b,
        }
    }

    pub fn len(&self) -> usize {
        self.as_slice().len()
    }

    pub fn is_empty(&self) -> bool {
        self.as_slice().is_empty()
    }

    /// Owned bytes, of which `self` keeps its own: a copy only if they were lent.
    pub fn share(&self) -> Bytes {
        match self {
            Self::Lent(b) => Bytes::copy_from_slice(b),
            Self::Own(b) => b.clone(),
        }
    }

    /// Owned bytes: a copy if they were lent.
    pub fn into_bytes(self) -> Bytes {
        match self {
            Self::Lent(b) => Bytes::copy_from_slice(b),
            Self::Own(b) => b,
        }
    }
}
