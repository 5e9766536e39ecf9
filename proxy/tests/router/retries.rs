//! Every word of `retry_on` against every way in which an upstream can fail. Which of them is a
//! second try was read off Envoy 1.40 with the same configuration: all 315 pairs.

use std::net::SocketAddr;

use socket2::{Domain, SockRef, Socket, Type};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::spawn_local;

use crate::ask;
use crate::running::RunningProxy;

/// Words, what else the policy says, and the failures that get a second try.
const CONDITIONS: [(&str, &str, &[&str]); 15] = [
    ("5xx", "", &["500", "502", "503", "504", "close", "reset", "refused"]),
    ("gateway-error", "", &["502", "503", "504", "close", "reset", "refused"]),
    ("reset", "", &["close", "reset", "refused"]),
    ("reset-before-request", "", &["refused"]),
    ("connect-failure", "", &["refused"]),
    ("envoy-ratelimited", "", &["limited"]),
    ("retriable-4xx", "", &["409"]),
    ("refused-stream", "", &[]),
    ("retriable-status-codes", ", retriable_status_codes: [404]", &["404"]),
    ("retriable-headers", ", retriable_headers: [{name: x-retry-me, present_match: true}]", &["header"]),
    ("cancelled", "", &["grpc1"]),
    ("deadline-exceeded", "", &["grpc4"]),
    ("internal", "", &["grpc13"]),
    ("resource-exhausted", "", &["grpc8"]),
    ("unavailable", "", &["grpc14"]),
];

/// Ways to answer, and the status that the client sees in the end.
const ANSWERS: [(&str, &str); 21] = [
    ("200", "200"),
    ("500", "500"),
    ("502", "502"),
    ("503", "503"),
    ("504", "504"),
    ("409", "409"),
    ("404", "404"),
    ("429", "429"),
    ("limited", "429"),
    ("header", "200"),
    ("close", "503"),
    ("reset", "503"),
    // After its head and half of its body.
    ("cut", "200"),
    ("refused", "503"),
    ("grpc1", "200"),
    ("grpc4", "200"),
    ("grpc8", "200"),
    ("grpc13", "200"),
    ("grpc14", "200"),
    ("grpc0", "200"),
    ("grpc2", "200"),
];

/// Answers as the second part of the path says.
async fn serve(mut stream: TcpStream) {
    let mut head = Vec::new();
    loop {
        match stream.read_buf(&mut head).await {
            Ok(n) if n > 0 => {}
            _ => return,
        }
        if !head.ends_with(b"\r\n\r\n") {
            continue;
        }
        let text = String::from_utf8_lossy(&head).into_owned();
        let how = text.split(' ').nth(1).unwrap().rsplit('/').next().unwrap();
        let (mut status, mut fields) = ("200", String::new());
        match how {
            "close" => return,
            "reset" => return SockRef::from(&stream).set_linger(Some(std::time::Duration::ZERO)).unwrap(),
            "cut" => {
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf").await.unwrap();
                return;
            }
            "limited" => (status, fields) = ("429", "x-envoy-ratelimited: true\r\n".into()),
            "header" => fields = "x-retry-me: 1\r\n".into(),
            grpc if grpc.starts_with("grpc") => {
                fields = format!("content-type: application/grpc\r\ngrpc-status: {}\r\n", &grpc[4..]);
            }
            number => status = number,
        }
        let answer = format!("HTTP/1.1 {status} Scripted\r\n{fields}content-length: 0\r\n\r\n");
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
        head.clear();
    }
}

async fn upstream() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    spawn_local(async move {
        while let Ok((stream, _)) = listener.accept().await {
            spawn_local(serve(stream));
        }
    });
    address
}

fn configuration(upstream: SocketAddr, refusing: SocketAddr) -> String {
    let mut routes = String::new();
    for (word, more, _) in CONDITIONS {
        for (prefix, cluster) in [(format!("/{word}/refused"), "refusing"), (format!("/{word}/"), "c")] {
            routes += &format!(
                "\n              - {{match: {{prefix: {prefix}}}, route: {{cluster: {cluster}, retry_policy: {{retry_on: \
                 {word}{more}, retry_back_off: {{base_interval: 0.001s}}}}}}}}"
            );
        }
    }
    let yaml = crate::stage::configuration(upstream, "", "").replace(
        "routes: [{match: {prefix: \"/\"}, route: {cluster: c, timeout: 0s}}]",
        &format!("include_attempt_count_in_response: true\n              routes:{routes}"),
    );
    format!(
        "{yaml}  - name: refusing\n    connect_timeout: 5s\n    load_assignment: {{cluster_name: refusing, endpoints: [{{lb_endpoints: \
         [{{endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {}}}}}}}}}]}}]}}\n",
        refusing.port()
    )
}

#[tokio::test(flavor = "local")]
async fn every_word_of_retry_on_tries_again_what_envoy_tries_again() {
    // Bound and not listening: nobody else gets the port, and connecting is refused.
    let refusing = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    refusing.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let refusing_address = refusing.local_addr().unwrap().as_socket().unwrap();
    let proxy = RunningProxy::start(&configuration(upstream().await, refusing_address), 1);
    let mut wrong = Vec::new();
    for (word, _, again) in CONDITIONS {
        for (how, status) in ANSWERS {
            let request =
                format!("POST /{word}/{how} HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
            let answer = ask(&proxy, &request).await;
            let tries = answer.split("x-envoy-attempt-count: ").nth(1).map(|rest| &rest[..1]);
            let expected = if again.contains(&how) { "2" } else { "1" };
            if !answer.starts_with(&format!("HTTP/1.1 {status} ")) || tries != Some(expected) {
                wrong.push(format!("{word}, {how}: {tries:?} tries, {answer}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
