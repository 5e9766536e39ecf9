//! The fields of a head, in one arena that is recycled with its stream.
//!
//! Names are lower case, as on HTTP/2. Pseudo headers (`:method`, `:path`, `:authority`,
//! `:scheme`; `:status` for a response) are ordinary entries, so that matchers, formatters and
//! mutations have one view of a head; codecs write them in their own way. `host` never appears:
//! codecs turn it into `:authority`.
//!
//! Lookups are linear over one-byte tags: a head has ten to twenty fields. Which tags occur is kept
//! in 256 bits, so that a miss, which most lookups are, looks at no field.
//!
//! A codec that reads text may hand over a whole block ([`HeaderMap::adopt`]): it is copied once,
//! and a field that is still as it came is written again by copying its line
//! ([`HeaderMap::write_lines`]), neighbours together. So are the fields that this proxy adds.

use std::fmt;
use std::ops::Range;

use super::spelling::Spelling;

mod names;

pub use self::names::{NameList, has_controls, is_usual_name};
use self::names::{lower, lower_at, tag};

/// Ordered, multi-valued header fields.
#[derive(Clone, Default)]
pub struct HeaderMap {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
    /// One bit for the tag of every name ever added: a miss here is a miss.
    seen: [u64; 4],
    /// A field may be one that is never indexed.
    secrets: bool,
    /// Kept where somebody asked for it; boxed, since hardly anybody does.
    spelling: Option<Box<Spelling>>,
}

#[derive(Clone, Copy)]
struct Entry {
    name: u32,
    value: u32,
    value_len: u32,
    name_len: u16,
    tag: u8,
    form: Form,
}

/// What a codec said of a field.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Plain,
    /// `bytes` holds it as `name: value\r\n`, checked by whoever laid it there.
    Line,
    /// Its sender wants it in no table of a compression, on no hop (RFC 7541 §7.1.3).
    NeverIndexed,
}

