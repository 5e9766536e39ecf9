use super::*;
use crate::read::Format;

fn yaml(text: &str) -> Result<LoadedBootstrap, Vec<Diagnostic>> {
    load_bootstrap(vec![Source::text("a.yaml", Format::Yaml, text)], &LoadOptions::default())
}

fn errors(text: &str) -> Vec<String> {
    let found = yaml(text).err().unwrap_or_default();
    found.iter().filter(|d| d.is_error()).map(Diagnostic::to_string).collect()
}

/// Where `what` stands first: `a.yaml:line:column`.
fn place(text: &str, what: &str) -> String {
    let offset = text.find(what).unwrap();
    let line = text[..offset].matches('\n').count() + 1;
    let column = offset - text[..offset].rfind('\n').map_or(0, |n| n + 1) + 1;
    format!("a.yaml:{line}:{column}")
}

const HCM: &str =
    "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";

#[test]
fn clusters_and_listeners_come_one_by_one_with_their_bytes() {
    let loaded = yaml(&format!(
        r#"
admin: {{address: {{socket_address: {{address: 127.0.0.1, port_value: 0}}}}}}
static_resources:
  clusters:
  - name: one
    connect_timeout: 0.25s
    lbPolicy: random
  - {{name: two, circuit_breakers: {{thresholds: [{{max_connections: "12"}}]}}}}
  listeners:
  - name: l
    address: {{socket_address: {{address: 0.0.0.0, port_value: 10000}}}}
    filter_chains:
    - filters:
      - name: any
        typed_config:
          stat_prefix: s
          "@type": {HCM}
          route_config: {{virtual_hosts: [{{name: v, domains: ["*"]}}]}}
"#
    ))
    .unwrap();
    assert!(loaded.bootstrap.admin.is_some());
    let clusters: Vec<Cluster> = loaded.clusters.iter().map(|e| e.decode().unwrap()).collect();
    assert_eq!(clusters[0].name, "one");
    assert_eq!(clusters[0].lb_policy, 3);
    assert_eq!(clusters[0].connect_timeout.as_ref().unwrap().nanos, 250_000_000);
    let max = &clusters[1].circuit_breakers.as_ref().unwrap().thresholds[0].max_connections;
    assert_eq!(max.as_ref().unwrap().value, 12);
    assert_eq!(loaded.clusters[1].path(), "static_resources.clusters[1]");
    let listener = loaded.listeners[0].decode().unwrap();
    assert_eq!(listener.filter_chains[0].filters.len(), 1);
}

