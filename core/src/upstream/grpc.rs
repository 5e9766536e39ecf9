//! Unary gRPC calls to a named cluster: `core.v3.GrpcService` and one message each way.
//!
//! The call is an ordinary HTTP/2 request of the [`AsyncClient`](super::client::AsyncClient), so the cluster's discovery, health, balancing,
//! breakers and connections are the ones of its own traffic; the cluster must be configured to speak HTTP/2. What
//! goes wrong ends as one gRPC status, as in Envoy: 14 for what did not reach a host, 4 for the timeout, the mapped one
//! for an HTTP status other than 200, 13 for what is no message.

use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::future::LocalBoxFuture;
use nuncio_api::pb::envoy::config::core::v3::{self as pb, grpc_service::TargetSpecifier};
use nuncio_api::prost::Message;
use nuncio_api::support::Entry;
use nuncio_api::supports;

use super::client::{AsyncFailure, AsyncRequest, AsyncResponse};
use super::retries::{self, Retries};
use crate::access_log::{LogContext, TextFormat};
use crate::error::ConfigError;
use crate::extension::{FactoryContext, WorkerContext};
use crate::http::grpc_status::{from_http, of_response, snake_name};
use crate::http::{Framing, HeaderMap, RequestHead, Version};
use crate::time::duration;

supports!(SERVICE = "envoy.config.core.v3.GrpcService" { envoy_grpc, timeout, initial_metadata, retry_policy });
supports!(ENVOY_GRPC = "envoy.config.core.v3.GrpcService.EnvoyGrpc" {
    cluster_name, authority, max_receive_message_length
} noop {
    retry_policy: "of streams to a management server; calls have GrpcService.retry_policy"
});
supports!(METADATA = "envoy.config.core.v3.HeaderValue" { key, value });

/// What is honoured of the messages read here.
pub static SUPPORTED: &[&Entry] = &[&SERVICE, &ENVOY_GRPC, &METADATA, &retries::RETRY, &retries::BACK_OFF];

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
            send_xff: true,
        };
        let answered = retries::call(self.retries.as_ref(), self.cluster.clone(), request, worker);
        Box::pin(async move { answer(answered.await) })
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
                headers.set_given(name, &value);
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

/// What the answer's frames, status and trailers say.
fn answer<A: Message + Default>(answered: Result<AsyncResponse, AsyncFailure>) -> Result<A, GrpcFailure> {
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

#[cfg(test)]
mod tests;
