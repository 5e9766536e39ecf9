//! `envoy.filters.http.ext_authz`: asks an authorization service about each request
//! (`envoy.extensions.filters.http.ext_authz.v3.ExtAuthz`, per route `ExtAuthzPerRoute`).
//!
//! The check goes through a named cluster: its discovery, health, balancing, breakers, TLS and connections on the same
//! worker, never a listener or a route. An answer allows (and may change the request), denies, or is an error; an error
//! denies with `status_on_error` unless `failure_mode_allow`. Flag `UAEX`; details `ext_authz_denied`,
//! `ext_authz_error`, `ext_authz_invalid`; stats under `http.<prefix>.ext_authz.` and `cluster.<route's>.ext_authz.`.
//!
//! - `config`: the checked configuration, of the filter and of routes
//! - `check_request`: the attributes of a request
//! - `grpc_client`, `http_client`: how they are asked about
//! - `answer`: what came back
//! - `mutations`, `mutation_rules`, `query`: what an answer may do to the request
//! - `hardening`: what may be demanded beyond Envoy
//! - `filter`: the two halves
//! - `network_filter`: the same question about connections
//! - `stats`: what is counted

mod answer;
mod check_request;
mod config;
mod filter;
mod grpc_client;
mod hardening;
mod http_client;
mod mutation_rules;
mod mutations;
mod network_filter;
mod query;
mod stats;

pub use config::Factory;
pub(crate) use grpc_client::CHECK;
pub use network_filter::Factory as NetworkFactory;

use nuncio_api::support::Entry;

/// What is honoured of the messages read here.
pub static SUPPORTED: &[&Entry] = &[
    &config::CONFIG,
    &config::ROUTE,
    &config::CHECK_SETTINGS,
    &config::BUFFER,
    &config::STATUS,
    &config::FLAG,
    &config::LIST,
    &http_client::SERVICE,
    &http_client::URI,
    &http_client::REQUEST,
    &http_client::RESPONSE,
    &http_client::HEADER,
    &mutation_rules::RULES,
    &network_filter::CONFIG,
];
