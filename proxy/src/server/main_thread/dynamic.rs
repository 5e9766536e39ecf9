//! Clusters and listeners that come while the server runs (CDS, LDS). What is new is made beside what is there and
//! takes its place when it is warm; what is wrong is refused, one resource at a time, and the last good one stays.

use std::collections::{HashMap, HashSet};
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use nuncio_api::pb::envoy::config::bootstrap::v3::bootstrap::DynamicResources;
use nuncio_api::pb::envoy::config::cluster::v3::Cluster;
use nuncio_api::pb::envoy::config::listener::v3::Listener;
use nuncio_api::support::Entry as Supported;
use nuncio_api::supports;
use nuncio_core::error::ConfigError;
use nuncio_core::stats::lists::subscription as stat;
use nuncio_core::stats::{Scope, Store};
use nuncio_discovery::SourceContext;
use nuncio_discovery::xds::{ConfigSource, News, Resource, Subscription, Update};

use super::Main;
use crate::http::discovered::DiscoverySubscription;
use crate::listener::{ListenerConfig, Origin, Prepared};
use crate::subscription::{Refusals, SubscriptionStats};

supports!(DYNAMIC = "envoy.config.bootstrap.v3.Bootstrap.DynamicResources" { lds_config, cds_config });

/// What is honoured of the messages read here.
pub static SUPPORTED: &[&Supported] = &[&DYNAMIC];

/// Where clusters and listeners come from, if they do.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    pub clusters: Option<ConfigSource>,
    pub listeners: Option<ConfigSource>,
}

impl Sources {
    pub fn from_proto(message: Option<&DynamicResources>) -> Result<Self, ConfigError> {
        let Some(message) = message else { return Ok(Self::default()) };
        let read = |source: &Option<_>, field: &str| {
            let read = source.as_ref().map(ConfigSource::from_proto).transpose();
            read.map_err(|e: ConfigError| e.within(field).within("dynamic_resources"))
        };
        Ok(Self {
            clusters: read(&message.cds_config, "cds_config")?,
            listeners: read(&message.lds_config, "lds_config")?,
        })
    }
}

/// One of the two subscriptions.
pub(super) struct Feed<R> {
    subscription: Subscription<R>,
    source: ConfigSource,
    stats: SubscriptionStats,
    /// The start waits for it no longer.
    heard: bool,
}

impl<R: Resource> Feed<R> {
    pub fn new(source: &ConfigSource, kind: &'static Scope, context: &SourceContext, store: &mut Store) -> Self {
        Self {
            subscription: Subscription::new(source, Vec::new(), context),
            source: source.clone(),
            stats: SubscriptionStats::new(store, kind, &"".into(), context.clock),
            heard: false,
        }
    }

    /// The next news; never, where there is no such subscription.
    pub async fn next(feed: &mut Option<Self>) -> News<R> {
        match feed {
            Some(feed) => feed.subscription.next().await,
            None => std::future::pending().await,
        }
    }

    pub fn was_heard(feed: &Option<Self>) -> bool {
        feed.as_ref().is_none_or(|feed| feed.heard)
    }

    /// Counts and tells what there is to tell; what is left is an update.
    fn hear(&mut self, news: News<R>) -> Option<Update<R>> {
        self.heard = true;
        self.stats.hear(news, R::TYPE)
    }

    /// What became of an update.
    fn conclude(&mut self, version: &str, refusals: Refusals, store: &mut Store) {
        if refusals.is_empty() {
            self.subscription.accepted(version);
            self.stats.success(store, version);
            tracing::info!(target: "config", version, "{} were taken", R::TYPE);
            return;
        }
        self.stats.rejected();
        let reason = refusals.told(&self.source);
        tracing::warn!(target: "config", version, "some {} are refused and stay as they were: {reason}", R::TYPE);
    }
}

/// A listener that waits for its routes and whatever else comes by itself.
pub(super) struct Warming {
    pub prepared: Prepared,
    awaited: Vec<Rc<DiscoverySubscription>>,
}

impl Warming {
    fn is_warm(&self) -> bool {
        self.awaited.iter().all(|awaited| awaited.is_warm())
    }
}

impl Main {
    /// The clusters of the bootstrap are warm: those that come by CDS are asked for.
    pub(super) fn ask_for_clusters(&self) -> Option<Feed<Cluster>> {
        let source = self.sources.clusters.as_ref()?;
        Some(Feed::new(source, &stat::CDS_SCOPE, &self.context, &mut self.store.borrow_mut()))
    }

    /// All clusters are warm: listeners are asked for.
    pub(super) fn ask_for_listeners(&self) -> Option<Feed<Listener>> {
        let source = self.sources.listeners.as_ref()?;
        Some(Feed::new(source, &stat::LDS_SCOPE, &self.context, &mut self.store.borrow_mut()))
    }

