//! `/health`: why each host gets traffic or does not, in one look, and what happened lately.
//!
//! Not a page of Envoy's. For each host: what discovery says, what checks say, what traffic says, the decision that
//! follows, since when, the last three results of checks, and when the next is. Then the last transitions with their
//! reasons, the latest first.

use std::fmt;
use std::fmt::Write;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nuncio_core::time::WallClock;
use nuncio_core::upstream::{HealthFlag, HealthFlags, Host};
use nuncio_healthcheck::HostReport;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{Answer, Chunks, ContentType, Page, Param, ParamKind, Query};
use crate::calendar::Date;
use crate::upstream::cluster_manager::history::{Decision, Transition};
use crate::upstream::{ClusterManager, HealthView};

/// What the page shows, as main knows it now.
pub trait HealthSource {
    fn health(&self) -> Vec<HealthView>;
    /// The latest first.
    fn transitions(&self) -> Vec<Transition>;
}

impl HealthSource for ClusterManager {
    fn health(&self) -> Vec<HealthView> {
        ClusterManager::health(self)
    }

    fn transitions(&self) -> Vec<Transition> {
        ClusterManager::transitions(self)
    }
}

const PARAMS: &[Param] = &[
    Param { name: "cluster", help: "only this cluster", kind: ParamKind::Text },
    Param { name: "unhealthy", help: "only hosts that get no traffic", kind: ParamKind::Flag },
    Param { name: "format", help: "text or json", kind: ParamKind::OneOf(&["text", "json"]) },
];

pub fn pages(source: &Rc<dyn HealthSource>, clock: WallClock) -> Vec<Page> {
    let source = source.clone();
    let answer = move |query: &Query| answer(&*source, clock.now(), query);
    vec![Page::new("/health", "why each host gets traffic or does not", answer).with_params(PARAMS)]
}

/// Everything, as of one moment.
struct Picture {
    now: SystemTime,
    clusters: Vec<Rows>,
    transitions: Vec<Transition>,
    /// A cluster was asked for that is not there.
    unknown: bool,
}

struct Rows {
    name: Arc<str>,
    warming: bool,
    checked: bool,
    panic: Vec<usize>,
    /// Then nobody gets traffic, instead of everybody.
    fail_on_panic: bool,
    hosts: Vec<Row>,
}

struct Row {
    host: Arc<Host>,
    flags: HealthFlags,
    since: SystemTime,
    next: Option<Duration>,
    report: HostReport,
}

fn answer(source: &dyn HealthSource, now: SystemTime, query: &Query) -> Answer {
    let (wanted, unhealthy) = (query.text("cluster"), query.has("unhealthy"));
    let mut views = source.health();
    views.retain(|view| wanted.is_none_or(|name| *view.snapshot.config.info.name == *name));
    let rows = |view: HealthView| Rows {
        name: view.snapshot.config.info.name.clone(),
        warming: view.warming,
        checked: view.checked,
        panic: view.panic,
        fail_on_panic: view.snapshot.config.lb.fail_on_panic,
        hosts: view
            .hosts
            .into_iter()
            .map(|(host, report)| Row::new(host, report, now))
            .filter(|row| !unhealthy || Decision::of(row.flags) == Decision::DoNotRoute)
            .collect(),
    };
    let mut transitions = source.transitions();
    transitions.retain(|transition| wanted.is_none_or(|name| *transition.cluster == *name));
    let unknown = wanted.is_some() && views.is_empty();
    let picture = Picture { now, clusters: views.into_iter().map(rows).collect(), transitions, unknown };
    match query.get("format") {
        Some("json") => Answer::rendered(ContentType::Json, move |out| write_json(&picture, out)),
        _ => Answer::rendered(ContentType::Text, move |out| write_text(&picture, out)),
    }
}

impl Row {
    fn new(host: Arc<Host>, report: HostReport, now: SystemTime) -> Self {
        let next = report.next_check.map(|at| at.saturating_duration_since(Instant::now()));
        let since = now.checked_sub(host.unchanged_for(Instant::now())).unwrap_or(now);
        Self { flags: host.flags(), since, next, report, host }
    }

    fn discovery(&self) -> &'static str {
        let says = |flag| self.flags.contains(flag);
        match () {
            () if says(HealthFlag::PendingDynamicRemoval) => "absent",
            () if says(HealthFlag::FailedEdsHealth) => "discovered, unhealthy",
            () if says(HealthFlag::EdsStatusDraining) => "discovered, draining",
            () if says(HealthFlag::DegradedEdsHealth) => "discovered, degraded",
            () => "discovered",
        }
    }

    fn check(&self) -> &'static str {
        let says = |flag| self.flags.contains(flag);
        match () {
            () if !self.report.checked => "not checked",
            () if self.report.results.is_empty() => "waits for its first check",
            () if says(HealthFlag::ActiveHcTimeout) => "failed by timeout",
            () if says(HealthFlag::FailedActiveHc) => "failed",
            () if says(HealthFlag::DegradedActiveHc) => "passed, degraded",
            () => "passed",
        }
    }

    fn outlier(&self) -> String {
        match &self.report.outlier {
            None => "not watched".to_owned(),
            Some(report) => match report.ejected {
                Some((since, cause)) => format!("ejected {}s ago: {cause}", since.as_secs()),
                None if self.flags.contains(HealthFlag::DegradedOutlierDetection) => {
                    "no, but its answers say that it is degraded".to_owned()
                }
                None if report.ejections > 0 => format!("no, but {} times before", report.ejections),
                None => "no".to_owned(),
            },
        }
    }
}

