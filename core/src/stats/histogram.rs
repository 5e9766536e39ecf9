//! Log-linear histograms with two significant digits, the shape of Envoy's (libcircllhist): 1.0, 1.1, … 9.9, 10, 11, …
//!
//! Recorded values are whole numbers, so the smallest decade has ten buckets and each further one ninety. A decade is
//! born at its first value: a histogram of milliseconds rarely has more than three.

use super::block::{self, Line, lines_for};
use super::list::Unit;
use super::sparse::Sparse;
use std::sync::OnceLock;

/// 10 to 99, …, 10,000 to 99,999: enough for most histograms.
const SMALL: usize = 4;
/// Up to the digits of the largest u64.
const LARGE: usize = 15;
const FIRST: usize = 10;
const PER_DECADE: usize = 90;
/// In the first lines: how many values were recorded at all, then the values 0 to 9.
const COUNT: usize = 0;
const ONES: usize = 1;

type Decade = [Line; lines_for(PER_DECADE)];

/// One histogram of one object on one worker.
#[derive(Debug, Default)]
pub struct HistogramBlock {
    ones: [Line; lines_for(ONES + FIRST)],
    small: [OnceLock<Box<Decade>>; SMALL],
    large: OnceLock<Box<[OnceLock<Box<Decade>>; LARGE]>>,
}

impl HistogramBlock {
    #[inline]
    pub(super) fn record(&self, value: u64) {
        if value < FIRST as u64 {
            block::add(&self.ones, ONES + value as usize, 1);
        } else {
            // A constant divides faster than a power of ten that is looked up.
            let (decade, digits) = match value {
                10..100 => (&self.small[0], value),
                100..1000 => (&self.small[1], value / 10),
                1000..10_000 => (&self.small[2], value / 100),
                10_000..100_000 => (&self.small[3], value / 1000),
                _ => {
                    let decade = value.ilog10() - 1;
                    let large = self.large.get_or_init(Box::default);
                    (&large[decade as usize - SMALL], value / 10u64.pow(decade))
                }
            };
            let lines = decade.get_or_init(|| Box::new([const { Line::zero() }; lines_for(PER_DECADE)]));
            block::add(&lines[..], digits as usize - FIRST, 1);
        }
        block::add(&self.ones, COUNT, 1);
    }

    /// How many values were recorded. A reader may see a value counted here and not yet in its bucket, or the reverse.
    pub(super) fn count(&self) -> u64 {
        block::get(&self.ones, COUNT)
    }

    pub(super) fn sum_into(&self, buckets: &mut Sparse) {
        for value in 0..FIRST {
            buckets.add(value as u16, block::get(&self.ones, ONES + value));
        }
        let large = self.large.get().map_or(&[][..], |large| &large[..]);
        for (decade, lines) in self.small.iter().chain(large).enumerate() {
            let Some(lines) = lines.get() else { continue };
            for digit in 0..PER_DECADE {
                buckets.add((FIRST + decade * PER_DECADE + digit) as u16, block::get(&lines[..], digit));
            }
        }
    }
}

/// Where a bucket lies on the number line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bucket {
    pub lower: f64,
    pub width: f64,
}

impl Bucket {
    /// The bucket of a key in a [`Sparse`] of a histogram with this unit.
    pub fn of(key: u16, unit: Unit) -> Self {
        let (digits, exponent) = match usize::from(key) {
            0 => return Self { lower: 0.0, width: 0.0 },
            ones if ones < FIRST => (ones * 10, -1),
            more => (FIRST + (more - FIRST) % PER_DECADE, ((more - FIRST) / PER_DECADE) as i32),
        };
        let exponent = if unit == Unit::Percent { exponent - 6 } else { exponent };
        // Multiplying by a rounded 0.1 would give 1.2000000000000002: divide by the exact power instead.
        let scaled = |n: f64| match exponent {
            0.. => n * 10f64.powi(exponent),
            _ => n / 10f64.powi(-exponent),
        };
        Self { lower: scaled(digits as f64), width: scaled(1.0) }
    }

    /// The value that is wrong by the same factor at both edges.
    fn middle(&self) -> f64 {
        let upper = self.lower + self.width;
        if upper == 0.0 { 0.0 } else { 2.0 * self.lower * upper / (self.lower + upper) }
    }
}

/// The quantiles Envoy reports, as fractions.
pub const QUANTILES: [f64; 10] = [0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.999, 1.0];

/// Bucket bounds where no configuration says otherwise.
pub const DEFAULT_BUCKETS: [f64; 19] = [
    0.5,
    1.0,
    5.0,
    10.0,
    25.0,
    50.0,
    100.0,
    250.0,
    500.0,
    1000.0,
    2500.0,
    5000.0,
    10_000.0,
    30_000.0,
    60_000.0,
    300_000.0,
    600_000.0,
    1_800_000.0,
    3_600_000.0,
];

/// What is computed from the buckets of one histogram.
#[derive(Clone, Copy, Debug)]
pub struct Buckets<'a> {
    pub counts: &'a Sparse,
    pub unit: Unit,
}

impl Buckets<'_> {
    fn iter(&self) -> impl Iterator<Item = (Bucket, u64)> + '_ {
        self.counts.iter().filter(|(_, n)| *n != 0).map(|(key, n)| (Bucket::of(key, self.unit), n))
    }

    /// Each [`QUANTILES`]; none where nothing was recorded. The values of a bucket are taken as spread evenly inside
    /// it, none of them on its edges.
    pub fn quantiles(&self) -> Option<[f64; QUANTILES.len()]> {
        let total = self.counts.total();
        if total == 0 {
            return None;
        }
        let mut quantiles = [0.0; QUANTILES.len()];
        let mut buckets = self.iter();
        let (mut bucket, mut n) = buckets.next()?;
        let mut below = 0;
        for (quantile, q) in quantiles.iter_mut().zip(QUANTILES) {
            let rank = ((q * total as f64).ceil() as u64).clamp(1, total);
            while rank > below + n {
                below += n;
                (bucket, n) = buckets.next()?;
            }
            *quantile = bucket.lower + bucket.width * ((rank - below) as f64) / (n as f64 + 1.0);
        }
        Some(quantiles)
    }

    /// The sum of all values, each taken as the harmonic middle of its bucket.
    pub fn sum(&self) -> f64 {
        self.iter().map(|(bucket, n)| bucket.middle() * n as f64).sum()
    }

    /// How many values lie up to each bound and above the one before. A bucket counts as a whole where its lower edge
    /// lies: 120 to 130 is up to 120, as Envoy has it.
    pub fn disjoint(&self, bounds: &[f64]) -> Vec<u64> {
        let mut counts = vec![0u64; bounds.len()];
        for (bucket, n) in self.iter() {
            if let Some(count) = counts.get_mut(bounds.partition_point(|bound| *bound < bucket.lower)) {
                *count += n;
            }
        }
        counts
    }

    /// How many values lie up to each bound.
    pub fn cumulative(&self, bounds: &[f64]) -> Vec<u64> {
        let mut counts = self.disjoint(bounds);
        let mut sum = 0;
        for count in &mut counts {
            sum += *count;
            *count = sum;
        }
        counts
    }

    /// The buckets that hold values.
    pub fn details(&self) -> impl Iterator<Item = (Bucket, u64)> + '_ {
        self.iter()
    }
}
