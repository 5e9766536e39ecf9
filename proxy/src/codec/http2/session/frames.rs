//! Which frames lie in a buffer that is being written. A socket that takes everything at once is never asked, so that
//! only those that wait are looked at, and each of them twice.

use super::super::frame::{Frame, HEAD, flag, kind};

/// Frames from `front` on, up to `end`; those behind have not been looked at.
#[derive(Debug, Default)]
pub(super) struct Frames {
    /// Where the first frame begins that was not written whole.
    front: usize,
    end: usize,
    all: u64,
    control: u64,
}

impl Frames {
    /// What is before `at` is no frame.
    pub(super) fn begin_at(&mut self, at: usize) {
        (self.front, self.end) = (at, at);
    }

    /// So much of `bytes`, all of them whole frames, was written.
    pub(super) fn follow(&mut self, bytes: &[u8], written: usize) {
        while let Some(frame) = Frame::parse(&bytes[self.end..]) {
            self.all += 1;
            self.control += u64::from(is_control(&frame));
            self.end += HEAD + frame.len as usize;
        }
        while let Some(frame) = Frame::parse(&bytes[self.front..]) {
            let next = self.front + HEAD + frame.len as usize;
            if next > written {
                break;
            }
            self.front = next;
            self.all -= 1;
            self.control -= u64::from(is_control(&frame));
        }
    }

    /// Cuts off what was written whole: how much of the buffer goes.
    pub(super) fn cut(&mut self, written: usize) -> usize {
        let gone = self.front.min(written);
        self.front -= gone;
        self.end -= gone;
        gone
    }

    pub(super) fn all(&self) -> u64 {
        self.all
    }

    pub(super) fn control(&self) -> u64 {
        self.control
    }
}

/// What Envoy counts as control frames: answers that the peer can provoke.
fn is_control(frame: &Frame) -> bool {
    match frame.kind {
        kind::SETTINGS | kind::PING => frame.has(flag::ACK),
        kind::RST_STREAM => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::frame::{code, put_number, put_ping, put_settings};
    use super::*;

    fn numbers(frames: &Frames) -> (u64, u64) {
        (frames.all(), frames.control())
    }

    #[test]
    fn a_frame_counts_until_its_last_byte_is_written() {
        let mut bytes = b"preface".to_vec();
        let mut frames = Frames::default();
        frames.begin_at(bytes.len());
        put_settings(&mut bytes, &[(3, 100)]);
        put_ping(&mut bytes, flag::ACK, b"12345678");
        put_number(&mut bytes, kind::RST_STREAM, 1, code::CANCEL);
        frames.follow(&bytes, 0);
        assert_eq!(numbers(&frames), (3, 2));
        assert_eq!(frames.cut(3), 3, "a part of the preface");
        bytes.drain(..3);
        frames.follow(&bytes, 4 + 15);
        assert_eq!(numbers(&frames), (2, 2));
        frames.follow(&bytes, 4 + 15 + 16);
        assert_eq!(numbers(&frames), (2, 2), "the ping lacks a byte");
        assert_eq!(frames.cut(4 + 15 + 16), 4 + 15, "it stays whole");
        bytes.drain(..4 + 15);
        put_ping(&mut bytes, 0, b"12345678");
        frames.follow(&bytes, 17);
        assert_eq!(numbers(&frames), (2, 1), "the reset, and the new ping that is a question");
        frames.follow(&bytes, bytes.len());
        assert_eq!(numbers(&frames), (0, 0));
        assert_eq!(frames.cut(bytes.len()), bytes.len());
    }
}
