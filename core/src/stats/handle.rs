//! What a worker's objects hold: handles that count without a lock, a name or a shared write.
//!
//! Everything here is `!Send`: a block has one writer, and the compiler keeps it so. Gauges are guards, because in async
//! code every await may be the end: what was added is taken back on drop, on the thread that added it.

use super::block::{self, Line};
use super::codes::CodeBlock;
use super::histogram::HistogramBlock;
use super::list::{Counter, Descriptor, Gauge, Histogram, Kind, List};
use super::store::ScopeId;
use std::cell::OnceCell;
use std::fmt;
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::Arc;

/// A block came into being on a worker: main keeps a clone to read it. Carried by whatever channel leads to main.
#[derive(Debug)]
pub struct Birth {
    pub(super) scope: ScopeId,
    pub(super) what: Born,
}

#[derive(Debug)]
pub(super) enum Born {
    Words(&'static Descriptor, Arc<[Line]>),
    Histogram(&'static Descriptor, u16, Arc<HistogramBlock>),
    Codes(&'static Descriptor, Arc<CodeBlock>),
    Named(Arc<str>, Kind, Arc<[Line; 1]>),
}

/// One thread's way to tell main of births.
pub struct WorkerStats {
    births: Box<dyn Fn(Birth)>,
}

impl WorkerStats {
    /// `births` is called at each first count of an object and must hand the birth to main's [`Store`](super::Store);
    /// it may drop it when main is gone.
    pub fn new(births: impl Fn(Birth) + 'static) -> Rc<Self> {
        Rc::new(Self { births: Box::new(births) })
    }

    pub(super) fn born(&self, scope: ScopeId, what: Born) {
        (self.births)(Birth { scope, what });
    }

    /// A counter or gauge whose name is only known at run time (a gRPC method, a zone): call once and keep the handle,
    /// this allocates. The caller bounds how many names a peer can make.
    pub fn named(&self, scope: ScopeId, name: &str, kind: Kind) -> NamedCounter {
        let line = Arc::new([Line::zero()]);
        self.born(scope, Born::Named(Arc::from(name), kind, line.clone()));
        NamedCounter { line, not_send: PhantomData }
    }
}

impl fmt::Debug for WorkerStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WorkerStats")
    }
}

/// One object's stats of one list on one thread. Costs nothing but itself until the first count.
pub struct Stats<L: List> {
    worker: Rc<WorkerStats>,
    scope: ScopeId,
    lines: OnceCell<Arc<L::Lines>>,
    histograms: L::Histograms,
    prefix: u8,
}

impl<L: List> Stats<L> {
    pub fn new(worker: &Rc<WorkerStats>, scope: ScopeId) -> Self {
        Self::under(worker, scope, 0)
    }

    /// For a list with several prefixes: under the `prefix`-th of them.
    pub fn under(worker: &Rc<WorkerStats>, scope: ScopeId, prefix: u8) -> Self {
        assert!(usize::from(prefix) < L::descriptors().len(), "a prefix of the list");
        Self { worker: worker.clone(), scope, lines: OnceCell::new(), histograms: L::histograms(), prefix }
    }

    pub fn scope(&self) -> ScopeId {
        self.scope
    }

    /// Whose thread it counts on.
    pub fn worker(&self) -> &Rc<WorkerStats> {
        &self.worker
    }

    /// Something was counted already.
    pub fn is_born(&self) -> bool {
        self.lines.get().is_some()
    }

    #[inline]
    pub fn inc(&self, counter: Counter<L>) {
        self.add(counter, 1);
    }

    #[inline]
    pub fn add(&self, counter: Counter<L>, n: u64) {
        block::add(self.lines(), counter.slot.into(), n);
    }

    /// One more in the gauge, until the guard is dropped.
    #[inline]
    pub fn gauge(&self, gauge: Gauge<L>) -> GaugeGuard<L> {
        let lines = self.touch(gauge);
        block::add((**lines).as_ref(), gauge.slot.into(), 1);
        GaugeGuard { lines: lines.clone(), slot: gauge.slot, not_send: PhantomData }
    }

