//! How the other end of a stream, or of its connection, ended it.

use std::fmt;

use super::frame::code;

/// Why a stream gives nothing more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamError {
    /// RST_STREAM.
    Reset,
    /// RST_STREAM with NO_ERROR: nothing more is wanted of us.
    Satisfied,
    /// The peer did nothing with it (REFUSED_STREAM, or beyond a GOAWAY): it may be repeated.
    Refused,
    /// The peer broke the protocol; the text is for debug logs.
    Protocol(&'static str),
    /// The connection ended under the stream.
    Closed,
}

impl StreamError {
    pub(super) fn of_reset(reason: u32) -> Self {
        match reason {
            code::REFUSED_STREAM => Self::Refused,
            code::NO_ERROR => Self::Satisfied,
            _ => Self::Reset,
        }
    }
}

impl fmt::Display for StreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reset | Self::Satisfied => "stream reset",
            Self::Refused => "stream refused",
            Self::Protocol(what) => return write!(f, "protocol error: {what}"),
            Self::Closed => "connection closed",
        })
    }
}
