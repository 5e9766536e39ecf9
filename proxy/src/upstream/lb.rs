//! Balancing: which host of a cluster takes a request.
//!
//! - [`priority`] decides over health: which priority, and there the healthy hosts, the degraded ones, or in panic all
//!   of them; `locality` over localities with weights
//! - a [`Policy`] ([`round_robin`], [`least_request`], [`random`]) picks one host of a list; [`balancer()`]
//!   joins it with those, so that a policy is one small file and knows nothing of health
//! - `hashing` with `ring` and `maglev` sends equal hashes to equal hosts
//! - `zone` keeps traffic in the zone of this proxy
//! - `subset` has a balancer for each part of a cluster that routes ask for by `labels`
//! - `original_dst` sends each request where its client wanted to go
//! - [`shared`]: what main builds of all this for the workers

mod balancer;
pub mod edf;
mod hashing;
pub mod labels;
pub mod least_request;
mod locality;
mod maglev;
mod original_dst;
pub mod priority;
pub mod random;
mod ring;
pub mod round_robin;
pub mod shared;
pub mod slow_start;
mod subset;
pub mod zone;

use std::rc::Rc;
use std::sync::Arc;

use nuncio_core::random::Rng;
use nuncio_core::upstream::{Choice, Host, HostSet, Hosts, LbContext, LoadBalancer, PrioritySet};

pub use self::balancer::Balancer;
pub use self::hashing::Evenness;
use self::hashing::HashBalancer;
use self::original_dst::OriginalDst;
use self::priority::Availability;
use self::shared::{Shared, SubsetCounts};
use self::slow_start::SlowStarts;
use self::subset::SubsetBalancer;
pub use self::zone::{LocalHosts, ZoneEvent};
use super::cluster::{LbConfig, LbPolicy};
use super::original_dst::OwnListeners;

/// Picks one of a list of hosts.
pub trait Policy {
    /// What the policy remembers of one list between picks.
    type List: Default;

    /// The list is another one, or weights in it changed.
    fn list_changed(&mut self, list: &mut Self::List);

    /// One of `hosts`, which is not empty. `random` was drawn for this request.
    fn pick<'a>(&mut self, list: &mut Self::List, hosts: &'a [Arc<Host>], random: u64) -> Option<&'a Arc<Host>>;
}

/// Who counts what balancers do, and knows what goes on in their cluster.
pub trait Observer {
    /// Traffic goes to a priority in panic.
    fn panic(&self) {}

    /// Requests under way in the whole cluster.
    fn active_requests(&self) -> u32 {
        0
    }

    /// A request goes to the subset that it asked for.
    fn subset_selected(&self) {}

    /// A request goes to the fallback; `panic`: even there was nobody.
    fn subset_fallback(&self, panic: bool) {
        let _ = panic;
    }

    /// A client named a destination that is no address.
    fn invalid_destination(&self) {}

    /// The cluster's name.
    fn cluster(&self) -> Arc<str> {
        Arc::default()
    }

    /// Where this worker accepts.
    fn own_listeners(&self) -> Rc<OwnListeners> {
        Rc::default()
    }

    /// Of the cluster that this proxy belongs to, if there is one.
    fn local_hosts(&self) -> Option<&LocalHosts> {
        None
    }

    /// What an operator set while the proxy runs.
    fn runtime(&self, key: &str) -> Option<u64> {
        let _ = key;
        None
    }

    /// Zones counted, or could not.
    fn zone(&self, event: ZoneEvent) {
        let _ = event;
    }

    /// The subsets are others now.
    fn subsets(&self, counts: SubsetCounts) {
        let _ = counts;
    }
}

/// What balancers use of their worker.
#[derive(Clone)]
pub struct Surroundings {
    pub rng: Rng,
    pub observer: Rc<dyn Observer>,
}

/// Makes the balancer that a cluster is configured with; `shared` is what main built for it, if its policy needs that.
pub fn balancer(
    config: &LbConfig,
    hosts: &Arc<PrioritySet>,
    shared: Option<&Arc<Shared>>,
    around: &Surroundings,
) -> Box<dyn LoadBalancer> {
    if let Some(shared) = shared {
        if let (Some(destinations), Some(config)) = (shared.destinations(), &config.original_dst) {
            return Box::new(OriginalDst::new(config, &destinations, around));
        }
        if let Some(subsets) = SubsetBalancer::new(config, shared, around) {
            return Box::new(subsets);
        }
        if let Some(tables) = shared.tables() {
            return Box::new(Hashed { inner: HashBalancer::new(config, tables, around), shared: shared.clone() });
        }
    }
    plain(config, hosts, around)
}

/// For policies that need nothing shared.
fn plain(config: &LbConfig, hosts: &Arc<PrioritySet>, around: &Surroundings) -> Box<dyn LoadBalancer> {
    let rng = &around.rng;
    let slow = SlowStarts::new(config.slow_start.clone());
    match config.policy {
        LbPolicy::RoundRobin => Box::new(Balancer::new(round_robin::RoundRobin::new(slow, rng), config, hosts, around)),
        LbPolicy::LeastRequest { choices, bias, full_scan } => {
            let policy = least_request::LeastRequest::new(choices, bias, full_scan, slow, rng);
            Box::new(Balancer::new(policy, config, hosts, around))
        }
        // What hashes has its tables from main, and original destinations are known there.
        LbPolicy::Random | LbPolicy::RingHash(_) | LbPolicy::Maglev(_) | LbPolicy::OriginalDst => {
            Box::new(Balancer::new(random::Random, config, hosts, around))
        }
    }
}

fn listed(set: &HostSet, availability: Availability) -> &Hosts {
    match availability {
        Availability::Healthy => &set.healthy,
        Availability::Degraded => &set.degraded,
        Availability::All => &set.hosts,
    }
}

/// A hashing policy of a whole cluster.
struct Hashed {
    inner: HashBalancer,
    shared: Arc<Shared>,
}

impl LoadBalancer for Hashed {
    fn choose_host(&mut self, context: &LbContext<'_>) -> Choice {
        self.inner.choose(context)
    }

    fn hosts_changed(&mut self, _: &Arc<PrioritySet>) {
        if let Some(tables) = self.shared.tables() {
            self.inner.set_tables(tables);
        }
    }
}

#[cfg(test)]
mod tests;
