//! Request and response heads.

use super::{Framing, HeaderMap};

/// What the peer speaks. Prints as Envoy's `%PROTOCOL%`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Version {
    Http10,
    #[default]
    Http11,
    Http2,
}

impl Version {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http10 => "HTTP/1.0",
            Self::Http11 => "HTTP/1.1",
            Self::Http2 => "HTTP/2",
        }
    }
}

/// How large a head may be, pseudo headers included: what came was no larger, and what filters make of it need not be
/// accepted either. Without limits unless whoever received the head says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadLimits {
    pub fields: usize,
    /// Of names and values.
    pub bytes: usize,
}

impl HeadLimits {
    fn hold(self, fields: usize, bytes: usize) -> bool {
        fields <= self.fields && bytes <= self.bytes
    }
}

impl Default for HeadLimits {
    fn default() -> Self {
        Self { fields: usize::MAX, bytes: usize::MAX }
    }
}

/// The head of a request: pseudo headers and fields in one map.
#[derive(Debug, Clone, Default)]
pub struct RequestHead {
    pub headers: HeaderMap,
    pub limits: HeadLimits,
    pub version: Version,
    /// How the body came; the codec that writes it upstream decides its own framing from this.
    pub framing: Framing,
}

impl RequestHead {
    pub fn method(&self) -> &[u8] {
        self.headers.get(":method").unwrap_or_default()
    }

    /// Path with query; `None` only for CONNECT.
    pub fn path(&self) -> Option<&[u8]> {
        self.headers.get(":path")
    }

    pub fn authority(&self) -> Option<&[u8]> {
        self.headers.get(":authority")
    }

    pub fn scheme(&self) -> &[u8] {
        self.headers.get(":scheme").unwrap_or(b"http")
    }

    /// The path up to `?` or `#`.
    pub fn path_without_query(&self) -> &[u8] {
        let path = self.path().unwrap_or_default();
        match memchr::memchr2(b'?', b'#', path) {
            Some(i) => &path[..i],
            None => path,
        }
    }

    /// `application/grpc` or `application/grpc+…`.
    pub fn is_grpc(&self) -> bool {
        self.headers
            .get("content-type")
            .and_then(|v| v.strip_prefix(b"application/grpc"))
            .is_some_and(|rest| rest.is_empty() || rest[0] == b'+')
    }

    pub fn is_within_limits(&self) -> bool {
        self.limits.hold(self.headers.len(), self.headers.byte_size())
    }

    pub fn is_head(&self) -> bool {
        self.method() == b"HEAD"
    }

    /// Emptied for the next stream.
    pub fn clear(&mut self) {
        self.headers.clear();
        self.limits = HeadLimits::default();
        self.version = Version::default();
        self.framing = Framing::default();
    }
}

/// The head of a response.
#[derive(Debug, Clone, Default)]
pub struct ResponseHead {
    pub status: u16,
    pub headers: HeaderMap,
    pub limits: HeadLimits,
    pub version: Version,
    pub framing: Framing,
}

impl ResponseHead {
    pub fn new(status: u16) -> Self {
        Self { status, ..Self::default() }
    }

    /// An interim response (100-199) other than a 101 that switches protocols.
    pub fn is_interim(&self) -> bool {
        (100..200).contains(&self.status) && self.status != 101
    }

    pub fn is_grpc(&self) -> bool {
        self.headers
            .get("content-type")
            .and_then(|v| v.strip_prefix(b"application/grpc"))
            .is_some_and(|rest| rest.is_empty() || rest[0] == b'+')
    }

    pub fn is_within_limits(&self) -> bool {
        const STATUS: usize = ":status".len() + 3;
        self.limits.hold(self.headers.len() + 1, self.headers.byte_size() + STATUS)
    }

    pub fn clear(&mut self) {
        self.status = 0;
        self.headers.clear();
        self.limits = HeadLimits::default();
        self.version = Version::default();
        self.framing = Framing::default();
    }
}
