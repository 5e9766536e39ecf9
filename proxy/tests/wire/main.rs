//! The proxy over real sockets: what only the kernel can show. Real clock, free ports, no sleeps.

// What fails ends the test.
#![allow(clippy::unwrap_used)]

mod admin;
mod authz;
mod bad_answers;
mod bad_checks;
mod closing;
mod demo;
mod dynamic;
mod ecds;
mod examples;
mod grpc_codes;
mod health;
mod listeners;
mod mistakes;
mod piped;
mod process;
mod running;
mod safety;
mod scopes;
mod sds;
mod tcp_proxy;
mod tls;
