//! `/clusters`: every active cluster, its limits and its hosts.
//!
//! Names, addresses and numbers are those of Envoy; the text is read by scripts. Counters of hosts are read while they
//! are printed.

use std::fmt;
use std::fmt::Write;
use std::rc::Rc;
use std::sync::Arc;

use http::StatusCode;
use nuncio_api::dump::JsonWriter;
use nuncio_core::upstream::host::HostCounts;
use nuncio_core::upstream::{HealthFlag, HealthFlags, Host};
use regex::Regex;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::discovery::{kept, origin_json};
use super::listeners::address_json;
use super::{Answer, Chunks, ContentType, Page, Param, ParamKind, Query};
use crate::upstream::{ClusterSnapshot, ClusterView, Priority};

/// The clusters that are active now.
pub type ClusterSource = Rc<dyn Fn() -> Vec<Arc<ClusterSnapshot>>>;

/// The same, with what outlier detection knows.
pub type ClusterViews = Rc<dyn Fn() -> Vec<ClusterView>>;

const PARAMS: &[Param] = &[Param { name: "filter", help: "regular expression for names", kind: ParamKind::Text }];

pub fn pages(clusters: &ClusterViews) -> Vec<Page> {
    let clusters = clusters.clone();
    vec![Page::new("/clusters", "upstream cluster status", move |query| answer(clusters(), query)).with_params(PARAMS)]
}

fn answer(mut clusters: Vec<ClusterView>, query: &Query) -> Answer {
    if let Some(pattern) = query.text("filter") {
        let Ok(filter) = Regex::new(pattern) else {
            return Answer::error(StatusCode::BAD_REQUEST, "Invalid re2 regex");
        };
        clusters.retain(|cluster| filter.is_match(cluster.snapshot.config.name()));
    }
    match query.get("format") {
        Some("json") => Answer::rendered(ContentType::Json, move |out| write_json(&clusters, out)),
        _ => Answer::rendered(ContentType::Text, move |out| clusters.iter().try_for_each(|c| write_text(c, out))),
    }
}

// === Text ===

fn write_text(view: &ClusterView, out: &mut Chunks) -> fmt::Result {
    let cluster = &view.snapshot;
    let info = &cluster.config.info;
    let name = &info.name;
    writeln!(out, "{name}::observability_name::{}", info.observability_name)?;
    if let Some(outliers) = &view.outliers {
        for (origin, rates) in [("", outliers.cluster.external), ("local_origin_", outliers.cluster.local)] {
            writeln!(out, "{name}::outlier::{origin}success_rate_average::{}", Rate(rates.average))?;
            writeln!(out, "{name}::outlier::{origin}success_rate_ejection_threshold::{}", Rate(rates.threshold))?;
        }
    }
    for (text, priority) in [("default", Priority::Default), ("high", Priority::High)] {
        let limits = cluster.config.thresholds(priority);
        writeln!(out, "{name}::{text}_priority::max_connections::{}", limits.max_connections)?;
        writeln!(out, "{name}::{text}_priority::max_pending_requests::{}", limits.max_pending_requests)?;
        writeln!(out, "{name}::{text}_priority::max_requests::{}", limits.max_requests)?;
        writeln!(out, "{name}::{text}_priority::max_retries::{}", limits.max_retries)?;
    }
    writeln!(out, "{name}::added_via_api::{}", info.added_via_api)?;
    if let Some(service) = &info.eds_service_name {
        writeln!(out, "{name}::eds_service_name::{service}")?;
    }
    cluster.hosts.hosts().try_for_each(|host| write_host(name, host, rates_of(view, host), out))
}

/// -1 where nothing is known.
fn rates_of(view: &ClusterView, host: &Arc<Host>) -> [f64; 2] {
    view.outliers.as_ref().map_or([-1.0; 2], |outliers| outliers.of(host))
}

/// As C++ streams print it: at most six digits.
struct Rate(f64);

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = match self.0.abs() {
            n if n >= 100.0 => 3,
            n if n >= 10.0 => 4,
            _ => 5,
        };
        let scale = 10_f64.powi(digits);
        write!(f, "{}", (self.0 * scale).round() / scale)
    }
}

