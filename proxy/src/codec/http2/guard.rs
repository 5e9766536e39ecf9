//! The socket as the library sees it.
//!
//! Writes are gathered until the library asks for a flush, which it does once a turn: the frames of
//! all streams go out in one write. Reads take what there is in one go and hand it on in pieces.
//! Every frame's head is looked at on its way. After a [`Fault`](super::Fault) nothing more is read,
//! and of requests the library gets only so many at a time.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use nuncio_core::net::Io;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::flood::{Fault, FaultKind, Inbound};
use super::scan::{ACK, END_STREAM, Frame, Scan, kind};
use super::shared::{HEADS_AT_ONCE, Shared};
use crate::codec::Buffers;

/// More than this is not gathered.
const GATHER: usize = 64 * 1024;

const PROTOCOL_ERROR: u32 = 1;
const REFUSED_STREAM: u32 = 7;
/// Of an RST_STREAM frame.
const RESET_LEN: usize = 13;

/// The socket itself, which outlives the library's use of it.
pub(super) struct Socket(pub(super) Rc<RefCell<Io>>);

pub(super) struct GuardedIo {
    io: Rc<RefCell<Io>>,
    buffers: Rc<Buffers>,
    shared: Rc<Shared>,
    input: Vec<u8>,
    consumed: usize,
    /// Requests begin in what was read last.
    has_heads: bool,
    output: Vec<u8>,
    written: usize,
    inbound: Scan,
    outbound: Scan,
    /// Shared with nobody: a cell only because two scans feed it.
    counts: RefCell<Inbound>,
    server: bool,
    /// What the library calls a malformed message ends the connection.
    messaging_is_fatal: bool,
}

impl GuardedIo {
    /// `preread` is what was read of the connection before it came here.
    pub(super) fn server(
        io: Io,
        preread: Vec<u8>,
        counts: Inbound,
        stream_errors: bool,
        shared: Rc<Shared>,
        buffers: Rc<Buffers>,
    ) -> (Self, Socket) {
        let mut this = Self::new(io, counts, shared, buffers, true);
        this.messaging_is_fatal = !stream_errors;
        this.inbound = Scan::new(24);
        this.shared.received.set(preread.len() as u64);
        this.look_at_input(&preread);
        this.input = preread;
        let socket = Socket(this.io.clone());
        (this, socket)
    }

    pub(super) fn client(io: Io, counts: Inbound, shared: Rc<Shared>, buffers: Rc<Buffers>) -> Self {
        let mut this = Self::new(io, counts, shared, buffers, false);
        this.outbound = Scan::new(24);
        this
    }

    fn new(io: Io, counts: Inbound, shared: Rc<Shared>, buffers: Rc<Buffers>, server: bool) -> Self {
        Self {
            io: Rc::new(RefCell::new(io)),
            buffers,
            shared,
            input: Vec::new(),
            consumed: 0,
            has_heads: false,
            output: Vec::new(),
            written: 0,
            inbound: Scan::new(0),
            outbound: Scan::new(0),
            counts: RefCell::new(counts),
            server,
            messaging_is_fatal: false,
        }
    }

    // === reading ===

    fn look_at_input(&mut self, bytes: &[u8]) {
        let Self { inbound, counts, shared, server, has_heads, .. } = self;
        *has_heads = false;
        inbound.feed(bytes, |frame, _| {
            shared.last_kind.set(frame.kind);
            if let Some(fault) = counts.borrow_mut().frame(&frame) {
                shared.fail(fault);
            }
            match frame.kind {
                kind::HEADERS if *server => *has_heads = true,
                kind::DATA => shared.body_received.set(shared.body_received.get() + u64::from(frame.len)),
                kind::SETTINGS if !frame.has(ACK) => shared.settled.set(true),
                kind::RST_STREAM => shared.count(|counts| {
                    counts.rx_resets += 1;
                    counts.refused += u32::from(frame.code == REFUSED_STREAM);
                }),
                kind::GOAWAY => {
                    shared.going_away.set(true);
                    shared.wake_driver();
                }
                _ => {}
            }
            let ends = matches!(frame.kind, kind::DATA | kind::HEADERS) && frame.has(END_STREAM);
            if ends && !*server {
                shared.peer_ended(frame.stream);
            }
        });
    }

    fn most_at_once(&self) -> usize {
        if self.has_heads { HEADS_AT_ONCE } else { usize::MAX }
    }

