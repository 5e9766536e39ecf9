//! How connections come to be: asked for (upstream) or accepted (listeners). The production
//! sockets are in `proxy::net`; the tests bring an in-memory network.

use std::io;
use std::task::{Context, Poll};

use futures_util::future::LocalBoxFuture;

use super::{Address, Io};

/// What a connecting socket is told before it connects.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConnectOptions {
    /// `upstream_bind_config.source_address`, or the client's address for original_src.
    pub source: Option<Address>,
    pub keepalive: Option<Keepalive>,
    /// (level, name, value) set before connecting, as `socket_options` gives them.
    pub socket_options: Vec<SocketOption>,
}

/// `core.v3.TcpKeepalive`; unset parts are the system's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Keepalive {
    pub probes: Option<u32>,
    pub time: Option<std::time::Duration>,
    pub interval: Option<std::time::Duration>,
}

/// `core.v3.SocketOption`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SocketOption {
    pub level: i32,
    pub name: i32,
    pub value: Vec<u8>,
    pub state: SocketState,
}

/// When an option is applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocketState {
    PreBind,
    Bound,
    Listening,
}

/// A new connection and both its addresses.
pub struct Connected {
    pub io: Io,
    pub local: Option<Address>,
    pub remote: Address,
}

/// Opens connections. No deadline of its own: callers bound it with the cluster's
/// `connect_timeout`; dropping the future gives the attempt up.
pub trait Connect {
    fn connect(&self, address: &Address, options: &ConnectOptions) -> LocalBoxFuture<'static, io::Result<Connected>>;
}

/// One bound socket.
pub trait Accept {
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Connected>>;
    fn local_address(&self) -> &Address;
}
