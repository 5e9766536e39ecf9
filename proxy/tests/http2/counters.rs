//! What is counted of HTTP/2, on both sides: `http2.` and `cluster.<name>.http2.`.

use std::net::SocketAddr;

use nuncio_testkit::http2::frame::code::{CANCEL, PROTOCOL_ERROR};
use nuncio_testkit::http2::frame::{flag, frame, kind::*, rst_stream, setting, settings, window_update};
use nuncio_testkit::http2::hpack::{block, get_with, indexed};
use nuncio_testkit::http2::{Client, Ended};
use tokio::net::TcpSocket;

use crate::grpc::HTTP2;
use crate::running::RunningProxy;
use crate::stage::{Upstream, configuration, connect, raw_upstream, stat, stat_becomes, stat_is, within};

/// Answers the requests of one connection one after the other: an answer with trailers, a reset, a refusal, nothing.
async fn upstream() -> SocketAddr {
    raw_upstream(async |mut server| {
        server.write(&settings(&[])).await;
        let answers: [&dyn Fn(u32) -> Vec<u8>; 4] = [
            &|id| {
                let head = frame(HEADERS, flag::END_HEADERS, id, &indexed(8));
                [head, frame(HEADERS, flag::WHOLE, id, &block(&[("x", "y")]))].concat()
            },
            &|id| rst_stream(id, 2),
            &|id| rst_stream(id, 7),
            &|_| Vec::new(),
        ];
        for answer in answers {
            let request = server.find(|f| f.kind == HEADERS).await.unwrap();
            server.write(&answer(request.stream)).await;
        }
        while server.read().await.is_some() {}
    })
    .await
}

fn get(path: &str) -> [(&str, &str); 4] {
    [(":method", "GET"), (":scheme", "http"), (":authority", "a"), (":path", path)]
}

#[tokio::test(flavor = "local")]
async fn resets_refusals_trailers_and_streams_are_counted_on_their_side() {
    let yaml = configuration(upstream().await, "", HTTP2).replace(
        "static_resources:",
        "layered_runtime: {layers: [{name: s, static_layer: {nuncio.safe_replay: 0}}]}\nstatic_resources:",
    );
    let proxy = RunningProxy::start(&yaml, 1);
    let mut client = connect(&proxy).await;
    // Without a dynamic table every status is told in full.
    client.shake_hands(&[(setting::HEADER_TABLE_SIZE, 0)]).await;
    client.request(1, &get_with(&[])).await;
    let answer = within("an answer", client.answer(1)).await.unwrap();
    assert_eq!((answer.status, answer.trailers), (200, true));
    stat_becomes(&proxy, "cluster.c.http2.trailers", 1).await;
    for (stream, resets) in [(3, 1), (5, 2)] {
        client.request(stream, &get_with(&[])).await;
        assert_eq!(within("an answer", client.answer(stream)).await.unwrap().status, 503);
        stat_becomes(&proxy, "cluster.c.http2.rx_reset", resets).await;
    }
    assert_eq!(stat(&proxy, "cluster.c.http2.stream_refused_errors").await, 1);
    client.request(7, &get_with(&[])).await;
    stat_becomes(&proxy, "cluster.c.http2.streams_active", 1).await;
    assert_eq!(stat(&proxy, "http2.streams_active").await, 1);
    client.write(&rst_stream(7, CANCEL)).await;
    stat_becomes(&proxy, "cluster.c.http2.tx_reset", 1).await;
    stat_becomes(&proxy, "cluster.c.http2.streams_active", 0).await;
    stat_becomes(&proxy, "http2.rx_reset", 1).await;
    stat_becomes(&proxy, "http2.streams_active", 0).await;
    client.request(9, &get_with(&[("connection", "x")])).await;
    assert_eq!(within("an end", client.answer(9)).await, Err(Ended::GoAway(PROTOCOL_ERROR)));
    stat_becomes(&proxy, "http2.rx_messaging_error", 1).await;
}