/// `2026-11-30T01:30:00.123Z`
struct Moment(SystemTime);

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let date = Date::new(self.0.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default());
        for (field, after) in [('Y', '-'), ('m', '-'), ('d', 'T'), ('H', ':'), ('M', ':'), ('S', '.'), ('e', 'Z')] {
            date.field(field, f)?;
            f.write_char(after)?;
        }
        Ok(())
    }
}

// === text ===

fn write_text(picture: &Picture, out: &mut Chunks) -> fmt::Result {
    for cluster in &picture.clusters {
        write!(out, "{}", cluster.name)?;
        write!(out, ": {} hosts", cluster.hosts.len())?;
        out.write_str(if cluster.checked { ", checked" } else { ", not checked" })?;
        out.write_str(if cluster.warming { ", warming\n" } else { "\n" })?;
        for priority in &cluster.panic {
            let whom = if cluster.fail_on_panic { "none of its hosts gets" } else { "all its hosts get" };
            writeln!(out, "  priority {priority} is in panic, since too few are well: {whom} traffic")?;
        }
        cluster.hosts.iter().try_for_each(|row| write_row(row, out))?;
    }
    if picture.unknown {
        out.write_str("there is no cluster of that name now\n")?;
    }
    writeln!(out, "\nlast {} transitions, the latest first:", picture.transitions.len())?;
    for Transition { at, cluster, host, before, after, decision, reason } in &picture.transitions {
        writeln!(out, "  {} {cluster} {host} {before} -> {after}, {decision}: {reason}", Moment(*at))?;
    }
    Ok(())
}

fn write_row(row: &Row, out: &mut Chunks) -> fmt::Result {
    write!(out, "  {}", row.host.address_text())?;
    if !row.host.hostname().is_empty() {
        write!(out, " ({})", row.host.hostname())?;
    }
    writeln!(out, ": {} since {}; flags {}", Decision::of(row.flags), Moment(row.since), row.flags)?;
    write!(out, "    discovery: {}; check: {}; ejected: {}", row.discovery(), row.check(), row.outlier())?;
    match row.next {
        Some(next) => writeln!(out, "; next check in {:.1}s", next.as_secs_f64())?,
        None => writeln!(out)?,
    }
    for result in &row.report.results {
        let verdict = if result.passed { "passed" } else { "failed" };
        writeln!(out, "    {} {verdict}: {}", Moment(result.at), result.note)?;
    }
    Ok(())
}

// === JSON ===

fn write_json(picture: &Picture, out: &mut Chunks) -> fmt::Result {
    write!(out, "{{\"time\":{},\"clusters\":[", time(picture.now))?;
    for (at, cluster) in picture.clusters.iter().enumerate() {
        let comma = if at > 0 { "," } else { "" };
        let (name, checked, warming) = (json!(&*cluster.name), cluster.checked, cluster.warming);
        let (panic, fails) = (json!(cluster.panic), cluster.fail_on_panic);
        write!(out, "{comma}{{\"name\":{name},\"checked\":{checked},\"warming\":{warming}")?;
        write!(out, ",\"panic\":{panic},\"fail_traffic_on_panic\":{fails},\"hosts\":[")?;
        for (at, row) in cluster.hosts.iter().enumerate() {
            write!(out, "{}{}", if at > 0 { "," } else { "" }, row_json(row))?;
        }
        out.write_str("]}")?;
    }
    out.write_str("],\"transitions\":[")?;
    for (at, transition) in picture.transitions.iter().enumerate() {
        write!(out, "{}{}", if at > 0 { "," } else { "" }, transition_json(transition))?;
    }
    out.write_str("]}\n")
}

