//! HTTP/2 connections, both roles (RFC 9113, RFC 7541, RFC 8441).
//!
//! Every stream is its own object, used by its own task of the same thread; the connection's task
//! reads and writes the frames of all of them.
//!
//! - `session`: what they share, and what frames do to it · `frame`: frames as bytes
//! - `hpack`: blocks of fields as bytes · `fields`, `block`: heads from and to them, with the rules of §8
//! - `flood`: what a peer may send how often · `window`: how much it may send ahead
//! - `inlet`, `outlet`: a stream's two halves, which let flow control through instead of buffering
//! - `account`: what is counted of a connection · `keepalive`: pings · `options`, `config`: what may be configured
//! - [`ServerConn`] and [`ServerStream`], [`ClientConn`] and [`ClientStream`]: the two roles
//!
//! Upgrades have one form above the wall, that of HTTP/1: an extended CONNECT (RFC 8441) comes up
//! as a GET with `upgrade`, its 101 goes out as 200, and the other way round for upstreams.

mod account;
mod block;
mod client;
mod client_stream;
mod config;
mod fields;
mod flood;
mod frame;
pub mod fuzz_bodies;
mod hpack;
mod inlet;
mod keepalive;
mod options;
mod outlet;
mod server;
mod server_stream;
mod session;
mod stream_error;
mod window;

#[cfg(test)]
mod tests;

/// What a client says first (RFC 9113 §3.4).
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub use client::{ClientConn, ClientDriver, ClientEnd, OpenError};
pub use client_stream::ClientStream;
pub use config::SUPPORTED;
pub use flood::{Fault, FaultKind};
pub use options::{ClientOptions, Http2Options, Keepalive, ServerOptions};
pub use server::{Accepted, ConnectionError, ServerConn};
pub use server_stream::ServerStream;
pub use stream_error::StreamError;