/// `: ` and the line's end.
const BETWEEN: usize = 2;

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
        let at = self.bytes.len();
        self.bytes.reserve(name.len() + value.len());
        self.bytes.extend_from_slice(name);
        lower(&mut self.bytes[at..]);
        let tag = tag(&self.bytes[at..]);
        let value_at = self.bytes.len();
        self.bytes.extend_from_slice(value);
        self.push(at..value_at, value_at..value_at + value.len(), tag, Form::Plain);
    }

    /// Adds a field of this proxy's own, as a line where it can be one. `name` is written in the source: a token in lower
    /// case, or a pseudo header.
    #[inline]
    pub fn append_lower(&mut self, name: &'static str, value: impl AsRef<[u8]>) {
        debug_assert!(name.starts_with(':') || is_usual_name(name.as_bytes()), "{name}");
        let value = value.as_ref();
        self.lay(name, value, !name.starts_with(':') && !has_controls(value));
    }

    /// Lays a field whose name is in lower case.
    #[inline]
    fn lay(&mut self, name: &str, value: &[u8], line: bool) {
        let at = self.bytes.len();
        self.bytes.reserve(name.len() + value.len() + 2 * BETWEEN);
        self.bytes.extend_from_slice(name.as_bytes());
        if line {
            self.bytes.extend_from_slice(b": ");
        }
        let value_at = self.bytes.len();
        self.bytes.extend_from_slice(value);
        if line {
            self.bytes.extend_from_slice(b"\r\n");
        }
        let form = if line { Form::Line } else { Form::Plain };
        self.push(at..at + name.len(), value_at..value_at + value.len(), tag(name.as_bytes()), form);
    }

    /// A field that was laid in the arena.
    #[inline]
    fn push(&mut self, name: Range<usize>, value: Range<usize>, tag: u8, form: Form) {
        let Ok(name_len) = u16::try_from(name.len()) else { return };
        self.see(tag);
        self.entries.push(Entry {
            name: name.start as u32,
            name_len,
            value: value.start as u32,
            value_len: value.len() as u32,
            tag,
            form,
        });
    }

    #[inline]
    fn see(&mut self, tag: u8) {
        self.seen[usize::from(tag >> 6)] |= 1 << (tag & 63);
    }

    /// Takes a block of field lines over, whose fields are then named one by one. What the block
    /// holds must have been checked: names are tokens, values hold no control characters.
    pub fn adopt<'b>(&mut self, block: &'b [u8]) -> Adopted<'_, 'b> {
        let base = self.bytes.len();
        self.bytes.extend_from_slice(block);
        Adopted { map: self, block, base }
    }

    /// The fields that are neither pseudo headers nor in `but`.
    pub fn iter_without<'a>(&'a self, but: &'a NameList) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + 'a {
        self.entries.iter().filter(|e| !self.is_left_out(e, but)).map(|e| (self.name(e), self.value(e)))
    }

    #[inline]
    fn is_left_out(&self, e: &Entry, but: &NameList) -> bool {
        e.name_len == 0 || self.bytes[e.name as usize] == b':' || but.holds(e.tag, self.name(e))
    }

    /// Writes the fields of [`iter_without`](Self::iter_without): as the line that came, if it is as it came, else by
    /// `write`.
    pub fn write_lines(&self, out: &mut Vec<u8>, but: &NameList, mut write: impl FnMut(&mut Vec<u8>, &[u8], &[u8])) {
        let mut run = 0..0;
        for e in &self.entries {
            if self.is_left_out(e, but) {
                continue;
            }
            let end = (e.value + e.value_len) as usize + BETWEEN;
            if e.form == Form::Line && run.end == e.name as usize {
                run.end = end;
                continue;
            }
            out.extend_from_slice(&self.bytes[run.clone()]);
            run = 0..0;
            if e.form == Form::Line {
                run = e.name as usize..end;
            } else {
                write(out, self.name(e), self.value(e));
            }
        }
        out.extend_from_slice(&self.bytes[run]);
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
        let tag = tag(name.as_bytes());
        let entries: &[Entry] = if self.has_seen(tag) { &self.entries } else { &[] };
        entries.iter().filter(move |e| e.tag == tag && self.name(e) == name.as_bytes()).map(|e| self.value(e))
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

    #[inline]
    pub fn contains(&self, name: &str) -> bool {
        self.position(name).is_some()
    }

    /// The field has this one value: the first is overwritten in place, others go. `name` as for
    /// [`append_lower`](Self::append_lower).
    pub fn set(&mut self, name: &'static str, value: impl AsRef<[u8]>) {
        match self.position(name) {
            Some(i) => self.overwrite(i, name, value.as_ref()),
            None => self.append_lower(name, value),
        }
    }

    /// [`set`](Self::set) for a name in lower case that a configuration or a peer gave.
    pub fn set_given(&mut self, name: &str, value: impl AsRef<[u8]>) {
        match self.position(name) {
            Some(i) => self.overwrite(i, name, value.as_ref()),
            None => self.append_given(name, value.as_ref()),
        }
    }

    fn append_given(&mut self, name: &str, value: &[u8]) {
        self.lay(name, value, is_usual_name(name.as_bytes()) && !has_controls(value));
    }

    fn overwrite(&mut self, i: usize, name: &str, value: &[u8]) {
        let old = self.entries[i];
        if value.len() <= old.value_len as usize {
            let at = old.value as usize;
            self.bytes[at..at + value.len()].copy_from_slice(value);
        } else {
            self.entries[i].value = self.bytes.len() as u32;
            self.bytes.extend_from_slice(value);
        }
        self.entries[i].value_len = value.len() as u32;
        self.entries[i].change();
        if self.entries[i + 1..].iter().any(|e| e.tag == old.tag && self.name(e) == name.as_bytes()) {
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
        let Some(i) = self.position(name) else { return self.append_given(name, value) };
        let e = self.entries[i];
        let at = self.bytes.len();
        self.bytes.extend_from_within(e.value as usize..(e.value + e.value_len) as usize);
        if e.value_len > 0 {
            self.bytes.extend_from_slice(separator.as_bytes());
        }
        self.bytes.extend_from_slice(value);
        self.entries[i].value = at as u32;
        self.entries[i].value_len = (self.bytes.len() - at) as u32;
        self.entries[i].change();
    }

    pub fn set_u64(&mut self, name: &'static str, value: u64) {
        let mut buf = [0u8; 20];
        self.set(name, decimal(value, &mut buf));
    }

    /// Removes every field called `name`; says whether there was one.
    #[inline]
    pub fn remove(&mut self, name: &str) -> bool {
        let tag = tag(name.as_bytes());
        self.has_seen(tag) && self.remove_seen(name, tag)
    }

    #[inline(never)]
    fn remove_seen(&mut self, name: &str, tag: u8) -> bool {
        let (bytes, before) = (&self.bytes, self.entries.len());
        self.entries.retain(|e| e.tag != tag || &bytes[e.name_range()] != name.as_bytes());
        self.entries.len() < before
    }

    /// Removes what a server behind us could take for `name`, itself included: CGI and its heirs read `x_user`, `x.user`
    /// and `x-user` as one variable. For names that only we may say.
    pub fn remove_aliases(&mut self, name: &str) {
        let alike = |(a, b): (&u8, &u8)| a == b || !(a.is_ascii_alphanumeric() || b.is_ascii_alphanumeric());
        let is_alias = |given: &[u8]| given.len() == name.len() && given.iter().zip(name.as_bytes()).all(alike);
        if !name.starts_with(':') {
            self.retain(|given, _| given.starts_with(b":") || !is_alias(given));
        }
    }

    /// Removes the fields of `names` at once.
    pub fn remove_all(&mut self, names: &NameList) {
        if self.seen.iter().zip(&names.tags).all(|(seen, listed)| seen & listed == 0) {
            return;
        }
        let bytes = &self.bytes;
        self.entries.retain(|e| !names.holds(e.tag, &bytes[e.name_range()]));
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
        for (name, value, never_indexed) in other.iter_with_secrets() {
            self.append(name, value);
            if never_indexed {
                self.never_index_last();
            }
        }
    }

    // === fields that are never indexed ===

    /// The field that was added last is to stay a literal on every hop of HTTP/2; what is set in its place, too.
    pub fn never_index_last(&mut self) {
        if let Some(last) = self.entries.last_mut() {
            last.form = Form::NeverIndexed;
            self.secrets = true;
        }
    }

    /// One of the fields called `name` is never indexed.
    #[inline]
    pub fn is_never_indexed(&self, name: &str) -> bool {
        let is = |e: &Entry| e.form == Form::NeverIndexed && self.name(e) == name.as_bytes();
        self.secrets && self.entries.iter().any(is)
    }

    /// The fields, and whether each is never indexed.
    pub fn iter_with_secrets(&self) -> impl Iterator<Item = (&[u8], &[u8], bool)> {
        self.entries.iter().map(|e| (self.name(e), self.value(e), e.form == Form::NeverIndexed))
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
        self.seen = [0; 4];
        self.secrets = false;
        if self.bytes.capacity() > KEEP_BYTES {
            self.bytes = Vec::new();
        }
        if self.entries.capacity() > KEEP_ENTRIES {
            self.entries = Vec::new();
        }
    }

    #[inline]
    fn position(&self, name: &str) -> Option<usize> {
        let tag = tag(name.as_bytes());
        if !self.has_seen(tag) {
            return None;
        }
        self.entries.iter().position(|e| e.tag == tag && self.name(e) == name.as_bytes())
    }

    #[inline]
    fn has_seen(&self, tag: u8) -> bool {
        self.seen[usize::from(tag >> 6)] & (1 << (tag & 63)) != 0
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
    /// It has another value than the one that came.
    fn change(&mut self) {
        if self.form == Form::Line {
            self.form = Form::Plain;
        }
    }

    fn name_range(&self) -> Range<usize> {
        self.name as usize..self.name as usize + usize::from(self.name_len)
    }

    fn value_range(&self) -> Range<usize> {
        self.value as usize..(self.value + self.value_len) as usize
    }
}

/// A block of field lines in a map's arena, see [`HeaderMap::adopt`].
pub struct Adopted<'m, 'b> {
    map: &'m mut HeaderMap,
    block: &'b [u8],
    /// Where the block begins in the arena.
    base: usize,
}

impl<'b> Adopted<'_, 'b> {
    /// Adds a field whose name and value are parts of the block; others are copied.
    pub fn field(&mut self, name: &'b [u8], value: &'b [u8]) {
        let block = self.block.as_ptr() as usize;
        let at = (name.as_ptr() as usize).wrapping_sub(block);
        let value_at = (value.as_ptr() as usize).wrapping_sub(block);
        let (name_end, value_end) = (at.wrapping_add(name.len()), value_at.wrapping_add(value.len()));
        if name_end > self.block.len() || value_end > self.block.len() || at > name_end || value_at > value_end {
            return self.map.append(name, value);
        }
        let line = name_end + BETWEEN == value_at
            && self.block[name_end..value_at] == *b": "
            && self.block[value_end..].starts_with(b"\r\n");
        lower_at(&mut self.map.bytes, self.base + at, name.len());
        let (at, name_end) = (self.base + at, self.base + name_end);
        let tag = tag(&self.map.bytes[at..name_end]);
        let form = if line { Form::Line } else { Form::Plain };
        self.map.push(at..name_end, self.base + value_at..self.base + value_end, tag, form);
    }

    /// Adds a field of the caller's own.
    pub fn append(&mut self, name: &str, value: impl AsRef<[u8]>) {
        self.map.append(name, value);
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
    fn names_that_other_servers_take_for_the_same_go_together() {
        let all = ["x-user", "X_User", "x.user", "x-users", "xxuser", ":x-user"];
        let mut m: HeaderMap = all.into_iter().map(|name| (name, "v")).collect();
        m.remove_aliases("x-user");
        assert_eq!(m.iter().map(|(name, _)| name).collect::<Vec<_>>(), [&b"x-users"[..], b"xxuser", b":x-user"]);
        let mut m: HeaderMap = [(":path", "/"), (".path", "v")].into_iter().collect();
        m.remove_aliases(":path");
        assert_eq!(m.len(), 2);
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
    fn listed_names_go_together_and_nothing_else() {
        static LIST: NameList = NameList::new(&["a", "x-gone"]);
        let mut m = map();
        m.append("x-gone", "1");
        m.append("x-stays", "2");
        m.remove_all(&LIST);
        assert_eq!(m.iter().map(|(n, _)| n).collect::<Vec<_>>(), [&b"b"[..], b"x-stays"]);
    }

    fn written(m: &HeaderMap) -> String {
        let mut out = Vec::new();
        m.write_lines(&mut out, &NameList::new(&["skip"]), |out, n, v| {
            out.extend_from_slice(b"<");
            out.extend_from_slice(n);
            out.extend_from_slice(b"=");
            out.extend_from_slice(v);
            out.extend_from_slice(b">");
        });
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn adopted_lines_are_written_as_they_came_and_changed_ones_anew() {
        let block = b"Aa: 1\r\nSkip: 2\r\nbb: 3\r\nc:4\r\nd: 5 \r\ne: 6\nf: 7\r\n\r\n";
        let part = |text: &str| {
            let at = find(block, text.as_bytes());
            &block[at..at + text.len()]
        };
        let mut m = HeaderMap::new();
        m.append(":path", "/");
        let mut adopted = m.adopt(block);
        for (n, v) in [("Aa", "1"), ("Skip", "2"), ("bb", "3"), ("c", "4"), ("d", "5"), ("e", "6"), ("f", "7")] {
            adopted.field(part(n), part(v));
        }
        adopted.append("te", "trailers");
        assert_eq!(m.get("aa"), Some(&b"1"[..]));
        // No blank, a blank too many, a bare LF: these are written anew.
        assert_eq!(written(&m), "aa: 1\r\nbb: 3\r\n<c=4><d=5><e=6>f: 7\r\n<te=trailers>");
        m.set("bb", "");
        m.append_to_value("f", ",", "8");
        assert!(m.remove("aa"));
        assert_eq!(written(&m), "<bb=><c=4><d=5><e=6><f=7,8><te=trailers>");
        assert_eq!(m.byte_size(), 5 + 1 + 4 + 1 + 2 + 1 + 1 + 1 + 1 + 1 + 1 + 1 + 3 + 2 + 8);
    }

    #[test]
    fn own_fields_are_lines_where_they_can_be() {
        let mut m = HeaderMap::new();
        m.set(":scheme", "http");
        m.set("x-id", "a\tb");
        m.set_u64("x-n", 7);
        m.append_to_value("x-list", ",", "1");
        // Neither a name that is not usual nor a value that ends the line is copied unchecked.
        m.set_given("x_odd", "1");
        m.append_to_value("x y", ",", "1");
        m.set_given("x-given", "1");
        m.set("x-split", "a\r\nhost: evil");
        m.append_lower("x-last", "é");
        assert_eq!(
            written(&m),
            "x-id: a\tb\r\nx-n: 7\r\nx-list: 1\r\n<x_odd=1><x y=1>x-given: 1\r\n<x-split=a\r\nhost: evil>x-last: é\r\n"
        );
        m.set("x-n", "8");
        m.append_to_value("x-list", ",", "2");
        m.set("x-id", "\n");
        assert!(written(&m).starts_with("<x-id=\n><x-n=8><x-list=1,2><x_odd=1><x y=1>x-given: 1"));
    }

    #[test]
    fn what_is_never_indexed_stays_so_when_it_changes_or_moves() {
        let mut m = map();
        m.never_index_last();
        m.append("key", "1");
        m.never_index_last();
        m.append("z", "9");
        assert!(m.is_never_indexed("a") && m.is_never_indexed("key") && !m.is_never_indexed("b"));
        m.set("key", "a longer one");
        m.append_to_value("key", ",", "2");
        let mut copy = HeaderMap::new();
        copy.extend_from(&m);
        for m in [&m, &copy, &m.clone()] {
            let marks: Vec<_> = m.iter_with_secrets().map(|(name, _, never)| (name, never)).collect();
            assert_eq!(marks, [(&b"a"[..], false), (b"b", false), (b"a", true), (b"key", true), (b"z", false)]);
        }
        m.clear();
        m.append("a", "1");
        assert!(!m.is_never_indexed("a"));
    }

    #[test]
    fn a_field_from_elsewhere_is_copied() {
        let mut m = HeaderMap::new();
        m.adopt(b"x: y\r\n").field(b"Other", b"z");
        assert_eq!(m.get("other"), Some(&b"z"[..]));
        assert_eq!(written(&m), "<other=z>");
    }

    fn find(hay: &[u8], needle: &[u8]) -> usize {
        hay.windows(needle.len()).position(|w| w == needle).unwrap()
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
