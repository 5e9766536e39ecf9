//! An encrypted connection, driven on the worker's own buffers. One long file, because the order of what the library says
//! and what is encrypted must be seen at once.
//!
//! The library's unbuffered connection keeps keys and state but no bytes. What the socket has is read into the worker's
//! scratch buffer, decrypted there and handed on; what is written is encrypted into scratch and written from there. An
//! idle connection holds no buffer: only an incomplete record, what was decrypted and did not fit, and what the socket
//! did not take are kept, in vectors borrowed from the worker. A long file: both directions share the state of one connection.

use std::io::{self, IoSlice};
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker, ready};

use nuncio_core::net::{Io, Stream};
use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, EncodeTlsData, EncryptError, UnbufferedStatus};
use rustls::{CipherSuite, CommonState, Error, ProtocolVersion, SupportedCipherSuite};

use super::TlsCounts;
use super::failure::TlsFailure;
use super::ocsp::Shown;
use super::witness::{self, Witness};
use crate::net::Buffers;

/// A record on the wire is at most so long.
const RECORD: usize = 5 + 16 * 1024 + 256;
/// A peer's handshake messages may be so long together before they are read.
const HANDSHAKE_LIMIT: usize = 64 * 1024;
/// So much plain text is encrypted at once; the rest of the scratch buffer is for the records around it.
const WRITE_AT_ONCE: usize = 64 * 1024;
/// Pieces shorter than this share a record.
const GATHER: usize = 8 * 1024;
/// Content type of records with what the users of a connection send, and with everything that is encrypted in TLS 1.3.
const APPLICATION_DATA: u8 = 23;
/// As BoringSSL.
const MOST_EMPTY: u8 = 32;
pub(super) const TOO_MANY_EMPTY: &str = "too many empty fragments";
/// Plain text of one record.
const PLAIN: usize = 16 * 1024;

/// A connection of either side.
pub(super) trait Session: 'static {
    type Data: 'static;
    fn state(&self) -> &CommonState;
    fn process<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data>;
    /// The handshake is done, and what is left to be said of it are session tickets.
    fn only_tickets_wait(&self) -> bool;
}

impl Session for UnbufferedClientConnection {
    type Data = ClientConnectionData;

    fn state(&self) -> &CommonState {
        self
    }

    fn process<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(incoming)
    }

    fn only_tickets_wait(&self) -> bool {
        false
    }
}

impl Session for UnbufferedServerConnection {
    type Data = ServerConnectionData;

    fn state(&self) -> &CommonState {
        self
    }

    fn process<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(incoming)
    }

    fn only_tickets_wait(&self) -> bool {
        !self.is_handshaking() && self.protocol_version() == Some(ProtocolVersion::TLSv1_3)
    }
}

/// Encrypted bytes over another connection.
pub(super) struct TlsStream<S: Session> {
    io: Io,
    session: S,
    buffers: Rc<Buffers>,
    /// Bytes of the peer that are no whole record or message yet.
    incoming: Vec<u8>,
    /// Records that the socket did not take yet, from `sent` on.
    outgoing: Vec<u8>,
    sent: usize,
    /// Decrypted and not read yet, from `read` on.
    plain: Vec<u8>,
    read: usize,
    /// The peer will send nothing more.
    ended: bool,
    /// We shall send nothing more.
    closed: bool,
    failed: Option<Error>,
    /// `outgoing` holds nothing that the peer waits for: session tickets, which go out with the first answer.
    unhurried: bool,
    /// Records without content that came one after the other.
    empty: u8,
    /// Who hears of a failure after the handshake.
    pub(super) tell_failure: Option<(Rc<TlsCounts>, Arc<OnceLock<String>>)>,
    pub(super) witness: Witness,
}

/// Where decrypted bytes go: first to the reader, the rest is kept.
struct Sink<'a> {
    to: &'a mut [u8],
    filled: usize,
    rest: &'a mut Vec<u8>,
    buffers: &'a Buffers,
}

