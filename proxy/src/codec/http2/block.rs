//! Heads and trailers as blocks of fields, with the rules of RFC 9113 §8. What has no place in HTTP/2 is
//! left out, whoever put it there.

use nuncio_core::http::header_map::decimal;
use nuncio_core::http::{Framing, HeaderMap, RequestHead, ResponseHead};

use super::fields::{is_connection_field, is_name, is_value};
use super::hpack::Encoder;
use crate::codec::syntax;

/// A block that is being written.
pub(super) struct Block<'a> {
    pub(super) encoder: &'a mut Encoder,
    pub(super) out: &'a mut Vec<u8>,
}

impl Block<'_> {
    fn field(&mut self, name: &[u8], value: &[u8], secret: bool) {
        if secret {
            self.encoder.encode_never_indexed(name, value, self.out);
        } else {
            self.encoder.encode(name, value, self.out);
        }
    }

    /// Everything but pseudo headers, those of HTTP/1 connections, and the length.
    fn fields(&mut self, from: &HeaderMap) {
        for (name, value, secret) in from.iter_with_secrets() {
            if name.first() == Some(&b':')
                || is_connection_field(name, value)
                || matches!(name, b"content-length" | b"host")
            {
                continue;
            }
            if is_name(name) && is_value(value) {
                self.field(name, value, secret);
            } else {
                let name = name.escape_ascii();
                tracing::debug!(%name, "a header that cannot be written was left out");
            }
        }
    }

    fn length(&mut self, n: u64, of: &HeaderMap) {
        self.field(b"content-length", decimal(n, &mut [0; 20]), of.is_never_indexed("content-length"));
    }

    /// `tunnel`: an upgrade was accepted; its 101 is 200 here.
    pub(super) fn response(&mut self, head: &ResponseHead, end: bool, is_head: bool, tunnel: bool) {
        let status = match head.status {
            101 if tunnel => 200,
            status @ 100..=999 => status,
            _ => 502,
        };
        self.encoder.encode_status(status, self.out);
        self.fields(&head.headers);
        if let Some(n) = response_length(head).filter(|n| !tunnel && (!end || is_head || *n == 0 || head.status == 304))
        {
            self.length(n, &head.headers);
        }
    }

    /// A request that [can be written](Outgoing::new).
    pub(super) fn request(&mut self, request: &Outgoing<'_>) {
        let head = request.head;
        let headers = &head.headers;
        let secret = |name| headers.is_never_indexed(name);
        self.field(b":method", if request.upgrade { b"CONNECT" } else { head.method() }, secret(":method"));
        if !request.is_connect || request.upgrade {
            self.field(b":scheme", if head.scheme() == b"https" { b"https" } else { b"http" }, secret(":scheme"));
            self.field(b":path", request.path, secret(":path"));
        }
        self.field(b":authority", request.authority, secret(":authority"));
        if let Some(protocol) = request.protocol {
            self.field(b":protocol", protocol, secret("upgrade"));
        }
        self.fields(headers);
        if let Some(n) = request.length {
            self.length(n, headers);
        }
    }

    pub(super) fn trailers(&mut self, trailers: &HeaderMap) {
        self.fields(trailers);
    }
}

/// The length that a response's head says, as the status decides it.
pub(super) fn response_length(head: &ResponseHead) -> Option<u64> {
    match head.framing {
        Framing::Length(n) if head.status != 204 && head.status >= 200 => Some(n),
        _ => None,
    }
}

/// A request for an upstream, of which everything is known to be fit to be sent.
#[derive(Debug)]
pub(super) struct Outgoing<'a> {
    head: &'a RequestHead,
    authority: &'a [u8],
    path: &'a [u8],
    protocol: Option<&'a [u8]>,
    length: Option<u64>,
    pub(super) is_connect: bool,
    upgrade: bool,
}

impl<'a> Outgoing<'a> {
    /// The error says what of it cannot be sent. `end`: no body follows. `upgrade`: as extended CONNECT.
    pub(super) fn new(head: &'a RequestHead, end: bool, upgrade: bool) -> Result<Self, &'static str> {
        let authority = head.authority().filter(|a| !a.is_empty()).ok_or("no host")?;
        if !syntax::is_authority(authority) {
            return Err("host");
        }
        let method = head.method();
        if method.is_empty() || !method.iter().all(|&b| syntax::is_token(b)) {
            return Err("method");
        }
        let is_connect = method == b"CONNECT";
        let mut path = &b""[..];
        if !is_connect || upgrade {
            path = head.path().filter(|p| !p.is_empty()).ok_or("path")?;
            let form = path.starts_with(b"/") || path == b"*";
            if !form || !path.iter().fold(true, |good, &b| good & (syntax::is_visible(b) | (b >= 0x80))) {
                return Err("path");
            }
        }
        let length = match head.framing {
            Framing::Length(n) if !upgrade && !is_connect => Some(n),
            _ => None,
        };
        if end && length.is_some_and(|n| n > 0) {
            return Err("a length without a body");
        }
        let protocol = if upgrade {
            let protocol = head.headers.get("upgrade").ok_or("upgrade")?;
            if protocol.is_empty() || !protocol.iter().all(|&b| syntax::is_token(b)) {
                return Err("upgrade");
            }
            Some(protocol)
        } else {
            None
        };
        Ok(Self { head, authority, path, protocol, length, is_connect: is_connect || upgrade, upgrade })
    }
}
