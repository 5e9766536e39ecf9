//! A client that writes frames byte by byte and understands as much of the answers as tests ask.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const PRIORITY: u8 = 2;
pub(super) const RST_STREAM: u8 = 3;
pub(super) const SETTINGS: u8 = 4;
pub(super) const PING: u8 = 6;
pub(super) const GOAWAY: u8 = 7;
pub(super) const WINDOW_UPDATE: u8 = 8;
pub(super) const CONTINUATION: u8 = 9;

pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(super) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// A header block of literals without indexing (RFC 7541 §6.2.2), as long as they are.
pub(super) fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, value) in fields {
        out.push(0);
        for text in [name, value] {
            if text.len() < 127 {
                out.push(text.len() as u8);
            } else {
                out.push(127);
                let mut rest = text.len() - 127;
                while rest >= 128 {
                    out.push(rest as u8 | 128);
                    rest >>= 7;
                }
                out.push(rest as u8);
            }
            out.extend_from_slice(text.as_bytes());
        }
    }
    out
}

pub(super) const GET: &[(&str, &str)] = &[(":method", "GET"), (":scheme", "http"), (":authority", "a"), (":path", "/")];

/// What a test sees of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) stream: u32,
    pub(super) payload: Vec<u8>,
}

impl Seen {
    /// The error code of a GOAWAY or RST_STREAM.
    pub(super) fn code(&self) -> u32 {
        let at = if self.kind == GOAWAY { 4 } else { 0 };
        u32::from_be_bytes(self.payload[at..at + 4].try_into().unwrap())
    }
}

pub(super) struct RawClient(pub(super) DuplexStream);

impl RawClient {
    /// Writes; an error means that the other side has closed.
    pub(super) async fn write(&mut self, bytes: &[u8]) -> bool {
        self.0.write_all(bytes).await.is_ok()
    }

    /// The next frame; `None` at the end.
    pub(super) async fn read(&mut self) -> Option<Seen> {
        let mut head = [0; 9];
        self.0.read_exact(&mut head).await.ok()?;
        let len = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let mut payload = vec![0; len];
        self.0.read_exact(&mut payload).await.ok()?;
        let stream = u32::from_be_bytes([head[5] & 0x7f, head[6], head[7], head[8]]);
        Some(Seen { kind: head[3], flags: head[4], stream, payload })
    }

    /// Reads to the end and tells the first GOAWAY or RST_STREAM; `None` if there is neither.
    pub(super) async fn verdict(&mut self) -> Option<Seen> {
        loop {
            let seen = self.read().await?;
            if matches!(seen.kind, GOAWAY | RST_STREAM) {
                return Some(seen);
            }
        }
    }
}

/// A server connection in the background that answers nothing, and a client that has shaken hands.
pub(super) async fn connect(options: ServerOptions) -> (RawClient, tokio::task::JoinHandle<Outcome>) {
    let (conn, theirs) = server(options);
    let task = tokio::task::spawn_local(hold(conn));
    let mut client = RawClient(theirs);
    client.write(PREFACE).await;
    client.write(&frame(SETTINGS, 0, 0, &[])).await;
    (client, task)
}

/// What came of a connection whose requests are taken and never answered.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) accepted: usize,
    pub(super) refused: Vec<&'static str>,
    pub(super) error: Option<ConnectionError>,
}

async fn hold(mut conn: ServerConn) -> Outcome {
    let mut outcome = Outcome::default();
    let mut head = RequestHead::default();
    let mut streams = Vec::new();
    loop {
        match accept(&mut conn, &mut head).await {
            Ok(Some(Accepted::Stream(stream))) => {
                outcome.accepted += 1;
                streams.push(stream);
            }
            Ok(Some(Accepted::Refused(details))) => outcome.refused.push(details),
            Ok(None) => return outcome,
            Err(error) => {
                outcome.error = Some(error);
                let (mut scratch, mut allowance) = (vec![0; 1024], 65_536);
                poll_fn(|cx| conn.poll_close(cx, &mut scratch, &mut allowance)).await;
                return outcome;
            }
        }
    }
}
