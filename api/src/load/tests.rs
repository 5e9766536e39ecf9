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
