//! The ClientHello of TLS (RFC 8446 §4.1.2, RFC 6066 §3, RFC 7301 §3.1), as far as a filter chain is chosen by it.

/// What the first bytes of a connection are.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    NeedMore,
    /// It can never be whole within the limit.
    TooLarge,
    /// The first bytes are those of no TLS record of a handshake.
    NotTls,
    /// They are, and yet it is no hello.
    Malformed(&'static str),
    Hello(ClientHello),
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct ClientHello {
    pub server_name: Option<String>,
    /// In the client's order.
    pub protocols: Vec<Vec<u8>>,
}

const HANDSHAKE_RECORD: u8 = 22;
/// RFC 8446 §5.1: no record of plain text is longer.
const MAX_RECORD: usize = 1 << 14;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;
const APPLICATION_PROTOCOLS: u16 = 16;

/// `max`: how many bytes of the wire there may be.
pub(super) fn parse(bytes: &[u8], max: usize) -> Found {
    let mut records = bytes;
    let mut message = Vec::new();
    let mut wanted = 4;
    // The hello may be cut into records anywhere.
    while message.len() < wanted {
        match records {
            [HANDSHAKE_RECORD, 3, minor, high, low, rest @ ..] if *minor <= 4 => {
                let length = usize::from(u16::from_be_bytes([*high, *low]));
                if length == 0 || length > MAX_RECORD {
                    return Found::Malformed("a record of impossible length");
                }
                let here = rest.len().min(length);
                message.extend_from_slice(&rest[..here]);
                records = &rest[here..];
                let whole = here == length;
                if let Some(verdict) = look_at_head(&message, &mut wanted, max) {
                    return verdict;
                }
                if !whole && message.len() < wanted {
                    return Found::NeedMore;
                }
            }
            _ if may_become_a_record(records) => return Found::NeedMore,
            _ if message.is_empty() => return Found::NotTls,
            _ => return Found::Malformed("something between the records of the hello"),
        }
    }
    match read_hello(&message[4..wanted]) {
        Ok(hello) => Found::Hello(hello),
        Err(reason) => Found::Malformed(reason),
    }
}

/// Type and length of the handshake message, once they are there.
fn look_at_head(message: &[u8], wanted: &mut usize, max: usize) -> Option<Found> {
    if message.first().is_some_and(|kind| *kind != CLIENT_HELLO) {
        return Some(Found::Malformed("another message"));
    }
    let [_, a, b, c, ..] = message else { return None };
    *wanted = 4 + (usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c));
    // With the header of at least one record.
    (*wanted + 5 > max).then_some(Found::TooLarge)
}

fn may_become_a_record(bytes: &[u8]) -> bool {
    match bytes {
        [] | [HANDSHAKE_RECORD] => true,
        [HANDSHAKE_RECORD, 3] => true,
        [HANDSHAKE_RECORD, 3, minor] | [HANDSHAKE_RECORD, 3, minor, _] => *minor <= 4,
        _ => false,
    }
}

/// Fields of a message, taken off its front.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], &'static str> {
        let (taken, rest) = self.0.split_at_checked(n).ok_or("a field beyond the end")?;
        self.0 = rest;
        Ok(taken)
    }

    fn number(&mut self, bytes: usize) -> Result<usize, &'static str> {
        Ok(self.take(bytes)?.iter().fold(0, |n, byte| n << 8 | usize::from(*byte)))
    }

    /// A field with its length, of that many bytes, in front.
    fn field(&mut self, length_bytes: usize) -> Result<Reader<'a>, &'static str> {
        let length = self.number(length_bytes)?;
        self.take(length).map(Reader)
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn read_hello(bytes: &[u8]) -> Result<ClientHello, &'static str> {
    let mut hello = Reader(bytes);
    let (mut server_name, mut protocols) = (None, Vec::new());
    // Version and random, session id, cipher suites, compression methods.
    hello.take(34)?;
    if hello.field(1)?.0.len() > 32 {
        return Err("a session id of more than 32 bytes");
    }
    let suites = hello.field(2)?.0.len();
    if suites == 0 || suites % 2 != 0 {
        return Err("no list of cipher suites");
    }
    if hello.field(1)?.is_empty() {
        return Err("no compression method");
    }
    // Before TLS 1.3 a hello may end here.
    let mut extensions = if hello.is_empty() { Reader(&[]) } else { hello.field(2)? };
    if !hello.is_empty() {
        return Err("bytes after the extensions");
    }
    let mut seen = Vec::new();
    while !extensions.is_empty() {
        let kind = extensions.number(2)? as u16;
        let extension = extensions.field(2)?;
        if seen.contains(&kind) {
            return Err("an extension that comes twice");
        }
        seen.push(kind);
        match kind {
            SERVER_NAME => server_name = Some(read_server_name(extension)?),
            APPLICATION_PROTOCOLS => protocols = read_protocols(extension)?,
            _ => {}
        }
    }
    Ok(ClientHello { server_name, protocols })
}

/// A list of which only one entry of one type was ever defined.
fn read_server_name(mut extension: Reader<'_>) -> Result<String, &'static str> {
    let mut list = extension.field(2)?;
    let kind = list.number(1)?;
    let name = list.field(2)?.0;
    if kind != 0 || !list.is_empty() || !extension.is_empty() {
        return Err("a server name that is no host name");
    }
    if name.is_empty() || name.len() > 255 || name.contains(&0) {
        return Err("a server name that is empty, too long or holds a NUL");
    }
    String::from_utf8(name.to_vec()).map_err(|_| "a server name that is no text")
}

fn read_protocols(mut extension: Reader<'_>) -> Result<Vec<Vec<u8>>, &'static str> {
    let mut list = extension.field(2)?;
    if list.is_empty() || !extension.is_empty() {
        return Err("no list of protocols");
    }
    let mut protocols = Vec::new();
    while !list.is_empty() {
        let protocol = list.field(1)?.0;
        if protocol.is_empty() {
            return Err("a protocol without name");
        }
        protocols.push(protocol.to_vec());
    }
    Ok(protocols)
}
