//! Frames as bytes (RFC 9113 §4 and §6): their heads, and those that are small enough to be written whole.

/// Kinds of frames (§6).
pub(super) mod kind {
    pub(in crate::codec::http2) const DATA: u8 = 0;
    pub(in crate::codec::http2) const HEADERS: u8 = 1;
    pub(in crate::codec::http2) const PRIORITY: u8 = 2;
    pub(in crate::codec::http2) const RST_STREAM: u8 = 3;
    pub(in crate::codec::http2) const SETTINGS: u8 = 4;
    pub(in crate::codec::http2) const PUSH_PROMISE: u8 = 5;
    pub(in crate::codec::http2) const PING: u8 = 6;
    pub(in crate::codec::http2) const GOAWAY: u8 = 7;
    pub(in crate::codec::http2) const WINDOW_UPDATE: u8 = 8;
    pub(in crate::codec::http2) const CONTINUATION: u8 = 9;
}

pub(super) mod flag {
    pub(in crate::codec::http2) const END_STREAM: u8 = 1;
    /// Of SETTINGS and PING.
    pub(in crate::codec::http2) const ACK: u8 = 1;
    pub(in crate::codec::http2) const END_HEADERS: u8 = 4;
    pub(in crate::codec::http2) const PADDED: u8 = 8;
    pub(in crate::codec::http2) const PRIORITY: u8 = 0x20;
}

/// Error codes (§7).
pub(super) mod code {
    pub(in crate::codec::http2) const NO_ERROR: u32 = 0;
    pub(in crate::codec::http2) const PROTOCOL_ERROR: u32 = 1;
    pub(in crate::codec::http2) const INTERNAL_ERROR: u32 = 2;
    pub(in crate::codec::http2) const FLOW_CONTROL_ERROR: u32 = 3;
    pub(in crate::codec::http2) const STREAM_CLOSED: u32 = 5;
    pub(in crate::codec::http2) const FRAME_SIZE_ERROR: u32 = 6;
    pub(in crate::codec::http2) const REFUSED_STREAM: u32 = 7;
    pub(in crate::codec::http2) const CANCEL: u32 = 8;
    pub(in crate::codec::http2) const COMPRESSION_ERROR: u32 = 9;
    pub(in crate::codec::http2) const ENHANCE_YOUR_CALM: u32 = 11;
}

/// Settings (§6.5.2, RFC 8441 §3).
pub(super) mod setting {
    pub(in crate::codec::http2) const HEADER_TABLE_SIZE: u16 = 1;
    pub(in crate::codec::http2) const ENABLE_PUSH: u16 = 2;
    pub(in crate::codec::http2) const MAX_CONCURRENT_STREAMS: u16 = 3;
    pub(in crate::codec::http2) const INITIAL_WINDOW_SIZE: u16 = 4;
    pub(in crate::codec::http2) const MAX_FRAME_SIZE: u16 = 5;
    pub(in crate::codec::http2) const MAX_HEADER_LIST_SIZE: u16 = 6;
    pub(in crate::codec::http2) const ENABLE_CONNECT_PROTOCOL: u16 = 8;
}

/// Bytes of a frame's head.
pub(super) const HEAD: usize = 9;
/// The largest payload that everybody must take, and the largest that we take and send.
pub(super) const MAX_PAYLOAD: usize = 16 * 1024;
/// What both windows begin with, and what no window may exceed (§6.9).
pub(super) const FIRST_WINDOW: u32 = 65_535;
pub(super) const MAX_WINDOW: i64 = 0x7fff_ffff;
/// The highest number of a stream.
pub(super) const MAX_STREAM: u32 = 0x7fff_ffff;

/// A frame without its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) len: u32,
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) stream: u32,
}

impl Frame {
    /// From the first [`HEAD`] bytes, if they are there.
    #[inline]
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let [a, b, c, kind, flags, stream @ ..] = bytes.first_chunk::<HEAD>()?;
        let stream = u32::from_be_bytes(*stream) & MAX_STREAM;
        Some(Self { len: u32::from_be_bytes([0, *a, *b, *c]), kind: *kind, flags: *flags, stream })
    }

    #[inline]
    pub(super) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// Four bytes of a payload, which is long enough.
#[inline]
pub(super) fn number(payload: &[u8]) -> u32 {
    payload.first_chunk::<4>().map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

#[inline]
pub(super) fn head(len: usize, kind: u8, flags: u8, stream: u32) -> [u8; HEAD] {
    let [_, a, b, c] = (len as u32).to_be_bytes();
    let [s, t, u, v] = stream.to_be_bytes();
    [a, b, c, kind, flags, s, t, u, v]
}

pub(super) fn put_number(out: &mut Vec<u8>, kind: u8, stream: u32, value: u32) {
    out.extend_from_slice(&head(4, kind, 0, stream));
    out.extend_from_slice(&value.to_be_bytes());
}

pub(super) fn put_ping(out: &mut Vec<u8>, flags: u8, opaque: &[u8]) {
    out.extend_from_slice(&head(8, kind::PING, flags, 0));
    out.extend_from_slice(opaque);
}

pub(super) fn put_goaway(out: &mut Vec<u8>, last: u32, code: u32) {
    out.extend_from_slice(&head(8, kind::GOAWAY, 0, 0));
    out.extend_from_slice(&last.to_be_bytes());
    out.extend_from_slice(&code.to_be_bytes());
}

pub(super) fn put_settings(out: &mut Vec<u8>, settings: &[(u16, u32)]) {
    out.extend_from_slice(&head(settings.len() * 6, kind::SETTINGS, 0, 0));
    for (id, value) in settings {
        out.extend_from_slice(&id.to_be_bytes());
        out.extend_from_slice(&value.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_read_as_it_was_written_and_without_its_reserved_bit() {
        let mut bytes = head(70_000, kind::HEADERS, flag::END_HEADERS, 77);
        assert_eq!(bytes, [1, 0x11, 0x70, 1, 4, 0, 0, 0, 77]);
        bytes[5] = 0x80;
        let frame = Frame::parse(&bytes).unwrap();
        assert_eq!((frame.len, frame.kind, frame.stream), (70_000, kind::HEADERS, 77));
        assert!(frame.has(flag::END_HEADERS) && !frame.has(flag::END_STREAM));
        assert_eq!(Frame::parse(&bytes[..8]), None);
    }
}
