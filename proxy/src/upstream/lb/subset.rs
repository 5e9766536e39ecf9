//! Subsets: parts of a cluster by what hosts say of themselves, chosen by what a route asks for.
//!
//! [`SubsetIndex`] is built on main and shared: which hosts are in which subset. [`SubsetBalancer`] is one worker's: a
//! balancer of the cluster's policy for each subset that was asked for here.

use std::collections::HashMap;
use std::sync::Arc;

use nuncio_api::pb::google::protobuf::{Struct, Value, value::Kind};
use nuncio_core::runtime::Runtime;
use nuncio_core::upstream::{Choice, Host, HostSet, LbContext, LoadBalancer, Locality, PrioritySet};
use xxhash_rust::xxh64::xxh64;

use super::hashing::{Evenness, HashBalancer, Tables};
use super::shared::{self, Shared, SubsetCounts};
use super::{Surroundings, labels, plain};
use crate::upstream::lb_config::{Fallback, LbConfig, SubsetConfig};

/// Stands in what is asked for.
const FALLBACK_LIST: &str = "fallback_list";

/// Which hosts are in which subset.
pub(super) struct SubsetIndex {
    config: Arc<SubsetConfig>,
    whole: Part,
    default: Part,
    subsets: Vec<Subset>,
    /// By selector: hash of the values → subsets.
    by_hash: Vec<HashMap<u64, Vec<u32>>>,
}

/// Some hosts of a cluster.
#[derive(Clone)]
struct Part {
    hosts: Arc<PrioritySet>,
    tables: Option<Arc<Tables>>,
}

struct Subset {
    selector: usize,
    /// In the order of the selector's keys.
    values: Vec<Value>,
    part: Part,
}

/// A subset that is being filled: hosts by priority.
struct Draft {
    selector: usize,
    values: Vec<Value>,
    hosts: Vec<Vec<Arc<Host>>>,
}

impl SubsetIndex {
    /// `None` if there are no subsets at all.
    pub fn build(
        config: &LbConfig,
        runtime: &dyn Runtime,
        hosts: &Arc<PrioritySet>,
        before: Option<&Self>,
    ) -> Option<Self> {
        let subsets = config.subsets.clone()?;
        let mut by_hash = vec![HashMap::<u64, Vec<u32>>::new(); subsets.selectors.len()];
        let mut drafts: Vec<Draft> = Vec::new();
        for (priority, set) in hosts.priorities.iter().enumerate() {
            for host in set.hosts.iter() {
                let metadata = host.metadata();
                let Some(said) = metadata.0.get(labels::NAMESPACE) else { continue };
                for (selector, known) in by_hash.iter_mut().enumerate() {
                    let keys = &subsets.selectors[selector].keys;
                    for values in combinations(keys, said, subsets.list_as_any) {
                        let found = known.entry(hash_all(values.iter())).or_default();
                        let same = found.iter().copied().find(|at| drafts[*at as usize].values == values);
                        let at = same.unwrap_or_else(|| {
                            let empty = vec![Vec::new(); hosts.priorities.len()];
                            drafts.push(Draft { selector, values, hosts: empty });
                            found.push(drafts.len() as u32 - 1);
                            drafts.len() as u32 - 1
                        });
                        let draft = &mut drafts[at as usize];
                        let taken = draft.hosts.iter().any(|hosts| !hosts.is_empty());
                        if !(subsets.selectors[selector].single_host && taken) {
                            draft.hosts[priority].push(host.clone());
                        }
                    }
                }
            }
        }
        let part = |lists: Vec<Vec<Arc<Host>>>| Part::new((config, runtime), &subsets, hosts, lists);
        let wanted = &subsets.default_subset;
        let in_default = |set: &Arc<HostSet>| -> Vec<Arc<Host>> {
            let fits = |host: &&Arc<Host>| labels::matches(wanted, &host.metadata(), subsets.list_as_any);
            set.hosts.iter().filter(fits).cloned().collect()
        };
        let default = part(hosts.priorities.iter().map(in_default).collect());
        let finish = |draft: Draft| Subset { selector: draft.selector, values: draft.values, part: part(draft.hosts) };
        Some(Self {
            default,
            subsets: drafts.into_iter().map(finish).collect(),
            by_hash,
            whole: Part {
                hosts: hosts.clone(),
                tables: shared::tables(config, runtime, hosts, before.and_then(|b| b.whole.tables.as_deref())),
            },
            config: subsets,
        })
    }

