//! HTTP/1.x connections, both roles, over httparse.
//!
//! Three rules hold everywhere here. Framing fields (`content-length`, `transfer-encoding`) and
//! hop-by-hop fields are read once, turned into [`Framing`](nuncio_core::http::Framing) and flags,
//! and written anew on the other side: what one peer said about framing never reaches another.
//! A peer's bytes are refused rather than repaired where two readers could understand them
//! differently, also where Envoy is laxer. And a connection that waits holds no buffer.
//!
//! - `chunked`: the chunked decoder, in place
//! - `fields`: a block of header fields, shared by heads and trailers
//! - `request`, `response`: heads, from bytes to our types
//! - `connection_field`: what `connection:` nominates
//! - `encode`: heads, from our types to bytes · `header_case`: how their names are spelled
//! - `body`: what follows a head
//! - `wire`: what was read too early · `socket`: the socket, with what was not written yet · `wire/piped`: bodies that are
//!   neither read nor written
//! - [`ServerConn`], [`ClientConn`]: the two roles

mod body;
mod chunked;
mod client;
mod connection_field;
mod encode;
mod error;
mod fields;
pub mod fuzz_bodies;
mod header_case;
mod options;
mod request;
mod response;
mod server;
mod socket;
mod wire;

#[cfg(test)]
mod tests;

pub use client::ClientConn;
pub use error::{BodyError, RequestError, UpstreamError};
pub use header_case::{HeaderCase, SUPPORTED};
pub use options::{ClientOptions, ServerOptions, Underscores};
pub use server::ServerConn;
pub use wire::Piped;
