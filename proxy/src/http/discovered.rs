//! What connection managers are brought while they serve: routes, scopes of routes, and filters. Each is an object that
//! all workers read and only the main thread writes; here stands who asks for it, and what all who ask have in common.

mod follower;

pub use follower::{Asked, Counted, Followed};

use std::cell::{Cell, RefCell};
use std::fmt::Display;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::SystemTime;

use bytes::Bytes;
use nuncio_api::pb::envoy::config::core::v3::Node;
use nuncio_core::access_log::LogFiles;
use nuncio_core::error::ConfigError;
use nuncio_core::extension::FactoryContext;
use nuncio_core::stats::{ScopeId, Store};
use nuncio_discovery::SourceContext;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use super::ecds::DiscoveredFilter;
use super::router::{DiscoveredRoutes, DiscoveredScopes, srds};
use crate::subscription::Strictness;

/// One thing that somebody must bring before a connection manager can serve.
pub enum Discovered {
    Routes(Arc<DiscoveredRoutes>),
    Scopes(Arc<DiscoveredScopes>),
    Filter(Arc<DiscoveredFilter>),
}

/// A resource as a dump shows it.
#[derive(Debug, Clone)]
pub struct Shown {
    pub bytes: Bytes,
    pub version: String,
    pub updated: SystemTime,
}

/// The scopes of a connection manager as a dump shows them.
#[derive(Debug, Clone)]
pub struct ShownScopes {
    pub name: String,
    /// In the order of their names.
    pub scopes: Vec<Bytes>,
    pub version: String,
    pub updated: SystemTime,
}

/// What those who bring work with.
pub struct DiscoveryContext {
    pub sources: SourceContext,
    pub store: Rc<RefCell<Store>>,
    pub node: Arc<Node>,
    pub log_files: Rc<dyn LogFiles>,
    pub has_cluster: Box<dyn Fn(&str) -> bool>,
    pub strictness: Strictness,
}

/// Brings it, on the main thread. A cheap handle.
#[derive(Clone)]
pub struct DiscoveryManager(Rc<Inner>);

struct Inner {
    context: DiscoveryContext,
    warmed: Notify,
    routes: RefCell<Vec<Weak<DiscoveredRoutes>>>,
    scopes: RefCell<Vec<Weak<DiscoveredScopes>>>,
    filters: RefCell<Vec<Weak<DiscoveredFilter>>>,
}

/// It comes while this is held.
pub struct DiscoverySubscription {
    task: AbortHandle,
    warmth: Warmth,
}

impl DiscoverySubscription {
    /// Somebody answered, or was waited for long enough.
    pub fn is_warm(&self) -> bool {
        self.warmth.0.heard.get()
    }

    /// Until it is warm.
    pub async fn warm(&self) {
        while !self.is_warm() {
            self.warmth.0.told.notified().await;
        }
    }
}

impl Drop for DiscoverySubscription {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Whether a subscription is waited for no longer; its two ends share it.
#[derive(Clone)]
pub struct Warmth(Rc<Told>);

struct Told {
    manager: DiscoveryManager,
    heard: Cell<bool>,
    told: Notify,
}

impl Warmth {
    pub fn tell(&self) {
        if !self.0.heard.replace(true) {
            self.0.told.notify_waiters();
            // Kept for whoever looks later.
            self.0.manager.0.warmed.notify_one();
        }
    }
}

impl DiscoveryManager {
    pub fn new(context: DiscoveryContext) -> Self {
        let (routes, scopes, filters) = Default::default();
        Self(Rc::new(Inner { context, warmed: Notify::new(), routes, scopes, filters }))
    }

