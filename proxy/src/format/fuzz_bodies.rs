//! What must hold for any format and any value, as a plain function: `proxy/fuzz` feeds it with
//! what a fuzzer finds, and a test with the corpus there and with mutations of that corpus.

use std::sync::Arc;
use std::time::UNIX_EPOCH;

use nuncio_api::pb::envoy::config::core::v3::{HeaderValue, HeaderValueOption};
use nuncio_api::pb::google::protobuf::{ListValue, Struct, Value, value::Kind};
use nuncio_core::access_log::LogContext;
use nuncio_core::http::{RequestHead, ResponseHead};
use nuncio_core::net::{Address, ConnectionInfo};
use nuncio_core::stream_info::StreamInfo;
use tokio::time::Instant;

use super::{Extensions, Formatter, HeaderMutations, JsonFormatter, MutationValues};

/// The first line of `data` is a format, the rest a value that peers put everywhere. Whatever they
/// are, the text has the control characters of the format and no others, JSON is valid and one
/// line, and a header made of it is legal.
pub fn format(data: &[u8]) {
    let at = data.iter().position(|b| *b == b'\n').unwrap_or(data.len());
    let Ok(text) = std::str::from_utf8(&data[..at]) else { return };
    let Ok(formatter) = Formatter::parse(text, false) else { return };
    let stream = Stream::new(data.get(at + 1..).unwrap_or_default());
    let context = stream.context();

    let mut out = Vec::new();
    formatter.format(&context, &mut out);
    assert!(controls(&out) <= controls(text.as_bytes()), "{text:?} printed {:?}", out.escape_ascii());

    let value = Value { kind: Some(Kind::StringValue(text.to_owned())) };
    let list = Value { kind: Some(Kind::ListValue(ListValue { values: vec![value.clone()] })) };
    let fields = [("k", value.clone()), (text, value), ("l", list)].map(|(k, v)| (k.to_owned(), v));
    for omit in [false, true] {
        let fields = Struct { fields: fields.clone().into() };
        let json = JsonFormatter::new(&fields, omit, Extensions::default()).expect("the text is a format");
        out.clear();
        json.format(&context, &mut out);
        let line = out.strip_suffix(b"\n").expect("a record ends its line");
        assert_eq!(controls(line), 0, "{text:?} printed {:?}", line.escape_ascii());
        serde_json::from_slice::<serde_json::Value>(line).expect("a record is valid JSON");
    }
    header(text, &stream);
}

fn header(text: &str, stream: &Stream) {
    let option = HeaderValueOption {
        header: Some(HeaderValue { key: "x".to_owned(), value: text.to_owned(), ..HeaderValue::default() }),
        ..HeaderValueOption::default()
    };
    let mutations = HeaderMutations::new(&[option], &[]).expect("the text is a format");
    let mut head = RequestHead::default();
    mutations.apply_to_request(&mut head, &stream.context(), &mut MutationValues::default());
    if !text.contains('\r') && !text.contains('\0') {
        let value = head.headers.get("x").unwrap_or_default();
        assert!(!value.iter().any(|b| matches!(b, b'\r' | b'\n' | 0)), "{text:?} made {:?}", value.escape_ascii());
    }
}

fn controls(text: &[u8]) -> usize {
    text.iter().filter(|b| matches!(b, 0..=8 | 10..=31 | 127)).count()
}

/// A stream whose every text is one value.
struct Stream {
    request: RequestHead,
    response: ResponseHead,
    info: StreamInfo,
    connection: ConnectionInfo,
}

impl Stream {
    fn new(value: &[u8]) -> Self {
        let text = String::from_utf8_lossy(value).into_owned();
        let mut info = StreamInfo::new(UNIX_EPOCH, Instant::now());
        info.set_details(text.clone());
        info.route_name = Some(text.as_str().into());
        info.upstream_transport_failure = Some(text.clone().into());
        info.filter_state.set("k", Arc::new(text.clone()));
        let string = Value { kind: Some(Kind::StringValue(text.clone())) };
        info.dynamic_metadata.merge("ns", Struct { fields: [("k".to_owned(), string)].into() });
        let address = Address::Pipe(text.as_str().into());
        let mut connection = ConnectionInfo::new(1, address.clone(), address);
        connection.requested_server_name = Some(text.as_str().into());
        connection.termination_details.replace(Some(text));
        let mut request = RequestHead::default();
        let mut response = ResponseHead::new(200);
        for name in [":path", ":authority", "x-a", "x-request-id", "user-agent"] {
            request.headers.append(name, value);
            response.headers.append(name, value);
        }
        Self { request, response, info, connection }
    }

    fn context(&self) -> LogContext<'_> {
        LogContext {
            request: Some(&self.request),
            response: Some(&self.response),
            connection: Some(&self.connection),
            ..LogContext::new(&self.info)
        }
    }
}
