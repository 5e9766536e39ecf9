//! Cookies of a request: the first of a name counts, quotes around its value do not (as in Envoy).

use nuncio_api::pb::envoy::config::route::v3 as pb;
use nuncio_api::supports;

use super::string::StringMatcher;
use crate::error::ConfigError;
use crate::http::HeaderMap;

supports!(pub(super) COOKIE = "envoy.config.route.v3.CookieMatcher" { name, string_match, invert_match });

/// `config.route.v3.CookieMatcher`.
#[derive(Debug, Clone)]
pub struct CookieMatcher {
    name: Box<[u8]>,
    value: StringMatcher,
    invert: bool,
}

impl CookieMatcher {
    pub fn from_proto(message: &pb::CookieMatcher) -> Result<Self, ConfigError> {
        let Some(value) = &message.string_match else {
            return Err(ConfigError::new("string_match", "value is required"));
        };
        Ok(Self {
            name: message.name.as_bytes().into(),
            value: StringMatcher::from_proto(value).map_err(|e| e.within("string_match"))?,
            invert: message.invert_match,
        })
    }

    pub fn matches(&self, headers: &HeaderMap) -> bool {
        cookie(headers, &self.name).is_some_and(|v| self.value.matches(v)) != self.invert
    }
}

/// The value of the first cookie called `name`.
pub fn cookie<'a>(headers: &'a HeaderMap, name: &[u8]) -> Option<&'a [u8]> {
    headers.get_all("cookie").flat_map(|line| line.split(|b| *b == b';')).find_map(|pair| {
        let pair = pair.trim_ascii_start();
        let value = pair.strip_prefix(name)?.strip_prefix(b"=")?;
        let unquoted = value.strip_prefix(b"\"").and_then(|v| v.strip_suffix(b"\""));
        Some(unquoted.unwrap_or(value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_cookie_of_a_name_counts_without_its_quotes() {
        let value = |line: &str| {
            let headers: HeaderMap = [("cookie", line)].into_iter().collect();
            cookie(&headers, b"a").map(|v| String::from_utf8_lossy(v).into_owned())
        };
        assert_eq!(value("a=c; a=b").as_deref(), Some("c"));
        assert_eq!(value("x=1; a=b").as_deref(), Some("b"));
        assert_eq!(value("a=\"b\"").as_deref(), Some("b"));
        assert_eq!(value("aa=1;ba=2"), None);
        let two: HeaderMap = [("cookie", "x=1"), ("cookie", "a=2")].into_iter().collect();
        assert_eq!(cookie(&two, b"a"), Some(&b"2"[..]));
    }
}
