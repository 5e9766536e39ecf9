//! One request's exchange with an upstream, whatever that speaks.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use nuncio_core::http::{Chunk, HeaderMap, RequestHead, ResponseHead, Version};
use nuncio_core::net::{Address, TlsInfo};
use nuncio_core::upstream::Host;

use super::http1::{self, PendingConn, PooledConn};
use super::http2::{self, PendingSlot, Slot};
use super::tcp::{TcpConnecting, TcpConnection, TcpGuard};
use super::{PoolFailure, PoolFailureReason};
use crate::codec::http1::{ClientConn, UpstreamError};
use crate::codec::http2::StreamError;
use crate::codec::{Body, Buffers};
use crate::tls::ServerWanted;
use crate::upstream::circuit_breaker::Priority;
use crate::upstream::thread_local::ThreadLocalCluster;

/// What a pool answers to a request.
#[allow(clippy::large_enum_variant, reason = "moved once or twice a request, and never boxed for it")]
pub enum AcquireStream {
    Ready(UpstreamStream),
    Pending(PendingStream),
    Failed(PoolFailure),
}

/// A place in a pool's queue, or a connection of its own that is being made.
pub enum PendingStream {
    Http1(PendingConn),
    Http2(PendingSlot),
    Tcp(TcpConnecting),
    Auto(Box<Negotiating>),
}

/// The handshake decides which pool it is.
pub struct Negotiating {
    pub(in crate::upstream) cluster: Rc<ThreadLocalCluster>,
    pub(in crate::upstream) host: Arc<Host>,
    pub(in crate::upstream) priority: Priority,
    pub(in crate::upstream) wanted: Option<Rc<ServerWanted>>,
    pub(in crate::upstream) waiting: PendingStream,
}

impl Negotiating {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<UpstreamStream, PoolFailure>> {
        loop {
            match ready!(self.waiting.poll(cx)) {
                Err(failure) if failure.reason == PoolFailureReason::Switched => {
                    match self.cluster.acquire_auto(&self.host, self.priority, self.wanted.as_ref()) {
                        AcquireStream::Ready(stream) => return Poll::Ready(Ok(stream)),
                        AcquireStream::Pending(waiting) => self.waiting = waiting,
                        AcquireStream::Failed(failure) => return Poll::Ready(Err(failure)),
                    }
                }
                other => return Poll::Ready(other),
            }
        }
    }
}

impl PendingStream {
    /// Ready once.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<UpstreamStream, PoolFailure>> {
        match self {
            Self::Http1(pending) => pending.poll(cx).map_ok(UpstreamStream::Http1),
            Self::Http2(pending) => pending.poll(cx).map_ok(UpstreamStream::Http2),
            Self::Auto(negotiating) => negotiating.poll(cx),
            Self::Tcp(connecting) => {
                let host = connecting.host().clone();
                Pin::new(connecting).poll(cx).map_ok(|connection| UpstreamStream::Tcp(TcpTunnel::new(connection, host)))
            }
        }
    }
}

impl From<http1::Acquire> for AcquireStream {
    fn from(acquire: http1::Acquire) -> Self {
        match acquire {
            http1::Acquire::Ready(conn) => Self::Ready(UpstreamStream::Http1(conn)),
            http1::Acquire::Pending(pending) => Self::Pending(PendingStream::Http1(pending)),
            http1::Acquire::Failed(failure) => Self::Failed(failure),
        }
    }
}

impl From<http2::Acquire> for AcquireStream {
    fn from(acquire: http2::Acquire) -> Self {
        match acquire {
            http2::Acquire::Ready(slot) => Self::Ready(UpstreamStream::Http2(slot)),
            http2::Acquire::Pending(pending) => Self::Pending(PendingStream::Http2(pending)),
            http2::Acquire::Failed(failure) => Self::Failed(failure),
        }
    }
}

