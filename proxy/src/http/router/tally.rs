//! Where one request is counted: its cluster, and what its virtual cluster and its route ask to be counted apart.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use nuncio_core::stats::lists::cluster::{self as stat, ResponseTime, Retries};
use nuncio_core::stats::lists::vhost::VirtualCluster;
use nuncio_core::stats::{CodeStats, Codes, Counter, ScopeId, Stats, WorkerStats};

use crate::upstream::ThreadLocalCluster;
use crate::upstream::circuit_breaker::Priority;

/// `vhost.<virtual host>.vcluster.<name>.` or `vhost.<virtual host>.route.<stat_prefix>.` on one worker.
pub struct VhostStats {
    counters: Stats<VirtualCluster>,
    codes: CodeStats,
    time: Stats<ResponseTime>,
}

/// The ones that were counted in, each made when it is first needed.
#[derive(Default)]
pub struct VhostStatsMap(RefCell<HashMap<ScopeId, Rc<VhostStats>>>);

impl VhostStatsMap {
    pub fn get(&self, scope: ScopeId, worker: &Rc<WorkerStats>) -> Rc<VhostStats> {
        let make = || {
            Rc::new(VhostStats {
                counters: Stats::new(worker, scope),
                codes: CodeStats::new(worker, scope, Codes::Other),
                time: Stats::new(worker, scope),
            })
        };
        self.0.borrow_mut().entry(scope).or_insert_with(make).clone()
    }
}

/// Virtual cluster and route of a request, if they are counted.
pub(super) type Apart = [Option<Rc<VhostStats>>; 2];

/// The counters of one request.
pub(super) struct Tally<'a> {
    pub cluster: &'a ThreadLocalCluster,
    pub priority: Priority,
    pub apart: &'a Apart,
    /// The cluster's own counters hear that there was an answer, not of which code.
    pub hides_code: bool,
}

impl Tally<'_> {
    pub fn count(&self, cluster: Counter<Retries>, apart: Counter<VirtualCluster>) {
        self.cluster.stats().retries.inc(cluster);
        self.count_apart(apart);
    }

    pub fn count_apart(&self, counter: Counter<VirtualCluster>) {
        self.apart.iter().flatten().for_each(|stats| stats.counters.inc(counter));
    }

    /// The answer that the client gets.
    pub fn charge(&self, status: u16, internal: bool) {
        match self.hides_code {
            true => self.cluster.stats().charge_without_code(status, internal),
            false => self.cluster.stats().charge(status, internal),
        }
        self.apart.iter().flatten().for_each(|stats| stats.codes.charge(status));
    }

    /// An answer that nobody gets, because the request is tried again.
    pub fn charge_retried(&self, status: u16) {
        let codes = self.cluster.stats().retried();
        if self.hides_code { codes.charge_any() } else { codes.charge(status) }
    }

    pub fn charge_time(&self, millis: u64, internal: bool) {
        self.cluster.stats().charge_time(millis, internal);
        self.apart.iter().flatten().for_each(|stats| stats.time.record(stat::UPSTREAM_RQ_TIME, millis));
    }
}
