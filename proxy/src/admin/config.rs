//! `admin` of the bootstrap: where the interface listens, and who may ask what.

use nuncio_api::pb::envoy::config::bootstrap::v3 as pb;
use nuncio_api::support::Entry;
use nuncio_api::supports;
use nuncio_core::error::ConfigError;
use nuncio_core::matcher::StringMatcher;
use nuncio_core::net::Address;

use super::AllowPath;
use crate::net::{BindOptions, options};

supports!(ADMIN = "envoy.config.bootstrap.v3.Admin" {
    address, socket_options, allow_paths
} noop {
    profile_path: "there is no profiler",
    ignore_global_conn_limit: "the limit counts the connections of listeners only",
});

/// What is honoured of the messages read here.
pub static SUPPORTED: &[&Entry] = &[&ADMIN];

/// A checked `Admin` message.
pub struct AdminConfig {
    pub address: Address,
    pub options: BindOptions,
    pub allow: Option<AllowPath>,
}

impl AdminConfig {
    /// Without an address there is no admin interface. Paths of errors are relative to the message.
    pub fn from_proto(message: &pb::Admin) -> Result<Option<AdminConfig>, ConfigError> {
        let Some(address) = &message.address else { return Ok(None) };
        let address = options::address(address).map_err(|e| e.within("address"))?;
        let matchers = message.allow_paths.iter().enumerate();
        let matchers = matchers
            .map(|(i, m)| StringMatcher::from_proto(m).map_err(|e| e.within(&format!("allow_paths[{i}]"))))
            .collect::<Result<Vec<_>, _>>()?;
        let allow = (!matchers.is_empty())
            .then(|| Box::new(move |path: &str| matchers.iter().any(|m| m.matches(path.as_bytes()))) as AllowPath);
        let options =
            BindOptions { socket_options: options::socket_options(&message.socket_options), ..BindOptions::default() };
        Ok(Some(AdminConfig { address, options, allow }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nuncio_api::pb::envoy::config::core::v3::{Address as Message, SocketAddress, address, socket_address};
    use nuncio_api::pb::envoy::r#type::matcher::v3::{StringMatcher as Matcher, string_matcher::MatchPattern};

    #[test]
    fn paths_are_allowed_by_any_matcher_and_all_without_one() {
        let socket = SocketAddress {
            address: "127.0.0.1".into(),
            port_specifier: Some(socket_address::PortSpecifier::PortValue(9901)),
            ..Default::default()
        };
        let address = Some(Message { address: Some(address::Address::SocketAddress(socket)) });
        let matcher = |pattern| Matcher { match_pattern: Some(pattern), ..Default::default() };
        let allow_paths =
            vec![matcher(MatchPattern::Exact("/ready".into())), matcher(MatchPattern::Prefix("/stats".into()))];
        let config =
            AdminConfig::from_proto(&pb::Admin { address: address.clone(), allow_paths, ..Default::default() });
        let allow = config.unwrap().unwrap().allow.unwrap();
        assert!(allow("/ready") && allow("/stats?usedonly") && !allow("/ready?x") && !allow("/quitquitquit"));
        let config = AdminConfig::from_proto(&pb::Admin { address, ..Default::default() }).unwrap().unwrap();
        assert!(config.allow.is_none() && config.address.to_string() == "127.0.0.1:9901");
        assert!(AdminConfig::from_proto(&pb::Admin::default()).unwrap().is_none());
    }
}
