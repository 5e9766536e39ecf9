//! Dumps of a small bootstrap, against what Envoy 1.40 said to the same questions.

use super::super::clusters::tests::cluster_with_hosts;
use super::*;
use nuncio_api::{LoadOptions, Source};
use serde_json::json;

const YAML: &str = r#"
node: {id: n1, cluster: c1}
admin: {address: {socket_address: {address: 127.0.0.1, port_value: 9901}}}
static_resources:
  secrets:
  - {name: sec, tls_certificate: {certificate_chain: {filename: c.pem}, private_key: {inline_string: hush}}}
  - {name: gs, generic_secret: {secret: {inline_string: hush}}}
  listeners:
  - name: in
    address: {socket_address: {address: 127.0.0.1, port_value: 9900}}
    filter_chains:
    - filters:
      - name: hcm
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: in
          route_config: {name: rc, virtual_hosts: [{name: all, domains: ["*"], routes: [{match: {prefix: /}, route: {cluster: a}}]}]}
    default_filter_chain:
      filters:
      - name: hcm
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: in
          route_config: {name: other}
  clusters:
  - {name: a, connect_timeout: 1s}
  - {name: dead, connect_timeout: 1s}
"#;

fn configs() -> Arc<Configs> {
    let source = Source::text("x.yaml", nuncio_api::Format::Yaml, YAML);
    let loaded = nuncio_api::load_bootstrap(vec![source], &LoadOptions::default()).unwrap();
    fn all<T>(elements: &[nuncio_api::Element<T>]) -> Vec<Bytes> {
        elements.iter().map(|e| e.bytes.clone()).collect()
    }
    Arc::new(Configs {
        bootstrap: loaded.bytes.into(),
        clusters: all(&loaded.clusters),
        listeners: all(&loaded.listeners),
        secrets: all(&loaded.secrets),
        loaded: Duration::from_millis(1_795_991_970_028),
    })
}

fn ask(query: &str) -> (u16, String) {
    let dump = Dump { configs: configs(), dynamic: Dynamic::default(), clusters: vec![cluster_with_hosts()] };
    let answer = answer(dump, &Query::parse(query));
    (answer.status.as_u16(), answer.into_text())
}

fn dump(query: &str) -> Value {
    let (status, text) = ask(query);
    assert_eq!(status, 200, "{text}");
    serde_json::from_str(&text).unwrap()
}

fn types(dump: &Value) -> Vec<&str> {
    let configs = dump["configs"].as_array().unwrap();
    configs.iter().map(|c| c["@type"].as_str().unwrap().rsplit('.').next().unwrap()).collect()
}

