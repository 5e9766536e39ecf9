//! What a discovery type is: it reads its part of a cluster's configuration on the main thread, and then tells, for as
//! long as the cluster lives, which hosts there are.

use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use futures_util::future::LocalBoxFuture;
use nuncio_api::pb::envoy::config::cluster::v3::{Cluster, cluster::DiscoveryType};
use nuncio_api::pb::envoy::config::core::v3::Node;
use nuncio_core::error::ConfigError;
use nuncio_core::random::Rng;
use nuncio_core::time::WallClock;
use nuncio_core::upstream::AsyncClient;

use crate::Assignment;
use crate::dns::DnsResolvers;
use crate::xds::Files;

/// The hosts of one cluster, from its checked configuration.
pub trait HostSource {
    fn needs(&self) -> Needs {
        Needs::default()
    }

    /// Whom it asks, as operators read it: `dns a.test`, `eds /etc/eds.yaml`; none if the configuration says it all.
    fn who(&self) -> Option<String> {
        None
    }

    /// Tells the sink all there is to tell. Ends when there will be no more news; dropped when the cluster is removed.
    fn run(self: Box<Self>, context: SourceContext, sink: HostSink) -> LocalBoxFuture<'static, ()>;
}

/// What must be there for a source to work.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Needs {
    /// The node must have an id and a cluster: somebody is told of them.
    pub node: bool,
    /// A cluster that is asked, and the path of the field that names it.
    pub cluster: Option<(String, String)>,
}

/// Reads the configuration of one discovery type. Paths of errors are relative to the cluster.
pub trait HostSourceFactory {
    /// As `cluster_type.name` has it, e.g. `envoy.cluster.static`.
    fn name(&self) -> &'static str;

    /// The full name of the message in `cluster_type.typed_config`, if it has one.
    fn message(&self) -> Option<&'static str> {
        None
    }

    /// The value of `type` that means this discovery type.
    fn discovery_type(&self) -> Option<DiscoveryType> {
        None
    }

    fn check(&self, cluster: &Cluster) -> Result<Box<dyn HostSource>, Vec<ConfigError>>;
}

/// What a running source may use of the world.
#[derive(Clone)]
pub struct SourceContext {
    pub rng: Rng,
    pub clock: WallClock,
    pub dns: Rc<dyn DnsResolvers>,
    /// Over the main thread's own clusters.
    pub client: Rc<dyn AsyncClient>,
    pub node: Arc<Node>,
    /// Those that are watched.
    pub files: Files,
}

/// Receives what a source says.
pub trait HostUpdates {
    /// This is the whole truth now; hosts that are not in it are gone.
    fn replace(&self, assignment: Assignment);

    /// Nobody answered, or nonsense: what was known before still holds.
    fn failed(&self, reason: String);

    /// As `failed`, but somebody answered: what they said cannot be used.
    fn rejected(&self, reason: String);

    fn count(&self, event: UpdateEvent);

    /// What the answer calls its version.
    fn version(&self, version: &str);
}

/// What sources count besides failures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpdateEvent {
    /// Somebody is asked (`update_attempt`).
    Attempt,
    /// And answered (`update_success`).
    Success,
    /// The answer says nothing of this cluster (`update_empty`), and the cluster need not wait for more.
    Empty,
    /// It has waited long enough for the first answer (`init_fetch_timeout`).
    InitFetchTimeout,
    /// What was said is too old to count (`assignment_stale`).
    Stale,
}

/// The only door by which a source speaks.
#[derive(Clone)]
pub struct HostSink(Rc<dyn HostUpdates>);

impl HostSink {
    pub fn new(updates: Rc<dyn HostUpdates>) -> Self {
        Self(updates)
    }

    /// An authority answered: these hosts there are, and no others. An empty answer empties the cluster.
    pub fn replace(&self, assignment: impl Into<Assignment>) {
        self.0.replace(assignment.into());
    }

    /// The answer makes no sense.
    pub fn rejected(&self, reason: impl fmt::Display) {
        self.0.rejected(reason.to_string());
    }

    pub fn version(&self, version: &str) {
        self.0.version(version);
    }

    pub fn count(&self, event: UpdateEvent) {
        self.0.count(event);
    }

    /// There was no answer; not to be confused with an empty one.
    pub fn failed(&self, reason: impl fmt::Display) {
        self.0.failed(reason.to_string());
    }
}
