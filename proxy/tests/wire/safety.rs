//! Paths and fields that must mean the same to the router, to RBAC, to an authorizer and to the upstream: the rows R44 to
//! R53 of the reliability register, with the settings of an edge where a row says so, through a whole proxy.

// Clients of real sockets, on threads and clocks of their own.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use proptest::prelude::*;

use crate::running::RunningProxy;

const FILTERS: &str = "type.googleapis.com/envoy.extensions.filters";
const EDGE: &str = "use_remote_address: true, normalize_path: true, merge_slashes: true, \
                    path_with_escaped_slashes_action: UNESCAPE_AND_REDIRECT, \
                    common_http_protocol_options: {headers_with_underscores_action: REJECT_REQUEST}";

/// Up to its empty line, and nothing behind it. None: the end came first.
pub fn head(stream: &mut TcpStream) -> Option<String> {
    let (mut text, mut byte) = (Vec::new(), [0]);
    while !text.ends_with(b"\r\n\r\n") {
        if stream.read(&mut byte).ok()? == 0 {
            return None;
        }
        text.push(byte[0]);
    }
    Some(String::from_utf8_lossy(&text).into_owned())
}

/// Answers every request with its own head as the body.
fn mirror() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            thread::spawn(move || {
                while let Some(head) = head(&mut stream) {
                    let text = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{head}", head.len());
                    if stream.write_all(text.as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

/// An authorization service over HTTP that says yes to everything, and of whom it was asked: `x-seen` is what it saw of
/// `x-role`, and `x-user` is its own word.
fn authorizer() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            thread::spawn(move || {
                while let Some(head) = head(&mut stream) {
                    let roles: Vec<&str> = head.lines().filter_map(|line| line.strip_prefix("x-role: ")).collect();
                    let text = format!(
                        "HTTP/1.1 200 OK\r\nx-user: al\r\nx-seen: {}\r\ncontent-length: 0\r\n\r\n",
                        roles.join("|")
                    );
                    if stream.write_all(text.as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

/// A proxy before a [`mirror`], with these fields of the manager, filters before the router, and routes (`c` is the mirror).
fn proxy(manager: &str, filters: &[String], routes: &str) -> RunningProxy {
    proxy_with(manager, filters, routes, "")
}

/// `configuration` is put among the fields of the route configuration.
fn proxy_with(manager: &str, filters: &[String], routes: &str, configuration: &str) -> RunningProxy {
    let cluster = |name: &str, to: SocketAddr| {
        format!(
            "{{name: {name}, load_assignment: {{cluster_name: {name}, endpoints: [{{lb_endpoints: [{{endpoint: {{address: \
             {{socket_address: {{address: 127.0.0.1, port_value: {}}}}}}}}}]}}]}}}}",
            to.port()
        )
    };
    let filters: String = filters.iter().map(|filter| format!("{filter}, ")).collect();
    RunningProxy::start(
        &format!(
            r#"
admin: {{address: {{socket_address: {{address: 127.0.0.1, port_value: 0}}}}}}
static_resources:
  listeners:
  - name: in
    address: {{socket_address: {{address: 127.0.0.1, port_value: 0}}}}
    filter_chains: [{{filters: [{{name: hcm, typed_config: {{
      "@type": {FILTERS}.network.http_connection_manager.v3.HttpConnectionManager, stat_prefix: in, {manager},
      route_config: {{{configuration}virtual_hosts: [{{name: v, domains: ['*'], routes: [{routes}]}}]}},
      http_filters: [{filters}{{name: r, typed_config: {{"@type": {FILTERS}.http.router.v3.Router}}}}]}}}}]}}]
  clusters: [{}, {}]
"#,
            cluster("c", mirror()),
            cluster("authz", authorizer())
        ),
        1,
    )
}

const ALL: &str = "{match: {prefix: /}, route: {cluster: c}}";

fn rbac(action: &str, permission: &str) -> String {
    format!(
        "{{name: rbac, typed_config: {{'@type': {FILTERS}.http.rbac.v3.RBAC, rules: {{action: {action}, policies: {{p: \
         {{permissions: [{permission}], principals: [{{any: true}}]}}}}}}}}}}"
    )
}

fn path_is(path: &str) -> String {
    format!("{{url_path: {{path: {{exact: {path}}}}}}}")
}

fn ext_authz() -> String {
    format!(
        "{{name: authz, typed_config: {{'@type': {FILTERS}.http.ext_authz.v3.ExtAuthz, transport_api_version: V3, http_service: {{server_uri: {{uri: \
         'http://a', cluster: authz, timeout: 5s}}, authorization_response: {{allowed_upstream_headers: {{patterns: \
         [{{exact: x-user}}, {{exact: x-seen}}]}}}}}}, allowed_headers: {{patterns: [{{exact: x-role}}]}}}}}}"
    )
}

/// Status and everything behind the status line.
fn send(to: SocketAddr, request: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let (line, rest) = answer.split_once("\r\n").unwrap_or_else(|| panic!("{request:?}: {answer:?}"));
    (line.split(' ').nth(1).unwrap().parse().unwrap(), rest.to_owned())
}

fn get(proxy: &RunningProxy, path: &str, fields: &str) -> (u16, String) {
    send(proxy.socket("in"), &format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{fields}\r\n"))
}

/// The path that the upstream was asked for.
fn forwarded(answer: &str) -> &str {
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    body.split(' ').nth(1).unwrap_or_default()
}

/// The values of a field, in the head that the upstream saw.
fn seen<'a>(answer: &'a str, name: &str) -> Vec<&'a str> {
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    body.lines().filter_map(|line| line.split_once(": ")).filter(|(n, _)| *n == name).map(|(_, v)| v).collect()
}

#[test]
fn r44_rbac_and_the_upstream_see_the_normalised_path() {
    let open = proxy(EDGE, &[], ALL);
    let guarded = proxy(EDGE, &[rbac("DENY", &path_is("/admin"))], ALL);
    for (path, clean) in [
        ("/a/../admin", "/admin"),
        ("//admin", "/admin"),
        (r"/a\..\admin", "/admin"),
        ("/%2e%2e/admin", "/admin"),
        ("/a/./b", "/a/b"),
        ("/a//b", "/a/b"),
    ] {
        let (status, answer) = get(&open, path, "");
        assert_eq!((status, forwarded(&answer)), (200, clean), "{path}");
        let (status, _) = get(&guarded, path, "");
        assert_eq!(status, if clean == "/admin" { 403 } else { 200 }, "{path}");
    }
}

#[test]
fn r45_escaped_slashes_are_kept_refused_redirected_or_forwarded_as_configured() {
    let (slash, back) = ("/a%2f..%2Fadmin", "/a%5cadmin");
    for (action, wanted) in [
        ("KEEP_UNCHANGED", [(200, slash), (200, back)]),
        ("REJECT_REQUEST", [(400, ""), (400, "")]),
        ("UNESCAPE_AND_REDIRECT", [(307, "/admin"), (307, "/a/admin")]),
        ("UNESCAPE_AND_FORWARD", [(200, "/admin"), (200, "/a/admin")]),
    ] {
        let manager = format!("normalize_path: true, path_with_escaped_slashes_action: {action}");
        let proxy = proxy(&manager, &[], ALL);
        for (path, (status, clean)) in [slash, back].into_iter().zip(wanted) {
            let (got, answer) = get(&proxy, path, "");
            assert_eq!(got, status, "{action} {path}");
            match status {
                200 => assert_eq!(forwarded(&answer), clean, "{action} {path}"),
                307 => assert!(answer.contains(&format!("location: {clean}\r\n")), "{action} {path}: {answer}"),
                _ => {}
            }
        }
    }
}

// As Envoy 1.40: the connection closes, and nothing behind such a request is looked at.
#[test]
fn r46_a_fragment_or_an_impossible_path_is_refused_and_nothing_may_follow() {
    let proxy = proxy(EDGE, &[], ALL);
    for path in ["/a#/../admin", "http://x/a#b", "/a%00b"] {
        let request = format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n");
        let (status, answer) = send(proxy.socket("in"), &request.repeat(2));
        assert_eq!((status, answer.matches("HTTP/1.1").count()), (400, 0), "{path}: {answer}");
        assert!(answer.contains("connection: close\r\n"), "{path}: {answer}");
    }
}

// As Envoy 1.40: what HTTP/1 says of itself goes before what the manager says.
#[test]
fn r46_where_it_is_configured_a_refused_path_ends_its_request_and_not_its_connection() {
    let own = "stream_error_on_invalid_http_message";
    let of =
        |manager: &str, http1: &str| format!("{own}: {manager}, http_protocol_options: {{override_{own}: {http1}}}");
    let settings = [(format!("{own}: true"), 2), (of("false", "true"), 2), (of("true", "false"), 1)];
    for (manager, answers) in settings {
        let proxy = proxy(&manager, &[], ALL);
        let good = "GET /good HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
        let (status, rest) = send(proxy.socket("in"), &format!("GET /a#b HTTP/1.1\r\nhost: a\r\n\r\n{good}"));
        assert_eq!((status, rest.contains("HTTP/1.1 200 OK")), (400, answers == 2), "{manager}: {rest}");
    }
}

#[test]
fn r48_each_of_several_values_is_tested_on_its_own_and_an_authorizer_sees_them_joined() {
    let role = |value: &str| format!("{{header: {{name: x-role, string_match: {{exact: {value}}}}}}}");
    let denied = proxy(EDGE, &[rbac("DENY", &role("admin"))], ALL);
    let allowed = proxy(EDGE, &[rbac("ALLOW", &role("user"))], ALL);
    let asked = proxy(EDGE, &[ext_authz()], ALL);
    let (one, two) = ("x-role: user\r\nx-role: admin\r\n", "x-role: admin\r\nx-role: user\r\n");
    let joined = "x-role: user,admin\r\n";
    assert_eq!([one, two, joined].map(|fields| get(&denied, "/", fields).0), [403, 403, 200]);
    for (fields, values) in [(one, ["user", "admin"]), (two, ["admin", "user"])] {
        let (status, answer) = get(&allowed, "/", fields);
        assert_eq!((status, seen(&answer, "x-role")), (200, values.to_vec()));
    }
    assert_eq!(seen(&get(&asked, "/", one).1, "x-seen"), ["user,admin"]);
}

// As Envoy 1.40.
#[test]
fn headers_that_are_internal_only_are_dropped_from_requests_of_others() {
    for (internal, kept) in [("127.0.0.0", vec!["1"]), ("10.0.0.0", vec![])] {
        let manager = format!(
            "use_remote_address: true, internal_address_config: {{cidr_ranges: [{{address_prefix: {internal}, prefix_len: 8}}]}}"
        );
        let proxy = proxy_with(&manager, &[], ALL, "internal_only_headers: [X-Inside], ");
        let (status, answer) = get(&proxy, "/", "x-inside: 1\r\n");
        assert_eq!((status, seen(&answer, "x-inside")), (200, kept), "{internal}");
    }
}

#[test]
fn r50_what_only_the_edge_may_say_is_dropped_or_replaced() {
    let proxy = proxy(EDGE, &[], ALL);
    let spoofed = "x-forwarded-for: 6.6.6.6\r\nx-forwarded-proto: https\r\nx-envoy-internal: true\r\n\
                   x-envoy-original-path: /x\r\nx-envoy-retry-on: 5xx\r\nx-envoy-upstream-rq-timeout-ms: 1\r\n\
                   x-forwarded-client-cert: By=x\r\nx-request-id: mine\r\n";
    let (status, answer) = get(&proxy, "/", spoofed);
    assert_eq!(status, 200);
    let chain = seen(&answer, "x-forwarded-for");
    // Envoy tells a loopback peer by the machine's first other address.
    assert!(chain.len() == 1 && chain[0].starts_with("6.6.6.6,") && chain[0].len() > 8, "{chain:?}");
    assert_eq!(seen(&answer, "x-forwarded-proto"), ["http"]);
    for name in ["x-envoy-internal", "x-envoy-original-path", "x-envoy-retry-on", "x-envoy-upstream-rq-timeout-ms"] {
        assert_eq!(seen(&answer, name), [""; 0], "{name}");
    }
    assert_eq!(seen(&answer, "x-forwarded-client-cert"), [""; 0]);
    let id = seen(&answer, "x-request-id");
    assert!(id.len() == 1 && id[0] != "mine", "{id:?}");
    // Where nobody opted into it, nobody further on shall believe it either; Envoy passes it.
    let (_, answer) = get(&proxy, "/", "x-envoy-original-dst-host: 169.254.169.254:80\r\n");
    assert!(seen(&answer, "x-envoy-original-dst-host").is_empty(), "{answer}");
    // A private address that somebody names makes nobody internal.
    let (_, answer) = get(&proxy, "/", "x-forwarded-for: 10.0.0.1\r\nx-envoy-retry-on: 5xx\r\n");
    assert!(seen(&answer, "x-envoy-internal").is_empty() && seen(&answer, "x-envoy-retry-on").is_empty());
}

#[test]
fn r52_aliases_of_known_names_stop_at_the_edge_and_never_pass_beside_an_authorizers_word() {
    let edge = proxy(EDGE, &[], ALL);
    let open = proxy("use_remote_address: true", &[ext_authz()], ALL);
    for fields in ["X_Forwarded_For: 1.2.3.4\r\n", "Content_Length: 5\r\n"] {
        assert_eq!(get(&edge, "/", fields).0, 400, "{fields}");
        assert_eq!(get(&open, "/", fields).0, 200, "{fields}");
    }
    let (status, answer) = get(&open, "/", "X_User: eve\r\nX.User: eve\r\nx-user: eve\r\nx-users: eve\r\n");
    let names = ["x-user", "x_user", "x.user", "x-users"].map(|name| seen(&answer, name));
    assert_eq!((status, names), (200, [vec!["al"], vec![], vec![], vec!["eve"]]));
}

#[test]
fn r53_requests_without_a_path_are_denied_by_who_wants_one_and_logged_with_a_dash() {
    let folder = tempfile::tempdir().unwrap();
    let (text, json) = (folder.path().join("text"), folder.path().join("json"));
    let log = |path: &std::path::Path, format: &str| {
        format!(
            "{{name: l, typed_config: {{'@type': type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog, \
             path: {}, log_format: {{{format}}}}}}}",
            path.display()
        )
    };
    let line = r#"text_format_source: {inline_string: "%REQ(:METHOD)% %REQ(:PATH)% %REQ(HOST)% %RESPONSE_CODE%\n"}"#;
    let fields = "json_format: {code: '%RESPONSE_CODE%', host: '%REQ(HOST)%', path: '%REQ(:PATH)%'}";
    let manager = format!(
        "{EDGE}, upgrade_configs: [{{upgrade_type: CONNECT}}], access_log: [{}, {}]",
        log(&text, line),
        log(&json, fields)
    );
    let routes = format!("{ALL}, {{match: {{connect_matcher: {{}}}}, route: {{cluster: c}}}}");
    let wants_a_path = rbac("ALLOW", "{url_path: {path: {prefix: /}}}");
    {
        let proxy = proxy(&manager, &[ext_authz(), wants_a_path], &routes);
        let to = proxy.socket("in");
        let connect = "CONNECT a:443 HTTP/1.1\r\nhost: a:443\r\nconnection: close\r\n\r\n";
        assert_eq!(send(to, connect).0, 403);
        // As Envoy: no route is for an asterisk.
        assert_eq!(send(to, "OPTIONS * HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").0, 404);
        assert_eq!(get(&proxy, "/", "").0, 200);
    }
    let [text, json] = [text, json].map(|file| std::fs::read_to_string(file).unwrap());
    assert_eq!(text, "CONNECT - a:443 403\nOPTIONS * a 404\nGET / a 200\n");
    let lines = [
        r#"{"code":403,"host":"a:443","path":null}"#,
        r#"{"code":404,"host":"a","path":"*"}"#,
        r#"{"code":200,"host":"a","path":"/"}"#,
    ];
    assert_eq!(json.lines().collect::<Vec<_>>(), lines);
}

#[test]
fn nested_requirements_of_tokens_are_loaded_and_may_allow_that_there_is_none() {
    let keys = r#"local_jwks: {inline_string: '{"keys": [{"kty": "oct", "k": "YQ"}]}'}"#;
    let nested = "requires_any: {requirements: [{requires_all: {requirements: [{provider_name: p}, {provider_and_audiences: \
                  {provider_name: p, audiences: [a]}}]}}, {allow_missing: {}}]}";
    let filter = format!(
        "{{name: j, typed_config: {{'@type': {FILTERS}.http.jwt_authn.v3.JwtAuthentication, providers: {{p: {{issuer: i, \
         {keys}}}}}, rules: [{{match: {{prefix: /}}, requires: {{{nested}}}}}]}}}}"
    );
    let proxy = proxy(EDGE, &[filter], ALL);
    assert_eq!(["", "authorization: Bearer a.b.c\r\n"].map(|fields| get(&proxy, "/", fields).0), [200, 401]);
}

#[test]
fn the_router_rbac_and_the_upstream_see_the_same_path_whatever_it_is() {
    // The router says which of its two routes it took, and so does RBAC, by a rule with the same prefix.
    let (guard, tell) =
        ("{url_path: {path: {prefix: /s/}}}", "response_headers_to_add: [{header: {key: x-route, value: s}}]");
    let routes = format!("{{match: {{prefix: /s/}}, route: {{cluster: c}}, {tell}}}, {ALL}");
    let manager = "normalize_path: true, merge_slashes: true, path_with_escaped_slashes_action: UNESCAPE_AND_FORWARD";
    let (open, guarded) = (proxy(manager, &[], &routes), proxy(manager, &[rbac("DENY", guard)], &routes));
    let part = prop::sample::select(vec![
        "/", "s", "s/", "..", ".", "%2e", "%2E%2e", "%2f", "%5C", "\\", ";", "a", "%73", "//", "%25", "?", "%00", "%",
    ]);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig { cases: 256, ..ProptestConfig::default() });
    let paths = prop::collection::vec(part, 0..10).prop_map(|parts| format!("/{}", parts.concat()));
    let outcome = runner.run(&paths, |path| {
        let (status, answer) = get(&open, &path, "");
        let (guarded, _) = get(&guarded, &path, "");
        if status == 200 {
            let upstream = forwarded(&answer).starts_with("/s/");
            let router = answer.split("\r\n\r\n").next().unwrap().contains("x-route: s");
            prop_assert_eq!([upstream, router, guarded == 403], [upstream; 3], "{} -> {}", &path, forwarded(&answer));
            // What went upstream is what a second proxy would make of it.
            let (status, again) = get(&open, forwarded(&answer), "");
            prop_assert_eq!((status, forwarded(&again)), (200, forwarded(&answer)), "{}", &path);
        } else {
            prop_assert_eq!((status, guarded), (400, 400), "{}", &path);
        }
        Ok(())
    });
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
}
