//! Frames at the wrong time: the states of a stream, RFC 9113 §5.1, and how many there may be.

use nuncio_testkit::http2::frame::code::*;
use nuncio_testkit::http2::frame::{flag, frame, kind::*, priority, rst_stream, window_update};
use nuncio_testkit::http2::hpack::{GET, block};

use super::Step::{Answered, Say, Seen};
use super::{Case, Want, case, get, post, steps};

pub(super) fn cases() -> Vec<Case> {
    [idle(), half_closed(), closed(), numbers(), errors()].into_iter().flatten().collect()
}

fn trailers(stream: u32) -> Vec<u8> {
    frame(HEADERS, flag::WHOLE, stream, &block(&[("x", "1")]))
}

fn continuation(stream: u32) -> Vec<u8> {
    frame(CONTINUATION, flag::END_HEADERS, stream, &block(&[("x", "1")]))
}

fn idle() -> Vec<Case> {
    let protocol = || Want::Connection(&[PROTOCOL_ERROR]);
    vec![
        case("5.1", "idle: DATA", &[frame(DATA, 1, 1, b"test")], protocol()),
        case("5.1", "idle: RST_STREAM", &[rst_stream(1, CANCEL)], protocol()),
        case("5.1", "idle: WINDOW_UPDATE", &[window_update(1, 100)], protocol()),
        case("5.1", "idle: CONTINUATION", &[continuation(1)], protocol()),
    ]
}

fn half_closed() -> Vec<Case> {
    let after = |what, says: Vec<u8>, want| steps("5.1", what, &[Say(get(1, "/hold")), Seen, Say(says)], want);
    vec![
        after("half-closed: DATA", frame(DATA, 1, 1, b"test"), Want::Stream(&[STREAM_CLOSED])),
        after("half-closed: HEADERS", trailers(1), Want::Stream(&[STREAM_CLOSED])),
        after("half-closed: CONTINUATION", continuation(1), Want::Connection(&[STREAM_CLOSED, PROTOCOL_ERROR])),
    ]
}

fn closed() -> Vec<Case> {
    let reset = |what, says: Vec<u8>, want| {
        steps("5.1", what, &[Say(post(1, "/hold")), Seen, Say(rst_stream(1, CANCEL)), Seen, Say(says)], want)
    };
    let ended = |what, says: Vec<u8>, want| steps("5.1", what, &[Say(get(1, "/")), Answered(1), Say(says)], want);
    vec![
        reset("closed by RST_STREAM: DATA", frame(DATA, 1, 1, b"test"), Want::Stream(&[STREAM_CLOSED])),
        reset("closed by RST_STREAM: HEADERS", trailers(1), Want::Stream(&[STREAM_CLOSED])),
        reset(
            "closed by RST_STREAM: CONTINUATION",
            continuation(1),
            Want::Connection(&[STREAM_CLOSED, PROTOCOL_ERROR]),
        ),
        ended("closed by its end: DATA", frame(DATA, 1, 1, b"test"), Want::Stream(&[STREAM_CLOSED])),
        ended("closed by its end: HEADERS", trailers(1), Want::Stream(&[STREAM_CLOSED])),
        ended("closed by its end: CONTINUATION", continuation(1), Want::Connection(&[STREAM_CLOSED, PROTOCOL_ERROR])),
    ]
}

fn numbers() -> Vec<Case> {
    vec![
        case("5.1.1", "an even number", &[get(2, "/")], Want::Connection(&[PROTOCOL_ERROR])),
        case(
            "5.1.1",
            "a smaller number than before",
            &[get(5, "/hold"), get(3, "/")],
            Want::Connection(&[PROTOCOL_ERROR]),
        ),
        steps(
            "5.1.1",
            "a smaller number, never opened, after an answer",
            &[Say(get(5, "/")), Answered(5), Say(get(3, "/"))],
            Want::Connection(&[PROTOCOL_ERROR]),
        ),
        case(
            "5.3.1",
            "HEADERS that depend on themselves",
            &[frame(HEADERS, flag::WHOLE | flag::PRIORITY, 1, &[&[0, 0, 0, 1, 255][..], &block(GET)].concat())],
            Want::Stream(&[PROTOCOL_ERROR]),
        ),
        case(
            "5.3.1",
            "PRIORITY that depends on itself",
            &[post(1, "/hold"), priority(1, 1, 255)],
            Want::Stream(&[PROTOCOL_ERROR]),
        ),
    ]
}

fn errors() -> Vec<Case> {
    vec![
        case(
            "5.4.1",
            "a connection error closes the connection",
            &[frame(PING, 0, 0, &[0; 7])],
            Want::Connection(&[FRAME_SIZE_ERROR]),
        ),
        case(
            "5.4.1",
            "a connection error while a stream waits",
            &[get(1, "/hold"), frame(PING, 0, 3, &[0; 8])],
            Want::Connection(&[PROTOCOL_ERROR]),
        ),
    ]
}
