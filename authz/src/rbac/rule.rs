//! Boolean rules over tests of attributes: what permissions and principals have in common.

use nuncio_api::pb::envoy::config::core::v3::CidrRange;
use nuncio_api::pb::envoy::config::rbac::v3::{MetadataSource, SourcedMetadata};
use nuncio_api::pb::envoy::config::route::v3::HeaderMatcher as ProtoHeader;
use nuncio_api::pb::envoy::r#type::matcher::v3::{MetadataMatcher as ProtoMetadata, PathMatcher as ProtoPath};
use nuncio_api::supports;
use nuncio_core::error::ConfigError;
use nuncio_core::matcher::path::without_query;
use nuncio_core::matcher::{
    CidrList, FilterStateMatcher, HeaderMatcher, MetadataMatcher, PathMatcher, SanMatcher, StringMatcher, UriTemplate,
};
use nuncio_core::net::PeerCertificate;

use super::attributes::{AddressOf, Attributes};

supports!(pub(super) SOURCED = "envoy.config.rbac.v3.SourcedMetadata" { metadata_matcher, metadata_source });

/// How deep rules may nest in a configuration.
const MAX_DEPTH: usize = 64;

#[derive(Debug)]
pub(super) enum Rule {
    Every(Vec<Rule>),
    Some(Vec<Rule>),
    Not(Box<Rule>),
    Always,
    Test(Test),
}

/// One question about the attributes. What is not there matches nothing.
#[derive(Debug)]
pub(super) enum Test {
    Header(HeaderMatcher),
    Path(PathMatcher),
    Template(Box<UriTemplate>),
    Address(AddressOf, CidrList),
    /// Half open.
    Ports(i64, i64),
    ServerName(StringMatcher),
    Metadata(MetadataMatcher),
    RouteMetadata(MetadataMatcher),
    FilterState(FilterStateMatcher),
    /// A client that TLS let pass, of that name if one is given.
    Authenticated(Option<StringMatcher>),
    /// A client whose certificate was verified, of that name if one is given.
    Verified(Option<SanMatcher>),
}

impl Rule {
    pub(super) fn matches(&self, attributes: &Attributes<'_>) -> bool {
        match self {
            Self::Every(rules) => rules.iter().all(|rule| rule.matches(attributes)),
            Self::Some(rules) => rules.iter().any(|rule| rule.matches(attributes)),
            Self::Not(rule) => !rule.matches(attributes),
            Self::Always => true,
            Self::Test(test) => test.matches(attributes),
        }
    }

    /// A list inside a rule, at most so deep.
    pub(super) fn list<P>(
        field: &str,
        protos: &[P],
        depth: usize,
        read: impl Fn(&P, usize) -> Result<Self, ConfigError>,
    ) -> Result<Vec<Self>, ConfigError> {
        if depth > MAX_DEPTH {
            return Err(ConfigError::new(field, "rules are nested too deeply"));
        }
        let at = |(i, proto)| read(proto, depth + 1).map_err(|e| e.within(&format!("{field}[{i}]")));
        protos.iter().enumerate().map(at).collect()
    }

    pub(super) fn header(proto: &ProtoHeader) -> Result<Self, ConfigError> {
        Ok(Self::Test(Test::Header(HeaderMatcher::from_proto(proto).map_err(|e| e.within("header"))?)))
    }

    pub(super) fn path(proto: &ProtoPath) -> Result<Self, ConfigError> {
        Ok(Self::Test(Test::Path(PathMatcher::from_proto(proto).map_err(|e| e.within("url_path"))?)))
    }

    pub(super) fn address(field: &str, which: AddressOf, proto: &CidrRange) -> Result<Self, ConfigError> {
        let list = CidrList::from_proto(std::slice::from_ref(proto)).map_err(|e| e.within(field))?;
        Ok(Self::Test(Test::Address(which, list)))
    }

    pub(super) fn metadata(proto: &ProtoMetadata) -> Result<Self, ConfigError> {
        Ok(Self::Test(Test::Metadata(MetadataMatcher::from_proto(proto).map_err(|e| e.within("metadata"))?)))
    }

    pub(super) fn sourced_metadata(proto: &SourcedMetadata) -> Result<Self, ConfigError> {
        let required = || ConfigError::new("sourced_metadata.metadata_matcher", "value is required");
        let matcher = MetadataMatcher::from_proto(proto.metadata_matcher.as_ref().ok_or_else(required)?);
        let matcher = matcher.map_err(|e| e.within("sourced_metadata.metadata_matcher"))?;
        Ok(Self::Test(match proto.metadata_source() {
            MetadataSource::Dynamic => Test::Metadata(matcher),
            MetadataSource::Route => Test::RouteMetadata(matcher),
        }))
    }
}

impl Test {
    fn matches(&self, attributes: &Attributes<'_>) -> bool {
        match self {
            Self::Header(matcher) => attributes.headers.is_some_and(|headers| matcher.matches(headers)),
            Self::Path(matcher) => attributes.path.is_some_and(|path| matcher.matches(path)),
            Self::Template(template) => attributes.path.is_some_and(|path| template.matches(without_query(path))),
            Self::Address(which, list) => attributes.ip(*which).is_some_and(|ip| list.matches(ip)),
            Self::Ports(start, end) => {
                attributes.connection.local.port().is_some_and(|port| (*start..*end).contains(&i64::from(port)))
            }
            Self::ServerName(matcher) => {
                let name = attributes.connection.requested_server_name.as_deref().unwrap_or_default();
                matcher.matches(name.as_bytes())
            }
            Self::Metadata(matcher) => matcher.matches(attributes.metadata),
            Self::RouteMetadata(matcher) => attributes.route_metadata.is_some_and(|metadata| matcher.matches(metadata)),
            Self::FilterState(matcher) => {
                attributes.filter_state.iter().flatten().any(|filter_state| matcher.matches(filter_state))
            }
            Self::Authenticated(name) => is_authenticated(name.as_ref(), attributes),
            Self::Verified(name) => is_verified(name.as_ref(), attributes),
        }
    }
}

/// URI names are tried first, then DNS names, then the subject. As in Envoy a client without a certificate, where TLS
/// demands none, is somebody with an empty subject.
fn is_authenticated(name: Option<&StringMatcher>, attributes: &Attributes<'_>) -> bool {
    let Some(tls) = &attributes.connection.tls else { return false };
    let Some(name) = name else { return true };
    let Some(peer) = &tls.peer else { return name.matches(b"") };
    let mut sans = peer.uri_sans.iter().chain(&peer.dns_sans);
    sans.any(|san| name.matches(san.as_bytes())) || name.matches(peer.subject.as_bytes())
}

fn is_verified(name: Option<&SanMatcher>, attributes: &Attributes<'_>) -> bool {
    let of = |peer: &PeerCertificate| name.is_none_or(|name| name.matches_any_name(peer));
    attributes.connection.tls.as_ref().is_some_and(|tls| tls.peer_validated && tls.peer.as_deref().is_some_and(of))
}
