//! Everything the store has, to be read on any thread while workers go on counting.

use super::codes;
use super::entries::{Declared, Entries, Named, Rare, State, codes_sum};
use super::histogram::Buckets;
use super::list::{Descriptor, Kind, Scope, Shape, Stat};
use super::sparse::Sparse;
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
            if let Some(value) = scope.value(rest) {
                sum = Some(sum.unwrap_or(0u64).wrapping_add(value));
            }
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

    /// A counter or gauge of this scope, by what follows the scope's prefix.
    pub fn value(&self, name: &str) -> Option<u64> {
        let mut found = None;
        self.visit(&mut |_, list, stat, value| {
            if let Value::Counter { value, .. } | Value::Gauge { value, .. } = value
                && name.strip_prefix(list) == Some(stat)
            {
                found = Some(value);
            }
        });
        found
    }

    /// Calls with each stat: where it is, its list's prefix, its name, its value. In no order.
    pub fn visit<'v>(&'v self, visitor: &mut dyn FnMut(Address, &str, &str, Value<'v>)) {
        for (number, (list, state)) in self.lists().enumerate() {
            visit_list(number as u16, list, state, visitor);
        }
        let Some(rare) = self.rare() else { return };
        for (index, named) in rare.named.iter().enumerate() {
            visitor(Address { list: NAMED, index: index as u32 }, "", &named.name, named_value(named));
        }
        for (index, (name, text)) in rare.texts.iter().enumerate() {
            visitor(Address { list: TEXTS, index: index as u32 }, "", name, Value::Text(text));
        }
    }

    /// The one stat at an address that `visit` gave, as `visit` would give it.
    pub fn visit_one<'v>(&'v self, at: Address, visitor: &mut dyn FnMut(&str, &str, Value<'v>)) {
        let index = at.index as usize;
        match (at.list, self.rare()) {
            (NAMED, Some(rare)) => {
                let named = &rare.named[index];
                visitor("", &named.name, named_value(named));
            }
            (TEXTS, Some(rare)) => {
                let (name, text) = &rare.texts[index];
                visitor("", name, Value::Text(text));
            }
            (number, _) => {
                let Some((list, state)) = self.lists().nth(number.into()) else { return };
                match state {
                    Some(State::Codes { blocks, retired }) => {
                        let key = index as u16;
                        let mut name = String::new();
                        codes::write_name(key, &mut name);
                        let value = codes_sum(blocks, retired).get(key);
                        visitor(list.prefix, &name, Value::Counter { value, used: true });
                    }
                    Some(State::Declared(declared)) => {
                        let stat = &list.stats()[index];
                        visitor(list.prefix, stat.name, declared_value(list, stat, declared));
                    }
                    None => visit_list(number, list, None, &mut |address, prefix, name, value| {
                        if address == at {
                            visitor(prefix, name, value);
                        }
                    }),
                }
            }
        }
    }

    fn rare(&self) -> Option<&Rare> {
        self.entries.as_ref()?.rare.as_deref()
    }

    /// The lists of the kind, born or not, and then what else was born.
    fn lists(&self) -> impl Iterator<Item = (&'static Descriptor, Option<&State>)> {
        let entries = self.entries.as_ref().map_or(&[][..], |entries| &entries.lists);
        let of_kind = self.kind.lists.iter().flat_map(|descriptors| descriptors());
        let of_kind =
            of_kind.map(|list| (list, entries.iter().find(|entry| entry.list.is(list)).map(|entry| &entry.state)));
        let others = entries.iter().filter(|entry| {
            !self.kind.lists.iter().flat_map(|descriptors| descriptors()).any(|list| entry.list.is(list))
        });
        of_kind.chain(others.map(|entry| (entry.list, Some(&entry.state))))
    }
}

/// Where a stat is in its [`ScopeView`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Address {
    list: u16,
    index: u32,
}

const NAMED: u16 = u16::MAX - 1;
const TEXTS: u16 = u16::MAX;

fn named_value(named: &Named) -> Value<'static> {
    let value = named.value();
    match named.kind {
        Kind::Gauge => Value::Gauge { value, used: true },
        _ => Value::Counter { value, used: true },
    }
}

fn visit_list<'v>(
    number: u16,
    list: &'static Descriptor,
    state: Option<&'v State>,
    visitor: &mut dyn FnMut(Address, &str, &str, Value<'v>),
) {
    static UNBORN: Declared = Declared::unborn();
    let address = |index| Address { list: number, index };
    match (list.shape, state) {
        (_, Some(State::Codes { blocks, retired })) => {
            let mut name = String::new();
            for (key, value) in codes_sum(blocks, retired).iter() {
                name.clear();
                codes::write_name(key, &mut name);
                visitor(address(key.into()), list.prefix, &name, Value::Counter { value, used: true });
            }
        }
        (Shape::Declared { stats, .. }, state) => {
            let declared = match state {
                Some(State::Declared(declared)) => declared,
                _ => &UNBORN,
            };
            for (index, stat) in stats.iter().enumerate() {
                visitor(address(index as u32), list.prefix, stat.name, declared_value(list, stat, declared));
            }
        }
        (Shape::Codes { completed }, _) => {
            if completed {
                let value = Value::Counter { value: 0, used: false };
                visitor(address(codes::COMPLETED.into()), list.prefix, "upstream_rq_completed", value);
            }
        }
    }
}

fn declared_value<'v>(list: &Descriptor, stat: &Stat, declared: &'v Declared) -> Value<'v> {
    static NOTHING: Sparse = Sparse::new();
    let word = usize::from(stat.slot);
    match stat.kind {
        Kind::Counter => Value::Counter { value: declared.value(word), used: declared.used(word) },
        Kind::Gauge => Value::Gauge { value: declared.value(word), used: declared.touched(list.words(), stat.bit) },
        Kind::Histogram(unit) => {
            let state = declared.histograms.get(word);
            let (cumulative, interval) =
                state.map_or((&NOTHING, &NOTHING), |state| (&state.cumulative, &state.interval));
            Value::Histogram(HistogramValue {
                cumulative: Buckets { counts: cumulative, unit },
                interval: Buckets { counts: interval, unit },
            })
        }
    }
}
