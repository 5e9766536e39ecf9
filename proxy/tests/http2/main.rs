//! HTTP/2 through a whole proxy: the protocol's rules section by section, and what becomes of its
//! requests on HTTP/1. Real sockets, real clock, free ports, no sleeps.

// What fails ends the test.
#![allow(clippy::unwrap_used)]

mod conformance;
mod counters;
mod downgrade;
mod grpc;
#[path = "../wire/running.rs"]
#[allow(dead_code)]
mod running;
mod secrets;
mod stage;
#[allow(dead_code)]
mod strict;
mod upgrades;
