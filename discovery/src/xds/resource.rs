//! What a source of resources brings, typed, and who takes it.

use nuncio_api::pb::envoy::config::cluster::v3::Cluster;
use nuncio_api::pb::envoy::config::core::v3::TypedExtensionConfig;
use nuncio_api::pb::envoy::config::endpoint::v3::ClusterLoadAssignment;
use nuncio_api::pb::envoy::config::listener::v3::Listener;
use nuncio_api::pb::envoy::config::route::v3::{RouteConfiguration, ScopedRouteConfiguration};
use nuncio_api::pb::envoy::extensions::transport_sockets::tls::v3::Secret;
use nuncio_api::prost::{Message, Name, bytes::Bytes};
use nuncio_core::error::ConfigError;

/// A message that travels by discovery.
pub trait Resource: Message + Name + Default + 'static {
    /// Of its kind, e.g. `envoy.config.cluster.v3.Cluster`.
    const TYPE: &'static str;
    /// Where a management server is asked for it over REST.
    const REST: &'static str;
    /// The fields on the way to its many elements, each of which takes hundreds of bytes once it is decoded and may be
    /// two bytes before.
    const ELEMENTS: &'static [u32];

    /// Its own.
    fn resource_name(&self) -> &str;
}

macro_rules! resources {
    ($($message:ty: $name:ident, $kind:literal, $rest:literal, $elements:expr;)*) => {$(
        impl Resource for $message {
            const TYPE: &'static str = $kind;
            const REST: &'static str = $rest;
            const ELEMENTS: &'static [u32] = &$elements;

            fn resource_name(&self) -> &str {
                &self.$name
            }
        }
    )*};
}

resources! {
    Cluster: name, "envoy.config.cluster.v3.Cluster", "/v3/discovery:clusters", [];
    // `endpoints`, `lb_endpoints`
    ClusterLoadAssignment: cluster_name, "envoy.config.endpoint.v3.ClusterLoadAssignment", "/v3/discovery:endpoints", [2, 2];
    Listener: name, "envoy.config.listener.v3.Listener", "/v3/discovery:listeners", [];
    RouteConfiguration: name, "envoy.config.route.v3.RouteConfiguration", "/v3/discovery:routes", [];
    ScopedRouteConfiguration: name, "envoy.config.route.v3.ScopedRouteConfiguration", "/v3/discovery:scoped-routes", [];
    TypedExtensionConfig: name, "envoy.config.core.v3.TypedExtensionConfig", "/v3/discovery:extension_configs", [];
    Secret: name, "envoy.extensions.transport_sockets.tls.v3.Secret", "/v3/discovery:secrets", [];
}

/// Everything there is of a kind, or of the names that were asked for; each message checked against the rules of its
/// own description.
#[derive(Debug, Clone, PartialEq)]
pub struct Update<R> {
    pub version: String,
    pub resources: Vec<Decoded<R>>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Decoded<R> {
    pub message: R,
    /// The same, encoded.
    pub bytes: Bytes,
}

/// Why a resource was not taken. The last good one of that name stays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejected {
    pub name: String,
    pub error: ConfigError,
}

/// What befalls a subscription, as its owner's stats tell it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Somebody was asked, or a file was read (`update_attempt`).
    Attempt,
    /// And everything in the answer was taken (`update_success`, `version`, `update_time`).
    Success { version: String },
    /// Nobody answered (`update_failure`).
    Failure(String),
    /// The answer, or some of it, cannot be used (`update_rejected`).
    Rejected(String),
    /// It has waited long enough for the first answer (`init_fetch_timeout`).
    InitFetchTimeout,
}

/// Who consumes resources, on the main thread.
pub trait ResourceHandler<R> {
    /// Takes an update. Good resources beside bad ones may be taken; what was not is told.
    fn on_update(&self, update: Update<R>) -> Result<(), Vec<Rejected>>;

    /// After each update or instead of one.
    fn on_event(&self, event: Event);
}

/// What was rejected, in one line of bounded length.
pub(super) fn told(rejected: &[Rejected]) -> String {
    const MOST: usize = 5;
    let each = |rejected: &Rejected| format!("{}: {}", rejected.name, rejected.error);
    let mut texts: Vec<String> = rejected.iter().take(MOST).map(each).collect();
    if rejected.len() > MOST {
        texts.push(format!("and {} more", rejected.len() - MOST));
    }
    texts.join("; ")
}
