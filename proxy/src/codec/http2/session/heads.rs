//! Blocks of fields: heads and trailers (RFC 9113 §4.3 and §8).

use nuncio_core::http::{Framing, RequestHead};

use super::super::fields::{MESSAGING, RequestReader, ResponseReader, TrailersReader, Violation};
use super::super::flood::{Fault, FaultKind};
use super::super::frame::{Frame, code, flag, number};
use super::super::hpack::Malformed;
use super::stream::{MAX_INTERIM, TooMany};
use super::{Event, Goodbye, Role, Session};

/// The block that is coming, if it takes more than one frame.
#[derive(Default)]
pub(super) struct Block {
    bytes: Vec<u8>,
    /// 0: none.
    stream: u32,
    end: bool,
    malformed: bool,
    /// For what is coded by Huffman's tree.
    text: Vec<u8>,
}

impl Block {
    /// Between its frames nothing else may come.
    pub(super) fn is_open(&self) -> bool {
        self.stream != 0
    }
}

/// What a head's frame says beside its fields.
struct Headed {
    id: u32,
    end: bool,
    /// It depends on itself (§5.3.1 of RFC 7540; nobody else checks it).
    malformed: bool,
}

fn protocol() -> Fault {
    Fault::new(FaultKind::Protocol)
}

impl Session {
    pub(super) fn on_headers(
        &mut self,
        frame: Frame,
        payload: &[u8],
        head: Option<&mut RequestHead>,
    ) -> Result<Option<Event>, Fault> {
        if frame.stream == 0 {
            return Err(protocol());
        }
        let mut fragment = payload;
        let mut padding = 0;
        if frame.has(flag::PADDED) {
            let (pad, rest) = fragment.split_first().ok_or(Fault::new(FaultKind::FrameSize))?;
            (padding, fragment) = (usize::from(*pad), rest);
        }
        let mut malformed = false;
        if frame.has(flag::PRIORITY) {
            let (priority, rest) = fragment.split_at_checked(5).ok_or(Fault::new(FaultKind::FrameSize))?;
            malformed = number(priority) & 0x7fff_ffff == frame.stream;
            fragment = rest;
        }
        let len = fragment.len().checked_sub(padding).ok_or(protocol())?;
        fragment = &fragment[..len];
        let headed = Headed { id: frame.stream, end: frame.has(flag::END_STREAM), malformed };
        if frame.has(flag::END_HEADERS) {
            return self.on_block(&headed, fragment, head);
        }
        self.block.bytes = self.buffers.take();
        self.block.bytes.extend_from_slice(fragment);
        (self.block.stream, self.block.end, self.block.malformed) = (headed.id, headed.end, headed.malformed);
        Ok(None)
    }

    pub(super) fn on_continuation(
        &mut self,
        frame: Frame,
        payload: &[u8],
        head: Option<&mut RequestHead>,
    ) -> Result<Option<Event>, Fault> {
        if !self.block.is_open() || frame.stream != self.block.stream {
            return Err(protocol());
        }
        // How large it may become is counted with the frames.
        self.block.bytes.extend_from_slice(payload);
        if !frame.has(flag::END_HEADERS) {
            return Ok(None);
        }
        let bytes = std::mem::take(&mut self.block.bytes);
        let headed = Headed { id: self.block.stream, end: self.block.end, malformed: self.block.malformed };
        self.block.stream = 0;
        let event = self.on_block(&headed, &bytes, head);
        self.buffers.give(bytes);
        event
    }

    fn on_block(
        &mut self,
        headed: &Headed,
        block: &[u8],
        head: Option<&mut RequestHead>,
    ) -> Result<Option<Event>, Fault> {
        if let Some(slot) = self.streams.find(headed.id) {
            if self.is_server() || self.streams.get(slot).head_done {
                return self.on_trailers(slot, headed, block).map(|()| None);
            }
            return self.on_response(slot, headed, block).map(|()| None);
        }
        match head {
            Some(head) if headed.id % 2 == 1 && self.streams.is_new(headed.id) => self.on_request(headed, block, head),
            _ => self.on_late_block(headed.id, block).map(|()| None),
        }
    }

    /// A block for a stream that is over, or that cannot be.
    fn on_late_block(&mut self, id: u32, block: &[u8]) -> Result<(), Fault> {
        if self.streams.is_idle(id, self.is_server()) {
            return Err(protocol());
        }
        match self.streams.how_it_ended(id) {
            // It was on its way when we reset the stream.
            Some(true) => self.skip_block(block),
            Some(false) => Err(Fault::new(FaultKind::StreamClosed)),
            None => Err(protocol()),
        }
    }

    /// The tables must stay those of the peer.
    fn skip_block(&mut self, block: &[u8]) -> Result<(), Fault> {
        self.decoder.decode(block, &mut self.block.text, |_, _, _| {}).map_err(compression)
    }