    /// The subset of exactly these labels.
    fn find(&self, wanted: &Struct) -> Option<usize> {
        let selector = self.selector(wanted)?;
        let values = || self.config.selectors[selector].keys.iter().filter_map(|key| wanted.fields.get(key));
        let found = self.by_hash[selector].get(&hash_all(values()))?;
        let same = |at: &&u32| self.subsets[**at as usize].values.iter().eq(values());
        found.iter().find(same).map(|at| *at as usize)
    }

    /// The selector of exactly these keys.
    fn selector(&self, wanted: &Struct) -> Option<usize> {
        let fields = &wanted.fields;
        let fits = |keys: &Vec<String>| keys.len() == fields.len() && keys.iter().all(|key| fields.contains_key(key));
        self.config.selectors.iter().position(|selector| fits(&selector.keys))
    }

    /// Where a subset of another index is in this one.
    fn same(&self, other: &Subset) -> Option<usize> {
        let found = self.by_hash.get(other.selector)?.get(&hash_all(other.values.iter()))?;
        found.iter().map(|at| *at as usize).find(|at| self.subsets[*at].values == other.values)
    }

    pub fn evenness(&self) -> Option<Evenness> {
        self.whole.tables.as_ref().map(|tables| tables.evenness())
    }

    pub fn counts(&self, before: Option<&Self>) -> SubsetCounts {
        let new_in = |a: &Self, b: Option<&Self>| {
            let unknown = |subset: &&Subset| b.is_none_or(|b| b.same(subset).is_none());
            a.subsets.iter().filter(unknown).count() as u64
        };
        SubsetCounts {
            active: self.subsets.len() as u64,
            created: new_in(self, before),
            removed: before.map_or(0, |before| new_in(before, Some(self))),
        }
    }
}

impl Part {
    fn new(
        (config, runtime): (&LbConfig, &dyn Runtime),
        subsets: &SubsetConfig,
        whole: &PrioritySet,
        lists: Vec<Vec<Arc<Host>>>,
    ) -> Self {
        let set = |(set, hosts): (&Arc<HostSet>, Vec<Arc<Host>>)| {
            let weights = locality_weights(subsets, set, &hosts);
            let weight_of = |locality: &Locality| {
                weights.iter().find(|(known, _)| **known == *locality).map_or(0, |(_, weight)| *weight)
            };
            let new = HostSet::new(hosts, weight_of, set.overprovisioning_factor);
            Arc::new(HostSet { weighted_health: set.weighted_health, ..new })
        };
        let hosts = Arc::new(PrioritySet {
            priorities: whole.priorities.iter().zip(lists).map(set).collect(),
            ..PrioritySet::default()
        });
        Self { tables: shared::tables(config, runtime, &hosts, None), hosts }
    }
}

/// Weights of localities inside of a subset that has only these hosts of a priority.
fn locality_weights(config: &SubsetConfig, set: &HostSet, hosts: &[Arc<Host>]) -> Vec<(Arc<Locality>, u32)> {
    if !config.locality_weight_aware {
        return Vec::new();
    }
    let each = set.localities.iter().map(|locality| {
        let here = hosts.iter().filter(|host| host.spec().locality == locality.locality).count();
        let weight = if config.scale_locality_weight {
            let part = here as f64 / locality.hosts.len().max(1) as f64;
            (f64::from(locality.weight) * part).round() as u32
        } else {
            locality.weight
        };
        (locality.locality.clone(), weight)
    });
    each.collect()
}