/// Why there is no (whole) answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpstreamEnd {
    /// The upstream broke the protocol; the text is for debug logs.
    Protocol(&'static str),
    /// The connection ended under the request.
    Closed,
    /// An upgraded connection came to its only end.
    TunnelClosed,
    /// The upstream reset the stream.
    Reset,
    /// It did nothing with the request, which may be repeated.
    Refused,
}

impl From<UpstreamError> for UpstreamEnd {
    fn from(error: UpstreamError) -> Self {
        match error {
            UpstreamError::Protocol(what) => Self::Protocol(what),
            UpstreamError::Closed | UpstreamError::Reset(_) => Self::Closed,
        }
    }
}

impl From<StreamError> for UpstreamEnd {
    fn from(error: StreamError) -> Self {
        match error {
            StreamError::Protocol(what) => Self::Protocol(what),
            StreamError::Closed => Self::Closed,
            StreamError::Reset | StreamError::Satisfied => Self::Reset,
            StreamError::Refused => Self::Refused,
        }
    }
}

/// Why a request was not sent. Nothing of it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotSent {
    /// It holds something that must not be written; the text says what.
    Unwritable(&'static str),
    Upstream(UpstreamEnd),
}

/// Dropping it gives the exchange up: it closes an HTTP/1 connection, and resets an HTTP/2 stream.
#[allow(clippy::large_enum_variant, reason = "moved once or twice a request, and never boxed for it")]
pub enum UpstreamStream {
    Http1(PooledConn),
    Http2(Slot),
    /// A CONNECT that ends here.
    Tcp(TcpTunnel),
}

/// A connection that carries what a CONNECT asked to carry.
pub struct TcpTunnel {
    conn: ClientConn,
    host: Arc<Host>,
    local: Option<Address>,
    tls: Option<Arc<TlsInfo>>,
    id: u64,
    guard: TcpGuard,
    answered: bool,
}

impl TcpTunnel {
    fn new(connection: TcpConnection, host: Arc<Host>) -> Self {
        let TcpConnection { io, local, tls, id, guard, .. } = connection;
        Self { conn: ClientConn::tunnel(io, Rc::default()), host, local, tls, id, guard, answered: false }
    }
}

impl Drop for TcpTunnel {
    fn drop(&mut self) {
        let (received, sent) = self.conn.totals();
        self.guard.bytes(received, sent);
    }
}

impl UpstreamStream {
    pub fn host(&self) -> &Arc<Host> {
        match self {
            Self::Http1(conn) => conn.host(),
            Self::Http2(slot) => slot.host(),
            Self::Tcp(tunnel) => &tunnel.host,
        }
    }

    /// `%UPSTREAM_CONNECTION_ID%`.
    pub fn id(&self) -> u64 {
        match self {
            Self::Http1(conn) => conn.id(),
            Self::Http2(slot) => slot.id(),
            Self::Tcp(tunnel) => tunnel.id,
        }
    }

    pub fn local_address(&self) -> Option<&Address> {
        match self {
            Self::Http1(conn) => conn.local_address(),
            Self::Http2(slot) => slot.local_address(),
            Self::Tcp(tunnel) => tunnel.local.as_ref(),
        }
    }

    /// What the connection's handshake told.
    pub fn tls(&self) -> Option<&Arc<TlsInfo>> {
        match self {
            Self::Http1(conn) => conn.tls(),
            Self::Http2(slot) => slot.tls(),
            Self::Tcp(tunnel) => tunnel.tls.as_ref(),
        }
    }

    /// None for bytes.
    pub fn version(&self) -> Option<Version> {
        match self {
            Self::Http1(_) => Some(Version::Http11),
            Self::Http2(_) => Some(Version::Http2),
            Self::Tcp(_) => None,
        }
    }

    /// A close before the first byte of the answer may mean only that the upstream closed an idle connection at the
    /// wrong moment. HTTP/2 has GOAWAY for that.
    pub fn is_reused(&self) -> bool {
        matches!(self, Self::Http1(conn) if conn.is_reused())
    }

