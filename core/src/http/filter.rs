//! HTTP filters: two halves, one for each direction, which run at the same time.
//!
//! A filter that can decide at once returns [`Step::Now`] and allocates nothing. One that must
//! wait returns [`Step::Later`] with a future that owns what it needs; awaiting it is Envoy's
//! StopIteration and continueDecoding in one. No future borrows the filter or the stream. When
//! it finishes, `resume` applies what it brought. While one direction waits, the other flows.

use std::any::Any;
use std::cell::{Cell, Ref, RefCell, RefMut};
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use nuncio_api::pb::google::protobuf::Any as ProtoAny;
use tokio::time::Instant;

use super::{Chunk, HeaderMap, LocalReply, RequestHead, ResponseHead};
use crate::error::ConfigError;
use crate::metadata::Metadata;
use crate::net::{ConnectionInfo, OriginalSource};
use crate::stream_info::StreamInfo;

/// What a filter decided.
#[derive(Debug)]
pub enum Verdict {
    /// Go on with the next filter.
    Continue,
    /// Answer the client now. On the encode side before the head was sent it replaces the
    /// response; after it, it resets the stream.
    Respond(Box<LocalReply>),
    /// Collect the body (at most `limit` bytes) before going on; it comes back through
    /// `decode_body` / `encode_body`. Over the limit: the first `limit` bytes if `partial`, else 413
    /// for a request and 500 for a response.
    NeedBody { limit: usize, partial: bool },
}

/// What a filter's future brought; a cast is the filter's own business.
pub type Outcome = Box<dyn Any>;

/// A decision, now or later.
pub enum Step {
    Now(Verdict),
    Later(LocalBoxFuture<'static, Outcome>),
}

impl Step {
    pub const CONTINUE: Self = Self::Now(Verdict::Continue);

    pub fn respond(reply: LocalReply) -> Self {
        Self::Now(Verdict::Respond(Box::new(reply)))
    }

    /// Waits for `future` and hands its output to `resume`.
    pub fn later<T: 'static>(future: impl Future<Output = T> + 'static) -> Self {
        Self::Later(Box::pin(async move { Box::new(future.await) as Outcome }))
    }
}

/// The request half of a filter.
pub trait DecodeFilter {
    fn decode_headers(&mut self, _head: &mut RequestHead, _end: bool, _stream: &StreamControl) -> Step {
        Step::CONTINUE
    }

    fn decode_data(&mut self, _chunk: &mut Chunk<'_>, _end: bool, _stream: &StreamControl) -> Step {
        Step::CONTINUE
    }

    /// What `NeedBody` asked for: once, while the head is still held.
    fn decode_body(
        &mut self,
        _head: &mut RequestHead,
        _body: &mut Vec<u8>,
        _complete: bool,
        _stream: &StreamControl,
    ) -> Step {
        Step::CONTINUE
    }

    fn decode_trailers(&mut self, _trailers: &mut HeaderMap, _stream: &StreamControl) -> Step {
        Step::CONTINUE
    }

    /// Bytes that belong between the body and the trailers: asked once after `decode_trailers`, for filters that
    /// hold some back or make some of the trailers.
    fn decode_tail(&mut self) -> Option<Bytes> {
        None
    }

    /// A `Later` finished. After `decode_data` its verdict is about the parked chunk.
    fn resume(&mut self, _outcome: Outcome, _head: &mut RequestHead, _stream: &StreamControl) -> Step {
        Step::CONTINUE
    }

    /// The stream is over, however it ended; called before `reset`.
    fn on_complete(&mut self, _stream: &StreamControl) {}

    /// Made ready for the next stream of this worker.
    fn reset(&mut self);
}

/// The response half of a filter; the mirror image.
pub trait EncodeFilter {
    fn encode_headers(&mut self, _head: &mut ResponseHead, _end: bool, _stream: &StreamControl) -> Step {
        Step::CONTINUE
    }

    fn encode_data(&mut self, _chunk: &mut Chunk<'_>, _end: bool, _stream: &StreamControl) -> Step {
        Step::CONTINUE
    }

    fn encode_body(
        &mut self,
        _head: &mut ResponseHead,
        _body: &mut Vec<u8>,
        _complete: bool,
        _stream: &StreamControl,
    ) -> Step {
        Step::CONTINUE
    }

    fn encode_trailers(&mut self, _trailers: &mut HeaderMap, _stream: &StreamControl) -> Step {
        Step::CONTINUE
    }

    fn encode_tail(&mut self) -> Option<Bytes> {
        None
    }

    fn resume(&mut self, _outcome: Outcome, _head: &mut ResponseHead, _stream: &StreamControl) -> Step {
        Step::CONTINUE
    }

    fn on_complete(&mut self, _stream: &StreamControl) {}

    fn reset(&mut self);
}

/// One stream's instance of a filter: either half or both.
#[derive(Default)]
pub struct FilterHalves {
    pub decode: Option<Box<dyn DecodeFilter>>,
    pub encode: Option<Box<dyn EncodeFilter>>,
}

/// Makes the halves for one stream after another of its worker; they are recycled through `reset`.
pub type MakeFilter = Box<dyn Fn() -> FilterHalves>;

/// A checked configuration of a filter, shared by all workers.
pub trait HttpFilter: Send + Sync {
    /// The filter on one worker, with what its streams share there: statistics, caches.
    fn on_worker(&self, worker: &crate::extension::WorkerContext) -> MakeFilter;
}

