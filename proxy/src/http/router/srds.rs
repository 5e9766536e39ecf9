//! Scopes that come by themselves (SRDS). A follower on the main thread brings them to [`DiscoveredScopes`]: each answer
//! is taken whole or refused whole, and the scopes before it are in use until the routes that it names came.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::sync::{Arc, Weak};

use arc_swap::{ArcSwap, ArcSwapOption, Guard};
use nuncio_api::pb::envoy::config::route::v3::ScopedRouteConfiguration;
use nuncio_core::error::ConfigError;
use nuncio_core::extension::FactoryContext;
use nuncio_core::stats::lists::subscription as stat;
use nuncio_core::stats::{ScopeId, Stats};
use nuncio_discovery::xds::{ConfigSource, Decoded, Subscription, Update};

use super::RouteConfig;
use super::rds::DiscoveredRoutes;
use super::routes::compile;
use super::scopes::{RouteSource, ScopeTable, key, unreachable};
use crate::http::discovered::{DiscoveryManager, DiscoverySubscription, ShownScopes, Warmth};
use crate::http::filters::HttpFilters;
use crate::subscription::{Refusals, SubscriptionStats};

/// Scopes of one connection manager that are not in its configuration. Read by all workers, written by main.
pub struct DiscoveredScopes {
    pub source: ConfigSource,
    /// Of the routes that scopes name.
    pub routes: Option<ConfigSource>,
    pub name: String,
    pub stat_prefix: String,
    pub filters: Arc<HttpFilters>,
    /// How many parts the key of a request has.
    pub parts: usize,
    pub state: State,
}

/// What came.
#[derive(Default)]
pub struct State {
    /// None until the first good answer: no request has a scope.
    current: ArcSwapOption<ScopeTable>,
    shown: ArcSwap<Option<ShownScopes>>,
}

impl DiscoveredScopes {
    pub fn current(&self) -> Guard<Option<Arc<ScopeTable>>> {
        self.state.current.load()
    }

    /// For `/config_dump`.
    pub fn shown(&self) -> Option<ShownScopes> {
        (**self.state.shown.load()).clone()
    }
}

/// Brings them for as long as somebody else holds them: a listener that is gone takes them along.
pub fn follow(
    manager: DiscoveryManager,
    scopes: &Arc<DiscoveredScopes>,
    warmth: Warmth,
) -> impl Future<Output = ()> + use<> {
    Follower::new(manager, Arc::downgrade(scopes), scopes, warmth).run()
}

/// Routes that scopes name, by that name.
type Named = HashMap<String, Rc<NamedRoutes>>;

struct NamedRoutes {
    routes: Arc<DiscoveredRoutes>,
    subscription: DiscoverySubscription,
}

/// One subscription's task.
struct Follower {
    manager: DiscoveryManager,
    scopes: Weak<DiscoveredScopes>,
    subscription: Subscription<ScopedRouteConfiguration>,
    stats: SubscriptionStats,
    reloads: Stats<stat::Scopes>,
    warmth: Warmth,
    named: Named,
    /// What the routes count in that stand inside scopes.
    counts: Vec<ScopeId>,
    /// Taken, and not in use before its routes came.
    coming: Option<Coming>,
}

struct Coming {
    table: ScopeTable,
    named: Named,
    /// How many scopes name their routes.
    by_name: u64,
    counts: Vec<ScopeId>,
    shown: ShownScopes,
}

impl Coming {
    async fn warm(coming: &Option<Self>) {
        let Some(coming) = coming else { return std::future::pending().await };
        for named in coming.named.values() {
            named.subscription.warm().await;
        }
    }
}

impl Follower {
    fn new(manager: DiscoveryManager, weak: Weak<DiscoveredScopes>, scopes: &DiscoveredScopes, warmth: Warmth) -> Self {
        let context = manager.context();
        let subscription = Subscription::new(&scopes.source, Vec::new(), &context.sources);
        let name = format!("{}.scoped_rds.{}", scopes.stat_prefix, scopes.name).into();
        let mut store = context.store.borrow_mut();
        let stats = SubscriptionStats::new(&mut store, &stat::SRDS_SCOPE, &name, context.sources.clock);
        let reloads = Stats::new(store.main(), stats.scope());
        reloads.add(stat::SCOPES_RELOAD, 0);
        drop(store);
        let (named, counts) = Default::default();
        Self { manager, scopes: weak, subscription, stats, reloads, warmth, named, counts, coming: None }
    }

    async fn run(mut self) {
        loop {
            let news = tokio::select! {
                biased;
                news = self.subscription.next() => Some(news),
                () = Coming::warm(&self.coming) => None,
            };
            let Some(scopes) = self.scopes.upgrade() else { return };
            match news {
                Some(news) => {
                    if let Some(update) = self.stats.hear(news, format_args!("the scopes of '{}'", scopes.name)) {
                        self.take(&scopes, update);
                    }
                }
                None => self.publish(&scopes),
            }
            if self.coming.is_none() {
                self.warmth.tell();
            }
        }
    }

