//! The transport socket of a filter chain: between the bytes of the wire and those of the filters.
//!
//! A chain in clear text has none, so it costs nothing there.

use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;

use futures_util::future::LocalBoxFuture;

use crate::error::ConfigError;
use crate::extension::{FactoryContext, WorkerContext};
use crate::net::{ConnectionInfo, Io};

/// Why there is no connection: `%DOWNSTREAM_TRANSPORT_FAILURE_REASON%`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransportFailure(pub Cow<'static, str>);

/// The transport socket of one chain, on one worker.
pub trait DownstreamTransportSocket {
    /// Shakes hands. `preread` came off `io` before, and belongs to the handshake. What the handshake tells goes to
    /// `connection` (`tls`, `requested_server_name`, the time). The caller bounds its time by
    /// `transport_socket_connect_timeout`: dropping the future gives the connection up.
    fn accept<'a>(
        &'a self,
        io: Io,
        preread: Vec<u8>,
        connection: &'a mut ConnectionInfo,
    ) -> LocalBoxFuture<'a, Result<Io, TransportFailure>>;
}

/// Its checked configuration.
pub trait DownstreamTransportSocketConfig: Send + Sync {
    fn on_worker(&self, worker: &WorkerContext) -> Rc<dyn DownstreamTransportSocket>;
}

/// Reads the configuration of one kind of downstream transport socket.
pub trait DownstreamTransportSocketFactory: Send + Sync {
    /// Envoy's canonical name, e.g. `envoy.transport_sockets.tls`.
    fn name(&self) -> &'static str;

    /// The full name of its configuration message.
    fn message(&self) -> &'static str;

    /// `config` is that message, encoded; `server_names` are those that the chain is chosen by. The
    /// context's `stat_prefix` is the listener's name in statistics. Paths of errors are relative to the message.
    fn check(
        &self,
        config: &[u8],
        server_names: &[String],
        context: &FactoryContext<'_>,
    ) -> Result<Arc<dyn DownstreamTransportSocketConfig>, Vec<ConfigError>>;
}
