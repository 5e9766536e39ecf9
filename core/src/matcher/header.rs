//! `config.route.v3.HeaderMatcher`.
//!
//! A field with several values is looked at value by value, and one hit is enough; an inverted
//! matcher therefore needs that no value matches. So Envoy 1.40 does for routes and RBAC alike
//! (observed; until 1.37 it joined the values with commas, CVE-2026-26308). A missing field never
//! matches a value test, not even inverted, unless `treat_missing_header_as_empty`.

// Envoy still reads the deprecated forms, so configurations still use them.
#![allow(deprecated)]

use nuncio_api::pb::envoy::config::route::v3::{self as pb, header_matcher::HeaderMatchSpecifier};
use nuncio_api::supports;

use super::regex::Regex;
use super::string::StringMatcher;
use crate::error::ConfigError;
use crate::http::HeaderMap;

supports!(pub(super) HEADER = "envoy.config.route.v3.HeaderMatcher" {
    name, exact_match, safe_regex_match, range_match, present_match, prefix_match, suffix_match, contains_match,
    string_match, invert_match, treat_missing_header_as_empty
});
supports!(pub(super) INT64_RANGE = "envoy.type.v3.Int64Range" { start, end });

/// One test of one header field.
#[derive(Debug, Clone)]
pub struct HeaderMatcher {
    name: Box<str>,
    test: Test,
    invert: bool,
    missing_as_empty: bool,
}

#[derive(Debug, Clone)]
enum Test {
    Present(bool),
    /// Half open, as in Envoy.
    Range(i64, i64),
    Value(StringMatcher),
}

impl HeaderMatcher {
    pub fn from_proto(message: &pb::HeaderMatcher) -> Result<Self, ConfigError> {
        use HeaderMatchSpecifier as S;
        let test = match &message.header_match_specifier {
            None => Test::Present(true),
            Some(S::PresentMatch(present)) => Test::Present(*present),
            Some(S::RangeMatch(r)) => Test::Range(r.start, r.end),
            Some(S::ExactMatch(s)) => Test::Value(StringMatcher::exact(s)),
            Some(S::PrefixMatch(s)) => Test::Value(StringMatcher::prefix(s)),
            Some(S::SuffixMatch(s)) => Test::Value(StringMatcher::suffix(s)),
            Some(S::ContainsMatch(s)) => Test::Value(StringMatcher::contains(s)),
            Some(S::SafeRegexMatch(r)) => {
                Test::Value(StringMatcher::regex(Regex::from_proto(r).map_err(|e| e.within("safe_regex_match"))?))
            }
            Some(S::StringMatch(m)) => Test::Value(StringMatcher::from_proto(m).map_err(|e| e.within("string_match"))?),
        };
        Ok(Self {
            name: lookup_name(&message.name).into(),
            test,
            invert: message.invert_match,
            missing_as_empty: message.treat_missing_header_as_empty,
        })
    }

