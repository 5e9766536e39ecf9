//! Admin over HTTP/1.1: connections, their limits, and the headers that every answer has.
//!
//! An admin listener is asked by people, probes and scrapers, and sometimes by somebody who should not. None of them
//! may hold anything for long: heads are bounded in size and time, bodies in size, connections in number (the one whose
//! last request is longest ago makes room for a new one), answers that are rendered elsewhere in number and in the time
//! that they wait for their reader. What exceeds that is answered or closed; the proxy's traffic runs on other threads.

use std::cell::Cell;
use std::convert::Infallible;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, Method, StatusCode, Version, header};
use hyper::body::{Body as _, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use nuncio_core::access_log::AccessLog;
use nuncio_core::net::{Accept, Connected, ConnectionInfo};
use nuncio_core::time::WallClock;
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::answer::Body;
use super::chunks::{ChunkedBody, Chunks, Patience};
use super::hyper_io::{HyperClock, HyperIo};
use super::log_record::LogRecord;
use super::{Admin, AdminStats, Answer, ContentType, Query, Request};
use crate::calendar::Date;
use crate::upstream::worker::ConnectionIds;

/// What an admin listener grants its clients.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub connections: usize,
    /// From a connection's start, or the end of the last answer, to the end of the next head.
    pub head: Duration,
    pub head_bytes: usize,
    pub body_bytes: usize,
    /// Answers rendered at a time; others wait for their turn as long as `render_pause`.
    pub rendering: usize,
    /// How long the rendering of an answer waits for its reader at once …
    pub render_pause: Duration,
    /// … and altogether.
    pub render_total: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 128,
            head: Duration::from_secs(60),
            head_bytes: 60 * 1024,
            body_bytes: 64 * 1024,
            rendering: 4,
            render_pause: Duration::from_secs(10),
            render_total: Duration::from_secs(60),
        }
    }
}

/// What an admin listener works with.
pub struct Settings {
    pub limits: Limits,
    pub clock: WallClock,
    pub stats: AdminStats,
    pub logs: Vec<Box<dyn AccessLog>>,
    pub connection_ids: ConnectionIds,
}

/// Answers requests that arrive at `listener` until the returned task is aborted.
pub fn serve(listener: Box<dyn Accept>, admin: Rc<Admin>, settings: Settings) -> AbortHandle {
    let Settings { limits, clock, stats, logs, connection_ids } = settings;
    let rendering = Arc::new(Semaphore::new(limits.rendering));
    let server = Rc::new(Server { admin, limits, clock, stats, logs: logs.into(), connection_ids, rendering });
    tokio::task::spawn_local(accept(listener, server)).abort_handle()
}

struct Server {
    admin: Rc<Admin>,
    limits: Limits,
    clock: WallClock,
    stats: AdminStats,
    logs: Rc<[Box<dyn AccessLog>]>,
    connection_ids: ConnectionIds,
    rendering: Arc<Semaphore>,
}

/// The open connections, to choose from when there are too many.
#[derive(Default)]
struct Open(Vec<(Rc<Cell<Instant>>, AbortHandle)>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.iter().for_each(|(_, task)| task.abort());
    }
}

