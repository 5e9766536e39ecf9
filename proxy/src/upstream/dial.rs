//! Connections for active health checks: made as the cluster makes its own, but to where a host's checks go, and
//! neither pooled nor counted.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use nuncio_core::http::{ResponseHead, Version};
use nuncio_core::net::{Connect, Io};
use nuncio_core::random::Rng;
use nuncio_core::upstream::{DialFailure, Host, HostDialer, HttpAnswer, HttpCall, HttpConn};

use super::cluster::ClusterConfig;
use super::pool::describe;
use crate::codec::http1::{self, UpstreamError};
use crate::codec::http2::{self, ClientStream, OpenError, StreamError};
use crate::codec::{Body, Buffers};
use crate::tls::ServerWanted;
use crate::tls::upstream::Connectors;

/// What connections are made with on this thread.
#[derive(Clone)]
pub struct DialContext {
    pub connect: Rc<dyn Connect>,
    pub buffers: Rc<Buffers>,
    pub rng: Rng,
}

/// One cluster's.
pub struct Dialer {
    context: DialContext,
    config: Arc<ClusterConfig>,
    connectors: Rc<Connectors>,
}

impl Dialer {
    pub fn new(context: DialContext, config: Arc<ClusterConfig>) -> Self {
        Self { context, config, connectors: Rc::default() }
    }

    /// The bytes of a connection, once the cluster's transport socket has made them; `alpn` is offered where its TLS
    /// context names no protocols.
    fn io(&self, host: &Arc<Host>, alpn: &'static [&'static str]) -> LocalBoxFuture<'static, Result<Io, DialFailure>> {
        let address = host.spec().health_check_address.clone().unwrap_or_else(|| host.current_address());
        let attempt = self.context.connect.connect(&address, self.config.connect_options());
        let socket =
            attempt.map(|made| made.map(|connected| connected.io).map_err(|e| DialFailure::Connect(describe(&e))));
        let Some(tls) = self.config.transport().and_then(|sockets| sockets.for_host(host)).cloned() else {
            return socket.boxed_local();
        };
        let (connectors, buffers, host) = (self.connectors.clone(), self.context.buffers.clone(), host.clone());
        Box::pin(async move {
            let nothing = ServerWanted::default();
            let secured = tls.connect(socket.await?, (&nothing, host.hostname(), alpn), &connectors, &buffers).await;
            secured.map(|secured| secured.io).map_err(|failure| DialFailure::Connect(failure.to_string()))
        })
    }
}

impl HostDialer for Dialer {
    fn tcp(&self, host: &Arc<Host>) -> LocalBoxFuture<'static, Result<Io, DialFailure>> {
        self.io(host, &[])
    }

    fn http(
        &self,
        host: &Arc<Host>,
        version: Version,
    ) -> LocalBoxFuture<'static, Result<Box<dyn HttpConn>, DialFailure>> {
        let alpn: &[&str] = if version == Version::Http2 { &["h2"] } else { &["http/1.1"] };
        let (io, context, config) = (self.io(host, alpn), self.context.clone(), self.config.clone());
        Box::pin(async move {
            let io = io.await?;
            let buffers = context.buffers;
            if version != Version::Http2 {
                let conn = http1::ClientConn::new(io, Rc::new(config.http.client_options()));
                return Ok(Box::new(Http1Conn { conn, buffers }) as Box<dyn HttpConn>);
            }
            let options = Rc::new(config.http.http2_client_options(config.info.per_connection_buffer_limit));
            let made = http2::ClientConn::new(io, options, buffers, &context.rng);
            let (conn, driver) = made.ok_or(DialFailure::Protocol("no HTTP/2 connection"))?;
            // It ends with the connection.
            tokio::task::spawn_local(driver);
            Ok(Box::new(Http2Conn { conn }) as Box<dyn HttpConn>)
        })
    }
}

// === HTTP/1 ===

struct Http1Conn {
    conn: http1::ClientConn,
    buffers: Rc<Buffers>,
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
        ready!(conn.poll_response(cx, buffers, &mut answer.head)).map_err(|e| failed(e, false))?;
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
                    let _: io::Result<()> = stream.send_data(cx, call.body.clone(), true);
                }
                let _: Poll<io::Result<()>> = stream.poll_flush(cx);
                poll_http2(cx, &mut stream, call.keep, &mut answer, &mut answered)
            })
            .await?;
            Ok(answer)
        })
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
