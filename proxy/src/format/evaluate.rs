//! The value of an operator for one stream, appended to a buffer: nothing is allocated, except for
//! filter state, whose objects make their own text, and the time at which a host was named.
//!
//! Over 500 lines, as the list of operators is long; each is a few lines that do not know of the others.

use std::borrow::Cow;
use std::io::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nuncio_api::pb::google::protobuf::{Value, value};
use nuncio_core::access_log::{LogContext, LogType};
use nuncio_core::http::header_map::decimal;
use nuncio_core::http::{HeaderMap, Version, grpc_status};
use nuncio_core::metadata::Metadata;
use nuncio_core::net::{Address, CidrRange, PeerCertificate, TlsInfo};
use nuncio_core::stream_info::StreamInfo;
use nuncio_core::upstream::Origin;
use tokio::time::Instant;

use super::operator::*;
use super::value as json;
use crate::calendar::Date;

/// What was appended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Nothing: `-` in text, null in JSON.
    Missing,
    /// Nothing: and nothing in text, null in JSON. The port of what has no port.
    Blank,
    Text,
    Number,
    /// JSON that is neither text nor number.
    Json,
}

type Context<'a> = LogContext<'a>;

impl Operator {
    pub(super) fn append(&self, context: &Context<'_>, out: &mut Vec<u8>) -> Kind {
        match self {
            Self::Header(header) => header.append(context, out),
            Self::Path { query, from } => text(out, path(context, *query, *from)),
            Self::QueryParameter(name) => query_parameter(context, name, out),
            Self::QueryParameters { decoded } => query_parameters(context, *decoded, out),
            Self::ServerName { order, host } => server_name(context, *order, *host, out),
            Self::Time { moment, format } => match moment.time(context) {
                Some(time) => {
                    format.append(time, out);
                    Kind::Text
                }
                None => Kind::Missing,
            },
            Self::Count(count) => number(out, count.value(context)),
            Self::Interval(interval) => signed(out, interval.milliseconds(context)),
            Self::CommonDuration { from, to, unit } => common_duration(context, *from, *to, *unit, out),
            Self::ResponseFlags { long } => flags(context, *long, out),
            Self::GrpcStatus(form) => status(context, *form, out),
            Self::CodeDetails { spaces } => {
                let start = out.len();
                let kind = text(out, context.info.response_code_details.as_ref().map(|d| d.as_bytes()));
                if !spaces {
                    underscores(&mut out[start..]);
                }
                kind
            }
            Self::Address { of, part } => address(context, *of, *part, out),
            Self::Certificate { upstream, local, field } => {
                let certificate =
                    tls(context, *upstream).and_then(|t| if *local { t.local.as_ref() } else { t.peer.as_ref() });
                certificate.map_or(Kind::Missing, |c| field.append(c, out))
            }
            Self::Tls { upstream, field } => nonempty(out, tls(context, *upstream).and_then(|t| field.text(t))),
            Self::Metadata { of, namespace, path } => metadata(context, *of, namespace, path, out),
            Self::FilterState { name, form } => filter_state(context, name, form, out),
            Self::Text(field) => field.append(context, out),
            Self::Fixed(value) => text(out, Some(value)),
            Self::Coalesce(commands) => {
                for command in commands {
                    let start = out.len();
                    let kind = command.append_typed(context, out);
                    if !matches!(kind, Kind::Missing | Kind::Blank) && out.len() > start {
                        return kind;
                    }
                }
                Kind::Missing
            }
            Self::Absent => Kind::Missing,
        }
    }
}

fn text(out: &mut Vec<u8>, value: Option<&[u8]>) -> Kind {
    let Some(value) = value else { return Kind::Missing };
    out.extend_from_slice(value);
    Kind::Text
}

fn nonempty(out: &mut Vec<u8>, value: Option<&str>) -> Kind {
    text(out, value.map(str::as_bytes).filter(|v| !v.is_empty()))
}

fn number(out: &mut Vec<u8>, value: u64) -> Kind {
    out.extend_from_slice(decimal(value, &mut [0; 20]));
    Kind::Number
}

