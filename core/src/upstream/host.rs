//! One endpoint of a cluster. Over 500 lines with what it is, what is known of its health, its counts and its places:
//! one object that all threads share.

use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

pub use super::host_load::{HostCounts, HostLoad};
use super::host_monitor::{HostMonitor, Outcome};
use crate::metadata::Metadata;
use crate::net::Address;

/// Region, zone and sub-zone, as configuration or discovery said.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Locality {
    pub region: Arc<str>,
    pub zone: Arc<str>,
    pub sub_zone: Arc<str>,
}

impl Locality {
    /// The locality of hosts of which nobody said one; all of them share it.
    pub fn none() -> Arc<Self> {
        static NONE: LazyLock<Arc<Locality>> = LazyLock::new(Arc::default);
        NONE.clone()
    }
}

/// Who said that there is a host, in which version of what they say, and when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// E.g. `sds GET registry/v1/registration/web`.
    pub who: Arc<str>,
    /// Empty where answers have none.
    pub version: Arc<str>,
    pub at: SystemTime,
}

/// What a discovery source says of a host: the input of the cluster manager's diff.
#[derive(Debug, Clone, PartialEq)]
pub struct HostSpec {
    pub address: Address,
    /// Set for a host that is a name, wherever that leads at the moment: all its addresses, in the order in which new
    /// connections try them, `address` first. Such a host remains itself when they change.
    pub logical: Option<Arc<[Address]>>,
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
    /// Shared by all hosts of one answer; no part of what the host is.
    pub origin: Option<Arc<Origin>>,
}

impl HostSpec {
    /// A host of weight 1 without locality or metadata.
    pub fn new(address: Address) -> Self {
        Self {
            address,
            logical: None,
            hostname: Arc::default(),
            locality: Locality::none(),
            priority: 0,
            weight: 1,
            metadata: Metadata::none(),
            canary: false,
            health_check_address: None,
            health_check_hostname: Arc::default(),
            disable_active_health_check: false,
            eds_health: HealthFlags::default(),
            origin: None,
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
    /// Its answers to traffic said so (`detect_degraded_hosts`).
    DegradedOutlierDetection "/degraded_outlier_detection",
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

    const UNHEALTHY: Self = Self(
        1 << HealthFlag::FailedActiveHc as u32
            | 1 << HealthFlag::FailedOutlierCheck as u32
            | 1 << HealthFlag::FailedEdsHealth as u32
            | 1 << HealthFlag::EdsStatusDraining as u32,
    );
    const DEGRADED: Self = Self(
        1 << HealthFlag::DegradedActiveHc as u32
            | 1 << HealthFlag::DegradedEdsHealth as u32
            | 1 << HealthFlag::DegradedOutlierDetection as u32,
    );
    /// Hosts that the arithmetic of priorities and panic leaves out.
    const EXCLUDED: Self = Self(
        1 << HealthFlag::PendingActiveHc as u32
            | 1 << HealthFlag::ExcludedViaImmediateHcFail as u32
            | 1 << HealthFlag::EdsStatusDraining as u32,
    );
    /// What discovery says of health; the rest is what checks and traffic say.
    const DISCOVERED: Self = Self(
        1 << HealthFlag::FailedEdsHealth as u32
            | 1 << HealthFlag::DegradedEdsHealth as u32
            | 1 << HealthFlag::EdsStatusDraining as u32,
    );

    pub fn health(self) -> Health {
        if self.0 & Self::UNHEALTHY.0 != 0 {
            Health::Unhealthy
        } else if self.0 & Self::DEGRADED.0 != 0 {
            Health::Degraded
        } else {
            Health::Healthy
        }
    }

    pub fn is_excluded(self) -> bool {
        self.0 & Self::EXCLUDED.0 != 0
    }

    /// These flags with discovery's own word replaced by that of `said`.
    pub fn discovered(self, said: Self) -> Self {
        Self(self.0 & !Self::DISCOVERED.0 | said.0 & Self::DISCOVERED.0)
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

/// Where a logical host is.
#[derive(Debug)]
pub struct Place {
    /// New connections try them in this order.
    pub addresses: Arc<[Address]>,
    /// The first one's.
    pub text: Arc<str>,
}

impl Place {
    fn of(addresses: Arc<[Address]>) -> Self {
        let text = addresses.first().map(|first| first.to_string().into()).unwrap_or_default();
        Self { addresses, text }
    }
}

/// An address as text, without a copy.
pub enum AddressText<'a> {
    Fixed(&'a Arc<str>),
    Now(arc_swap::Guard<Arc<Place>>),
}

impl AddressText<'_> {
    pub fn to_shared(&self) -> Arc<str> {
        match self {
            Self::Fixed(text) => Arc::clone(text),
            Self::Now(place) => place.text.clone(),
        }
    }
}

impl Deref for AddressText<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Self::Fixed(text) => text,
            Self::Now(place) => &place.text,
        }
    }
}

