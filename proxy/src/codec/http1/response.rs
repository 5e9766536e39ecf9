//! A response's head, from bytes to [`ResponseHead`].
//!
//! An upstream that says two things about its framing is not believed: its response becomes 502
//! and its connection is not used again. Stricter than Envoy in four places: folded lines, bare
//! CR, blanks in the status line, and a 101 that nobody asked for.

use httparse::Header;
use nuncio_core::http::header_map::decimal;
use nuncio_core::http::{Framing, ResponseHead, Version};

use super::connection_field::ConnectionTokens;
use super::error::UpstreamError;
use super::fields;
use super::options::ClientOptions;
use super::request::MethodKind;

/// What was asked, as far as it decides how the answer is framed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Asked {
    pub(crate) method: MethodKind,
    pub(crate) upgrade: bool,
}

/// What a head says beyond [`ResponseHead`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ParsedResponse {
    pub(crate) head_len: usize,
    pub(crate) keep_alive: bool,
    /// How the body that really follows is framed; `head.framing` tells what the fields say, which
    /// for HEAD and 304 is about a body that does not follow.
    pub(crate) body: Framing,
    /// The connection is a tunnel from here on.
    pub(crate) tunnel: bool,
}

#[derive(Default)]
struct Special<'b> {
    length: Option<&'b [u8]>,
    two_lengths: bool,
    transfer_encoding: Option<&'b [u8]>,
    two_transfer_encodings: bool,
    connection: ConnectionTokens,
}

#[derive(PartialEq, Eq, Clone, Copy)]
enum Kind {
    Plain,
    ContentLength,
    TransferEncoding,
    Connection,
    Upgrade,
    HopByHop,
}

#[inline]
fn kind(name: &str) -> Kind {
    let is = |other: &str| name.eq_ignore_ascii_case(other);
    match name.len() {
        7 if is("upgrade") => Kind::Upgrade,
        10 if is("connection") => Kind::Connection,
        10 if is("keep-alive") => Kind::HopByHop,
        14 if is("content-length") => Kind::ContentLength,
        16 if is("proxy-connection") => Kind::HopByHop,
        17 if is("transfer-encoding") => Kind::TransferEncoding,
        _ => Kind::Plain,
    }
}

/// Parses the head at the start of `bytes` into `head`; `None` while it is incomplete.
pub(crate) fn parse_response(
    bytes: &[u8],
    asked: Asked,
    options: &ClientOptions,
    head: &mut ResponseHead,
) -> Result<Option<ParsedResponse>, UpstreamError> {
    let Some(lf) = memchr::memchr(b'\n', bytes) else {
        let prefix = b"HTTP/1.";
        let n = bytes.len().min(prefix.len());
        if bytes[..n] != prefix[..n] {
            return Err(UpstreamError::Protocol("no HTTP/1 status line"));
        }
        return size_so_far(bytes, options);
    };
    let (version, status, reason) = parse_status_line(bytes[..lf].strip_suffix(b"\r").unwrap_or(&bytes[..lf]))?;
    let fields_at = lf + 1;
    let parsed = fields::parse(&bytes[fields_at..], options.max_headers, |fields, len| {
        if fields_at + len > options.max_head_bytes {
            return Err(UpstreamError::Protocol("headers too large"));
        }
        head.clear();
        head.status = status;
        head.version = version;
        options.header_case.keep(&mut head.headers, fields.iter().map(|f| f.name), reason);
        let block = &bytes[fields_at..fields_at + len];
        let parsed = read_fields(block, fields, asked, options, head)?;
        Ok(ParsedResponse { head_len: fields_at + len, ..parsed })
    })?;
    match parsed {
        None => size_so_far(bytes, options),
        Some(parsed) => parsed.map(Some),
    }
}

fn size_so_far<T>(bytes: &[u8], options: &ClientOptions) -> Result<Option<T>, UpstreamError> {
    if bytes.len() > options.max_head_bytes { Err(UpstreamError::Protocol("headers too large")) } else { Ok(None) }
}

