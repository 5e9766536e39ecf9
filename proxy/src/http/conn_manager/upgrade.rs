//! Upgrades: requests that ask for another protocol on their stream, CONNECT among them.
//!
//! Allowed ones go upstream as they are, and what the client sends is held until the upstream agrees; then bytes flow
//! both ways as bodies without end. All others are 403, so that nothing is forwarded whose framing nobody watches.

use nuncio_api::pb::envoy::extensions::filters::network::http_connection_manager::v3::http_connection_manager::UpgradeConfig;
use nuncio_api::supports;
use nuncio_core::error::ConfigError;
use nuncio_core::http::RequestHead;

use crate::http::router::RouteUpgrade;

supports!(pub(super) UPGRADE =
    "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager.UpgradeConfig" {
    upgrade_type, enabled,
});

/// What a stream has to do with upgrades.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Upgrade {
    #[default]
    None,
    /// Asked for and allowed; the upstream has not answered.
    Wanted,
    /// Bytes flow.
    Accepted,
}

/// `upgrade_configs` of a connection manager.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Upgrades(Vec<(Box<str>, bool)>);

impl Upgrades {
    pub fn from_proto(messages: &[UpgradeConfig]) -> Result<Self, ConfigError> {
        let mut all: Vec<(Box<str>, bool)> = Vec::with_capacity(messages.len());
        for (i, message) in messages.iter().enumerate() {
            let kind: Box<str> = message.upgrade_type.to_ascii_lowercase().into();
            if all.iter().any(|(other, _)| *other == kind) {
                let reason = format!("Error: multiple upgrade configs with the same name: '{}'", message.upgrade_type);
                return Err(ConfigError::new(format!("[{i}]"), reason));
            }
            all.push((kind, message.enabled.is_none_or(|enabled| enabled.value)));
        }
        Ok(Self(all))
    }

    /// What the route says goes first.
    pub fn allow(&self, kind: &[u8], route: &[RouteUpgrade]) -> bool {
        let is = |other: &str| kind.eq_ignore_ascii_case(other.as_bytes());
        match route.iter().find(|upgrade| is(&upgrade.kind)) {
            Some(upgrade) => upgrade.enabled,
            None => self.0.iter().any(|(other, enabled)| *enabled && is(other)),
        }
    }
}

/// Which upgrade a request asks for, if any. The codecs leave `upgrade` only where it is one.
pub fn wanted(request: &RequestHead) -> Option<&[u8]> {
    if request.method() == b"CONNECT" { Some(b"connect") } else { request.headers.get("upgrade") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn configs(kinds: &[(&str, Option<bool>)]) -> Result<Upgrades, ConfigError> {
        let messages: Vec<_> = kinds
            .iter()
            .map(|(kind, enabled)| UpgradeConfig {
                upgrade_type: (*kind).into(),
                enabled: enabled.map(|value| nuncio_api::pb::google::protobuf::BoolValue { value }),
                ..Default::default()
            })
            .collect();
        Upgrades::from_proto(&messages)
    }

    fn route(kind: &str, enabled: bool) -> RouteUpgrade {
        RouteUpgrade { kind: kind.into(), enabled, terminates_connect: false, allow_post: false }
    }

    #[test]
    fn the_route_decides_before_the_manager_and_case_does_not_matter() {
        let manager = configs(&[("WebSocket", None), ("CONNECT", Some(false))]).unwrap();
        assert!(manager.allow(b"websocket", &[]) && manager.allow(b"WEBSOCKET", &[route("connect", true)]));
        assert!(!manager.allow(b"websocket", &[route("websocket", false)]));
        assert!(!manager.allow(b"connect", &[]) && manager.allow(b"connect", &[route("connect", true)]));
        assert!(!manager.allow(b"foo", &[]));
        assert!(configs(&[("a", None), ("A", None)]).is_err());
    }
}
