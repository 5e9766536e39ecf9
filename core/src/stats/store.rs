//! All stats, on main: scopes, the blocks that workers count in, and what is left of blocks that are gone.
//!
//! A scope is an object with stats (a cluster, a listener): its kind, its name and the blocks born so far. An idle scope
//! has no blocks and costs 40 bytes and its entry in the index. Nothing else is kept by name.

use super::block::{self, Line};
use super::codes::CodeBlock;
use super::handle::{Birth, Born, WorkerStats};
use super::histogram::HistogramBlock;
use super::list::{Descriptor, Kind, Scope, Shape, sanitize};
use super::sparse::Sparse;
use super::view::{ScopeView, View};
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

/// A scope for ever: a birth that arrives after its scope was removed finds nothing, and never another scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ScopeId {
    slot: u32,
    generation: u32,
}

/// The owner of all stats. Main only.
pub struct Store {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Hash of kind and name → slot. On the rare collision the next number is tried.
    index: HashMap<u64, u32>,
    own: Rc<WorkerStats>,
    own_births: Rc<RefCell<Vec<Birth>>>,
    before_reading: Vec<Box<BeforeReading>>,
}

type BeforeReading = dyn Fn(&mut Store);

#[cfg(test)]
pub(super) const SLOT_SIZE: usize = size_of::<Slot>();

struct Slot {
    kind: Option<&'static Scope>,
    name: Arc<str>,
    entries: Option<Arc<Entries>>,
    generation: u32,
    holders: u32,
}

/// What a scope has beyond its kind and name.
#[derive(Clone, Debug, Default)]
pub(super) struct Entries {
    pub(super) lists: Vec<Entry>,
    pub(super) rare: Option<Box<Rare>>,
}

/// What few objects have.
#[derive(Clone, Debug, Default)]
pub(super) struct Rare {
    pub(super) named: Vec<Named>,
    pub(super) texts: Vec<(&'static str, Arc<str>)>,
}

#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) list: &'static Descriptor,
    pub(super) state: State,
}

#[derive(Clone, Debug)]
pub(super) enum State {
    Declared(Declared),
    Codes { blocks: Vec<Arc<CodeBlock>>, retired: Sparse },
}

#[derive(Clone, Debug, Default)]
pub(super) struct Declared {
    blocks: Vec<Arc<[Line]>>,
    /// Counters of blocks that are gone, less what was counted before the last reset. Gauges of a dead writer are zero.
    retired: Option<Box<[u64]>>,
    /// By the histogram's slot, up to the highest that was born.
    pub(super) histograms: Vec<HistogramState>,
}

#[derive(Clone, Debug)]
pub(super) struct Named {
    pub(super) name: Arc<str>,
    pub(super) kind: Kind,
    blocks: Vec<Arc<[Line; 1]>>,
    retired: u64,
}

/// One histogram, as of the last flush.
#[derive(Clone, Debug, Default)]
pub(super) struct HistogramState {
    blocks: Vec<Arc<HistogramBlock>>,
    retired: Sparse,
    seen: u64,
    pub(super) cumulative: Sparse,
    pub(super) interval: Sparse,
}

impl Default for Store {
    fn default() -> Self {
        Self::new()
    }
}

impl Store {
    pub fn new() -> Self {
        let own_births = Rc::new(RefCell::new(Vec::new()));
        let births = own_births.clone();
        let own = WorkerStats::new(move |birth| births.borrow_mut().push(birth));
        Self { slots: Vec::new(), free: Vec::new(), index: HashMap::new(), own, own_births, before_reading: Vec::new() }
    }

    /// For gauges that nobody keeps because they follow from something else: called before values are read.
    pub fn before_reading(&mut self, update: impl Fn(&mut Self) + 'static) {
        self.before_reading.push(Box::new(update));
    }

    /// For the stats that main itself counts.
    pub fn main(&self) -> &Rc<WorkerStats> {
        &self.own
    }

