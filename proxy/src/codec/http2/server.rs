//! The downstream role: requests come in as streams, each answered on its own.

use std::rc::Rc;
use std::task::{Context, Poll};

use nuncio_core::http::RequestHead;
use nuncio_core::net::Io;
use nuncio_core::random::Rng;
use nuncio_core::stats::Stats;
use nuncio_core::stats::lists::http2::Codec;
use tokio::time::Instant;

use super::account::Account;
use super::flood::{Fault, FaultKind};
use super::keepalive::Pinger;
use super::options::ServerOptions;
use super::server_stream::ServerStream;
use super::session::{Event, Session, Shared};
use crate::codec::Buffers;

/// A downstream connection.
///
/// [`poll_accept`](Self::poll_accept) drives it, for its streams too: it must be polled while any of them lives. After
/// an error, [`poll_close`](Self::poll_close).
pub struct ServerConn {
    session: Shared,
    keepalive: Option<Pinger>,
    account: Account,
    reported: bool,
    closed: bool,
}

/// What came.
#[allow(clippy::large_enum_variant, reason = "it is moved once, into its stream's task")]
pub enum Accepted {
    Stream(ServerStream),
    /// A head that broke a rule or a limit. Its stream was reset; the text is `%RESPONSE_CODE_DETAILS%`.
    Refused(&'static str),
}

/// Why a connection ends before its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionError {
    /// The peer broke a rule or a limit.
    Peer {
        details: &'static str,
        /// By a head: there would have been a stream.
        head: bool,
        fault: Option<FaultKind>,
    },
    /// It is gone, or the socket failed.
    Lost,
}

impl ServerConn {
    /// `preread` is what was read of the connection before it came here.
    pub fn new(io: Io, preread: Vec<u8>, options: Rc<ServerOptions>, buffers: Rc<Buffers>, rng: &Rng) -> Self {
        let keepalive = options.http2.keepalive.map(|keepalive| Pinger::new(keepalive, rng));
        let session = Session::server(io, preread, options, buffers);
        Self { session, keepalive, account: Account::default(), reported: false, closed: false }
    }

    /// Runs the connection; ready for each request, whose head is read into `head`, whatever it holds. `Ok(None)` is
    /// the end, after everything was said and done.
    pub fn poll_accept(
        &mut self,
        cx: &mut Context<'_>,
        head: &mut RequestHead,
    ) -> Poll<Result<Option<Accepted>, ConnectionError>> {
        let mut session = self.session.borrow_mut();
        session.register_driver(cx);
        loop {
            if let Some(fault) = session.fault()
                && !self.reported
            {
                self.reported = true;
                return Poll::Ready(Err(broken(fault)));
            }
            if self.closed || session.is_finished() {
                self.closed = true;
                session.lost();
                return Poll::Ready(Ok(None));
            }
            match session.advance(cx, Some(head)) {
                Poll::Ready(Event::Request { slot, read }) => {
                    drop(session);
                    let stream = ServerStream::new(self.session.clone(), slot, read);
                    return Poll::Ready(Ok(Some(Accepted::Stream(stream))));
                }
                Poll::Ready(Event::Refused(details)) => return Poll::Ready(Ok(Some(Accepted::Refused(details)))),
                Poll::Ready(Event::Failed) => {}
                Poll::Ready(Event::Lost) => {
                    let alive = session.alive();
                    session.lost();
                    self.closed = true;
                    // Nobody is hurt by the end of a connection without streams.
                    return Poll::Ready(if alive > 0 { Err(ConnectionError::Lost) } else { Ok(None) });
                }
                Poll::Pending => {
                    if self.keepalive.as_mut().is_some_and(|pinger| pinger.poll(cx, &mut session).is_ready()) {
                        self.keepalive = None;
                        session.fail(Fault::new(FaultKind::KeepaliveTimeout));
                    } else if session.is_going_away() && session.alive() == 0 && session.ended().is_none() {
                        // It will ask nothing more, and has all its answers.
                        session.finish();
                    } else if !session.is_finished() {
                        return Poll::Pending;
                    }
                }
            }
        }
    }

    // === the end ===

    /// No new streams: says GOAWAY, and again with the last stream's number once the client has seen the first. Those
    /// that run go on; then the connection ends by itself.
    pub fn shut_down(&mut self) {
        self.session.borrow_mut().shut_down();
    }

    /// The client had its time to see the first GOAWAY: no new streams, whether it has seen it or not.
    pub fn insist(&mut self) {
        self.session.borrow_mut().insist();
    }

    /// Ends it without a reproach: there are no streams, or they do not matter.
    pub fn end(&mut self) {
        self.session.borrow_mut().finish();
    }

    /// Ends it now. Poll it on until it is closed.
    pub fn abort(&mut self, kind: FaultKind) {
        self.session.borrow_mut().fail(Fault::new(kind));
    }

    /// Writes what is left to say and closes our side, then reads and drops until the client's FIN, so that the close
    /// does not turn into a reset which takes the GOAWAY with it. Ready also after `allowance` bytes; the time limit is
    /// the caller's.
    pub fn poll_close(&mut self, cx: &mut Context<'_>, scratch: &mut [u8], allowance: &mut usize) -> Poll<()> {
        let mut session = self.session.borrow_mut();
        session.register_driver(cx);
        session.lost();
        match session.poll_flush(cx) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Err(_)) => return Poll::Ready(()),
            Poll::Ready(Ok(())) => {}
        }
        match session.poll_shutdown(cx) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Err(_)) => return Poll::Ready(()),
            Poll::Ready(Ok(())) => {}
        }
        loop {
            match session.poll_drop_input(cx, scratch) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(n)) if n > 0 && n <= *allowance => *allowance -= n,
                Poll::Ready(_) => return Poll::Ready(()),
            }
        }
    }

    // === what is known of it ===

    /// The client's preface has not come yet.
    pub fn is_handshaking(&self) -> bool {
        self.session.borrow().is_handshaking()
    }

    /// Streams whose objects are alive.
    pub fn streams(&self) -> u32 {
        self.session.borrow().alive()
    }

    /// Since when the client's socket takes nothing of what waits.
    pub fn blocked_since(&self) -> Option<Instant> {
        self.session.borrow().blocked_since()
    }

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

impl Drop for ServerConn {
    fn drop(&mut self) {
        // Its streams may outlive it.
        self.session.borrow_mut().lost();
    }
}

fn broken(fault: Fault) -> ConnectionError {
    let head = matches!(fault.kind, FaultKind::Messaging | FaultKind::Compression);
    ConnectionError::Peer { details: fault.details, head, fault: Some(fault.kind) }
}