fn row_json(row: &Row) -> Value {
    let mut json = json!({
        "address": row.host.address_text().to_string(),
        "decision": Decision::of(row.flags).as_str(),
        "since": time(row.since),
        "health_flags": row.flags.to_string(),
        "discovery": row.discovery(),
        "check": row.check(),
        "results": row.report.results.iter().map(|result| json!({
            "time": time(result.at),
            "passed": result.passed,
            "status": result.status,
            "result": result.note,
        })).collect::<Vec<_>>(),
    });
    if !row.host.hostname().is_empty() {
        json["hostname"] = row.host.hostname().into();
    }
    if let Some(next) = row.next {
        json["next_check_ms"] = u64::try_from(next.as_millis()).unwrap_or(u64::MAX).into();
    }
    if let Some(outlier) = &row.report.outlier {
        json["outlier"] = json!({
            "ejections": outlier.ejections,
            "ejected_by": outlier.ejected.map(|(_, cause)| cause),
            "ejected_ms": outlier.ejected.map(|(since, _)| u64::try_from(since.as_millis()).unwrap_or(u64::MAX)),
            "success_rate": outlier.success_rate,
            "local_origin_success_rate": outlier.local_origin_success_rate,
        });
    }
    json
}

fn transition_json(transition: &Transition) -> Value {
    json!({
        "time": time(transition.at),
        "cluster": &*transition.cluster,
        "host": &*transition.host,
        "from": transition.before.to_string(),
        "to": transition.after.to_string(),
        "decision": transition.decision.as_str(),
        "reason": &*transition.reason,
    })
}

fn time(at: SystemTime) -> Value {
    Moment(at).to_string().into()
}

#[cfg(test)]
mod tests {
    use super::super::clusters::tests::cluster_with_hosts;
    use super::*;
    use nuncio_healthcheck::checker::CheckResult;

    struct Fixed;

    const AT: Duration = Duration::from_millis(1_234_567_890_123);

    impl HealthSource for Fixed {
        fn health(&self) -> Vec<HealthView> {
            let snapshot = cluster_with_hosts();
            let hosts: Vec<Arc<Host>> = snapshot.hosts.hosts().cloned().collect();
            hosts[1].set_flags(HealthFlags::default().with(HealthFlag::PendingDynamicRemoval));
            let result = |passed, status, note: &str| {
                let at = SystemTime::UNIX_EPOCH + AT;
                CheckResult { at, passed, status, note: note.into() }
            };
            let results = vec![result(true, Some(200), "HTTP 200"), result(false, None, "timeout")];
            let next_check = Some(Instant::now() + Duration::from_millis(1500));
            let checked = HostReport { results, next_check, checked: true, outlier: None };
            let mut reports = [HostReport::default(), checked].into_iter();
            let hosts = hosts.into_iter().map(|host| (host, reports.next().unwrap_or_default())).collect();
            vec![HealthView { snapshot, warming: false, checked: true, panic: vec![0], hosts }]
        }

        fn transitions(&self) -> Vec<Transition> {
            let failed = HealthFlags::default().with(HealthFlag::FailedActiveHc);
            vec![Transition {
                at: SystemTime::UNIX_EPOCH + AT,
                cluster: "a".into(),
                host: "127.0.0.1:1".into(),
                before: HealthFlags::default(),
                after: failed,
                decision: Decision::DoNotRoute,
                reason: "GET http://127.0.0.1:1/hc (Host: a): HTTP 503".into(),
            }]
        }
    }

    fn page(query: &str) -> String {
        answer(&Fixed, SystemTime::UNIX_EPOCH + AT, &Query::parse(query)).into_text()
    }

    #[tokio::test(start_paused = true)]
    async fn each_host_says_why_it_is_routed_to_or_not() {
        let at = "2009-02-13T23:31:30.123Z";
        let expected = format!(
            "a: 2 hosts, checked
  priority 0 is in panic, since too few are well: all its hosts get traffic
  127.0.0.1:19902: do not route since {at}; flags /eds_status_draining
    discovery: discovered, draining; check: not checked; ejected: not watched
  /x: keep since {at}; flags /pending_dynamic_removal
    discovery: absent; check: passed; ejected: not watched; next check in 1.5s
    {at} passed: HTTP 200
    {at} failed: timeout

last 1 transitions, the latest first:
  {at} a 127.0.0.1:1 healthy -> /failed_active_hc, do not route: GET http://127.0.0.1:1/hc (Host: a): HTTP 503
"
        );
        assert_eq!(page(""), expected);
        assert!(!page("unhealthy").contains("/x: keep"));
        let other = page("cluster=b");
        assert!(!other.contains("127.0.0.1") && other.starts_with("there is no cluster of that name now\n"));
    }

    #[tokio::test(start_paused = true)]
    async fn the_same_is_there_as_json() {
        let json: Value = serde_json::from_str(&page("format=json")).unwrap();
        let cluster = &json["clusters"][0];
        assert_eq!((&cluster["panic"], &cluster["fail_traffic_on_panic"]), (&json!([0]), &json!(false)));
        let host = &cluster["hosts"][1];
        assert_eq!((&host["decision"], &host["next_check_ms"]), (&json!("keep"), &json!(1500)));
        assert_eq!((&host["results"][0]["status"], &host["results"][1]["status"]), (&json!(200), &Value::Null));
        assert_eq!(host["results"][1]["result"], "timeout");
        assert_eq!(json["transitions"][0]["to"], "/failed_active_hc");
    }
}
