//! Frames that are not what RFC 9113 §4 and §6 say.

use nuncio_testkit::http2::frame::code::*;
use nuncio_testkit::http2::frame::{flag, frame, kind::*, padded, priority, settings, window_update};
use nuncio_testkit::http2::hpack::{GET, block};

use super::{Case, Step, Want, case, get, post, steps};

pub(super) fn cases() -> Vec<Case> {
    let all = [format(), data_and_headers(), priority_and_reset(), settings_frames(), ping_and_goaway(), windows()];
    all.into_iter().flatten().chain(continuations()).collect()
}

fn format() -> Vec<Case> {
    let reserved = {
        let mut bytes = frame(PING, 0, 0, b"reserved");
        bytes[5] |= 0x80;
        bytes
    };
    // A field that no table has, of more than one frame's size.
    let large = [block(GET), block(&[("x", "a".repeat(16_400))])].concat();
    vec![
        case("4.1", "a frame of an unknown kind", &[frame(0x16, 0, 0, &[0; 8])], Want::Nothing),
        case("4.1", "an unknown kind on a stream", &[post(1, "/hold"), frame(0xff, 0xff, 1, b"x")], Want::Nothing),
        case("4.1", "undefined flags", &[frame(PING, 0xfe, 0, &[0; 8])], Want::Nothing),
        case("4.1", "the reserved bit", &[reserved], Want::Nothing),
        case("4.2", "DATA of 2^14 bytes", &[post(1, "/"), frame(DATA, 1, 1, &[b'x'; 1 << 14])], Want::Answer(1)),
        case(
            "4.2",
            "DATA beyond SETTINGS_MAX_FRAME_SIZE",
            &[post(1, "/"), frame(DATA, 1, 1, &[b'x'; (1 << 14) + 1])],
            Want::Stream(&[FRAME_SIZE_ERROR]),
        ),
        case(
            "4.2",
            "HEADERS beyond SETTINGS_MAX_FRAME_SIZE",
            &[frame(HEADERS, flag::WHOLE, 1, &large)],
            Want::Connection(&[FRAME_SIZE_ERROR]),
        ),
        case(
            "4.3",
            "a field block that cannot be decoded",
            // An indexed name beyond every table.
            &[frame(HEADERS, flag::WHOLE, 1, &[0x7f, 0xff, 0xff, 0x03, 0x01, b'a'])],
            Want::Connection(&[COMPRESSION_ERROR]),
        ),
        case(
            "4.3",
            "PRIORITY within a field block",
            &[frame(HEADERS, 1, 1, &block(GET)), priority(1, 0, 255), frame(CONTINUATION, 4, 1, &block(&[("x", "1")]))],
            Want::Connection(&[PROTOCOL_ERROR]),
        ),
        case(
            "4.3",
            "HEADERS of another stream within a field block",
            &[frame(HEADERS, 1, 1, &block(GET)), get(3, "/")],
            Want::Connection(&[PROTOCOL_ERROR]),
        ),
        case("5.5", "an unknown kind is ignored", &[frame(0x1f, 0, 0, b"x"), get(1, "/")], Want::Answer(1)),
        case(
            "5.5",
            "an unknown kind within a field block",
            &[frame(HEADERS, 1, 1, &block(GET)), frame(0x1f, 0, 0, b"x")],
            Want::Connection(&[PROTOCOL_ERROR]),
        ),
    ]
}

