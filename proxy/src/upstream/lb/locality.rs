//! Locality weighted balancing: localities take turns by their weight and by how many of their hosts are available.

use nuncio_core::upstream::HostSet;

use super::edf::Edf;
use super::priority::Availability;

/// The turns of the localities of one priority.
pub(super) struct LocalityTurns {
    schedule: Edf,
    /// Places in [`HostSet::localities`], and weights.
    entries: Vec<(usize, f64)>,
}

impl LocalityTurns {
    /// `None` if no locality has a weight.
    pub fn new(set: &HostSet, availability: Availability, start: u64) -> Option<Self> {
        let weight = |at: usize| {
            let locality = &set.localities[at];
            let available = match availability {
                Availability::Healthy => locality.healthy.len(),
                Availability::Degraded => locality.degraded.len(),
                Availability::All => return 0.0,
            };
            let counted = locality.hosts.len() - locality.excluded;
            if counted == 0 {
                return 0.0;
            }
            let ratio = available as f64 / counted as f64 * f64::from(set.overprovisioning_factor) / 100.0;
            f64::from(locality.weight) * ratio.min(1.0)
        };
        let entries: Vec<(usize, f64)> =
            (0..set.localities.len()).map(|at| (at, weight(at))).filter(|(_, weight)| *weight > 0.0).collect();
        if entries.is_empty() {
            return None;
        }
        let weights: Vec<f64> = entries.iter().map(|(_, weight)| *weight).collect();
        Some(Self { schedule: Edf::new(&weights, start), entries })
    }

    /// Whose turn it is.
    pub fn next(&mut self) -> Option<usize> {
        let entries = &self.entries;
        let entry = self.schedule.pick(|index| entries[index].1)?;
        Some(self.entries[entry].0)
    }
}
