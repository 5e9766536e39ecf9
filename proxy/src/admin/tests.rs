//! The admin interface as its clients see it: over real sockets.

use std::cell::{Cell, RefCell};
use std::fmt::Write as _;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use nuncio_core::access_log::{AccessLog, LogContext};
use nuncio_core::net::Address;
use nuncio_core::stats::Store;
use nuncio_core::time::WallClock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;
use crate::lifecycle::{Lifecycle, ServerState};
use crate::net::{Acceptor, BindOptions, BoundAddress};
use crate::upstream::worker::ConnectionIds;

struct Served {
    address: std::net::SocketAddr,
    quit: Rc<Cell<bool>>,
    lifecycle: Arc<Lifecycle>,
    logged: Rc<RefCell<Vec<String>>>,
}

/// Keeps what an access log is told.
struct Lines(Rc<RefCell<Vec<String>>>);

impl AccessLog for Lines {
    fn log(&self, record: &LogContext<'_>) {
        let text = |bytes: Option<&[u8]>| String::from_utf8_lossy(bytes.unwrap_or_default()).into_owned();
        let request = record.request.unwrap();
        let (method, path, host) = (text(Some(request.method())), text(request.path()), text(request.authority()));
        let remote = record.connection.unwrap().remote.ip().unwrap();
        let (code, sent) = (record.info.response_code.unwrap(), record.info.bytes_sent);
        self.0.borrow_mut().push(format!("{remote} {host} {method} {path} {code} {sent}"));
    }
}

async fn served(limits: Limits, allow: Option<AllowPath>) -> Served {
    let lifecycle = Arc::new(Lifecycle::default());
    lifecycle.set_initialization(ServerState::Live);
    let quit = Rc::new(Cell::new(false));
    let quits = quit.clone();
    let mut pages = lifecycle_pages(&lifecycle, Vec::new, Rc::new(move || quits.set(true)));
    pages.extend(process_pages());
    pages.push(Page::new("/big", "much text", |_| {
        Answer::rendered(ContentType::Text, |out| (0..100_000).try_for_each(|n| writeln!(out, "line {n}")))
    }));
    pages.push(Page::act("/form", "what was sent", |query| Answer::text(query.get("a").unwrap_or("-"))));
    let anywhere = Address::Ip(([127, 0, 0, 1], 0).into());
    let bound = BoundAddress::bind(&anywhere, BindOptions::default(), 1).unwrap();
    bound.listen().unwrap();
    let address = bound.local().socket().unwrap();
    let listener = Acceptor::new(bound.socket(0).unwrap()).unwrap();
    let clock =
        WallClock::Fixed { base: UNIX_EPOCH + Duration::from_secs(784_111_777), from: tokio::time::Instant::now() };
    let logged = Rc::new(RefCell::new(Vec::new()));
    let settings = Settings {
        limits,
        clock,
        stats: AdminStats::new(&mut Store::new()),
        logs: vec![Box::new(Lines(logged.clone()))],
        connection_ids: ConnectionIds::default(),
    };
    serve(Box::new(listener), Rc::new(Admin::new(pages, allow)), settings);
    Served { address, quit, lifecycle, logged }
}

/// Sends one request and reads until the connection ends.
async fn exchange(server: &Served, request: &str) -> String {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    // A peer that closes with our bytes unread resets; what came before counts.
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8(answer).unwrap()
}

async fn get(server: &Served, method: &str, path: &str, more: &str) -> String {
    exchange(
        server,
        &format!("{method} {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n{more}\r\n", server.address),
    )
    .await
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, test);
}

#[test]
fn an_answer_has_envoys_headers_in_envoys_order() {
    run(async {
        let server = served(Limits::default(), None).await;
        // From Envoy 1.40, but for the date and `connection`, which our request asked for.
        let expected = "HTTP/1.1 200 OK\r\ncontent-type: text/plain; charset=UTF-8\r\ncache-control: no-cache, max-age=0\r\n\
                        x-content-type-options: nosniff\r\ndate: Sun, 06 Nov 1994 08:49:37 GMT\r\nserver: envoy\r\n\
                        connection: close\r\ntransfer-encoding: chunked\r\n\r\n5\r\nLIVE\n\r\n0\r\n\r\n";
        assert_eq!(get(&server, "GET", "/ready", "").await, expected);
        assert_eq!(get(&server, "DELETE", "//ready?x=1", "").await, expected);
        let head = get(&server, "HEAD", "/ready", "").await;
        // Without transfer-encoding, which RFC 9110 lets a HEAD answer leave out.
        assert_eq!(head, expected.split("transfer-encoding").next().unwrap().to_owned() + "\r\n");
        server.lifecycle.set_health_failed(true);
        assert!(get(&server, "GET", "/ready", "").await.starts_with("HTTP/1.1 503 Service Unavailable\r\n"));
    });
}

#[test]
fn unknown_paths_list_the_pages_and_acts_want_post() {
    run(async {
        let server = served(Limits::default(), None).await;
        for path in ["/nope", "/ready/", "/healthcheck"] {
            let answer = get(&server, "GET", path, "").await;
            assert!(answer.starts_with("HTTP/1.1 404 Not Found\r\n"), "{answer}");
            assert!(
                answer.contains("invalid path. admin commands are:\n  /: Admin home page\n  /allocprofiler (POST): ")
            );
        }
        let answer = get(&server, "GET", "/quitquitquit", "").await;
        assert!(answer.starts_with("HTTP/1.1 405 Method Not Allowed\r\n"));
        assert!(answer.contains("\r\n\r\n26\r\nMethod GET not allowed, POST required.\r\n0\r\n"));
        assert!(!server.quit.get());
        assert!(get(&server, "POST", "/quitquitquit", "").await.contains("\r\n\r\n3\r\nOK\n\r\n0\r\n"));
        assert!(server.quit.get());
    });
}

