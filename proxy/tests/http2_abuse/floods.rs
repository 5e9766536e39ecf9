//! Frames in great numbers.

use nuncio_testkit::http2::frame::code::*;
use nuncio_testkit::http2::frame::{flag, frame, kind::*, rst_stream, settings, window_update};
use nuncio_testkit::http2::hpack::{GET, block};
use nuncio_testkit::http2::{Client, Ended};
use socket2::SockRef;
use tokio::net::TcpStream;

use crate::stage::{connect, stat, stat_becomes, within};
use crate::{House, MIB};

fn hold(stream: u32) -> Vec<u8> {
    let fields = [(":method", "GET"), (":scheme", "http"), (":authority", "a"), (":path", "/hold")];
    frame(HEADERS, flag::WHOLE, stream, &block(&fields))
}

fn open(stream: u32) -> Vec<u8> {
    let fields = [(":method", "POST"), (":scheme", "http"), (":authority", "a"), (":path", "/hold")];
    frame(HEADERS, flag::END_HEADERS, stream, &block(&fields))
}

async fn greeted(house: &House) -> Client<TcpStream> {
    let mut client = connect(&house.proxy).await;
    client.shake_hands(&[]).await;
    client
}

/// Writes `again` until the proxy takes no more, `most` times at most; what it said, and how many it took.
async fn flood(client: &mut Client<TcpStream>, again: &[u8], most: usize) -> (Option<u32>, usize) {
    let many = again.repeat(64);
    let mut sent = 0;
    while sent < most {
        // It is held back if it takes nothing for a while.
        match tokio::time::timeout(std::time::Duration::from_millis(500), client.write(&many)).await {
            Ok(true) => sent += 64,
            Ok(false) => break,
            Err(_) => return (None, sent),
        }
    }
    let goaway = tokio::time::timeout(std::time::Duration::from_secs(2), client.find(|f| f.kind == GOAWAY)).await;
    (goaway.ok().and_then(Result::ok).map(|f| f.code()), sent)
}

#[tokio::test(flavor = "local")]
async fn r29_paced_resets_end_the_connection_and_cancel_their_requests() {
    let house = House::new("");
    let mut client = greeted(&house).await;
    let (pairs, cost) = house
        .beside(async {
            for pair in 0..2000u32 {
                let id = 2 * pair + 1;
                client.write(&[hold(id), rst_stream(id, CANCEL)].concat()).await;
                // Each is seen by itself: no burst that could be noticed as such.
                match client.ping(*b"seen yet").await {
                    Ok(()) => {}
                    Err(Ended::GoAway(code)) => {
                        assert_eq!(code, ENHANCE_YOUR_CALM);
                        return pair + 1;
                    }
                    Err(_) => return pair + 1,
                }
            }
            2000
        })
        .await;
    // Envoy 1.40 closes at the 251st.
    assert!(pairs <= 251, "{pairs} pairs");
    assert!(cost.bytes < 2 * MIB, "{} bytes", cost.bytes);
    house.upstream.holds(0).await;
    stat_becomes(&house.proxy, "cluster.c.upstream_rq_active", 0).await;
    assert_eq!(stat(&house.proxy, "http.in.downstream_rq_too_many_premature_resets").await, 1);
}

#[tokio::test(flavor = "local")]
async fn r29_resets_of_requests_that_run_cancel_them_upstream_at_once() {
    let house = House::new("");
    let mut client = greeted(&house).await;
    for id in [1, 3, 5, 7] {
        client.write(&hold(id)).await;
    }
    house.upstream.holds(4).await;
    let began = tokio::time::Instant::now();
    for id in [1, 3, 5, 7] {
        client.write(&rst_stream(id, CANCEL)).await;
    }
    house.upstream.holds(0).await;
    assert!(began.elapsed() < std::time::Duration::from_millis(50), "{:?}", began.elapsed());
    assert!(client.is_alive().await);
}

#[tokio::test(flavor = "local")]
async fn r31_a_head_that_does_not_end_is_cut_soon() {
    let house = House::new("");
    for piece in [0, 1, 1000] {
        let mut client = greeted(&house).await;
        let before = stat(&house.proxy, "http.in.downstream_cx_rx_bytes_total").await;
        client.write(&frame(HEADERS, flag::END_STREAM, 1, &block(GET))).await;
        let again = frame(CONTINUATION, 0, 1, &vec![0x90; piece]);
        let ((code, _), cost) = house.beside(flood(&mut client, &again, 20_000)).await;
        assert_eq!(code, Some(ENHANCE_YOUR_CALM), "{piece}");
        assert!(cost.bytes < 2 * MIB, "{piece}: {} bytes", cost.bytes);
        drop(client);
        stat_becomes(&house.proxy, "http.in.downstream_cx_http2_active", 0).await;
        // One read, and what is read after the end so that GOAWAY arrives; the neighbour's are in it.
        let read = stat(&house.proxy, "http.in.downstream_cx_rx_bytes_total").await - before;
        assert!(read < 256 * 1024, "{piece}: {read} bytes were read");
    }
    assert_eq!(house.upstream.take().iter().filter(|r| r.target == "/").count(), 0);
}