    pub(super) fn cluster_news(&mut self, feed: &mut Option<Feed<Cluster>>, news: News<Cluster>) {
        let Some(feed) = feed else { return };
        let Some(update) = feed.hear(news) else { return };
        let version: Arc<str> = update.version.as_str().into();
        let known: HashMap<_, _> = self
            .clusters
            .statuses()
            .into_iter()
            .filter(|status| status.version.is_some())
            .map(|status| (status.snapshot.config.name().clone(), status.bytes))
            .collect();
        let mut refusals = Refusals::default();
        let mut names = HashSet::new();
        for (i, cluster) in update.resources.iter().enumerate() {
            let name = cluster.message.resource_name();
            if !names.insert(name) {
                refusals.add(i, [ConfigError::new("name", format!("duplicate cluster {name} found"))]);
                continue;
            }
            if known.get(name).is_some_and(|bytes| *bytes == cluster.bytes) {
                continue;
            }
            let checked = self.strictness.check(cluster);
            let bytes = cluster.bytes.clone();
            match checked.and_then(|()| self.clusters.add_or_update(&cluster.message, bytes, &version)) {
                Ok(_) => {}
                Err(errors) => refusals.add(i, errors),
            }
        }
        for name in known.keys().filter(|name| !names.contains(&***name)) {
            self.clusters.remove(name);
        }
        if refusals.is_empty() {
            self.shown.borrow_mut().clusters_version = update.version.clone();
        }
        feed.conclude(&update.version, refusals, &mut self.store.borrow_mut());
    }

    pub(super) fn listener_news(&mut self, feed: &mut Option<Feed<Listener>>, news: News<Listener>) -> io::Result<()> {
        let Some(feed) = feed else { return Ok(()) };
        let Some(update) = feed.hear(news) else { return Ok(()) };
        let version: Arc<str> = update.version.as_str().into();
        let names: HashSet<&str> = update.resources.iter().map(|r| r.message.resource_name()).collect();
        self.listeners.retire(|e| e.origin.version.is_some() && !names.contains(e.config.name()));
        self.forget_warming(|warming| !names.contains(warming.prepared.name()));
        let mut refusals = Refusals::default();
        let mut seen = HashSet::new();
        for (i, listener) in update.resources.iter().enumerate() {
            let name = listener.message.resource_name();
            if !seen.insert(name) {
                refusals.add(i, [ConfigError::new("name", format!("duplicate listener {name} found"))]);
                continue;
            }
            let updated = Some(self.context.clock.now());
            let origin = Origin { bytes: listener.bytes.clone(), version: Some(version.clone()), updated };
            if self.warming.iter().any(|w| w.prepared.name() == name && w.prepared.origin().bytes == origin.bytes) {
                continue;
            }
            if self.listeners.is_settled(name, &origin) {
                self.forget_warming(|warming| warming.prepared.name() == name);
                continue;
            }
            let prepared = self.strictness.check(listener).and_then(|()| self.prepare(&listener.message, origin));
            if let Err(errors) = prepared.and_then(|p| self.introduce(p).map_err(|e| vec![e])) {
                refusals.add(i, errors);
            }
        }
        let drained = self.listeners.retired();
        self.apply(drained)?;
        if refusals.is_empty() {
            self.shown.borrow_mut().listeners_version = update.version.clone();
        }
        feed.conclude(&update.version, refusals, &mut self.store.borrow_mut());
        Ok(())
    }

    /// What a listener must be brought, asked for until it lets it go.
    pub(super) fn subscribe(&self, config: &ListenerConfig) -> Vec<Rc<DiscoverySubscription>> {
        config.chains.discovered().map(|awaited| Rc::new(self.discovery.subscribe(&awaited))).collect()
    }

    /// A checked listener goes into the set, now or when what it waits for is there.
    pub(super) fn introduce(&mut self, mut prepared: Prepared) -> Result<(), ConfigError> {
        let awaited = self.subscribe(&prepared.config);
        awaited.iter().for_each(|awaited| prepared.hold(Box::new(awaited.clone())));
        let warming = Warming { prepared, awaited };
        let name = warming.prepared.name().to_owned();
        self.forget_warming(|other| other.prepared.name() == name);
        if warming.is_warm() {
            return self.put(warming.prepared);
        }
        self.warming.push(warming);
        self.listeners.show_warming(self.warming.len());
        Ok(())
    }

    /// Something came that listeners wait for.
    pub(super) fn look_for_warm(&mut self) {
        let (warm, cold) = std::mem::take(&mut self.warming).into_iter().partition(Warming::is_warm);
        self.warming = cold;
        self.listeners.show_warming(self.warming.len());
        let warm: Vec<Warming> = warm;
        for warming in warm {
            let name = warming.prepared.name().to_owned();
            if let Err(error) = self.put(warming.prepared) {
                tracing::warn!(target: "config", "listener '{name}' stays as it was: {error}");
            }
        }
    }

    pub(super) fn listeners_are_warm(&self) -> bool {
        self.warming.is_empty() && self.awaited.iter().all(|awaited| awaited.is_warm())
    }

    fn put(&mut self, prepared: Prepared) -> Result<(), ConfigError> {
        let changes = self.listeners.update(prepared)?;
        if !self.live {
            // They start with all others.
            return Ok(());
        }
        self.apply(changes).map_err(|e| ConfigError::new("address", e.to_string()))
    }

    pub(super) fn forget_warming(&mut self, leaves: impl Fn(&Warming) -> bool) {
        let (leaving, staying): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.warming).into_iter().partition(|warming| leaves(warming));
        self.warming = staying;
        for warming in leaving {
            self.listeners.forget(warming.prepared, &mut self.store.borrow_mut());
        }
        self.listeners.show_warming(self.warming.len());
    }
}