#[test]
fn mistakes_are_told_with_place_path_and_nearest_name() {
    let text = format!(
        r#"
static_resources:
  listeners:
  - address: {{socket_address: {{address: 0.0.0.0, port_value: 70000}}}}
    filter_chains:
    - filters:
      - name: h
        typed_config:
          "@type": {HCM}
          stat_prefix: s
          stream_idel_timeout: 1s
          route_config:
            virtual_hosts:
            - name: v
              domains: ["*"]
              routes:
              - match: {{prefix: /, path: /x}}
                route: {{cluster: c, timeout: 15ms, retry_policy: {{num_retries: two}}}}
          http_filters:
          - name: r
            typed_config: {{"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Ruoter}}
  clusters:
  - {{name: c, lb_policy: ROUND_ROBBIN}}
  - name: ""
"#
    );
    // Columns counted in the text: a value's place, or a key's where the key is wrong.
    let at = |what: &str| place(&text, what);
    let hcm = "static_resources.listeners[0].filter_chains[0].filters[0].typed_config";
    let route = format!("{hcm}.route_config.virtual_hosts[0].routes[0]");
    assert_eq!(
        errors(&text),
        [
            format!(
                "{}: static_resources.listeners[0].address.socket_address.port_value: must be <= 65535, is 70000 (SocketAddressValidationError.PortValue)",
                at("70000")
            ),
            format!(
                "{}: {hcm}: unknown field `stream_idel_timeout` in envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager, did you mean `stream_idle_timeout`?",
                at("stream_idel")
            ),
            format!(
                "{}: {route}.match.path: `path` and `prefix` are alternatives (oneof path_specifier)",
                at("path: /x")
            ),
            format!(
                "{}: {route}.route.timeout: invalid duration `15ms`: write seconds with an `s`, such as `0.25s`",
                at("15ms")
            ),
            format!(
                "{}: {route}.route.retry_policy.num_retries: expected a uint32, found the string `two`",
                at("two}")
            ),
            format!(
                "{}: {hcm}.http_filters[0].typed_config: unknown @type `envoy.extensions.filters.http.router.v3.Ruoter`, did you mean `envoy.extensions.filters.http.router.v3.Router`?",
                at("type.googleapis.com/envoy.extensions.filters.http.router")
            ),
            format!(
                "{}: static_resources.clusters[0].lb_policy: unknown value `ROUND_ROBBIN` for enum envoy.config.cluster.v3.Cluster.LbPolicy, did you mean `ROUND_ROBIN`? (one of ROUND_ROBIN, LEAST_REQUEST, RING_HASH, RANDOM, MAGLEV, CLUSTER_PROVIDED, LOAD_BALANCING_POLICY_CONFIG)",
                at("ROUND_ROBBIN")
            ),
            format!(
                "{}: static_resources.clusters[1].name: must not be empty (ClusterValidationError.Name)",
                at("\"\"\n")
            ),
        ]
    );
}

#[test]
fn a_syntax_error_is_the_only_news() {
    let found = errors("static_resources:\n  clusters: [{name: a]\n");
    assert_eq!(found.len(), 1);
    assert!(found[0].starts_with("a.yaml:2:"), "{}", found[0]);
}

/// One line a mistake: the line, and how the sentence about it goes on after `a.yaml:LINE:COLUMN: `.
const MISTAKES: &[(&str, &str)] = &[
    ("no_such_thing: 1", "unknown field `no_such_thing` in envoy.config.bootstrap.v3.Bootstrap"),
    ("admin: [1]", "admin: expected an object (envoy.config.bootstrap.v3.Admin), found"),
    ("node: {id: 12}", "node.id: expected a string, found the number `12`: put it in quotes"),
    ("stats_flush_interval: 5", "stats_flush_interval: invalid duration `5`: write seconds with an `s`"),
    ("enable_dispatcher_stats: maybe", "enable_dispatcher_stats: expected a boolean, found the string `maybe`"),
    ("cluster_manager: {local_cluster_nam: x}", "cluster_manager: unknown field `local_cluster_nam`"),
    ("layered_runtime: {layers: [{name: \"\", admin_layer: {}}]}", "layered_runtime.layers[0].name: must not be empty"),
    (
        "overload_manager: {resource_monitors: [{name: a}, {name: \"\"}]}",
        "overload_manager.resource_monitors[1].name: must",
    ),
    ("default_socket_interface: 1", "default_socket_interface: expected a string"),
    ("static_resources:", ""),
    ("  clusters:", ""),
    ("  - {name: \"\"}", "static_resources.clusters[0].name: must not be empty"),
    ("  - {name: a, lb_policy: ROUND_ROBBIN}", "static_resources.clusters[1].lb_policy: unknown value `ROUND_ROBBIN`"),
    ("  - {name: b, connect_timeout: 15ms}", "static_resources.clusters[2].connect_timeout: invalid duration `15ms`"),
    ("  - {name: c, connect_timeout: 0s}", "static_resources.clusters[3].connect_timeout: must be > 0s, is 0s"),
    ("  - {name: d, hosts: []}", "static_resources.clusters[4]: unknown field `hosts`"),
    (
        "  - {name: e, type: EDS, cluster_type: {name: x}}",
        "static_resources.clusters[5].cluster_type: `cluster_type` and",
    ),
    (
        "  - {name: f, circuit_breakers: {thresholds: [{max_connections: -1}]}}",
        "static_resources.clusters[6].circuit_breakers.thresholds[0].max_connections: the number `-1` is out of range",
    ),
    ("  - {name: g, health_checks: [{timeout: 1s}]}", "static_resources.clusters[7].health_checks[0]"),
    (
        "  - {name: h, per_connection_buffer_limit_bytes: 1.5}",
        "static_resources.clusters[8].per_connection_buffer_limit_bytes: expected a uint32",
    ),
    ("  - {name: i, dns_refresh_rate: 0.0001s}", "static_resources.clusters[9].dns_refresh_rate: must be > 0.001s"),
    (
        "  - {name: j, outlier_detection: {max_ejection_percent: 101}}",
        "static_resources.clusters[10].outlier_detection.max_ejection_percent: must be <= 100",
    ),
    (
        "  - {name: k, transport_socket: {name: t, typed_config: {a: 1}}}",
        "static_resources.clusters[11].transport_socket.typed_config: has no `@type`",
    ),
    (
        "  - {name: l, transport_socket: {name: t, typed_config: {\"@type\": a/no.such.Type}}}",
        "static_resources.clusters[12].transport_socket.typed_config: unknown @type `no.such.Type`",
    ),
    ("  secrets:", ""),
    (
        "  - {name: s, generic_secret: {secret: {inline_bytes: \"a*b\"}}}",
        "static_resources.secrets[0].generic_secret.secret.inline_bytes: expected base64",
    ),
    ("  - {name: t, tls_certificate: 7}", "static_resources.secrets[1].tls_certificate: expected an object"),
    ("  listeners:", ""),
    ("  - {name: l, adress: {}}", "static_resources.listeners[0]: unknown field `adress`"),
    (
        "  - {name: m, address: {socket_address: {address: ::1, port_value: 70000}}}",
        "static_resources.listeners[1].address.socket_address.port_value: must be <= 65535",
    ),
    ("  - {name: o, address: {}}", "static_resources.listeners[2].address: one of"),
];

#[test]
fn a_file_with_many_mistakes_reports_each_with_its_line() {
    let text: String = MISTAKES.iter().map(|(line, _)| format!("{line}\n")).collect();
    let found = yaml(&text).unwrap_err();
    let mut expected = 0;
    for (line, (_, sentence)) in MISTAKES.iter().enumerate().filter(|(_, (_, s))| !s.is_empty()) {
        expected += 1;
        let here: Vec<String> = found
            .iter()
            .filter(|d| d.is_error() && d.line as usize == line + 1)
            .map(|d| format!("{}: {}", d.path, d.text).trim_start_matches(": ").to_owned())
            .collect();
        assert!(here.iter().any(|d| d.starts_with(sentence)), "line {}: {here:?}", line + 1);
        // The health check lacks four things, everything else is wrong in one way.
        assert_eq!(here.len(), if sentence.ends_with("health_checks[0]") { 4 } else { 1 }, "{here:?}");
    }
    assert!(expected >= 25, "{expected}");
}

#[test]
fn later_sources_are_merged_over_earlier_ones() {
    // The same two texts give the same bootstrap in /config_dump of Envoy 1.40.
    let file = "node: {id: nn, cluster: c, metadata: {a: 1, b: x}}\nstatic_resources: {clusters: [{name: one}]}\n\
                layered_runtime: {layers: [{name: l1, static_layer: {x: 1}}]}";
    let more = "{node: {cluster: d, metadata: {b: z, c: 3}}, static_resources: {clusters: [{name: two}]}, \
                layered_runtime: {layers: [{name: l2, admin_layer: {}}]}, stats_flush_on_admin: true}";
    let sources = vec![Source::text("a.yaml", Format::Yaml, file), Source::text("--config-yaml", Format::Yaml, more)];
    let loaded = load_bootstrap(sources, &LoadOptions::default()).unwrap();
    let json = crate::dump::json_value("envoy.config.bootstrap.v3.Bootstrap", &loaded.whole());
    let expected = serde_json::json!({
        "node": {"id": "nn", "cluster": "d", "metadata": {"a": 1, "b": "z", "c": 3}},
        "static_resources": {"clusters": [{"name": "one"}, {"name": "two"}]},
        "layered_runtime": {"layers": [{"name": "l1", "static_layer": {"x": 1}}, {"name": "l2", "admin_layer": {}}]},
        "stats_flush_on_admin": true,
    });
    assert_eq!(json, expected);
    assert_eq!(loaded.bootstrap.node.as_ref().unwrap().cluster, "d");
    // Semantic errors find their place in the source that has it.
    let of = |path: &str| loaded.positions.error(&crate::ConfigError::new(path, "is odd")).to_string();
    assert_eq!(of("node.id"), "a.yaml:1:12: node.id: is odd");
    assert_eq!(of("node.cluster"), "--config-yaml:1:18: node.cluster: is odd");
    let error = loaded.positions.element_error(&loaded.clusters[1], crate::ConfigError::new("name", "is odd"));
    assert_eq!(error.to_string(), "--config-yaml:1:83: static_resources.clusters[0].name: is odd");
}

#[test]
fn a_file_is_read_again_when_a_place_is_asked_for_later() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.json");
    std::fs::write(&path, "{\"static_resources\":\n {\"clusters\": [{\"name\": \"x\"}]}}").unwrap();
    let source = Source::file(&path, &ReadLimits::default()).unwrap();
    let loaded = load_bootstrap(vec![source], &LoadOptions::default()).unwrap();
    let error = || loaded.positions.element_error(&loaded.clusters[0], crate::ConfigError::new("name", "is odd"));
    let found = error();
    assert_eq!((found.line, found.column, found.path.as_str()), (2, 25, "static_resources.clusters[0].name"));
    assert_eq!(&*found.file, path.to_str().unwrap());
}

#[test]
fn a_file_that_cannot_be_read_is_said_in_one_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let of = |name: &str| {
        let path = folder.path().join(name);
        let error = Source::file(&path, &ReadLimits::default()).unwrap_err().to_string();
        error.replace(folder.path().to_str().unwrap(), "")
    };
    assert_eq!(of("none.yaml"), "/none.yaml: cannot be read: No such file or directory");
    std::fs::create_dir(folder.path().join("d.yaml")).unwrap();
    assert_eq!(of("d.yaml"), "/d.yaml: cannot be read: it is a directory");
    let large = std::fs::File::create(folder.path().join("l.yaml")).unwrap();
    large.set_len(100 << 20).unwrap();
    assert_eq!(of("l.yaml"), "/l.yaml: is longer than the 64 MiB that a configuration may have");
}

