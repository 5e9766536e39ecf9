//! Whether hosts are well: by asking them, and by what traffic tells of them.
//!
//! - [`config`]: `HealthCheck` of a cluster, checked
//! - [`checker`]: when to ask each host; [`judge`]: what an answer means after those before it; [`interval`]: how long
//!   until the next
//! - [`probe`]: one question to one host; [`probes`]: the protocols, one file each; [`payload`]: bytes to send or expect
//! - [`outlier`]: what traffic tells, and who is ejected for it
//! - [`monitor`]: how workers report what they saw; [`event_log`]: what happened, as JSON lines
//! - [`filter`]: the HTTP filter that answers the checks of others
//! - [`cluster`](mod@cluster): all of that for one cluster, as its owner holds it
//!
//! Direction: the owner of a cluster tells which hosts there are; everything here ends in the flags of a host, which the
//! owner is told of by [`HealthSink`]. Nothing here knows balancers, pools or discovery.

pub mod checker;
pub mod cluster;
pub mod config;
pub mod event_log;
pub mod filter;
pub mod interval;
pub mod judge;
pub mod monitor;
pub mod outlier;
pub mod payload;
pub mod probe;
pub mod probes;

pub use cluster::{ClusterHealth, HealthContext, HealthPlan, HealthSink, HostReport};

use nuncio_api::support::Entry;
use nuncio_core::http::HttpFilterFactory;

/// The HTTP filters of this room.
pub fn http_filters() -> Vec<Box<dyn HttpFilterFactory>> {
    vec![Box::new(filter::Factory)]
}

/// What is honoured of the messages read in this room.
pub static SUPPORTED: &[&[&Entry]] = &[cluster::SUPPORTED, config::SUPPORTED, filter::SUPPORTED, outlier::SUPPORTED];
