//! What comes: bytes into frames, and frames to their places (RFC 9113 §6).

use std::io;
use std::task::{Context, Poll, ready};

use nuncio_core::http::RequestHead;
use tokio::time::Instant;

use super::super::flood::{Fault, FaultKind};
use super::super::frame::{Frame, HEAD, MAX_PAYLOAD, MAX_STREAM, MAX_WINDOW, code, flag, kind, number, put_ping};
use super::super::stream_error::StreamError;
use super::{ALIVE, Ended, Event, GOING, Goodbye, Role, Session};

/// Streams beyond their limit whose ends nobody has dealt with yet: then nothing is read until somebody has.
const LEFT_OVER: usize = 100;

#[derive(Default)]
pub(super) struct Input {
    /// What was read last, while the connection's task is at it.
    reading: Option<Reading>,
    /// The beginning of a frame, or what nobody wants to look at now.
    rest: Vec<u8>,
    /// Bytes of the client's preface that are still to come.
    preface: u8,
    received: u64,
}

struct Reading {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Input {
    pub(super) fn of_server(preread: Vec<u8>) -> Self {
        let received = preread.len() as u64;
        Self { reading: None, rest: preread, preface: super::super::PREFACE.len() as u8, received }
    }

    pub(super) fn received(&self) -> u64 {
        self.received
    }
}

impl Reading {
    fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }
}

fn protocol() -> Fault {
    Fault::new(FaultKind::Protocol)
}

impl Session {
    /// Reads, and writes what waits, until there is something to tell or nothing can be done. A server's requests are
    /// read into `head` one by one, and what came behind one waits until this is called again.
    pub(in crate::codec::http2) fn advance(
        &mut self,
        cx: &mut Context<'_>,
        mut head: Option<&mut RequestHead>,
    ) -> Poll<Event> {
        let mut reading = match self.input.reading.take() {
            Some(reading) => reading,
            None => self.begin_reading(),
        };
        let event = self.advance_with(cx, &mut reading, &mut head);
        if event.is_ready() && reading.start < reading.end {
            self.input.reading = Some(reading);
        } else {
            self.input.rest = self.buffers.take();
            self.input.rest.extend_from_slice(reading.bytes());
            if self.input.rest.is_empty() {
                self.buffers.give(std::mem::take(&mut self.input.rest));
            }
            self.buffers.give_scratch(reading.bytes);
        }
        event
    }

    fn begin_reading(&mut self) -> Reading {
        let rest = std::mem::take(&mut self.input.rest);
        let mut bytes = self.buffers.take_scratch();
        let end = rest.len().min(bytes.len());
        bytes[..end].copy_from_slice(&rest[..end]);
        self.buffers.give(rest);
        Reading { bytes, start: 0, end }
    }

    fn advance_with(
        &mut self,
        cx: &mut Context<'_>,
        reading: &mut Reading,
        head: &mut Option<&mut RequestHead>,
    ) -> Poll<Event> {
        loop {
            if self.ended.is_none() {
                match self.parse(reading, head) {
                    Ok(Some(event)) => return Poll::Ready(event),
                    Ok(None) => {}
                    Err(fault) => {
                        self.fail(fault);
                        return Poll::Ready(Event::Failed);
                    }
                }
            }
            match self.output.flush(&mut self.io, cx) {
                Poll::Ready(Err(_)) => return Poll::Ready(Event::Lost),
                Poll::Pending if self.output.has_enough() => return Poll::Pending,
                _ => {}
            }
            if self.ended.is_some() || self.has_streams_enough() || self.turn.ends(cx) {
                return Poll::Pending;
            }
            if Frame::parse(reading.bytes()).is_some_and(|frame| HEAD + frame.len as usize <= reading.bytes().len()) {
                // It waited for replies to leave, or has to wait for the next turn.
                continue;
            }
            if self.eof {
                return Poll::Ready(Event::Lost);
            }
            match ready!(self.read(cx, reading)) {
                Ok(0) => self.eof = true,
                Ok(_) => {}
                Err(_) => return Poll::Ready(Event::Lost),
            }
        }
    }

    fn has_streams_enough(&self) -> bool {
        let Role::Server(options) = &self.role else { return false };
        self.streams.alive() > options.http2.max_concurrent_streams as usize + LEFT_OVER
    }

