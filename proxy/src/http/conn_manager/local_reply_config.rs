//! `local_reply_config`: answers of the proxy's own are told apart by an access log filter and get
//! another status, body, format or more headers. The first mapper whose filter holds is the one.

use bytes::Bytes;
use nuncio_api::pb::envoy::extensions::filters::network::http_connection_manager::v3::{
    LocalReplyConfig as Proto, ResponseMapper,
};
use nuncio_api::supports;
use nuncio_core::access_log::LogContext;
use nuncio_core::error::ConfigError;
use nuncio_core::http::{LocalReply, RequestHead, ResponseHead, StreamControl};
use nuncio_core::random::Rng;
use nuncio_core::runtime::Runtime;

use super::local_reply;
use crate::access_log::filter::Filter;
use crate::format::{BodyFormat, HeaderMutations, MutationValues};
use crate::http::router::read_body;

supports!(pub(super) CONFIG =
    "envoy.extensions.filters.network.http_connection_manager.v3.LocalReplyConfig" { mappers, body_format });
supports!(pub(super) MAPPER = "envoy.extensions.filters.network.http_connection_manager.v3.ResponseMapper" {
    filter, status_code, body, body_format_override, headers_to_add
});

/// Bodies of mappers may be this long.
const MAX_BODY: u32 = 1 << 20;

/// The checked configuration.
#[derive(Debug, Default)]
pub struct LocalReplyConfig {
    mappers: Vec<Mapper>,
    format: Option<BodyFormat>,
}

#[derive(Debug)]
struct Mapper {
    filter: Filter,
    status: Option<u16>,
    body: Option<Bytes>,
    format: Option<BodyFormat>,
    headers: HeaderMutations,
}

impl LocalReplyConfig {
    pub fn from_proto(proto: &Proto) -> Result<Self, ConfigError> {
        let mappers = proto.mappers.iter().enumerate();
        let mappers = mappers.map(|(i, m)| Mapper::from_proto(m).map_err(|e| e.within(&format!("mappers[{i}]"))));
        let format = proto.body_format.as_ref().map(BodyFormat::from_proto).transpose();
        Ok(Self { mappers: mappers.collect::<Result<_, _>>()?, format: format.map_err(|e| e.within("body_format"))? })
    }

    /// Writes the answer that `reply` becomes into `head`, and returns the body to send.
    pub fn write(
        &self,
        mut reply: LocalReply,
        request: &RequestHead,
        head: &mut ResponseHead,
        control: &StreamControl,
        rng: &Rng,
        runtime: &dyn Runtime,
    ) -> Bytes {
        control.info_mut().response_code = Some(reply.status);
        let asked = reply.status;
        let connection = control.connection();
        let route = control.route();
        let with = |apply: &mut dyn FnMut(&LogContext<'_>)| {
            let info = control.info();
            apply(&LogContext {
                request: Some(request),
                connection: connection.as_deref(),
                route: route.as_deref(),
                rng: Some(rng),
                ..LogContext::new(&info)
            });
        };
        let mut found = None;
        with(&mut |context| found = self.mappers.iter().find(|m| m.filter.accepts(context, rng, runtime)));
        if let Some(mapper) = found {
            reply.status = mapper.status.unwrap_or(reply.status);
            if let Some(body) = &mapper.body {
                reply.body = body.clone();
            }
            control.info_mut().response_code = Some(reply.status);
        }
        if let Some(format) = found.and_then(|m| m.format.as_ref()).or(self.format.as_ref()) {
            let mut body = Vec::new();
            let plain = std::mem::take(&mut reply.body);
            with(&mut |context| format.format(&LogContext { local_reply_body: &plain, ..*context }, &mut body));
            if control.state().is_grpc.get() && body.last() == Some(&b'\n') {
                body.pop();
            }
            reply.headers.retain(|(name, _)| !name.eq_ignore_ascii_case("content-type"));
            if !control.state().is_grpc.get() {
                reply = reply.header("content-type", format.content_type().to_owned());
            }
            reply.body = body.into();
        }
        let body = local_reply::write(&reply, request, control.state().is_grpc.get(), head);
        if let Some(mapper) = found.filter(|m| !m.headers.is_empty()) {
            // Added headers tell of the answer as it was asked for.
            control.info_mut().response_code = Some(asked);
            let mut values = MutationValues::default();
            with(&mut |context| mapper.headers.apply_to_response(head, context, &mut values));
            control.info_mut().response_code = Some(reply.status);
        }
        body
    }
}

