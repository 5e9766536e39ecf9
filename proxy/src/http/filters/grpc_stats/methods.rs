//! Counters of gRPC methods under a cluster's name. Callers choose the names, so there is a bound: what
//! comes later is counted for the cluster as a whole.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use nuncio_core::extension::WorkerContext;
use nuncio_core::http::StreamControl;
use nuncio_core::stats::{Kind, NamedCounter, ScopeId};

/// Methods with counters of their own, on each worker.
const MOST_METHODS: usize = 1000;

/// `/package.Service/Method`.
pub(in super::super) fn service_and_method(path: &[u8]) -> Option<(&str, &str)> {
    let path = std::str::from_utf8(path).ok()?;
    let path = path.split(['?', '#']).next()?;
    let (service, method) = path.strip_prefix('/')?.split_once('/')?;
    (!service.is_empty() && !method.is_empty() && !method.contains('/')).then_some((service, method))
}

#[derive(Clone)]
pub(in super::super) struct Methods(Rc<All>);

/// By cluster and name; none is for all methods without a name of their own.
type Known = HashMap<(ScopeId, Option<String>), Rc<Method>>;

struct All {
    worker: WorkerContext,
    /// `grpc` or `grpc-web`.
    protocol: &'static str,
    known: RefCell<Known>,
}

impl Methods {
    pub(in super::super) fn new(worker: &WorkerContext, protocol: &'static str) -> Self {
        Self(Rc::new(All { worker: worker.clone(), protocol, known: RefCell::default() }))
    }

    /// The counters of `name` under the cluster of the stream's route.
    pub(in super::super) fn of(&self, stream: &StreamControl, mut name: Option<String>) -> Option<Rc<Method>> {
        let all = &self.0;
        let route = stream.route()?;
        let scope = all.worker.client.stats_scope(route.cluster_name()?)?;
        let mut known = all.known.borrow_mut();
        if known.len() >= MOST_METHODS && !known.contains_key(&(scope, name.clone())) {
            name = None;
        }
        let method = known.entry((scope, name)).or_insert_with_key(|(scope, name)| {
            let prefix = match name {
                Some(name) => format!("{}.{name}.", all.protocol),
                None => format!("{}.", all.protocol),
            };
            Rc::new(Method { worker: all.worker.clone(), scope: *scope, prefix, counters: RefCell::default() })
        });
        Some(method.clone())
    }
}

/// The counters of one method, each listed once it has counted.
pub(in super::super) struct Method {
    worker: WorkerContext,
    scope: ScopeId,
    prefix: String,
    counters: RefCell<BTreeMap<&'static str, NamedCounter>>,
}

/// Of the statuses that gRPC has.
const STATUSES: [&str; 17] =
    ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15", "16"];

impl Method {
    /// A call ended with this status.
    pub(in super::super) fn charge(&self, status: &[u8]) {
        if let Some(known) = STATUSES.iter().find(|known| known.as_bytes() == status) {
            self.add(known, 1);
        }
        self.add(if status == b"0" { "success" } else { "failure" }, 1);
        self.add("total", 1);
    }

    pub(in super::super) fn requests(&self, count: u64) {
        self.add("request_message_count", count);
    }

    pub(in super::super) fn responses(&self, count: u64) {
        self.add("response_message_count", count);
    }

    fn add(&self, what: &'static str, count: u64) {
        let mut counters = self.counters.borrow_mut();
        let counter = counters
            .entry(what)
            .or_insert_with(|| self.worker.stats.named(self.scope, &format!("{}{what}", self.prefix), Kind::Counter));
        counter.add(count);
    }
}
