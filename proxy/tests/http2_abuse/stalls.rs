//! Clients that ask and do not take, or begin and do not go on.

use nuncio_testkit::http2::Ended;
use nuncio_testkit::http2::frame::{PREFACE, flag, frame, kind::*, setting, settings, window_update};
use nuncio_testkit::http2::hpack::block;
use tokio::time::{Duration, Instant};

use crate::stage::{connect, stat, stat_becomes, within};
use crate::{House, MIB};

fn get(stream: u32, path: &str) -> Vec<u8> {
    let fields = [(":method", "GET"), (":scheme", "http"), (":authority", "a"), (":path", path)];
    frame(HEADERS, flag::WHOLE, stream, &block(&fields))
}

#[tokio::test(flavor = "local")]
async fn responses_that_nobody_takes_pin_little_and_end_by_the_idle_timeout() {
    let house = House::new("stream_idle_timeout: 2s");
    let mut client = connect(&house.proxy).await;
    client.shake_hands(&[(setting::INITIAL_WINDOW_SIZE, 0)]).await;
    let (took, cost) = house
        .beside(async {
            let began = Instant::now();
            for n in 0..200 {
                client.write(&get(2 * n + 1, "/size/65536")).await;
            }
            for n in 0..200 {
                let answer = client.answer(2 * n + 1).await;
                assert!(matches!(answer, Err(Ended::Reset(_))), "{answer:?}");
            }
            began.elapsed()
        })
        .await;
    assert!(took >= Duration::from_millis(1900) && took < Duration::from_secs(8), "{took:?}");
    // The test's upstream holds 64 KiB for each of them, and the kernel's buffers count for nothing.
    let upstreams = 200 * 65_536;
    assert!(cost.bytes - upstreams < 8 * MIB, "{} bytes", cost.bytes - upstreams);
    stat_becomes(&house.proxy, "cluster.c.upstream_rq_active", 0).await;
    assert!(client.is_alive().await);
    assert_eq!(stat(&house.proxy, "http.in.downstream_rq_idle_timeout").await, 200);
}

#[tokio::test(flavor = "local")]
async fn a_window_opened_byte_by_byte_is_bounded_by_the_streams_duration() {
    let house = House::new("common_http_protocol_options: {max_stream_duration: 1s}");
    let mut client = connect(&house.proxy).await;
    client.shake_hands(&[(setting::INITIAL_WINDOW_SIZE, 0)]).await;
    client.stop_answering();
    client.write(&get(1, "/size/65536")).await;
    let began = Instant::now();
    let ended = within("an end", async {
        loop {
            client.write(&window_update(1, 1)).await;
            match client.find(|f| matches!(f.kind, DATA | RST_STREAM | GOAWAY)).await {
                Ok(frame) if frame.kind == DATA => {}
                Ok(frame) => return frame.kind,
                Err(ended) => panic!("{ended:?}"),
            }
            // A drip, not a flood.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    assert_eq!(ended, RST_STREAM);
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
}

#[tokio::test(flavor = "local")]
async fn a_body_that_stops_ends_by_the_idle_timeout_and_by_the_requests() {
    for (manager, status) in [("stream_idle_timeout: 1s", 408), ("request_timeout: 1s", 408)] {
        let house = House::new(manager);
        let mut client = connect(&house.proxy).await;
        client.shake_hands(&[]).await;
        let fields = [(":method", "POST"), (":scheme", "http"), (":authority", "a"), (":path", "/")];
        client.write(&frame(HEADERS, flag::END_HEADERS, 1, &block(&fields))).await;
        client.write(&frame(DATA, 0, 1, b"begun")).await;
        let answer = within("an answer", client.answer(1)).await.unwrap();
        assert_eq!(answer.status, status, "{manager}");
        stat_becomes(&house.proxy, "cluster.c.upstream_rq_active", 0).await;
    }
}

#[tokio::test(flavor = "local")]
async fn a_preface_that_stops_is_given_up_after_ten_seconds() {
    let house = House::new("");
    let mut client = connect(&house.proxy).await;
    client.write(&PREFACE[..20]).await;
    let began = Instant::now();
    while within("the end", client.read()).await.is_some() {}
    assert!((9..14).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    // And a head that stops, by the timeout for it.
    drop(house);
    let house = House::new("request_headers_timeout: 1s");
    let mut client = connect(&house.proxy).await;
    client.write(&[PREFACE, &settings(&[]), &frame(HEADERS, flag::END_STREAM, 1, b"\x82")].concat()).await;
    let began = Instant::now();
    let _ = within("the end", client.answer(1)).await;
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}
