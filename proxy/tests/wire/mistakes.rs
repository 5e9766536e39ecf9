//! What the binary says when it cannot do what it is asked to: one clear sentence, and exit 1.

use std::net::TcpListener;
use std::process::Command;

/// Exit code and standard error.
fn run(args: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nuncio"));
    let output = command.args(["-l", "error"]).args(args).output().unwrap();
    assert!(output.stdout.is_empty());
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

fn refused(args: &[&str], sentence: &str) {
    assert_eq!(run(args), (Some(1), format!("{sentence}\n")), "{args:?}");
}

#[test]
fn a_port_in_use_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let place = format!("address: {{socket_address: {{address: 127.0.0.1, port_value: {}}}}}", address.port());
    let echo = "{filters: [{name: echo, typed_config: {'@type': type.googleapis.com/envoy.extensions.filters.network.echo.v3.Echo}}]}";
    let listener = format!("static_resources: {{listeners: [{{name: l, {place}, filter_chains: [{echo}]}}]}}");
    let admin = format!("admin: {{{place}}}");
    let sentence = format!("cannot bind '{address}': Address already in use by another socket");
    refused(&["--config-yaml", &listener], &format!("error adding listener 'l': {sentence}"));
    refused(&["--config-yaml", &admin], &sentence);
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().to_str().unwrap();
    let missing = format!("{folder}/missing.yaml");
    refused(&["-c", &missing], &format!("{missing}: cannot be read: No such file or directory"));
    refused(&["-c", folder], &format!("{folder}: cannot be read: it is a directory"));
}

#[test]
fn what_is_missing_on_the_command_line_is_named() {
    let none = "At least one of --config-path or --config-yaml or Options::configProto() should be non-empty";
    refused(&[], none);
    let (code, text) = run(&["-c"]);
    assert_eq!(code, Some(1));
    let sentence = "error: a value is required for '--config-path <string>' but none was supplied";
    assert_eq!(text.lines().next(), Some(sentence));
    refused(&["--mode", "foo"], "error: unknown mode 'foo'");
}

/// Each line with a `# !` is wrong, and is wrong once.
const WRONG: &str = r#"
node: {idd: x} # !
admin:
  address: {socket_address: {address: 127.0.0.1, port_value: 99010}} # !
  profile: 1 # !
static_resources:
  listeners:
  - name: a
    address: {socket_address: {address: 127.0.0.1, port_value: 0}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: "" # !
          codec_type: HTTP4 # !
          stream_idle_timeout: 5 minutes # !
          max_request_headers_kb: 0 # !
          route_config:
            virtual_hosts:
            - name: v
              domains: [] # !
              routes:
              - match: {} # !
                route: {cluster: up}
              - match: {prefix: /}
                route: {} # !
              - match: {prefix: /}
                direct_response: {status: 99} # !
              - match: {prefix: /}
                rout: {cluster: up} # !
              - match: {prefix: /, headers: [{name: "", present_match: true}]} # !
                route: {cluster: up}
          http_filters:
          - name: envoy.filters.http.rooter
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.rooter.v3.Rooter} # !
  - name: b
    address: {socket_address: {address: 127.0.0.1}} # !
    filter_chains:
    - filters:
      - name: envoy.filters.network.tcp_proxy
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy
          stat_prefix: tcp
          cluster: up
          max_connect_attempts: zero # !
  clusters:
  - name: up
    connect_timeout: -1s # !
    lb_policy: ROUND_ROBBIN # !
    type: STATIK # !
  - name: "" # !
    load_assignment:
      cluster_name: "" # !
      endpoints:
      - priority: 200 # !
        lb_endpoints:
        - load_balancing_weight: 0 # !
          endpoint: {}
  - name: breakers
    circuit_breakers:
      thresholds:
      - priority: URGENT # !
        max_connections: many # !
"#;

#[test]
fn twenty_five_mistakes_are_told_at_once_each_with_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("wrong.yaml");
    std::fs::write(&path, WRONG).unwrap();
    let path = path.to_str().unwrap();
    let expected: Vec<usize> =
        (1..).zip(WRONG.lines()).filter(|(_, line)| line.ends_with("# !")).map(|(n, _)| n).collect();
    assert_eq!(expected.len(), 25);
    for mode in ["validate", "serve"] {
        let (code, text) = run(&["--mode", mode, "-c", path]);
        assert_eq!(code, Some(1));
        let line_of = |said: &str| {
            let place = said.strip_prefix(path)?.strip_prefix(':')?;
            place.split(':').next()?.parse::<usize>().ok()
        };
        let lines: Option<Vec<usize>> = text.lines().map(line_of).collect();
        assert_eq!(lines.as_ref(), Some(&expected), "{text}");
    }
}