    fn on_request(&mut self, headed: &Headed, block: &[u8], head: &mut RequestHead) -> Result<Option<Event>, Fault> {
        let Role::Server(options) = &self.role else { return Err(protocol()) };
        let options = options.clone();
        self.streams.see(headed.id);
        if self.goodbye == Goodbye::Said {
            // The peer was told that nobody looks at it.
            self.streams.remember(headed.id, true);
            self.skip_block(block)?;
            return Ok(None);
        }
        let max = options.http2.max_concurrent_streams as usize;
        if self.streams.alive() >= max && self.streams.open() >= max {
            self.skip_block(block)?;
            self.refuse(headed.id, code::REFUSED_STREAM);
            return Ok(None);
        }
        let mut reader = RequestReader::new(&options, head);
        self.decoder
            .decode(block, &mut self.block.text, |name, value, secret| reader.field(name, value, secret))
            .map_err(compression)?;
        let mut read = reader.finish(headed.end);
        self.turn.spend_request(head.headers.byte_size());
        if headed.malformed && read.is_ok() {
            read = Err(MESSAGING);
        }
        match read {
            Ok(read) => {
                let slot = self.streams.accept(headed.id, self.flow.stream_window, self.peer.window);
                let stream = self.streams.get(slot);
                stream.recv_ended = headed.end;
                stream.head_done = true;
                stream.remaining = read.length;
                Ok(Some(Event::Request { slot, read }))
            }
            Err(Violation::Messaging(details)) if !options.http2.stream_error_on_invalid => {
                Err(Fault { kind: FaultKind::Messaging, details })
            }
            Err(Violation::Messaging(details)) => {
                self.refuse(headed.id, code::PROTOCOL_ERROR);
                Ok(Some(Event::Refused(details)))
            }
            Err(Violation::Limit(details)) => {
                // As Envoy.
                self.refuse(headed.id, code::INTERNAL_ERROR);
                Ok(Some(Event::Refused(details)))
            }
        }
    }

    /// A stream that is not let in.
    fn refuse(&mut self, id: u32, code: u32) {
        self.put_reset(id, code);
        self.streams.remember(id, true);
    }

    fn on_response(&mut self, slot: usize, headed: &Headed, block: &[u8]) -> Result<(), Fault> {
        let Role::Client(options) = &self.role else { return Err(protocol()) };
        let limits = (options.max_headers, options.max_head_bytes);
        let mut head = self.streams.spare_head();
        let mut reader = ResponseReader::new(limits, &mut head);
        self.decoder
            .decode(block, &mut self.block.text, |name, value, secret| reader.field(name, value, secret))
            .map_err(compression)?;
        let length = match reader.finish(headed.end) {
            Ok(length) => length,
            Err(details) => {
                self.streams.keep_head(head);
                return self.malformed(slot, details);
            }
        };
        let stream = self.streams.get(slot);
        if head.is_interim() {
            stream.interim += 1;
            if headed.end {
                return self.malformed(slot, "an interim response that ends");
            }
            if usize::from(stream.interim) > MAX_INTERIM {
                return self.malformed(slot, "too many interim responses");
            }
        } else {
            stream.head_done = true;
            stream.recv_ended = headed.end;
            let tunnel = stream.is_connect && (200..300).contains(&head.status);
            let bodiless = stream.is_head || matches!(head.status, 204 | 304);
            stream.remaining = if bodiless { Some(0) } else { length.filter(|_| !tunnel) };
            if head.status == 204 && length.is_some_and(|n| n > 0) {
                return self.malformed(slot, "a content-length with 204");
            }
            if bodiless && length.is_none() && !stream.is_head {
                head.framing = Framing::None;
            }
            if headed.end && stream.remaining.is_some_and(|n| n > 0) {
                return self.malformed(slot, "a content-length without a body");
            }
        }
        let stream = self.streams.get(slot);
        stream.heads.push_back(head);
        stream.wake_receiver();
        Ok(())
    }

    fn on_trailers(&mut self, slot: usize, headed: &Headed, block: &[u8]) -> Result<(), Fault> {
        let limits = match &self.role {
            Role::Server(options) => (options.max_headers, options.max_head_bytes),
            Role::Client(options) => (options.max_headers, options.max_head_bytes),
        };
        let mut reader = TrailersReader::new(limits);
        self.decoder
            .decode(block, &mut self.block.text, |name, value, secret| reader.field(name, value, secret))
            .map_err(compression)?;
        let stream = self.streams.get(slot);
        if stream.reset || stream.error.is_some() {
            return Ok(());
        }
        if stream.recv_ended {
            // §5.1, half-closed (remote).
            self.fail_stream(slot, code::STREAM_CLOSED, "a head behind the end");
            return Ok(());
        }
        let Violation::Messaging(rule) = MESSAGING else { return Ok(()) };
        if !headed.end || headed.malformed || stream.remaining.is_some_and(|n| n > 0) {
            return self.malformed(slot, rule);
        }
        let trailers = match reader.finish() {
            Ok(map) if map.is_empty() => None,
            Ok(map) => Some(Ok(map)),
            Err(Violation::Limit(_)) => Some(Err(TooMany)),
            Err(Violation::Messaging(details)) => return self.malformed(slot, details),
        };
        self.counts.trailers += u32::from(matches!(trailers, Some(Ok(_))));
        let stream = self.streams.get(slot);
        stream.trailers = trailers;
        stream.recv_ended = true;
        stream.wake_receiver();
        Ok(())
    }

    /// A message that breaks a rule: it ends its stream, and downstream the connection, as configured.
    pub(super) fn malformed(&mut self, slot: usize, details: &'static str) -> Result<(), Fault> {
        if let Role::Server(options) = &self.role
            && !options.http2.stream_error_on_invalid
        {
            return Err(Fault { kind: FaultKind::Messaging, details });
        }
        self.fail_stream(slot, code::PROTOCOL_ERROR, details);
        Ok(())
    }
}

fn compression(Malformed(_): Malformed) -> Fault {
    Fault::new(FaultKind::Compression)
}
