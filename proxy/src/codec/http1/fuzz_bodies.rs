//! What must hold for any bytes, as plain functions: `proxy/fuzz` feeds them with what a fuzzer
//! finds, and a test with the corpus beside it and with mutations of that corpus.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use nuncio_core::http::{HeaderMap, RequestHead, ResponseHead};
use nuncio_core::net::{Io, Stream};

use super::chunked::{ChunkDecoder, Until};
use super::encode;
use super::header_case::HeaderCase;
use super::options::{ClientOptions, ServerOptions};
use super::request::{MethodKind, parse_request};
use super::response::{Asked, parse_response};
use super::{ClientConn, ServerConn};
use crate::codec::{Body, Buffers};

/// A head that is accepted is accepted from every longer prefix on, with the same length; written
/// for an upstream it is one head that reads as the same.
pub fn request_head(data: &[u8]) {
    for options in option_sets() {
        let mut head = RequestHead::default();
        let Ok(Some(parsed)) = parse_request(data, &options, &mut head) else { continue };
        assert!(parsed.head_len <= data.len() && parsed.head_len <= options.max_head_bytes);
        let mut again = RequestHead::default();
        let exact = parse_request(&data[..parsed.head_len], &options, &mut again);
        assert_eq!(exact.ok().flatten(), Some(parsed));
        assert_eq!(fields(&head.headers), fields(&again.headers));
        let shorter = parse_request(&data[..parsed.head_len - 1], &options, &mut again);
        assert!(!matches!(shorter, Ok(Some(_))), "a head ends where it ends");

        if parsed.method == MethodKind::Connect || head.path().is_none_or(|p| p[0] != b'/') {
            continue;
        }
        let mut wire = Vec::new();
        if encode::request_head(&mut wire, &head, head.framing.is_none(), false, HeaderCase::Lower).is_err() {
            // Only what HTTP/1 itself let in may be unwritable: nothing.
            panic!("accepted and not writable: {}", data.escape_ascii());
        }
        let (request, rest) = strict::request_head(&wire).expect("what we write is a request");
        assert!(rest.is_empty());
        assert_eq!(request.method, head.method());
        assert_eq!(Some(request.target), head.path());
        assert_eq!(Some(request.host), head.authority());
    }
}

/// The same for responses, to each kind of request.
pub fn response_head(data: &[u8]) {
    for method in [MethodKind::Other, MethodKind::Head, MethodKind::Connect] {
        for upgrade in [false, true] {
            let (asked, options) = (Asked { method, upgrade }, ClientOptions::default());
            let mut head = ResponseHead::default();
            let Ok(Some(parsed)) = parse_response(data, asked, &options, &mut head) else { continue };
            assert!(parsed.head_len <= data.len() && (100..1000).contains(&head.status));
            let mut again = ResponseHead::default();
            let exact = parse_response(&data[..parsed.head_len], asked, &options, &mut again);
            assert_eq!(exact.ok().flatten(), Some(parsed));
            assert_eq!((again.status, fields(&again.headers)), (head.status, fields(&head.headers)));
            let mut wire = Vec::new();
            let answering = encode::Answering { method, ..encode::Answering::default() };
            encode::response_head(&mut wire, &head, answering, true, false, false, HeaderCase::Lower);
            // Reads as one head, and nothing of it was refused.
            if head.status >= 200 {
                let other = Asked { method: MethodKind::Head, upgrade: false };
                let written = parse_response(&wire, other, &options, &mut again);
                assert!(matches!(written, Ok(Some(p)) if p.head_len == wire.len()), "{}", wire.escape_ascii());
            }
        }
    }
}

/// A chunked body is the same however it is split.
pub fn chunked(data: &[u8]) {
    let whole = decode(data, usize::MAX);
    assert_eq!(whole, decode(data, 1));
    assert_eq!(whole, decode(data, 7));
    if let Some((body, consumed, _)) = whole {
        assert!(body.len() <= consumed && consumed <= data.len());
    }
}

