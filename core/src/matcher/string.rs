//! `type.matcher.v3.StringMatcher` on bytes.

use memchr::memmem;
use nuncio_api::pb::envoy::r#type::matcher::v3::{self as pb, string_matcher::MatchPattern};
use nuncio_api::supports;

use super::regex::Regex;
use crate::error::ConfigError;

supports!(pub(super) STRING = "envoy.type.matcher.v3.StringMatcher" {
    exact, prefix, suffix, safe_regex, contains, ignore_case
});

/// One string test. `ignore_case` is ASCII case and has no effect on a regex, as in Envoy.
#[derive(Debug, Clone)]
pub struct StringMatcher {
    kind: Kind,
    ignore_case: bool,
}

#[derive(Debug, Clone)]
enum Kind {
    Exact(Box<[u8]>),
    Prefix(Box<[u8]>),
    Suffix(Box<[u8]>),
    Contains(Box<[u8]>),
    Regex(Box<Regex>),
}

impl StringMatcher {
    pub fn from_proto(message: &pb::StringMatcher) -> Result<Self, ConfigError> {
        let bytes = |s: &str| s.as_bytes().into();
        let kind = match &message.match_pattern {
            Some(MatchPattern::Exact(s)) => Kind::Exact(bytes(s)),
            Some(MatchPattern::Prefix(s)) => Kind::Prefix(bytes(s)),
            Some(MatchPattern::Suffix(s)) => Kind::Suffix(bytes(s)),
            Some(MatchPattern::Contains(s)) if message.ignore_case => Kind::Contains(bytes(&s.to_ascii_lowercase())),
            Some(MatchPattern::Contains(s)) => Kind::Contains(bytes(s)),
            Some(MatchPattern::SafeRegex(r)) => {
                Kind::Regex(Box::new(Regex::from_proto(r).map_err(|e| e.within("safe_regex"))?))
            }
            Some(MatchPattern::Custom(c)) => {
                return Err(ConfigError::new("custom", format!("string matcher '{}' is not implemented", c.name)));
            }
            None => return Err(ConfigError::new("match_pattern", "value is required")),
        };
        Ok(Self { kind, ignore_case: message.ignore_case })
    }

    pub fn exact(value: &str) -> Self {
        Self { kind: Kind::Exact(value.as_bytes().into()), ignore_case: false }
    }

    pub fn prefix(value: &str) -> Self {
        Self { kind: Kind::Prefix(value.as_bytes().into()), ignore_case: false }
    }

    pub fn suffix(value: &str) -> Self {
        Self { kind: Kind::Suffix(value.as_bytes().into()), ignore_case: false }
    }

    pub fn contains(value: &str) -> Self {
        Self { kind: Kind::Contains(value.as_bytes().into()), ignore_case: false }
    }

    pub fn regex(regex: Regex) -> Self {
        Self { kind: Kind::Regex(Box::new(regex)), ignore_case: false }
    }

    /// The one value that matches, if there is only one.
    pub fn as_exact(&self) -> Option<&[u8]> {
        match &self.kind {
            Kind::Exact(s) if !self.ignore_case => Some(s),
            _ => None,
        }
    }

    pub fn matches(&self, value: &[u8]) -> bool {
        match (&self.kind, self.ignore_case) {
            (Kind::Exact(s), false) => **s == *value,
            (Kind::Exact(s), true) => s.eq_ignore_ascii_case(value),
            (Kind::Prefix(s), false) => value.starts_with(s),
            (Kind::Prefix(s), true) => value.get(..s.len()).is_some_and(|v| v.eq_ignore_ascii_case(s)),
            (Kind::Suffix(s), false) => value.ends_with(s),
            (Kind::Suffix(s), true) => {
                value.len().checked_sub(s.len()).is_some_and(|at| value[at..].eq_ignore_ascii_case(s))
            }
            (Kind::Contains(s), false) => memmem::find(value, s).is_some(),
            (Kind::Contains(s), true) => contains_ignoring_case(value, s),
            (Kind::Regex(r), _) => r.matches(value),
        }
    }
}

/// `lower` is lower case already. Looks for its first byte in both cases, then compares.
fn contains_ignoring_case(value: &[u8], lower: &[u8]) -> bool {
    let Some(&first) = lower.first() else { return true };
    let Some(last) = value.len().checked_sub(lower.len()) else { return false };
    memchr::memchr2_iter(first, first.to_ascii_uppercase(), &value[..=last])
        .any(|at| value[at..at + lower.len()].eq_ignore_ascii_case(lower))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matcher(pattern: MatchPattern, ignore_case: bool) -> StringMatcher {
        StringMatcher::from_proto(&pb::StringMatcher { match_pattern: Some(pattern), ignore_case }).unwrap()
    }

    #[test]
    fn each_form_matches_with_and_without_case() {
        use MatchPattern::{Contains, Exact, Prefix, Suffix};
        type Form = fn(String) -> MatchPattern;
        let cases: [(Form, &str, &str); 4] =
            [(Exact, "Ab", "aB"), (Prefix, "Ab", "aBc"), (Suffix, "bC", "aBc"), (Contains, "Bc", "abCd")];
        for (form, pattern, value) in cases {
            assert!(!matcher(form(pattern.into()), false).matches(value.as_bytes()), "{pattern} {value}");
            assert!(matcher(form(pattern.into()), true).matches(value.as_bytes()), "{pattern} {value}");
            assert!(matcher(form(pattern.into()), false).matches(pattern.as_bytes()));
            assert!(!matcher(form(pattern.into()), true).matches(b"x"));
            assert!(!matcher(form(pattern.into()), true).matches(b""));
        }
    }

    #[test]
    fn contains_without_case_finds_what_follows_a_false_start() {
        assert!(matcher(MatchPattern::Contains("aab".into()), true).matches(b"AAAB"));
        assert!(!matcher(MatchPattern::Contains("aab".into()), true).matches(b"aa"));
    }

    #[test]
    fn custom_matchers_and_empty_messages_are_errors() {
        let custom = MatchPattern::Custom(Default::default());
        for pattern in [Some(custom), None] {
            let message = pb::StringMatcher { match_pattern: pattern, ignore_case: false };
            assert!(StringMatcher::from_proto(&message).is_err());
        }
    }
}