fn data_and_headers() -> Vec<Case> {
    let bad_padding = [&[100][..], &block(GET)[..20]].concat();
    vec![
        case(
            "6.1",
            "DATA of stream 0",
            &[post(1, "/hold"), frame(DATA, 1, 0, b"x")],
            Want::Connection(&[PROTOCOL_ERROR]),
        ),
        case(
            "6.1",
            "DATA of a stream that is not open",
            &[get(1, "/hold"), frame(DATA, 1, 1, b"x")],
            Want::Stream(&[STREAM_CLOSED]),
        ),
        case(
            "6.1",
            "more padding than DATA",
            &[post(1, "/hold"), frame(DATA, 1 | flag::PADDED, 1, &[6, 1, 2, 3])],
            Want::Connection(&[PROTOCOL_ERROR]),
        ),
        case(
            "6.1",
            "padded DATA without a length of it",
            &[post(1, "/hold"), frame(DATA, 1 | flag::PADDED, 1, &[])],
            Want::Connection(&[FRAME_SIZE_ERROR, PROTOCOL_ERROR]),
        ),
        case("6.2", "HEADERS of stream 0", &[get(0, "/")], Want::Connection(&[PROTOCOL_ERROR])),
        case(
            "6.2",
            "more padding than HEADERS",
            &[frame(HEADERS, flag::WHOLE | flag::PADDED, 1, &bad_padding)],
            Want::Connection(&[PROTOCOL_ERROR]),
        ),
        case(
            "6.2",
            "HEADERS too short for their priority",
            &[frame(HEADERS, flag::WHOLE | flag::PRIORITY, 1, &[0, 0, 0])],
            Want::Connection(&[FRAME_SIZE_ERROR, PROTOCOL_ERROR]),
        ),
        case(
            "6.6",
            "PUSH_PROMISE of a client",
            &[frame(PUSH_PROMISE, 4, 1, &[&[0, 0, 0, 3][..], &block(GET)].concat())],
            Want::Connection(&[PROTOCOL_ERROR]),
        ),
    ]
}

fn priority_and_reset() -> Vec<Case> {
    vec![
        case("6.3", "PRIORITY of stream 0", &[priority(0, 0, 15)], Want::Connection(&[PROTOCOL_ERROR])),
        case(
            "6.3",
            "PRIORITY of 4 bytes",
            &[post(1, "/hold"), frame(PRIORITY, 0, 1, &[0; 4])],
            Want::Stream(&[FRAME_SIZE_ERROR]),
        ),
        case("6.4", "RST_STREAM of stream 0", &[frame(RST_STREAM, 0, 0, &[0; 4])], Want::Connection(&[PROTOCOL_ERROR])),
        case(
            "6.4",
            "RST_STREAM of an idle stream",
            &[frame(RST_STREAM, 0, 1, &[0; 4])],
            Want::Connection(&[PROTOCOL_ERROR]),
        ),
        case(
            "6.4",
            "RST_STREAM of 3 bytes",
            &[post(1, "/hold"), frame(RST_STREAM, 0, 1, &[0; 3])],
            Want::Connection(&[FRAME_SIZE_ERROR]),
        ),
    ]
}

fn settings_frames() -> Vec<Case> {
    let one = |id: u16, value: u32| [settings(&[(id, value)])];
    vec![
        case(
            "6.5",
            "an acknowledgement with a payload",
            &[frame(SETTINGS, 1, 0, &[0; 6])],
            Want::Connection(&[FRAME_SIZE_ERROR]),
        ),
        case("6.5", "SETTINGS of a stream", &[frame(SETTINGS, 0, 1, &[])], Want::Connection(&[PROTOCOL_ERROR])),
        case("6.5", "SETTINGS of 3 bytes", &[frame(SETTINGS, 0, 0, &[0; 3])], Want::Connection(&[FRAME_SIZE_ERROR])),
        case("6.5.2", "SETTINGS_ENABLE_PUSH 2", &one(2, 2), Want::Connection(&[PROTOCOL_ERROR])),
        case("6.5.2", "SETTINGS_INITIAL_WINDOW_SIZE 2^31", &one(4, 1 << 31), Want::Connection(&[FLOW_CONTROL_ERROR])),
        case(
            "6.5.2",
            "SETTINGS_MAX_FRAME_SIZE below 2^14",
            &one(5, (1 << 14) - 1),
            Want::Connection(&[PROTOCOL_ERROR]),
        ),
        case("6.5.2", "SETTINGS_MAX_FRAME_SIZE above 2^24 - 1", &one(5, 1 << 24), Want::Connection(&[PROTOCOL_ERROR])),
        case("6.5.2", "an unknown setting", &one(0xff, 1), Want::Nothing),
        case("6.5.2", "SETTINGS_ENABLE_CONNECT_PROTOCOL 2", &one(8, 2), Want::Connection(&[PROTOCOL_ERROR])),
    ]
}

