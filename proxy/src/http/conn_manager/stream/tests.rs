//! A filter that waits for ever: the response streams past it, and its future is dropped as soon as
//! the client is gone, on both protocols and also while request bytes lie unread.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use nuncio_api::pb::envoy::extensions::filters::http::buffer::v3::Buffer;
use nuncio_api::pb::google::protobuf::Any as ProtoAny;
use nuncio_api::unpack;
use nuncio_core::error::ConfigError;
use nuncio_core::extension::{FactoryContext, WorkerContext};
use nuncio_core::http::{
    Chunk, DecodeFilter, FilterHalves, HeaderMap, HttpFilter, HttpFilterFactory, MakeFilter, RequestHead, Step,
    StreamControl,
};
use nuncio_testkit::http2::frame::{code::CANCEL, flag, frame, kind::*, rst_stream};
use nuncio_testkit::http2::{Client, hpack};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use crate::http::filters::testing::{Bench, FILTERS};
use crate::upstream::testing::settle;

/// Where the filter waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Headers,
    Data,
    Trailers,
}

/// Futures that are alive.
#[derive(Clone, Default)]
struct Alive(Arc<AtomicUsize>);

impl Alive {
    fn count(&self) -> usize {
        self.0.load(Relaxed)
    }

    fn wait(&self) -> Step {
        struct Guard(Alive);
        impl Drop for Guard {
            fn drop(&mut self) {
                self.0.0.fetch_sub(1, Relaxed);
            }
        }
        self.0.fetch_add(1, Relaxed);
        let guard = Guard(self.clone());
        Step::later(async move {
            std::future::pending::<()>().await;
            drop(guard);
        })
    }
}

struct Factory(Alive);

impl HttpFilterFactory for Factory {
    fn name(&self) -> &'static str {
        "test.waits"
    }

    // Its number says where.
    fn config_type(&self) -> &'static str {
        "envoy.extensions.filters.http.buffer.v3.Buffer"
    }

    fn create(&self, config: &ProtoAny, _: &FactoryContext<'_>) -> Result<Arc<dyn HttpFilter>, ConfigError> {
        let number = unpack::<Buffer>(config)?.max_request_bytes.map_or(0, |v| v.value);
        let at = [At::Headers, At::Data, At::Trailers][number as usize - 1];
        Ok(Arc::new(Waits { at, alive: self.0.clone() }))
    }
}

#[derive(Clone)]
struct Waits {
    at: At,
    alive: Alive,
}

impl HttpFilter for Waits {
    fn on_worker(&self, _: &WorkerContext) -> MakeFilter {
        let this = self.clone();
        Box::new(move || FilterHalves { decode: Some(Box::new(this.clone())), encode: None })
    }
}

impl Waits {
    fn step(&self, at: At) -> Step {
        if self.at == at { self.alive.wait() } else { Step::CONTINUE }
    }
}

impl DecodeFilter for Waits {
    fn decode_headers(&mut self, _: &mut RequestHead, _: bool, _: &StreamControl) -> Step {
        self.step(At::Headers)
    }

    fn decode_data(&mut self, _: &mut Chunk<'_>, _: bool, _: &StreamControl) -> Step {
        self.step(At::Data)
    }

    fn decode_trailers(&mut self, _: &mut HeaderMap, _: &StreamControl) -> Step {
        self.step(At::Trailers)
    }

    fn reset(&mut self) {}
}

fn bench(at: At) -> (Bench, Alive) {
    let alive = Alive::default();
    let waits = format!(
        r#"{{name: w, typed_config: {{"@type": {FILTERS}.buffer.v3.Buffer, max_request_bytes: {}}}}}"#,
        at as u8 + 1
    );
    let manager = format!(
        "{{stat_prefix: in, http_protocol_options: {{enable_trailers: true}}, http_filters: [{waits}, ROUTER], route_config: \
         {{virtual_hosts: [{{name: v, domains: ['*'], routes: [{{match: {{prefix: /}}, route: {{cluster: c, timeout: \
         0s}}}}]}}]}}}}"
    );
    (Bench::with_filters(&manager, vec![Box::new(Factory(alive.clone()))]), alive)
}

const SIZE: usize = 500_000;

