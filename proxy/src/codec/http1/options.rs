//! What configuration says about HTTP/1: `http_protocol_options` and the limits beside it.

use std::sync::Arc;

use nuncio_core::matcher::StringMatcher;

use super::header_case::HeaderCase;

/// `headers_with_underscores_action`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Underscores {
    #[default]
    Allow,
    Reject,
    Drop,
}

/// Of one listener's connection manager; shared by its connections on a worker.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    pub accept_http_10: bool,
    pub default_host_for_http_10: Option<Box<str>>,
    pub allow_absolute_url: bool,
    /// Off: trailers are read, checked and dropped.
    pub enable_trailers: bool,
    /// Chunked wins over a content-length beside it, instead of 400.
    pub allow_chunked_length: bool,
    /// `proxy_100_continue`: `expect` goes upstream, and 100 comes from there.
    pub proxy_100_continue: bool,
    /// `max_request_headers_kb`, in bytes: the whole head, request line included.
    pub max_head_bytes: usize,
    /// `max_headers_count`: lines of fields.
    pub max_headers: usize,
    pub underscores: Underscores,
    pub header_case: HeaderCase,
    /// `ignore_http_11_upgrade`: protocols that a client offers in vain, as if it had not.
    pub ignored_upgrades: Arc<[StringMatcher]>,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            accept_http_10: false,
            default_host_for_http_10: None,
            allow_absolute_url: true,
            enable_trailers: false,
            allow_chunked_length: false,
            proxy_100_continue: false,
            max_head_bytes: 60 * 1024,
            max_headers: 100,
            underscores: Underscores::Allow,
            header_case: HeaderCase::Lower,
            ignored_upgrades: Arc::default(),
        }
    }
}

/// Of one cluster.
#[derive(Debug, Clone)]
pub struct ClientOptions {
    pub enable_trailers: bool,
    /// Chunked wins over a content-length beside it, instead of a protocol error.
    pub allow_chunked_length: bool,
    /// `max_response_headers_kb`, in bytes. Envoy's default is 80, not the 60 of requests.
    pub max_head_bytes: usize,
    pub max_headers: usize,
    pub header_case: HeaderCase,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            enable_trailers: false,
            allow_chunked_length: false,
            max_head_bytes: 80 * 1024,
            max_headers: 100,
            header_case: HeaderCase::Lower,
        }
    }
}
