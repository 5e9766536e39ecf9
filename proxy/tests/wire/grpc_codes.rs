//! The router's `suppress_grpc_request_failure_code_stats`: which counters do without the codes of gRPC calls. Read off
//! Envoy 1.40 with the same requests.

// An upstream on real sockets, on a thread of its own.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;

use crate::dynamic::{get_with, stat};
use crate::running::{RunningProxy, web};

/// Answers with the status that the path says.
fn upstream() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            thread::spawn(move || {
                let mut bytes = [0; 4096];
                while let Ok(n @ 1..) = stream.read(&mut bytes) {
                    let status = String::from_utf8_lossy(&bytes[..n]).split(['/', ' ']).nth(2).unwrap().to_owned();
                    let answer = format!("HTTP/1.1 {status} Well\r\ncontent-length: 0\r\n\r\n");
                    if stream.write_all(answer.as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    port
}

#[test]
fn the_codes_of_grpc_calls_are_not_in_the_plain_counters_of_the_cluster() {
    let cluster = format!(
        "- {{name: a, load_assignment: {{cluster_name: a, endpoints: [{{lb_endpoints: [{{endpoint: {{address: \
         {{socket_address: {{address: 127.0.0.1, port_value: {}}}}}}}}}]}}]}}}}",
        upstream()
    );
    let retry = "retry_policy: {retry_on: retriable-status-codes, retriable_status_codes: [504], num_retries: 1}";
    let router = "envoy.extensions.filters.http.router.v3.Router";
    let yaml = web(&format!("route: {{cluster: a, {retry}}}"), "", &cluster)
        .replace(&format!("{router}}}"), &format!("{router}, suppress_grpc_request_failure_code_stats: true}}"));
    let proxy = RunningProxy::start(&yaml, 1);
    let (grpc, plain) = ("content-type: application/grpc+proto\r\n", "content-type: text/plain\r\n");
    for (path, of) in [("/200", grpc), ("/503", grpc), ("/503", plain), ("/504", grpc)] {
        get_with(proxy.socket("web"), path, of);
    }
    let count = |name: &str| stat(&proxy, &format!("cluster.a.{name}"));
    let plain = ["upstream_rq_completed", "upstream_rq_200", "upstream_rq_503", "upstream_rq_504", "upstream_rq_5xx"];
    assert_eq!(plain.map(count), ["4", "", "1", "", "1"]);
    let external = ["external.upstream_rq_completed", "external.upstream_rq_200", "external.upstream_rq_503"];
    assert_eq!(external.map(count), ["4", "1", "2"], "what is counted by whom it is for has all codes");
    assert_eq!(["retry.upstream_rq_completed", "retry.upstream_rq_504"].map(count), ["1", ""]);
}
