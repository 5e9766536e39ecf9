//! What a log writer is told when a stream or connection ends.

use crate::http::{HeaderMap, RequestHead, ResponseHead};
use crate::net::ConnectionInfo;
use crate::stream_info::StreamInfo;

/// When a record is written; Envoy's `%ACCESS_LOG_TYPE%`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogType {
    NotSet,
    TcpUpstreamConnected,
    TcpPeriodic,
    TcpConnectionEnd,
    DownstreamStart,
    DownstreamPeriodic,
    DownstreamEnd,
    UpstreamPoolReady,
    UpstreamPeriodic,
    UpstreamEnd,
}

impl LogType {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotSet => "NotSet",
            Self::TcpUpstreamConnected => "TcpUpstreamConnected",
            Self::TcpPeriodic => "TcpPeriodic",
            Self::TcpConnectionEnd => "TcpConnectionEnd",
            Self::DownstreamStart => "DownstreamStart",
            Self::DownstreamPeriodic => "DownstreamPeriodic",
            Self::DownstreamEnd => "DownstreamEnd",
            Self::UpstreamPoolReady => "UpstreamPoolReady",
            Self::UpstreamPeriodic => "UpstreamPeriodic",
            Self::UpstreamEnd => "UpstreamEnd",
        }
    }
}

/// Everything a record, a format operator or a log filter may look at.
#[derive(Clone, Copy)]
pub struct LogContext<'a> {
    pub request: Option<&'a RequestHead>,
    pub response: Option<&'a ResponseHead>,
    pub trailers: Option<&'a HeaderMap>,
    pub info: &'a StreamInfo,
    pub connection: Option<&'a ConnectionInfo>,
    pub log_type: LogType,
    /// The body of a local reply, for `%LOCAL_REPLY_BODY%`.
    pub local_reply_body: &'a [u8],
}

/// A configured access log on one worker. Must never fail or delay a request.
pub trait AccessLog {
    fn log(&self, record: &LogContext<'_>);
}

/// The checked configuration of an access log; each worker makes its own end.
pub trait AccessLogConfig: Send + Sync {
    fn instantiate(&self, worker: &crate::extension::WorkerContext) -> Box<dyn AccessLog>;
}