    /// Asks for it from now on.
    pub fn subscribe(&self, discovered: &Discovered) -> DiscoverySubscription {
        match discovered {
            Discovered::Routes(routes) => self.subscribe_routes(routes),
            Discovered::Scopes(scopes) => {
                remember(&self.0.scopes, scopes);
                self.spawn(|warmth| srds::follow(self.clone(), scopes, warmth))
            }
            Discovered::Filter(filter) => {
                remember(&self.0.filters, filter);
                let subscription = self.spawn(|warmth| follower::follow(self.clone(), filter, warmth));
                if filter.without_warming {
                    subscription.warmth.tell();
                }
                subscription
            }
        }
    }

    pub fn subscribe_routes(&self, routes: &Arc<DiscoveredRoutes>) -> DiscoverySubscription {
        remember(&self.0.routes, routes);
        self.spawn(|warmth| follower::follow(self.clone(), routes, warmth))
    }

    fn spawn<F: Future<Output = ()> + 'static>(&self, follow: impl FnOnce(Warmth) -> F) -> DiscoverySubscription {
        let told = Told { manager: self.clone(), heard: Cell::new(false), told: Notify::new() };
        let warmth = Warmth(Rc::new(told));
        let task = tokio::task::spawn_local(follow(warmth.clone())).abort_handle();
        DiscoverySubscription { task, warmth }
    }

    /// Resolves when something became warm after it was called.
    pub async fn warmed(&self) {
        self.0.warmed.notified().await;
    }

    /// For `/config_dump`.
    pub fn shown_routes(&self) -> Vec<Shown> {
        running(&self.0.routes).filter_map(|routes| routes.asked().shown()).collect()
    }

    /// None if no filter comes by itself; else in the order of their names.
    pub fn shown_filters(&self) -> Option<Vec<Shown>> {
        let mut filters: Vec<_> = running(&self.0.filters).collect();
        filters.sort_by(|a, b| a.asked().name.cmp(&b.asked().name));
        (!filters.is_empty()).then(|| filters.iter().filter_map(|filter| filter.asked().shown()).collect())
    }

    pub fn shown_scopes(&self) -> Vec<ShownScopes> {
        running(&self.0.scopes).filter_map(|scopes| scopes.shown()).collect()
    }

    pub fn context(&self) -> &DiscoveryContext {
        &self.0.context
    }
}

fn remember<T>(list: &RefCell<Vec<Weak<T>>>, new: &Arc<T>) {
    let mut list = list.borrow_mut();
    list.retain(|known| known.strong_count() > 0);
    list.push(Arc::downgrade(new));
}

fn running<T>(list: &RefCell<Vec<Weak<T>>>) -> impl Iterator<Item = Arc<T>> {
    list.borrow().iter().filter_map(Weak::upgrade).collect::<Vec<_>>().into_iter()
}

impl DiscoveryContext {
    /// Reads a resource of a connection manager of that `stat_prefix`: what was made of it, and the scopes that it
    /// counts in, which are the caller's to release. `what` it is, for warnings.
    pub fn read<T>(
        &self,
        stat_prefix: &str,
        what: impl Display,
        read: impl FnOnce(&FactoryContext<'_>) -> Result<T, Vec<ConfigError>>,
    ) -> Result<(T, Vec<ScopeId>), Vec<ConfigError>> {
        let (warnings, scopes) = (RefCell::default(), RefCell::default());
        let context = FactoryContext {
            name: "",
            stat_prefix,
            has_cluster: &*self.has_cluster,
            warnings: &warnings,
            node: &self.node,
            stats: &self.store,
            log_files: &*self.log_files,
            formats: &crate::format::Formats,
            scopes: &scopes,
        };
        let made = read(&context);
        for warning in warnings.take() {
            tracing::warn!(target: "config", "{what}: {warning}");
        }
        let scopes = scopes.take();
        match made {
            Ok(made) => Ok((made, scopes)),
            Err(errors) => {
                self.release(scopes);
                Err(errors)
            }
        }
    }

    pub fn release(&self, scopes: impl IntoIterator<Item = ScopeId>) {
        let mut store = self.store.borrow_mut();
        scopes.into_iter().for_each(|scope| store.release(scope));
    }
}
