//! A small server of the REST service discovery API that preceded EDS, for tests, demonstrations and small fleets. Hosts
//! register themselves and check in again before their time is over; whoever polls is told who is there.
//!
//! - [`Server`]: requests and their answers, without a connection
//! - `registry`: who is registered
//! - `journal`: registrations on disk, so that a restart loses none that was acknowledged
//! - `form`: what requests carry

mod api;
mod form;
mod journal;
mod registry;

pub use api::{Answer, Server, Settings};
