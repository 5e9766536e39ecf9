//! Unary gRPC calls to a named cluster: `core.v3.GrpcService` and one message each way.
//!
//! The call is an ordinary HTTP/2 request of the [`AsyncClient`], so the cluster's discovery, health, balancing,
//! breakers and connections are the ones of its own traffic; the cluster must be configured to speak HTTP/2. What
//! goes wrong ends as one gRPC status, as in Envoy: 14 for what did not reach a host, 4 for the timeout, the mapped one
//! for an HTTP status other than 200, 13 for what is no message.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::future::LocalBoxFuture;
use nuncio_api::pb::envoy::config::core::v3::{self as pb, grpc_service::TargetSpecifier};
use nuncio_api::prost::Message;
use nuncio_api::support::Entry;
use nuncio_api::supports;
use tokio::time::Instant;

use super::client::{AsyncClient, AsyncFailure, AsyncRequest, AsyncResponse};
use crate::access_log::{LogContext, TextFormat};
use crate::error::ConfigError;
use crate::extension::{FactoryContext, WorkerContext};
use crate::http::grpc_status::{from_http, of_response, snake_name};
use crate::http::{Framing, HeaderMap, RequestHead, Version};
use crate::random::Rng;
use crate::time::duration;

supports!(SERVICE = "envoy.config.core.v3.GrpcService" { envoy_grpc, timeout, initial_metadata, retry_policy });
supports!(ENVOY_GRPC = "envoy.config.core.v3.GrpcService.EnvoyGrpc" {
    cluster_name, authority, max_receive_message_length
} noop {
    retry_policy: "of streams to a management server; calls have GrpcService.retry_policy"
});
supports!(METADATA = "envoy.config.core.v3.HeaderValue" { key, value });
supports!(RETRY = "envoy.config.core.v3.RetryPolicy" { retry_back_off, num_retries, retry_on });
supports!(BACK_OFF = "envoy.config.core.v3.BackoffStrategy" { base_interval, max_interval });

/// What is honoured of the messages read here.
pub static SUPPORTED: &[&Entry] = &[&SERVICE, &ENVOY_GRPC, &METADATA, &RETRY, &BACK_OFF];

/// The most bytes of one answer unless `max_receive_message_length` says otherwise: gRPC's own default, where Envoy
/// has no limit.
const MAX_ANSWER: usize = 4 << 20;

/// Of a message: a flag and four bytes of length.
const PREFIX: usize = 5;

/// A checked `GrpcService` that names a cluster.
pub struct GrpcService {
    cluster: Arc<str>,
    authority: Option<Box<str>>,
    timeout: Option<Duration>,
    metadata: Vec<(Box<str>, Arc<dyn TextFormat>)>,
    retries: Option<Retries>,
    max_answer: usize,
}

/// The status that a call ended with, never `OK`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrpcFailure {
    pub status: i64,
    pub message: String,
    /// Why there was no answer, if there was none.
    pub transport: Option<AsyncFailure>,
}

impl std::fmt::Display for GrpcFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match snake_name(self.status) {
            Some(name) => write!(f, "{name}: {}", self.message),
            None => write!(f, "status {}: {}", self.status, self.message),
        }
    }
}

impl std::error::Error for GrpcFailure {}

// === impl GrpcService ===

impl GrpcService {
    /// `default_timeout` where the message sets none; a timeout of zero is none.
    pub fn from_proto(
        proto: &pb::GrpcService,
        default_timeout: Option<Duration>,
        context: &FactoryContext<'_>,
    ) -> Result<Self, ConfigError> {
        let target = match &proto.target_specifier {
            Some(TargetSpecifier::EnvoyGrpc(target)) => target,
            Some(TargetSpecifier::GoogleGrpc(_)) => return Err(ConfigError::new("google_grpc", "is not implemented")),
            None => return Err(ConfigError::new("target_specifier", "value is required")),
        };
        if !(context.has_cluster)(&target.cluster_name) {
            let reason = format!("there is no cluster '{}' now; until there is, every call fails", target.cluster_name);
            context.warn("grpc_service.envoy_grpc.cluster_name", reason);
        }
        let metadata = proto.initial_metadata.iter().enumerate().map(|(i, header)| {
            let value = context.formats.compile(&header.value);
            let value = value.map_err(|e| e.within(&format!("initial_metadata[{i}].value")))?;
            Ok((header.key.to_ascii_lowercase().into_boxed_str(), value))
        });
        let timeout = proto.timeout.as_ref().map(duration).or(default_timeout);
        Ok(Self {
            cluster: target.cluster_name.as_str().into(),
            authority: (!target.authority.is_empty()).then(|| target.authority.as_str().into()),
            timeout: timeout.filter(|timeout| !timeout.is_zero()),
            metadata: metadata.collect::<Result<_, ConfigError>>()?,
            retries: proto.retry_policy.as_ref().map(Retries::from_proto),
            max_answer: target
                .max_receive_message_length
                .as_ref()
                .map(|limit| limit.value as usize)
                .filter(|limit| *limit > 0)
                .unwrap_or(MAX_ANSWER),
        })
    }

    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    pub fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// Calls `path` (`/package.Service/Method`). `told` is what `initial_metadata` may speak of. Dropping the future
    /// resets the stream.
    pub fn call<A: Message + Default + 'static>(
        &self,
        path: &'static str,
        question: &impl Message,
        told: &LogContext<'_>,
        worker: &WorkerContext,
    ) -> LocalBoxFuture<'static, Result<A, GrpcFailure>> {
        let request = AsyncRequest {
            head: self.head(path, told),
            body: frame(question),
            timeout: self.timeout,
            max_response_bytes: self.max_answer.saturating_add(PREFIX),
            hash: None,
        };
        let call = Call { cluster: self.cluster.clone(), client: worker.client.clone(), request };
        let retries = self.retries.clone().map(|retries| (retries, worker.rng.clone()));
        Box::pin(async move { answer(call.run(retries).await) })
    }

    fn head(&self, path: &str, told: &LogContext<'_>) -> RequestHead {
        let mut head = RequestHead { version: Version::Http2, framing: Framing::Streamed, ..RequestHead::default() };
        let headers = &mut head.headers;
        headers.append(":method", "POST");
        headers.append(":path", path);
        headers.append(":scheme", "http");
        headers.append(":authority", self.authority.as_deref().unwrap_or(&self.cluster));
        headers.append("te", "trailers");
        headers.append("content-type", "application/grpc");
        if let Some(timeout) = self.timeout {
            headers.append("grpc-timeout", timeout_text(timeout));
        }
        let mut value = Vec::new();
        for (name, format) in &self.metadata {
            value.clear();
            format.append(told, &mut value);
            if !value.is_empty() {
                headers.set(name, &value);
            }
        }
        head
    }
}

