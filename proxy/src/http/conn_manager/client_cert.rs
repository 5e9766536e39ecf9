//! `x-forwarded-client-cert`: what upstreams are told of the client's certificate, and whose claims of one pass.

use nuncio_api::any::{type_name, unpack};
use nuncio_api::pb::envoy::extensions::filters::network::http_connection_manager::v3::http_connection_manager::{
    ForwardClientCertConfig, ForwardClientCertDetails, SetCurrentClientCertDetails,
};
use nuncio_api::pb::google::protobuf::Any;
use nuncio_api::pb::xds::r#type::matcher::v3::Matcher;
use nuncio_api::prost::Name;
use nuncio_api::supports;
use nuncio_core::error::ConfigError;
use nuncio_core::http::HeaderMap;
use nuncio_core::net::{ConnectionInfo, PeerCertificate};

use crate::http::match_tree::{MatchTree, Matched};

supports!(pub(super) DETAILS =
    "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager.SetCurrentClientCertDetails" {
    subject, cert, chain, dns, uri,
});

supports!(pub(super) ACTION =
    "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager.ForwardClientCertConfig" {
    forward_client_cert_details, set_current_client_cert_details,
});

const XFCC: &str = "x-forwarded-client-cert";

/// `forward_client_cert_details` and what is said of the current client.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClientCertPolicy {
    forward: Mode,
    subject: bool,
    cert: bool,
    chain: bool,
    dns: bool,
    uri: bool,
}

/// What becomes of the header, which may depend on the request (`forward_client_cert_matcher`).
#[derive(Debug, Clone, Default)]
pub struct ClientCertRules {
    fallback: ClientCertPolicy,
    by_request: Option<MatchTree<ClientCertPolicy>>,
}

impl ClientCertRules {
    pub fn new(fallback: ClientCertPolicy, by_request: Option<&Matcher>) -> Result<Self, ConfigError> {
        let action = |config: &Any| {
            if type_name(&config.type_url) != ForwardClientCertConfig::full_name() {
                let text = format!("Didn't find a registered implementation for type: '{}'", config.type_url);
                return Err(ConfigError::new("", text));
            }
            let config: ForwardClientCertConfig = unpack(config)?;
            let details = config.set_current_client_cert_details.as_ref();
            Ok(ClientCertPolicy::from_proto(config.forward_client_cert_details(), details))
        };
        let by_request = by_request.map(|tree| MatchTree::from_proto(tree, &action)).transpose()?;
        Ok(Self { fallback, by_request })
    }

