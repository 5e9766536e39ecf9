//! What a log writer is told when a stream or connection ends, and the files that records go to.

use std::rc::Rc;
use std::sync::Arc;

use crate::error::ConfigError;
use crate::http::{HeaderMap, RequestHead, ResponseHead, RouteView};
use crate::net::ConnectionInfo;
use crate::random::Rng;
use crate::stream_info::StreamInfo;

/// When a record is written; Envoy's `%ACCESS_LOG_TYPE%`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum LogType {
    NotSet = 0,
    TcpUpstreamConnected = 1,
    TcpPeriodic = 2,
    TcpConnectionEnd = 3,
    DownstreamStart = 4,
    DownstreamPeriodic = 5,
    DownstreamEnd = 6,
    UpstreamPoolReady = 7,
    UpstreamPeriodic = 8,
    UpstreamEnd = 9,
    DownstreamTunnelSuccessfullyEstablished = 10,
    TcpConnectionStart = 14,
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
            Self::DownstreamTunnelSuccessfullyEstablished => "DownstreamTunnelSuccessfullyEstablished",
            Self::TcpConnectionStart => "TcpConnectionStart",
        }
    }

    /// The number of `envoy.data.accesslog.v3.AccessLogType`.
    pub fn number(self) -> i32 {
        self as i32
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
    pub route: Option<&'a dyn RouteView>,
    /// The body of a local reply, for `%LOCAL_REPLY_BODY%`: only while that reply is being
    /// formatted. Envoy's access logs do not see it.
    pub local_reply_body: &'a [u8],
    /// The worker's chance, for `%UNIQUE_ID%`, which without it has no value.
    pub rng: Option<&'a Rng>,
}

impl<'a> LogContext<'a> {
    /// Nothing but the record of the stream; the rest by struct update.
    pub fn new(info: &'a StreamInfo) -> Self {
        Self {
            request: None,
            response: None,
            trailers: None,
            info,
            connection: None,
            log_type: LogType::NotSet,
            route: None,
            local_reply_body: &[],
            rng: None,
        }
    }
}

/// A compiled format: text with `%COMMAND%`s in it.
pub trait TextFormat: Send + Sync {
    /// Appends the text for one stream, legal as a header's value. A command without a value prints nothing.
    fn append(&self, context: &LogContext<'_>, out: &mut Vec<u8>);
}

/// Compiles formats for rooms below the one that knows the commands.
pub trait TextFormats {
    fn compile(&self, text: &str) -> Result<Arc<dyn TextFormat>, ConfigError>;
}

/// A configured access log on one worker. Must never fail or delay a request.
pub trait AccessLog {
    fn log(&self, record: &LogContext<'_>);
}

/// The checked configuration of an access log; each worker makes its own end.
pub trait AccessLogConfig: Send + Sync {
    fn instantiate(&self, worker: &crate::extension::WorkerContext) -> Box<dyn AccessLog>;
}

/// Where a file log writes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum LogTarget {
    Path(String),
    Stdout,
    Stderr,
}

/// Opens the files that logs and events are written to; handed to whoever reads their
/// configuration, on the main thread.
pub trait LogFiles {
    /// Opened for appending, and shared by all who ask for the same target.
    fn open(&self, target: &LogTarget) -> Result<Arc<dyn LogFile>, ConfigError>;
}

/// A file of which every thread has its own end.
pub trait LogFile: Send + Sync {
    /// The calling thread's end, inside its event loop.
    fn buffer(&self) -> Rc<dyn LogBuffer>;
}

/// One thread's end of a file. What is appended is written soon, or dropped and counted if the
/// disk does not keep up; nobody ever waits.
pub trait LogBuffer {
    /// `write` appends one record to what it is given.
    fn append(&self, write: &mut dyn FnMut(&mut Vec<u8>));
}