fn signed(out: &mut Vec<u8>, value: Option<i64>) -> Kind {
    let Some(value) = value else { return Kind::Missing };
    if value < 0 {
        out.push(b'-');
    }
    number(out, value.unsigned_abs())
}

/// White space becomes `_`.
fn underscores(text: &mut [u8]) {
    for byte in text.iter_mut().filter(|b| b.is_ascii_whitespace() || **b == 0x0b) {
        *byte = b'_';
    }
}

fn request<'a>(context: &Context<'a>, name: &str) -> Option<&'a [u8]> {
    context.request.and_then(|head| head.headers.get(name))
}

// === impl HeaderOperator ===

impl HeaderOperator {
    fn append(&self, context: &Context<'_>, out: &mut Vec<u8>) -> Kind {
        let headers = match self.source {
            HeaderSource::Request => context.request.map(|head| &head.headers),
            HeaderSource::Response => context.response.map(|head| &head.headers),
            HeaderSource::Trailers => context.trailers,
        };
        let Some(headers) = headers else { return Kind::Missing };
        let find = |name: &str| headers.get(name);
        let value = match find(&self.name).or_else(|| self.alternative.as_deref().and_then(find)) {
            Some(value) => value,
            None => return self.append_status(context, out),
        };
        let value = if self.without_query { without_query(value) } else { value };
        text(out, Some(value))
    }

    /// `:status` is a number beside the map.
    fn append_status(&self, context: &Context<'_>, out: &mut Vec<u8>) -> Kind {
        let asked = &*self.name == ":status" || self.alternative.as_deref() == Some(":status");
        match context.response {
            Some(head) if asked && self.source == HeaderSource::Response => {
                number(out, u64::from(head.status));
                Kind::Text
            }
            _ => Kind::Missing,
        }
    }
}

fn without_query(path: &[u8]) -> &[u8] {
    &path[..memchr::memchr(b'?', path).unwrap_or(path.len())]
}

fn path<'a>(context: &Context<'a>, query: bool, from: PathSource) -> Option<&'a [u8]> {
    let original = || request(context, "x-envoy-original-path");
    let current = || request(context, ":path");
    let path = match from {
        PathSource::Original => original(),
        PathSource::Current => current(),
        PathSource::OriginalOrCurrent => original().or_else(current),
    }?;
    Some(if query { path } else { without_query(path) })
}

fn query_parameter(context: &Context<'_>, name: &[u8], out: &mut Vec<u8>) -> Kind {
    let path = path(context, true, PathSource::OriginalOrCurrent);
    let Some(value) = path.and_then(|path| nuncio_core::matcher::query_parameter(path, name)) else {
        return Kind::Missing;
    };
    decoded(value, out);
    Kind::Text
}

fn query_parameters(context: &Context<'_>, decode: bool, out: &mut Vec<u8>) -> Kind {
    let Some(path) = path(context, true, PathSource::OriginalOrCurrent) else { return Kind::Missing };
    let Some(at) = memchr::memchr(b'?', path) else { return Kind::Missing };
    let query = &path[at + 1..];
    if decode {
        decoded(query, out)
    } else {
        out.extend_from_slice(query)
    }
    Kind::Text
}

/// `%41` becomes `A`; what is no such escape stays.
fn decoded(value: &[u8], out: &mut Vec<u8>) {
    let digit = |at: usize| value.get(at).and_then(|b| (*b as char).to_digit(16));
    let mut at = 0;
    while at < value.len() {
        match (value[at], digit(at + 1), digit(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                out.push((high * 16 + low) as u8);
                at += 3;
            }
            (byte, ..) => {
                out.push(byte);
                at += 1;
            }
        }
    }
}

fn server_name(context: &Context<'_>, order: NameOrder, host: HostSource, out: &mut Vec<u8>) -> Kind {
    let original = || request(context, "x-envoy-original-host");
    let current = || request(context, ":authority");
    let host = || match host {
        HostSource::Original => original(),
        HostSource::Current => current(),
        HostSource::OriginalOrCurrent => original().or_else(current),
    };
    let sni = |out: &mut Vec<u8>| {
        let name = context.connection.and_then(|c| c.requested_server_name.as_deref()).filter(|n| !n.is_empty());
        let Some(name) = name else { return Kind::Missing };
        sanitized_name(name, out);
        Kind::Text
    };
    match order {
        NameOrder::SniOnly => sni(out),
        NameOrder::SniFirst => match sni(out) {
            Kind::Missing => text(out, host()),
            found => found,
        },
        NameOrder::HostFirst => match text(out, host()) {
            Kind::Missing => sni(out),
            found => found,
        },
    }
}

