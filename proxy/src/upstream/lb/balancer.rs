//! A policy behind the choice of priority, health and locality.

use std::sync::Arc;

use nuncio_core::upstream::{Choice, Host, LbContext, LoadBalancer, PrioritySet};

use super::locality::LocalityTurns;
use super::priority::{self, Availability, PriorityState};
use super::zone::{self, Zone, Zones};
use super::{Policy, Surroundings, listed};
use crate::upstream::lb_config::LbConfig;

/// Balances by any policy that needs no more than a list of hosts.
pub struct Balancer<P: Policy> {
    policy: P,
    hosts: Arc<PrioritySet>,
    state: PriorityState,
    lists: Vec<Lists<P::List>>,
    panic_threshold: u32,
    fail_on_panic: bool,
    locality_weighted: bool,
    zones: Option<Box<Zones>>,
    around: Surroundings,
}

/// What is remembered of one priority.
struct Lists<L> {
    /// By availability.
    whole: [L; 3],
    /// Of the healthy and of the degraded hosts, where localities have weights or zones count.
    turns: [Option<Box<LocalityTurns>>; 2],
    by_locality: Vec<[L; 2]>,
}

impl<L: Default> Default for Lists<L> {
    fn default() -> Self {
        Self { whole: Default::default(), turns: [None, None], by_locality: Vec::new() }
    }
}

impl<P: Policy> Balancer<P> {
    pub fn new(policy: P, config: &LbConfig, hosts: &Arc<PrioritySet>, around: &Surroundings) -> Self {
        let mut new = Self {
            policy,
            hosts: Arc::default(),
            state: PriorityState::default(),
            lists: Vec::new(),
            panic_threshold: config.panic_threshold,
            fail_on_panic: config.fail_on_panic,
            locality_weighted: config.locality_weighted,
            zones: Zones::new(config),
            around: around.clone(),
        };
        new.hosts_changed(hosts);
        new
    }

    fn choose_once(&mut self, context: &LbContext<'_>) -> Option<&Arc<Host>> {
        let random = context.hash.unwrap_or_else(|| self.around.rng.u64());
        let (priority, availability) = self.choose_list(context, random)?;
        let set = self.hosts.priorities.get(priority)?;
        let lists = self.lists.get_mut(priority)?;
        if let Some(turns) = lists.turns.get_mut(availability as usize).and_then(Option::as_mut) {
            let at = turns.next()?;
            let locality = &set.localities[at];
            let hosts = if availability == Availability::Healthy { &locality.healthy } else { &locality.degraded };
            return self.policy.pick(&mut lists.by_locality[at][availability as usize], hosts, random);
        }
        if let Some(zones) = self.zones.as_mut().filter(|_| zone::counts(priority, availability)) {
            match zones.choose(set, &*self.around.observer, &self.around.rng) {
                Zone::Whole => {}
                Zone::Nobody => return None,
                Zone::Of(at) => {
                    let locality = &set.localities[at];
                    let hosts =
                        if availability == Availability::Healthy { &locality.healthy } else { &locality.degraded };
                    if !hosts.is_empty() {
                        return self.policy.pick(&mut lists.by_locality[at][availability as usize], hosts, random);
                    }
                }
            }
        }
        let hosts = listed(set, availability);
        if hosts.is_empty() {
            return None;
        }
        self.policy.pick(&mut lists.whole[availability as usize], hosts, random)
    }

    fn choose_list(&self, context: &LbContext<'_>, random: u64) -> Option<(usize, Availability)> {
        let (priority, availability) = match context.priority_load {
            Some(load) => priority::choose(load, random)?,
            None => self.state.choose(random)?,
        };
        if self.state.in_panic(priority) {
            self.around.observer.panic();
            return (!self.fail_on_panic).then_some((priority, Availability::All));
        }
        Some((priority, availability))
    }

    /// Chance met only rejected hosts: one that is not rejected, if there is any. Envoy takes the last one it met.
    fn search(&self, context: &LbContext<'_>) -> Option<Arc<Host>> {
        let reject = context.reject?;
        let random = self.around.rng.u64();
        let (priority, availability) = self.choose_list(context, random)?;
        let hosts = listed(self.hosts.priorities.get(priority)?, availability);
        let start = (random % hosts.len().max(1) as u64) as usize;
        hosts[start..].iter().chain(&hosts[..start]).find(|host| !reject(host)).cloned()
    }

    /// Another picture of a priority.
    fn list_changed(&mut self, at: usize, hosts: &PrioritySet) {
        let set = &hosts.priorities[at];
        let lists = &mut self.lists[at];
        let policy = &mut self.policy;
        lists.whole.iter_mut().for_each(|list| policy.list_changed(list));
        if !self.locality_weighted && self.zones.is_none() {
            return;
        }
        if self.locality_weighted {
            let start = self.around.rng.u64();
            lists.turns = [Availability::Healthy, Availability::Degraded]
                .map(|health| LocalityTurns::new(set, health, start).map(Box::new));
        }
        lists.by_locality.resize_with(set.localities.len(), Default::default);
        lists.by_locality.iter_mut().flatten().for_each(|list| policy.list_changed(list));
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
        // Mostly there is one.
        self.lists.reserve_exact(hosts.priorities.len().saturating_sub(self.lists.len()));
        self.lists.resize_with(hosts.priorities.len(), Default::default);
        for (at, set) in hosts.priorities.iter().enumerate() {
            // A priority that did not change keeps its picture, and so its turns.
            if !self.hosts.priorities.get(at).is_some_and(|old| Arc::ptr_eq(old, set)) {
                self.list_changed(at, hosts);
            }
        }
        if let Some(zones) = &mut self.zones {
            zones.hosts_changed();
        }
        self.hosts = hosts.clone();
        let observer = &self.around.observer;
        let threshold = priority::panic_threshold(self.panic_threshold, |key| observer.runtime(key));
        self.state = PriorityState::new(hosts, threshold);
    }
}
