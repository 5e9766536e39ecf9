//! Windows (RFC 9113 §5.2 and §6.9). What a peer may send more is told only when its bytes were passed
//! on, and in large steps.

use std::task::Context;

use super::super::frame::{FIRST_WINDOW, MAX_WINDOW, kind, put_number};
use super::super::window::Window;
use super::Session;

/// Of the whole connection.
pub(super) struct Flow {
    window: Window,
    /// What a stream of the peer's may be sent at first.
    pub(super) stream_window: u32,
    /// What the peer may still send.
    may_come: i64,
    /// Passed on, and not yet told.
    unclaimed: u32,
    /// Body bytes that came, and those of them that were passed on.
    received: u64,
    released: u64,
    /// What we may still send.
    pub(super) may_go: i64,
}

impl Flow {
    pub(super) fn new(window: Window, stream_window: u32) -> Self {
        let may_come = i64::from(window.size());
        let may_go = i64::from(FIRST_WINDOW);
        Self { window, stream_window, may_come, unclaimed: 0, received: 0, released: 0, may_go }
    }

    pub(super) fn size(&self) -> u32 {
        self.window.size()
    }

    /// So many bytes of DATA came; whether they were allowed.
    pub(super) fn take(&mut self, n: u32) -> bool {
        self.received += u64::from(n);
        self.may_come -= i64::from(n);
        self.may_come >= 0
    }

    /// The peer lets us send more; whether it could.
    pub(super) fn grant(&mut self, more: u32) -> bool {
        self.may_go += i64::from(more);
        self.may_go <= MAX_WINDOW
    }
}

impl Session {
    /// Bytes of DATA are not ours any more: they were passed on, or dropped.
    pub(super) fn release(&mut self, n: usize) {
        let flow = &mut self.flow;
        flow.released += n as u64;
        flow.unclaimed += n as u32;
        if flow.unclaimed >= flow.window.size() / 2 {
            let more = std::mem::take(&mut flow.unclaimed);
            self.widen(more);
        }
        self.grow_window();
    }

    /// The window may have to be larger.
    pub(super) fn grow_window(&mut self) {
        let flow = &mut self.flow;
        let (before, held) = (flow.window.size(), flow.received - flow.released);
        if let Some(size) = flow.window.grown(flow.received, held, self.streams.alive()) {
            self.widen(size - before);
        }
    }

    fn widen(&mut self, more: u32) {
        self.flow.may_come += i64::from(more);
        if self.ended.is_none() {
            self.output.put(|out| put_number(out, kind::WINDOW_UPDATE, 0, more));
            self.kick();
        }
    }

    /// Bytes of a stream's body were passed on.
    pub(in crate::codec::http2) fn release_of(&mut self, slot: usize, n: usize) {
        if n == 0 {
            return;
        }
        let step = self.flow.stream_window / 2;
        let stream = self.streams.get(slot);
        stream.unclaimed += n as u32;
        if stream.unclaimed >= step && !stream.recv_ended && stream.error.is_none() && !stream.reset {
            let (id, more) = (stream.id, std::mem::take(&mut stream.unclaimed));
            stream.may_come += i64::from(more);
            if self.ended.is_none() {
                self.output.put(|out| put_number(out, kind::WINDOW_UPDATE, id, more));
                self.kick();
            }
        }
        self.release(n);
    }

    /// Whether anything of a body may be laid in; if not, `cx` is woken when that changes.
    pub(in crate::codec::http2) fn has_room(&mut self, cx: &Context<'_>) -> bool {
        self.output.room(cx) > 0
    }

    /// How much of a stream's body may go out now. If that is nothing, `cx` is woken when it may be more.
    pub(in crate::codec::http2) fn allowance(&mut self, cx: &mut Context<'_>, slot: usize) -> usize {
        let room = self.output.room(cx);
        let connection = self.flow.may_go;
        let stream = self.streams.get(slot);
        if room == 0 {
            return 0;
        }
        let allowed = stream.may_go.min(connection);
        if allowed <= 0 {
            stream.wait_to_send(cx);
            if stream.may_go > 0 {
                self.streams.wait_for_connection(slot);
            }
            return 0;
        }
        room.min(allowed as usize)
    }
}
