//! Resources from elsewhere: from a file that is replaced, or from a management server that is polled.
//!
//! - [`config_source`]: where a resource comes from, as configuration says it
//! - [`resource`]: what comes, typed, and who takes it
//! - [`subscription`]: the one way by which it comes
//! - `fetch`: the next answer, whatever brings it
//! - [`filesystem`]: a file, read again when another takes its place
//! - `rest`: `POST /v3/discovery:…`, again and again

pub mod config_source;
mod fetch;
pub mod filesystem;
pub mod resource;
mod rest;
pub mod subscription;

pub use config_source::ConfigSource;
pub use filesystem::watch::{Files, Watched};
pub use resource::{Decoded, Event, Rejected, Resource, ResourceHandler, Update};
pub(crate) use rest::{once_the_cluster_is_there, polite_delay};
pub use subscription::{News, Subscription};
