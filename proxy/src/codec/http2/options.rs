//! What configuration says about HTTP/2: `http2_protocol_options` and the limits beside it.

use std::time::Duration;

use crate::codec::http1::Underscores;

/// `core.v3.Http2ProtocolOptions`, for either role. The defaults are those of Envoy 1.40.
#[derive(Debug, Clone, PartialEq)]
pub struct Http2Options {
    pub header_table_size: u32,
    pub max_concurrent_streams: u32,
    pub initial_stream_window: u32,
    /// What the connection's window may grow to; it begins at the buffer limit.
    pub initial_connection_window: u32,
    /// Extended CONNECT.
    pub allow_connect: bool,
    pub max_consecutive_empty_frames: u32,
    pub max_priority_frames_per_stream: u32,
    pub max_window_updates_per_data_frame: u32,
    /// A malformed message resets its stream and not the connection.
    pub stream_error_on_invalid: bool,
    /// Burst, and how many more a second.
    pub stream_resets: (u64, u64),
    pub keepalive: Option<Keepalive>,
}

/// `core.v3.KeepaliveSettings`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Keepalive {
    pub interval: Option<Duration>,
    pub timeout: Duration,
    /// Of the interval, in percent, added at random.
    pub jitter: f64,
    /// Idle for so long, a connection is tried by a ping before it gets another stream.
    pub idle_interval: Option<Duration>,
}

impl Default for Http2Options {
    fn default() -> Self {
        Self {
            header_table_size: 4096,
            max_concurrent_streams: 1024,
            initial_stream_window: 16 * 1024 * 1024,
            initial_connection_window: 24 * 1024 * 1024,
            allow_connect: false,
            max_consecutive_empty_frames: 1,
            max_priority_frames_per_stream: 100,
            max_window_updates_per_data_frame: 10,
            stream_error_on_invalid: false,
            stream_resets: (1000, 33),
            keepalive: None,
        }
    }
}

/// Of one listener's connection manager; shared by its connections on a worker.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    pub http2: Http2Options,
    /// `max_request_headers_kb`, in bytes: names and values.
    pub max_head_bytes: usize,
    /// `max_headers_count`: fields, pseudo headers and each piece of a split cookie included.
    pub max_headers: usize,
    pub underscores: Underscores,
    /// `expect` goes upstream, and 100 comes from there.
    pub proxy_100_continue: bool,
    /// `per_connection_buffer_limit_bytes`.
    pub buffer_limit: u32,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            http2: Http2Options::default(),
            max_head_bytes: 60 * 1024,
            max_headers: 100,
            underscores: Underscores::Allow,
            proxy_100_continue: false,
            buffer_limit: 1024 * 1024,
        }
    }
}

/// Of one cluster.
#[derive(Debug, Clone)]
pub struct ClientOptions {
    pub http2: Http2Options,
    pub max_head_bytes: usize,
    pub max_headers: usize,
    pub buffer_limit: u32,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self { http2: Http2Options::default(), max_head_bytes: 80 * 1024, max_headers: 100, buffer_limit: 1024 * 1024 }
    }
}
