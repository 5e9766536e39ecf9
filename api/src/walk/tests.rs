use prost::Message as _;

use super::*;
use crate::load::{LoadOptions, check_bytes};
use crate::pb::envoy::config::cluster::v3::Cluster;
use crate::pb::envoy::config::core::v3::{SocketAddress, socket_address};
use crate::pb::google::protobuf::{Any, Duration};
use crate::supports;
use crate::wire::put;

fn texts(type_name: &str, bytes: &[u8], options: &LoadOptions<'_>) -> (Vec<String>, Vec<String>) {
    let checks = check_bytes(&format!("type.googleapis.com/{type_name}"), bytes, options);
    let print = |all: &[crate::Diagnostic]| all.iter().map(ToString::to_string).collect();
    (print(&checks.errors), print(&checks.warnings))
}

const CLUSTER: &str = "envoy.config.cluster.v3.Cluster";

#[test]
fn an_encoded_resource_is_checked_like_a_text() {
    let cluster = Cluster { connect_timeout: Some(Duration { seconds: 0, nanos: 0 }), ..Cluster::default() };
    let (errors, _) = texts(CLUSTER, &cluster.encode_to_vec(), &LoadOptions::default());
    assert_eq!(
        errors,
        [
            "connect_timeout: must be > 0s, is 0s (ClusterValidationError.ConnectTimeout)",
            "name: must not be empty (ClusterValidationError.Name)",
        ]
    );
}

#[test]
fn unknown_fields_are_refused_counted_or_passed_over_by_policy() {
    let mut bytes = Cluster { name: "c".to_owned(), ..Cluster::default() }.encode_to_vec();
    put(&mut bytes, 9999, b"x");
    put(&mut bytes, 9999, b"y");
    let run = |unknown| {
        check_bytes("t/envoy.config.cluster.v3.Cluster", &bytes, &LoadOptions { unknown, ..LoadOptions::default() })
    };
    let refused = run(UnknownFields::of_dynamic(true, true));
    assert_eq!(refused.errors[0].text, "unknown field 9999 in envoy.config.cluster.v3.Cluster");
    let warned = run(UnknownFields::of_dynamic(false, false));
    assert_eq!((warned.errors.len(), warned.warnings.len(), warned.unknown_fields), (0, 1, 2));
    let ignored = run(UnknownFields::of_dynamic(false, true));
    assert_eq!((ignored.errors.len(), ignored.warnings.len()), (0, 0));
}

#[test]
fn a_message_that_comes_in_parts_is_checked_as_the_whole() {
    let part = |address: &str, port: Option<u32>| SocketAddress {
        address: address.to_owned(),
        port_specifier: port.map(socket_address::PortSpecifier::PortValue),
        ..SocketAddress::default()
    };
    let mut bytes = Vec::new();
    put(&mut bytes, 1, &part("127.0.0.1", None).encode_to_vec());
    let (errors, _) = texts("envoy.config.core.v3.Address", &bytes, &LoadOptions::default());
    assert_eq!(
        errors,
        ["socket_address: one of port_value, named_port is required (SocketAddressValidationError.PortSpecifier)"]
    );
    put(&mut bytes, 1, &part("", Some(80)).encode_to_vec());
    let (errors, _) = texts("envoy.config.core.v3.Address", &bytes, &LoadOptions::default());
    assert_eq!(errors, Vec::<String>::new());
}

#[test]
fn damaged_bytes_are_an_error_at_their_path() {
    let mut bytes = Cluster { name: "c".to_owned(), ..Cluster::default() }.encode_to_vec();
    put(&mut bytes, 33, &[0x0a, 0x05, 0x01]);
    let (errors, _) = texts(CLUSTER, &bytes, &LoadOptions::default());
    assert!(errors.contains(&"load_assignment: is not an encoded message".to_owned()), "{errors:?}");
    let (errors, _) = texts(CLUSTER, &[0x08, 0x01], &LoadOptions::default());
    assert!(errors.contains(&"name: has another type on the wire".to_owned()), "{errors:?}");
}

#[test]
fn messages_nested_without_end_are_refused() {
    // Any in Any in Any…
    let mut bytes = Vec::new();
    for _ in 0..5000 {
        bytes = Any { type_url: "t/google.protobuf.Any".to_owned(), value: bytes }.encode_to_vec();
    }
    let checks = check_bytes("t/google.protobuf.Any", &bytes, &LoadOptions::default());
    assert!(checks.errors[0].text.contains("nested more than"), "{:?}", checks.errors);
}

