//! A connection, as its own task and the tasks of its streams share it. All of them run on one thread.
//!
//! The connection's task reads, and writes what has gathered; nobody else touches the socket. A stream's
//! task takes what came for it and lays its frames into the buffer that goes out with the next turn: the
//! frames of all streams leave in one write. What flow control does not let out stays with the stream.
//!
//! - `input`: frames that come, one by one · `heads`: blocks of fields · `settings`: what the peer wants
//! - `output`: what goes out, `frames`: of that, what waits · `streams`: which there are · `stream`: one of them
//! - `flow`: windows

mod flow;
mod frames;
mod heads;
mod input;
mod output;
mod settings;
mod stream;
mod streams;

use std::cell::RefCell;
use std::rc::Rc;
use std::task::{Context, Waker};

use nuncio_core::net::Io;
use tokio::time::Instant;

use super::account::FrameCounts;
use super::fields::ReadRequest;
use super::flood::{Fault, Inbound};
use super::frame::{self, FIRST_WINDOW, setting};
use super::hpack::{Decoder, Encoder};
use super::options::{ClientOptions, ServerOptions};
use super::stream_error::StreamError;
use super::window::Window;
use crate::codec::Buffers;
use crate::turn::Turn;

pub(super) use self::stream::BodyEnd;

/// A session, as everybody holds it.
pub(super) type Shared = Rc<RefCell<Session>>;

/// How a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// The peer broke the protocol.
    Protocol(&'static str),
    Closed,
}

/// What the connection's task has to know.
#[derive(Debug)]
pub(super) enum Event {
    /// A request has come, whose head was read.
    Request { slot: usize, read: ReadRequest },
    /// A head that was none; its stream was reset.
    Refused(&'static str),
    /// [`Session::fault`] says why the connection ends.
    Failed,
    /// The peer closed its side, or the socket failed.
    Lost,
}

/// Whose end this is.
pub(super) enum Role {
    Server(Rc<ServerOptions>),
    Client(Rc<ClientOptions>),
}

/// How far the end that we announced is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Goodbye {
    Unsaid,
    /// GOAWAY without a number, and a PING behind it: what the peer sent before it saw them still counts.
    Announced,
    /// The last stream that counts was named.
    Said,
}

pub(super) struct Session {
    role: Role,
    io: Io,
    buffers: Rc<Buffers>,
    input: input::Input,
    turn: Turn,
    output: output::Output,
    decoder: Decoder,
    encoder: Encoder,
    block: heads::Block,
    inbound: Inbound,
    streams: streams::Streams,
    flow: flow::Flow,
    /// Of all bodies, what waits to go out.
    held: usize,
    peer: settings::Peer,
    counts: FrameCounts,
    fault: Option<Fault>,
    ended: Option<Ended>,
    goodbye: Goodbye,
    /// The peer said GOAWAY.
    going_away: bool,
    eof: bool,
    /// The client of an upstream connection that nobody will use again.
    abandoned: bool,
    driver: Option<Waker>,
    last_read: Instant,
    pong: bool,
    /// A ping is wanted before more is sent.
    pub(super) ping_wanted: bool,
}

/// What pings of ours carry: those that look for life, and the one behind a GOAWAY.
const ALIVE: [u8; 8] = *b"nuncio:?";
const GOING: [u8; 8] = *b"nuncio:!";

impl Session {
    /// `preread` is what was read of the connection before it came here.
    pub(super) fn server(io: Io, preread: Vec<u8>, options: Rc<ServerOptions>, buffers: Rc<Buffers>) -> Shared {
        let http2 = &options.http2;
        let window = Window::new(http2, options.buffer_limit);
        let inbound = Inbound::new(http2, options.max_head_bytes, true);
        let stream_window = http2.initial_stream_window;
        let list_size = head_list_size(options.max_head_bytes, options.max_headers);
        let mut settings = vec![
            (setting::MAX_CONCURRENT_STREAMS, http2.max_concurrent_streams),
            (setting::INITIAL_WINDOW_SIZE, stream_window),
            (setting::MAX_HEADER_LIST_SIZE, list_size),
        ];
        if http2.allow_connect {
            settings.push((setting::ENABLE_CONNECT_PROTOCOL, 1));
        }
        let table_size = http2.header_table_size;
        let mut this = Self::new(Role::Server(options), io, buffers, inbound, window, stream_window, table_size);
        this.input = input::Input::of_server(preread);
        this.begin(&mut settings, table_size);
        Rc::new(RefCell::new(this))
    }

