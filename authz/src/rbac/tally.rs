//! What is counted of decisions, and what is left of them in metadata.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use nuncio_api::pb::google::protobuf::{Struct, Value, value::Kind as ValueKind};
use nuncio_core::extension::{FactoryContext, WorkerContext};
use nuncio_core::stats::{Kind, List, NamedCounter, Scope, ScopeId, Stats, WorkerStats};

use super::engine::Decision;

nuncio_core::stats! {
    /// `….rbac.` or `….rbac.<rules_stat_prefix>.`
    pub Rbac {
        counter ALLOWED;
        counter DENIED;
    }
}
nuncio_core::stats! {
    /// `….rbac.` or `….rbac.<shadow_rules_stat_prefix>.`
    pub ShadowRbac {
        counter SHADOW_ALLOWED;
        counter SHADOW_DENIED;
    }
}

/// The counters for policies are kept for so many names.
const MOST_POLICIES: usize = 4096;

/// Where the two lists count.
#[derive(Clone, Copy)]
pub(crate) struct Scopes {
    enforced: ScopeId,
    shadow: ScopeId,
}

impl Scopes {
    /// `owner` is what stands before `.rbac.`.
    pub(crate) fn new(
        kinds: [&'static Scope; 2],
        owner: &str,
        prefix: &str,
        shadow_prefix: &str,
        context: &FactoryContext<'_>,
    ) -> Self {
        let owner = owner.trim_end_matches('.');
        let name = |prefix: &str| {
            let dot = if prefix.is_empty() { "" } else { "." };
            format!("{owner}.rbac{dot}{prefix}").into()
        };
        Self { enforced: context.scope(kinds[0], &name(prefix)), shadow: context.scope(kinds[1], &name(shadow_prefix)) }
    }
}

/// The counters on one worker.
pub(crate) struct Tally {
    enforced: Stats<Rbac>,
    shadow: Stats<ShadowRbac>,
    worker: Rc<WorkerStats>,
    policies: RefCell<HashMap<String, NamedCounter>>,
}

impl Tally {
    pub(crate) fn new(worker: &WorkerContext, scopes: Scopes) -> Self {
        Self {
            enforced: Stats::new(&worker.stats, scopes.enforced),
            shadow: Stats::new(&worker.stats, scopes.shadow),
            worker: worker.stats.clone(),
            policies: RefCell::default(),
        }
    }

    pub(crate) fn enforced(&self, decision: Decision<'_>, per_policy: bool) {
        self.enforced.inc(if decision.allowed { ALLOWED } else { DENIED });
        if per_policy {
            self.of_policy("", self.enforced.scope(), decision);
        }
    }

    pub(crate) fn shadow(&self, decision: Decision<'_>, per_policy: bool) {
        self.shadow.inc(if decision.allowed { SHADOW_ALLOWED } else { SHADOW_DENIED });
        if per_policy {
            self.of_policy("shadow_", self.shadow.scope(), decision);
        }
    }

    fn of_policy(&self, which: &str, scope: ScopeId, decision: Decision<'_>) {
        let Some(policy) = decision.policy else { return };
        let key = format!("policy.{policy}.{which}{}", decision.result());
        let mut policies = self.policies.borrow_mut();
        if policies.len() >= MOST_POLICIES && !policies.contains_key(&key) {
            return;
        }
        let counter = policies.entry(key).or_insert_with_key(|key| self.worker.named(scope, key, Kind::Counter));
        counter.inc();
    }
}

/// What a decision leaves under the filter's namespace.
pub(crate) fn told(prefix: &str, which: &str, decision: Decision<'_>) -> Struct {
    let text = |text: &str| Value { kind: Some(ValueKind::StringValue(text.to_owned())) };
    let mut fields = std::collections::BTreeMap::new();
    if let Some(policy) = decision.policy {
        fields.insert(format!("{prefix}{which}_effective_policy_id"), text(policy));
    }
    fields.insert(format!("{prefix}{which}_engine_result"), text(decision.result()));
    Struct { fields: fields.into_iter().collect() }
}

/// For a scope of its kind: the lists that are shown as zeros from the start.
pub(crate) const fn scopes(root: &'static str) -> [Scope; 2] {
    [Scope { root, lists: &[Rbac::descriptors] }, Scope { root, lists: &[ShadowRbac::descriptors] }]
}