impl Sink<'_> {
    fn put(&mut self, bytes: &[u8]) {
        let fits = if self.rest.is_empty() { bytes.len().min(self.to.len() - self.filled) } else { 0 };
        self.to[self.filled..self.filled + fits].copy_from_slice(&bytes[..fits]);
        self.filled += fits;
        if fits < bytes.len() {
            if self.rest.capacity() == 0 {
                *self.rest = self.buffers.take();
            }
            self.rest.extend_from_slice(&bytes[fits..]);
        }
    }
}

impl<S: Session> TlsStream<S> {
    /// `preread`: what was read of the peer already.
    pub(super) fn new(io: Io, session: S, preread: Vec<u8>, buffers: Rc<Buffers>) -> Self {
        Self {
            io,
            session,
            buffers,
            incoming: preread,
            outgoing: Vec::new(),
            sent: 0,
            plain: Vec::new(),
            read: 0,
            ended: false,
            closed: false,
            failed: None,
            unhurried: false,
            empty: 0,
            tell_failure: None,
            witness: Witness::default(),
        }
    }

    pub(super) fn state(&self) -> &CommonState {
        self.session.state()
    }

    /// Drives the handshake to its end. A failure's alert is with the socket, as far as that takes it.
    pub(super) fn poll_handshake(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), TlsFailure>> {
        loop {
            let mut held = std::mem::take(&mut self.incoming);
            let first = first_bytes(&held);
            witness::note(|note| note.status = self.witness.status);
            let consumed = self.advance(&mut held, &mut []).0;
            held.drain(..consumed);
            self.incoming = held;
            if let Some(error) = &self.failed {
                let failure = match self.witness.status {
                    Some(Shown::Refused) => TlsFailure::without_status(),
                    _ => TlsFailure::new(error, self.witness.refusal.as_ref(), &first),
                };
                self.closed = true;
                let _ = self.poll_out(cx);
                return Poll::Ready(Err(failure));
            }
            // As Envoy, with the first answer: the client has sent its last handshake message and waits for no more.
            self.unhurried = self.session.only_tickets_wait();
            if self.unhurried {
                return Poll::Ready(Ok(()));
            }
            match ready!(self.poll_out(cx)) {
                Ok(()) => {}
                Err(_) => return Poll::Ready(Err(self.gone())),
            }
            if !self.session.state().is_handshaking() {
                return Poll::Ready(Ok(()));
            }
            if self.incoming.len() > HANDSHAKE_LIMIT {
                let error = Error::InvalidMessage(rustls::InvalidMessage::HandshakePayloadTooLarge);
                return Poll::Ready(Err(TlsFailure::new(&error, None, b"")));
            }
            let mut scratch = self.buffers.take_scratch();
            let read = self.io.poll_read(cx, &mut scratch[..RECORD]);
            if let Poll::Ready(Ok(n)) = read {
                if self.incoming.capacity() == 0 {
                    self.incoming = self.buffers.take();
                }
                self.incoming.extend_from_slice(&scratch[..n]);
            }
            self.buffers.give_scratch(scratch);
            match ready!(read) {
                Ok(n) if n > 0 => {}
                _ => return Poll::Ready(Err(self.gone())),
            }
        }
    }

    fn gone(&mut self) -> TlsFailure {
        self.closed = true;
        TlsFailure::closed()
    }