impl fmt::Display for AddressText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

/// One endpoint. Its identity (address, checks' address, locality, names) never changes; the rest
/// does, in place, so that counters and pools live on over updates. Shared by all threads; but for
/// `load`, only the main thread writes it.
#[derive(Debug)]
pub struct Host {
    spec: HostSpec,
    /// The address as text, made once: logs and stats print it for every request.
    address_text: Arc<str>,
    weight: AtomicU32,
    flags: AtomicU32,
    priority: AtomicU32,
    canary: AtomicBool,
    removed: AtomicBool,
    metadata: arc_swap::ArcSwap<Metadata>,
    /// Where a logical host is now.
    place: Option<Box<arc_swap::ArcSwap<Place>>>,
    created: Instant,
    /// Milliseconds after `created` when its active checks passed after they had failed.
    well_since: AtomicU64,
    /// Milliseconds after `created` when its flags changed last.
    changed: AtomicU64,
    /// Set by main before any worker knows the host, where traffic is watched.
    monitor: OnceLock<Arc<dyn HostMonitor>>,
    /// Milliseconds after `created` since when discovery does not name it any more, although it is kept.
    absent_since: AtomicU64,
    pub load: HostLoad,
}

impl Host {
    pub fn new(spec: HostSpec) -> Self {
        Self {
            address_text: spec.address.to_string().into(),
            weight: AtomicU32::new(spec.weight.max(1)),
            flags: AtomicU32::new(spec.eds_health.0),
            priority: AtomicU32::new(spec.priority),
            canary: AtomicBool::new(spec.canary),
            removed: AtomicBool::new(false),
            metadata: arc_swap::ArcSwap::new(spec.metadata.clone()),
            place: spec
                .logical
                .clone()
                .map(|addresses| Box::new(arc_swap::ArcSwap::from_pointee(Place::of(addresses)))),
            created: Instant::now(),
            well_since: AtomicU64::new(0),
            changed: AtomicU64::new(0),
            monitor: OnceLock::new(),
            absent_since: AtomicU64::new(0),
            load: HostLoad::default(),
            spec,
        }
    }

    /// What made it: identity and first values. Ask the other methods for what may change.
    pub fn spec(&self) -> &HostSpec {
        &self.spec
    }

    /// Whether `spec` speaks of this very host, which is then updated in place, or of another.
    pub fn is_same(&self, spec: &HostSpec) -> bool {
        let own = &self.spec;
        let both_logical = own.logical.is_some() && spec.logical.is_some();
        (both_logical || own.logical.is_none() && spec.logical.is_none() && own.address == spec.address)
            && own.health_check_address == spec.health_check_address
            && own.locality == spec.locality
            && own.hostname == spec.hostname
            && own.health_check_hostname == spec.health_check_hostname
    }

    /// What it was made with. A logical host may be elsewhere by now: see [`place`](Self::place).
    pub fn address(&self) -> &Address {
        &self.spec.address
    }

