//! The statistics of the whole proxy: one block per object, stats list and worker, born at the first increment.
//!
//! A list (`list`, `lists`) declares names once, with [`stats!`](crate::stats!); it costs nothing per object. An object
//! on a worker holds a [`Stats`] per list (`handle`): a count is a plain load and store into a block (`block`) that only
//! this worker writes. At its birth a clone of the block goes to main, where the `store` keeps it under the object's
//! scope, sums over the workers, and folds in what dead writers left. Who wants to read everything (admin, sinks) takes
//! a `view`, which may be carried to another thread. `histogram` and `codes` are blocks of another shape: log-linear
//! buckets, and one counter for each HTTP status code. `sparse` holds sums of both.
//!
//! ```text
//! worker: Stats<L> ── first count ──► Birth ──► main: Store ── view() ──► View ──► text, JSON, Prometheus, sinks
//! ```

mod block;
mod codes;
mod entries;
mod handle;
mod histogram;
mod list;
pub mod lists;
mod sparse;
mod store;
mod view;

pub use block::{Line, lines_for};
pub use codes::{CodeStats, Codes};
pub use handle::{AmountGuard, Birth, GaugeGuard, NamedCounter, Stats, WorkerStats};
pub use histogram::{Bucket, Buckets, DEFAULT_BUCKETS, HistogramBlock, QUANTILES};
pub use list::{Counter, Descriptor, Gauge, Histogram, Kind, List, Scope, Shape, Stat, Unit, sanitize};
#[doc(hidden)]
pub use list::{gauges_before, histograms_in, lowercase, slot_of};
pub use sparse::Sparse;
pub use store::{ScopeId, Store};
pub use view::{Address, HistogramValue, ScopeView, Value, View};

#[cfg(test)]
mod tests;
