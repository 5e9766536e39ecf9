use serde_json::{Value, json};

use crate::dump::json_value;
use crate::load::{LoadOptions, Source, load_bootstrap};
use crate::read::Format;

const BOOTSTRAP: &str = "envoy.config.bootstrap.v3.Bootstrap";

/// What a text says, as JSON.
fn says(format: Format, text: &str) -> Value {
    let loaded = load_bootstrap(vec![Source::text("a", format, text)], &LoadOptions::default());
    json_value(BOOTSTRAP, &loaded.unwrap_or_else(|e| panic!("{text}: {e:?}")).whole())
}

fn node(format: Format, text: &str) -> Value {
    says(format, text)["node"].clone()
}

#[test]
fn of_equal_keys_the_last_counts_in_yaml_and_json_joins_them() {
    assert_eq!(node(Format::Yaml, "node: {id: a, id: b}"), json!({"id": "b"}));
    assert_eq!(
        node(Format::Yaml, "node: {locality: {zone: zz}, locality: {region: r}}"),
        json!({"locality": {"region": "r"}})
    );
    let twice = r#"{"node": {"locality": {"zone": "zz"}, "locality": {"region": "r"}, "id": "a", "id": ""}}"#;
    assert_eq!(node(Format::Json, twice), json!({"locality": {"region": "r", "zone": "zz"}}));
}

#[test]
fn lists_take_a_single_value_nulls_and_lists_within() {
    let features =
        |text: &str| node(Format::Yaml, &format!("node: {{client_features: {text}}}"))["client_features"].clone();
    assert_eq!(features("abc"), json!(["abc"]));
    assert_eq!(features("[a, null, [b, [c]]]"), json!(["a", "", "b", "c"]));
    assert_eq!(features("[]"), Value::Null);
}

#[test]
fn a_generic_object_keeps_what_yaml_made_of_its_scalars() {
    let text = "node: {metadata: {a: 12, b: 1.5, c: yes, d: ~, e: 3000000000, f: \"7\", g: [0x10, x], h: {}}}";
    let expected =
        json!({"a": 12, "b": "1.5", "c": true, "d": null, "e": "3000000000", "f": "7", "g": [16, "x"], "h": {}});
    assert_eq!(node(Format::Yaml, text)["metadata"], expected);
    let text = r#"{"node": {"metadata": {"a": 1.5, "b": 3000000000}}}"#;
    assert_eq!(node(Format::Json, text)["metadata"].to_string(), r#"{"a":1.5,"b":3000000000}"#);
}

#[test]
fn a_default_is_written_only_where_it_can_be_told_from_unset() {
    let cluster = |text: &str| {
        let text = format!("static_resources: {{clusters: [{{name: c, {text}}}]}}");
        says(Format::Yaml, &text)["static_resources"]["clusters"][0].clone()
    };
    assert_eq!(cluster("lb_policy: ROUND_ROBIN, respect_dns_ttl: false"), json!({"name": "c"}));
    assert_eq!(cluster("type: STATIC"), json!({"name": "c", "type": "STATIC"}), "a member of a oneof");
    assert_eq!(cluster("per_connection_buffer_limit_bytes: 0")["per_connection_buffer_limit_bytes"], json!(0));
    assert_eq!(cluster("upstream_connection_options: {}")["upstream_connection_options"], json!({}));
    assert_eq!(cluster("health_checks: null"), json!({"name": "c"}));
}

#[test]
fn the_type_need_not_come_first_and_a_typed_struct_becomes_what_it_names() {
    let sink = |text: &str| {
        says(Format::Yaml, &format!("stats_sinks: [{{name: s, typed_config: {{{text}}}}}]"))["stats_sinks"][0]["typed_config"].clone()
    };
    let expected = json!({"@type": "t/envoy.config.metrics.v3.StatsdSink", "tcp_cluster_name": "c", "prefix": "p"});
    assert_eq!(sink("prefix: p, tcpClusterName: c, \"@type\": t/envoy.config.metrics.v3.StatsdSink"), expected);
    let typed = "\"@type\": x/xds.type.v3.TypedStruct, type_url: t/envoy.config.metrics.v3.StatsdSink, \
                 value: {tcp_cluster_name: c, prefix: p}";
    assert_eq!(sink(typed), expected);
    assert_eq!(sink(&typed.replace("xds.type.v3", "udpa.type.v1")), expected);
    let duration = "\"@type\": t/google.protobuf.Duration, value: 1.5s";
    assert_eq!(sink(duration), json!({"@type": "t/google.protobuf.Duration", "value": "1.500s"}));
}

#[test]
fn aliases_repeat_what_they_name_with_its_places() {
    let text = "static_resources:\n  clusters:\n  - &base\n    name: one\n    lb_policy: RANDOMM\n  - *base\n";
    let found = load_bootstrap(vec![Source::text("a", Format::Yaml, text)], &LoadOptions::default()).unwrap_err();
    let places: Vec<(u32, &str)> = found.iter().map(|d| (d.line, d.path.as_str())).collect();
    assert_eq!(places, [(5, "static_resources.clusters[0].lb_policy"), (5, "static_resources.clusters[1].lb_policy")]);
}
