//! Calls of the proxy's own (authorization, polled discovery) over the same balancers, breakers and pools as anybody's
//! requests. Whole bodies; the caller decides about headers, retries and what a status means.

use std::future::poll_fn;
use std::net::IpAddr;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use futures_util::future::LocalBoxFuture;
use nuncio_core::http::{Chunk, Framing, RequestHead, ResponseHead, Version};
use nuncio_core::stats::ScopeId;
use nuncio_core::stats::lists::cluster as stat;
use nuncio_core::upstream::client::{AsyncClient, AsyncFailure, AsyncRequest, AsyncResponse};
use nuncio_core::upstream::{Choice, Host, LbContext, Outcome};
use tokio::time::Instant;

use super::circuit_breaker::Priority;
use super::pool::stream::{AcquireStream, NotSent, UpstreamEnd, UpstreamStream};
use super::pool::{PoolFailure, PoolFailureReason};
use super::thread_local::{Clusters, ThreadLocalCluster};
use crate::codec::{Body, Buffers};

/// Calls from one thread.
pub struct ClusterClient {
    clusters: Rc<Clusters>,
    /// This machine's address, which stands in `x-forwarded-for` as if the machine were the client.
    local: Option<Box<str>>,
}

impl ClusterClient {
    pub fn new(clusters: &Rc<Clusters>) -> Self {
        Self::from_machine(clusters, crate::net::first_local_ip())
    }

    fn from_machine(clusters: &Rc<Clusters>, local: Option<IpAddr>) -> Self {
        Self { clusters: clusters.clone(), local: local.map(|ip| ip.to_string().into()) }
    }

    /// What tells the proxy's own calls from forwarded requests.
    fn mark(&self, request: &mut AsyncRequest) {
        let headers = &mut request.head.headers;
        headers.set("x-envoy-internal", "true");
        if let Some(local) = self.local.as_ref().filter(|_| request.send_xff) {
            headers.append_to_value("x-forwarded-for", ",", &**local);
        }
        if let Some(timeout) = request.timeout {
            headers.set_u64("x-envoy-expected-rq-timeout-ms", timeout.as_millis() as u64);
        }
    }
}

impl AsyncClient for ClusterClient {
    fn call(
        &self,
        cluster: &str,
        mut request: AsyncRequest,
    ) -> LocalBoxFuture<'static, Result<AsyncResponse, AsyncFailure>> {
        let Some(cluster) = self.clusters.get(cluster) else {
            return Box::pin(async { Err(AsyncFailure::UnknownCluster) });
        };
        self.mark(&mut request);
        Box::pin(async move {
            let result = match request.timeout {
                None => call(&cluster, request).await,
                Some(timeout) => match tokio::time::timeout(timeout, call(&cluster, request)).await {
                    Ok(result) => result,
                    Err(_) => {
                        cluster.stats().retries.inc(stat::UPSTREAM_RQ_TIMEOUT);
                        Err(AsyncFailure::Timeout)
                    }
                },
            };
            if let Err(failure) = &result {
                cluster.stats().charge(if *failure == AsyncFailure::Timeout { 504 } else { 503 }, true);
            }
            result
        })
    }

    fn stats_scope(&self, cluster: &str) -> Option<ScopeId> {
        Some(self.clusters.get(cluster)?.stats().traffic.scope())
    }
}

async fn call(cluster: &Rc<ThreadLocalCluster>, mut request: AsyncRequest) -> Result<AsyncResponse, AsyncFailure> {
    request.head.framing = match (request.body.len(), request.head.framing) {
        (0, Framing::Length(0)) => Framing::Length(0),
        (0, _) => Framing::None,
        (_, Framing::Streamed) => Framing::Streamed,
        (n, _) => Framing::Length(n as u64),
    };
    let mut again = true;
    loop {
        let mut conn = connection(cluster, request.hash, request.head.version).await?;
        let host = conn.host().clone();
        let (reused, begun) = (conn.is_reused(), Instant::now());
        let mut exchange = Exchange::new(&request.head, &request.body, request.max_response_bytes);
        let buffers = cluster.buffers();
        match poll_fn(|cx| exchange.poll(cx, &mut conn, buffers)).await {
            Ok(response) => {
                conn.release();
                host.report(Outcome::Answered { status: response.head.status });
                let stats = cluster.stats();
                stats.charge(response.head.status, true);
                stats.charge_time(begun.elapsed().as_millis() as u64, true);
                if response.head.status >= 500 {
                    host.load.request_failed()
                } else {
                    host.load.request_succeeded()
                }
                return Ok(response);
            }
            // The upstream closed an idle connection as it was used: nothing was answered, nothing done.
            Err(End::Peer(..)) if reused && again && !exchange.answered => {
                conn.closed_by_peer();
                again = false;
            }
            Err(End::Refused) if again => again = false,
            Err(End::Refused) => {
                failed(&host);
                return Err(AsyncFailure::Refused);
            }
            Err(End::Peer(reason)) => {
                conn.closed_by_peer();
                failed(&host);
                return Err(AsyncFailure::Reset(reason.into()));
            }
            Err(End::Own(failure)) => {
                failed(&host);
                return Err(failure);
            }
        }
    }
}