/// What cannot stand in a host name is `_`, and the whole is marked.
fn sanitized_name(name: &str, out: &mut Vec<u8>) {
    let valid = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
    if !name.bytes().all(valid) {
        out.extend_from_slice(b"invalid:");
    }
    out.extend(name.bytes().map(|b| if valid(b) { b } else { b'_' }));
}

// === impl TimeSource ===

impl TimeSource {
    fn time(self, context: &Context<'_>) -> Option<SystemTime> {
        let seconds = |s: i64| {
            let distance = Duration::from_secs(s.unsigned_abs());
            if s < 0 { UNIX_EPOCH.checked_sub(distance) } else { UNIX_EPOCH.checked_add(distance) }
        };
        let peer = |upstream| tls(context, upstream).and_then(|t| t.peer.as_ref());
        match self {
            Self::Start => Some(context.info.start_wall),
            // The wall clock as it went on since the stream began.
            Self::Emit => Some(context.info.start_wall + context.info.start.elapsed()),
            Self::CertificateStart { upstream } => peer(upstream).and_then(|c| seconds(c.not_before)),
            Self::CertificateEnd { upstream } => peer(upstream).and_then(|c| seconds(c.not_after)),
        }
    }
}

// === impl Count ===

impl Count {
    fn value(self, context: &Context<'_>) -> u64 {
        let info = context.info;
        let size = |headers: Option<&HeaderMap>| headers.map_or(0, |h| h.byte_size() as u64);
        match self {
            Self::Zero => 0,
            Self::BytesReceived => info.bytes_received,
            Self::BytesSent => info.bytes_sent,
            Self::DownstreamWireReceived => info.downstream_wire_bytes_received,
            Self::DownstreamWireSent => info.downstream_wire_bytes_sent,
            Self::DownstreamHeaderReceived => info.downstream_header_bytes_received,
            Self::DownstreamHeaderSent => info.downstream_header_bytes_sent,
            Self::UpstreamWireReceived => info.upstream_wire_bytes_received,
            Self::UpstreamWireSent => info.upstream_wire_bytes_sent,
            Self::UpstreamHeaderReceived => info.upstream_header_bytes_received,
            Self::UpstreamHeaderSent => info.upstream_header_bytes_sent,
            Self::RequestHeaders => size(context.request.map(|r| &r.headers)),
            Self::ResponseHeaders => {
                let headers = context.response.map(|r| &r.headers);
                // `:status: 200` counts, wherever it is kept.
                let status = headers.is_some_and(|h| !h.contains(":status"));
                size(headers) + if status { 10 } else { 0 }
            }
            Self::ResponseTrailers => size(context.trailers),
            Self::ResponseCode => info.response_code.map_or(0, u64::from),
            Self::Attempts => u64::from(info.attempt_count),
            Self::ConnectionId => context.connection.map_or(0, |c| c.id),
            Self::UpstreamConnectionId => info.upstream_connection_id.unwrap_or(0),
        }
    }
}

// === impl Interval ===

impl Interval {
    fn milliseconds(self, context: &Context<'_>) -> Option<i64> {
        let timings = &context.info.timings;
        let since = |from: Instant, to: Option<Instant>| Some(to?.saturating_duration_since(from).as_millis() as i64);
        let start = context.info.start;
        match self {
            Self::Total => since(start, Some(timings.end.unwrap_or_else(Instant::now))),
            Self::Request => since(start, timings.last_downstream_rx),
            Self::RequestTx => since(start, timings.last_upstream_tx),
            Self::Response => since(start, timings.first_upstream_rx),
            Self::ResponseTx => {
                let (from, to) = (timings.first_upstream_rx?, timings.last_downstream_tx?);
                let ms = |d: Duration| d.as_millis() as i64;
                Some(if to >= from { ms(to - from) } else { -ms(from - to) })
            }
            Self::Handshake => {
                let timings = context.connection?.timings.get();
                since(timings.begin?, timings.handshake_complete)
            }
            Self::PoolReady => since(timings.upstream_connect_start?, timings.upstream_connect_end),
        }
    }
}

