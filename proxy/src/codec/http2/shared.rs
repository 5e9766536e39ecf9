//! What a connection's task and its streams' tasks tell each other. All of them run on one thread.

use std::cell::{Cell, RefCell};
use std::task::{Context, Waker};

use tokio::time::Instant;

use super::flood::Fault;

/// How much may be handed to the library before something of it must have been written, if the
/// buffer limit is not smaller.
const MAX_QUEUED: usize = 256 * 1024;

/// Bytes of frames with heads among them that the library gets at a time.
pub(super) const HEADS_AT_ONCE: usize = 8 * 1024;

/// How a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// The peer broke the protocol.
    Protocol(&'static str),
    Closed,
}

/// What Envoy counts of frames, since it was last asked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FrameCounts {
    pub rx_resets: u32,
    /// Of those, with REFUSED_STREAM.
    pub refused: u32,
    pub tx_resets: u32,
    /// Trailers that came.
    pub trailers: u32,
}

/// Of one connection.
#[derive(Debug)]
pub(super) struct Shared {
    counts: Cell<FrameCounts>,
    fault: Cell<Option<Fault>>,
    ended_by: Cell<Option<Ended>>,
    /// Body bytes given to the library since it last had written everything.
    queued: Cell<usize>,
    max_queued: usize,
    /// Streams that wait for that.
    writers: RefCell<Vec<Waker>>,
    /// The connection's task, to be woken for what the library does not know.
    driver: RefCell<Option<Waker>>,
    /// Since when the socket takes nothing.
    pub(super) blocked_since: Cell<Option<Instant>>,
    pub(super) received: Cell<u64>,
    pub(super) sent: Cell<u64>,
    pub(super) last_read: Cell<Instant>,
    /// The kind of the last frame that came.
    pub(super) last_kind: Cell<u8>,
    /// Body bytes that came, and those of them that were passed on.
    pub(super) body_received: Cell<u64>,
    body_released: Cell<u64>,
    /// Bytes of reads with heads in them that the library got since it had nothing to accept.
    heads_given: Cell<usize>,
    /// It may have more of them when what it has was accepted.
    heads_held: Cell<bool>,
    /// Streams whose objects are alive.
    streams: Cell<u32>,
    /// The peer closed its side.
    pub(super) eof: Cell<bool>,
    /// The peer said its settings.
    pub(super) settled: Cell<bool>,
    /// The peer said GOAWAY.
    pub(super) going_away: Cell<bool>,
    /// A ping is wanted before more is sent.
    pub(super) ping_wanted: Cell<bool>,
    /// Upstream: streams that the peer ended, until their objects are gone. The library forgets
    /// that when RST_STREAM follows.
    ended: RefCell<Vec<u32>>,
}

impl Shared {
    pub(super) fn new(buffer_limit: u32) -> Self {
        Self {
            counts: Cell::default(),
            fault: Cell::new(None),
            ended_by: Cell::new(None),
            queued: Cell::new(0),
            max_queued: (buffer_limit as usize).clamp(16 * 1024, MAX_QUEUED),
            writers: RefCell::default(),
            driver: RefCell::default(),
            blocked_since: Cell::new(None),
            received: Cell::new(0),
            sent: Cell::new(0),
            last_read: Cell::new(Instant::now()),
            last_kind: Cell::new(u8::MAX),
            body_received: Cell::new(0),
            body_released: Cell::new(0),
            heads_given: Cell::new(0),
            heads_held: Cell::new(false),
            streams: Cell::new(0),
            eof: Cell::new(false),
            settled: Cell::new(false),
            going_away: Cell::new(false),
            ping_wanted: Cell::new(false),
            ended: RefCell::default(),
        }
    }

    // === frames ===

    pub(super) fn count(&self, change: impl FnOnce(&mut FrameCounts)) {
        let mut counts = self.counts.get();
        change(&mut counts);
        self.counts.set(counts);
    }

