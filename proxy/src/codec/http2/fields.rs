//! Heads and trailers from blocks of fields, with the rules of RFC 9113 §8.
//!
//! A block is looked at field by field as it is decoded. What breaks a rule is remembered and the rest
//! of the block still decoded, since the tables of both ends must stay the same.

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

pub(super) const MESSAGING: Violation = Violation::Messaging("http2.violation.of.messaging.rule");
const INVALID_FIELD: Violation = Violation::Messaging("http2.invalid.header.field");
const TOO_MANY: Violation = Violation::Limit("http2.too_many_headers");
const TOO_LARGE: Violation = Violation::Limit("http2.headers_too_large");
const UNDERSCORE: Violation = Violation::Limit("http2.unexpected_underscore");

/// What names are made of (§8.2.1): tokens in lower case.
const NAME: [bool; 256] = {
    let mut table = [false; 256];
    let mut b = 0;
    while b < 128 {
        table[b] = syntax::is_token(b as u8) && !(b as u8).is_ascii_uppercase();
        b += 1;
    }
    table
};

/// What values are made of: RFC 9110 §5.5.
const VALUE: [bool; 256] = {
    let mut table = [false; 256];
    let mut b = 0;
    while b < 256 {
        table[b] = b == b'\t' as usize || (b >= b' ' as usize && b != 127);
        b += 1;
    }
    table
};

#[inline]
pub(super) fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && name.iter().fold(true, |good, &b| good & NAME[usize::from(b)])
}

#[inline]
pub(super) fn is_value(value: &[u8]) -> bool {
    value.iter().fold(true, |good, &b| good & VALUE[usize::from(b)])
}

/// Fields that are about a connection, which HTTP/2 does not have (§8.2.2).
#[inline]
pub(super) fn is_connection_field(name: &[u8], value: &[u8]) -> bool {
    match name {
        b"te" => value != b"trailers",
        b"connection" | b"upgrade" | b"keep-alive" | b"proxy-connection" | b"transfer-encoding" => true,
        _ => false,
    }
}

/// A field that is no pseudo header, as every kind of block must have it.
#[inline]
fn check_field(name: &[u8], value: &[u8]) -> Result<(), Violation> {
    if !is_name(name) || !is_value(value) {
        return Err(INVALID_FIELD);
    }
    if is_connection_field(name, value) { Err(MESSAGING) } else { Ok(()) }
}

/// What a request's head says beyond [`RequestHead`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ReadRequest {
    pub(super) expects_continue: bool,
    pub(super) dropped_underscores: u16,
    /// Extended CONNECT: 101 goes out as 200.
    pub(super) upgrade: bool,
    pub(super) is_head: bool,
    /// Of the body.
    pub(super) length: Option<u64>,
}

/// How much of a block was seen, and what is wrong with it.
#[derive(Debug, Default)]
struct Progress {
    fields: usize,
    bytes: usize,
    /// Pseudo headers that were seen, a bit each.
    pseudo: u8,
    /// Others were seen, behind which no pseudo header may come.
    regular: bool,
    broken: Option<Violation>,
    over: Option<Violation>,
}

impl Progress {
    /// Counts a field; whether it is worth a look.
    #[inline]
    fn count(&mut self, name: &[u8], value: &[u8], max_fields: usize, max_bytes: usize) -> bool {
        self.fields += 1;
        self.bytes += name.len() + value.len();
        if self.fields > max_fields {
            self.over.get_or_insert(TOO_MANY);
        } else if self.bytes > max_bytes {
            self.over.get_or_insert(TOO_LARGE);
        }
        self.over.is_none() && self.broken.is_none()
    }

    fn pseudo(&mut self, bit: u8) -> Result<(), Violation> {
        if self.regular || self.pseudo & bit != 0 {
            return Err(MESSAGING);
        }
        self.pseudo |= bit;
        Ok(())
    }

    fn has(&self, bits: u8) -> bool {
        self.pseudo & bits == bits
    }

    fn verdict(&self) -> Result<(), Violation> {
        self.broken.or(self.over).map_or(Ok(()), Err)
    }
}

const METHOD: u8 = 1;
const SCHEME: u8 = 2;
const PATH: u8 = 4;
const AUTHORITY: u8 = 8;
const PROTOCOL: u8 = 16;

/// A request's head in the making.
pub(super) struct RequestReader<'a> {
    options: &'a ServerOptions,
    head: &'a mut RequestHead,
    read: ReadRequest,
    progress: Progress,
    hosts: u8,
    cookies: usize,
    is_connect: bool,
    is_options: bool,
}

impl<'a> RequestReader<'a> {
    /// Reads into `head`, whatever that holds.
    pub(super) fn new(options: &'a ServerOptions, head: &'a mut RequestHead) -> Self {
        head.clear();
        head.version = Version::Http2;
        let (read, progress) = Default::default();
        Self { options, head, read, progress, hosts: 0, cookies: 0, is_connect: false, is_options: false }
    }

