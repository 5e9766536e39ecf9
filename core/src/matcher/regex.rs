//! Regular expressions as Envoy's configuration has them: RE2's dialect, run on bytes by a
//! linear-time engine, with a bound on the compiled size.
//!
//! RE2 and the engine disagree on a few spellings. `translate` rewrites those that can be
//! rewritten (`\Q…\E`, a `{` that repeats nothing, `[` and `&&` inside a class, `\<`) and refuses
//! those that would silently mean something else. Envoy 1.40 matches byte by byte (`.` is one
//! byte, observed), so the engine's Unicode mode is off and non-ASCII text is matched as bytes.
//! Unicode classes (`\pL`) are refused; an RE2 program size limit cannot be compared and is
//! replaced by our own bound.

use std::fmt;

use nuncio_api::pb::envoy::r#type::matcher::v3 as pb;
use nuncio_api::supports;
use regex::bytes;

use crate::error::ConfigError;

supports!(pub(super) REGEX = "envoy.type.matcher.v3.RegexMatcher" { regex } noop {
    google_re2: "the size of a compiled expression is always bounded"
});
supports!(pub(super) SUBSTITUTE = "envoy.type.matcher.v3.RegexMatchAndSubstitute" { pattern, substitution });

/// Bound on one compiled expression; compiling up to it takes a few milliseconds.
const SIZE_LIMIT: usize = 1 << 20;
/// Bound on what an expression's lazy automaton may cache for each thread.
const DFA_SIZE_LIMIT: usize = 256 << 10;
/// RE2 refuses larger counts; with nesting they are how expressions explode.
const MAX_REPEAT: u32 = 1000;

/// An expression that must match the whole value.
#[derive(Clone)]
pub struct Regex(bytes::Regex);

impl Regex {
    pub fn new(pattern: &str) -> Result<Self, ConfigError> {
        let translated = translate(pattern)?;
        compile(pattern, &format!(r"\A(?:{translated})\z")).map(Self)
    }

    pub fn from_proto(message: &pb::RegexMatcher) -> Result<Self, ConfigError> {
        Self::new(&message.regex).map_err(|e| e.within("regex"))
    }

    #[inline]
    pub fn matches(&self, value: &[u8]) -> bool {
        self.0.is_match(value)
    }
}

impl fmt::Debug for Regex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_str())
    }
}

/// A pattern and what replaces each place where it matches (`RegexMatchAndSubstitute`).
#[derive(Debug, Clone)]
pub struct RegexRewrite {
    pattern: bytes::Regex,
    template: Vec<Piece>,
}

#[derive(Debug, Clone)]
enum Piece {
    Literal(Vec<u8>),
    Group(usize),
}

impl RegexRewrite {
    pub fn from_proto(message: &pb::RegexMatchAndSubstitute) -> Result<Self, ConfigError> {
        let Some(pattern) = &message.pattern else { return Err(ConfigError::new("pattern", "value is required")) };
        Self::new(&pattern.regex, &message.substitution)
    }

    pub fn new(pattern: &str, substitution: &str) -> Result<Self, ConfigError> {
        let in_pattern = |e: ConfigError| e.within("pattern.regex");
        let translated = translate(pattern).map_err(in_pattern)?;
        let compiled = compile(pattern, &translated).map_err(in_pattern)?;
        let template = parse_template(substitution, compiled.captures_len())
            .map_err(|reason| ConfigError::new("substitution", reason))?;
        Ok(Self { pattern: compiled, template })
    }

    /// Appends `input`, with every match replaced, to `out`.
    pub fn rewrite(&self, input: &[u8], out: &mut Vec<u8>) {
        let mut at = 0;
        for found in self.pattern.captures_iter(input) {
            let Some(whole) = found.get(0) else { continue };
            out.extend_from_slice(&input[at..whole.start()]);
            for piece in &self.template {
                match piece {
                    Piece::Literal(text) => out.extend_from_slice(text),
                    Piece::Group(n) => out.extend_from_slice(found.get(*n).map_or(&[][..], |m| m.as_bytes())),
                }
            }
            at = whole.end();
        }
        out.extend_from_slice(&input[at..]);
    }
}

fn compile(original: &str, pattern: &str) -> Result<bytes::Regex, ConfigError> {
    bytes::RegexBuilder::new(pattern)
        .unicode(false)
        .size_limit(SIZE_LIMIT)
        .dfa_size_limit(DFA_SIZE_LIMIT)
        .build()
        .map_err(|e| match e {
            regex::Error::CompiledTooBig(_) => {
                ConfigError::new("", format!("regex '{}' is too large once compiled", shorten(original)))
            }
            regex::Error::Syntax(text) => {
                // The engine draws a picture of several lines; its last line says why.
                let why = text.lines().last().unwrap_or("").trim_start_matches("error: ");
                ConfigError::new("", format!("invalid regex '{}': {why}", shorten(original)))
            }
            other => ConfigError::new("", format!("invalid regex '{}': {other}", shorten(original))),
        })
}

