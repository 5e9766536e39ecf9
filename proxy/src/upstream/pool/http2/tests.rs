//! The pool against another implementation's server, in memory.

use std::future::poll_fn;

use std::time::Duration;

use bytes::Bytes;
use nuncio_api::pb::envoy::config::cluster::v3 as pb;
use nuncio_api::pb::envoy::config::core::v3 as core_pb;
use nuncio_api::pb::google::protobuf::{Duration as ProtoDuration, UInt32Value};
use nuncio_core::http::{RequestHead, ResponseHead, Version};
use tokio::io::DuplexStream;

use crate::codec::{Body, Buffers};
use crate::upstream::testing::{House, Script, settle};
use crate::upstream::{AcquireStream, Priority, UpstreamEnd, UpstreamStream};

#[allow(deprecated)]
fn http2(options: core_pb::Http2ProtocolOptions, common: core_pb::HttpProtocolOptions) -> pb::Cluster {
    pb::Cluster {
        http2_protocol_options: Some(options),
        common_http_protocol_options: Some(common),
        ..Default::default()
    }
}

fn plain() -> pb::Cluster {
    http2(Default::default(), Default::default())
}

impl House {
    async fn stream(&self) -> UpstreamStream {
        match self.cluster().stream(&self.hosts[0], Priority::Default, Version::Http11, None) {
            AcquireStream::Ready(stream) => stream,
            AcquireStream::Pending(mut pending) => poll_fn(|cx| pending.poll(cx)).await.unwrap(),
            AcquireStream::Failed(failure) => panic!("{failure}"),
        }
    }

    /// With its head on the way.
    async fn sent(&self) -> UpstreamStream {
        let mut stream = self.stream().await;
        let fields = [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "a")];
        let head = RequestHead { headers: fields.into_iter().collect(), ..RequestHead::default() };
        stream.send_head(&Buffers::default(), &head, true).unwrap();
        stream
    }

    async fn upstream(&self) -> h2::server::Connection<DuplexStream, Bytes> {
        let far = self.net.next().await.into_stream();
        h2::server::Builder::new().max_concurrent_streams(2).handshake(far).await.unwrap()
    }
}

/// The whole answer.
async fn answer(stream: &mut UpstreamStream) -> Result<u16, UpstreamEnd> {
    let (buffers, mut scratch, mut head) = (Buffers::default(), vec![0; 1024], ResponseHead::default());
    poll_fn(|cx| stream.poll_response(cx, &buffers, &mut scratch, &mut head)).await?;
    while !stream.response_complete() {
        if let Body::End = poll_fn(|cx| {
            stream.poll_body(cx, &mut scratch).map_ok(|body| match body {
                Body::End => Body::End,
                Body::Data(_) | Body::Trailers(_) => Body::Trailers(Default::default()),
            })
        })
        .await?
        {
            break;
        }
    }
    Ok(head.status)
}

