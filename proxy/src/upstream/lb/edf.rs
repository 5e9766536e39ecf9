//! Earliest deadline first: turns in proportion to weights, interleaved as far as weights allow.
//!
//! Each host has a deadline, first 1/weight; the earliest is picked and gets a new one, 1/weight later. Equal deadlines
//! go in the order in which they were set. Exactly Envoy's schedule, also in where it begins: after `skip` picks, which
//! are computed, not made.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::sync::Arc;

use nuncio_core::upstream::Host;

/// A schedule over the indexes of a list.
#[derive(Debug)]
pub struct Edf {
    queue: BinaryHeap<Entry>,
    now: f64,
    /// Order of insertion.
    next: u64,
}

#[derive(Debug)]
struct Entry {
    deadline: f64,
    order: u64,
    index: u32,
}

impl Edf {
    /// As far as Envoy's own arithmetic of skipped picks reaches.
    const MOST_SKIPPED: u64 = 429_496_729;

    /// Weights that divide each other make equal deadlines, and after many picks rounding decides which of them comes
    /// first, once so and once otherwise. A nudge of this size at the start, larger than what rounding adds up to,
    /// keeps them apart, so that turns repeat exactly.
    const NUDGE: f64 = 1e-13;

    /// `weights` are positive.
    pub fn new(weights: &[f64], skip: u64) -> Self {
        let skip = skip % Self::MOST_SKIPPED;
        let nudged = || weights.iter().map(|weight| weight + Self::NUDGE);
        let sum: f64 = nudged().sum();
        let end = skip as f64 / sum;
        let mut skipped = 0;
        let mut now: f64 = 0.0;
        let mut queue = Vec::with_capacity(weights.len());
        for (index, weight) in nudged().enumerate() {
            let mut picks = (weight * skip as f64 / sum).floor();
            // Rounding may have made one pick too many of it; the loop below makes up for one too few.
            if picks > 0.0 && picks / weight >= end {
                picks -= 1.0;
            }
            skipped += picks as u64;
            now = now.max(picks / weight);
            queue.push(Entry { deadline: (picks + 1.0) / weight, order: index as u64, index: index as u32 });
        }
        let mut schedule = Self { queue: queue.into(), now, next: weights.len() as u64 };
        // Rounding down left about one pick a host.
        for _ in skipped..skip {
            schedule.pick(|index| weights[index]);
        }
        schedule
    }

    /// The next index; its weight from now on is what `weight_of` says.
    pub fn pick(&mut self, weight_of: impl Fn(usize) -> f64) -> Option<usize> {
        let mut top = self.queue.peek_mut()?;
        let index = top.index as usize;
        self.now = top.deadline;
        top.deadline = self.now + 1.0 / weight_of(index);
        top.order = self.next;
        self.next += 1;
        Some(index)
    }
}

/// The schedule of a list, made at its first pick.
#[derive(Default)]
pub enum Weighted {
    #[default]
    Unknown,
    Equal,
    Schedule(Edf),
}

impl Weighted {
    /// What the weights are like now; `weight_of` must be positive. `uneven`: equal weights are not what counts.
    pub fn of(hosts: &[Arc<Host>], weight_of: impl Fn(&Host) -> f64, start: u64, uneven: bool) -> Self {
        let Some((first, others)) = hosts.split_first() else { return Self::Equal };
        let weight = first.weight();
        if !uneven && others.iter().all(|host| host.weight() == weight) {
            return Self::Equal;
        }
        let weights: Vec<f64> = hosts.iter().map(|host| weight_of(host)).collect();
        Self::Schedule(Edf::new(&weights, start))
    }
}

// === impl Entry ===

impl Ord for Entry {
    /// The greatest is the next: reversed.
    fn cmp(&self, other: &Self) -> Ordering {
        other.deadline.total_cmp(&self.deadline).then(other.order.cmp(&self.order))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Entry {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn picks(schedule: &mut Edf, weights: &[f64], n: usize) -> Vec<usize> {
        (0..n).filter_map(|_| schedule.pick(|index| weights[index])).collect()
    }

    #[test]
    fn turns_are_interleaved_by_deadline_and_repeat_exactly() {
        // 60 random starts of Envoy 1.40 with weights 3 and 1 gave 40 picks each: every one of them repeats one of the
        // four rotations of this turn.
        for skip in (0..2000).chain([Edf::MOST_SKIPPED - 1, 429_000_001, 123_456_789, u64::MAX]) {
            let seen = picks(&mut Edf::new(&[3.0, 1.0], skip), &[3.0, 1.0], 40);
            assert_eq!(seen.iter().filter(|index| **index == 1).count(), 10, "{skip}");
            assert!(seen.windows(5).all(|turn| turn[0] == turn[4]), "{skip}: {seen:?}");
        }
    }

    #[test]
    fn a_changed_weight_counts_from_the_next_pick_on() {
        let mut schedule = Edf::new(&[1.0, 1.0], 0);
        let heavy = [1.0, 4.0];
        let counts = picks(&mut schedule, &heavy, 20).iter().filter(|index| **index == 1).count();
        assert!((15..=17).contains(&counts), "{counts}");
    }

    proptest! {
        #[test]
        fn every_host_gets_its_share_wherever_the_schedule_begins(
            weights in proptest::collection::vec(1u32..=128, 1..20), skip in 0u64..1_000_000,
        ) {
            let weights: Vec<f64> = weights.into_iter().map(f64::from).collect();
            let sum: f64 = weights.iter().sum();
            let mut counts = vec![0.0; weights.len()];
            for index in picks(&mut Edf::new(&weights, skip), &weights, sum as usize) {
                counts[index] += 1.0;
            }
            for (count, weight) in counts.iter().zip(&weights) {
                prop_assert!((count - weight).abs() <= 1.0 + 1e-9, "{count} of {weight}");
            }
        }

        #[test]
        fn skipping_is_picking_up_to_ties(
            weights in proptest::collection::vec(1u32..=16, 2..8), skip in 0u64..200,
        ) {
            let weights: Vec<f64> = weights.into_iter().map(f64::from).collect();
            let mut slow = Edf::new(&weights, 0);
            picks(&mut slow, &weights, skip as usize);
            let mut fast = Edf::new(&weights, skip);
            let n = 4 * weights.iter().sum::<f64>() as usize;
            let (slow, fast) = (picks(&mut slow, &weights, n), picks(&mut fast, &weights, n));
            for index in 0..weights.len() {
                let count = |list: &[usize]| list.iter().filter(|i| **i == index).count();
                prop_assert!(count(&slow).abs_diff(count(&fast)) <= 2);
            }
        }
    }
}