/// Up to eight digits and a unit, as the protocol wants it: milliseconds while they fit.
fn timeout_text(timeout: Duration) -> String {
    let millis = timeout.as_millis();
    let units = [(1, 'm'), (1000, 'S'), (60_000, 'M'), (3_600_000, 'H')];
    let (unit, letter) = units.into_iter().find(|(unit, _)| millis / unit < 100_000_000).unwrap_or((3_600_000, 'H'));
    format!("{}{letter}", millis / unit)
}

fn frame(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut bytes = BytesMut::with_capacity(length + PREFIX);
    bytes.put_u8(0);
    bytes.put_u32(length as u32);
    message.encode_raw(&mut bytes);
    bytes.freeze()
}

/// One question, asked until it is answered or may not be asked again.
struct Call {
    cluster: Arc<str>,
    client: Rc<dyn AsyncClient>,
    request: AsyncRequest,
}

type Answered = Result<AsyncResponse, AsyncFailure>;

impl Call {
    async fn run(self, retries: Option<(Retries, Rng)>) -> Answered {
        let Some((retries, rng)) = retries else { return self.client.call(&self.cluster, self.request).await };
        let deadline = self.request.timeout.map(|timeout| Instant::now() + timeout);
        let mut made = 0;
        loop {
            let mut request = self.request.clone();
            request.timeout = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let answered = self.client.call(&self.cluster, request).await;
            let pause = retries.pause(made, &rng);
            let in_time = deadline.is_none_or(|deadline| Instant::now() + pause < deadline);
            if made >= retries.most || !in_time || !retries.on.wants(&answered) {
                return answered;
            }
            made += 1;
            tokio::time::sleep(pause).await;
        }
    }
}

/// What the answer's frames, status and trailers say.
fn answer<A: Message + Default>(answered: Answered) -> Result<A, GrpcFailure> {
    let response = answered.map_err(GrpcFailure::of_transport)?;
    let trailers = response.trailers.as_ref();
    let status = of_response(Some(&response.head), trailers);
    if response.head.status != 200 {
        // A status of gRPC's own counts only in an answer without a body.
        let own = status.filter(|_| trailers.is_none() && response.body.is_empty());
        let status = own.unwrap_or_else(|| from_http(response.head.status));
        return Err(GrpcFailure::new(status, message_of(&response.head.headers)));
    }
    match status {
        Some(0) => {}
        Some(status) => return Err(GrpcFailure::new(status, message_of(trailers.unwrap_or(&response.head.headers)))),
        None => return Err(GrpcFailure::new(2, "the answer ended without a status".into())),
    }
    let mut rest = response.body;
    let mut last = None;
    while !rest.is_empty() {
        let (Some(0), Some(length)) = (rest.first(), rest.get(1..PREFIX)) else {
            return Err(GrpcFailure::new(13, "the answer is no plain gRPC message".into()));
        };
        let length = length.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
        if rest.len() < PREFIX + length {
            return Err(GrpcFailure::new(13, "the answer's message is cut off".into()));
        }
        last = Some(rest.slice(PREFIX..PREFIX + length));
        rest = rest.slice(PREFIX + length..);
    }
    let message = last.ok_or_else(|| GrpcFailure::new(13, "the answer has no message".into()))?;
    A::decode(message).map_err(|error| GrpcFailure::new(13, error.to_string()))
}

fn message_of(headers: &HeaderMap) -> String {
    headers.get("grpc-message").map_or_else(String::new, |text| String::from_utf8_lossy(text).into_owned())
}

impl GrpcFailure {
    fn new(status: i64, message: String) -> Self {
        Self { status, message, transport: None }
    }

    fn of_transport(failure: AsyncFailure) -> Self {
        let status = match failure {
            AsyncFailure::Timeout => 4,
            AsyncFailure::ResponseTooLarge => 8,
            _ => 14,
        };
        Self { status, message: failure.to_string(), transport: Some(failure) }
    }
}

/// A `RetryPolicy`: how often, after what, and how long to wait before.
#[derive(Debug, Clone)]
struct Retries {
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
    fn from_proto(proto: &pb::RetryPolicy) -> Self {
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

#[cfg(test)]
mod tests;
