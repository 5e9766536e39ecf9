//! Rules on strings and bytes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::OnceLock;

use regex::Regex;

use super::formats;

#[derive(Debug, Default)]
pub(crate) struct TextRule {
    pub(super) equal: Option<String>,
    pub(super) len: Option<u64>,
    pub(super) min_len: Option<u64>,
    pub(super) max_len: Option<u64>,
    pub(super) len_bytes: Option<u64>,
    pub(super) min_bytes: Option<u64>,
    pub(super) max_bytes: Option<u64>,
    pub(super) pattern: Option<Pattern>,
    pub(super) prefix: Option<String>,
    pub(super) suffix: Option<String>,
    pub(super) contains: Option<String>,
    pub(super) not_contains: Option<String>,
    pub(super) of: Vec<String>,
    pub(super) not_of: Vec<String>,
    pub(super) format: Option<Format>,
    pub(super) ignore_empty: bool,
}

#[derive(Debug, Default)]
pub(crate) struct BytesRule {
    pub(super) equal: Option<Vec<u8>>,
    pub(super) len: Option<u64>,
    pub(super) min_len: Option<u64>,
    pub(super) max_len: Option<u64>,
    pub(super) pattern: Option<Pattern>,
    pub(super) prefix: Option<Vec<u8>>,
    pub(super) suffix: Option<Vec<u8>>,
    pub(super) contains: Option<Vec<u8>>,
    pub(super) of: Vec<Vec<u8>>,
    pub(super) not_of: Vec<Vec<u8>>,
    pub(super) ip_len: Option<&'static [usize]>,
    pub(super) ignore_empty: bool,
}

/// A named form that a string must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Email,
    Hostname,
    Ip,
    Ipv4,
    Ipv6,
    Uri,
    UriRef,
    /// A host name or an address.
    Address,
    Uuid,
    HeaderName,
    HeaderValue,
    /// Header names and values without `strict`.
    NoLineBreaks,
}

/// A regular expression, compiled when first asked.
#[derive(Debug)]
pub(super) struct Pattern {
    source: String,
    compiled: OnceLock<Option<Regex>>,
}

impl Pattern {
    pub(super) fn new(source: String) -> Self {
        Self { source, compiled: OnceLock::new() }
    }

    fn matches(&self, text: &str) -> bool {
        let compiled = self.compiled.get_or_init(|| Regex::new(&self.source).ok());
        // One that this engine does not know is no reason to refuse a file (a test sees to it that there is none).
        compiled.as_ref().is_none_or(|r| r.is_match(text))
    }
}

impl TextRule {
    pub(super) fn check(&self, text: &str) -> Option<String> {
        if self.ignore_empty && text.is_empty() {
            return None;
        }
        if let Some(equal) = self.equal.as_ref().filter(|e| *e != text) {
            return Some(format!("must be `{equal}`, is `{}`", shown(text)));
        }
        let chars = || text.chars().count() as u64;
        let in_bytes = text.len() as u64;
        length(self.len, self.min_len, self.max_len, chars, "character", "characters")
            .or_else(|| length(self.len_bytes, self.min_bytes, self.max_bytes, || in_bytes, "byte", "bytes"))
            .or_else(|| self.parts(text))
            .or_else(|| {
                let list = |all: &[String]| all.iter().map(|t| format!("`{t}`")).collect::<Vec<_>>().join(", ");
                if !self.of.is_empty() && !self.of.iter().any(|t| t == text) {
                    return Some(format!("must be one of {}, is `{}`", list(&self.of), shown(text)));
                }
                self.not_of.iter().any(|t| t == text).then(|| format!("must not be one of {}", list(&self.not_of)))
            })
            .or_else(|| {
                let format = self.format.filter(|f| !f.fits(text))?;
                Some(format!("must be {}, is `{}`", format.describe(), shown(text)))
            })
    }

    fn parts(&self, text: &str) -> Option<String> {
        if let Some(pattern) = self.pattern.as_ref().filter(|p| !p.matches(text)) {
            return Some(format!("must match `{}`, is `{}`", pattern.source, shown(text)));
        }
        if let Some(prefix) = self.prefix.as_ref().filter(|p| !text.starts_with(p.as_str())) {
            return Some(format!("must begin with `{prefix}`, is `{}`", shown(text)));
        }
        if let Some(suffix) = self.suffix.as_ref().filter(|p| !text.ends_with(p.as_str())) {
            return Some(format!("must end with `{suffix}`, is `{}`", shown(text)));
        }
        if let Some(part) = self.contains.as_ref().filter(|p| !text.contains(p.as_str())) {
            return Some(format!("must contain `{part}`, is `{}`", shown(text)));
        }
        let part = self.not_contains.as_ref().filter(|p| text.contains(p.as_str()))?;
        Some(format!("must not contain `{part}`, is `{}`", shown(text)))
    }
}