/// The values of these keys that a host says; several combinations if it says lists.
fn combinations(keys: &[String], said: &Struct, list_as_any: bool) -> Vec<Vec<Value>> {
    let mut all = vec![Vec::with_capacity(keys.len())];
    for key in keys {
        let Some(value) = said.fields.get(key) else { return Vec::new() };
        all = match &value.kind {
            Some(Kind::ListValue(list)) if list_as_any => {
                let with =
                    |values: &Vec<Value>, value: &Value| [values.as_slice(), std::slice::from_ref(value)].concat();
                all.iter().flat_map(|values| list.values.iter().map(move |value| with(values, value))).collect()
            }
            _ => {
                all.iter_mut().for_each(|values| values.push(value.clone()));
                all
            }
        };
    }
    all
}

fn hash_all<'a>(values: impl Iterator<Item = &'a Value>) -> u64 {
    values.fold(0, |hash, value| hash_value(value, hash))
}

fn hash_value(value: &Value, seed: u64) -> u64 {
    match &value.kind {
        None | Some(Kind::NullValue(_)) => xxh64(b"0", seed),
        Some(Kind::BoolValue(on)) => xxh64(&[b'b', u8::from(*on)], seed),
        Some(Kind::NumberValue(number)) => xxh64(&number.to_bits().to_le_bytes(), seed.wrapping_add(1)),
        Some(Kind::StringValue(text)) => xxh64(text.as_bytes(), seed.wrapping_add(2)),
        Some(Kind::ListValue(list)) => list.values.iter().fold(seed.wrapping_add(3), |h, v| hash_value(v, h)),
        Some(Kind::StructValue(inner)) => {
            // In whatever order they come.
            let field = |(key, value): (&String, &Value)| hash_value(value, xxh64(key.as_bytes(), seed));
            inner.fields.iter().map(field).fold(seed.wrapping_add(4), u64::wrapping_add)
        }
    }
}

/// One worker's balancers.
pub(super) struct SubsetBalancer {
    /// The policy inside of subsets.
    config: LbConfig,
    shared: Arc<Shared>,
    index: Arc<SubsetIndex>,
    whole: Child,
    default: Child,
    /// By subset, once somebody asked for it.
    children: Vec<Option<Child>>,
    around: Surroundings,
}

/// The balancer of some hosts.
enum Child {
    Plain(Box<dyn LoadBalancer>),
    Hash(HashBalancer),
}

impl Child {
    fn new(config: &LbConfig, part: &Part, around: &Surroundings) -> Self {
        match &part.tables {
            Some(tables) => Self::Hash(HashBalancer::new(config, tables.clone(), around)),
            None => Self::Plain(plain(config, &part.hosts, around)),
        }
    }

    fn update(&mut self, part: &Part) {
        match (self, &part.tables) {
            (Self::Hash(hash), Some(tables)) => hash.set_tables(tables.clone()),
            (Self::Plain(plain), _) => plain.hosts_changed(&part.hosts),
            (Self::Hash(_), None) => {}
        }
    }

    fn choose(&mut self, context: &LbContext<'_>) -> Choice {
        match self {
            Self::Plain(plain) => plain.choose_host(context),
            Self::Hash(hash) => hash.choose(context),
        }
    }
}

impl SubsetBalancer {
    pub fn new(config: &LbConfig, shared: &Arc<Shared>, around: &Surroundings) -> Option<Self> {
        let index = shared.subsets()?;
        let config = LbConfig {
            subsets: None,
            locality_weighted: config.locality_weighted && index.config.locality_weight_aware,
            ..config.clone()
        };
        around.observer.subsets(index.counts(None));
        Some(Self {
            whole: Child::new(&config, &index.whole, around),
            default: Child::new(&config, &index.default, around),
            children: index.subsets.iter().map(|_| None).collect(),
            config,
            shared: shared.clone(),
            index,
            around: around.clone(),
        })
    }

