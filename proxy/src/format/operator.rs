//! What commands name, and how each is written: the command table of Envoy 1.40.
//!
//! Longer than the house's 500 lines: it is one list, and reads best as one.

use nuncio_core::matcher::header::lookup_name;

use super::Command;
use super::date::DateFormat;

/// Commands that formatter extensions of the configuration add.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Extensions {
    pub req_without_query: bool,
}

/// What is printed.
#[derive(Debug)]
pub(super) enum Operator {
    Header(HeaderOperator),
    Path {
        query: bool,
        from: PathSource,
    },
    QueryParameter(Box<[u8]>),
    QueryParameters {
        decoded: bool,
    },
    ServerName {
        order: NameOrder,
        host: HostSource,
    },
    Time {
        moment: TimeSource,
        format: DateFormat,
    },
    Count(Count),
    Interval(Interval),
    CommonDuration {
        from: Moment,
        to: Moment,
        unit: Unit,
    },
    ResponseFlags {
        long: bool,
    },
    GrpcStatus(StatusForm),
    CodeDetails {
        spaces: bool,
    },
    Address {
        of: Endpoint,
        part: AddressPart,
    },
    Certificate {
        upstream: bool,
        local: bool,
        field: CertificateField,
    },
    Tls {
        upstream: bool,
        field: TlsField,
    },
    Metadata {
        of: MetadataSource,
        namespace: Box<str>,
        path: Box<[String]>,
    },
    FilterState {
        name: Box<str>,
        form: FilterStateForm,
    },
    Text(Text),
    /// Known when the configuration was read.
    Fixed(Box<[u8]>),
    /// The first that has a value.
    Coalesce(Box<[Command]>),
    /// What this proxy never has: a trace.
    Absent,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HeaderSource {
    Request,
    Response,
    Trailers,
}

#[derive(Debug)]
pub(super) struct HeaderOperator {
    pub source: HeaderSource,
    pub name: Box<str>,
    pub alternative: Option<Box<str>>,
    pub without_query: bool,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum PathSource {
    Original,
    Current,
    OriginalOrCurrent,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum NameOrder {
    SniOnly,
    SniFirst,
    HostFirst,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum HostSource {
    Original,
    Current,
    OriginalOrCurrent,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum TimeSource {
    Start,
    /// Now.
    Emit,
    CertificateStart {
        upstream: bool,
    },
    CertificateEnd {
        upstream: bool,
    },
}

/// Numbers that always have a value.
#[derive(Debug, Clone, Copy)]
pub(super) enum Count {
    Zero,
    BytesReceived,
    BytesSent,
    DownstreamWireReceived,
    DownstreamWireSent,
    DownstreamHeaderReceived,
    DownstreamHeaderSent,
    UpstreamWireReceived,
    UpstreamWireSent,
    UpstreamHeaderReceived,
    UpstreamHeaderSent,
    RequestHeaders,
    ResponseHeaders,
    ResponseTrailers,
    ResponseCode,
    Attempts,
    ConnectionId,
    UpstreamConnectionId,
}

/// Milliseconds since the stream began, unless the name says otherwise.
#[derive(Debug, Clone, Copy)]
pub(super) enum Interval {
    Total,
    Request,
    RequestTx,
    Response,
    /// From the first byte of the upstream to the last byte to the client.
    ResponseTx,
    /// Since the connection began.
    Handshake,
    PoolReady,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Moment {
    Begin,
    RequestEnd,
    UpstreamCxBegin,
    UpstreamCxEnd,
    UpstreamHandshakeEnd,
    UpstreamTxBegin,
    UpstreamTxEnd,
    UpstreamRxBegin,
    UpstreamRxBodyBegin,
    UpstreamRxEnd,
    DownstreamTxBegin,
    DownstreamTxEnd,
    DownstreamCxBegin,
    DownstreamCxEnd,
    /// A name of its own, which a filter would set; none of ours does.
    Unknown,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Unit {
    Milliseconds,
    Microseconds,
    Nanoseconds,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum StatusForm {
    Camel,
    Snake,
    Number,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Endpoint {
    UpstreamLocal,
    UpstreamRemote,
    DownstreamLocal,
    DownstreamDirectLocal,
    DownstreamRemote,
    DownstreamDirectRemote,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum AddressPart {
    Whole,
    /// The address alone, or its network of that prefix length.
    WithoutPort(Option<u8>),
    Port,
    EndpointId,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum CertificateField {
    Subject,
    Issuer,
    Serial,
    Sha256,
    Sha1,
    Pem,
    UriSans,
    DnsSans,
    IpSans,
    EmailSans,
    OtherNameSans,
    ChainSha256,
    ChainSha1,
    ChainSerials,
    IssuerSha256,
    IssuerSerial,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum TlsField {
    Version,
    Cipher,
    Group,
    SessionId,
    ServerName,
}

/// How an object of the filter state is told.
#[derive(Debug)]
pub(super) enum FilterStateForm {
    Typed,
    Plain,
    Field(Box<str>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MetadataSource {
    Dynamic,
    Cluster,
    Route,
    UpstreamHost,
    Listener,
    FilterChain,
    VirtualHost,
}

/// What is told by a name or a sentence.
#[derive(Debug, Clone, Copy)]
pub(super) enum Text {
    Protocol,
    UpstreamProtocol,
    TerminationDetails,
    UpstreamHost,
    UpstreamHostName { port: bool },
    HostsAttempted { names: bool, port: bool },
    UpstreamHostSource,
    UpstreamHostSourceVersion,
    UpstreamHostSourceTime,
    ConnectionIdsAttempted,
    UpstreamCluster,
    UpstreamClusterRaw,
    UpstreamFailure,
    UpstreamCloseType,
    UpstreamCloseReason,
    DownstreamFailure,
    DownstreamCloseType,
    DownstreamCloseReason,
    RouteName,
    VirtualCluster,
    FilterChain,
    Listener,
    StreamId,
    UniqueId,
    LocalReplyBody,
    AccessLogType,
}

/// Reads one command. `max_length` is only checked here for being allowed.
pub(super) fn compile(
    name: &str,
    parameters: &str,
    max_length: Option<usize>,
    extensions: Extensions,
) -> Result<Operator, String> {
    if let Some(operator) = plain(name) {
        return if parameters.is_empty() && max_length.is_none() {
            Ok(operator)
        } else {
            Err(format!("{name} does not take any parameters or length"))
        };
    }
    let Some(syntax) = syntax(name, extensions) else {
        return Err(if NOT_IMPLEMENTED.contains(&name) {
            format!("%{name}% is not implemented")
        } else {
            format!("Not supported field in StreamInfo: {name}")
        });
    };
    if syntax.required && parameters.is_empty() {
        return Err(format!("{name} requires parameters"));
    }
    if !syntax.length && max_length.is_some() {
        return Err(format!("{name} does not allow length to be specified."));
    }
    with_parameters(name, parameters, extensions)
}

/// Commands of Envoy for which there is no source here.
const NOT_IMPLEMENTED: [&str; 8] = [
    "CEL",
    "TYPED_CEL",
    "DOWNSTREAM_CX_RTT",
    "ROUTE_RESOLUTION_COUNT",
    "ROUTE_RESOLUTION_TIME_US",
    "TLS_JA3_FINGERPRINT",
    "TLS_JA4_FINGERPRINT",
    "XFCC_VALUE",
];

struct Syntax {
    required: bool,
    length: bool,
}

fn syntax(name: &str, extensions: Extensions) -> Option<Syntax> {
    let (required, length) = match name {
        "REQ" | "REQUEST_HEADER" | "RESP" | "RESPONSE_HEADER" | "TRAILER" | "RESPONSE_TRAILER" | "STREAM_INFO_REQ"
        | "DYNAMIC_METADATA" | "ENVIRONMENT" | "QUERY_PARAM" => (true, true),
        "REQ_WITHOUT_QUERY" if extensions.req_without_query => (true, true),
        "CLUSTER_METADATA" | "UPSTREAM_METADATA" | "COMMON_DURATION" => (true, false),
        "COALESCE" => (true, true),
        "METADATA" | "FILTER_STATE" | "UPSTREAM_FILTER_STATE" | "PATH" | "QUERY_PARAMS" => (false, true),
        "START_TIME"
        | "START_TIME_LOCAL"
        | "EMIT_TIME"
        | "EMIT_TIME_LOCAL"
        | "DOWNSTREAM_PEER_CERT_V_START"
        | "DOWNSTREAM_PEER_CERT_V_END"
        | "UPSTREAM_PEER_CERT_V_START"
        | "UPSTREAM_PEER_CERT_V_END"
        | "REQUESTED_SERVER_NAME"
        | "RESPONSE_CODE_DETAILS"
        | "GRPC_STATUS" => (false, false),
        _ if name.strip_suffix("_ADDRESS_WITHOUT_PORT").and_then(endpoint).is_some() => (false, false),
        _ => return None,
    };
    Some(Syntax { required, length })
}

fn with_parameters(name: &str, parameters: &str, extensions: Extensions) -> Result<Operator, String> {
    let time = |moment, local| Ok(Operator::Time { moment, format: DateFormat::parse(parameters, local)? });
    match name {
        "REQ" | "REQUEST_HEADER" | "STREAM_INFO_REQ" => header(HeaderSource::Request, parameters, false),
        "REQ_WITHOUT_QUERY" => header(HeaderSource::Request, parameters, true),
        "RESP" | "RESPONSE_HEADER" => header(HeaderSource::Response, parameters, false),
        "TRAILER" | "RESPONSE_TRAILER" => header(HeaderSource::Trailers, parameters, false),
        "START_TIME" => time(TimeSource::Start, false),
        "START_TIME_LOCAL" => time(TimeSource::Start, true),
        "EMIT_TIME" => time(TimeSource::Emit, false),
        "EMIT_TIME_LOCAL" => time(TimeSource::Emit, true),
        "DOWNSTREAM_PEER_CERT_V_START" => time(TimeSource::CertificateStart { upstream: false }, false),
        "DOWNSTREAM_PEER_CERT_V_END" => time(TimeSource::CertificateEnd { upstream: false }, false),
        "UPSTREAM_PEER_CERT_V_START" => time(TimeSource::CertificateStart { upstream: true }, false),
        "UPSTREAM_PEER_CERT_V_END" => time(TimeSource::CertificateEnd { upstream: true }, false),
        "PATH" => path(parameters),
        "QUERY_PARAM" => Ok(Operator::QueryParameter(parameters.as_bytes().into())),
        "QUERY_PARAMS" => match parameters {
            "" | "ORIG" => Ok(Operator::QueryParameters { decoded: false }),
            "DECODED" => Ok(Operator::QueryParameters { decoded: true }),
            other => Err(format!("Invalid QUERY_PARAMS option: '{other}', only 'ORIG'/'DECODED' are allowed")),
        },
        "REQUESTED_SERVER_NAME" => server_name(parameters),
        "RESPONSE_CODE_DETAILS" => Ok(Operator::CodeDetails { spaces: parameters == "ALLOW_WHITESPACES" }),
        "GRPC_STATUS" => match parameters {
            "" | "CAMEL_STRING" => Ok(Operator::GrpcStatus(StatusForm::Camel)),
            "SNAKE_STRING" => Ok(Operator::GrpcStatus(StatusForm::Snake)),
            "NUMBER" => Ok(Operator::GrpcStatus(StatusForm::Number)),
            other => {
                Err(format!("GrpcStatusFormatter only supports CAMEL_STRING, SNAKE_STRING or NUMBER. Got: {other}"))
            }
        },
        "COMMON_DURATION" => common_duration(parameters),
        "DYNAMIC_METADATA" => Ok(metadata(MetadataSource::Dynamic, parameters)),
        "CLUSTER_METADATA" => Ok(metadata(MetadataSource::Cluster, parameters)),
        "UPSTREAM_METADATA" => Ok(metadata(MetadataSource::UpstreamHost, parameters)),
        "METADATA" => any_metadata(parameters),
        "FILTER_STATE" | "UPSTREAM_FILTER_STATE" => filter_state(name, parameters),
        "ENVIRONMENT" => Ok(environment(parameters)),
        "COALESCE" => coalesce(parameters, extensions),
        _ => {
            let of = name.strip_suffix("_ADDRESS_WITHOUT_PORT").and_then(endpoint);
            let of = of.ok_or_else(|| format!("Not supported field in StreamInfo: {name}"))?;
            // Envoy ignores what is no number.
            let prefix = parameters.parse::<u32>().ok().map(|p| p.min(128) as u8);
            Ok(Operator::Address { of, part: AddressPart::WithoutPort(prefix) })
        }
    }
}

fn header(source: HeaderSource, parameters: &str, without_query: bool) -> Result<Operator, String> {
    let mut names = parameters.split('?');
    let name = names.next().unwrap_or_default();
    let alternative = names.next().filter(|n| !n.is_empty());
    if names.next().is_some() {
        return Err(format!("More than 1 alternative header specified in token: {parameters}"));
    }
    if !is_header_name(name) || !alternative.is_none_or(is_header_name) {
        return Err("Invalid header configuration. Format string contains invalid characters.".to_owned());
    }
    let lookup = |name: &str| lookup_name(name).into_boxed_str();
    Ok(Operator::Header(HeaderOperator {
        source,
        name: lookup(name),
        alternative: alternative.map(lookup),
        without_query,
    }))
}

/// RFC 9110 token, after the colon of a pseudo header.
pub(super) fn is_header_name(name: &str) -> bool {
    let name = name.strip_prefix(':').unwrap_or(name);
    name.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
}

fn path(parameters: &str) -> Result<Operator, String> {
    let mut options = parameters.split(':');
    let query = match options.next().unwrap_or_default() {
        "" | "WQ" => true,
        "NQ" => false,
        other => return Err(format!("Invalid PATH option: '{other}', only 'WQ'/'NQ' are allowed")),
    };
    let from = match options.next().unwrap_or_default() {
        "" | "ORIG_OR_PATH" => PathSource::OriginalOrCurrent,
        "ORIG" => PathSource::Original,
        "PATH" => PathSource::Current,
        other => {
            return Err(format!("Invalid PATH option: '{other}', only 'ORIG'/'PATH'/'ORIG_OR_PATH' are allowed"));
        }
    };
    Ok(Operator::Path { query, from })
}

fn server_name(parameters: &str) -> Result<Operator, String> {
    let mut options = parameters.split(':');
    let order = match options.next().unwrap_or_default() {
        "" | "SNI_ONLY" => NameOrder::SniOnly,
        "SNI_FIRST" => NameOrder::SniFirst,
        "HOST_FIRST" => NameOrder::HostFirst,
        other => {
            return Err(format!(
                "Invalid REQUESTED_SERVER_NAME option: '{other}', only 'SNI_ONLY'/'SNI_FIRST'/'HOST_FIRST' are allowed"
            ));
        }
    };
    let host = match options.next().unwrap_or_default() {
        "" | "ORIG_OR_HOST" => HostSource::OriginalOrCurrent,
        "HOST" => HostSource::Current,
        "ORIG" => HostSource::Original,
        other => {
            return Err(format!(
                "Invalid REQUESTED_SERVER_NAME option: '{other}', only 'ORIG_OR_HOST'/'HOST'/'ORIG' are allowed"
            ));
        }
    };
    Ok(Operator::ServerName { order, host })
}

fn common_duration(parameters: &str) -> Result<Operator, String> {
    let fields: Vec<&str> = parameters.split(':').collect();
    let (from, to, unit) = match *fields {
        [from, to] => (from, to, "ms"),
        [from, to, unit] => (from, to, unit),
        _ => return Err(format!("Invalid common duration configuration: {parameters}.")),
    };
    let unit = match unit {
        "ms" => Unit::Milliseconds,
        "us" => Unit::Microseconds,
        "ns" => Unit::Nanoseconds,
        _ => return Err(format!("Invalid common duration precision: {unit}.")),
    };
    Ok(Operator::CommonDuration { from: moment(from), to: moment(to), unit })
}

fn moment(name: &str) -> Moment {
    match name {
        "DS_RX_BEG" => Moment::Begin,
        "DS_RX_END" => Moment::RequestEnd,
        "US_CX_BEG" => Moment::UpstreamCxBegin,
        "US_CX_END" => Moment::UpstreamCxEnd,
        "US_HS_END" => Moment::UpstreamHandshakeEnd,
        "US_TX_BEG" => Moment::UpstreamTxBegin,
        "US_TX_END" => Moment::UpstreamTxEnd,
        "US_RX_BEG" => Moment::UpstreamRxBegin,
        "US_RX_BODY_BEG" => Moment::UpstreamRxBodyBegin,
        "US_RX_END" => Moment::UpstreamRxEnd,
        "DS_TX_BEG" => Moment::DownstreamTxBegin,
        "DS_TX_END" => Moment::DownstreamTxEnd,
        "DS_CX_BEG" => Moment::DownstreamCxBegin,
        "DS_CX_END" => Moment::DownstreamCxEnd,
        _ => Moment::Unknown,
    }
}

fn metadata(of: MetadataSource, parameters: &str) -> Operator {
    let mut steps = parameters.split(':');
    let namespace = steps.next().unwrap_or_default().into();
    Operator::Metadata { of, namespace, path: steps.map(str::to_owned).collect() }
}

fn any_metadata(parameters: &str) -> Result<Operator, String> {
    let (kind, rest) = parameters.split_once(':').unwrap_or((parameters, ""));
    let of = match kind {
        "DYNAMIC" => MetadataSource::Dynamic,
        "CLUSTER" => MetadataSource::Cluster,
        "ROUTE" => MetadataSource::Route,
        "UPSTREAM_HOST" => MetadataSource::UpstreamHost,
        "LISTENER" => MetadataSource::Listener,
        "LISTENER_FILTER_CHAIN" => MetadataSource::FilterChain,
        "VIRTUAL_HOST" => MetadataSource::VirtualHost,
        _ => return Err(format!("{kind} is not supported type of metadata")),
    };
    Ok(metadata(of, rest))
}

fn filter_state(command: &str, parameters: &str) -> Result<Operator, String> {
    let mut fields = parameters.split(':');
    let name = fields.next().unwrap_or_default();
    let form = fields.next().unwrap_or_default();
    let field = fields.next().unwrap_or_default();
    if name.is_empty() {
        return Err("Invalid filter state configuration, key cannot be empty.".to_owned());
    }
    if !matches!(form, "" | "PLAIN" | "TYPED" | "FIELD") {
        return Err("Invalid filter state serialize type, only support PLAIN/TYPED/FIELD.".to_owned());
    }
    if (form == "FIELD") == field.is_empty() {
        return Err("Invalid filter state serialize type, FIELD should be used with the field name.".to_owned());
    }
    // Upstream connections and clusters leave no objects here.
    if command == "UPSTREAM_FILTER_STATE" {
        return Ok(Operator::Absent);
    }
    let form = match form {
        "FIELD" => FilterStateForm::Field(field.into()),
        "PLAIN" => FilterStateForm::Plain,
        _ => FilterStateForm::Typed,
    };
    Ok(Operator::FilterState { name: name.into(), form })
}

fn environment(name: &str) -> Operator {
    use std::os::unix::ffi::OsStringExt;
    // A name with `=` or NUL in it cannot exist, and asking for it would panic.
    let possible = !name.contains(['=', '\0']);
    let value = if possible { std::env::var_os(name) } else { None };
    Operator::Fixed(value.map_or(b"-".to_vec(), OsStringExt::into_vec).into())
}

fn coalesce(parameters: &str, extensions: Extensions) -> Result<Operator, String> {
    let config: serde_json::Value = serde_json::from_str(parameters)
        .map_err(|e| format!("COALESCE: failed to parse JSON configuration: JSON supplied is not valid. {e}"))?;
    let Some(list) = config.get("operators") else {
        return Err("COALESCE: JSON configuration must contain 'operators' array".to_owned());
    };
    let list =
        list.as_array().ok_or("COALESCE: 'operators' must be an array: key 'operators' missing or not an array")?;
    if list.is_empty() {
        return Err("COALESCE: 'operators' array must not be empty".to_owned());
    }
    let read = |(i, entry)| {
        coalesce_entry(entry, extensions).map_err(|e| format!("COALESCE: failed to parse operator at index {i}: {e}"))
    };
    let commands = list.iter().enumerate().map(read).collect::<Result<_, _>>()?;
    Ok(Operator::Coalesce(commands))
}

fn coalesce_entry(entry: &serde_json::Value, extensions: Extensions) -> Result<Command, String> {
    let (name, parameters, max_length) = match entry {
        serde_json::Value::String(name) => (name.as_str(), "", None),
        serde_json::Value::Object(fields) => {
            let name = fields.get("command").and_then(|c| c.as_str());
            let name =
                name.ok_or("operator object must have 'command' field: key 'command' missing or not a string")?;
            let parameters = match fields.get("param") {
                None => "",
                Some(text) => text.as_str().ok_or("'param' field must be a string")?,
            };
            let max_length = match fields.get("max_length") {
                None => None,
                Some(n) => Some(n.as_i64().ok_or("'max_length' field must be an integer")?),
            };
            if max_length.is_some_and(|n| n < 1) {
                return Err("'max_length' must be a positive integer".to_owned());
            }
            (name, parameters, max_length.and_then(|n| usize::try_from(n).ok()))
        }
        _ => {
            return Err(
                "operator entry must be either a string (command name) or an object with 'command' field".to_owned()
            );
        }
    };
    // One level is what configuration needs; more would let a short text nest without bound.
    if name == "COALESCE" {
        return Err("unknown command: 'COALESCE'".to_owned());
    }
    let operator = compile(name, parameters, max_length, extensions)
        .map_err(|e| if e.starts_with("Not supported") { format!("unknown command: '{name}'") } else { e })?;
    Ok(Command { operator, max_length })
}

/// Commands that stand alone.
fn plain(name: &str) -> Option<Operator> {
    count(name)
        .map(Operator::Count)
        .or_else(|| interval(name).map(Operator::Interval))
        .or_else(|| text(name).map(Operator::Text))
        .or_else(|| address(name))
        .or_else(|| tls(name))
        .or_else(|| {
            Some(match name {
                "RESPONSE_FLAGS" => Operator::ResponseFlags { long: false },
                "RESPONSE_FLAGS_LONG" => Operator::ResponseFlags { long: true },
                "GRPC_STATUS_NUMBER" => Operator::GrpcStatus(StatusForm::Number),
                "HOSTNAME" => Operator::Fixed(hostname()),
                // No filter of ours raises flags of its own.
                "CUSTOM_FLAGS" => Operator::Fixed(Box::default()),
                "TRACE_ID" | "SPAN_ID" | "ROUNDTRIP_DURATION" => Operator::Absent,
                _ => return None,
            })
        })
}

fn hostname() -> Box<[u8]> {
    use std::os::unix::ffi::OsStringExt;
    crate::net::hostname().map_or(b"-".to_vec(), OsStringExt::into_vec).into()
}

fn count(name: &str) -> Option<Count> {
    Some(match name {
        "BYTES_RECEIVED" => Count::BytesReceived,
        "BYTES_SENT" => Count::BytesSent,
        // QUIC's.
        "BYTES_RETRANSMITTED" | "PACKETS_RETRANSMITTED" => Count::Zero,
        "DOWNSTREAM_WIRE_BYTES_RECEIVED" => Count::DownstreamWireReceived,
        "DOWNSTREAM_WIRE_BYTES_SENT" => Count::DownstreamWireSent,
        // On HTTP/1 the same; on HTTP/2 our codec counts fields as they are before compression.
        "DOWNSTREAM_HEADER_BYTES_RECEIVED" | "DOWNSTREAM_DECOMPRESSED_HEADER_BYTES_RECEIVED" => {
            Count::DownstreamHeaderReceived
        }
        "DOWNSTREAM_HEADER_BYTES_SENT" | "DOWNSTREAM_DECOMPRESSED_HEADER_BYTES_SENT" => Count::DownstreamHeaderSent,
        "UPSTREAM_WIRE_BYTES_RECEIVED" => Count::UpstreamWireReceived,
        "UPSTREAM_WIRE_BYTES_SENT" => Count::UpstreamWireSent,
        "UPSTREAM_HEADER_BYTES_RECEIVED" | "UPSTREAM_DECOMPRESSED_HEADER_BYTES_RECEIVED" => {
            Count::UpstreamHeaderReceived
        }
        "UPSTREAM_HEADER_BYTES_SENT" | "UPSTREAM_DECOMPRESSED_HEADER_BYTES_SENT" => Count::UpstreamHeaderSent,
        "REQUEST_HEADERS_BYTES" => Count::RequestHeaders,
        "RESPONSE_HEADERS_BYTES" => Count::ResponseHeaders,
        "RESPONSE_TRAILERS_BYTES" => Count::ResponseTrailers,
        "RESPONSE_CODE" => Count::ResponseCode,
        "UPSTREAM_REQUEST_ATTEMPT_COUNT" => Count::Attempts,
        "CONNECTION_ID" => Count::ConnectionId,
        "UPSTREAM_CONNECTION_ID" => Count::UpstreamConnectionId,
        _ => return None,
    })
}

fn interval(name: &str) -> Option<Interval> {
    Some(match name {
        "DURATION" => Interval::Total,
        "REQUEST_DURATION" => Interval::Request,
        "REQUEST_TX_DURATION" => Interval::RequestTx,
        "RESPONSE_DURATION" => Interval::Response,
        "RESPONSE_TX_DURATION" => Interval::ResponseTx,
        "DOWNSTREAM_HANDSHAKE_DURATION" => Interval::Handshake,
        "UPSTREAM_CONNECTION_POOL_READY_DURATION" => Interval::PoolReady,
        _ => return None,
    })
}

fn text(name: &str) -> Option<Text> {
    Some(match name {
        "PROTOCOL" => Text::Protocol,
        "UPSTREAM_PROTOCOL" => Text::UpstreamProtocol,
        "CONNECTION_TERMINATION_DETAILS" => Text::TerminationDetails,
        "UPSTREAM_HOST" => Text::UpstreamHost,
        "UPSTREAM_HOST_NAME" => Text::UpstreamHostName { port: true },
        "UPSTREAM_HOST_NAME_WITHOUT_PORT" => Text::UpstreamHostName { port: false },
        "UPSTREAM_HOSTS_ATTEMPTED" => Text::HostsAttempted { names: false, port: true },
        "UPSTREAM_HOSTS_ATTEMPTED_WITHOUT_PORT" => Text::HostsAttempted { names: false, port: false },
        "UPSTREAM_HOST_NAMES_ATTEMPTED" => Text::HostsAttempted { names: true, port: true },
        "UPSTREAM_HOST_NAMES_ATTEMPTED_WITHOUT_PORT" => Text::HostsAttempted { names: true, port: false },
        "UPSTREAM_CONNECTION_IDS_ATTEMPTED" => Text::ConnectionIdsAttempted,
        // Not Envoy's: who named the host, in which version of what they say, and when.
        "UPSTREAM_HOST_SOURCE" => Text::UpstreamHostSource,
        "UPSTREAM_HOST_SOURCE_VERSION" => Text::UpstreamHostSourceVersion,
        "UPSTREAM_HOST_SOURCE_TIME" => Text::UpstreamHostSourceTime,
        "UPSTREAM_CLUSTER" => Text::UpstreamCluster,
        "UPSTREAM_CLUSTER_RAW" => Text::UpstreamClusterRaw,
        "UPSTREAM_TRANSPORT_FAILURE_REASON" => Text::UpstreamFailure,
        "UPSTREAM_DETECTED_CLOSE_TYPE" => Text::UpstreamCloseType,
        "UPSTREAM_LOCAL_CLOSE_REASON" => Text::UpstreamCloseReason,
        "DOWNSTREAM_TRANSPORT_FAILURE_REASON" => Text::DownstreamFailure,
        "DOWNSTREAM_DETECTED_CLOSE_TYPE" => Text::DownstreamCloseType,
        "DOWNSTREAM_LOCAL_CLOSE_REASON" => Text::DownstreamCloseReason,
        "ROUTE_NAME" => Text::RouteName,
        "VIRTUAL_CLUSTER_NAME" => Text::VirtualCluster,
        "FILTER_CHAIN_NAME" => Text::FilterChain,
        "LISTENER_NAME" => Text::Listener,
        "STREAM_ID" => Text::StreamId,
        "UNIQUE_ID" => Text::UniqueId,
        "LOCAL_REPLY_BODY" => Text::LocalReplyBody,
        "ACCESS_LOG_TYPE" => Text::AccessLogType,
        _ => return None,
    })
}

fn address(name: &str) -> Option<Operator> {
    if let Some(of) = name.strip_suffix("_ADDRESS_ENDPOINT_ID") {
        let of = matches!(of, "UPSTREAM_REMOTE" | "DOWNSTREAM_LOCAL" | "DOWNSTREAM_DIRECT_LOCAL").then_some(of)?;
        return Some(Operator::Address { of: endpoint(of)?, part: AddressPart::EndpointId });
    }
    if let Some(of) = name.strip_suffix("_PORT") {
        return Some(Operator::Address { of: endpoint(of)?, part: AddressPart::Port });
    }
    let of = endpoint(name.strip_suffix("_ADDRESS")?)?;
    Some(Operator::Address { of, part: AddressPart::Whole })
}

fn endpoint(name: &str) -> Option<Endpoint> {
    Some(match name {
        "UPSTREAM_LOCAL" => Endpoint::UpstreamLocal,
        "UPSTREAM_REMOTE" => Endpoint::UpstreamRemote,
        "DOWNSTREAM_LOCAL" => Endpoint::DownstreamLocal,
        "DOWNSTREAM_DIRECT_LOCAL" => Endpoint::DownstreamDirectLocal,
        "DOWNSTREAM_REMOTE" => Endpoint::DownstreamRemote,
        "DOWNSTREAM_DIRECT_REMOTE" => Endpoint::DownstreamDirectRemote,
        _ => return None,
    })
}

fn tls(name: &str) -> Option<Operator> {
    let (upstream, rest) = match (name.strip_prefix("DOWNSTREAM_"), name.strip_prefix("UPSTREAM_")) {
        (Some(rest), _) => (false, rest),
        (_, Some(rest)) => (true, rest),
        _ => return None,
    };
    let session = match rest {
        "TLS_VERSION" => Some(TlsField::Version),
        "TLS_CIPHER" => Some(TlsField::Cipher),
        "TLS_GROUP" => Some(TlsField::Group),
        "TLS_SESSION_ID" => Some(TlsField::SessionId),
        "SERVER_NAME" if upstream => Some(TlsField::ServerName),
        _ => None,
    };
    if let Some(field) = session {
        return Some(Operator::Tls { upstream, field });
    }
    let (local, rest) = match (rest.strip_prefix("PEER_"), rest.strip_prefix("LOCAL_")) {
        (Some(rest), _) => (false, rest),
        (_, Some(rest)) => (true, rest),
        _ => return None,
    };
    let field = match rest {
        "URI_SAN" => CertificateField::UriSans,
        "DNS_SAN" => CertificateField::DnsSans,
        "IP_SAN" => CertificateField::IpSans,
        "EMAIL_SAN" if !upstream => CertificateField::EmailSans,
        "OTHERNAME_SAN" if !upstream => CertificateField::OtherNameSans,
        "SUBJECT" if !upstream || !local => CertificateField::Subject,
        _ if local => return None,
        "ISSUER" => CertificateField::Issuer,
        "CERT" => CertificateField::Pem,
        _ if upstream => return None,
        "SERIAL" => CertificateField::Serial,
        "FINGERPRINT_256" => CertificateField::Sha256,
        "FINGERPRINT_1" => CertificateField::Sha1,
        "CHAIN_FINGERPRINTS_256" => CertificateField::ChainSha256,
        "CHAIN_FINGERPRINTS_1" => CertificateField::ChainSha1,
        "CHAIN_SERIALS" => CertificateField::ChainSerials,
        "ISSUER_FINGERPRINT_256" => CertificateField::IssuerSha256,
        "ISSUER_SERIAL" => CertificateField::IssuerSerial,
        _ => return None,
    };
    Some(Operator::Certificate { upstream, local, field })
}
