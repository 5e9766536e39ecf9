//! Heads, from our types to bytes.
//!
//! Framing is written from [`Framing`] alone. Every byte of a method, path, name or value is
//! looked at again before it is written: whatever a filter, an authorizer or an HTTP/2 client
//! put into a head, it cannot end a line.

use nuncio_core::http::header_map::{NameList, decimal, has_controls, is_usual_name};
use nuncio_core::http::{Framing, HeaderMap, RequestHead, ResponseHead, Version};

use super::fields;
use super::header_case::{HeaderCase, Names};
use super::request::MethodKind;
use crate::codec::syntax::{is_token, is_visible};

/// What may still be written after a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Outgoing {
    /// The message is complete.
    #[default]
    Done,
    /// So many bytes.
    Length(u64),
    Chunked,
    /// Ended by closing the connection.
    UntilClose,
    /// A response without body (HEAD, 204, 304): what the caller sends is not written.
    Discard,
    /// An upgrade or CONNECT: bytes as they are.
    Tunnel,
}

/// A head that may not be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unwritable(pub(crate) &'static str);

/// Which response this is, as far as the request decides it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Answering {
    pub(crate) method: MethodKind,
    pub(crate) version: Version,
}

pub(crate) fn request_head(
    out: &mut Vec<u8>,
    head: &RequestHead,
    end: bool,
    upgrade: bool,
    case: HeaderCase,
) -> Result<Outgoing, Unwritable> {
    let start = out.len();
    let written = write_request_head(out, head, end, upgrade, Names::of(&head.headers, case));
    if written.is_err() {
        out.truncate(start);
    }
    written
}

fn write_request_head(
    out: &mut Vec<u8>,
    head: &RequestHead,
    end: bool,
    upgrade: bool,
    names: Names<'_>,
) -> Result<Outgoing, Unwritable> {
    let method = head.method();
    if method.is_empty() || !method.iter().all(|&b| is_token(b)) {
        return Err(Unwritable("method"));
    }
    let kind = MethodKind::of(method);
    let authority = head.authority().ok_or(Unwritable("no host"))?;
    if !authority.iter().all(|&b| is_visible(b)) {
        return Err(Unwritable("host"));
    }
    let target = if kind == MethodKind::Connect { authority } else { head.path().unwrap_or_default() };
    if target.is_empty() || !target.iter().all(|&b| is_visible(b)) {
        return Err(Unwritable("path"));
    }
    out.extend_from_slice(method);
    out.push(b' ');
    out.extend_from_slice(target);
    out.extend_from_slice(b" HTTP/1.1\r\n");
    names.write(out, b"host");
    out.extend_from_slice(b": ");
    out.extend_from_slice(authority);
    out.extend_from_slice(b"\r\n");
    let mut unwritable = None;
    write_passing(out, &head.headers, names, rebuilt(upgrade), |_, e| {
        unwritable.get_or_insert(e);
    });
    if let Some(e) = unwritable {
        return Err(e);
    }
    let outgoing = if upgrade || kind == MethodKind::Connect {
        Outgoing::Tunnel
    } else {
        request_framing(out, head.framing, method, end, names)?
    };
    out.extend_from_slice(b"\r\n");
    Ok(outgoing)
}

fn request_framing(
    out: &mut Vec<u8>,
    framing: Framing,
    method: &[u8],
    end: bool,
    names: Names<'_>,
) -> Result<Outgoing, Unwritable> {
    match framing {
        Framing::Length(n) if end && n > 0 => Err(Unwritable("a length without a body")),
        Framing::Length(n) => {
            write_length(out, n, names);
            Ok(if n == 0 { Outgoing::Done } else { Outgoing::Length(n) })
        }
        _ if end => {
            // As Envoy: an explicit zero, except for the methods that hardly ever have a body.
            if !matches!(method, b"GET" | b"HEAD" | b"DELETE" | b"TRACE") {
                write_length(out, 0, names);
            }
            Ok(Outgoing::Done)
        }
        _ => {
            write_chunked(out, names);
            Ok(Outgoing::Chunked)
        }
    }
}