#[cfg(test)]
impl TextRule {
    pub(super) fn pattern_compiles(&self) -> bool {
        self.pattern.as_ref().is_none_or(|p| Regex::new(&p.source).is_ok())
    }
}

impl BytesRule {
    pub(super) fn check(&self, bytes: &[u8]) -> Option<String> {
        if self.ignore_empty && bytes.is_empty() {
            return None;
        }
        if self.equal.as_ref().is_some_and(|e| e != bytes) {
            return Some("must be the one value that is allowed".to_owned());
        }
        let len = bytes.len() as u64;
        if let Some(text) = length(self.len, self.min_len, self.max_len, || len, "byte", "bytes") {
            return Some(text);
        }
        if let Some(lengths) = self.ip_len.filter(|l| !l.contains(&bytes.len())) {
            return Some(format!("must be an IP address of {lengths:?} bytes, has {len}"));
        }
        let fits = self.pattern.as_ref().is_none_or(|p| std::str::from_utf8(bytes).is_ok_and(|t| p.matches(t)))
            && self.prefix.as_ref().is_none_or(|p| bytes.starts_with(p))
            && self.suffix.as_ref().is_none_or(|s| bytes.ends_with(s))
            && self.contains.as_ref().is_none_or(|c| c.is_empty() || bytes.windows(c.len()).any(|w| w == c))
            && (self.of.is_empty() || self.of.iter().any(|b| b == bytes))
            && !self.not_of.iter().any(|b| b == bytes);
        (!fits).then(|| "does not have the form that is asked for".to_owned())
    }
}

fn length(
    exact: Option<u64>,
    min: Option<u64>,
    max: Option<u64>,
    is: impl Fn() -> u64,
    one: &str,
    many: &str,
) -> Option<String> {
    if exact.is_none() && min.is_none() && max.is_none() {
        return None;
    }
    let is = is();
    let unit = |n: u64| if n == 1 { one.to_owned() } else { many.to_owned() };
    if let Some(exact) = exact.filter(|e| *e != is) {
        return Some(format!("must be {exact} {} long, is {is}", unit(exact)));
    }
    if let Some(min) = min.filter(|m| is < *m) {
        return Some(match (is, min) {
            (0, 1) => "must not be empty".to_owned(),
            _ => format!("must be at least {min} {} long, is {is}", unit(min)),
        });
    }
    let max = max.filter(|m| is > *m)?;
    Some(format!("must be at most {max} {} long, is {is}", unit(max)))
}

fn shown(text: &str) -> String {
    text.chars().take(80).flat_map(char::escape_debug).collect()
}

impl Format {
    fn fits(self, text: &str) -> bool {
        match self {
            Self::Email => formats::email(text),
            Self::Hostname => formats::hostname(text),
            Self::Ip => text.parse::<IpAddr>().is_ok(),
            Self::Ipv4 => text.parse::<Ipv4Addr>().is_ok(),
            Self::Ipv6 => text.parse::<Ipv6Addr>().is_ok(),
            Self::Uri => formats::uri(text, true),
            Self::UriRef => formats::uri(text, false),
            Self::Address => text.parse::<IpAddr>().is_ok() || formats::hostname(text),
            Self::Uuid => formats::uuid(text),
            Self::HeaderName => formats::header_name(text),
            Self::HeaderValue => !text.bytes().any(|b| b < 0x20 && b != b'\t' || b == 0x7f),
            Self::NoLineBreaks => !text.bytes().any(|b| matches!(b, 0 | b'\r' | b'\n')),
        }
    }

    fn describe(self) -> &'static str {
        match self {
            Self::Email => "an e-mail address",
            Self::Hostname => "a host name",
            Self::Ip => "an IP address",
            Self::Ipv4 => "an IPv4 address",
            Self::Ipv6 => "an IPv6 address",
            Self::Uri => "an absolute URI",
            Self::UriRef => "a URI",
            Self::Address => "a host name or an IP address",
            Self::Uuid => "a UUID",
            Self::HeaderName => "a header name",
            Self::HeaderValue => "a header value",
            Self::NoLineBreaks => "without NUL, CR and LF",
        }
    }
}