    /// Gives `input` to the library until it wants more. Says how much of it is done with, and how much plain text is
    /// in `to`; what it has to say itself is in `outgoing`, and a failure in `failed`.
    fn advance(&mut self, input: &mut [u8], to: &mut [u8]) -> (usize, usize) {
        if self.failed.is_some() {
            // The library must not be shown anything after that.
            return (input.len(), 0);
        }
        let mut at = 0;
        let mut sink = Sink { to, filled: 0, rest: &mut self.plain, buffers: &self.buffers };
        loop {
            let UnbufferedStatus { mut discard, state, .. } = self.session.process(&mut input[at..]);
            let mut more = true;
            match state {
                Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                    while let Some(record) = traffic.next_record() {
                        match record {
                            Ok(record) => {
                                discard += record.discard;
                                sink.put(record.payload);
                            }
                            Err(error) => self.failed = Some(error),
                        }
                    }
                }
                Ok(ConnectionState::EncodeTlsData(data)) => encode(data, &mut self.outgoing, &self.buffers),
                // It is in `outgoing`, before whatever is written later.
                Ok(ConnectionState::TransmitTlsData(data)) => data.done(),
                Ok(ConnectionState::PeerClosed) => self.ended = true,
                Ok(ConnectionState::BlockedHandshake | ConnectionState::WriteTraffic(_)) => more = false,
                Ok(ConnectionState::Closed) => {
                    self.ended = true;
                    more = false;
                }
                // Early data is never offered.
                Ok(_) => more = false,
                Err(error) => {
                    self.failed = Some(error);
                    (discard, more) = (input.len() - at, false);
                }
            }
            at += discard;
            if !more {
                break;
            }
        }
        let filled = sink.filled;
        if self.failed.is_some() {
            self.take_alert();
            self.tell_of_failure();
        }
        witness::take(&mut self.witness);
        (at, filled)
    }

    /// What the library wants to say about a failure. It must not read anything more: as long as it has something to
    /// say it does not.
    fn take_alert(&mut self) {
        while self.session.state().wants_write() {
            match self.session.process(&mut []).state {
                Ok(ConnectionState::EncodeTlsData(data)) => encode(data, &mut self.outgoing, &self.buffers),
                Ok(ConnectionState::ReadTraffic(mut traffic)) => while traffic.next_record().is_some() {},
                _ => return,
            }
        }
    }

    fn tell_of_failure(&mut self) {
        let Some(error) = &self.failed else { return };
        let Some((counts, text)) = self.tell_failure.take() else { return };
        let failure = TlsFailure::new(error, None, b"");
        counts.failed(&failure);
        let _ = text.set(failure.text);
    }

    /// Records that hold nothing cost us and tell us nothing; no peer has a reason for more than a few.
    fn tolerates(&mut self, records: &[u8]) -> bool {
        let overhead = self.session.state().negotiated_cipher_suite().map_or(0, record_overhead);
        let mut rest = records;
        while let [kind, _, _, high, low, body @ ..] = rest {
            let length = usize::from(*high) << 8 | usize::from(*low);
            let Some((_, after)) = body.split_at_checked(length) else { break };
            let holds_nothing = *kind == APPLICATION_DATA && length <= overhead;
            self.empty = if holds_nothing { self.empty.saturating_add(1) } else { 0 };
            if self.empty > MOST_EMPTY {
                return false;
            }
            rest = after;
        }
        true
    }

    /// One read of the socket, as far as it brings plain text, its end or a failure.
    fn poll_in(&mut self, cx: &mut Context<'_>, to: &mut [u8]) -> Poll<io::Result<usize>> {
        loop {
            if self.ended || self.failed.is_some() {
                return Poll::Ready(self.failed.as_ref().map_or(Ok(0), |e| Err(invalid(e))));
            }
            let mut scratch = self.buffers.take_scratch();
            let said = self.outgoing.len();
            let kept = self.incoming.len();
            let room = (kept + RECORD).max(to.len()).min(scratch.len());
            let read = if kept < room {
                scratch[..kept].copy_from_slice(&self.incoming);
                self.io.poll_read(cx, &mut scratch[kept..room])
            } else {
                Poll::Ready(Err(io::ErrorKind::InvalidData.into()))
            };
            let filled = match read {
                Poll::Ready(Ok(n)) if n > 0 => {
                    if !self.tolerates(&scratch[..kept + n]) {
                        self.failed = Some(Error::General(TOO_MANY_EMPTY.to_owned()));
                        self.tell_of_failure();
                    }
                    let (consumed, filled) = self.advance(&mut scratch[..kept + n], to);
                    self.keep(&scratch[consumed..kept + n]);
                    filled
                }
                Poll::Ready(Ok(_)) => {
                    // No close_notify: Envoy takes it for the end as well.
                    self.ended = true;
                    0
                }
                _ => 0,
            };
            self.buffers.give_scratch(scratch);
            if read.is_pending() && std::mem::take(&mut self.unhurried) {
                // The client has not asked yet: perhaps its kernel holds the question back until it hears of us.
                let _ = self.poll_out(cx);
            }
            ready!(read)?;
            if self.outgoing.len() > said {
                // An alert, or the answer to a key update.
                self.unhurried = false;
                let _ = self.poll_out(cx)?;
            }
            if filled > 0 || self.has_plain() {
                return Poll::Ready(Ok(filled));
            }
        }
    }

    fn keep(&mut self, rest: &[u8]) {
        self.incoming.clear();
        if !rest.is_empty() {
            if self.incoming.capacity() == 0 {
                self.incoming = self.buffers.take();
            }
            self.incoming.extend_from_slice(rest);
        } else if self.incoming.capacity() > 0 {
            self.buffers.give(std::mem::take(&mut self.incoming));
        }
    }

    fn has_plain(&self) -> bool {
        self.read < self.plain.len()
    }

    fn take_plain(&mut self, to: &mut [u8]) -> usize {
        let waiting = &self.plain[self.read..];
        let n = waiting.len().min(to.len());
        to[..n].copy_from_slice(&waiting[..n]);
        self.read += n;
        if self.read == self.plain.len() {
            self.buffers.give(std::mem::take(&mut self.plain));
            self.read = 0;
        }
        n
    }

    /// Ready when the socket took everything.
    fn poll_out(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.outgoing.len() {
            match ready!(self.io.poll_write(cx, &self.outgoing[self.sent..])) {
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Ok(n) => self.sent += n,
                Err(e) => return Poll::Ready(Err(e)),
            }
        }
        if self.outgoing.capacity() > 0 {
            self.buffers.give(std::mem::take(&mut self.outgoing));
        }
        self.sent = 0;
        Poll::Ready(Ok(()))
    }

    /// Encrypts plain text, or a close_notify, into `into`. Records of the library's own go to `outgoing` before.
    fn seal(&mut self, what: Seal<'_>, into: &mut [u8]) -> io::Result<usize> {
        let mut held = std::mem::take(&mut self.incoming);
        // Until it has nothing else to say.
        let consumed = self.advance(&mut held, &mut []).0;
        held.drain(..consumed);
        let sealed = match self.session.process(&mut held).state {
            Ok(ConnectionState::WriteTraffic(mut traffic)) => match what {
                Seal::Plain(bytes) => traffic.encrypt(bytes, into),
                Seal::CloseNotify => traffic.queue_close_notify(into),
            },
            _ => Ok(0),
        };
        self.incoming = held;
        if let Some(error) = &self.failed {
            return Err(invalid(error));
        }
        sealed.map_err(|e| match e {
            EncryptError::InsufficientSize(_) => io::Error::other("a record is larger than its buffer"),
            EncryptError::EncryptExhausted => io::Error::other("the keys of the connection are used up"),
        })
    }

    /// Encrypts from the front of `bufs`; says how much plain text that was and how much it became.
    fn seal_all(&mut self, bufs: &[IoSlice<'_>], scratch: &mut [u8]) -> io::Result<(usize, usize)> {
        let (out, stage) = scratch.split_at_mut(scratch.len() - PLAIN);
        let (mut plain, mut sealed, mut staged) = (0, 0, 0);
        for buf in bufs {
            let mut rest = &buf[..buf.len().min(WRITE_AT_ONCE - plain)];
            while !rest.is_empty() {
                if staged == 0 && rest.len() >= GATHER {
                    sealed += self.seal(Seal::Plain(rest), &mut out[sealed..])?;
                    plain += rest.len();
                    break;
                }
                let n = rest.len().min(PLAIN - staged);
                stage[staged..staged + n].copy_from_slice(&rest[..n]);
                (staged, plain, rest) = (staged + n, plain + n, &rest[n..]);
                if staged == PLAIN {
                    sealed += self.seal(Seal::Plain(&stage[..staged]), &mut out[sealed..])?;
                    staged = 0;
                }
            }
        }
        if staged > 0 {
            sealed += self.seal(Seal::Plain(&stage[..staged]), &mut out[sealed..])?;
        }
        Ok((plain, sealed))
    }

    fn say_goodbye(&mut self) {
        if self.closed || self.failed.is_some() {
            return;
        }
        self.closed = true;
        let mut record = [0; 64];
        if let Ok(n) = self.seal(Seal::CloseNotify, &mut record) {
            self.hold(&record[..n]);
        }
    }

    fn hold(&mut self, records: &[u8]) {
        if records.is_empty() {
            return;
        }
        if self.outgoing.capacity() == 0 {
            self.outgoing = self.buffers.take();
        }
        self.outgoing.extend_from_slice(records);
    }
}

