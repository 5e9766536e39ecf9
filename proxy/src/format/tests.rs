//! Every expected value was printed by Envoy 1.40 for such a stream, unless a test says otherwise.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use nuncio_api::pb::envoy::config::core::v3 as pb;
use nuncio_api::pb::google::protobuf::{ListValue, Struct, Value, value::Kind as ValueKind};
use nuncio_core::access_log::{LogContext, LogType};
use nuncio_core::http::{HeaderMap, RequestHead, ResponseHead, Version};
use nuncio_core::metadata::Metadata;
use nuncio_core::net::{Address, ConnectionInfo, PeerCertificate, TlsInfo};
use nuncio_core::random::Rng;
use nuncio_core::stream_info::{Attempt, FilterStateObject, ResponseFlag, StreamInfo};
use nuncio_core::upstream::{ClusterInfo, Host, HostSpec, Origin};
use tokio::time::Instant;

use super::*;

fn address(text: &str) -> Address {
    Address::Ip(text.parse().unwrap())
}

fn text_value(text: &str) -> Value {
    Value { kind: Some(ValueKind::StringValue(text.to_owned())) }
}

fn number_value(n: f64) -> Value {
    Value { kind: Some(ValueKind::NumberValue(n)) }
}

fn fields(list: &[(&str, Value)]) -> Struct {
    Struct { fields: list.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect() }
}

fn metadata(namespace: &str, list: &[(&str, Value)]) -> Metadata {
    let mut metadata = Metadata::default();
    metadata.merge(namespace, fields(list));
    metadata
}

/// A stream that went to an upstream and came back.
struct Stream {
    request: RequestHead,
    response: ResponseHead,
    info: StreamInfo,
    connection: ConnectionInfo,
    rng: Rng,
}

impl Stream {
    fn new() -> Self {
        let start = Instant::now();
        let mut info = StreamInfo::new(UNIX_EPOCH + Duration::from_micros(1_795_991_711_345_622), start);
        let ms = |n| Some(start + Duration::from_millis(n));
        info.protocol = Some(Version::Http11);
        info.upstream_protocol = Some(Version::Http11);
        info.response_code = Some(200);
        info.set_details("via_upstream");
        info.bytes_sent = 100_000;
        info.attempt_count = 1;
        info.timings.last_downstream_rx = ms(2);
        info.timings.last_upstream_tx = ms(3);
        info.timings.first_upstream_rx = ms(7);
        info.timings.last_downstream_tx = ms(9);
        info.timings.end = ms(11);
        let mut spec = HostSpec::new(address("127.0.0.1:45099"));
        spec.hostname = "host.b:99".into();
        let at = UNIX_EPOCH + Duration::from_millis(1_795_991_000_250);
        spec.origin = Some(Arc::new(Origin { who: "dns host.b".into(), version: Arc::default(), at }));
        spec.metadata = Arc::new(metadata("hns", &[("k", text_value("hv"))]));
        info.upstream_host = Some(Arc::new(Host::new(spec)));
        info.upstream_cluster = Some(Arc::new(ClusterInfo {
            name: "b".into(),
            observability_name: "b-alt".into(),
            metadata: metadata(
                "ns",
                &[
                    ("c", text_value("cv")),
                    ("big", number_value(12_345_678_901.0)),
                    ("f", number_value(1.5)),
                    ("n", Value { kind: Some(ValueKind::NullValue(0)) }),
                    ("e", number_value(1e30)),
                ],
            )
            .into(),
            ..ClusterInfo::default()
        }));
        info.upstream_local_address = Some(address("127.0.0.1:48392"));
        info.upstream_connection_id = Some(2);
        info.route_name = Some("my route".into());
        info.filter_chain_name = Some("fc".into());
        info.dynamic_metadata = metadata("d", &[("v", text_value("value")), ("n", number_value(123_456.0))]);
        let mut connection = ConnectionInfo::new(1, address("127.0.0.9:36696"), address("127.0.0.1:45443"));
        connection.listener_name = Some("lis".into());
        let request = [
            (":method", "GET"),
            (":scheme", "http"),
            (":authority", "web.test:80"),
            (":path", "/rewritten/x?q=1&r=a%20b+c&dup=1&dup=2&empty=&noval"),
            ("x-envoy-original-path", "/re/x?q=1&r=a%20b+c&dup=1&dup=2&empty=&noval"),
            ("x-a", "abcdef"),
            ("x-dup", "1"),
            ("x-dup", "2"),
            ("user-agent", "u"),
            ("x-request-id", "ecfeea66-b9ac-414b-b403-b7087445e726"),
        ];
        let mut response = ResponseHead::new(200);
        for (name, value) in [
            ("x-up", "u v"),
            ("x-up", "second"),
            ("content-type", "text/x"),
            ("content-length", "1"),
            ("x-envoy-upstream-service-time", "1"),
            ("date", "Sun, 29 Nov 2026 22:35:11 GMT"),
            ("server", "envoy"),
        ] {
            response.headers.append(name, value);
        }
        Self {
            request: RequestHead { headers: request.into_iter().collect(), ..RequestHead::default() },
            response,
            info,
            connection,
            rng: Rng::with_seed(1),
        }
    }

    /// A request that was refused before it had a head.
    fn refused() -> Self {
        let mut info = StreamInfo::new(UNIX_EPOCH, Instant::now());
        info.protocol = Some(Version::Http11);
        info.flags.insert(ResponseFlag::DownstreamProtocolError);
        info.response_code = Some(400);
        info.set_details("http1.codec_error");
        Self { info, request: RequestHead::default(), response: ResponseHead::new(400), ..Self::new() }
    }

