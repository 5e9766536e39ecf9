//! Requests and their answers:
//!
//! | request | does |
//! |---|---|
//! | `GET /v1/registration/SERVICE` | its hosts; none if nobody registered |
//! | `GET /v1/registration/repo/REPO` | hosts whose `service_repo_name` that is |
//! | `GET /v1/registration` | how many hosts each service has |
//! | `POST /v1/registration/SERVICE` | registers or checks in: a form with `ip`, `port` and, if wanted, `tags` (JSON), `revision`, `service_repo_name` |
//! | `DELETE /v1/registration/SERVICE/IP` | takes it back; with `?port=` only that port |
//! | `POST /v1/loadbalancing/SERVICE` or `…/SERVICE/IP` | a form with `load_balancing_weight`, 1 to 100 |
//! | `GET /healthcheck` | 200 |
//!
//! A change is answered 204, when the journal has it if there is one; a mistake 400 with `{"error": …}`.

use std::cell::RefCell;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use nuncio_core::time::WallClock;
use serde_json::{Map, Value, json};
use tokio::task::AbortHandle;

use super::form::{Form, unescape};
use super::journal::{Journal, Store};
use super::registry::{Change, Host, Refusal, Registry};

/// Longer names are not names.
const LONGEST_NAME: usize = 256;

/// More of what a host says of itself is not kept.
const MOST_TAG_BYTES: usize = 4096;

#[derive(Debug, Clone)]
pub struct Settings {
    /// Who does not check in for so long is forgotten.
    pub host_ttl: Duration,
    /// Where registrations are kept over a restart.
    pub store: Option<PathBuf>,
}

/// Status and a body of JSON, empty with 204.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    pub body: String,
}

/// The server behind its connections.
pub struct Server {
    registry: Rc<RefCell<Registry>>,
    journal: Option<Rc<Journal>>,
    clock: WallClock,
    /// Who writes, and who forgets.
    tasks: Vec<AbortHandle>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

impl Server {
    /// On a local runtime; whoever forgets and writes ends with it.
    pub fn start(settings: &Settings, clock: WallClock) -> io::Result<Rc<Self>> {
        let mut registry = Registry::new(settings.host_ttl);
        let of_store = |error: io::Error| {
            let path = settings.store.as_deref().unwrap_or(Path::new(""));
            io::Error::other(format!("{}: {error}", path.display()))
        };
        let loaded = settings.store.as_deref().map(Store::open).transpose().map_err(of_store)?;
        let lines = loaded.as_ref().map_or(&[][..], |(_, lines)| lines);
        load(&mut registry, lines, settings.host_ttl, clock).map_err(of_store)?;
        let registry = Rc::new(RefCell::new(registry));
        let mut tasks = Vec::new();
        let journal = loaded.map(|(store, lines)| {
            let journal = Journal::new(lines.len());
            let known = registry.clone();
            let whole = move |text: bool| {
                let known = known.borrow();
                let lines = || known.changes().map(|change| change.to_line()).collect();
                (known.hosts(), if text { lines() } else { String::new() })
            };
            tasks.push(tokio::task::spawn_local(journal.clone().run(store, whole)).abort_handle());
            journal
        });
        let expiring = Rc::downgrade(&registry);
        let every = (settings.host_ttl / 20).clamp(Duration::from_millis(100), Duration::from_secs(5));
        let expire = async move {
            loop {
                tokio::time::sleep(every).await;
                let Some(registry) = expiring.upgrade() else { return };
                registry.borrow_mut().expire(millis(clock));
            }
        };
        tasks.push(tokio::task::spawn_local(expire).abort_handle());
        Ok(Rc::new(Self { registry, journal, clock, tasks }))
    }

    pub async fn answer(&self, method: &str, target: &str, body: &[u8]) -> Answer {
        self.respond(method, target, body).await.unwrap_or_else(|failed| failed)
    }

