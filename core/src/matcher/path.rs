//! `type.matcher.v3.PathMatcher`: a string test of the path without query and fragment.

use nuncio_api::pb::envoy::r#type::matcher::v3::{self as pb, path_matcher::Rule};
use nuncio_api::supports;

use super::string::StringMatcher;
use crate::error::ConfigError;

supports!(pub(super) PATH = "envoy.type.matcher.v3.PathMatcher" { path });

#[derive(Debug, Clone)]
pub struct PathMatcher(StringMatcher);

impl PathMatcher {
    pub fn from_proto(message: &pb::PathMatcher) -> Result<Self, ConfigError> {
        match &message.rule {
            Some(Rule::Path(m)) => StringMatcher::from_proto(m).map(Self).map_err(|e| e.within("path")),
            None => Err(ConfigError::new("rule", "value is required")),
        }
    }

    /// `path` is the whole `:path`.
    pub fn matches(&self, path: &[u8]) -> bool {
        self.0.matches(without_query(path))
    }
}

/// Up to `?` or `#`.
#[inline]
pub fn without_query(path: &[u8]) -> &[u8] {
    match memchr::memchr2(b'?', b'#', path) {
        Some(end) => &path[..end],
        None => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_and_fragment_are_not_part_of_the_path() {
        let matcher = PathMatcher(StringMatcher::exact("/a"));
        for path in ["/a", "/a?b", "/a#b", "/a?b#c"] {
            assert!(matcher.matches(path.as_bytes()), "{path}");
        }
        assert!(!matcher.matches(b"/a/"));
    }
}
