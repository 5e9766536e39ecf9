//! Envoy's protobuf vocabulary and the one loader of configuration.
//!
//! - `read` — YAML and JSON text → tree with line and column
//! - `encode` — tree → encoded message, by descriptors
//! - `walk` — the checks over an encoded message: annotations (`rules`), what is not implemented ([`support`]), unknown
//!   and deprecated fields
//! - [`load`] — a file → checked messages, all errors at once
//! - [`any`] — type URL → message
//! - [`routes`] — inline routes, one at a time
//! - [`fuzz`] — the body of the fuzz target
//! - [`wire`] — cutting encoded messages without decoding them
//! - [`mask`] — parts of what is dumped
//! - [`dump`] — encoded message → JSON as the admin pages print it
//! - [`diag`] — file:line:column, field path, nearest name
//! - [`own`] — messages that Envoy does not have
//! - [`pool`] — the descriptors, while they are needed; `shape` — what is kept of a message type
//! - [`pb`] — the generated types; no other crate names `envoy-types`
//!
//! Text flows downwards through this list and ends as bytes; consumers decode the bytes, one resource at a time.

pub mod any;
pub mod diag;
pub mod dump;
mod encode;
pub mod fuzz;
pub mod load;
pub mod mask;
#[cfg(test)]
mod newer;
pub mod own;
pub mod pool;
mod read;
pub mod routes;
mod rules;
mod shape;
pub mod support;
pub mod unknown;
mod walk;
pub mod wire;

pub use any::{pack, unpack};
pub use diag::{ConfigError, Diagnostic, Severity};
pub use envoy_types::pb;
pub use load::{
    Checked, Checks, Element, LoadOptions, LoadedBootstrap, Positions, Source, check_bytes, load_bootstrap,
    load_message,
};
pub use mask::FieldMask;
pub use pool::release_pool;
pub use prost;
pub use read::{Format, ReadLimits};
pub use routes::HttpRoutes;
pub use support::Support;
pub use unknown::UnknownFields;