    /// Compiles a list; paths of errors begin with the index.
    pub fn list(messages: &[pb::HeaderMatcher]) -> Result<Vec<Self>, ConfigError> {
        messages.iter().enumerate().map(|(i, m)| Self::from_proto(m).map_err(|e| e.within(&format!("[{i}]")))).collect()
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn matches(&self, headers: &HeaderMap) -> bool {
        if let Test::Present(wanted) = self.test {
            // Counted as empty, a missing field is there.
            let present = self.missing_as_empty || headers.contains(&self.name);
            return (present == wanted) != self.invert;
        }
        let mut values = headers.get_all(&self.name).peekable();
        if values.peek().is_none() {
            return self.missing_as_empty && self.test_value(b"") != self.invert;
        }
        values.any(|v| self.test_value(v)) != self.invert
    }

    fn test_value(&self, value: &[u8]) -> bool {
        match &self.test {
            Test::Present(wanted) => *wanted,
            Test::Range(start, end) => integer(value).is_some_and(|n| (*start..*end).contains(&n)),
            Test::Value(matcher) => matcher.matches(value),
        }
    }
}

/// The name under which a head keeps the field: lower case, `host` as `:authority`.
pub fn lookup_name(name: &str) -> String {
    let name = name.to_ascii_lowercase();
    if name == "host" { ":authority".to_owned() } else { name }
}

/// A whole decimal number with an optional sign, surrounded by blanks at most.
fn integer(value: &[u8]) -> Option<i64> {
    std::str::from_utf8(value.trim_ascii()).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matcher(name: &str, specifier: Option<HeaderMatchSpecifier>) -> pb::HeaderMatcher {
        pb::HeaderMatcher { name: name.into(), header_match_specifier: specifier, ..Default::default() }
    }

    fn run(message: &pb::HeaderMatcher, fields: &[(&str, &str)]) -> bool {
        HeaderMatcher::from_proto(message).unwrap().matches(&fields.iter().copied().collect())
    }

    // The expectations of this module were read off Envoy 1.40 with routes.

    #[test]
    fn any_of_several_values_is_enough_and_values_are_not_joined() {
        let one = matcher("x-a", Some(HeaderMatchSpecifier::ExactMatch("one".into())));
        let joined = matcher("X-A", Some(HeaderMatchSpecifier::ExactMatch("one,two".into())));
        assert!(run(&one, &[("x-a", "one"), ("x-a", "two")]));
        assert!(run(&one, &[("x-a", "zero"), ("x-a", "one")]));
        assert!(!run(&joined, &[("x-a", "one"), ("x-a", "two")]));
        assert!(run(&joined, &[("x-a", "one,two")]));
    }

    #[test]
    fn an_inverted_matcher_needs_the_field_and_no_value_that_matches() {
        let not_one = pb::HeaderMatcher {
            invert_match: true,
            ..matcher("x-a", Some(HeaderMatchSpecifier::ExactMatch("one".into())))
        };
        assert!(!run(&not_one, &[("x-a", "one"), ("x-a", "two")]));
        assert!(run(&not_one, &[("x-a", "two"), ("x-a", "three")]));
        assert!(!run(&not_one, &[]));
        let empty_too = pb::HeaderMatcher { treat_missing_header_as_empty: true, ..not_one };
        assert!(run(&empty_too, &[]));
        assert!(!run(&empty_too, &[("x-a", "one")]));
    }

    #[test]
    fn ranges_are_half_open_and_need_a_whole_number() {
        use nuncio_api::pb::envoy::r#type::v3::Int64Range;
        let range = matcher("x-n", Some(HeaderMatchSpecifier::RangeMatch(Int64Range { start: 1, end: 5 })));
        for (value, expected) in [("3", true), ("+3", true), ("03", true), ("5", false), ("1", true), ("3a", false)] {
            assert_eq!(run(&range, &[("x-n", value)]), expected, "{value}");
        }
        assert!(run(&range, &[("x-n", "9"), ("x-n", "3")]));
        assert!(!run(&pb::HeaderMatcher { treat_missing_header_as_empty: true, ..range }, &[]));
    }

    #[test]
    fn presence_may_be_asked_for_or_refused() {
        let absent = matcher("x-a", Some(HeaderMatchSpecifier::PresentMatch(false)));
        assert!(run(&absent, &[]));
        assert!(!run(&absent, &[("x-a", "")]));
        let empty_too = |m: pb::HeaderMatcher| pb::HeaderMatcher { treat_missing_header_as_empty: true, ..m };
        assert!(!run(&empty_too(absent), &[]));
        let unsaid = matcher("x-a", None);
        assert!(run(&empty_too(unsaid.clone()), &[]));
        assert!(run(&unsaid, &[("x-a", "")]));
        assert!(!run(&unsaid, &[]));
    }

    #[test]
    fn host_is_the_authority() {
        assert!(run(
            &matcher("Host", Some(HeaderMatchSpecifier::SuffixMatch(".alt".into()))),
            &[(":authority", "z.alt")]
        ));
    }
}
