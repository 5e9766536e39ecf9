//! Heads between the library's types and ours.
//!
//! The library has refused by then: upper case, forbidden characters, connection fields, `te` other
//! than `trailers`, unknown, repeated or late pseudo headers. What is left to check is what a
//! request must have, how many fields there may be, and what two readers could understand
//! differently on the HTTP/1 side.

use bytes::{Bytes, BytesMut};
use h2::ext::Protocol;
use http::header::{self, HeaderName, HeaderValue};
use http::{Method, StatusCode, Uri, uri};
use nuncio_core::http::header_map::decimal;
use nuncio_core::http::{Framing, HeaderMap, RequestHead, ResponseHead, Version};

use super::options::ServerOptions;
use crate::codec::http1::Underscores;
use crate::codec::syntax;

/// A head that is not taken; the text is `%RESPONSE_CODE_DETAILS%`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Violation {
    /// Envoy calls it an invalid message: the connection ends, unless configured otherwise.
    Messaging(&'static str),
    /// Over a limit: the stream is reset.
    Limit(&'static str),
}

const MESSAGING: Violation = Violation::Messaging("http2.violation.of.messaging.rule");
const INVALID_FIELD: Violation = Violation::Messaging("http2.invalid.header.field");
const TOO_MANY: Violation = Violation::Limit("http2.too_many_headers");
const TOO_LARGE: Violation = Violation::Limit("http2.headers_too_large");
const UNDERSCORE: Violation = Violation::Limit("http2.unexpected_underscore");

/// What a request's head says beyond [`RequestHead`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ReadRequest {
    pub(super) expects_continue: bool,
    pub(super) dropped_underscores: u16,
    /// Extended CONNECT: 101 goes out as 200.
    pub(super) upgrade: bool,
}

/// From the library's request to `head`, whatever that holds. `end`: no body follows.
pub(super) fn read_request(
    parts: &http::request::Parts,
    end: bool,
    options: &ServerOptions,
    head: &mut RequestHead,
) -> Result<ReadRequest, Violation> {
    let mut read = ReadRequest::default();
    head.clear();
    head.version = Version::Http2;
    // The pseudo headers, of which one may be absent, count as Envoy counts them.
    if parts.headers.len() + 4 > options.max_headers {
        return Err(TOO_MANY);
    }
    let protocol = parts.extensions.get::<Protocol>();
    read.upgrade = protocol.is_some();
    let map = &mut head.headers;
    map.append(":method", if read.upgrade { "GET" } else { parts.method.as_str() });
    if let Some(scheme) = parts.uri.scheme_str() {
        if scheme != "http" && scheme != "https" {
            return Err(MESSAGING);
        }
        map.append(":scheme", scheme);
    }
    let connect = parts.method == Method::CONNECT && !read.upgrade;
    if !connect {
        let path = parts.uri.path_and_query().map_or("", |p| p.as_str());
        let form = path.starts_with('/') || (path == "*" && parts.method == Method::OPTIONS);
        if !form || !path.bytes().all(syntax::is_visible) {
            return Err(MESSAGING);
        }
        map.append(":path", path);
    }
    // `:authority` wins; a `host` beside it is dropped, so that nobody routes by the one and serves by the other.
    let mut hosts = parts.headers.get_all(header::HOST).iter();
    let host = hosts.next().map(HeaderValue::as_bytes);
    if hosts.next().is_some() {
        return Err(MESSAGING);
    }
    let authority = parts.uri.authority().map(|a| a.as_str().as_bytes()).or(host).unwrap_or_default();
    // User information has no place there (RFC 9113 §8.3.1).
    if authority.is_empty() || !syntax::is_authority(authority) || authority.contains(&b'@') {
        return Err(MESSAGING);
    }
    map.append(":authority", authority);
    let mut length = None;
    append_fields(&parts.headers, options, map, &mut read, &mut length)?;
    if let Some(protocol) = protocol {
        if !protocol.as_str().bytes().all(syntax::is_token) {
            return Err(INVALID_FIELD);
        }
        map.append("connection", "upgrade");
        map.append("upgrade", protocol.as_str());
    }
    if map.byte_size() > options.max_head_bytes {
        return Err(TOO_LARGE);
    }
    head.framing = match length {
        _ if end => Framing::None,
        Some(n) if !connect => Framing::Length(n),
        _ => Framing::Streamed,
    };
    Ok(read)
}