fn shorten(pattern: &str) -> String {
    if pattern.chars().count() <= 100 {
        pattern.to_owned()
    } else {
        format!("{}…", pattern.chars().take(100).collect::<String>())
    }
}

/// RE2's rewrite strings: `\0` to `\9` are groups, `\\` is a backslash, anything else after a
/// backslash is an error.
fn parse_template(substitution: &str, groups: usize) -> Result<Vec<Piece>, String> {
    let mut pieces = Vec::new();
    let mut literal = Vec::new();
    let mut bytes = substitution.bytes();
    while let Some(b) = bytes.next() {
        if b != b'\\' {
            literal.push(b);
            continue;
        }
        match bytes.next() {
            Some(b'\\') => literal.push(b'\\'),
            Some(d) if d.is_ascii_digit() => {
                let group = usize::from(d - b'0');
                if group >= groups {
                    return Err(format!("\\{group} is used but the pattern has only {} groups", groups - 1));
                }
                if !literal.is_empty() {
                    pieces.push(Piece::Literal(std::mem::take(&mut literal)));
                }
                pieces.push(Piece::Group(group));
            }
            _ => return Err("a backslash must be followed by a digit or a backslash".to_owned()),
        }
    }
    if !literal.is_empty() {
        pieces.push(Piece::Literal(literal));
    }
    Ok(pieces)
}

/// RE2's dialect → the engine's.
fn translate(pattern: &str) -> Result<String, ConfigError> {
    let refuse = |why: &str| Err(ConfigError::new("", format!("invalid regex '{}': {why}", shorten(pattern))));
    let bytes = pattern.as_bytes();
    let mut out = String::with_capacity(pattern.len() + 8);
    let (mut at, mut depth) = (0usize, 0usize);
    while at < bytes.len() {
        let rest = &pattern[at..];
        match bytes[at] {
            b'\\' if rest.starts_with(r"\Q") => {
                let end = rest.find(r"\E").unwrap_or(rest.len());
                rest[2..end].bytes().for_each(|b| literal(b, &mut out));
                at += (end + 2).min(rest.len());
                continue;
            }
            b'\\' => match bytes.get(at + 1) {
                None => return refuse("trailing \\"),
                Some(b @ (b'<' | b'>')) => {
                    out.push(*b as char);
                    at += 2;
                    continue;
                }
                Some(b) if b.is_ascii() => {
                    out.push_str(&rest[..2]);
                    at += 2;
                    continue;
                }
                Some(_) => return refuse("a backslash before a character that needs none"),
            },
            b'[' => match class(rest, &mut out) {
                Ok(used) => {
                    at += used;
                    continue;
                }
                Err(why) => return refuse(why),
            },
            b'(' => {
                depth += 1;
                if !known_group(rest) {
                    return refuse("invalid or unsupported Perl syntax");
                }
                out.push('(');
            }
            b')' => {
                let Some(less) = depth.checked_sub(1) else { return refuse("unexpected )") };
                depth = less;
                out.push(')');
            }
            b'{' => match repeat(rest) {
                Some((largest, _)) if largest > MAX_REPEAT => return refuse("invalid repetition size"),
                Some((_, text)) => {
                    out.push_str(text);
                    at += text.len();
                    continue;
                }
                None => out.push_str(r"\{"),
            },
            b'}' => out.push_str(r"\}"),
            b if b.is_ascii() => out.push(b as char),
            _ => {
                at += other_char(rest, &mut out);
                continue;
            }
        }
        at += 1;
    }
    Ok(out)
}

fn literal(b: u8, out: &mut String) {
    if b.is_ascii_alphanumeric() {
        out.push(b as char);
    } else {
        out.push_str(&format!(r"\x{b:02X}"));
    }
}

/// A character beyond ASCII is the sequence of its bytes; how many there were.
fn other_char(text: &str, out: &mut String) -> usize {
    let len = text.chars().next().map_or(1, char::len_utf8);
    text.bytes().take(len).for_each(|b| literal(b, out));
    len
}

