//! Where a socket is bound or a host is reached.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

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
