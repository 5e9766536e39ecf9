//! A request's head, from bytes to [`RequestHead`].
//!
//! Envoy's rules and words for what is refused, except where Envoy lets two readers disagree:
//! blanks in the request line, two `host` lines, folded lines and bare CR are refused here.

use std::borrow::Cow;

use httparse::Header;
use nuncio_core::http::header_map::decimal;
use nuncio_core::http::{Framing, HeaderMap, RequestHead, Version};

use super::connection_field::{ConnectionTokens, remove_nominated};
use super::error::RequestError;
use super::fields;
use super::options::{ServerOptions, Underscores};
use crate::codec::syntax::{content_length, is_authority};

/// What a head says beyond [`RequestHead`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ParsedRequest {
    pub(crate) head_len: usize,
    pub(crate) keep_alive: bool,
    pub(crate) expects_continue: bool,
    pub(crate) method: MethodKind,
    /// An upgrade or CONNECT: what follows the head is not HTTP.
    pub(crate) wants_tunnel: bool,
    /// Fields that `headers_with_underscores_action` dropped.
    pub(crate) dropped_underscores: u16,
}

/// What of the method matters to framing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum MethodKind {
    #[default]
    Other,
    Head,
    Connect,
}

impl MethodKind {
    pub(super) fn of(method: &[u8]) -> Self {
        match method {
            b"HEAD" => Self::Head,
            b"CONNECT" => Self::Connect,
            _ => Self::Other,
        }
    }
}

/// Envoy 1.40 answers 400 to every other one.
const METHODS: [&str; 35] = [
    "GET",
    "POST",
    "PUT",
    "DELETE",
    "HEAD",
    "OPTIONS",
    "PATCH",
    "CONNECT",
    "TRACE",
    "ACL",
    "BIND",
    "CHECKOUT",
    "COPY",
    "LINK",
    "LOCK",
    "MERGE",
    "MKACTIVITY",
    "MKCALENDAR",
    "MKCOL",
    "MOVE",
    "MSEARCH",
    "NOTIFY",
    "PROPFIND",
    "PROPPATCH",
    "PURGE",
    "QUERY",
    "REBIND",
    "REPORT",
    "SEARCH",
    "SOURCE",
    "SUBSCRIBE",
    "UNBIND",
    "UNLINK",
    "UNLOCK",
    "UNSUBSCRIBE",
];

struct RequestLine<'b> {
    method: &'b [u8],
    target: &'b [u8],
    version: Version,
}

/// Where the request goes: the target taken apart.
struct Target<'b> {
    scheme: Option<&'static str>,
    /// From an absolute or authority form; it wins over `host`.
    authority: Option<&'b [u8]>,
    path: Option<&'b [u8]>,
}

/// The fields that are not simply passed on.
#[derive(Default)]
struct Special<'b> {
    host: Option<&'b [u8]>,
    two_hosts: bool,
    length: Option<&'b [u8]>,
    two_lengths: bool,
    transfer_encoding: Option<&'b [u8]>,
    two_transfer_encodings: bool,
    connection: ConnectionTokens,
    proxy_close: bool,
    upgrade: Option<Cow<'b, [u8]>>,
    te: &'b [u8],
    te_trailers: bool,
    expects_continue: bool,
    underscores: u16,
}

#[derive(PartialEq, Eq, Clone, Copy)]
enum Kind {
    Plain,
    Host,
    ContentLength,
    TransferEncoding,
    Connection,
    ProxyConnection,
    KeepAlive,
    Upgrade,
    Te,
    Expect,
}

/// Parses the head at the start of `bytes` into `head`; `None` while it is incomplete.
/// After an error that is not the protocol's, `head` holds what was understood; after others, anything.
pub(crate) fn parse_request(
    bytes: &[u8],
    options: &ServerOptions,
    head: &mut RequestHead,
) -> Result<Option<ParsedRequest>, RequestError> {
    let Some(start) = skip_empty_lines(bytes)? else { return size_so_far(bytes, options) };
    let rest = &bytes[start..];
    let Some(lf) = memchr::memchr(b'\n', rest) else {
        check_partial_line(rest)?;
        return size_so_far(bytes, options);
    };
    let line = parse_request_line(rest[..lf].strip_suffix(b"\r").unwrap_or(&rest[..lf]))?;
    if line.version == Version::Http10 && !options.accept_http_10 {
        return Err(RequestError::VERSION);
    }
    let target = parse_target(&line, options)?;
    let fields_at = start + lf + 1;
    let parsed = fields::parse(&bytes[fields_at..], options.max_headers, |fields, len| {
        if fields_at + len > options.max_head_bytes {
            return Err(RequestError::TOO_LARGE);
        }
        let block = &bytes[fields_at..fields_at + len];
        let parsed = read_fields(&line, &target, block, fields, options, head)?;
        Ok(ParsedRequest { head_len: fields_at + len, ..parsed })
    })?;
    match parsed {
        None => size_so_far(bytes, options),
        Some(parsed) => parsed.map(Some),
    }
}

