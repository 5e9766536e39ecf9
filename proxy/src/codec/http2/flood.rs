//! What a peer may send how often. The rules and the counts are Envoy's, where it has them: frames
//! that cost the receiver more than the sender, and have no honest use in such numbers. And what
//! must hold for every frame alone: its size, and what comes first.

use tokio::time::Instant;

use super::frame::{Frame, MAX_PAYLOAD, code, flag, kind};
use super::options::Http2Options;

/// Why a connection is ended from this side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    pub kind: FaultKind,
    /// `%RESPONSE_CODE_DETAILS%` of the streams that it ends.
    pub details: &'static str,
}

/// By which counter it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// `inbound_empty_frames_flood`.
    EmptyFrames,
    /// `inbound_priority_frames_flood`.
    PriorityFrames,
    /// `inbound_window_update_frames_flood`.
    WindowUpdateFrames,
    /// A head that does not end.
    Continuations,
    /// More RST_STREAM than `stream_reset_burst` and `stream_reset_rate` allow.
    Resets,
    /// Requests that are reset before they can have been answered.
    PrematureResets,
    /// `rx_messaging_error`: a message that is none.
    Messaging,
    /// A frame that cannot be of this size (RFC 9113 §6).
    FrameSize,
    /// The first frame is not SETTINGS (§3.4).
    NoSettings,
    /// A frame that may not come, or not here.
    Protocol,
    /// More than a window allowed, or a window that grew too large (§6.9.1).
    FlowControl,
    /// A head on a stream that its sender had ended (§5.1).
    StreamClosed,
    /// A block of fields that cannot be decoded (§4.3).
    Compression,
    /// `keepalive_timeout`.
    KeepaliveTimeout,
    /// Nothing of what waits was taken for too long.
    Stalled,
}

impl Fault {
    pub fn new(kind: FaultKind) -> Self {
        let details = match kind {
            FaultKind::EmptyFrames => "http2.inbound_empty_frames_flood",
            FaultKind::PriorityFrames => "http2.inbound_priority_frames_flood",
            FaultKind::WindowUpdateFrames => "http2.inbound_window_update_frames_flood",
            FaultKind::Continuations => "http2.too_many_header_frames",
            FaultKind::Resets => "http2.stream_reset_flood",
            FaultKind::PrematureResets => "too_many_premature_resets",
            FaultKind::Messaging => "http2.violation.of.messaging.rule",
            FaultKind::FrameSize
            | FaultKind::NoSettings
            | FaultKind::Protocol
            | FaultKind::FlowControl
            | FaultKind::StreamClosed => "http2.protocol_error",
            FaultKind::Compression => "http2.invalid.header.field",
            FaultKind::KeepaliveTimeout => "http2.keepalive_timeout",
            FaultKind::Stalled => "http2.write_stalled",
        };
        Self { kind, details }
    }

    pub(super) fn code(self) -> u32 {
        match self.kind {
            FaultKind::Messaging | FaultKind::NoSettings | FaultKind::Protocol => code::PROTOCOL_ERROR,
            FaultKind::FrameSize => code::FRAME_SIZE_ERROR,
            FaultKind::FlowControl => code::FLOW_CONTROL_ERROR,
            FaultKind::StreamClosed => code::STREAM_CLOSED,
            FaultKind::Compression => code::COMPRESSION_ERROR,
            FaultKind::KeepaliveTimeout | FaultKind::Stalled => code::NO_ERROR,
            _ => code::ENHANCE_YOUR_CALM,
        }
    }
}

/// A head in more pieces than this is refused: one of 60 KiB needs four.
const MAX_CONTINUATIONS: u32 = 128;

/// Of one connection. `Role` decides who opens streams.
#[derive(Debug)]
pub(super) struct Inbound {
    limits: Limits,
    /// Streams opened by whoever opens streams here.
    pub(super) opened: u64,
    /// DATA frames that we sent.
    pub(super) data_sent: u64,
    last_opened: u32,
    priority: u64,
    window_updates: u64,
    empty_run: u32,
    continuations: u32,
    head_bytes: usize,
    /// RST_STREAM frames that may still come now.
    resets: u64,
    refilled: Instant,
    server: bool,
    begun: bool,
}

#[derive(Debug, Clone, Copy)]
struct Limits {
    empty_run: u32,
    priority_per_stream: u64,
    window_updates_per_data: u64,
    head_bytes: usize,
    resets: (u64, u64),
}

