//! The fields of a head, in one arena that is recycled with its stream.
//!
//! Names are lower case, as on HTTP/2. Pseudo headers (`:method`, `:path`, `:authority`,
//! `:scheme`; `:status` for a response) are ordinary entries, so that matchers, formatters and
//! mutations have one view of a head; codecs write them in their own way. `host` never appears:
//! codecs turn it into `:authority`.
//!
//! Lookups are linear: a head has ten to twenty fields, and a bloom word answers most misses.

use std::fmt;

use super::spelling::Spelling;

/// Ordered, multi-valued header fields.
#[derive(Clone, Default)]
pub struct HeaderMap {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
    /// One bit per (length, first, last byte) of every name ever added: a miss here is a miss.
    seen: u64,
    /// Kept where somebody asked for it; boxed, since hardly anybody does.
    spelling: Option<Box<Spelling>>,
}

#[derive(Clone, Copy)]
struct Entry {
    name: u32,
    value: u32,
    value_len: u32,
    name_len: u16,
}

/// What a recycled map may keep for the next stream.
const KEEP_BYTES: usize = 16 * 1024;
const KEEP_ENTRIES: usize = 256;

impl HeaderMap {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Sum of the lengths of names and values.
    pub fn byte_size(&self) -> usize {
        self.entries.iter().map(|e| usize::from(e.name_len) + e.value_len as usize).sum()
    }

    /// Adds a field at the end; the name is lower-cased.
    pub fn append(&mut self, name: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        let (name, value) = (name.as_ref(), value.as_ref());
        let Ok(name_len) = u16::try_from(name.len()) else { return };
        let at = self.bytes.len();
        self.bytes.extend_from_slice(name);
        self.bytes[at..].make_ascii_lowercase();
        self.seen |= bloom(&self.bytes[at..]);
        self.bytes.extend_from_slice(value);
        self.entries.push(Entry {
            name: at as u32,
            name_len,
            value: (at + name.len()) as u32,
            value_len: value.len() as u32,
        });
    }

    /// The first value of `name` (lower case).
    #[inline]
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.position(name).map(|i| self.value(&self.entries[i]))
    }

    /// [`get`](Self::get) as text, if it is UTF-8.
    pub fn get_str(&self, name: &str) -> Option<&str> {
        self.get(name).and_then(|v| std::str::from_utf8(v).ok())
    }

    pub fn get_all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> + 'a {
        let maybe = self.seen & bloom(name.as_bytes()) != 0;
        let entries: &[Entry] = if maybe { &self.entries } else { &[] };
        entries.iter().filter(move |e| self.name(e) == name.as_bytes()).map(|e| self.value(e))
    }

    /// All values of `name` joined by `separator`; borrows when there is one.
    pub fn get_joined<'a>(&'a self, name: &'a str, separator: &str) -> Option<std::borrow::Cow<'a, [u8]>> {
        let mut values = self.get_all(name);
        let first = values.next()?;
        let Some(second) = values.next() else { return Some(first.into()) };
        let mut out = first.to_vec();
        for v in std::iter::once(second).chain(values) {
            out.extend_from_slice(separator.as_bytes());
            out.extend_from_slice(v);
        }
        Some(out.into())
    }

    pub fn contains(&self, name: &str) -> bool {
        self.position(name).is_some()
    }

    /// The field has this one value: the first is overwritten in place, others go.
    pub fn set(&mut self, name: &str, value: impl AsRef<[u8]>) {
        let value = value.as_ref();
        let Some(i) = self.position(name) else { return self.append(name, value) };
        let old = self.entries[i];
        if value.len() <= old.value_len as usize {
            let at = old.value as usize;
            self.bytes[at..at + value.len()].copy_from_slice(value);
        } else {
            self.entries[i].value = self.bytes.len() as u32;
            self.bytes.extend_from_slice(value);
        }
        self.entries[i].value_len = value.len() as u32;
        if self.entries[i + 1..].iter().any(|e| self.name(e) == name.as_bytes()) {
            let mut at = 0;
            self.retain(|n, _| {
                at += 1;
                at - 1 <= i || n != name.as_bytes()
            });
        }
    }

    /// Appends `value` to the first value of `name`, after `separator`; adds the field if absent.
    pub fn append_to_value(&mut self, name: &str, separator: &str, value: impl AsRef<[u8]>) {
        let value = value.as_ref();
        let Some(i) = self.position(name) else { return self.append(name, value) };
        let e = self.entries[i];
        let at = self.bytes.len();
        self.bytes.extend_from_within(e.value as usize..(e.value + e.value_len) as usize);
        if e.value_len > 0 {
            self.bytes.extend_from_slice(separator.as_bytes());
        }
        self.bytes.extend_from_slice(value);
        self.entries[i].value = at as u32;
        self.entries[i].value_len = (self.bytes.len() - at) as u32;
    }

    pub fn set_u64(&mut self, name: &str, value: u64) {
        let mut buf = [0u8; 20];
        self.set(name, decimal(value, &mut buf));
    }

    /// Removes every field called `name`; says whether there was one.
    pub fn remove(&mut self, name: &str) -> bool {
        if self.position(name).is_none() {
            return false;
        }
        self.retain(|n, _| n != name.as_bytes());
        true
    }

    /// Keeps the fields for which `keep(name, value)`.
    pub fn retain(&mut self, mut keep: impl FnMut(&[u8], &[u8]) -> bool) {
        let bytes = &self.bytes;
        self.entries.retain(|e| keep(&bytes[e.name_range()], &bytes[e.value_range()]));
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&[u8], &[u8])> + Clone {
        self.entries.iter().map(|e| (self.name(e), self.value(e)))
    }

    pub fn extend_from(&mut self, other: &HeaderMap) {
        for (name, value) in other.iter() {
            self.append(name, value);
        }
    }

    /// Begins to keep how the sender spelled the names of this head.
    pub fn spell(&mut self) -> &mut Spelling {
        let spelling = self.spelling.get_or_insert_default();
        spelling.begin();
        spelling
    }

    /// How the sender spelled the names, if that is to be kept.
    pub fn spelling(&self) -> Option<&Spelling> {
        self.spelling.as_deref().filter(|spelling| spelling.is_kept())
    }

    /// Empties the map and keeps a bounded buffer for the next use.
    pub fn clear(&mut self) {
        if let Some(spelling) = &mut self.spelling {
            spelling.clear();
        }
        self.bytes.clear();
        self.entries.clear();
        self.seen = 0;
        if self.bytes.capacity() > KEEP_BYTES {
            self.bytes = Vec::new();
        }
        if self.entries.capacity() > KEEP_ENTRIES {
            self.entries = Vec::new();
        }
    }

    #[inline]
    fn position(&self, name: &str) -> Option<usize> {
        if self.seen & bloom(name.as_bytes()) == 0 {
            return None;
        }
        self.entries.iter().position(|e| self.name(e) == name.as_bytes())
    }

    #[inline]
    fn name(&self, e: &Entry) -> &[u8] {
        &self.bytes[e.name_range()]
    }

    #[inline]
    fn value(&self, e: &Entry) -> &[u8] {
        &self.bytes[e.value_range()]
    }
}

