//! Heads between fields and ours, without a connection.

use super::super::block::{Block, Outgoing};
use super::super::fields::{MESSAGING, RequestReader, ResponseReader, TrailersReader, Violation};
use super::super::hpack::{Decoder, Encoder};
use super::*;
use crate::codec::http1::Underscores;

const M: (&str, &str) = (":method", "GET");
const S: (&str, &str) = (":scheme", "http");
const A: (&str, &str) = (":authority", "a");
const P: (&str, &str) = (":path", "/p?q");
const GET_A: [(&str, &str); 4] = [M, S, A, P];

fn read_with(options: &ServerOptions, fields: &[(&str, &str)], end: bool) -> Result<RequestHead, Violation> {
    let mut head = RequestHead::default();
    let mut reader = RequestReader::new(options, &mut head);
    fields.iter().for_each(|(name, value)| reader.field(name.as_bytes(), value.as_bytes(), false));
    reader.finish(end)?;
    Ok(head)
}

fn read(fields: &[(&str, &str)]) -> Result<Vec<String>, Violation> {
    read_with(&ServerOptions::default(), fields, true).map(|head| super::fields(&head.headers))
}

fn get_with<'a>(more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    GET_A.iter().chain(more).copied().collect()
}

#[test]
fn host_is_dropped_beside_authority_and_stands_in_for_it() {
    let both = read(&get_with(&[("host", "evil"), ("x", "1")]));
    assert_eq!(both.unwrap(), [":method: GET", ":scheme: http", ":authority: a", ":path: /p?q", "x: 1"]);
    let host = |value| read(&[M, S, P, ("host", value)]);
    assert_eq!(host("w").unwrap(), [":method: GET", ":scheme: http", ":path: /p?q", ":authority: w"]);
    assert_eq!(read(&[M, S, P]), Err(MESSAGING), "neither");
    assert_eq!(host("a b"), Err(MESSAGING));
    assert_eq!(read(&get_with(&[("host", "a"), ("host", "a")])), Err(MESSAGING));
}

#[test]
fn cookie_pieces_are_one_field_again_and_blanks_around_values_go() {
    let read = read(&get_with(&[("cookie", "a=1"), ("x", "  v "), ("cookie", "b=2")])).unwrap();
    assert_eq!(read.iter().filter(|f| f.starts_with("cookie")).collect::<Vec<_>>(), [&"cookie: a=1; b=2"]);
    assert!(read.contains(&"x: v".to_owned()));
}

#[test]
fn one_length_is_enough() {
    let post = |values: &[&str]| {
        let lengths: Vec<_> = values.iter().map(|value| ("content-length", *value)).collect();
        read_with(&ServerOptions::default(), &get_with(&lengths), false).map(|head| head.framing)
    };
    assert_eq!(post(&["3"]), Ok(Framing::Length(3)));
    assert_eq!(post(&[]), Ok(Framing::Streamed));
    assert_eq!(post(&["3", "3"]), Err(MESSAGING), "equal ones would be two lines upstream");
    for bad in ["+3", "-1", "0x3", "3,3", "", "99999999999999999999999"] {
        assert_eq!(post(&[bad]), Err(MESSAGING), "{bad:?}");
    }
    assert_eq!(read(&get_with(&[("content-length", "3")])), Err(MESSAGING), "and then no body");
}

#[test]
fn every_field_counts_also_pieces_of_cookies_and_a_host_that_is_dropped() {
    let many = |name, n| get_with(&vec![(name, "1"); n]);
    assert!(read(&many("cookie", 96)).is_ok());
    for name in ["cookie", "x"] {
        assert_eq!(read(&many(name, 97)), Err(Violation::Limit("http2.too_many_headers")), "{name}");
    }
    let large = "v".repeat(61 * 1024);
    assert_eq!(read(&get_with(&[("x", &large)])), Err(Violation::Limit("http2.headers_too_large")));
}