    /// A share of the gauge that its owner moves as it likes (bytes buffered), until the guard is dropped.
    #[inline]
    pub fn amount(&self, gauge: Gauge<L>) -> AmountGuard<L> {
        AmountGuard { lines: self.touch(gauge).clone(), slot: gauge.slot, amount: 0, not_send: PhantomData }
    }

    /// For an object of which this thread has the only handle (main's): the gauge is this value from now on. Do not mix
    /// with guards of the same gauge.
    #[inline]
    pub fn set(&self, gauge: Gauge<L>, value: u64) {
        block::set((**self.touch(gauge)).as_ref(), gauge.slot.into(), value);
    }

    #[inline]
    pub fn record(&self, histogram: Histogram<L>, value: u64) {
        let cell = &self.histograms.as_ref()[usize::from(histogram.slot)];
        cell.get_or_init(|| self.histogram_born(histogram.slot)).record(value);
    }

    #[inline]
    fn lines(&self) -> &[Line] {
        (**self.lines.get_or_init(|| self.born())).as_ref()
    }

    #[inline]
    fn touch(&self, gauge: Gauge<L>) -> &Arc<L::Lines> {
        let lines = self.lines.get_or_init(|| self.born());
        block::mark((**lines).as_ref(), L::WORDS - 1, 1 << gauge.bit);
        lines
    }

    #[cold]
    #[inline(never)]
    fn born(&self) -> Arc<L::Lines> {
        let lines = L::lines();
        self.worker.born(self.scope, Born::Words(self.descriptor(), L::erase(lines.clone())));
        lines
    }

    #[cold]
    #[inline(never)]
    fn histogram_born(&self, slot: u16) -> Arc<HistogramBlock> {
        let block = Arc::new(HistogramBlock::default());
        self.worker.born(self.scope, Born::Histogram(self.descriptor(), slot, block.clone()));
        block
    }

    fn descriptor(&self) -> &'static Descriptor {
        &L::descriptors()[usize::from(self.prefix)]
    }
}

impl<L: List> fmt::Debug for Stats<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stats").field("scope", &self.scope).field("born", &self.lines.get().is_some()).finish()
    }
}

/// One unit in a gauge; dropping it takes the unit back. It outlives the object it counts for, if it must.
#[must_use = "dropping the guard takes the unit back at once"]
pub struct GaugeGuard<L: List> {
    lines: Arc<L::Lines>,
    slot: u16,
    not_send: PhantomData<*const ()>,
}

impl<L: List> Drop for GaugeGuard<L> {
    #[inline]
    fn drop(&mut self) {
        block::add((*self.lines).as_ref(), self.slot.into(), 1u64.wrapping_neg());
    }
}

impl<L: List> fmt::Debug for GaugeGuard<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GaugeGuard")
    }
}

/// A share of a gauge; dropping it takes the whole share back.
#[must_use = "dropping the guard takes the share back at once"]
pub struct AmountGuard<L: List> {
    lines: Arc<L::Lines>,
    slot: u16,
    amount: u64,
    not_send: PhantomData<*const ()>,
}

impl<L: List> AmountGuard<L> {
    pub fn get(&self) -> u64 {
        self.amount
    }

    #[inline]
    pub fn set(&mut self, amount: u64) {
        if amount != self.amount {
            block::add((*self.lines).as_ref(), self.slot.into(), amount.wrapping_sub(self.amount));
            self.amount = amount;
        }
    }
}

impl<L: List> Drop for AmountGuard<L> {
    #[inline]
    fn drop(&mut self) {
        self.set(0);
    }
}

impl<L: List> fmt::Debug for AmountGuard<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AmountGuard({})", self.amount)
    }
}

/// A counter or gauge with a name of its own; see [`WorkerStats::named`].
#[derive(Debug)]
pub struct NamedCounter {
    line: Arc<[Line; 1]>,
    not_send: PhantomData<*const ()>,
}

impl NamedCounter {
    #[inline]
    pub fn inc(&self) {
        self.add(1);
    }

    #[inline]
    pub fn add(&self, n: u64) {
        block::add(&*self.line, 0, n);
    }

    /// For gauges: takes back what `add` gave.
    #[inline]
    pub fn sub(&self, n: u64) {
        block::add(&*self.line, 0, n.wrapping_neg());
    }
}
