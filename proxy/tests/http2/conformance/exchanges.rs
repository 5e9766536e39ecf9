//! Rules that need a talk: the preface, acknowledgements, windows, the number of streams.

use nuncio_testkit::http2::frame::code::*;
use nuncio_testkit::http2::frame::{PREFACE, flag, frame, kind::*, setting, settings, window_update};
use nuncio_testkit::http2::{Client, Ended};
use tokio::net::TcpStream;

use super::{get, head};
use crate::running::RunningProxy;
use crate::stage::{Upstream, configuration, connect, within};

async fn house(manager: &str) -> (RunningProxy, Upstream) {
    let upstream = Upstream::start();
    (RunningProxy::start(&configuration(upstream.address, manager, ""), 1), upstream)
}

async fn greeted(proxy: &RunningProxy, settings: &[(u16, u32)]) -> Client<TcpStream> {
    let mut client = connect(proxy).await;
    within("the handshake", client.shake_hands(settings)).await;
    client
}

#[tokio::test(flavor = "local")]
async fn s3_4_the_first_frame_is_settings_and_the_clients_are_acknowledged() {
    let (proxy, _upstream) = house("").await;
    let mut client = connect(&proxy).await;
    client.write(PREFACE).await;
    client.write(&settings(&[(setting::MAX_CONCURRENT_STREAMS, 7)])).await;
    let first = within("a first frame", client.read()).await.unwrap();
    assert_eq!((first.kind, first.flags & flag::ACK, first.stream), (SETTINGS, 0, 0));
    within("an acknowledgement", client.find(|f| f.kind == SETTINGS && f.has(flag::ACK))).await.unwrap();
}

