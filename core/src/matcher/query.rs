//! Query parameters, taken from the path as they are: no decoding, first value only, as Envoy does.

use nuncio_api::pb::envoy::config::route::v3::{
    self as pb, query_parameter_matcher::QueryParameterMatchSpecifier as Specifier,
};
use nuncio_api::supports;

use super::string::StringMatcher;
use crate::error::ConfigError;

supports!(pub(super) QUERY = "envoy.config.route.v3.QueryParameterMatcher" { name, string_match, present_match });

/// `config.route.v3.QueryParameterMatcher`.
#[derive(Debug, Clone)]
pub struct QueryParameterMatcher {
    name: Box<[u8]>,
    test: Test,
}

#[derive(Debug, Clone)]
enum Test {
    Present(bool),
    Value(StringMatcher),
}

impl QueryParameterMatcher {
    pub fn from_proto(message: &pb::QueryParameterMatcher) -> Result<Self, ConfigError> {
        let test = match &message.query_parameter_match_specifier {
            None => Test::Present(true),
            Some(Specifier::PresentMatch(present)) => Test::Present(*present),
            Some(Specifier::StringMatch(m)) => {
                Test::Value(StringMatcher::from_proto(m).map_err(|e| e.within("string_match"))?)
            }
        };
        Ok(Self { name: message.name.as_bytes().into(), test })
    }

    /// `path` is the whole `:path`.
    pub fn matches(&self, path: &[u8]) -> bool {
        let value = query_parameter(path, &self.name);
        match &self.test {
            Test::Present(wanted) => value.is_some() == *wanted,
            Test::Value(matcher) => value.is_some_and(|v| matcher.matches(v)),
        }
    }
}

/// The first value of parameter `name` in the query of `path`; empty for one without `=`.
pub fn query_parameter<'a>(path: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let start = memchr::memchr(b'?', path)? + 1;
    path[start..].split(|b| *b == b'&').find_map(|parameter| {
        let rest = parameter.strip_prefix(name)?;
        match rest.first() {
            None => Some(rest),
            Some(b'=') => Some(&rest[1..]),
            Some(_) => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_value_counts_and_names_are_whole() {
        assert_eq!(query_parameter(b"/?q=v2&q=v", b"q"), Some(&b"v2"[..]));
        assert_eq!(query_parameter(b"/?a=b&q=v", b"q"), Some(&b"v"[..]));
        assert_eq!(query_parameter(b"/?flag", b"flag"), Some(&b""[..]));
        assert_eq!(query_parameter(b"/?xflag&flagx", b"flag"), None);
        assert_eq!(query_parameter(b"/q=1", b"q"), None);
        assert_eq!(query_parameter(b"/?q=%76", b"q"), Some(&b"%76"[..]));
    }

    #[test]
    fn absence_can_be_asked_for() {
        let absent = QueryParameterMatcher::from_proto(&pb::QueryParameterMatcher {
            name: "a".into(),
            query_parameter_match_specifier: Some(Specifier::PresentMatch(false)),
        })
        .unwrap();
        assert!(absent.matches(b"/q?b=a"));
        assert!(!absent.matches(b"/q?a"));
    }
}