    /// `None` if there was nothing to count.
    pub(super) fn take_counts(&self) -> Option<FrameCounts> {
        let counts = self.counts.take();
        (counts != FrameCounts::default()).then_some(counts)
    }

    // === faults ===

    /// The first one counts.
    pub(super) fn fail(&self, fault: Fault) {
        if self.fault.get().is_none() {
            self.fault.set(Some(fault));
            self.wake_driver();
        }
    }

    pub(super) fn fault(&self) -> Option<Fault> {
        self.fault.get()
    }

    /// Before the streams are asked: they tell their users why.
    pub(super) fn end(&self, by: Ended) {
        if self.ended_by.get().is_none() {
            self.ended_by.set(Some(by));
        }
        self.flushed();
    }

    pub(super) fn ended(&self) -> Option<Ended> {
        self.ended_by.get()
    }

    pub(super) fn register_driver(&self, cx: &Context<'_>) {
        let mut driver = self.driver.borrow_mut();
        if !driver.as_ref().is_some_and(|w| w.will_wake(cx.waker())) {
            *driver = Some(cx.waker().clone());
        }
    }

    pub(super) fn wake_driver(&self) {
        if let Some(waker) = &*self.driver.borrow() {
            waker.wake_by_ref();
        }
    }

    // === heads ===

    /// Whether the library has as many heads as it may have at a time. It decodes all it can get before any of them is
    /// looked at, and a byte of a block can become a hundred in memory.
    pub(super) fn has_heads_enough(&self) -> bool {
        let enough = self.heads_given.get() >= HEADS_AT_ONCE;
        self.heads_held.set(enough);
        enough
    }

    pub(super) fn heads_given(&self, bytes: usize) {
        self.heads_given.set(self.heads_given.get() + bytes);
    }

    /// All heads so far were accepted; whether others were held back.
    pub(super) fn heads_accepted(&self) -> bool {
        self.heads_given.set(0);
        self.heads_held.replace(false)
    }

    // === writing ===

    pub(super) fn queue(&self, bytes: usize) {
        self.queued.set(self.queued.get() + bytes);
    }

    /// Too much waits for the socket: `cx` is woken when it is less.
    pub(super) fn is_full(&self, cx: &Context<'_>) -> bool {
        let full = self.queued.get() >= self.max_queued;
        if full {
            let mut writers = self.writers.borrow_mut();
            if !writers.iter().any(|w| w.will_wake(cx.waker())) {
                writers.push(cx.waker().clone());
            }
        }
        full
    }

    /// Everything was written.
    pub(super) fn flushed(&self) {
        self.queued.set(0);
        self.blocked_since.set(None);
        let waiting = std::mem::take(&mut *self.writers.borrow_mut());
        waiting.into_iter().for_each(Waker::wake);
    }

    // === streams and their windows ===

    pub(super) fn stream_opened(&self) {
        self.streams.set(self.streams.get() + 1);
    }

    pub(super) fn stream_closed(&self, id: u32) {
        self.ended.borrow_mut().retain(|ended| *ended != id);
        self.streams.set(self.streams.get() - 1);
        if self.streams.get() == 0 {
            // What the library dropped unread was never counted as passed on.
            self.body_released.set(self.body_received.get());
        }
    }

    pub(super) fn streams(&self) -> u32 {
        self.streams.get()
    }

    pub(super) fn released(&self, bytes: usize) {
        self.body_released.set(self.body_released.get() + bytes as u64);
    }

    /// Body bytes that came and were not passed on yet.
    pub(super) fn held(&self) -> u64 {
        self.body_received.get().saturating_sub(self.body_released.get())
    }

    pub(super) fn peer_ended(&self, id: u32) {
        self.ended.borrow_mut().push(id);
    }

    pub(super) fn has_peer_ended(&self, id: u32) -> bool {
        self.ended.borrow().contains(&id)
    }
}
