//! Messages that are none, RFC 9113 §8.

use nuncio_testkit::http2::frame::code::PROTOCOL_ERROR;
use nuncio_testkit::http2::frame::{flag, frame, kind::*};
use nuncio_testkit::http2::hpack::{GET, block, get_with};

use super::{Case, Want, case, post};

pub(super) fn cases() -> Vec<Case> {
    [fields(), pseudo(), bodies()].into_iter().flatten().collect()
}

/// A whole request of these fields, which must be refused.
fn refused(section: &'static str, what: &'static str, fields: &[(&str, &str)]) -> Case {
    case(section, what, &[frame(HEADERS, flag::WHOLE, 1, &block(fields))], Want::Stream(&[PROTOCOL_ERROR]))
}

fn taken(section: &'static str, what: &'static str, fields: &[(&str, &str)]) -> Case {
    case(section, what, &[frame(HEADERS, flag::WHOLE, 1, &block(fields))], Want::Answer(1))
}

fn fields() -> Vec<Case> {
    let with = get_with;
    vec![
        refused("8.2", "an upper-case name", &with(&[("X-Test", "ok")])),
        refused("8.2.1", "a blank in a name", &with(&[("x test", "ok")])),
        refused("8.2.1", "a colon in a name", &with(&[("x:test", "ok")])),
        refused("8.2.1", "an empty name", &with(&[("", "ok")])),
        refused("8.2.1", "DEL in a name", &with(&[("x\u{7f}", "ok")])),
        refused("8.2.1", "NUL in a value", &with(&[("x", "a\0b")])),
        refused("8.2.1", "LF in a value", &with(&[("x", "a\nb")])),
        refused("8.2.1", "CR in a value", &with(&[("x", "a\rb")])),
        refused("8.2.2", "connection", &with(&[("connection", "keep-alive")])),
        refused("8.2.2", "keep-alive", &with(&[("keep-alive", "timeout=5")])),
        refused("8.2.2", "proxy-connection", &with(&[("proxy-connection", "keep-alive")])),
        refused("8.2.2", "transfer-encoding", &with(&[("transfer-encoding", "chunked")])),
        refused("8.2.2", "upgrade", &with(&[("upgrade", "websocket")])),
        refused("8.2.2", "TE other than trailers", &with(&[("te", "trailers, deflate;q=0.5")])),
        taken("8.2.2", "TE trailers", &with(&[("te", "trailers")])),
        taken("8.2.3", "a cookie in pieces", &with(&[("cookie", "a=b"), ("cookie", "c=d")])),
        taken("8.2.1", "obs-text in a value", &with(&[("x", "caf\u{e9}")])),
    ]
}

fn pseudo() -> Vec<Case> {
    let (m, s, a, p) = (GET[0], GET[1], GET[2], GET[3]);
    let trailers = frame(HEADERS, flag::WHOLE, 1, &block(&[(":method", "GET")]));
    vec![
        refused("8.3", "an unknown pseudo header", &get_with(&[(":test", "ok")])),
        refused("8.3", "a response's pseudo header", &get_with(&[(":status", "200")])),
        case("8.3", "a pseudo header in trailers", &[post(1, "/hold"), trailers], Want::Stream(&[PROTOCOL_ERROR])),
        refused("8.3", "a pseudo header behind another field", &[m, s, a, ("x-test", "ok"), p]),
        refused("8.3.1", "an empty :path", &[m, s, a, (":path", "")]),
        refused("8.3.1", "no :method", &[s, a, p]),
        refused("8.3.1", "no :scheme", &[m, a, p]),
        refused("8.3.1", "no :path", &[m, s, a]),
        refused("8.3", ":method twice", &[m, m, s, a, p]),
        refused("8.3", ":scheme twice", &[m, s, s, a, p]),
        refused("8.3", ":path twice", &[m, s, a, p, p]),
        refused("8.3", ":authority twice", &[m, s, a, a, p]),
        refused("8.3.1", ":authority with user information", &[m, s, (":authority", "u@a"), p]),
        refused("8.3.1", "a :path without a slash", &[m, s, a, (":path", "x")]),
        refused("8.5", "CONNECT with :path", &[(":method", "CONNECT"), s, a, p]),
        refused("8.5", "CONNECT without :authority", &[(":method", "CONNECT")]),
        taken("8.3.1", "host instead of :authority", &[m, s, p, ("host", "a")]),
    ]
}

fn bodies() -> Vec<Case> {
    let told = |length: &str| {
        let fields = [(":method", "POST"), (":scheme", "http"), (":authority", "a"), (":path", "/hold")];
        let fields: Vec<_> = fields.into_iter().chain([("content-length", length)]).collect();
        frame(HEADERS, flag::END_HEADERS, 1, &block(&fields))
    };
    let data = |flags: u8, body: &[u8]| frame(DATA, flags, 1, body);
    let malformed = || Want::Stream(&[PROTOCOL_ERROR]);
    vec![
        case(
            "8.1",
            "a second HEADERS without END_STREAM",
            &[post(1, "/hold"), data(0, b"test"), frame(HEADERS, flag::END_HEADERS, 1, &block(&[("x-test", "ok")]))],
            malformed(),
        ),
        case("8.1.1", "content-length that is not DATA's", &[told("1"), data(1, b"test")], malformed()),
        case(
            "8.1.1",
            "content-length that is not the sum of DATA",
            &[told("1"), data(0, b"te"), data(1, b"st")],
            malformed(),
        ),
        case("8.1.1", "content-length beyond DATA", &[told("10"), data(1, b"test")], malformed()),
        case(
            "8.1.1",
            "two content-lengths",
            &[
                frame(
                    HEADERS,
                    flag::END_HEADERS,
                    1,
                    &block(&[
                        (":method", "POST"),
                        (":scheme", "http"),
                        (":authority", "a"),
                        (":path", "/hold"),
                        ("content-length", "4"),
                        ("content-length", "5"),
                    ]),
                ),
                data(1, b"test"),
            ],
            malformed(),
        ),
        case("8.1.1", "content-length that is no number", &[told("4x"), data(1, b"test")], malformed()),
        refused("8.1.1", "content-length and no DATA", &get_with(&[("content-length", "5")])),
    ]
}
