//! A large answer on its way: written on one thread, read by a client on another, 64 KiB at a time.
//!
//! The writer waits for the client with two bounds: a single pause, and all pauses together. A client that exceeds
//! either loses its answer, and the thread is free again. Both ends notice when the other is gone.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// The largest piece that is handed on.
const CHUNK: usize = 64 * 1024;
/// How many pieces may wait for the client.
const WAITING: usize = 2;

/// Where a page writes to. A failed write means that the client is gone or too slow: stop.
pub struct Chunks {
    text: String,
    to: Sink,
}

enum Sink {
    Client {
        to: mpsc::Sender<Part>,
        runtime: Handle,
        patience: Patience,
    },
    #[cfg(test)]
    Memory(Vec<String>),
}

/// How long the writer waits for a reader.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    pub(super) pause: Duration,
    pub(super) total: Duration,
}

pub(super) enum Part {
    Text(Bytes),
    /// The answer is complete. Without it, it was cut short and must not look complete.
    End,
}

/// A body that is there as a whole, or is read from [`Chunks`]. Its length is never announced, as in Envoy.
pub(super) struct ChunkedBody {
    parts: Parts,
    sent: u64,
    done: Option<Done>,
}

enum Parts {
    Whole(Bytes),
    Coming(mpsc::Receiver<Part>),
}

/// Told when the body is sent or dropped, with how many bytes of it were taken.
type Done = Box<dyn FnOnce(u64)>;

// === impl Chunks ===

impl Chunks {
    /// For a thread that may block while the calling runtime goes on.
    pub(super) fn to_client(patience: Patience) -> (Chunks, ChunkedBody) {
        let (to, from) = mpsc::channel(WAITING);
        let to = Sink::Client { to, runtime: Handle::current(), patience };
        (Chunks { text: String::new(), to }, ChunkedBody::new(Parts::Coming(from)))
    }

    #[cfg(test)]
    pub(super) fn to_memory() -> Chunks {
        Chunks { text: String::new(), to: Sink::Memory(Vec::new()) }
    }

    #[cfg(test)]
    pub(super) fn collected(mut self) -> Vec<String> {
        self.hand_on().expect("memory takes everything");
        match self.to {
            Sink::Memory(parts) => parts,
            Sink::Client { .. } => unreachable!("made by to_memory"),
        }
    }

    /// Hands bytes on that were rendered elsewhere; false: stop.
    pub fn send(&mut self, bytes: Vec<u8>) -> bool {
        self.hand_on().is_ok() && self.to.send(Part::Text(bytes.into())).is_ok()
    }

    /// Announces that nothing is missing.
    pub(super) fn finish(mut self) {
        if self.hand_on().is_ok() {
            // If nobody is there any more, nobody wants to know.
            let _ = self.to.send(Part::End);
        }
    }

    fn hand_on(&mut self) -> fmt::Result {
        if self.text.is_empty() {
            return Ok(());
        }
        let text = std::mem::take(&mut self.text);
        self.to.send(Part::Text(text.into()))
    }
}

impl fmt::Write for Chunks {
    fn write_str(&mut self, mut text: &str) -> fmt::Result {
        while self.text.len() + text.len() > CHUNK {
            let at = (0..=CHUNK - self.text.len()).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
            let (fits, rest) = text.split_at(at);
            self.text.push_str(fits);
            text = rest;
            self.hand_on()?;
        }
        if self.text.capacity() == 0 {
            self.text.reserve(CHUNK);
        }
        self.text.push_str(text);
        Ok(())
    }
}

impl Sink {
    fn send(&mut self, part: Part) -> fmt::Result {
        match self {
            Sink::Client { to, runtime, patience } => {
                let part = match to.try_send(part) {
                    Ok(()) => return Ok(()),
                    Err(mpsc::error::TrySendError::Closed(_)) => return Err(fmt::Error),
                    Err(mpsc::error::TrySendError::Full(part)) => part,
                };
                let began = Instant::now();
                let wait = patience.pause.min(patience.total);
                let sent = runtime.block_on(async { tokio::time::timeout(wait, to.send(part)).await });
                patience.total = patience.total.saturating_sub(began.elapsed());
                if matches!(sent, Ok(Ok(()))) { Ok(()) } else { Err(fmt::Error) }
            }
            #[cfg(test)]
            Sink::Memory(parts) => {
                if let Part::Text(text) = part {
                    parts.push(String::from_utf8(text.into()).expect("written as text"));
                }
                Ok(())
            }
        }
    }
}

// === impl ChunkedBody ===

impl ChunkedBody {
    fn new(parts: Parts) -> ChunkedBody {
        ChunkedBody { parts, sent: 0, done: None }
    }

    pub(super) fn whole(text: impl Into<Bytes>) -> ChunkedBody {
        ChunkedBody::new(Parts::Whole(text.into()))
    }

    pub(super) fn when_done(&mut self, done: impl FnOnce(u64) + 'static) {
        self.done = Some(Box::new(done));
    }

    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        match &mut self.parts {
            Parts::Whole(text) if text.is_empty() => Poll::Ready(None),
            Parts::Whole(text) => Poll::Ready(Some(Ok(std::mem::take(text)))),
            Parts::Coming(parts) => match ready!(parts.poll_recv(cx)) {
                Some(Part::Text(text)) => Poll::Ready(Some(Ok(text))),
                Some(Part::End) => {
                    self.parts = Parts::Whole(Bytes::new());
                    Poll::Ready(None)
                }
                None => Poll::Ready(Some(Err(io::Error::other("the answer was cut short")))),
            },
        }
    }
}

impl Drop for ChunkedBody {
    fn drop(&mut self) {
        if let Some(done) = self.done.take() {
            done(self.sent);
        }
    }
}

impl Body for ChunkedBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let part = ready!(self.poll_part(cx));
        if let Some(Ok(text)) = &part {
            self.sent += text.len() as u64;
        }
        Poll::Ready(part.map(|text| text.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        // Never said beforehand: an empty answer is chunked too.
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write;

    #[test]
    fn pieces_are_bounded_and_end_between_characters() {
        let mut chunks = Chunks::to_memory();
        let text = "\u{20ac}".repeat(50_000);
        chunks.write_str("a").unwrap();
        chunks.write_str(&text).unwrap();
        let parts = chunks.collected();
        assert!(parts.iter().all(|part| part.len() <= CHUNK) && parts.len() == 3);
        assert_eq!(parts.concat(), format!("a{text}"));
    }

    #[tokio::test]
    async fn a_reader_that_pauses_too_long_frees_the_writer() {
        let patience = Patience { pause: Duration::from_millis(50), total: Duration::from_secs(60) };
        let (mut chunks, body) = Chunks::to_client(patience);
        let big = "x".repeat(CHUNK * (WAITING + 3));
        let written = tokio::task::spawn_blocking(move || chunks.write_str(&big)).await.unwrap();
        assert!(written.is_err());
        drop(body);
    }

    #[tokio::test]
    async fn a_cut_answer_ends_in_an_error_and_a_whole_one_does_not() {
        let patience = Patience { pause: Duration::from_secs(9), total: Duration::from_secs(9) };
        for whole in [true, false] {
            let (mut chunks, mut body) = Chunks::to_client(patience);
            tokio::task::spawn_blocking(move || {
                chunks.write_str("x").unwrap();
                if whole { chunks.finish() } else { chunks.hand_on().unwrap() }
            });
            let complete = loop {
                match std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
                    Some(Ok(_)) => {}
                    end => break end.is_none(),
                }
            };
            assert_eq!(complete, whole);
        }
    }
}
