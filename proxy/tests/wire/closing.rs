//! How a client's connection ends, seen by the client: a whole response, then FIN, whatever it had sent besides.

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::running::{RunningProxy, web};

fn answers() -> RunningProxy {
    RunningProxy::start(&web("direct_response: {status: 200, body: {inline_string: whole}}", "", ""), 1)
}

/// All that comes back, to the FIN; a reset is an error.
fn exchange(proxy: &RunningProxy, sent: &[u8]) -> String {
    let mut client = TcpStream::connect(proxy.socket("web")).unwrap();
    client.write_all(sent).unwrap();
    let mut all = String::new();
    client.read_to_string(&mut all).unwrap();
    all
}

#[test]
fn a_request_that_is_the_last_is_answered_whole_and_closed_after() {
    let proxy = answers();
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
    let proxy = answers();
    let last = b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n".as_slice();
    for after in [b"\r\n".to_vec(), last.to_vec(), vec![b'x'; 30_000]] {
        let answer = exchange(&proxy, &[last, &after].concat());
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nwhole"), "{answer}");
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1);
    }
}
