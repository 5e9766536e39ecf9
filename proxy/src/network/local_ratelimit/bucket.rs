//! A token bucket that all workers share without a lock: one number, the moment at which the bucket
//! would have been empty had nothing been taken but at its rate.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::time::Instant;

pub struct TokenBucket {
    max: u32,
    /// Tokens a second.
    rate: f64,
    born: Instant,
    /// Seconds since `born`, the bits of an f64.
    empty_at: AtomicU64,
}

impl TokenBucket {
    /// Full.
    pub fn new(max: u32, rate: f64) -> Self {
        Self { max, rate, born: Instant::now(), empty_at: AtomicU64::new((-f64::from(max) / rate).to_bits()) }
    }

    pub fn max(&self) -> u32 {
        self.max
    }

    /// Takes a token if there is one.
    pub fn take(&self) -> bool {
        let now = self.born.elapsed().as_secs_f64();
        let taken = self.empty_at.fetch_update(Relaxed, Relaxed, |bits| {
            let empty_at = self.clamped(bits, now);
            // A token's worth of rounding must not cost a token.
            ((now - empty_at) * self.rate >= 1.0 - 1e-9).then(|| (empty_at + 1.0 / self.rate).to_bits())
        });
        taken.is_ok()
    }

    /// A full bucket gains nothing.
    fn clamped(&self, bits: u64, now: f64) -> f64 {
        f64::from_bits(bits).max(now - f64::from(self.max) / self.rate)
    }

    fn tokens(&self) -> f64 {
        let now = self.born.elapsed().as_secs_f64();
        ((now - self.clamped(self.empty_at.load(Relaxed), now)) * self.rate).max(0.0) + 1e-9
    }

    /// Whole tokens that are there now.
    pub fn left(&self) -> u64 {
        self.tokens() as u64
    }

    /// Until there is one more.
    pub fn next_token(&self) -> Duration {
        Duration::from_secs_f64((1.0 - self.tokens().fract()).max(0.0) / self.rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn tokens_come_back_one_by_one_up_to_the_maximum() {
        let bucket = TokenBucket::new(2, 2.0);
        assert_eq!([bucket.take(), bucket.take(), bucket.take()], [true, true, false]);
        tokio::time::advance(Duration::from_millis(500)).await;
        assert_eq!([bucket.take(), bucket.take()], [true, false]);
        tokio::time::advance(Duration::from_secs(100)).await;
        assert_eq!((bucket.left(), bucket.take(), bucket.take(), bucket.take()), (2, true, true, false));
    }
}