fn decode(data: &[u8], step: usize) -> Option<(Vec<u8>, usize, Until)> {
    let mut decoder = ChunkDecoder::new();
    let (mut body, mut consumed, mut until) = (Vec::new(), 0, Until::More);
    for part in data.chunks(step.min(data.len().max(1))) {
        let mut part = part.to_vec();
        let decoded = decoder.decode(&mut part).ok()?;
        body.extend_from_slice(&part[..decoded.data]);
        consumed += decoded.consumed;
        until = decoded.until;
        if until != Until::More {
            break;
        }
    }
    // Whether more is awaited or a trailer section, only the next byte tells.
    if consumed == data.len() && until == Until::Trailers {
        until = Until::More;
    }
    Some((body, consumed, until))
}

/// The property against smuggling: each request that a connection accepts becomes bytes in which a
/// strict reader finds exactly one request, with the same body; one whose body is refused becomes
/// bytes in which it finds none. The first byte says in what pieces the rest arrives.
pub fn round_trip(data: &[u8]) {
    let Some((&step, data)) = data.split_first() else { return };
    let whole = forwarded(data, usize::MAX);
    assert_eq!(whole, forwarded(data, usize::from(step).max(1)), "the pieces in which bytes arrive do not matter");
}

/// What an upstream gets for a request: head, and body without framing.
type Forwarded = (Vec<u8>, Vec<u8>);

/// What upstreams get for each request, and whether the last one was refused.
fn forwarded(data: &[u8], step: usize) -> (Vec<Forwarded>, bool) {
    let options = Rc::new(ServerOptions { enable_trailers: true, ..ServerOptions::default() });
    let downstream = Canned::new(data, step);
    let mut conn = ServerConn::new(downstream.io(), Vec::new(), options);
    let (buffers, mut scratch) = (Buffers::default(), vec![0; 4096]);
    let mut head = RequestHead::default();
    let mut requests = Vec::new();
    let cx = &mut Context::from_waker(Waker::noop());
    loop {
        match conn.poll_request(cx, &buffers, &mut scratch, &mut head) {
            Poll::Ready(Ok(Some(()))) => {}
            Poll::Ready(Err(_)) => return (requests, true),
            _ => return (requests, false),
        }
        if MethodKind::of(head.method()) == MethodKind::Connect || head.path().is_none_or(|p| p[0] != b'/') {
            return (requests, false);
        }
        let upstream = Canned::new(b"", 1);
        let (body, complete) = forward(&mut conn, &head, &upstream, &buffers, &mut scratch);
        let wire = upstream.wrote();
        match strict::request(&wire) {
            Ok((request, rest)) => {
                assert!(complete, "an incomplete request went out as a complete one: {}", wire.escape_ascii());
                assert!(rest.is_empty(), "more than one request: {}", wire.escape_ascii());
                assert_eq!(request.body, body);
            }
            Err(why) => assert!(!complete && why == strict::INCOMPLETE, "{why}: {}", wire.escape_ascii()),
        }
        if !complete {
            return (requests, true);
        }
        let head_len = wire.windows(4).position(|w| w == b"\r\n\r\n").map_or(wire.len(), |at| at + 4);
        requests.push((wire[..head_len].to_vec(), body));
        conn.send_head(&buffers, &ResponseHead::new(204), true, false);
        if !conn.reusable_after_response() {
            return (requests, false);
        }
        conn.next_request(&buffers);
    }
}