#[test]
fn all_sections_come_in_order_with_their_resources() {
    let dump = dump("");
    let expected = [
        "BootstrapConfigDump",
        "ClustersConfigDump",
        "ListenersConfigDump",
        "ScopedRoutesConfigDump",
        "RoutesConfigDump",
        "SecretsConfigDump",
    ];
    assert_eq!(types(&dump), expected);
    let bootstrap = &dump["configs"][0]["bootstrap"];
    let keys: Vec<_> = bootstrap.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(keys, ["node", "static_resources", "admin"]);
    let names = |list: &Value| -> Vec<String> {
        list.as_array().unwrap().iter().map(|e| e["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&bootstrap["static_resources"]["clusters"]), ["a", "dead"]);
    assert_eq!(names(&bootstrap["static_resources"]["secrets"]), ["sec", "gs"]);
    let cluster = &dump["configs"][1]["static_clusters"][0];
    let url = "type.googleapis.com/envoy.config.cluster.v3.Cluster";
    let expected = json!({
        "cluster": {"@type": url, "name": "a", "connect_timeout": "1s"},
        "last_updated": "2026-11-29T22:39:30.028Z",
    });
    assert_eq!(cluster, &expected);
    assert_eq!(dump["configs"][3], json!({"@type": "type.googleapis.com/envoy.admin.v3.ScopedRoutesConfigDump"}));
    let routes = dump["configs"][4]["static_route_configs"].as_array().unwrap();
    let names: Vec<_> = routes.iter().map(|r| r["route_config"]["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["rc", "other"]);
}

#[test]
fn no_secret_is_shown() {
    let (_, text) = ask("");
    assert!(!text.contains("hush"));
    let secrets = dump("resource=static_secrets");
    assert_eq!(
        secrets["configs"][0]["secret"]["tls_certificate"]["private_key"],
        json!({"inline_string": "[redacted]"})
    );
    assert_eq!(secrets["configs"][1]["secret"]["generic_secret"]["secret"], json!({"inline_string": "[redacted]"}));
}

#[test]
fn resources_masks_and_names_select() {
    let cluster = |name: &str| {
        json!({
            "@type": "type.googleapis.com/envoy.admin.v3.ClustersConfigDump.StaticCluster",
            "cluster": {"@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster", "name": name},
        })
    };
    let masked = dump("resource=static_clusters&mask=cluster.name");
    assert_eq!(masked, json!({"configs": [cluster("a"), cluster("dead")]}));
    let named = dump("resource=static_clusters&mask=cluster.name&name_regex=de.*");
    assert_eq!(named, json!({"configs": [cluster("dead")]}));
    // The whole name must match.
    assert_eq!(ask("resource=static_clusters&name_regex=de"), (200, "{}\n".to_owned()));
    assert_eq!(ask("resource=dynamic_listeners"), (200, "{}\n".to_owned()));
    let all = dump("name_regex=rc|sec");
    assert!(all["configs"][1].get("static_clusters").is_none());
    assert_eq!(all["configs"][4]["static_route_configs"].as_array().unwrap().len(), 1);
    assert_eq!(all["configs"][5]["static_secrets"].as_array().unwrap().len(), 1);
    let node = dump("mask=bootstrap.node.id");
    assert_eq!(node["configs"][0]["bootstrap"], json!({"node": {"id": "n1"}}));
    assert_eq!(node["configs"].as_array().unwrap().len(), 1);
    assert_eq!(types(&dump("mask=version_info")), ["ClustersConfigDump", "ListenersConfigDump"]);
    assert_eq!(types(&dump("resource=&mask=")).len(), 6);
}

#[test]
fn endpoints_come_when_they_are_asked_for() {
    // From Envoy 1.40, on the same hosts.
    let lb = |address: Value, status: &str| {
        json!({
            "endpoint": {"address": address, "health_check_config": {}},
            "health_status": status,
            "load_balancing_weight": 1,
        })
    };
    let expected = json!({
        "@type": "type.googleapis.com/envoy.admin.v3.EndpointsConfigDump.StaticEndpointConfig",
        "endpoint_config": {
            "@type": "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
            "cluster_name": "a",
            "endpoints": [{
                "locality": {},
                "lb_endpoints": [
                    lb(json!({"socket_address": {"address": "127.0.0.1", "port_value": 19902}}), "UNHEALTHY"),
                    lb(json!({"pipe": {"path": "/x"}}), "HEALTHY"),
                ],
                "load_balancing_weight": 0,
            }],
            "policy": {"overprovisioning_factor": 140},
        },
    });
    assert_eq!(dump("resource=static_endpoint_configs&include_eds"), json!({"configs": [expected]}));
    assert_eq!(types(&dump("include_eds"))[1..4], ["ClustersConfigDump", "EndpointsConfigDump", "ListenersConfigDump"]);
    assert_eq!(ask("resource=dynamic_endpoint_configs&include_eds"), (200, "{}\n".to_owned()));
    assert_eq!(ask("resource=static_endpoint_configs").0, 404);
}

#[test]
fn what_does_not_exist_is_refused() {
    for (query, status, text) in [
        ("resource=nope", 404, "nope not found in config dump"),
        ("resource=configs", 404, "configs not found in config dump"),
        (
            "resource=version_info",
            400,
            "version_info is not a repeated field. Use ?mask=version_info to get only this field",
        ),
        ("resource=bootstrap", 400, "bootstrap is not a repeated field. Use ?mask=bootstrap to get only this field"),
        ("mask=bad.mask", 400, "FieldMask bad.mask could not be successfully applied to any configs."),
        (
            "mask=static_clusters.cluster.name",
            400,
            "FieldMask static_clusters.cluster.name could not be successfully applied to any configs.",
        ),
        // Envoy prints this mask as a message here.
        ("resource=static_clusters&mask=bad", 400, "FieldMask bad could not be successfully used."),
    ] {
        assert_eq!(ask(query), (status, text.to_owned()), "{query}");
    }
    let (status, text) = ask("name_regex=(");
    assert!(status == 400 && text.starts_with("INVALID_ARGUMENT: Error while parsing name_regex from (: "), "{text}");
    assert_eq!(ask("name_regex=a)|(b").0, 400);
}