async fn accept(mut listener: Box<dyn Accept>, server: Rc<Server>) {
    let mut open = Open::default();
    loop {
        let connected = match std::future::poll_fn(|cx| listener.poll_accept(cx)).await {
            Ok(connected) => connected,
            Err(error) => {
                // Out of descriptors, mostly: it passes, or it would fail at once again.
                tracing::warn!("the admin listener cannot accept: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        open.0.retain(|(_, task)| !task.is_finished());
        if open.0.len() >= server.limits.connections {
            let oldest = (0..open.0.len()).min_by_key(|at| open.0[*at].0.get());
            if let Some(at) = oldest {
                open.0.swap_remove(at).1.abort();
            }
        }
        let asked = Rc::new(Cell::new(Instant::now()));
        let task = tokio::task::spawn_local(connection(connected, server.clone(), asked.clone()));
        open.0.push((asked, task.abort_handle()));
    }
}

async fn connection(connected: Connected, server: Rc<Server>, asked: Rc<Cell<Instant>>) {
    let _counts = server.stats.connection();
    let Connected { io, local, remote } = connected;
    let local = local.unwrap_or_else(|| remote.clone());
    let info = Rc::new(ConnectionInfo::new(server.connection_ids.next(), remote, local));
    let service = service_fn(|request| {
        asked.set(Instant::now());
        respond(server.clone(), info.clone(), request)
    });
    let result = http1::Builder::new()
        .timer(HyperClock)
        .header_read_timeout(server.limits.head)
        .max_buf_size(server.limits.head_bytes)
        .auto_date_header(false)
        .serve_connection(HyperIo::new(io, server.limits.render_pause), service)
        .await;
    if let Err(error) = result {
        tracing::debug!("admin connection ended: {error}");
    }
}

async fn respond(
    server: Rc<Server>,
    connection: Rc<ConnectionInfo>,
    request: http::Request<Incoming>,
) -> Result<http::Response<ChunkedBody>, Infallible> {
    let record = (!server.logs.is_empty()).then(|| LogRecord::begin(&request, connection, &server.clock));
    let counts = server.stats.request();
    let head_only = request.method() == Method::HEAD;
    let refusal = refusal(&request);
    let last = refusal.is_some();
    let mut answer = match refusal {
        Some(answer) => answer,
        None => server.ask(request).await,
    };
    let after = answer.after.take();
    let (status, content_type, body) = server.begin(answer, head_only).await;
    let mut response = http::Response::new(body);
    *response.status_mut() = status;
    // In Envoy's order.
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type.as_str()));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, max-age=0"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if let Ok(date) = HeaderValue::try_from(Date::new(server.clock.since_epoch()).http().to_string()) {
        headers.insert(header::DATE, date);
    }
    headers.insert(header::SERVER, HeaderValue::from_static("envoy"));
    if last {
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    counts.answered(status.as_u16());
    let record = record.map(|record| (record.answered(&response), server.logs.clone()));
    response.body_mut().when_done(move |sent| {
        if let Some((record, logs)) = record {
            record.write(sent, &logs);
        }
        if let Some(after) = after {
            after();
        }
    });
    Ok(response)
}

/// What Envoy's connection manager would not let pass to the pages.
fn refusal(request: &http::Request<Incoming>) -> Option<Answer> {
    const KNOWN: [Method; 9] = [
        Method::GET,
        Method::HEAD,
        Method::POST,
        Method::PUT,
        Method::DELETE,
        Method::OPTIONS,
        Method::PATCH,
        Method::TRACE,
        Method::CONNECT,
    ];
    if request.version() < Version::HTTP_11 {
        Some(Answer::error(StatusCode::UPGRADE_REQUIRED, "Upgrade Required"))
    } else if !KNOWN.contains(request.method()) {
        Some(Answer::error(StatusCode::BAD_REQUEST, "Bad Request"))
    } else if !request.headers().contains_key(header::HOST) {
        Some(Answer::error(StatusCode::BAD_REQUEST, ""))
    } else {
        None
    }
}

// === impl Server ===

impl Server {
    async fn ask(&self, request: http::Request<Incoming>) -> Answer {
        let (head, body) = request.into_parts();
        let text = |name| head.headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
        let target = head.uri.path_and_query().map_or("/", |target| target.as_str());
        let mut asked = Request::new(head.method.clone(), target);
        asked.host = text(header::HOST);
        asked.origin = text(header::ORIGIN);
        let form = text(header::CONTENT_TYPE).is_some_and(|kind| kind == "application/x-www-form-urlencoded");
        if asked.method == Method::POST && asked.query.is_empty() && form {
            match tokio::time::timeout(self.limits.head, self.collect(body)).await {
                Ok(Ok(text)) => asked.query = Query::parse(&text),
                Ok(Err(answer)) => return answer,
                Err(_) => return Answer::error(StatusCode::REQUEST_TIMEOUT, "Request Timeout"),
            }
        }
        self.admin.answer(&asked)
    }

    async fn collect(&self, mut body: Incoming) -> Result<String, Answer> {
        let mut bytes = Vec::new();
        while let Some(frame) = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
            let frame = frame.map_err(|_| Answer::error(StatusCode::BAD_REQUEST, "Bad Request"))?;
            let Some(data) = frame.data_ref() else { continue };
            if bytes.len() + data.len() > self.limits.body_bytes {
                return Err(Answer::error(StatusCode::PAYLOAD_TOO_LARGE, "Payload Too Large"));
            }
            bytes.extend_from_slice(data);
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Begins to send: what must be rendered waits for its turn first.
    async fn begin(&self, answer: Answer, head_only: bool) -> (StatusCode, ContentType, ChunkedBody) {
        let Answer { status, content_type, body, .. } = answer;
        let render = match body {
            Body::Whole(text) => return (status, content_type, ChunkedBody::whole(text)),
            Body::Rendered(_) if head_only => return (status, content_type, ChunkedBody::whole("")),
            Body::Rendered(render) => render,
        };
        let turn = tokio::time::timeout(self.limits.render_pause, self.rendering.clone().acquire_owned());
        let Ok(Ok(turn)) = turn.await else {
            let busy = ChunkedBody::whole("too many large pages are being read, try again later\n");
            return (StatusCode::SERVICE_UNAVAILABLE, ContentType::Text, busy);
        };
        let patience = Patience { pause: self.limits.render_pause, total: self.limits.render_total };
        let (mut chunks, parts) = Chunks::to_client(patience);
        tokio::task::spawn_blocking(move || {
            if render(&mut chunks).is_ok() {
                chunks.finish();
            }
            drop(turn);
        });
        (status, content_type, parts)
    }
}