/// Passes a request on as the manager would; its body, and whether it came to its end.
fn forward(
    conn: &mut ServerConn,
    head: &RequestHead,
    upstream: &Canned,
    buffers: &Buffers,
    scratch: &mut [u8],
) -> (Vec<u8>, bool) {
    let options = Rc::new(ClientOptions { enable_trailers: true, ..ClientOptions::default() });
    let mut client = ClientConn::new(upstream.io(), options);
    let cx = &mut Context::from_waker(Waker::noop());
    let (mut body, mut complete) = (Vec::new(), conn.request_complete());
    client.send_head(buffers, head, complete && head.framing.is_none()).expect("what was accepted can be sent");
    while !client.request_complete() && !complete {
        match conn.poll_body(cx, scratch) {
            Poll::Ready(Ok(Body::Data(chunk))) => {
                body.extend_from_slice(chunk.as_slice());
                complete = conn.request_complete();
                client.send_data(cx, buffers, chunk.as_slice(), complete).expect("the length is the one it came with");
            }
            Poll::Ready(Ok(Body::Trailers(trailers))) => {
                client.send_trailers(buffers, &trailers).expect("behind chunks");
                complete = true;
            }
            Poll::Ready(Ok(Body::End)) => {
                client.send_data(cx, buffers, b"", true).expect("the end");
                complete = true;
            }
            _ => break,
        }
    }
    assert!(client.poll_flush(cx, buffers).is_ready());
    (body, complete)
}

fn option_sets() -> [ServerOptions; 2] {
    let lax = ServerOptions {
        accept_http_10: true,
        default_host_for_http_10: Some("default.test".into()),
        allow_chunked_length: true,
        ..ServerOptions::default()
    };
    [ServerOptions::default(), lax]
}

fn fields(map: &HeaderMap) -> Vec<(&[u8], &[u8])> {
    map.iter().collect()
}

/// A stream with everything that will ever come, in pieces; it takes what it is given.
#[derive(Clone)]
pub(in crate::codec) struct Canned(Rc<RefCell<Can>>);

struct Can {
    data: Vec<u8>,
    at: usize,
    step: usize,
    wrote: Vec<u8>,
    /// Nothing comes behind the data, not even the end.
    stays_open: bool,
}

impl Canned {
    pub(in crate::codec) fn new(data: &[u8], step: usize) -> Self {
        Self(Rc::new(RefCell::new(Can { data: data.to_vec(), at: 0, step, wrote: Vec::new(), stays_open: false })))
    }

    pub(in crate::codec) fn stay_open(self) -> Self {
        self.0.borrow_mut().stays_open = true;
        self
    }

    pub(in crate::codec) fn io(&self) -> Io {
        Io::Other(Box::new(self.clone()))
    }

    pub(in crate::codec) fn wrote(&self) -> Vec<u8> {
        std::mem::take(&mut self.0.borrow_mut().wrote)
    }
}

impl Stream for Canned {
    fn poll_read(&mut self, _: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        let can = &mut *self.0.borrow_mut();
        let n = (can.data.len() - can.at).min(can.step).min(buf.len());
        if n == 0 && can.stays_open {
            return Poll::Pending;
        }
        buf[..n].copy_from_slice(&can.data[can.at..can.at + n]);
        can.at += n;
        Poll::Ready(Ok(n))
    }

    fn poll_write(&mut self, _: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let wrote = &mut self.0.borrow_mut().wrote;
        bufs.iter().for_each(|b| wrote.extend_from_slice(b));
        Poll::Ready(Ok(bufs.iter().map(|b| b.len()).sum()))
    }

    fn poll_flush(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_read_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// A reader that takes nothing but the canonical form: what every upstream understands alike. It
/// shares no code with the codec.
pub(in crate::codec) mod strict {
    pub(in crate::codec) const INCOMPLETE: &str = "incomplete";

    pub(in crate::codec) struct Request<'b> {
        pub(in crate::codec) method: &'b [u8],
        pub(in crate::codec) target: &'b [u8],
        pub(in crate::codec) host: &'b [u8],
        pub(in crate::codec) length: Option<usize>,
        pub(in crate::codec) chunked: bool,
        pub(in crate::codec) body: Vec<u8>,
    }

    fn line<'b>(bytes: &mut &'b [u8]) -> Result<&'b [u8], &'static str> {
        let lf = bytes.iter().position(|&b| b == b'\n').ok_or(INCOMPLETE)?;
        let (line, rest) = bytes.split_at(lf + 1);
        *bytes = rest;
        let line = line.strip_suffix(b"\r\n").ok_or("a bare LF")?;
        if line.iter().any(|&b| (b < b' ' && b != b'\t') || b == 0x7f) { Err("a control") } else { Ok(line) }
    }

