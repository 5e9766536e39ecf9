//! `/discovery`: where the hosts of clusters come from. Of each cluster: whom it asks, the last answer, what went wrong
//! last; of each host: who named it, when and in which version, and why it is kept though nobody does any more; of those
//! that went lately: when and why. Envoy has no such page.

use std::fmt;
use std::fmt::Write;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::StatusCode;
use nuncio_api::dump::JsonWriter;
use nuncio_core::time::WallClock;
use nuncio_core::upstream::{Host, Origin};
use regex::Regex;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::{Answer, Chunks, ContentType, Page, Param, ParamKind, Query};
use crate::calendar::Date;
use crate::upstream::{ClusterStatus, Provenance};

/// What is known of the clusters whose names are wanted.
pub type ProvenanceSource = Rc<dyn Fn(&dyn Fn(&str) -> bool) -> Vec<(ClusterStatus, Option<Provenance>)>>;

const PARAMS: &[Param] = &[
    Param { name: "filter", help: "regular expression for names of clusters", kind: ParamKind::Text },
    Param { name: "format", help: "text or json", kind: ParamKind::OneOf(&["text", "json"]) },
];

pub fn pages(source: ProvenanceSource, clock: WallClock) -> Vec<Page> {
    let answer = move |query: &Query| answer(&source, clock, query);
    vec![Page::new("/discovery", "print where the hosts of clusters come from", answer).with_params(PARAMS)]
}

fn answer(source: &ProvenanceSource, clock: WallClock, query: &Query) -> Answer {
    let filter = match query.text("filter").map(Regex::new).transpose() {
        Ok(filter) => filter,
        Err(_) => return Answer::error(StatusCode::BAD_REQUEST, "Invalid re2 regex"),
    };
    let clusters = source(&|name| filter.as_ref().is_none_or(|filter| filter.is_match(name)));
    let now = Now { wall: clock.now(), moment: Instant::now() };
    match query.get("format") {
        Some("json") => Answer::rendered(ContentType::Json, move |out| write_json(&clusters, now, out)),
        _ => Answer::rendered(ContentType::Text, move |out| {
            clusters.iter().try_for_each(|(status, said)| write_text(status, said.as_ref(), now, out))
        }),
    }
}

/// When the page was asked for.
#[derive(Clone, Copy)]
struct Now {
    wall: SystemTime,
    moment: Instant,
}

impl Now {
    /// `2026-11-30T02:00:00Z (3 s ago)`
    fn ago(self, at: SystemTime) -> String {
        format!("{} ({} s ago)", date(at), self.wall.duration_since(at).unwrap_or_default().as_secs())
    }
}

pub(super) fn date(at: SystemTime) -> String {
    let millis = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    Date::new(Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX))).rfc3339()
}

/// Why a host is there though its source names it no more.
pub(super) fn kept(host: &Host, now: Instant) -> Option<String> {
    let absent = host.absent_for(now)?;
    Some(format!("absent for {} s, kept because its checks pass", absent.as_secs()))
}

fn against_empty(kept_for: Duration) -> String {
    format!("kept for {} s against an empty answer", kept_for.as_secs())
}

/// The members of an object that say who named a host.
pub(super) fn origin_json(origin: &Origin) -> Map<String, Value> {
    let mut json = Map::new();
    json.insert("source".into(), (*origin.who).into());
    if !origin.version.is_empty() {
        json.insert("version".into(), (*origin.version).into());
    }
    json.insert("since".into(), date(origin.at).into());
    json
}

// === Text ===

const CONFIGURED: &str = "the configuration";

fn write_text(status: &ClusterStatus, said: Option<&Provenance>, now: Now, out: &mut Chunks) -> fmt::Result {
    let warming = if status.warming { " (warming)" } else { "" };
    let name = status.snapshot.config.name();
    writeln!(out, "{name}{warming}: {}", said.map_or(CONFIGURED, |said| &said.who))?;
    if let Some(said) = said {
        match &said.good {
            Some(good) => {
                let version =
                    if good.version.is_empty() { String::new() } else { format!(", version {}", good.version) };
                writeln!(out, "  last answer {}{version}, {} hosts", now.ago(good.at), good.hosts)?;
            }
            None => writeln!(out, "  no answer since {}", now.ago(said.asked_first))?,
        }
        for (what, trouble) in [("failure", &said.failed), ("refusal", &said.rejected)] {
            if let Some(trouble) = trouble {
                writeln!(out, "  last {what} {}: {}", now.ago(trouble.at), one_line(&trouble.reason))?;
            }
        }
        if let Some(kept_for) = said.kept_for {
            writeln!(out, "  hosts are {}", against_empty(kept_for))?;
        }
    }
    for host in status.snapshot.hosts.hosts() {
        write!(out, "  {} {}", host.address_text(), host.flags())?;
        if let Some(origin) = host.origin() {
            let version =
                if origin.version.is_empty() { String::new() } else { format!(" version {}", origin.version) };
            write!(out, ", named by {}{version} since {}", origin.who, now.ago(origin.at))?;
        }
        match kept(host, now.moment) {
            Some(kept) => writeln!(out, ", {kept}")?,
            None => writeln!(out)?,
        }
    }
    for gone in said.iter().flat_map(|said| &said.removed) {
        writeln!(out, "  gone: {} at {}: {}", gone.address, now.ago(gone.at), one_line(&gone.why))?;
    }
    Ok(())
}

/// What somebody else said must not look like more than it is.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

// === JSON ===