#[tokio::test(flavor = "local")]
async fn r32_pings_whose_answers_nobody_reads_are_held_back() {
    let house = House::new("");
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut client = Client::new(socket.connect(house.proxy.socket("in")).await.unwrap());
    client.shake_hands(&[]).await;
    SockRef::from(client.stream()).set_send_buffer_size(64 * 1024).unwrap();
    let ping = frame(PING, 0, 0, b"pingping").repeat(64);
    let (sent, cost) = house
        .beside(async {
            let mut sent = 0;
            // Nothing is read, so that the answers pile up somewhere.
            while sent < 2_000_000 {
                let written = client.write(&ping);
                match tokio::time::timeout(std::time::Duration::from_millis(700), written).await {
                    Ok(true) => sent += 64,
                    _ => break,
                }
            }
            sent
        })
        .await;
    assert!(cost.bytes < MIB, "{} bytes for {sent} pings", cost.bytes);
    assert!(sent < 2_000_000, "somebody swallows them all");
}

#[tokio::test(flavor = "local")]
async fn r32_frames_without_use_are_bounded_or_end_the_connection() {
    let house = House::new("");
    let (calm, fine) = (Some(ENHANCE_YOUR_CALM), None);
    for (what, begin, again, most, wanted) in [
        ("SETTINGS", vec![], settings(&[(3, 100)]), 100_000, fine),
        ("empty DATA", open(1), frame(DATA, 0, 1, &[]), 50_000, calm),
        ("PRIORITY", vec![], frame(PRIORITY, 0, 1, &[0, 0, 0, 0, 1]), 50_000, calm),
        ("WINDOW_UPDATE", open(1), window_update(1, 1), 50_000, calm),
        ("unknown kinds", vec![], frame(0x50, 0, 0, &[0; 10]), 50_000, fine),
    ] {
        let mut client = greeted(&house).await;
        client.write(&begin).await;
        // The answers are read on the way, or they would hold the flood back.
        let (code, cost) = house
            .beside(async {
                let many = again.repeat(64);
                for _ in 0..most / 640 {
                    for _ in 0..10 {
                        client.write(&many).await;
                    }
                    match client.ping(*b"how many").await {
                        Ok(()) => while client.aside().is_some() {},
                        Err(Ended::GoAway(code)) => return Some(code),
                        Err(other) => panic!("{what}: {other:?}"),
                    }
                }
                None
            })
            .await;
        assert_eq!(code, wanted, "{what}");
        assert!(cost.bytes < MIB, "{what}: {} bytes", cost.bytes);
        // Without optimisation everything costs some ten times as much.
        let allowed = std::time::Duration::from_secs(if cfg!(debug_assertions) { 10 } else { 1 });
        assert!(cost.took < allowed, "{what}: {:?}", cost.took);
        drop(client);
        stat_becomes(&house.proxy, "http.in.downstream_cx_http2_active", 0).await;
    }
}

#[tokio::test(flavor = "local")]
async fn r32_a_body_of_single_bytes_is_held_back_or_ended() {
    let house = House::new("");
    let mut client = greeted(&house).await;
    client.write(&open(1)).await;
    let byte = frame(DATA, 0, 1, b"x");
    let ((code, sent), cost) = house.beside(flood(&mut client, &byte, 50_000)).await;
    assert!(code.is_none_or(|code| code == ENHANCE_YOUR_CALM), "{code:?} after {sent}");
    assert!(cost.bytes < 2 * MIB, "{} bytes for {sent}", cost.bytes);
}

/// Resets that the client provokes instead of sending (CVE-2025-8671), by each frame that does it.
#[tokio::test(flavor = "local")]
async fn r30_provoked_resets_count_like_the_clients_own() {
    let house = House::new("http2_protocol_options: {override_stream_error_on_invalid_http_message: true}");
    type Provoke = fn(u32) -> Vec<u8>;
    let provoking: [(&str, Provoke); 6] = [
        ("a window that grows by nothing", |id| window_update(id, 0)),
        ("a window that grows too large", |id| window_update(id, 0x7fff_ffff)),
        ("a priority of four bytes", |id| frame(PRIORITY, 0, id, &[0; 4])),
        ("a stream that depends on itself", |id| frame(PRIORITY, 0, id, &[&id.to_be_bytes()[..], &[1]].concat())),
        ("a head behind the end", hold),
        ("a body behind the end", |id| frame(DATA, flag::END_STREAM, id, b"x")),
    ];
    for (what, provoke) in provoking {
        let mut client = greeted(&house).await;
        let (made, cost) = house
            .beside(async {
                for n in 0..2000u32 {
                    let id = 2 * n + 1;
                    client.write(&[hold(id), provoke(id)].concat()).await;
                    if client.ping(*b"seen yet").await.is_err() {
                        return n + 1;
                    }
                }
                2000
            })
            .await;
        assert!(made <= 251, "{what}: {made} resets");
        assert!(cost.bytes < 2 * MIB, "{what}: {} bytes", cost.bytes);
        within("nothing is left upstream", house.upstream.holds(0)).await;
    }
}
