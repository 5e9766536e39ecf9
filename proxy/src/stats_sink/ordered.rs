//! Stats sorted by full name without sorting all of them: scopes are sorted by their prefix, and each is opened only when
//! the walk comes to it, as its names all come after its prefix.

use super::chunks::Gone;
use super::{StatsConfig, StatsQuery};
use nuncio_core::stats::{ScopeView, Value, View};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// `/stats` shows the kinds one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Texts,
    CountersAndGauges,
    Histograms,
}

impl Part {
    pub(super) const ALL: [Self; 3] = [Self::Texts, Self::CountersAndGauges, Self::Histograms];

    fn has(self, value: &Value<'_>) -> bool {
        match value {
            Value::Text(_) => self == Self::Texts,
            Value::Counter { .. } | Value::Gauge { .. } => self == Self::CountersAndGauges,
            Value::Histogram(_) => self == Self::Histograms,
        }
    }
}

enum Pending<'v> {
    Scopes(Vec<&'v ScopeView>),
    Stat(Value<'v>),
}

/// Calls with each stat of a part that the query wants, in the order of bytes. Two objects with the same name are one
/// stat: numbers are summed.
pub(super) fn walk<'v>(
    view: &'v View,
    config: &StatsConfig,
    query: &StatsQuery,
    part: Part,
    each: &mut dyn FnMut(&str, Value<'v>) -> Result<(), Gone>,
) -> Result<(), Gone> {
    let mut pending: BTreeMap<String, Pending<'v>> = BTreeMap::new();
    for scope in view.scopes() {
        let mut prefix = String::new();
        scope.write_prefix(&mut prefix);
        match pending.entry(prefix).or_insert_with(|| Pending::Scopes(Vec::new())) {
            Pending::Scopes(scopes) => scopes.push(scope),
            Pending::Stat(_) => {}
        }
    }
    let mut name = String::new();
    while let Some((key, next)) = pending.pop_first() {
        let scopes = match next {
            Pending::Stat(value) => {
                each(&key, value)?;
                continue;
            }
            Pending::Scopes(scopes) => scopes,
        };
        for scope in scopes {
            scope.visit(&mut |_, list, stat, value| {
                if !part.has(&value) {
                    return;
                }
                name.clear();
                name.extend([key.as_str(), list, stat]);
                if query.wants(config, &name, &value) {
                    add(&mut pending, &name, value);
                }
            });
        }
    }
    Ok(())
}

fn add<'v>(pending: &mut BTreeMap<String, Pending<'v>>, name: &str, value: Value<'v>) {
    match pending.entry(name.to_owned()) {
        Entry::Vacant(vacant) => {
            vacant.insert(Pending::Stat(value));
        }
        Entry::Occupied(mut occupied) => {
            if let Pending::Stat(first) = occupied.get_mut() {
                *first = merged(*first, value);
            }
        }
    }
}

/// One stat of two objects that have the same name.
pub(super) fn merged<'v>(first: Value<'v>, second: Value<'v>) -> Value<'v> {
    match (first, second) {
        (Value::Counter { value: a, used: one }, Value::Counter { value: b, used: two }) => {
            Value::Counter { value: a.wrapping_add(b), used: one || two }
        }
        (Value::Gauge { value: a, used: one }, Value::Gauge { value: b, used: two }) => {
            Value::Gauge { value: a.wrapping_add(b), used: one || two }
        }
        (first, _) => first,
    }
}