    fn take(&mut self, scopes: &DiscoveredScopes, update: Update<ScopedRouteConfiguration>) {
        let mut refusals = Refusals::default();
        refuse_repeated(&update.resources, &mut refusals);
        let what = format_args!("scopes of '{}'", scopes.name);
        let read = self.manager.context().read(&scopes.stat_prefix, what, |context| {
            let each = update.resources.iter().enumerate().map(|(place, resource)| {
                let source = self.read(scopes, resource, context);
                source.map_err(|errors| refusals.add(place, errors))
            });
            let sources: Vec<_> = each.collect();
            sources.into_iter().collect::<Result<Vec<Source>, ()>>().map_err(|()| Vec::new())
        });
        let (sources, counts) = match read {
            Ok((sources, counts)) if refusals.is_empty() => (sources, counts),
            read => {
                read.into_iter().for_each(|(_, counts)| self.manager.context().release(counts));
                return self.stats.refuse(refusals, &scopes.source, format_args!("the scopes of '{}'", scopes.name));
            }
        };
        let (mut table, mut named, mut by_name) = (ScopeTable::default(), Named::default(), 0);
        for (resource, source) in update.resources.iter().zip(sources) {
            let source = match source {
                Source::Inline(config) => RouteSource::Inline(config),
                Source::Named(name, from) => {
                    by_name += 1;
                    let routes = named.entry(name).or_insert_with_key(|name| self.named(scopes, name, from));
                    RouteSource::Discovered(routes.routes.clone())
                }
            };
            table.insert(&key(&resource.message), source);
        }
        self.forget_coming();
        self.coming = Some(Coming { table, named, by_name, counts, shown: self.shown(scopes, &update) });
        self.subscription.accepted(&update.version);
        self.stats.success(&mut self.manager.context().store.borrow_mut(), &update.version);
    }

    fn read<'s>(
        &self,
        scopes: &'s DiscoveredScopes,
        resource: &Decoded<ScopedRouteConfiguration>,
        context: &FactoryContext<'_>,
    ) -> Result<Source<'s>, Vec<ConfigError>> {
        self.manager.context().strictness.check(resource)?;
        let message = &resource.message;
        let parts = key(message).len();
        if parts != scopes.parts {
            context.warn("key", unreachable(&message.name, parts, scopes.parts));
        }
        if let Some(inline) = &message.route_configuration {
            let at = |e: ConfigError| e.within("route_configuration");
            let config = compile(inline, &scopes.filters, true, context);
            return config
                .map(|config| Source::Inline(Arc::new(config)))
                .map_err(|errors| errors.into_iter().map(at).collect());
        }
        let name = &message.route_configuration_name;
        match &scopes.routes {
            _ if name.is_empty() => Err(vec![ConfigError::new("", "route_configuration_name is empty.")]),
            None => {
                let reason = "names routes, and the connection manager's scoped_routes.rds_config_source is not set";
                Err(vec![ConfigError::new("route_configuration_name", reason)])
            }
            Some(from) => Ok(Source::Named(name.clone(), from)),
        }
    }

    /// Those that are there already stay.
    fn named(&self, scopes: &DiscoveredScopes, name: &str, from: &ConfigSource) -> Rc<NamedRoutes> {
        let coming = self.coming.as_ref().and_then(|coming| coming.named.get(name));
        self.named.get(name).or(coming).cloned().unwrap_or_else(|| {
            let routes = DiscoveredRoutes::new(from.clone(), name, &scopes.stat_prefix, &scopes.filters);
            let routes = Arc::new(routes);
            Rc::new(NamedRoutes { subscription: self.manager.subscribe_routes(&routes), routes })
        })
    }

    fn shown(&self, scopes: &DiscoveredScopes, update: &Update<ScopedRouteConfiguration>) -> ShownScopes {
        let mut resources: Vec<_> = update.resources.iter().collect();
        resources.sort_by(|a, b| a.message.name.cmp(&b.message.name));
        ShownScopes {
            name: scopes.name.clone(),
            scopes: resources.into_iter().map(|resource| resource.bytes.clone()).collect(),
            version: update.version.clone(),
            updated: self.manager.context().sources.clock.now(),
        }
    }

    /// What is coming takes the place of what is there.
    fn publish(&mut self, scopes: &DiscoveredScopes) {
        let Some(Coming { table, named, by_name, counts, shown }) = self.coming.take() else { return };
        scopes.state.current.store(Some(Arc::new(table)));
        tracing::info!(resource = &*scopes.name, version = &*shown.version, "scopes of routes are in use");
        self.reloads.set(stat::ALL_SCOPES, shown.scopes.len() as u64);
        self.reloads.set(stat::ACTIVE_SCOPES, by_name);
        self.reloads.inc(stat::SCOPES_RELOAD);
        self.reloads.set(stat::SCOPES_RELOAD_TIME_MS, self.stats.milliseconds());
        scopes.state.shown.store(Arc::new(Some(shown)));
        self.named = named;
        let old = std::mem::replace(&mut self.counts, counts);
        self.manager.context().release(old);
    }

    fn forget_coming(&mut self) {
        if let Some(coming) = self.coming.take() {
            self.manager.context().release(coming.counts);
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.forget_coming();
        let counts = std::mem::take(&mut self.counts);
        self.manager.context().release(counts.into_iter().chain([self.stats.scope()]));
    }
}

/// Where a scope's routes stand.
enum Source<'s> {
    Inline(Arc<RouteConfig>),
    Named(String, &'s ConfigSource),
}

/// Two scopes of one name or of one key, in Envoy's words.
fn refuse_repeated(resources: &[Decoded<ScopedRouteConfiguration>], refusals: &mut Refusals) {
    let (mut names, mut keys) = (HashSet::new(), HashMap::new());
    for (place, resource) in resources.iter().enumerate() {
        let name = &*resource.message.name;
        if !names.insert(name) {
            let reason = format!("duplicate scoped route configuration '{name}' found");
            refusals.add(place, [ConfigError::new("name", reason)]);
        } else if let Some(first) = keys.insert(key(&resource.message), name) {
            let reason = format!("scope key conflict found, first scope is '{first}', second scope is '{name}'");
            refusals.add(place, [ConfigError::new("key", reason)]);
        }
    }
}