#[test]
fn the_extension_says_how_a_file_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let load = |name: &str, text: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        let source = Source::file(&path, &ReadLimits::default()).unwrap();
        load_bootstrap(vec![source], &LoadOptions::default()).map(|l| l.clusters.len()).map_err(|e| e[0].text.clone())
    };
    let yaml = b"static_resources: {clusters: [{name: c}]}";
    assert_eq!(load("a.yaml", yaml), Ok(1));
    assert_eq!(load("a.YML", yaml), Ok(1));
    let odd = "JSON: `static_resources` is not a value: strings need quotes \
               (a file is read as YAML if it is named .yaml or .yml)";
    assert_eq!(load("a.conf", yaml), Err(odd.to_owned()));
    let json = br#"{"static_resources": {"clusters": [{"name": "c"}]}}"#;
    assert_eq!(load("plain", json), Ok(1));
    assert_eq!(load("a.yaml", json), Ok(1));
    assert_eq!(load("a.pb_text", b"static_resources { clusters { name: \"c\" } }"), Ok(1));
    assert_eq!(load("a.pb", b"\x12\x05\x12\x03\x0a\x01c"), Ok(1));
    assert_eq!(load("a.pb", b""), Ok(0));
    let empty = "ClusterValidationError.Name";
    assert!(load("a.pb", b"\x12\x02\x12\x00").unwrap_err().contains(empty));
    assert_eq!(load("a.yaml", b""), Err("the file is empty".to_owned()));
    assert!(load("a.yaml", b"null\n").is_err());
}

