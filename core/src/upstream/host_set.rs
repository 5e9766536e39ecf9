//! The hosts of a cluster, by priority and health, as an immutable picture.

use std::sync::Arc;

use super::host::{Health, HealthFlag};
use super::{Host, Locality};

/// Hosts of one priority, partitioned by health when the picture was taken.
#[derive(Debug, Default, Clone)]
pub struct HostSet {
    /// In the order discovery gave.
    pub hosts: Vec<Arc<Host>>,
    pub healthy: Vec<Arc<Host>>,
    pub degraded: Vec<Arc<Host>>,
    /// Not counted at all: never checked yet, or told to stay out.
    pub excluded: usize,
    /// In order of first appearance; the weight is 0 unless configured.
    pub localities: Vec<LocalityHosts>,
    /// Times 100: 140 means that 72 % healthy hosts still take all traffic.
    pub overprovisioning_factor: u32,
}

#[derive(Debug, Clone)]
pub struct LocalityHosts {
    pub locality: Arc<Locality>,
    pub weight: u32,
    pub hosts: Vec<Arc<Host>>,
    pub healthy: Vec<Arc<Host>>,
    pub degraded: Vec<Arc<Host>>,
}

impl HostSet {
    pub const DEFAULT_OVERPROVISIONING: u32 = 140;

    /// Takes the picture: reads every host's flags once.
    pub fn new(hosts: Vec<Arc<Host>>, weight_of: impl Fn(&Locality) -> u32, overprovisioning_factor: u32) -> Self {
        let mut set = Self { overprovisioning_factor, ..Self::default() };
        for host in &hosts {
            let flags = host.flags();
            if flags.contains(HealthFlag::PendingActiveHc) || flags.contains(HealthFlag::ExcludedViaImmediateHcFail) {
                set.excluded += 1;
            }
            let locality = &host.spec().locality;
            let at = set.localities.iter().position(|l| l.locality == *locality).unwrap_or_else(|| {
                set.localities.push(LocalityHosts {
                    locality: locality.clone(),
                    weight: weight_of(locality),
                    hosts: Vec::new(),
                    healthy: Vec::new(),
                    degraded: Vec::new(),
                });
                set.localities.len() - 1
            });
            let local = &mut set.localities[at];
            local.hosts.push(host.clone());
            match flags.health() {
                Health::Healthy => {
                    set.healthy.push(host.clone());
                    local.healthy.push(host.clone());
                }
                Health::Degraded => {
                    set.degraded.push(host.clone());
                    local.degraded.push(host.clone());
                }
                Health::Unhealthy => {}
            }
        }
        set.hosts = hosts;
        set
    }
}

/// All priorities of a cluster, 0 first. Immutable; every update makes a new one.
#[derive(Debug, Default, Clone)]
pub struct PrioritySet {
    pub priorities: Vec<Arc<HostSet>>,
}

impl PrioritySet {
    pub fn hosts(&self) -> impl Iterator<Item = &Arc<Host>> {
        self.priorities.iter().flat_map(|p| &p.hosts)
    }

    pub fn host_count(&self) -> usize {
        self.priorities.iter().map(|p| p.hosts.len()).sum()
    }
}