fn ping_and_goaway() -> Vec<Case> {
    vec![
        case("6.7", "PING", &[frame(PING, 0, 0, b"whatever")], Want::Nothing),
        case("6.7", "PING of a stream", &[frame(PING, 0, 1, &[0; 8])], Want::Connection(&[PROTOCOL_ERROR])),
        case("6.7", "PING of 6 bytes", &[frame(PING, 0, 0, &[0; 6])], Want::Connection(&[FRAME_SIZE_ERROR])),
        case("6.8", "GOAWAY of a stream", &[frame(GOAWAY, 0, 1, &[0; 8])], Want::Connection(&[PROTOCOL_ERROR])),
        case("6.8", "GOAWAY of 7 bytes", &[frame(GOAWAY, 0, 0, &[0; 7])], Want::Connection(&[FRAME_SIZE_ERROR])),
        case(
            "7",
            "RST_STREAM with an unknown code",
            &[post(1, "/hold"), frame(RST_STREAM, 0, 1, &[0, 0, 0, 0xff])],
            Want::Nothing,
        ),
        steps(
            "7",
            "GOAWAY with an unknown code",
            // The connection ends without a reproach.
            &[Step::Say(frame(GOAWAY, 0, 0, &[0, 0, 0, 0, 0, 0, 0, 0xff]))],
            Want::Stream(&[NO_ERROR]),
        ),
    ]
}

fn windows() -> Vec<Case> {
    const MOST: u32 = (1 << 31) - 1;
    vec![
        case("6.9", "no increment of the connection", &[window_update(0, 0)], Want::Connection(&[PROTOCOL_ERROR])),
        case(
            "6.9",
            "no increment of a stream",
            &[post(1, "/hold"), window_update(1, 0)],
            Want::Stream(&[PROTOCOL_ERROR]),
        ),
        case(
            "6.9",
            "WINDOW_UPDATE of 3 bytes",
            &[frame(WINDOW_UPDATE, 0, 0, &[0; 3])],
            Want::Connection(&[FRAME_SIZE_ERROR]),
        ),
        case(
            "6.9.1",
            "the connection's window beyond 2^31 - 1",
            &[window_update(0, MOST), window_update(0, MOST)],
            Want::Connection(&[FLOW_CONTROL_ERROR]),
        ),
        case(
            "6.9.1",
            "a stream's window beyond 2^31 - 1",
            &[post(1, "/hold"), window_update(1, MOST), window_update(1, MOST)],
            Want::Stream(&[FLOW_CONTROL_ERROR]),
        ),
        case(
            "6.9.2",
            "a stream's window beyond 2^31 - 1 by SETTINGS",
            &[post(1, "/hold"), window_update(1, MOST - 65_535), settings(&[(4, 65_536)])],
            Want::Connection(&[FLOW_CONTROL_ERROR]),
        ),
    ]
}

fn continuations() -> Vec<Case> {
    let (begin, more) = (frame(HEADERS, 1, 1, &block(GET)), block(&[("x", "1")]));
    let protocol = || Want::Connection(&[PROTOCOL_ERROR]);
    vec![
        case(
            "6.10",
            "another frame than CONTINUATION",
            &[begin.clone(), frame(CONTINUATION, 0, 1, &more), frame(DATA, 1, 1, b"x")],
            protocol(),
        ),
        case("6.10", "CONTINUATION of stream 0", &[begin.clone(), frame(CONTINUATION, 4, 0, &more)], protocol()),
        case("6.10", "CONTINUATION of another stream", &[begin.clone(), frame(CONTINUATION, 4, 3, &more)], protocol()),
        case(
            "6.10",
            "CONTINUATION behind END_HEADERS",
            &[post(1, "/hold"), frame(CONTINUATION, 4, 1, &more)],
            protocol(),
        ),
        case(
            "6.10",
            "CONTINUATION behind the last CONTINUATION",
            &[begin, frame(CONTINUATION, 4, 1, &more), frame(CONTINUATION, 4, 1, &more)],
            protocol(),
        ),
        case(
            "6.10",
            "CONTINUATION behind DATA",
            &[post(1, "/hold"), frame(DATA, 0, 1, b"x"), frame(CONTINUATION, 4, 1, &more)],
            protocol(),
        ),
        case(
            "6.10",
            "HEADERS end with padding and go on",
            &[frame(HEADERS, 1 | flag::PADDED, 1, &padded(&block(GET), 3)), frame(CONTINUATION, 4, 1, &more)],
            Want::Answer(1),
        ),
    ]
}
