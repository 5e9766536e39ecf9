//! `core.v3.RetryPolicy`: calls of the proxy's own, tried again within their timeout.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use nuncio_api::pb::envoy::config::core::v3 as pb;
use nuncio_api::supports;
use tokio::time::Instant;

use super::client::{AsyncClient, AsyncFailure, AsyncRequest, AsyncResponse};
use crate::extension::WorkerContext;
use crate::http::grpc_status::of_response;
use crate::random::Rng;
use crate::time::duration;

supports!(pub(super) RETRY = "envoy.config.core.v3.RetryPolicy" { retry_back_off, num_retries, retry_on });
supports!(pub(super) BACK_OFF = "envoy.config.core.v3.BackoffStrategy" { base_interval, max_interval });

type Answered = Result<AsyncResponse, AsyncFailure>;

/// Calls `cluster`, again and again if the policy wants it.
pub fn call(
    retries: Option<&Retries>,
    cluster: Arc<str>,
    request: AsyncRequest,
    worker: &WorkerContext,
) -> LocalBoxFuture<'static, Answered> {
    match retries {
        None => worker.client.call(&cluster, request),
        Some(retries) => Box::pin(run(retries.clone(), cluster, request, worker.client.clone(), worker.rng.clone())),
    }
}

async fn run(
    retries: Retries,
    cluster: Arc<str>,
    request: AsyncRequest,
    client: Rc<dyn AsyncClient>,
    rng: Rng,
) -> Answered {
    let deadline = request.timeout.map(|timeout| Instant::now() + timeout);
    let mut made = 0;
    loop {
        let mut request = request.clone();
        request.timeout = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let answered = client.call(&cluster, request).await;
        let pause = retries.pause(made, &rng);
        let in_time = deadline.is_none_or(|deadline| Instant::now() + pause < deadline);
        if made >= retries.most || !in_time || !retries.on.wants(&answered) {
            return answered;
        }
        made += 1;
        tokio::time::sleep(pause).await;
    }
}

/// A `RetryPolicy`: how often, after what, and how long to wait before.
#[derive(Debug, Clone)]
pub struct Retries {
    most: u32,
    on: RetryOn,
    base: Duration,
    longest: Duration,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct RetryOn {
    reset: bool,
    connect_failure: bool,
    refused_stream: bool,
    server_error: bool,
    gateway_error: bool,
    conflict: bool,
    grpc: Vec<i64>,
}

impl Retries {
    pub fn from_proto(proto: &pb::RetryPolicy) -> Self {
        let back_off = proto.retry_back_off.as_ref();
        let base = back_off.and_then(|b| b.base_interval.as_ref()).map_or(Duration::from_millis(25), duration);
        Self {
            most: proto.num_retries.as_ref().map_or(1, |most| most.value),
            on: RetryOn::parse(&proto.retry_on),
            base,
            longest: back_off.and_then(|b| b.max_interval.as_ref()).map_or(base * 10, duration),
        }
    }

    /// Anything up to the interval, which doubles with each retry.
    fn pause(&self, made: u32, rng: &Rng) -> Duration {
        let longest = self.base.saturating_mul(1 << made.min(16)).min(self.longest);
        Duration::from_micros(rng.below((longest.as_micros() as u64).max(1)))
    }
}

impl RetryOn {
    /// Words that name nothing here are passed over, as in Envoy.
    fn parse(text: &str) -> Self {
        let mut on = Self::default();
        for word in text.split(',').map(str::trim) {
            match word {
                "5xx" => on.server_error = true,
                "gateway-error" => on.gateway_error = true,
                "reset" => on.reset = true,
                "connect-failure" => on.connect_failure = true,
                "refused-stream" => on.refused_stream = true,
                "retriable-4xx" => on.conflict = true,
                "cancelled" => on.grpc.push(1),
                "deadline-exceeded" => on.grpc.push(4),
                "resource-exhausted" => on.grpc.push(8),
                "internal" => on.grpc.push(13),
                "unavailable" => on.grpc.push(14),
                _ => {}
            }
        }
        on
    }

    fn wants(&self, answered: &Answered) -> bool {
        let any_reset = self.reset || self.server_error || self.gateway_error;
        match answered {
            Err(AsyncFailure::Connect(_)) => any_reset || self.connect_failure,
            Err(AsyncFailure::Refused) => any_reset || self.refused_stream,
            Err(AsyncFailure::Reset(_)) => any_reset,
            Err(_) => false,
            Ok(response) => {
                let status = response.head.status;
                (self.server_error && status >= 500)
                    || (self.gateway_error && (502..=504).contains(&status))
                    || (self.conflict && status == 409)
                    || of_response(Some(&response.head), response.trailers.as_ref())
                        .is_some_and(|status| self.grpc.contains(&status))
            }
        }
    }
}