    /// Its connection, where a body may go by a pipe.
    pub fn http1(&mut self) -> Option<&mut ClientConn> {
        match self {
            Self::Http1(conn) => Some(conn),
            Self::Http2(_) | Self::Tcp(_) => None,
        }
    }

    // === the request ===

    /// `end`: no body follows.
    pub fn send_head(&mut self, buffers: &Buffers, head: &RequestHead, end: bool) -> Result<(), NotSent> {
        match self {
            Self::Http1(conn) => conn.send_head(buffers, head, end).map_err(NotSent::Unwritable),
            Self::Http2(slot) => slot.open(head, end, false),
            Self::Tcp(_) => Ok(()),
        }
    }

    /// The same for an upgrade, or for CONNECT, whose answer may make it a [tunnel](Self::is_tunnel). Whoever sends
    /// holds the client's bytes until then.
    pub fn send_upgrade_head(&mut self, buffers: &Buffers, head: &RequestHead) -> Result<(), NotSent> {
        match self {
            Self::Http1(conn) => conn.send_upgrade_head(buffers, head).map_err(NotSent::Unwritable),
            Self::Http2(slot) => {
                let upgrade = head.method() != b"CONNECT";
                slot.open(head, false, upgrade)
            }
            Self::Tcp(_) => Ok(()),
        }
    }

    /// The answer agreed: from now on bytes flow both ways, without framing.
    pub fn is_tunnel(&self) -> bool {
        match self {
            Self::Http1(conn) => conn.is_tunnel(),
            Self::Http2(slot) => slot.stream.as_ref().is_some_and(|stream| stream.is_tunnel()),
            Self::Tcp(_) => true,
        }
    }

    pub fn send_data(
        &mut self,
        cx: &mut Context<'_>,
        buffers: &Buffers,
        data: &Chunk<'_>,
        end: bool,
    ) -> io::Result<()> {
        match self {
            Self::Http1(conn) => conn.send_data(cx, buffers, data.as_slice(), end),
            Self::Tcp(tunnel) => tunnel.conn.send_data(cx, buffers, data.as_slice(), end),
            Self::Http2(Slot { stream: Some(stream), .. }) => stream.send_data(cx, data, end),
            Self::Http2(_) => Ok(()),
        }
    }

    pub fn send_trailers(&mut self, buffers: &Buffers, trailers: &HeaderMap) -> io::Result<()> {
        match self {
            Self::Http1(conn) => conn.send_trailers(buffers, trailers),
            Self::Http2(Slot { stream: Some(stream), .. }) => stream.send_trailers(trailers),
            Self::Http2(_) | Self::Tcp(_) => Ok(()),
        }
    }

