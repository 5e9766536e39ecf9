//! The check as a plain HTTP request: 200 allows, 5xx is an error, everything else denies.
//!
//! The request has the method and path of the one that is asked about, those of its headers that are told, and no body
//! unless one was collected. The answer's fields go where the configured lists say.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use nuncio_api::pb::envoy::config::core::v3::{
    HeaderValue, header_value_option::HeaderAppendAction, http_uri::HttpUpstreamType,
};
use nuncio_api::pb::envoy::extensions::filters::http::ext_authz::v3 as pb;
use nuncio_api::pb::envoy::service::auth::v3::CheckRequest;
use nuncio_api::pb::envoy::r#type::matcher::v3::ListStringMatcher;
use nuncio_api::pb::google::protobuf::{Struct, Value, value::Kind};
use nuncio_api::supports;
use nuncio_core::access_log::{LogContext, TextFormat};
use nuncio_core::error::ConfigError;
use nuncio_core::extension::{FactoryContext, WorkerContext};
use nuncio_core::http::{Framing, HeaderMap, RequestHead};
use nuncio_core::matcher::StringMatcher;
use nuncio_core::time::duration;
use nuncio_core::upstream::retries::{self, Retries};
use nuncio_core::upstream::{AsyncRequest, AsyncResponse};

use super::answer::{Answer, Changes, Field, Refusal, Verdict};
use super::config::{matchers, status_in_range};
use super::mutations::frames;

supports!(pub(super) SERVICE = "envoy.extensions.filters.http.ext_authz.v3.HttpService" {
    server_uri, path_prefix, path_override, authorization_request, authorization_response, retry_policy
});
// The cluster says where to and the request what for; the URI itself has no effect in Envoy either.
supports!(pub(super) URI = "envoy.config.core.v3.HttpUri" { uri, cluster, timeout });
supports!(pub(super) REQUEST = "envoy.extensions.filters.http.ext_authz.v3.AuthorizationRequest" {
    allowed_headers, headers_to_add
});
supports!(pub(super) RESPONSE = "envoy.extensions.filters.http.ext_authz.v3.AuthorizationResponse" {
    allowed_upstream_headers, allowed_upstream_headers_to_append, allowed_client_headers,
    allowed_client_headers_on_success, dynamic_metadata_from_headers
});
supports!(pub(super) HEADER = "envoy.config.core.v3.HeaderValue" { key, value });

/// The most bytes of an answer's body.
const MAX_ANSWER: usize = 4 << 20;

/// A checked `HttpService`.
pub(super) struct HttpService {
    cluster: Arc<str>,
    timeout: Option<Duration>,
    path_prefix: String,
    path_override: String,
    /// Told beside what the filter's list allows.
    pub(super) allowed: Vec<StringMatcher>,
    headers_to_add: Vec<(String, Arc<dyn TextFormat>)>,
    retries: Option<Retries>,
    upstream: Vec<StringMatcher>,
    upstream_append: Vec<StringMatcher>,
    client: Option<Vec<StringMatcher>>,
    client_on_success: Vec<StringMatcher>,
    metadata: Vec<StringMatcher>,
}

impl HttpService {
    pub(super) fn from_proto(proto: &pb::HttpService, context: &FactoryContext<'_>) -> Result<Self, ConfigError> {
        let uri = proto.server_uri.as_ref().ok_or_else(|| ConfigError::new("server_uri", "value is required"))?;
        let Some(HttpUpstreamType::Cluster(cluster)) = &uri.http_upstream_type else {
            return Err(ConfigError::new("server_uri.cluster", "value is required"));
        };
        if !(context.has_cluster)(cluster) {
            let reason = format!("there is no cluster '{cluster}' now; until there is, every check fails");
            context.warn("http_service.server_uri.cluster", reason);
        }
        for (field, path) in [("path_prefix", &proto.path_prefix), ("path_override", &proto.path_override)] {
            if !path.is_empty() && !path.starts_with('/') {
                return Err(ConfigError::new(field, format!("{field} should start with \"/\".")));
            }
        }
        if !proto.path_prefix.is_empty() && !proto.path_override.is_empty() {
            return Err(ConfigError::new("path_override", "only one of path_prefix and path_override may be set"));
        }
        let request = proto.authorization_request.clone().unwrap_or_default();
        let response = proto.authorization_response.clone().unwrap_or_default();
        let list = |field: &str, list: &Option<ListStringMatcher>| {
            matchers(list.as_ref()).map_err(|e| e.within(&format!("authorization_response.{field}")))
        };
        let headers_to_add = request.headers_to_add.iter().enumerate().map(|(i, header)| {
            let value = context.formats.compile(&header.value);
            let at = format!("authorization_request.headers_to_add[{i}].value");
            Ok((header.key.to_ascii_lowercase(), value.map_err(|e| e.within(&at))?))
        });
        #[allow(deprecated)]
        let allowed = matchers(request.allowed_headers.as_ref());
        let mut allowed = allowed.map_err(|e| e.within("authorization_request.allowed_headers"))?;
        allowed.extend([":method", ":path", ":authority", "authorization"].map(StringMatcher::exact));
        let client = response.allowed_client_headers.as_ref().map(|_| {
            let mut client = list("allowed_client_headers", &response.allowed_client_headers)?;
            client.extend(["www-authenticate", "location"].map(StringMatcher::exact));
            Ok::<_, ConfigError>(client)
        });
        Ok(Self {
            cluster: cluster.as_str().into(),
            timeout: uri.timeout.as_ref().map(duration).filter(|timeout| !timeout.is_zero()),
            path_prefix: proto.path_prefix.clone(),
            path_override: proto.path_override.clone(),
            allowed,
            headers_to_add: headers_to_add.collect::<Result<_, ConfigError>>()?,
            retries: proto.retry_policy.as_ref().map(Retries::from_proto),
            upstream: list("allowed_upstream_headers", &response.allowed_upstream_headers)?,
            upstream_append: list("allowed_upstream_headers_to_append", &response.allowed_upstream_headers_to_append)?,
            client: client.transpose()?,
            client_on_success: list("allowed_client_headers_on_success", &response.allowed_client_headers_on_success)?,
            metadata: list("dynamic_metadata_from_headers", &response.dynamic_metadata_from_headers)?,
        })
    }