fn write_host(cluster: &str, host: &Host, [rate, local_rate]: [f64; 2], out: &mut Chunks) -> fmt::Result {
    let address = host.address_text();
    let HostCounts {
        cx_active,
        cx_connect_fail,
        cx_total,
        rq_active,
        rq_pending_active,
        rq_error,
        rq_success,
        rq_timeout,
        rq_total,
    } = host.load.counts();
    let locality = &host.spec().locality;
    let mut line = |key: &str, value: &dyn fmt::Display| writeln!(out, "{cluster}::{address}::{key}::{value}");
    line("cx_active", &cx_active)?;
    line("cx_connect_fail", &cx_connect_fail)?;
    line("cx_total", &cx_total)?;
    line("rq_active", &rq_active)?;
    line("rq_error", &rq_error)?;
    line("rq_pending_active", &rq_pending_active)?;
    line("rq_success", &rq_success)?;
    line("rq_timeout", &rq_timeout)?;
    line("rq_total", &rq_total)?;
    line("hostname", &host.hostname())?;
    line("health_flags", &host.flags())?;
    line("weight", &host.weight())?;
    line("region", &locality.region)?;
    line("zone", &locality.zone)?;
    line("sub_zone", &locality.sub_zone)?;
    line("canary", &host.is_canary())?;
    line("priority", &host.priority())?;
    line("success_rate", &Rate(rate))?;
    line("local_origin_success_rate", &Rate(local_rate))
}

// === JSON ===

/// `envoy.admin.v3.Clusters`; what is zero is left out.
fn write_json(clusters: &[ClusterView], out: &mut Chunks) -> fmt::Result {
    if clusters.is_empty() {
        return out.write_str("{}\n");
    }
    let mut json = JsonWriter::default();
    json.begin_object();
    json.key("cluster_statuses");
    json.begin_list();
    for cluster in clusters {
        write_status(cluster, &mut json, out)?;
    }
    json.end_list();
    json.end_object();
    writeln!(out, "{}", json.take())
}

fn write_status(view: &ClusterView, json: &mut JsonWriter, out: &mut Chunks) -> fmt::Result {
    let cluster = &view.snapshot;
    let info = &cluster.config.info;
    json.begin_object();
    json.key("name");
    json.string(&info.name);
    if info.added_via_api {
        json.key("added_via_api");
        json.bool(true);
    }
    if let Some(outliers) = &view.outliers {
        for (name, rates) in [
            ("success_rate_ejection_threshold", outliers.cluster.external),
            ("local_origin_success_rate_ejection_threshold", outliers.cluster.local),
        ] {
            if rates.threshold >= 0.0 {
                json.key(name);
                json.value(&json!({"value": rates.threshold}));
            }
        }
    }
    if cluster.hosts.host_count() > 0 {
        json.key("host_statuses");
        json.begin_list();
        for host in cluster.hosts.hosts() {
            json.value(&host_status(host, rates_of(view, host)));
            out.write_str(&json.take())?;
        }
        json.end_list();
    }
    json.key("circuit_breakers");
    json.value(&json!({"thresholds": [thresholds(cluster, Priority::Default), thresholds(cluster, Priority::High)]}));
    json.key("observability_name");
    json.string(&info.observability_name);
    if let Some(service) = &info.eds_service_name {
        json.key("eds_service_name");
        json.string(service);
    }
    json.end_object();
    out.write_str(&json.take())
}

fn thresholds(cluster: &ClusterSnapshot, priority: Priority) -> Value {
    let limits = cluster.config.thresholds(priority);
    let mut json = Map::new();
    if priority == Priority::High {
        json.insert("priority".into(), "HIGH".into());
    }
    json.insert("max_connections".into(), limits.max_connections.into());
    json.insert("max_pending_requests".into(), limits.max_pending_requests.into());
    json.insert("max_requests".into(), limits.max_requests.into());
    json.insert("max_retries".into(), limits.max_retries.into());
    json.into()
}