/// Writes a response's head; what cannot be written in a field is left out. `close` and `tunnel`
/// are the caller's; says how the body is to be written, and whether it ends by closing.
pub(crate) fn response_head(
    out: &mut Vec<u8>,
    head: &ResponseHead,
    answering: Answering,
    end: bool,
    mut close: bool,
    tunnel: bool,
    case: HeaderCase,
) -> (Outgoing, bool) {
    let names = Names::of(&head.headers, case);
    write_status_line(out, head.status, answering.version, names);
    write_fields(out, &head.headers, tunnel, names);
    let outgoing = response_framing(out, head, answering, end, tunnel, names);
    let http10 = answering.version == Version::Http10;
    // As Envoy: to HTTP/1.0, a response without a length is ended by closing, also one without body.
    close |= http10 && !(outgoing == Outgoing::Done || has_length(head, outgoing));
    if !tunnel {
        if close {
            names.write(out, b"connection");
            out.extend_from_slice(b": close\r\n");
        } else if http10 {
            names.write(out, b"connection");
            out.extend_from_slice(b": keep-alive\r\n");
        }
    }
    out.extend_from_slice(b"\r\n");
    (outgoing, close)
}

fn has_length(head: &ResponseHead, outgoing: Outgoing) -> bool {
    match outgoing {
        Outgoing::Length(_) => true,
        Outgoing::Discard => head.status != 204 && matches!(head.framing, Framing::Length(_)),
        _ => false,
    }
}

fn response_framing(
    out: &mut Vec<u8>,
    head: &ResponseHead,
    answering: Answering,
    end: bool,
    tunnel: bool,
    names: Names<'_>,
) -> Outgoing {
    if tunnel {
        return Outgoing::Tunnel;
    }
    if head.status == 204 {
        return Outgoing::Discard;
    }
    let http10 = answering.version == Version::Http10;
    let is_head = answering.method == MethodKind::Head;
    if is_head || head.status == 304 {
        match head.framing {
            Framing::Length(n) => write_length(out, n, names),
            // As Envoy: a guess at what GET would have got.
            _ if is_head && !http10 && head.status != 304 => write_chunked(out, names),
            _ => {}
        }
        return Outgoing::Discard;
    }
    match head.framing {
        Framing::Length(n) if !end && n > 0 => {
            write_length(out, n, names);
            Outgoing::Length(n)
        }
        Framing::Length(0) => {
            write_length(out, 0, names);
            Outgoing::Done
        }
        _ if end => {
            write_length(out, 0, names);
            Outgoing::Done
        }
        _ if http10 => Outgoing::UntilClose,
        _ => {
            write_chunked(out, names);
            Outgoing::Chunked
        }
    }
}

/// An interim response (1xx): no framing, no decision about the connection.
pub(crate) fn interim_head(out: &mut Vec<u8>, head: &ResponseHead, case: HeaderCase) {
    let names = Names::of(&head.headers, case);
    write_status_line(out, head.status, Version::Http11, names);
    write_fields(out, &head.headers, false, names);
    out.extend_from_slice(b"\r\n");
}

/// The last chunk and the trailer section.
pub(crate) fn trailers(out: &mut Vec<u8>, trailers: &HeaderMap, case: HeaderCase) {
    out.extend_from_slice(b"0\r\n");
    let names = Names::of(trailers, case);
    for (name, value) in trailers.iter().filter(|(name, _)| fields::is_trailer(name)) {
        // Its own checks leave nothing half-written.
        let _ = write_field(out, name, value, names);
    }
    out.extend_from_slice(b"\r\n");
}

/// The line before a chunk's data, in `buf`.
pub(crate) fn chunk_line(len: usize, buf: &mut [u8; 18]) -> &[u8] {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    buf[16..].copy_from_slice(b"\r\n");
    let (mut n, mut at) = (len, 16);
    loop {
        at -= 1;
        buf[at] = HEX[n & 15];
        n >>= 4;
        if n == 0 {
            return &buf[at..];
        }
    }
}

fn write_fields(out: &mut Vec<u8>, headers: &HeaderMap, upgrade: bool, names: Names<'_>) {
    write_passing(out, headers, names, rebuilt(upgrade), |name, Unwritable(what)| {
        // A field that cannot be written is worth less than a response.
        tracing::debug!(name = %name.escape_ascii(), "a field that cannot be written was left out: {what}");
    });
}

/// Writes the fields, but those that are `rebuilt`. A line that was checked when it was read, and not changed since, is copied.
fn write_passing(
    out: &mut Vec<u8>,
    headers: &HeaderMap,
    names: Names<'_>,
    rebuilt: &NameList,
    mut unwritable: impl FnMut(&[u8], Unwritable),
) {
    if names.are_lower() {
        headers.write_lines(out, rebuilt, |out, name, value| {
            if let Err(e) = write_field(out, name, value, names) {
                unwritable(name, e);
            }
        });
        return;
    }
    for (name, value) in headers.iter_without(rebuilt) {
        if let Err(e) = write_field(out, name, value, names) {
            unwritable(name, e);
        }
    }
}

