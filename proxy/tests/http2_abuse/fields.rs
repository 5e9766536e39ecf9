//! Heads that are small on the wire and large in memory, and heads that are none.

use nuncio_testkit::http2::Ended;
use nuncio_testkit::http2::frame::code::*;
use nuncio_testkit::http2::frame::{flag, frame, kind::*, setting};
use nuncio_testkit::http2::hpack::{Literal, block, get_with, indexed, literal, string};

use crate::stage::{connect, stat_becomes, within};
use crate::{House, MIB};

/// One field remembered, then pointed at by one byte each.
fn bomb(name: &str, value: &[u8], times: usize) -> (Vec<u8>, Vec<u8>) {
    let fields = [(":method", "GET"), (":scheme", "http"), (":authority", "a"), (":path", "/hold")];
    let remember = literal(Literal::Incremental, &string(name.as_bytes()), &string(value));
    let refer = indexed(62).repeat(times);
    let first = [block(&fields), remember, refer.clone()].concat();
    (first, [block(&fields), refer].concat())
}

/// A hundred requests with such heads on one connection, which then goes; how many of them were reset, or how it ended.
async fn explode(house: &House, (name, value, times): (&str, &[u8], usize), what: &str) -> Result<usize, Ended> {
    let (first, again) = bomb(name, value, times);
    let mut client = connect(&house.proxy).await;
    client.shake_hands(&[(setting::INITIAL_WINDOW_SIZE, 0)]).await;
    for n in 0..100u32 {
        let block = if n == 0 { &first } else { &again };
        client.write(&frame(HEADERS, flag::WHOLE, 2 * n + 1, block)).await;
    }
    let mut resets = 0;
    for n in 0..100 {
        // One that is allowed is held upstream.
        if times > ALLOWED {
            match client.answer(2 * n + 1).await {
                Err(Ended::Reset(INTERNAL_ERROR)) => resets += 1,
                Err(ended @ Ended::GoAway(_)) => return Err(ended),
                other => panic!("{what}: {other:?}"),
            }
        }
    }
    client.ping(*b"all seen").await?;
    drop(client);
    stat_becomes(&house.proxy, "http.in.downstream_cx_http2_active", 0).await;
    house.upstream.holds(0).await;
    Ok(resets)
}

/// Fields of one head.
const ALLOWED: usize = 100;
/// One of these attacks is over before the neighbour has asked a dozen times, which makes no hundredth.
const ROUNDS: usize = if cfg!(debug_assertions) { 1 } else { 10 };

#[tokio::test(flavor = "local")]
async fn r37_references_to_one_field_cost_no_more_than_the_head_may() {
    let house = House::new("");
    for (name, value, times) in [
        ("x", vec![b'v'; 1], 470),
        ("cookie", vec![b'v'; 1], 470),
        ("host", b"b".to_vec(), 470),
        ("x", vec![b'v'; 3900], 15),
        ("cookie", vec![b'v'; 3900], 15),
    ] {
        let what = format!("{times} {name} of {} bytes", value.len());
        let attack = async {
            for _ in 0..ROUNDS {
                // Too many fields reset each stream; a head that is large but allowed goes upstream.
                match explode(&house, (name, &value, times), &what).await {
                    Ok(resets) => assert_eq!(resets, if times > ALLOWED { 100 } else { 0 }, "{what}"),
                    Err(ended) => assert_eq!(ended, Ended::GoAway(ENHANCE_YOUR_CALM), "{what}"),
                }
                house.upstream.take();
            }
        };
        let ((), cost) = house.beside(attack).await;
        // Where heads are allowed, each stream and its upstream request hold one.
        let held = if times > ALLOWED { 0 } else { 100 * 4 * 60 * 1024 };
        assert!(cost.bytes < 2 * MIB + held, "{what}: {} bytes", cost.bytes);
    }
}

/// Nine requests that run, and then a tenth that is malformed.
async fn beside_nine(house: &House, bad: &[(&str, &str)]) -> (Result<(), Ended>, usize) {
    let mut client = connect(&house.proxy).await;
    client.shake_hands(&[]).await;
    for n in 0..9 {
        let fields = [(":method", "POST"), (":scheme", "http"), (":authority", "a"), (":path", "/")];
        client.write(&frame(HEADERS, flag::END_HEADERS, 2 * n + 1, &block(&fields))).await;
    }
    client.write(&frame(HEADERS, flag::WHOLE, 19, &block(bad))).await;
    // The first may be answered before the request is looked at; or it hears of the end, which the second then has missed.
    let first = client.ping(*b"all read").await;
    let alive = first.and(client.ping(*b"all seen").await);
    let mut finished = 0;
    for n in 0..9 {
        client.write(&frame(DATA, flag::END_STREAM, 2 * n + 1, b"done")).await;
        let answer = within("an outcome", client.answer(2 * n + 1)).await;
        finished += usize::from(matches!(answer, Ok(answer) if answer.status == 200));
    }
    (alive, finished)
}

#[tokio::test(flavor = "local")]
async fn r34_a_malformed_request_ends_the_connection_unless_configured_otherwise() {
    let bad: [(&str, &[(&str, &str)]); 10] = [
        ("upper case", &get_with(&[("X-Up", "a")])),
        ("lines in a value", &get_with(&[("x", "a\r\nb: c")])),
        ("a line's end in a value", &get_with(&[("x", "a\nb")])),
        ("NUL in a value", &get_with(&[("x", "a\0b")])),
        ("no name", &get_with(&[("", "a")])),
        ("a colon in a name", &get_with(&[("a:b", "a")])),
        ("a connection field", &get_with(&[("connection", "close")])),
        ("te", &get_with(&[("te", "gzip")])),
        ("two lengths", &get_with(&[("content-length", "0"), ("content-length", "0")])),
        ("no path", &get_with(&[])[..3]),
    ];
    let each = async |house: &House, wanted: (Result<(), Ended>, usize)| {
        let attack = async {
            for (what, fields) in bad.repeat(10) {
                assert_eq!(beside_nine(house, fields).await, wanted, "{what}");
            }
        };
        let ((), cost) = house.beside(attack).await;
        assert!(cost.bytes < 2 * MIB, "{} bytes", cost.bytes);
    };
    let house = House::new("");
    each(&house, (Err(Ended::GoAway(PROTOCOL_ERROR)), 0)).await;
    drop(house);
    let house = House::new("http2_protocol_options: {override_stream_error_on_invalid_http_message: true}");
    each(&house, (Ok(()), 9)).await;
}