    async fn respond(&self, method: &str, target: &str, body: &[u8]) -> Result<Answer, Answer> {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let parts: Option<Vec<String>> =
            path.split('/').filter(|part| !part.is_empty()).map(|part| unescape(part, false)).collect();
        let parts = parts.ok_or_else(|| mistake("the path has a broken escape"))?;
        if parts.iter().any(|part| part.len() > LONGEST_NAME) {
            return Err(mistake("a name is too long"));
        }
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let registry = || self.registry.borrow();
        match (method, &parts[..]) {
            ("GET", ["healthcheck"]) => Ok(shown(&json!({ "status": "ok" }))),
            ("GET", ["v1", "registration"]) => Ok(shown(&registry().services())),
            ("GET", ["v1", "registration", "repo", repo]) => Ok(shown(&registry().repo(repo))),
            ("GET", ["v1", "registration", service]) => Ok(shown(&registry().service(service))),
            ("POST", ["v1", "registration", service]) => {
                let host = self.host(&Form::read(body).map_err(|e| mistake(&e))?)?;
                self.change(Change::Register { service: (*service).into(), host }).await
            }
            ("DELETE", ["v1", "registration", service, ip]) => {
                let query = Form::read(query.as_bytes()).map_err(|e| mistake(&e))?;
                let port = query.get("port").map(port).transpose()?;
                self.change(Change::Remove { service: (*service).into(), ip: address(ip)?, port }).await
            }
            ("POST", ["v1", "loadbalancing", service, rest @ ..]) if rest.len() < 2 => {
                let form = Form::read(body).map_err(|e| mistake(&e))?;
                let weight = form.get("load_balancing_weight").and_then(|weight| weight.parse().ok());
                let weight = weight.filter(|weight| (1..=100).contains(weight));
                let weight = weight.ok_or_else(|| mistake("load_balancing_weight must be a number from 1 to 100"))?;
                let ip = rest.first().map(|ip| address(ip)).transpose()?;
                self.change(Change::Weigh { service: (*service).into(), ip, weight }).await
            }
            ("GET" | "POST" | "DELETE", _) => Err(failed(404, "there is no such resource")),
            _ => Err(failed(405, "GET, POST and DELETE are understood")),
        }
    }

    fn host(&self, form: &Form) -> Result<Host, Answer> {
        let text = |name: &str| match form.get(name).unwrap_or_default() {
            long if long.len() > LONGEST_NAME => Err(mistake(&format!("{name} is too long"))),
            text => Ok(text.to_owned()),
        };
        let tags = form.get("tags").unwrap_or("{}");
        if tags.len() > MOST_TAG_BYTES {
            return Err(mistake("tags are too long"));
        }
        let tags: Map<String, Value> =
            serde_json::from_str(tags).map_err(|e| mistake(&format!("tags must be a JSON object: {e}")))?;
        let weight = tags.get("load_balancing_weight");
        if weight.is_some_and(|weight| !weight.as_u64().is_some_and(|weight| (1..=100).contains(&weight))) {
            return Err(mistake("tags.load_balancing_weight must be a number from 1 to 100"));
        }
        Ok(Host {
            ip: address(form.get("ip").ok_or_else(|| mistake("ip is required"))?)?,
            port: port(form.get("port").ok_or_else(|| mistake("port is required"))?)?,
            revision: text("revision")?,
            repo: text("service_repo_name")?,
            tags,
            last_check_in: self.clock.since_epoch().as_secs(),
        })
    }