    /// `secret`: never indexed, and so also further on.
    #[inline]
    pub(super) fn field(&mut self, name: &[u8], value: &[u8], secret: bool) {
        if !self.progress.count(name, value, self.options.max_headers, self.options.max_head_bytes) {
            return;
        }
        let before = self.head.headers.len();
        let taken = if name.first() == Some(&b':') { self.pseudo(name, value) } else { self.regular(name, value) };
        if let Err(violation) = taken {
            match violation {
                Violation::Messaging(_) => self.progress.broken = Some(violation),
                Violation::Limit(_) => self.progress.over = Some(violation),
            }
        }
        if secret && self.head.headers.len() > before {
            self.head.headers.never_index_last();
        }
    }

    fn pseudo(&mut self, name: &[u8], value: &[u8]) -> Result<(), Violation> {
        let map = &mut self.head.headers;
        match name {
            b":method" => {
                self.progress.pseudo(METHOD)?;
                if value.is_empty() || !value.iter().all(|&b| syntax::is_token(b)) {
                    return Err(INVALID_FIELD);
                }
                match value {
                    b"CONNECT" => self.is_connect = true,
                    b"OPTIONS" => self.is_options = true,
                    b"HEAD" => self.read.is_head = true,
                    _ => {}
                }
                map.append(":method", value);
            }
            b":scheme" => {
                self.progress.pseudo(SCHEME)?;
                if !value.eq_ignore_ascii_case(b"http") && !value.eq_ignore_ascii_case(b"https") {
                    return Err(MESSAGING);
                }
                map.append(":scheme", if value.len() == 4 { "http" } else { "https" });
            }
            b":path" => {
                self.progress.pseudo(PATH)?;
                if !value.iter().fold(true, |good, &b| good & syntax::is_visible(b)) {
                    return Err(MESSAGING);
                }
                map.append(":path", value);
            }
            b":authority" => {
                self.progress.pseudo(AUTHORITY)?;
                check_authority(value)?;
                map.append(":authority", value);
            }
            b":protocol" => {
                self.progress.pseudo(PROTOCOL)?;
                if value.is_empty() || !value.iter().all(|&b| syntax::is_token(b)) {
                    return Err(INVALID_FIELD);
                }
                self.read.upgrade = true;
                map.append("upgrade", value);
            }
            _ => return Err(MESSAGING),
        }
        Ok(())
    }

    fn regular(&mut self, name: &[u8], value: &[u8]) -> Result<(), Violation> {
        self.progress.regular = true;
        check_field(name, value)?;
        // Blanks around a value mean nothing, and would on HTTP/1 disappear.
        let value = value.trim_ascii();
        let map = &mut self.head.headers;
        match name {
            // `:authority` wins; a `host` beside it is dropped, so that nobody routes by the one and serves by the other.
            b"host" => {
                self.hosts = self.hosts.saturating_add(1);
                if !self.progress.has(AUTHORITY) && self.hosts == 1 {
                    check_authority(value)?;
                    map.append(":authority", value);
                }
            }
            b"cookie" => {
                self.cookies += 1;
                map.append("cookie", value);
            }
            b"content-length" => {
                let length = syntax::content_length(value).ok_or(MESSAGING)?;
                if self.read.length.replace(length).is_some() {
                    return Err(MESSAGING);
                }
                map.append(name, value);
            }
            b"expect" if !self.options.proxy_100_continue && value.eq_ignore_ascii_case(b"100-continue") => {
                self.read.expects_continue = true;
            }
            _ if self.options.underscores != Underscores::Allow && name.contains(&b'_') => {
                if self.options.underscores == Underscores::Reject {
                    return Err(UNDERSCORE);
                }
                self.read.dropped_underscores = self.read.dropped_underscores.saturating_add(1);
            }
            _ => map.append(name, value),
        }
        Ok(())
    }

    /// What a request must have. `end`: no body follows.
    pub(super) fn finish(mut self, end: bool) -> Result<ReadRequest, Violation> {
        self.progress.verdict()?;
        let no_host = !self.progress.has(AUTHORITY) && self.hosts == 0;
        if !self.progress.has(METHOD) || no_host || self.hosts > 1 {
            return Err(MESSAGING);
        }
        let plain_connect = self.is_connect && !self.read.upgrade;
        if plain_connect {
            if self.progress.pseudo & (SCHEME | PATH) != 0 {
                return Err(MESSAGING);
            }
        } else {
            let path = self.head.path().unwrap_or_default();
            let form = path.starts_with(b"/") || (path == b"*" && self.is_options);
            if !self.progress.has(SCHEME | PATH) || !form {
                return Err(MESSAGING);
            }
        }
        if self.read.upgrade {
            // RFC 8441 §4: only with CONNECT, and only where it was offered.
            if !self.is_connect || !self.options.http2.allow_connect {
                return Err(MESSAGING);
            }
            self.head.headers.set(":method", "GET");
            self.head.headers.append("connection", "upgrade");
        }
        if self.cookies > 1 {
            // Split for better compression (§8.2.3); one field again for everybody above. Joined at the end, and not
            // piece by piece: each time would copy all before.
            let map = &mut self.head.headers;
            let joined = map.get_joined("cookie", "; ").map(|joined| joined.into_owned());
            let secret = map.is_never_indexed("cookie");
            map.remove("cookie");
            map.append("cookie", joined.unwrap_or_default());
            if secret {
                map.never_index_last();
            }
        }
        if plain_connect {
            self.read.length = None;
        }
        if end && self.read.length.is_some_and(|n| n > 0) {
            return Err(MESSAGING);
        }
        self.head.framing = match self.read.length {
            _ if end => Framing::None,
            Some(n) => Framing::Length(n),
            None => Framing::Streamed,
        };
        Ok(self.read)
    }
}

