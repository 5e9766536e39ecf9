//! Brings one resource of one name, whatever it is: each answer is checked whole, and a wrong one leaves the last good.

use std::sync::{Arc, Weak};

use arc_swap::ArcSwap;
use bytes::Bytes;
use nuncio_core::error::ConfigError;
use nuncio_core::extension::FactoryContext;
use nuncio_core::stats::{List, Scope, ScopeId, Stats};
use nuncio_discovery::xds::{ConfigSource, Decoded, News, Resource, Subscription, Update};

use super::{DiscoveryManager, Shown, Warmth};
use crate::http::filters::HttpFilters;
use crate::subscription::{Refusals, SubscriptionStats};

/// Which resource is asked for, and whom.
pub struct Asked {
    pub source: ConfigSource,
    pub name: String,
    /// Of the connection manager that it is for.
    pub stat_prefix: String,
    pub filters: Arc<HttpFilters>,
    /// The last good one.
    shown: ArcSwap<Option<Shown>>,
}

impl Asked {
    pub fn new(source: ConfigSource, name: &str, stat_prefix: &str, filters: &Arc<HttpFilters>) -> Self {
        let (name, stat_prefix) = (name.to_owned(), stat_prefix.to_owned());
        Self { source, name, stat_prefix, filters: filters.clone(), shown: ArcSwap::default() }
    }

    /// For `/config_dump`.
    pub fn shown(&self) -> Option<Shown> {
        (**self.shown.load()).clone()
    }
}

/// What befell a resource, for its own statistics.
pub enum Counted {
    /// Another one is in use since then, in milliseconds since 1970.
    Reload(u64),
    /// An answer without it, which changes nothing.
    Empty,
    /// Nobody answered, or the answer was refused.
    Failed,
}

/// What workers read and a follower writes.
pub trait Followed: 'static {
    type Resource: Resource;
    /// What is made of it.
    type Made;
    /// Statistics beside those of all subscriptions, in the same scope.
    type Counts: List;
    const SCOPE: &'static Scope;

    fn asked(&self) -> &Asked;

    /// Of the scope.
    fn stat_name(&self) -> String;

    /// For log lines: "the routes 'r'".
    fn described(&self) -> String;

    /// Why an answer without that name is refused; none: it means that nothing changes.
    fn absent(&self, resources: &[Decoded<Self::Resource>]) -> Option<String>;

    fn build(&self, message: &Self::Resource, context: &FactoryContext<'_>) -> Result<Self::Made, Vec<ConfigError>>;

    fn publish(&self, made: Self::Made);

    fn count(counts: &Stats<Self::Counts>, counted: Counted);
}

/// Brings it for as long as somebody else holds it: a listener that is gone takes it along.
pub fn follow<F: Followed>(
    manager: DiscoveryManager,
    followed: &Arc<F>,
    warmth: Warmth,
) -> impl Future<Output = ()> + use<F> {
    Follower::new(manager, Arc::downgrade(followed), followed, warmth).run()
}

/// One subscription's task.
struct Follower<F: Followed> {
    manager: DiscoveryManager,
    followed: Weak<F>,
    subscription: Subscription<F::Resource>,
    stats: SubscriptionStats,
    counts: Stats<F::Counts>,
    warmth: Warmth,
    /// Where what is in use counts.
    scopes: Vec<ScopeId>,
    last: Bytes,
}

impl<F: Followed> Follower<F> {
    fn new(manager: DiscoveryManager, weak: Weak<F>, followed: &F, warmth: Warmth) -> Self {
        let (context, asked) = (manager.context(), followed.asked());
        let subscription = Subscription::new(&asked.source, vec![asked.name.clone()], &context.sources);
        let mut store = context.store.borrow_mut();
        let name = followed.stat_name().into();
        let stats = SubscriptionStats::new(&mut store, F::SCOPE, &name, context.sources.clock);
        F::Counts::descriptors().iter().for_each(|list| store.declare(stats.scope(), list));
        let counts = Stats::new(store.main(), stats.scope());
        drop(store);
        Self { manager, followed: weak, subscription, stats, counts, warmth, scopes: Vec::new(), last: Bytes::new() }
    }

    async fn run(mut self) {
        loop {
            let news = self.subscription.next().await;
            let Some(followed) = self.followed.upgrade() else { return };
            if matches!(news, News::Failed(_) | News::Rejected(_)) {
                F::count(&self.counts, Counted::Failed);
            }
            if let Some(update) = self.stats.hear(news, followed.described()) {
                self.take(&followed, update);
            }
            self.warmth.tell();
        }
    }

    fn take(&mut self, followed: &F, update: Update<F::Resource>) {
        // A file holds all of a kind; a server sends the one that it was asked for.
        let found = update.resources.iter().position(|r| r.message.resource_name() == followed.asked().name);
        match found {
            None => match followed.absent(&update.resources) {
                Some(reason) => return self.refuse(followed, 0, vec![ConfigError::new("", reason)]),
                None => F::count(&self.counts, Counted::Empty),
            },
            Some(place) if update.resources[place].bytes != self.last => {
                let resource = &update.resources[place];
                match self.build(followed, resource) {
                    Ok((made, scopes)) => self.publish(followed, resource, made, scopes, &update.version),
                    Err(errors) => return self.refuse(followed, place, errors),
                }
            }
            Some(_) => {}
        }
        self.subscription.accepted(&update.version);
        self.stats.success(&mut self.manager.context().store.borrow_mut(), &update.version);
    }

    fn publish(
        &mut self,
        followed: &F,
        resource: &Decoded<F::Resource>,
        made: F::Made,
        scopes: Vec<ScopeId>,
        version: &str,
    ) {
        followed.publish(made);
        let updated = self.manager.context().sources.clock.now();
        let shown = Shown { bytes: resource.bytes.clone(), version: version.to_owned(), updated };
        followed.asked().shown.store(Arc::new(Some(shown)));
        self.last = resource.bytes.clone();
        self.hold(scopes);
        F::count(&self.counts, Counted::Reload(self.stats.milliseconds()));
        tracing::info!(target: "config", version, "{} are in use", followed.described());
    }

    fn refuse(&self, followed: &F, place: usize, errors: Vec<ConfigError>) {
        F::count(&self.counts, Counted::Failed);
        let mut refusals = Refusals::default();
        refusals.add(place, errors);
        self.stats.refuse(refusals, &followed.asked().source, followed.described());
    }

    fn build(
        &self,
        followed: &F,
        resource: &Decoded<F::Resource>,
    ) -> Result<(F::Made, Vec<ScopeId>), Vec<ConfigError>> {
        let context = self.manager.context();
        context.strictness.check(resource)?;
        let build = |context: &FactoryContext<'_>| followed.build(&resource.message, context);
        context.read(&followed.asked().stat_prefix, followed.described(), build)
    }

    /// The scopes of what was in use before are let go after this has its own, so that what stays keeps counting.
    fn hold(&mut self, scopes: Vec<ScopeId>) {
        let old = std::mem::replace(&mut self.scopes, scopes);
        self.manager.context().release(old);
    }
}

impl<F: Followed> Drop for Follower<F> {
    fn drop(&mut self) {
        self.hold(Vec::new());
        self.manager.context().release([self.stats.scope()]);
    }
}
