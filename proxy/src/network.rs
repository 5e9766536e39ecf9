//! Network filters: what a connection's bytes are handed to.
//!
//! The last of a chain is its terminal filter, which owns the connection. Four forms, in this order: protobuf message →
//! [`TerminalFilterConfig`] (checked once on main by the [`TerminalFilterFactory`], shared) → [`TerminalFilter`] (one
//! per filter chain and worker) → a task per connection. Those in front of it are `core::network`'s
//! [`NetworkFilter`](nuncio_core::network::NetworkFilter)s, which the listener runs.

mod connection_limit;
mod direct_response;
mod echo;
pub mod local_ratelimit;
mod ratelimit;
mod sni_cluster;
pub mod tcp_proxy;

use std::any::Any;
use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use nuncio_api::support::Entry;
use nuncio_core::error::ConfigError;
use nuncio_core::extension::FactoryContext;
use nuncio_core::metadata::Metadata;
use nuncio_core::net::{ConnectionInfo, Io};
use nuncio_core::network::{DownstreamTransportSocketFactory, ListenerFilterFactory, NetworkFilterFactory};
use nuncio_core::stream_info::StreamInfo;
use tokio::task::AbortHandle;

use crate::lifecycle::Drain;
use crate::upstream::Worker;

/// An accepted connection on its way to the filter that will own it.
pub struct Connection {
    pub io: Io,
    pub info: Rc<ConnectionInfo>,
    /// Bytes that listener filters read already.
    pub preread: Vec<u8>,
    /// Whether the listener wants its connections to end.
    pub drain: Rc<Drain>,
    /// For the listener's own log, if it has one.
    pub record: Option<Rc<ConnectionRecord>>,
    /// Whatever must live as long as the connection: gauges, connection permits.
    pub guards: Box<dyn Any>,
}

/// What the terminal filter knows of a connection when it ends: the listener's own log shows it.
#[derive(Default)]
pub struct ConnectionRecord(RefCell<Option<StreamInfo>>);

impl ConnectionRecord {
    pub fn set(&self, info: StreamInfo) {
        *self.0.borrow_mut() = Some(info);
    }

    pub fn take(&self) -> Option<StreamInfo> {
        self.0.borrow_mut().take()
    }
}

/// What a listener tells the filters of its chains; Envoy's noun.
#[derive(Debug)]
pub struct ListenerInfo {
    pub name: String,
    /// Its name in statistics: the `stat_prefix`, else the first address.
    pub stat_name: Arc<str>,
    /// `per_connection_buffer_limit_bytes`, 1 MiB unless set.
    pub buffer_limit: u32,
    pub direction: TrafficDirection,
    pub metadata: Metadata,
}

/// `core.v3.TrafficDirection`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TrafficDirection {
    #[default]
    Unspecified,
    Inbound,
    Outbound,
}

/// A terminal network filter of one filter chain, on one worker.
pub trait TerminalFilter {
    /// Takes the connection over: spawns its task by [`Worker::spawn`]. The handle is for the
    /// listener, which ends what outlives its draining; dropping the task must leave nothing
    /// behind, and logs what it would have logged.
    fn serve(&self, connection: Connection) -> AbortHandle;

    /// The connection ended before any byte of it was for this filter: a network filter closed it, or its handshake
    /// failed. In Envoy every filter of the chain exists by then, so it counts and logs.
    fn refused(&self, connection: &Rc<ConnectionInfo>, record: Option<Rc<ConnectionRecord>>) {
        let _ = (connection, record);
    }
}

/// The checked configuration of a terminal network filter.
pub trait TerminalFilterConfig: Send + Sync {
    fn instantiate(&self, worker: &Rc<Worker>) -> Rc<dyn TerminalFilter>;

    /// What somebody must bring before it can serve: for a connection manager its routes, which only the layers above
    /// know by name.
    fn awaits(&self) -> Vec<Arc<dyn Any + Send + Sync>> {
        Vec::new()
    }
}