// RFC 9113 §8.2 and §8.3.
#[test]
fn what_breaks_a_rule_of_messages_is_none() {
    for (what, fields) in [
        ("upper case", get_with(&[("X", "1")])),
        ("an empty name", get_with(&[("", "1")])),
        ("a blank in a name", get_with(&[("a b", "1")])),
        ("a line feed in a value", get_with(&[("a", "b\nc")])),
        ("NUL in a value", get_with(&[("a", "b\0c")])),
        ("a method that is no token", vec![(":method", "G ET"), S, A, P]),
    ] {
        assert_eq!(read(&fields), Err(Violation::Messaging("http2.invalid.header.field")), "{what}");
    }
    for (what, fields) in [
        ("connection", get_with(&[("connection", "close")])),
        ("transfer-encoding", get_with(&[("transfer-encoding", "chunked")])),
        ("te", get_with(&[("te", "gzip")])),
        ("pseudo header twice", vec![M, S, A, P, P]),
        ("pseudo header late", vec![M, S, A, ("x", "1"), P]),
        ("unknown pseudo header", get_with(&[(":status", "200")])),
        ("no method", vec![S, A, P]),
        ("no scheme", vec![M, A, P]),
        ("no path", vec![M, S, A]),
        ("a path with CONNECT", vec![(":method", "CONNECT"), A, P]),
        ("user information", vec![M, S, (":authority", "u@a"), P]),
        (":protocol that was not offered", vec![(":method", "CONNECT"), S, A, P, (":protocol", "websocket")]),
    ] {
        assert_eq!(read(&fields), Err(MESSAGING), "{what}");
    }
    assert!(read(&get_with(&[("te", "trailers")])).is_ok());
    assert!(read(&[(":method", "CONNECT"), A]).is_ok());
}

#[test]
fn paths_are_origin_form_and_schemes_are_http() {
    assert_eq!(read(&[M, (":scheme", "ftp"), A, P]), Err(MESSAGING));
    assert_eq!(read(&[M, S, A, (":path", "*")]), Err(MESSAGING));
    assert_eq!(read(&[M, S, A, (":path", "")]), Err(MESSAGING));
    assert_eq!(read(&[M, S, A, (":path", "/a b")]), Err(MESSAGING));
    assert!(read(&[(":method", "OPTIONS"), S, A, (":path", "*")]).is_ok());
}

#[test]
fn underscores_are_dropped_or_refused_as_configured() {
    let fields = get_with(&[("x_y", "1"), ("z", "2")]);
    let options = |underscores| ServerOptions { underscores, ..ServerOptions::default() };
    let head = read_with(&options(Underscores::Drop), &fields, true).unwrap();
    assert!(!head.headers.contains("x_y"));
    let reject = read_with(&options(Underscores::Reject), &fields, true).map(drop);
    assert_eq!(reject, Err(Violation::Limit("http2.unexpected_underscore")));
}

