//! HTTP/2 byte by byte: frames as a test wants them, also those that no library would write, and a
//! client that understands as much of the answers as tests ask. Works over any stream, so that the
//! same cases can run against a codec in memory and against a whole proxy on a socket.

pub mod client;
pub mod frame;
pub mod hpack;

pub use client::{Answer, Client, Ended};
pub use frame::{Frame, frame, kind};

#[cfg(test)]
mod tests;