#[test]
fn a_generic_object_is_checked_as_what_it_names() {
    use crate::pb::google::protobuf::{Struct, Value, value};
    #[derive(Clone, PartialEq, prost::Message)]
    struct TypedStruct {
        #[prost(string, tag = "1")]
        type_url: String,
        #[prost(message, optional, tag = "2")]
        value: Option<Struct>,
    }
    let text = Value { kind: Some(value::Kind::StringValue(String::new())) };
    let typed = TypedStruct {
        type_url: format!("type.googleapis.com/{CLUSTER}"),
        value: Some(Struct { fields: [("name".to_owned(), text)].into() }),
    };
    let any = Any { type_url: "t/udpa.type.v1.TypedStruct".to_owned(), value: typed.encode_to_vec() };
    let (errors, _) = texts("google.protobuf.Any", &any.encode_to_vec(), &LoadOptions::default());
    assert_eq!(errors, ["value.name: must not be empty (ClusterValidationError.Name)"]);
    assert_eq!(any::unpack::<Cluster>(&any).unwrap().name, "");
}

supports!(CLUSTER_ENTRY = "envoy.config.cluster.v3.Cluster" {
    name, connect_timeout, transport_socket, per_connection_buffer_limit_bytes
} noop {
    alt_stat_name: "a reason",
} values {
    lb_policy: ["ROUND_ROBIN", "RANDOM"],
    respect_dns_ttl: ["false"],
    wait_for_warm_on_init: ["true"],
});
supports!(SOCKET_ENTRY = "envoy.config.core.v3.TransportSocket" { name, typed_config });

fn table() -> Support {
    Support::new(&[&[&CLUSTER_ENTRY, &SOCKET_ENTRY]])
}

#[test]
fn what_is_set_and_not_implemented_is_said() {
    let text = r#"static_resources:
  clusters:
  - name: c
    alt_stat_name: x
    lb_policy: MAGLEV
    respect_dns_ttl: true
    wait_for_warm_on_init: true
    health_checks: [{timeout: 1s, interval: 1s, unhealthy_threshold: 1, healthy_threshold: 1, tcp_health_check: {}}]
    transport_socket:
      name: x
      typed_config: {"@type": type.googleapis.com/envoy.extensions.transport_sockets.raw_buffer.v3.RawBuffer}
"#;
    let support = table();
    let load = |allow_unsupported| {
        let source = crate::Source::text("a.yaml", crate::Format::Yaml, text);
        let options = LoadOptions { support: Some(&support), allow_unsupported, ..LoadOptions::default() };
        crate::load_bootstrap(vec![source], &options)
    };
    let found: Vec<String> = load(false).unwrap_err().iter().map(ToString::to_string).collect();
    let element = "static_resources.clusters[0]";
    assert_eq!(
        found,
        [
            // The bootstrap itself has no entry in this table.
            "a.yaml:1:1: envoy.config.bootstrap.v3.Bootstrap is not implemented".to_owned(),
            format!("a.yaml:5:16: {element}.lb_policy: `MAGLEV` is not implemented (only ROUND_ROBIN, RANDOM)"),
            format!("a.yaml:6:22: {element}.respect_dns_ttl: `true` is not implemented (only false)"),
            format!("a.yaml:8:5: {element}.health_checks: is not implemented"),
            format!(
                "a.yaml:11:7: {element}.transport_socket.typed_config: \
                 envoy.extensions.transport_sockets.raw_buffer.v3.RawBuffer is not implemented"
            ),
            format!("a.yaml:4:20: warning: {element}.alt_stat_name: accepted, no effect: a reason"),
            format!(
                "a.yaml:6:22: warning: {element}.respect_dns_ttl: deprecated: \
                 envoy.config.cluster.v3.Cluster.respect_dns_ttl will be removed from Envoy"
            ),
        ]
    );
    assert_eq!(load(true).unwrap().warnings.len(), found.len());
}

#[test]
fn the_same_warning_is_given_once() {
    let text = "static_resources: {clusters: [{name: a, alt_stat_name: x}, {name: b, alt_stat_name: z}]}";
    let support = table();
    let options = LoadOptions { support: Some(&support), allow_unsupported: true, ..LoadOptions::default() };
    let loaded = crate::load_bootstrap(vec![crate::Source::text("a", crate::Format::Yaml, text)], &options).unwrap();
    let about: Vec<&str> =
        loaded.warnings.iter().filter(|w| w.text.contains("no effect")).map(|w| w.path.as_str()).collect();
    assert_eq!(about, ["static_resources.clusters[0].alt_stat_name"]);
}