fn write_json(clusters: &[(ClusterStatus, Option<Provenance>)], now: Now, out: &mut Chunks) -> fmt::Result {
    let mut json = JsonWriter::default();
    json.begin_object();
    json.key("clusters");
    json.begin_list();
    for (status, said) in clusters {
        write_cluster(status, said.as_ref(), now, &mut json, out)?;
    }
    json.end_list();
    json.end_object();
    writeln!(out, "{}", json.take())
}

fn write_cluster(
    status: &ClusterStatus,
    said: Option<&Provenance>,
    now: Now,
    json: &mut JsonWriter,
    out: &mut Chunks,
) -> fmt::Result {
    json.begin_object();
    json.key("name");
    json.string(status.snapshot.config.name());
    json.key("source");
    json.string(said.map_or(CONFIGURED, |said| &said.who));
    if status.warming {
        json.key("warming");
        json.bool(true);
    }
    if let Some(said) = said {
        write_said(said, json);
    }
    json.key("hosts");
    json.begin_list();
    for host in status.snapshot.hosts.hosts() {
        let mut one = host.origin().map(|origin| origin_json(origin)).unwrap_or_default();
        one.insert("address".into(), host.address_text().to_string().into());
        one.insert("health_flags".into(), host.flags().to_string().into());
        if let Some(kept) = kept(host, now.moment) {
            one.insert("kept".into(), kept.into());
        }
        json.value(&one.into());
        out.write_str(&json.take())?;
    }
    json.end_list();
    json.end_object();
    out.write_str(&json.take())
}

fn write_said(said: &Provenance, json: &mut JsonWriter) {
    let mut member = |key: &str, value: Option<Value>| {
        if let Some(value) = value {
            json.key(key);
            json.value(&value);
        }
    };
    let trouble = |trouble: &crate::upstream::cluster_manager::Trouble| json!({ "at": date(trouble.at), "reason": &*trouble.reason });
    let good = said.good.as_ref();
    member("asked_since", Some(date(said.asked_first).into()));
    member(
        "last_answer",
        good.map(|good| json!({ "at": date(good.at), "version": &*good.version, "hosts": good.hosts })),
    );
    member("last_failure", said.failed.as_ref().map(trouble));
    member("last_refusal", said.rejected.as_ref().map(trouble));
    member("kept", said.kept_for.map(|kept_for| against_empty(kept_for).into()));
    let removed = said.removed.iter().map(|gone| {
        let mut one = gone.origin.as_deref().map(origin_json).unwrap_or_default();
        one.insert("address".into(), (*gone.address).into());
        one.insert("removed".into(), date(gone.at).into());
        one.insert("why".into(), gone.why.as_str().into());
        Value::from(one)
    });
    member("removed", (!said.removed.is_empty()).then(|| removed.collect()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::clusters::tests::cluster_with_hosts;
    use crate::upstream::cluster_manager::{Good, Removed, Trouble};
    use bytes::Bytes;
    use std::sync::Arc;

    fn said() -> Provenance {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        let origin = Origin { who: "eds /eds.yaml".into(), version: "6".into(), at: at(60) };
        Provenance {
            who: "eds /eds.yaml".into(),
            asked_first: at(0),
            good: Some(Good { at: at(90), version: "7".into(), hosts: 2 }),
            failed: Some(Trouble { at: at(95), reason: "line\nbroken".into() }),
            rejected: None,
            removed: vec![Removed {
                address: "10.0.0.1:80".into(),
                at: at(90),
                origin: Some(Arc::new(origin)),
                why: "version 7 of eds /eds.yaml does not name it".into(),
            }],
            kept_for: Some(Duration::from_secs(5)),
        }
    }

    fn ask(query: &str) -> String {
        let status = ClusterStatus {
            snapshot: cluster_with_hosts(),
            bytes: Bytes::new(),
            last_updated: UNIX_EPOCH,
            version: None,
            warming: false,
        };
        let source: ProvenanceSource = Rc::new(move |wanted| match wanted("a") {
            true => vec![(status.clone(), Some(said())), (status.clone(), None)],
            false => Vec::new(),
        });
        let clock = WallClock::fixed(UNIX_EPOCH + Duration::from_secs(100));
        answer(&source, clock, &Query::parse(query)).into_text()
    }

    #[test]
    fn the_text_says_who_when_and_why() {
        let expected = "\
a: eds /eds.yaml
  last answer 1970-01-01T00:01:30Z (10 s ago), version 7, 2 hosts
  last failure 1970-01-01T00:01:35Z (5 s ago): line broken
  hosts are kept for 5 s against an empty answer
  127.0.0.1:19902 /eds_status_draining
  /x healthy
  gone: 10.0.0.1:80 at 1970-01-01T00:01:30Z (10 s ago): version 7 of eds /eds.yaml does not name it
a: the configuration
  127.0.0.1:19902 /eds_status_draining
  /x healthy
";
        assert_eq!(ask(""), expected);
        assert_eq!(ask("filter=other"), "");
    }

    #[test]
    fn the_json_says_the_same() {
        let json: Value = serde_json::from_str(&ask("format=json")).unwrap();
        let first = &json["clusters"][0];
        assert_eq!(first["source"], "eds /eds.yaml");
        assert_eq!(first["last_answer"], json!({"at": "1970-01-01T00:01:30Z", "version": "7", "hosts": 2}));
        assert_eq!(first["removed"][0]["since"], "1970-01-01T00:01:00Z");
        assert_eq!(first["hosts"][0]["address"], "127.0.0.1:19902");
        assert_eq!(json["clusters"][1].get("removed"), None);
        let none: Value = serde_json::from_str(&ask("format=json&filter=x")).unwrap();
        assert_eq!(none, json!({"clusters": []}));
    }
}
