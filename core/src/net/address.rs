//! Where a socket is bound or a host is reached.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use nuncio_api::pb::envoy::config::core::v3 as pb;

use crate::error::ConfigError;

/// An IP socket, a unix domain socket, or a listener inside this process.
///
/// Prints as Envoy does: `127.0.0.1:80`, `[::1]:80`, the path of a unix socket,
/// `envoy://name/endpoint` for an internal one.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Address {
    Ip(SocketAddr),
    /// A path; a leading `@` means the abstract namespace.
    Pipe(Arc<str>),
    Internal {
        listener: Arc<str>,
        endpoint: Arc<str>,
    },
}

impl Address {
    /// Reads an address that must not be a name. Refused in Envoy's words.
    pub fn from_proto(message: &pb::Address) -> Result<Self, ConfigError> {
        use pb::address::Address as Kind;
        use pb::envoy_internal_address::AddressNameSpecifier;
        match &message.address {
            Some(Kind::SocketAddress(socket)) => {
                socket_address(socket).map(Self::Ip).map_err(|e| e.within("socket_address"))
            }
            Some(Kind::Pipe(pipe)) => pipe_path(&pipe.path).map_err(|e| e.within("pipe")),
            Some(Kind::EnvoyInternalAddress(internal)) => match &internal.address_name_specifier {
                Some(AddressNameSpecifier::ServerListenerName(listener)) => {
                    let endpoint = internal.endpoint_id.as_str().into();
                    Ok(Self::Internal { listener: listener.as_str().into(), endpoint })
                }
                None => Err(ConfigError::new("envoy_internal_address", "address_name_specifier is required")),
            },
            None => Err(ConfigError::new("", "Address must be set")),
        }
    }

    pub fn ip(&self) -> Option<IpAddr> {
        self.socket().map(|a| a.ip())
    }

    pub fn port(&self) -> Option<u16> {
        self.socket().map(|a| a.port())
    }

    pub fn socket(&self) -> Option<SocketAddr> {
        match self {
            Self::Ip(a) => Some(*a),
            _ => None,
        }
    }
}

fn socket_address(message: &pb::SocketAddress) -> Result<SocketAddr, ConfigError> {
    use pb::socket_address::PortSpecifier;
    let port = match &message.port_specifier {
        None => 0,
        Some(PortSpecifier::PortValue(port)) => {
            u16::try_from(*port).map_err(|_| ConfigError::new("port_value", format!("{port} is no port")))?
        }
        Some(PortSpecifier::NamedPort(_)) => {
            return Err(ConfigError::new("named_port", "IP resolver can't handle port specifier type 4"));
        }
    };
    let ip: IpAddr = message
        .address
        .parse()
        .map_err(|_| ConfigError::new("address", format!("malformed IP address: {}", message.address)))?;
    let address = SocketAddr::new(ip, port);
    if message.ipv4_compat && !may_be_compatible(ip) {
        let reason = format!("Only IPv6 address '::' or valid IPv4-mapped IPv6 address can set ipv4_compat: {address}");
        return Err(ConfigError::new("ipv4_compat", reason));
    }
    Ok(address)
}

fn may_be_compatible(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(v6) if v6.is_unspecified() || v6.to_ipv4_mapped().is_some())
}

/// `sun_path` holds 108 bytes, one of them for the end.
fn pipe_path(path: &str) -> Result<Address, ConfigError> {
    if path.len() > 107 {
        let reason = format!("Path \"{path}\" exceeds maximum UNIX domain socket path size of 108.");
        return Err(ConfigError::new("path", reason));
    }
    Ok(Address::Pipe(path.into()))
}

impl From<SocketAddr> for Address {
    fn from(a: SocketAddr) -> Self {
        Self::Ip(a)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(a) => a.fmt(f),
            Self::Pipe(path) => f.write_str(path),
            Self::Internal { listener, endpoint } => write!(f, "envoy://{listener}/{endpoint}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket(address: &str, compat: bool) -> pb::Address {
        let port = pb::socket_address::PortSpecifier::PortValue(80);
        let s = pb::SocketAddress {
            address: address.into(),
            port_specifier: Some(port),
            ipv4_compat: compat,
            ..Default::default()
        };
        pb::Address { address: Some(pb::address::Address::SocketAddress(s)) }
    }

    #[test]
    fn addresses_are_refused_in_envoys_words() {
        assert_eq!(Address::from_proto(&socket("::1", false)).unwrap().to_string(), "[::1]:80");
        let error = Address::from_proto(&socket("localhost", false)).unwrap_err();
        assert_eq!(error.to_string(), "socket_address.address: malformed IP address: localhost");
        assert_eq!(
            Address::from_proto(&socket("127.0.0.1", true)).unwrap_err().to_string(),
            "socket_address.ipv4_compat: Only IPv6 address '::' or valid IPv4-mapped IPv6 address can set ipv4_compat: 127.0.0.1:80"
        );
        assert!(Address::from_proto(&socket("::", true)).is_ok());
        assert_eq!(Address::from_proto(&pb::Address::default()).unwrap_err().reason, "Address must be set");
    }
}