fn common_duration(context: &Context<'_>, from: Moment, to: Moment, unit: Unit, out: &mut Vec<u8>) -> Kind {
    let (Some(from), Some(to)) = (from.instant(context), to.instant(context)) else { return Kind::Missing };
    let Some(duration) = to.checked_duration_since(from) else { return Kind::Missing };
    let count = match unit {
        Unit::Milliseconds => duration.as_millis(),
        Unit::Microseconds => duration.as_micros(),
        Unit::Nanoseconds => duration.as_nanos(),
    };
    number(out, count as u64)
}

impl Moment {
    fn instant(self, context: &Context<'_>) -> Option<Instant> {
        let timings = &context.info.timings;
        let connection = context.connection.map(|c| c.timings.get());
        match self {
            Self::Begin => Some(context.info.start),
            Self::RequestEnd => timings.last_downstream_rx,
            Self::UpstreamCxBegin => timings.upstream_cx_begin,
            Self::UpstreamCxEnd => timings.upstream_cx_end,
            Self::UpstreamHandshakeEnd => timings.upstream_handshake_end,
            Self::UpstreamTxBegin => timings.first_upstream_tx,
            Self::UpstreamTxEnd => timings.last_upstream_tx,
            Self::UpstreamRxBegin => timings.first_upstream_rx,
            Self::UpstreamRxBodyBegin => timings.first_upstream_rx_body,
            Self::UpstreamRxEnd => timings.last_upstream_rx,
            Self::DownstreamTxBegin => timings.first_downstream_tx,
            Self::DownstreamTxEnd => timings.last_downstream_tx,
            Self::DownstreamCxBegin => connection.and_then(|t| t.begin),
            // The last record of a session is written as its connection ends.
            Self::DownstreamCxEnd => connection.and_then(|t| t.end).or_else(|| {
                let last = context.log_type == LogType::TcpConnectionEnd;
                last.then(|| timings.end.unwrap_or_else(Instant::now))
            }),
            Self::Unknown => None,
        }
    }
}

fn flags(context: &Context<'_>, long: bool, out: &mut Vec<u8>) -> Kind {
    let start = out.len();
    for flag in context.info.flags.iter() {
        if out.len() > start {
            out.push(b',');
        }
        out.extend_from_slice(if long { flag.long() } else { flag.short() }.as_bytes());
    }
    if out.len() == start {
        out.push(b'-');
    }
    Kind::Text
}

/// The gRPC status of a response to a gRPC request; what the HTTP status stands for, if it has none.
fn status(context: &Context<'_>, form: StatusForm, out: &mut Vec<u8>) -> Kind {
    if !context.request.is_some_and(|head| head.is_grpc()) {
        return Kind::Missing;
    }
    let said = grpc_status::of_response(context.response, context.trailers);
    let Some(status) = said.or_else(|| context.info.response_code.map(grpc_status::from_http)) else {
        return Kind::Missing;
    };
    let name = match form {
        StatusForm::Camel => grpc_status::camel_name(status),
        StatusForm::Snake => grpc_status::snake_name(status),
        StatusForm::Number => return signed(out, Some(status)),
    };
    match name {
        Some(name) => text(out, Some(name.as_bytes())),
        None => {
            signed(out, Some(status));
            Kind::Text
        }
    }
}

