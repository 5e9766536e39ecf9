//! ROUND_ROBIN: each in turn; by weight where weights differ. Every worker begins somewhere else.

use std::sync::Arc;

use nuncio_core::random::Rng;
use nuncio_core::upstream::Host;

use super::Policy;
use super::edf::Weighted;
use super::slow_start::SlowStarts;

pub struct RoundRobin {
    /// Where turns begin, so that workers do not all send their first request to the same host.
    start: u64,
    slow: SlowStarts,
}

/// Turns in one list.
#[derive(Default)]
pub struct Turns {
    /// Plain rotation; goes on when the list changes.
    next: Option<u64>,
    weighted: Weighted,
}

impl RoundRobin {
    pub fn new(slow: SlowStarts, rng: &Rng) -> Self {
        Self { start: rng.u64(), slow }
    }
}

impl Policy for RoundRobin {
    type List = Turns;

    fn list_changed(&mut self, list: &mut Turns) {
        list.weighted = Weighted::Unknown;
    }

    fn pick<'a>(&mut self, list: &mut Turns, hosts: &'a [Arc<Host>], _random: u64) -> Option<&'a Arc<Host>> {
        let slow = &self.slow;
        if matches!(list.weighted, Weighted::Unknown) {
            list.weighted = Weighted::of(hosts, |host| slow.weight(host), self.start, slow.any(hosts));
        }
        if let Weighted::Schedule(schedule) = &mut list.weighted {
            return schedule.pick(|index| slow.weight(&hosts[index])).map(|index| &hosts[index]);
        }
        let turn = list.next.get_or_insert(self.start);
        let host = &hosts[(*turn % hosts.len() as u64) as usize];
        *turn = turn.wrapping_add(1);
        Some(host)
    }
}