/// A host that gave no answer.
fn failed(host: &Host) {
    host.load.request_failed();
    host.report(Outcome::Failed);
}

async fn connection(
    cluster: &Rc<ThreadLocalCluster>,
    hash: Option<u64>,
    version: Version,
) -> Result<UpstreamStream, AsyncFailure> {
    let host = match cluster.choose(&LbContext { hash, ..LbContext::default() }) {
        Choice::Host(host) => Some(host),
        Choice::Wait(found) => found.await,
        Choice::None | Choice::Refused(_) => None,
    };
    let host = host.ok_or(AsyncFailure::NoHealthyHost)?;
    let failure_of = |failure: PoolFailure| match failure.reason {
        PoolFailureReason::Overflow => AsyncFailure::Overflow,
        PoolFailureReason::NoPool => AsyncFailure::NoHealthyHost,
        _ => {
            failed(&host);
            AsyncFailure::Connect(failure.to_string())
        }
    };
    match cluster.stream(&host, Priority::Default, version, None) {
        AcquireStream::Ready(conn) => Ok(conn),
        AcquireStream::Pending(mut pending) => poll_fn(|cx| pending.poll(cx)).await.map_err(failure_of),
        AcquireStream::Failed(failure) => Err(failure_of(failure)),
    }
}

/// Why there is no answer.
enum End {
    /// The upstream went away.
    Peer(&'static str),
    /// It did nothing with the request.
    Refused,
    Own(AsyncFailure),
}

/// One request and its answer on one connection.
struct Exchange<'r> {
    head: &'r RequestHead,
    body: &'r Bytes,
    max: usize,
    sent: bool,
    response: ResponseHead,
    answered: bool,
    received: BytesMut,
}

impl<'r> Exchange<'r> {
    fn new(head: &'r RequestHead, body: &'r Bytes, max: usize) -> Self {
        let (response, received) = (ResponseHead::default(), BytesMut::new());
        Self { head, body, max, sent: false, response, answered: false, received }
    }

    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        conn: &mut UpstreamStream,
        buffers: &Buffers,
    ) -> Poll<Result<AsyncResponse, End>> {
        if !self.sent {
            self.sent = true;
            let end = self.body.is_empty();
            conn.send_head(buffers, self.head, end).map_err(|error| match error {
                NotSent::Unwritable(what) => {
                    End::Own(AsyncFailure::Reset(format!("the request holds what must not be written: {what}")))
                }
                NotSent::Upstream(end) => failure(end),
            })?;
            if !end {
                conn.send_data(cx, buffers, &Chunk::Own(self.body.clone()), true)
                    .map_err(|_| End::Peer("connection termination"))?;
            }
        }
        // What cannot be sent may be explained by an answer that is already there.
        let flushed = conn.poll_flush(cx, buffers);
        let mut scratch = buffers.take_scratch();
        let received = self.poll_received(cx, conn, buffers, &mut scratch);
        buffers.give_scratch(scratch);
        match (received, flushed) {
            (Poll::Pending, Poll::Ready(Err(_))) => Poll::Ready(Err(End::Peer("connection termination"))),
            (received, _) => received,
        }
    }

    fn poll_received(
        &mut self,
        cx: &mut Context<'_>,
        conn: &mut UpstreamStream,
        buffers: &Buffers,
        scratch: &mut [u8],
    ) -> Poll<Result<AsyncResponse, End>> {
        while !self.answered {
            ready!(conn.poll_response(cx, buffers, scratch, &mut self.response)).map_err(failure)?;
            if self.response.is_interim() {
                self.response.clear();
            } else {
                self.answered = true;
            }
        }
        loop {
            if conn.response_complete() {
                return Poll::Ready(Ok(self.finish(None)));
            }
            match ready!(conn.poll_body(cx, scratch)).map_err(failure)? {
                Body::Data(chunk) => {
                    if self.received.len() + chunk.len() > self.max {
                        return Poll::Ready(Err(End::Own(AsyncFailure::ResponseTooLarge)));
                    }
                    self.received.extend_from_slice(chunk.as_slice());
                }
                Body::Trailers(trailers) => return Poll::Ready(Ok(self.finish(Some(trailers)))),
                Body::End => return Poll::Ready(Ok(self.finish(None))),
            }
        }
    }

    fn finish(&mut self, trailers: Option<nuncio_core::http::HeaderMap>) -> AsyncResponse {
        let head = std::mem::take(&mut self.response);
        AsyncResponse { head, body: std::mem::take(&mut self.received).freeze(), trailers }
    }
}

