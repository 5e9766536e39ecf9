//! One normaliser for paths: router, filters and the upstream all see what comes out of here.
//!
//! The rules are those of RFC 3986 §6.2.2 as Envoy applies them: dot segments are removed,
//! backslashes are slashes, escaped unreserved characters are unescaped, a few characters that no
//! URL may hold are escaped, and the query is left alone. One rule is stricter than Envoy's: a dot
//! segment with a parameter (`/..;x/`) is a dot segment also when its dots were escaped, so that
//! normalising twice changes nothing.

use std::borrow::Cow;

/// `path_with_escaped_slashes_action`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EscapedSlashes {
    #[default]
    Keep,
    Reject,
    UnescapeAndRedirect,
    UnescapeAndForward,
}

/// What is done to paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PathRules {
    pub normalize: bool,
    pub merge_slashes: bool,
    pub escaped_slashes: EscapedSlashes,
}

/// What became of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Normalized<'a> {
    /// As it came.
    Unchanged,
    Changed(Cow<'a, [u8]>),
    /// The client shall ask again with this path.
    Redirect(Vec<u8>),
    Rejected,
}

impl PathRules {
    /// `path` is the request target with its query.
    pub fn apply<'a>(&self, path: &'a [u8]) -> Normalized<'a> {
        if *self == Self::default() {
            return Normalized::Unchanged;
        }
        let at = memchr::memchr(b'?', path).unwrap_or(path.len());
        let (path, query) = path.split_at(at);
        if !path.starts_with(b"/") {
            // `*`, or the authority of a CONNECT.
            return Normalized::Unchanged;
        }
        let escaped = self.escaped_slashes != EscapedSlashes::Keep && has_escaped_slash(path);
        if escaped && self.escaped_slashes == EscapedSlashes::Reject {
            return Normalized::Rejected;
        }
        let mut out: Cow<'_, [u8]> = if escaped { unescape_slashes(path).into() } else { path.into() };
        if self.normalize {
            if contains_escaped_nul(&out) {
                return Normalized::Rejected;
            }
            if let Some(clean) = canonical(&out) {
                out = clean.into();
            }
        }
        if self.merge_slashes && out.windows(2).any(|w| w == b"//") {
            let mut merged = out.into_owned();
            merged.dedup_by(|b, a| *a == b'/' && *b == b'/');
            out = merged.into();
        }
        if matches!(out, Cow::Borrowed(_)) {
            return Normalized::Unchanged;
        }
        let mut out = out.into_owned();
        out.extend_from_slice(query);
        match (escaped, self.escaped_slashes) {
            (true, EscapedSlashes::UnescapeAndRedirect) => Normalized::Redirect(out),
            _ => Normalized::Changed(out.into()),
        }
    }
}

fn hex(b: u8) -> Option<u8> {
    (b as char).to_digit(16).map(|d| d as u8)
}

/// The character that `%xy` at the start of `rest` stands for.
fn escaped(rest: &[u8]) -> Option<u8> {
    match rest {
        [b'%', a, b, ..] => Some(hex(*a)? << 4 | hex(*b)?),
        _ => None,
    }
}

fn has_escaped_slash(path: &[u8]) -> bool {
    memchr::memchr_iter(b'%', path).any(|i| matches!(escaped(&path[i..]), Some(b'/' | b'\\')))
}

fn contains_escaped_nul(path: &[u8]) -> bool {
    memchr::memchr_iter(b'%', path).any(|i| escaped(&path[i..]) == Some(0))
}

/// `%2F` and `%5C` become slashes.
fn unescape_slashes(path: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(path.len());
    let mut i = 0;
    while i < path.len() {
        if let Some(b'/' | b'\\') = escaped(&path[i..]) {
            out.push(b'/');
            i += 3;
        } else {
            out.push(path[i]);
            i += 1;
        }
    }
    out
}

fn is_unreserved(b: u8) -> bool {
    b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b'~')
}

/// Allowed nowhere in a URL's path, yet accepted from clients: sent on escaped.
fn must_be_escaped(b: u8) -> bool {
    matches!(b, b'"' | b'<' | b'>' | b'^' | b'`' | b'{' | b'|' | b'}')
}

/// The canonical form, or `None` if `path` already is.
fn canonical(path: &[u8]) -> Option<Vec<u8>> {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    let suspicious = |(i, b): (usize, &u8)| match b {
        b'\\' => true,
        b'%' => escaped(&path[i..]).is_some_and(is_unreserved),
        b'.' => path[..i].ends_with(b"/"),
        b => must_be_escaped(*b),
    };
    if !path.iter().enumerate().any(suspicious) {
        return None;
    }
    // First every character in its own form, then the dot segments: an escaped dot is a dot.
    let mut plain = Vec::with_capacity(path.len() + 8);
    let mut i = 0;
    while i < path.len() {
        match path[i] {
            b'\\' => plain.push(b'/'),
            b'%' => match escaped(&path[i..]) {
                // Not where it would complete an escape that the client did not write.
                Some(b) if is_unreserved(b) && !(b.is_ascii_hexdigit() && ends_in_escape(&plain)) => {
                    plain.push(b);
                    i += 2;
                }
                _ => plain.push(b'%'),
            },
            b if must_be_escaped(b) => plain.extend([b'%', HEX[usize::from(b >> 4)], HEX[usize::from(b & 15)]]),
            b => plain.push(b),
        }
        i += 1;
    }
    Some(without_dot_segments(&plain))
}

/// The text ends with `%` or `%x`, which no escape completed so far.
fn ends_in_escape(text: &[u8]) -> bool {
    matches!(text, [.., b'%']) || matches!(text, [.., b'%', x] if hex(*x).is_some())
}