    pub(super) fn client(io: Io, options: Rc<ClientOptions>, buffers: Rc<Buffers>) -> Shared {
        let http2 = &options.http2;
        let inbound = Inbound::new(http2, options.max_head_bytes, false);
        // Streams belong to different clients: one that does not read may hold no more than the buffer limit, so that
        // the connection's window is there for the others.
        let stream_window = http2.initial_stream_window.min(options.buffer_limit.max(FIRST_WINDOW));
        let window = Window::new(http2, u32::MAX);
        let table_size = http2.header_table_size;
        let mut settings = vec![
            (setting::ENABLE_PUSH, 0),
            (setting::INITIAL_WINDOW_SIZE, stream_window),
            (setting::MAX_HEADER_LIST_SIZE, head_list_size(options.max_head_bytes, options.max_headers)),
        ];
        let mut this = Self::new(Role::Client(options), io, buffers, inbound, window, stream_window, table_size);
        this.output.put_preface();
        this.begin(&mut settings, table_size);
        Rc::new(RefCell::new(this))
    }

    fn new(
        role: Role,
        io: Io,
        buffers: Rc<Buffers>,
        inbound: Inbound,
        window: Window,
        stream_window: u32,
        table_size: u32,
    ) -> Self {
        Self {
            role,
            io,
            output: output::Output::new(buffers.clone()),
            buffers,
            input: input::Input::default(),
            turn: Turn::default(),
            decoder: Decoder::new(table_size),
            encoder: Encoder::new(),
            block: heads::Block::default(),
            inbound,
            streams: streams::Streams::default(),
            flow: flow::Flow::new(window, stream_window),
            held: 0,
            peer: settings::Peer::default(),
            counts: FrameCounts::default(),
            fault: None,
            ended: None,
            goodbye: Goodbye::Unsaid,
            going_away: false,
            eof: false,
            abandoned: false,
            driver: None,
            last_read: Instant::now(),
            pong: false,
            ping_wanted: false,
        }
    }

    /// What is said first: our settings, and how much more than the least may be sent.
    fn begin(&mut self, settings: &mut Vec<(u16, u32)>, table_size: u32) {
        if table_size != 4096 {
            settings.insert(0, (setting::HEADER_TABLE_SIZE, table_size));
        }
        let more = self.flow.size() - FIRST_WINDOW;
        self.output.put(|out| {
            frame::put_settings(out, settings);
            if more > 0 {
                frame::put_number(out, frame::kind::WINDOW_UPDATE, 0, more);
            }
        });
    }

    fn is_server(&self) -> bool {
        matches!(self.role, Role::Server(_))
    }

    // === the connection's task ===

    pub(super) fn register_driver(&mut self, cx: &Context<'_>) {
        if !self.driver.as_ref().is_some_and(|w| w.will_wake(cx.waker())) {
            self.driver = Some(cx.waker().clone());
        }
    }

    pub(super) fn wake_driver(&self) {
        if let Some(waker) = &self.driver {
            waker.wake_by_ref();
        }
    }

    /// Something waits to be written: the task is woken once for all of it.
    fn kick(&mut self) {
        if self.output.ask() {
            self.wake_driver();
        }
    }

    // === the end ===

    /// Ends the connection for the peer's fault: GOAWAY, and every stream fails. The first fault counts.
    pub(super) fn fail(&mut self, fault: Fault) {
        if self.fault.is_some() || self.ended.is_some() {
            return;
        }
        self.fault = Some(fault);
        self.say_goodbye(fault.code());
        self.end(Ended::Protocol(fault.details));
        self.wake_driver();
    }

    pub(super) fn fault(&self) -> Option<Fault> {
        self.fault
    }

    fn say_goodbye(&mut self, code: u32) {
        self.goodbye = Goodbye::Said;
        let last = self.streams.last_of_peer();
        self.output.put(|out| frame::put_goaway(out, last, code));
    }

