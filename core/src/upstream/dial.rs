//! Connections of one's own to one host, for those who ask that host and no other (active health checks): not pooled,
//! not balanced, not counted as traffic, but made as the cluster makes its connections.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;

use super::Host;
use crate::http::{HeaderMap, RequestHead, ResponseHead, Version};
use crate::net::Io;

/// Makes connections to where a host's checks go. No deadline of its own: dropping the future gives the attempt up.
pub trait HostDialer {
    fn tcp(&self, host: &Arc<Host>) -> LocalBoxFuture<'static, Result<Io, DialFailure>>;

    fn http(
        &self,
        host: &Arc<Host>,
        version: Version,
    ) -> LocalBoxFuture<'static, Result<Box<dyn HttpConn>, DialFailure>>;
}

/// An HTTP connection that carries one exchange at a time.
pub trait HttpConn {
    /// Sends the request and reads the answer to its end. A future that is dropped before it is ready leaves a
    /// connection that must be dropped too.
    fn exchange<'c>(&'c mut self, call: HttpCall<'c>) -> LocalBoxFuture<'c, Result<HttpAnswer, DialFailure>>;

    /// It is TLS.
    fn is_secure(&self) -> bool;

    /// Asked when another exchange is due: the peer may have closed since the last.
    fn is_reusable(&mut self) -> bool;
}

#[derive(Debug, Clone)]
pub struct HttpCall<'c> {
    pub head: &'c RequestHead,
    pub body: Bytes,
    /// So much of the answer's body is kept; the rest is read and forgotten.
    pub keep: usize,
}

/// A whole answer of any status.
#[derive(Debug, Clone, Default)]
pub struct HttpAnswer {
    pub head: ResponseHead,
    /// The beginning of the body.
    pub body: Vec<u8>,
    pub trailers: Option<HeaderMap>,
}

/// Why there is no connection, or no whole answer on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DialFailure {
    /// For the reason given.
    Connect(String),
    /// The peer broke the protocol; what it did.
    Protocol(&'static str),
    /// The connection ended, before anything of the answer came or within it.
    Closed { answered: bool },
    /// The peer reset the stream.
    Reset,
    /// The request holds what must not be sent.
    Unwritable(&'static str),
}

impl fmt::Display for DialFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(reason) => write!(f, "cannot connect: {reason}"),
            Self::Protocol(what) => write!(f, "protocol error: {what}"),
            Self::Closed { answered: false } => f.write_str("closed before an answer"),
            Self::Closed { answered: true } => f.write_str("closed within the answer"),
            Self::Reset => f.write_str("stream reset"),
            Self::Unwritable(what) => write!(f, "the request cannot be sent: {what}"),
        }
    }
}

impl std::error::Error for DialFailure {}
