//! LEAST_REQUEST: with equal weights the least busy of a few hosts drawn at random, or of all; with different weights
//! turns in proportion to `weight / (active requests + 1)^bias`.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use nuncio_core::random::Rng;
use nuncio_core::upstream::Host;

use super::Policy;
use super::edf::Weighted;
use super::slow_start::SlowStarts;

pub struct LeastRequest {
    choices: u32,
    bias: f64,
    full_scan: bool,
    start: u64,
    slow: SlowStarts,
    rng: Rng,
}

impl LeastRequest {
    pub fn new(choices: u32, bias: f64, full_scan: bool, slow: SlowStarts, rng: &Rng) -> Self {
        Self { choices: choices.max(2), bias, full_scan, start: rng.u64(), slow, rng: rng.clone() }
    }

    /// The least busy of all, any of them if there are several.
    fn scan<'a>(&self, hosts: &'a [Arc<Host>]) -> Option<&'a Arc<Host>> {
        let least = hosts.iter().map(|host| active(host)).min()?;
        let idle = || hosts.iter().filter(|host| active(host) <= least);
        // Others may have become busier in the meantime.
        let n = idle().count() as u64;
        idle().nth(self.rng.below(n) as usize).or(hosts.first())
    }
}

fn active(host: &Host) -> u32 {
    host.load.active_requests.load(Relaxed)
}

fn weight_of(host: &Host, bias: f64, slow: &SlowStarts) -> f64 {
    let weight = slow.weight(host);
    let busy = f64::from(active(host)) + 1.0;
    if bias == 1.0 { weight / busy } else { weight / busy.powf(bias) }
}

impl Policy for LeastRequest {
    type List = Weighted;

    fn list_changed(&mut self, list: &mut Weighted) {
        *list = Weighted::Unknown;
    }

    fn pick<'a>(&mut self, list: &mut Weighted, hosts: &'a [Arc<Host>], _random: u64) -> Option<&'a Arc<Host>> {
        let (bias, slow) = (self.bias, &self.slow);
        if matches!(list, Weighted::Unknown) {
            *list = Weighted::of(hosts, |host| weight_of(host, bias, slow), self.start, slow.any(hosts));
        }
        if let Weighted::Schedule(schedule) = list {
            return schedule.pick(|index| weight_of(&hosts[index], bias, slow)).map(|index| &hosts[index]);
        }
        if self.full_scan {
            return self.scan(hosts);
        }
        let draw = || &hosts[self.rng.below(hosts.len() as u64) as usize];
        let mut best = draw();
        for _ in 1..self.choices {
            let other = draw();
            if active(other) < active(best) {
                best = other;
            }
        }
        Some(best)
    }
}
