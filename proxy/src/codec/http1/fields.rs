//! A block of header fields up to its empty line: the second part of a head, or trailers.
//!
//! httparse does the scanning. It takes bare LF as a line end, as RFC 9112 allows and Envoy does,
//! and refuses what we refuse: folded lines, bare CR, NUL and other controls, blanks before the
//! colon, empty names.

use httparse::{EMPTY_HEADER, Header, Status};
use nuncio_core::http::HeaderMap;

use super::error::FieldsError;

/// Enough for almost every head; more go through the heap.
const USUAL_FIELDS: usize = 32;

/// Gives `then` the fields of a complete block and the block's length; `None` while it is
/// incomplete. At most `max` lines.
pub(super) fn parse<T>(
    bytes: &[u8],
    max: usize,
    then: impl FnOnce(&[Header<'_>], usize) -> T,
) -> Result<Option<T>, FieldsError> {
    let mut usual = [EMPTY_HEADER; USUAL_FIELDS];
    let room = max.min(USUAL_FIELDS);
    match httparse::parse_headers(bytes, &mut usual[..room]) {
        Err(httparse::Error::TooManyHeaders) if room < max => {}
        other => return finish(bytes, other, then),
    }
    // Lines are no more than bytes, so a large limit costs only whom it lets through.
    let mut many = vec![EMPTY_HEADER; max.min(bytes.len())];
    let parsed = httparse::parse_headers(bytes, &mut many);
    finish(bytes, parsed, then)
}

fn finish<T>(
    bytes: &[u8],
    parsed: httparse::Result<(usize, &[Header<'_>])>,
    then: impl FnOnce(&[Header<'_>], usize) -> T,
) -> Result<Option<T>, FieldsError> {
    match parsed {
        Ok(Status::Complete((len, fields))) => {
            if fields.iter().any(|f| f.name.len() > usize::from(u16::MAX)) {
                return Err(FieldsError::TooLarge);
            }
            Ok(Some(then(fields, len)))
        }
        Ok(Status::Partial) => Ok(None),
        Err(httparse::Error::TooManyHeaders) => Err(FieldsError::TooMany),
        Err(httparse::Error::HeaderValue) => Err(FieldsError::Characters),
        Err(_) if has_controls(bytes) => Err(FieldsError::Characters),
        Err(_) => Err(FieldsError::Malformed),
    }
}

/// Whether the block holds a byte that no field may hold; only for the error's name.
fn has_controls(bytes: &[u8]) -> bool {
    bytes.iter().any(|&b| (b < b' ' && !matches!(b, b'\t' | b'\r' | b'\n')) || b == 0x7f)
}

/// The elements of a comma-separated list, without empty ones.
pub(super) fn tokens(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    list.split(|&b| b == b',').map(<[u8]>::trim_ascii).filter(|t| !t.is_empty())
}

pub(super) fn has_token(list: &[u8], token: &str) -> bool {
    tokens(list).any(|t| t.eq_ignore_ascii_case(token.as_bytes()))
}

/// Whether a field may stand in a trailer section. What says something about framing, routing,
/// authentication, the connection or how to read the body has no business behind it (RFC 9110
/// 6.5.1), nor has what proxies tell each other; Envoy passes everything.
pub(super) fn is_trailer(name: &[u8]) -> bool {
    const FORBIDDEN: [&str; 36] = [
        "age",
        "authorization",
        "cache-control",
        "connection",
        "content-encoding",
        "content-length",
        "content-range",
        "content-type",
        "cookie",
        "date",
        "expect",
        "expires",
        "forwarded",
        "host",
        "if-match",
        "if-modified-since",
        "if-none-match",
        "if-range",
        "if-unmodified-since",
        "keep-alive",
        "location",
        "max-forwards",
        "pragma",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "range",
        "retry-after",
        "set-cookie",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "vary",
        "warning",
        "www-authenticate",
    ];
    let begins = |prefix: &str| name.get(..prefix.len()).is_some_and(|n| n.eq_ignore_ascii_case(prefix.as_bytes()));
    !FORBIDDEN.iter().any(|f| name.eq_ignore_ascii_case(f.as_bytes()))
        && !begins(":")
        && !begins("x-forwarded-")
        && !begins("x-envoy-")
}

/// The trailers that may be passed on.
pub(super) fn allowed_trailers(fields: &[Header<'_>]) -> HeaderMap {
    fields.iter().filter(|f| is_trailer(f.name.as_bytes())).map(|f| (f.name, f.value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_fields_than_usual_go_through_the_heap_up_to_the_limit() {
        let block = |n: usize| format!("{}\r\n", "a: b\r\n".repeat(n));
        for n in [0, 1, 32, 33, 100] {
            assert_eq!(parse(block(n).as_bytes(), 100, |f, len| (f.len(), len)), Ok(Some((n, n * 6 + 2))));
        }
        assert_eq!(parse(block(101).as_bytes(), 100, |_, _| ()), Err(FieldsError::TooMany));
        assert_eq!(parse(block(11).as_bytes(), 10, |_, _| ()), Err(FieldsError::TooMany));
    }

    #[test]
    fn trailers_that_change_the_meaning_of_a_message_are_dropped() {
        let block = b"X-Sum: 1\r\nContent-Length: 9\r\nHost: evil\r\nauthorization: q\r\nX-Forwarded-For: 1\r\ngrpc-status: 0\r\n\r\n";
        let map = parse(block, 100, |f, _| allowed_trailers(f)).unwrap().unwrap();
        assert_eq!(map.iter().collect::<Vec<_>>(), [(&b"x-sum"[..], &b"1"[..]), (b"grpc-status", b"0")]);
    }
}
