//! HTTP: routes, the connection manager, its filters.
//!
//! - [`router`]: which route a request takes and what the route does to it

pub mod router;
