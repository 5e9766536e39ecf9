//! HTTP/1.1 peers that do what a test tells them. Their reading of HTTP is their own, and strict:
//! what our proxy sends must be readable without any indulgence.

pub mod client;
pub mod message;
pub mod upstream;

pub use client::Client;
pub use message::{Broken, Message};
pub use upstream::{Reply, Upstream};

#[cfg(test)]
mod tests;
