//! Routes that come by themselves (RDS). A connection manager asks its [`DiscoveredRoutes`] for every request; a
//! follower on the main thread brings them: each answer is checked whole, and a wrong one leaves the last good routes.

use std::sync::{Arc, Weak};

use arc_swap::{ArcSwap, ArcSwapOption, Guard};
use bytes::Bytes;
use nuncio_api::pb::envoy::config::route::v3::RouteConfiguration;
use nuncio_core::error::ConfigError;
use nuncio_core::stats::lists::subscription as stat;
use nuncio_core::stats::{ScopeId, Stats};
use nuncio_discovery::xds::{ConfigSource, Decoded, Resource, Subscription, Update};

use super::RouteConfig;
use super::routes::compile;
use crate::http::discovered::{DiscoveryManager, Shown, Warmth};
use crate::http::filters::HttpFilters;
use crate::subscription::{Refusals, SubscriptionStats};

/// Routes of one connection manager that are not in its configuration. Read by all workers, written by main.
pub struct DiscoveredRoutes {
    source: ConfigSource,
    name: String,
    stat_prefix: String,
    filters: Arc<HttpFilters>,
    /// None until the first good answer: nothing is found.
    current: ArcSwapOption<RouteConfig>,
    shown: ArcSwap<Option<Shown>>,
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

    pub fn current(&self) -> Guard<Option<Arc<RouteConfig>>> {
        self.current.load()
    }

    /// For `/config_dump`.
    pub fn shown(&self) -> Option<Shown> {
        (**self.shown.load()).clone()
    }
}

/// Brings them for as long as somebody else holds them: a listener that is gone takes them along.
pub fn follow(
    manager: DiscoveryManager,
    routes: &Arc<DiscoveredRoutes>,
    warmth: Warmth,
) -> impl Future<Output = ()> + use<> {
    Follower::new(manager, Arc::downgrade(routes), routes, warmth).run()
}

/// One subscription's task.
struct Follower {
    manager: DiscoveryManager,
    routes: Weak<DiscoveredRoutes>,
    subscription: Subscription<RouteConfiguration>,
    stats: SubscriptionStats,
    reloads: Stats<stat::Routes>,
    warmth: Warmth,
    /// Of the routes that are in use.
    scopes: Vec<ScopeId>,
    last: Bytes,
}

impl Follower {
    fn new(manager: DiscoveryManager, weak: Weak<DiscoveredRoutes>, routes: &DiscoveredRoutes, warmth: Warmth) -> Self {
        let context = manager.context();
        let subscription = Subscription::new(&routes.source, vec![routes.name.clone()], &context.sources);
        let name = format!("{}.rds.{}", routes.stat_prefix, routes.name).into();
        let mut store = context.store.borrow_mut();
        let stats = SubscriptionStats::new(&mut store, &stat::RDS_SCOPE, &name, context.sources.clock);
        let reloads = Stats::new(store.main(), stats.scope());
        reloads.add(stat::CONFIG_RELOAD, 0);
        drop(store);
        Self { manager, routes: weak, subscription, stats, reloads, warmth, scopes: Vec::new(), last: Bytes::new() }
    }

    async fn run(mut self) {
        loop {
            let news = self.subscription.next().await;
            let Some(routes) = self.routes.upgrade() else { return };
            if let Some(update) = self.stats.hear(news, format_args!("the routes '{}'", routes.name)) {
                self.take(&routes, update);
            }
            self.warmth.tell();
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
                let updated = self.manager.context().sources.clock.now();
                let shown = Shown { bytes: resource.bytes.clone(), version: update.version.clone(), updated };
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
        self.stats.success(&mut self.manager.context().store.borrow_mut(), version);
    }

    fn refuse(&self, routes: &DiscoveredRoutes, place: usize, errors: Vec<ConfigError>) {
        let mut refusals = Refusals::default();
        refusals.add(place, errors);
        self.stats.refuse(refusals, &routes.source, format_args!("the routes '{}'", routes.name));
    }

    fn build(
        &self,
        routes: &DiscoveredRoutes,
        resource: &Decoded<RouteConfiguration>,
    ) -> Result<(RouteConfig, Vec<ScopeId>), Vec<ConfigError>> {
        let context = self.manager.context();
        context.strictness.check(resource)?;
        context.read(&routes.stat_prefix, format_args!("route configuration '{}'", routes.name), |context| {
            compile(&resource.message, &routes.filters, false, context)
        })
    }

    /// The scopes of the routes before these are let go after these have theirs, so that what stays keeps counting.
    fn hold(&mut self, scopes: Vec<ScopeId>) {
        let old = std::mem::replace(&mut self.scopes, scopes);
        self.manager.context().release(old);
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.hold(Vec::new());
        self.manager.context().release([self.stats.scope()]);
    }
}
