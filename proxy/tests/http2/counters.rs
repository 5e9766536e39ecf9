//! What is counted of HTTP/2, on both sides: `http2.` and `cluster.<name>.http2.`.

use nuncio_testkit::http2::Ended;
use nuncio_testkit::http2::frame::code::{CANCEL, PROTOCOL_ERROR};
use nuncio_testkit::http2::frame::{flag, frame, kind::*, rst_stream, setting, settings};
use nuncio_testkit::http2::hpack::{block, get_with, indexed};
use tokio::net::TcpListener;
use tokio::task::spawn_local;

use crate::grpc::HTTP2;
use crate::running::RunningProxy;
use crate::stage::{configuration, connect, stat, stat_becomes, within};

/// Answers the requests of one connection one after the other: an answer with trailers, a reset, a refusal, nothing.
async fn upstream() -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    spawn_local(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut preface = [0; 24];
        let mut stream = stream;
        tokio::io::AsyncReadExt::read_exact(&mut stream, &mut preface).await.unwrap();
        let mut server = nuncio_testkit::http2::Client::new(stream);
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
    });
    address
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
