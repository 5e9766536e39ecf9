//! Everything the store has, to be read on any thread while workers go on counting.

use super::codes;
use super::histogram::Buckets;
use super::list::{Descriptor, Kind, Scope, Shape};
use super::sparse::Sparse;
use super::store::{Declared, Entries, State, codes_sum, unit_of};
use std::sync::Arc;

/// A reading of all stats.
#[derive(Clone, Debug)]
pub struct View {
    pub(super) scopes: Vec<ScopeView>,
}

/// One object's stats.
#[derive(Clone, Debug)]
pub struct ScopeView {
    pub(super) kind: &'static Scope,
    pub(super) name: Arc<str>,
    pub(super) entries: Option<Arc<Entries>>,
}

/// One stat's value. `used` as Envoy's `usedonly` has it: ever written.
#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    Counter { value: u64, used: bool },
    Gauge { value: u64, used: bool },
    Text(&'a str),
    Histogram(HistogramValue<'a>),
}

/// As of the last flush.
#[derive(Clone, Copy, Debug)]
pub struct HistogramValue<'a> {
    pub cumulative: Buckets<'a>,
    pub interval: Buckets<'a>,
}

impl View {
    pub fn scopes(&self) -> &[ScopeView] {
        &self.scopes
    }

    /// A counter's or gauge's value by its full name; slow. The sum, if several objects have the name.
    pub fn value(&self, name: &str) -> Option<u64> {
        let mut sum = None;
        let mut prefix = String::new();
        for scope in &self.scopes {
            prefix.clear();
            scope.write_prefix(&mut prefix);
            let Some(rest) = name.strip_prefix(prefix.as_str()) else { continue };
            scope.visit(&mut |list, stat, value| {
                if rest.strip_prefix(list) == Some(stat)
                    && let Value::Counter { value, .. } | Value::Gauge { value, .. } = value
                {
                    sum = Some(sum.unwrap_or(0u64).wrapping_add(value));
                }
            });
        }
        sum
    }
}

impl ScopeView {
    pub fn kind(&self) -> &'static Scope {
        self.kind
    }

    /// The object's own part of the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What all names of this scope begin with, dot included.
    pub fn write_prefix(&self, out: &mut String) {
        out.push_str(self.kind.root);
        if !self.name.is_empty() {
            out.push_str(&self.name);
            out.push('.');
        }
    }

    /// Calls with each stat: its list's prefix, its name, its value. In no order.
    pub fn visit(&self, visitor: &mut dyn FnMut(&str, &str, Value<'_>)) {
        let lists = self.entries.as_ref().map_or(&[][..], |entries| &entries.lists);
        for list in self.kind.lists.iter().flat_map(|descriptors| descriptors()) {
            if !lists.iter().any(|entry| entry.list.is(list)) {
                visit_unborn(list, visitor);
            }
        }
        for entry in lists {
            visit_state(entry.list, &entry.state, visitor);
        }
        let Some(entries) = &self.entries else { return };
        for named in &entries.named {
            let value = named.value();
            let value = match named.kind {
                Kind::Gauge => Value::Gauge { value, used: true },
                _ => Value::Counter { value, used: true },
            };
            visitor("", &named.name, value);
        }
        for (name, text) in &entries.texts {
            visitor("", name, Value::Text(text));
        }
    }
}

fn visit_unborn(list: &Descriptor, visitor: &mut dyn FnMut(&str, &str, Value<'_>)) {
    static UNBORN: Declared = Declared::unborn();
    match list.shape {
        Shape::Declared { .. } => visit_declared(list, &UNBORN, visitor),
        Shape::Codes { completed: true } => {
            visitor(list.prefix, "upstream_rq_completed", Value::Counter { value: 0, used: false });
        }
        Shape::Codes { completed: false } => {}
    }
}

fn visit_state(list: &Descriptor, state: &State, visitor: &mut dyn FnMut(&str, &str, Value<'_>)) {
    match state {
        State::Declared(declared) => visit_declared(list, declared, visitor),
        State::Codes { blocks, retired } => {
            let mut name = String::new();
            for (key, value) in codes_sum(blocks, retired).iter() {
                name.clear();
                codes::write_name(key, &mut name);
                visitor(list.prefix, &name, Value::Counter { value, used: true });
            }
        }
    }
}

fn visit_declared(list: &Descriptor, declared: &Declared, visitor: &mut dyn FnMut(&str, &str, Value<'_>)) {
    static NOTHING: Sparse = Sparse::new();
    let Shape::Declared { stats, words, .. } = list.shape else { return };
    for stat in stats {
        let word = usize::from(stat.slot);
        let value = match stat.kind {
            Kind::Counter => Value::Counter { value: declared.value(word), used: declared.used(word) },
            Kind::Gauge => Value::Gauge { value: declared.value(word), used: declared.touched(words, stat.bit) },
            Kind::Histogram(_) => {
                let state = declared.histograms.get(word);
                let (cumulative, interval) =
                    state.map_or((&NOTHING, &NOTHING), |state| (&state.cumulative, &state.interval));
                let unit = unit_of(stat.kind);
                Value::Histogram(HistogramValue {
                    cumulative: Buckets { counts: cumulative, unit },
                    interval: Buckets { counts: interval, unit },
                })
            }
        };
        visitor(list.prefix, stat.name, value);
    }
}
