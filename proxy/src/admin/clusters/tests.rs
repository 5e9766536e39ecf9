//! `/clusters` of two small clusters, against what Envoy 1.40 printed for the same.

use super::*;
use nuncio_api::pb::envoy::config::cluster::v3 as pb;
use nuncio_core::net::Address;
use nuncio_core::stats::Store;
use nuncio_core::stats::lists::cluster;
use nuncio_core::upstream::{HostSet, HostSpec, Locality, PrioritySet};

use crate::upstream::{ClusterConfig, ClusterDefaults};

fn snapshot(message: &pb::Cluster, specs: Vec<HostSpec>) -> Arc<ClusterSnapshot> {
    let config = ClusterConfig::from_proto(message, false, &ClusterDefaults::default()).unwrap();
    let hosts = specs.into_iter().map(|spec| Arc::new(Host::new(spec))).collect();
    let set = HostSet::new(hosts, |_| 0, HostSet::DEFAULT_OVERPROVISIONING);
    let mut store = Store::new();
    let scope = store.scope(&cluster::SCOPE, config.name());
    let hosts = Arc::new(PrioritySet { priorities: vec![Arc::new(set)], ..PrioritySet::default() });
    Arc::new(ClusterSnapshot { config: Arc::new(config), breakers: Arc::default(), shared: None, hosts, scope })
}

/// Named `a`: a draining host and one on a unix socket.
pub(in super::super) fn cluster_with_hosts() -> Arc<ClusterSnapshot> {
    let mut draining = HostSpec::new(Address::Ip(([127, 0, 0, 1], 19902).into()));
    draining.eds_health = HealthFlags::default().with(HealthFlag::EdsStatusDraining);
    let pipe = HostSpec::new(Address::Pipe("/x".into()));
    snapshot(&pb::Cluster { name: "a".into(), ..Default::default() }, vec![draining, pipe])
}

fn eds_cluster() -> Arc<ClusterSnapshot> {
    let mut spec = HostSpec::new(Address::Ip(([127, 0, 0, 1], 19902).into()));
    spec.locality = Arc::new(Locality { region: "r".into(), ..Locality::default() });
    let eds = pb::cluster::EdsClusterConfig { service_name: "e".into(), ..Default::default() };
    let message = pb::Cluster {
        name: "e".into(),
        alt_stat_name: "alt".into(),
        eds_cluster_config: Some(eds),
        ..Default::default()
    };
    snapshot(&message, vec![spec])
}

fn views(clusters: &[Arc<ClusterSnapshot>]) -> Vec<ClusterView> {
    clusters.iter().map(|snapshot| ClusterView { snapshot: snapshot.clone(), outliers: None }).collect()
}

const TEXT: &str = "e::observability_name::alt
e::default_priority::max_connections::1024
e::default_priority::max_pending_requests::1024
e::default_priority::max_requests::1024
e::default_priority::max_retries::3
e::high_priority::max_connections::1024
e::high_priority::max_pending_requests::1024
e::high_priority::max_requests::1024
e::high_priority::max_retries::3
e::added_via_api::false
e::eds_service_name::e
e::127.0.0.1:19902::cx_active::0
e::127.0.0.1:19902::cx_connect_fail::0
e::127.0.0.1:19902::cx_total::1
e::127.0.0.1:19902::rq_active::0
e::127.0.0.1:19902::rq_error::0
e::127.0.0.1:19902::rq_pending_active::0
e::127.0.0.1:19902::rq_success::0
e::127.0.0.1:19902::rq_timeout::0
e::127.0.0.1:19902::rq_total::0
e::127.0.0.1:19902::hostname::
e::127.0.0.1:19902::health_flags::healthy
e::127.0.0.1:19902::weight::1
e::127.0.0.1:19902::region::r
e::127.0.0.1:19902::zone::
e::127.0.0.1:19902::sub_zone::
e::127.0.0.1:19902::canary::false
e::127.0.0.1:19902::priority::0
e::127.0.0.1:19902::success_rate::-1
e::127.0.0.1:19902::local_origin_success_rate::-1
";

#[test]
fn the_text_is_envoys_line_by_line() {
    let cluster = eds_cluster();
    cluster.hosts.hosts().for_each(|host| host.load.connection_begun());
    let clusters = vec![cluster, cluster_with_hosts()];
    let text = answer(views(&clusters), &Query::default()).into_text();
    assert!(text.starts_with(TEXT), "{text}");
    assert!(text.contains("a::127.0.0.1:19902::health_flags::/eds_status_draining\n"));
    assert!(text.contains("a::/x::health_flags::healthy\n"));
    assert_eq!(answer(views(&clusters), &Query::parse("filter=^e$")).into_text(), TEXT);
    let refused = answer(views(&clusters), &Query::parse("filter=("));
    assert_eq!((refused.status.as_u16(), refused.into_text().as_str()), (400, "Invalid re2 regex"));
}

#[test]
fn the_json_is_envoys() {
    let cluster = eds_cluster();
    cluster.hosts.hosts().for_each(|host| host.load.connection_begun());
    let clusters = vec![cluster, cluster_with_hosts()];
    let text = answer(views(&clusters), &Query::parse("format=json")).into_text();
    let json: Value = serde_json::from_str(&text).unwrap();
    let limits = |mut json: Value| {
        for name in ["max_connections", "max_pending_requests", "max_requests"] {
            json[name] = 1024.into();
        }
        json["max_retries"] = 3.into();
        json
    };
    let thresholds = json!([limits(json!({})), limits(json!({"priority": "HIGH"}))]);
    let expected = json!({
        "name": "e",
        "host_statuses": [{
            "address": {"socket_address": {"address": "127.0.0.1", "port_value": 19902}},
            "stats": [
                {"name": "cx_connect_fail"},
                {"value": "1", "name": "cx_total"},
                {"name": "rq_error"},
                {"name": "rq_success"},
                {"name": "rq_timeout"},
                {"name": "rq_total"},
                {"type": "GAUGE", "name": "cx_active"},
                {"type": "GAUGE", "name": "rq_active"},
                {"type": "GAUGE", "name": "rq_pending_active"},
            ],
            "health_status": {"eds_health_status": "HEALTHY"},
            "weight": 1,
            "locality": {"region": "r"},
        }],
        "circuit_breakers": {"thresholds": thresholds},
        "observability_name": "alt",
        "eds_service_name": "e",
    });
    assert_eq!(json["cluster_statuses"][0], expected);
    // Order and indentation too.
    let first = text.split("\n  {\n   \"name\": \"a\"").next().unwrap();
    let printed = super::super::answer::json_text(&json!({"cluster_statuses": [expected]}));
    assert_eq!(first.trim_end_matches(','), printed.trim_end_matches("\n ]\n}\n"));
    let draining = &json["cluster_statuses"][1]["host_statuses"][0];
    assert_eq!(draining["health_status"], json!({"eds_health_status": "DRAINING"}));
    assert_eq!(draining["locality"], json!({}));
    assert_eq!(answer(Vec::new(), &Query::parse("format=json")).into_text(), "{}\n");
}

#[test]
fn rates_print_as_cpp_streams_do() {
    let of = |rate| Rate(rate).to_string();
    assert_eq!([-1.0, 100.0, 0.0, 66.666_666_6, 99.999_999].map(of), ["-1", "100", "0", "66.6667", "100"]);
}