    /// Asks; whatever ends without an answer is an error.
    pub(super) fn check(
        self: &Arc<Self>,
        request: CheckRequest,
        told: &LogContext<'_>,
        worker: &WorkerContext,
    ) -> impl Future<Output = Answer> + use<> {
        let this = self.clone();
        let request = self.request(request, told);
        let call = retries::call(self.retries.as_ref(), self.cluster.clone(), request, worker);
        async move {
            match call.await {
                Ok(response) => this.answer(response),
                Err(failure) => {
                    tracing::debug!(target: "ext_authz", cluster = &*this.cluster, "the check failed: {failure}");
                    Answer::error()
                }
            }
        }
    }

    fn request(&self, request: CheckRequest, told: &LogContext<'_>) -> AsyncRequest {
        let http = request.attributes.and_then(|a| a.request).and_then(|r| r.http).unwrap_or_default();
        let body = if http.raw_body.is_empty() { http.body.into_bytes() } else { http.raw_body };
        // Also for GET, as Envoy has it.
        let mut head = RequestHead { framing: Framing::Length(0), ..RequestHead::default() };
        let headers = &mut head.headers;
        headers.append(":scheme", "http");
        let mut add = |name: &str, value: &[u8]| match name {
            ":scheme" | "content-length" => {}
            ":path" if !self.path_override.is_empty() => headers.set(":path", &self.path_override),
            ":path" => headers.set(":path", [self.path_prefix.as_bytes(), value].concat()),
            name => headers.append(name, value),
        };
        http.headers.iter().for_each(|(name, value)| add(name, value.as_bytes()));
        for HeaderValue { key, value, raw_value } in http.header_map.map(|map| map.headers).unwrap_or_default() {
            add(&key, if value.is_empty() { &raw_value } else { value.as_bytes() });
        }
        let mut value = Vec::new();
        for (name, format) in &self.headers_to_add {
            value.clear();
            format.append(told, &mut value);
            if !value.is_empty() {
                headers.set_given(name, &value);
            }
        }
        AsyncRequest {
            head,
            body: Bytes::from(body),
            timeout: self.timeout,
            max_response_bytes: MAX_ANSWER,
            hash: None,
            send_xff: false,
        }
    }

    fn answer(&self, response: AsyncResponse) -> Answer {
        let status = response.head.status;
        let headers = &response.head.headers;
        if status >= 500 {
            return Answer::error();
        }
        let metadata = Struct {
            fields: some(headers, &self.metadata)
                .map(|(name, value)| {
                    let value = String::from_utf8_lossy(&value).into_owned();
                    (name, Value { kind: Some(Kind::StringValue(value)) })
                })
                .collect(),
        };
        if status == 200 {
            let removals = headers.get_all("x-envoy-auth-headers-to-remove");
            let remove = removals.flat_map(|list| list.split(|b| *b == b','));
            let action = HeaderAppendAction::AppendIfExistsOrAdd;
            let changes = Changes {
                set: some(headers, &self.upstream).collect(),
                add: some(headers, &self.upstream_append).collect(),
                remove: remove.map(|name| String::from_utf8_lossy(name.trim_ascii()).to_ascii_lowercase()).collect(),
                response: some(headers, &self.client_on_success).map(|field| (action, field)).collect(),
                ..Changes::default()
            };
            return Answer { verdict: Verdict::Allowed(Box::new(changes)), metadata };
        }
        let all = [StringMatcher::prefix("")];
        let headers = some(headers, self.client.as_deref().unwrap_or(&all))
            .filter(|(name, _)| {
                !frames(name) && !matches!(&**name, "date" | "server" | "x-envoy-upstream-service-time")
            })
            .collect();
        let refusal = Refusal { status: Some(status_in_range(status)), headers, body: response.body.to_vec(), code: 0 };
        Answer { verdict: Verdict::Denied(refusal), metadata }
    }
}

/// The fields that a list names.
fn some<'a>(headers: &'a HeaderMap, list: &'a [StringMatcher]) -> impl Iterator<Item = Field> + 'a {
    let named = headers.iter().filter(|(name, _)| list.iter().any(|m| m.matches(name)));
    named.map(|(name, value)| (String::from_utf8_lossy(name).into_owned(), value.to_vec()))
}
