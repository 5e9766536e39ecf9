//! SETTINGS of the peer (RFC 9113 §6.5).

use super::super::flood::{Fault, FaultKind};
use super::super::frame::{FIRST_WINDOW, MAX_PAYLOAD, setting};
use super::Session;

/// Streams that an upstream may be taken to allow before it has said how many: §6.5.2 wants no fewer. More of them
/// would be refused, and then repeated.
const UNTOLD_STREAMS: u32 = 100;

/// What the peer has said.
#[derive(Debug)]
pub(in crate::codec::http2) struct Peer {
    pub(in crate::codec::http2) settled: bool,
    pub(in crate::codec::http2) max_streams: u32,
    pub(in crate::codec::http2) connect_protocol: bool,
    /// What a stream may be sent at first.
    pub(super) window: u32,
}

impl Default for Peer {
    fn default() -> Self {
        Self { settled: false, max_streams: UNTOLD_STREAMS, connect_protocol: false, window: FIRST_WINDOW }
    }
}

impl Session {
    /// `payload` is made of whole settings.
    pub(super) fn on_settings(&mut self, payload: &[u8]) -> Result<(), Fault> {
        if !self.peer.settled {
            self.peer.settled = true;
            self.peer.max_streams = u32::MAX;
        }
        let mut window = self.peer.window;
        for [i, j, value @ ..] in payload.as_chunks::<6>().0 {
            let value = u32::from_be_bytes(*value);
            match u16::from_be_bytes([*i, *j]) {
                setting::HEADER_TABLE_SIZE => self.encoder.set_max_size(value),
                setting::ENABLE_PUSH if value > u32::from(self.is_server()) => return Err(protocol()),
                setting::MAX_CONCURRENT_STREAMS => self.peer.max_streams = value,
                setting::INITIAL_WINDOW_SIZE => {
                    if value > i32::MAX as u32 {
                        return Err(Fault::new(FaultKind::FlowControl));
                    }
                    window = value;
                }
                setting::MAX_FRAME_SIZE if !(MAX_PAYLOAD as u32..1 << 24).contains(&value) => return Err(protocol()),
                setting::ENABLE_CONNECT_PROTOCOL => {
                    // RFC 8441 §3: not to be taken back.
                    if value > 1 || (value == 0 && self.peer.connect_protocol) {
                        return Err(protocol());
                    }
                    self.peer.connect_protocol = value == 1;
                }
                _ => {}
            }
        }
        self.output.put_reply(|out| out.extend_from_slice(&SETTINGS_ACK));
        self.change_windows(window)
    }

    /// Once a frame, however often the frame says it: each time costs as much as there are streams.
    fn change_windows(&mut self, window: u32) -> Result<(), Fault> {
        let change = i64::from(window) - i64::from(self.peer.window);
        self.peer.window = window;
        if change != 0 && !self.streams.shift_windows(change) {
            return Err(Fault::new(FaultKind::FlowControl));
        }
        Ok(())
    }
}

const SETTINGS_ACK: [u8; 9] = [0, 0, 0, 4, 1, 0, 0, 0, 0];

fn protocol() -> Fault {
    Fault::new(FaultKind::Protocol)
}
