//! `grpc_web`: gRPC for clients that cannot read trailers (`envoy.extensions.filters.http.grpc_web.v3.GrpcWeb`).
//!
//! `application/grpc-web[-text][+proto]` becomes `application/grpc` upstream. In the response the trailers
//! become a last frame of the body (flag 0x80), base64 for clients that accept `-text`. An answer that is
//! no gRPC keeps its HTTP status; its body, up to 16 KiB, becomes the message. Stats
//! `cluster.<name>.grpc-web.<service>.<method>.…`.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use nuncio_api::pb::google::protobuf::Any as ProtoAny;
use nuncio_api::support::Entry;
use nuncio_api::supports;
use nuncio_core::error::ConfigError;
use nuncio_core::extension::{FactoryContext, WorkerContext};
use nuncio_core::http::{
    Chunk, DecodeFilter, EncodeFilter, FilterHalves, Framing, HeaderMap, HttpFilter, HttpFilterFactory, LocalReply,
    MakeFilter, RequestHead, ResponseHead, Step, StreamControl, Verdict,
};

use super::grpc_stats::methods::{Method, Methods, service_and_method};
use crate::http::conn_manager::local_reply::{grpc_status, percent_encoded};

supports!(CONFIG = "envoy.extensions.filters.http.grpc_web.v3.GrpcWeb" {});
pub(super) static SUPPORTED: &[&Entry] = &[&CONFIG];

/// What becomes of a body that is no gRPC.
const MAX_MESSAGE: usize = 16 * 1024;

pub struct Factory;

impl HttpFilterFactory for Factory {
    fn name(&self) -> &'static str {
        "envoy.filters.http.grpc_web"
    }

    fn config_type(&self) -> &'static str {
        CONFIG.message
    }

    fn create(&self, _config: &ProtoAny, _context: &FactoryContext<'_>) -> Result<Arc<dyn HttpFilter>, ConfigError> {
        Ok(Arc::new(GrpcWeb))
    }
}

struct GrpcWeb;

impl HttpFilter for GrpcWeb {
    fn on_worker(&self, worker: &WorkerContext) -> MakeFilter {
        let methods = Methods::new(worker, "grpc-web");
        Box::new(move || {
            let call = Rc::<Call>::default();
            let decode = Decode { methods: methods.clone(), call: call.clone(), base64: None };
            let encode = Encode { call, frame: Vec::new(), no_grpc: false, tail: None };
            FilterHalves { decode: Some(Box::new(decode)), encode: Some(Box::new(encode)) }
        })
    }
}

/// What the response must know of the request.
#[derive(Default)]
struct Call {
    is_web: Cell<bool>,
    wants_text: Cell<bool>,
    method: RefCell<Option<Rc<Method>>>,
}

impl Call {
    fn charge(&self, headers: &HeaderMap) {
        if let (Some(method), Some(status)) = (&*self.method.borrow(), headers.get("grpc-status")) {
            method.charge(status);
        }
    }
}

struct Decode {
    methods: Methods,
    call: Rc<Call>,
    /// For a body in base64: characters of a quantum that is not complete.
    base64: Option<Vec<u8>>,
}

impl DecodeFilter for Decode {
    fn decode_headers(&mut self, head: &mut RequestHead, _end: bool, stream: &StreamControl) -> Step {
        let is_text = match head.headers.get("content-type") {
            Some(b"application/grpc-web" | b"application/grpc-web+proto") => false,
            Some(b"application/grpc-web-text" | b"application/grpc-web-text+proto") => true,
            _ => return Step::CONTINUE,
        };
        self.base64 = is_text.then(Vec::new);
        self.call.is_web.set(true);
        let accept = head.headers.get("accept");
        let wants_text = matches!(accept, Some(b"application/grpc-web-text" | b"application/grpc-web-text+proto"));
        self.call.wants_text.set(wants_text);
        if let Some((service, method)) = service_and_method(head.path().unwrap_or_default()) {
            *self.call.method.borrow_mut() = self.methods.of(stream, Some(format!("{service}.{method}")));
        }
        head.headers.remove("content-length");
        if matches!(head.framing, Framing::Length(_)) {
            head.framing = Framing::Streamed;
        }
        head.headers.set("content-type", "application/grpc");
        head.headers.set("te", "trailers");
        head.headers.set("grpc-accept-encoding", "identity");
        Step::CONTINUE
    }

