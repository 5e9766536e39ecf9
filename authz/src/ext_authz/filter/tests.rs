use nuncio_api::pack;
use nuncio_api::pb::envoy::extensions::filters::http::ext_authz::v3 as pb;
use nuncio_api::pb::envoy::service::auth::v3::{CheckRequest, CheckResponse};
use nuncio_api::prost::Message;
use nuncio_core::http::{FilterHalves, HeadLimits, HttpFilterFactory, RouteView, Version};
use nuncio_core::metadata::Metadata;
use nuncio_core::net::{Address, ConnectionInfo};
use nuncio_core::stream_info::StreamInfo;
use nuncio_core::upstream::AsyncFailure;
use std::any::Any;
use std::time::{Duration, SystemTime};

use super::super::Factory;
use super::*;
use crate::testing::{World, grpc, http, message};

struct Bench {
    world: World,
    halves: FilterHalves,
    levels: Vec<Arc<dyn Any + Send + Sync>>,
}

/// A route to the cluster `b`.
struct Route(Vec<Arc<dyn Any + Send + Sync>>);

impl RouteView for Route {
    fn name(&self) -> &str {
        ""
    }

    fn virtual_host_name(&self) -> &str {
        ""
    }

    fn cluster_name(&self) -> Option<&str> {
        Some("b")
    }

    fn metadata(&self) -> &Metadata {
        static NONE: Metadata = Metadata(std::collections::BTreeMap::new());
        &NONE
    }

    fn filter_configs(&self, filter: &str) -> &[Arc<dyn Any + Send + Sync>] {
        if filter == "f" { &self.0 } else { &[] }
    }

    fn filter_disabled(&self, _filter: &str) -> Option<bool> {
        None
    }
}

const GRPC: &str = "transport_api_version: V3, grpc_service: {envoy_grpc: {cluster_name: authz}}";

impl Bench {
    fn new(rest: &str, levels: &[&str]) -> Self {
        Self::with_keys(rest, levels, &[])
    }