fn size_so_far<T>(bytes: &[u8], options: &ServerOptions) -> Result<Option<T>, RequestError> {
    if bytes.len() > options.max_head_bytes { Err(RequestError::TOO_LARGE) } else { Ok(None) }
}

/// Where the request line begins.
fn skip_empty_lines(bytes: &[u8]) -> Result<Option<usize>, RequestError> {
    let mut at = 0;
    loop {
        match bytes.get(at) {
            None => return Ok(None),
            Some(b'\n') => at += 1,
            Some(b'\r') => match bytes.get(at + 1) {
                None => return Ok(None),
                Some(b'\n') => at += 2,
                Some(_) => return Err(RequestError::MALFORMED),
            },
            Some(_) => return Ok(Some(at)),
        }
    }
}

/// A line that has not ended yet is refused as soon as it cannot become one: a TLS hello, say.
fn check_partial_line(line: &[u8]) -> Result<(), RequestError> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let method = line.split(|&b| b == b' ').next().unwrap_or_default();
    let plausible = if method.len() < line.len() {
        is_method(method)
    } else {
        METHODS.iter().any(|m| m.as_bytes().starts_with(method))
    };
    if plausible && line.iter().all(|b| matches!(b, b' '..=b'~')) { Ok(()) } else { Err(RequestError::MALFORMED) }
}

fn is_method(method: &[u8]) -> bool {
    METHODS.iter().any(|m| m.as_bytes() == method)
}

fn parse_request_line(line: &[u8]) -> Result<RequestLine<'_>, RequestError> {
    let mut parts = line.split(|&b| b == b' ');
    let method = parts.next().unwrap_or_default();
    if !is_method(method) {
        return Err(RequestError::MALFORMED);
    }
    let target = parts.next().filter(|t| !t.is_empty()).ok_or(RequestError::MALFORMED)?;
    let version = match (parts.next(), parts.next()) {
        (Some(b"HTTP/1.1"), None) => Version::Http11,
        // HTTP/0.9 has no version. As Envoy, whatever is not 1.1 is an old version, or is served as 1.0.
        (None, _) => Version::Http10,
        (Some(v), None) => match v.strip_prefix(b"HTTP/") {
            Some([major, b'.', minor]) if major.is_ascii_digit() && minor.is_ascii_digit() => Version::Http10,
            _ => return Err(RequestError::MALFORMED),
        },
        _ => return Err(RequestError::MALFORMED),
    };
    if !target.iter().all(|b| matches!(b, b'!'..=b'~')) {
        let controls = target.iter().any(|&b| b < b' ' || b == 0x7f);
        return Err(if controls { RequestError::CHARACTERS } else { RequestError::MALFORMED });
    }
    Ok(RequestLine { method, target, version })
}

fn parse_target<'b>(line: &RequestLine<'b>, options: &ServerOptions) -> Result<Target<'b>, RequestError> {
    let target = line.target;
    if line.method == b"CONNECT" {
        if !is_host_and_port(target) {
            return Err(RequestError::URL);
        }
        return Ok(Target { scheme: None, authority: Some(target), path: None });
    }
    if target[0] == b'/' || (target == b"*" && line.method == b"OPTIONS") {
        return Ok(Target { scheme: None, authority: None, path: Some(target) });
    }
    if target == b"*" {
        return Err(RequestError::URL);
    }
    let Some(colon) = memchr::memmem::find(target, b"://") else { return Err(RequestError::MALFORMED) };
    if !options.allow_absolute_url {
        // The manager answers 404 to a path without a slash, as it does to `*`.
        return Ok(Target { scheme: None, authority: None, path: Some(target) });
    }
    let scheme = match &target[..colon] {
        s if s.eq_ignore_ascii_case(b"http") => "http",
        s if s.eq_ignore_ascii_case(b"https") => "https",
        _ => return Err(RequestError::SCHEME),
    };
    let rest = &target[colon + 3..];
    let end = rest.iter().position(|b| matches!(b, b'/' | b'?' | b'#')).unwrap_or(rest.len());
    let authority = &rest[..end];
    let authority = memchr::memrchr(b'@', authority).map_or(authority, |at| &authority[at + 1..]);
    if authority.is_empty() {
        return Err(RequestError::URL);
    }
    let path = if end == rest.len() { b"/" } else { &rest[end..] };
    Ok(Target { scheme: Some(scheme), authority: Some(authority), path: Some(path) })
}

