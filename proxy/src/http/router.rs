//! Routes: which one a request takes, and what it does to the request.
//!
//! `RouteConfiguration` → [`RouteConfig`] (compiled on main, shared) → [`Route`] (held by a stream).
//!
//! - `table`: the compiled configuration and its builder; `domains`, `path_index`, `names` make it fast
//! - `route_match`: whether a request fits a route
//! - `route`: the route as streams and filters see it; `virtual_host`: what it inherits
//! - `policy`, `retry`: how a request is forwarded
//! - `mutations`: header changes of all levels
//! - `filter`: the terminal filter; `upstream_request`: one attempt; `failure`: why one failed
//! - `timeouts`, `attempt_timers`, `retry_state`, `replay`: how long, how often, and with which bytes
//! - `strict_headers`: what a request says of all that, refused if it means nothing
//! - `shadow`: copies for other clusters; `internal_redirect`: redirects that are followed here
//! - `routes`: where a manager's routes come from, `scopes`: which of many tables a request is looked up in
//! - `rds`, `srds`: routes, and their scopes, that come while the server runs
//! - `upstream_log`: what is told of each attempt
//! - `tally`: where a request is counted
//! - `rewrite`, `redirect`, `direct_response`, `weighted`, `filter_config`: the rest of a route

mod attempt_timers;
mod direct_response;
mod domains;
mod failure;
mod filter;
mod filter_config;
mod internal_redirect;
mod mutations;
mod names;
mod path_index;
mod policy;
mod rds;
mod redirect;
mod replay;
mod retry;
mod retry_state;
mod rewrite;
mod route;
mod route_match;
mod routes;
mod scopes;
mod shadow;
pub mod srds;
mod strict_headers;
mod table;
mod tally;
mod timeouts;
mod upstream_log;
mod upstream_request;
mod virtual_host;
mod weighted;

pub use crate::upstream::hash_policy::{HashInput, HashPolicy};
pub use direct_response::read_body;
pub use failure::{Failure, Reset};
pub use filter::{Expired, Heard, Next, Router};
pub use filter_config::{FilterConfig, ReadFilterConfig};
pub use mutations::Scratch;
pub use policy::{
    ForwardPolicy, InternalRedirectPolicy, MaxStreamDuration, Mirror, MirrorTarget, RedirectPredicate,
    Upgrade as RouteUpgrade,
};
pub use rds::DiscoveredRoutes;
pub use retry::{
    BackOff, HedgePolicy, HostPredicate, PreviousPriorities, RateLimitedBackOff, ResetFormat, RetryOn, RetryPolicy,
};
pub use rewrite::set_authority;
pub use route::{Action, ClusterName, Route};
pub use route_match::MatchContext;
pub(in crate::http) use route_match::RouteMatch;
pub use routes::{Routes, compile};
pub use scopes::{
    RouteSource, ScopeKeyBuilder, ScopeTable, ScopedRoutes, Scopes, key as scope_key, unreachable as unreachable_scope,
};
pub use srds::DiscoveredScopes;
pub use strict_headers::StrictHeaders;
pub use table::{BuildContext, RouteConfig, RouteConfigBuilder};
pub use tally::{VhostStats, VhostStatsMap};
pub use virtual_host::{Common, VirtualCluster, VirtualHost};

use nuncio_api::support::Entry;

/// What is honoured of the messages read here.
pub static SUPPORTED: &[&Entry] = &[
    &direct_response::DIRECT_RESPONSE,
    &direct_response::BODY,
    &direct_response::FORMAT,
    &filter::ACTION,
    &filter::MAX_STREAM_DURATION,
    &filter::UPGRADE,
    &filter::CONNECT_CONFIG,
    &filter::HASH_POLICY,
    &filter::HASH_HEADER,
    &filter::HASH_COOKIE,
    &filter::HASH_ATTRIBUTE,
    &filter::HASH_CONNECTION,
    &filter::HASH_QUERY,
    &filter::HASH_STATE,
    &filter::HOST,
    &filter::ROUTE,
    &filter::RETRY,
    &filter::RETRY_PRIORITY,
    &filter::RETRY_HOST,
    &filter::BACK_OFF,
    &filter::RATE_LIMITED,
    &filter::RESET_HEADER,
    &filter::PREVIOUS_HOSTS,
    &filter::OMIT_CANARY,
    &filter::OMIT_METADATA,
    &filter::PREVIOUS_PRIORITIES,
    &filter::HEDGE,
    &filter::MIRROR,
    &filter::INTERNAL_REDIRECT,
    &filter::PREVIOUS_ROUTES,
    &filter::SAFE_CROSS_SCHEME,
    &filter::ALLOW_LISTED,
    &filter::CONFIG,
    &filter::VIRTUAL_CLUSTER,
    &filter_config::FILTER_CONFIG,
    &mutations::OPTION,
    &mutations::VALUE,
    &policy::ACTION,
    &redirect::REDIRECT,
    &route::ROUTE,
    &route::NON_FORWARDING,
    &route_match::MATCH,
    &route_match::GRPC,
    &route_match::CONNECT,
    &route_match::TLS,
    &rewrite::TEMPLATE,
    &scopes::ROUTES,
    &scopes::LIST,
    &scopes::SCOPED_RDS,
    &scopes::BUILDER,
    &scopes::FRAGMENT_BUILDER,
    &scopes::EXTRACTOR,
    &scopes::ELEMENT,
    &scopes::SCOPE,
    &scopes::KEY,
    &scopes::FRAGMENT,
    &upstream_log::OPTIONS,
    &virtual_host::CONFIG,
    &virtual_host::HOST,
    &weighted::WEIGHTED,
    &weighted::CLUSTER_WEIGHT,
];
