//! The filters in front of a connection's terminal filter: asked one after the other about the new connection, then
//! put into its byte stream, so that the terminal filter reads only what they let through.
//!
//! The order of things is Envoy's: `on_new_connection` of all filters, then the terminal filter begins (it connects to
//! its upstream, and what the upstream says goes to the client), and the client's bytes pass each filter's `on_data`
//! first. Held bytes are shown again from the first filter on, as Envoy shows its read buffer.

use std::any::Any;
use std::io::{self, IoSlice};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use futures_util::future::LocalBoxFuture;
use nuncio_core::net::{ConnectionInfo, Io, Stream};
use nuncio_core::network::{MakeNetworkFilter, NetworkClose, NetworkFilter, NetworkStep, NetworkVerdict};

/// The filters of one connection.
pub struct ReadFilters {
    filters: Vec<Box<dyn NetworkFilter>>,
}

/// A filter closed the connection; what logs say of it is in its [`ConnectionInfo`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Closed;

/// A byte stream that filters look at.
struct Filtered {
    io: Io,
    filters: ReadFilters,
    connection: Rc<ConnectionInfo>,
    /// Bytes that the terminal filter has not read, oldest first; of them, `passed` may be read now.
    held: Vec<u8>,
    passed: usize,
    /// What is behind `passed` was shown to no filter.
    unseen: bool,
    waiting: Option<(usize, LocalBoxFuture<'static, NetworkVerdict>)>,
    verdict: Option<(usize, NetworkVerdict)>,
    end: End,
    closed: bool,
    /// The most bytes that are held while a filter waits.
    limit: usize,
}

/// How far the client's FIN has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    No,
    Read,
    Passed,
}

// === impl ReadFilters ===

impl ReadFilters {
    pub fn new(makers: &[MakeNetworkFilter]) -> Self {
        Self { filters: makers.iter().map(|make| make()).collect() }
    }

    pub async fn on_new_connection(&mut self, connection: &Rc<ConnectionInfo>) -> Result<(), Closed> {
        for filter in &mut self.filters {
            let close = match filter.on_new_connection(connection) {
                NetworkStep::Continue | NetworkStep::NeedData => continue,
                NetworkStep::Close(close) => close,
                NetworkStep::Later(verdict) => match verdict.await {
                    NetworkVerdict::Continue => continue,
                    NetworkVerdict::Close(close) => close,
                },
            };
            tell(connection, close);
            return Err(Closed);
        }
        Ok(())
    }

    /// The connection as the terminal filter gets it: its bytes, those read already, and what must live as long.
    pub fn into_stream(
        self,
        io: Io,
        preread: Vec<u8>,
        connection: Rc<ConnectionInfo>,
        limit: usize,
    ) -> (Io, Vec<u8>, Box<dyn Any>) {
        if !self.read_data() {
            return (io, preread, Box::new(self.filters));
        }
        let filtered = Filtered {
            io,
            filters: self,
            connection,
            unseen: !preread.is_empty(),
            held: preread,
            passed: 0,
            waiting: None,
            verdict: None,
            end: End::No,
            closed: false,
            limit,
        };
        (Io::Other(Box::new(filtered)), Vec::new(), Box::new(()))
    }

    fn read_data(&self) -> bool {
        self.filters.iter().any(|f| f.reads_data())
    }
}

/// Writes down for the logs why the connection ends.
fn tell(connection: &ConnectionInfo, close: NetworkClose) {
    *connection.local_close_reason.borrow_mut() = Some(close.reason);
    if close.termination_details.is_some() {
        *connection.termination_details.borrow_mut() = close.termination_details;
    }
    if close.code_details.is_some() {
        *connection.code_details.borrow_mut() = close.code_details;
    }
    if let Some(flag) = close.flag {
        let mut flags = connection.flags.get();
        flags.insert(flag);
        connection.flags.set(flags);
    }
}

