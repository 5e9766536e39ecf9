//! One endpoint of a cluster.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::metadata::Metadata;
use crate::net::Address;

/// Region, zone and sub-zone, as configuration or discovery said.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Locality {
    pub region: Arc<str>,
    pub zone: Arc<str>,
    pub sub_zone: Arc<str>,
}

/// What a discovery source says of a host: the input of the cluster manager's diff.
#[derive(Debug, Clone, PartialEq)]
pub struct HostSpec {
    pub address: Address,
    pub hostname: Arc<str>,
    pub locality: Arc<Locality>,
    pub priority: u32,
    /// At least 1.
    pub weight: u32,
    pub metadata: Arc<Metadata>,
    pub canary: bool,
    /// Where active checks go, if not to `address`.
    pub health_check_address: Option<Address>,
    pub health_check_hostname: Arc<str>,
    pub disable_active_health_check: bool,
    /// The discovery's own word on health: a subset of the `*Eds*` flags.
    pub eds_health: HealthFlags,
}

impl HostSpec {
    /// A host of weight 1 without locality or metadata.
    pub fn new(address: Address) -> Self {
        Self {
            address,
            hostname: "".into(),
            locality: Arc::default(),
            priority: 0,
            weight: 1,
            metadata: Arc::default(),
            canary: false,
            health_check_address: None,
            health_check_hostname: "".into(),
            disable_active_health_check: false,
            eds_health: HealthFlags::default(),
        }
    }
}

macro_rules! health_flags {
    ($($(#[$doc:meta])* $name:ident $text:literal,)*) => {
        /// One reason why a host is not simply healthy.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u8)]
        pub enum HealthFlag { $($(#[$doc])* $name,)* }

        impl HealthFlag {
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// As `/clusters` prints it.
            pub fn text(self) -> &'static str { match self { $(Self::$name => $text,)* } }
        }
    };
}

health_flags! {
    FailedActiveHc "/failed_active_hc",
    FailedOutlierCheck "/failed_outlier_check",
    FailedEdsHealth "/failed_eds_health",
    DegradedActiveHc "/degraded_active_hc",
    DegradedEdsHealth "/degraded_eds_health",
    /// Absent from discovery, but its checks still pass.
    PendingDynamicRemoval "/pending_dynamic_removal",
    /// Not yet checked, and the cluster ignores hosts until their first check.
    PendingActiveHc "/pending_active_hc",
    ExcludedViaImmediateHcFail "/excluded_via_immediate_hc_fail",
    ActiveHcTimeout "/active_hc_timeout",
    EdsStatusDraining "/eds_status_draining",
}

/// A set of [`HealthFlag`]s. Prints as `/clusters` does: `healthy`, or the flags in order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HealthFlags(u32);

/// Health as balancers see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    Healthy,
    Degraded,
    Unhealthy,
}

impl HealthFlags {
    pub fn with(self, flag: HealthFlag) -> Self {
        Self(self.0 | 1 << flag as u32)
    }

    pub fn without(self, flag: HealthFlag) -> Self {
        Self(self.0 & !(1 << flag as u32))
    }

    pub fn contains(self, flag: HealthFlag) -> bool {
        self.0 & (1 << flag as u32) != 0
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn health(self) -> Health {
        use HealthFlag::*;
        if [FailedActiveHc, FailedOutlierCheck, FailedEdsHealth].iter().any(|f| self.contains(*f)) {
            Health::Unhealthy
        } else if [DegradedActiveHc, DegradedEdsHealth].iter().any(|f| self.contains(*f)) {
            Health::Degraded
        } else {
            Health::Healthy
        }
    }
}

impl fmt::Display for HealthFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("healthy");
        }
        HealthFlag::ALL.iter().filter(|flag| self.contains(**flag)).try_for_each(|flag| f.write_str(flag.text()))
    }
}

/// What every worker may write about a host, in one cache line. Permits are taken and given back
/// by guards of the pools.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct HostLoad {
    pub active_requests: AtomicU32,
    pub active_connections: AtomicU32,
}

/// One endpoint. Its identity (address, checks' address, locality, names) never changes; weight,
/// metadata and health flags do, in place, so that counters and pools live on over updates.
/// Shared by all threads; only the main thread writes `weight`, `flags` and `metadata`.
#[derive(Debug)]
pub struct Host {
    spec: HostSpec,
    /// The address as text, made once: logs and stats print it for every request.
    address_text: Arc<str>,
    weight: AtomicU32,
    flags: AtomicU32,
    metadata: arc_swap::ArcSwap<Metadata>,
    pub load: HostLoad,
}

impl Host {
    pub fn new(spec: HostSpec) -> Self {
        Self {
            address_text: spec.address.to_string().into(),
            weight: AtomicU32::new(spec.weight.max(1)),
            flags: AtomicU32::new(spec.eds_health.0),
            metadata: arc_swap::ArcSwap::new(spec.metadata.clone()),
            load: HostLoad::default(),
            spec,
        }
    }

    /// What made it: identity and first values. Ask the other methods for what may change.
    pub fn spec(&self) -> &HostSpec {
        &self.spec
    }

    pub fn address(&self) -> &Address {
        &self.spec.address
    }

    pub fn address_text(&self) -> &Arc<str> {
        &self.address_text
    }

    pub fn hostname(&self) -> &str {
        &self.spec.hostname
    }

    pub fn weight(&self) -> u32 {
        self.weight.load(Relaxed)
    }

    pub fn set_weight(&self, weight: u32) {
        self.weight.store(weight.max(1), Relaxed);
    }

    pub fn flags(&self) -> HealthFlags {
        HealthFlags(self.flags.load(Relaxed))
    }

    pub fn set_flags(&self, flags: HealthFlags) {
        self.flags.store(flags.0, Relaxed);
    }

    pub fn health(&self) -> Health {
        self.flags().health()
    }

    pub fn metadata(&self) -> Arc<Metadata> {
        self.metadata.load_full()
    }

    pub fn set_metadata(&self, metadata: Arc<Metadata>) {
        self.metadata.store(metadata);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_print_in_the_order_of_clusters_page() {
        let flags = HealthFlags::default().with(HealthFlag::PendingDynamicRemoval).with(HealthFlag::FailedActiveHc);
        assert_eq!(flags.to_string(), "/failed_active_hc/pending_dynamic_removal");
        assert_eq!(flags.health(), Health::Unhealthy);
        assert_eq!(HealthFlags::default().to_string(), "healthy");
        let pending = HealthFlags::default().with(HealthFlag::PendingDynamicRemoval);
        assert_eq!(pending.health(), Health::Healthy);
    }
}
