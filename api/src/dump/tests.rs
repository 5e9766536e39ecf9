use prost::Message as _;

use super::*;
use crate::load::{LoadOptions, Source, load_bootstrap};
use crate::read::Format;

fn cluster_json(text: &str) -> String {
    let source = Source::text("a.yaml", Format::Yaml, format!("static_resources: {{clusters: [{text}]}}"));
    let loaded = load_bootstrap(vec![source], &LoadOptions::default()).unwrap();
    let mut writer = JsonWriter::default();
    writer.any("type.googleapis.com/envoy.config.cluster.v3.Cluster", &loaded.clusters[0].bytes);
    writer.take()
}

#[test]
fn a_cluster_is_printed_as_envoy_prints_it() {
    // The expected text is from /config_dump of Envoy 1.40 on this cluster.
    let text = r#"{lb_policy: RING_HASH, name: c, connect_timeout: {seconds: 1, nanos: 1000}, outlier_detection: {consecutive_5xx: 0},
        upstream_bind_config: {source_address: {address: 127.0.0.1, port_value: 0}, freebind: false, socket_options: [
        {level: 1, name: 9, int_value: 1, state: STATE_PREBIND}, {level: -1, name: 9, buf_value: YWI=}]},
        ring_hash_lb_config: {minimum_ring_size: 1024, hash_function: 0}, common_lb_config: {healthy_panic_threshold: {value: 0}},
        typed_extension_protocol_options: {envoy.extensions.upstreams.http.v3.HttpProtocolOptions: {
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions,
        explicit_http_config: {http_protocol_options: {}}, upstream_http_protocol_options: {auto_sni: true}}},
        metadata: {filter_metadata: {zeta: {a: 1, f: "é\u2028\u0001<"}}}, track_timeout_budgets: true}"#;
    let expected = r#"{
 "@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster",
 "name": "c",
 "connect_timeout": "1.000001s",
 "lb_policy": "RING_HASH",
 "outlier_detection": {
  "consecutive_5xx": 0
 },
 "upstream_bind_config": {
  "source_address": {
   "address": "127.0.0.1",
   "port_value": 0
  },
  "freebind": false,
  "socket_options": [
   {
    "level": "1",
    "name": "9",
    "int_value": "1"
   },
   {
    "level": "-1",
    "name": "9",
    "buf_value": "YWI="
   }
  ]
 },
 "ring_hash_lb_config": {
  "minimum_ring_size": "1024"
 },
 "metadata": {
  "filter_metadata": {
   "zeta": {
    "a": 1,
    "f": "é\u2028\u0001\u003c"
   }
  }
 },
 "common_lb_config": {
  "healthy_panic_threshold": {}
 },
 "typed_extension_protocol_options": {
  "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
   "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
   "upstream_http_protocol_options": {
    "auto_sni": true
   },
   "explicit_http_config": {
    "http_protocol_options": {}
   }
  }
 },
 "track_timeout_budgets": true
}"#;
    assert_eq!(cluster_json(text), expected);
}

#[test]
fn secrets_are_redacted_wherever_they_stand() {
    let tls = r#"{name: c, connect_timeout: 0.25s, transport_socket: {name: tls, typed_config: {
        "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext, common_tls_context: {
        tls_certificates: [{certificate_chain: {filename: /c.pem}, private_key: {filename: /key.pem}}]}}}}"#;
    let json = cluster_json(tls);
    assert!(json.contains("\"filename\": \"/c.pem\""), "{json}");
    assert!(json.contains("\"filename\": \"[redacted]\"") && !json.contains("/key.pem"), "{json}");
    assert!(json.contains("\"connect_timeout\": \"0.250s\""), "{json}");

    let source = "static_resources: {secrets: [{name: s, generic_secret: {secret: {inline_bytes: YWJj}}}]}";
    let loaded = load_bootstrap(vec![Source::text("a", Format::Yaml, source)], &LoadOptions::default()).unwrap();
    let name = "envoy.extensions.transport_sockets.tls.v3.Secret";
    let secret = json_value(name, &loaded.secrets[0].bytes);
    assert_eq!(secret["generic_secret"]["secret"]["inline_bytes"], "W3JlZGFjdGVkXQ==");
    let mut open = JsonWriter::revealing();
    open.message(name, &loaded.secrets[0].bytes);
    assert!(open.take().contains("YWJj"));
}

#[test]
fn lists_that_were_cut_are_put_back_where_they_stood() {
    let text = "admin: {}\nstatic_resources: {clusters: [{name: a}, {name: b}], secrets: [{name: s}]}";
    let loaded = load_bootstrap(vec![Source::text("a", Format::Yaml, text)], &LoadOptions::default()).unwrap();
    let json = json_value("envoy.config.bootstrap.v3.Bootstrap", &loaded.whole());
    assert_eq!(
        json.to_string(),
        r#"{"static_resources":{"clusters":[{"name":"a"},{"name":"b"}],"secrets":[{"name":"s"}]},"admin":{}}"#
    );
    let typed = crate::pb::envoy::config::bootstrap::v3::Bootstrap::decode(&*loaded.whole()).unwrap();
    assert_eq!(typed.static_resources.unwrap().clusters.len(), 2);
}

#[test]
fn times_are_printed_in_utc() {
    let text = |seconds: i64, nanos: i32| {
        time::timestamp(&crate::pb::google::protobuf::Timestamp { seconds, nanos }.encode_to_vec())
    };
    assert_eq!(text(0, 0), "1970-01-01T00:00:00Z");
    assert_eq!(text(1_709_206_215, 250_000_000), "2024-02-29T11:30:15.250Z");
    assert_eq!(text(-1, 0), "1969-12-31T23:59:59Z");
}

#[test]
fn what_was_written_leaves_in_pieces() {
    let mut writer = JsonWriter::default();
    writer.begin_object();
    writer.key("a");
    writer.begin_list();
    writer.raw("1");
    let first = writer.take();
    writer.raw("2");
    writer.end_list();
    writer.key("b");
    writer.begin_object();
    writer.end_object();
    writer.end_object();
    assert_eq!(first + &writer.take(), "{\n \"a\": [\n  1,\n  2\n ],\n \"b\": {}\n}");
}
