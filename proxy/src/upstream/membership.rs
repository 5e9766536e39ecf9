//! What discovery says is, against what there was: the only place where hosts are compared.
//!
//! A host that is still itself (address, address of its checks, locality, names) keeps its object, and with it its
//! health, counters and pools; weight, metadata, priority and discovery's word on health change in place. Priorities in
//! which nothing changed keep their picture, which is how workers see that nothing changed.

use std::collections::HashMap;
use std::sync::Arc;

use nuncio_core::net::Address;
use nuncio_core::upstream::{HealthFlag, Host, HostSet, HostSpec, Locality, PrioritySet};
use nuncio_discovery::Assignment;
use nuncio_discovery::assignment::LocalityWeight;

/// What a cluster's health checks mean for its members.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rules {
    /// Active checks decide: a new host is unhealthy until its first check, and one that is absent from discovery stays
    /// while its checks pass.
    pub checked: bool,
    /// New hosts are left out of the arithmetic until their first check.
    pub ignore_new_until_first_check: bool,
    /// Absent hosts go whatever their checks say.
    pub ignore_health_on_removal: bool,
}

/// What became of an update.
#[derive(Debug, Default)]
pub struct Applied {
    pub hosts: Arc<PrioritySet>,
    pub added: Vec<Arc<Host>>,
    pub removed: Vec<Arc<Host>>,
    /// Not named any more, but kept.
    pub absent: Vec<Arc<Host>>,
    /// Named again after they were absent.
    pub returned: Vec<Arc<Host>>,
    /// Some picture is another one.
    pub changed: bool,
}

/// Compares the whole truth with what there was.
pub fn apply(before: &Arc<PrioritySet>, assignment: Assignment, rules: Rules) -> Applied {
    let mut diff = Diff::new(before, assignment.hosts.len());
    let mut now: Vec<Level> = Vec::new();
    for spec in assignment.hosts {
        let at = spec.priority as usize;
        let (host, touched) = diff.find(spec, rules);
        if now.len() <= at {
            now.resize_with(at + 1, Level::default);
        }
        now[at].touched |= touched;
        now[at].hosts.push(host);
    }
    diff.keep_or_remove(&mut now, rules);
    // A cluster always has its first priority, and priorities that once were stay as empty ones.
    let levels = now.len().max(before.priorities.len()).max(1);
    now.resize_with(levels, Level::default);
    let mut changed = before.drop_overload != assignment.drop_overload;
    let all_weights = Weights::new(&assignment.locality_weights);
    let pictures = now.into_iter().enumerate().map(|(priority, level)| {
        let weights = |locality: &Locality| all_weights.of(priority as u32, locality);
        let (factor, weighted_health) = (assignment.overprovisioning_factor, assignment.weighted_health);
        match before.priorities.get(priority) {
            Some(old) if old.weighted_health == weighted_health && level.is_pictured_by(old, weights, factor) => {
                old.clone()
            }
            _ => {
                changed = true;
                let set = HostSet::new(level.hosts, weights, factor);
                Arc::new(HostSet { weighted_health, ..set })
            }
        }
    });
    let hosts = PrioritySet { priorities: pictures.collect(), drop_overload: assignment.drop_overload };
    let Diff { added, removed, absent, returned, .. } = diff;
    for host in &removed {
        host.set_removed();
    }
    let hosts = if changed { Arc::new(hosts) } else { before.clone() };
    Applied { hosts, added, removed, absent, returned, changed }
}

/// The same hosts without one that is neither discovered nor well.
pub fn without(before: &Arc<PrioritySet>, host: &Arc<Host>) -> Arc<PrioritySet> {
    let mut hosts = PrioritySet::clone(before);
    if let Some(set) = hosts.priorities.get_mut(host.priority() as usize) {
        let left: Vec<_> = set.hosts.iter().filter(|other| !Arc::ptr_eq(other, host)).cloned().collect();
        let new = HostSet::new(left, set.weights(), set.overprovisioning_factor);
        *set = Arc::new(HostSet { weighted_health: set.weighted_health, ..new });
    }
    Arc::new(hosts)
}

/// The same hosts, with the health of one priority read again.
pub fn picture_anew(before: &Arc<PrioritySet>, priority: u32) -> Arc<PrioritySet> {
    let mut hosts = PrioritySet::clone(before);
    if let Some(set) = hosts.priorities.get_mut(priority as usize) {
        let new = HostSet::new(set.hosts.to_vec(), set.weights(), set.overprovisioning_factor);
        *set = Arc::new(HostSet { weighted_health: set.weighted_health, ..new });
    }
    Arc::new(hosts)
}