/// The target of CONNECT: `host:port`, with an IPv6 host in brackets.
fn is_host_and_port(target: &[u8]) -> bool {
    let Some(colon) = memchr::memrchr(b':', target) else { return false };
    let (host, port) = (&target[..colon], &target[colon + 1..]);
    let port_ok = content_length(port).is_some_and(|p| u16::try_from(p).is_ok());
    let host_ok = if host.first() == Some(&b'[') {
        host.last() == Some(&b']') && host.len() > 2
    } else {
        !host.is_empty() && !host.contains(&b':')
    };
    port_ok && host_ok && is_authority(target)
}

fn read_fields(
    line: &RequestLine<'_>,
    target: &Target<'_>,
    block: &[u8],
    fields: &[Header<'_>],
    options: &ServerOptions,
    head: &mut RequestHead,
) -> Result<ParsedRequest, RequestError> {
    let special = collect_special(fields, options)?;
    special.connection.check()?;
    let framing = framing(line, &special, options)?;
    let authority = authority(line, target, &special, options)?;

    head.clear();
    head.version = line.version;
    head.framing = framing;
    let map = &mut head.headers;
    options.header_case.keep(map, fields.iter().map(|f| f.name), b"");
    map.append_lower(":method", line.method);
    if let Some(scheme) = target.scheme {
        map.append_lower(":scheme", scheme);
    }
    if let Some(path) = target.path {
        map.append_lower(":path", path);
    }
    if let Some(authority) = authority {
        map.append_lower(":authority", authority);
    }
    append_plain(block, fields, &special, framing, options, map);
    nominated(fields, &special, map)?;
    if authority.is_none() {
        return Err(RequestError::NO_HOST);
    }
    let keep_alive = match line.version {
        Version::Http10 => special.connection.keep_alive,
        _ => !special.connection.close,
    };
    Ok(ParsedRequest {
        head_len: 0,
        keep_alive: keep_alive && !special.proxy_close,
        expects_continue: special.expects_continue && line.version == Version::Http11,
        method: MethodKind::of(line.method),
        wants_tunnel: special.is_upgrade() || line.method == b"CONNECT",
        dropped_underscores: special.underscores,
    })
}

fn kind(name: &str) -> Kind {
    let is = |other: &str| name.eq_ignore_ascii_case(other);
    match name.len() {
        2 if is("te") => Kind::Te,
        4 if is("host") => Kind::Host,
        6 if is("expect") => Kind::Expect,
        7 if is("upgrade") => Kind::Upgrade,
        10 if is("connection") => Kind::Connection,
        10 if is("keep-alive") => Kind::KeepAlive,
        14 if is("content-length") => Kind::ContentLength,
        16 if is("proxy-connection") => Kind::ProxyConnection,
        17 if is("transfer-encoding") => Kind::TransferEncoding,
        _ => Kind::Plain,
    }
}

fn collect_special<'b>(fields: &[Header<'b>], options: &ServerOptions) -> Result<Special<'b>, RequestError> {
    let mut s = Special::default();
    for field in fields {
        let value = field.value;
        match kind(field.name) {
            Kind::Plain => {
                if options.underscores != Underscores::Allow && field.name.contains('_') {
                    if options.underscores == Underscores::Reject {
                        return Err(RequestError::UNDERSCORE);
                    }
                    s.underscores = s.underscores.saturating_add(1);
                }
            }
            Kind::Host => s.two_hosts |= s.host.replace(value).is_some(),
            Kind::ContentLength => s.two_lengths |= s.length.replace(value).is_some(),
            Kind::TransferEncoding => s.two_transfer_encodings |= s.transfer_encoding.replace(value).is_some(),
            Kind::Connection => s.connection.add(value),
            Kind::ProxyConnection => s.proxy_close |= fields::has_token(value, "close"),
            Kind::KeepAlive => {}
            Kind::Upgrade => {
                let offered = offered(value, options);
                if !offered.is_empty() {
                    s.upgrade = Some(offered);
                }
            }
            Kind::Te => {
                s.te = value;
                s.te_trailers |= fields::has_token(value, "trailers");
            }
            Kind::Expect => s.expects_continue |= value.eq_ignore_ascii_case(b"100-continue"),
        }
    }
    Ok(s)
}

