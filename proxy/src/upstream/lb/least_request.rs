//! LEAST_REQUEST: with equal weights the least busy of a few hosts drawn at random; with different weights turns in
//! proportion to `weight / (active requests + 1)^bias`.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use nuncio_core::random::Rng;
use nuncio_core::upstream::Host;

use super::Policy;
use super::edf::Weighted;

pub struct LeastRequest {
    choices: u32,
    bias: f64,
    start: u64,
    rng: Rng,
}

impl LeastRequest {
    pub fn new(choices: u32, bias: f64, rng: &Rng) -> Self {
        Self { choices: choices.max(2), bias, start: rng.u64(), rng: rng.clone() }
    }
}

fn active(host: &Host) -> u32 {
    host.load.active_requests.load(Relaxed)
}

fn weight_of(host: &Host, bias: f64) -> f64 {
    let weight = f64::from(host.weight());
    let busy = f64::from(active(host)) + 1.0;
    if bias == 1.0 { weight / busy } else { weight / busy.powf(bias) }
}

impl Policy for LeastRequest {
    type List = Weighted;

    fn list_changed(&mut self, list: &mut Weighted) {
        *list = Weighted::Unknown;
    }

    fn pick<'a>(&mut self, list: &mut Weighted, hosts: &'a [Arc<Host>], _random: u64) -> Option<&'a Arc<Host>> {
        let bias = self.bias;
        if matches!(list, Weighted::Unknown) {
            *list = Weighted::of(hosts, |host| weight_of(host, bias), self.start);
        }
        if let Weighted::Schedule(schedule) = list {
            return schedule.pick(|index| weight_of(&hosts[index], bias)).map(|index| &hosts[index]);
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
