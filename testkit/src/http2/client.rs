//! A client that writes whatever bytes it is told and reads frames.

use std::collections::VecDeque;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::frame::{self, Frame, PREFACE, flag, frame, kind};
use super::hpack;

/// A client's end of a connection.
pub struct Client<S> {
    stream: S,
    /// Frames that were read while another was looked for.
    aside: VecDeque<Frame>,
    /// SETTINGS are acknowledged and windows given back as frames are read.
    polite: bool,
}

/// A response, read to its end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    pub body: Vec<u8>,
    /// Whether a head came behind the body.
    pub trailers: bool,
}

/// Instead of what was waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    Reset(u32),
    GoAway(u32),
    Closed,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Client<S> {
    /// Says nothing yet.
    pub fn new(stream: S) -> Self {
        Self { stream, aside: VecDeque::new(), polite: true }
    }

    /// Says the preface and these settings.
    pub async fn greet(&mut self, settings: &[(u16, u32)]) {
        self.write(&[PREFACE, &frame::settings(settings)].concat()).await;
    }

    /// Greets, and waits until both sides have acknowledged the other's settings.
    pub async fn shake_hands(&mut self, settings: &[(u16, u32)]) {
        self.greet(settings).await;
        let acknowledged = self.find(|f| f.kind == kind::SETTINGS && f.has(flag::ACK)).await;
        assert!(acknowledged.is_ok(), "no handshake: {acknowledged:?}");
    }

    /// Gives back no windows and acknowledges nothing from now on.
    pub fn stop_answering(&mut self) {
        self.polite = false;
    }

    /// Writes; false means that the other side has closed.
    pub async fn write(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).await.is_ok() && self.stream.flush().await.is_ok()
    }

    /// A GET of these fields without a body.
    pub async fn request(&mut self, stream: u32, fields: &[(&str, &str)]) -> bool {
        self.write(&frame(kind::HEADERS, flag::WHOLE, stream, &hpack::block(fields))).await
    }

    /// The next frame; `None` at the end.
    pub async fn read(&mut self) -> Option<Frame> {
        match self.aside.pop_front() {
            Some(frame) => Some(frame),
            None => self.receive().await,
        }
    }

    async fn receive(&mut self) -> Option<Frame> {
        let mut head = [0; 9];
        self.stream.read_exact(&mut head).await.ok()?;
        let len = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let mut payload = vec![0; len];
        self.stream.read_exact(&mut payload).await.ok()?;
        let stream = u32::from_be_bytes([head[5] & 0x7f, head[6], head[7], head[8]]);
        let frame = Frame { kind: head[3], flags: head[4], stream, payload };
        if self.polite {
            self.answer_to(&frame).await;
        }
        Some(frame)
    }

    async fn answer_to(&mut self, came: &Frame) {
        match came.kind {
            kind::SETTINGS if !came.has(flag::ACK) => {
                self.write(&frame(kind::SETTINGS, flag::ACK, 0, &[])).await;
            }
            kind::DATA if !came.payload.is_empty() => {
                let len = came.payload.len() as u32;
                let mut updates = frame::window_update(0, len);
                if !came.has(flag::END_STREAM) {
                    updates.extend(frame::window_update(came.stream, len));
                }
                self.write(&updates).await;
            }
            _ => {}
        }
    }

    /// The next frame that `wanted` knows, or the end of the connection if that comes first. Others are left for later.
    pub async fn find(&mut self, wanted: impl Fn(&Frame) -> bool) -> Result<Frame, Ended> {
        if let Some(at) = self.aside.iter().position(&wanted) {
            return Ok(self.aside.remove(at).expect("it is there"));
        }
        loop {
            let Some(frame) = self.receive().await else { return Err(self.verdict().unwrap_or(Ended::Closed)) };
            if wanted(&frame) {
                return Ok(frame);
            }
            self.aside.push_back(frame);
        }
    }

    /// Of what was read already: a GOAWAY with a reproach.
    fn verdict(&self) -> Option<Ended> {
        self.aside.iter().find(|f| f.kind == kind::GOAWAY && f.code() != 0).map(|f| Ended::GoAway(f.code()))
    }

    /// The response of a stream, or how it ended instead.
    pub async fn answer(&mut self, stream: u32) -> Result<Answer, Ended> {
        let mut answer = Answer::default();
        loop {
            let frame = self.find(|f| f.stream == stream || (f.kind == kind::GOAWAY && f.code() != 0)).await?;
            match frame.kind {
                kind::GOAWAY => return Err(Ended::GoAway(frame.code())),
                kind::RST_STREAM => return Err(Ended::Reset(frame.code())),
                kind::HEADERS => {
                    let status = hpack::status(&frame.payload);
                    match status {
                        Some(100..=199) => {}
                        Some(status) if answer.status == 0 => answer.status = status,
                        _ => answer.trailers = true,
                    }
                }
                kind::DATA => answer.body.extend_from_slice(&frame.payload),
                _ => {}
            }
            if matches!(frame.kind, kind::HEADERS | kind::DATA) && frame.has(flag::END_STREAM) {
                return Ok(answer);
            }
        }
    }

    /// Whether a PING comes back: all that was written before it has been read by then, and did not end the connection.
    pub async fn is_alive(&mut self) -> bool {
        self.ping(*b"anybody?").await.is_ok()
    }

    /// Sends a PING and waits for its answer.
    pub async fn ping(&mut self, payload: [u8; 8]) -> Result<(), Ended> {
        self.write(&frame(kind::PING, 0, 0, &payload)).await;
        let echo = |f: &Frame| f.kind == kind::PING && f.has(flag::ACK) && f.payload == payload;
        let said = self.find(|f| echo(f) || (f.kind == kind::GOAWAY && f.code() != 0)).await?;
        if said.kind == kind::GOAWAY { Err(Ended::GoAway(said.code())) } else { Ok(()) }
    }

    /// Reads to the end and tells the first GOAWAY or RST_STREAM; `None` if there is neither.
    pub async fn complaint(&mut self) -> Option<Frame> {
        self.find(|f| matches!(f.kind, kind::GOAWAY | kind::RST_STREAM)).await.ok()
    }

    /// The next frame that was read while another was looked for.
    pub fn aside(&mut self) -> Option<Frame> {
        self.aside.pop_front()
    }

    pub fn stream(&self) -> &S {
        &self.stream
    }
}
