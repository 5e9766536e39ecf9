//! The one list of what crosses threads. Everything else stays on the thread it was made on, and the
//! compiler sees to it: a worker's objects are not `Send`.

use std::rc::Rc;
use std::sync::Arc;

use nuncio_core::stats::Birth;
use tokio::sync::mpsc::UnboundedSender;

use crate::listener::ListenerCommand;
use crate::upstream::{ClusterUpdate, Clusters, Publish};

/// Main to worker, taken one by one between polls, in the order they were sent.
pub enum WorkerCommand {
    /// All that changed of clusters since the last such command.
    Clusters(Arc<[ClusterUpdate]>),
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

/// All who use clusters: the workers by their inboxes, and the main thread itself.
pub struct Inboxes {
    pub main: Rc<Clusters>,
    pub workers: Vec<UnboundedSender<WorkerCommand>>,
}

impl Publish for Inboxes {
    fn publish(&self, updates: Arc<[ClusterUpdate]>) {
        self.main.apply(&updates);
        for inbox in &self.workers {
            // A worker that is gone has told so already.
            let _ = inbox.send(WorkerCommand::Clusters(updates.clone()));
        }
    }
}
