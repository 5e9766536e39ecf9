//! The hosts of a cluster, by priority and health, as an immutable picture.

use std::collections::HashMap;
use std::sync::Arc;

use super::host::Health;
use super::{Host, Locality};

/// Hosts in the order discovery gave, shared by the pictures that contain the same ones.
pub type Hosts = Arc<[Arc<Host>]>;

/// Hosts of one priority, partitioned by health when the picture was taken.
#[derive(Debug, Default, Clone)]
pub struct HostSet {
    pub hosts: Hosts,
    pub healthy: Hosts,
    pub degraded: Hosts,
    /// Left out of the arithmetic: never checked yet, draining, or told to stay out.
    pub excluded: usize,
    /// In order of first appearance.
    pub localities: Box<[LocalityHosts]>,
    /// Times 100: 140 means that 72 % healthy hosts still take all traffic.
    pub overprovisioning_factor: u32,
    /// How much of the priority is well is a matter of the hosts' weights, not of their number.
    pub weighted_health: bool,
}

#[derive(Debug, Clone)]
pub struct LocalityHosts {
    pub locality: Arc<Locality>,
    /// 0 unless configured.
    pub weight: u32,
    pub excluded: usize,
    pub hosts: Hosts,
    pub healthy: Hosts,
    pub degraded: Hosts,
}

impl HostSet {
    pub const DEFAULT_OVERPROVISIONING: u32 = 140;

    /// Takes the picture: reads every host's flags once. What is equal is shared: a set of one
    /// locality with all hosts healthy holds one list.
    pub fn new(hosts: Vec<Arc<Host>>, weight_of: impl Fn(&Locality) -> u32, overprovisioning_factor: u32) -> Self {
        let localities = by_locality(&hosts);
        let whole = Partition::new(hosts.into());
        let localities = if localities.len() == 1 {
            localities.into_iter().map(|(locality, _)| whole.in_locality(&weight_of, locality)).collect()
        } else {
            let each = localities.into_iter();
            each.map(|(locality, hosts)| Partition::new(hosts.into()).in_locality(&weight_of, locality)).collect()
        };
        let Partition { hosts, healthy, degraded, excluded } = whole;
        Self { hosts, healthy, degraded, excluded, localities, overprovisioning_factor, weighted_health: false }
    }

    /// The weights of its localities, for a picture that takes its place.
    pub fn weights(&self) -> impl Fn(&Locality) -> u32 + use<> {
        let each = self.localities.iter().map(|local| (local.locality.clone(), local.weight));
        let known: HashMap<Arc<Locality>, u32> = each.collect();
        move |locality| known.get(locality).copied().unwrap_or(0)
    }
}

/// Localities in the order of their first hosts, each with its hosts in their order.
fn by_locality(hosts: &[Arc<Host>]) -> Vec<(Arc<Locality>, Vec<Arc<Host>>)> {
    /// So many are looked through faster than hashed.
    const FEW: usize = 16;
    let mut localities: Vec<(Arc<Locality>, Vec<Arc<Host>>)> = Vec::new();
    let mut index: HashMap<&Locality, usize> = HashMap::new();
    for host in hosts {
        let locality = &host.spec().locality;
        let known = if localities.len() <= FEW {
            // Neighbours usually share a locality, so the last one is asked first.
            localities.iter().rposition(|(known, _)| Arc::ptr_eq(known, locality) || known == locality)
        } else {
            index.get(&**locality).copied()
        };
        match known {
            Some(at) => localities[at].1.push(host.clone()),
            None => {
                index.insert(locality, localities.len());
                localities.push((locality.clone(), vec![host.clone()]));
            }
        }
    }
    localities
}

struct Partition {
    hosts: Hosts,
    healthy: Hosts,
    degraded: Hosts,
    excluded: usize,
}

