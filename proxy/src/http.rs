//! HTTP: the connection manager, its filters, the router.
//!
//! - [`compression`]: content codings, for the filters that speak them
//! - [`conn_manager`]: bytes to streams, and the filters of a stream
//! - [`discovered`]: what connection managers are brought while they serve
//! - [`ecds`]: filters whose configuration comes by itself
//! - [`filters`]: the HTTP filters of this binary
//! - [`match_tree`]: what is done with a request, by what it says
//! - [`rate_limits`]: what routes want to be limited
//! - [`router`]: which route a request takes, what the route does to it, and the upstream's answer

pub mod compression;
pub mod conn_manager;
pub mod discovered;
pub mod ecds;
pub mod filters;
pub mod match_tree;
pub mod rate_limits;
pub mod router;

use std::sync::Arc;

use nuncio_core::http::HttpFilterFactory;

use crate::network::TerminalFilterFactory;

/// The network filters of this room, around these HTTP filters.
pub fn factories(http_filters: Vec<Box<dyn HttpFilterFactory>>) -> Vec<Box<dyn TerminalFilterFactory>> {
    let filters = Arc::new(filters::HttpFilters::new(http_filters));
    vec![Box::new(conn_manager::factory::Factory::new(filters))]
}