/// What a block holds, as the peer decodes it.
fn written(write: impl FnOnce(&mut Block<'_>)) -> Vec<String> {
    let (mut encoder, mut out, mut text, mut seen) = (Encoder::new(), Vec::new(), Vec::new(), Vec::new());
    encoder.begin(&mut out);
    write(&mut Block { encoder: &mut encoder, out: &mut out });
    let see =
        |name: &[u8], value: &[u8], _: bool| seen.push(format!("{}: {}", name.escape_ascii(), value.escape_ascii()));
    Decoder::new(4096).decode(&out, &mut text, see).unwrap();
    seen
}

fn request(head: &RequestHead, end: bool, upgrade: bool) -> Vec<String> {
    let outgoing = Outgoing::new(head, end, upgrade).unwrap();
    written(|block| block.request(&outgoing))
}

// RFC 8441 §4, and the form that Envoy gives it.
#[test]
fn an_extended_connect_is_an_upgrade_above_and_the_other_way_round() {
    let mut options = ServerOptions::default();
    options.http2.allow_connect = true;
    let fields = [(":method", "CONNECT"), S, A, (":path", "/chat"), (":protocol", "websocket"), ("x", "13")];
    let head = read_with(&options, &fields, false).unwrap();
    for (name, value) in [(":method", "GET"), ("connection", "upgrade"), ("upgrade", "websocket"), ("x", "13")] {
        assert_eq!(head.headers.get_str(name), Some(value));
    }
    let wanted =
        [":method: CONNECT", ":scheme: http", ":path: /chat", ":authority: a", ":protocol: websocket", "x: 13"];
    assert_eq!(request(&head, false, true), wanted);
    let mut accepted = ResponseHead::new(101);
    accepted.headers.append("upgrade", "websocket");
    assert_eq!(written(|block| block.response(&accepted, false, false, true)), [":status: 200"]);
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
    let pseudo = [":method: GET", ":scheme: http", ":path: /x", ":authority: a.test"];
    assert_eq!(request(&head, true, false), [&pseudo[..], &["x: 1"]].concat());
    head.headers.set("te", "trailers");
    head.framing = Framing::Length(7);
    let wanted = [&pseudo[..], &["te: trailers", "x: 1", "content-length: 7"]].concat();
    assert_eq!(request(&head, false, false), wanted);
    assert_eq!(Outgoing::new(&head, true, false).err(), Some("a length without a body"));
}

#[test]
fn a_request_that_cannot_be_sent_says_why() {
    let with = |name: &str, value: &[u8]| {
        let mut head = get("/");
        head.headers.set_given(name, value);
        Outgoing::new(&head, true, false).map(drop)
    };
    assert_eq!(with(":path", b"/a b"), Err("path"));
    assert_eq!(with(":authority", b""), Err("no host"));
    assert_eq!(with(":authority", b"a b"), Err("host"));
    assert_eq!(with(":method", b"G ET"), Err("method"));
    let mut head = get("/");
    head.headers.set("x", b"a\r\nb: c");
    assert_eq!(request(&head, true, false).len(), 4, "a field that cannot be written is left out");
}

fn response(fields: &[(&str, &str)], end: bool) -> Result<Option<u64>, &'static str> {
    let mut head = ResponseHead::default();
    let mut reader = ResponseReader::new((100, 80 * 1024), &mut head);
    fields.iter().for_each(|(name, value)| reader.field(name.as_bytes(), value.as_bytes(), false));
    reader.finish(end)
}

#[test]
fn a_response_has_one_status_and_at_most_one_length() {
    let ok = (":status", "200");
    assert_eq!(response(&[ok, ("content-length", "1")], false), Ok(Some(1)));
    assert!(response(&[ok, ("content-length", "1"), ("content-length", "1")], false).is_err());
    assert!(response(&[ok, ("content-length", "x")], false).is_err());
    assert!(response(&[("x", "1")], true).is_err());
    assert!(response(&[ok, ok], true).is_err());
    assert!(response(&[("x", "1"), ok], true).is_err());
    assert!(response(&[ok, ("connection", "close")], true).is_err());
    for status in ["", "20", "2000", "2x0", "012", "101"] {
        assert!(response(&[(":status", status)], true).is_err(), "{status}");
    }
    assert!(response(&[&[ok][..], &[("x", "1"); 100]].concat(), true).is_err());
}

#[test]
fn trailers_have_no_pseudo_headers_and_are_not_too_many() {
    let trailers = |fields: &[(&str, &str)]| {
        let mut reader = TrailersReader::new((10, 1000));
        fields.iter().for_each(|(name, value)| reader.field(name.as_bytes(), value.as_bytes(), false));
        reader.finish().map(|map| super::fields(&map))
    };
    assert_eq!(trailers(&[("grpc-status", "0")]).unwrap(), ["grpc-status: 0"]);
    assert!(matches!(trailers(&[(":path", "/")]), Err(Violation::Messaging(_))));
    assert!(matches!(trailers(&[("a", "b\r\nc")]), Err(Violation::Messaging(_))));
    assert!(matches!(trailers(&[("a", "1"); 11]), Err(Violation::Limit(_))));
}
