//! Names of a certificate beside the ones that are wanted: `match_typed_subject_alt_names`, and the names that automatic
//! validation asks for.

use nuncio_api::pb::envoy::extensions::transport_sockets::tls::v3::subject_alt_name_matcher::SanType;
use nuncio_core::matcher::SanMatcher;
use nuncio_core::matcher::san::dns_matches;

use super::certificate::SubjectName;

pub(super) fn matches(matcher: &SanMatcher, name: &SubjectName) -> bool {
    let (kind, oid) = match name {
        SubjectName::Dns(_) => (SanType::Dns, ""),
        SubjectName::Uri(_) => (SanType::Uri, ""),
        SubjectName::Ip(_) => (SanType::IpAddress, ""),
        SubjectName::Email(_) => (SanType::Email, ""),
        SubjectName::Other(oid, _) => (SanType::OtherName, &**oid),
    };
    matcher.matches(kind, oid, name.text())
}

/// Whether a name of the certificate is one that was asked for by its plain text.
pub(super) fn is_expected(expected: &str, name: &SubjectName) -> bool {
    match name {
        SubjectName::Dns(pattern) => dns_matches(expected, pattern),
        SubjectName::Uri(text) | SubjectName::Ip(text) => text == expected,
        SubjectName::Email(_) | SubjectName::Other(..) => false,
    }
}