/// One priority as it will be.
#[derive(Default)]
struct Level {
    hosts: Vec<Arc<Host>>,
    /// Something in it changed in place.
    touched: bool,
}

impl Level {
    fn is_pictured_by(&self, old: &HostSet, weights: impl Fn(&Locality) -> u32, factor: u32) -> bool {
        !self.touched
            && old.overprovisioning_factor == factor
            && self.hosts.len() == old.hosts.len()
            && self.hosts.iter().zip(old.hosts.iter()).all(|(new, old)| Arc::ptr_eq(new, old))
            && old.localities.iter().all(|local| local.weight == weights(&local.locality))
    }
}

/// Of localities, each in its priority.
struct Weights<'a>(HashMap<(u32, &'a Locality), u32>);

impl<'a> Weights<'a> {
    /// The first of those that speak of the same one counts.
    fn new(list: &'a [LocalityWeight]) -> Self {
        let each = list.iter().rev().map(|one| ((one.priority, &*one.locality), one.weight));
        Self(each.collect())
    }

    fn of(&self, priority: u32, locality: &Locality) -> u32 {
        self.0.get(&(priority, locality)).copied().unwrap_or(0)
    }
}

/// The old hosts, each to be found once.
struct Diff<'a> {
    old: Vec<&'a Arc<Host>>,
    taken: Vec<bool>,
    /// Where the next host is, if discovery keeps its order.
    cursor: usize,
    /// By address; made when the order was left.
    index: Option<HashMap<&'a Address, Vec<u32>>>,
    added: Vec<Arc<Host>>,
    removed: Vec<Arc<Host>>,
    absent: Vec<Arc<Host>>,
    returned: Vec<Arc<Host>>,
}

impl<'a> Diff<'a> {
    fn new(before: &'a PrioritySet, new: usize) -> Self {
        let old: Vec<_> = before.hosts().collect();
        let added = Vec::with_capacity(if old.is_empty() { new } else { 0 });
        Self {
            taken: vec![false; old.len()],
            old,
            cursor: 0,
            index: None,
            added,
            removed: Vec::new(),
            absent: Vec::new(),
            returned: Vec::new(),
        }
    }

    /// The host that `spec` speaks of, and whether its priority must be pictured anew for it.
    fn find(&mut self, spec: HostSpec, rules: Rules) -> (Arc<Host>, bool) {
        match self.take(&spec, rules) {
            Some(host) => {
                let was_absent = host.flags().contains(HealthFlag::PendingDynamicRemoval);
                let touched = update_in_place(&host, spec);
                if was_absent {
                    self.returned.push(host.clone());
                }
                (host, touched)
            }
            None => {
                let host = Arc::new(Host::new(spec));
                if rules.checked && !host.spec().disable_active_health_check {
                    let flags = host.flags().with(HealthFlag::FailedActiveHc);
                    let pending = rules.ignore_new_until_first_check;
                    host.set_flags(if pending { flags.with(HealthFlag::PendingActiveHc) } else { flags });
                }
                self.added.push(host.clone());
                (host, true)
            }
        }
    }

    fn take(&mut self, spec: &HostSpec, rules: Rules) -> Option<Arc<Host>> {
        // Whether it is checked is part of what a host is where hosts are checked: it begins anew.
        let is_same = |host: &Host| {
            let asked = host.spec().disable_active_health_check == spec.disable_active_health_check;
            host.is_same(spec) && (asked || !rules.checked)
        };
        let at = self.cursor;
        if at < self.old.len() && !self.taken[at] && is_same(self.old[at]) {
            self.cursor += 1;
            self.taken[at] = true;
            return Some(self.old[at].clone());
        }
        if self.old.is_empty() {
            return None;
        }
        let index = self.index.get_or_insert_with(|| {
            let mut index = HashMap::<&Address, Vec<u32>>::with_capacity(self.old.len());
            for (at, host) in self.old.iter().enumerate() {
                index.entry(host.address()).or_default().push(at as u32);
            }
            index
        });
        let candidates = index.get(&spec.address)?;
        let found = candidates.iter().map(|at| *at as usize).find(|at| !self.taken[*at] && is_same(self.old[*at]))?;
        self.taken[found] = true;
        self.cursor = found + 1;
        Some(self.old[found].clone())
    }

