//! What can be wrong with a peer's bytes, in the words that logs and answers use.

use std::fmt;
use std::io;

use crate::codec::GoneReason;

/// A request that is answered by the codec's rules and not served. The connection closes after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestError {
    pub status: u16,
    pub body: &'static str,
    /// `%RESPONSE_CODE_DETAILS%`.
    pub details: &'static str,
    /// The codec's own refusal: flag DPE and `downstream_cx_protocol_error`. Otherwise one that
    /// Envoy's connection manager makes, with the head known to the log.
    pub protocol_error: bool,
}

impl RequestError {
    pub(super) const MALFORMED: Self = Self::bad("http1.codec_error");
    pub(super) const CHARACTERS: Self = Self::bad("http1.invalid_characters");
    pub(super) const URL: Self = Self::bad("http1.invalid_url");
    pub(super) const SCHEME: Self = Self::bad("http1.invalid_scheme");
    pub(super) const AUTHORITY: Self = Self::bad("http.invalid_authority");
    pub(super) const CONNECTION: Self = Self::bad("http1.connection_header_rejected");
    pub(super) const BODY_DISALLOWED: Self = Self::bad("http1.body_disallowed");
    pub(super) const LENGTH_AND_CHUNKED: Self = Self::bad("http1.content_length_and_chunked_not_allowed");
    pub(super) const UNDERSCORE: Self = Self::bad("http1.unexpected_underscore");
    pub(super) const TRANSFER_ENCODING: Self =
        Self { status: 501, body: "Not Implemented", details: "http1.invalid_transfer_encoding", protocol_error: true };
    pub(super) const VERSION: Self =
        Self { status: 426, body: "Upgrade Required", details: "low_version", protocol_error: true };
    pub(super) const TOO_LARGE: Self = Self::too_large("http1.headers_too_large");
    pub(in crate::codec) const TOO_MANY: Self = Self::too_large("http1.too_many_headers");
    pub(super) const NO_HOST: Self =
        Self { status: 400, body: "", details: "missing_host_header", protocol_error: false };

    const fn bad(details: &'static str) -> Self {
        Self { status: 400, body: "Bad Request", details, protocol_error: true }
    }

    const fn too_large(details: &'static str) -> Self {
        Self { status: 431, body: "Request Header Fields Too Large", details, protocol_error: true }
    }
}

/// Why a request body ended before its end.
#[derive(Debug)]
pub enum BodyError {
    /// Answer it if no response has begun; close in any case, and abort what went upstream.
    Refused(RequestError),
    Gone(GoneReason),
}

/// Why an upstream connection is of no more use to its stream.
#[derive(Debug)]
pub enum UpstreamError {
    /// Flag UPE; the text is for debug logs.
    Protocol(&'static str),
    /// It closed before the response was complete.
    Closed,
    Reset(io::Error),
}

impl fmt::Display for UpstreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Protocol(what) => write!(f, "protocol error: {what}"),
            Self::Closed => f.write_str("connection closed"),
            Self::Reset(e) => write!(f, "connection reset: {e}"),
        }
    }
}

/// Why a block of fields is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FieldsError {
    Malformed,
    Characters,
    TooLarge,
    TooMany,
}

impl From<FieldsError> for RequestError {
    fn from(e: FieldsError) -> Self {
        match e {
            FieldsError::Malformed => Self::MALFORMED,
            FieldsError::Characters => Self::CHARACTERS,
            FieldsError::TooLarge => Self::TOO_LARGE,
            FieldsError::TooMany => Self::TOO_MANY,
        }
    }
}

impl From<FieldsError> for UpstreamError {
    fn from(e: FieldsError) -> Self {
        Self::Protocol(match e {
            FieldsError::Malformed => "malformed header",
            FieldsError::Characters => "invalid characters in a header",
            FieldsError::TooLarge => "headers too large",
            FieldsError::TooMany => "too many headers",
        })
    }
}
