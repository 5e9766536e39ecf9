//! The frame heads of one direction of a connection, found in the bytes as they pass.

/// Of RFC 9113 §6.
pub(super) mod kind {
    pub(in crate::codec::http2) const DATA: u8 = 0;
    pub(in crate::codec::http2) const HEADERS: u8 = 1;
    pub(in crate::codec::http2) const PRIORITY: u8 = 2;
    pub(in crate::codec::http2) const RST_STREAM: u8 = 3;
    pub(in crate::codec::http2) const SETTINGS: u8 = 4;
    pub(in crate::codec::http2) const PING: u8 = 6;
    pub(in crate::codec::http2) const GOAWAY: u8 = 7;
    pub(in crate::codec::http2) const WINDOW_UPDATE: u8 = 8;
    pub(in crate::codec::http2) const CONTINUATION: u8 = 9;
}

pub(super) const END_STREAM: u8 = 1;
/// Of SETTINGS and PING.
pub(super) const ACK: u8 = 1;
pub(super) const END_HEADERS: u8 = 4;

const HEAD: usize = 9;

/// A frame without its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) len: u32,
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) stream: u32,
    /// Of RST_STREAM and GOAWAY.
    pub(super) code: u32,
}

impl Frame {
    pub(super) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// Where in the bytes we are.
#[derive(Debug)]
pub(super) struct Scan {
    /// Bytes before the first frame that are still to come: the client's preface.
    preface: u8,
    /// The head that is being read, and behind it the part of a payload that is looked at.
    seen: [u8; HEAD + 8],
    have: u8,
    /// How many of `seen` are wanted before the frame is told: more than a head for two kinds.
    want: u8,
    /// Of the payload, to be skipped.
    skip: u32,
}

impl Scan {
    pub(super) fn new(preface: u8) -> Self {
        Self { preface, seen: [0; HEAD + 8], have: 0, want: HEAD as u8, skip: 0 }
    }

    /// Takes the next bytes; tells each frame as soon as enough of it is there, and how many bytes lie behind that.
    pub(super) fn feed(&mut self, mut bytes: &[u8], mut on_frame: impl FnMut(Frame, usize)) {
        let preface = bytes.len().min(usize::from(self.preface));
        self.preface -= preface as u8;
        bytes = &bytes[preface..];
        while !bytes.is_empty() {
            if self.skip > 0 {
                let n = bytes.len().min(self.skip as usize);
                self.skip -= n as u32;
                bytes = &bytes[n..];
                continue;
            }
            let (have, want) = (usize::from(self.have), usize::from(self.want));
            let n = bytes.len().min(want - have);
            self.seen[have..have + n].copy_from_slice(&bytes[..n]);
            self.have += n as u8;
            bytes = &bytes[n..];
            if have + n == want {
                let behind = bytes.len();
                self.complete(|frame| on_frame(frame, behind));
            }
        }
    }

    fn complete(&mut self, on_frame: impl FnOnce(Frame)) {
        let s = &self.seen;
        let frame = Frame {
            len: u32::from_be_bytes([0, s[0], s[1], s[2]]),
            kind: s[3],
            flags: s[4],
            stream: u32::from_be_bytes([s[5] & 0x7f, s[6], s[7], s[8]]),
            code: 0,
        };
        let code_at = match frame.kind {
            kind::RST_STREAM if frame.len >= 4 => HEAD,
            kind::GOAWAY if frame.len >= 8 => HEAD + 4,
            _ => 0,
        };
        if code_at > 0 && usize::from(self.want) == HEAD {
            self.want = code_at as u8 + 4;
            return;
        }
        let code = match code_at {
            0 => 0,
            at => u32::from_be_bytes([s[at], s[at + 1], s[at + 2], s[at + 3]]),
        };
        self.skip = frame.len - u32::from(self.want - HEAD as u8);
        self.have = 0;
        self.want = HEAD as u8;
        on_frame(Frame { code, ..frame });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_found_wherever_the_reads_cut_them() {
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        bytes.extend([0, 0, 3, kind::DATA, END_STREAM, 0, 0, 0, 5, b'a', b'b', b'c']);
        bytes.extend([0, 0, 4, kind::RST_STREAM, 0, 0x80, 0, 0, 7, 0, 0, 0, 8]);
        bytes.extend([0, 0, 10, kind::GOAWAY, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 11, b'x', b'y']);
        bytes.extend([0, 0, 0, kind::DATA, 0, 0, 0, 0, 9]);
        for step in [1, 2, 3, 7, 9, 13, bytes.len()] {
            let (mut scan, mut found) = (Scan::new(24), Vec::new());
            bytes.chunks(step).for_each(|piece| scan.feed(piece, |frame, _| found.push(frame)));
            let told: Vec<_> = found.iter().map(|f| (f.kind, f.len, f.stream, f.code)).collect();
            assert_eq!(told, [(0, 3, 5, 0), (3, 4, 7, 8), (7, 10, 0, 11), (0, 0, 9, 0)], "in steps of {step}");
            assert!(found[0].has(END_STREAM));
        }
    }
}
