//! A network in memory: addresses to listen on and connect to, and what can go wrong between them.
//!
//! A connection is two [`pipe`]s. Bytes arrive after the link's delay, a reader that does not read
//! blocks its writer, a close with unread bytes is a reset, as TCP does it.

pub mod network;
pub mod pipe;

pub use network::{Listening, Network, Route};
pub use pipe::{End, Link, Trouble, pair};

#[cfg(test)]
mod tests;
