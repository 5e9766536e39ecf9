//! Resources from elsewhere: from a file that is replaced, or from a management server that is polled.
//!
//! - [`config_source`]: where a resource comes from, as configuration says it
//! - [`fetch`]: the next answer, whatever the way it comes
//! - `filesystem`: a file, read again when another takes its place
//! - `rest`: `POST /v3/discovery:…`, again and again

pub mod config_source;
pub mod fetch;
mod filesystem;
mod rest;

pub use config_source::ConfigSource;
pub use fetch::{FetchError, Fetcher};
pub(crate) use rest::{once_the_cluster_is_there, polite_delay};