    /// The scope of this kind and name, made if there is none. Each call needs its `release`: two listeners with the
    /// same `stat_prefix` share one scope. A name that needs no sanitizing is shared, not copied.
    pub fn scope(&mut self, kind: &'static Scope, name: &Arc<str>) -> ScopeId {
        let name = match sanitize(name) {
            clean if *clean == **name => name.clone(),
            clean => Arc::from(clean),
        };
        let mut key = kind.hash(&name);
        while let Some(&slot) = self.index.get(&key) {
            let found = &mut self.slots[slot as usize];
            if found.name == name && found.kind.is_some_and(|k| std::ptr::eq(k, kind)) {
                found.holders += 1;
                return ScopeId { slot, generation: found.generation };
            }
            key = key.wrapping_add(1);
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { kind: None, name: name.clone(), entries: None, generation: 0, holders: 0 });
            (self.slots.len() - 1) as u32
        });
        self.index.insert(key, slot);
        let new = &mut self.slots[slot as usize];
        (new.kind, new.name, new.holders) = (Some(kind), name, 1);
        ScopeId { slot, generation: new.generation }
    }

    /// One holder less; after the last one the scope and its counts are gone.
    pub fn release(&mut self, id: ScopeId) {
        let Some(slot) = self.live(id) else { return };
        slot.holders -= 1;
        if slot.holders > 0 {
            return;
        }
        let kind = slot.kind.take();
        let name = std::mem::replace(&mut slot.name, Arc::from(""));
        slot.entries = None;
        slot.generation = slot.generation.wrapping_add(1);
        // A slot whose generations are used up is left alone: an id is never given twice.
        if slot.generation != 0 {
            self.free.push(id.slot);
        }
        let Some(kind) = kind else { return };
        let mut key = kind.hash(&name);
        while self.index.get(&key).is_some_and(|slot| *slot != id.slot) {
            key = key.wrapping_add(1);
        }
        self.index.remove(&key);
    }

    /// Shows a list from now on, as zeros until it is born.
    pub fn declare(&mut self, id: ScopeId, list: &'static Descriptor) {
        if let Some(slot) = self.live(id) {
            slot.entries_mut().entry(list);
        }
    }

    /// A text readout; none takes it away.
    pub fn set_text(&mut self, id: ScopeId, name: &'static str, text: Option<Arc<str>>) {
        let Some(slot) = self.live(id) else { return };
        let texts = &mut slot.entries_mut().rare.get_or_insert_default().texts;
        texts.retain(|(old, _)| *old != name);
        texts.extend(text.map(|text| (name, text)));
    }

    /// A worker's block came into being.
    pub fn accept(&mut self, birth: Birth) {
        if let Some(slot) = self.live(birth.scope) {
            slot.entries_mut().accept(birth.what);
        }
    }

    /// At each flush interval: makes the interval and cumulative values of histograms, and folds dead blocks.
    pub fn flush(&mut self) {
        self.accept_own();
        for slot in &mut self.slots {
            let Some(entries) = &mut slot.entries else { continue };
            if entries.lists.iter().any(Entry::has_news) {
                Arc::make_mut(entries).lists.iter_mut().for_each(Entry::merge_histograms);
            }
        }
        self.fold();
    }

    /// Blocks of writers that are gone count no longer beside those of their successors: their counters are kept, their
    /// gauges are not. While a view of a scope is being read its blocks have another holder, and stay for the next time.
    fn fold(&mut self) {
        self.slots.iter_mut().filter_map(|slot| Arc::get_mut(slot.entries.as_mut()?)).for_each(Entries::fold);
    }

    /// `/reset_counters`: counters begin again at zero; gauges and histograms stay.
    pub fn reset_counters(&mut self) {
        self.accept_own();
        for slot in &mut self.slots {
            if let Some(entries) = &mut slot.entries {
                Arc::make_mut(entries).reset_counters();
            }
        }
    }

    /// Everything, readable on any thread. Words are read when they are rendered, histograms are those of the last flush.
    pub fn view(&mut self) -> View {
        let updates = std::mem::take(&mut self.before_reading);
        updates.iter().for_each(|update| update(self));
        self.before_reading = updates;
        self.accept_own();
        self.fold();
        let scopes = self.slots.iter().filter_map(|slot| {
            Some(ScopeView { kind: slot.kind?, name: slot.name.clone(), entries: slot.entries.clone() })
        });
        View { scopes: scopes.collect() }
    }

    /// One value by its full name, for tests and for pages that show a few.
    pub fn value(&mut self, name: &str) -> Option<u64> {
        self.view().value(name)
    }

    /// The sum of one counter or gauge over all objects of a kind.
    pub fn total(&mut self, kind: &'static Scope, name: &str) -> u64 {
        self.accept_own();
        self.fold();
        let of_kind = self.slots.iter().filter(|slot| slot.kind.is_some_and(|k| std::ptr::eq(k, kind)));
        // What nobody counted yet is zero, and need not be looked for.
        of_kind
            .filter(|slot| slot.entries.is_some())
            .filter_map(|slot| ScopeView { kind, name: slot.name.clone(), entries: slot.entries.clone() }.value(name))
            .fold(0, u64::wrapping_add)
    }

    fn accept_own(&mut self) {
        let births = std::mem::take(&mut *self.own_births.borrow_mut());
        for birth in births {
            self.accept(birth);
        }
    }

    fn live(&mut self, id: ScopeId) -> Option<&mut Slot> {
        self.slots.get_mut(id.slot as usize).filter(|slot| slot.generation == id.generation && slot.kind.is_some())
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("scopes", &self.index.len()).finish()
    }
}