#[tokio::test(flavor = "local")]
async fn s3_4_a_preface_that_is_none_ends_the_connection() {
    let (proxy, _upstream) = house("codec_type: HTTP2").await;
    for says in
        [&b"INVALID CONNECTION PREFACE\r\n\r\n"[..], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\rX", b"GET / HTTP/1.1\r\n\r\n"]
    {
        let mut client = connect(&proxy).await;
        client.write(says).await;
        // A GOAWAY may be left out (§3.4).
        while within("the end", client.read()).await.is_some() {}
    }
    // Behind the preface, SETTINGS.
    let mut client = connect(&proxy).await;
    client.write(&[PREFACE, &frame(PING, 0, 0, &[0; 8])].concat()).await;
    let said = within("a reproach", client.find(|f| f.kind == GOAWAY)).await;
    assert!(matches!(said, Ok(ref f) if f.code() == PROTOCOL_ERROR) || matches!(said, Err(Ended::Closed)));
}

#[tokio::test(flavor = "local")]
async fn s5_1_2_a_stream_too_many_is_refused_and_the_others_go_on() {
    let (proxy, upstream) = house("http2_protocol_options: {max_concurrent_streams: 3}").await;
    let mut client = connect(&proxy).await;
    client.greet(&[]).await;
    let told = within("settings", client.find(|f| f.kind == SETTINGS && !f.has(flag::ACK))).await.unwrap();
    let concurrent = told.payload.chunks(6).find(|s| s[..2] == setting::MAX_CONCURRENT_STREAMS.to_be_bytes()).unwrap();
    assert_eq!(concurrent[2..], 3u32.to_be_bytes());
    for stream in [1, 3, 5, 7] {
        client.write(&get(stream, "/hold")).await;
    }
    let refused = within("a refusal", client.answer(7)).await;
    assert!(matches!(refused, Err(Ended::Reset(REFUSED_STREAM | PROTOCOL_ERROR))), "{refused:?}");
    assert!(client.is_alive().await);
    upstream.holds(3).await;
}

#[tokio::test(flavor = "local")]
async fn s6_5_3_of_several_values_in_one_frame_the_last_one_counts() {
    let (proxy, _upstream) = house("").await;
    let mut client = greeted(&proxy, &[]).await;
    client.stop_answering();
    client.write(&settings(&[(setting::INITIAL_WINDOW_SIZE, 100), (setting::INITIAL_WINDOW_SIZE, 1)])).await;
    client.write(&get(1, "/")).await;
    let data = within("DATA", client.find(|f| f.kind == DATA)).await.unwrap();
    assert_eq!(data.payload, b"b");
}

#[tokio::test(flavor = "local")]
async fn s6_7_a_ping_is_answered_with_its_bytes_and_its_answer_is_not() {
    let (proxy, _upstream) = house("").await;
    let mut client = greeted(&proxy, &[]).await;
    client.write(&frame(PING, flag::ACK, 0, b"no reply")).await;
    client.write(&frame(PING, 0, 0, b"the ping")).await;
    let answer = within("an answer", client.find(|f| f.kind == PING)).await.unwrap();
    assert_eq!((answer.flags, answer.payload.as_slice()), (flag::ACK, &b"the ping"[..]));
}

#[tokio::test(flavor = "local")]
async fn s6_9_1_not_a_byte_more_than_the_window_allows() {
    let (proxy, _upstream) = house("").await;
    let mut client = greeted(&proxy, &[(setting::INITIAL_WINDOW_SIZE, 1)]).await;
    client.stop_answering();
    client.write(&get(1, "/")).await;
    assert_eq!(within("DATA", client.find(|f| f.kind == DATA)).await.unwrap().payload, b"b");
    // The connection's window counts too: 65,535 bytes in all.
    let mut client = greeted(&proxy, &[(setting::INITIAL_WINDOW_SIZE, 1 << 20)]).await;
    client.stop_answering();
    client.write(&get(1, "/size/100000")).await;
    let mut got = 0;
    while got < 65_535 {
        got += within("DATA", client.find(|f| f.kind == DATA)).await.unwrap().payload.len();
    }
    assert!(client.is_alive().await);
    assert_eq!(got, 65_535);
    client.write(&window_update(0, 100_000)).await;
    while got < 100_000 {
        got += within("the rest", client.find(|f| f.kind == DATA)).await.unwrap().payload.len();
    }
    assert_eq!(got, 100_000);
}

#[tokio::test(flavor = "local")]
async fn s6_9_2_windows_of_open_streams_change_with_the_setting_also_below_zero() {
    let (proxy, _upstream) = house("").await;
    let mut client = greeted(&proxy, &[(setting::INITIAL_WINDOW_SIZE, 0)]).await;
    client.stop_answering();
    client.write(&get(1, "/")).await;
    within("a head", client.find(|f| f.kind == HEADERS)).await.unwrap();
    client.write(&settings(&[(setting::INITIAL_WINDOW_SIZE, 1)])).await;
    assert_eq!(within("DATA", client.find(|f| f.kind == DATA)).await.unwrap().payload, b"b");
    // A window of 3, used up, then made smaller: -1 and 2 more are 1.
    let mut client = greeted(&proxy, &[(setting::INITIAL_WINDOW_SIZE, 3)]).await;
    client.stop_answering();
    client.write(&get(1, "/")).await;
    assert_eq!(within("DATA", client.find(|f| f.kind == DATA)).await.unwrap().payload, b"bod");
    client.write(&settings(&[(setting::INITIAL_WINDOW_SIZE, 2)])).await;
    assert!(client.is_alive().await, "nothing to send");
    client.write(&window_update(1, 2)).await;
    assert_eq!(within("DATA", client.find(|f| f.kind == DATA)).await.unwrap().payload, b"y");
}

#[tokio::test(flavor = "local")]
async fn s4_2_frames_are_no_larger_than_the_client_takes() {
    let (proxy, _upstream) = house("").await;
    for (most, told) in [(16_384, vec![]), (20_000, vec![(setting::MAX_FRAME_SIZE, 20_000)])] {
        let mut client = greeted(&proxy, &told).await;
        client.write(&get(1, "/size/200000")).await;
        let mut got = 0;
        while got < 200_000 {
            let size = within("DATA", client.find(|f| f.kind == DATA)).await.unwrap().payload.len();
            assert!(size <= most, "{size}");
            got += size;
        }
    }
}

#[tokio::test(flavor = "local")]
async fn s8_1_no_body_follows_the_answer_to_head() {
    let (proxy, _upstream) = house("").await;
    let mut client = greeted(&proxy, &[]).await;
    client.write(&frame(HEADERS, flag::WHOLE, 1, &head("HEAD", "/size/1000"))).await;
    let answer = within("an answer", client.answer(1)).await.unwrap();
    assert_eq!((answer.status, answer.body.len()), (200, 0));
}
