//! Sockets: the only room that opens, binds and connects them.
//!
//! - [`options`]: what `socket_options`, `tcp_keepalive` and addresses of configuration mean
//! - [`bind`]: listening sockets, one for each worker or one shared
//! - [`accept`]: a listening socket on a worker
//! - [`connect`]: outgoing connections
//! - [`buffers`]: what a worker lends to whoever reads or writes
//! - [`capabilities`]: what the kernel lets this process do
//! - [`flusher`]: small writes, put off until all have read
//! - [`interfaces`]: this machine's own addresses
//! - [`original_dst`]: where an intercepted connection was meant to go
//! - [`proxy_protocol`]: the header that tells whose connection it is
//! - [`splice`]: bytes from socket to socket past this process
//! - [`limits`]: how many descriptors there are, and how many are kept back
//! - [`sys`]: the system calls no crate wraps

pub mod accept;
pub mod bind;
pub mod buffers;
pub mod capabilities;
pub mod connect;
pub mod flusher;
pub mod handover;
pub mod interfaces;
pub mod limits;
pub mod options;
pub mod original_dst;
pub mod proxy_protocol;
pub mod splice;
pub mod sys;

pub use accept::Acceptor;
pub use bind::{BindOptions, BoundAddress, ListeningSocket};
pub use buffers::Buffers;
pub use connect::Sockets;
pub use interfaces::{first_local_ip, has_address, hostname};