fn append_fields(
    from: &http::HeaderMap,
    options: &ServerOptions,
    map: &mut HeaderMap,
    read: &mut ReadRequest,
    length: &mut Option<u64>,
) -> Result<(), Violation> {
    for (name, value) in from {
        // Blanks around a value mean nothing, and would on HTTP/1 disappear.
        let (name, value) = (name.as_str(), value.as_bytes().trim_ascii());
        match name {
            "host" => continue,
            // Split for better compression (RFC 9113 §8.2.3); one field again for everybody above.
            "cookie" => {
                map.append_to_value("cookie", "; ", value);
                continue;
            }
            "content-length" if length.replace(syntax::content_length(value).ok_or(MESSAGING)?).is_some() => {
                return Err(MESSAGING);
            }
            "expect" if !options.proxy_100_continue && value.eq_ignore_ascii_case(b"100-continue") => {
                read.expects_continue = true;
                continue;
            }
            _ if options.underscores != Underscores::Allow && name.contains('_') => {
                if options.underscores == Underscores::Reject {
                    return Err(UNDERSCORE);
                }
                read.dropped_underscores = read.dropped_underscores.saturating_add(1);
                continue;
            }
            _ => {}
        }
        map.append(name, value);
    }
    Ok(())
}

/// From the library's response to `head`, whatever that holds.
pub(super) fn read_response(
    parts: &http::response::Parts,
    end: bool,
    (max_headers, max_head_bytes): (usize, usize),
    head: &mut ResponseHead,
) -> Result<(), &'static str> {
    head.clear();
    head.version = Version::Http2;
    head.status = parts.status.as_u16();
    if parts.headers.len() + 1 > max_headers {
        return Err("too many headers");
    }
    let mut length = None;
    for (name, value) in &parts.headers {
        let value = value.as_bytes().trim_ascii();
        if name == header::CONTENT_LENGTH {
            let told = syntax::content_length(value).ok_or("bad content-length")?;
            if length.replace(told).is_some() {
                return Err("two content-lengths");
            }
        }
        head.headers.append(name.as_str(), value);
    }
    if head.headers.byte_size() > max_head_bytes {
        return Err("headers too large");
    }
    head.framing = match length {
        // To HEAD, a length without a body.
        Some(n) if end => Framing::Length(n),
        None if end => Framing::None,
        Some(n) => Framing::Length(n),
        None => Framing::Streamed,
    };
    Ok(())
}

/// `None`: too many.
pub(super) fn read_trailers(from: &http::HeaderMap, max: usize) -> Option<HeaderMap> {
    if from.len() > max {
        return None;
    }
    Some(from.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect())
}

/// Names and values for the library: all values of a head lie in one allocation.
struct Writer<'h> {
    values: BytesMut,
    from: &'h HeaderMap,
    map: http::HeaderMap,
}

impl<'h> Writer<'h> {
    fn new(from: &'h HeaderMap) -> Self {
        Self {
            values: BytesMut::with_capacity(from.byte_size() + 24),
            from,
            map: http::HeaderMap::with_capacity(from.len() + 1),
        }
    }

    fn value(&mut self, value: &[u8]) -> Bytes {
        self.values.extend_from_slice(value);
        self.values.split().freeze()
    }