/// A bracketed class at the start of `text`; how much of it was used.
fn class(text: &str, out: &mut String) -> Result<usize, &'static str> {
    let bytes = text.as_bytes();
    out.push('[');
    let mut at = 1;
    if bytes.get(at) == Some(&b'^') {
        out.push('^');
        at += 1;
    }
    let first = at;
    while let Some(&b) = bytes.get(at) {
        match b {
            b']' if at > first => {
                out.push(']');
                return Ok(at + 1);
            }
            b'[' if bytes.get(at + 1) == Some(&b':') => {
                let Some(end) = text[at..].find(":]") else { return Err("missing closing :]") };
                out.push_str(&text[at..at + end + 2]);
                at += end + 2;
                continue;
            }
            b'\\' => {
                let Some(next) = bytes.get(at + 1).filter(|b| b.is_ascii()) else { return Err("trailing \\") };
                if matches!(next, b'<' | b'>') {
                    literal(*next, out);
                } else {
                    out.push_str(&text[at..at + 2]);
                }
                at += 2;
                continue;
            }
            b'-' if bytes.get(at + 1) == Some(&b'-') => return Err("write \\- for a hyphen inside a class"),
            b'-' => out.push('-'),
            b'[' | b'&' | b'~' | b']' => literal(b, out),
            b if b.is_ascii() => out.push(b as char),
            _ => {
                at += other_char(&text[at..], out);
                continue;
            }
        }
        at += 1;
    }
    Err("missing closing ]")
}

/// Plain, named, non-capturing groups and the flags that both dialects share.
fn known_group(text: &str) -> bool {
    let Some(rest) = text.strip_prefix("(?") else { return true };
    if rest.starts_with("P<") || rest.starts_with('<') && !rest.starts_with("<=") && !rest.starts_with("<!") {
        return true;
    }
    let flags = rest.bytes().take_while(|b| !matches!(b, b':' | b')'));
    flags.clone().count() < 12 && flags.into_iter().all(|b| matches!(b, b'i' | b'm' | b's' | b'U' | b'-'))
}

/// `{n}`, `{n,}` or `{n,m}` at the start of `text`: the largest number and the spelling.
fn repeat(text: &str) -> Option<(u32, &str)> {
    let end = text.find('}')?;
    let (low, high) = text[1..end].split_once(',').unwrap_or((&text[1..end], ""));
    let number =
        |t: &str| (t.bytes().all(|b| b.is_ascii_digit()) && !t.is_empty()).then(|| t.parse().unwrap_or(u32::MAX));
    let low = number(low)?;
    let high = if high.is_empty() { low } else { number(high)? };
    Some((low.max(high), &text[..=end]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full(pattern: &str, value: &[u8]) -> bool {
        Regex::new(pattern).unwrap().matches(value)
    }

    #[test]
    fn the_whole_value_must_match_whatever_the_alternatives() {
        assert!(full("a|ab", b"ab"));
        assert!(!full("/item/[0-9]+", b"/item/12a"));
        assert!(!full("a", b"a\n"));
    }

    #[test]
    fn a_dot_is_one_byte_as_observed_in_envoy() {
        assert!(full("a.b", b"a\xffb"));
        assert!(!full("a.b", "aéb".as_bytes()));
        assert!(full("é+", "é".as_bytes()));
        assert!(full("[é]+", "é".as_bytes()));
        assert!(Regex::new(r"\é").is_err());
    }

    #[test]
    fn spellings_of_re2_that_the_engine_reads_otherwise_keep_their_meaning() {
        assert!(full("/api/{id}", b"/api/{id}"));
        assert!(full("a{2,3}", b"aa"));
        assert!(full(r"\Qa.b\E+", b"a.bb"));
        assert!(full("[[a]+", b"[a["));
        assert!(full("[a&&b]+", b"a&b"));
        assert!(full("[]a]+", b"]a"));
        assert!(full("[^]a]", b"x"));
        assert!(full(r"\<b\>", b"<b>"));
        assert!(full("[[:alpha:]]+", b"abc"));
        assert!(full("(?P<x>a)(?i:B)", b"ab"));
    }

    #[test]
    fn what_cannot_be_run_safely_is_refused() {
        for bad in ["a)|(b", "a{1001}", "((a{100}){100}){100}", "(?=a)", "(?<!a)", "(?x)a b", r"\1", "[a", "(", r"a\"] {
            assert!(Regex::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn substitution_replaces_every_match_with_groups() {
        let rewrite = |p: &str, s: &str, input: &str| {
            let mut out = Vec::new();
            RegexRewrite::new(p, s).unwrap().rewrite(input.as_bytes(), &mut out);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(rewrite("^/re/([a-z]+)/(.*)$", r"/\2/\1", "/re/abc/rest"), "/rest/abc");
        assert_eq!(rewrite("one", "two", "/xxx/one/yyy/one/zzz"), "/xxx/two/yyy/two/zzz");
        assert_eq!(rewrite("(?i)/xxx/", r"\\\0", "/aaa/XxX/bbb"), r"/aaa\/XxX/bbb");
        assert!(RegexRewrite::new("a", r"\1").is_err());
        assert!(RegexRewrite::new("a", r"\n").is_err());
    }
}
