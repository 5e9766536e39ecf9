//! Subscriptions to configuration (LDS, CDS, RDS): what they count, what is checked of each resource, and where in a
//! file its mistakes stand.

use std::fmt::Display;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use nuncio_api::{LoadOptions, Positions, ReadLimits, Source, Support, UnknownFields, check_bytes};
use nuncio_core::error::ConfigError;
use nuncio_core::stats::lists::subscription as stat;
use nuncio_core::stats::{Scope, ScopeId, Stats, Store};
use nuncio_core::time::WallClock;
use nuncio_discovery::xds::config_source::From;
use nuncio_discovery::xds::{ConfigSource, Decoded, News, Resource, Update};

/// What is made of fields in resources that are not known, or not implemented.
#[derive(Clone)]
pub struct Strictness {
    pub support: Rc<Support>,
    pub unknown: UnknownFields,
    /// `--allow-unsupported`
    pub allow_unsupported: bool,
}

impl Strictness {
    /// What is wrong with a resource as far as its own description and the table of what is implemented say.
    pub fn check<R: Resource>(&self, resource: &Decoded<R>) -> Result<(), Vec<ConfigError>> {
        let options = LoadOptions {
            unknown: self.unknown,
            support: Some(&self.support),
            allow_unsupported: self.allow_unsupported,
            ..LoadOptions::default()
        };
        let checks = check_bytes(&format!("type.googleapis.com/{}", R::TYPE), &resource.bytes, &options);
        for warning in &checks.warnings {
            tracing::warn!(target: "config", "{} '{}': {warning}", R::TYPE, resource.message.resource_name());
        }
        if checks.errors.is_empty() {
            return Ok(());
        }
        Err(checks.errors.into_iter().map(|e| ConfigError::new(e.path, e.text)).collect())
    }
}

/// One subscription's counters.
pub struct SubscriptionStats {
    updates: Stats<stat::Updates>,
    scope: ScopeId,
    clock: WallClock,
}

impl SubscriptionStats {
    pub fn new(store: &mut Store, kind: &'static Scope, name: &Arc<str>, clock: WallClock) -> Self {
        let scope = store.scope(kind, name);
        let updates = Stats::new(store.main(), scope);
        updates.add(stat::UPDATE_ATTEMPT, 0);
        store.set_text(scope, stat::VERSION_TEXT, Some("".into()));
        Self { updates, scope, clock }
    }

    pub fn scope(&self) -> ScopeId {
        self.scope
    }

    /// Counts and tells what there is to tell of `what`; what is left is an update.
    pub fn hear<R>(&self, news: News<R>, what: impl Display) -> Option<Update<R>> {
        if let News::InitFetchTimeout = news {
            self.updates.inc(stat::INIT_FETCH_TIMEOUT);
            tracing::warn!(target: "config", "no answer about {what} in time; the start goes on");
            return None;
        }
        self.attempt();
        match news {
            News::Update(update) => return Some(update),
            News::Failed(reason) => {
                self.updates.inc(stat::UPDATE_FAILURE);
                tracing::warn!(target: "config", "{what} are kept as they were: {reason}");
            }
            News::Rejected(reason) => {
                self.rejected();
                tracing::warn!(target: "config", "{what} are kept as they were, the answer is refused: {reason}");
            }
            News::Unchanged | News::InitFetchTimeout => {}
        }
        None
    }

    /// An update of `what` was not taken.
    pub fn refuse(&self, refusals: Refusals, source: &ConfigSource, what: impl Display) {
        self.rejected();
        let reason = refusals.told(source);
        tracing::warn!(target: "config", "{what} are kept as they were, the answer is refused: {reason}");
    }

    pub fn attempt(&self) {
        self.updates.inc(stat::UPDATE_ATTEMPT);
    }

    pub fn success(&self, store: &mut Store, version: &str) {
        self.updates.inc(stat::UPDATE_SUCCESS);
        self.updates.set(stat::VERSION, xxhash_rust::xxh64::xxh64(version.as_bytes(), 0));
        self.updates.set(stat::UPDATE_TIME, self.milliseconds());
        store.set_text(self.scope, stat::VERSION_TEXT, Some(version.into()));
    }

    pub fn rejected(&self) {
        self.updates.inc(stat::UPDATE_REJECTED);
    }

    pub fn milliseconds(&self) -> u64 {
        u64::try_from(self.clock.since_epoch().as_millis()).unwrap_or(u64::MAX)
    }
}

/// What is wrong with the resources of an answer, each by its place in it.
#[derive(Debug, Default)]
pub struct Refusals(Vec<(usize, ConfigError)>);

impl Refusals {
    pub fn add(&mut self, place: usize, errors: impl IntoIterator<Item = ConfigError>) {
        self.0.extend(errors.into_iter().map(|error| (place, error)));
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// In words, with file, line and column where the answer is a file.
    pub fn told(self, source: &ConfigSource) -> String {
        const MOST: usize = 8;
        let more = self.0.len().saturating_sub(MOST);
        let errors = self.0.into_iter().take(MOST).map(|(i, error)| error.within(&format!("resources[{i}]")));
        let mut texts: Vec<String> = match file(source).and_then(|path| positions(&path)) {
            Some(positions) => errors.map(|error| positions.error(&error).to_string()).collect(),
            None => errors.map(|error| error.to_string()).collect(),
        };
        if more > 0 {
            texts.push(format!("and {more} more"));
        }
        texts.join("; ")
    }
}

fn file(source: &ConfigSource) -> Option<PathBuf> {
    match &source.from {
        From::File(file) => Some(file.path.clone()),
        From::Rest(_) => None,
    }
}

/// The file is read once more, now that somebody must find a place in it.
fn positions(path: &std::path::Path) -> Option<Positions> {
    Source::file(path, &ReadLimits::default()).ok().map(Positions::of)
}
