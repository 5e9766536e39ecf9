//! The shared words of nuncio: traits and value types that two rooms or more need.
//!
//! Nothing here opens a socket, reads a file, spawns a task or keeps global state; the
//! rooms above (`discovery`, `healthcheck`, `authz`, `proxy`) do that and speak to each
//! other in these words.
//!
//! - [`net`]: addresses, CIDR ranges, the byte stream of a connection, what is known of it
//! - [`network`]: the phases of a connection in front of its terminal filter: listener filters, transport, network filters
//! - [`http`]: heads with their header maps, body chunks, local replies, the filter traits
//! - [`stream_info`]: the record of one stream, response flags
//! - [`access_log`]: what a log writer is told, and what compiles its formats
//! - [`stats`](mod@stats): counters, gauges and histograms: written by one worker without a lock, summed by main
//! - [`upstream`]: hosts, host sets, cluster facts, the calls other rooms may make
//! - [`dns`]: questions to the domain name system, and what an answer means
//! - [`extension`]: what a factory and a worker hand to those they make
//! - [`typed`]: extensions that a message names by their type
//! - [`matcher`]: tests of strings, headers, paths, addresses, metadata
//! - [`metadata`]: structured metadata of hosts, routes and streams
//! - [`runtime`]: flags an operator may set, with their defaults
//! - [`time`], [`random`]: the wall clock and chance, handed in
//! - [`error`]: configuration errors and `bug!`
//!
//! Direction: everything imports `api` at most.

pub mod access_log;
pub mod dns;
pub mod error;
pub mod extension;
pub mod http;
pub mod matcher;
pub mod metadata;
pub mod net;
pub mod network;
pub mod random;
pub mod runtime;
pub mod stats;
pub mod stream_info;
pub mod time;
pub mod typed;
pub mod upstream;