    /// A field that cannot be written is left out.
    fn append(&mut self, name: &[u8], value: &[u8]) {
        let Ok(name) = HeaderName::from_bytes(name) else { return };
        let value = self.value(value);
        if let Ok(value) = HeaderValue::from_maybe_shared(value) {
            self.map.append(name, value);
        } else {
            tracing::debug!(%name, "a header that cannot be written was left out");
        }
    }

    /// Everything but pseudo headers, those of HTTP/1 connections, and the length.
    fn append_all(&mut self) {
        let from = self.from;
        for (name, value) in from.iter() {
            let skip = match name {
                [b':', ..] | [] => true,
                b"te" => value != b"trailers",
                b"connection" | b"upgrade" | b"keep-alive" | b"proxy-connection" | b"transfer-encoding"
                | b"content-length" | b"host" => true,
                _ => false,
            };
            if !skip {
                self.append(name, value);
            }
        }
    }

    fn append_length(&mut self, n: u64) {
        self.append(b"content-length", decimal(n, &mut [0; 20]));
    }

    fn into_map(self) -> http::HeaderMap {
        self.map
    }
}

/// What follows a response's head, as the method and the status decide it.
pub(super) fn response_length(head: &ResponseHead) -> Option<u64> {
    match head.framing {
        Framing::Length(n) if head.status != 204 && head.status >= 200 => Some(n),
        _ => None,
    }
}

/// `tunnel`: an upgrade was accepted; its 101 is 200 here.
pub(super) fn write_response(head: &ResponseHead, end: bool, is_head: bool, tunnel: bool) -> http::Response<()> {
    let mut writer = Writer::new(&head.headers);
    writer.append_all();
    if let Some(n) = response_length(head).filter(|n| !tunnel && (!end || is_head || *n == 0 || head.status == 304)) {
        writer.append_length(n);
    }
    let mut response = http::Response::new(());
    let status = if tunnel && head.status == 101 { 200 } else { head.status };
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY);
    *response.headers_mut() = writer.into_map();
    response
}

/// A request for an upstream; the error says what of it cannot be sent. `upgrade`: as extended CONNECT.
pub(super) fn write_request(head: &RequestHead, end: bool, upgrade: bool) -> Result<http::Request<()>, &'static str> {
    let mut writer = Writer::new(&head.headers);
    let authority = head.authority().filter(|a| !a.is_empty()).ok_or("no host")?;
    let authority = uri::Authority::from_maybe_shared(writer.value(authority)).map_err(|_| "host")?;
    let method = if upgrade { Method::CONNECT } else { Method::from_bytes(head.method()).map_err(|_| "method")? };
    let mut parts = uri::Parts::default();
    parts.authority = Some(authority);
    if method != Method::CONNECT || upgrade {
        parts.scheme = Some(if head.scheme() == b"https" { uri::Scheme::HTTPS } else { uri::Scheme::HTTP });
        let path = head.path().filter(|p| !p.is_empty()).ok_or("path")?;
        parts.path_and_query = Some(uri::PathAndQuery::from_maybe_shared(writer.value(path)).map_err(|_| "path")?);
    }
    let uri = Uri::from_parts(parts).map_err(|_| "path")?;
    writer.append_all();
    if let Framing::Length(n) = head.framing
        && !upgrade
        && method != Method::CONNECT
    {
        if end && n > 0 {
            return Err("a length without a body");
        }
        writer.append_length(n);
    }
    let mut request = http::Request::new(());
    if upgrade {
        let protocol = head.headers.get_str("upgrade").ok_or("upgrade")?;
        request.extensions_mut().insert(Protocol::from(protocol));
    }
    *request.method_mut() = method;
    *request.uri_mut() = uri;
    *request.version_mut() = http::Version::HTTP_2;
    *request.headers_mut() = writer.into_map();
    Ok(request)
}

pub(super) fn write_trailers(trailers: &HeaderMap) -> http::HeaderMap {
    let mut writer = Writer::new(trailers);
    writer.append_all();
    writer.into_map()
}
