//! Who is registered, until when, and what is said of them.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::time::Duration;

use nuncio_api::dump::json_value;
use nuncio_api::pb::google::protobuf::Timestamp;
use nuncio_api::prost::Message;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

/// More hosts are not taken: strangers must not fill the memory.
const MOST_HOSTS: usize = 100_000;

/// What may be asked of a registry, as it stands in the journal.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Change {
    Register { service: String, host: Host },
    Remove { service: String, ip: IpAddr, port: Option<u16> },
    Weigh { service: String, ip: Option<IpAddr>, weight: u64 },
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Host {
    pub ip: IpAddr,
    pub port: u16,
    pub revision: String,
    pub repo: String,
    pub tags: Map<String, Value>,
    /// Seconds since 1970.
    pub last_check_in: u64,
}

/// Why a change was not made.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Nobody of that name or address is registered.
    Unknown,
    Full,
}

pub(super) struct Registry {
    ttl: Duration,
    services: HashMap<String, Service>,
    hosts: usize,
}

#[derive(Default)]
struct Service {
    /// Grows with every change that can be seen.
    version: u64,
    hosts: BTreeMap<(IpAddr, u16), (Host, Instant)>,
}

impl Registry {
    pub(super) fn new(ttl: Duration) -> Self {
        Self { ttl, services: HashMap::new(), hosts: 0 }
    }

    /// `now`: milliseconds since 1970.
    pub(super) fn apply(&mut self, change: &Change, now: u64) -> Result<(), Refusal> {
        match change {
            Change::Register { service, host } => self.register(service, host.clone(), now),
            Change::Remove { service, ip, port } => {
                let known = self.services.get_mut(service).ok_or(Refusal::Unknown)?;
                let before = known.hosts.len();
                known.hosts.retain(|at, _| !(at.0 == *ip && port.is_none_or(|port| port == at.1)));
                let gone = before - known.hosts.len();
                if gone == 0 {
                    return Err(Refusal::Unknown);
                }
                known.changed(now);
                self.hosts -= gone;
                Ok(())
            }
            Change::Weigh { service, ip, weight } => {
                let known = self.services.get_mut(service).ok_or(Refusal::Unknown)?;
                let mut found = false;
                for (host, _) in known.hosts.values_mut().filter(|(host, _)| ip.is_none_or(|ip| ip == host.ip)) {
                    host.tags.insert("load_balancing_weight".into(), (*weight).into());
                    found = true;
                }
                if !found {
                    return Err(Refusal::Unknown);
                }
                known.changed(now);
                Ok(())
            }
        }
    }

    fn register(&mut self, service: &str, mut host: Host, now: u64) -> Result<(), Refusal> {
        let at = (host.ip, host.port);
        let known = self.services.get_mut(service);
        if self.hosts >= MOST_HOSTS && !known.as_ref().is_some_and(|known| known.hosts.contains_key(&at)) {
            return Err(Refusal::Full);
        }
        let known = match known {
            Some(known) => known,
            None => self.services.entry(service.to_owned()).or_default(),
        };
        let before = known.hosts.len();
        // An instance that moved to another port is still the same one.
        if let Some(instance) = host.tags.get("instance_id").cloned() {
            let same = |at: &(IpAddr, u16), known: &Host| {
                at.0 == host.ip && at.1 != host.port && known.tags.get("instance_id") == Some(&instance)
            };
            known.hosts.retain(|at, (known, _)| !same(at, known));
        }
        let moved = before - known.hosts.len();
        let old = known.hosts.remove(&at);
        if let Some((old, _)) = &old {
            // Who sets weights is not who checks in.
            if let Some(weight) = old.tags.get("load_balancing_weight")
                && !host.tags.contains_key("load_balancing_weight")
            {
                host.tags.insert("load_balancing_weight".into(), weight.clone());
            }
        }
        let same = |old: &Host| Host { last_check_in: host.last_check_in, ..old.clone() } == host;
        let seen = moved > 0 || !old.as_ref().is_some_and(|(old, _)| same(old));
        known.hosts.insert(at, (host, Instant::now() + self.ttl));
        if seen {
            known.changed(now);
        }
        self.hosts = self.hosts + known.hosts.len() - before;
        Ok(())
    }