    fn is_token(text: &[u8]) -> bool {
        !text.is_empty() && text.iter().all(|b| b.is_ascii_graphic() && !b"\"(),/:;<=>?@[\\]{}".contains(b))
    }

    fn field(line: &[u8]) -> Result<(&[u8], &[u8]), &'static str> {
        let colon = line.iter().position(|&b| b == b':').ok_or("no colon")?;
        let (name, value) = (&line[..colon], &line[colon + 1..]);
        if !is_token(name) {
            return Err("a bad name");
        }
        Ok((name, value.strip_prefix(b" ").ok_or("no space behind the colon")?))
    }

    pub(in crate::codec) fn request_head(mut bytes: &[u8]) -> Result<(Request<'_>, &[u8]), &'static str> {
        let first = line(&mut bytes)?;
        let parts: Vec<&[u8]> = first.split(|&b| b == b' ').collect();
        let [method, target, b"HTTP/1.1"] = parts[..] else { return Err("a bad request line") };
        // Over HTTP/2 a client may name any method (RFC 9110 9.1).
        if !is_token(method) || target.first() != Some(&b'/') {
            return Err("a bad method or target");
        }
        let (mut hosts, mut lengths, mut codings) = (Vec::new(), Vec::new(), Vec::new());
        loop {
            let line = line(&mut bytes)?;
            if line.is_empty() {
                break;
            }
            let (name, value) = field(line)?;
            match name.to_ascii_lowercase().as_slice() {
                b"host" => hosts.push(value),
                b"content-length" => lengths.push(value),
                b"transfer-encoding" => codings.push(value),
                b"connection" | b"keep-alive" | b"proxy-connection" | b"upgrade" => return Err("a hop-by-hop field"),
                _ => {}
            }
        }
        let [host] = hosts[..] else { return Err("not one host") };
        let length = match lengths[..] {
            [] => None,
            [n] => {
                let text = std::str::from_utf8(n).map_err(|_| "a bad length")?;
                let value: u64 = text.parse().map_err(|_| "a bad length")?;
                if value.to_string() != text {
                    return Err("not the canonical length");
                }
                Some(usize::try_from(value).unwrap_or(usize::MAX))
            }
            _ => return Err("two lengths"),
        };
        let chunked = match codings[..] {
            [] => false,
            [b"chunked"] if length.is_none() => true,
            _ => return Err("a bad transfer-encoding"),
        };
        Ok((Request { method, target, host, length, chunked, body: Vec::new() }, bytes))
    }

    pub(in crate::codec) fn request(bytes: &[u8]) -> Result<(Request<'_>, &[u8]), &'static str> {
        let (mut request, mut rest) = request_head(bytes)?;
        if let Some(n) = request.length {
            let (body, after) = rest.split_at_checked(n).ok_or(INCOMPLETE)?;
            request.body.extend_from_slice(body);
            rest = after;
        }
        while request.chunked {
            let size = line(&mut rest)?;
            let text = std::str::from_utf8(size).map_err(|_| "a bad size")?;
            let n = usize::from_str_radix(text, 16).map_err(|_| "a bad size")?;
            if format!("{n:x}") != text {
                return Err("not the canonical size");
            }
            if n == 0 {
                while let trailer = line(&mut rest)?
                    && !trailer.is_empty()
                {
                    field(trailer)?;
                }
                break;
            }
            let (data, after) = rest.split_at_checked(n).ok_or(INCOMPLETE)?;
            request.body.extend_from_slice(data);
            let (end, after) = after.split_at_checked(2).ok_or(INCOMPLETE)?;
            if end != b"\r\n" {
                return Err("no CRLF behind data");
            }
            rest = after;
        }
        Ok((request, rest))
    }
}
