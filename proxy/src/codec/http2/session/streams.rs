//! The streams of a connection. A slot belongs to a stream's object until that is dropped.

use std::collections::VecDeque;

use nuncio_core::http::ResponseHead;

use super::super::frame::{MAX_STREAM, MAX_WINDOW, code};
use super::super::stream_error::StreamError;
use super::Session;
use super::stream::Stream;

/// Streams that are over and still known: frames of theirs may be on their way.
const REMEMBERED: usize = 64;
/// What a connection without streams keeps for the next ones.
const KEEP_SLOTS: usize = 16;

#[derive(Default)]
pub(super) struct Streams {
    slots: Vec<Stream>,
    free: Vec<u32>,
    /// Number and slot, in the order of the numbers.
    index: Vec<(u32, u32)>,
    /// Those that wait for the connection's window, the longest wait first.
    waiting: VecDeque<u32>,
    /// The peer's highest, and the highest of those that were let in.
    highest: u32,
    last_of_peer: u32,
    /// Ours.
    opened: u32,
    /// The last ones that ended, and whether we reset them: what still comes for those is no fault.
    over: VecDeque<(u32, bool)>,
    /// The highest of those that ended before them.
    forgotten: u32,
    spare_heads: Vec<ResponseHead>,
}

impl Streams {
    // === numbers ===

    /// A number of the peer's that was not used before.
    pub(super) fn is_new(&self, id: u32) -> bool {
        id > self.highest
    }

    pub(super) fn see(&mut self, id: u32) {
        self.highest = id;
    }

    pub(super) fn last_of_peer(&self) -> u32 {
        self.last_of_peer
    }

    /// There was never such a stream.
    pub(super) fn is_idle(&self, id: u32, server: bool) -> bool {
        // Clients use odd numbers; nobody pushes.
        id.is_multiple_of(2) || id > if server { self.highest } else { self.opened }
    }

    /// The next number of ours.
    pub(super) fn next_id(&self) -> u32 {
        if self.opened == 0 { 1 } else { self.opened + 2 }
    }

    pub(super) fn is_exhausted(&self) -> bool {
        self.opened >= MAX_STREAM - 1
    }

    // === slots ===

    pub(super) fn alive(&self) -> usize {
        self.index.len()
    }

    /// Those that the peer still counts.
    pub(super) fn open(&self) -> usize {
        self.index.iter().filter(|(_, slot)| !self.slots[*slot as usize].is_over_for_peer()).count()
    }

    pub(super) fn accept(&mut self, id: u32, may_come: u32, may_go: u32) -> usize {
        self.last_of_peer = id;
        self.begin(id, may_come, may_go)
    }

    pub(super) fn open_next(&mut self, may_come: u32, may_go: u32) -> usize {
        self.opened = self.next_id();
        self.begin(self.opened, may_come, may_go)
    }

    fn begin(&mut self, id: u32, may_come: u32, may_go: u32) -> usize {
        let slot = match self.free.pop() {
            Some(slot) => slot as usize,
            None => {
                self.slots.push(Stream::default());
                self.slots.len() - 1
            }
        };
        self.slots[slot].begin(id, may_come, may_go);
        self.index.push((id, slot as u32));
        slot
    }

    pub(super) fn get(&mut self, slot: usize) -> &mut Stream {
        &mut self.slots[slot]
    }

    pub(super) fn find(&self, id: u32) -> Option<usize> {
        let at = self.index.binary_search_by_key(&id, |(id, _)| *id).ok()?;
        Some(self.index[at].1 as usize)
    }

    /// Its object is gone.
    fn remove(&mut self, slot: usize) {
        let stream = &self.slots[slot];
        let (id, reset) = (stream.id, stream.reset);
        if let Ok(at) = self.index.binary_search_by_key(&id, |(id, _)| *id) {
            self.index.remove(at);
        }
        self.remember(id, reset);
        self.free.push(slot as u32);
        if self.index.is_empty() && self.slots.len() > KEEP_SLOTS {
            self.slots = Vec::new();
            self.free = Vec::new();
            self.waiting = VecDeque::new();
            self.spare_heads = Vec::new();
        }
    }