impl Entry {
    fn name_range(&self) -> std::ops::Range<usize> {
        self.name as usize..self.name as usize + usize::from(self.name_len)
    }

    fn value_range(&self) -> std::ops::Range<usize> {
        self.value as usize..(self.value + self.value_len) as usize
    }
}

#[inline]
fn bloom(name: &[u8]) -> u64 {
    match (name.first(), name.last()) {
        (Some(a), Some(z)) => 1 << ((name.len() ^ (usize::from(*a) << 1) ^ (usize::from(*z) << 3)) & 63),
        _ => 1,
    }
}

/// `value` in decimal digits, written at the end of `buf`.
pub fn decimal(mut value: u64, buf: &mut [u8; 20]) -> &[u8] {
    let mut at = buf.len();
    loop {
        at -= 1;
        buf[at] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            return &buf[at..];
        }
    }
}

impl fmt::Debug for HeaderMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter().map(|(n, v)| format!("{}: {}", n.escape_ascii(), v.escape_ascii()))).finish()
    }
}

impl<N: AsRef<[u8]>, V: AsRef<[u8]>> FromIterator<(N, V)> for HeaderMap {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(fields: I) -> Self {
        let mut map = Self::new();
        for (name, value) in fields {
            map.append(name, value);
        }
        map
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map() -> HeaderMap {
        [("A", "1"), ("b", "2"), ("a", "3")].into_iter().collect()
    }

    #[test]
    fn set_overwrites_the_first_and_drops_the_others() {
        let mut m = map();
        m.set("a", "longer than before");
        assert_eq!(m.iter().collect::<Vec<_>>(), [(&b"a"[..], &b"longer than before"[..]), (b"b", b"2")]);
        m.set("a", "x");
        assert_eq!(m.get("a"), Some(&b"x"[..]));
        m.set("c", "new");
        assert_eq!(m.len(), 3);
    }

    #[test]
    fn names_are_lower_case_and_values_keep_their_order() {
        let m = map();
        assert_eq!(m.get_all("a").collect::<Vec<_>>(), [b"1", b"3"]);
        assert_eq!(m.get_joined("a", ",").unwrap().as_ref(), b"1,3");
        assert_eq!(m.byte_size(), 6);
    }

    #[test]
    fn remove_takes_every_value() {
        let mut m = map();
        assert!(m.remove("a"));
        assert!(!m.remove("a"));
        assert_eq!(m.iter().collect::<Vec<_>>(), [(&b"b"[..], &b"2"[..])]);
    }

    #[test]
    fn append_to_value_joins_or_adds() {
        let mut m = map();
        m.append_to_value("b", ", ", "9");
        m.append_to_value("z", ", ", "8");
        assert_eq!(m.get("b"), Some(&b"2, 9"[..]));
        assert_eq!(m.get("z"), Some(&b"8"[..]));
    }

    #[test]
    fn a_cleared_map_keeps_a_bounded_buffer() {
        let mut m = HeaderMap::new();
        m.append("big", vec![b'x'; 1 << 20]);
        m.clear();
        assert!(m.bytes.capacity() <= KEEP_BYTES);
        assert!(m.get("big").is_none());
    }

    #[test]
    fn decimals_are_written_in_full() {
        let mut buf = [0; 20];
        assert_eq!(decimal(u64::MAX, &mut buf), b"18446744073709551615");
        assert_eq!(decimal(0, &mut buf), b"0");
    }
}