    /// What discovery did not name: kept while its checks pass, if they count.
    fn keep_or_remove(&mut self, now: &mut Vec<Level>, rules: Rules) {
        for (host, _) in self.old.iter().zip(&self.taken).filter(|(_, taken)| !**taken) {
            let flags = host.flags();
            let failed = flags.contains(HealthFlag::FailedActiveHc) || flags.contains(HealthFlag::FailedEdsHealth);
            let unasked = !rules.checked || host.spec().disable_active_health_check;
            if unasked || rules.ignore_health_on_removal || failed {
                self.removed.push(Arc::clone(host));
                continue;
            }
            let at = host.priority() as usize;
            if now.len() <= at {
                now.resize_with(at + 1, Level::default);
            }
            if !flags.contains(HealthFlag::PendingDynamicRemoval) {
                now[at].touched = true;
                self.absent.push(Arc::clone(host));
            }
            now[at].hosts.push(Arc::clone(host));
            host.set_flags(flags.with(HealthFlag::PendingDynamicRemoval));
        }
    }
}

/// Whether a balancer must hear of it.
fn update_in_place(host: &Host, spec: HostSpec) -> bool {
    let mut touched = false;
    // Its next connections go elsewhere; balancers have nothing to hear.
    if let Some(addresses) = spec.logical {
        host.set_place(addresses);
    }
    if host.weight() != spec.weight.max(1) {
        host.set_weight(spec.weight);
        touched = true;
    }
    let flags = host.flags();
    let new = flags.discovered(spec.eds_health).without(HealthFlag::PendingDynamicRemoval);
    if flags != new {
        host.set_flags(new);
        touched = true;
    }
    let metadata = host.metadata();
    if !Arc::ptr_eq(&metadata, &spec.metadata) && *metadata != *spec.metadata {
        host.set_metadata(spec.metadata);
        host.set_canary(spec.canary);
        touched = true;
    }
    if host.priority() != spec.priority {
        host.set_priority(spec.priority);
        touched = true;
    }
    touched
}

#[cfg(test)]
mod tests {
    use super::*;
    use nuncio_core::upstream::HealthFlags;

    fn spec(port: u16) -> HostSpec {
        HostSpec::new(Address::Ip(([127, 0, 0, 1], port).into()))
    }

    fn ports(hosts: &[Arc<Host>]) -> Vec<u16> {
        hosts.iter().filter_map(|host| host.address().port()).collect()
    }

    fn first(specs: Vec<HostSpec>, rules: Rules) -> Applied {
        apply(&Arc::default(), specs.into(), rules)
    }

    #[test]
    fn the_same_truth_again_changes_nothing() {
        let one = first(vec![spec(1), spec(2)], Rules::default());
        assert!(one.changed && ports(&one.added) == [1, 2]);
        let two = apply(&one.hosts, vec![spec(1), spec(2)].into(), Rules::default());
        assert!(!two.changed && Arc::ptr_eq(&one.hosts, &two.hosts));
        let empty = first(Vec::new(), Rules::default());
        assert_eq!(empty.hosts.priorities.len(), 1);
    }

    #[test]
    fn hosts_keep_their_objects_over_additions_removals_and_another_order() {
        let one = first((1..=5).map(spec).collect(), Rules::default());
        let two = apply(&one.hosts, vec![spec(5), spec(3), spec(9), spec(1)].into(), Rules::default());
        assert_eq!((ports(&two.added), ports(&two.removed)), (vec![9], vec![2, 4]));
        let set = &two.hosts.priorities[0].hosts;
        assert_eq!(ports(set), [5, 3, 9, 1]);
        assert!(Arc::ptr_eq(&set[0], &one.hosts.priorities[0].hosts[4]));
        assert!(two.removed.iter().all(|host| host.is_removed()) && !set[0].is_removed());
    }

    #[test]
    fn what_may_change_changes_in_place_and_what_may_not_makes_another_host() {
        let one = first(vec![spec(1), spec(2)], Rules::default());
        let heavy =
            HostSpec { weight: 7, eds_health: HealthFlags::default().with(HealthFlag::FailedEdsHealth), ..spec(1) };
        let two = apply(&one.hosts, vec![heavy, spec(2)].into(), Rules::default());
        assert!(two.changed && two.added.is_empty() && two.removed.is_empty());
        assert_eq!(two.hosts.priorities[0].hosts[0].weight(), 7);
        assert_eq!(ports(&two.hosts.priorities[0].healthy), [2]);
        for other in [
            HostSpec { hostname: "a".into(), ..spec(2) },
            HostSpec { locality: Arc::new(Locality { zone: "z".into(), ..Default::default() }), ..spec(2) },
            HostSpec { health_check_address: Some(Address::Pipe("/x".into())), ..spec(2) },
        ] {
            let three = apply(&two.hosts, vec![spec(1), other].into(), Rules::default());
            assert_eq!((ports(&three.added), ports(&three.removed)), (vec![2], vec![2]));
        }
    }

