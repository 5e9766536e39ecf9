//! What a client may do: every kind of frame and of request in its honest forms.

use nuncio_testkit::http2::frame::code::CANCEL;
use nuncio_testkit::http2::frame::{flag, frame, kind::*, padded, priority, rst_stream, settings, window_update};
use nuncio_testkit::http2::hpack::{GET, block};

use super::{Case, Step, Want, case, get, head, post, steps};

pub(super) fn cases() -> Vec<Case> {
    [streams(), data_and_headers(), control(), requests()].into_iter().flatten().collect()
}

fn data(stream: u32, flags: u8, body: &[u8]) -> Vec<u8> {
    frame(DATA, flags, stream, body)
}

fn streams() -> Vec<Case> {
    use Step::{Answered, Say, Seen};
    vec![
        case("5.1", "PRIORITY on an idle stream", &[priority(1, 0, 15), get(1, "/")], Want::Answer(1)),
        steps(
            "5.1",
            "WINDOW_UPDATE on a half-closed stream",
            &[Say(get(1, "/hold")), Seen, Say(window_update(1, 100))],
            Want::Nothing,
        ),
        steps(
            "5.1",
            "PRIORITY on a half-closed stream",
            &[Say(get(1, "/hold")), Seen, Say(priority(1, 0, 15))],
            Want::Nothing,
        ),
        steps(
            "5.1",
            "RST_STREAM on a half-closed stream",
            &[Say(get(1, "/hold")), Seen, Say([rst_stream(1, CANCEL), get(3, "/")].concat())],
            Want::Answer(3),
        ),
        steps(
            "5.1",
            "PRIORITY on a closed stream",
            &[Say(get(1, "/")), Answered(1), Say([priority(1, 0, 15), get(3, "/")].concat())],
            Want::Answer(3),
        ),
        steps(
            "5.1",
            "WINDOW_UPDATE and RST_STREAM on a closed stream",
            &[Say(get(1, "/")), Answered(1), Say([window_update(1, 1), rst_stream(1, CANCEL), get(3, "/")].concat())],
            Want::Answer(3),
        ),
        case("5.1.1", "stream numbers may be left out", &[get(7, "/"), get(101, "/")], Want::Answer(101)),
    ]
}

fn data_and_headers() -> Vec<Case> {
    let weighted = [&[0, 0, 0, 0, 15][..], &block(GET)].concat();
    let (half, rest) = (&block(GET)[..10], &block(GET)[10..]);
    vec![
        case("6.1", "a DATA frame", &[post(1, "/"), data(1, 1, b"test")], Want::Answer(1)),
        case("6.1", "several DATA frames", &[post(1, "/"), data(1, 0, b"te"), data(1, 1, b"st")], Want::Answer(1)),
        case("6.1", "padded DATA", &[post(1, "/"), data(1, 1 | flag::PADDED, &padded(b"test", 6))], Want::Answer(1)),
        case(
            "6.1",
            "DATA of padding alone",
            &[post(1, "/"), data(1, 1 | flag::PADDED, &padded(b"", 5))],
            Want::Answer(1),
        ),
        case("6.1", "an empty DATA frame at the end", &[post(1, "/"), data(1, 1, b"")], Want::Answer(1)),
        case("6.2", "a HEADERS frame", &[get(1, "/")], Want::Answer(1)),
        case(
            "6.2",
            "padded HEADERS",
            &[frame(HEADERS, flag::WHOLE | flag::PADDED, 1, &padded(&block(GET), 9))],
            Want::Answer(1),
        ),
        case(
            "6.2",
            "HEADERS with a priority",
            &[frame(HEADERS, flag::WHOLE | flag::PRIORITY, 1, &weighted)],
            Want::Answer(1),
        ),
        case(
            "6.2",
            "padded HEADERS with a priority",
            &[frame(HEADERS, flag::WHOLE | flag::PRIORITY | flag::PADDED, 1, &padded(&weighted, 9))],
            Want::Answer(1),
        ),
        case(
            "6.10",
            "a CONTINUATION frame",
            &[frame(HEADERS, flag::END_STREAM, 1, half), frame(CONTINUATION, flag::END_HEADERS, 1, rest)],
            Want::Answer(1),
        ),
        case(
            "6.10",
            "several CONTINUATION frames",
            &[
                frame(HEADERS, flag::END_STREAM, 1, half),
                frame(CONTINUATION, 0, 1, &rest[..5]),
                frame(CONTINUATION, 0, 1, &rest[5..9]),
                frame(CONTINUATION, flag::END_HEADERS, 1, &rest[9..]),
            ],
            Want::Answer(1),
        ),
    ]
}

fn control() -> Vec<Case> {
    vec![
        case("6.3", "PRIORITY of weight 1", &[priority(1, 0, 0), get(1, "/")], Want::Answer(1)),
        case("6.3", "PRIORITY of weight 256", &[priority(1, 0, 255), get(1, "/")], Want::Answer(1)),
        case("6.3", "PRIORITY on another stream", &[priority(1, 3, 255), get(1, "/")], Want::Answer(1)),
        case("6.3", "exclusive PRIORITY", &[priority(1, 1 << 31 | 3, 255), get(1, "/")], Want::Answer(1)),
        case("6.3", "PRIORITY for a later stream", &[priority(5, 0, 15), get(3, "/")], Want::Answer(3)),
        case("6.4", "RST_STREAM", &[post(1, "/hold"), rst_stream(1, CANCEL), get(3, "/")], Want::Answer(3)),
        case("6.5", "SETTINGS", &[settings(&[(3, 100)]), get(1, "/")], Want::Answer(1)),
        case("6.5", "empty SETTINGS", &[settings(&[]), get(1, "/")], Want::Answer(1)),
        case("6.8", "GOAWAY of a client", &[frame(GOAWAY, 0, 0, &[0; 8])], Want::Stream(&[0])),
        case("6.9", "WINDOW_UPDATE of the connection", &[window_update(0, 1), get(1, "/")], Want::Answer(1)),
        case(
            "6.9",
            "WINDOW_UPDATE of a stream",
            &[post(1, "/"), window_update(1, 1), data(1, 1, b"")],
            Want::Answer(1),
        ),
    ]
}

fn requests() -> Vec<Case> {
    let trailers = frame(HEADERS, flag::WHOLE, 1, &block(&[("x-test", "ok")]));
    vec![
        case("8.1", "GET", &[get(1, "/")], Want::Answer(1)),
        case("8.1", "HEAD", &[frame(HEADERS, flag::WHOLE, 1, &head("HEAD", "/"))], Want::Answer(1)),
        case("8.1", "POST", &[post(1, "/"), data(1, 1, b"test")], Want::Answer(1)),
        case("8.1", "POST with trailers", &[post(1, "/"), data(1, 0, b"test"), trailers.clone()], Want::Answer(1)),
        case("8.1", "trailers without a body", &[post(1, "/"), trailers], Want::Answer(1)),
        case(
            "8.3.1",
            "OPTIONS of everything",
            &[frame(HEADERS, flag::WHOLE, 1, &head("OPTIONS", "*"))],
            Want::NoRoute(1),
        ),
    ]
}
