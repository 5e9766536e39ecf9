//! What happened to the health of hosts, lately, and why: for the log, one line each, and for the admin interface.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use nuncio_core::upstream::{Health, HealthFlag, HealthFlags, Host};

/// So many transitions are remembered.
const REMEMBERED: usize = 1000;

/// What the two truths about a host, discovery's and its health, mean for traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    Route,
    /// Discovery does not name it any more, but it is well.
    Keep,
    DoNotRoute,
    Deleted,
}

impl Decision {
    /// Of a host that is there.
    pub fn of(flags: HealthFlags) -> Self {
        match flags.health() {
            Health::Unhealthy => Self::DoNotRoute,
            _ if flags.contains(HealthFlag::PendingDynamicRemoval) => Self::Keep,
            _ => Self::Route,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Route => "route",
            Self::Keep => "keep",
            Self::DoNotRoute => "do not route",
            Self::Deleted => "deleted",
        }
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One change of one host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transition {
    pub at: SystemTime,
    pub cluster: Arc<str>,
    pub host: Arc<str>,
    pub before: HealthFlags,
    pub after: HealthFlags,
    pub decision: Decision,
    pub reason: Box<str>,
}

/// The last transitions of all clusters, the latest last.
#[derive(Debug, Default)]
pub struct History(VecDeque<Transition>);

impl History {
    /// Notes it, and says it in the log: loud if a host left the rotation.
    pub fn record(
        &mut self,
        at: SystemTime,
        cluster: &Arc<str>,
        host: &Host,
        (before, after): (HealthFlags, HealthFlags),
        decision: Decision,
        reason: &str,
    ) {
        let address = host.address_text().to_shared();
        if decision == Decision::DoNotRoute {
            tracing::warn!(target: "health", %cluster, host = %address, "{before} -> {after}, {decision}: {reason}");
        } else {
            tracing::info!(target: "health", %cluster, host = %address, "{before} -> {after}, {decision}: {reason}");
        }
        if self.0.len() == REMEMBERED {
            self.0.pop_front();
        }
        let (cluster, reason) = (cluster.clone(), reason.into());
        self.0.push_back(Transition { at, cluster, host: address, before, after, decision, reason });
    }

    pub fn transitions(&self) -> impl DoubleEndedIterator<Item = &Transition> {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nuncio_core::net::Address;
    use nuncio_core::upstream::HostSpec;

    #[test]
    fn the_decision_follows_from_the_table_of_discovery_and_health() {
        let flags = |list: &[HealthFlag]| list.iter().fold(HealthFlags::default(), |flags, flag| flags.with(*flag));
        use HealthFlag::*;
        for (list, decision) in [
            (&[][..], Decision::Route),
            (&[DegradedActiveHc], Decision::Route),
            (&[PendingDynamicRemoval], Decision::Keep),
            (&[FailedActiveHc], Decision::DoNotRoute),
            (&[FailedOutlierCheck, PendingDynamicRemoval], Decision::DoNotRoute),
        ] {
            assert_eq!(Decision::of(flags(list)), decision, "{list:?}");
        }
    }

    #[test]
    fn a_thousand_transitions_are_remembered() {
        let host = Host::new(HostSpec::new(Address::Ip(([127, 0, 0, 1], 1).into())));
        let (mut history, none) = (History::default(), HealthFlags::default());
        for n in 0..1005 {
            let reason = n.to_string();
            history.record(SystemTime::UNIX_EPOCH, &"c".into(), &host, (none, none), Decision::Route, &reason);
        }
        assert_eq!(history.transitions().count(), 1000);
        assert_eq!(&*history.transitions().next().unwrap().reason, "5");
    }
}
