//! Rows of the adversarial table about request heads, and what of a head is passed on. Statuses
//! and details are what Envoy 1.40 said to the same bytes, unless the test says otherwise.

use nuncio_api::pb::envoy::r#type::matcher::v3::{self as pb, string_matcher::MatchPattern};
use nuncio_core::matcher::StringMatcher;

use super::*;

fn get(fields: &str) -> String {
    format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n")
}

/// The head of an accepted request, one field a line.
fn seen(options: ServerOptions, bytes: &str) -> String {
    let mut s = Server::new(options, &[bytes.as_bytes()]);
    match s.request() {
        Poll::Ready(Ok(Some(()))) => {
            let fields = s.head.headers.iter().filter(|(name, _)| *name != b":method");
            fields.map(|(n, v)| format!("{}={}", n.escape_ascii(), v.escape_ascii())).collect::<Vec<_>>().join(" ")
        }
        other => panic!("{other:?} for {bytes:?}"),
    }
}

fn accepted(bytes: &str) -> String {
    seen(ServerOptions::default(), bytes)
}

#[test]
fn a_head_becomes_pseudo_headers_and_lower_case_fields_in_order() {
    let bytes = "GET /p?q HTTP/1.1\r\nX-B: 1\r\nHOST: A.test\r\nAccept:  */* \t\r\nX-b: 2\r\nX-Empty:\r\n\r\n";
    assert_eq!(accepted(bytes), ":path=/p?q :authority=A.test x-b=1 accept=*/* x-b=2 x-empty=");
}

#[test]
fn empty_lines_before_a_request_and_bare_lf_in_a_head_are_read() {
    assert_eq!(accepted("\r\n\r\n\nGET /e HTTP/1.1\nHost: a\nX: y\n\n"), ":path=/e :authority=a x=y");
    assert_eq!(refused("\rGET / HTTP/1.1\r\nHost: a\r\n\r\n"), BAD);
}

/// Envoy takes blanks in the request line as one; we do not.
#[test]
fn a_request_line_has_two_spaces_and_no_more() {
    for line in [
        "GET  / HTTP/1.1",
        "GET\t/ HTTP/1.1",
        "GET / HTTP/1.1 ",
        " GET / HTTP/1.1",
        "GET /a b HTTP/1.1",
        "GET /  HTTP/1.1",
    ] {
        assert_eq!(refused(&format!("{line}\r\nHost: a\r\n\r\n")), BAD, "{line:?}");
    }
}

#[test]
fn unknown_and_lower_case_methods_are_refused() {
    for method in ["get", "FROB", "BREW", "PRI", "M-SEARCH", "HEADX", "UPDATE", "G\u{1}T", ""] {
        assert_eq!(refused(&format!("{method} / HTTP/1.1\r\nHost: a\r\n\r\n")), BAD, "{method:?}");
    }
    for method in ["PROPFIND", "PURGE", "MSEARCH", "UNSUBSCRIBE", "TRACE", "PATCH"] {
        assert_eq!(refused(&format!("{method} / HTTP/1.1\r\nHost: a\r\n\r\n")), None, "{method:?}");
    }
}

#[test]
fn versions_other_than_one_are_refused_or_told_to_upgrade() {
    for line in ["GET / HTTP/1.0", "GET / HTTP/1.2", "GET / HTTP/2.0", "GET / HTTP/3.0", "GET /"] {
        assert_eq!(refused(&format!("{line}\r\nHost: a\r\n\r\n")), Some((426, "low_version")), "{line:?}");
    }
    for line in ["GET / http/1.1", "GET / HTTP/1.10", "GET / HTTP/1", "GET / HTTP/1.x", "GET / HTTPS/1.1"] {
        assert_eq!(refused(&format!("{line}\r\nHost: a\r\n\r\n")), BAD, "{line:?}");
    }
}

