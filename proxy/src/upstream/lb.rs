//! Balancing: which host of a cluster takes a request.
//!
//! [`priority`] decides over health: which priority, and there the healthy hosts, the degraded ones, or in panic all of
//! them. A [`Policy`] then picks one host of that list. [`Balancer`] joins the two, so that a policy is one small file
//! and knows nothing of health.

pub mod edf;
pub mod labels;
pub mod least_request;
pub mod priority;
pub mod random;
pub mod round_robin;

use std::sync::Arc;

use nuncio_core::random::Rng;
use nuncio_core::upstream::{Choice, Host, HostSet, Hosts, LbContext, LoadBalancer, PrioritySet};

use self::priority::{Availability, PriorityState};
use super::cluster::{LbConfig, LbPolicy};

/// Picks one of a list of hosts.
pub trait Policy {
    /// What the policy remembers of one list between picks.
    type List: Default;

    /// The list is another one, or weights in it changed.
    fn list_changed(&mut self, list: &mut Self::List);

    /// One of `hosts`, which is not empty. `random` was drawn for this request.
    fn pick<'a>(&mut self, list: &mut Self::List, hosts: &'a [Arc<Host>], random: u64) -> Option<&'a Arc<Host>>;
}

/// Told when traffic goes to a priority in panic.
pub type OnPanic = Box<dyn Fn()>;

/// Makes the balancer that a cluster is configured with.
pub fn balancer(config: &LbConfig, hosts: &Arc<PrioritySet>, rng: &Rng, on_panic: OnPanic) -> Box<dyn LoadBalancer> {
    fn with<P: Policy + 'static>(
        policy: P,
        config: &LbConfig,
        hosts: &Arc<PrioritySet>,
        rng: &Rng,
        on_panic: OnPanic,
    ) -> Box<dyn LoadBalancer> {
        Box::new(Balancer::new(policy, config.panic_threshold, hosts, rng.clone(), on_panic))
    }
    match config.policy {
        LbPolicy::RoundRobin => with(round_robin::RoundRobin::new(rng), config, hosts, rng, on_panic),
        LbPolicy::Random => with(random::Random, config, hosts, rng, on_panic),
        LbPolicy::LeastRequest { choices, bias } => {
            with(least_request::LeastRequest::new(choices, bias, rng), config, hosts, rng, on_panic)
        }
    }
}

/// A policy behind the choice of priority and health.
pub struct Balancer<P: Policy> {
    policy: P,
    hosts: Arc<PrioritySet>,
    state: PriorityState,
    panic_threshold: u32,
    lists: Vec<[P::List; 3]>,
    rng: Rng,
    on_panic: OnPanic,
}

impl<P: Policy> Balancer<P> {
    pub fn new(policy: P, panic_threshold: u32, hosts: &Arc<PrioritySet>, rng: Rng, on_panic: OnPanic) -> Self {
        let mut new = Self {
            policy,
            hosts: Arc::default(),
            state: PriorityState::default(),
            panic_threshold,
            lists: Vec::new(),
            rng,
            on_panic,
        };
        new.hosts_changed(hosts);
        new
    }

    fn choose_once(&mut self, context: &LbContext<'_>) -> Option<&Arc<Host>> {
        let random = context.hash.unwrap_or_else(|| self.rng.u64());
        let (priority, availability) = self.choose_list(context, random)?;
        let hosts = listed(self.hosts.priorities.get(priority)?, availability);
        if hosts.is_empty() {
            return None;
        }
        self.policy.pick(&mut self.lists[priority][availability as usize], hosts, random)
    }

    fn choose_list(&self, context: &LbContext<'_>, random: u64) -> Option<(usize, Availability)> {
        let (priority, availability) = match context.priority_load {
            Some(load) => priority::choose(load, random)?,
            None => self.state.choose(random)?,
        };
        if self.state.in_panic(priority) {
            (self.on_panic)();
            return Some((priority, Availability::All));
        }
        Some((priority, availability))
    }

    /// Chance, or a hash, met only rejected hosts: one that is not rejected, if there is any. Envoy takes the last one
    /// it met.
    fn search(&self, context: &LbContext<'_>) -> Option<Arc<Host>> {
        let reject = context.reject?;
        let random = self.rng.u64();
        let (priority, availability) = self.choose_list(context, random)?;
        let hosts = listed(self.hosts.priorities.get(priority)?, availability);
        let start = (random % hosts.len().max(1) as u64) as usize;
        hosts[start..].iter().chain(&hosts[..start]).find(|host| !reject(host)).cloned()
    }
}

fn listed(set: &HostSet, availability: Availability) -> &Hosts {
    match availability {
        Availability::Healthy => &set.healthy,
        Availability::Degraded => &set.degraded,
        Availability::All => &set.hosts,
    }
}

impl<P: Policy> LoadBalancer for Balancer<P> {
    fn choose_host(&mut self, context: &LbContext<'_>) -> Choice {
        let mut left = context.reselections;
        loop {
            let Some(host) = self.choose_once(context) else { return Choice::None };
            if !context.reject.is_some_and(|reject| reject(host)) {
                return Choice::Host(host.clone());
            }
            if left == 0 {
                let last = host.clone();
                return Choice::Host(self.search(context).unwrap_or(last));
            }
            left -= 1;
        }
    }

    fn hosts_changed(&mut self, hosts: &Arc<PrioritySet>) {
        self.lists.resize_with(hosts.priorities.len(), Default::default);
        for (at, set) in hosts.priorities.iter().enumerate() {
            // A priority that did not change keeps its picture, and so its turns.
            if !self.hosts.priorities.get(at).is_some_and(|old| Arc::ptr_eq(old, set)) {
                self.lists[at].iter_mut().for_each(|list| self.policy.list_changed(list));
            }
        }
        self.hosts = hosts.clone();
        self.state = PriorityState::new(hosts, self.panic_threshold);
    }
}

#[cfg(test)]
mod tests;