/// Records of the library's own, behind what waits already.
fn encode<D>(mut data: EncodeTlsData<'_, D>, to: &mut Vec<u8>, buffers: &Buffers) {
    if to.capacity() == 0 {
        *to = buffers.take();
    }
    let start = to.len();
    if let Err(EncodeError::InsufficientSize(size)) = data.encode(&mut []) {
        to.resize(start + size.required_size, 0);
        let written = data.encode(&mut to[start..]).unwrap_or(0);
        to.truncate(start + written);
    }
}

enum Seal<'a> {
    Plain(&'a [u8]),
    CloseNotify,
}

/// How long a record of no content is: a tag, and a nonce (AES in TLS 1.2) or the inner type (TLS 1.3).
fn record_overhead(suite: SupportedCipherSuite) -> usize {
    match suite.suite() {
        _ if suite.tls13().is_some() => 16 + 1,
        CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256
        | CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256 => 16,
        _ => 16 + 8,
    }
}

fn first_bytes(held: &[u8]) -> [u8; 8] {
    let mut first = [0; 8];
    let n = held.len().min(8);
    first[..n].copy_from_slice(&held[..n]);
    first
}

fn invalid(error: &Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, TlsFailure::new(error, None, b""))
}

impl<S: Session> Stream for TlsStream<S> {
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        if self.outgoing.len() > self.sent && !self.unhurried {
            // Whoever waits for an answer may not ask again whether the question was sent.
            let _ = self.poll_out(cx);
        }
        if self.has_plain() {
            return Poll::Ready(Ok(self.take_plain(buf)));
        }
        let n = ready!(self.poll_in(cx, buf))?;
        Poll::Ready(Ok(if n == 0 && self.has_plain() { self.take_plain(buf) } else { n }))
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        if self.closed {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if !self.unhurried {
            ready!(self.poll_out(cx))?;
        }
        let mut scratch = self.buffers.take_scratch();
        let sealed = self.seal_all(bufs, &mut scratch);
        self.unhurried = false;
        let done = sealed.and_then(|(plain, sealed)| {
            let mut at = 0;
            if self.outgoing.is_empty() {
                while at < sealed {
                    match self.io.poll_write(cx, &scratch[at..sealed]) {
                        Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                        Poll::Ready(Ok(n)) => at += n,
                        Poll::Ready(Err(e)) => return Err(e),
                        Poll::Pending => break,
                    }
                }
            }
            self.hold(&scratch[at..sealed]);
            Ok(plain)
        });
        self.buffers.give_scratch(scratch);
        if done.is_ok() && self.outgoing.len() > self.sent {
            let _ = self.poll_out(cx)?;
        }
        Poll::Ready(done)
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_out(cx))?;
        self.io.poll_flush(cx)
    }

    fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.say_goodbye();
        ready!(self.poll_out(cx))?;
        self.io.poll_shutdown(cx)
    }

    fn poll_read_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Bytes of the socket may be none of ours: session tickets, key updates.
        if !self.has_plain() {
            ready!(self.poll_in(cx, &mut []))?;
        }
        Poll::Ready(Ok(()))
    }

    fn abort(&mut self) {
        self.closed = true;
        self.io.abort();
    }
}

impl<S: Session> Drop for TlsStream<S> {
    fn drop(&mut self) {
        // A peer must be able to tell the end from a cut; what the socket does not take now is lost.
        if !self.session.state().is_handshaking() {
            self.say_goodbye();
            let _ = self.poll_out(&mut Context::from_waker(Waker::noop()));
        }
        for buffer in [&mut self.incoming, &mut self.outgoing, &mut self.plain] {
            self.buffers.give(std::mem::take(buffer));
        }
    }
}