/// RFC 3986 §5.2.4 for an absolute path; `..` at the root stays there.
fn without_dot_segments(path: &[u8]) -> Vec<u8> {
    let mut out: Vec<u8> = Vec::with_capacity(path.len());
    let mut rest = &path[1..];
    loop {
        let end = memchr::memchr(b'/', rest);
        let segment = &rest[..end.unwrap_or(rest.len())];
        let name = &segment[..memchr::memchr(b';', segment).unwrap_or(segment.len())];
        let dots = matches!(name, b"." | b"..");
        if name == b".." {
            let parent = memchr::memrchr(b'/', &out).unwrap_or(0);
            out.truncate(parent);
        } else if !dots {
            out.push(b'/');
            out.extend_from_slice(segment);
        }
        match end {
            Some(end) => rest = &rest[end + 1..],
            None => {
                if dots {
                    out.push(b'/');
                }
                return out;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NORMALIZE: PathRules =
        PathRules { normalize: true, merge_slashes: false, escaped_slashes: EscapedSlashes::Keep };

    fn apply(rules: PathRules, path: &str) -> String {
        match rules.apply(path.as_bytes()) {
            Normalized::Unchanged => path.to_owned(),
            Normalized::Changed(p) => String::from_utf8(p.into_owned()).unwrap(),
            Normalized::Redirect(p) => format!("307 {}", String::from_utf8(p).unwrap()),
            Normalized::Rejected => "400".to_owned(),
        }
    }

    // Recorded from Envoy 1.40.
    #[test]
    fn paths_become_what_envoy_makes_of_them() {
        for (path, expected) in [
            ("/a/../secret", "/secret"),
            ("/a/./b", "/a/b"),
            ("/a//b", "/a//b"),
            ("//secret", "//secret"),
            ("/%2e%2e/secret", "/secret"),
            ("/a/%2E%2e/secret", "/secret"),
            ("/a%2fb", "/a%2fb"),
            ("/a%5cb", "/a%5cb"),
            ("/a\\b", "/a/b"),
            ("/..", "/"),
            ("/a/..", "/"),
            ("/%41%7e", "/A~"),
            ("/a?x=/../b//c", "/a?x=/../b//c"),
            ("/a/b/../../../c", "/c"),
            ("/a%00b", "400"),
            ("/a/.../b", "/a/.../b"),
            ("/sec%72et", "/secret"),
            ("/%c0%ae%c0%ae/secret", "/%c0%ae%c0%ae/secret"),
            ("/x/%2F..%2fsecret", "/x/%2F..%2fsecret"),
            ("/a/..;x/b", "/b"),
            ("/a/..;/b", "/b"),
            ("/a/;x/../b", "/a/b"),
            ("/a/.;x/b", "/a/b"),
            ("/a/..%3bx/b", "/a/..%3bx/b"),
            ("/%zz/%4", "/%zz/%4"),
            ("/%", "/%"),
            ("/a/%2e", "/a/"),
            ("/a/.", "/a/"),
            ("/a/b/%2e%2E/", "/a/"),
            ("/a?%2e%41\\", "/a?%2e%41\\"),
            ("//../b", "/b"),
            ("/a//../b", "/a/b"),
            ("/..//a", "//a"),
            ("/a/%252e%252e/b", "/a/%252e%252e/b"),
            ("/%2f../a", "/%2f../a"),
            ("/p\"q", "/p%22q"),
            ("/p|q", "/p%7Cq"),
            ("*", "*"),
        ] {
            assert_eq!(apply(NORMALIZE, path), expected, "{path}");
        }
    }

    #[test]
    fn an_escaped_dot_segment_with_a_parameter_is_one_too() {
        assert_eq!(apply(NORMALIZE, "/public/%2e%2e;a=b/admin"), "/admin");
    }

    #[test]
    fn escaped_slashes_are_kept_refused_or_made_slashes() {
        let rules = |escaped_slashes| PathRules { escaped_slashes, ..NORMALIZE };
        assert_eq!(apply(rules(EscapedSlashes::Reject), "/a%2fb"), "400");
        assert_eq!(apply(rules(EscapedSlashes::Reject), "/a/b?x=%2f"), "/a/b?x=%2f");
        assert_eq!(apply(rules(EscapedSlashes::UnescapeAndRedirect), "/x/%2F..%2fsecret"), "307 /x/secret");
        assert_eq!(apply(rules(EscapedSlashes::UnescapeAndRedirect), "/a/../b"), "/b");
        assert_eq!(apply(rules(EscapedSlashes::UnescapeAndForward), "/a%5cb"), "/a/b");
    }

    #[test]
    fn slashes_are_merged_on_their_own_too() {
        let rules = PathRules { merge_slashes: true, ..PathRules::default() };
        assert_eq!(apply(rules, "//secret//x?a=//"), "/secret/x?a=//");
        assert_eq!(apply(rules, "/a/../secret"), "/a/../secret");
    }

    proptest! {
        #[test]
        fn normalising_twice_changes_nothing(path in "/[a.%1234eEfF5cC/;\\\\]{0,24}", merge: bool) {
            for escaped_slashes in [EscapedSlashes::Keep, EscapedSlashes::UnescapeAndForward] {
                let rules = PathRules { normalize: true, merge_slashes: merge, escaped_slashes };
                let once = apply(rules, &path);
                if once != "400" {
                    prop_assert_eq!(apply(rules, &once), once.clone());
                    let segments: Vec<&str> = once.split('/').map(|s| s.split(';').next().unwrap()).collect();
                    prop_assert!(!segments.contains(&".."), "{} -> {}", path, once);
                }
            }
        }
    }
}
