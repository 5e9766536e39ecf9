//! Who may pass: filters that let a request or a connection through, or do not.
//!
//! - [`ext_authz`]: an authorization service is asked, over gRPC or HTTP, before anything is forwarded
//! - `rbac`, [`rbac_http`], [`rbac_network`]: policies over what is known of a request or a connection
//! - [`demo_server`]: an authorizer to try them with
//!
//! Direction of the former: `config` (checked on the main thread) → `check_request` (what is asked) → `grpc_client`, `http_client`
//! (asked over a named cluster) → `answer` (one form for both) → `filter` (what becomes of the request). Everything is
//! closed by default: what is no clear yes is a no.

pub mod demo_server;
pub mod ext_authz;
mod rbac;
pub mod rbac_http;
pub mod rbac_network;
#[cfg(test)]
mod testing;

use nuncio_api::support::Entry;
use nuncio_core::http::HttpFilterFactory;
use nuncio_core::network::NetworkFilterFactory;

/// The HTTP filters of this room.
pub fn http_filters() -> Vec<Box<dyn HttpFilterFactory>> {
    vec![Box::new(ext_authz::Factory), Box::new(rbac_http::Factory)]
}

/// The network filters of this room.
pub fn network_filters() -> Vec<Box<dyn NetworkFilterFactory>> {
    vec![Box::new(ext_authz::NetworkFactory), Box::new(rbac_network::Factory)]
}

/// What is honoured of the messages read in this room.
pub static SUPPORTED: &[&[&Entry]] =
    &[ext_authz::SUPPORTED, rbac::SUPPORTED, rbac_http::SUPPORTED, rbac_network::SUPPORTED];