    #[test]
    fn equal_hosts_in_one_list_are_hosts_each() {
        let one = first(vec![spec(1), spec(1)], Rules::default());
        assert_eq!(one.hosts.host_count(), 2);
        let two = apply(&one.hosts, vec![spec(1), spec(1), spec(1)].into(), Rules::default());
        assert_eq!((two.added.len(), two.removed.len()), (1, 0));
        let three = apply(&two.hosts, vec![spec(1)].into(), Rules::default());
        assert_eq!((three.added.len(), three.removed.len()), (0, 2));
    }

    #[test]
    fn a_priority_that_did_not_change_keeps_its_picture() {
        let low = |port| HostSpec { priority: 2, ..spec(port) };
        let one = first(vec![spec(1), low(5)], Rules::default());
        assert_eq!(one.hosts.priorities.len(), 3);
        let two = apply(&one.hosts, vec![spec(1), spec(2), low(5)].into(), Rules::default());
        assert!(!Arc::ptr_eq(&one.hosts.priorities[0], &two.hosts.priorities[0]));
        assert!(Arc::ptr_eq(&one.hosts.priorities[2], &two.hosts.priorities[2]));
        // A host that moves between priorities is still itself.
        let three = apply(&two.hosts, vec![spec(1), spec(2), spec(5)].into(), Rules::default());
        assert!(three.added.is_empty() && three.removed.is_empty());
        assert_eq!(
            (ports(&three.hosts.priorities[0].hosts), three.hosts.priorities[2].hosts.len()),
            (vec![1, 2, 5], 0)
        );
        assert_eq!(three.hosts.priorities[0].hosts[2].priority(), 0);
    }

    #[test]
    fn locality_weights_and_overprovisioning_are_part_of_the_picture() {
        let locality = Arc::new(Locality { zone: "z".into(), ..Default::default() });
        let host = HostSpec { locality: locality.clone(), ..spec(1) };
        let weighted = |weight| Assignment {
            hosts: vec![host.clone()],
            locality_weights: vec![LocalityWeight { priority: 0, locality: locality.clone(), weight }],
            ..Assignment::default()
        };
        let one = apply(&Arc::default(), weighted(3), Rules::default());
        assert_eq!(one.hosts.priorities[0].localities[0].weight, 3);
        assert!(!apply(&one.hosts, weighted(3), Rules::default()).changed);
        assert!(apply(&one.hosts, weighted(4), Rules::default()).changed);
        let factor = Assignment { overprovisioning_factor: 200, ..weighted(3) };
        assert!(apply(&one.hosts, factor, Rules::default()).changed);
    }

    #[test]
    fn absent_hosts_stay_while_their_checks_pass() {
        // Envoy's table of discovery against active checks.
        let rules = Rules { checked: true, ..Rules::default() };
        let one = first(vec![spec(1), spec(2)], rules);
        let hosts = one.hosts.priorities[0].hosts.clone();
        assert_eq!(hosts[0].flags().to_string(), "/failed_active_hc");
        hosts[0].set_flags(HealthFlags::default());
        let two = apply(&one.hosts, Assignment::default(), rules);
        assert_eq!(ports(&two.removed), [2]);
        assert_eq!(hosts[0].flags().to_string(), "/pending_dynamic_removal");
        // It is named again: the mark goes without another check.
        let three = apply(&two.hosts, vec![spec(1)].into(), rules);
        assert!(three.changed && hosts[0].flags().is_empty());
        let ignoring = Rules { ignore_health_on_removal: true, ..rules };
        assert_eq!(ports(&apply(&three.hosts, Assignment::default(), ignoring).removed), [1]);
        // Discovery's own word and an ejection: the first removes, the second does not.
        hosts[0].set_flags(HealthFlags::default().with(HealthFlag::FailedOutlierCheck));
        assert!(apply(&three.hosts, Assignment::default(), rules).removed.is_empty());
        hosts[0].set_flags(HealthFlags::default().with(HealthFlag::FailedEdsHealth));
        assert_eq!(apply(&three.hosts, Assignment::default(), rules).removed.len(), 1);
    }

    #[test]
    fn a_new_host_may_be_left_out_until_its_first_check() {
        let rules = Rules { checked: true, ignore_new_until_first_check: true, ..Rules::default() };
        let one = first(vec![spec(1), HostSpec { disable_active_health_check: true, ..spec(2) }], rules);
        let set = &one.hosts.priorities[0];
        assert_eq!(set.hosts[0].flags().to_string(), "/failed_active_hc/pending_active_hc");
        assert_eq!((ports(&set.healthy), set.excluded), (vec![2], 1));
    }
}