impl Partition {
    fn new(hosts: Hosts) -> Self {
        let mut counts = [0; 3];
        let mut excluded = 0;
        let mut health = Vec::with_capacity(hosts.len());
        for host in hosts.iter() {
            let flags = host.flags();
            excluded += usize::from(flags.is_excluded());
            counts[flags.health() as usize] += 1;
            health.push(flags.health());
        }
        let list = |wanted: Health| -> Hosts {
            match counts[wanted as usize] {
                0 => Arc::default(),
                n if n == hosts.len() => hosts.clone(),
                _ => hosts.iter().zip(&health).filter(|(_, h)| **h == wanted).map(|(host, _)| host.clone()).collect(),
            }
        };
        Self { healthy: list(Health::Healthy), degraded: list(Health::Degraded), excluded, hosts }
    }

    fn in_locality(&self, weight_of: &impl Fn(&Locality) -> u32, locality: Arc<Locality>) -> LocalityHosts {
        LocalityHosts {
            weight: weight_of(&locality),
            locality,
            excluded: self.excluded,
            hosts: self.hosts.clone(),
            healthy: self.healthy.clone(),
            degraded: self.degraded.clone(),
        }
    }
}

/// All priorities of a cluster, 0 first. Immutable; every update makes a new one, which shares the
/// pictures of the priorities that did not change.
#[derive(Debug, Default, Clone)]
pub struct PrioritySet {
    pub priorities: Vec<Arc<HostSet>>,
    /// So many of a million requests are turned away, because discovery says so (`drop_overloads`).
    pub drop_overload: u32,
}

impl PrioritySet {
    pub fn hosts(&self) -> impl Iterator<Item = &Arc<Host>> {
        self.priorities.iter().flat_map(|p| p.hosts.iter())
    }

    pub fn host_count(&self) -> usize {
        self.priorities.iter().map(|p| p.hosts.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::super::host::{HealthFlag, HealthFlags, HostSpec};
    use super::*;
    use crate::net::Address;

    fn hosts(n: u16) -> Vec<Arc<Host>> {
        let spec = |port| HostSpec::new(Address::Ip(([127, 0, 0, 1], port).into()));
        (1..=n).map(|port| Arc::new(Host::new(spec(port)))).collect()
    }

    #[test]
    fn hosts_of_one_locality_that_are_all_healthy_are_one_list() {
        let set = HostSet::new(hosts(3), |_| 0, 140);
        assert!(Arc::ptr_eq(&set.hosts, &set.healthy));
        assert!(Arc::ptr_eq(&set.hosts, &set.localities[0].healthy));
        assert_eq!((set.localities.len(), set.degraded.len(), set.excluded), (1, 0, 0));
    }

    #[test]
    fn hosts_are_put_together_by_locality_however_many_there_are() {
        for zones in [3, 200] {
            let spec = |at: u16| {
                let zone = (at % zones).to_string().as_str().into();
                let locality = Arc::new(Locality { zone, ..Locality::default() });
                HostSpec { locality, ..HostSpec::new(Address::Ip(([127, 0, 0, 1], at).into())) }
            };
            let hosts = (0..1000).map(|at| Arc::new(Host::new(spec(at)))).collect();
            let set = HostSet::new(hosts, |locality| locality.zone.parse().unwrap(), 140);
            assert_eq!(set.localities.len(), usize::from(zones));
            for (at, local) in set.localities.iter().enumerate() {
                let same = |host: &Arc<Host>| usize::from(host.address().port().unwrap() % zones) == at;
                assert!(local.hosts.iter().all(same) && local.hosts.len() >= 5);
                assert_eq!((local.weight as usize, set.weights()(&local.locality) as usize), (at, at));
            }
            assert_eq!(set.weights()(&Locality::default()), 0);
        }
    }

    #[test]
    fn draining_hosts_are_neither_healthy_nor_counted() {
        let hosts = hosts(2);
        hosts[0].set_flags(HealthFlags::default().with(HealthFlag::EdsStatusDraining));
        let set = HostSet::new(hosts, |_| 0, 140);
        assert_eq!((set.hosts.len(), set.healthy.len(), set.excluded), (2, 1, 1));
    }
}
