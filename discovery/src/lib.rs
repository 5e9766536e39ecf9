//! Where hosts and configuration come from.
//!
//! - [`source`]: what a discovery type is, and the one door by which it speaks
//! - [`assignment`]: `ClusterLoadAssignment` to host specs, for every type that reads one
//! - [`dns`]: names to addresses
//! - [`xds`]: resources from files and management servers
//! - [`sources`]: the discovery types, one file each, and their list
//! - [`sds_server`]: the other end of polled SDS, for tests and small fleets
//!
//! Direction: a source says what is there now; it never learns who listens, sees no host object, no health, no balancer
//! and no thread but its own. What changed is found out behind the door.

pub mod assignment;
pub mod dns;
pub mod sds_server;
pub mod source;
pub mod sources;
pub mod xds;

pub use assignment::Assignment;
pub use source::{HostSink, HostSource, HostSourceFactory, HostUpdates, SourceContext, UpdateEvent};