// Envoy 1.40 shows the same numbers in the same exchanges.
#[tokio::test(flavor = "local")]
async fn bodies_that_wait_for_a_window_are_pending() {
    let upstream = Upstream::start();
    let proxy = RunningProxy::start(&configuration(upstream.address, "", ""), 1);
    let mut client = connect(&proxy).await;
    client.shake_hands(&[(setting::INITIAL_WINDOW_SIZE, 0)]).await;
    client.request(1, &get("/size/5000")).await;
    stat_becomes(&proxy, "http2.pending_send_bytes", 5000).await;
    client.request(3, &get("/size/300")).await;
    stat_becomes(&proxy, "http2.pending_send_bytes", 5300).await;
    client.write(&window_update(1, 2000)).await;
    stat_becomes(&proxy, "http2.pending_send_bytes", 3300).await;
    client.write(&rst_stream(3, CANCEL)).await;
    stat_becomes(&proxy, "http2.pending_send_bytes", 3000).await;
    client.write(&window_update(1, 3000)).await;
    assert_eq!(within("an answer", client.answer(1)).await.unwrap().body.len(), 5000);
    stat_becomes(&proxy, "http2.pending_send_bytes", 0).await;
    client.request(5, &get("/size/5000")).await;
    stat_becomes(&proxy, "http2.pending_send_bytes", 5000).await;
    drop(client);
    stat_becomes(&proxy, "http2.pending_send_bytes", 0).await;
}

#[tokio::test(flavor = "local")]
async fn bodies_that_wait_for_an_upstreams_window_are_pending_there() {
    let upstream = raw_upstream(async |mut server| {
        server.write(&settings(&[(setting::INITIAL_WINDOW_SIZE, 10)])).await;
        server.stop_answering();
        // Whoever has its answer has read the settings before it.
        server.find(|f| f.kind == HEADERS).await.unwrap();
        server.write(&frame(HEADERS, flag::WHOLE, 1, &indexed(8))).await;
        assert_eq!(server.find(|f| f.kind == DATA).await.unwrap().payload.len(), 10);
        // The rest may come behind the next request.
        server.find(|f| f.kind == HEADERS && f.stream == 5).await.unwrap();
        server.write(&window_update(3, 1000)).await;
        while server.read().await.is_some() {}
    });
    let proxy = RunningProxy::start(&configuration(upstream.await, "", HTTP2), 1);
    let mut client = connect(&proxy).await;
    client.shake_hands(&[]).await;
    client.request(1, &get_with(&[])).await;
    assert_eq!(within("an answer", client.answer(1)).await.unwrap().status, 200);
    let post = block(&[(":method", "POST"), (":scheme", "http"), (":authority", "a"), (":path", "/")]);
    client.write(&[frame(HEADERS, flag::END_HEADERS, 3, &post), frame(DATA, 1, 3, &[b'x'; 400])].concat()).await;
    stat_becomes(&proxy, "cluster.c.http2.pending_send_bytes", 390).await;
    assert_eq!(stat(&proxy, "http2.pending_send_bytes").await, 0);
    client.request(5, &get_with(&[])).await;
    stat_becomes(&proxy, "cluster.c.http2.pending_send_bytes", 0).await;
}

#[tokio::test(flavor = "local")]
async fn frames_are_active_until_the_socket_has_taken_them() {
    let upstream = Upstream::start();
    let proxy = RunningProxy::start(&configuration(upstream.address, "", ""), 1);
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut client = Client::new(socket.connect(proxy.socket("in")).await.unwrap());
    client.shake_hands(&[(setting::INITIAL_WINDOW_SIZE, 1 << 30)]).await;
    client.write(&window_update(0, 1 << 30)).await;
    let size = 16 << 20;
    let path = format!("/size/{size}");
    client.request(1, &get(&path)).await;
    stat_is(&proxy, "http2.outbound_frames_active", "is some frames of 16 KiB", |n| (1..10).contains(&n)).await;
    assert_eq!(stat(&proxy, "http2.outbound_control_frames_active").await, 0);
    // Answers that wait behind them.
    for _ in 0..20 {
        client.write(&frame(PING, 0, 0, b"pingping")).await;
    }
    stat_becomes(&proxy, "http2.outbound_control_frames_active", 20).await;
    assert_eq!(within("an answer", client.answer(1)).await.unwrap().body.len(), size);
    stat_becomes(&proxy, "http2.outbound_frames_active", 0).await;
    assert_eq!(stat(&proxy, "http2.outbound_control_frames_active").await, 0);
    drop(client);
}