/// Reads a filter's protobuf configuration, on the main thread.
pub trait HttpFilterFactory: Send + Sync {
    /// Envoy's canonical name, e.g. `envoy.filters.http.cors`.
    fn name(&self) -> &'static str;

    /// Full message names (without host) of its configuration and of its per-route configuration.
    fn config_type(&self) -> &'static str;

    fn route_config_type(&self) -> Option<&'static str> {
        None
    }

    fn create(
        &self,
        config: &ProtoAny,
        context: &crate::extension::FactoryContext<'_>,
    ) -> Result<Arc<dyn HttpFilter>, ConfigError>;

    /// What `typed_per_filter_config` holds, as the filter will ask for it in [`StreamControl::route_config`].
    fn create_route_config(
        &self,
        config: &ProtoAny,
        context: &crate::extension::FactoryContext<'_>,
    ) -> Result<Arc<dyn Any + Send + Sync>, ConfigError> {
        let _ = (config, context);
        Err(ConfigError::new("", format!("{} has no per-route configuration", self.name())))
    }
}

/// What filters may know of the route that a stream matched.
pub trait RouteView: Send + Sync {
    fn name(&self) -> &str;
    fn virtual_host_name(&self) -> &str;
    /// `None` for direct responses and redirects, and while it depends on a header.
    fn cluster_name(&self) -> Option<&str>;
    fn metadata(&self) -> &Metadata;
    fn virtual_host_metadata(&self) -> Option<&Metadata> {
        None
    }
    /// Per-filter configurations of that name, the most general (route configuration) first, the
    /// most specific (weighted cluster) last.
    fn filter_configs(&self, filter: &str) -> &[Arc<dyn Any + Send + Sync>];
    /// `disabled: true` for this filter here.
    fn filter_disabled(&self, filter: &str) -> Option<bool>;
}

/// A stream as its filters and their futures see it: a handle that may be cloned and kept.
///
/// Borrows are short and never held across an await.
#[derive(Clone)]
pub struct StreamControl(Rc<StreamState>);

/// What the handle points at. Recycled only if no handle is left outside.
pub struct StreamState {
    pub info: RefCell<StreamInfo>,
    pub connection: RefCell<Option<Rc<ConnectionInfo>>>,
    pub route: RefCell<Option<Arc<dyn RouteView>>>,
    /// A filter asked for the route to be matched again before the next filter runs.
    pub route_cleared: Cell<bool>,
    /// A filter decided about this route, and wants no other: if the route is matched again and differs, the request is
    /// refused.
    pub route_decided: Cell<bool>,
    /// Send to this host (its address) if the cluster has it, whatever the balancer says.
    pub upstream_override: RefCell<Option<Arc<str>>>,
    /// The upstream connection comes from there, whatever the downstream connection's listener says of it.
    pub original_source: Cell<Option<OriginalSource>>,
    /// The upstream saw this body limit instead of the connection's: `per_request_buffer_limit_bytes`.
    pub buffer_limit: Cell<u64>,
    /// When the turn began in which the stream runs now: one look at the clock for all that happens
    /// in it.
    pub now: Cell<Instant>,
    /// Bytes sent must not be altered by later logic (an upgrade or CONNECT).
    pub is_upgrade: Cell<bool>,
    /// The request came as gRPC, whatever filters have made of its head: so are answers of our own.
    pub is_grpc: Cell<bool>,
}

impl StreamControl {
    pub fn new(info: StreamInfo) -> Self {
        let now = info.start;
        Self(Rc::new(StreamState {
            info: RefCell::new(info),
            connection: RefCell::default(),
            route: RefCell::default(),
            route_cleared: Cell::new(false),
            route_decided: Cell::new(false),
            upstream_override: RefCell::default(),
            original_source: Cell::default(),
            buffer_limit: Cell::new(u64::MAX),
            is_upgrade: Cell::new(false),
            is_grpc: Cell::new(false),
            now: Cell::new(now),
        }))
    }

    pub fn info(&self) -> Ref<'_, StreamInfo> {
        self.0.info.borrow()
    }

    pub fn info_mut(&self) -> RefMut<'_, StreamInfo> {
        self.0.info.borrow_mut()
    }

    /// The time of this turn.
    pub fn now(&self) -> Instant {
        self.0.now.get()
    }

    pub fn set_now(&self, now: Instant) {
        self.0.now.set(now);
    }

    pub fn state(&self) -> &StreamState {
        &self.0
    }

    pub fn connection(&self) -> Option<Rc<ConnectionInfo>> {
        self.0.connection.borrow().clone()
    }

    pub fn route(&self) -> Option<Arc<dyn RouteView>> {
        self.0.route.borrow().clone()
    }

    /// The most specific per-filter configuration of the matched route.
    pub fn route_config<T: Any + Send + Sync>(&self, filter: &str) -> Option<Arc<T>> {
        let route = self.0.route.borrow();
        let found = route.as_ref()?.filter_configs(filter).last()?.clone();
        found.downcast().ok()
    }

    /// The route is matched again from the (changed) head before the next filter.
    pub fn clear_route(&self) {
        self.0.route_cleared.set(true);
    }

    /// The state for a next stream, if nobody else still holds this one.
    pub fn recycle(&mut self) -> Option<&mut StreamState> {
        Rc::get_mut(&mut self.0)
    }
}
