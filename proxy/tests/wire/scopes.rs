//! Scoped routes: inside the configuration, and from files that are replaced. What requests and statistics show is what
//! Envoy 1.40 shows for the same configuration, but where a comment says otherwise.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::dynamic::{get, get_with, put, stat, until_stat};
use crate::running::{MANAGER, RunningProxy};

const SCOPE: &str = "type.googleapis.com/envoy.config.route.v3.ScopedRouteConfiguration";
const ROUTES: &str = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration";

/// `specifier`: where the scopes come from.
fn bootstrap(log: &Path, specifier: &str) -> String {
    format!(
        r#"
admin: {{address: {{socket_address: {{address: 127.0.0.1, port_value: 0}}}}}}
{MANAGER}          access_log:
          - name: file
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog
              path: {log}
              log_format: {{text_format_source: {{inline_string: "%RESPONSE_CODE% %RESPONSE_FLAGS% %RESPONSE_CODE_DETAILS%\n"}}}}
          scoped_routes:
            name: tenants
            scope_key_builder:
              fragments: [{{header_value_extractor: {{name: X-Tenant, element_separator: ";", element: {{key: id, separator: "="}}}}}}]
            {specifier}
          http_filters: [{{name: r, typed_config: {{"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}}}]
"#,
        log = log.display(),
    )
}

fn routes(name: &str, answer: &str) -> String {
    format!(
        "{{name: {name}, virtual_hosts: [{{name: v, domains: ['*'], routes: [{{match: {{prefix: /}}, direct_response: \
         {{status: 200, body: {{inline_string: {answer}}}}}}}]}}]}}"
    )
}

fn scope(name: &str, key: &str, rest: &str) -> String {
    format!("{{'@type': {SCOPE}, name: {name}, key: {{fragments: [{{string_key: {key}}}]}}, {rest}}}")
}

fn answer(version: u32, resources: &[String]) -> String {
    format!("version_info: '{version}'\nresources: [{}]\n", resources.join(", "))
}

/// The last line of what is answered to a request of that tenant.
fn ask(proxy: &RunningProxy, tenant: &str) -> String {
    let answer = get_with(proxy.socket("in"), "/", &format!("x-tenant: v=1;id={tenant}\r\n"));
    if answer.starts_with("HTTP/1.1 200") {
        return answer.rsplit('\n').next().unwrap_or_default().to_owned();
    }
    answer.lines().next().unwrap_or_default().to_owned()
}

fn dump(proxy: &RunningProxy, list: &str) -> Value {
    let text = get(proxy.admin(), &format!("/config_dump?resource={list}"));
    let body = text.split_once("\r\n\r\n").unwrap().1;
    let body = &body[body.find('{').unwrap()..=body.rfind('}').unwrap()];
    serde_json::from_str::<Value>(body).unwrap()["configs"][0].take()
}

#[test]
fn a_request_is_looked_up_in_the_routes_of_its_scope() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let inline = |name: &str, key: &str| {
        let scope = scope(name, key, &format!("route_configuration: {}", routes(name, name)));
        scope.replace(&format!("'@type': {SCOPE}, "), "")
    };
    let list = [inline("one", "'1'"), inline("two", "'2'")].join(", ");
    let specifier = format!("scoped_route_configurations_list: {{scoped_route_configurations: [{list}]}}");
    let proxy = RunningProxy::start(&bootstrap(&log, &specifier), 1);
    assert_eq!(ask(&proxy, "1"), "one");
    assert_eq!(ask(&proxy, "2"), "two");
    assert_eq!(ask(&proxy, "3"), "HTTP/1.1 404 Not Found");
    assert_eq!(stat(&proxy, "http.in.no_route"), "1");
    let dump = dump(&proxy, "inline_scoped_route_configs");
    assert_eq!(dump["name"], "tenants");
    assert_eq!(dump["scoped_route_configs"][1]["@type"], SCOPE);
    assert_eq!(dump["scoped_route_configs"][1]["route_configuration"]["name"], "two");
    drop(proxy);
    let log = fs::read_to_string(log).unwrap();
    assert_eq!(log.lines().last(), Some("404 NR route_not_found"));
}

#[test]
fn scopes_and_the_routes_that_they_name_come_from_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let put = |name: &str, text: &str| put(path, name, text);
    let typed = |name: &str, answer: &str| routes(name, answer).replacen('{', &format!("{{'@type': {ROUTES}, "), 1);
    let by_name =
        |name: &str, key: &str, routes: &str| scope(name, key, &format!("route_configuration_name: {routes}"));
    // Envoy takes no more than one route configuration from a file: docs/differences.md.
    put("rds.yaml", &answer(1, &[typed("ra", "a"), typed("rb", "b")]));
    put(
        "srds.yaml",
        &answer(1, &[by_name("one", "'1'", "ra"), by_name("two", "'2'", "rb"), by_name("all", "'3'", "ra")]),
    );
    let from = |name: &str| format!("{{path_config_source: {{path: {}}}}}", path.join(name).display());
    let specifier = format!(
        "rds_config_source: {}\n            scoped_rds: {{scoped_rds_config_source: {}}}",
        from("rds.yaml"),
        from("srds.yaml")
    );
    let proxy = RunningProxy::start(&bootstrap(&path.join("log"), &specifier), 2);
    let all = |proxy: &RunningProxy| ["1", "2", "3"].map(|tenant| ask(proxy, tenant));
    assert_eq!(all(&proxy), ["a", "b", "a"], "the listener waited for scopes and routes");
    let stat = |name: &str| stat(&proxy, &format!("http.in.scoped_rds.tenants.{name}"));
    assert_eq!(["all_scopes", "active_scopes", "on_demand_scopes", "config_reload"].map(stat), ["3", "3", "0", "1"]);
    let shown = dump(&proxy, "dynamic_scoped_route_configs");
    assert_eq!((&shown["name"], &shown["version_info"]), (&"tenants".into(), &"1".into()));
    assert_eq!(shown["scoped_route_configs"][0]["name"], "all", "in the order of names");

    let inline = format!("route_configuration: {}", routes("ri", "i"));
    put("srds.yaml", &answer(2, &[by_name("one", "'1'", "rb"), scope("three", "'3'", &inline)]));
    until_stat(&proxy, "http.in.scoped_rds.tenants.config_reload", "2");
    assert_eq!(all(&proxy), ["b", "HTTP/1.1 404 Not Found", "i"]);
    assert_eq!(["all_scopes", "active_scopes", "version_text"].map(stat), ["2", "1", "\"2\""]);
    let gone = crate::dynamic::stat(&proxy, "http.in.rds.ra.config_reload");
    assert_eq!(gone, "", "nobody asks for routes that no scope names");

    // Whatever is wrong, the answer is refused whole; Envoy lets go of the scopes before some of these.
    let wrong = [
        vec![by_name("x", "'1'", "ra"), by_name("x", "'2'", "ra")],
        vec![by_name("x", "'1'", "ra"), by_name("y1", "'1'", "rb")],
        vec![by_name("x", "'1'", "ra"), scope("y1", "'2'", "on_demand: true, route_configuration_name: ra")],
        vec![
            by_name("x", "'1'", "ra"),
            "{'@type': SCOPE, name: y1, key: {fragments: [{string_key: k}]}}".replace("SCOPE", SCOPE),
        ],
        vec![scope("x", "'1'", &inline.replace("['*']", "['*', '*']"))],
    ];
    for (i, resources) in wrong.iter().enumerate() {
        put("srds.yaml", &answer(3, resources));
        until_stat(&proxy, "http.in.scoped_rds.tenants.update_rejected", &(i + 1).to_string());
        assert_eq!(all(&proxy), ["b", "HTTP/1.1 404 Not Found", "i"], "{resources:?}");
    }
    put("srds.yaml", &answer(4, &[]));
    until_stat(&proxy, "http.in.scoped_rds.tenants.all_scopes", "0");
    assert_eq!(ask(&proxy, "1"), "HTTP/1.1 404 Not Found");
}
