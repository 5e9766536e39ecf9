//! `grpc_health_check`: the health service that gRPC servers have (`grpc.health.v1.Health/Check`).

use std::rc::Rc;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::future::LocalBoxFuture;
use nuncio_api::pb::envoy::config::core::v3::health_check::GrpcHealthCheck;
use nuncio_core::error::ConfigError;
use nuncio_core::http::{Framing, HeaderMap, RequestHead, Version};
use nuncio_core::upstream::{Host, HttpAnswer};
use prost::Message;

use super::kept::KeptConn;
use crate::judge::FailureType;
use crate::probe::{Answer, HeaderMutation, Probe, ProbeContext, ReadMutation, authority, target};

const PATH: &str = "/grpc.health.v1.Health/Check";

/// Of an answer no more is kept; a good one has seven bytes.
const MOST: usize = 4096;

/// `grpc.health.v1.HealthCheckRequest`.
#[derive(Clone, PartialEq, Message)]
struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    service: String,
}

/// `grpc.health.v1.HealthCheckResponse`.
#[derive(Clone, PartialEq, Message)]
struct HealthCheckResponse {
    /// 0 unknown, 1 serving, 2 not serving, 3 no such service.
    #[prost(int32, tag = "1")]
    status: i32,
}

const SERVING: i32 = 1;

/// Which service is asked for.
pub struct GrpcCheck {
    service: String,
    authority: String,
    /// The message with its frame.
    body: Bytes,
    metadata: Option<HeaderMutation>,
}

impl GrpcCheck {
    pub fn from_proto(message: &GrpcHealthCheck, mutation: ReadMutation<'_>) -> Result<Self, ConfigError> {
        let request = HealthCheckRequest { service: message.service_name.clone() }.encode_to_vec();
        let mut body = BytesMut::with_capacity(5 + request.len());
        body.put_u8(0);
        body.put_u32(u32::try_from(request.len()).unwrap_or(u32::MAX));
        body.put_slice(&request);
        let metadata = (!message.initial_metadata.is_empty()).then(|| mutation(&message.initial_metadata, &[]));
        let renamed = |e: ConfigError| ConfigError::new(e.path.replacen("add[", "initial_metadata[", 1), e.reason);
        Ok(Self {
            service: message.service_name.clone(),
            authority: message.authority.clone(),
            body: body.freeze(),
            metadata: metadata.transpose().map_err(renamed)?,
        })
    }

    fn request(&self, host: &Arc<Host>, cluster: &str) -> RequestHead {
        let mut headers = HeaderMap::new();
        headers.append(":method", "POST");
        headers.append(":scheme", "http");
        headers.append(":path", PATH);
        headers.append(":authority", authority(host, &self.authority, cluster));
        headers.append("te", "trailers");
        headers.append("content-type", "application/grpc");
        headers.append("user-agent", "Envoy/HC");
        let mut head =
            RequestHead { headers, version: Version::Http2, framing: Framing::Streamed, ..RequestHead::default() };
        if let Some(metadata) = &self.metadata {
            metadata(&mut head, host);
        }
        head
    }
}

/// What an answer means.
fn judge(answer: &HttpAnswer) -> Answer {
    let status = answer.head.status;
    let failed = |note: String| Answer { status: Some(status), ..Answer::failed(FailureType::Active, note) };
    if status != 200 {
        return failed(format!("HTTP {status}"));
    }
    let trailers = answer.trailers.as_ref().unwrap_or(&answer.head.headers);
    match trailers.get_str("grpc-status") {
        Some("0") => {}
        Some(other) => {
            let text = trailers.get_str("grpc-message").unwrap_or_default();
            return failed(format!("grpc-status {other}{}{text}", if text.is_empty() { "" } else { ": " }));
        }
        None => return failed("no grpc-status".to_owned()),
    }
    match message(&answer.body).and_then(|message| HealthCheckResponse::decode(message).ok()) {
        Some(HealthCheckResponse { status: SERVING }) => {
            Answer { status: Some(status), ..Answer::passed(false, "SERVING") }
        }
        Some(HealthCheckResponse { status: 2 }) => failed("NOT_SERVING".to_owned()),
        Some(HealthCheckResponse { status: 3 }) => failed("SERVICE_UNKNOWN".to_owned()),
        Some(HealthCheckResponse { status }) => failed(format!("serving status {status}")),
        None => failed("not an answer of the health service".to_owned()),
    }
}