    fn context(&self) -> LogContext<'_> {
        LogContext {
            request: Some(&self.request),
            response: Some(&self.response),
            connection: Some(&self.connection),
            log_type: LogType::DownstreamEnd,
            rng: Some(&self.rng),
            ..LogContext::new(&self.info)
        }
    }

    fn text(&self, format: &str) -> String {
        let mut out = Vec::new();
        Formatter::parse(format, false).unwrap().format(&self.context(), &mut out);
        String::from_utf8(out).unwrap()
    }

    fn command(&self, command: &str) -> String {
        self.text(&format!("%{command}%"))
    }

    fn json(&self, format: &str, omit: bool) -> String {
        let ValueKind::StructValue(fields) = from_json(&serde_json::from_str(format).unwrap()).kind.unwrap() else {
            panic!("not an object");
        };
        let mut out = Vec::new();
        JsonFormatter::new(&fields, omit, Extensions::default()).unwrap().format(&self.context(), &mut out);
        let text = String::from_utf8(out).unwrap();
        let line = text.strip_suffix('\n').unwrap();
        serde_json::from_str::<serde_json::Value>(line).unwrap();
        line.to_owned()
    }

    /// The value of a command in a JSON record.
    fn typed(&self, command: &str) -> String {
        let record = self.json(&serde_json::json!({ "k": format!("%{command}%") }).to_string(), false);
        record[5..record.len() - 1].to_owned()
    }
}

fn from_json(json: &serde_json::Value) -> Value {
    let kind = match json {
        serde_json::Value::Null => ValueKind::NullValue(0),
        serde_json::Value::Bool(b) => ValueKind::BoolValue(*b),
        serde_json::Value::Number(n) => ValueKind::NumberValue(n.as_f64().unwrap()),
        serde_json::Value::String(s) => ValueKind::StringValue(s.clone()),
        serde_json::Value::Array(list) => {
            ValueKind::ListValue(ListValue { values: list.iter().map(from_json).collect() })
        }
        serde_json::Value::Object(map) => {
            ValueKind::StructValue(Struct { fields: map.iter().map(|(k, v)| (k.clone(), from_json(v))).collect() })
        }
    };
    Value { kind: Some(kind) }
}

#[test]
fn commands_print_the_stream_as_text_and_typed() {
    let stream = Stream::new();
    for (command, text, typed) in [
        ("ACCESS_LOG_TYPE", "DownstreamEnd", "\"DownstreamEnd\""),
        ("BYTES_SENT", "100000", "100000"),
        ("BYTES_RETRANSMITTED", "0", "0"),
        ("CONNECTION_ID", "1", "1"),
        ("CONNECTION_TERMINATION_DETAILS", "-", "null"),
        ("CUSTOM_FLAGS", "", "\"\""),
        ("DOWNSTREAM_DETECTED_CLOSE_TYPE", "Normal", "\"Normal\""),
        ("DOWNSTREAM_DIRECT_LOCAL_ADDRESS", "127.0.0.1:45443", "\"127.0.0.1:45443\""),
        ("DOWNSTREAM_DIRECT_LOCAL_ADDRESS_ENDPOINT_ID", "", "\"\""),
        ("DOWNSTREAM_DIRECT_LOCAL_PORT", "45443", "45443"),
        ("DOWNSTREAM_REMOTE_ADDRESS", "127.0.0.9:36696", "\"127.0.0.9:36696\""),
        ("DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT", "127.0.0.9", "\"127.0.0.9\""),
        ("DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT(8)", "127.0.0.0/8", "\"127.0.0.0/8\""),
        ("DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT(x)", "127.0.0.9", "\"127.0.0.9\""),
        ("DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT(99)", "127.0.0.9/32", "\"127.0.0.9/32\""),
        ("DOWNSTREAM_TLS_VERSION", "-", "null"),
        ("DOWNSTREAM_PEER_CERT_V_START", "-", "null"),
        ("FILTER_CHAIN_NAME", "fc", "\"fc\""),
        ("GRPC_STATUS", "-", "null"),
        ("LISTENER_NAME", "lis", "\"lis\""),
        ("LOCAL_REPLY_BODY", "", "\"\""),
        ("PROTOCOL", "HTTP/1.1", "\"HTTP/1.1\""),
        ("REQUESTED_SERVER_NAME", "-", "null"),
        ("REQUESTED_SERVER_NAME(SNI_FIRST)", "web.test:80", "\"web.test:80\""),
        ("REQUESTED_SERVER_NAME(HOST_FIRST:ORIG)", "-", "null"),
        ("RESPONSE_CODE", "200", "200"),
        ("RESPONSE_CODE_DETAILS", "via_upstream", "\"via_upstream\""),
        ("RESPONSE_FLAGS", "-", "\"-\""),
        ("RESPONSE_HEADERS_BYTES", "134", "134"),
        ("RESPONSE_TRAILERS_BYTES", "0", "0"),
        ("ROUNDTRIP_DURATION", "-", "null"),
        ("ROUTE_NAME", "my route", "\"my route\""),
        ("START_TIME", "2026-11-29T22:35:11.345Z", "\"2026-11-29T22:35:11.345Z\""),
        ("START_TIME(%s)", "1795991711", "\"1795991711\""),
        ("STREAM_ID", "ecfeea66-b9ac-414b-b403-b7087445e726", "\"ecfeea66-b9ac-414b-b403-b7087445e726\""),
        ("TRACE_ID", "-", "null"),
        ("UPSTREAM_CLUSTER", "b-alt", "\"b-alt\""),
        ("UPSTREAM_CLUSTER_RAW", "b", "\"b\""),
        ("UPSTREAM_CONNECTION_ID", "2", "2"),
        ("UPSTREAM_CONNECTION_IDS_ATTEMPTED", "2", "\"2\""),
        ("UPSTREAM_HOST", "127.0.0.1:45099", "\"127.0.0.1:45099\""),
        ("UPSTREAM_HOST_NAME", "host.b:99", "\"host.b:99\""),
        ("UPSTREAM_HOST_NAME_WITHOUT_PORT", "host.b", "\"host.b\""),
        ("UPSTREAM_HOST_SOURCE", "dns host.b", "\"dns host.b\""),
        ("UPSTREAM_HOST_SOURCE_VERSION", "-", "null"),
        ("UPSTREAM_HOST_SOURCE_TIME", "2026-11-29T22:23:20.250Z", "\"2026-11-29T22:23:20.250Z\""),
        ("UPSTREAM_HOSTS_ATTEMPTED_WITHOUT_PORT", "127.0.0.1", "\"127.0.0.1\""),
        ("UPSTREAM_LOCAL_PORT", "48392", "48392"),
        ("UPSTREAM_REMOTE_ADDRESS", "127.0.0.1:45099", "\"127.0.0.1:45099\""),
        ("UPSTREAM_REQUEST_ATTEMPT_COUNT", "1", "1"),
        ("VIRTUAL_CLUSTER_NAME", "-", "null"),
    ] {
        assert_eq!((stream.command(command), stream.typed(command)), (text.to_owned(), typed.to_owned()), "{command}");
    }
}

