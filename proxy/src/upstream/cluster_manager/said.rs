//! What a cluster's source said, when, and what became of it: kept for whoever asks why a host is there or is not.
//!
//! Here too is the protection that an operator may ask for, for any discovery type, by metadata of the cluster:
//!
//! ```yaml
//! metadata: {filter_metadata: {nuncio.discovery: {keep_last_good: 60s, refuse_older: 60s}}}
//! ```
//!
//! `keep_last_good`: for so long an empty answer does not empty the cluster. `refuse_older`: for so long after a version
//! was followed by another one, nobody is believed who goes back to it, as happens while two servers disagree.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nuncio_api::pb::envoy::config::cluster::v3 as pb;
use nuncio_api::pb::google::protobuf::value::Kind;
use nuncio_core::error::ConfigError;
use nuncio_core::stats::lists::cluster::{self as stat, Discovery};
use nuncio_core::stats::{Counter, Stats};
use nuncio_core::upstream::{Host, HostSpec, Origin};
use nuncio_discovery::Assignment;
use tokio::time::Instant;

use super::super::membership::Applied;
use super::Inner;
use super::entry::Running;

/// What an operator asked for; nothing by default, because Envoy has neither.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Protection {
    pub keep_last_good: Duration,
    pub refuse_older: Duration,
}

const NAMESPACE: &str = "nuncio.discovery";

/// So many hosts that went are remembered.
const MOST_REMOVED: usize = 32;
/// And so many versions.
const MOST_VERSIONS: usize = 16;
/// What somebody else said is cut there.
const LONGEST_REASON: usize = 256;

impl Protection {
    pub fn from_proto(message: &pb::Cluster) -> Result<Self, ConfigError> {
        let mut read = Self::default();
        let metadata = message.metadata.as_ref().and_then(|metadata| metadata.filter_metadata.get(NAMESPACE));
        for (key, value) in metadata.iter().flat_map(|metadata| &metadata.fields) {
            let refuse = |reason: &str| {
                let path = format!("metadata.filter_metadata[\"{NAMESPACE}\"].{key}");
                Err(ConfigError::new(path, reason))
            };
            let field = match key.as_str() {
                "keep_last_good" => &mut read.keep_last_good,
                "refuse_older" => &mut read.refuse_older,
                _ => return refuse("unknown; `keep_last_good` and `refuse_older` are known"),
            };
            let seconds = match &value.kind {
                Some(Kind::StringValue(text)) => text.strip_suffix('s').and_then(|number| number.parse::<f64>().ok()),
                _ => None,
            };
            match seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()) {
                Some(duration) => *field = duration,
                None => return refuse("must be a duration such as \"60s\""),
            }
        }
        Ok(read)
    }
}

/// The record of one cluster.
pub(super) struct Said {
    pub(super) who: Arc<str>,
    /// Of the answer that is being read.
    version: Arc<str>,
    asked_first: SystemTime,
    good: Option<Good>,
    failed: Option<Trouble>,
    rejected: Option<Trouble>,
    removed: VecDeque<Removed>,
    /// Versions that were followed by others, and when.
    past: VecDeque<(Arc<str>, Instant)>,
    /// Hosts that an empty answer would have taken.
    kept: Option<Kept>,
    stats: Option<Box<Stats<Discovery>>>,
}

/// An answer that was applied.
#[derive(Debug, Clone)]
pub struct Good {
    pub at: SystemTime,
    pub version: Arc<str>,
    pub hosts: usize,
}

/// An answer that did not come, or could not be used.
#[derive(Debug, Clone)]
pub struct Trouble {
    pub at: SystemTime,
    pub reason: Arc<str>,
}

/// A host that is not there any more.
#[derive(Debug, Clone)]
pub struct Removed {
    pub address: Arc<str>,
    pub at: SystemTime,
    pub origin: Option<Arc<Origin>>,
    pub why: String,
}

struct Kept {
    since: Instant,
    assignment: Assignment,
    _timer: Running,
}