impl Mapper {
    fn from_proto(proto: &ResponseMapper) -> Result<Self, ConfigError> {
        let filter = proto.filter.as_ref().ok_or_else(|| ConfigError::new("filter", "value is required"))?;
        let body = proto.body.as_ref().map(|source| read_body(source, MAX_BODY)).transpose();
        let format = proto.body_format_override.as_ref().map(BodyFormat::from_proto).transpose();
        Ok(Self {
            filter: Filter::from_proto(filter).map_err(|e| e.within("filter"))?,
            status: proto.status_code.map(|v| v.value as u16),
            body: body.map_err(|e| e.within("body"))?,
            format: format.map_err(|e| e.within("body_format_override"))?,
            headers: HeaderMutations::new(&proto.headers_to_add, &[]).map_err(|e| e.within("headers_to_add"))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::http::filters::testing::Bench;

    const MANAGER: &str = r#"{stat_prefix: in, http_filters: [ROUTER], strip_any_host_port: true,
        route_config: {virtual_hosts: [{name: v, domains: [web.test], routes: [
          {match: {prefix: /direct}, direct_response: {status: 418, body: {inline_string: teapot}}},
          {match: {prefix: /up}, route: {cluster: c}}]}]},
        local_reply_config: {
          mappers: [{filter: {status_code_filter: {comparison: {op: EQ, value: {default_value: 404, runtime_key: k}}}},
            status_code: 410, body: {inline_string: gone}, headers_to_add: [{header: {key: x-mapped, value: "%RESPONSE_CODE%"}}],
            body_format_override: {text_format_source: {inline_string: "<%LOCAL_REPLY_BODY%|%RESPONSE_CODE%|%REQ(:path)%>"},
              content_type: "text/html"}}],
          body_format: {json_format: {code: "%RESPONSE_CODE%", msg: "%LOCAL_REPLY_BODY%"}}}}"#;

    // Expected: as Envoy 1.40 answers in hcm_local_reply.
    #[tokio::test(flavor = "local", start_paused = true)]
    async fn local_answers_are_mapped_and_formatted_and_upstream_s_are_not() {
        let bench = Bench::with(MANAGER);
        let answer = bench.get("/nothing", "").await;
        assert_eq!((answer.status(), answer.body()), ("410", "<gone|410|/nothing>"));
        assert_eq!((answer.field("content-type"), answer.field("x-mapped")), (Some("text/html"), Some("404")));
        let answer = bench.get("/direct", "").await;
        assert_eq!((answer.status(), answer.body()), ("418", "{\"code\":418,\"msg\":\"teapot\"}\n"));
        assert_eq!(answer.field("content-type"), Some("application/json"));
        assert_eq!(bench.get("/up", "").await.body(), "ok");
        let answer = bench.get("/direct", "content-type: application/grpc\r\n").await;
        assert_eq!(answer.field("grpc-message"), Some("{\"code\":418,\"msg\":\"teapot\"}"));
    }

    #[tokio::test(flavor = "local", start_paused = true)]
    async fn the_host_is_routed_without_its_port() {
        let bench = Bench::with(MANAGER);
        let request = "GET /up HTTP/1.1\r\nhost: web.test:99\r\nconnection: close\r\n\r\n";
        let answer = bench.ask(request, "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
        assert_eq!((answer.body(), answer.upstream_field("host")), ("ok", Some("web.test")));
    }
}
