//! What is counted of a connection: under `http2.` downstream, under `cluster.<name>.http2.` upstream.

use nuncio_core::stats::lists::http2::{self as stat, Codec};
use nuncio_core::stats::{AmountGuard, Stats};

/// Frames that came and went, since it was last asked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct FrameCounts {
    pub(super) rx_resets: u32,
    /// Of those, with REFUSED_STREAM.
    pub(super) refused: u32,
    pub(super) tx_resets: u32,
    /// Trailers that came.
    pub(super) trailers: u32,
}

/// What waits to be sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Backlog {
    /// Of bodies: what flow control does not let out.
    pub(super) body_bytes: u64,
    /// Frames that the socket has not taken whole.
    pub(super) frames: u64,
    /// Of those, answers that the peer can provoke.
    pub(super) control_frames: u64,
}

/// A connection's share of the gauges.
#[derive(Default)]
pub(super) struct Account {
    backlog: Backlog,
    /// There once something had to wait.
    shares: Option<Shares>,
}

struct Shares {
    body_bytes: AmountGuard<Codec>,
    frames: AmountGuard<Codec>,
    control_frames: AmountGuard<Codec>,
}

impl Account {
    /// After a turn of the connection's task: what came and went in it, and what waits now.
    pub(super) fn count(&mut self, stats: &Stats<Codec>, counts: FrameCounts, backlog: Backlog) {
        if counts != FrameCounts::default() {
            stats.add(stat::RX_RESET, counts.rx_resets.into());
            stats.add(stat::STREAM_REFUSED_ERRORS, counts.refused.into());
            stats.add(stat::TX_RESET, counts.tx_resets.into());
            stats.add(stat::TRAILERS, counts.trailers.into());
        }
        if backlog != self.backlog {
            self.backlog = backlog;
            let shares = self.shares.get_or_insert_with(|| Shares {
                body_bytes: stats.amount(stat::PENDING_SEND_BYTES),
                frames: stats.amount(stat::OUTBOUND_FRAMES_ACTIVE),
                control_frames: stats.amount(stat::OUTBOUND_CONTROL_FRAMES_ACTIVE),
            });
            shares.body_bytes.set(backlog.body_bytes);
            shares.frames.set(backlog.frames);
            shares.control_frames.set(backlog.control_frames);
        }
    }
}