#[test]
fn headers_have_alternatives_and_lengths_and_show_their_first_value() {
    let stream = Stream::new();
    for (command, text) in [
        ("REQ(X-A)", "abcdef"),
        ("REQ(x-none?x-a):3", "abc"),
        ("REQ(?x-a)", "abcdef"),
        ("REQ(x-dup)", "1"),
        ("REQUEST_HEADER(x-a):0", ""),
        ("REQ(host)", "web.test:80"),
        ("REQ(path)", "-"),
        ("REQ(:SCHEME)", "http"),
        ("RESP(x-up)", "u v"),
        ("RESP(:status)", "200"),
        ("RESP(x-no?:status)", "200"),
        ("TRAILER(x)", "-"),
    ] {
        assert_eq!(stream.command(command), text, "{command}");
    }
}

#[test]
fn paths_and_queries_come_from_the_original_path() {
    let stream = Stream::new();
    for (command, text) in [
        ("PATH", "/re/x?q=1&r=a%20b+c&dup=1&dup=2&empty=&noval"),
        ("PATH(NQ)", "/re/x"),
        ("PATH(NQ:PATH):3", "/re"),
        ("PATH(WQ:PATH)", "/rewritten/x?q=1&r=a%20b+c&dup=1&dup=2&empty=&noval"),
        ("QUERY_PARAM(q)", "1"),
        ("QUERY_PARAM(r)", "a b+c"),
        ("QUERY_PARAM(r):1", "a"),
        ("QUERY_PARAM(dup)", "1"),
        ("QUERY_PARAM(empty)", ""),
        ("QUERY_PARAM(noval)", ""),
        ("QUERY_PARAM(z)", "-"),
        ("QUERY_PARAMS:4", "q=1&"),
    ] {
        assert_eq!(stream.command(command), text, "{command}");
    }
    let mut bare = Stream::new();
    bare.request.headers = [(":path", "/dead")].into_iter().collect();
    assert_eq!(bare.text("%QUERY_PARAMS%|%PATH(WQ:ORIG)%"), "-|-");
}

