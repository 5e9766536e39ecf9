//! The HTTP connection manager: the network filter that turns bytes into streams and runs HTTP
//! filters (`envoy.filters.network.http_connection_manager`).
//!
//! - [`config`]: its checked configuration · [`factory`]: from protobuf
//! - [`detect`]: which protocol a client speaks · [`connection`], [`connection_http2`]: its connection
//! - [`stream`]: one request and its response · [`stream_task`]: the task of one on HTTP/2
//! - [`account`]: what connections count
//! - [`filter_chain`]: a stream's filters · [`hygiene`]: whose headers are trusted
//! - [`early_mutation`]: what is changed before that · [`origin`]: where a request comes from
//! - [`path`]: the one normaliser of paths
//! - [`host`]: hosts without port or dot
//! - [`proxy_status`]: what went wrong, told to the client
//! - `worker_filters`: the filters of a manager on a worker
//! - [`local_reply`]: answers of the proxy's own, [`local_reply_config`] what becomes of them · [`date`]: the `date` header

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use nuncio_core::access_log::{AccessLog, LogContext};
use nuncio_core::http::{LocalReply, RequestHead, RouteView, StreamControl};
use nuncio_core::runtime::Runtime;
use nuncio_core::stats::Stats;
use nuncio_core::stats::lists::http::{self as stat, Hcm, HcmFailures, HcmTimes, Router as RouterList};
use nuncio_core::stats::lists::http2::Codec as Http2Codec;
use nuncio_core::stats::lists::listener::{self as listener_stat, ListenerHttp};
use tokio::task::AbortHandle;

use crate::codec::http1::ServerOptions;
use crate::codec::http2;
use crate::http::discovered::Discovered;
use crate::http::router::{Route, Scratch, VhostStatsMap};
use crate::network::{Connection, TerminalFilter, TerminalFilterConfig};
use crate::upstream::Worker;

pub mod account;
pub mod client_cert;
pub mod config;
pub mod connection;
pub mod connection_http2;
pub mod date;
pub mod detect;
pub mod down;
pub mod early_mutation;
pub mod factory;
pub mod filter_chain;
pub mod host;
pub mod hygiene;
pub mod local_reply;
pub mod local_reply_config;
pub mod origin;
pub mod path;
pub mod proxy_status;
pub mod stream;
pub mod stream_task;
pub mod upgrade;
mod worker_filters;

pub use factory::SUPPORTED;

use config::{Config, ConfiguredFilter};
use detect::ClientConnection;
use path::Normalized;
use stream::ActiveStream;
use worker_filters::WorkerFilters;

/// How many finished streams a worker keeps per manager for reuse.
const KEEP_STREAMS: usize = 256;

/// One connection manager on one worker.
pub struct HttpConnectionManager {
    pub config: Arc<Config>,
    filters: WorkerFilters,
    pub worker: Rc<Worker>,
    pub stats: Stats<Hcm>,
    pub times: Stats<HcmTimes>,
    pub failures: Stats<HcmFailures>,
    pub router: Stats<RouterList>,
    listener: Stats<ListenerHttp>,
    pub loggers: Vec<Box<dyn AccessLog>>,
    pub upstream_loggers: Vec<Box<dyn AccessLog>>,
    pub date: date::DateCache,
    pub codec_options: Rc<ServerOptions>,
    pub http2_options: Rc<http2::ServerOptions>,
    pub http2: Stats<Http2Codec>,
    pub runtime: Rc<dyn Runtime>,
    /// Boxed, since a record is large and goes from hand to hand.
    #[allow(clippy::vec_box)]
    free: RefCell<Vec<Box<ActiveStream>>>,
    /// Taken and given back, since a formatter may come to another.
    scratch: Cell<Option<Box<Scratch>>>,
    /// Of virtual clusters and routes.
    pub vhosts: VhostStatsMap,
}

impl HttpConnectionManager {
    /// A stream record, new or used before.
    pub fn take_stream(&self) -> Box<ActiveStream> {
        self.free.borrow_mut().pop().unwrap_or_else(|| Box::new(ActiveStream::new(self)))
    }

    /// Takes a record back: counts and logs the stream if there was one.
    pub fn give_stream(&self, mut stream: Box<ActiveStream>) {
        stream.complete(self);
        let mut free = self.free.borrow_mut();
        if free.len() < KEEP_STREAMS {
            free.push(stream);
        }
    }

    /// Which filters of the list the route switches off (or, of those that are off by default, does not switch
    /// on): a bit for each position.
    pub fn disabled_filters(&self, list: usize, route: Option<&Route>) -> u64 {
        let mut bits = 0;
        for (position, filter) in self.config.filters[list].iter().enumerate().take(64) {
            let disabled = match route {
                None => filter.disabled,
                Some(route) => match route.filter_disabled(&filter.name) {
                    Some(disabled) => disabled,
                    // A configuration for this route switches the filter on.
                    None => filter.disabled && route.filter_configs(&filter.name).is_empty(),
                },
            };
            bits |= u64::from(disabled) << position;
        }
        bits
    }

    /// What no filter and no route may see: refused before anything else.
    pub fn check_request(&self, head: &mut RequestHead) -> Option<LocalReply> {
        if head.path().is_some_and(|path| path.first() != Some(&b'/')) {
            self.failures.inc(stat::DOWNSTREAM_RQ_NON_RELATIVE_PATH);
            return Some(LocalReply::new(404, "absolute_path_rejected"));
        }
        self.normalize_path(head)
    }

    /// The operator's changes, before anything is made of the head.
    pub fn mutate_early(&self, head: &mut RequestHead, control: &StreamControl) {
        let mutations = &self.config.early_mutations;
        if !mutations.is_empty() {
            self.with_scratch(control, |context, scratch| mutations.apply(head, context, scratch.values_mut()));
        }
    }

