//! Routes that come by themselves (RDS). A connection manager asks its [`DiscoveredRoutes`] for every request; the main
//! thread's [`RouteManager`] brings them: each answer is checked whole, and a wrong one leaves the last good routes.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::SystemTime;

use arc_swap::{ArcSwap, ArcSwapOption};
use bytes::Bytes;
use nuncio_api::pb::envoy::config::core::v3::Node;
use nuncio_api::pb::envoy::config::route::v3::RouteConfiguration;
use nuncio_core::access_log::LogFiles;
use nuncio_core::error::ConfigError;
use nuncio_core::extension::FactoryContext;
use nuncio_core::http::RequestHead;
use nuncio_core::stats::lists;
use nuncio_core::stats::lists::subscription as stat;
use nuncio_core::stats::{ScopeId, Stats, Store};
use nuncio_discovery::SourceContext;
use nuncio_discovery::xds::{ConfigSource, Decoded, News, Resource, Subscription, Update};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use super::{BuildContext, MatchContext, Route, RouteConfig};
use crate::http::filters::HttpFilters;
use crate::subscription::{Refusals, Strictness, SubscriptionStats};

/// Where a connection manager's routes come from.
pub enum Routes {
    Inline(Arc<RouteConfig>),
    Discovered(Arc<DiscoveredRoutes>),
}

impl Routes {
    /// Removes what only internal clients may say.
    pub fn clean_external(&self, head: &mut RequestHead) {
        match self {
            Self::Inline(config) => config.clean_external(head),
            Self::Discovered(routes) => {
                if let Some(config) = &*routes.current.load() {
                    config.clean_external(head);
                }
            }
        }
    }

    pub fn find(&self, request: &RequestHead, context: &MatchContext<'_>) -> Option<Arc<Route>> {
        match self {
            Self::Inline(config) => config.find(request, context).cloned(),
            Self::Discovered(routes) => routes.current.load().as_ref()?.find(request, context).cloned(),
        }
    }
}

/// Routes of one connection manager that are not in its configuration. Read by all workers, written by main.
pub struct DiscoveredRoutes {
    source: ConfigSource,
    name: String,
    stat_prefix: String,
    filters: Arc<HttpFilters>,
    /// None until the first good answer: nothing is found.
    current: ArcSwapOption<RouteConfig>,
    shown: ArcSwap<Option<ShownRoutes>>,
}

/// What a dump shows of them.
#[derive(Debug, Clone)]
pub struct ShownRoutes {
    pub bytes: Bytes,
    pub version: String,
    pub updated: SystemTime,
}

impl DiscoveredRoutes {
    pub fn new(source: ConfigSource, name: &str, stat_prefix: &str, filters: &Arc<HttpFilters>) -> Self {
        Self {
            source,
            name: name.to_owned(),
            stat_prefix: stat_prefix.to_owned(),
            filters: filters.clone(),
            current: ArcSwapOption::empty(),
            shown: ArcSwap::default(),
        }
    }
}

/// Brings the routes of all connection managers, on the main thread. A cheap handle.
#[derive(Clone)]
pub struct RouteManager(Rc<Inner>);

/// What it works with.
pub struct RouteContext {
    pub sources: SourceContext,
    pub store: Rc<RefCell<Store>>,
    pub node: Arc<Node>,
    pub log_files: Rc<dyn LogFiles>,
    pub has_cluster: Box<dyn Fn(&str) -> bool>,
    pub strictness: Strictness,
}

struct Inner {
    context: RouteContext,
    warmed: Notify,
    running: RefCell<Vec<Weak<DiscoveredRoutes>>>,
}

/// Routes come while this is held.
pub struct RouteSubscription {
    task: AbortHandle,
    heard: Rc<Cell<bool>>,
}

impl RouteSubscription {
    /// Somebody answered, or was waited for long enough.
    pub fn is_warm(&self) -> bool {
        self.heard.get()
    }
}