    /// Forgets who has not checked in for too long.
    pub(super) fn expire(&mut self, now: u64) {
        let moment = Instant::now();
        for service in self.services.values_mut() {
            let before = service.hosts.len();
            service.hosts.retain(|_, (_, until)| *until > moment);
            if service.hosts.len() < before {
                service.changed(now);
            }
        }
        self.hosts = self.services.values().map(|service| service.hosts.len()).sum();
    }

    /// What a poll of the service is answered.
    pub(super) fn service(&self, name: &str) -> Value {
        let (hosts, version) = match self.services.get(name) {
            Some(service) => (service.shown(name), service.version),
            None => (Vec::new(), 0),
        };
        json!({ "env": "default", "hosts": hosts, "service": name, "version": version.to_string() })
    }

    /// Hosts of any service that was built from a repository.
    pub(super) fn repo(&self, repo: &str) -> Value {
        let mut services: Vec<_> = self.services.iter().collect();
        services.sort_unstable_by_key(|(name, _)| name.as_str());
        let hosts = services.into_iter().flat_map(|(name, service)| service.shown(name));
        let hosts: Vec<Value> = hosts.filter(|host| host["service_repo_name"] == *repo).collect();
        json!({ "env": "default", "hosts": hosts, "service_repo_name": repo })
    }

    /// How many hosts each service has.
    pub(super) fn services(&self) -> Value {
        let counts: BTreeMap<_, _> = self.services.iter().map(|(name, s)| (name.clone(), s.hosts.len())).collect();
        json!({ "services": counts })
    }

    pub(super) fn hosts(&self) -> usize {
        self.hosts
    }

    /// Changes that lead from nothing to what there is.
    pub(super) fn changes(&self) -> impl Iterator<Item = Change> {
        self.services.iter().flat_map(|(name, service)| {
            let register = |(host, _): &(Host, Instant)| Change::Register { service: name.clone(), host: host.clone() };
            service.hosts.values().map(register)
        })
    }
}

impl Service {
    /// Also after a restart the next version is above the last one.
    fn changed(&mut self, now: u64) {
        self.version = (self.version + 1).max(now);
    }

    fn shown(&self, name: &str) -> Vec<Value> {
        self.hosts.values().map(|(host, _)| host.shown(name)).collect()
    }
}

impl Host {
    fn shown(&self, service: &str) -> Value {
        let at = Timestamp { seconds: i64::try_from(self.last_check_in).unwrap_or(0), nanos: 0 };
        json!({
            "ip_address": self.ip.to_string(),
            "last_check_in": json_value("google.protobuf.Timestamp", &at.encode_to_vec()),
            "port": self.port,
            "revision": self.revision,
            "service": service,
            "service_repo_name": self.repo,
            "tags": self.tags,
        })
    }
}

// === Change, as a line of JSON ===

impl Change {
    pub(super) fn to_line(&self) -> String {
        let value = match self {
            Self::Register { service, host } => json!({
                "register": service, "ip": host.ip.to_string(), "port": host.port, "revision": host.revision,
                "repo": host.repo, "tags": host.tags, "at": host.last_check_in,
            }),
            Self::Remove { service, ip, port } => json!({ "remove": service, "ip": ip.to_string(), "port": port }),
            Self::Weigh { service, ip, weight } => {
                json!({ "weigh": service, "ip": ip.map(|ip| ip.to_string()), "weight": weight })
            }
        };
        format!("{value}\n")
    }

