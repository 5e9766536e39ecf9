use std::rc::Rc;

use nuncio_api::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use nuncio_api::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use nuncio_api::pb::envoy::service::ratelimit::v3::rate_limit_response::RateLimit;
use nuncio_api::pb::google::protobuf::Duration as ProtoDuration;
use nuncio_api::prost::Message;
use nuncio_core::http::{HeaderMap, ResponseHead};
use nuncio_core::upstream::client::{AsyncFailure, AsyncRequest, AsyncResponse};

use super::super::testing::{Bench, FILTERS, Scripted};
use super::*;

fn manager(more: &str) -> String {
    let service = "rate_limit_service: {transport_api_version: V3, grpc_service: {envoy_grpc: {cluster_name: rl}}}";
    let filter = format!(
        r#"{{name: r, typed_config: {{"@type": {FILTERS}.ratelimit.v3.RateLimit, domain: dom, {service} {more}}}}}"#
    );
    let key = |value: &str| format!("{{actions: [{{generic_key: {{descriptor_value: {value}}}}}]}}");
    format!(
        "{{stat_prefix: in, http_filters: [{filter}, ROUTER], route_config: {{virtual_hosts: [{{name: v, domains: ['*'], \
         rate_limits: [{}], routes: [{{match: {{prefix: /host}}, route: {{cluster: c}}}}, \
         {{match: {{prefix: /both}}, route: {{cluster: c, include_vh_rate_limits: true, rate_limits: [{}]}}}}, \
         {{match: {{prefix: /stage}}, route: {{cluster: c, rate_limits: [{{stage: 1, actions: [{{remote_address: {{}}}}]}}]}}}}, \
         {{match: {{prefix: /user}}, route: {{cluster: c, rate_limits: [{{actions: [{{request_headers: \
         {{header_name: X-User, descriptor_key: user}}}}, {{request_headers: {{header_name: x-opt, descriptor_key: opt, \
         skip_if_absent: true}}}}]}}]}}}}, {{match: {{prefix: /}}, route: {{cluster: c, rate_limits: [{}]}}}}]}}]}}}}",
        key("host"),
        key("both"),
        key("route")
    )
}

fn said(answer: &RateLimitResponse) -> Result<AsyncResponse, AsyncFailure> {
    let message = answer.encode_to_vec();
    let body = [&[0][..], &(message.len() as u32).to_be_bytes(), &message].concat();
    let trailers: HeaderMap = [("grpc-status", "0")].into_iter().collect();
    Ok(AsyncResponse { head: ResponseHead::new(200), body: body.into(), trailers: Some(trailers) })
}

fn asked(server: &Rc<Scripted>) -> Vec<Vec<(String, String)>> {
    let entries = |descriptor: RateLimitDescriptor| descriptor.entries.into_iter().map(|e| (e.key, e.value)).collect();
    let of = |(_, call): (String, AsyncRequest)| RateLimitRequest::decode(&call.body[5..]).unwrap();
    let calls = server.calls.borrow_mut().drain(..).map(of).collect::<Vec<_>>();
    calls.into_iter().flat_map(|question| question.descriptors).map(entries).collect()
}

fn pairs(list: &[(&str, &str)]) -> Vec<(String, String)> {
    list.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

// Expected: recorded from Envoy 1.40 (filter_ratelimit_grpc).
#[tokio::test(flavor = "local", start_paused = true)]
async fn what_is_asked_is_what_route_and_virtual_host_want() {
    let server = Scripted::new(|_| said(&RateLimitResponse::default()));
    let bench = Bench::calling(&manager(""), Some(server.clone()));
    for (path, fields, expected) in [
        ("/", "", vec![pairs(&[("generic_key", "route")])]),
        ("/host", "", vec![pairs(&[("generic_key", "host")])]),
        ("/both", "", vec![pairs(&[("generic_key", "both")]), pairs(&[("generic_key", "host")])]),
        ("/stage", "", vec![]),
        ("/user", "", vec![]),
        ("/user", "x-user: joe\r\n", vec![pairs(&[("user", "joe")])]),
        ("/user", "x-user: \r\nx-opt: 1\r\n", vec![pairs(&[("user", ""), ("opt", "1")])]),
    ] {
        assert_eq!(bench.get(path, fields).await.body(), "ok");
        assert_eq!(asked(&server), expected, "{path}");
    }
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn an_answer_limits_the_request_and_tells_how_much_is_left() {
    let header = |key: &str, value: &str| HeaderValue { key: key.into(), value: value.into(), ..Default::default() };
    let status = |requests_per_unit, unit: Unit, name: &str, limit_remaining, seconds| DescriptorStatus {
        current_limit: Some(RateLimit { requests_per_unit, unit: unit.into(), name: name.into() }),
        limit_remaining,
        duration_until_reset: Some(ProtoDuration { seconds, nanos: 0 }),
        ..Default::default()
    };
    let answer = RateLimitResponse {
        overall_code: Code::OverLimit.into(),
        statuses: vec![status(10, Unit::Minute, "ten", 4, 33), status(500, Unit::Hour, "", 400, 999)],
        response_headers_to_add: vec![header("retry-after", "7"), header("x-bad", "a\r\nx-evil: 1")],
        raw_body: b"slow down".to_vec(),
        ..Default::default()
    };
    let server = Scripted::new(move |_| said(&answer));
    let bench = Bench::calling(&manager(", enable_x_ratelimit_headers: DRAFT_VERSION_03"), Some(server));
    let answer = bench.get("/", "").await;
    assert_eq!((answer.status(), answer.body(), &*answer.upstream), ("429", "slow down", ""));
    assert_eq!(answer.field("x-ratelimit-limit"), Some("10, 10;w=60;name=\"ten\", 500;w=3600"));
    assert_eq!((answer.field("x-ratelimit-remaining"), answer.field("x-ratelimit-reset")), (Some("4"), Some("33")));
    assert_eq!((answer.field("x-envoy-ratelimited"), answer.field("retry-after")), (Some("true"), Some("7")));
    assert_eq!((answer.field("x-bad"), answer.field("x-evil")), (None, None));
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn without_an_answer_the_request_passes_or_not_as_configured() {
    for (more, status) in [("", "200"), (", failure_mode_deny: true", "500")] {
        let server = Scripted::new(|_| Err(AsyncFailure::Timeout));
        let bench = Bench::calling(&manager(more), Some(server.clone()));
        assert_eq!(bench.get("/", "").await.status(), status);
        let calls = server.calls.borrow();
        assert_eq!((&*calls[0].0, calls[0].1.timeout), ("rl", Some(TIMEOUT)));
        assert_eq!(calls[0].1.head.path(), Some(METHOD.as_bytes()));
    }
}