/// Answers every request at once, until the connection ends.
fn serve(mut upstream: h2::server::Connection<DuplexStream, Bytes>) -> tokio::task::JoinHandle<usize> {
    tokio::task::spawn_local(async move {
        let mut served = 0;
        while let Some(Ok((_, mut respond))) = upstream.accept().await {
            respond.send_response(http::Response::new(()), true).unwrap();
            served += 1;
        }
        served
    })
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn requests_share_a_connection_until_it_is_full() {
    let house = House::new(plain(), 1);
    let mut first = house.sent().await;
    let mut upstream = house.upstream().await;
    let (_, mut respond) = upstream.accept().await.unwrap().unwrap();
    let second = house.sent().await;
    let _asked = tokio::time::timeout(Duration::from_secs(1), upstream.accept()).await.unwrap();
    assert_eq!(house.stats(["upstream_cx_total", "upstream_cx_http2_total", "upstream_rq_active"]), [1, 1, 2]);
    // The upstream takes two at once: the third needs another connection.
    let third = house.sent().await;
    assert_ne!(third.id(), second.id());
    assert_eq!((first.id() == second.id(), house.stat("upstream_cx_active")), (true, 2));
    respond.send_response(http::Response::new(()), true).unwrap();
    tokio::task::spawn_local(async move { while upstream.accept().await.is_some() {} });
    assert_eq!(answer(&mut first).await, Ok(200));
    first.release();
    assert_eq!(house.stream().await.id(), second.id(), "there is room again");
    drop((second, third));
    settle().await;
    assert_eq!(house.stats(["upstream_rq_active", "upstream_rq_total", "upstream_cx_active"]), [0, 4, 2]);
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn an_upstream_that_says_goaway_gets_no_more_and_finishes_what_it_has() {
    let house = House::new(plain(), 1);
    let mut first = house.sent().await;
    let mut upstream = house.upstream().await;
    let (_, mut respond) = upstream.accept().await.unwrap().unwrap();
    upstream.graceful_shutdown();
    let _ = tokio::time::timeout(Duration::from_secs(1), upstream.accept()).await;
    let mut second = house.sent().await;
    assert_ne!(second.id(), first.id());
    serve(house.upstream().await);
    assert_eq!(answer(&mut second).await, Ok(200));
    respond.send_response(http::Response::new(()), true).unwrap();
    tokio::task::spawn_local(async move { while upstream.accept().await.is_some() {} });
    assert_eq!(answer(&mut first).await, Ok(200));
    first.release();
    settle().await;
    let names = ["upstream_cx_close_notify", "upstream_cx_total", "upstream_cx_active", "upstream_cx_destroy"];
    assert_eq!(house.stats(names), [1, 2, 1, 1]);
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn a_connection_that_lay_idle_too_long_closes() {
    let idle = ProtoDuration { seconds: 5, nanos: 0 };
    let common = core_pb::HttpProtocolOptions { idle_timeout: Some(idle), ..Default::default() };
    let house = House::new(http2(Default::default(), common), 1);
    let mut stream = house.sent().await;
    let served = serve(house.upstream().await);
    assert_eq!(answer(&mut stream).await, Ok(200));
    stream.release();
    tokio::time::sleep(Duration::from_millis(4900)).await;
    assert_eq!(house.stat("upstream_cx_active"), 1);
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(served.await.unwrap(), 1);
    let names = ["upstream_cx_active", "upstream_cx_idle_timeout", "upstream_cx_destroy_local"];
    assert_eq!(house.stats(names), [0, 1, 1]);
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn an_upstream_that_closes_ends_its_requests_and_is_replaced() {
    let house = House::new(plain(), 1);
    let mut stream = house.sent().await;
    drop(house.upstream().await);
    assert_eq!(answer(&mut stream).await, Err(UpstreamEnd::Closed));
    drop(stream);
    settle().await;
    assert_eq!(house.stats(["upstream_cx_active", "upstream_cx_destroy_remote_with_active_rq"]), [0, 1]);
    let mut stream = house.sent().await;
    serve(house.upstream().await);
    assert_eq!(answer(&mut stream).await, Ok(200));
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn a_refused_connection_fails_all_who_wait() {
    let house = House::new(plain(), 1);
    house.net.script([Script::Refuse]);
    let waiting =
        (0..3).map(|_| match house.cluster().stream(&house.hosts[0], Priority::Default, Version::Http2, None) {
            AcquireStream::Pending(pending) => pending,
            _ => panic!("not waiting"),
        });
    for mut pending in waiting.collect::<Vec<_>>() {
        assert!(poll_fn(|cx| pending.poll(cx)).await.is_err());
    }
    let names = ["upstream_cx_total", "upstream_cx_connect_fail", "upstream_rq_pending_failure_eject"];
    assert_eq!(house.stats(names), [1, 1, 3]);
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn a_place_that_nobody_took_goes_back() {
    let house = House::new(plain(), 1);
    let cluster = house.cluster();
    let AcquireStream::Pending(pending) = cluster.stream(&house.hosts[0], Priority::Default, Version::Http2, None)
    else {
        panic!("not waiting");
    };
    settle().await;
    assert_eq!(house.stats(["upstream_rq_pending_active", "upstream_rq_active"]), [0, 1]);
    drop(pending);
    assert_eq!(house.stat("upstream_rq_active"), 0);
    assert!(matches!(
        cluster.stream(&house.hosts[0], Priority::Default, Version::Http2, None),
        AcquireStream::Ready(UpstreamStream::Http2(_))
    ));
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn who_comes_later_is_sent_later_although_those_who_waited_did_not_run_yet() {
    let house = House::new(plain(), 1);
    let acquire = || match house.cluster().stream(&house.hosts[0], Priority::Default, Version::Http2, None) {
        AcquireStream::Pending(pending) => pending,
        _ => panic!("went ahead"),
    };
    let waited = [acquire(), acquire()];
    // There is a connection now, and both have a place on it.
    settle().await;
    assert_eq!(house.stats(["upstream_rq_pending_active", "upstream_rq_active"]), [0, 2]);
    let late = [acquire(), acquire()];
    assert_eq!(house.stats(["upstream_rq_pending_total", "upstream_rq_active"]), [2, 4]);
    let order = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let mut tasks = Vec::new();
    // The late ones run first.
    for (name, mut pending) in [3, 4, 1, 2].into_iter().zip(late.into_iter().chain(waited)) {
        let order = order.clone();
        tasks.push(tokio::task::spawn_local(async move {
            let stream = poll_fn(|cx| pending.poll(cx)).await.unwrap();
            order.borrow_mut().push(name);
            stream
        }));
    }
    settle().await;
    assert_eq!(*order.borrow(), [1, 2, 3, 4]);
    // Nobody is left to stand behind.
    assert!(matches!(
        house.cluster().stream(&house.hosts[0], Priority::Default, Version::Http2, None),
        AcquireStream::Ready(_)
    ));
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn a_limit_of_requests_retires_a_connection() {
    let common = core_pb::HttpProtocolOptions {
        max_requests_per_connection: Some(UInt32Value { value: 1 }),
        ..Default::default()
    };
    let house = House::new(http2(Default::default(), common), 1);
    let mut first = house.sent().await;
    let served = serve(house.upstream().await);
    assert_eq!(answer(&mut first).await, Ok(200));
    let second = house.sent().await;
    assert_ne!(first.id(), second.id());
    first.release();
    assert_eq!(served.await.unwrap(), 1);
    assert_eq!(house.stats(["upstream_cx_max_requests", "upstream_cx_total"]), [2, 2]);
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn a_removed_host_keeps_its_connection_while_requests_run() {
    let house = House::new(plain(), 1);
    let mut stream = house.sent().await;
    let mut upstream = house.upstream().await;
    let (_, mut respond) = upstream.accept().await.unwrap().unwrap();
    house.configure(plain());
    settle().await;
    assert_eq!(house.stat("upstream_cx_active"), 1);
    respond.send_response(http::Response::new(()), true).unwrap();
    tokio::task::spawn_local(async move { while upstream.accept().await.is_some() {} });
    assert_eq!(answer(&mut stream).await, Ok(200));
    stream.release();
    settle().await;
    assert_eq!(house.stat("upstream_cx_active"), 0);
}
