//! Network filters: what a connection's bytes are handed to.
//!
//! Four forms, in this order: protobuf message → [`NetworkFilterConfig`] (checked once on main by
//! the [`NetworkFilterFactory`], shared) → [`NetworkFilter`] (one per filter chain and worker) → a
//! task per connection.

mod direct_response;
mod echo;
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
pub trait NetworkFilter {
    /// Takes the connection over: spawns its task by [`Worker::spawn`]. The handle is for the
    /// listener, which ends what outlives its draining; dropping the task must leave nothing
    /// behind, and logs what it would have logged.
    fn serve(&self, connection: Connection) -> AbortHandle;
}

/// The checked configuration of a terminal network filter.
pub trait NetworkFilterConfig: Send + Sync {
    fn instantiate(&self, worker: &Rc<Worker>) -> Rc<dyn NetworkFilter>;
}

/// Reads the configuration of one kind of network filter.
pub trait NetworkFilterFactory: Send + Sync {
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
    ) -> Result<Arc<dyn NetworkFilterConfig>, Vec<ConfigError>>;
}

/// Every network filter that the binary has, by the name of its message.
pub struct NetworkFilters(Vec<Box<dyn NetworkFilterFactory>>);

impl NetworkFilters {
    pub fn new(factories: Vec<Box<dyn NetworkFilterFactory>>) -> Self {
        Self(factories)
    }

    /// By `@type`, as Envoy does: the `name` of a filter in a chain is only a label.
    pub fn find(&self, type_url: &str) -> Option<&dyn NetworkFilterFactory> {
        let message = type_url.rsplit('/').next().unwrap_or(type_url);
        self.iter().find(|f| f.message() == message)
    }

    pub fn iter(&self) -> impl Iterator<Item = &dyn NetworkFilterFactory> {
        self.0.iter().map(AsRef::as_ref)
    }
}

/// What is honoured of the messages read in this folder.
pub static SUPPORTED: &[&Entry] = &[&echo::SUPPORTED, &direct_response::SUPPORTED, &direct_response::DATA_SOURCE];

/// The network filters of this folder.
pub fn factories() -> Vec<Box<dyn NetworkFilterFactory>> {
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