    pub(super) fn from_line(line: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(line).ok()?;
        let text = |name: &str| value.get(name).and_then(Value::as_str).map(str::to_owned);
        let ip = || text("ip")?.parse().ok();
        let port = || value.get("port").and_then(Value::as_u64).and_then(|port| u16::try_from(port).ok());
        if let Some(service) = text("register") {
            let host = Host {
                ip: ip()?,
                port: port()?,
                revision: text("revision")?,
                repo: text("repo")?,
                tags: value.get("tags")?.as_object()?.clone(),
                last_check_in: value.get("at")?.as_u64()?,
            };
            return Some(Self::Register { service, host });
        }
        if let Some(service) = text("remove") {
            return Some(Self::Remove { service, ip: ip()?, port: port() });
        }
        let service = text("weigh")?;
        Some(Self::Weigh { service, ip: ip(), weight: value.get("weight")?.as_u64()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(last: u8, port: u16, instance: &str, at: u64) -> Change {
        let tags = json!({ "az": "a", "instance_id": instance });
        let host = Host {
            ip: [10, 0, 0, last].into(),
            port,
            revision: "r".into(),
            repo: "repo".into(),
            tags: tags.as_object().unwrap().clone(),
            last_check_in: at,
        };
        Change::Register { service: "web".into(), host }
    }

    fn ports(registry: &Registry) -> Vec<(String, u64)> {
        let said = registry.service("web");
        let one = |host: &Value| (host["ip_address"].as_str().unwrap().to_owned(), host["port"].as_u64().unwrap());
        said["hosts"].as_array().unwrap().iter().map(one).collect()
    }

    fn at(ip: &str, port: u64) -> (String, u64) {
        (ip.to_owned(), port)
    }

    #[tokio::test(start_paused = true)]
    async fn who_does_not_check_in_is_forgotten_and_who_does_changes_nothing() {
        let mut registry = Registry::new(Duration::from_secs(60));
        registry.apply(&host(1, 80, "i1", 5), 1).unwrap();
        registry.apply(&host(2, 80, "i2", 5), 2).unwrap();
        let version = registry.service("web")["version"].clone();
        tokio::time::advance(Duration::from_secs(50)).await;
        registry.apply(&host(1, 80, "i1", 55), 3).unwrap();
        assert_eq!(registry.service("web")["version"], version);
        assert_eq!(registry.service("web")["hosts"][0]["last_check_in"], "1970-01-01T00:00:55Z");
        tokio::time::advance(Duration::from_secs(11)).await;
        registry.expire(4);
        assert_eq!((ports(&registry), registry.hosts()), (vec![at("10.0.0.1", 80)], 1));
        assert_ne!(registry.service("web")["version"], version);
    }

    #[tokio::test(start_paused = true)]
    async fn one_machine_may_have_several_instances_and_each_is_in_one_place() {
        let mut registry = Registry::new(Duration::from_secs(60));
        registry.apply(&host(1, 80, "i1", 5), 1).unwrap();
        registry.apply(&host(1, 81, "i2", 5), 1).unwrap();
        assert_eq!(ports(&registry), [at("10.0.0.1", 80), at("10.0.0.1", 81)]);
        registry.apply(&host(1, 90, "i1", 5), 1).unwrap();
        assert_eq!((ports(&registry), registry.hosts()), (vec![at("10.0.0.1", 81), at("10.0.0.1", 90)], 2));
        let remove = |port| Change::Remove { service: "web".into(), ip: [10, 0, 0, 1].into(), port };
        registry.apply(&remove(Some(81)), 1).unwrap();
        assert_eq!(registry.apply(&remove(Some(81)), 1), Err(Refusal::Unknown));
        registry.apply(&remove(None), 1).unwrap();
        assert_eq!((ports(&registry), registry.hosts()), (vec![], 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_weight_stays_when_the_host_checks_in_again() {
        let mut registry = Registry::new(Duration::from_secs(60));
        registry.apply(&host(1, 80, "i1", 5), 1).unwrap();
        let weigh = |ip| Change::Weigh { service: "web".into(), ip, weight: 7 };
        registry.apply(&weigh(None), 1).unwrap();
        registry.apply(&host(1, 80, "i1", 6), 1).unwrap();
        assert_eq!(registry.service("web")["hosts"][0]["tags"]["load_balancing_weight"], 7);
        assert_eq!(registry.apply(&weigh(Some([10, 0, 0, 9].into())), 1), Err(Refusal::Unknown));
    }

    #[test]
    fn changes_survive_being_written() {
        let changes = [
            host(1, 80, "i\n\"", 5),
            Change::Remove { service: "a b".into(), ip: "::1".parse().unwrap(), port: None },
            Change::Remove { service: "a".into(), ip: [1, 2, 3, 4].into(), port: Some(1) },
            Change::Weigh { service: "a".into(), ip: None, weight: 3 },
        ];
        for change in changes {
            let line = change.to_line();
            assert_eq!(line.matches('\n').count(), 1);
            assert_eq!(Change::from_line(line.trim_end()), Some(change));
        }
        assert_eq!(Change::from_line(r#"{"register":"a","ip":"10.0"#), None);
    }
}