/// Fields that this codec writes from what it knows, or does not pass on.
fn rebuilt(upgrade: bool) -> &'static NameList {
    static ALWAYS: NameList =
        NameList::new(&["content-length", "host", "keep-alive", "proxy-connection", "transfer-encoding"]);
    static UNLESS_UPGRADED: NameList = NameList::new(&[
        "connection",
        "content-length",
        "host",
        "keep-alive",
        "proxy-connection",
        "transfer-encoding",
        "upgrade",
    ]);
    if upgrade { &ALWAYS } else { &UNLESS_UPGRADED }
}

fn write_field(out: &mut Vec<u8>, name: &[u8], value: &[u8], names: Names<'_>) -> Result<(), Unwritable> {
    if !is_name(name) {
        return Err(Unwritable("header name"));
    }
    if has_controls(value) {
        return Err(Unwritable("header value"));
    }
    out.reserve(name.len() + value.len() + 4);
    names.write(out, name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
    Ok(())
}

/// A token (RFC 9110 5.6.2).
fn is_name(name: &[u8]) -> bool {
    is_usual_name(name) || (!name.is_empty() && name.iter().all(|&b| is_token(b)))
}

fn write_length(out: &mut Vec<u8>, n: u64, names: Names<'_>) {
    names.write(out, b"content-length");
    out.extend_from_slice(b": ");
    out.extend_from_slice(decimal(n, &mut [0; 20]));
    out.extend_from_slice(b"\r\n");
}

fn write_chunked(out: &mut Vec<u8>, names: Names<'_>) {
    names.write(out, b"transfer-encoding");
    out.extend_from_slice(b": chunked\r\n");
}

fn write_status_line(out: &mut Vec<u8>, status: u16, version: Version, names: Names<'_>) {
    let version: &[u8] = if version == Version::Http10 { b"HTTP/1.0 " } else { b"HTTP/1.1 " };
    out.extend_from_slice(version);
    out.extend_from_slice(decimal(u64::from(status), &mut [0; 20]));
    out.push(b' ');
    out.extend_from_slice(names.reason().unwrap_or(reason(status).as_bytes()));
    out.extend_from_slice(b"\r\n");
}

/// Envoy's phrases; it calls every other status Unknown.
pub(crate) fn reason(status: u16) -> &'static str {
    match status {
        100 => "Continue",
        101 => "Switching Protocols",
        200 => "OK",
        201 => "Created",
        202 => "Accepted",
        203 => "Non-Authoritative Information",
        204 => "No Content",
        205 => "Reset Content",
        206 => "Partial Content",
        207 => "Multi-Status",
        208 => "Already Reported",
        226 => "IM Used",
        300 => "Multiple Choices",
        301 => "Moved Permanently",
        302 => "Found",
        303 => "See Other",
        304 => "Not Modified",
        305 => "Use Proxy",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        402 => "Payment Required",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        406 => "Not Acceptable",
        407 => "Proxy Authentication Required",
        408 => "Request Timeout",
        409 => "Conflict",
        410 => "Gone",
        411 => "Length Required",
        412 => "Precondition Failed",
        413 => "Payload Too Large",
        414 => "URI Too Long",
        415 => "Unsupported Media Type",
        416 => "Range Not Satisfiable",
        417 => "Expectation Failed",
        421 => "Misdirected Request",
        422 => "Unprocessable Entity",
        423 => "Locked",
        424 => "Failed Dependency",
        426 => "Upgrade Required",
        428 => "Precondition Required",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        506 => "Variant Also Negotiates",
        507 => "Insufficient Storage",
        508 => "Loop Detected",
        510 => "Not Extended",
        511 => "Network Authentication Required",
        599 => "Last Unassigned Server Error Code",
        _ => "Unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::{is_name, is_token};

    #[test]
    fn a_byte_that_no_name_holds_is_found_wherever_it_stands() {
        for len in 1..20 {
            for at in 0..len {
                for byte in 0..=255u8 {
                    let mut name = vec![b'x'; len];
                    name[at] = byte;
                    assert_eq!(is_name(&name), is_token(byte), "{byte} at {at} of {len}");
                }
            }
        }
        assert!(!is_name(b""));
    }
}
