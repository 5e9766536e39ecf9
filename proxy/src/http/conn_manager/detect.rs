//! Which protocol a client speaks: as configured, as negotiated, or as its first bytes tell.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use nuncio_core::stats::lists::http as stat;
use tokio::time::Instant;

use super::HttpConnectionManager;
use super::account::ConnectionAccount;
use super::config::CodecType;
use super::connection::HttpConnection;
use super::connection_http2::{Http2Connection, PREFACE_TIMEOUT};
use crate::alarm::Alarm;
use crate::codec::http2;
use crate::network::Connection;

/// A client's connection.
#[allow(clippy::large_enum_variant, reason = "most connections speak HTTP/1, in a task of their own")]
pub enum ClientConnection {
    Detecting(Box<Detecting>),
    Http1(HttpConnection),
    Http2(Box<Http2Connection>),
    Gone,
}

/// Before it is known what the client speaks.
pub struct Detecting {
    connection: Connection,
    account: ConnectionAccount,
    manager: Rc<HttpConnectionManager>,
    idle: Option<Instant>,
    alarm: Alarm,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    Http1,
    Http2,
    Nothing,
}

impl ClientConnection {
    pub fn new(connection: Connection, manager: Rc<HttpConnectionManager>) -> Self {
        let mut connection = connection;
        let guards = std::mem::replace(&mut connection.guards, Box::new(()));
        let account = ConnectionAccount::begin(&manager, connection.info.tls.is_some(), guards);
        let alpn = connection.info.tls.as_ref().map(|tls| tls.alpn.as_deref());
        match (manager.config.codec_type, alpn) {
            (CodecType::Http1, _) => Self::Http1(HttpConnection::new(connection, account, manager)),
            (CodecType::Http2, _) | (CodecType::Auto, Some(Some("h2"))) => {
                Self::Http2(Box::new(Http2Connection::new(connection, account, manager)))
            }
            (CodecType::Auto, Some(Some(_))) => Self::Http1(HttpConnection::new(connection, account, manager)),
            (CodecType::Auto, _) => {
                let idle = manager.config.timeouts.idle.map(|d| account.started + d);
                Self::Detecting(Box::new(Detecting { connection, account, manager, idle, alarm: Alarm::default() }))
            }
        }
    }
}

/// So much of the preface is no request's beginning: HTTP/1 has no such method.
const TELLING: usize = b"PRI *".len();

impl Detecting {
    /// When a client that does not go on is given up.
    fn deadline(&self) -> Option<Instant> {
        if self.connection.preread.len() < TELLING {
            return self.idle;
        }
        let preface = self.account.started + PREFACE_TIMEOUT;
        Some(self.idle.map_or(preface, |idle| idle.min(preface)))
    }

    fn poll_found(&mut self, cx: &mut Context<'_>) -> Poll<Found> {
        loop {
            let seen = &self.connection.preread;
            let compared = seen.len().min(http2::PREFACE.len());
            if seen[..compared] != http2::PREFACE[..compared] {
                return Poll::Ready(Found::Http1);
            }
            if compared == http2::PREFACE.len() {
                return Poll::Ready(Found::Http2);
            }
            let buffers = &self.manager.worker.buffers;
            let mut scratch = buffers.take_scratch();
            let read = self.connection.io.poll_read(cx, &mut scratch);
            if let Poll::Ready(Ok(n)) = read {
                if self.connection.preread.capacity() == 0 {
                    self.connection.preread = buffers.take();
                }
                self.connection.preread.extend_from_slice(&scratch[..n]);
            }
            buffers.give_scratch(scratch);
            match read {
                Poll::Ready(Ok(n)) if n > 0 => self.account.totals.0 += n as u64,
                Poll::Ready(_) => return Poll::Ready(Found::Nothing),
                Poll::Pending => {
                    if self.deadline().is_some_and(|deadline| self.alarm.rings(cx, deadline)) {
                        self.manager.failures.inc(stat::DOWNSTREAM_CX_IDLE_TIMEOUT);
                        self.account.ended_here = true;
                        return Poll::Ready(Found::Nothing);
                    }
                    return Poll::Pending;
                }
            }
        }
    }
}

impl Future for ClientConnection {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        if let Self::Detecting(detecting) = this {
            let found = ready!(detecting.poll_found(cx));
            let Self::Detecting(detecting) = std::mem::replace(this, Self::Gone) else { return Poll::Ready(()) };
            let Detecting { connection, account, manager, .. } = *detecting;
            *this = match found {
                Found::Http1 => Self::Http1(HttpConnection::new(connection, account, manager)),
                Found::Http2 => Self::Http2(Box::new(Http2Connection::new(connection, account, manager))),
                Found::Nothing => Self::Gone,
            };
        }
        match this {
            Self::Http1(connection) => Pin::new(connection).poll(cx),
            Self::Http2(connection) => Pin::new(&mut **connection).poll(cx),
            Self::Detecting(_) | Self::Gone => Poll::Ready(()),
        }
    }
}
