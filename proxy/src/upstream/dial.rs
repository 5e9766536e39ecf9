//! Connections for active health checks: made as the cluster makes its own, but to where a host's checks go, and
//! neither pooled nor counted.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_util::future::LocalBoxFuture;
use nuncio_api::pb::envoy::config::cluster::v3 as pb;
use nuncio_api::pb::google::protobuf::Struct;
use nuncio_api::support::Entry;
use nuncio_api::supports;
use nuncio_core::http::{Chunk, ResponseHead, Version};
use nuncio_core::net::{Connect, Io};
use nuncio_core::random::Rng;
use nuncio_core::stats::{ScopeId, WorkerStats};
use nuncio_core::upstream::{DialFailure, Host, HostDialer, HttpAnswer, HttpCall, HttpConn};

use super::cluster::ClusterConfig;
use super::pool::describe;
use crate::codec::http1::{self, UpstreamError};
use crate::codec::http2::{self, ClientStream, OpenError, StreamError};
use crate::codec::{Body, Buffers};
use crate::tls::upstream::Connectors;
use crate::tls::{ServerWanted, TlsCounts};

supports!(CHECK = "envoy.config.core.v3.HealthCheck" { tls_options, transport_socket_match_criteria });
supports!(TLS_OPTIONS = "envoy.config.core.v3.HealthCheck.TlsOptions" { alpn_protocols });

/// What is honoured of the messages read here.
pub static SUPPORTED: &[&Entry] = &[&CHECK, &TLS_OPTIONS];

/// What connections are made with on this thread.
#[derive(Clone)]
pub struct DialContext {
    pub connect: Rc<dyn Connect>,
    pub buffers: Rc<Buffers>,
    pub rng: Rng,
}

/// What checks ask of TLS other than requests do.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CheckTls {
    alpn: Vec<Box<str>>,
    criteria: Option<Struct>,
}

impl CheckTls {
    /// The first check's, which is the only one.
    pub fn from_cluster(message: &pb::Cluster) -> Self {
        let Some(check) = message.health_checks.first() else { return Self::default() };
        let alpn = check.tls_options.iter().flat_map(|options| &options.alpn_protocols);
        Self {
            alpn: alpn.map(|name| name.as_str().into()).collect(),
            criteria: check.transport_socket_match_criteria.clone(),
        }
    }
}

/// One cluster's.
pub struct Dialer {
    context: DialContext,
    config: Arc<ClusterConfig>,
    tls: Rc<TlsPart>,
}

/// What handshakes need.
struct TlsPart {
    check: CheckTls,
    connectors: Connectors,
}

impl Dialer {
    /// `stats` and `scope`: where the cluster counts on this thread.
    pub fn new(
        context: DialContext,
        config: Arc<ClusterConfig>,
        check: CheckTls,
        (stats, scope): (&Rc<WorkerStats>, ScopeId),
    ) -> Self {
        let tls = TlsPart { check, connectors: Connectors::new(TlsCounts::new(stats, scope)) };
        Self { context, config, tls: Rc::new(tls) }
    }

    /// The bytes of a connection, once the cluster's transport socket has made them; and whether it is TLS.
    fn io(
        &self,
        host: &Arc<Host>,
        alpn: &'static [&'static str],
    ) -> LocalBoxFuture<'static, Result<(Io, bool), DialFailure>> {
        let address = host.spec().health_check_address.clone().unwrap_or_else(|| host.current_address());
        let attempt = self.context.connect.connect(&address, self.config.connect_options());
        let sockets = self.config.transport();
        let socket = sockets.and_then(|sockets| match &self.tls.check.criteria {
            Some(criteria) => sockets.for_criteria(criteria),
            None => sockets.for_host(host),
        });
        let (socket, tls) = (socket.cloned(), self.tls.clone());
        let (host, buffers) = (host.clone(), self.context.buffers.clone());
        Box::pin(async move {
            let connected = attempt.await.map_err(|e| DialFailure::Connect(describe(&e)))?;
            let Some(socket) = socket else { return Ok((connected.io, false)) };
            let wanted = ServerWanted { alpn: tls.check.alpn.clone(), ..ServerWanted::default() };
            let asked = (&wanted, host.hostname(), alpn);
            let secured = socket.connect(connected.io, asked, &tls.connectors, &buffers).await.map_err(|failure| {
                tls.connectors.counts.failed(&failure);
                let text = if failure.text.is_empty() { "closed within the handshake" } else { &failure.text };
                DialFailure::Connect(text.to_owned())
            })?;
            tls.connectors.counts.handshake(&secured);
            Ok((secured.io, true))
        })
    }
}

