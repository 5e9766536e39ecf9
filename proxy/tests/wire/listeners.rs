//! Listeners: addresses, workers, ends of connections.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;

use nuncio::extensions;
use nuncio::server::bootstrap;

use crate::running::{RunningProxy, options};

const ECHO: &str = r#"{filters: [{name: echo, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.echo.v3.Echo}}]}"#;
const HELLO: &str = r#"{filters: [{name: hello, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.direct_response.v3.Config, response: {inline_string: "hello\n"}}}]}"#;

fn listeners(list: &[String]) -> String {
    format!("static_resources: {{listeners: [{}]}}", list.join(", "))
}

fn ip(name: &str, address: &str, chain: &str) -> String {
    format!(
        "{{name: {name}, address: {{socket_address: {{address: \"{address}\", port_value: 0}}}}, filter_chains: [{chain}]}}"
    )
}

#[test]
fn echo_returns_every_byte_and_the_end() {
    let proxy = RunningProxy::start(&listeners(&[ip("echo", "127.0.0.1", ECHO)]), 2);
    for size in [1, 100_000, 3_000_000] {
        let sent: Vec<u8> = (0..size).map(|i| (i % 251) as u8).collect();
        let mut client = TcpStream::connect(proxy.socket("echo")).unwrap();
        let mut writer = client.try_clone().unwrap();
        let mut got = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                writer.write_all(&sent).unwrap();
                writer.shutdown(Shutdown::Write).unwrap();
            });
            client.read_to_end(&mut got).unwrap();
        });
        assert!(got == sent, "{size} bytes");
    }
}

#[test]
fn a_fixed_response_comes_over_every_kind_of_address() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("in.sock");
    let pipe =
        format!("{{name: unix, address: {{pipe: {{path: {}, mode: 384}}}}, filter_chains: [{HELLO}]}}", path.display());
    let shared = ip("shared", "127.0.0.1", HELLO).replacen("{name:", "{enable_reuse_port: false, name:", 1);
    let list = [ip("v4", "127.0.0.1", HELLO), ip("v6", "::1", HELLO), ip("any", "0.0.0.0", HELLO), shared, pipe];
    let proxy = RunningProxy::start(&listeners(&list), 2);
    let said = |mut stream: Box<dyn Read>| {
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    };
    for name in ["v4", "v6", "any", "shared"] {
        for _ in 0..8 {
            assert_eq!(said(Box::new(TcpStream::connect(proxy.socket(name)).unwrap())), "hello\n", "{name}");
        }
    }
    assert_eq!(said(Box::new(UnixStream::connect(&path).unwrap())), "hello\n");
}

/// Unread bytes at a close make the kernel reset the connection, which discards what it had sent.
#[test]
fn a_client_that_talks_first_still_gets_the_response() {
    let proxy = RunningProxy::start(&listeners(&[ip("hello", "127.0.0.1", HELLO)]), 1);
    let mut client = TcpStream::connect(proxy.socket("hello")).unwrap();
    client.write_all(&[0; 10_000]).unwrap();
    let mut text = String::new();
    client.read_to_string(&mut text).unwrap();
    assert_eq!(text, "hello\n");
}

#[test]
fn a_chain_without_filters_closes_the_connection() {
    let proxy = RunningProxy::start(&listeners(&[ip("empty", "127.0.0.1", "{}")]), 1);
    let mut client = TcpStream::connect(proxy.socket("empty")).unwrap();
    assert_eq!(client.read(&mut [0; 10]).unwrap(), 0);
}

#[test]
fn the_default_chain_takes_what_no_other_takes() {
    let listener = format!(
        "{{name: in, address: {{socket_address: {{address: 127.0.0.1, port_value: 0}}}}, default_filter_chain: {HELLO}}}"
    );
    let proxy = RunningProxy::start(&listeners(&[listener]), 1);
    let mut text = String::new();
    TcpStream::connect(proxy.socket("in")).unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "hello\n");
}

/// Envoy 1.40's own words for each, from `--mode validate`.
#[test]
fn what_envoy_refuses_is_refused_in_its_words() {
    let redis = "{name: rd, typed_config: {'@type': type.googleapis.com/envoy.extensions.filters.network.redis_proxy.v3.RedisProxy, stat_prefix: s, settings: {op_timeout: 1s}}}";
    let tcp = "address: {socket_address: {address: 127.0.0.1, port_value: 1}}";
    let echo = ECHO.trim_start_matches("{filters: [").trim_end_matches("]}");
    let cases = [
        (
            format!("{{{tcp}, filter_chains: [{{filters: [{echo}, {echo}]}}]}}"),
            "Error: terminal filter named echo of type envoy.filters.network.echo must be the last filter in a network filter chain.",
        ),
        (format!("{{{tcp}}}"), "error adding listener '127.0.0.1:1': no filter chains specified"),
        (format!("{{name: foo, filter_chains: [{ECHO}]}}"), "error adding listener named 'foo': address is necessary"),
        (
            format!("{{{tcp}, filter_chains: [{{filters: [{{name: foo}}]}}]}}"),
            "Didn't find a registered implementation for 'foo' with type URL: ''",
        ),
        (
            format!("{{{tcp}, filter_chains: [{ECHO}, {HELLO}]}}"),
            "error adding listener '127.0.0.1:1': filter chain '' has the same matching rules defined as ''. duplicate matcher is: {}",
        ),
        (
            format!("{{name: one, {tcp}, filter_chains: [{ECHO}]}}, {{name: two, {tcp}, filter_chains: [{ECHO}]}}"),
            "error adding listener: 'two' has duplicate address '127.0.0.1:1' as existing listener, to check if the listener has duplicated addresses with other listeners or 'enable_reuse_port' is set to 'false' for the listener",
        ),
        (
            format!(
                "{{name: l, address: {{socket_address: {{address: localhost, port_value: 1}}}}, filter_chains: [{ECHO}]}}"
            ),
            "malformed IP address: localhost",
        ),
        (
            format!(
                "{{name: l, {tcp}, filter_chains: [{{transport_socket: {{name: envoy.transport_sockets.raw_buffer}}, filters: [{echo}]}}]}}"
            ),
            "Didn't find a registered implementation for 'envoy.transport_sockets.raw_buffer' with type URL: ''",
        ),
        // Not implemented: said, and never a listener without its filter.
        (format!("{{{tcp}, filter_chains: [{{filters: [{redis}, {echo}]}}]}}"), "redis_proxy"),
    ];
    for (listener, expected) in cases {
        let problems = refused(&listeners(&[listener]));
        assert!(problems.contains(expected), "expected {expected}\ngot {problems}");
    }
}

fn refused(yaml: &str) -> String {
    let options = options(yaml, 1);
    let extensions = extensions::standard();
    let assembled = bootstrap::load(&options, &extensions).and_then(|l| bootstrap::assemble(l, options, extensions));
    let problems = assembled.err().expect("it is refused");
    problems.iter().map(|p| format!("{p}\n")).collect()
}
