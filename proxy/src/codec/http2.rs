//! HTTP/2 connections, both roles. What carries the frames is the h2 library, and nothing outside
//! this folder sees it.
//!
//! Every stream is its own object, used by its own task of the same thread; the connection's task
//! reads and writes the frames of all of them. Three things the library leaves to us:
//!
//! - `guard`: the socket as the library sees it. It looks at the head of every frame, in both
//!   directions, for the limits that Envoy has and the library lacks; it gathers what is written
//!   in one turn of the loop into one write, and reads as much as there is in one read.
//! - `scan`: the frame heads of one direction · `flood`: what a peer may send how often
//! - `fields`: heads between the library's types and ours, with the rules of RFC 9113 §8
//! - `inlet`, `outlet`: a stream's two halves, which let flow control through instead of buffering
//! - `window`: how much a peer may send ahead · `keepalive`: pings · `shared`: what a connection and its streams tell each other
//! - `options`, `config`: what may be configured
//! - [`ServerConn`] and [`ServerStream`], [`ClientConn`] and [`ClientStream`]: the two roles
//!
//! Upgrades have one form above the wall, that of HTTP/1: an extended CONNECT (RFC 8441) comes up
//! as a GET with `upgrade`, its 101 goes out as 200, and the other way round for upstreams.

mod client;
mod client_stream;
mod config;
mod fields;
mod flood;
pub mod fuzz_bodies;
mod guard;
mod inlet;
mod keepalive;
mod options;
mod outlet;
mod scan;
mod server;
mod server_stream;
mod shared;
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
pub use shared::FrameCounts;
pub use stream_error::StreamError;
