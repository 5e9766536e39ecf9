//! By whom: the second half of a policy.

use nuncio_api::pb::envoy::config::rbac::v3::{Principal, principal::Identifier as Kind};
use nuncio_api::pb::envoy::extensions::rbac::principals::mtls_authenticated::v3::Config as MtlsAuthenticated;
use nuncio_api::supports;
use nuncio_core::error::ConfigError;
use nuncio_core::matcher::{FilterStateMatcher, SanMatcher, StringMatcher};
use nuncio_core::typed;

use super::attributes::AddressOf;
use super::rule::{Rule, Test};

supports!(pub(super) PRINCIPAL = "envoy.config.rbac.v3.Principal" {
    and_ids, or_ids, any, authenticated, source_ip, direct_remote_ip, remote_ip, header, url_path, metadata,
    filter_state, not_id, sourced_metadata, custom
});
supports!(pub(super) SET = "envoy.config.rbac.v3.Principal.Set" { ids });
supports!(pub(super) MTLS = "envoy.extensions.rbac.principals.mtls_authenticated.v3.Config" {
    san_matcher, any_validated_client_certificate
});
supports!(pub(super) AUTHENTICATED = "envoy.config.rbac.v3.Principal.Authenticated" { principal_name });

pub(super) fn rule(proto: &Principal, depth: usize) -> Result<Rule, ConfigError> {
    Ok(match proto.identifier.as_ref().ok_or_else(|| ConfigError::new("identifier", "value is required"))? {
        Kind::AndIds(set) => Rule::Every(Rule::list("and_ids.ids", &set.ids, depth, rule)?),
        Kind::OrIds(set) => Rule::Some(Rule::list("or_ids.ids", &set.ids, depth, rule)?),
        Kind::NotId(inner) => {
            let inner = Rule::list("not_id", std::slice::from_ref(&**inner), depth, rule)?;
            Rule::Not(Box::new(Rule::Every(inner)))
        }
        Kind::Any(_) => Rule::Always,
        Kind::Authenticated(authenticated) => {
            let name = authenticated.principal_name.as_ref().map(StringMatcher::from_proto).transpose();
            Rule::Test(Test::Authenticated(name.map_err(|e| e.within("authenticated.principal_name"))?))
        }
        #[allow(deprecated)]
        Kind::SourceIp(range) => Rule::address("source_ip", AddressOf::Connection, range)?,
        Kind::DirectRemoteIp(range) => Rule::address("direct_remote_ip", AddressOf::Direct, range)?,
        Kind::RemoteIp(range) => Rule::address("remote_ip", AddressOf::Client, range)?,
        Kind::Header(header) => Rule::header(header)?,
        Kind::UrlPath(path) => Rule::path(path)?,
        #[allow(deprecated)]
        Kind::Metadata(metadata) => Rule::metadata(metadata)?,
        Kind::SourcedMetadata(metadata) => Rule::sourced_metadata(metadata)?,
        Kind::FilterState(matcher) => Rule::Test(Test::FilterState(
            FilterStateMatcher::from_proto(matcher).map_err(|e| e.within("filter_state"))?,
        )),
        Kind::Custom(extension) => {
            let proto = typed::decode(extension).map_err(|e| e.within("custom"))?;
            Rule::Test(validated(&proto).map_err(|e| e.within("custom.typed_config"))?)
        }
    })
}

/// A name, if there is one, is what counts.
fn validated(proto: &MtlsAuthenticated) -> Result<Test, ConfigError> {
    let name = proto.san_matcher.as_ref().map(SanMatcher::from_proto).transpose();
    let name = name.map_err(|e| e.within("san_matcher"))?;
    if name.is_none() && !proto.any_validated_client_certificate {
        return Err(ConfigError::new("", "san_matcher or any_validated_client_certificate must be set"));
    }
    Ok(Test::Verified(name))
}
