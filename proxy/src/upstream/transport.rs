//! `transport_socket` and `transport_socket_matches` of a cluster: in clear text or by TLS, and for which hosts.

use std::sync::Arc;

use nuncio_api::pb::envoy::config::cluster::v3 as pb;
use nuncio_api::pb::envoy::config::core::v3::{TransportSocket, transport_socket::ConfigType};
use nuncio_api::pb::envoy::extensions::transport_sockets::tls::v3::UpstreamTlsContext;
use nuncio_api::pb::google::protobuf::Struct;
use nuncio_api::supports;
use nuncio_core::error::ConfigError;
use nuncio_core::upstream::Host;

use crate::tls::UpstreamTls;

supports!(pub(super) MATCH = "envoy.config.cluster.v3.Cluster.TransportSocketMatch" { name, r#match, transport_socket });
supports!(pub(super) RAW_BUFFER = "envoy.extensions.transport_sockets.raw_buffer.v3.RawBuffer" {});

/// Where hosts say what they want.
const NAMESPACE: &str = "envoy.transport_socket_match";

/// None is clear text.
type Socket = Option<Arc<UpstreamTls>>;

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
    pub(super) fn from_cluster(message: &pb::Cluster) -> Result<Option<Box<Self>>, ConfigError> {
        let default = match &message.transport_socket {
            Some(socket) => read(socket).map_err(|e| e.within("transport_socket"))?,
            None => None,
        };
        let mut matches = Vec::new();
        for (i, one) in message.transport_socket_matches.iter().enumerate() {
            let at = format!("transport_socket_matches[{i}]");
            let socket = match &one.transport_socket {
                Some(socket) => read(socket).map_err(|e| e.within("transport_socket").within(&at))?,
                None => return Err(ConfigError::new(format!("{at}.transport_socket"), "is required")),
            };
            matches.push(SocketMatch { criteria: one.r#match.clone().unwrap_or_default(), socket });
        }
        if default.is_none() && matches.iter().all(|one| one.socket.is_none()) {
            return Ok(None);
        }
        Ok(Some(Box::new(Self { default, matches })))
    }

    /// For a connection to that host.
    pub fn for_host(&self, host: &Host) -> Option<&Arc<UpstreamTls>> {
        if self.matches.is_empty() {
            return self.default.as_ref();
        }
        let metadata = host.metadata();
        let own = metadata.0.get(NAMESPACE);
        let fits = |one: &&SocketMatch| {
            one.criteria.fields.iter().all(|(key, value)| own.and_then(|own| own.fields.get(key)) == Some(value))
        };
        self.matches.iter().find(fits).map_or(self.default.as_ref(), |one| one.socket.as_ref())
    }

    /// Every context, the default's first.
    pub fn contexts(&self) -> impl Iterator<Item = &Arc<UpstreamTls>> {
        self.default.iter().chain(self.matches.iter().filter_map(|one| one.socket.as_ref()))
    }

    /// Whether protocols can be negotiated with hosts that ask for nothing special.
    pub(super) fn is_tls_by_default(&self) -> bool {
        self.default.is_some()
    }
}

/// One socket's configuration.
fn read(socket: &TransportSocket) -> Result<Socket, ConfigError> {
    let none = Default::default();
    let any = match &socket.config_type {
        Some(ConfigType::TypedConfig(any)) => any,
        None => &none,
    };
    match nuncio_api::any::type_name(&any.type_url) {
        "envoy.extensions.transport_sockets.raw_buffer.v3.RawBuffer" => Ok(None),
        "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext" => {
            let message: UpstreamTlsContext = nuncio_api::unpack(any).map_err(|e| e.within("typed_config"))?;
            let read = UpstreamTls::from_proto(&message).map_err(|e| e.within("typed_config"))?;
            Ok(Some(Arc::new(read)))
        }
        _ => {
            let url = &any.type_url;
            let reason =
                format!("Didn't find a registered implementation for '{}' with type URL: '{url}'", socket.name);
            Err(ConfigError::new("", reason))
        }
    }
}
