//! The proxy: sockets, codecs, clusters, HTTP, listeners, admin, server.
//!
//! Layers, lowest first; a layer imports only what stands above it in this list:
//!
//! - [`version`]: which build this is
//! - [`calendar`]: dates from seconds · [`alarm`]: one timer for many deadlines · [`turn`]: what a task does before others
//! - [`logging`]: the proxy's own log
//! - [`overload`]: what is given up while there is too little of something
//! - [`lifecycle`]: the state of the server and of its draining
//! - [`stats_sink`]: all stats as text, for people and for scrapers
//! - [`subscription`]: what is counted and checked of configuration that comes while it runs
//! - [`net`]: the sockets it opens
//! - [`tls`]: certificates, and connections that are encrypted
//! - [`codec`]: HTTP connections as our own types
//! - [`format`](mod@format): `%COMMAND%` operators of logs, header mutations and local replies
//! - [`access_log`]: which records are written, and the files they go to
//! - [`upstream`]: clusters, balancers, pools
//! - [`http`]: routes, the connection manager, its filters
//! - [`network`]: what a connection's bytes are handed to
//! - [`listener`]: listeners, from configuration to accept loops
//! - [`extensions`]: what is in the binary
//! - [`admin`]: pages about the running proxy
//! - [`server`]: what it is asked to do, main and worker threads
//! - [`small_server`]: HTTP for what subcommands serve
//! - [`cli`]: the command line

pub mod access_log;
pub mod admin;
pub mod alarm;
pub mod calendar;
pub mod cli;
pub mod codec;
pub mod extensions;
pub mod format;
pub mod http;
pub mod lifecycle;
pub mod listener;
pub mod logging;
pub mod net;
pub mod network;
pub mod overload;
pub mod server;
pub mod small_server;
pub mod stats_sink;
pub mod subscription;
pub mod tls;
pub mod turn;
pub mod upstream;
pub mod version;
