//! Calls to a named cluster by filters and pollers: through that cluster's own balancing, health,
//! breakers and pools, on the calling thread, never through a listener or a route.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;

use crate::http::{HeaderMap, RequestHead, ResponseHead};
use crate::stats::ScopeId;

/// A call with its whole body.
#[derive(Debug, Clone)]
pub struct AsyncRequest {
    pub head: RequestHead,
    pub body: Bytes,
    /// For the whole call; `None` waits for ever.
    pub timeout: Option<Duration>,
    /// A longer answer is a failure.
    pub max_response_bytes: usize,
    /// For ring hash and Maglev clusters.
    pub hash: Option<u64>,
    /// `x-forwarded-for` tells this machine's address, as if the machine were the client.
    pub send_xff: bool,
}

/// An answer with its whole body; any status.
#[derive(Debug, Clone, Default)]
pub struct AsyncResponse {
    pub head: ResponseHead,
    pub body: Bytes,
    pub trailers: Option<HeaderMap>,
}

/// Why no whole answer came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AsyncFailure {
    UnknownCluster,
    NoHealthyHost,
    /// A circuit breaker is open.
    Overflow,
    Timeout,
    /// No connection to the chosen host, for the reason given.
    Connect(String),
    /// The host said that it did nothing with the request.
    Refused,
    /// The stream or its connection ended before the answer did, for the reason given.
    Reset(String),
    ResponseTooLarge,
}

impl fmt::Display for AsyncFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownCluster => f.write_str("unknown cluster"),
            Self::NoHealthyHost => f.write_str("no healthy upstream"),
            Self::Overflow => f.write_str("overflow"),
            Self::Timeout => f.write_str("timeout"),
            Self::Connect(reason) | Self::Reset(reason) => f.write_str(reason),
            Self::Refused => f.write_str("remote refused stream reset"),
            Self::ResponseTooLarge => f.write_str("response too large"),
        }
    }
}

impl std::error::Error for AsyncFailure {}

/// Sends calls to clusters, as the clusters are on one thread. Dropping the future cancels the call: its stream is reset.
pub trait AsyncClient {
    fn call(
        &self,
        cluster: &str,
        request: AsyncRequest,
    ) -> LocalBoxFuture<'static, Result<AsyncResponse, AsyncFailure>>;

    /// Where that cluster counts, for those who count something under its name.
    fn stats_scope(&self, _cluster: &str) -> Option<ScopeId> {
        None
    }
}