fn address(context: &Context<'_>, of: Endpoint, part: AddressPart, out: &mut Vec<u8>) -> Kind {
    let info = context.info;
    let connection = context.connection;
    let address = match of {
        Endpoint::UpstreamLocal => info.upstream_local_address.as_ref(),
        // Known once a connection is there, as in Envoy.
        Endpoint::UpstreamRemote => info.upstream_remote_address.as_ref().or_else(|| {
            info.upstream_local_address.as_ref()?;
            info.upstream_host.as_ref().map(|host| host.address())
        }),
        Endpoint::DownstreamLocal => connection.map(|c| &c.local),
        Endpoint::DownstreamDirectLocal => connection.map(|c| &c.direct_local),
        Endpoint::DownstreamRemote => info.remote_address.as_ref().or_else(|| connection.map(|c| &c.remote)),
        Endpoint::DownstreamDirectRemote => connection.map(|c| &c.direct_remote),
    };
    let Some(address) = address else { return Kind::Missing };
    // Writing to a vector cannot fail.
    match (part, address.ip()) {
        (AddressPart::Whole, _) | (AddressPart::WithoutPort(_), None) => drop(write!(out, "{address}")),
        (AddressPart::WithoutPort(None), Some(ip)) => drop(write!(out, "{ip}")),
        (AddressPart::WithoutPort(Some(len)), Some(ip)) => drop(write!(out, "{}", CidrRange::new(ip, len))),
        (AddressPart::Port, _) => return address.port().map_or(Kind::Blank, |port| number(out, u64::from(port))),
        (AddressPart::EndpointId, _) => {
            if let Address::Internal { endpoint, .. } = address {
                out.extend_from_slice(endpoint.as_bytes());
            }
        }
    }
    Kind::Text
}

fn tls<'a>(context: &Context<'a>, upstream: bool) -> Option<&'a TlsInfo> {
    if upstream { context.info.upstream_tls.as_deref() } else { context.connection.and_then(|c| c.tls.as_ref()) }
}

impl TlsField {
    fn text(self, tls: &TlsInfo) -> Option<&str> {
        match self {
            Self::Version => Some(tls.version),
            Self::Cipher => Some(tls.cipher),
            Self::Group => Some(tls.group),
            Self::SessionId => tls.session_id.as_deref(),
            Self::ServerName => tls.server_name.as_deref(),
        }
    }
}

impl CertificateField {
    fn append(self, certificate: &PeerCertificate, out: &mut Vec<u8>) -> Kind {
        match self {
            Self::Subject => nonempty(out, Some(&certificate.subject)),
            Self::Issuer => nonempty(out, Some(&certificate.issuer)),
            Self::Serial => nonempty(out, Some(&certificate.serial)),
            Self::Sha256 => nonempty(out, Some(&certificate.sha256)),
            Self::Sha1 => nonempty(out, Some(&certificate.sha1)),
            Self::Pem => nonempty(out, Some(&certificate.pem)),
            Self::IssuerSha256 => nonempty(out, Some(&certificate.issuer_sha256)),
            Self::IssuerSerial => nonempty(out, Some(&certificate.issuer_serial)),
            Self::UriSans => joined(out, &certificate.uri_sans),
            Self::DnsSans => joined(out, &certificate.dns_sans),
            Self::IpSans => joined(out, &certificate.ip_sans),
            Self::EmailSans => joined(out, &certificate.email_sans),
            Self::OtherNameSans => joined(out, certificate.other_name_sans.iter().map(|(_, name)| name)),
            Self::ChainSha256 => joined(out, &certificate.chain_sha256),
            Self::ChainSha1 => joined(out, &certificate.chain_sha1),
            Self::ChainSerials => joined(out, &certificate.chain_serials),
        }
    }
}

fn joined<'a>(out: &mut Vec<u8>, values: impl IntoIterator<Item = &'a String>) -> Kind {
    let start = out.len();
    for (i, value) in values.into_iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        out.extend_from_slice(value.as_bytes());
    }
    if out.len() == start { Kind::Missing } else { Kind::Text }
}

