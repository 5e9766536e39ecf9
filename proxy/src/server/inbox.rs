//! The one list of what crosses threads. Everything else stays on the thread it was made on, and the
//! compiler sees to it: a worker's objects are not `Send`.

use nuncio_core::stats::Birth;

use crate::listener::ListenerCommand;

/// Main to worker, taken one by one between polls, in the order they were sent.
pub enum WorkerCommand {
    Listener(ListenerCommand),
    /// End: drop every connection and leave.
    Shutdown,
}

/// Worker to main.
pub enum MainEvent {
    /// A stats block came into being on a worker.
    StatsBorn(Birth),
    /// A worker left although nobody told it to.
    WorkerLost { index: u32 },
}