impl Inbound {
    pub(super) fn new(options: &Http2Options, max_head_bytes: usize, server: bool) -> Self {
        let limits = Limits {
            empty_run: options.max_consecutive_empty_frames,
            priority_per_stream: options.max_priority_frames_per_stream.into(),
            window_updates_per_data: options.max_window_updates_per_data_frame.into(),
            // What is compressed is smaller than what it says, as a rule.
            head_bytes: 2 * max_head_bytes + 16 * 1024,
            resets: options.stream_resets,
        };
        Self {
            limits,
            opened: 0,
            data_sent: 0,
            last_opened: 0,
            priority: 0,
            window_updates: 0,
            empty_run: 0,
            continuations: 0,
            head_bytes: 0,
            resets: options.stream_resets.0,
            refilled: Instant::now(),
            server,
            begun: false,
        }
    }

    /// What cannot be is seen from a frame's head, before its payload has come.
    pub(super) fn check(&self, frame: &Frame) -> Option<Fault> {
        if !self.begun && (frame.kind != kind::SETTINGS || frame.has(flag::ACK)) {
            return Some(Fault::new(FaultKind::NoSettings));
        }
        (!has_a_possible_size(frame)).then(|| Fault::new(FaultKind::FrameSize))
    }

    /// A frame from the peer that [can be](Self::check): whether it was one too many.
    pub(super) fn frame(&mut self, frame: &Frame) -> Option<Fault> {
        self.begun = true;
        let kind = match frame.kind {
            kind::DATA => self.count_empty(frame),
            kind::HEADERS => {
                if self.server && frame.stream > self.last_opened {
                    self.last_opened = frame.stream;
                    self.opened += 1;
                }
                self.continuations = 0;
                self.head_bytes = frame.len as usize;
                self.count_empty(frame)
            }
            kind::CONTINUATION => {
                self.continuations += 1;
                self.head_bytes += frame.len as usize;
                if self.continuations > MAX_CONTINUATIONS || self.head_bytes > self.limits.head_bytes {
                    Some(FaultKind::Continuations)
                } else {
                    self.count_empty(frame)
                }
            }
            kind::PRIORITY => {
                self.priority += 1;
                let most = self.limits.priority_per_stream * (1 + self.opened);
                (self.priority > most).then_some(FaultKind::PriorityFrames)
            }
            kind::WINDOW_UPDATE => {
                self.window_updates += 1;
                let most = 5 + 2 * (self.opened + self.limits.window_updates_per_data * self.data_sent);
                (self.window_updates > most).then_some(FaultKind::WindowUpdateFrames)
            }
            kind::RST_STREAM if self.server => self.count_reset(),
            _ => None,
        };
        kind.map(Fault::new)
    }

    fn count_empty(&mut self, frame: &Frame) -> Option<FaultKind> {
        let ends = frame.has(flag::END_STREAM) || (frame.kind != kind::DATA && frame.has(flag::END_HEADERS));
        if frame.len > 0 || ends {
            self.empty_run = 0;
            return None;
        }
        self.empty_run += 1;
        (self.empty_run > self.limits.empty_run).then_some(FaultKind::EmptyFrames)
    }

    fn count_reset(&mut self) -> Option<FaultKind> {
        let (burst, rate) = self.limits.resets;
        if self.resets == 0 {
            let fresh = self.refilled.elapsed().as_secs().saturating_mul(rate).min(burst);
            if fresh == 0 {
                return Some(FaultKind::Resets);
            }
            self.resets = fresh;
            self.refilled = Instant::now();
        }
        self.resets -= 1;
        None
    }
}

