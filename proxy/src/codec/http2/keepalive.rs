//! Pings that notice a peer which is gone without a word (`connection_keepalive`).

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use nuncio_core::random::Rng;
use tokio::time::{Instant, Sleep, sleep_until};

use super::options::Keepalive;
use super::session::Session;

const NEVER: Duration = Duration::from_secs(365 * 86_400);

/// Of one connection.
pub(super) struct Pinger {
    config: Keepalive,
    rng: Rng,
    timer: Pin<Box<Sleep>>,
    awaiting: bool,
}

impl Pinger {
    pub(super) fn new(config: Keepalive, rng: &Rng) -> Self {
        let mut pinger =
            Self { config, rng: rng.clone(), timer: Box::pin(sleep_until(Instant::now() + NEVER)), awaiting: false };
        pinger.wait_for_next();
        pinger
    }

    fn wait_for_next(&mut self) {
        self.awaiting = false;
        let after = self
            .config
            .interval
            .map_or(NEVER, |interval| interval + interval.mul_f64(self.config.jitter / 100.0 * self.rng.f64()));
        self.timer.as_mut().reset(Instant::now() + after);
    }

    fn ping(&mut self, session: &mut Session) {
        session.ping();
        self.awaiting = true;
        self.timer.as_mut().reset(Instant::now() + self.config.timeout);
    }

    /// Ready when the peer did not answer in time.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, session: &mut Session) -> Poll<()> {
        if std::mem::take(&mut session.ping_wanted) && !self.awaiting {
            self.ping(session);
        }
        if self.awaiting && session.take_pong() {
            self.wait_for_next();
        }
        while self.timer.as_mut().poll(cx).is_ready() {
            if !self.awaiting {
                self.ping(session);
                continue;
            }
            // As Envoy: any frame shows that it lives, the answer may be behind others.
            let until = session.last_read() + self.config.timeout;
            if until <= Instant::now() {
                return Poll::Ready(());
            }
            self.timer.as_mut().reset(until);
        }
        Poll::Pending
    }
}
