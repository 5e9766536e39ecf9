//! Hedging and mirroring. The expected values were read off Envoy 1.40 with the same routes and the same upstreams:
//! answers, how many attempts there were, and what the mirrored copies said.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::spawn_local;
use tokio::time::{Duration, Instant};

use crate::ask;
use crate::running::RunningProxy;
use crate::stage::{configuration, stat, within};

/// After so many milliseconds, this status and this body.
type Says = (u64, u16, &'static str);

/// What each attempt of a path meets: the first, the second, and so on.
const SCRIPTS: [(&str, &[Says]); 6] = [
    ("/retry", &[(0, 503, "first"), (0, 200, "second")]),
    ("/hedged", &[(900, 200, "first"), (0, 200, "second")]),
    ("/nopolicy", &[(500, 200, "first"), (0, 200, "second")]),
    ("/global", &[(1500, 200, "first"), (1500, 200, "second")]),
    ("/bad", &[(500, 503, "first"), (900, 200, "second")]),
    ("/good", &[(500, 200, "first"), (100, 503, "second"), (1000, 200, "third")]),
];

/// Remembers the heads, with the bodies behind them.
#[derive(Clone, Default)]
struct Upstream(Rc<RefCell<Vec<String>>>);

impl Upstream {
    async fn start(&self) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (this, seen) = (self.clone(), Rc::new(RefCell::new(HashMap::new())));
        spawn_local(async move {
            while let Ok((stream, _)) = listener.accept().await {
                spawn_local(this.clone().serve(stream, seen.clone()));
            }
        });
        address
    }

    async fn serve(self, mut stream: TcpStream, seen: Rc<RefCell<HashMap<String, usize>>>) {
        let mut text = String::new();
        loop {
            let mut bytes = [0; 4096];
            let n = stream.read(&mut bytes).await.unwrap_or_default();
            text += std::str::from_utf8(&bytes[..n]).unwrap();
            let length = text.split("content-length: ").nth(1).and_then(|rest| rest.split("\r\n").next());
            let length: usize = length.map_or(0, |n| n.parse().unwrap());
            if text.split_once("\r\n\r\n").is_some_and(|(_, body)| body.len() == length) {
                break;
            }
            if n == 0 {
                return;
            }
        }
        let path = text.split(' ').nth(1).unwrap().to_owned();
        self.0.borrow_mut().push(text);
        let before = {
            let mut seen = seen.borrow_mut();
            let count = seen.entry(path.clone()).or_default();
            *count += 1;
            *count - 1
        };
        let script = SCRIPTS.iter().find(|(of, _)| *of == path);
        let (wait, status, body) = script.map_or((0, 200, "body"), |(_, says)| says[before.min(says.len() - 1)]);
        tokio::time::sleep(Duration::from_millis(wait)).await;
        let length = body.len();
        let answer = format!("HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}");
        // A client that gave up is none of our business.
        let _ = stream.write_all(answer.as_bytes()).await;
    }

    fn take(&self) -> Vec<String> {
        self.0.take()
    }
}

fn proxy(upstream: SocketAddr, mirrors: &[(&str, SocketAddr)], routes: &[String]) -> RunningProxy {
    proxy_of(upstream, mirrors, routes, ("", ""))
}

/// `changed` is replaced by what stands behind it.
pub fn proxy_of(
    upstream: SocketAddr,
    mirrors: &[(&str, SocketAddr)],
    routes: &[String],
    changed: (&str, &str),
) -> RunningProxy {
    let mut yaml = configuration(upstream, "", "").replacen(changed.0, changed.1, 1).replace(
        "routes: [{match: {prefix: \"/\"}, route: {cluster: c, timeout: 0s}}]",
        &format!(
            "include_attempt_count_in_response: true\n              routes:\n              - {}",
            routes.join("\n              - ")
        ),
    );
    for (name, address) in mirrors {
        yaml += &format!(
            "  - name: {name}\n    load_assignment: {{cluster_name: {name}, endpoints: [{{lb_endpoints: [{{endpoint: \
             {{address: {{socket_address: {{address: 127.0.0.1, port_value: {}}}}}}}}}]}}]}}\n",
            address.port()
        );
    }
    RunningProxy::start(&yaml, 1)
}

/// Status, attempts, and body of the answer; and how long it took.
async fn get(proxy: &RunningProxy, path: &str) -> (String, Duration) {
    let began = Instant::now();
    let answer = ask(proxy, &format!("GET {path} HTTP/1.1\r\nhost: web.test\r\nconnection: close\r\n\r\n")).await;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let attempts = head.split("x-envoy-attempt-count: ").nth(1).map_or("-", |rest| &rest[..1]);
    (format!("{} {attempts} {body}", &head[9..12]), began.elapsed())
}

