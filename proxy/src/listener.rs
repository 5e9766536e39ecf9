//! Listeners: from a checked configuration on the main thread to an accept loop on each worker.
//!
//! - [`config`]: what a `Listener` message means, checked
//! - [`filter_chain`]: which filters a connection is handed to
//! - [`manager`] (main): the set of listeners, their sockets, changes to the set
//! - [`active`] (worker): the accept loops and the connections they made
//!
//! ```text
//! message ── ListenerConfig::check ──► ListenerManager ── ListenerCommand ──► ActiveListeners ──► NetworkFilter::serve
//! ```

pub mod active;
pub mod config;
pub mod filter_chain;
pub mod manager;

pub use active::ActiveListeners;
pub use config::ListenerConfig;
pub use manager::{Change, ListenerManager};

use std::sync::Arc;

use crate::net::ListeningSocket;

/// One instance of a listener, for ever: a changed listener is another instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenerId(pub u64);

/// What main tells a worker about listeners.
pub enum ListenerCommand {
    Start {
        id: ListenerId,
        config: Arc<ListenerConfig>,
        sockets: Vec<ListeningSocket>,
    },
    /// Takes no more connections; those that are there stay. `drain`: they are asked to go.
    Stop {
        id: ListenerId,
        drain: bool,
    },
    /// Asks the connections to go, and goes on accepting.
    Drain {
        id: ListenerId,
    },
    /// Ends what is left.
    Close {
        id: ListenerId,
    },
}