    pub(super) fn remember(&mut self, id: u32, reset: bool) {
        if self.over.len() == REMEMBERED
            && let Some((oldest, _)) = self.over.pop_front()
        {
            self.forgotten = self.forgotten.max(oldest);
        }
        self.over.push_back((id, reset));
    }

    /// Of a stream that has no slot: it ended, and whether we reset it. One that ended long ago may have been reset, with
    /// many others at once: what still comes for it must not end the connection of all the rest.
    pub(super) fn how_it_ended(&self, id: u32) -> Option<bool> {
        let known = self.over.iter().rev().find(|(over, _)| *over == id).map(|(_, reset)| *reset);
        known.or((id <= self.forgotten).then_some(true))
    }

    // === all of them ===

    fn each(&mut self, mut call: impl FnMut(&mut Stream)) {
        for (_, slot) in &self.index {
            call(&mut self.slots[*slot as usize]);
        }
    }

    pub(super) fn wake_all(&mut self) {
        self.each(|stream| {
            stream.wake_receiver();
            stream.wake_sender();
        });
    }

    /// The peer will not look at streams above `last`.
    pub(super) fn refuse_above(&mut self, last: u32) {
        self.each(|stream| {
            if stream.id > last && !stream.recv_ended {
                stream.fail(StreamError::Refused);
            }
        });
    }

    /// The peer changed what streams begin with; whether all windows are still in bounds.
    pub(super) fn shift_windows(&mut self, change: i64) -> bool {
        let mut good = true;
        self.each(|stream| {
            stream.may_go += change;
            good &= stream.may_go <= MAX_WINDOW;
            if stream.may_go > 0 {
                stream.wake_sender();
            }
        });
        good
    }

    pub(super) fn wait_for_connection(&mut self, slot: usize) {
        if !std::mem::replace(&mut self.slots[slot].queued, true) {
            self.waiting.push_back(slot as u32);
        }
    }

    /// The connection's window has grown. Whoever finds it used up again waits anew, behind the others.
    pub(super) fn wake_waiting(&mut self) {
        while let Some(slot) = self.waiting.pop_front() {
            if let Some(stream) = self.slots.get_mut(slot as usize)
                && std::mem::take(&mut stream.queued)
            {
                stream.wake_sender();
            }
        }
    }

    // === heads ===

    pub(super) fn spare_head(&mut self) -> ResponseHead {
        self.spare_heads.pop().unwrap_or_default()
    }

    pub(super) fn keep_head(&mut self, head: ResponseHead) {
        if self.spare_heads.len() < KEEP_SLOTS {
            self.spare_heads.push(head);
        }
    }
}

impl Session {
    /// A stream's object is gone: what is incomplete is reset.
    pub(in crate::codec::http2) fn close_stream(&mut self, slot: usize) {
        self.hold(slot, 0);
        let server = self.is_server();
        let stream = self.streams.get(slot);
        if !(stream.recv_ended && stream.send_ended) {
            // RFC 9113 §8.1: a server that has answered may stop the rest of the request without a reproach.
            let code = if server && stream.send_ended { code::NO_ERROR } else { code::CANCEL };
            self.reset_stream(slot, code);
        }
        self.drop_unread(slot);
        self.streams.remove(slot);
        if self.streams.alive() == 0 || self.is_server() {
            // The connection may wait for its last stream, or for fewer.
            self.wake_driver();
        }
    }

    pub(super) fn drop_unread(&mut self, slot: usize) {
        let stream = self.streams.get(slot);
        let mut unread = 0;
        while let Some(piece) = stream.pop() {
            unread += piece.len();
        }
        if unread > 0 {
            self.release(unread);
        }
    }

    /// A new stream of ours.
    pub(in crate::codec::http2) fn open_stream(&mut self, is_head: bool, is_connect: bool) -> usize {
        self.inbound.opened += 1;
        let slot = self.streams.open_next(self.flow.stream_window, self.peer.window);
        let stream = self.streams.get(slot);
        (stream.is_head, stream.is_connect) = (is_head, is_connect);
        slot
    }
}