    /// As `address`, or where a logical host is now.
    pub fn address_text(&self) -> AddressText<'_> {
        match &self.place {
            None => AddressText::Fixed(&self.address_text),
            Some(place) => AddressText::Now(place.load()),
        }
    }

    /// The address that a new connection tries first.
    pub fn current_address(&self) -> Address {
        let place = self.place();
        let first = place.as_ref().and_then(|place| place.addresses.first());
        first.unwrap_or(&self.spec.address).clone()
    }

    /// Where a logical host is now; none for all others.
    pub fn place(&self) -> Option<Arc<Place>> {
        self.place.as_ref().map(|place| place.load_full())
    }

    /// A logical host is elsewhere now. Its connections stay; new ones go there.
    pub fn set_place(&self, addresses: Arc<[Address]>) {
        if let Some(place) = &self.place
            && place.load().addresses != addresses
        {
            place.store(Arc::new(Place::of(addresses)));
        }
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

    pub fn priority(&self) -> u32 {
        self.priority.load(Relaxed)
    }

    pub fn set_priority(&self, priority: u32) {
        self.priority.store(priority, Relaxed);
    }

    pub fn is_canary(&self) -> bool {
        self.canary.load(Relaxed)
    }

    pub fn set_canary(&self, canary: bool) {
        self.canary.store(canary, Relaxed);
    }

    /// No cluster lists it any more, and none ever will again: its pools drain.
    pub fn is_removed(&self) -> bool {
        self.removed.load(Relaxed)
    }

    pub fn set_removed(&self) {
        self.removed.store(true, Relaxed);
    }

    pub fn flags(&self) -> HealthFlags {
        HealthFlags(self.flags.load(Relaxed))
    }

    pub fn set_flags(&self, flags: HealthFlags) {
        let before = HealthFlags(self.flags.swap(flags.0, Relaxed));
        if before != flags {
            self.changed.store(self.created.elapsed().as_millis() as u64, Relaxed);
        }
        if before.contains(HealthFlag::FailedActiveHc) && !flags.contains(HealthFlag::FailedActiveHc) {
            self.well_since.store(self.created.elapsed().as_millis() as u64, Relaxed);
        }
        if !before.contains(HealthFlag::PendingDynamicRemoval) && flags.contains(HealthFlag::PendingDynamicRemoval) {
            self.absent_since.store(self.created.elapsed().as_millis() as u64, Relaxed);
        }
    }

    /// Whoever judges it by its traffic; the first one stays.
    pub fn set_monitor(&self, monitor: Arc<dyn HostMonitor>) {
        let _ = self.monitor.set(monitor);
    }

    /// Somebody judges it by its traffic.
    #[inline]
    pub fn is_watched(&self) -> bool {
        self.monitor.get().is_some()
    }

    /// Something happened with it on the request path.
    #[inline]
    pub fn report(&self, outcome: Outcome) {
        if let Some(monitor) = self.monitor.get() {
            monitor.report(outcome);
        }
    }

    /// For how long it is known and its active checks pass, if there are any.
    pub fn well_for(&self, now: Instant) -> Duration {
        let since = self.created + Duration::from_millis(self.well_since.load(Relaxed));
        now.saturating_duration_since(since)
    }

    /// For how long discovery has not named it any more; none if it does.
    pub fn absent_for(&self, now: Instant) -> Option<Duration> {
        let since = self.created + Duration::from_millis(self.absent_since.load(Relaxed));
        self.flags().contains(HealthFlag::PendingDynamicRemoval).then(|| now.saturating_duration_since(since))
    }

    /// Who named it first.
    pub fn origin(&self) -> Option<&Arc<Origin>> {
        self.spec.origin.as_ref()
    }

    /// For how long its flags have been what they are.
    pub fn unchanged_for(&self, now: Instant) -> Duration {
        let since = self.created + Duration::from_millis(self.changed.load(Relaxed));
        now.saturating_duration_since(since)
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
        assert_eq!(HealthFlags::default().with(HealthFlag::EdsStatusDraining).health(), Health::Unhealthy);
        let by_traffic = HealthFlags::default().with(HealthFlag::DegradedOutlierDetection);
        assert_eq!(by_traffic.health(), Health::Degraded);
        // As Envoy 1.40 prints both.
        let both = by_traffic.with(HealthFlag::FailedOutlierCheck);
        assert_eq!(both.to_string(), "/failed_outlier_check/degraded_outlier_detection");
    }

    #[test]
    fn discovery_replaces_only_its_own_word_on_health() {
        let checked = HealthFlags::default().with(HealthFlag::FailedActiveHc).with(HealthFlag::DegradedEdsHealth);
        let said = HealthFlags::default().with(HealthFlag::EdsStatusDraining);
        assert_eq!(checked.discovered(said).to_string(), "/failed_active_hc/eds_status_draining");
    }

    #[test]
    fn a_logical_host_stays_itself_wherever_its_name_leads() {
        let at = |last| Address::Ip(([10, 0, 0, last], 80).into());
        let spec = |last: &[u8]| HostSpec {
            logical: Some(last.iter().map(|last| at(*last)).collect()),
            hostname: "a.test".into(),
            ..HostSpec::new(at(last[0]))
        };
        let host = Host::new(spec(&[1, 2]));
        assert!(host.is_same(&spec(&[3])));
        assert!(!host.is_same(&HostSpec { logical: None, ..spec(&[1]) }));
        host.set_place(spec(&[3, 1]).logical.unwrap());
        assert_eq!((&*host.address_text(), host.current_address()), ("10.0.0.3:80", at(3)));
        assert_eq!(host.place().unwrap().addresses.len(), 2);
        let fixed = Host::new(HostSpec::new(at(1)));
        fixed.set_place([at(2)].into());
        assert_eq!((&*fixed.address_text(), fixed.current_address()), ("10.0.0.1:80", at(1)));
    }

    #[test]
    fn what_every_worker_writes_of_a_host_is_one_cache_line() {
        assert_eq!(std::mem::size_of::<HostLoad>(), 64);
    }
}