    /// Makes the header what upstreams may believe.
    pub fn apply(&self, headers: &mut HeaderMap, connection: &ConnectionInfo) {
        let by_request = self.by_request.as_ref();
        let policy = by_request.and_then(|tree| tree.find(Matched { headers, connection })).unwrap_or(&self.fallback);
        policy.apply(headers, connection);
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Mode {
    /// Nobody's claim passes.
    #[default]
    Sanitize,
    /// The claim of a client that has shown a certificate passes.
    ForwardOnly,
    AppendForward,
    SanitizeSet,
    AlwaysForwardOnly,
}

impl ClientCertPolicy {
    pub fn from_proto(forward: ForwardClientCertDetails, details: Option<&SetCurrentClientCertDetails>) -> Self {
        let forward = match forward {
            ForwardClientCertDetails::Sanitize => Mode::Sanitize,
            ForwardClientCertDetails::ForwardOnly => Mode::ForwardOnly,
            ForwardClientCertDetails::AppendForward => Mode::AppendForward,
            ForwardClientCertDetails::SanitizeSet => Mode::SanitizeSet,
            ForwardClientCertDetails::AlwaysForwardOnly => Mode::AlwaysForwardOnly,
        };
        let Some(details) = details else { return Self { forward, ..Self::default() } };
        Self {
            forward,
            subject: details.subject.as_ref().is_some_and(|v| v.value),
            cert: details.cert,
            chain: details.chain,
            dns: details.dns,
            uri: details.uri,
        }
    }

    fn apply(&self, headers: &mut HeaderMap, connection: &ConnectionInfo) {
        let tls = connection.tls.as_ref();
        let peer = tls.and_then(|tls| tls.peer.as_deref());
        match (self.forward, peer) {
            (Mode::AlwaysForwardOnly, _) | (Mode::ForwardOnly, Some(_)) => join(headers),
            (Mode::Sanitize, _) | (_, None) => {
                headers.remove(XFCC);
            }
            (forward, Some(peer)) => {
                let local = tls.and_then(|tls| tls.local.as_deref());
                let element = self.element(peer, local);
                if forward == Mode::SanitizeSet {
                    headers.set(XFCC, element);
                } else {
                    join(headers);
                    headers.append_to_value(XFCC, ",", element);
                }
            }
        }
    }

    fn element(&self, peer: &PeerCertificate, local: Option<&PeerCertificate>) -> String {
        let mut element = String::new();
        let mut part = |key: &str, value: &str, quoted: bool| {
            if !element.is_empty() {
                element.push(';');
            }
            element.push_str(key);
            element.push('=');
            if quoted {
                element.push('"');
                element.push_str(value);
                element.push('"');
            } else {
                plain(value, &mut element);
            }
        };
        for uri in local.map_or(&[][..], |local| &local.uri_sans) {
            part("By", uri, false);
        }
        part("Hash", &peer.sha256, false);
        if self.cert {
            part("Cert", &peer.pem, true);
        }
        if self.chain {
            part("Chain", &peer.chain_pem, true);
        }
        if self.subject {
            // Quotes in it are escaped already, as RFC 2253 wants it.
            part("Subject", &peer.subject, true);
        }
        if self.uri && peer.uri_sans.is_empty() {
            part("URI", "", false);
        }
        for uri in peer.uri_sans.iter().filter(|_| self.uri) {
            part("URI", uri, false);
        }
        for name in peer.dns_sans.iter().filter(|_| self.dns) {
            part("DNS", name, false);
        }
        element
    }
}

/// Several lines as one, as Envoy forwards them.
fn join(headers: &mut HeaderMap) {
    if headers.get_all(XFCC).nth(1).is_some() {
        let joined = headers.get_joined(XFCC, ",").map(std::borrow::Cow::into_owned).unwrap_or_default();
        headers.set(XFCC, joined);
    }
}

/// A name with a separator in it is quoted: Envoy writes it bare, and whoever got such a certificate could say of
/// itself what he liked.
fn plain(value: &str, to: &mut String) {
    if !value.contains([',', ';', '"']) {
        return to.push_str(value);
    }
    to.push('"');
    for c in value.chars() {
        if matches!(c, '"' | '\\') {
            to.push('\\');
        }
        to.push(c);
    }
    to.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use nuncio_core::net::{Address, TlsInfo};
    use std::sync::Arc;

    fn connection(peer: Option<PeerCertificate>) -> ConnectionInfo {
        let address = || Address::Ip("10.0.0.1:80".parse().unwrap());
        let mut connection = ConnectionInfo::new(1, address(), address());
        connection.tls = Some(TlsInfo { peer: peer.map(Arc::new), ..TlsInfo::default() });
        connection
    }

    fn peer() -> PeerCertificate {
        PeerCertificate {
            subject: "CN=client,O=Oracle".into(),
            sha256: "ab".into(),
            uri_sans: vec!["spiffe://a".into()],
            dns_sans: vec!["client.test".into()],
            ..PeerCertificate::default()
        }
    }

    fn apply(forward: Mode, peer: Option<PeerCertificate>, lines: &[&str]) -> Option<String> {
        let policy = ClientCertPolicy { forward, subject: true, uri: true, dns: true, ..Default::default() };
        let mut headers = HeaderMap::new();
        lines.iter().for_each(|line| headers.append(XFCC, line));
        policy.apply(&mut headers, &connection(peer));
        headers.get_str(XFCC).map(str::to_owned)
    }

    #[test]
    fn modes_are_those_of_envoy() {
        let own = "Hash=ab;Subject=\"CN=client,O=Oracle\";URI=spiffe://a;DNS=client.test";
        assert_eq!(apply(Mode::Sanitize, Some(peer()), &["Hash=1"]), None);
        assert_eq!(apply(Mode::ForwardOnly, None, &["Hash=1"]), None);
        assert_eq!(apply(Mode::ForwardOnly, Some(peer()), &["Hash=1", "Hash=2"]).unwrap(), "Hash=1,Hash=2");
        assert_eq!(apply(Mode::AlwaysForwardOnly, None, &["Hash=1", "Hash=2"]).unwrap(), "Hash=1,Hash=2");
        assert_eq!(apply(Mode::SanitizeSet, Some(peer()), &["Hash=1"]).unwrap(), own);
        assert_eq!(
            apply(Mode::AppendForward, Some(peer()), &["Hash=1", "Hash=2"]),
            Some(format!("Hash=1,Hash=2,{own}"))
        );
        assert_eq!(apply(Mode::AppendForward, None, &["Hash=1"]), None);
    }

    #[test]
    fn a_name_cannot_end_its_element() {
        let evil = PeerCertificate { uri_sans: vec!["spiffe://a,Hash=0;URI=\"b".into()], ..peer() };
        let said = apply(Mode::SanitizeSet, Some(evil), &[]).unwrap();
        assert!(said.contains(r#";URI="spiffe://a,Hash=0;URI=\"b";DNS="#), "{said}");
    }
}