/// The upstream answers the head at once, with more than any buffer on the way holds.
async fn answer_early(bench: &Bench) {
    let mut far = bench.house.net.next().await;
    let head = far.request().await;
    assert!(head.starts_with("POST / "), "{head}");
    let mut stream = far.into_stream();
    // One byte stays out: the end of the response would be the end of the stream.
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", SIZE + 1);
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(&vec![b'x'; SIZE]).await.unwrap();
    // It waits for the rest of the request.
    std::future::pending::<()>().await;
}

async fn http1_answer(client: &mut DuplexStream) {
    let mut got = Vec::new();
    while !got.windows(4).any(|w| w == b"\r\n\r\n") {
        client.read_buf(&mut got).await.unwrap();
    }
    assert!(got.starts_with(b"HTTP/1.1 200"));
    let head = got.windows(4).position(|w| w == b"\r\n\r\n").unwrap() + 4;
    let mut rest = vec![0; SIZE - (got.len() - head)];
    client.read_exact(&mut rest).await.unwrap();
}

const CHUNKED: &str = "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n";

#[tokio::test(flavor = "local", start_paused = true)]
async fn a_response_streams_past_a_decode_filter_that_waits_in_data_on_http1() {
    for at in [At::Data, At::Trailers] {
        // With and without bytes behind what the filter holds.
        for unread in [false, true] {
            let (bench, alive) = bench(at);
            let mut client = bench.connect();
            let (last, more) = match at {
                At::Trailers => ("0\r\nx: y\r\n\r\n", "GET / HTTP/1.1\r\nhost: a\r\n\r\n".to_owned()),
                _ => ("", format!("7530\r\n{}\r\n", "x".repeat(30_000))),
            };
            let more = if unread { more.as_str() } else { "" };
            client.write_all(format!("{CHUNKED}{last}{more}").as_bytes()).await.unwrap();
            tokio::select! {
                () = http1_answer(&mut client) => {}
                () = answer_early(&bench) => {}
            }
            assert_eq!(alive.count(), 1, "{at:?}: it still waits");
            drop(client);
            settle().await;
            assert_eq!(alive.count(), 0, "{at:?} {unread}: the client is gone");
        }
    }
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn a_response_streams_past_a_decode_filter_that_waits_in_data_on_http2() {
    let (bench, alive) = bench(At::Data);
    let mut client = Client::new(bench.connect());
    client.shake_hands(&[]).await;
    let fields = [(":method", "POST"), (":scheme", "http"), (":authority", "a"), (":path", "/")];
    client.write(&frame(HEADERS, flag::END_HEADERS, 1, &hpack::block(&fields))).await;
    client.write(&frame(DATA, 0, 1, b"abc")).await;
    let mut got = 0;
    let answered = async {
        while got < SIZE {
            got += client.find(|f| f.kind == DATA).await.unwrap().payload.len();
        }
    };
    tokio::select! {
        () = answered => {}
        () = answer_early(&bench) => {}
    }
    assert_eq!(alive.count(), 1);
    client.write(&rst_stream(1, CANCEL)).await;
    assert!(client.is_alive().await);
    settle().await;
    assert_eq!(alive.count(), 0, "its stream was reset");
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn a_filter_that_waits_in_headers_is_dropped_when_its_client_goes() {
    let (bench, alive) = bench(At::Headers);
    for rest in ["", "GET / HTTP/1.1\r\nhost: a\r\n\r\n"] {
        let mut client = bench.connect();
        client.write_all(format!("GET / HTTP/1.1\r\nhost: a\r\n\r\n{rest}").as_bytes()).await.unwrap();
        settle().await;
        assert_eq!(alive.count(), 1);
        drop(client);
        settle().await;
        assert_eq!(alive.count(), 0, "{rest:?}");
    }
    let mut client = Client::new(bench.connect());
    client.shake_hands(&[]).await;
    client.request(1, hpack::GET).await;
    client.request(3, hpack::GET).await;
    assert!(client.is_alive().await);
    settle().await;
    assert_eq!(alive.count(), 2);
    client.write(&rst_stream(1, CANCEL)).await;
    assert!(client.is_alive().await);
    settle().await;
    assert_eq!(alive.count(), 1, "one stream was reset");
    drop(client);
    settle().await;
    assert_eq!(alive.count(), 0, "the connection is gone");
}
