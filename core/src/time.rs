//! Wall-clock time, handed in so that tests can fix it. Monotonic time is `tokio::time` itself.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// A duration of configuration; what is negative counts as zero.
pub fn duration(message: &nuncio_api::pb::google::protobuf::Duration) -> Duration {
    let nanos = u32::try_from(message.nanos).unwrap_or(0);
    u64::try_from(message.seconds).map_or(Duration::ZERO, |seconds| Duration::new(seconds, nanos))
}

/// Tells the date. In production it asks the system; in tests it starts at a fixed moment and
/// moves with tokio's (possibly paused) clock.
#[derive(Debug, Clone, Copy)]
pub enum WallClock {
    System,
    Fixed { base: SystemTime, from: Instant },
}

impl WallClock {
    /// A clock that shows `base` now and then advances with tokio's clock.
    pub fn fixed(base: SystemTime) -> Self {
        Self::Fixed { base, from: Instant::now() }
    }

    pub fn now(&self) -> SystemTime {
        match self {
            // The one place that asks the system for the date.
            #[allow(clippy::disallowed_methods)]
            Self::System => SystemTime::now(),
            Self::Fixed { base, from } => *base + from.elapsed(),
        }
    }

    pub fn since_epoch(&self) -> Duration {
        self.now().duration_since(UNIX_EPOCH).unwrap_or_default()
    }
}
