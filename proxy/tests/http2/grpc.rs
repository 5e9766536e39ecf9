//! gRPC by a client and a server that know nothing of the proxy between them: all four kinds of
//! calls, cancellation, deadlines, large messages, many calls at once. The server is on a thread of
//! its own; messages are plain bytes.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, mpsc};

use futures_util::{Stream, StreamExt, stream};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::{Barrier, oneshot};
use tokio::task::spawn_local;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::MetadataValue;
use tonic::server::StreamingService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Response, Status, Streaming};

use crate::running::RunningProxy;
use crate::stage::{configuration, stat, stat_becomes, within};

const MIB: usize = 1 << 20;
pub const HTTP2: &str = r#"typed_extension_protocol_options: {envoy.extensions.upstreams.http.v3.HttpProtocolOptions: {"@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions", explicit_http_config: {http2_protocol_options: {}}}}"#;

// === messages ===

/// Messages are bytes.
#[derive(Default)]
struct Plain;

impl Codec for Plain {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Plain {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        use bytes::BufMut;
        into.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Plain {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        use bytes::Buf;
        let mut item = vec![0; from.remaining()];
        from.copy_to_slice(&mut item);
        Ok(Some(item))
    }
}

// === the server ===

struct State {
    /// Calls of `Never` that run, and that were dropped.
    running: AtomicUsize,
    dropped: AtomicUsize,
    /// Calls of `Together` are answered when so many are there.
    together: Barrier,
    connections: AtomicUsize,
}

struct Server {
    address: SocketAddr,
    state: Arc<State>,
    _end: oneshot::Sender<()>,
}

impl Server {
    /// `streams`: how many it takes on a connection. `together`: how many calls of `Together` wait for each other.
    fn start(streams: u32, together: usize) -> Self {
        let state = Arc::new(State {
            running: AtomicUsize::new(0),
            dropped: AtomicUsize::new(0),
            together: Barrier::new(together),
            connections: AtomicUsize::new(0),
        });
        let (tell, told) = mpsc::channel();
        let (end, ended) = oneshot::channel::<()>();
        let shared = state.clone();
        let run = move || {
            let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default()).unwrap();
            runtime.block_on(async {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                tell.send(listener.local_addr().unwrap()).unwrap();
                tokio::select! {
                    () = accept(listener, shared, streams) => {}
                    _ = ended => {}
                }
            });
        };
        std::thread::Builder::new().name("grpc".into()).spawn(run).unwrap();
        Self { address: told.recv().unwrap(), state, _end: end }
    }
}

async fn accept(listener: TcpListener, state: Arc<State>, streams: u32) {
    while let Ok((stream, _)) = listener.accept().await {
        stream.set_nodelay(true).unwrap();
        state.connections.fetch_add(1, Relaxed);
        let state = state.clone();
        let call = hyper::service::service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
            let method = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
            let handler = Handler { method, state: state.clone() };
            async move {
                let mut grpc = tonic::server::Grpc::new(Plain).max_decoding_message_size(16 * MIB);
                Ok::<_, std::convert::Infallible>(grpc.streaming(handler, request).await)
            }
        });
        let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        builder.max_concurrent_streams(streams);
        let connection = builder.serve_connection(TokioIo::new(stream), call);
        spawn_local(async move { drop(connection.await) });
    }
}

struct Handler {
    method: String,
    state: Arc<State>,
}

type Messages = Pin<Box<dyn Stream<Item = Result<Vec<u8>, Status>> + Send>>;

impl StreamingService<Vec<u8>> for Handler {
    type Response = Vec<u8>;
    type ResponseStream = Messages;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Messages>, Status>> + Send>>;

    fn call(&mut self, request: Request<Streaming<Vec<u8>>>) -> Self::Future {
        Box::pin(answer(self.method.clone(), self.state.clone(), request))
    }
}

fn one(message: impl Into<Vec<u8>>) -> Messages {
    let message = message.into();
    Box::pin(stream::once(async { Ok(message) }))
}

/// Counts the end of a call, however it comes.
struct Running(Arc<State>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Relaxed);
        self.0.dropped.fetch_add(1, Relaxed);
    }
}

