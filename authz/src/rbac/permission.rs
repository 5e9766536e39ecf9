//! What is done: the first half of a policy.

use nuncio_api::pb::envoy::config::rbac::v3::{Permission, permission::Rule as Kind};
use nuncio_api::supports;
use nuncio_core::error::ConfigError;
use nuncio_core::matcher::{StringMatcher, UriTemplate};
use nuncio_core::typed::unknown;

use super::attributes::AddressOf;
use super::rule::{Rule, Test};

supports!(pub(super) PERMISSION = "envoy.config.rbac.v3.Permission" {
    and_rules, or_rules, any, header, url_path, destination_ip, destination_port, destination_port_range, metadata,
    not_rule, requested_server_name, sourced_metadata, uri_template
});
supports!(pub(super) SET = "envoy.config.rbac.v3.Permission.Set" { rules });
supports!(pub(super) PORTS = "envoy.type.v3.Int32Range" { start, end });

pub(super) fn rule(proto: &Permission, depth: usize) -> Result<Rule, ConfigError> {
    Ok(match proto.rule.as_ref().ok_or_else(|| ConfigError::new("rule", "value is required"))? {
        Kind::AndRules(set) => Rule::Every(Rule::list("and_rules.rules", &set.rules, depth, rule)?),
        Kind::OrRules(set) => Rule::Some(Rule::list("or_rules.rules", &set.rules, depth, rule)?),
        Kind::NotRule(inner) => {
            let inner = Rule::list("not_rule", std::slice::from_ref(&**inner), depth, rule)?;
            Rule::Not(Box::new(Rule::Every(inner)))
        }
        Kind::Any(_) => Rule::Always,
        Kind::Header(header) => Rule::header(header)?,
        Kind::UrlPath(path) => Rule::path(path)?,
        Kind::DestinationIp(range) => Rule::address("destination_ip", AddressOf::Destination, range)?,
        Kind::DestinationPort(port) => Rule::Test(Test::Ports(i64::from(*port), i64::from(*port) + 1)),
        Kind::DestinationPortRange(range) => {
            if range.start < 0 || range.end > 65536 || range.start >= range.end {
                let reason = format!("[{}, {}) is no range of ports", range.start, range.end);
                return Err(ConfigError::new("destination_port_range", reason));
            }
            Rule::Test(Test::Ports(range.start.into(), range.end.into()))
        }
        #[allow(deprecated)]
        Kind::Metadata(metadata) => Rule::metadata(metadata)?,
        Kind::SourcedMetadata(metadata) => Rule::sourced_metadata(metadata)?,
        Kind::RequestedServerName(name) => Rule::Test(Test::ServerName(
            StringMatcher::from_proto(name).map_err(|e| e.within("requested_server_name"))?,
        )),
        Kind::UriTemplate(template) => {
            let template = UriTemplate::from_extension(template).map_err(|e| e.within("uri_template"))?;
            Rule::Test(Test::Template(Box::new(template)))
        }
        // Envoy's only one looks at an address that a filter which is not here has left.
        Kind::Matcher(extension) => {
            return Err(unknown(&extension.name, &extension.typed_config.clone().unwrap_or_default()).within("matcher"));
        }
    })
}
