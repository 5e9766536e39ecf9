//! What the tests of this room share: an authorization service that says what it was told to, and the world around a
//! filter.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::future::LocalBoxFuture;
use nuncio_api::pb::envoy::config::core::v3::Node;
use nuncio_api::prost::{Message, Name};
use nuncio_api::{Format, LoadOptions, Source, load_message};
use nuncio_core::access_log::{LogContext, LogFile, LogFiles, LogTarget, TextFormat, TextFormats};
use nuncio_core::error::ConfigError;
use nuncio_core::extension::{FactoryContext, NoVitals, WorkerContext};
use nuncio_core::http::ResponseHead;
use nuncio_core::random::Rng;
use nuncio_core::runtime::{FractionalPercent, Runtime};
use nuncio_core::stats::{Birth, Scope, ScopeId, Store, WorkerStats};
use nuncio_core::time::WallClock;
use nuncio_core::upstream::{AsyncClient, AsyncFailure, AsyncRequest, AsyncResponse};

/// What the service was asked, and what it will answer. Without an answer a check waits for ever.
#[derive(Default)]
pub(crate) struct Service {
    pub(crate) asked: RefCell<Vec<(String, AsyncRequest)>>,
    pub(crate) answers: RefCell<VecDeque<Result<AsyncResponse, AsyncFailure>>>,
    /// Of the cluster `b`.
    scope: RefCell<Option<ScopeId>>,
}

struct Calls(Rc<Service>);

impl AsyncClient for Calls {
    fn call(
        &self,
        cluster: &str,
        request: AsyncRequest,
    ) -> LocalBoxFuture<'static, Result<AsyncResponse, AsyncFailure>> {
        self.0.asked.borrow_mut().push((cluster.to_owned(), request));
        match self.0.answers.borrow_mut().pop_front() {
            Some(answer) => Box::pin(async { answer }),
            None => Box::pin(std::future::pending()),
        }
    }

    fn stats_scope(&self, cluster: &str) -> Option<ScopeId> {
        self.0.scope.borrow().filter(|_| cluster == "b")
    }
}

/// A successful gRPC answer.
pub(crate) fn grpc(message: &impl Message) -> Result<AsyncResponse, AsyncFailure> {
    let mut body = BytesMut::new();
    body.put_u8(0);
    body.put_u32(message.encoded_len() as u32);
    message.encode_raw(&mut body);
    let trailers = Some([("grpc-status", "0")].into_iter().collect());
    Ok(AsyncResponse { head: ResponseHead::new(200), body: body.freeze(), trailers })
}

/// An HTTP answer.
pub(crate) fn http(status: u16, fields: &[(&str, &str)], body: &'static str) -> Result<AsyncResponse, AsyncFailure> {
    let mut head = ResponseHead::new(status);
    head.headers = fields.iter().copied().collect();
    Ok(AsyncResponse { head, body: Bytes::from_static(body.as_bytes()), trailers: None })
}

/// A message from YAML.
pub(crate) fn message<M: Message + Name + Default>(yaml: &str) -> M {
    let source = Source::text("test", Format::Yaml, yaml.to_owned());
    load_message::<M>(source, &LoadOptions::default()).unwrap_or_else(|problems| panic!("{problems:#?}")).message
}

struct Formats;

struct Request(String);

impl TextFormats for Formats {
    fn compile(&self, text: &str) -> Result<Arc<dyn TextFormat>, ConfigError> {
        Ok(Arc::new(Request(text.to_owned())))
    }
}

/// Knows `%REQ(x)%` as the whole text, and nothing else.
impl TextFormat for Request {
    fn append(&self, context: &LogContext<'_>, out: &mut Vec<u8>) {
        match self.0.strip_prefix("%REQ(").and_then(|rest| rest.strip_suffix(")%")) {
            Some(name) => {
                out.extend_from_slice(context.request.and_then(|head| head.headers.get(name)).unwrap_or_default());
            }
            None => out.extend_from_slice(self.0.as_bytes()),
        }
    }
}

struct NoFiles;

impl LogFiles for NoFiles {
    fn open(&self, _target: &LogTarget) -> Result<Arc<dyn LogFile>, ConfigError> {
        Err(ConfigError::new("", "no files here"))
    }
}

struct Keys(Vec<&'static str>);

impl Runtime for Keys {
    fn fraction(&self, _key: &str) -> Option<FractionalPercent> {
        None
    }

    fn integer(&self, _key: &str) -> Option<u64> {
        None
    }

    fn boolean(&self, key: &str) -> Option<bool> {
        self.0.contains(&key).then_some(true)
    }
}

/// One main thread and one worker.
pub(crate) struct World {
    pub(crate) store: RefCell<Store>,
    pub(crate) service: Rc<Service>,
    births: Rc<RefCell<Vec<Birth>>>,
    pub(crate) worker: WorkerContext,
}

impl World {
    /// The runtime keys that are set.
    pub(crate) fn new(keys: &[&'static str]) -> Self {
        static CLUSTER: Scope = Scope { root: "cluster.", lists: &[] };
        let mut store = Store::new();
        let service = Rc::new(Service::default());
        service.scope.replace(Some(store.scope(&CLUSTER, &"b".into())));
        let births = Rc::<RefCell<Vec<Birth>>>::default();
        let to_main = births.clone();
        let worker = WorkerContext {
            index: Some(0),
            rng: Rng::with_seed(1),
            clock: WallClock::System,
            stats: WorkerStats::new(move |birth| to_main.borrow_mut().push(birth)),
            client: Rc::new(Calls(service.clone())),
            runtime: Rc::new(Keys(keys.to_vec())),
            vitals: Rc::new(NoVitals),
        };
        Self { store: RefCell::new(store), service, births, worker }
    }

    /// Runs `read` as if a configuration was read for a filter called `f`.
    pub(crate) fn configure<T>(&self, read: impl FnOnce(&FactoryContext<'_>) -> T) -> T {
        let node: Node = message("{metadata: {lab: {app: x, n: 1}}}");
        read(&FactoryContext {
            name: "f",
            stat_prefix: "in",
            has_cluster: &|_| true,
            warnings: &RefCell::default(),
            node: &Arc::new(node),
            stats: &self.store,
            log_files: &NoFiles,
            formats: &Formats,
            scopes: &RefCell::default(),
        })
    }

    pub(crate) fn stat(&self, name: &str) -> Option<u64> {
        let mut store = self.store.borrow_mut();
        self.births.take().into_iter().for_each(|birth| store.accept(birth));
        store.value(name)
    }

    pub(crate) fn answer(&self, answer: Result<AsyncResponse, AsyncFailure>) {
        self.service.answers.borrow_mut().push_back(answer);
    }
}