/// What `upgrade` offers, without what is to be ignored.
fn offered<'b>(value: &'b [u8], options: &ServerOptions) -> Cow<'b, [u8]> {
    let ignored = |protocol: &[u8]| options.ignored_upgrades.iter().any(|matcher| matcher.matches(protocol));
    if options.ignored_upgrades.is_empty() || !fields::tokens(value).any(ignored) {
        return value.into();
    }
    let left: Vec<&[u8]> = fields::tokens(value).filter(|protocol| !ignored(protocol)).collect();
    left.join(&b", "[..]).into()
}

impl Special<'_> {
    /// An upgrade as Envoy sees one; `h2c` is not, and goes on as plain HTTP/1.1.
    fn is_upgrade(&self) -> bool {
        self.connection.upgrade && self.upgrade.as_ref().is_some_and(|u| !u.eq_ignore_ascii_case(b"h2c"))
    }
}

fn framing(line: &RequestLine<'_>, s: &Special<'_>, options: &ServerOptions) -> Result<Framing, RequestError> {
    let connect = line.method == b"CONNECT";
    let length = match s.length {
        None => None,
        Some(_) if s.two_lengths => return Err(RequestError::MALFORMED),
        Some(value) => Some(content_length(value).ok_or(RequestError::MALFORMED)?),
    };
    if connect && length.is_some_and(|n| n != 0) {
        return Err(RequestError::BODY_DISALLOWED);
    }
    let Some(encoding) = s.transfer_encoding else {
        return Ok(length.filter(|_| !connect).map_or(Framing::None, Framing::Length));
    };
    let chunked = !s.two_transfer_encodings && encoding.eq_ignore_ascii_case(b"chunked");
    if length.is_some() && !(chunked && options.allow_chunked_length) {
        return Err(RequestError::LENGTH_AND_CHUNKED);
    }
    if !chunked || connect {
        return Err(RequestError::TRANSFER_ENCODING);
    }
    if line.version == Version::Http10 {
        // Envoy reads it; but an HTTP/1.0 hop before us did not, so where it ends is not sure.
        return Err(RequestError::MALFORMED);
    }
    Ok(Framing::Streamed)
}

fn authority<'b>(
    line: &RequestLine<'_>,
    target: &Target<'b>,
    s: &Special<'b>,
    options: &'b ServerOptions,
) -> Result<Option<&'b [u8]>, RequestError> {
    if s.two_hosts {
        return Err(RequestError::AUTHORITY);
    }
    let default = options.default_host_for_http_10.as_deref().filter(|_| line.version == Version::Http10);
    let authority = target.authority.or(s.host).or(default.map(str::as_bytes));
    match authority {
        Some(a) if !is_authority(a) => Err(RequestError::AUTHORITY),
        other => Ok(other),
    }
}

/// Appends what is passed on: not hop-by-hop fields, and of `te` only `trailers`.
fn append_plain<'b>(
    block: &'b [u8],
    fields: &[Header<'b>],
    s: &Special<'b>,
    framing: Framing,
    options: &ServerOptions,
    map: &mut HeaderMap,
) {
    let mut map = map.adopt(block);
    let drop_underscores = s.underscores > 0;
    let h2c = s.connection.upgrade && !s.is_upgrade();
    for field in fields {
        match kind(field.name) {
            Kind::Plain if drop_underscores && field.name.contains('_') => {}
            Kind::Plain if h2c && field.name.eq_ignore_ascii_case("http2-settings") => {}
            Kind::Plain => map.field(field.name.as_bytes(), field.value),
            Kind::ContentLength => {
                // For logs and matchers; what is written anew comes from the framing.
                if let Framing::Length(n) = framing {
                    map.append("content-length", decimal(n, &mut [0; 20]));
                }
            }
            Kind::Connection if s.is_upgrade() => {
                let upgrade = fields::tokens(field.value).find(|t| t.eq_ignore_ascii_case(b"upgrade"));
                if let Some(token) = upgrade {
                    map.append("connection", token);
                }
            }
            Kind::Upgrade if s.is_upgrade() => {
                let offered = offered(field.value, options);
                if !offered.is_empty() {
                    map.append("upgrade", offered);
                }
            }
            Kind::Expect if options.proxy_100_continue || !field.value.eq_ignore_ascii_case(b"100-continue") => {
                map.append("expect", field.value);
            }
            _ => {}
        }
    }
    if s.te_trailers {
        map.append("te", "trailers");
    }
}

fn nominated(fields: &[Header<'_>], s: &Special<'_>, map: &mut HeaderMap) -> Result<(), RequestError> {
    if !s.connection.nominates {
        return Ok(());
    }
    for field in fields.iter().filter(|f| kind(f.name) == Kind::Connection) {
        remove_nominated(field.value, map, s.te)?;
    }
    Ok(())
}
