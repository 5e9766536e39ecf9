//! How a client's connection ends, seen by the client: a whole response, then FIN, whatever it had sent besides.

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::running::RunningProxy;

const ANSWERS: &str = r#"
static_resources:
  listeners:
  - name: in
    address: {socket_address: {address: 127.0.0.1, port_value: 0}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: in
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes: [{match: {prefix: /}, direct_response: {status: 200, body: {inline_string: whole}}}]
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
"#;

/// All that comes back, to the FIN; a reset is an error.
fn exchange(proxy: &RunningProxy, sent: &[u8]) -> String {
    let mut client = TcpStream::connect(proxy.socket("in")).unwrap();
    client.write_all(sent).unwrap();
    let mut all = String::new();
    client.read_to_string(&mut all).unwrap();
    all
}

#[test]
fn a_request_that_is_the_last_is_answered_whole_and_closed_after() {
    let proxy = RunningProxy::start(ANSWERS, 1);
    for last in [
        "GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n",
        "GET / HTTP/1.1\r\nhost: a\r\nproxy-connection: close\r\n\r\n",
    ] {
        let answer = exchange(&proxy, last.as_bytes());
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nwhole"), "{answer}");
    }
}

/// What a client sends behind its last request is no request. If it lay unread at the close, the kernel would send a
/// reset, and that could take the response away from the client.
#[test]
fn what_follows_a_last_request_neither_runs_nor_resets() {
    let proxy = RunningProxy::start(ANSWERS, 1);
    let last = b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n".as_slice();
    for after in [b"\r\n".to_vec(), last.to_vec(), vec![b'x'; 30_000]] {
        let answer = exchange(&proxy, &[last, &after].concat());
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nwhole"), "{answer}");
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1);
    }
}