#[test]
fn metadata_keeps_its_type_and_is_cut_only_as_text() {
    let stream = Stream::new();
    for (command, text, typed) in [
        ("CLUSTER_METADATA(ns:c)", "cv", "\"cv\""),
        (
            "CLUSTER_METADATA(ns)",
            r#"{"big":12345678901,"c":"cv","e":1e+30,"f":1.5,"n":null}"#,
            r#"{"big":12345678901,"c":"cv","e":1e+30,"f":1.5,"n":null}"#,
        ),
        ("CLUSTER_METADATA(ns:big)", "12345678901", "12345678901"),
        ("CLUSTER_METADATA(ns:n)", "-", "null"),
        ("CLUSTER_METADATA(ns:c:d)", "-", "null"),
        ("METADATA(CLUSTER:ns):5", r#"{"big"#, r#"{"big":12345678901,"c":"cv","e":1e+30,"f":1.5,"n":null}"#),
        ("METADATA(CLUSTER:ns:c):1", "c", "\"c\""),
        ("METADATA(UPSTREAM_HOST:hns)", r#"{"k":"hv"}"#, r#"{"k":"hv"}"#),
        ("METADATA(LISTENER:x)", "-", "null"),
        ("DYNAMIC_METADATA(d:n):2", "12", "123456"),
        ("DYNAMIC_METADATA(d:v):3", "val", "\"val\""),
        ("DYNAMIC_METADATA(a:b)", "-", "null"),
    ] {
        assert_eq!((stream.command(command), stream.typed(command)), (text.to_owned(), typed.to_owned()), "{command}");
    }
}

#[test]
fn durations_are_whole_milliseconds_or_as_asked() {
    let stream = Stream::new();
    assert_eq!(
        stream.text("%DURATION% %REQUEST_DURATION% %REQUEST_TX_DURATION% %RESPONSE_DURATION% %RESPONSE_TX_DURATION%"),
        "11 2 3 7 2"
    );
    assert_eq!(
        stream.text("%COMMON_DURATION(DS_RX_BEG:DS_RX_END)% %COMMON_DURATION(DS_RX_BEG:DS_TX_END:us)% %COMMON_DURATION(DS_RX_END:US_TX_END:ns)%"),
        "2 9000 1000000"
    );
    assert_eq!(stream.text("%COMMON_DURATION(DS_TX_END:DS_RX_BEG:ns)% %COMMON_DURATION(DS_RX_BEG:nope:us)%"), "- -");
}

#[test]
fn the_default_format_is_that_of_envoy() {
    let mut stream = Stream::new();
    stream.info.bytes_sent = 1;
    assert_eq!(
        stream.text(DEFAULT_FORMAT),
        "[2026-11-29T22:35:11.345Z] \"GET /re/x?q=1&r=a%20b+c&dup=1&dup=2&empty=&noval HTTP/1.1\" 200 - 0 1 11 1 \"-\" \
         \"u\" \"ecfeea66-b9ac-414b-b403-b7087445e726\" \"web.test:80\" \"127.0.0.1:45099\"\n"
    );
}

#[test]
fn a_tcp_session_has_no_heads() {
    let mut stream = Stream::new();
    stream.info.protocol = None;
    stream.info.response_code = None;
    stream.info.response_code_details = None;
    (stream.info.bytes_received, stream.info.bytes_sent) = (18, 103_461);
    stream.info.uuid = Some(*b"1747f594-29e8-402f-bbf5-35069ad988ba");
    let context = LogContext {
        connection: Some(&stream.connection),
        log_type: LogType::TcpConnectionEnd,
        ..LogContext::new(&stream.info)
    };
    let mut out = Vec::new();
    Formatter::parse(DEFAULT_FORMAT, false).unwrap().format(&context, &mut out);
    assert_eq!(
        String::from_utf8_lossy(&out),
        "[2026-11-29T22:35:11.345Z] \"- - -\" 0 - 18 103461 11 - \"-\" \"-\" \"-\" \"-\" \"127.0.0.1:45099\"\n"
    );
    out.clear();
    let text = "%STREAM_ID% %ACCESS_LOG_TYPE% %REQUEST_HEADERS_BYTES% %GRPC_STATUS% %PATH% %QUERY_PARAMS%";
    Formatter::parse(text, false).unwrap().format(&context, &mut out);
    assert_eq!(String::from_utf8_lossy(&out), "1747f594-29e8-402f-bbf5-35069ad988ba TcpConnectionEnd 0 - - -");
}

#[test]
fn a_refused_request_has_defaults() {
    let stream = Stream::refused();
    assert_eq!(
        stream.text("%RESPONSE_CODE% %RESPONSE_FLAGS% %RESPONSE_FLAGS_LONG% %UPSTREAM_HOST% %UPSTREAM_CONNECTION_ID% %UPSTREAM_REQUEST_ATTEMPT_COUNT% %PATH% %RESP(:status)%"),
        "400 DPE DownstreamProtocolError - 0 0 - 400"
    );
}

#[test]
fn failures_have_underscores_and_retries_leave_their_hosts() {
    let mut stream = Stream::new();
    stream.info.upstream_transport_failure = Some("delayed_connect_error: Connection refused".into());
    stream.info.set_details("upstream_reset{remote connection failure|x y}");
    assert_eq!(stream.command("UPSTREAM_TRANSPORT_FAILURE_REASON"), "delayed_connect_error:_Connection_refused");
    assert_eq!(stream.command("RESPONSE_CODE_DETAILS"), "upstream_reset{remote_connection_failure|x_y}");
    assert_eq!(
        stream.command("RESPONSE_CODE_DETAILS(ALLOW_WHITESPACES)"),
        "upstream_reset{remote connection failure|x y}"
    );
    let earlier = Arc::new(Host::new(HostSpec::new(address("[::1]:8080"))));
    stream.info.earlier_attempts.push(Attempt { host: earlier, connection_id: 7 });
    assert_eq!(stream.command("UPSTREAM_HOSTS_ATTEMPTED"), "[::1]:8080,127.0.0.1:45099");
    assert_eq!(stream.command("UPSTREAM_HOST_NAMES_ATTEMPTED_WITHOUT_PORT"), "[::1],host.b");
    assert_eq!(stream.command("UPSTREAM_CONNECTION_IDS_ATTEMPTED"), "7,2");
}

#[test]
fn grpc_statuses_come_from_trailers_head_or_http() {
    let mut stream = Stream::new();
    stream.request.headers.append("content-type", "application/grpc");
    let all = "%GRPC_STATUS% %GRPC_STATUS(SNAKE_STRING)% %GRPC_STATUS(NUMBER)% %GRPC_STATUS_NUMBER%";
    assert_eq!(stream.text(all), "Unknown UNKNOWN 2 2");
    for (status, printed) in [("1", "Canceled CANCELLED 1 1"), ("17", "17 17 17 17"), ("abc", "-1 -1 -1 -1")] {
        stream.response.headers.set("grpc-status", status);
        assert_eq!(stream.text(all), printed);
    }
    let trailers: HeaderMap = [("grpc-status", "5")].into_iter().collect();
    let context = LogContext { trailers: Some(&trailers), ..stream.context() };
    let mut out = Vec::new();
    Formatter::parse(all, false).unwrap().format(&context, &mut out);
    assert_eq!(out, b"NotFound NOT_FOUND 5 5");
    assert_eq!((stream.typed("GRPC_STATUS_NUMBER"), stream.typed("GRPC_STATUS")), ("-1".into(), "\"-1\"".into()));
}

/// Forms as Envoy documents them; it was not asked with certificates here.
#[test]
fn tls_facts_are_those_of_the_certificates() {
    let mut stream = Stream::new();
    let peer = PeerCertificate {
        subject: "CN=client,O=x".to_owned(),
        uri_sans: vec!["spiffe://a".to_owned(), "spiffe://b".to_owned()],
        not_before: 1_700_000_000,
        ..PeerCertificate::default()
    };
    stream.connection.tls = Some(TlsInfo {
        version: "TLSv1.3",
        cipher: "TLS_AES_128_GCM_SHA256",
        peer: Some(Arc::new(peer)),
        ..TlsInfo::default()
    });
    assert_eq!(stream.text("%DOWNSTREAM_TLS_VERSION% %DOWNSTREAM_TLS_CIPHER%"), "TLSv1.3 TLS_AES_128_GCM_SHA256");
    assert_eq!(stream.command("DOWNSTREAM_PEER_URI_SAN"), "spiffe://a,spiffe://b");
    assert_eq!(stream.text("%DOWNSTREAM_PEER_SUBJECT% %DOWNSTREAM_PEER_DNS_SAN%"), "CN=client,O=x -");
    assert_eq!(stream.command("DOWNSTREAM_PEER_CERT_V_START"), "2023-11-14T22:13:20.000Z");
    assert_eq!(stream.command("DOWNSTREAM_LOCAL_SUBJECT"), "-");
}

#[test]
fn server_names_are_sanitized() {
    for (name, printed) in [("ok.example_x-1", "ok.example_x-1"), ("a b\"c", "invalid:a_b_c"), ("é", "invalid:__")] {
        let mut stream = Stream::new();
        stream.connection.requested_server_name = Some(name.into());
        assert_eq!(stream.command("REQUESTED_SERVER_NAME"), printed);
    }
}

#[test]
fn the_first_value_of_a_list_of_commands_is_taken() {
    let stream = Stream::new();
    let one = r#"COALESCE({"operators":["REQUESTED_SERVER_NAME",{"command":"REQ","param":":authority"}]}):4"#;
    assert_eq!(stream.command(one), "web.");
    let two = r#"COALESCE({"operators":["UPSTREAM_TLS_CIPHER","RESPONSE_CODE"]})"#;
    assert_eq!((stream.command(two), stream.typed(two)), ("200".to_owned(), "200".to_owned()));
}

#[test]
fn unique_ids_differ_and_need_chance() {
    let stream = Stream::new();
    let (one, two) = (stream.command("UNIQUE_ID"), stream.command("UNIQUE_ID"));
    assert!(one.len() == 36 && one != two);
    let mut out = Vec::new();
    Formatter::parse("%UNIQUE_ID%", false).unwrap().format(&LogContext::new(&stream.info), &mut out);
    assert_eq!(out, b"-");
}

#[test]
fn a_socket_without_ports_has_none() {
    let mut stream = Stream::new();
    stream.connection.remote = Address::Pipe("/run/x".into());
    assert_eq!(
        (stream.command("DOWNSTREAM_REMOTE_PORT"), stream.typed("DOWNSTREAM_REMOTE_PORT")),
        ("".into(), "null".into())
    );
}

#[test]
fn json_records_keep_types_and_sort_keys() {
    let stream = Stream::new();
    assert_eq!(
        stream.json(
            r#"{"m":"<%REQ(x-a)%>","a":"%REQ(x-a)%","lit":"q\"\u0001é %%","none":null,"f":1.5,"big":12345678901234,
                "e":"","ee":"%REQ(no)%%REQ(no)%","l":[1,null,"%REQ(no)%","%RESPONSE_CODE%"],"mix":"%REQ(no)%-%REQ(no)%"}"#,
            false
        ),
        r#"{"a":"abcdef","big":12345678901234,"e":"","ee":"--","f":1.5,"l":[1,null,null,200],"lit":"q\"\u0001é %","m":"<abcdef>","mix":"---","none":null}"#
    );
    assert_eq!(
        stream
            .json(r#"{"l2":["%REQ(no)%"],"em":{},"el":[],"nest":{"a":{"b":"%REQ(no)%"}},"s":"%CUSTOM_FLAGS%"}"#, false),
        r#"{"el":[],"em":{},"l2":[null],"nest":{"a":{"b":null}},"s":""}"#
    );
    assert_eq!(stream.json("{}", false), "{}");
    assert_eq!(stream.json(r#"{"d":"x%DYNAMIC_METADATA(d)%"}"#, false), r#"{"d":"x{\"n\":123456,\"v\":\"value\"}"}"#);
}

#[test]
fn json_records_may_leave_out_what_is_missing() {
    let stream = Stream::new();
    assert_eq!(
        stream.json(
            r#"{"a":"%REQ(no)%","e":"","n":null,"st":{"x":"%REQ(no)%"},"l":["%REQ(no)%",1],"mix":"%REQ(no)%-%REQ(no)%",
                "two":"%REQ(no)%%REQ(no)%","lrb":"%LOCAL_REPLY_BODY%","env":"%ENVIRONMENT(NUNCIO_NOT_SET)%",
                "fl":"%RESPONSE_FLAGS%","up":"%UPSTREAM_HOST%"}"#,
            true
        ),
        r#"{"e":"","env":"-","fl":"-","l":[1],"lrb":"","mix":"-","two":"","up":"127.0.0.1:45099"}"#
    );
    assert_eq!(
        stream.json(
            r#"{"l2":["%REQ(no)%"],"em":{},"el":[],"nest":{"a":{"b":"%REQ(no)%"}},"ln":[{"a":"%REQ(no)%"},{},[]]}"#,
            true
        ),
        r#"{"el":[],"l2":[],"ln":[[]]}"#
    );
    assert_eq!(stream.json(r#"{"a":"%REQ(no)%"}"#, true), "{}");
}

#[test]
fn text_may_leave_out_what_is_missing() {
    let stream = Stream::refused();
    let text = "[%REQ(no)%|%RESPONSE_FLAGS%|%UPSTREAM_HOST%|%ENVIRONMENT(NUNCIO_NOT_SET)%|%LOCAL_REPLY_BODY%|%PROTOCOL%|%TRACE_ID%]";
    let mut out = Vec::new();
    Formatter::parse(text, true).unwrap().format(&stream.context(), &mut out);
    assert_eq!(String::from_utf8_lossy(&out), "[|DPE||-||HTTP/1.1|]");
}

#[test]
fn percent_signs_are_doubled() {
    let stream = Stream::new();
    assert_eq!(stream.text("100%% literal {not json} \"q\""), "100% literal {not json} \"q\"");
    assert_eq!(stream.text("%%%PROTOCOL%"), "%HTTP/1.1");
    assert_eq!(Formatter::parse("a%%b", false).unwrap().as_literal(), Some(&b"a%b"[..]));
}

#[test]
fn local_replies_may_hold_any_byte() {
    let stream = Stream::new();
    let context = LogContext { local_reply_body: b"tea\n\"pot\"", ..stream.context() };
    let formatter = Formatter::parse("<%LOCAL_REPLY_BODY%>", false).unwrap();
    let (mut body, mut line) = (Vec::new(), Vec::new());
    formatter.format_body(&context, &mut body);
    formatter.format(&context, &mut line);
    assert_eq!((&body[..], &line[..]), (&b"<tea\n\"pot\">"[..], &b"<tea\\n\"pot\">"[..]));
}

/// R53a: our own rule, stricter than Envoy's.
#[test]
fn hostile_values_stay_on_their_line() {
    let mut stream = Stream::new();
    let hostile = b"a\nb\r\x1b[31m\"\\\xff\0".repeat(5000);
    stream.request.headers.append("user-agent", "x");
    stream.request.headers.set("user-agent", &hostile);
    stream.request.headers.set(":path", &hostile);
    stream.info.dynamic_metadata = metadata("d", &[("v", text_value("a\nb\u{9b}"))]);
    stream.connection.requested_server_name = Some("a\nb\u{1b}[31m\"".into());
    let mut out = Vec::new();
    let format = DEFAULT_FORMAT.replace('\n', " %REQUESTED_SERVER_NAME% %REQ(USER-AGENT):9%\n");
    Formatter::parse(&format, false).unwrap().format(&stream.context(), &mut out);
    assert_eq!(out.iter().filter(|b| **b == b'\n').count(), 1);
    assert!(!out[..out.len() - 1].iter().any(|b| *b < 0x20 || *b == 0x7f));
    // The nine bytes that the operator allows, escaped.
    assert!(out.ends_with(b" a\\nb\\r\\x1b[31m\n"), "{}", String::from_utf8_lossy(&out[out.len() - 60..]));
    let record = stream.json(
        r#"{"a":"%REQ(user-agent)%","b":"x%REQ(:path):7%","c":"%DYNAMIC_METADATA(d:v)%","d":"%REQUESTED_SERVER_NAME%"}"#,
        false,
    );
    assert!(!record.bytes().any(|b| b < 0x20));
    let record: serde_json::Value = serde_json::from_str(&record).unwrap();
    // Text of JSON keeps what was said; that it stays in its quotes is what matters.
    assert_eq!(record["b"], "xa\nb\r\u{1b}[3");
    assert_eq!(record["d"], "invalid:a_b__31m_");
}

#[test]
fn wrong_formats_are_refused_in_envoys_words() {
    for (text, reason) in [
        ("%FOO%", "Not supported field in StreamInfo: FOO"),
        ("abc % def", "Incorrect configuration: abc % def. Couldn't find valid command at position 4"),
        ("%REQ%", "REQ requires parameters"),
        ("%REQ()%", "REQ requires parameters"),
        ("%REQ(a?b?c)%", "More than 1 alternative header specified in token: a?b?c"),
        ("%REQ(a b)%", "Invalid header configuration. Format string contains invalid characters."),
        ("%REQ(a):-1%", "Incorrect configuration: %REQ(a):-1%. Couldn't find valid command at position 0"),
        ("%REQ(a):%", "Incorrect configuration: %REQ(a):%. Couldn't find valid command at position 0"),
        ("%REQ(a)x%", "Incorrect configuration: %REQ(a)x%. Couldn't find valid command at position 0"),
        (
            "%REQ(a):18446744073709551616%",
            "Incorrect configuration: %REQ(a):18446744073709551616%. Couldn't find valid command at position 0",
        ),
        ("%REQ(a)%x)%", "Incorrect configuration: %REQ(a)%x)%. Couldn't find valid command at position 10"),
        ("%req(a)%", "Incorrect configuration: %req(a)%. Couldn't find valid command at position 0"),
        ("%PROTOCOL:5%", "PROTOCOL does not take any parameters or length"),
        ("%START_TIME(%n)%", "Invalid header configuration. Format string contains newline."),
        ("%GRPC_STATUS(x)%", "GrpcStatusFormatter only supports CAMEL_STRING, SNAKE_STRING or NUMBER. Got: x"),
        ("%GRPC_STATUS(NUMBER):3%", "GRPC_STATUS does not allow length to be specified."),
        ("%CLUSTER_METADATA(a):3%", "CLUSTER_METADATA does not allow length to be specified."),
        ("%FILTER_STATE%", "Invalid filter state configuration, key cannot be empty."),
        ("%FILTER_STATE(a:X)%", "Invalid filter state serialize type, only support PLAIN/TYPED/FIELD."),
        ("%FILTER_STATE(a:FIELD)%", "Invalid filter state serialize type, FIELD should be used with the field name."),
        ("%FILTER_STATE(a:PLAIN:b)%", "Invalid filter state serialize type, FIELD should be used with the field name."),
        ("%COMMON_DURATION(a)%", "Invalid common duration configuration: a."),
        ("%COMMON_DURATION(a:b:q)%", "Invalid common duration precision: q."),
        ("%METADATA(X:y)%", "X is not supported type of metadata"),
        ("%PATH(X)%", "Invalid PATH option: 'X', only 'WQ'/'NQ' are allowed"),
        (
            "%REQUESTED_SERVER_NAME(X)%",
            "Invalid REQUESTED_SERVER_NAME option: 'X', only 'SNI_ONLY'/'SNI_FIRST'/'HOST_FIRST' are allowed",
        ),
        ("%COALESCE({})%", "COALESCE: JSON configuration must contain 'operators' array"),
        (
            "%COALESCE({\"operators\":[\"FOO\"]})%",
            "COALESCE: failed to parse operator at index 0: unknown command: 'FOO'",
        ),
        ("%REQ_WITHOUT_QUERY(a)%", "Not supported field in StreamInfo: REQ_WITHOUT_QUERY"),
        ("%CEL(1)%", "%CEL% is not implemented"),
    ] {
        assert_eq!(Formatter::parse(text, false).unwrap_err().reason, reason, "{text}");
    }
    for text in [
        "%ENVIRONMENT(a)b)%",
        "%START_TIME(%3%)%",
        "%REQ(a?)%",
        "%PATH():5%",
        "%METADATA(ROUTE)%",
        "%FILTER_STATE(a:FIELD:b:c)%",
    ] {
        assert!(Formatter::parse(text, false).is_ok(), "{text}");
    }
}

/// What `emit_filter_state_stats` of ext_authz leaves is text in JSON, too.
#[test]
fn objects_of_the_filter_state_tell_their_text_and_their_fields() {
    struct Cost;
    impl FilterStateObject for Cost {
        fn text(&self) -> Option<String> {
            None
        }

        fn field(&self, name: &str) -> Option<String> {
            (name == "latency_us").then(|| "7905".to_owned())
        }
    }
    let mut stream = Stream::new();
    stream.info.filter_state.set("cost", Arc::new(Cost));
    stream.info.filter_state.set("name", Arc::new("a\"b".to_owned()));
    for (text, expected) in [
        ("%FILTER_STATE(cost)%", "-"),
        ("%FILTER_STATE(cost:PLAIN)%", "-"),
        ("%FILTER_STATE(cost:FIELD:latency_us)%", "7905"),
        ("%FILTER_STATE(cost:FIELD:other)%", "-"),
        ("%FILTER_STATE(none:FIELD:latency_us)%", "-"),
        ("%FILTER_STATE(name)%", r#""a\"b""#),
        ("%FILTER_STATE(name:PLAIN)%", "a\"b"),
    ] {
        assert_eq!(stream.text(text), expected, "{text}");
    }
}

#[test]
fn formats_come_from_their_messages() {
    use pb::substitution_format_string::Format as Choice;
    let stream = Stream::new();
    let source = |specifier| pb::SubstitutionFormatString {
        format: Some(Choice::TextFormatSource(pb::DataSource { specifier: Some(specifier), ..Default::default() })),
        formatters: vec![pb::TypedExtensionConfig {
            name: "any".to_owned(),
            typed_config: Some(nuncio_api::pb::google::protobuf::Any {
                type_url: "type.googleapis.com/envoy.extensions.formatter.req_without_query.v3.ReqWithoutQuery"
                    .to_owned(),
                value: vec![],
            }),
        }],
        ..Default::default()
    };
    let inline = source(pb::data_source::Specifier::InlineString("%REQ_WITHOUT_QUERY(x-no?:path):5%".to_owned()));
    let format = Format::from_proto(&inline).unwrap();
    let mut out = Vec::new();
    format.format(&stream.context(), &mut out);
    assert_eq!(out, b"/rewr");
    let missing = source(pb::data_source::Specifier::Filename("/nope".to_owned()));
    assert_eq!(
        Format::from_proto(&missing).unwrap_err().to_string(),
        "text_format_source.filename: Invalid path: /nope"
    );
    let json = pb::SubstitutionFormatString {
        format: Some(Choice::JsonFormat(fields(&[("a", fields_value(&[("b", text_value("%FOO%"))]))]))),
        ..Default::default()
    };
    assert_eq!(
        Format::from_proto(&json).unwrap_err().to_string(),
        "json_format.a.b: Not supported field in StreamInfo: FOO"
    );
}

/// Bodies of Envoy 1.40's local replies.
#[test]
fn bodies_have_their_content_type() {
    use pb::substitution_format_string::Format as Choice;
    let stream = Stream::new();
    let context = LogContext { local_reply_body: b"tea\npot", ..stream.context() };
    let json = fields(&[("code", text_value("%RESPONSE_CODE%")), ("msg", text_value("%LOCAL_REPLY_BODY%"))]);
    #[allow(deprecated)]
    let text = Choice::TextFormat("<%LOCAL_REPLY_BODY%|%RESPONSE_CODE%>".to_owned());
    for (format, content_type, body, kind) in [
        (text.clone(), "", "<tea\npot|200>", "text/plain"),
        (text, "text/html; charset=utf-8", "<tea\npot|200>", "text/html; charset=utf-8"),
        (Choice::JsonFormat(json), "", "{\"code\":200,\"msg\":\"tea\\npot\"}\n", "application/json"),
    ] {
        let message = pb::SubstitutionFormatString {
            format: Some(format),
            content_type: content_type.to_owned(),
            ..Default::default()
        };
        let format = BodyFormat::from_proto(&message).unwrap();
        let mut out = Vec::new();
        format.format(&context, &mut out);
        assert_eq!((String::from_utf8(out).unwrap().as_str(), format.content_type()), (body, kind));
    }
}

fn fields_value(list: &[(&str, Value)]) -> Value {
    Value { kind: Some(ValueKind::StructValue(fields(list))) }
}

fn option(name: &str, value: &str) -> pb::HeaderValueOption {
    pb::HeaderValueOption {
        header: Some(pb::HeaderValue { key: name.to_owned(), value: value.to_owned(), ..Default::default() }),
        ..Default::default()
    }
}

fn with_action(name: &str, value: &str, action: pb::header_value_option::HeaderAppendAction) -> pb::HeaderValueOption {
    pb::HeaderValueOption { append_action: action as i32, ..option(name, value) }
}

fn lines(headers: &HeaderMap) -> Vec<String> {
    headers.iter().map(|(n, v)| format!("{}: {}", String::from_utf8_lossy(n), String::from_utf8_lossy(v))).collect()
}

#[test]
fn mutations_see_the_head_as_it_was_and_overwrite_before_they_add() {
    use pb::header_value_option::HeaderAppendAction::{AddIfAbsent, OverwriteIfExists, OverwriteIfExistsOrAdd};
    let list = [
        option("e1", "%REQ(no)%"),
        pb::HeaderValueOption { keep_empty_value: true, ..option("e2", "%REQ(no)%") },
        option("e4", ""),
        with_action("aif", "A", AddIfAbsent),
        with_action("aif", "B", AddIfAbsent),
        with_action("owe", "O", OverwriteIfExists),
        with_action("owe2", "O", OverwriteIfExists),
        option("owlater", "first"),
        with_action("owlater", "second", OverwriteIfExistsOrAdd),
        option("see", "%REQ(owlater)%|%REQ(owe)%|%REQ(gone)%|%REQ(te)%"),
        option("lit", "a%%b"),
        option("UPPER", "%PROTOCOL%"),
        option("user-agent", "APP"),
        option("x-foo", "APP"),
    ];
    let mutations = HeaderMutations::new(&list, &["Gone".to_owned()]).unwrap();
    let stream = Stream::new();
    let mut head = RequestHead {
        headers: [
            ("user-agent", "orig"),
            ("x-foo", "orig"),
            ("owe", "1"),
            ("owe", "2"),
            ("gone", "g"),
            ("te", "trailers"),
        ]
        .into_iter()
        .collect(),
        ..RequestHead::default()
    };
    mutations.apply_to_request(&mut head, &stream.context(), &mut MutationValues::default());
    assert_eq!(
        lines(&head.headers),
        [
            "user-agent: orig,APP",
            "x-foo: orig",
            "owe: O",
            "te: trailers",
            "owlater: second",
            "e2: ",
            "aif: A",
            "aif: B",
            "owlater: first",
            "see: |1||trailers",
            "lit: a%b",
            "upper: HTTP/1.1",
            "x-foo: APP",
        ]
    );
}

#[test]
fn responses_join_their_own_headers() {
    let list =
        [option("content-type", "APP"), option("set-cookie", "APP"), option("x-code", "%RESPONSE_CODE% %RESP(x-up)%")];
    let stream = Stream::new();
    let mut head = ResponseHead::new(200);
    head.headers = [("content-type", "text/x"), ("set-cookie", "a"), ("x-up", "u1")].into_iter().collect();
    let mut values = MutationValues::default();
    HeaderMutations::new(&list, &[]).unwrap().apply_to_response(&mut head, &stream.context(), &mut values);
    assert_eq!(
        lines(&head.headers),
        ["content-type: text/x,APP", "set-cookie: a", "x-up: u1", "set-cookie: APP", "x-code: 200 u1"]
    );
}

#[test]
fn mutations_leave_the_request_line_alone() {
    for name in [":path", "host", "Host", ":authority"] {
        let error = HeaderMutations::new(&[option(name, "x")], &[]).unwrap_err();
        assert_eq!(error.reason, ":-prefixed or host headers may not be modified");
        let error = HeaderMutations::new(&[], &[name.to_owned()]).unwrap_err();
        assert_eq!(error.reason, ":-prefixed or host headers may not be removed");
    }
    #[allow(deprecated)]
    let both = pb::HeaderValueOption {
        append: Some(nuncio_api::pb::google::protobuf::BoolValue { value: true }),
        ..with_action("x", "y", pb::header_value_option::HeaderAppendAction::OverwriteIfExistsOrAdd)
    };
    assert!(HeaderMutations::new(&[both], &[]).unwrap_err().reason.starts_with("Both append and append_action"));
}