/// Reads the configuration of one kind of network filter.
pub trait TerminalFilterFactory: Send + Sync {
    /// Envoy's canonical name, e.g. `envoy.filters.network.tcp_proxy`.
    fn name(&self) -> &'static str;

    /// The full name of its configuration message, e.g.
    /// `envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy`.
    fn message(&self) -> &'static str;

    /// `config` is that message, encoded; its annotations were checked by the loader. Paths of
    /// errors are relative to it.
    fn check(
        &self,
        config: &[u8],
        listener: &Arc<ListenerInfo>,
        context: &FactoryContext<'_>,
    ) -> Result<Arc<dyn TerminalFilterConfig>, Vec<ConfigError>>;
}

/// What listeners are made of, each found by the name of its message: the `name` of a filter in a chain is only a
/// label, as in Envoy.
#[derive(Default)]
pub struct NetworkExtensions {
    pub listener_filters: Vec<Box<dyn ListenerFilterFactory>>,
    pub transport_sockets: Vec<Box<dyn DownstreamTransportSocketFactory>>,
    /// Those in front of the terminal filter.
    pub filters: Vec<Box<dyn NetworkFilterFactory>>,
    pub terminal: Vec<Box<dyn TerminalFilterFactory>>,
}

impl NetworkExtensions {
    pub fn terminal(&self, message: &str) -> Option<&dyn TerminalFilterFactory> {
        self.terminal.iter().map(AsRef::as_ref).find(|f| f.message() == message)
    }

    pub fn filter(&self, message: &str) -> Option<&dyn NetworkFilterFactory> {
        self.filters.iter().map(AsRef::as_ref).find(|f| f.message() == message)
    }

    pub fn listener_filter(&self, message: &str) -> Option<&dyn ListenerFilterFactory> {
        self.listener_filters.iter().map(AsRef::as_ref).find(|f| f.message() == message)
    }
}

/// What is honoured of the messages read in this folder.
pub static SUPPORTED: &[&Entry] = &[
    &connection_limit::SUPPORTED,
    &direct_response::SUPPORTED,
    &direct_response::DATA_SOURCE,
    &echo::SUPPORTED,
    &local_ratelimit::SUPPORTED,
    ratelimit::SUPPORTED[0],
    ratelimit::SUPPORTED[1],
    ratelimit::SUPPORTED[2],
    ratelimit::SUPPORTED[3],
    &sni_cluster::SUPPORTED,
];

/// The filters of this folder that stand in front of a terminal one.
pub fn filter_factories() -> Vec<Box<dyn NetworkFilterFactory>> {
    vec![
        Box::new(connection_limit::Factory),
        Box::new(local_ratelimit::Factory::default()),
        Box::new(ratelimit::Factory),
        Box::new(sni_cluster::Factory),
    ]
}

/// The terminal filters of this folder.
pub fn factories() -> Vec<Box<dyn TerminalFilterFactory>> {
    vec![Box::new(direct_response::Factory), Box::new(echo::Factory), Box::new(tcp_proxy::Factory)]
}

async fn write_all(io: &mut Io, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match poll_fn(|cx| io.poll_write(cx, bytes)).await? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            n => bytes = &bytes[n..],
        }
    }
    poll_fn(|cx| io.poll_flush(cx)).await
}

/// One read, as a vector of the worker's; empty at the end. Nothing is held while it waits.
async fn read_some(worker: &Worker, io: &mut Io) -> io::Result<Vec<u8>> {
    poll_fn(|cx| {
        let mut scratch = worker.buffers.take_scratch();
        let read = io.poll_read(cx, &mut scratch).map_ok(|n| {
            let mut bytes = worker.buffers.take();
            bytes.extend_from_slice(&scratch[..n]);
            bytes
        });
        worker.buffers.give_scratch(scratch);
        read
    })
    .await
}
