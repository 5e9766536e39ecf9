//! Clusters: the manager on the main thread, balancers and pools on the workers.

pub mod worker;

pub use worker::Worker;
