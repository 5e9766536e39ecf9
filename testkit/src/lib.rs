//! Doubles of the outside world, for tests on a paused clock. A dev-dependency only.
//!
//! - [`dns`]: a scripted name server, on real sockets and a real clock
//! - [`net`]: a network in memory, with addresses, delays and accidents
//! - [`http1`]: a scripted client and scripted upstreams that speak HTTP/1.1
//! - [`http2`]: HTTP/2 frame by frame, over any stream
//! - [`certificates`]: an authority and what it issues · [`tls`]: a client over real sockets
//! - [`load`]: clients over real sockets that send at a fixed rate and count what is lost
//!
//! All else belongs to one thread and runs on tokio's clock: a test that uses it is
//! `#[tokio::test(flavor = "local", start_paused = true)]` and never touches a real socket.

pub mod certificates;
pub mod dns;
pub mod http1;
pub mod http2;
pub mod load;
pub mod net;
pub mod tls;