    fn take_input(&mut self, buf: &mut ReadBuf<'_>) {
        let pending = &self.input[self.consumed..];
        let n = pending.len().min(buf.remaining()).min(self.most_at_once());
        buf.put_slice(&pending[..n]);
        if self.has_heads {
            self.shared.heads_given(n);
        }
        self.consumed += n;
        if self.consumed == self.input.len() {
            self.consumed = 0;
            self.buffers.give(std::mem::take(&mut self.input));
        }
    }

    fn read_socket(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut scratch = self.buffers.take_scratch();
        let read = self.io.borrow_mut().poll_read(cx, &mut scratch);
        if let Poll::Ready(Ok(n)) = read {
            self.shared.eof.set(n == 0);
            self.shared.received.set(self.shared.received.get() + n as u64);
            self.shared.last_read.set(Instant::now());
            self.look_at_input(&scratch[..n]);
            let direct = n.min(buf.remaining()).min(self.most_at_once());
            buf.put_slice(&scratch[..direct]);
            if self.has_heads {
                self.shared.heads_given(direct);
            }
            if direct < n {
                self.input = self.buffers.take();
                self.input.extend_from_slice(&scratch[direct..n]);
            }
        }
        self.buffers.give_scratch(scratch);
        read.map_ok(drop)
    }

    // === writing ===

    /// `bytes` are the last ones of `output`.
    fn look_at_output(&mut self, bytes: &[u8]) {
        let Self { outbound, counts, shared, server, messaging_is_fatal, output, written, .. } = self;
        outbound.feed(bytes, |frame: Frame, behind| match frame.kind {
            kind::DATA => counts.borrow_mut().data_sent += 1,
            kind::HEADERS if !*server => counts.borrow_mut().opened += 1,
            // Only the library resets with this code: the peer's message was malformed. The connection ends for that,
            // so the stream's reset does not go out.
            kind::RST_STREAM if *messaging_is_fatal && frame.code == PROTOCOL_ERROR => {
                shared.fail(Fault::new(FaultKind::Messaging));
                let end = output.len() - behind;
                if let Some(start) = end.checked_sub(RESET_LEN).filter(|start| *start >= *written) {
                    output.drain(start..end);
                }
            }
            kind::RST_STREAM => shared.count(|counts| counts.tx_resets += 1),
            _ => {}
        });
    }

    /// Everything gathered goes to the socket.
    fn write_out(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.output.len() {
            let written = self.io.borrow_mut().poll_write(cx, &self.output[self.written..]);
            match written {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(n)) => {
                    self.written += n;
                    self.shared.sent.set(self.shared.sent.get() + n as u64);
                    self.shared.blocked_since.set(None);
                }
                Poll::Ready(Err(e)) => return Poll::Ready(Err(e)),
                Poll::Pending => {
                    if self.shared.blocked_since.get().is_none() {
                        self.shared.blocked_since.set(Some(Instant::now()));
                    }
                    return Poll::Pending;
                }
            }
        }
        self.written = 0;
        self.buffers.give(std::mem::take(&mut self.output));
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for GuardedIo {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.shared.fault().is_some() {
            // Whoever polls the library sees the fault as soon as it returns.
            return Poll::Pending;
        }
        if this.shared.has_heads_enough() {
            // The connection's task goes on when they are accepted.
            return Poll::Pending;
        }
        if !this.input.is_empty() {
            this.take_input(buf);
            return Poll::Ready(Ok(()));
        }
        if this.shared.eof.get() {
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        ready!(this.read_socket(cx, buf))?;
        if this.shared.fault().is_some() {
            // What came with the frame too many is not acted on.
            buf.set_filled(before);
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for GuardedIo {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.output.len() + bytes.len() > GATHER && !this.output.is_empty() {
            ready!(this.write_out(cx))?;
        }
        let n = bytes.len().min(GATHER);
        if this.output.capacity() == 0 {
            this.output = this.buffers.take();
        }
        this.output.extend_from_slice(&bytes[..n]);
        this.look_at_output(&bytes[..n]);
        Poll::Ready(Ok(n))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.write_out(cx))?;
        ready!(this.io.borrow_mut().poll_flush(cx))?;
        this.shared.flushed();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.write_out(cx))?;
        this.io.borrow_mut().poll_shutdown(cx)
    }
}