#[tokio::test(flavor = "local")]
async fn a_slow_attempt_is_raced_and_the_first_good_answer_wins() {
    let upstream = Upstream::default();
    let hedged = |path: &str, timeout: &str, hedge: bool, retries: Option<u32>| {
        let hedge = if hedge { ", hedge_policy: {hedge_on_per_try_timeout: true}" } else { "" };
        let retry = retries.map_or(String::new(), |n| {
            format!(
                ", retry_policy: {{retry_on: 5xx, num_retries: {n}, per_try_timeout: 0.2s, retry_back_off: {{base_interval: 0.005s}}}}"
            )
        });
        format!("{{match: {{path: {path}}}, route: {{cluster: c, timeout: {timeout}{hedge}{retry}}}}}")
    };
    let routes = [
        hedged("/hedged", "2s", true, Some(1)),
        hedged("/nopolicy", "2s", true, None),
        hedged("/global", "0.8s", true, Some(1)),
        hedged("/bad", "2s", true, Some(1)),
        hedged("/good", "2s", true, Some(2)),
    ];
    let proxy = proxy(upstream.start().await, &[], &routes);
    // Not before, and attempts upstream.
    for (path, answer, earliest, attempts) in [
        ("/hedged", "200 2 second", 200, 2),
        // Nothing says that it may be tried again.
        ("/nopolicy", "200 1 first", 500, 1),
        ("/global", "504 2 upstream request timeout", 800, 2),
        // The slow attempt's failure does not end the other one.
        ("/bad", "200 2 second", 1100, 2),
        // And the other one's failure not the slow attempt.
        ("/good", "200 3 first", 500, 3),
    ] {
        let (said, took) = get(&proxy, path).await;
        assert_eq!(said, answer, "{path}");
        assert!(took >= Duration::from_millis(earliest), "{path}: {took:?}");
        assert_eq!(upstream.take().len(), attempts, "{path}");
    }
    assert_eq!(stat(&proxy, "cluster.c.upstream_rq_timeout").await, 2, "both attempts of one request");
    assert_eq!(stat(&proxy, "cluster.c.upstream_rq_504").await, 2);
}

#[tokio::test(flavor = "local")]
async fn copies_go_to_every_mirror_once_whatever_becomes_of_the_request() {
    let (upstream, first, second) = (Upstream::default(), Upstream::default(), Upstream::default());
    let to = |path: &str, mirrors: &str, more: &str| {
        format!("{{match: {{path: {path}}}, route: {{cluster: c, request_mirror_policies: [{mirrors}]{more}}}}}")
    };
    let routes = [
        to("/retry", "{cluster: m1}", ", retry_policy: {retry_on: 5xx}"),
        to("/two", "{cluster: m1}, {cluster: m2}", ""),
        to("/literal", "{cluster: m1, host_rewrite_literal: other.test}", ""),
        to("/rewritten", "{cluster: m1}", ", prefix_rewrite: /new, host_rewrite_literal: h.test"),
        to("/named", "{cluster_header: x-to}", ""),
        to("/body", "{cluster: m1}", ""),
    ];
    let mirrors = [("m1", first.start().await), ("m2", second.start().await)];
    let proxy = proxy(upstream.start().await, &mirrors, &routes);
    // How many copies there were so far; the newest of the first mirror.
    let arrived = async |copies: [usize; 2]| {
        let came = || [&first, &second].map(|mirror| mirror.0.borrow().len());
        let all = async {
            while came() != copies {
                tokio::task::yield_now().await;
            }
        };
        within("the copies", all).await;
        first.0.borrow().last().cloned().unwrap_or_default()
    };
    // Two attempts, one copy.
    assert_eq!(get(&proxy, "/retry").await.0, "200 2 second");
    arrived([1, 0]).await;
    get(&proxy, "/two").await;
    arrived([2, 1]).await;
    get(&proxy, "/literal").await;
    let copy = arrived([3, 1]).await;
    assert!(copy.contains("host: other.test\r\n") && copy.contains("x-envoy-internal: true\r\n"), "{copy}");
    // As the route has made it.
    get(&proxy, "/rewritten").await;
    let copy = arrived([4, 1]).await;
    assert!(copy.starts_with("GET /new HTTP/1.1\r\n") && copy.contains("host: h.test-shadow\r\n"), "{copy}");
    assert!(copy.contains("x-envoy-original-path: /rewritten\r\n"), "{copy}");
    // A header may name the cluster, another one, or none.
    for (header, seconds) in [("x-to: m2\r\n", 2), ("x-to: nobody\r\n", 2), ("", 2)] {
        let request = format!("GET /named HTTP/1.1\r\nhost: web.test\r\n{header}connection: close\r\n\r\n");
        assert!(ask(&proxy, &request).await.starts_with("HTTP/1.1 200 "));
        arrived([4, seconds]).await;
    }
    let body = "x".repeat(500);
    let request =
        format!("POST /body HTTP/1.1\r\nhost: web.test\r\nconnection: close\r\ncontent-length: 500\r\n\r\n{body}");
    assert!(ask(&proxy, &request).await.starts_with("HTTP/1.1 200 "));
    assert!(arrived([5, 2]).await.ends_with(&body));
    assert_eq!(stat(&proxy, "cluster.m1.upstream_rq_total").await, 5);
}