    fn read(&mut self, cx: &mut Context<'_>, reading: &mut Reading) -> Poll<io::Result<usize>> {
        if reading.start > 0 {
            reading.bytes.copy_within(reading.start..reading.end, 0);
            reading.end -= reading.start;
            reading.start = 0;
        }
        // A head that goes on and on is not read in large pieces: it may be one that does not end.
        let most = if self.block.is_open() { MAX_PAYLOAD } else { usize::MAX };
        let end = reading.bytes.len().min(reading.end.saturating_add(most));
        let n = ready!(self.io.poll_read(cx, &mut reading.bytes[reading.end..end]))?;
        reading.end += n;
        self.input.received += n as u64;
        self.last_read = Instant::now();
        Poll::Ready(Ok(n))
    }

    /// Looks at the frames that are there.
    fn parse(&mut self, reading: &mut Reading, head: &mut Option<&mut RequestHead>) -> Result<Option<Event>, Fault> {
        if self.input.preface > 0 {
            self.take_preface(reading)?;
        }
        while let Some(frame) = Frame::parse(reading.bytes()) {
            if let Some(fault) = self.check(&frame) {
                return Err(fault);
            }
            let (start, end) = (reading.start + HEAD, reading.start + HEAD + frame.len as usize);
            if end > reading.end || self.turn.is_over() || self.output.has_enough() || self.has_streams_enough() {
                return Ok(None);
            }
            self.turn.spend_frame(frame.len as usize);
            // It is counted only when it is looked at, since it may be seen more than once before.
            if let Some(fault) = self.inbound.frame(&frame) {
                return Err(fault);
            }
            reading.start = end;
            if let Some(event) = self.on_frame(frame, &reading.bytes[start..end], head.as_deref_mut())? {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    fn take_preface(&mut self, reading: &mut Reading) -> Result<(), Fault> {
        let wanted = &super::super::PREFACE[super::super::PREFACE.len() - usize::from(self.input.preface)..];
        let n = wanted.len().min(reading.bytes().len());
        if reading.bytes()[..n] != wanted[..n] {
            return Err(protocol());
        }
        reading.start += n;
        self.input.preface -= n as u8;
        Ok(())
    }

    /// What its head tells of a frame, before its payload is there.
    fn check(&self, frame: &Frame) -> Option<Fault> {
        if let Some(fault) = self.inbound.check(frame) {
            return Some(fault);
        }
        let between = self.block.is_open() && frame.kind != kind::CONTINUATION;
        between.then(protocol)
    }

    fn on_frame(
        &mut self,
        frame: Frame,
        payload: &[u8],
        head: Option<&mut RequestHead>,
    ) -> Result<Option<Event>, Fault> {
        match frame.kind {
            kind::HEADERS => return self.on_headers(frame, payload, head),
            kind::CONTINUATION => return self.on_continuation(frame, payload, head),
            kind::DATA => self.on_data(frame, payload)?,
            kind::RST_STREAM => self.on_reset(frame.stream, number(payload))?,
            kind::WINDOW_UPDATE => self.on_window_update(frame.stream, number(payload) & MAX_STREAM)?,
            kind::PRIORITY => self.on_priority(frame.stream, number(payload) & MAX_STREAM)?,
            kind::SETTINGS | kind::PING | kind::GOAWAY if frame.stream != 0 => return Err(protocol()),
            kind::SETTINGS if frame.has(flag::ACK) => self.decoder.acknowledged(),
            kind::SETTINGS => self.on_settings(payload)?,
            kind::PING => self.on_ping(frame.has(flag::ACK), payload),
            kind::GOAWAY => {
                self.going_away = true;
                if !self.is_server() {
                    self.streams.refuse_above(number(payload) & MAX_STREAM);
                }
                self.wake_driver();
            }
            kind::PUSH_PROMISE => return Err(protocol()),
            // §4.1: what is unknown is ignored.
            _ => {}
        }
        Ok(None)
    }

    fn on_data(&mut self, frame: Frame, payload: &[u8]) -> Result<(), Fault> {
        if frame.stream == 0 {
            return Err(protocol());
        }
        let whole = payload.len();
        if !self.flow.take(frame.len) {
            return Err(Fault::new(FaultKind::FlowControl));
        }
        let mut data = payload;
        if frame.has(flag::PADDED) {
            let (pad, rest) = payload.split_first().ok_or(protocol())?;
            data = &rest[..rest.len().checked_sub(usize::from(*pad)).ok_or(protocol())?];
        }
        let Some(slot) = self.streams.find(frame.stream) else {
            if self.streams.is_idle(frame.stream, self.is_server()) {
                return Err(protocol());
            }
            if self.streams.how_it_ended(frame.stream) != Some(true) {
                self.put_reset(frame.stream, code::STREAM_CLOSED);
                self.streams.remember(frame.stream, true);
            }
            self.release(whole);
            return Ok(());
        };
        let stream = self.streams.get(slot);
        if stream.reset || stream.error.is_some() {
            self.release(whole);
            return Ok(());
        }
        if stream.recv_ended {
            // §5.1, half-closed (remote).
            self.fail_stream(slot, code::STREAM_CLOSED, "a body behind the end");
            self.release(whole);
            return Ok(());
        }
        stream.may_come -= whole as i64;
        if stream.may_come < 0 {
            self.fail_stream(slot, code::FLOW_CONTROL_ERROR, "more than the window allows");
            self.release(whole);
            return Ok(());
        }
        let end = frame.has(flag::END_STREAM);
        let remaining = stream.remaining.map(|n| n.checked_sub(data.len() as u64).filter(|left| !end || *left == 0));
        if !stream.head_done || remaining == Some(None) {
            self.release(whole);
            return self.malformed(slot, "http2.violation.of.messaging.rule");
        }
        stream.remaining = remaining.flatten();
        stream.push(data);
        stream.recv_ended = end;
        if end || !data.is_empty() {
            stream.wake_receiver();
        }
        self.release_of(slot, whole - data.len());
        self.grow_window();
        Ok(())
    }

    fn on_reset(&mut self, id: u32, code: u32) -> Result<(), Fault> {
        if id == 0 || self.streams.is_idle(id, self.is_server()) {
            return Err(protocol());
        }
        self.counts.rx_resets += 1;
        self.counts.refused += u32::from(code == code::REFUSED_STREAM);
        if let Some(slot) = self.streams.find(id) {
            self.drop_cut_request(slot);
            self.streams.get(slot).fail(StreamError::of_reset(code));
        }
        Ok(())
    }

    /// What came of a request that will not be whole is of no use.
    fn drop_cut_request(&mut self, slot: usize) {
        if self.is_server() && !self.streams.get(slot).recv_ended {
            self.drop_unread(slot);
        }
    }

    fn on_window_update(&mut self, id: u32, more: u32) -> Result<(), Fault> {
        if id == 0 {
            if more == 0 {
                return Err(protocol());
            }
            if !self.flow.grant(more) {
                return Err(Fault::new(FaultKind::FlowControl));
            }
            self.streams.wake_waiting();
            return Ok(());
        }
        if self.streams.is_idle(id, self.is_server()) {
            return Err(protocol());
        }
        let Some(slot) = self.streams.find(id) else { return Ok(()) };
        if more == 0 {
            self.fail_stream(slot, code::PROTOCOL_ERROR, "a window that grows by nothing");
            return Ok(());
        }
        let stream = self.streams.get(slot);
        stream.may_go += i64::from(more);
        if stream.may_go > MAX_WINDOW {
            self.fail_stream(slot, code::FLOW_CONTROL_ERROR, "a window too large");
        } else if stream.may_go > 0 {
            stream.wake_sender();
        }
        Ok(())
    }

    fn on_priority(&mut self, id: u32, parent: u32) -> Result<(), Fault> {
        if id == 0 {
            return Err(protocol());
        }
        if id == parent {
            let slot = self.streams.find(id).ok_or(protocol())?;
            self.fail_stream(slot, code::PROTOCOL_ERROR, "a stream that depends on itself");
        }
        Ok(())
    }

    fn on_ping(&mut self, ack: bool, opaque: &[u8]) {
        if !ack {
            self.output.put_reply(|out| put_ping(out, flag::ACK, opaque));
        } else if opaque == ALIVE {
            self.pong = true;
            self.wake_driver();
        } else if opaque == GOING && self.goodbye == Goodbye::Announced {
            self.say_goodbye(code::NO_ERROR);
        }
    }

    /// The socket is gone, or the peer's side of it.
    pub(in crate::codec::http2) fn lost(&mut self) {
        self.end(Ended::Closed);
    }

    /// The client's preface, or the first settings, have not come yet.
    pub(in crate::codec::http2) fn is_handshaking(&self) -> bool {
        !self.peer.settled && self.ended.is_none()
    }
}
