//! Network filters in front of the terminal one: RBAC, authorization, limits.
//!
//! As in Envoy, a filter that only lets new connections pass does not hold the terminal filter back: a
//! server that speaks first is heard at once, while `on_data` still decides about the client's bytes.
//! What a filter takes (a permit, a gauge) it gives back when it is dropped, with the connection.

use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;

use futures_util::future::LocalBoxFuture;

use crate::error::ConfigError;
use crate::extension::{FactoryContext, WorkerContext};
use crate::net::ConnectionInfo;
use crate::stream_info::ResponseFlag;

/// What a filter says to a new connection, or to bytes of its client.
pub enum NetworkStep {
    Continue,
    /// Only for bytes: it decides when there are more, or the client has no more to send. The
    /// bytes are held until then.
    NeedData,
    /// It decides when the future does. The filters behind it, and the bytes, wait; the future is
    /// dropped if the connection ends before.
    Later(LocalBoxFuture<'static, NetworkVerdict>),
    Close(NetworkClose),
}

/// What a filter that waited says.
pub enum NetworkVerdict {
    Continue,
    Close(NetworkClose),
}

/// The end of a connection that a filter does not want, as logs tell it.
#[derive(Debug, Clone, Default)]
pub struct NetworkClose {
    /// `%DOWNSTREAM_LOCAL_CLOSE_REASON%`, e.g. `rbac_deny_close`.
    pub reason: Cow<'static, str>,
    /// `%CONNECTION_TERMINATION_DETAILS%`.
    pub termination_details: Option<String>,
    /// `%RESPONSE_CODE_DETAILS%` of a TCP session.
    pub code_details: Option<Cow<'static, str>>,
    pub flag: Option<ResponseFlag>,
}

impl NetworkClose {
    pub fn new(reason: impl Into<Cow<'static, str>>) -> Self {
        Self { reason: reason.into(), ..Self::default() }
    }
}

/// A filter of one connection.
///
/// It may write to the connection's `metadata` and `filter_state`. Borrows are short and never held across an await.
pub trait NetworkFilter {
    /// First, in the order of the chain, before the transport's handshake and any byte: nothing is known of TLS yet but
    /// what listener filters found. `connection` must not be kept beyond the verdict, which is waited for.
    fn on_new_connection(&mut self, connection: &Rc<ConnectionInfo>) -> NetworkStep {
        let _ = connection;
        NetworkStep::Continue
    }

    /// All bytes of the client that were not let through yet, before the next filter sees them; `end_stream`: it will
    /// send no more. A filter may be shown bytes again that it let pass and another held.
    fn on_data(&mut self, data: &[u8], end_stream: bool, connection: &Rc<ConnectionInfo>) -> NetworkStep {
        let _ = (data, end_stream, connection);
        NetworkStep::Continue
    }

    /// Whether [`on_data`](Self::on_data) still has something to decide. Once no filter of the
    /// connection says so, its bytes go by untouched.
    fn reads_data(&self) -> bool {
        false
    }
}

/// Makes the filters of one chain's connections, on one worker.
pub type MakeNetworkFilter = Box<dyn Fn() -> Box<dyn NetworkFilter>>;

/// The checked configuration of a network filter.
pub trait NetworkFilterConfig: Send + Sync {
    fn on_worker(&self, worker: &WorkerContext) -> MakeNetworkFilter;
}

/// Reads the configuration of one kind of network filter.
pub trait NetworkFilterFactory: Send + Sync {
    /// Envoy's canonical name, e.g. `envoy.filters.network.rbac`.
    fn name(&self) -> &'static str;

    /// The full name of its configuration message, e.g. `envoy.extensions.filters.network.rbac.v3.RBAC`.
    fn message(&self) -> &'static str;

    /// `config` is that message, encoded; its annotations were checked by the loader. Paths of
    /// errors are relative to it.
    fn check(
        &self,
        config: &[u8],
        context: &FactoryContext<'_>,
    ) -> Result<Arc<dyn NetworkFilterConfig>, Vec<ConfigError>>;
}