impl HostDialer for Dialer {
    fn tcp(&self, host: &Arc<Host>) -> LocalBoxFuture<'static, Result<Io, DialFailure>> {
        let io = self.io(host, &[]);
        Box::pin(async move { Ok(io.await?.0) })
    }

    fn http(
        &self,
        host: &Arc<Host>,
        version: Version,
    ) -> LocalBoxFuture<'static, Result<Box<dyn HttpConn>, DialFailure>> {
        let alpn: &[&str] = if version == Version::Http2 { &["h2"] } else { &["http/1.1"] };
        let (io, context, config) = (self.io(host, alpn), self.context.clone(), self.config.clone());
        Box::pin(async move {
            let (io, secure) = io.await?;
            let buffers = context.buffers;
            if version != Version::Http2 {
                let conn = http1::ClientConn::new(io, Rc::new(config.http.client_options()));
                return Ok(Box::new(Http1Conn { conn, buffers, secure }) as Box<dyn HttpConn>);
            }
            let options = Rc::new(config.http.http2_client_options(config.info.per_connection_buffer_limit));
            let (conn, driver) = http2::ClientConn::new(io, options, buffers, &context.rng);
            // It ends with the connection.
            tokio::task::spawn_local(driver);
            Ok(Box::new(Http2Conn { conn, secure }) as Box<dyn HttpConn>)
        })
    }
}

// === HTTP/1 ===

struct Http1Conn {
    conn: http1::ClientConn,
    buffers: Rc<Buffers>,
    secure: bool,
}

impl HttpConn for Http1Conn {
    fn exchange<'c>(&'c mut self, call: HttpCall<'c>) -> LocalBoxFuture<'c, Result<HttpAnswer, DialFailure>> {
        Box::pin(async move {
            let (conn, buffers) = (&mut self.conn, &*self.buffers);
            let end = call.body.is_empty();
            conn.send_head(buffers, call.head, end).map_err(DialFailure::Unwritable)?;
            let (mut answer, mut answered, mut sent) = (HttpAnswer::default(), false, end);
            poll_fn(|cx| {
                if !sent {
                    sent = true;
                    conn.send_data(cx, buffers, &call.body, true).map_err(|_| closed(answered))?;
                }
                let flushed = conn.poll_flush(cx, buffers);
                let mut scratch = buffers.take_scratch();
                let polled = poll_http1(cx, conn, buffers, &mut scratch, call.keep, &mut answer, &mut answered);
                buffers.give_scratch(scratch);
                match (polled, flushed) {
                    (Poll::Pending, Poll::Ready(Err(_))) => Poll::Ready(Err(closed(answered))),
                    (polled, _) => polled,
                }
            })
            .await?;
            conn.release(buffers);
            Ok(answer)
        })
    }

    fn is_secure(&self) -> bool {
        self.secure
    }

    fn is_reusable(&mut self) -> bool {
        // What the peer sent or closed meanwhile is known to the system by now, and nobody need be woken for more.
        let quiet = self.conn.poll_idle(&mut Context::from_waker(std::task::Waker::noop())).is_pending();
        quiet && self.conn.is_reusable()
    }
}