async fn answer(
    method: String,
    state: Arc<State>,
    request: Request<Streaming<Vec<u8>>>,
) -> Result<Response<Messages>, Status> {
    let asked = request.metadata().get("grpc-timeout").cloned();
    let mut messages = request.into_inner();
    let messages: Messages = match method.as_str() {
        "Echo" => Box::pin(messages),
        "Count" => {
            let n = String::from_utf8(messages.message().await?.unwrap_or_default()).unwrap();
            Box::pin(stream::iter(0..n.parse::<u32>().unwrap()).map(|i| Ok(i.to_string().into_bytes())))
        }
        "Sum" => {
            let (mut count, mut bytes) = (0, 0);
            while let Some(message) = messages.message().await? {
                count += 1;
                bytes += message.len();
            }
            one(format!("{count} messages, {bytes} bytes"))
        }
        "Timeout" => one(asked.map_or("none".into(), |t| t.to_str().unwrap().to_owned())),
        "Fail" => return Err(Status::failed_precondition("not now")),
        "FailLate" => {
            let late = [Ok(b"first".to_vec()), Err(Status::data_loss("gone"))];
            Box::pin(stream::iter(late))
        }
        "Never" => {
            state.running.fetch_add(1, Relaxed);
            let running = Running(state);
            // The answer's head goes at once.
            Box::pin(stream::pending().map(move |m: Result<Vec<u8>, Status>| {
                let _still = &running;
                m
            }))
        }
        "Together" => {
            state.together.wait().await;
            one("all here")
        }
        other => return Err(Status::unimplemented(other)),
    };
    let mut response = Response::new(messages);
    response.metadata_mut().insert("x-served", MetadataValue::from_static("yes"));
    Ok(response)
}

// === the client ===

struct House {
    server: Server,
    proxy: RunningProxy,
    client: tonic::client::Grpc<Channel>,
}

impl House {
    async fn new(server: Server, route: &str) -> Self {
        let yaml = configuration(server.address, "", HTTP2).replace("timeout: 0s", &format!("timeout: 0s{route}"));
        let proxy = RunningProxy::start(&yaml, 1);
        let endpoint = Endpoint::from_shared(format!("http://{}", proxy.socket("in"))).unwrap();
        let channel = within("a channel", endpoint.connect()).await.unwrap();
        let client = tonic::client::Grpc::new(channel).max_decoding_message_size(16 * MIB);
        Self { server, proxy, client }
    }

    async fn unary(&self, method: &str, message: impl Into<Vec<u8>>) -> Result<Response<Vec<u8>>, Status> {
        self.unary_request(method, Request::new(message.into())).await
    }

    async fn unary_request(&self, method: &str, request: Request<Vec<u8>>) -> Result<Response<Vec<u8>>, Status> {
        let mut client = self.client.clone();
        client.ready().await.unwrap();
        within(method, client.unary(request, path(method), Plain)).await
    }

    /// All that the server says to all that the client says.
    async fn stream(&self, method: &str, messages: impl Stream<Item = Vec<u8>> + Send + 'static) -> Streaming<Vec<u8>> {
        let mut client = self.client.clone();
        client.ready().await.unwrap();
        within(method, client.streaming(Request::new(messages), path(method), Plain)).await.unwrap().into_inner()
    }

    /// Nothing of any call is left in the proxy.
    async fn is_quiet(&self) {
        for gauge in
            ["http.in.downstream_rq_active", "cluster.c.upstream_rq_active", "cluster.c.upstream_rq_pending_active"]
        {
            stat_becomes(&self.proxy, gauge, 0).await;
        }
    }
}

fn path(method: &str) -> PathAndQuery {
    format!("/test.Test/{method}").parse().unwrap()
}

#[tokio::test(flavor = "local")]
async fn unary_calls_pass_with_their_metadata_and_statuses() {
    let house = House::new(Server::start(100, 1), "").await;
    let answer = house.unary("Echo", "hello").await.unwrap();
    assert_eq!(answer.get_ref(), b"hello");
    assert_eq!(answer.metadata().get("x-served").unwrap(), "yes");
    // Headers alone, and trailers behind a message.
    let failed = house.unary("Fail", "").await.unwrap_err();
    assert_eq!((failed.code(), failed.message()), (Code::FailedPrecondition, "not now"));
    let failed = house.unary("FailLate", "").await.unwrap_err();
    assert_eq!((failed.code(), failed.message()), (Code::DataLoss, "gone"));
    assert_eq!(house.unary("Nothing", "").await.unwrap_err().code(), Code::Unimplemented);
    assert_eq!(house.unary("Echo", "").await.unwrap().get_ref(), b"");
    house.is_quiet().await;
}