/// The phrase is dropped, as Envoy does, unless a formatter of names passes it on.
fn parse_status_line(line: &[u8]) -> Result<(Version, u16, &[u8]), UpstreamError> {
    const BAD: UpstreamError = UpstreamError::Protocol("malformed status line");
    let (minor, rest) = match line.strip_prefix(b"HTTP/1.") {
        Some([minor, b' ', rest @ ..]) if minor.is_ascii_digit() => (*minor, rest),
        _ => return Err(BAD),
    };
    let (code, reason) = rest.split_at_checked(3).ok_or(BAD)?;
    if !matches!(reason.first(), None | Some(b' ')) || reason.iter().any(|&b| (b < b' ' && b != b'\t') || b == 0x7f) {
        return Err(BAD);
    }
    let status = crate::codec::syntax::content_length(code)
        .and_then(|n| u16::try_from(n).ok())
        .filter(|&n| n >= 100)
        .ok_or(BAD)?;
    let phrase = reason.strip_prefix(b" ").unwrap_or_default();
    Ok((if minor == b'0' { Version::Http10 } else { Version::Http11 }, status, phrase))
}

fn read_fields(
    block: &[u8],
    fields: &[Header<'_>],
    asked: Asked,
    options: &ClientOptions,
    head: &mut ResponseHead,
) -> Result<ParsedResponse, UpstreamError> {
    let mut s = Special::default();
    // One bit for each of the first fields that is not plain.
    let mut noted = 0u64;
    for (i, field) in fields.iter().enumerate() {
        let kind = kind(field.name);
        if kind != Kind::Plain && i < 64 {
            noted |= 1 << i;
        }
        match kind {
            Kind::ContentLength => s.two_lengths |= s.length.replace(field.value).is_some(),
            Kind::TransferEncoding => s.two_transfer_encodings |= s.transfer_encoding.replace(field.value).is_some(),
            Kind::Connection => s.connection.add(field.value),
            _ => {}
        }
    }
    let connected = asked.method == MethodKind::Connect && (200..300).contains(&head.status);
    let switched = head.status == 101 && asked.upgrade;
    if head.status == 101 && !switched {
        return Err(UpstreamError::Protocol("101 without a request for it"));
    }
    let tunnel = connected || switched;
    head.framing = framing(&s, head.status, tunnel, options)?;
    let mut headers = head.headers.adopt(block);
    for (i, field) in fields.iter().enumerate() {
        let kind = if i < 64 && noted & (1 << i) == 0 { Kind::Plain } else { kind(field.name) };
        match kind {
            Kind::Plain => headers.field(field.name.as_bytes(), field.value),
            Kind::ContentLength => {
                if let Framing::Length(n) = head.framing {
                    headers.append("content-length", decimal(n, &mut [0; 20]));
                }
            }
            Kind::Upgrade | Kind::Connection if switched => headers.append(field.name, field.value),
            _ => {}
        }
    }
    let bodiless = tunnel || asked.method == MethodKind::Head || head.status < 200 || matches!(head.status, 204 | 304);
    Ok(ParsedResponse {
        head_len: 0,
        keep_alive: match head.version {
            Version::Http10 => s.connection.keep_alive && !s.connection.close,
            _ => !s.connection.close,
        },
        body: if bodiless { Framing::None } else { head.framing },
        tunnel,
    })
}

fn framing(s: &Special<'_>, status: u16, tunnel: bool, options: &ClientOptions) -> Result<Framing, UpstreamError> {
    let length = match s.length {
        None => None,
        Some(_) if s.two_lengths => return Err(UpstreamError::Protocol("two content-length fields")),
        Some(value) => Some(
            crate::codec::syntax::content_length(value)
                .ok_or(UpstreamError::Protocol("content-length is no number"))?,
        ),
    };
    let chunked = match s.transfer_encoding {
        None => false,
        Some(v) if !s.two_transfer_encodings && v.eq_ignore_ascii_case(b"chunked") => true,
        Some(_) => return Err(UpstreamError::Protocol("transfer-encoding other than chunked")),
    };
    if chunked && length.is_some() && !options.allow_chunked_length {
        return Err(UpstreamError::Protocol("content-length and transfer-encoding"));
    }
    if status < 200 || status == 204 {
        if chunked || length.is_some_and(|n| n != 0) {
            return Err(UpstreamError::Protocol("a body where there is none"));
        }
        return Ok(Framing::None);
    }
    Ok(match length {
        _ if tunnel => Framing::None,
        _ if chunked => Framing::Streamed,
        Some(n) => Framing::Length(n),
        None => Framing::UntilClose,
    })
}