/// Not above SETTINGS_MAX_FRAME_SIZE, and what it must be for the kinds whose size is fixed.
fn has_a_possible_size(frame: &Frame) -> bool {
    if frame.len as usize > MAX_PAYLOAD {
        return false;
    }
    match frame.kind {
        kind::PRIORITY => frame.len == 5,
        kind::RST_STREAM | kind::WINDOW_UPDATE => frame.len == 4,
        kind::SETTINGS if frame.has(flag::ACK) => frame.len == 0,
        kind::SETTINGS => frame.len.is_multiple_of(6),
        kind::PING => frame.len == 8,
        kind::GOAWAY => frame.len >= 8,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inbound() -> Inbound {
        let mut inbound = Inbound::new(&Http2Options::default(), 60 * 1024, true);
        assert_eq!(inbound.frame(&frame(kind::SETTINGS, 0, 0, 0)), None);
        inbound
    }

    fn frame(kind: u8, len: u32, flags: u8, stream: u32) -> Frame {
        Frame { len, kind, flags, stream }
    }

    /// How many of these frames pass.
    fn passes(inbound: &mut Inbound, frame: Frame) -> (usize, FaultKind) {
        for n in 0..1_000_000 {
            if let Some(fault) = inbound.frame(&frame) {
                return (n, fault.kind);
            }
        }
        panic!("no limit");
    }

    // The formulas are in Envoy's documentation of these fields.
    #[test]
    fn frames_without_use_are_counted_by_envoys_formulas() {
        assert_eq!(passes(&mut inbound(), frame(kind::DATA, 0, 0, 1)), (1, FaultKind::EmptyFrames));
        assert_eq!(passes(&mut inbound(), frame(kind::PRIORITY, 5, 0, 1)), (100, FaultKind::PriorityFrames));
        assert_eq!(passes(&mut inbound(), frame(kind::WINDOW_UPDATE, 4, 0, 0)), (5, FaultKind::WindowUpdateFrames));
        let mut used = inbound();
        assert_eq!(used.frame(&frame(kind::HEADERS, 9, flag::END_HEADERS, 1)), None);
        assert_eq!(used.frame(&frame(kind::HEADERS, 9, flag::END_HEADERS, 3)), None);
        used.data_sent = 2;
        assert_eq!(passes(&mut used, frame(kind::PRIORITY, 5, 0, 1)).0, 300);
        assert_eq!(passes(&mut used, frame(kind::WINDOW_UPDATE, 4, 0, 1)).0, 5 + 2 * (2 + 20));
    }

    #[test]
    fn a_head_that_does_not_end_is_cut_by_pieces_and_by_size() {
        let begin = frame(kind::HEADERS, 10, 0, 1);
        let mut small = inbound();
        small.frame(&begin);
        assert_eq!(passes(&mut small, frame(kind::CONTINUATION, 1, 0, 1)), (128, FaultKind::Continuations));
        let mut large = inbound();
        large.frame(&begin);
        assert!(passes(&mut large, frame(kind::CONTINUATION, 16 * 1024, 0, 1)).0 <= 9);
        let mut empty = inbound();
        empty.frame(&begin);
        assert_eq!(passes(&mut empty, frame(kind::CONTINUATION, 0, 0, 1)), (1, FaultKind::EmptyFrames));
    }

    #[tokio::test(flavor = "current_thread", start_paused = true)]
    async fn resets_are_limited_to_a_burst_and_a_rate() {
        let mut inbound = inbound();
        let reset = frame(kind::RST_STREAM, 4, 0, 1);
        assert_eq!(passes(&mut inbound, reset), (1000, FaultKind::Resets));
        tokio::time::advance(std::time::Duration::from_secs(2)).await;
        assert_eq!(passes(&mut inbound, reset), (66, FaultKind::Resets));
    }

    // RFC 9113 §3.4 and the sizes of §6.
    #[test]
    fn settings_come_first_and_frames_have_the_sizes_of_their_kinds() {
        let kind_of = |fault: Option<Fault>| fault.map(|fault| fault.kind);
        let fresh = || Inbound::new(&Http2Options::default(), 60 * 1024, true);
        for first in [
            frame(kind::PING, 8, 0, 0),
            frame(kind::HEADERS, 9, flag::END_HEADERS, 1),
            frame(kind::SETTINGS, 0, flag::ACK, 0),
        ] {
            assert_eq!(kind_of(fresh().check(&first)), Some(FaultKind::NoSettings));
        }
        for (kind, flags, good, bad) in [
            (kind::PRIORITY, 0, 5, 4),
            (kind::RST_STREAM, 0, 4, 3),
            (kind::SETTINGS, 0, 12, 3),
            (kind::SETTINGS, flag::ACK, 0, 6),
            (kind::PING, 0, 8, 6),
            (kind::GOAWAY, 0, 20, 7),
            (kind::WINDOW_UPDATE, 0, 4, 3),
        ] {
            assert_eq!(inbound().check(&frame(kind, good, flags, 0)), None);
            assert_eq!(kind_of(inbound().check(&frame(kind, bad, flags, 0))), Some(FaultKind::FrameSize), "{kind}");
        }
    }
}