#[tokio::test(flavor = "local")]
async fn streams_pass_in_every_direction() {
    let house = House::new(Server::start(100, 1), "").await;
    let counted: Vec<_> = house.stream("Count", stream::iter([b"5000".to_vec()])).await.collect().await;
    assert_eq!(counted.len(), 5000);
    assert_eq!(counted[4999].as_ref().unwrap(), b"4999");
    let mut client = house.client.clone();
    client.ready().await.unwrap();
    let sent = Request::new(stream::iter((0..5000).map(|_| vec![b'x'; 100])));
    let sum = within("Sum", client.client_streaming(sent, path("Sum"), Plain)).await.unwrap();
    assert_eq!(sum.get_ref(), b"5000 messages, 500000 bytes");
    // Each message is answered before the next one is written: nothing on the way waits for more.
    let (say, said) = tokio::sync::mpsc::unbounded_channel();
    let said = stream::unfold(said, async |mut said| Some((said.recv().await?, said)));
    let mut heard = house.stream("Echo", said).await;
    for n in 0..500u32 {
        say.send(n.to_string().into_bytes()).unwrap();
        assert_eq!(within("an echo", heard.message()).await.unwrap().unwrap(), n.to_string().as_bytes());
    }
    drop(say);
    assert_eq!(within("the end", heard.message()).await.unwrap(), None);
    house.is_quiet().await;
}

#[tokio::test(flavor = "local")]
async fn messages_of_four_mebibytes_pass_both_ways() {
    let house = House::new(Server::start(100, 1), "").await;
    let large: Vec<u8> = (0..4 * MIB as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let answer = house.unary("Echo", large.clone()).await.unwrap();
    assert!(answer.get_ref() == &large);
    // Several at once on one connection, larger than every window.
    let heard = house.stream("Echo", stream::iter(vec![large.clone(); 4])).await;
    let heard: Vec<_> = within("echoes", heard.collect::<Vec<_>>()).await;
    assert!(heard.len() == 4 && heard.iter().all(|m| m.as_ref().unwrap() == &large));
    house.is_quiet().await;
}

#[tokio::test(flavor = "local")]
async fn a_cancelled_call_is_cancelled_at_the_server() {
    let house = House::new(Server::start(100, 1), "").await;
    let state = house.server.state.clone();
    let mut calls = Vec::new();
    for _ in 0..5 {
        // What the client has to say is over: dropping the answer is the cancellation.
        calls.push(house.stream("Never", stream::empty()).await);
    }
    assert_eq!(state.running.load(Relaxed), 5);
    let kept = calls.pop();
    drop(calls);
    let dropped = async {
        while state.dropped.load(Relaxed) < 4 {
            tokio::task::yield_now().await;
        }
    };
    within("four are cancelled", dropped).await;
    assert_eq!(state.running.load(Relaxed), 1);
    // The connection goes on, upstream too.
    house.unary("Echo", "still").await.unwrap();
    assert_eq!(state.connections.load(Relaxed), 1);
    drop(kept);
    house.is_quiet().await;
    assert_eq!(stat(&house.proxy, "cluster.c.upstream_rq_tx_reset").await, 5);
}

#[tokio::test(flavor = "local")]
async fn a_clients_deadline_passes_and_ends_the_call_where_the_route_honours_it() {
    let house = House::new(Server::start(100, 1), "").await;
    let with = |timeout: &'static str| {
        let mut request = Request::new(Vec::new());
        request.metadata_mut().insert("grpc-timeout", MetadataValue::from_static(timeout));
        request
    };
    assert_eq!(house.unary_request("Timeout", with("30S")).await.unwrap().get_ref(), b"30S");
    // The route allows less than the client asks for, so that it is the proxy's clock that rings.
    let house = House::new(Server::start(100, 2), ", max_stream_duration: {grpc_timeout_header_max: 0.3s}").await;
    let failed = house.unary_request("Together", with("30S")).await.unwrap_err();
    assert_eq!(failed.code(), Code::DeadlineExceeded, "{failed:?}");
    house.is_quiet().await;
}

async fn together(streams: u32) -> House {
    const CALLS: usize = 1000;
    let house = House::new(Server::start(streams, CALLS), "").await;
    let calls = (0..CALLS).map(|_| house.unary("Together", "me too"));
    let answers = within("all together", futures_util::future::join_all(calls)).await;
    assert!(answers.iter().all(|a| a.as_ref().is_ok_and(|a| a.get_ref() == b"all here")));
    house.is_quiet().await;
    house
}

#[tokio::test(flavor = "local")]
async fn a_thousand_calls_run_at_once_on_one_connection() {
    let house = together(2000).await;
    assert_eq!(house.server.state.connections.load(Relaxed), 1);
    assert_eq!(stat(&house.proxy, "http.in.downstream_cx_http2_total").await, 1);
}

#[tokio::test(flavor = "local")]
async fn a_server_that_takes_few_streams_gets_more_connections() {
    let house = together(200).await;
    assert_eq!(house.server.state.connections.load(Relaxed), 5);
}