    fn decode_data(&mut self, chunk: &mut Chunk<'_>, end: bool, _stream: &StreamControl) -> Step {
        let Some(held) = &mut self.base64 else { return Step::CONTINUE };
        held.extend_from_slice(chunk.as_slice());
        let whole = held.len() / 4 * 4;
        // Each quantum for itself: a client may end any of its pieces with padding.
        let mut plain = Vec::with_capacity(whole / 4 * 3);
        let good = held[..whole].chunks(4).all(|quantum| STANDARD.decode_vec(quantum, &mut plain).is_ok());
        held.drain(..whole);
        if !good || (end && !held.is_empty()) {
            let details = if good { "grpc_base_64_decode_failed_bad_size" } else { "grpc_base_64_decode_failed" };
            return Step::respond(LocalReply::new(400, details).body("Bad gRPC-web request, invalid base64 data."));
        }
        *chunk = Chunk::Own(plain.into());
        Step::CONTINUE
    }

    fn reset(&mut self) {
        self.base64 = None;
        self.call.is_web.set(false);
        self.call.wants_text.set(false);
        self.call.method.take();
    }
}

struct Encode {
    call: Rc<Call>,
    /// Of a response in base64: a frame that is not complete.
    frame: Vec<u8>,
    /// The response is no gRPC: its body became the message.
    no_grpc: bool,
    tail: Option<Bytes>,
}

impl Encode {
    /// Complete frames of `bytes` and what was there before, each in base64.
    fn text(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.frame.extend_from_slice(bytes);
        let (mut out, mut at) = (Vec::new(), 0);
        while let Some(prefix) = self.frame.get(at..at + 5) {
            let length = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize;
            let Some(frame) = at.checked_add(5 + length).and_then(|end| self.frame.get(at..end)) else { break };
            out.extend_from_slice(STANDARD.encode(frame).as_bytes());
            at += frame.len();
        }
        self.frame.drain(..at);
        out
    }

    /// The head says all that there is to say.
    fn without_body(&mut self, head: &mut ResponseHead, message: &[u8]) {
        if !head.headers.contains("grpc-status") {
            head.headers.set_u64("grpc-status", u64::from(grpc_status(head.status)));
        }
        if !message.is_empty() {
            head.headers.set("grpc-message", percent_encoded(&message[..message.len().min(MAX_MESSAGE)]));
        }
        head.headers.remove("content-length");
        head.framing = Framing::None;
        self.no_grpc = true;
    }
}

impl EncodeFilter for Encode {
    fn encode_headers(&mut self, head: &mut ResponseHead, end: bool, _stream: &StreamControl) -> Step {
        if !self.call.is_web.get() {
            return Step::CONTINUE;
        }
        self.call.charge(&head.headers);
        let is_grpc = if end { head.headers.contains("grpc-status") } else { head.status == 200 && head.is_grpc() };
        let of_client = head.headers.get("content-type").is_some_and(|t| t.starts_with(b"application/grpc-web"));
        let kind =
            if self.call.wants_text.get() { "application/grpc-web-text+proto" } else { "application/grpc-web+proto" };
        head.headers.set("content-type", kind);
        if is_grpc || of_client {
            if !end {
                head.headers.remove("content-length");
                head.framing = Framing::Streamed;
            }
            return Step::CONTINUE;
        }
        if end {
            self.without_body(head, b"");
            return Step::CONTINUE;
        }
        Step::Now(Verdict::NeedBody { limit: MAX_MESSAGE, partial: true })
    }

    fn encode_body(&mut self, head: &mut ResponseHead, body: &mut Vec<u8>, _: bool, _: &StreamControl) -> Step {
        let message = std::mem::take(body);
        self.without_body(head, &message);
        Step::CONTINUE
    }

    fn encode_data(&mut self, chunk: &mut Chunk<'_>, _end: bool, _stream: &StreamControl) -> Step {
        if self.no_grpc {
            *chunk = Chunk::Lent(&[]);
        } else if self.call.is_web.get() && self.call.wants_text.get() {
            let text = self.text(chunk.as_slice());
            *chunk = Chunk::Own(text.into());
        }
        Step::CONTINUE
    }

