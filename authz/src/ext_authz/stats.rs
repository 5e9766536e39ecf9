//! What is counted: for the filter, and for the cluster that the route leads to.

use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use nuncio_core::extension::{FactoryContext, WorkerContext};
use nuncio_core::stats::{CodeStats, Codes, Kind, List, NamedCounter, Scope, ScopeId};

nuncio_core::stats! {
    /// `http.<manager>.ext_authz.` or `http.<manager>.ext_authz.<stat_prefix>.`
    pub ExtAuthz {
        counter DENIED;
        counter DISABLED;
        counter ERROR;
        counter FAILURE_MODE_ALLOWED;
        counter FILTER_STATE_NAME_COLLISION;
        counter IGNORED_DYNAMIC_METADATA;
        counter INVALID;
        counter OK;
        counter OMITTED_RESPONSE_HEADERS;
        counter REQUEST_HEADER_LIMITS_REACHED;
        counter RESPONSE_HEADER_LIMITS_REACHED;
        counter SHADOW_DENIED;
        counter SHADOW_ERROR;
    }
}

static SCOPE: Scope = Scope { root: "http.", lists: &[ExtAuthz::descriptors] };

/// The scope of the filter's own list.
pub(super) fn scope(context: &FactoryContext<'_>, stat_prefix: &str) -> ScopeId {
    let dot = if stat_prefix.is_empty() { "" } else { "." };
    context.scope(&SCOPE, &format!("{}.ext_authz{dot}{stat_prefix}", context.stat_prefix).into())
}

/// What is counted under `cluster.<name>.ext_authz.`, each once it happens.
#[derive(Debug, Clone, Copy)]
pub(super) enum Event {
    Ok,
    Denied,
    Error,
    FailureModeAllowed,
    Invalid,
}

impl Event {
    const NAMES: [&'static str; 5] = ["ok", "denied", "error", "failure_mode_allowed", "invalid"];
}

/// Of so many clusters at most the counters are kept; then all are made anew.
const MOST_CLUSTERS: usize = 4096;

/// The counters of clusters, on one worker.
pub(super) struct ClusterCounts {
    worker: WorkerContext,
    prefix: Box<str>,
    clusters: RefCell<HashMap<ScopeId, Rc<OfCluster>>>,
}

#[derive(Default)]
struct OfCluster {
    events: [OnceCell<NamedCounter>; 5],
    codes: OnceCell<[CodeStats; 2]>,
}

impl ClusterCounts {
    pub(super) fn new(worker: &WorkerContext, stat_prefix: &str) -> Self {
        let dot = if stat_prefix.is_empty() { "" } else { "." };
        let prefix = format!("ext_authz.{stat_prefix}{dot}").into();
        Self { worker: worker.clone(), prefix, clusters: RefCell::default() }
    }

    pub(super) fn count(&self, cluster: Option<&str>, event: Event) {
        let Some((scope, counts)) = self.of(cluster) else { return };
        let index = event as usize;
        let counter = counts.events[index].get_or_init(|| {
            let name = format!("{}{}", self.prefix, Event::NAMES[index]);
            self.worker.stats.named(scope, &name, Kind::Counter)
        });
        counter.inc();
    }

    /// An answer in that cluster's place, as one to an internal request.
    pub(super) fn charge(&self, cluster: Option<&str>, status: u16) {
        let Some((scope, counts)) = self.of(cluster) else { return };
        let codes = counts.codes.get_or_init(|| {
            [Codes::Cluster, Codes::Internal].map(|codes| CodeStats::new(&self.worker.stats, scope, codes))
        });
        codes.iter().for_each(|codes| codes.charge(status));
    }

    fn of(&self, cluster: Option<&str>) -> Option<(ScopeId, Rc<OfCluster>)> {
        let scope = self.worker.client.stats_scope(cluster?)?;
        let mut clusters = self.clusters.borrow_mut();
        if clusters.len() >= MOST_CLUSTERS && !clusters.contains_key(&scope) {
            clusters.clear();
        }
        Some((scope, clusters.entry(scope).or_default().clone()))
    }
}
