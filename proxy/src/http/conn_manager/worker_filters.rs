//! The filters of one connection manager on one worker: made once, but for those whose configuration comes by itself,
//! which are made again whenever it did.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use nuncio_core::http::{HttpFilter, MakeFilter};

use super::config::{ConfiguredFilter, FilterSource};
use super::filter_chain::{DecodeChain, EncodeChain};
use crate::http::ecds::DiscoveredFilter;
use crate::upstream::Worker;

/// Its lists of filters, as in the configuration.
pub struct WorkerFilters {
    lists: RefCell<Vec<Vec<OnWorker>>>,
    /// Those that come by themselves; mostly none.
    discovered: Vec<Arc<DiscoveredFilter>>,
    /// Of what is in `lists`.
    version: Cell<u64>,
    worker: Rc<Worker>,
}

struct OnWorker {
    make: MakeFilter,
    discovered: Option<(Arc<DiscoveredFilter>, u64)>,
}

impl OnWorker {
    fn new(source: &FilterSource, worker: &Worker) -> Self {
        match source {
            FilterSource::Given(filter) => Self { make: filter.on_worker(&worker.context), discovered: None },
            FilterSource::Discovered(filter) => {
                // Before the configuration, so that one which comes meanwhile is not missed.
                let version = filter.version();
                Self { make: filter.on_worker(&worker.context), discovered: Some((filter.clone(), version)) }
            }
        }
    }

    fn refresh(&mut self, worker: &Worker) {
        if let Some((filter, version)) = &self.discovered
            && filter.version() != *version
        {
            *self = Self::new(&FilterSource::Discovered(filter.clone()), worker);
        }
    }
}

impl WorkerFilters {
    pub fn new(lists: &[Vec<ConfiguredFilter>], worker: &Rc<Worker>) -> Self {
        let discovered = lists.iter().flatten().filter_map(ConfiguredFilter::discovered).cloned().collect();
        let made = |list: &Vec<ConfiguredFilter>| list.iter().map(|f| OnWorker::new(&f.config, worker)).collect();
        let lists = RefCell::new(lists.iter().map(made).collect());
        Self { lists, discovered, version: Cell::new(0), worker: worker.clone() }
    }

    /// Filters that were made at another version have a configuration that is not in use any more.
    pub fn version(&self) -> u64 {
        self.discovered.iter().map(|filter| filter.version()).sum()
    }

    /// One stream's filters, of one of the lists: both directions, each in the order it runs.
    pub fn instantiate(&self, list: usize) -> (DecodeChain, EncodeChain) {
        let version = self.version();
        if self.version.replace(version) != version {
            self.lists.borrow_mut().iter_mut().flatten().for_each(|filter| filter.refresh(&self.worker));
        }
        let mut decode = DecodeChain::default();
        let mut encode = EncodeChain::default();
        for (position, filter) in (0u8..).zip(&self.lists.borrow()[list]) {
            let halves = (filter.make)();
            if let Some(half) = halves.decode {
                decode.push(position, half);
            }
            if let Some(half) = halves.encode {
                encode.push(position, half);
            }
        }
        encode.reverse();
        (decode, encode)
    }
}
