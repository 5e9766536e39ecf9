//! The proxy: sockets, codecs, clusters, HTTP, listeners, admin, server.
//!
//! Layers, lowest first; a layer imports only what stands above it in this list:
//!
//! - [`codec`]: HTTP connections as our own types
//! - [`upstream`]: clusters, balancers, pools
//! - [`network`]: what a connection's bytes are handed to

pub mod codec;
pub mod network;
pub mod upstream;
