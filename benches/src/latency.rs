//! A latency histogram of fixed size: 64 steps per doubling, so a quantile is right within 1.6 %.

use std::time::Duration;

const STEPS: usize = 64;

/// Counts microseconds.
#[derive(Clone)]
pub struct Latency {
    counts: Vec<u64>,
    total: u64,
    max: Duration,
}

impl Default for Latency {
    fn default() -> Self {
        Self { counts: vec![0; STEPS * 40], total: 0, max: Duration::ZERO }
    }
}

fn index(micros: u64) -> usize {
    let steps = STEPS as u64;
    if micros < steps {
        return micros as usize;
    }
    let shift = 63 - micros.leading_zeros() as usize - 6;
    ((shift + 1) * STEPS + ((micros >> shift) as usize - STEPS)).min(STEPS * 40 - 1)
}

fn value(index: usize) -> u64 {
    if index < STEPS {
        return index as u64;
    }
    let shift = index / STEPS - 1;
    ((index % STEPS + STEPS) as u64) << shift
}

impl Latency {
    pub fn record(&mut self, took: Duration) {
        self.counts[index(took.as_micros() as u64)] += 1;
        self.total += 1;
        self.max = self.max.max(took);
    }

    pub fn merge(&mut self, other: &Self) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(a, b)| *a += b);
        self.total += other.total;
        self.max = self.max.max(other.max);
    }

    pub fn quantile(&self, q: f64) -> Duration {
        let rank = ((self.total as f64) * q).ceil() as u64;
        let mut seen = 0;
        for (i, n) in self.counts.iter().enumerate() {
            seen += n;
            if seen >= rank.max(1) {
                return Duration::from_micros(value(i));
            }
        }
        self.max
    }

    pub fn max(&self) -> Duration {
        self.max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_right_within_two_percent() {
        let mut latency = Latency::default();
        for micros in 1..=100_000u64 {
            latency.record(Duration::from_micros(micros));
        }
        for (q, expected) in [(0.5, 50_000f64), (0.9, 90_000.0), (0.99, 99_000.0)] {
            let got = latency.quantile(q).as_micros() as f64;
            assert!((got - expected).abs() / expected < 0.02, "{q}: {got}");
        }
        assert_eq!(latency.max(), Duration::from_micros(100_000));
    }
}