#[test]
fn unknown_fields_may_be_allowed() {
    let source =
        Source::text("a.yaml", Format::Yaml, "node: {idd: x}\nstatic_resources: {clusters: [{name: c, x: 1}]}");
    let options = LoadOptions { unknown: UnknownFields::of_static(true), ..LoadOptions::default() };
    let loaded = load_bootstrap(vec![source], &options).unwrap();
    assert_eq!((loaded.unknown_fields, loaded.warnings.len()), (2, 2));
}

#[test]
fn a_file_of_resources_is_loaded_as_their_response() {
    use crate::pb::envoy::service::discovery::v3::DiscoveryResponse;
    let text =
        r#"{version_info: "1", resources: [{"@type": type.googleapis.com/envoy.config.cluster.v3.Cluster, name: c}]}"#;
    let load = |text: &str| {
        load_message::<DiscoveryResponse>(Source::text("cds.yaml", Format::Yaml, text), &LoadOptions::default())
    };
    let response = load(text).unwrap().message;
    assert_eq!(crate::unpack::<Cluster>(&response.resources[0]).unwrap().name, "c");
    let error = &load(&text.replace("name: c", "name: ''")).unwrap_err()[0];
    assert_eq!(error.to_string(), "cds.yaml:1:102: resources[0].name: must not be empty (ClusterValidationError.Name)");
}

#[test]
fn only_so_many_errors_are_told() {
    let text = format!("static_resources: {{clusters: [{}]}}", "{nme: x},".repeat(1500));
    let found = yaml(&text).unwrap_err();
    assert_eq!(found.len(), 1001);
    assert_eq!(found[1000].text, "and 500 more errors");
}
