//! The deadlines of one attempt. They are those of the attempt, not of its connection: none of them runs while it waits
//! for one.

use std::time::Duration;

use tokio::time::Instant;

use super::failure::Reset;
use super::timeouts::Timeouts;

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct AttemptTimers {
    per_try: Option<Instant>,
    per_try_idle: Option<Instant>,
    idle: Option<Duration>,
    stream: Option<Instant>,
}

impl AttemptTimers {
    /// The request goes out; `limit` is the cluster's on whole streams.
    pub fn opened(&mut self, now: Instant, limit: Option<Duration>) {
        self.stream = limit.filter(|d| !d.is_zero()).map(|d| now + d);
    }

    /// The request is complete: the attempt's own time begins.
    pub fn start(&mut self, now: Instant, timeouts: &Timeouts) {
        self.per_try = timeouts.per_try.map(|d| now + d);
        self.idle = timeouts.per_try_idle;
        self.per_try_idle = self.idle.map(|d| now + d);
    }

    /// Something came from the upstream.
    pub fn progress(&mut self) {
        if let (Some(idle), Some(_)) = (self.idle, self.per_try_idle) {
            self.per_try_idle = Some(Instant::now() + idle);
        }
    }

    /// The response is on its way to the client: it may take its time.
    pub fn answered(&mut self) {
        self.per_try = None;
        self.progress();
    }

    /// Nothing of it is waited for any more, or another attempt took over the waiting.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    pub fn earliest(&self) -> Option<Instant> {
        [self.per_try, self.per_try_idle, self.stream].into_iter().flatten().min()
    }

    /// What is due at `now`; each is told once.
    pub fn take_due(&mut self, now: Instant) -> Option<Reset> {
        for (timer, reset) in [
            (&mut self.per_try, Reset::PerTryTimeout),
            (&mut self.per_try_idle, Reset::PerTryIdleTimeout),
            (&mut self.stream, Reset::MaxStreamDuration),
        ] {
            if timer.is_some_and(|at| at <= now) {
                *timer = None;
                return Some(reset);
            }
        }
        None
    }
}
