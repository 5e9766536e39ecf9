//! How the sender of a head spelled its names (`preserve_case`): names are lower case everywhere, and a codec that
//! was asked to writes them as they came. Of two spellings of one name the first counts, as in Envoy.

/// The spellings of one head, and the phrase behind its status.
#[derive(Debug, Clone, Default)]
pub struct Spelling {
    bytes: Vec<u8>,
    ends: Vec<u32>,
    reason: Vec<u8>,
    proper_others: bool,
    kept: bool,
}

/// What a recycled record may keep for the next head.
const KEEP_BYTES: usize = 4 * 1024;

impl Spelling {
    pub(super) fn begin(&mut self) {
        self.clear();
        self.kept = true;
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
        self.reason.clear();
        self.proper_others = false;
        self.kept = false;
        if self.bytes.capacity() > KEEP_BYTES {
            *self = Self::default();
        }
    }

    pub(super) fn is_kept(&self) -> bool {
        self.kept
    }

    /// Remembers a name as it came.
    pub fn note(&mut self, name: &[u8]) {
        if self.of(name).is_none() {
            self.bytes.extend_from_slice(name);
            self.ends.push(self.bytes.len() as u32);
        }
    }

    /// How `name` came, if it did.
    pub fn of(&self, name: &[u8]) -> Option<&[u8]> {
        let mut start = 0;
        self.ends.iter().find_map(|&end| {
            let spelled = &self.bytes[start..end as usize];
            start = end as usize;
            spelled.eq_ignore_ascii_case(name).then_some(spelled)
        })
    }

    /// Names that did not come are written in Proper-Case.
    pub fn set_proper_others(&mut self, proper: bool) {
        self.proper_others = proper;
    }

    pub fn proper_others(&self) -> bool {
        self.proper_others
    }

    /// The phrase behind a response's status, if it is passed on.
    pub fn reason(&self) -> Option<&[u8]> {
        Some(&self.reason[..]).filter(|reason| !reason.is_empty())
    }

    pub fn set_reason(&mut self, reason: &[u8]) {
        self.reason.clear();
        self.reason.extend_from_slice(reason);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::HeaderMap;

    #[test]
    fn the_first_spelling_of_a_name_counts() {
        let mut spelling = Spelling::default();
        for name in ["X-One", "x-ONE", "ETag"] {
            spelling.note(name.as_bytes());
        }
        assert_eq!(spelling.of(b"x-one"), Some(&b"X-One"[..]));
        assert_eq!(spelling.of(b"etag"), Some(&b"ETag"[..]));
        assert_eq!(spelling.of(b"x-two"), None);
    }

    #[test]
    fn a_recycled_head_has_forgotten_the_spelling_of_the_last_one() {
        let mut head = HeaderMap::new();
        assert!(head.spelling().is_none());
        head.spell().note(b"X-One");
        assert!(head.spelling().is_some());
        head.clear();
        assert!(head.spelling().is_none());
        assert!(head.spell().of(b"x-one").is_none());
    }
}