fn metadata(context: &Context<'_>, of: MetadataSource, namespace: &str, path: &[String], out: &mut Vec<u8>) -> Kind {
    let info = context.info;
    let mut append = |metadata: &Metadata| {
        if path.is_empty() {
            return match metadata.0.get(namespace) {
                Some(fields) => {
                    json::append_struct(fields, out);
                    Kind::Json
                }
                None => Kind::Missing,
            };
        }
        metadata.get(namespace, path).map_or(Kind::Missing, |value| append_value(value, out))
    };
    let found = match of {
        MetadataSource::Dynamic => Some(append(&info.dynamic_metadata)),
        MetadataSource::Cluster => info.upstream_cluster.as_ref().map(|c| append(&c.metadata)),
        MetadataSource::Route => context.route.map(|r| append(r.metadata())),
        MetadataSource::VirtualHost => context.route.and_then(|r| r.virtual_host_metadata()).map(append),
        MetadataSource::UpstreamHost => info.upstream_host.as_ref().map(|h| append(&h.metadata())),
        MetadataSource::Listener => context.connection.and_then(|c| c.listener_metadata.as_deref()).map(append),
        MetadataSource::FilterChain => context.connection.and_then(|c| c.filter_chain_metadata.as_deref()).map(append),
    };
    found.unwrap_or(Kind::Missing)
}

fn append_value(value: &Value, out: &mut Vec<u8>) -> Kind {
    match &value.kind {
        None | Some(value::Kind::NullValue(_)) => Kind::Missing,
        Some(value::Kind::StringValue(value)) => text(out, Some(value.as_bytes())),
        Some(value::Kind::NumberValue(value)) => {
            json::append_number(*value, out);
            Kind::Number
        }
        Some(_) => {
            json::append(value, out);
            Kind::Json
        }
    }
}

/// The object's text, or one of its fields. Envoy's default form is JSON: there a text is a JSON string, quotes and all.
fn filter_state(context: &Context<'_>, name: &str, form: &FilterStateForm, out: &mut Vec<u8>) -> Kind {
    let of_connection = context.connection.map(|connection| connection.filter_state.borrow());
    let object = context.info.filter_state.get(name);
    let Some(object) = object.or_else(|| of_connection.as_ref()?.get(name)) else { return Kind::Missing };
    match form {
        FilterStateForm::Field(field) => text(out, object.field(field).as_ref().map(String::as_bytes)),
        FilterStateForm::Plain => text(out, object.text().as_ref().map(String::as_bytes)),
        FilterStateForm::Typed => {
            if let Some(structured) = object.json() {
                out.extend_from_slice(structured.as_bytes());
            } else if let Some(value) = object.text() {
                json::append_string(value.as_bytes(), out);
            } else {
                return Kind::Missing;
            }
            Kind::Json
        }
    }
}

fn origin(info: &StreamInfo) -> Option<&Origin> {
    info.upstream_host.as_ref()?.origin().map(|origin| &**origin)
}

// === impl Text ===

