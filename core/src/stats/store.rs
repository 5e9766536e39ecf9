//! All stats, on main: scopes, the blocks that workers count in, and what is left of blocks that are gone.
//!
//! A scope is an object with stats (a cluster, a listener): its kind, its name and the blocks born so far. An idle scope
//! has no blocks and costs 40 bytes and its entry in the index. Nothing else is kept by name.

use super::entries::{Entries, Entry};
use super::handle::{Birth, WorkerStats};
use super::list::{Descriptor, Scope, sanitize};
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

impl Slot {
    fn entries_mut(&mut self) -> &mut Entries {
        Arc::make_mut(self.entries.get_or_insert_default())
    }
}