impl Drop for RouteSubscription {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl RouteManager {
    pub fn new(context: RouteContext) -> Self {
        Self(Rc::new(Inner { context, warmed: Notify::new(), running: RefCell::default() }))
    }

    /// Asks for them from now on.
    pub fn subscribe(&self, routes: &Arc<DiscoveredRoutes>) -> RouteSubscription {
        {
            let mut running = self.0.running.borrow_mut();
            running.retain(|known| known.strong_count() > 0);
            running.push(Arc::downgrade(routes));
        }
        let heard = Rc::<Cell<bool>>::default();
        let follower = Follower::new(self.0.clone(), Arc::downgrade(routes), routes, heard.clone());
        RouteSubscription { task: tokio::task::spawn_local(follower.run()).abort_handle(), heard }
    }

    /// Resolves when some routes became warm after it was called.
    pub async fn warmed(&self) {
        self.0.warmed.notified().await;
    }

    /// For `/config_dump`.
    pub fn shown(&self) -> Vec<ShownRoutes> {
        let running = self.0.running.borrow();
        running.iter().filter_map(Weak::upgrade).filter_map(|routes| (**routes.shown.load()).clone()).collect()
    }
}

/// One subscription's task.
struct Follower {
    manager: Rc<Inner>,
    /// Not held: a listener that is gone takes them along.
    routes: Weak<DiscoveredRoutes>,
    subscription: Subscription<RouteConfiguration>,
    stats: SubscriptionStats,
    reloads: Stats<stat::Routes>,
    heard: Rc<Cell<bool>>,
    /// Of the routes that are in use.
    scopes: Vec<ScopeId>,
    last: Bytes,
}

impl Follower {
    fn new(manager: Rc<Inner>, weak: Weak<DiscoveredRoutes>, routes: &DiscoveredRoutes, heard: Rc<Cell<bool>>) -> Self {
        let context = &manager.context;
        let subscription = Subscription::new(&routes.source, vec![routes.name.clone()], &context.sources);
        let name = format!("{}.rds.{}", routes.stat_prefix, routes.name).into();
        let mut store = context.store.borrow_mut();
        let stats = SubscriptionStats::new(&mut store, &stat::RDS_SCOPE, &name, context.sources.clock);
        let reloads = Stats::new(store.main(), stats.scope());
        reloads.add(stat::CONFIG_RELOAD, 0);
        drop(store);
        Self { manager, routes: weak, subscription, stats, reloads, heard, scopes: Vec::new(), last: Bytes::new() }
    }

    async fn run(mut self) {
        loop {
            let news = self.subscription.next().await;
            let Some(routes) = self.routes.upgrade() else { return };
            if let News::InitFetchTimeout = news {
                self.stats.timed_out();
                self.warm();
                continue;
            }
            self.stats.attempt();
            let name = &routes.name;
            match news {
                News::Update(update) => self.take(&routes, update),
                News::Unchanged | News::InitFetchTimeout => {}
                News::Failed(reason) => {
                    self.stats.failure();
                    tracing::warn!(resource = &**name, "routes are kept as they were: {reason}");
                }
                News::Rejected(reason) => {
                    self.stats.rejected();
                    tracing::warn!(resource = &**name, "routes are kept as they were, the answer is refused: {reason}");
                }
            }
            self.warm();
        }
    }

    fn warm(&self) {
        if !self.heard.replace(true) {
            // Kept for whoever looks later.
            self.manager.warmed.notify_one();
        }
    }

