//! What the layers from here up find on the worker they run on.

use std::rc::Rc;

use nuncio_core::extension::WorkerContext;
use nuncio_core::net::Connect;

use crate::codec::Buffers;

/// One worker thread's belongings. Everything in it is born and dies on that thread.
pub struct Worker {
    pub context: WorkerContext,
    pub buffers: Buffers,
    pub connect: Rc<dyn Connect>,
}
