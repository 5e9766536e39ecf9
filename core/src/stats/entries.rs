//! What one object counted: the blocks of its writers, and what is left of those that are gone.

use super::block::{self, Line};
use super::codes::CodeBlock;
use super::handle::Born;
use super::histogram::HistogramBlock;
use super::list::{Descriptor, Kind, Shape};
use super::sparse::Sparse;
use std::sync::Arc;

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

/// Most of these lists stay at one or two: room for four in each would be half a kilobyte a cluster.
fn push_exact<T>(list: &mut Vec<T>, item: T) {
    list.reserve_exact(1);
    list.push(item);
}

// === impl Entries ===

impl Entries {
    pub(super) fn entry(&mut self, list: &'static Descriptor) -> &mut State {
        let at = self.lists.iter().position(|entry| entry.list.is(list)).unwrap_or_else(|| {
            push_exact(&mut self.lists, Entry { list, state: State::new(list) });
            self.lists.len() - 1
        });
        &mut self.lists[at].state
    }

    pub(super) fn accept(&mut self, what: Born) {
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

    pub(super) fn fold(&mut self) {
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

    pub(super) fn reset_counters(&mut self) {
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
    pub(super) fn has_news(&self) -> bool {
        match &self.state {
            State::Declared(declared) => declared.histograms.iter().any(HistogramState::has_news),
            State::Codes { .. } => false,
        }
    }

    pub(super) fn merge_histograms(&mut self) {
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