    fn encode_trailers(&mut self, trailers: &mut HeaderMap, _stream: &StreamControl) -> Step {
        if !self.call.is_web.get() || self.no_grpc {
            return Step::CONTINUE;
        }
        self.call.charge(trailers);
        let mut lines = Vec::new();
        for (name, value) in trailers.iter() {
            [name, b":", value, b"\r\n"].iter().for_each(|part| lines.extend_from_slice(part));
        }
        trailers.clear();
        let length = (lines.len() as u32).to_be_bytes();
        let frame = [&[0x80][..], &length, &lines].concat();
        let text = self.call.wants_text.get();
        self.tail = Some(if text { STANDARD.encode(frame).into_bytes() } else { frame }.into());
        Step::CONTINUE
    }

    fn encode_tail(&mut self) -> Option<Bytes> {
        self.tail.take()
    }

    fn reset(&mut self) {
        self.frame = Vec::new();
        self.no_grpc = false;
        self.tail = None;
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Answer, Bench, FILTERS};

    fn bench() -> Bench {
        let filter = format!(r#"{{name: w, typed_config: {{"@type": {FILTERS}.grpc_web.v3.GrpcWeb}}}}"#);
        Bench::new(&filter, "{match: {prefix: /}, route: {cluster: c}}")
    }

    async fn call(bench: &Bench, kind: &str, body: &str, response: &str) -> Answer {
        let request = format!(
            "POST /p.Svc/Ok HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{kind}content-length: {}\r\n\r\n{body}",
            body.len()
        );
        bench.ask(request, response).await
    }

    const WEB: &str = "content-type: application/grpc-web+proto\r\n";
    const TEXT: &str = "content-type: application/grpc-web-text\r\naccept: application/grpc-web-text\r\n";
    const OK: &str = "HTTP/1.1 200 OK\r\ncontent-type: application/grpc\r\ntransfer-encoding: chunked\r\n\r\n\
                      7\r\n\0\0\0\0\x02hi\r\n0\r\ngrpc-status: 0\r\n\r\n";

    // Expected: recorded from Envoy 1.40 (filter_grpc_web_stats).
    #[tokio::test(flavor = "local", start_paused = true)]
    async fn calls_go_on_as_grpc_and_what_is_no_grpc_becomes_a_message() {
        let bench = bench();
        let plain = "HTTP/1.1 503 Gone\r\ncontent-type: text/plain\r\ncontent-length: 5\r\n\r\nplain";
        let answer = call(&bench, WEB, "\0\0\0\0\x02hi", plain).await;
        assert_eq!(answer.upstream_field("content-type"), Some("application/grpc"));
        assert_eq!((answer.upstream_field("te"), answer.upstream_field("content-length")), (Some("trailers"), None));
        assert_eq!((answer.status(), answer.body()), ("503", ""));
        assert_eq!(answer.field("content-type"), Some("application/grpc-web+proto"));
        assert_eq!((answer.field("grpc-status"), answer.field("grpc-message")), (Some("14"), Some("plain")));
        let answer = call(&bench, "content-type: application/json\r\n", "{}", plain).await;
        assert_eq!((answer.body(), answer.upstream_field("content-type")), ("plain", Some("application/json")));
        let answer = call(&bench, TEXT, "*****", OK).await;
        assert_eq!((answer.status(), answer.field("grpc-status")), ("400", Some("13")));
        assert_eq!(answer.field("grpc-message"), Some("Bad gRPC-web request, invalid base64 data."));
    }

    #[tokio::test(flavor = "local", start_paused = true)]
    async fn text_is_base64_both_ways() {
        let answer = call(&bench(), TEXT, "AAAAAAJoaQ==AAAAAAA=", OK).await;
        assert_eq!(answer.upstream_body(), b"c\r\n\0\0\0\0\x02hi\0\0\0\0\0\r\n0\r\n\r\n");
        assert_eq!(answer.field("content-type"), Some("application/grpc-web-text+proto"));
        assert!(answer.body().contains("AAAAAAJoaQ=="), "{answer:?}");
    }
}
