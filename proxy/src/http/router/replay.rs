//! What of a request's body went upstream, kept so that it can go there again.

use crate::codec::Buffers;

/// The body so far, up to a limit.
#[derive(Default)]
pub(super) struct Kept {
    bytes: Vec<u8>,
    /// Nothing is kept without one.
    limit: Option<u64>,
    /// Some of the body was sent and not kept.
    lost: bool,
}

impl Kept {
    /// From now on, up to so many bytes.
    pub fn start(&mut self, limit: u64) {
        self.limit = Some(limit);
    }

    /// Nothing more is wanted of it: what was kept is given up.
    pub fn stop(&mut self, buffers: &Buffers) {
        self.limit = None;
        self.lost |= !self.bytes.is_empty();
        buffers.give(std::mem::take(&mut self.bytes));
    }

    /// A piece that is about to be sent. False: the limit is passed, and nothing is kept any more.
    pub fn add(&mut self, piece: &[u8], buffers: &Buffers) -> bool {
        let Some(limit) = self.limit else {
            self.lost |= !piece.is_empty();
            return true;
        };
        if self.bytes.len() as u64 + piece.len() as u64 > limit {
            self.lost = true;
            self.stop(buffers);
            return false;
        }
        if self.bytes.capacity() == 0 {
            self.bytes = buffers.take();
        }
        self.bytes.extend_from_slice(piece);
        true
    }

    /// Whoever sends a piece has to show it here.
    pub fn is_wanted(&self) -> bool {
        self.limit.is_some()
    }

    /// A piece was sent that nobody saw.
    pub fn miss(&mut self) {
        self.lost = true;
    }

    /// The request can be sent from its beginning.
    pub fn is_whole(&self) -> bool {
        !self.lost
    }

    /// All of it; nothing is kept any more.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_kept_to_the_last_byte_of_the_limit() {
        let (mut kept, buffers) = (Kept::default(), Buffers::default());
        kept.start(6);
        assert!(kept.add(b"abc", &buffers) && kept.add(b"def", &buffers) && kept.is_whole());
        assert_eq!(kept.bytes(), b"abcdef");
        assert!(!kept.add(b"g", &buffers));
        assert!(!kept.is_whole() && kept.bytes().is_empty());
        assert!(kept.add(b"h", &buffers));
    }

    #[test]
    fn what_nobody_keeps_is_lost_once_there_was_something() {
        let (mut kept, buffers) = (Kept::default(), Buffers::default());
        assert!(kept.add(b"", &buffers) && kept.is_whole());
        assert!(kept.add(b"x", &buffers) && !kept.is_whole());
    }
}