impl Text {
    fn append(self, context: &Context<'_>, out: &mut Vec<u8>) -> Kind {
        let info = context.info;
        let version = |v: Option<Version>| v.map(Version::as_str);
        let plain = |value: Option<&'static str>, out: &mut Vec<u8>| text(out, value.map(str::as_bytes));
        match self {
            Self::Protocol => plain(version(info.protocol), out),
            Self::UpstreamProtocol => plain(version(info.upstream_protocol), out),
            Self::UpstreamHost => {
                let address = info.upstream_host.as_ref().map(|host| host.address_text());
                text(out, address.as_ref().map(|address| address.as_bytes()))
            }
            Self::UpstreamHostName { .. } | Self::HostsAttempted { .. } | Self::ConnectionIdsAttempted => {
                self.append_hosts(context, out)
            }
            Self::UpstreamHostSource => {
                let host = info.upstream_host.as_ref();
                nonempty(out, host.map(|host| host.origin().map_or("the configuration", |origin| &origin.who)))
            }
            Self::UpstreamHostSourceVersion => nonempty(out, origin(info).map(|origin| &*origin.version)),
            Self::UpstreamHostSourceTime => {
                let at = origin(info).and_then(|origin| origin.at.duration_since(UNIX_EPOCH).ok());
                let millis = at.and_then(|at| u64::try_from(at.as_millis()).ok());
                let text = millis.map(|millis| Date::new(Duration::from_millis(millis)).rfc3339());
                nonempty(out, text.as_deref())
            }
            Self::UpstreamCluster => nonempty(out, info.upstream_cluster.as_ref().map(|c| &*c.observability_name)),
            Self::UpstreamClusterRaw => nonempty(out, info.upstream_cluster.as_ref().map(|c| &*c.name)),
            Self::UpstreamFailure => {
                let start = out.len();
                let kind = nonempty(out, info.upstream_transport_failure.as_deref());
                underscores(&mut out[start..]);
                kind
            }
            Self::UpstreamCloseType => plain(info.upstream_close_type.map(|t| t.as_str()), out),
            Self::UpstreamCloseReason => nonempty(out, info.upstream_local_close_reason.as_deref()),
            Self::DownstreamFailure | Self::DownstreamCloseReason | Self::TerminationDetails => {
                self.append_ending(context, out)
            }
            Self::DownstreamCloseType => plain(context.connection.map(|c| c.close_type.get().as_str()), out),
            Self::RouteName => nonempty(out, info.route_name.as_deref()),
            Self::VirtualCluster => nonempty(out, info.virtual_cluster_name.as_deref()),
            Self::FilterChain => {
                let of_connection = || context.connection.and_then(|c| c.filter_chain_name.as_deref());
                nonempty(out, info.filter_chain_name.as_deref().or_else(of_connection))
            }
            Self::Listener => nonempty(out, context.connection.and_then(|c| c.listener_name.as_deref())),
            Self::StreamId => {
                let id = info.uuid.as_ref().map(|uuid| &uuid[..]);
                text(out, id.or_else(|| request(context, "x-request-id")))
            }
            Self::UniqueId => text(out, context.rng.map(|rng| rng.uuid_v4()).as_ref().map(|uuid| &uuid[..])),
            Self::LocalReplyBody => text(out, Some(context.local_reply_body)),
            Self::AccessLogType => plain(Some(context.log_type.as_str()), out),
        }
    }

    fn append_hosts(self, context: &Context<'_>, out: &mut Vec<u8>) -> Kind {
        let info = context.info;
        let start = out.len();
        match self {
            Self::UpstreamHostName { port } => {
                if let Some(host) = &info.upstream_host {
                    append_host(host, true, port, out);
                }
            }
            Self::HostsAttempted { names, port } => {
                let last = info.upstream_host.as_ref().filter(|_| info.upstream_connection_id.is_some());
                for host in info.earlier_attempts.iter().map(|a| &a.host).chain(last) {
                    if out.len() > start {
                        out.push(b',');
                    }
                    append_host(host, names, port, out);
                }
            }
            _ => {
                let earlier = info.earlier_attempts.iter().map(|a| a.connection_id);
                for id in earlier.chain(info.upstream_connection_id) {
                    if out.len() > start {
                        out.push(b',');
                    }
                    number(out, id);
                }
            }
        }
        if out.len() == start { Kind::Missing } else { Kind::Text }
    }

    fn append_ending(self, context: &Context<'_>, out: &mut Vec<u8>) -> Kind {
        let Some(connection) = context.connection else { return Kind::Missing };
        match self {
            Self::DownstreamFailure => {
                let start = out.len();
                let handshake = connection.transport_failure.borrow();
                let later = || connection.tls.as_ref()?.failure.get().map(String::as_str);
                let kind = nonempty(out, handshake.as_deref().or_else(later));
                underscores(&mut out[start..]);
                kind
            }
            Self::TerminationDetails => nonempty(out, connection.termination_details.borrow().as_deref()),
            _ => {
                let reason = connection.local_close_reason.borrow();
                nonempty(out, reason.as_ref().map(Cow::as_ref))
            }
        }
    }
}

/// The host's name (its address, if it has none) or its address.
fn append_host(host: &nuncio_core::upstream::Host, name: bool, port: bool, out: &mut Vec<u8>) {
    let address = host.address_text();
    let name = if name && !host.hostname().is_empty() { host.hostname() } else { &*address };
    let name = if port { name } else { without_port(name) };
    out.extend_from_slice(name.as_bytes());
}

/// `host:port` and `[v6]:port` without the port.
fn without_port(host: &str) -> &str {
    let Some((before, port)) = host.rsplit_once(':') else { return host };
    let numeric = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
    if numeric && (before.ends_with(']') || !before.contains(':')) { before } else { host }
}