    async fn change(&self, change: Change) -> Result<Answer, Answer> {
        let applied = self.registry.borrow_mut().apply(&change, millis(self.clock));
        applied.map_err(|refusal| match refusal {
            Refusal::Unknown => failed(404, "nobody of that name and address is registered"),
            Refusal::Full => failed(507, "there are too many hosts"),
        })?;
        if let Some(journal) = &self.journal {
            journal.append(change.to_line()).await.map_err(|reason| failed(500, &reason))?;
        }
        Ok(Answer { status: 204, body: String::new() })
    }
}

fn millis(clock: WallClock) -> u64 {
    u64::try_from(clock.since_epoch().as_millis()).unwrap_or(u64::MAX)
}

/// What was known before a restart. Everybody gets time to check in again; but who was forgotten before the last line
/// was written stays so.
fn load(registry: &mut Registry, lines: &[String], ttl: Duration, clock: WallClock) -> io::Result<()> {
    let mut changes = Vec::with_capacity(lines.len());
    for (at, line) in lines.iter().enumerate() {
        let change = Change::from_line(line);
        changes.push(change.ok_or_else(|| io::Error::other(format!("line {} is damaged", at + 1)))?);
    }
    let check_in = |change: &Change| match change {
        Change::Register { host, .. } => Some(host.last_check_in),
        Change::Remove { .. } | Change::Weigh { .. } => None,
    };
    let last = changes.iter().filter_map(check_in).max().unwrap_or(0);
    let now = millis(clock);
    for change in &changes {
        if check_in(change).is_some_and(|at| at.saturating_add(ttl.as_secs()) < last) {
            continue;
        }
        // Of somebody who was forgotten.
        if let Err(Refusal::Full) = registry.apply(change, now) {
            return Err(io::Error::other("the store has too many hosts"));
        }
    }
    Ok(())
}

fn address(text: &str) -> Result<IpAddr, Answer> {
    text.parse().map_err(|_| mistake("ip must be an IP address"))
}

fn port(text: &str) -> Result<u16, Answer> {
    text.parse().ok().filter(|port| *port != 0).ok_or_else(|| mistake("port must be a number from 1 to 65535"))
}

fn shown(value: &Value) -> Answer {
    Answer { status: 200, body: value.to_string() }
}

fn mistake(reason: &str) -> Answer {
    failed(400, reason)
}

fn failed(status: u16, reason: &str) -> Answer {
    Answer { status, body: json!({ "error": reason }).to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::UNIX_EPOCH;

    fn settings(store: Option<PathBuf>) -> Settings {
        Settings { host_ttl: Duration::from_secs(600), store }
    }

    fn start(settings: &Settings) -> Rc<Server> {
        Server::start(settings, WallClock::fixed(UNIX_EPOCH + Duration::from_secs(1_000_000))).unwrap()
    }

    async fn statuses(server: &Server, requests: &[(&str, &str, &str)]) -> Vec<u16> {
        let mut statuses = Vec::new();
        for (method, target, body) in requests {
            statuses.push(server.answer(method, target, body.as_bytes()).await.status);
        }
        statuses
    }

    async fn service(server: &Server, name: &str) -> Value {
        let answer = server.answer("GET", &format!("/v1/registration/{name}"), b"").await;
        assert_eq!(answer.status, 200);
        serde_json::from_str(&answer.body).unwrap()
    }

    /// The form that clients of the public reference server send.
    const FORM: &str = "ip=10.0.0.1&service_repo_name=repo&port=8080&revision=abc\
                        &tags=%7B%22az%22%3A%22us-east-1a%22%2C%22instance_id%22%3A%22i-1%22%2C%22region%22%3A%22us-east-1%22%7D";

    #[tokio::test(flavor = "local", start_paused = true)]
    async fn a_host_registers_is_seen_is_weighed_and_goes() {
        let server = start(&settings(None));
        assert_eq!(service(&server, "none").await["hosts"], json!([]));
        assert_eq!(statuses(&server, &[("POST", "/v1/registration/web", FORM)]).await, [204]);
        let said = service(&server, "web").await;
        let expected = json!([{
            "ip_address": "10.0.0.1", "last_check_in": "1970-01-12T13:46:40Z", "port": 8080, "revision": "abc",
            "service": "web", "service_repo_name": "repo",
            "tags": {"az": "us-east-1a", "instance_id": "i-1", "region": "us-east-1"},
        }]);
        assert_eq!((&said["hosts"], &said["service"]), (&expected, &json!("web")));
        let weight = "load_balancing_weight=7";
        let done = statuses(&server, &[("POST", "/v1/loadbalancing/web/10.0.0.1", weight)]).await;
        assert_eq!(done, [204]);
        assert_eq!(service(&server, "web").await["hosts"][0]["tags"]["load_balancing_weight"], 7);
        assert_eq!(service(&server, "repo/repo").await["hosts"].as_array().unwrap().len(), 1);
        assert_eq!(service(&server, "").await["services"]["web"], 1);
        let gone = [("DELETE", "/v1/registration/web/10.0.0.1", ""), ("DELETE", "/v1/registration/web/10.0.0.1", "")];
        assert_eq!(statuses(&server, &gone).await, [204, 404]);
        assert_eq!(service(&server, "web").await["hosts"], json!([]));
    }

    #[tokio::test(flavor = "local", start_paused = true)]
    async fn mistakes_are_named_and_change_nothing() {
        let server = start(&settings(None));
        let long = format!("/v1/registration/{}", "x".repeat(300));
        let requests = [
            ("POST", "/v1/registration/web", "port=1", 400),
            ("POST", "/v1/registration/web", "ip=name.test&port=1", 400),
            ("POST", "/v1/registration/web", "ip=10.0.0.1&port=0", 400),
            ("POST", "/v1/registration/web", "ip=10.0.0.1&port=70000", 400),
            ("POST", "/v1/registration/web", "ip=10.0.0.1&port=1&tags=[]", 400),
            ("POST", "/v1/registration/web", r#"ip=10.0.0.1&port=1&tags={"load_balancing_weight":0}"#, 400),
            ("POST", "/v1/registration/%zz", "ip=10.0.0.1&port=1", 400),
            ("POST", &long, "ip=10.0.0.1&port=1", 400),
            ("POST", "/v1/loadbalancing/web", "load_balancing_weight=101", 400),
            ("POST", "/v1/loadbalancing/web", "load_balancing_weight=5", 404),
            ("GET", "/v2/registration/web", "", 404),
            ("PUT", "/v1/registration/web", "", 405),
        ];
        for (method, target, body, status) in requests {
            let answer = server.answer(method, target, body.as_bytes()).await;
            assert_eq!(answer.status, status, "{method} {target} {body}");
            assert!(answer.body.starts_with(r#"{"error":"#), "{}", answer.body);
        }
        assert_eq!(server.registry.borrow().hosts(), 0);
    }

    #[tokio::test(flavor = "local")]
    async fn a_restart_loses_nothing_that_was_acknowledged() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store");
        let server = start(&settings(Some(path.clone())));
        for i in 1..=20 {
            let form = format!("ip=10.0.0.{i}&port=80");
            assert_eq!(server.answer("POST", "/v1/registration/web", form.as_bytes()).await.status, 204);
        }
        let more = [
            ("DELETE", "/v1/registration/web/10.0.0.3", ""),
            ("POST", "/v1/loadbalancing/web/10.0.0.4", "load_balancing_weight=9"),
        ];
        assert_eq!(statuses(&server, &more).await, [204, 204]);
        let before = service(&server, "web").await;
        drop(server);
        // Its tasks end, and the file is nobody's.
        tokio::task::yield_now().await;
        let server = start(&settings(Some(path)));
        let after = service(&server, "web").await;
        assert_eq!(before["hosts"], after["hosts"]);
        assert_eq!(after["hosts"].as_array().unwrap().len(), 19);
    }

    #[tokio::test(flavor = "local")]
    async fn a_damaged_store_is_no_empty_store() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store");
        std::fs::write(&path, "garbage\n").unwrap();
        let refused =
            |path: &Path| Server::start(&settings(Some(path.to_owned())), WallClock::System).err().unwrap().to_string();
        assert_eq!(refused(&path), format!("{}: line 1 is damaged", path.display()));
        let nowhere = folder.path().join("none").join("store");
        assert_eq!(refused(&nowhere), format!("{}: No such file or directory (os error 2)", nowhere.display()));
    }
}
