//! What the first message of a client says in clear text: the name it asks for and the protocols it offers.
//!
//! The library tells this only once a configuration was chosen, and one answer depends on it: a client that offers no
//! protocol we have is served without one, as Envoy does, where the library would end the connection.

/// A client's first message, as far as it is read here.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct ClientHello {
    pub server_name: Option<String>,
    pub alpn: Vec<Vec<u8>>,
    /// Of the cipher suites of TLS 1.3 ChaCha20 is its first.
    pub prefers_chacha: bool,
    /// It can read a certificate's status that comes with it.
    pub wants_status: bool,
}

/// What the bytes are so far.
#[derive(Debug, PartialEq, Eq)]
pub enum Reading {
    /// The message is not whole yet.
    Incomplete,
    /// No TLS, or none that can be read.
    Other,
    Hello(ClientHello),
}

/// Content type of records that carry handshake messages.
const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;
const ALPN: u16 = 16;
const STATUS_REQUEST: u16 = 5;
/// `TLS_AES_…`, `TLS_CHACHA20_POLY1305_SHA256`.
const SUITES_13: [usize; 3] = [0x1301, 0x1302, CHACHA];
const CHACHA: usize = 0x1303;
/// A record in clear text is at most so long.
const RECORD: usize = 16 * 1024;
/// A longer message is refused by the library as well.
pub(super) const LIMIT: usize = 64 * 1024;

/// Reads a message that may lie in any number of records.
pub fn read(bytes: &[u8]) -> Reading {
    let mut message = Vec::new();
    let mut rest = bytes;
    loop {
        if let [kind, a, b, c, ..] = message[..] {
            let len = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
            if kind != CLIENT_HELLO || len > LIMIT {
                return Reading::Other;
            }
            if message.len() >= 4 + len {
                return hello(&message[4..4 + len]).map_or(Reading::Other, Reading::Hello);
            }
        }
        let [kind, major, _, hi, lo, body @ ..] = rest else {
            let wrong = rest.first().is_some_and(|kind| *kind != HANDSHAKE);
            return if wrong { Reading::Other } else { Reading::Incomplete };
        };
        let len = usize::from(*hi) << 8 | usize::from(*lo);
        if *kind != HANDSHAKE || *major != 3 || len == 0 || len > RECORD {
            return Reading::Other;
        }
        let Some((fragment, after)) = body.split_at_checked(len) else { return Reading::Incomplete };
        message.extend_from_slice(fragment);
        rest = after;
    }
}

/// A reader of length-prefixed fields.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(taken)
    }

    fn number(&mut self, size: usize) -> Option<usize> {
        Some(self.take(size)?.iter().fold(0, |n, byte| n << 8 | usize::from(*byte)))
    }

    /// A vector whose length stands in `size` bytes before it.
    fn vector(&mut self, size: usize) -> Option<Self> {
        let len = self.number(size)?;
        self.take(len).map(Self)
    }
}

fn hello(message: &[u8]) -> Option<ClientHello> {
    let mut fields = Fields(message);
    // Version and random.
    fields.take(2 + 32)?;
    fields.vector(1)?;
    let mut suites = fields.vector(2)?;
    fields.vector(1)?;
    let mut hello = ClientHello::default();
    while let Some(suite) = suites.number(2) {
        if SUITES_13.contains(&suite) {
            hello.prefers_chacha = suite == CHACHA;
            break;
        }
    }
    if fields.0.is_empty() {
        return Some(hello);
    }
    let mut extensions = fields.vector(2)?;
    while !extensions.0.is_empty() {
        let kind = extensions.number(2)?;
        let mut body = extensions.vector(2)?;
        match u16::try_from(kind).ok()? {
            STATUS_REQUEST => hello.wants_status = true,
            SERVER_NAME => hello.server_name = server_name(&mut body)?,
            ALPN => {
                let mut names = body.vector(2)?;
                while !names.0.is_empty() {
                    hello.alpn.push(names.vector(1)?.0.to_vec());
                }
            }
            _ => {}
        }
    }
    Some(hello)
}

/// The outer `None` is an error; names that are no text count as none.
fn server_name(body: &mut Fields<'_>) -> Option<Option<String>> {
    if body.0.is_empty() {
        return Some(None);
    }
    let mut names = body.vector(2)?;
    let mut found = None;
    while !names.0.is_empty() {
        let kind = names.number(1)?;
        let name = names.vector(2)?;
        if kind == 0 && found.is_none() {
            found = std::str::from_utf8(name.0).ok().filter(|name| !name.contains('\0')).map(str::to_owned);
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vector(size: usize, body: &[u8]) -> Vec<u8> {
        let mut out = body.len().to_be_bytes()[8 - size..].to_vec();
        out.extend_from_slice(body);
        out
    }

    fn message() -> Vec<u8> {
        let mut name = vec![0];
        name.extend(vector(2, b"web.test"));
        let mut extensions = [0, 0].to_vec();
        extensions.extend(vector(2, &vector(2, &name)));
        extensions.extend([0, 16]);
        let mut protocols = vector(1, b"h2");
        protocols.extend(vector(1, b"http/1.1"));
        extensions.extend(vector(2, &vector(2, &protocols)));
        let mut body = [3, 3].to_vec();
        body.extend([7; 32]);
        body.extend(vector(1, &[]));
        body.extend(vector(2, &[0x13, 0x01]));
        body.extend(vector(1, &[0]));
        body.extend(vector(2, &extensions));
        let mut message = vec![CLIENT_HELLO];
        message.extend(vector(3, &body));
        message
    }

    fn records(message: &[u8], each: usize) -> Vec<u8> {
        message.chunks(each).flat_map(|part| [&[HANDSHAKE, 3, 1][..], &vector(2, part)].concat()).collect()
    }

    #[test]
    fn a_message_is_read_however_it_is_cut() {
        let wanted = ClientHello {
            server_name: Some("web.test".into()),
            alpn: vec![b"h2".to_vec(), b"http/1.1".to_vec()],
            ..ClientHello::default()
        };
        for each in [1, 3, 1000] {
            let bytes = records(&message(), each);
            for n in 0..bytes.len() {
                assert_eq!(read(&bytes[..n]), Reading::Incomplete, "{each} {n}");
            }
            assert_eq!(read(&bytes), Reading::Hello(wanted.clone()));
        }
    }

    #[test]
    fn what_is_no_client_hello_is_told_at_once() {
        assert_eq!(read(b"GET / HTTP/1.1\r\n"), Reading::Other);
        assert_eq!(read(&records(&[2, 0, 0, 1, 0], 100)), Reading::Other);
        let mut wrong = message();
        let last = wrong.len() - 1;
        wrong.truncate(last);
        wrong[3] -= 1;
        assert_eq!(read(&records(&wrong, 1000)), Reading::Other);
    }
}
