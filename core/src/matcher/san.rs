//! `SubjectAltNameMatcher`: which names of a certificate are wanted.

use nuncio_api::pb::envoy::extensions::transport_sockets::tls::v3::{self as pb, subject_alt_name_matcher::SanType};
use nuncio_api::pb::envoy::r#type::matcher::v3::{StringMatcher as StringMatcherProto, string_matcher::MatchPattern};
use nuncio_api::supports;

use super::StringMatcher;
use crate::error::ConfigError;
use crate::net::PeerCertificate;

supports!(pub(super) SAN = "envoy.extensions.transport_sockets.tls.v3.SubjectAltNameMatcher" { san_type, matcher, oid });

/// One of the matchers of which any may match.
#[derive(Debug, Clone)]
pub struct SanMatcher {
    kind: SanType,
    /// For other names.
    oid: String,
    /// An exact DNS name: then a wildcard in the certificate counts.
    host: Option<String>,
    matcher: StringMatcher,
}

impl SanMatcher {
    pub fn from_proto(message: &pb::SubjectAltNameMatcher) -> Result<Self, ConfigError> {
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
    pub fn untyped(matcher: &StringMatcherProto) -> Result<Vec<Self>, ConfigError> {
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

    /// `oid` is looked at for other names only.
    pub fn matches(&self, kind: SanType, oid: &str, name: &str) -> bool {
        kind == self.kind
            && (kind != SanType::OtherName || oid == self.oid)
            && match &self.host {
                Some(host) => dns_matches(host, name),
                None => self.matcher.matches(name.as_bytes()),
            }
    }

    pub fn matches_any_name(&self, certificate: &PeerCertificate) -> bool {
        let names = match self.kind {
            SanType::Uri => &certificate.uri_sans,
            SanType::Dns => &certificate.dns_sans,
            SanType::Email => &certificate.email_sans,
            SanType::IpAddress => &certificate.ip_sans,
            SanType::OtherName => {
                return certificate.other_name_sans.iter().any(|(oid, name)| self.matches(self.kind, oid, name));
            }
            SanType::Unspecified => return false,
        };
        names.iter().any(|name| self.matches(self.kind, "", name))
    }
}

/// A host name against a name of a certificate, which may have one `*` in its first label.
pub fn dns_matches(host: &str, pattern: &str) -> bool {
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

    fn prefix(san_type: SanType, oid: &str, prefix: &str) -> SanMatcher {
        let pattern = Some(MatchPattern::Prefix(prefix.into()));
        let matcher = Some(StringMatcherProto { match_pattern: pattern, ..Default::default() });
        let message = pb::SubjectAltNameMatcher { san_type: san_type as i32, matcher, oid: oid.into() };
        SanMatcher::from_proto(&message).unwrap()
    }

    #[test]
    fn a_matcher_looks_at_names_of_its_type_only() {
        let matcher = prefix(SanType::Uri, "", "spiffe://a/");
        assert!(matcher.matches(SanType::Uri, "", "spiffe://a/b"));
        assert!(!matcher.matches(SanType::Uri, "", "spiffe://b/b"));
        assert!(!matcher.matches(SanType::Dns, "", "spiffe://a/b"));
    }

    #[test]
    fn each_list_of_a_certificate_is_asked_for_its_own_type() {
        let names = |name: &str| vec![name.to_owned()];
        let certificate = PeerCertificate {
            uri_sans: names("uri"),
            dns_sans: names("dns"),
            email_sans: names("email"),
            ip_sans: names("ip"),
            other_name_sans: vec![("1.2".into(), "other".into())],
            ..PeerCertificate::default()
        };
        let kinds = [
            (SanType::Uri, "uri"),
            (SanType::Dns, "dns"),
            (SanType::Email, "email"),
            (SanType::IpAddress, "ip"),
            (SanType::OtherName, "other"),
        ];
        for (kind, name) in kinds {
            for (_, other) in kinds {
                assert_eq!(
                    prefix(kind, "1.2", other).matches_any_name(&certificate),
                    name == other,
                    "{kind:?} {other}"
                );
            }
        }
        assert!(!prefix(SanType::OtherName, "1.3", "other").matches_any_name(&certificate));
    }
}