    /// Runs `apply` with what formatters may know of the stream, and the worker's scratch for values.
    pub fn with_scratch<T>(
        &self,
        control: &StreamControl,
        apply: impl FnOnce(&LogContext<'_>, &mut Scratch) -> T,
    ) -> T {
        let mut scratch = self.scratch.take().unwrap_or_default();
        let connection = control.connection();
        let route = control.route();
        let info = control.info();
        let context = LogContext {
            connection: connection.as_deref(),
            route: route.as_deref(),
            rng: Some(&self.worker.context.rng),
            ..LogContext::new(&info)
        };
        let result = apply(&context, &mut scratch);
        self.scratch.set(Some(scratch));
        result
    }

    fn normalize_path(&self, head: &mut RequestHead) -> Option<LocalReply> {
        let path = head.path()?;
        if path.contains(&b'#') {
            // As Envoy: a fragment is the client's own, and readers behind us would not agree on what it is.
            return Some(LocalReply::new(400, "path_normalization_failed"));
        }
        match self.config.path.apply(path) {
            Normalized::Unchanged => None,
            Normalized::Changed(clean) => {
                let clean = clean.into_owned();
                head.headers.set(":path", &clean);
                None
            }
            Normalized::Rejected => {
                self.failures.inc(stat::DOWNSTREAM_RQ_FAILED_PATH_NORMALIZATION);
                Some(LocalReply::new(400, "path_normalization_failed"))
            }
            Normalized::Redirect(clean) => {
                self.failures.inc(stat::DOWNSTREAM_RQ_REDIRECTED_WITH_NORMALIZED_PATH);
                Some(LocalReply::new(307, "path_normalization_failed").header("location", clean))
            }
        }
    }

    /// A 100 on its way is a response of its own in the counters.
    pub fn count_interim(&self) {
        self.stats.inc(stat::DOWNSTREAM_RQ_COMPLETED);
        self.listener.inc(listener_stat::DOWNSTREAM_RQ_COMPLETED);
        self.stats.inc(stat::DOWNSTREAM_RQ_1XX);
        self.listener.inc(listener_stat::DOWNSTREAM_RQ_1XX);
    }

    /// As Envoy: checks of others are not responses in the counters.
    pub fn count_response(&self, status: u16, took: Duration, is_health_check: bool) {
        self.times.record(stat::DOWNSTREAM_RQ_TIME, took.as_millis() as u64);
        if is_health_check {
            return;
        }
        self.stats.inc(stat::DOWNSTREAM_RQ_COMPLETED);
        self.listener.inc(listener_stat::DOWNSTREAM_RQ_COMPLETED);
        let class = match status / 100 {
            1 => Some((stat::DOWNSTREAM_RQ_1XX, listener_stat::DOWNSTREAM_RQ_1XX)),
            2 => Some((stat::DOWNSTREAM_RQ_2XX, listener_stat::DOWNSTREAM_RQ_2XX)),
            3 => Some((stat::DOWNSTREAM_RQ_3XX, listener_stat::DOWNSTREAM_RQ_3XX)),
            4 => Some((stat::DOWNSTREAM_RQ_4XX, listener_stat::DOWNSTREAM_RQ_4XX)),
            5 => Some((stat::DOWNSTREAM_RQ_5XX, listener_stat::DOWNSTREAM_RQ_5XX)),
            _ => None,
        };
        if let Some((manager, listener)) = class {
            self.stats.inc(manager);
            self.listener.inc(listener);
        }
    }
}

/// The worker's end of the network filter.
struct Filter(Rc<HttpConnectionManager>);

impl TerminalFilter for Filter {
    fn serve(&self, connection: Connection) -> AbortHandle {
        let id = connection.info.id;
        self.0.worker.spawn(id, ClientConnection::new(connection, self.0.clone()))
    }
}

/// The shared configuration as listeners hold it.
pub struct Handle(Arc<Config>);

impl TerminalFilterConfig for Handle {
    /// Each a [`Discovered`].
    fn awaits(&self) -> Vec<Arc<dyn Any + Send + Sync>> {
        let filters = self.0.filters.iter().flatten().filter_map(ConfiguredFilter::discovered);
        let filters = filters.map(|filter| Discovered::Filter(filter.clone()));
        let all = self.0.routes.discovered().into_iter().chain(filters);
        all.map(|discovered| Arc::new(discovered) as Arc<dyn Any + Send + Sync>).collect()
    }

    fn instantiate(&self, worker: &Rc<Worker>) -> Rc<dyn TerminalFilter> {
        let config = self.0.clone();
        let stats = &worker.context.stats;
        Rc::new(Filter(Rc::new(HttpConnectionManager {
            stats: Stats::new(stats, config.scopes.http),
            times: Stats::new(stats, config.scopes.http),
            failures: Stats::new(stats, config.scopes.http),
            router: Stats::new(stats, config.scopes.http),
            listener: Stats::new(stats, config.scopes.listener),
            loggers: config.access_logs.iter().map(|log| log.instantiate(&worker.context)).collect(),
            upstream_loggers: config.upstream_logs.iter().map(|log| log.instantiate(&worker.context)).collect(),
            filters: WorkerFilters::new(&config.filters, worker),
            date: date::DateCache::default(),
            codec_options: Rc::new(config.codec.clone()),
            http2_options: Rc::new(config.http2.clone()),
            http2: Stats::new(stats, config.scopes.http2),
            runtime: worker.context.runtime.clone(),
            free: RefCell::default(),
            scratch: Cell::default(),
            vhosts: VhostStatsMap::default(),
            worker: worker.clone(),
            config,
        })))
    }
}
