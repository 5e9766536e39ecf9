//! Network filters: what a connection's bytes are handed to.
//!
//! Three forms, in this order: protobuf message → [`NetworkFilterConfig`] (checked once on main,
//! shared) → [`NetworkFilter`] (one per worker) → a task per connection.

use std::rc::Rc;

use nuncio_core::net::{ConnectionInfo, Io};

use crate::upstream::Worker;

/// An accepted connection on its way to the filter that will own it.
pub struct Connection {
    pub io: Io,
    pub info: Rc<ConnectionInfo>,
    /// Bytes that listener filters read already.
    pub preread: Vec<u8>,
    /// Whatever must live as long as the connection: gauges, connection permits.
    pub guards: Box<dyn std::any::Any>,
}

/// A terminal network filter on one worker.
pub trait NetworkFilter {
    /// Takes the connection over; spawns its task on this worker.
    fn serve(&self, connection: Connection);
}

/// The checked configuration of a terminal network filter.
pub trait NetworkFilterConfig: Send + Sync {
    fn instantiate(&self, worker: &Rc<Worker>) -> Rc<dyn NetworkFilter>;
}