/// The one message of a body: uncompressed, and all of it.
fn message(body: &[u8]) -> Option<&[u8]> {
    let (frame, rest) = body.split_first_chunk::<5>()?;
    let length = u32::from_be_bytes([frame[1], frame[2], frame[3], frame[4]]);
    (frame[0] == 0 && rest.len() == usize::try_from(length).ok()?).then_some(rest)
}

/// One host's.
pub struct GrpcProbe {
    check: Rc<GrpcCheck>,
    cluster: Arc<str>,
    conn: KeptConn,
}

impl GrpcProbe {
    pub fn new(check: Rc<GrpcCheck>, context: ProbeContext) -> Self {
        let cluster = context.cluster.clone();
        Self { conn: KeptConn::new(context, Version::Http2), check, cluster }
    }
}

impl Probe for GrpcProbe {
    fn check<'p>(&'p mut self, host: &'p Arc<Host>) -> LocalBoxFuture<'p, Answer> {
        Box::pin(async move {
            let mut head = self.check.request(host, &self.cluster);
            match self.conn.exchange(host, &mut head, &self.check.body, MOST).await {
                Ok(answer) => judge(&answer),
                Err(failure) => failure.into(),
            }
        })
    }

    fn describe(&self, host: &Host) -> String {
        let authority = authority(host, &self.check.authority, &self.cluster);
        format!("grpc {} service '{}' (Host: {authority})", target(host), self.check.service)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nuncio_core::http::ResponseHead;

    fn answer(body: &[u8], trailers: Option<&[(&str, &str)]>) -> HttpAnswer {
        let trailers = trailers.map(|fields| fields.iter().copied().collect());
        HttpAnswer { head: ResponseHead::new(200), body: body.into(), trailers }
    }

    // The body: recorded from Envoy 1.40 (hc_tcp_and_grpc).
    #[test]
    fn the_request_names_the_service_in_one_message() {
        let message = GrpcHealthCheck { service_name: "my.Svc".into(), ..Default::default() };
        let check = GrpcCheck::from_proto(&message, &|_, _| Ok(Rc::new(|_, _| ()))).unwrap();
        assert_eq!(&*check.body, b"\0\0\0\0\x08\n\x06my.Svc");
    }

    #[test]
    fn only_serving_passes() {
        let ok: Option<&[(&str, &str)]> = Some(&[("grpc-status", "0")]);
        let of = |body: &[u8], trailers| judge(&answer(body, trailers)).to_string();
        assert!(judge(&answer(b"\0\0\0\0\x02\x08\x01", ok)).is_passed());
        assert_eq!(of(b"\0\0\0\0\x02\x08\x02", ok), "NOT_SERVING");
        assert_eq!(of(b"\0\0\0\0\0", ok), "serving status 0");
        for noise in [&b""[..], b"\0", b"\0\0\0\0\x03\x08\x01", b"\x01\0\0\0\x02\x08\x01", b"\0\xff\xff\xff\xff\x08"] {
            assert_eq!(of(noise, ok), "not an answer of the health service");
        }
        assert_eq!(of(b"", Some(&[("grpc-status", "12"), ("grpc-message", "no")])), "grpc-status 12: no");
        assert_eq!(of(b"", None), "no grpc-status");
        assert_eq!(
            judge(&HttpAnswer { head: ResponseHead::new(503), ..HttpAnswer::default() }).to_string(),
            "HTTP 503"
        );
    }
}