/// User information has no place there (§8.3.1).
fn check_authority(value: &[u8]) -> Result<(), Violation> {
    if value.is_empty() || !syntax::is_authority(value) || value.contains(&b'@') { Err(MESSAGING) } else { Ok(()) }
}

/// A response's head in the making.
pub(super) struct ResponseReader<'a> {
    head: &'a mut ResponseHead,
    progress: Progress,
    length: Option<u64>,
    broken: Option<&'static str>,
    /// Fields, and bytes of names and values.
    limits: (usize, usize),
}

impl<'a> ResponseReader<'a> {
    /// Reads into `head`, whatever that holds.
    pub(super) fn new(limits: (usize, usize), head: &'a mut ResponseHead) -> Self {
        head.clear();
        head.version = Version::Http2;
        head.status = 0;
        Self { head, progress: Progress::default(), length: None, broken: None, limits }
    }

    /// `secret`: never indexed, and so also further on. Of a status, which is only a number here, it is not kept.
    #[inline]
    pub(super) fn field(&mut self, name: &[u8], value: &[u8], secret: bool) {
        if !self.progress.count(name, value, self.limits.0, self.limits.1) || self.broken.is_some() {
            return;
        }
        match self.take(name, value) {
            Err(what) => self.broken = Some(what),
            Ok(()) if secret && name != b":status" => self.head.headers.never_index_last(),
            Ok(()) => {}
        }
    }

    fn take(&mut self, name: &[u8], value: &[u8]) -> Result<(), &'static str> {
        if name == b":status" {
            self.progress.pseudo(METHOD).map_err(|_| "bad :status")?;
            let [a @ b'1'..=b'9', b, c] = value else { return Err("bad :status") };
            if !b.is_ascii_digit() || !c.is_ascii_digit() {
                return Err("bad :status");
            }
            let digit = |d: &u8| u16::from(d - b'0');
            self.head.status = digit(a) * 100 + digit(b) * 10 + digit(c);
            return Ok(());
        }
        self.progress.regular = true;
        check_field(name, value).map_err(|_| "bad header")?;
        let value = value.trim_ascii();
        if name == b"content-length" {
            let told = syntax::content_length(value).ok_or("bad content-length")?;
            if self.length.replace(told).is_some() {
                return Err("two content-lengths");
            }
        }
        self.head.headers.append(name, value);
        Ok(())
    }

    /// The length of the body that follows, if it was told. `end`: no body follows.
    pub(super) fn finish(self, end: bool) -> Result<Option<u64>, &'static str> {
        match self.progress.over {
            Some(TOO_LARGE) => return Err("headers too large"),
            Some(_) => return Err("too many headers"),
            None => {}
        }
        if let Some(what) = self.broken {
            return Err(what);
        }
        if self.head.status == 0 || self.head.status == 101 {
            return Err("bad :status");
        }
        self.head.framing = match self.length {
            // To HEAD, a length without a body.
            Some(n) if end => Framing::Length(n),
            None if end => Framing::None,
            Some(n) => Framing::Length(n),
            None => Framing::Streamed,
        };
        Ok(self.length)
    }
}

/// Trailers in the making.
pub(super) struct TrailersReader {
    map: HeaderMap,
    progress: Progress,
    limits: (usize, usize),
}

impl TrailersReader {
    pub(super) fn new(limits: (usize, usize)) -> Self {
        Self { map: HeaderMap::new(), progress: Progress::default(), limits }
    }

    pub(super) fn field(&mut self, name: &[u8], value: &[u8], secret: bool) {
        if !self.progress.count(name, value, self.limits.0, self.limits.1) {
            return;
        }
        if let Err(violation) = check_field(name, value) {
            self.progress.broken = Some(violation);
            return;
        }
        self.map.append(name, value.trim_ascii());
        if secret {
            self.map.never_index_last();
        }
    }

    pub(super) fn finish(self) -> Result<HeaderMap, Violation> {
        self.progress.verdict().map(|()| self.map)
    }
}
