//! The HTTP filters that the binary has. A new filter is one file and one entry here.

mod basic_auth;
mod buffer;
mod compressor;
mod cors;
mod csrf;
mod decompressor;
mod fault;
mod grpc_stats;
mod grpc_web;
pub(in crate::http) mod header_mutation;
mod header_to_metadata;
mod jwt_authn;
mod local_ratelimit;
mod original_src;
mod ratelimit;
mod set_metadata;
#[cfg(test)]
pub(crate) mod testing;

use nuncio_api::support::Entry;
use nuncio_core::access_log::LogContext;
use nuncio_core::extension::{FactoryContext, WorkerContext};
use nuncio_core::http::{HttpFilterFactory, StreamControl};
use nuncio_core::stats::{List, Scope, ScopeId, lists};

/// Filters by the type of their configuration, as Envoy finds them.
pub struct HttpFilters(Vec<Box<dyn HttpFilterFactory>>);

impl HttpFilters {
    pub fn new(factories: Vec<Box<dyn HttpFilterFactory>>) -> Self {
        Self(factories)
    }

    /// By the message type of a `typed_config`.
    pub fn find(&self, type_url: &str) -> Option<&dyn HttpFilterFactory> {
        let message = type_url.rsplit('/').next().unwrap_or(type_url);
        self.0.iter().map(AsRef::as_ref).find(|f| f.config_type() == message)
    }

    /// By the message type of a per-route configuration.
    pub fn find_route(&self, type_url: &str) -> Option<&dyn HttpFilterFactory> {
        let message = type_url.rsplit('/').next().unwrap_or(type_url);
        self.0.iter().map(AsRef::as_ref).find(|f| f.route_config_type() == Some(message))
    }
}

/// One entry for each file of this room; filters of other rooms are added by `extensions`.
pub fn factories() -> Vec<Box<dyn HttpFilterFactory>> {
    vec![
        Box::new(basic_auth::Factory),
        Box::new(buffer::Factory),
        Box::new(compressor::Factory),
        Box::new(cors::Factory),
        Box::new(csrf::Factory),
        Box::new(decompressor::Factory),
        Box::new(fault::Factory),
        Box::new(grpc_stats::Factory),
        Box::new(grpc_web::Factory),
        Box::new(header_mutation::Factory),
        Box::new(header_to_metadata::Factory),
        Box::new(jwt_authn::Factory),
        Box::new(local_ratelimit::Factory),
        Box::new(original_src::Factory),
        Box::new(ratelimit::Factory),
        Box::new(set_metadata::Factory),
    ]
}

/// What is honoured of the messages read in this folder.
pub static SUPPORTED: &[&[&Entry]] = &[
    basic_auth::SUPPORTED,
    buffer::SUPPORTED,
    compressor::SUPPORTED,
    cors::SUPPORTED,
    csrf::SUPPORTED,
    decompressor::SUPPORTED,
    fault::SUPPORTED,
    grpc_stats::SUPPORTED,
    grpc_web::SUPPORTED,
    header_mutation::SUPPORTED,
    header_to_metadata::SUPPORTED,
    jwt_authn::SUPPORTED,
    local_ratelimit::SUPPORTED,
    original_src::SUPPORTED,
    ratelimit::SUPPORTED,
    set_metadata::SUPPORTED,
];

/// Where the filters of a manager count, `http.<stat_prefix>.`; the list is shown as zeros from now on.
fn http_scope<L: List>(context: &FactoryContext<'_>) -> ScopeId {
    declared::<L>(context, &lists::http::SCOPE, context.stat_prefix)
}

fn declared<L: List>(context: &FactoryContext<'_>, kind: &'static Scope, name: &str) -> ScopeId {
    let scope = context.scope(kind, &name.into());
    L::descriptors().iter().for_each(|list| context.stats.borrow_mut().declare(scope, list));
    scope
}

/// Runs `apply` with what formatters may know of the stream.
fn with_log_context<T>(stream: &StreamControl, worker: &WorkerContext, apply: impl FnOnce(&LogContext<'_>) -> T) -> T {
    let connection = stream.connection();
    let route = stream.route();
    let info = stream.info();
    apply(&LogContext {
        connection: connection.as_deref(),
        route: route.as_deref(),
        rng: Some(&worker.rng),
        ..LogContext::new(&info)
    })
}