#[test]
fn what_cannot_become_a_request_is_refused_before_its_line_ends() {
    for start in [&b"\x16\x03\x01\x02\x00\x01"[..], b"SSH-2.0-", b"GET /\x01", b"GEX", b"garbage"] {
        assert_eq!(refusal(ServerOptions::default(), start), BAD, "{}", start.escape_ascii());
    }
    for start in [&b"G"[..], b"GET", b"POST /a", b"GET / HTTP/1.1\r", b"\r\n\r"] {
        assert!(Server::new(ServerOptions::default(), &[start]).request().is_pending());
    }
}

#[test]
fn targets_of_other_forms_are_refused() {
    for target in ["admin", "evil:80", "/\u{e4}", "http//x"] {
        assert_eq!(refused(&format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n")), BAD, "{target:?}");
    }
    for target in ["/a\u{1}b", "/a\0b", "/a\u{7f}b"] {
        let want = Some((400, "http1.invalid_characters"));
        assert_eq!(refused(&format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n")), want, "{target:?}");
    }
    assert_eq!(refused("GET * HTTP/1.1\r\nHost: a\r\n\r\n"), Some((400, "http1.invalid_url")));
    assert_eq!(accepted("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n"), ":path=* :authority=a");
    assert_eq!(accepted("GET //a\"b<>\\^`{|} HTTP/1.1\r\nHost: a\r\n\r\n"), ":path=//a\\\"b<>\\\\^`{|} :authority=a");
}

#[test]
fn a_fragment_is_not_cut_off_so_that_the_manager_can_refuse_it() {
    assert_eq!(accepted("GET /a#/../b HTTP/1.1\r\nHost: a\r\n\r\n"), ":path=/a#/../b :authority=a");
    let absolute = accepted("GET http://x.test/a#b HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(absolute, ":scheme=http :path=/a#b :authority=x.test");
}

#[test]
fn the_absolute_form_wins_over_host() {
    let of = |target: &str| accepted(&format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
    assert_eq!(of("http://x.test/a?b"), ":scheme=http :path=/a?b :authority=x.test");
    assert_eq!(of("HTTPS://x.test:80/a"), ":scheme=https :path=/a :authority=x.test:80");
    assert_eq!(of("http://x.test"), ":scheme=http :path=/ :authority=x.test");
    assert_eq!(of("http://u@x.test/a"), ":scheme=http :path=/a :authority=x.test");
    // No slash: the manager answers 404, as it does to `*`.
    assert_eq!(of("http://x.test?q"), ":scheme=http :path=?q :authority=x.test");
    assert_eq!(accepted("GET http://x.test/a HTTP/1.1\r\n\r\n"), ":scheme=http :path=/a :authority=x.test");
    for target in ["ftp://x.test/a", "wss://x.test/a", "foo://x"] {
        let bytes = format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(refused(&bytes), Some((400, "http1.invalid_scheme")), "{target}");
    }
    assert_eq!(refused("GET http:///a HTTP/1.1\r\nHost: a\r\n\r\n"), Some((400, "http1.invalid_url")));
    let off = ServerOptions { allow_absolute_url: false, ..ServerOptions::default() };
    assert_eq!(seen(off, "GET http://x.test/a HTTP/1.1\r\nHost: a\r\n\r\n"), ":path=http://x.test/a :authority=a");
}

#[test]
fn a_host_is_one_field_with_the_bytes_of_an_authority() {
    assert_eq!(refused("GET / HTTP/1.1\r\n\r\n"), Some((400, "missing_host_header")));
    for host in ["", "a_b", "u@a", "a,b", "[::1]:80", "a:b", "a%20b"] {
        assert_eq!(refused(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")), None, "{host:?}");
    }
    let bad = Some((400, "http.invalid_authority"));
    for host in ["a b@c/d", "a/b", "a\"b", "a<b", "\u{e4}"] {
        assert_eq!(refused(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")), bad, "{host:?}");
    }
    // Envoy joins two lines to `a,b`.
    assert_eq!(refused(&get("Host: b\r\n")), bad);
    assert_eq!(refused(&get("Host: a\r\n")), bad);
    assert_eq!(refused("GET http://x/ HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"), bad);
}

#[test]
fn r22_connect_names_host_and_port_and_has_no_body() {
    let connect = |target: &str, fields: &str| format!("CONNECT {target} HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
    assert_eq!(accepted(&connect("b.test:443", "")), ":authority=b.test:443");
    assert_eq!(accepted(&connect("[::1]:443", "Content-Length: 0\r\n")), ":authority=[::1]:443");
    assert_eq!(accepted("CONNECT a.test:443 HTTP/1.1\r\n\r\n"), ":authority=a.test:443");
    for target in ["/x", "a.test", "http://a.test:80/", "a.test:abc", "a.test:70000", ":80", "::1:80"] {
        assert_eq!(refused(&connect(target, "")), Some((400, "http1.invalid_url")), "{target}");
    }
    assert_eq!(refused(&connect("a:443", "Content-Length: 3\r\n")), Some((400, "http1.body_disallowed")));
    let te = connect("a:443", "Transfer-Encoding: chunked\r\n");
    assert_eq!(refused(&te), Some((501, "http1.invalid_transfer_encoding")));
}

/// A bare CR is an intended difference: Envoy deletes it.
#[test]
fn r25_controls_in_a_value_are_refused() {
    let bad = Some((400, "http1.invalid_characters"));
    for value in ["a\0b", "a\u{1}b", "a\u{7f}b", "b\rY: c", "b\r"] {
        assert_eq!(refused(&get(&format!("X: {value}\r\n"))), bad, "{value:?}");
    }
    let latin1 = b"GET / HTTP/1.1\r\nHost: a\r\nX: a\xff\tb\r\n\r\n";
    assert_eq!(refusal(ServerOptions::default(), latin1), None);
}

/// A folded line is an intended difference: Envoy joins it.
#[test]
fn r26_lines_that_are_no_fields_are_refused() {
    for line in ["Content-Length : 3", "X\t: a", ": x", "foo", ":path: /evil", "X(y: a", "X/y: a", "X: a\r\n b"] {
        assert_eq!(refused(&get(&format!("{line}\r\n"))), BAD, "{line:?}");
    }
    assert_eq!(refused("GET / HTTP/1.1\r\n Content-Length: 3\r\nHost: a\r\n\r\n"), BAD);
    assert_eq!(refused(&get("X\u{1}Y: a\r\n")), Some((400, "http1.invalid_characters")));
}

#[test]
fn a_hundred_lines_and_sixty_kibibytes_pass_and_no_more() {
    let too_many = Some((431, "http1.too_many_headers"));
    assert_eq!(refused(&get(&"x: a\r\n".repeat(99))), None);
    assert_eq!(refused(&get(&"x: a\r\n".repeat(100))), too_many);
    let ten = ServerOptions { max_headers: 10, ..ServerOptions::default() };
    assert_eq!(refusal(ten.clone(), get(&"x: a\r\n".repeat(9)).as_bytes()), None);
    assert_eq!(refusal(ten, get(&"x: a\r\n".repeat(10)).as_bytes()), too_many);

    let of_size = |n: usize| get(&format!("x: {}\r\n", "a".repeat(n - get("x: \r\n").len())));
    let too_large = Some((431, "http1.headers_too_large"));
    assert_eq!(refused(&of_size(60 * 1024)), None);
    assert_eq!(refused(&of_size(60 * 1024 + 1)), too_large);
    let kib = ServerOptions { max_head_bytes: 1024, ..ServerOptions::default() };
    assert_eq!(refusal(kib.clone(), of_size(1025).as_bytes()), too_large);
    // Also while its end has not come: a head without end is not collected.
    let endless = format!("GET /{}", "x".repeat(2000));
    assert_eq!(refusal(kib.clone(), endless.as_bytes()), too_large);
    assert_eq!(refusal(kib, "\r\n".repeat(1000).as_bytes()), too_large);
}

#[test]
fn a_head_that_comes_byte_by_byte_is_read_and_bounded() {
    let bytes = get(&"x-some-name: some value\r\n".repeat(90));
    let reads: Vec<&[u8]> = bytes.as_bytes().chunks(1).collect();
    let mut s = Server::new(ServerOptions::default(), &reads);
    assert!(matches!(s.request(), Poll::Ready(Ok(Some(())))));
    assert_eq!(s.head.headers.len(), 93);
    let endless = get(&"x: y\r\n".repeat(400));
    let reads: Vec<&[u8]> = endless.as_bytes()[..endless.len() - 2].chunks(7).collect();
    let options = ServerOptions { max_headers: 10_000, max_head_bytes: 2000, ..ServerOptions::default() };
    let mut s = Server::new(options, &reads);
    assert!(matches!(s.request(), Poll::Ready(Err(RequestError { details: "http1.headers_too_large", .. }))));
}

#[test]
fn hop_by_hop_fields_are_not_passed_on() {
    let of = |fields: &str| accepted(&get(fields)).replace(":path=/ :authority=a", "").trim().to_owned();
    assert_eq!(of("Connection: keep-alive\r\nKeep-Alive: timeout=5\r\nProxy-Connection: keep-alive\r\n"), "");
    assert_eq!(of("Connection: foo\r\nFoo: 1\r\nBar: 2\r\n"), "bar=2");
    assert_eq!(of("Connection: foo\r\nConnection: close\r\nFoo: 1\r\n"), "");
    assert_eq!(of("Connection: connection\r\n"), "");
    assert_eq!(of("TE: trailers, gzip\r\n"), "te=trailers");
    assert_eq!(of("Connection: te\r\nTE: trailers, gzip\r\n"), "te=trailers");
    assert_eq!(of("TE: gzip\r\n"), "");
    assert_eq!(of("Upgrade: foo\r\n"), "");
    assert_eq!(of("Connection: upgrade\r\n"), "");
    assert_eq!(of("Trailer: x\r\nProxy-Authorization: z\r\n"), "trailer=x proxy-authorization=z");
    assert_eq!(of("Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAA\r\n"), "");
    assert_eq!(of("Connection: keep-alive, Upgrade\r\nUpgrade: foo\r\n"), "connection=Upgrade upgrade=foo");
    assert_eq!(of("Connection: Upgrade\r\nUpgrade: h2c, foo\r\n"), "connection=Upgrade upgrade=h2c, foo");
}

// What Envoy 1.40 sent upstream with these matchers.
#[test]
fn offers_of_an_ignored_protocol_are_as_if_not_made() {
    let message = |pattern| pb::StringMatcher { match_pattern: Some(pattern), ..Default::default() };
    let ignored = [MatchPattern::Prefix("TLS/".into()), MatchPattern::Exact("foo".into())];
    let ignored_upgrades = ignored.map(|pattern| StringMatcher::from_proto(&message(pattern)).unwrap()).into();
    let options = ServerOptions { ignored_upgrades, ..ServerOptions::default() };
    for (offer, left) in [
        ("websocket", " connection=Upgrade upgrade=websocket"),
        ("foo", ""),
        ("TLS/1.2", ""),
        ("tls/1.3", " connection=Upgrade upgrade=tls/1.3"),
        ("websocket, TLS/1.2", " connection=Upgrade upgrade=websocket"),
        ("TLS/1.2,websocket", " connection=Upgrade upgrade=websocket"),
        ("TLS/1.2, foo", ""),
    ] {
        let passed = seen(options.clone(), &get(&format!("Connection: Upgrade\r\nUpgrade: {offer}\r\n")));
        assert_eq!(passed, format!(":path=/ :authority=a{left}"), "{offer}");
    }
}

#[test]
fn what_must_not_be_nominated_is_refused() {
    let bad = Some((400, "http1.connection_header_rejected"));
    for value in ["close, X-Forwarded-For", "x-forwarded-proto", "X-Forwarded-Host", ":path", "a,b,c,d,e,f,g,h,i,j"] {
        assert_eq!(refused(&get(&format!("Connection: {value}\r\n"))), bad, "{value}");
    }
    assert_eq!(refused(&get("Connection: a,b,c,d,e,f,g,h,i\r\n")), None);
    assert_eq!(refused(&get("Connection: host\r\n")), Some((400, "missing_host_header")));
    let te = format!("Connection: te\r\nTE: {}\r\n", "x".repeat(256));
    assert_eq!(refused(&get(&te)), bad);
    // Nominating the length does not change where the body ends.
    let bytes = "POST / HTTP/1.1\r\nHost: a\r\nConnection: content-length\r\nContent-Length: 3\r\n\r\nabc";
    let mut s = Server::new(ServerOptions::default(), &[bytes.as_bytes()]);
    assert!(matches!(s.request(), Poll::Ready(Ok(Some(())))));
    assert_eq!(s.body().unwrap(), b"abc");
}

#[test]
fn expect_is_ours_unless_it_is_proxied() {
    let mut s = Server::new(ServerOptions::default(), &[get("Expect: 100-Continue\r\n").as_bytes()]);
    assert!(matches!(s.request(), Poll::Ready(Ok(Some(())))));
    assert!(s.conn.expects_continue() && !s.head.headers.contains("expect"));
    s.conn.send_continue(&s.buffers);
    s.conn.send_continue(&s.buffers);
    assert_eq!(s.answer(200, ""), "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");

    assert_eq!(accepted(&get("Expect: 200-ok\r\n")), ":path=/ :authority=a expect=200-ok");
    let proxied = ServerOptions { proxy_100_continue: true, ..ServerOptions::default() };
    assert_eq!(seen(proxied, &get("Expect: 100-continue\r\n")), ":path=/ :authority=a expect=100-continue");
}

#[test]
fn headers_with_underscores_pass_are_dropped_or_refused() {
    let with = |underscores| ServerOptions { underscores, ..ServerOptions::default() };
    let bytes = get("x_y: 1\r\nx-z: 2\r\n");
    assert_eq!(accepted(&bytes), ":path=/ :authority=a x_y=1 x-z=2");
    assert_eq!(seen(with(Underscores::Drop), &bytes), ":path=/ :authority=a x-z=2");
    let refused = refusal(with(Underscores::Reject), bytes.as_bytes());
    assert_eq!(refused, Some((400, "http1.unexpected_underscore")));
}

#[test]
fn http_10_is_served_where_it_is_accepted() {
    let options = ServerOptions {
        accept_http_10: true,
        default_host_for_http_10: Some("dflt.test".into()),
        ..ServerOptions::default()
    };
    for line in ["GET / HTTP/1.0", "GET /", "GET / HTTP/2.0"] {
        assert_eq!(seen(options.clone(), &format!("{line}\r\n\r\n")), ":path=/ :authority=dflt.test", "{line}");
    }
    let answer = |fields: &str| {
        let bytes = format!("GET / HTTP/1.0\r\nHost: a\r\n{fields}\r\n");
        let mut s = Server::new(options.clone(), &[bytes.as_bytes()]);
        assert!(matches!(s.request(), Poll::Ready(Ok(Some(())))));
        let answer = s.answer(200, "x");
        (answer, s.conn.reusable_after_response())
    };
    let (kept, closed) = (
        "HTTP/1.0 200 OK\r\ncontent-length: 1\r\nconnection: keep-alive\r\n\r\nx",
        "HTTP/1.0 200 OK\r\ncontent-length: 1\r\nconnection: close\r\n\r\nx",
    );
    assert_eq!(answer("Connection: x, Keep-Alive\r\n"), (kept.into(), true));
    assert_eq!(answer(""), (closed.into(), false));
    assert_eq!(answer("Proxy-Connection: keep-alive\r\n"), (closed.into(), false));
    let missing = ServerOptions { accept_http_10: true, ..ServerOptions::default() };
    assert_eq!(refusal(missing, b"GET / HTTP/1.0\r\n\r\n"), Some((400, "missing_host_header")));
}