/// The record, for those who show it.
#[derive(Debug, Clone)]
pub struct Provenance {
    pub who: Arc<str>,
    pub asked_first: SystemTime,
    pub good: Option<Good>,
    pub failed: Option<Trouble>,
    pub rejected: Option<Trouble>,
    pub removed: Vec<Removed>,
    /// For how long hosts have been kept against an empty answer.
    pub kept_for: Option<Duration>,
}

/// What becomes of an answer.
pub(super) enum Verdict {
    Apply,
    /// For so long hosts stay that it would take.
    Keep(Duration),
    /// It goes back to a version that was followed by another.
    Refuse,
}

impl Said {
    pub(super) fn new(who: Arc<str>, now: SystemTime) -> Self {
        Self {
            who,
            version: Arc::default(),
            asked_first: now,
            good: None,
            failed: None,
            rejected: None,
            removed: VecDeque::new(),
            past: VecDeque::new(),
            kept: None,
            stats: None,
        }
    }

    pub(super) fn set_version(&mut self, version: &str) {
        self.version = version.into();
    }

    pub(super) fn asked_first(&self) -> SystemTime {
        self.asked_first
    }

    /// Of what is applied.
    pub(super) fn version(&self) -> Option<&Arc<str>> {
        self.good.as_ref().map(|good| &good.version)
    }

    /// Says of each host who named it, unless its source did.
    pub(super) fn sign(&self, hosts: &mut [HostSpec], at: SystemTime) {
        let origin = Arc::new(Origin { who: self.who.clone(), version: self.version.clone(), at });
        for host in hosts.iter_mut().filter(|host| host.origin.is_none()) {
            host.origin = Some(origin.clone());
        }
    }

    pub(super) fn judge(&mut self, protection: Protection, empty: bool, has_hosts: bool) -> Verdict {
        if !protection.refuse_older.is_zero() && self.goes_back(protection.refuse_older) {
            return Verdict::Refuse;
        }
        if empty && has_hosts && !protection.keep_last_good.is_zero() {
            let since = self.kept.as_ref().map_or_else(Instant::now, |kept| kept.since);
            let left = protection.keep_last_good.saturating_sub(since.elapsed());
            if !left.is_zero() {
                return Verdict::Keep(left);
            }
        }
        Verdict::Apply
    }

    fn goes_back(&self, within: Duration) -> bool {
        let Some(current) = self.version().filter(|current| !current.is_empty() && **current != self.version) else {
            return false;
        };
        if let (Ok(now), Ok(before)) = (self.version.parse::<u64>(), current.parse::<u64>())
            && now > before
        {
            return false;
        }
        self.past.iter().any(|(version, since)| *version == self.version && since.elapsed() < within)
    }

    pub(super) fn stats(&mut self, make: impl FnOnce() -> Stats<Discovery>) -> &Stats<Discovery> {
        self.stats.get_or_insert_with(|| Box::new(make()))
    }

    /// The answer is in effect.
    pub(super) fn applied(&mut self, applied: &Applied, hosts: usize, at: SystemTime) {
        if let Some(good) = &self.good
            && good.version != self.version
            && !good.version.is_empty()
        {
            self.past.retain(|(version, _)| *version != self.version);
            self.past.push_back((good.version.clone(), Instant::now()));
            keep_last(&mut self.past, MOST_VERSIONS);
        }
        self.good = Some(Good { at, version: self.version.clone(), hosts });
        let answer = self.answer();
        for host in applied.removed.iter().take(MOST_REMOVED) {
            let why = match applied.added.iter().find(|new| new.address() == host.address()) {
                Some(new) => format!("{} made another host of this address: {}", answer, difference(host, new)),
                None => format!("{answer} does not name it"),
            };
            self.gone(host, at, why);
        }
    }

    /// Of what was said last.
    pub(super) fn answer(&self) -> String {
        match &*self.version {
            "" => format!("the answer of {}", self.who),
            version => format!("version {version} of {}", self.who),
        }
    }

    pub(super) fn gone(&mut self, host: &Host, at: SystemTime, why: String) {
        let (address, origin) = (host.address_text().to_shared(), host.origin().cloned());
        self.removed.push_back(Removed { address, at, origin, why });
        keep_last(&mut self.removed, MOST_REMOVED);
    }