    fn choose_for(&mut self, context: &LbContext<'_>, wanted: Option<&Struct>) -> Choice {
        let mut fallback = None;
        if let Some(wanted) = wanted {
            if let Some(found) = self.index.find(wanted) {
                self.around.observer.subset_selected();
                return self.child(found).choose(context);
            }
            fallback = self.index.selector(wanted).and_then(|at| self.index.config.selectors[at].fallback.clone());
        }
        match (fallback, wanted) {
            (None, _) => self.fall_back(context),
            (Some(Fallback::None), _) => Choice::None,
            (Some(Fallback::Any), _) => self.whole.choose(context),
            (Some(Fallback::Default), _) => self.default.choose(context),
            (Some(Fallback::Keys(keys)), wanted) => {
                // Fewer keys than before, so that this ends.
                let mut fewer = wanted.cloned().unwrap_or_default();
                fewer.fields.retain(|key, _| keys.contains(key));
                self.choose_for(context, Some(&fewer))
            }
        }
    }

    /// `metadata_fallback_policy: FALLBACK_LIST`: what is asked for has a list of changes to itself, of which the first
    /// that finds a host counts.
    fn choose_from_list(&mut self, context: &LbContext<'_>, wanted: &Struct) -> Choice {
        let Some(Kind::ListValue(list)) = wanted.fields.get(FALLBACK_LIST).and_then(|list| list.kind.as_ref()) else {
            return self.choose_for(context, Some(wanted));
        };
        let mut plain = wanted.clone();
        plain.fields.remove(FALLBACK_LIST);
        if list.values.is_empty() {
            return self.choose_for(context, Some(&plain));
        }
        for change in &list.values {
            let mut changed = plain.clone();
            if let Some(Kind::StructValue(change)) = &change.kind {
                changed.fields.extend(change.fields.clone());
            }
            match self.choose_for(context, Some(&changed)) {
                Choice::None => {}
                choice => return choice,
            }
        }
        Choice::None
    }

    /// The cluster's own fallback.
    fn fall_back(&mut self, context: &LbContext<'_>) -> Choice {
        let config = self.index.config.clone();
        let choice = match config.fallback {
            Fallback::None | Fallback::Keys(_) => return Choice::None,
            Fallback::Any => self.whole.choose(context),
            Fallback::Default => self.default.choose(context),
        };
        if !matches!(choice, Choice::None) {
            self.around.observer.subset_fallback(false);
            return choice;
        }
        if !config.panic_mode_any {
            return Choice::None;
        }
        let choice = self.whole.choose(context);
        if !matches!(choice, Choice::None) {
            self.around.observer.subset_fallback(true);
        }
        choice
    }

    fn child(&mut self, at: usize) -> &mut Child {
        let part = &self.index.subsets[at].part;
        self.children[at].get_or_insert_with(|| Child::new(&self.config, part, &self.around))
    }
}

impl LoadBalancer for SubsetBalancer {
    fn choose_host(&mut self, context: &LbContext<'_>) -> Choice {
        match context.metadata_match {
            Some(wanted) if self.index.config.fallback_list => self.choose_from_list(context, wanted),
            wanted => self.choose_for(context, wanted),
        }
    }

    fn hosts_changed(&mut self, _: &Arc<PrioritySet>) {
        let Some(index) = self.shared.subsets() else { return };
        self.around.observer.subsets(index.counts(Some(&self.index)));
        let mut children: Vec<Option<Child>> = index.subsets.iter().map(|_| None).collect();
        for (at, child) in std::mem::take(&mut self.children).into_iter().enumerate() {
            let (Some(mut child), Some(now)) = (child, index.same(&self.index.subsets[at])) else { continue };
            child.update(&index.subsets[now].part);
            children[now] = Some(child);
        }
        self.children = children;
        self.whole.update(&index.whole);
        self.default.update(&index.default);
        self.index = index;
    }
}

#[cfg(test)]
mod tests;