    /// Nothing more comes; the streams tell their users.
    pub(super) fn end(&mut self, by: Ended) {
        if self.ended.is_none() {
            self.ended = Some(by);
        }
        self.streams.wake_all();
        self.output.wake_writers();
    }

    pub(super) fn ended(&self) -> Option<Ended> {
        self.ended
    }

    /// No new streams: GOAWAY, and again with the last stream's number once the peer has seen the first.
    pub(super) fn shut_down(&mut self) {
        if self.goodbye == Goodbye::Unsaid && self.ended.is_none() {
            self.goodbye = Goodbye::Announced;
            self.output.put(|out| {
                frame::put_goaway(out, frame::MAX_STREAM, frame::code::NO_ERROR);
                frame::put_ping(out, 0, &GOING);
            });
            self.wake_driver();
        }
    }

    /// The peer does not say that it has seen the first GOAWAY, and gets the second nevertheless.
    pub(super) fn insist(&mut self) {
        if self.goodbye == Goodbye::Announced && self.ended.is_none() {
            self.say_goodbye(frame::code::NO_ERROR);
            self.wake_driver();
        }
    }

    /// Ends it without a reproach: there are no streams, or they do not matter.
    pub(super) fn finish(&mut self) {
        if self.ended.is_none() {
            self.say_goodbye(frame::code::NO_ERROR);
            self.end(Ended::Closed);
        }
    }

    /// All was said and done: the last streams are over.
    pub(super) fn is_finished(&self) -> bool {
        self.goodbye == Goodbye::Said && self.streams.alive() == 0 && self.output.is_empty()
    }

    /// Nobody opens streams any more: the connection ends with the last one.
    pub(super) fn abandon(&mut self) {
        self.abandoned = true;
        self.wake_driver();
    }

    pub(super) fn is_abandoned(&self) -> bool {
        self.abandoned && self.streams.alive() == 0
    }

    pub(super) fn is_going_away(&self) -> bool {
        self.going_away
    }

    /// The peer does not even take what it was sent.
    pub(super) fn is_stuck(&self) -> bool {
        self.output.is_stuck()
    }

    /// Streams to be opened get no number any more, or nobody would answer them.
    pub(super) fn is_closing(&self) -> bool {
        self.going_away || self.ended.is_some() || self.streams.is_exhausted()
    }

    // === pings ===

    pub(super) fn ping(&mut self) {
        self.pong = false;
        self.output.put(|out| frame::put_ping(out, 0, &ALIVE));
        self.kick();
    }

    /// The last ping was answered.
    pub(super) fn take_pong(&mut self) -> bool {
        std::mem::take(&mut self.pong)
    }

    // === what is known of it ===

    /// The peer's settings have come.
    pub(super) fn is_settled(&self) -> bool {
        self.peer.settled
    }

    pub(super) fn peer(&self) -> &settings::Peer {
        &self.peer
    }

    /// Streams whose objects are alive.
    pub(super) fn alive(&self) -> u32 {
        self.streams.alive() as u32
    }

    pub(super) fn last_read(&self) -> Instant {
        self.last_read
    }

    /// Since when the socket takes nothing of what waits.
    pub(super) fn blocked_since(&self) -> Option<Instant> {
        self.output.blocked_since()
    }

    /// Bytes received, and bytes sent.
    pub(super) fn totals(&self) -> (u64, u64) {
        (self.input.received(), self.output.sent())
    }

    pub(super) fn take_counts(&mut self) -> FrameCounts {
        std::mem::take(&mut self.counts)
    }

    /// Why a stream that has no end of its own gives nothing more.
    fn connection_error(&self) -> Option<StreamError> {
        self.ended.map(|ended| match ended {
            Ended::Protocol(details) => StreamError::Protocol(details),
            Ended::Closed => StreamError::Closed,
        })
    }
}

/// A setting that counts 32 bytes for each field (§6.5.2), while Envoy's limit does not.
fn head_list_size(bytes: usize, fields: usize) -> u32 {
    u32::try_from(bytes.saturating_add(32 * fields)).unwrap_or(u32::MAX)
}