fn host_status(host: &Host, [rate, local_rate]: [f64; 2]) -> Value {
    let counts = host.load.counts();
    let counter = |name: &str, value: u64| metric(None, name, value);
    let gauge = |name: &str, value: u32| metric(Some("GAUGE"), name, value.into());
    let mut json = json!({
        "address": address_json(&host.current_address()),
        "stats": [
            counter("cx_connect_fail", counts.cx_connect_fail),
            counter("cx_total", counts.cx_total),
            counter("rq_error", counts.rq_error),
            counter("rq_success", counts.rq_success),
            counter("rq_timeout", counts.rq_timeout),
            counter("rq_total", counts.rq_total),
            gauge("cx_active", counts.cx_active),
            gauge("rq_active", counts.rq_active),
            gauge("rq_pending_active", counts.rq_pending_active),
        ],
        "health_status": health_status(host.flags()),
        "weight": host.weight(),
    });
    if !host.hostname().is_empty() {
        json["hostname"] = host.hostname().into();
    }
    if host.priority() > 0 {
        json["priority"] = host.priority().into();
    }
    json["locality"] = locality_json(host);
    for (name, rate) in [("success_rate", rate), ("local_origin_success_rate", local_rate)] {
        if rate >= 0.0 {
            json[name] = json!({"value": rate});
        }
    }
    if let Some(origin) = host.origin() {
        // Not Envoy's, and only where somebody was asked.
        let mut said = origin_json(origin);
        if let Some(kept) = kept(host, Instant::now()) {
            said.insert("kept".into(), kept.into());
        }
        json["nuncio"] = said.into();
    }
    json
}

fn metric(kind: Option<&str>, name: &str, value: u64) -> Value {
    let mut json = Map::new();
    if let Some(kind) = kind {
        json.insert("type".into(), kind.into());
    }
    // 64 bits are a string in protobuf's JSON.
    if value > 0 {
        json.insert("value".into(), value.to_string().into());
    }
    json.insert("name".into(), name.into());
    json.into()
}

/// `envoy.admin.v3.HostHealthStatus`.
fn health_status(flags: HealthFlags) -> Value {
    let discovered = match () {
        () if flags.contains(HealthFlag::FailedEdsHealth) => "UNHEALTHY",
        () if flags.contains(HealthFlag::EdsStatusDraining) => "DRAINING",
        () if flags.contains(HealthFlag::DegradedEdsHealth) => "DEGRADED",
        () => "HEALTHY",
    };
    let mut json = Map::new();
    let mut set = |flag, name: &str| {
        if flags.contains(flag) {
            json.insert(name.into(), true.into());
        }
    };
    set(HealthFlag::FailedActiveHc, "failed_active_health_check");
    set(HealthFlag::FailedOutlierCheck, "failed_outlier_check");
    set(HealthFlag::DegradedActiveHc, "failed_active_degraded_check");
    set(HealthFlag::PendingDynamicRemoval, "pending_dynamic_removal");
    set(HealthFlag::PendingActiveHc, "pending_active_hc");
    set(HealthFlag::ExcludedViaImmediateHcFail, "excluded_via_immediate_hc_fail");
    set(HealthFlag::ActiveHcTimeout, "active_hc_timeout");
    json.insert("eds_health_status".into(), discovered.into());
    if flags.contains(HealthFlag::DegradedOutlierDetection) {
        json.insert("failed_degraded_outlier_detection".into(), true.into());
    }
    json.into()
}

/// `envoy.config.core.v3.Locality`.
pub(super) fn locality_json(host: &Host) -> Value {
    let locality = &host.spec().locality;
    let parts = [("region", &locality.region), ("zone", &locality.zone), ("sub_zone", &locality.sub_zone)];
    let set = parts.into_iter().filter(|(_, text)| !text.is_empty());
    set.map(|(name, text)| (name.to_owned(), Value::from(&**text))).collect::<Map<_, _>>().into()
}

#[cfg(test)]
pub(super) mod tests;
