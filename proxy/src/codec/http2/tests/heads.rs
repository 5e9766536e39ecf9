//! Heads between the library's types and ours, without a connection.

use super::super::fields::{Violation, read_request, read_response, write_request, write_response};
use super::*;

fn parts(request: http::request::Builder) -> http::request::Parts {
    request.body(()).unwrap().into_parts().0
}

fn read(request: http::request::Builder) -> Result<Vec<String>, Violation> {
    let mut head = RequestHead::default();
    read_request(&parts(request), true, &ServerOptions::default(), &mut head)?;
    Ok(fields(&head.headers))
}

const MESSAGING: Result<Vec<String>, Violation> = Err(Violation::Messaging("http2.violation.of.messaging.rule"));

#[test]
fn host_is_dropped_beside_authority_and_stands_in_for_it() {
    let both = http::Request::get("http://a/p?q").header("host", "evil").header("x", "1");
    assert_eq!(read(both).unwrap(), [":method: GET", ":scheme: http", ":path: /p?q", ":authority: a", "x: 1"]);
    let host = http::Request::get("/p").header("host", "w");
    assert_eq!(read(host).unwrap(), [":method: GET", ":path: /p", ":authority: w"]);
    assert_eq!(read(http::Request::get("/p")), MESSAGING, "neither");
    assert_eq!(read(http::Request::get("/p").header("host", "a b")), MESSAGING);
}

#[test]
fn cookie_pieces_are_one_field_again_and_blanks_around_values_go() {
    let request = http::Request::get("http://a/").header("cookie", "a=1").header("x", "  v ").header("cookie", "b=2");
    let read = read(request).unwrap();
    assert_eq!(read.iter().filter(|f| f.starts_with("cookie")).collect::<Vec<_>>(), [&"cookie: a=1; b=2"]);
    assert!(read.contains(&"x: v".to_owned()));
}

#[test]
fn one_length_is_enough() {
    let post =
        |values: &[&str]| values.iter().fold(http::Request::post("http://a/"), |r, v| r.header("content-length", *v));
    assert!(read(post(&["3"])).is_ok());
    assert_eq!(read(post(&["3", "3"])), MESSAGING, "equal ones would be two lines upstream");
    for bad in ["+3", "-1", "0x3", "3,3", "", "99999999999999999999999"] {
        assert_eq!(read(post(&[bad])), MESSAGING, "{bad:?}");
    }
}

#[test]
fn every_field_counts_also_pieces_of_cookies_and_a_host_that_is_dropped() {
    let many = |name: &'static str, n: usize| {
        (0..n).fold(http::Request::get("http://a/"), |r, i| r.header(name, format!("c{i}=1")))
    };
    assert!(read(many("cookie", 96)).is_ok());
    for name in ["cookie", "x", "host"] {
        assert_eq!(read(many(name, 97)), Err(Violation::Limit("http2.too_many_headers")), "{name}");
    }
    let large = http::Request::get("http://a/").header("x", "v".repeat(61 * 1024));
    assert_eq!(read(large), Err(Violation::Limit("http2.headers_too_large")));
}

#[test]
fn paths_are_origin_form_and_schemes_are_http() {
    assert_eq!(read(http::Request::get("ftp://a/")), MESSAGING);
    assert_eq!(read(http::Request::get("*").header("host", "a")), MESSAGING);
    assert!(read(http::Request::options("*").header("host", "a")).is_ok());
}

#[test]
fn underscores_are_dropped_or_refused_as_configured() {
    let request = || http::Request::get("http://a/").header("x_y", "1").header("z", "2");
    let options = |underscores| ServerOptions { underscores, ..ServerOptions::default() };
    let mut head = RequestHead::default();
    let drop = options(crate::codec::http1::Underscores::Drop);
    let told = read_request(&parts(request()), true, &drop, &mut head).unwrap();
    assert_eq!((told.dropped_underscores, head.headers.contains("x_y")), (1, false));
    let reject = options(crate::codec::http1::Underscores::Reject);
    let told = read_request(&parts(request()), true, &reject, &mut head);
    assert_eq!(told, Err(Violation::Limit("http2.unexpected_underscore")));
}

// RFC 8441 §4, and the form that Envoy gives it.
#[test]
fn an_extended_connect_is_an_upgrade_above_and_the_other_way_round() {
    let mut request = parts(http::Request::connect("http://a/chat").header("sec-websocket-version", "13"));
    request.extensions.insert(h2::ext::Protocol::from_static("websocket"));
    let mut head = RequestHead::default();
    let read = read_request(&request, false, &ServerOptions::default(), &mut head).unwrap();
    assert!(read.upgrade);
    assert_eq!(
        fields(&head.headers),
        [
            ":method: GET",
            ":scheme: http",
            ":path: /chat",
            ":authority: a",
            "sec-websocket-version: 13",
            "connection: upgrade",
            "upgrade: websocket"
        ]
    );
    let sent = write_request(&head, false, true).unwrap();
    assert_eq!(sent.method(), http::Method::CONNECT);
    assert_eq!(sent.uri(), "http://a/chat");
    assert_eq!(sent.extensions().get::<h2::ext::Protocol>().unwrap().as_str(), "websocket");
    assert_eq!(sent.headers().len(), 1);
    let mut accepted = ResponseHead::new(101);
    accepted.headers.append("upgrade", "websocket");
    let sent = write_response(&accepted, false, false, true);
    assert_eq!((sent.status().as_u16(), sent.headers().len()), (200, 0));
}

#[test]
fn what_belongs_to_an_http1_connection_does_not_go_out() {
    let mut head = get("/x");
    for (name, value) in [
        ("connection", "close"),
        ("keep-alive", "5"),
        ("proxy-connection", "close"),
        ("transfer-encoding", "chunked"),
        ("upgrade", "h2c"),
        ("te", "gzip"),
        ("content-length", "7"),
        ("x", "1"),
    ] {
        head.headers.append(name, value);
    }
    let sent = write_request(&head, true, false).unwrap();
    assert_eq!(sent.headers().keys().map(|k| k.as_str()).collect::<Vec<_>>(), ["x"]);
    head.headers.set("te", "trailers");
    head.framing = Framing::Length(7);
    let sent = write_request(&head, false, false).unwrap();
    assert_eq!(sent.headers().keys().map(|k| k.as_str()).collect::<Vec<_>>(), ["te", "x", "content-length"]);
    assert!(write_request(&head, true, false).is_err(), "a length without a body");
}

#[test]
fn a_request_that_cannot_be_sent_says_why() {
    let with = |name: &str, value: &[u8]| {
        let mut head = get("/");
        head.headers.set(name, value);
        write_request(&head, true, false).map(drop)
    };
    assert_eq!(with(":path", b"/a b"), Err("path"));
    assert_eq!(with(":authority", b""), Err("no host"));
    assert_eq!(with(":authority", b"a b"), Err("host"));
    assert_eq!(with(":method", b"G ET"), Err("method"));
    assert_eq!(with("x", b"a\r\nb: c"), Ok(()), "a field that cannot be written is left out");
}

#[test]
fn a_response_with_two_lengths_is_none() {
    let response = http::Response::builder().header("content-length", "1").header("content-length", "1");
    let (parts, ()) = response.body(()).unwrap().into_parts();
    assert!(read_response(&parts, false, (100, 80 * 1024), &mut ResponseHead::default()).is_err());
}