    fn with_keys(rest: &str, levels: &[&str], keys: &[&'static str]) -> Self {
        let world = World::new(keys);
        let config: pb::ExtAuthz = message(&format!("{{{rest}}}"));
        let filter = world.configure(|context| Factory.create(&pack(&config), context)).unwrap();
        let level = |text: &&str| {
            let config: pb::ExtAuthzPerRoute = message(text);
            world.configure(|context| Factory.create_route_config(&pack(&config), context)).unwrap()
        };
        let levels = levels.iter().map(level).collect();
        let halves = filter.on_worker(&world.worker)();
        Self { world, halves, levels }
    }

    fn stream(&self) -> StreamControl {
        let start = SystemTime::UNIX_EPOCH + Duration::new(5, 7);
        let mut info = StreamInfo::new(start, Instant::now());
        (info.stream_id, info.protocol) = (42, Some(Version::Http11));
        let stream = StreamControl::new(info);
        let ip = |last: u8, port: u16| Address::Ip(([127, 0, 0, last], port).into());
        stream.state().connection.replace(Some(Rc::new(ConnectionInfo::new(1, ip(7, 1000), ip(1, 80)))));
        stream.state().route.replace(Some(Arc::new(Route(self.levels.clone()))));
        stream
    }

    /// Runs the request's half to its decision.
    async fn run(&mut self, head: &mut RequestHead, body: Option<&str>, stream: &StreamControl) -> Decision {
        let filter = self.halves.decode.as_mut().unwrap();
        let mut step = filter.decode_headers(head, body.is_none(), stream);
        loop {
            step = match step {
                Step::Later(wait) => filter.resume(wait.await, head, stream),
                Step::Now(Decision::NeedBody { limit, partial }) => {
                    let body = body.unwrap().as_bytes();
                    assert!(partial || body.len() <= limit, "the manager says 413");
                    stream.info_mut().bytes_received = body.len() as u64;
                    filter.decode_body(head, &mut body.to_vec(), body.len() <= limit, stream)
                }
                Step::Now(decision) => return decision,
            }
        }
    }

    /// What became of a plain request: `pass`, or status and details.
    async fn outcome(&mut self) -> String {
        let stream = self.stream();
        let decision = self.run(&mut head(&[]), None, &stream).await;
        told(&decision)
    }

    /// The last question.
    fn question(&self) -> CheckRequest {
        let asked = self.world.service.asked.borrow();
        CheckRequest::decode(asked.last().unwrap().1.body.slice(5..)).unwrap()
    }

    fn denied(&self, yaml: &str) {
        self.world.answer(grpc(&message::<CheckResponse>(yaml)));
    }
}

fn told(decision: &Decision) -> String {
    match decision {
        Decision::Continue => "pass".into(),
        Decision::Respond(reply) => {
            assert_eq!(reply.flag, Some(ResponseFlag::UnauthorizedExternalService));
            format!("{} {}", reply.status, reply.details)
        }
        Decision::NeedBody { .. } => "body".into(),
    }
}

fn head(more: &[(&str, &str)]) -> RequestHead {
    let fields = [(":method", "POST"), (":path", "/p?q=1"), (":authority", "web.test"), (":scheme", "http")];
    RequestHead { headers: fields.iter().chain(more).copied().collect(), ..RequestHead::default() }
}

// As Envoy 1.40 asked about the same request.
#[tokio::test(flavor = "local", start_paused = true)]
async fn the_question_is_the_one_that_envoy_asks() {
    let more = "with_request_body: {max_request_bytes: 10, allow_partial_message: true}, \
                bootstrap_metadata_labels_key: lab";
    let levels = [
        "{check_settings: {context_extensions: {level: vhost, v: '1'}}}",
        "{check_settings: {context_extensions: {level: route}}}",
    ];
    let mut bench = Bench::new(&format!("{GRPC}, {more}"), &levels);
    let stream = bench.stream();
    let fields = [("content-length", "11"), ("x-dup", "a"), ("x-dup", "b"), ("x-envoy-auth-partial-body", "lie")];
    let mut asked = head(&fields);
    asked.headers.append("x-bin", b"a\xffb");
    bench.denied("{status: {code: 0}}");
    assert_eq!(told(&bench.run(&mut asked, Some("01234567890"), &stream).await), "pass");
    let expected: CheckRequest = message(
        r#"attributes:
             source: {address: {socket_address: {address: 127.0.0.7, port_value: 1000}}}
             destination:
               address: {socket_address: {address: 127.0.0.1, port_value: 80}}
               labels: {app: x, n: ""}
             request:
               time: "1970-01-01T00:00:05.000000007Z"
               http:
                 id: "42"
                 method: POST
                 headers: {":method": POST, ":path": "/p?q=1", ":authority": web.test, ":scheme": http,
                   content-length: "11", x-dup: "a,b", x-bin: "a!b", x-envoy-auth-partial-body: "true"}
                 path: /p?q=1
                 host: web.test
                 scheme: http
                 size: 11
                 protocol: HTTP/1.1
                 body: "0123456789"
             context_extensions: {level: route, v: "1"}
             metadata_context: {}
             route_metadata_context: {}"#,
    );
    assert_eq!(bench.question(), expected);
    assert_eq!(bench.world.service.asked.borrow()[0].0, "authz");
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn what_is_no_clear_yes_is_a_no() {
    let mut bench = Bench::new(GRPC, &[]);
    for failure in [AsyncFailure::Timeout, AsyncFailure::UnknownCluster, AsyncFailure::Overflow] {
        bench.world.answer(Err(failure));
        assert_eq!(bench.outcome().await, "403 ext_authz_error");
    }
    bench.world.answer(http(200, &[("grpc-status", "0")], "garbage"));
    assert_eq!(bench.outcome().await, "403 ext_authz_error");
    // UNAVAILABLE inside an answer is an answer.
    bench.denied("{status: {code: 14}}");
    assert_eq!(bench.outcome().await, "403 ext_authz_denied");
    bench.denied("{status: {code: 13}, error_response: {status: {code: 502}, body: b}}");
    assert_eq!(bench.outcome().await, "502 ext_authz_error");
    let stats = ["error", "denied", "ok", "failure_mode_allowed"];
    let of = |scope: &str| stats.map(|name| bench.world.stat(&format!("{scope}.ext_authz.{name}")));
    assert_eq!(of("http.in"), [5, 1, 0, 0].map(Some));
    assert_eq!(of("cluster.b"), [Some(5), Some(1), None, None]);
    assert_eq!(bench.world.stat("cluster.b.upstream_rq_403"), Some(1));
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn an_error_may_be_let_through_and_marked_but_a_denial_not() {
    let mut bench = Bench::new(&format!("{GRPC}, failure_mode_allow: true, failure_mode_allow_header_add: true"), &[]);
    let stream = bench.stream();
    bench.world.answer(Err(AsyncFailure::NoHealthyHost));
    let mut asked = head(&[]);
    assert_eq!(told(&bench.run(&mut asked, None, &stream).await), "pass");
    assert_eq!(asked.headers.get_str("x-envoy-auth-failure-mode-allowed"), Some("true"));
    bench.denied("{status: {code: 7}}");
    assert_eq!(bench.outcome().await, "403 ext_authz_denied");
    let mut listed =
        Bench::with_keys(&format!("{GRPC}, failure_mode_allow: true"), &[], &["nuncio.ext_authz.error_status.14"]);
    listed.denied("{status: {code: 14}}");
    assert_eq!(listed.outcome().await, "pass");
    listed.denied("{status: {code: 7}}");
    assert_eq!(listed.outcome().await, "403 ext_authz_denied");
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn an_answer_that_would_split_a_message_is_refused_whatever_it_says() {
    let mut bench = Bench::new(GRPC, &[]);
    // In base64, because the loader would refuse them: "a\r\nb: c" and "a\nb".
    for answer in [
        r#"{ok_response: {headers: [{header: {key: x, raw_value: "YQ0KYjogYw=="}}]}}"#,
        r#"{ok_response: {response_headers_to_add: [{header: {key: x, raw_value: "YQ0KYjogYw=="}}]}}"#,
        r#"{ok_response: {headers: [{header: {key: "x y", value: a}}]}}"#,
        r#"{status: {code: 7}, denied_response: {headers: [{header: {key: x, raw_value: "YQpi"}}]}}"#,
    ] {
        bench.denied(answer);
        assert_eq!(bench.outcome().await, "500 ext_authz_invalid", "{answer}");
    }
    assert_eq!(bench.world.stat("http.in.ext_authz.invalid"), Some(4));
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn routes_and_switches_decide_whether_there_is_a_check() {
    let mut off = Bench::new(GRPC, &["{disabled: true}"]);
    assert_eq!(off.outcome().await, "pass");
    let none = "filter_enabled: {default_value: {numerator: 0}}";
    let mut bench = Bench::new(&format!("{GRPC}, {none}"), &[]);
    assert_eq!(bench.outcome().await, "pass");
    let deny = "deny_at_disable: {default_value: {value: true}, runtime_key: x}, status_on_error: {code: 500}";
    let deny = deny.replace("{value: true}", "true");
    let mut bench = Bench::new(&format!("{GRPC}, {none}, {deny}"), &[]);
    assert_eq!(bench.outcome().await, "500 ext_authz_error");
    assert_eq!(bench.world.stat("http.in.ext_authz.disabled"), Some(1));
    for (keys, expected) in [(&[][..], "pass"), (&["nuncio.ext_authz.check_without_route"], "403 ext_authz_denied")] {
        let mut bench = Bench::with_keys(GRPC, &[], keys);
        bench.denied("{status: {code: 7}}");
        let stream = bench.stream();
        stream.state().route.replace(None);
        assert_eq!(told(&bench.run(&mut head(&[]), None, &stream).await), expected);
    }
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn a_tunnel_never_waits_for_a_body() {
    let mut bench = Bench::new(&format!("{GRPC}, with_request_body: {{max_request_bytes: 10}}"), &[]);
    let stream = bench.stream();
    let mut upgrade = head(&[("upgrade", "websocket"), ("connection", "keep-alive, Upgrade")]);
    // CONNECT has no path: told as an empty one.
    let connect = [(":method", "CONNECT"), (":authority", "h:1")];
    let mut connect = RequestHead { headers: connect.into_iter().collect(), ..RequestHead::default() };
    for head in [&mut upgrade, &mut connect] {
        bench.denied("{status: {code: 7}}");
        let step = bench.halves.decode.as_mut().unwrap().decode_headers(head, false, &stream);
        let Step::Later(wait) = step else { panic!("waits for a body") };
        let step = bench.halves.decode.as_mut().unwrap().resume(wait.await, head, &stream);
        let Step::Now(decision) = step else { panic!("decided") };
        assert_eq!(told(&decision), "403 ext_authz_denied");
    }
    assert_eq!(bench.question().attributes.unwrap().request.unwrap().http.unwrap().path, "");
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn a_megabyte_of_headers_is_told_whole() {
    let mut bench = Bench::new(GRPC, &[]);
    let stream = bench.stream();
    let mut asked = head(&[]);
    (0..64).for_each(|i| asked.headers.append(format!("x-{i}"), vec![0xfe; 16 << 10]));
    bench.denied("{status: {code: 0}}");
    assert_eq!(told(&bench.run(&mut asked, None, &stream).await), "pass");
    let headers = bench.question().attributes.unwrap().request.unwrap().http.unwrap().headers;
    assert_eq!(headers["x-63"], "!".repeat(16 << 10));
}

// The client goes away: the future is dropped, and with it the call.
#[tokio::test(flavor = "local", start_paused = true)]
async fn a_stream_that_ends_during_the_check_leaves_nothing_behind() {
    let mut bench = Bench::new(GRPC, &[]);
    let stream = bench.stream();
    let filter = bench.halves.decode.as_mut().unwrap();
    let Step::Later(wait) = filter.decode_headers(&mut head(&[]), true, &stream) else { panic!("waits") };
    drop(wait);
    filter.reset();
    bench.denied("{status: {code: 7}}");
    assert_eq!(bench.outcome().await, "403 ext_authz_denied");
}

// Recorded from Envoy 1.40.
#[tokio::test(flavor = "local", start_paused = true)]
async fn an_http_service_is_asked_by_the_request_itself() {
    let response = "allowed_upstream_headers: {patterns: [{prefix: x-up}]}, \
                    allowed_upstream_headers_to_append: {patterns: [{prefix: x-app}]}, \
                    allowed_client_headers: {patterns: [{prefix: x-cl}]}, \
                    allowed_client_headers_on_success: {patterns: [{prefix: x-ok}]}, \
                    dynamic_metadata_from_headers: {patterns: [{prefix: x-md}]}";
    let service = format!(
        "transport_api_version: V3, http_service: {{server_uri: {{uri: 'http://a', cluster: h, timeout: 0.5s}}, \
         path_prefix: /pre, authorization_request: {{headers_to_add: [{{key: x-add, value: '%REQ(x-a)%'}}]}}, \
         authorization_response: {{{response}}}}}, allowed_headers: {{patterns: [{{prefix: x-}}]}}"
    );
    let mut bench = Bench::new(&service, &[]);
    let stream = bench.stream();
    let fields = [
        ("x-a", "1"),
        ("x-a", "2"),
        ("x-up-0", "orig"),
        ("x-app-0", "orig"),
        ("authorization", "z"),
        ("cookie", "c"),
        ("content-length", "5"),
    ];
    let answered = [
        ("x-up-0", "new"),
        ("x-up-1", "a"),
        ("x-up-1", "b"),
        ("x-app-0", "more"),
        ("x-ok-0", "ok"),
        ("x-md-1", "md"),
        ("x-other", "o"),
        ("x-envoy-auth-headers-to-remove", "cookie, x-a"),
    ];
    let mut asked = head(&fields);
    bench.world.answer(http(200, &answered, "ignored"));
    assert_eq!(told(&bench.run(&mut asked, None, &stream).await), "pass");
    let question = bench.world.service.asked.borrow()[0].1.clone();
    let mut got: Vec<String> =
        question.head.headers.iter().map(|(n, v)| format!("{}: {}", n.escape_ascii(), v.escape_ascii())).collect();
    got.sort();
    let expected = [
        ":authority: web.test",
        ":method: POST",
        ":path: /pre/p?q=1",
        ":scheme: http",
        "authorization: z",
        "x-a: 1,2",
        "x-add: 1",
        "x-app-0: orig",
        "x-up-0: orig",
    ];
    assert_eq!(
        (got, question.timeout, question.send_xff),
        (expected.map(str::to_owned).to_vec(), Some(Duration::from_millis(500)), false)
    );
    let told_upstream = format!("{:?}", asked.headers);
    assert!(told_upstream.contains("x-up-0: new") && told_upstream.contains("x-up-1: b"), "{told_upstream}");
    assert!(!told_upstream.contains("x-a:") && !told_upstream.contains("cookie") && !told_upstream.contains("x-other"));
    assert_eq!(asked.headers.get_all("x-app-0").collect::<Vec<_>>(), [b"orig", b"more"]);
    let mut response = ResponseHead::new(200);
    let _ = bench.halves.encode.as_mut().unwrap().encode_headers(&mut response, true, &stream);
    assert_eq!(response.headers.get_str("x-ok-0"), Some("ok"));
    let metadata = stream.info().dynamic_metadata.clone();
    let kept = metadata.get("f", &["x-md-1"]).and_then(|value| value.kind.clone());
    assert_eq!(kept, Some(Kind::StringValue("md".into())));
    for (status, expected) in
        [(201, "201 ext_authz_denied"), (302, "302 ext_authz_denied"), (503, "403 ext_authz_error")]
    {
        bench.world.answer(http(status, &[("x-cl-0", "cl"), ("location", "/l"), ("x-other", "o")], "body"));
        let stream = bench.stream();
        let decision = bench.run(&mut head(&[]), None, &stream).await;
        assert_eq!(told(&decision), expected);
        if let Decision::Respond(reply) = decision
            && status != 503
        {
            let names: Vec<_> = reply.headers.iter().map(|(name, _)| &**name).collect();
            assert_eq!((names, &*reply.body), (vec!["x-cl-0", "location"], &b"body"[..]));
        }
    }
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn in_shadow_mode_the_decision_is_only_written_down() {
    let mut bench = Bench::new(&format!("{GRPC}, shadow_mode: true"), &[]);
    let stream = bench.stream();
    bench.denied(
        r#"{status: {code: 7}, denied_response: {status: {code: 401}, headers: [{header: {key: x-d, value: "1"}}]}}"#,
    );
    assert_eq!(told(&bench.run(&mut head(&[]), None, &stream).await), "pass");
    let decision = stream.info().filter_state.get("f.shadow").and_then(|object| object.text());
    let expected = r#"{"checkResult":"DENIED","statusCode":401,"responseHeaders":[{"key":"x-d","value":"1"}]}"#;
    assert_eq!(decision.as_deref(), Some(expected));
    assert_eq!(bench.world.stat("http.in.ext_authz.shadow_denied"), Some(1));
}

/// An answer that allows with `count` fields of `size` bytes in the list `field`.
fn with_fields(field: &str, count: usize, size: usize, more: &str) -> String {
    let value = "v".repeat(size);
    let fields: Vec<_> = (0..count).map(|i| format!("{{header: {{key: x-{i:03}, value: {value}}}}}")).collect();
    format!("{{status: {{code: 0}}, ok_response: {{{field}: [{}]{more}}}}}", fields.join(", "))
}

// Read off Envoy 1.40, which counts pseudo headers too and looks before it removes.
#[tokio::test(flavor = "local", start_paused = true)]
async fn an_answer_cannot_make_a_request_larger_than_a_client_may() {
    let removed: Vec<_> = (0..97).map(|i| format!("x-{i:03}")).collect();
    let removed = format!(", headers_to_remove: [{}]", removed.join(", "));
    let query = ", query_parameters_to_set: [{key: a, value: ".to_owned() + &"v".repeat(9000) + "}]";
    let cases = [
        (96, 1, "", "pass"),
        (97, 1, "", "500 ext_authz_invalid"),
        (97, 1, &*removed, "500 ext_authz_invalid"),
        (8, 1000, "", "pass"),
        (9, 1000, "", "500 ext_authz_invalid"),
        (1, 1, &*query, "500 ext_authz_invalid"),
    ];
    for (count, size, more, expected) in cases {
        let mut bench = Bench::new(&format!("{GRPC}, failure_mode_allow: true"), &[]);
        bench.denied(&with_fields("headers", count, size, more));
        let mut asked = head(&[]);
        asked.limits = HeadLimits { fields: 100, bytes: 8192 };
        let stream = bench.stream();
        assert_eq!(told(&bench.run(&mut asked, None, &stream).await), expected, "{count} of {size}");
        let too_much = u64::from(expected != "pass");
        for name in ["invalid", "request_header_limits_reached"] {
            assert_eq!(bench.world.stat(&format!("http.in.ext_authz.{name}")), Some(too_much), "{name}");
        }
    }
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn an_answer_makes_responses_larger_than_an_upstream_may_unless_that_is_forbidden() {
    let limits = HeadLimits { fields: 100, bytes: 8192 };
    // With `:status` and one more field of the upstream's.
    let cases = [(98, 1, limits, true), (99, 1, limits, false), (9, 1000, limits, false)];
    let of_our_own = (150, 1, HeadLimits::default(), true);
    for (count, size, limits, fits) in cases.into_iter().chain([of_our_own]) {
        for (more, enforced) in [("", false), (", enforce_response_header_limits: true", true)] {
            let mut bench = Bench::new(&format!("{GRPC}{more}"), &[]);
            bench.denied(&with_fields("response_headers_to_add", count, size, ""));
            let stream = bench.stream();
            assert_eq!(told(&bench.run(&mut head(&[]), None, &stream).await), "pass");
            let mut response = ResponseHead { limits, ..ResponseHead::new(200) };
            response.headers.append("x-resp", "orig");
            let step = bench.halves.encode.as_mut().unwrap().encode_headers(&mut response, true, &stream);
            let Step::Now(decision) = step else { panic!("waits") };
            let expected = if fits || !enforced { "pass" } else { "500 ext_authz_invalid" };
            assert_eq!(told(&decision), expected, "{count} of {size}, enforced: {enforced}");
            let reached = bench.world.stat("http.in.ext_authz.response_header_limits_reached");
            assert_eq!(reached, Some(u64::from(expected != "pass")));
        }
    }
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn what_a_check_took_is_left_for_logs_by_whoever_asked_first() {
    let mut bench = Bench::new(&format!("{GRPC}, emit_filter_state_stats: true"), &[]);
    let stream = bench.stream();
    let filter = bench.halves.decode.as_mut().unwrap();
    for (wait, collisions) in [(3, 0), (5, 1)] {
        bench.world.answer(grpc(&CheckResponse::default()));
        let mut asked = head(&[]);
        let Step::Later(check) = filter.decode_headers(&mut asked, true, &stream) else { panic!("waits") };
        tokio::time::advance(Duration::from_millis(wait)).await;
        filter.resume(check.await, &mut asked, &stream);
        let cost = stream.info().filter_state.get("f").cloned().unwrap();
        assert_eq!((cost.field("latency_us"), cost.field("latency"), cost.text()), (Some("3000".into()), None, None));
        assert_eq!(bench.world.stat("http.in.ext_authz.filter_state_name_collision"), Some(collisions));
    }
}
