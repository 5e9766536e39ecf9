//! Listeners: from a checked configuration on the main thread to an accept loop on each worker.
//!
//! - [`config`]: what a `Listener` message means, checked
//! - [`chain_match`]: which filter chain takes a connection; [`filter_chain`]: what it then passes through
//! - [`filters`]: what looks at a socket and its first bytes before that
//! - [`manager`] (main): the set of listeners, their sockets, changes to the set
//! - [`active`] (worker): the accept loops and the connections they made; [`pending`]: those that are not yet there,
//!   with [`read_filters`] in front of the terminal filter
//!
//! ```text
//! message ── ListenerConfig::check ──► ListenerManager ── ListenerCommand ──► ActiveListeners ──► TerminalFilter::serve
//! ```

pub mod active;
pub mod chain_match;
pub mod config;
pub mod filter_chain;
pub mod filters;
pub mod manager;
mod pending;
mod read_filters;

pub use active::ActiveListeners;
pub use config::ListenerConfig;
pub use manager::{Change, ListenerManager, Origin, Prepared};

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