    /// Whoever has not answered yet.
    pub(super) fn awaited(&self) -> Arc<str> {
        if self.good.is_some() { "the first health checks".into() } else { self.who.clone() }
    }

    pub(super) fn failed(&mut self, reason: &str, at: SystemTime) {
        self.failed = Some(Trouble { at, reason: cut(reason) });
    }

    pub(super) fn rejected(&mut self, reason: &str, at: SystemTime) {
        self.rejected = Some(Trouble { at, reason: cut(reason) });
    }

    pub(super) fn show(&self) -> Provenance {
        Provenance {
            who: self.who.clone(),
            asked_first: self.asked_first,
            good: self.good.clone(),
            failed: self.failed.clone(),
            rejected: self.rejected.clone(),
            removed: self.removed.iter().cloned().collect(),
            kept_for: self.kept.as_ref().map(|kept| kept.since.elapsed()),
        }
    }
}

// === impl Inner: between a source and what is applied ===

impl Inner {
    /// What a source says of its hosts, unless the cluster is protected against it.
    pub(super) fn replace(self: &Rc<Self>, name: &Arc<str>, id: u64, mut assignment: Assignment) {
        let now = self.context.clock.now();
        let verdict = self.with(name, id, |cluster| {
            let protection = cluster.config().protection();
            let has_hosts = cluster.snapshot.hosts.host_count() > 0;
            let said = cluster.said.as_mut()?;
            said.sign(&mut assignment.hosts, now);
            Some(said.judge(protection, assignment.hosts.is_empty(), has_hosts))
        });
        match verdict.flatten() {
            None | Some(Verdict::Apply) => {
                self.keep(name, id, None);
                self.apply(name, id, assignment);
            }
            Some(Verdict::Keep(left)) => {
                tracing::warn!(cluster = &**name, "the answer is empty: hosts are kept for {} s", left.as_secs());
                self.count_protected(name, id, stat::KEPT_ON_EMPTY);
                let (manager, of) = (Rc::downgrade(self), name.clone());
                let timer = tokio::task::spawn_local(async move {
                    tokio::time::sleep(left).await;
                    if let Some(manager) = manager.upgrade() {
                        manager.kept_long_enough(&of, id);
                    }
                });
                self.keep(name, id, Some((assignment, Running(timer.abort_handle()))));
            }
            Some(Verdict::Refuse) => {
                self.count_protected(name, id, stat::REFUSED_OLDER);
                self.with(name, id, |cluster| {
                    let Some(said) = &cluster.said else { return };
                    let current = said.version().cloned().unwrap_or_default();
                    tracing::warn!(
                        cluster = &**name,
                        "{} is refused: version {current} came after it and stays",
                        said.answer()
                    );
                    cluster.show_version(&current);
                });
            }
        }
    }

    fn kept_long_enough(self: &Rc<Self>, name: &Arc<str>, id: u64) {
        let kept = self.with(name, id, |cluster| cluster.said.as_mut().and_then(|said| said.kept.take()));
        if let Some(kept) = kept.flatten() {
            self.keep(name, id, None);
            self.apply(name, id, kept.assignment);
        }
    }

    /// Remembers, or forgets, what an empty answer would have done.
    fn keep(&self, name: &str, id: u64, new: Option<(Assignment, Running)>) {
        self.with(name, id, |cluster| {
            let Some(said) = cluster.said.as_mut() else { return };
            let was = said.kept.is_some();
            let since = said.kept.as_ref().map_or_else(Instant::now, |kept| kept.since);
            said.kept = new.map(|(assignment, timer)| Kept { since, assignment, _timer: timer });
            if was || said.kept.is_some() || said.stats.is_some() {
                let keeping = u64::from(said.kept.is_some());
                cluster.discovery().set(stat::KEEPING, keeping);
            }
        });
    }

    fn count_protected(&self, name: &str, id: u64, counter: Counter<Discovery>) {
        self.with(name, id, |cluster| cluster.discovery().inc(counter));
    }

    /// For the record.
    pub(super) fn heard(&self, name: &str, id: u64, note: impl FnOnce(&mut Said, SystemTime)) {
        let now = self.context.clock.now();
        self.with(name, id, |cluster| {
            if let Some(said) = cluster.said.as_mut() {
                note(said, now);
            }
        });
    }
}