/// Most of these lists stay at one or two: room for four in each would be half a kilobyte a cluster.
fn push_exact<T>(list: &mut Vec<T>, item: T) {
    list.reserve_exact(1);
    list.push(item);
}

impl Slot {
    fn entries_mut(&mut self) -> &mut Entries {
        Arc::make_mut(self.entries.get_or_insert_default())
    }
}

// === impl Entries ===

impl Entries {
    fn entry(&mut self, list: &'static Descriptor) -> &mut State {
        let at = self.lists.iter().position(|entry| entry.list.is(list)).unwrap_or_else(|| {
            push_exact(&mut self.lists, Entry { list, state: State::new(list) });
            self.lists.len() - 1
        });
        &mut self.lists[at].state
    }

    fn accept(&mut self, what: Born) {
        match what {
            Born::Words(list, block) => {
                if let State::Declared(declared) = self.entry(list) {
                    push_exact(&mut declared.blocks, block);
                }
            }
            Born::Histogram(list, slot, block) => {
                if let State::Declared(declared) = self.entry(list) {
                    let slot = usize::from(slot);
                    if declared.histograms.len() <= slot {
                        declared.histograms.resize_with(slot + 1, Default::default);
                    }
                    push_exact(&mut declared.histograms[slot].blocks, block);
                }
            }
            Born::Codes(list, block) => {
                if let State::Codes { blocks, .. } = self.entry(list) {
                    push_exact(blocks, block);
                }
            }
            Born::Named(name, kind, block) => {
                let all = &mut self.rare.get_or_insert_default().named;
                match all.iter_mut().find(|named| named.name == name && named.kind == kind) {
                    Some(named) => named.blocks.push(block),
                    None => all.push(Named { name, kind, blocks: vec![block], retired: 0 }),
                }
            }
        }
    }

    fn named_mut(&mut self) -> impl Iterator<Item = &mut Named> {
        self.rare.iter_mut().flat_map(|rare| &mut rare.named)
    }

    fn fold(&mut self) {
        for entry in &mut self.lists {
            match &mut entry.state {
                State::Declared(declared) => declared.fold(entry.list),
                State::Codes { blocks, retired } => blocks.retain_mut(|block| match Arc::get_mut(block) {
                    Some(block) => {
                        block.sum_into(retired);
                        false
                    }
                    None => true,
                }),
            }
        }
        for named in self.named_mut() {
            let counter = named.kind == Kind::Counter;
            let retired = &mut named.retired;
            named.blocks.retain_mut(|block| match Arc::get_mut(block) {
                Some(block) => {
                    *retired = if counter { retired.wrapping_add(block::get(block, 0)) } else { 0 };
                    false
                }
                None => true,
            });
        }
    }

    fn reset_counters(&mut self) {
        for entry in &mut self.lists {
            match &mut entry.state {
                State::Declared(declared) => declared.reset_counters(entry.list),
                State::Codes { blocks, retired } => {
                    let sums = codes_sum(blocks, retired);
                    for (key, n) in sums.iter() {
                        retired.add(key, n.wrapping_neg());
                    }
                }
            }
        }
        for named in self.named_mut().filter(|named| named.kind == Kind::Counter) {
            named.retired = named.retired.wrapping_sub(named.value());
        }
    }
}