    fn take(&mut self, routes: &DiscoveredRoutes, update: Update<RouteConfiguration>) {
        let (place, resource) = match &update.resources[..] {
            [] => {
                self.reloads.inc(stat::UPDATE_EMPTY);
                return self.took(&update.version);
            }
            [resource] if *resource.message.resource_name() == *routes.name => (0, resource),
            [other] => {
                let (wanted, got) = (&routes.name, other.message.resource_name());
                let text = format!("Unexpected RDS configuration (expecting {wanted}): {got}");
                return self.refuse(routes, 0, vec![ConfigError::new("name", text)]);
            }
            // A file holds all of them; a server sends the one it was asked for.
            many => match many.iter().position(|r| *r.message.resource_name() == *routes.name) {
                Some(place) => (place, &many[place]),
                None => {
                    let text = format!("Unexpected RDS resource length: {}", many.len());
                    return self.refuse(routes, 0, vec![ConfigError::new("", text)]);
                }
            },
        };
        if resource.bytes == self.last {
            return self.took(&update.version);
        }
        match self.build(routes, resource) {
            Ok((config, scopes)) => {
                routes.current.store(Some(Arc::new(config)));
                let updated = self.manager.context.sources.clock.now();
                let shown = ShownRoutes { bytes: resource.bytes.clone(), version: update.version.clone(), updated };
                routes.shown.store(Arc::new(Some(shown)));
                self.last = resource.bytes.clone();
                self.hold(scopes);
                self.reloads.inc(stat::CONFIG_RELOAD);
                self.reloads.set(stat::CONFIG_RELOAD_TIME_MS, self.stats.milliseconds());
                tracing::info!(resource = &*routes.name, version = &*update.version, "routes are in use");
                self.took(&update.version);
            }
            Err(errors) => self.refuse(routes, place, errors),
        }
    }

    fn took(&mut self, version: &str) {
        self.subscription.accepted(version);
        self.stats.success(&mut self.manager.context.store.borrow_mut(), version);
    }

    fn refuse(&self, routes: &DiscoveredRoutes, place: usize, errors: Vec<ConfigError>) {
        self.stats.rejected();
        let mut refusals = Refusals::default();
        refusals.add(place, errors);
        let reason = refusals.told(&routes.source);
        tracing::warn!(resource = &*routes.name, "routes are kept as they were, the answer is refused: {reason}");
    }

    fn build(
        &self,
        routes: &DiscoveredRoutes,
        resource: &Decoded<RouteConfiguration>,
    ) -> Result<(RouteConfig, Vec<ScopeId>), Vec<ConfigError>> {
        let outer = &self.manager.context;
        outer.strictness.check(resource)?;
        let (warnings, scopes) = (RefCell::default(), RefCell::default());
        let context = FactoryContext {
            name: "",
            stat_prefix: &routes.stat_prefix,
            has_cluster: &*outer.has_cluster,
            warnings: &warnings,
            node: &outer.node,
            stats: &outer.store,
            log_files: &*outer.log_files,
            formats: &crate::format::Formats,
            scopes: &scopes,
        };
        let filter_config = |name: &str, config: &nuncio_api::pb::google::protobuf::Any| {
            let context = FactoryContext { name, ..context };
            let factory = routes.filters.find_route(&config.type_url);
            factory.map(|factory| factory.create_route_config(config, &context)).transpose()
        };
        let built = RouteConfig::from_proto(
            &resource.message,
            &BuildContext {
                has_cluster: &*outer.has_cluster,
                validate_clusters: false,
                filter_config: &filter_config,
                scope: &|name| context.scope(&lists::vhost::SCOPE, &name.into()),
            },
        );
        for warning in warnings.take() {
            tracing::warn!(target: "config", "route configuration '{}': {warning}", routes.name);
        }
        let scopes = scopes.take();
        match built {
            Ok(config) => Ok((config, scopes)),
            Err(errors) => {
                scopes.into_iter().for_each(|scope| outer.store.borrow_mut().release(scope));
                Err(errors)
            }
        }
    }

    /// The scopes of the routes before these are let go after these have theirs, so that what stays keeps counting.
    fn hold(&mut self, scopes: Vec<ScopeId>) {
        let old = std::mem::replace(&mut self.scopes, scopes);
        let mut store = self.manager.context.store.borrow_mut();
        old.into_iter().for_each(|scope| store.release(scope));
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.hold(Vec::new());
        self.manager.context.store.borrow_mut().release(self.stats.scope());
    }
}