// === impl Filtered ===

impl Filtered {
    /// Shows what is held to the filters from `first` on.
    fn run(&mut self, first: usize) {
        self.unseen = false;
        let end = self.end == End::Read;
        let (ReadFilters { filters }, connection) = (&mut self.filters, &self.connection);
        for (i, filter) in filters.iter_mut().enumerate().skip(first) {
            if !filter.reads_data() {
                continue;
            }
            match filter.on_data(&self.held, end, connection) {
                NetworkStep::Continue => {}
                NetworkStep::NeedData if !end && self.held.len() < self.limit => return,
                // It will never decide: what it did not let pass must not pass.
                NetworkStep::NeedData => return self.close(NetworkClose::new("network_filter_undecided")),
                NetworkStep::Later(verdict) => {
                    self.waiting = Some((i, verdict));
                    return;
                }
                NetworkStep::Close(close) => return self.close(close),
            }
        }
        self.passed = self.held.len();
        if end {
            self.end = End::Passed;
        }
    }

    fn close(&mut self, close: NetworkClose) {
        tell(&self.connection, close);
        self.closed = true;
    }

    /// What a filter said that waited.
    fn poll_verdict(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some((at, verdict)) = &mut self.waiting {
            let said = (*at, ready!(verdict.as_mut().poll(cx)));
            self.verdict = Some(said);
            self.waiting = None;
        }
        Poll::Ready(())
    }

    /// Reads ahead, up to the limit: the client may be gone, and then nobody waits for the verdict.
    fn poll_more(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<()>> {
        if self.end != End::No || self.held.len() >= self.limit {
            return Poll::Pending;
        }
        let room = buf.len().min(self.limit - self.held.len());
        match ready!(self.io.poll_read(cx, &mut buf[..room]))? {
            0 => self.end = End::Read,
            n => self.held.extend_from_slice(&buf[..n]),
        }
        self.unseen = true;
        Poll::Ready(Ok(()))
    }

    fn give(&mut self, buf: &mut [u8]) -> usize {
        let n = self.passed.min(buf.len());
        buf[..n].copy_from_slice(&self.held[..n]);
        self.held.drain(..n);
        self.passed -= n;
        if self.held.is_empty() {
            self.held = Vec::new();
        }
        n
    }
}

impl Stream for Filtered {
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        loop {
            if self.closed {
                return Poll::Ready(Err(io::Error::new(
                    io::ErrorKind::ConnectionAborted,
                    "closed by a network filter",
                )));
            }
            if self.passed > 0 {
                return Poll::Ready(Ok(self.give(buf)));
            }
            if self.end == End::Passed {
                return Poll::Ready(Ok(0));
            }
            if self.poll_verdict(cx).is_pending() {
                ready!(self.poll_more(cx, buf))?;
                continue;
            }
            match self.verdict.take() {
                Some((_, NetworkVerdict::Close(close))) => self.close(close),
                Some((_, NetworkVerdict::Continue)) if self.unseen => self.run(0),
                Some((at, NetworkVerdict::Continue)) => self.run(at + 1),
                None if self.unseen => self.run(0),
                None if self.held.is_empty() && !self.filters.read_data() => return self.io.poll_read(cx, buf),
                None => ready!(self.poll_more(cx, buf))?,
            }
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        self.io.poll_write_vectored(cx, bufs)
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.poll_flush(cx)
    }

    fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.poll_shutdown(cx)
    }

    fn poll_read_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.closed || self.passed > 0 || self.end == End::Passed {
            return Poll::Ready(Ok(()));
        }
        if self.waiting.is_some() {
            return self.poll_verdict(cx).map(Ok);
        }
        if self.verdict.is_some() || self.unseen {
            return Poll::Ready(Ok(()));
        }
        self.io.poll_read_ready(cx)
    }

    fn abort(&mut self) {
        self.io.abort();
    }
}

#[cfg(test)]
mod tests;
