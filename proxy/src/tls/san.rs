//! Which subject alternative names are wanted: `match_typed_subject_alt_names`, and the names that automatic
//! validation asks for.

use nuncio_api::pb::envoy::extensions::transport_sockets::tls::v3::{self as pb, subject_alt_name_matcher::SanType};
use nuncio_api::pb::envoy::r#type::matcher::v3::{StringMatcher as StringMatcherProto, string_matcher::MatchPattern};
use nuncio_core::error::ConfigError;
use nuncio_core::matcher::StringMatcher;

use super::certificate::SubjectName;

/// One of the matchers of which any may match.
#[derive(Debug, Clone)]
pub(super) struct SanMatcher {
    kind: SanType,
    /// For other names.
    oid: String,
    /// An exact DNS name: then a wildcard in the certificate counts.
    host: Option<String>,
    matcher: StringMatcher,
}

impl SanMatcher {
    pub(super) fn from_proto(message: &pb::SubjectAltNameMatcher) -> Result<Self, ConfigError> {
        let matcher = message.matcher.clone().unwrap_or_default();
        let kind = message.san_type();
        if kind == SanType::Unspecified {
            return Err(ConfigError::new("san_type", "must be one of EMAIL, DNS, URI, IP_ADDRESS, OTHER_NAME"));
        }
        if kind == SanType::OtherName && message.oid.is_empty() {
            return Err(ConfigError::new("oid", "is required for OTHER_NAME"));
        }
        Self::new(kind, message.oid.clone(), &matcher).map_err(|e| e.within("matcher"))
    }

    /// The deprecated form is all types at once.
    pub(super) fn untyped(matcher: &StringMatcherProto) -> Result<Vec<Self>, ConfigError> {
        let kinds = [SanType::Dns, SanType::Uri, SanType::Email, SanType::IpAddress];
        kinds.into_iter().map(|kind| Self::new(kind, String::new(), matcher)).collect()
    }

    fn new(kind: SanType, oid: String, matcher: &StringMatcherProto) -> Result<Self, ConfigError> {
        let host = match &matcher.match_pattern {
            Some(MatchPattern::Exact(host)) if kind == SanType::Dns => Some(host.clone()),
            _ => None,
        };
        Ok(Self { kind, oid, host, matcher: StringMatcher::from_proto(matcher)? })
    }

    pub(super) fn matches(&self, name: &SubjectName) -> bool {
        let right_kind = match name {
            SubjectName::Dns(_) => self.kind == SanType::Dns,
            SubjectName::Uri(_) => self.kind == SanType::Uri,
            SubjectName::Ip(_) => self.kind == SanType::IpAddress,
            SubjectName::Email(_) => self.kind == SanType::Email,
            SubjectName::Other(oid, _) => self.kind == SanType::OtherName && *oid == self.oid,
        };
        right_kind
            && match &self.host {
                Some(host) => dns_matches(host, name.text()),
                None => self.matcher.matches(name.text().as_bytes()),
            }
    }
}

/// Whether a name of the certificate is one that was asked for by its plain text.
pub(super) fn is_expected(expected: &str, name: &SubjectName) -> bool {
    match name {
        SubjectName::Dns(pattern) => dns_matches(expected, pattern),
        SubjectName::Uri(text) | SubjectName::Ip(text) => text == expected,
        SubjectName::Email(_) | SubjectName::Other(..) => false,
    }
}

/// A host name against a name of a certificate, which may have one `*` in its first label.
pub(super) fn dns_matches(host: &str, pattern: &str) -> bool {
    if host.eq_ignore_ascii_case(pattern) {
        return true;
    }
    let (Some((host_label, host_rest)), Some((label, rest))) = (host.split_once('.'), pattern.split_once('.')) else {
        return false;
    };
    let Some((before, after)) = label.split_once('*') else { return false };
    // An internationalized label is compared whole: its encoding has no parts.
    let encoded = |label: &str| label.get(..4).is_some_and(|start| start.eq_ignore_ascii_case("xn--"));
    !after.contains('*')
        && rest.contains('.')
        && host_rest.eq_ignore_ascii_case(rest)
        && host_label.len() > before.len() + after.len()
        && (label == "*" || !(encoded(label) || encoded(host_label)))
        && host_label.get(..before.len()).is_some_and(|start| start.eq_ignore_ascii_case(before))
        && host_label.get(host_label.len() - after.len()..).is_some_and(|end| end.eq_ignore_ascii_case(after))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wildcard_stands_for_part_of_one_label() {
        for (host, pattern) in [
            ("a.example.com", "*.example.com"),
            ("A.Example.com", "*.exAmple.com"),
            ("www1.example.com", "www*.example.com"),
            ("a.test", "a.test"),
        ] {
            assert!(dns_matches(host, pattern), "{host} {pattern}");
        }
        for (host, pattern) in [
            ("a.b.example.com", "*.example.com"),
            ("example.com", "*.example.com"),
            (".example.com", "*.example.com"),
            ("a.test", "*.test"),
            ("www.example.com", "www*.example.com"),
            ("xn--abc.example.com", "xn--*.example.com"),
            ("a.example.com", "**.example.com"),
            ("a.example.com", "a.*.com"),
        ] {
            assert!(!dns_matches(host, pattern), "{host} {pattern}");
        }
    }

    #[test]
    fn a_matcher_looks_at_names_of_its_type_only() {
        let message = pb::SubjectAltNameMatcher {
            san_type: SanType::Uri as i32,
            matcher: Some(StringMatcherProto {
                match_pattern: Some(MatchPattern::Prefix("spiffe://a/".into())),
                ..Default::default()
            }),
            ..Default::default()
        };
        let matcher = SanMatcher::from_proto(&message).unwrap();
        assert!(matcher.matches(&SubjectName::Uri("spiffe://a/b".into())));
        assert!(!matcher.matches(&SubjectName::Uri("spiffe://b/b".into())));
        assert!(!matcher.matches(&SubjectName::Dns("spiffe://a/b".into())));
    }
}