fn failure(end: UpstreamEnd) -> End {
    match end {
        UpstreamEnd::Protocol(what) => End::Own(AsyncFailure::Reset(format!("protocol error: {what}"))),
        UpstreamEnd::Closed | UpstreamEnd::TunnelClosed => End::Peer("connection termination"),
        UpstreamEnd::Reset => End::Own(AsyncFailure::Reset("remote reset".into())),
        UpstreamEnd::Refused => End::Refused,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::testing::{House, Script};
    use nuncio_api::pb::envoy::config::cluster::v3 as pb;
    use std::time::Duration;

    fn request(body: &'static str) -> AsyncRequest {
        let mut head = RequestHead::default();
        let method = if body.is_empty() { "GET" } else { "POST" };
        for (name, value) in [(":method", method), (":path", "/v1"), (":authority", "sds")] {
            head.headers.append(name, value);
        }
        let (body, timeout) = (Bytes::from_static(body.as_bytes()), Some(Duration::from_secs(1)));
        AsyncRequest { head, body, timeout, max_response_bytes: 8, hash: None, send_xff: true }
    }

    fn client(house: &House) -> ClusterClient {
        ClusterClient::from_machine(&house.clusters, Some([192, 0, 2, 1].into()))
    }

    impl House {
        fn call(&self, body: &'static str) -> tokio::task::JoinHandle<Result<AsyncResponse, AsyncFailure>> {
            tokio::task::spawn_local(client(self).call("c", request(body)))
        }
    }

    #[tokio::test(flavor = "local", start_paused = true)]
    async fn a_call_brings_the_whole_answer_and_gives_the_connection_back() {
        let house = House::new(pb::Cluster::default(), 1);
        let call = house.call("question");
        let mut far = house.net.next().await;
        // The marks as seen in calls of Envoy 1.40 (authz_allow_mutations).
        assert_eq!(
            far.request().await,
            "POST /v1 HTTP/1.1\r\nhost: sds\r\nx-envoy-internal: true\r\nx-forwarded-for: 192.0.2.1\r\n\
             x-envoy-expected-rq-timeout-ms: 1000\r\ncontent-length: 8\r\n\r\n"
        );
        assert_eq!(far.read(8).await, "question");
        far.answer("HTTP/1.1 100 Continue\r\n\r\n").await;
        far.answer("HTTP/1.1 404 Not Found\r\ntransfer-encoding: chunked\r\n\r\n4\r\nnone\r\n0\r\n\r\n").await;
        let answer = call.await.unwrap().unwrap();
        assert_eq!((answer.head.status, &*answer.body), (404, &b"none"[..]));
        let call = house.call("");
        far.request().await;
        far.answer("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
        assert_eq!(call.await.unwrap().unwrap().head.status, 200);
        let names =
            ["upstream_cx_total", "upstream_rq_total", "upstream_rq_404", "upstream_rq_200", "upstream_rq_active"];
        assert_eq!(house.stats(names), [1, 2, 1, 1, 0]);
    }

    #[tokio::test(flavor = "local", start_paused = true)]
    async fn failures_are_told_apart() {
        let house = House::new(pb::Cluster::default(), 1);
        let client = client(&house);
        assert_eq!(client.call("nobody", request("")).await.unwrap_err(), AsyncFailure::UnknownCluster);
        house.net.script([Script::Refuse]);
        let refused = house.call("").await.unwrap().unwrap_err();
        let text = "remote connection failure: delayed connect error: Connection refused";
        assert_eq!(refused, AsyncFailure::Connect(text.into()));
        let call = house.call("");
        let mut far = house.net.next().await;
        assert_eq!(call.await.unwrap().unwrap_err(), AsyncFailure::Timeout);
        far.request().await;
        far.closed().await;
        let call = house.call("");
        let mut far = house.net.next().await;
        far.answer("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n123456789").await;
        assert_eq!(call.await.unwrap().unwrap_err(), AsyncFailure::ResponseTooLarge);
        let house = House::new(pb::Cluster::default(), 0);
        assert_eq!(house.call("").await.unwrap().unwrap_err(), AsyncFailure::NoHealthyHost);
        assert_eq!(house.stat("upstream_cx_none_healthy"), 1);
    }

    #[tokio::test(flavor = "local", start_paused = true)]
    async fn a_connection_that_closes_as_it_is_used_again_is_tried_anew_once() {
        let house = House::new(pb::Cluster::default(), 1);
        let call = house.call("");
        let mut far = house.net.next().await;
        far.request().await;
        far.answer("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
        call.await.unwrap().unwrap();
        let call = house.call("");
        far.request().await;
        drop(far);
        let mut far = house.net.next().await;
        far.request().await;
        far.answer("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
        assert_eq!(call.await.unwrap().unwrap().head.status, 200);
        // On a new connection it is a failure.
        drop(far);
        let call = house.call("");
        let mut far = house.net.next().await;
        far.request().await;
        drop(far);
        assert_eq!(call.await.unwrap().unwrap_err(), AsyncFailure::Reset("connection termination".into()));
    }
}