#[test]
fn other_sites_cannot_change_anything_and_may_only_read() {
    run(async {
        let server = served(Limits::default(), None).await;
        let evil = "POST /quitquitquit HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\n\r\n";
        assert!(exchange(&server, evil).await.starts_with("HTTP/1.1 403 Forbidden\r\n"));
        let cross = get(&server, "POST", "/quitquitquit", "origin: http://evil.example\r\n").await;
        assert!(cross.starts_with("HTTP/1.1 403 Forbidden\r\n") && !server.quit.get());
        assert!(
            exchange(&server, &evil.replace("POST /quitquitquit", "GET /ready")).await.starts_with("HTTP/1.1 200 ")
        );
    });
}

#[test]
fn every_request_is_logged_with_what_was_sent() {
    run(async {
        let server = served(Limits::default(), None).await;
        get(&server, "GET", "/ready?x", "").await;
        get(&server, "GET", "/big", "").await;
        get(&server, "GET", "/quitquitquit", "").await;
        let host = server.address;
        let lines = [
            format!("127.0.0.1 {host} GET /ready?x 200 5"),
            format!("127.0.0.1 {host} GET /big 200 1088890"),
            format!("127.0.0.1 {host} GET /quitquitquit 405 38"),
        ];
        assert_eq!(*server.logged.borrow(), lines);
    });
}

#[test]
fn only_allowed_paths_are_reached() {
    run(async {
        let allow: AllowPath = Box::new(|path| path == "/ready");
        let server = served(Limits::default(), Some(allow)).await;
        assert!(get(&server, "GET", "/ready", "").await.starts_with("HTTP/1.1 200 "));
        let answer = get(&server, "GET", "/ready?x=1", "").await;
        assert!(answer.starts_with("HTTP/1.1 403 ") && answer.contains("request to path /ready?x=1 not allowed"));
        assert!(get(&server, "POST", "/quitquitquit", "").await.starts_with("HTTP/1.1 403 "));
    });
}

#[test]
fn malformed_and_oversized_requests_are_refused() {
    run(async {
        let server = served(Limits::default(), None).await;
        let status = async |request: &str| {
            let answer = exchange(&server, request).await;
            answer.split(' ').nth(1).unwrap_or_default().to_owned()
        };
        assert_eq!(status("GET /ready HTTP/1.0\r\n\r\n").await, "426");
        assert_eq!(status("GET /ready HTTP/1.1\r\n\r\n").await, "400");
        assert_eq!(status("FOO /ready HTTP/1.1\r\nhost: x\r\n\r\n").await, "400");
        assert_eq!(status("garbage\r\n\r\n").await, "400");
        let long = format!("GET /{} HTTP/1.1\r\nhost: x\r\n\r\n", "a".repeat(1_000_000));
        assert!(["", "414", "431"].contains(&status(&long).await.as_str()));
        let form = |body: &str| {
            format!(
                "POST /form HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\
                 content-type: application/x-www-form-urlencoded\r\n\r\n{body}",
                body.len()
            )
        };
        assert!(exchange(&server, &form("a=b%20c")).await.contains("\r\n3\r\nb c\r\n"));
        assert_eq!(status(&form(&"a".repeat(70_000))).await, "413");
        assert_eq!(status("GET /ready HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await, "200");
    });
}

#[test]
fn a_large_page_arrives_whole() {
    run(async {
        let server = served(Limits::default(), None).await;
        let answer = get(&server, "GET", "/big", "").await;
        assert!(answer.contains("line 0\n") && answer.contains("line 99999\n") && answer.ends_with("\r\n0\r\n\r\n"));
        assert!(get(&server, "HEAD", "/big", "").await.ends_with("\r\n\r\n"));
    });
}

#[test]
fn clients_that_do_not_read_hold_neither_pages_nor_connections() {
    run(async {
        let limits =
            Limits { connections: 4, rendering: 1, render_pause: Duration::from_millis(200), ..Limits::default() };
        let server = served(limits, None).await;
        let mut idle = Vec::new();
        for _ in 0..3 {
            let mut stream = TcpStream::connect(server.address).await.unwrap();
            stream.write_all(b"GET /big HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
            idle.push(stream);
        }
        for _ in 0..20 {
            idle.push(TcpStream::connect(server.address).await.unwrap());
        }
        assert!(get(&server, "GET", "/ready", "").await.starts_with("HTTP/1.1 200 "));
        assert!(get(&server, "GET", "/big", "").await.ends_with("\r\n0\r\n\r\n"));
        drop(idle);
    });
}

#[test]
fn the_home_page_has_a_form_for_each_page_and_no_markup_from_outside() {
    let page = Page::new("/x\"><img>", "<b>help</b> & more", |_| Answer::ok()).with_params(&[Param {
        name: "level",
        help: "how",
        kind: ParamKind::OneOf(&["a", "<b>"]),
    }]);
    let html = Admin::new(vec![page], None).answer(&Request::new(Method::GET, "/")).into_text();
    assert!(html.contains("action=\"x&quot;&gt;&lt;img&gt;\"") && html.contains("&lt;b&gt;help&lt;/b&gt; &amp; more"));
    assert!(html.contains("<option>&lt;b&gt;</option>") && !html.contains("<img>"));
}
