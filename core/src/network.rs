//! The phases of a connection before its terminal filter has it.
//!
//! - [`listener_filter`]: what looks at the socket and its first bytes before a filter chain is chosen
//! - [`transport_socket`]: what makes the bytes of a chain from the bytes of the wire, i.e. TLS
//! - [`filter`]: what decides about a connection in front of the terminal filter
//!
//! Each has the three forms of every configured thing: a factory reads the message on main, the
//! configuration is shared, and a worker makes an object for each connection.

pub mod filter;
pub mod listener_filter;
pub mod transport_socket;

pub use filter::{
    MakeNetworkFilter, NetworkClose, NetworkFilter, NetworkFilterConfig, NetworkFilterFactory, NetworkStep,
    NetworkVerdict,
};
pub use listener_filter::{
    ListenerFilter, ListenerFilterConfig, ListenerFilterFactory, ListenerStep, MakeListenerFilter,
};
pub use transport_socket::{
    DownstreamTransportSocket, DownstreamTransportSocketConfig, DownstreamTransportSocketFactory, TransportFailure,
};
