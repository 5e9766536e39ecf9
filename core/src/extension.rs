//! What extensions are handed: on the main thread when a configuration is read, on a worker when
//! an instance is made.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use crate::access_log::{LogFiles, TextFormats};
use crate::error::ConfigError;
use crate::random::Rng;
use crate::runtime::Runtime;
use crate::stats::{Scope, ScopeId, Store, WorkerStats};
use crate::time::WallClock;
use crate::upstream::AsyncClient;

/// One worker's belongings, as far as rooms below `proxy` may use them. `!Send`, like all that is
/// made from it.
#[derive(Clone)]
pub struct WorkerContext {
    /// 0, 1, … for `wrk:0`, `wrk:1`, …; `None` on the main thread.
    pub index: Option<u32>,
    pub rng: Rng,
    pub clock: WallClock,
    /// Where this thread's objects count.
    pub stats: Rc<WorkerStats>,
    /// Calls to named clusters from this thread.
    pub client: Rc<dyn AsyncClient>,
    pub runtime: Rc<dyn Runtime>,
    pub vitals: Rc<dyn Vitals>,
}

/// How this process and its clusters are, for filters that tell it to others.
pub trait Vitals {
    /// An operator asked for no more requests (`/healthcheck/fail`).
    fn health_failed(&self) -> bool;

    /// Who is in a cluster, as this thread knows it; none if there is no such cluster.
    fn membership(&self, cluster: &str) -> Option<Membership>;
}

/// Hosts of a cluster.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Membership {
    pub total: usize,
    /// Healthy or degraded.
    pub available: usize,
}

/// All is well, and there are no clusters.
pub struct NoVitals;

impl Vitals for NoVitals {
    fn health_failed(&self) -> bool {
        false
    }

    fn membership(&self, _cluster: &str) -> Option<Membership> {
        None
    }
}

/// What a factory is told while a configuration is read, on the main thread.
pub struct FactoryContext<'a> {
    /// The configured name of the object that is read: the key of an HTTP filter's per-route configuration.
    pub name: &'a str,
    /// The owner's `stat_prefix`, e.g. a connection manager's for its filters.
    pub stat_prefix: &'a str,
    /// Whether a cluster of that name is configured now.
    pub has_cluster: &'a dyn Fn(&str) -> bool,
    /// What the operator should hear although it is not an error.
    pub warnings: &'a RefCell<Vec<ConfigError>>,
    pub node: &'a Arc<nuncio_api::pb::envoy::config::core::v3::Node>,
    pub stats: &'a RefCell<Store>,
    /// What logs and events are written to.
    pub log_files: &'a dyn LogFiles,
    /// Compiles values with `%COMMAND%`s.
    pub formats: &'a dyn TextFormats,
    /// The scopes made by [`FactoryContext::scope`], which the owner of the configuration (a
    /// listener, a cluster) releases when it is gone.
    pub scopes: &'a RefCell<Vec<ScopeId>>,
}

impl FactoryContext<'_> {
    pub fn warn(&self, path: impl Into<String>, reason: impl Into<String>) {
        self.warnings.borrow_mut().push(ConfigError::new(path, reason));
    }

    /// The scope of that kind and name, held for as long as the configuration that is being read.
    pub fn scope(&self, kind: &'static Scope, name: &Arc<str>) -> ScopeId {
        let id = self.stats.borrow_mut().scope(kind, name);
        self.scopes.borrow_mut().push(id);
        id
    }
}
