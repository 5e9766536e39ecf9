//! `buffer`: the whole request is here before the upstream sees any of it
//! (`envoy.extensions.filters.http.buffer.v3.Buffer`). A longer body is answered with 413; a
//! request whose length was not told gets a `content-length`. No stats of its own.

use std::any::Any;
use std::sync::Arc;

use nuncio_api::pb::envoy::extensions::filters::http::buffer::v3::{self as pb, buffer_per_route::Override};
use nuncio_api::pb::google::protobuf::Any as ProtoAny;
use nuncio_api::support::Entry;
use nuncio_api::{supports, unpack};
use nuncio_core::error::ConfigError;
use nuncio_core::extension::{FactoryContext, WorkerContext};
use nuncio_core::http::{
    DecodeFilter, FilterHalves, Framing, HttpFilter, HttpFilterFactory, MakeFilter, RequestHead, Step, StreamControl,
    Verdict,
};

supports!(CONFIG = "envoy.extensions.filters.http.buffer.v3.Buffer" { max_request_bytes });
supports!(ROUTE = "envoy.extensions.filters.http.buffer.v3.BufferPerRoute" { disabled, buffer });
pub(super) static SUPPORTED: &[&Entry] = &[&CONFIG, &ROUTE];

pub struct Factory;

impl HttpFilterFactory for Factory {
    fn name(&self) -> &'static str {
        "envoy.filters.http.buffer"
    }

    fn config_type(&self) -> &'static str {
        CONFIG.message
    }

    fn route_config_type(&self) -> Option<&'static str> {
        Some(ROUTE.message)
    }

    fn create(&self, config: &ProtoAny, context: &FactoryContext<'_>) -> Result<Arc<dyn HttpFilter>, ConfigError> {
        Ok(Arc::new(Buffer { name: context.name.into(), limit: limit(&unpack(config)?) }))
    }

    fn create_route_config(
        &self,
        config: &ProtoAny,
        _context: &FactoryContext<'_>,
    ) -> Result<Arc<dyn Any + Send + Sync>, ConfigError> {
        Ok(Arc::new(match unpack::<pb::BufferPerRoute>(config)?.r#override {
            Some(Override::Buffer(buffer)) => Limit(Some(limit(&buffer))),
            _ => Limit(None),
        }))
    }
}

fn limit(proto: &pb::Buffer) -> usize {
    proto.max_request_bytes.map_or(0, |v| v.value as usize)
}

/// What a route says; `None` switches the filter off.
struct Limit(Option<usize>);

#[derive(Clone)]
struct Buffer {
    name: Arc<str>,
    limit: usize,
}

impl HttpFilter for Buffer {
    fn on_worker(&self, _worker: &WorkerContext) -> MakeFilter {
        let this = self.clone();
        Box::new(move || FilterHalves { decode: Some(Box::new(this.clone())), encode: None })
    }
}

impl DecodeFilter for Buffer {
    fn decode_headers(&mut self, _head: &mut RequestHead, end: bool, stream: &StreamControl) -> Step {
        let limit = stream.route_config::<Limit>(&self.name).map_or(Some(self.limit), |route| route.0);
        match limit {
            Some(limit) if !end => Step::Now(Verdict::NeedBody { limit, partial: false }),
            _ => Step::CONTINUE,
        }
    }

    fn decode_body(&mut self, head: &mut RequestHead, body: &mut Vec<u8>, _: bool, _: &StreamControl) -> Step {
        if !head.headers.contains("content-length") {
            head.headers.set_u64("content-length", body.len() as u64);
        }
        head.framing = Framing::Length(body.len() as u64);
        Step::CONTINUE
    }

    fn reset(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Bench, FILTERS};

    // Expected: recorded from Envoy 1.40 (filter_fault_cors_buffer).
    #[tokio::test(flavor = "local", start_paused = true)]
    async fn a_body_over_the_limit_is_413_and_chunks_become_a_length() {
        let config = |rest: &str| format!(r#"{{"@type": {FILTERS}.buffer.v3.{rest}}}"#);
        let routes = format!(
            "{{match: {{prefix: /free}}, route: {{cluster: c}}, typed_per_filter_config: {{b: {}}}}}, \
             {{match: {{prefix: /}}, route: {{cluster: c}}}}",
            config("BufferPerRoute, disabled: true")
        );
        let filter = format!("{{name: b, typed_config: {}}}", config("Buffer, max_request_bytes: 10"));
        let bench = Bench::new(&filter, &routes);
        assert_eq!(bench.request("POST", "/", "", "0123456789").await.status(), "200");
        let answer = bench.request("POST", "/", "", "0123456789x").await;
        assert_eq!((answer.status(), answer.body(), &*answer.upstream), ("413", "Payload Too Large", ""));
        assert_eq!(bench.request("POST", "/free", "", "0123456789x").await.status(), "200");
        let chunked = "POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n\
                       2\r\nab\r\n1\r\nc\r\n0\r\n\r\n";
        let answer = bench.ask(chunked, "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
        assert_eq!(answer.upstream_field("content-length"), Some("3"));
        assert!(answer.upstream.ends_with("\r\n\r\nabc"), "{answer:?}");
    }
}