impl Entry {
    fn has_news(&self) -> bool {
        match &self.state {
            State::Declared(declared) => declared.histograms.iter().any(HistogramState::has_news),
            State::Codes { .. } => false,
        }
    }

    fn merge_histograms(&mut self) {
        if let State::Declared(declared) = &mut self.state {
            declared.histograms.iter_mut().for_each(HistogramState::merge);
        }
    }
}

impl State {
    fn new(list: &Descriptor) -> Self {
        match list.shape {
            Shape::Declared { .. } => State::Declared(Declared::default()),
            Shape::Codes { .. } => State::Codes { blocks: Vec::new(), retired: Sparse::default() },
        }
    }
}

pub(super) fn codes_sum(blocks: &[Arc<CodeBlock>], retired: &Sparse) -> Sparse {
    let mut sums = retired.clone();
    for block in blocks {
        block.sum_into(&mut sums);
    }
    sums
}

// === impl Declared ===

impl Declared {
    pub(super) const fn unborn() -> Self {
        Self { blocks: Vec::new(), retired: None, histograms: Vec::new() }
    }

    pub(super) fn value(&self, word: usize) -> u64 {
        let retired = self.retired.as_ref().map_or(0, |retired| retired[word]);
        self.blocks.iter().map(|lines| block::get(lines, word)).fold(retired, u64::wrapping_add)
    }

    /// Whether the counter at this word ever counted, also if it was reset since.
    pub(super) fn used(&self, word: usize) -> bool {
        self.retired.as_ref().is_some_and(|retired| retired[word] != 0)
            || self.blocks.iter().any(|lines| block::get(lines, word) != 0)
    }

    /// Whether the gauge with this bit was ever written.
    pub(super) fn touched(&self, words: u16, bit: u8) -> bool {
        let last = usize::from(words) - 1;
        let retired = self.retired.as_ref().map_or(0, |retired| retired[last]);
        let marks = self.blocks.iter().map(|lines| block::get(lines, last)).fold(retired, |a, b| a | b);
        marks & (1 << bit) != 0
    }

    fn fold(&mut self, list: &Descriptor) {
        let Shape::Declared { stats, words, gauges, .. } = list.shape else { return };
        let retired = &mut self.retired;
        // `get_mut` is also what makes the last writes of a dead thread visible here.
        self.blocks.retain_mut(|lines| match Arc::get_mut(lines) {
            Some(lines) => {
                let retired = retired.get_or_insert_with(|| vec![0; words.into()].into());
                for stat in stats.iter().filter(|stat| stat.kind == Kind::Counter) {
                    let word = usize::from(stat.slot);
                    retired[word] = retired[word].wrapping_add(block::get(lines, word));
                }
                if gauges > 0 {
                    retired[usize::from(words) - 1] |= block::get(lines, usize::from(words) - 1);
                }
                false
            }
            None => true,
        });
        for histogram in &mut self.histograms {
            let retired = &mut histogram.retired;
            histogram.blocks.retain_mut(|block| match Arc::get_mut(block) {
                Some(block) => {
                    block.sum_into(retired);
                    false
                }
                None => true,
            });
        }
    }

    fn reset_counters(&mut self, list: &Descriptor) {
        let Shape::Declared { stats, words, .. } = list.shape else { return };
        for stat in stats.iter().filter(|stat| stat.kind == Kind::Counter) {
            let word = usize::from(stat.slot);
            let value = self.value(word);
            if value != 0 {
                let retired = self.retired.get_or_insert_with(|| vec![0; words.into()].into());
                retired[word] = retired[word].wrapping_sub(value);
            }
        }
    }
}

// === impl Named ===

impl Named {
    pub(super) fn value(&self) -> u64 {
        self.blocks.iter().map(|line| block::get(&**line, 0)).fold(self.retired, u64::wrapping_add)
    }
}

// === impl HistogramState ===

impl HistogramState {
    fn count(&self) -> u64 {
        self.blocks.iter().map(|block| block.count()).fold(self.retired.total(), u64::wrapping_add)
    }

    fn has_news(&self) -> bool {
        !self.interval.is_empty() || self.count() != self.seen
    }

    fn merge(&mut self) {
        let mut sum = self.retired.clone();
        for block in &self.blocks {
            block.sum_into(&mut sum);
        }
        self.interval = sum.since(&self.cumulative);
        self.seen = sum.total();
        self.cumulative = sum;
    }
}