fn poll_http1(
    cx: &mut Context<'_>,
    conn: &mut http1::ClientConn,
    buffers: &Buffers,
    scratch: &mut [u8],
    keep: usize,
    answer: &mut HttpAnswer,
    answered: &mut bool,
) -> Poll<Result<(), DialFailure>> {
    let failed = |error, answered| match error {
        UpstreamError::Protocol(what) => DialFailure::Protocol(what),
        UpstreamError::Closed | UpstreamError::Reset(_) => closed(answered),
    };
    while !*answered {
        ready!(conn.poll_response(cx, buffers, scratch, &mut answer.head)).map_err(|e| failed(e, false))?;
        *answered = !skip_interim(&mut answer.head);
    }
    while !conn.response_complete() {
        let body = ready!(conn.poll_body(cx, scratch)).map_err(|e| failed(e, true))?;
        if take(body, keep, answer) {
            break;
        }
    }
    Poll::Ready(Ok(()))
}

fn closed(answered: bool) -> DialFailure {
    DialFailure::Closed { answered }
}

/// 1xx: the answer is still to come.
fn skip_interim(head: &mut ResponseHead) -> bool {
    let interim = head.is_interim();
    if interim {
        head.clear();
    }
    interim
}

/// True at the end.
fn take(body: Body<'_>, keep: usize, answer: &mut HttpAnswer) -> bool {
    match body {
        Body::Data(chunk) => {
            let room = keep.saturating_sub(answer.body.len());
            answer.body.extend_from_slice(&chunk.as_slice()[..room.min(chunk.len())]);
            false
        }
        Body::Trailers(trailers) => {
            answer.trailers = Some(trailers);
            true
        }
        Body::End => true,
    }
}

// === HTTP/2 ===

struct Http2Conn {
    conn: http2::ClientConn,
    secure: bool,
}

impl HttpConn for Http2Conn {
    fn exchange<'c>(&'c mut self, call: HttpCall<'c>) -> LocalBoxFuture<'c, Result<HttpAnswer, DialFailure>> {
        Box::pin(async move {
            let end = call.body.is_empty();
            let mut stream = self.conn.open(call.head, end, false).map_err(|error| match error {
                OpenError::Unwritable(what) => DialFailure::Unwritable(what),
                OpenError::Stream(error) => stream_failure(error, false),
            })?;
            let (mut answer, mut answered, mut sent) = (HttpAnswer::default(), false, end);
            poll_fn(|cx| {
                if !sent {
                    sent = true;
                    // What the peer does not want any more, its answer explains.
                    let _: io::Result<()> = stream.send_data(cx, &Chunk::Own(call.body.clone()), true);
                }
                let _: Poll<io::Result<()>> = stream.poll_flush(cx);
                poll_http2(cx, &mut stream, call.keep, &mut answer, &mut answered)
            })
            .await?;
            Ok(answer)
        })
    }

    fn is_secure(&self) -> bool {
        self.secure
    }

    fn is_reusable(&mut self) -> bool {
        !self.conn.is_closing()
    }
}

fn poll_http2(
    cx: &mut Context<'_>,
    stream: &mut ClientStream,
    keep: usize,
    answer: &mut HttpAnswer,
    answered: &mut bool,
) -> Poll<Result<(), DialFailure>> {
    while !*answered {
        ready!(stream.poll_response(cx, &mut answer.head)).map_err(|e| stream_failure(e, false))?;
        *answered = !skip_interim(&mut answer.head);
    }
    while !stream.response_complete() {
        if take(ready!(stream.poll_body(cx)).map_err(|e| stream_failure(e, true))?, keep, answer) {
            break;
        }
    }
    Poll::Ready(Ok(()))
}

fn stream_failure(error: StreamError, answered: bool) -> DialFailure {
    match error {
        StreamError::Protocol(what) => DialFailure::Protocol(what),
        StreamError::Closed => closed(answered),
        // It did nothing with the request.
        StreamError::Refused => closed(false),
        StreamError::Reset | StreamError::Satisfied => DialFailure::Reset,
    }
}
