//! Filters whose configuration comes from a file that is replaced (`config_discovery`). What requests and statistics show
//! is what Envoy 1.40 shows for the same configuration and the same files, but where a comment says otherwise.

// Clients of real sockets, on threads and clocks of their own.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;

use crate::dynamic::{get, put, stat, until, until_stat};
use crate::running::RunningProxy;

const EXTENSION: &str = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig";
const MUTATION: &str = "type.googleapis.com/envoy.extensions.filters.http.header_mutation.v3.HeaderMutation";

/// A filter that says `value` in `x-v`.
fn says(value: &str) -> String {
    format!(
        "{{'@type': {MUTATION}, mutations: {{response_mutations: [{{append: {{header: {{key: x-v, value: {value}}}, \
         append_action: OVERWRITE_IF_EXISTS_OR_ADD}}}}]}}}}"
    )
}

fn extension(name: &str, config: &str) -> String {
    format!("{{'@type': {EXTENSION}, name: {name}, typed_config: {config}}}")
}

fn answer(version: u32, resources: &[String]) -> String {
    format!("version_info: '{version}'\nresources: [{}]\n", resources.join(", "))
}

/// One listener for each filter: its name, its file, and what else its source says.
fn bootstrap(folder: &Path, filters: &[(&str, &str, &str)]) -> String {
    let listener = |(name, file, more): &(&str, &str, &str)| {
        format!(
            r#"
  - name: {name}
    address: {{socket_address: {{address: 127.0.0.1, port_value: 0}}}}
    filter_chains:
    - filters:
      - name: hcm
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: {name}
          access_log:
          - name: file
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog
              path: {folder}/log
              log_format: {{text_format_source: {{inline_string: "%RESPONSE_CODE% %RESPONSE_FLAGS%\n"}}}}
          route_config: {{virtual_hosts: [{{name: v, domains: ['*'], routes: [{{match: {{prefix: /}}, direct_response: {{status: 200}}}}]}}]}}
          http_filters:
          - name: {name}
            config_discovery: {{type_urls: [{MUTATION}], config_source: {{path_config_source: {{path: {folder}/{file}}}}}{more}}}
          - {{name: r, typed_config: {{"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}}}"#,
            folder = folder.display(),
        )
    };
    let listeners: String = filters.iter().map(listener).collect();
    let admin = "admin: {address: {socket_address: {address: 127.0.0.1, port_value: 0}}}";
    format!("{admin}\nstatic_resources:\n  listeners:{listeners}\n")
}

#[test]
fn a_filter_is_what_its_file_says_and_a_wrong_file_leaves_it_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let put = |text: &str| put(folder.path(), "f.yaml", text);
    put(&answer(1, &[extension("f", &says("one"))]));
    let proxy = RunningProxy::start(&bootstrap(folder.path(), &[("f", "f.yaml", "")]), 1);
    assert!(get(proxy.socket("f"), "/").contains("x-v: one"), "the listener waited for it");
    let mut kept = Client::new(proxy.socket("f"));
    assert!(kept.get().contains("x-v: one"));

    // Envoy takes no more than one from a file: docs/differences.md.
    put(&answer(2, &[extension("other", &says("another")), extension("f", &says("two"))]));
    until_stat(&proxy, "extension_config_discovery.http_filter.f.config_reload", "2");
    assert!(get(proxy.socket("f"), "/").contains("x-v: two"));
    assert!(kept.get().contains("x-v: two"), "the next request of a connection that was there before has it too");

    let metadata = "{'@type': type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config}";
    let wrong = [
        vec![],
        vec![extension("other", &says("three"))],
        vec![extension("f", metadata)],
        vec![extension("f", &says("three").replace("append_action", "nothing"))],
        vec![extension("f", &says("three").replace("x-v", r#""two\nlines""#))],
        vec![format!("{{'@type': {EXTENSION}, name: f}}")],
    ];
    for (i, resources) in wrong.iter().enumerate() {
        put(&answer(3, resources));
        let count = (i + 1).to_string();
        until_stat(&proxy, "extension_config_discovery.http_filter.f.config_fail", &count);
        assert!(get(proxy.socket("f"), "/").contains("x-v: two"), "{resources:?}");
    }
    let stat = |name: &str| stat(&proxy, &format!("extension_config_discovery.http_filter.f.{name}"));
    let expected = ["2", "2", "\"2\"", "0"];
    assert_eq!(["update_success", "config_reload", "version_text", "config_conflict"].map(stat), expected);
    let dump = get(proxy.admin(), "/config_dump?resource=ecds_filters");
    assert!(dump.contains("\"version_info\": \"2\"") && dump.contains("\"value\": \"two\""), "{dump}");
    assert!(dump.contains("EcdsConfigDump.EcdsFilterConfig"), "{dump}");
}

#[test]
fn without_any_configuration_requests_are_answered_500_unless_there_is_a_default() {
    let folder = tempfile::tempdir().unwrap();
    put(folder.path(), "none.yaml", &answer(1, &[]));
    put(folder.path(), "late.yaml", &answer(1, &[extension("late", &says("late"))]));
    let default = format!(", default_config: {}", says("default"));
    let at_once = format!("{default}, apply_default_config_without_warming: true");
    let filters = [("none", "none.yaml", ""), ("default", "none.yaml", &*default), ("late", "late.yaml", &*at_once)];
    let proxy = RunningProxy::start(&bootstrap(folder.path(), &filters), 1);
    let missing = get(proxy.socket("none"), "/");
    assert!(missing.starts_with("HTTP/1.1 500 ") && missing.contains("content-length: 0\r\n"), "{missing}");
    assert!(get(proxy.socket("default"), "/").contains("x-v: default"));
    until(&proxy, "late", "/", "x-v: late");
    put(folder.path(), "none.yaml", &answer(2, &[extension("none", &says("some"))]));
    until(&proxy, "none", "/", "x-v: some");
    drop(proxy);
    let log = fs::read_to_string(folder.path().join("log")).unwrap();
    assert_eq!(log.lines().next(), Some("500 NFCF"));
}

#[test]
fn no_request_is_without_the_filter_while_its_configuration_changes_a_hundred_times() {
    let folder = tempfile::tempdir().unwrap();
    let put =
        |version: u32| put(folder.path(), "f.yaml", &answer(version, &[extension("f", &says(&format!("v{version}")))]));
    put(1);
    let proxy = RunningProxy::start(&bootstrap(folder.path(), &[("f", "f.yaml", "")]), 2);
    let (done, asked, lost) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut client = Client::new(proxy.socket("f"));
                while !done.load(Relaxed) {
                    let answer = client.get();
                    asked.fetch_add(1, Relaxed);
                    if !answer.starts_with("HTTP/1.1 200") || !answer.contains("x-v: v") {
                        lost.fetch_add(1, Relaxed);
                    }
                }
            });
        }
        for version in 2..102 {
            let before = asked.load(Relaxed);
            put(version);
            while asked.load(Relaxed) < before + 4 {
                thread::yield_now();
            }
        }
        done.store(true, Relaxed);
    });
    assert_eq!(lost.load(Relaxed), 0, "of {}", asked.load(Relaxed));
    until(&proxy, "f", "/", "x-v: v101");
}

/// A connection of many requests whose answers have no body.
struct Client(TcpStream);

impl Client {
    fn new(address: SocketAddr) -> Self {
        Self(TcpStream::connect(address).unwrap())
    }

    fn get(&mut self) -> String {
        self.0.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
        let (mut answer, mut bytes) = (String::new(), [0; 4096]);
        while !answer.ends_with("\r\n\r\n") {
            let n = self.0.read(&mut bytes).unwrap();
            assert!(n > 0, "closed after {answer:?}");
            answer.push_str(std::str::from_utf8(&bytes[..n]).unwrap());
        }
        answer
    }
}
