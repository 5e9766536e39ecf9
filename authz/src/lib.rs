//! Who may pass: filters that let a request or a connection through, or do not.
//!
//! - [`ext_authz`]: an authorization service is asked, over gRPC or HTTP, before anything is forwarded
//!
//! Direction: `config` (checked on the main thread) → `check_request` (what is asked) → `grpc_client`, `http_client`
//! (asked over a named cluster) → `answer` (one form for both) → `filter` (what becomes of the request). Everything is
//! closed by default: what is no clear yes is a no.

pub mod ext_authz;
#[cfg(test)]
mod testing;

use nuncio_api::support::Entry;
use nuncio_core::http::HttpFilterFactory;

/// The HTTP filters of this room.
pub fn http_filters() -> Vec<Box<dyn HttpFilterFactory>> {
    vec![Box::new(ext_authz::Factory)]
}

/// What is honoured of the messages read in this room.
pub static SUPPORTED: &[&[&Entry]] = &[ext_authz::SUPPORTED];
