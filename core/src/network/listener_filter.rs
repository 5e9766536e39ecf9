//! Listener filters: what looks at an accepted socket, and at its first bytes, before a filter chain is
//! chosen, and completes what is known of the connection.

use std::sync::Arc;

use crate::error::ConfigError;
use crate::extension::{FactoryContext, WorkerContext};
use crate::net::{ConnectionInfo, Io};

/// What a listener filter says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListenerStep {
    /// It is done. The first `consumed` of the bytes it was shown are not for those who come after it.
    Continue { consumed: usize },
    /// It must be shown (more) bytes.
    NeedData,
    /// The connection is not wanted. The filter has counted why.
    Close,
}

/// A listener filter of one socket.
pub trait ListenerFilter {
    /// The most bytes it looks at; one that still wants more then closes the connection.
    fn max_read_bytes(&self) -> usize {
        0
    }

    /// First. `io` is for questions to the socket, not for its bytes.
    fn on_accept(&mut self, io: &Io, connection: &mut ConnectionInfo) -> ListenerStep;

    /// All bytes so far, never more than [`max_read_bytes`](Self::max_read_bytes), each time there are more.
    fn on_data(&mut self, data: &[u8], connection: &mut ConnectionInfo) -> ListenerStep {
        let _ = (data, connection);
        ListenerStep::Continue { consumed: 0 }
    }

    /// The client went away while the filter wanted bytes.
    fn on_close(&mut self) {}
}

/// Makes the filters of one listener's connections, on one worker.
pub type MakeListenerFilter = Box<dyn Fn() -> Box<dyn ListenerFilter>>;

/// The checked configuration of a listener filter.
pub trait ListenerFilterConfig: Send + Sync {
    fn on_worker(&self, worker: &WorkerContext) -> MakeListenerFilter;
}

/// Reads the configuration of one kind of listener filter.
pub trait ListenerFilterFactory: Send + Sync {
    /// Envoy's canonical name, e.g. `envoy.filters.listener.tls_inspector`.
    fn name(&self) -> &'static str;

    /// The full name of its configuration message.
    fn message(&self) -> &'static str;

    /// `config` is that message, encoded. Paths of errors are relative to it.
    fn check(
        &self,
        config: &[u8],
        context: &FactoryContext<'_>,
    ) -> Result<Arc<dyn ListenerFilterConfig>, Vec<ConfigError>>;
}
