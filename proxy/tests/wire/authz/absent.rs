//! Requests without a path, and with headers that are no text: row R53.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;

use super::{EXT_AUTHZ, eventually, foreign, raw};
use crate::running::{RunningProxy, web};

const OPTIONS: &[u8] = b"OPTIONS * HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
const CONNECT: &[u8] = b"CONNECT x:1 HTTP/1.1\r\nhost: x:1\r\n\r\n";
const GET: &[u8] = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";

const RBAC: &str = r#"- name: envoy.filters.http.rbac
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC
    rules: {action: ACTION, policies: {p: {permissions: [PERMISSION], principals: [{any: true}]}}}"#;

/// All requests are forwarded to `tunnel`, CONNECT as a tunnel; each leaves a line in the file at `log`.
fn config(filter: &str, authorizer: SocketAddr, tunnel: SocketAddr, log: &Path) -> String {
    let cluster = |name: &str, to: SocketAddr, more: &str| {
        format!(
            "- name: {name}\n  connect_timeout: 1s\n{more}  load_assignment:\n    cluster_name: {name}\n    \
             endpoints: [{{lb_endpoints: [{{endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {}}}}}}}}}]}}]\n",
            to.port()
        )
    };
    let http2 = "  typed_extension_protocol_options:\n    envoy.extensions.upstreams.http.v3.HttpProtocolOptions:\n      \
                 \"@type\": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions\n      \
                 explicit_http_config: {http2_protocol_options: {}}\n";
    let yaml = web(
        "direct_response: {status: 200}",
        filter,
        &(cluster("authz", authorizer, http2) + &cluster("tunnel", tunnel, "")),
    );
    let log = format!(
        "stat_prefix: web\n          upgrade_configs: [{{upgrade_type: CONNECT}}]\n          \
         access_log: [{{name: f, typed_config: {{\"@type\": \
         type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog, path: {}, log_format: {{json_format: \
         {{path: \"%REQ(:PATH)%\", host: \"%REQ(HOST)%\", of: \"%REQ(:METHOD)%\", why: \"%RESPONSE_CODE_DETAILS%\"}}}}}}}}]",
        log.display()
    );
    let connect = "routes: [{match: {connect_matcher: {}}, \
                   route: {cluster: tunnel, upgrade_configs: [{upgrade_type: CONNECT, connect_config: {}}]}}, ";
    yaml.replace("stat_prefix: web", &log).replace("routes: [", connect)
}

// Statuses and lines as Envoy 1.40's.
#[test]
fn a_request_without_a_path_is_asked_about_and_matches_no_rule_of_paths() {
    let server = foreign();
    // Nobody accepts, but the kernel does.
    let tunnel = TcpListener::bind("127.0.0.1:0").unwrap();
    let path = "{url_path: {path: {prefix: /}}}";
    let not_ok = "{not_rule: {url_path: {path: {prefix: /ok}}}}";
    let rbac = |action: &str, permission: &str| RBAC.replace("ACTION", action).replace("PERMISSION", permission);
    // Of OPTIONS *, CONNECT and GET.
    let cases = [
        (EXT_AUTHZ.to_owned(), ["404", "200", "200"]),
        (rbac("DENY", path), ["404", "200", "403"]),
        (rbac("ALLOW", path), ["404", "403", "200"]),
        (rbac("DENY", not_ok), ["404", "403", "403"]),
        (rbac("ALLOW", not_ok), ["404", "200", "200"]),
        (rbac("DENY", "{header: {name: host, string_match: {prefix: x}}}"), ["404", "403", "403"]),
        (rbac("DENY", "{header: {name: ':path', present_match: true}}"), ["404", "200", "403"]),
    ];
    let folder = tempfile::tempdir().unwrap();
    for (filter, expected) in cases {
        let log = folder.path().join("log");
        let yaml = config(&filter, server.address, tunnel.local_addr().unwrap(), &log);
        let proxy = RunningProxy::start(&yaml, 1);
        let statuses = [OPTIONS, CONNECT, GET].map(|request| raw(&proxy, request)[9..12].to_owned());
        assert_eq!(statuses, expected, "{filter}");
        drop(proxy);
        let lines = std::fs::read_to_string(&log).unwrap();
        assert!(lines.contains(r#""of":"OPTIONS","path":"*","why":"absolute_path_rejected""#), "{filter}: {lines}");
        assert!(lines.contains(r#"{"host":"x:1","of":"CONNECT","path":null,"#), "{filter}: {lines}");
        std::fs::remove_file(&log).unwrap();
    }
    eventually("the last question", || server.asked.lock().unwrap().is_some());
}

#[test]
fn headers_that_are_no_text_are_told_and_passed_on() {
    let server = foreign();
    let folder = tempfile::tempdir().unwrap();
    let yaml = config(EXT_AUTHZ, server.address, server.address, &folder.path().join("log"));
    let proxy = RunningProxy::start(&yaml, 1);
    let request = b"GET / HTTP/1.1\r\nhost: x\r\nx-odd: a\xff\xfe\x80b\r\nconnection: close\r\n\r\n";
    assert!(raw(&proxy, request).starts_with("HTTP/1.1 200 "));
    let asked = server.asked.lock().unwrap().take().unwrap();
    let headers = asked.attributes.unwrap().request.unwrap().http.unwrap().headers;
    assert_eq!(headers["x-odd"], "a!!!b");
}
