//! `transport_socket` and `transport_socket_matches` of a cluster: in clear text or by TLS, with or without a PROXY header
//! in front, and for which hosts.

use std::net::SocketAddr;
use std::sync::Arc;

use nuncio_api::pb::envoy::config::cluster::v3 as pb;
use nuncio_api::pb::envoy::config::core::v3::{
    ProxyProtocolConfig, TransportSocket, proxy_protocol_config::Version as ConfigVersion,
    proxy_protocol_pass_through_tl_vs::PassTlVsMatchType, transport_socket::ConfigType,
};
use nuncio_api::pb::envoy::extensions::transport_sockets::proxy_protocol::v3::ProxyProtocolUpstreamTransport;
use nuncio_api::pb::envoy::extensions::transport_sockets::tls::v3::UpstreamTlsContext;
use nuncio_api::pb::google::protobuf::Struct;
use nuncio_api::supports;
use nuncio_core::error::ConfigError;
use nuncio_core::upstream::Host;

use crate::net::proxy_protocol::{self, ProxyProtocolData, Tlv, Version};
use crate::tls::{Secrets, UpstreamTls};

supports!(pub(super) MATCH = "envoy.config.cluster.v3.Cluster.TransportSocketMatch" { name, r#match, transport_socket });
supports!(pub(super) RAW_BUFFER = "envoy.extensions.transport_sockets.raw_buffer.v3.RawBuffer" {});

/// Where hosts say what they want.
const NAMESPACE: &str = "envoy.transport_socket_match";

supports!(pub(super) PROXY_PROTOCOL =
    "envoy.extensions.transport_sockets.proxy_protocol.v3.ProxyProtocolUpstreamTransport" { config, transport_socket });
supports!(pub(super) PROXY_PROTOCOL_CONFIG = "envoy.config.core.v3.ProxyProtocolConfig" { version, pass_through_tlvs });

/// How one host is spoken to.
#[derive(Debug, Default)]
struct Socket {
    /// None is clear text.
    tls: Option<Arc<UpstreamTls>>,
    header: Option<ProxyHeader>,
}

/// The PROXY header that goes in front.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProxyHeader {
    version: Version,
    /// Types of TLVs of the client's own header that are sent on; none in the list: all of them.
    pass: Option<Vec<u8>>,
}

/// How the hosts of one cluster are connected to.
#[derive(Debug)]
pub struct TransportSockets {
    default: Socket,
    matches: Vec<SocketMatch>,
}

#[derive(Debug)]
struct SocketMatch {
    /// What a host's metadata must have; nothing: every host.
    criteria: Struct,
    socket: Socket,
}

impl TransportSockets {
    /// None: all in clear text.
    pub(super) fn from_cluster(message: &pb::Cluster, secrets: &Secrets) -> Result<Option<Box<Self>>, ConfigError> {
        let default = match &message.transport_socket {
            Some(socket) => read(socket, secrets).map_err(|e| e.within("transport_socket"))?,
            None => Socket::default(),
        };
        let mut matches = Vec::new();
        for (i, one) in message.transport_socket_matches.iter().enumerate() {
            let at = format!("transport_socket_matches[{i}]");
            let socket = match &one.transport_socket {
                Some(socket) => read(socket, secrets).map_err(|e| e.within("transport_socket").within(&at))?,
                None => return Err(ConfigError::new(format!("{at}.transport_socket"), "is required")),
            };
            matches.push(SocketMatch { criteria: one.r#match.clone().unwrap_or_default(), socket });
        }
        if default.is_plain() && matches.iter().all(|one| one.socket.is_plain()) {
            return Ok(None);
        }
        Ok(Some(Box::new(Self { default, matches })))
    }

    /// TLS for a connection to that host.
    pub fn for_host(&self, host: &Host) -> Option<&Arc<UpstreamTls>> {
        self.socket(host).tls.as_ref()
    }

    /// What is sent to that host in front of everything.
    pub fn header_for(&self, host: &Host) -> Option<&ProxyHeader> {
        self.socket(host).header.as_ref()
    }

    /// Whether some host is told whose connection it is: then clients do not share connections.
    pub fn tells_clients(&self) -> bool {
        self.default.header.is_some() || self.matches.iter().any(|one| one.socket.header.is_some())
    }

    fn socket(&self, host: &Host) -> &Socket {
        if self.matches.is_empty() {
            return &self.default;
        }
        self.that_fits(host.metadata().0.get(NAMESPACE))
    }

    /// For whoever names the criteria instead of the host (`transport_socket_match_criteria`).
    pub(super) fn for_criteria(&self, criteria: &Struct) -> Option<&Arc<UpstreamTls>> {
        self.that_fits(Some(criteria)).tls.as_ref()
    }

    fn that_fits(&self, own: Option<&Struct>) -> &Socket {
        let fits = |one: &&SocketMatch| {
            one.criteria.fields.iter().all(|(key, value)| own.and_then(|own| own.fields.get(key)) == Some(value))
        };
        self.matches.iter().find(fits).map_or(&self.default, |one| &one.socket)
    }

    /// Every context, the default's first.
    pub fn contexts(&self) -> impl Iterator<Item = &Arc<UpstreamTls>> {
        self.default.tls.iter().chain(self.matches.iter().filter_map(|one| one.socket.tls.as_ref()))
    }

    /// Whether protocols can be negotiated with hosts that ask for nothing special.
    pub(super) fn is_tls_by_default(&self) -> bool {
        self.default.tls.is_some()
    }
}

impl Socket {
    fn is_plain(&self) -> bool {
        self.tls.is_none() && self.header.is_none()
    }
}

impl ProxyHeader {
    fn from_proto(message: &ProxyProtocolConfig) -> Self {
        Self {
            version: if message.version() == ConfigVersion::V1 { Version::V1 } else { Version::V2 },
            pass: message.pass_through_tlvs.as_ref().map(|tlvs| match tlvs.match_type() {
                PassTlVsMatchType::IncludeAll => Vec::new(),
                PassTlVsMatchType::Include => tlvs.tlv_type.iter().filter_map(|t| u8::try_from(*t).ok()).collect(),
            }),
        }
    }

    /// The bytes. Without a client the connection is our own: `local` is what version 1 tells then, as in Envoy.
    pub fn bytes(&self, client: Option<&ProxyProtocolData>, local: Option<(SocketAddr, SocketAddr)>) -> Vec<u8> {
        let mut out = Vec::new();
        let addresses = client.map(|client| (client.source, client.destination));
        match self.version {
            Version::V1 => proxy_protocol::write_v1(addresses.or(local), &mut out),
            Version::V2 => {
                let all = client.map_or(&[][..], |client| &client.tlvs);
                let passes = |tlv: &&Tlv| self.pass.as_ref().is_some_and(|p| p.is_empty() || p.contains(&tlv.kind));
                let tlvs: Vec<Tlv> = all.iter().filter(passes).cloned().collect();
                proxy_protocol::write_v2(addresses, &tlvs, &mut out);
            }
        }
        out
    }
}

/// One socket's configuration.
fn read(socket: &TransportSocket, secrets: &Secrets) -> Result<Socket, ConfigError> {
    let none = Default::default();
    let any = match &socket.config_type {
        Some(ConfigType::TypedConfig(any)) => any,
        None => &none,
    };
    match nuncio_api::any::type_name(&any.type_url) {
        "envoy.extensions.transport_sockets.raw_buffer.v3.RawBuffer" => Ok(Socket::default()),
        "envoy.extensions.transport_sockets.proxy_protocol.v3.ProxyProtocolUpstreamTransport" => {
            let message: ProxyProtocolUpstreamTransport =
                nuncio_api::unpack(any).map_err(|e| e.within("typed_config"))?;
            // The annotations of the message ask for a socket inside.
            let inner = message.transport_socket.unwrap_or_default();
            let inner = read(&inner, secrets).map_err(|e| e.within("transport_socket").within("typed_config"))?;
            if inner.header.is_some() {
                return Err(ConfigError::new("typed_config.transport_socket", "a second PROXY header is no protocol"));
            }
            let header = ProxyHeader::from_proto(&message.config.unwrap_or_default());
            Ok(Socket { header: Some(header), ..inner })
        }
        "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext" => {
            let message: UpstreamTlsContext = nuncio_api::unpack(any).map_err(|e| e.within("typed_config"))?;
            let read = UpstreamTls::from_proto(message, secrets).map_err(|e| e.within("typed_config"))?;
            Ok(Socket { tls: Some(read), header: None })
        }
        _ => {
            let url = &any.type_url;
            let reason =
                format!("Didn't find a registered implementation for '{}' with type URL: '{url}'", socket.name);
            Err(ConfigError::new("", reason))
        }
    }
}
