//! Which hosts of a cluster answer so much worse than the others that they are outliers.

/// Below the average by so many standard deviations.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Threshold {
    pub average: f64,
    pub threshold: f64,
}

impl Threshold {
    /// When there is nothing to compare.
    pub const NONE: Self = Self { average: -1.0, threshold: -1.0 };

    /// `factor` as configured: 1900 is 1.9 deviations.
    pub fn of(rates: &[f64], factor: u64) -> Self {
        let count = rates.len() as f64;
        let average = rates.iter().sum::<f64>() / count;
        let variance = rates.iter().map(|rate| (rate - average).powi(2)).sum::<f64>() / count;
        Self { average, threshold: average - factor as f64 / 1000.0 * variance.sqrt() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_threshold_lies_deviations_below_the_average() {
        // Average 82, variance (4 × 18² + 72²) / 5 = 1296, deviation 36.
        let of = |factor| Threshold::of(&[100.0, 100.0, 100.0, 100.0, 10.0], factor);
        assert_eq!(of(1900), Threshold { average: 82.0, threshold: 82.0 - 1.9 * 36.0 });
        assert_eq!(of(0).threshold, 82.0);
        assert_eq!(Threshold::of(&[50.0, 50.0], 1900), Threshold { average: 50.0, threshold: 50.0 });
    }
}