    /// Ready when everything is with the connection.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>, buffers: &Buffers) -> Poll<io::Result<()>> {
        match self {
            Self::Http1(conn) => conn.poll_flush(cx, buffers),
            Self::Tcp(tunnel) => tunnel.conn.poll_flush(cx, buffers),
            Self::Http2(Slot { stream: Some(stream), .. }) => stream.poll_flush(cx),
            Self::Http2(_) => Poll::Ready(Ok(())),
        }
    }

    /// The same, or when it will soon be.
    pub fn poll_flush_soon(&mut self, cx: &mut Context<'_>, buffers: &Buffers) -> Poll<io::Result<()>> {
        match self {
            Self::Http1(conn) => conn.poll_flush_soon(cx, buffers),
            other => other.poll_flush(cx, buffers),
        }
    }

    /// Ready when the upstream takes more. `watermark`: what may wait for an HTTP/1 socket.
    pub fn poll_writable(&mut self, cx: &mut Context<'_>, buffers: &Buffers, watermark: usize) -> Poll<io::Result<()>> {
        match self {
            Self::Http1(conn) if conn.takes_more(watermark) => Poll::Ready(Ok(())),
            Self::Http1(conn) => conn.poll_flush(cx, buffers),
            Self::Tcp(tunnel) if tunnel.conn.takes_more(watermark) => Poll::Ready(Ok(())),
            Self::Tcp(tunnel) => tunnel.conn.poll_flush(cx, buffers),
            Self::Http2(Slot { stream: Some(stream), .. }) => stream.poll_writable(cx),
            Self::Http2(_) => Poll::Ready(Ok(())),
        }
    }

    /// How much is worth reading for it at once.
    pub fn read_size(&self) -> usize {
        match self {
            Self::Http2(Slot { stream: Some(stream), .. }) => stream.read_size(),
            _ => usize::MAX,
        }
    }

    pub fn write_buffered(&self) -> usize {
        match self {
            Self::Http1(conn) => conn.write_buffered(),
            Self::Tcp(tunnel) => tunnel.conn.write_buffered(),
            Self::Http2(slot) => slot.stream.as_ref().map_or(0, |stream| stream.write_buffered()),
        }
    }

    // === the response ===

    /// Reads the next response head into `head`, whatever it holds: interim ones too, and then it is asked again.
    pub fn poll_response(
        &mut self,
        cx: &mut Context<'_>,
        buffers: &Buffers,
        scratch: &mut [u8],
        head: &mut ResponseHead,
    ) -> Poll<Result<(), UpstreamEnd>> {
        match self {
            Self::Http1(conn) => conn.poll_response(cx, buffers, scratch, head).map_err(Into::into),
            Self::Tcp(tunnel) if tunnel.answered => Poll::Pending,
            Self::Tcp(tunnel) => {
                // Being connected is the answer.
                tunnel.answered = true;
                head.clear();
                head.status = 200;
                Poll::Ready(Ok(()))
            }
            Self::Http2(Slot { stream: Some(stream), .. }) => stream.poll_response(cx, head).map_err(Into::into),
            Self::Http2(_) => Poll::Pending,
        }
    }

    /// The next piece of the response's body. After `Data`, ask [`response_complete`](Self::response_complete): the end
    /// may be known already.
    pub fn poll_body<'s>(
        &mut self,
        cx: &mut Context<'_>,
        scratch: &'s mut [u8],
    ) -> Poll<Result<Body<'s>, UpstreamEnd>> {
        Poll::Ready(match self {
            Self::Http1(conn) => {
                let tunnel = conn.is_tunnel();
                match ready!(conn.poll_body(cx, scratch)) {
                    // As Envoy: an upgraded HTTP/1 connection has no other end than its close.
                    Ok(Body::End) if tunnel => Err(UpstreamEnd::TunnelClosed),
                    other => other.map_err(Into::into),
                }
            }
            Self::Tcp(tunnel) => ready!(tunnel.conn.poll_body(cx, scratch)).map_err(Into::into),
            Self::Http2(Slot { stream: Some(stream), .. }) => ready!(stream.poll_body(cx)).map_err(Into::into),
            Self::Http2(_) => Ok(Body::End),
        })
    }

    /// The response was read to its end.
    pub fn response_complete(&self) -> bool {
        match self {
            Self::Http1(conn) => conn.response_complete(),
            Self::Tcp(_) => false,
            Self::Http2(slot) => slot.stream.as_ref().is_some_and(|stream| stream.response_complete()),
        }
    }

    /// Bytes of the request's head, and of the response's, where the connection is this request's alone.
    pub fn head_bytes(&self) -> (u32, u32) {
        match self {
            Self::Http1(conn) => conn.head_bytes(),
            Self::Http2(_) | Self::Tcp(_) => (0, 0),
        }
    }

    // === the end ===

    /// The exchange is over: the connection serves others, or closes if it cannot.
    pub fn release(mut self) {
        self.give_back();
    }

    /// [`release`](Self::release) for who drops this next, without moving it, for it is large.
    pub fn give_back(&mut self) {
        if let Self::Http1(conn) = self {
            conn.give_back();
        }
    }

    /// The upstream closed or reset the connection under this request.
    pub fn closed_by_peer(self) {
        match self {
            Self::Http1(conn) => conn.closed_by_peer(),
            Self::Tcp(mut tunnel) => tunnel.guard.closed_by_peer(),
            Self::Http2(_) => {}
        }
    }
}
