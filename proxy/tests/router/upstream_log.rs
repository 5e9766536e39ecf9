//! The router's `upstream_log`: what is told of each attempt. Every line was read off Envoy 1.40 with the same
//! configuration and the same upstream.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::spawn_local;

use crate::ask;
use crate::running::{MANAGER, RunningProxy};

/// Answers as the path says: `/hello`, `/bad` (503), `/hang` (never), `/reset` (closes).
async fn serve(mut stream: TcpStream) {
    let mut bytes = [0; 4096];
    while let Ok(n @ 1..) = stream.read(&mut bytes).await {
        let request = String::from_utf8_lossy(&bytes[..n]).into_owned();
        let answer = match request.split(' ').nth(1).unwrap_or_default() {
            "/hello" => "HTTP/1.1 200 OK\r\nx-r: yes\r\ncontent-length: 11\r\n\r\nhello world",
            "/bad" => "HTTP/1.1 503 No\r\ncontent-length: 2\r\n\r\nno",
            "/hang" => continue,
            _ => return,
        };
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
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

fn bootstrap(log: &Path, options: &str, up: SocketAddr, down: SocketAddr) -> String {
    let cluster = |name: &str, at: SocketAddr| {
        format!(
            "{{name: {name}, load_assignment: {{cluster_name: {name}, endpoints: [{{lb_endpoints: [{{endpoint: {{address: \
             {{socket_address: {{address: 127.0.0.1, port_value: {}}}}}}}}}]}}]}}}}",
            at.port()
        )
    };
    let file = |format: &str| {
        format!(
            "{{name: f, typed_config: {{'@type': type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog, \
             path: {}, log_format: {{text_format_source: {{inline_string: \"{format}\\n\"}}}}}}}}",
            log.display()
        )
    };
    let attempt = "%ACCESS_LOG_TYPE% %REQ(:PATH)% %RESPONSE_CODE% %RESPONSE_FLAGS% rx=%BYTES_RECEIVED% tx=%BYTES_SENT% \
                   %PROTOCOL% %ROUTE_NAME% %UPSTREAM_CLUSTER% %RESP(X-R)% attempts=%UPSTREAM_REQUEST_ATTEMPT_COUNT%";
    let retry = "retry_policy: {retry_on: 5xx, num_retries: 1, retry_back_off: {base_interval: 0.001s}";
    format!(
        r#"
{MANAGER}          access_log: [{stream}]
          route_config:
            virtual_hosts:
            - name: v
              domains: ['*']
              routes:
              - {{name: retry, match: {{prefix: /retry}}, route: {{cluster: up, prefix_rewrite: /bad, {retry}}}}}}}
              - {{name: slow, match: {{prefix: /slow}}, route: {{cluster: up, prefix_rewrite: /hang, timeout: 0.2s}}}}
              - {{name: try, match: {{prefix: /try}}, route: {{cluster: up, prefix_rewrite: /hang, {retry}, per_try_timeout: 0.1s}}}}}}
              - {{name: down, match: {{prefix: /down}}, route: {{cluster: down}}}}
              - {{name: none, match: {{prefix: /none}}, route: {{cluster: none}}}}
              - {{name: all, match: {{prefix: /}}, route: {{cluster: up}}}}
          http_filters:
          - name: r
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
              upstream_log: [{attempt}]
              upstream_log_options: {{{options}}}
  clusters: [{up}, {down}, {{name: none}}]
"#,
        stream = file("%RESPONSE_CODE% %RESPONSE_FLAGS%"),
        attempt = file(attempt),
        up = cluster("up", up),
        down = cluster("down", down),
    )
}

/// The lines that the requests leave.
async fn lines(options: &str, requests: &[(&str, &str)]) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    // Nobody listens there any more.
    let down = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let proxy = RunningProxy::start(&bootstrap(&log, options, upstream().await, down), 1);
    for (head, body) in requests {
        ask(&proxy, &format!("{head}\r\nhost: a\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len()))
            .await;
    }
    drop(proxy);
    fs::read_to_string(log).unwrap().lines().map(str::to_owned).collect()
}

#[tokio::test(flavor = "local")]
async fn each_attempt_has_its_record_before_that_of_its_stream() {
    let paths = ["/hello", "/bad", "/retry", "/reset", "/down", "/none", "/slow", "/try"];
    // A GET is replaced where its kept connection closes under it: docs/differences.md.
    let heads = paths.map(|path| format!("POST {path} HTTP/1.1"));
    let requests = heads.each_ref().map(|head| (head.as_str(), ""));
    let end = |rest: &str| format!("UpstreamEnd {rest} attempts=0");
    let expected = [
        end("/hello 200 - rx=11 tx=0 HTTP/1.1 all up yes"),
        "200 -".into(),
        end("/bad 503 - rx=2 tx=0 HTTP/1.1 all up -"),
        "503 -".into(),
        end("/bad 503 - rx=0 tx=0 HTTP/1.1 retry up -"),
        end("/bad 503 - rx=2 tx=0 HTTP/1.1 retry up -"),
        "503 URX".into(),
        end("/reset 0 UC rx=0 tx=0 HTTP/1.1 all up -"),
        "503 UC".into(),
        end("/down 0 UF rx=0 tx=0 - down down -"),
        "503 UF".into(),
        "503 UH".into(),
        end("/hang 0 - rx=0 tx=0 HTTP/1.1 slow up -"),
        "504 UT".into(),
        end("/hang 0 UT rx=0 tx=0 HTTP/1.1 try up -"),
        end("/hang 0 UT rx=0 tx=0 HTTP/1.1 try up -"),
        "504 URX,UT".into(),
    ];
    assert_eq!(lines("", &requests).await, expected);
}

#[tokio::test(flavor = "local")]
async fn attempts_that_get_a_connection_are_told_at_once_where_that_is_wanted() {
    let requests = [("POST /hello HTTP/1.1", "12345"), ("GET /retry HTTP/1.1", ""), ("GET /down HTTP/1.1", "")];
    let told = lines("flush_upstream_log_on_upstream_stream: true", &requests).await;
    let attempts: Vec<&str> = told.iter().filter(|line| line.starts_with("Up")).map(String::as_str).collect();
    let expected = [
        "UpstreamPoolReady /hello 0 - rx=0 tx=0 HTTP/1.1 all up - attempts=0",
        "UpstreamEnd /hello 200 - rx=11 tx=5 HTTP/1.1 all up yes attempts=0",
        "UpstreamPoolReady /bad 0 - rx=0 tx=0 HTTP/1.1 retry up - attempts=0",
        "UpstreamEnd /bad 503 - rx=0 tx=0 HTTP/1.1 retry up - attempts=0",
        "UpstreamPoolReady /bad 0 - rx=0 tx=0 HTTP/1.1 retry up - attempts=0",
        "UpstreamEnd /bad 503 - rx=2 tx=0 HTTP/1.1 retry up - attempts=0",
        "UpstreamEnd /down 0 UF rx=0 tx=0 - down down - attempts=0",
    ];
    assert_eq!(attempts, expected);
}