/// The last ones.
fn keep_last<T>(list: &mut VecDeque<T>, most: usize) {
    list.drain(..list.len().saturating_sub(most));
}

fn cut(reason: &str) -> Arc<str> {
    let end = (0..=LONGEST_REASON.min(reason.len())).rev().find(|at| reason.is_char_boundary(*at)).unwrap_or(0);
    reason[..end].into()
}

/// Which part of a host's identity is another.
fn difference(old: &Host, new: &Host) -> &'static str {
    let (old, new) = (old.spec(), new.spec());
    match () {
        () if old.locality != new.locality => "its locality is another",
        () if old.hostname != new.hostname => "its name is another",
        () if old.health_check_address != new.health_check_address => "its checks go elsewhere",
        () if old.health_check_hostname != new.health_check_hostname => "its checks use another name",
        () => "it is named more or less often",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nuncio_api::pb::envoy::config::core::v3::Metadata;
    use nuncio_api::pb::google::protobuf::{Struct, Value};

    fn read(key: &str, value: &str) -> Result<Protection, String> {
        let value = Value { kind: Some(Kind::StringValue(value.into())) };
        let fields = Struct { fields: [(key.to_owned(), value)].into() };
        let filter_metadata = [(NAMESPACE.to_owned(), fields)].into();
        let metadata = Metadata { filter_metadata, ..Default::default() };
        let message = pb::Cluster { metadata: Some(metadata), ..Default::default() };
        Protection::from_proto(&message).map_err(|e| e.to_string())
    }

    #[test]
    fn protection_is_asked_for_by_metadata() {
        let keep = read("keep_last_good", "1.5s").unwrap();
        assert_eq!(keep, Protection { keep_last_good: Duration::from_millis(1500), ..Protection::default() });
        assert_eq!(Protection::from_proto(&pb::Cluster::default()), Ok(Protection::default()));
        let at = "metadata.filter_metadata[\"nuncio.discovery\"]";
        assert!(read("keep", "1s").unwrap_err().starts_with(&format!("{at}.keep: unknown")));
        for wrong in ["60", "-1s", "s", "1e300s"] {
            assert_eq!(
                read("refuse_older", wrong).unwrap_err(),
                format!("{at}.refuse_older: must be a duration such as \"60s\"")
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_goes_back_while_two_servers_disagree_but_later_one_may() {
        let protection = Protection { refuse_older: Duration::from_secs(60), ..Protection::default() };
        let mut said = Said::new("x".into(), SystemTime::UNIX_EPOCH);
        let mut answer = |version: &str| {
            said.set_version(version);
            let refused = matches!(said.judge(protection, false, true), Verdict::Refuse);
            if !refused {
                said.applied(&Applied::default(), 0, SystemTime::UNIX_EPOCH);
            }
            !refused
        };
        assert!(answer("a") && answer("a") && answer("b") && !answer("a") && answer("b") && answer("c"));
        assert!(!answer("a") && !answer("b") && answer("c"));
        tokio::time::advance(Duration::from_secs(61)).await;
        assert!(answer("a"));
        // Numbers that grow are never old.
        assert!(answer("7") && answer("8"));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut said = Said::new("x".into(), SystemTime::UNIX_EPOCH);
        for i in 0..100u16 {
            said.set_version(&i.to_string());
            let host = Arc::new(Host::new(HostSpec::new(nuncio_core::net::Address::Ip(([10, 0, 0, 1], i).into()))));
            let applied = Applied { removed: vec![host], ..Applied::default() };
            said.applied(&applied, 0, SystemTime::UNIX_EPOCH);
        }
        assert_eq!((said.removed.len(), said.past.len()), (MOST_REMOVED, MOST_VERSIONS));
        assert_eq!(said.removed.back().unwrap().why, "version 99 of x does not name it");
        said.failed(&"ä".repeat(1000), SystemTime::UNIX_EPOCH);
        assert_eq!(said.failed.unwrap().reason.len(), LONGEST_REASON);
    }
}
