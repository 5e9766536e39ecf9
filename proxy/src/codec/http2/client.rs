//! The upstream role: one connection carries many requests.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use nuncio_core::http::RequestHead;
use nuncio_core::net::Io;
use nuncio_core::random::Rng;
use nuncio_core::stats::Stats;
use nuncio_core::stats::lists::http2::Codec;
use tokio::time::Instant;

use super::account::Account;
use super::block::Outgoing;
use super::client_stream::ClientStream;
use super::keepalive::Pinger;
use super::options::ClientOptions;
use super::session::{Ended, Event, Session, Shared};
use super::stream_error::StreamError;
use crate::codec::Buffers;

/// An upstream connection, as requests see it. It lives while its [`ClientDriver`] is polled; when it is dropped and its
/// last stream has ended, the connection closes.
pub struct ClientConn {
    session: Shared,
    options: Rc<ClientOptions>,
}

/// The connection's own task: it reads and writes for all streams. Ready when the connection has ended.
pub struct ClientDriver {
    session: Shared,
    keepalive: Option<Pinger>,
    account: Account,
    /// What is still to be written before that is told.
    ending: Option<ClientEnd>,
}

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientEnd {
    /// We had no more use for it.
    Local,
    /// The upstream closed it.
    Remote,
    /// The upstream broke the protocol; the text is for debug logs.
    Protocol(&'static str),
    /// It did not answer pings.
    Dead,
}

/// Why a request got no stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenError {
    /// It holds something that must not be sent (the text says what).
    Unwritable(&'static str),
    Stream(StreamError),
}

impl ClientConn {
    pub fn new(io: Io, options: Rc<ClientOptions>, buffers: Rc<Buffers>, rng: &Rng) -> (Self, ClientDriver) {
        let keepalive = options.http2.keepalive.map(|keepalive| Pinger::new(keepalive, rng));
        let session = Session::client(io, options.clone(), buffers);
        let driver = ClientDriver { session: session.clone(), keepalive, account: Account::default(), ending: None };
        (Self { session, options }, driver)
    }

    /// Sends a request's head on a new stream. `end`: no body follows. `upgrade`: as extended CONNECT.
    pub fn open(&self, head: &RequestHead, end: bool, upgrade: bool) -> Result<ClientStream, OpenError> {
        let mut session = self.session.borrow_mut();
        match session.ended() {
            Some(Ended::Protocol(details)) => return Err(OpenError::Stream(StreamError::Protocol(details))),
            Some(Ended::Closed) => return Err(OpenError::Stream(StreamError::Closed)),
            None if session.is_closing() => return Err(OpenError::Stream(StreamError::Refused)),
            None => {}
        }
        if upgrade && !session.peer().connect_protocol {
            return Err(OpenError::Unwritable("the upstream takes no extended CONNECT"));
        }
        let request = Outgoing::new(head, end, upgrade).map_err(OpenError::Unwritable)?;
        self.try_before_use(&mut session);
        let slot = session.open_stream(head.is_head(), request.is_connect);
        session.send_fields(slot, end, |block| block.request(&request));
        Ok(ClientStream::new(self.session.clone(), slot, head, end, request.is_connect, upgrade))
    }

    /// After a long silence, a ping goes ahead of the request.
    fn try_before_use(&self, session: &mut Session) {
        let idle = self.options.http2.keepalive.and_then(|k| k.idle_interval);
        if idle.is_some_and(|idle| session.alive() == 0 && session.last_read() + idle <= Instant::now()) {
            session.ping_wanted = true;
            session.wake_driver();
        }
    }

    /// How many streams it may have at once: the smaller of what we and what the upstream say, and none more for an
    /// upstream that takes nothing. Requests that end while their heads wait would leave ever more of them.
    pub fn max_streams(&self) -> u32 {
        let session = self.session.borrow();
        if session.is_stuck() { 0 } else { self.options.http2.max_concurrent_streams.min(session.peer().max_streams) }
    }

    /// The upstream has said its settings.
    pub fn is_settled(&self) -> bool {
        self.session.borrow().is_settled()
    }

    /// Streams whose objects are alive.
    pub fn streams(&self) -> u32 {
        self.session.borrow().alive()
    }

    /// No new stream may be opened: the upstream said GOAWAY, or the connection is gone.
    pub fn is_closing(&self) -> bool {
        self.session.borrow().is_closing()
    }

    /// The upstream has said what it takes.
    pub fn allows_upgrades(&self) -> bool {
        self.session.borrow().peer().connect_protocol
    }

    /// Bytes received, and bytes sent, on this connection.
    pub fn totals(&self) -> (u64, u64) {
        self.session.borrow().totals()
    }
}

impl Drop for ClientConn {
    fn drop(&mut self) {
        self.session.borrow_mut().abandon();
    }
}

impl ClientDriver {
    /// Bytes received, and bytes sent, on this connection.
    pub fn totals(&self) -> (u64, u64) {
        self.session.borrow().totals()
    }

    /// Counts what came and went since this was last called, and what waits to be sent now.
    pub fn count(&mut self, stats: &Stats<Codec>) {
        let mut session = self.session.borrow_mut();
        self.account.count(stats, session.take_counts(), session.backlog());
    }
}

impl Future for ClientDriver {
    type Output = ClientEnd;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<ClientEnd> {
        let this = self.get_mut();
        let mut session = this.session.borrow_mut();
        session.register_driver(cx);
        if this.ending.is_none() {
            this.ending = match session.advance(cx, None) {
                Poll::Pending => None,
                Poll::Ready(Event::Lost) => {
                    session.lost();
                    return Poll::Ready(ClientEnd::Remote);
                }
                Poll::Ready(_) => session.fault().map(|fault| ClientEnd::Protocol(fault.details)),
            };
        }
        if this.ending.is_none() {
            if this.keepalive.as_mut().is_some_and(|pinger| pinger.poll(cx, &mut session).is_ready()) {
                // As Envoy: streams see a closed connection.
                session.lost();
                return Poll::Ready(ClientEnd::Dead);
            }
            if session.is_abandoned() {
                this.ending = Some(if session.is_going_away() { ClientEnd::Remote } else { ClientEnd::Local });
                session.finish();
            }
        }
        let Some(end) = this.ending else { return Poll::Pending };
        // One try: an upstream that takes no GOAWAY is not waited for.
        if session.poll_flush(cx).is_ready() {
            let _ = session.poll_shutdown(cx);
        }
        Poll::Ready(end)
    }
}

impl Drop for ClientDriver {
    fn drop(&mut self) {
        // However it came: no stream may be opened on it any more.
        self.session.borrow_mut().lost();
    }
}
