//! How the other end of a stream, or of its connection, ended it.

use std::fmt;

use h2::Reason;

use super::shared::{Ended, Shared};

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
    pub(super) fn of(error: &h2::Error, shared: &Shared) -> Self {
        if error.is_io() {
            // Also what the library calls the end that we gave the connection.
            return match shared.ended() {
                Some(Ended::Protocol(details)) => Self::Protocol(details),
                _ => Self::Closed,
            };
        }
        if error.is_remote() {
            return match error.reason() {
                _ if error.is_go_away() => Self::Refused,
                Some(reason) => Self::of_reset(reason, shared),
                None => Self::Reset,
            };
        }
        match shared.ended() {
            Some(Ended::Protocol(details)) => Self::Protocol(details),
            Some(Ended::Closed) => Self::Closed,
            None if error.is_library() => Self::Protocol("http2.protocol_error"),
            None => Self::Closed,
        }
    }

    /// The library tells the end of a connection in the same way, so what is known of that goes first.
    pub(super) fn of_reset(reason: Reason, shared: &Shared) -> Self {
        match shared.ended() {
            Some(Ended::Protocol(details)) => return Self::Protocol(details),
            Some(Ended::Closed) => return Self::Closed,
            None => {}
        }
        match reason {
            Reason::REFUSED_STREAM => Self::Refused,
            Reason::NO_ERROR => Self::Satisfied,
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
