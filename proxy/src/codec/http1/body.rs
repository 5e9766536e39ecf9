//! Bodies, from bytes to pieces: counted, chunked, or until the connection closes.

use std::io;
use std::task::{Context, Poll, ready};

use nuncio_core::http::{Framing, HeaderMap, Held};

use super::chunked::{ChunkDecoder, Until};
use super::error::FieldsError;
use super::fields;
use super::wire::{HEAD_READ, Wire};

/// What of a message's body is still to be read.
#[derive(Debug)]
pub(super) enum Incoming {
    Done,
    Length(u64),
    UntilClose,
    Chunked(ChunkDecoder),
    /// Behind the last chunk.
    Trailers,
}

/// What reading a body brought.
#[derive(Debug)]
pub(super) enum Piece {
    /// So many bytes at the start of the scratch buffer.
    Data(usize),
    /// What came with the head, where it was read.
    Held(Held),
    Trailers(HeaderMap),
    End,
}

/// Why a body cannot be read to its end.
#[derive(Debug)]
pub(super) enum BodyFault {
    Chunk,
    Trailers(FieldsError),
    Eof,
    Io(io::Error),
}

/// Limits of a trailer section.
#[derive(Debug, Clone, Copy)]
pub(super) struct TrailerRules {
    pub(super) keep: bool,
    pub(super) max_bytes: usize,
    pub(super) max_fields: usize,
}

impl Incoming {
    pub(super) fn of(framing: Framing) -> Self {
        match framing {
            Framing::None | Framing::Length(0) => Self::Done,
            Framing::Length(n) => Self::Length(n),
            Framing::Streamed => Self::Chunked(ChunkDecoder::new()),
            Framing::UntilClose => Self::UntilClose,
        }
    }

    pub(super) fn is_done(&self) -> bool {
        matches!(self, Self::Done)
    }

    /// The next piece of a body.
    pub(super) fn poll(
        &mut self,
        wire: &mut Wire,
        rules: TrailerRules,
        cx: &mut Context<'_>,
        scratch: &mut [u8],
    ) -> Poll<Result<Piece, BodyFault>> {
        loop {
            match self {
                Self::Done => return Poll::Ready(Ok(Piece::End)),
                Self::Trailers => {
                    let trailers = ready!(poll_trailers(wire, rules, cx, scratch))?;
                    *self = Self::Done;
                    return Poll::Ready(Ok(trailers.map_or(Piece::End, Piece::Trailers)));
                }
                Self::UntilClose => {
                    if let Some(held) = wire.take_held(u64::MAX) {
                        return Poll::Ready(Ok(Piece::Held(held)));
                    }
                    let n = match ready!(fill(wire, cx, scratch, usize::MAX)) {
                        Err(BodyFault::Eof) => {
                            *self = Self::Done;
                            continue;
                        }
                        other => other?,
                    };
                    return Poll::Ready(Ok(Piece::Data(n)));
                }
                Self::Length(remaining) => {
                    if let Some(held) = wire.take_held(*remaining) {
                        *remaining -= held.len() as u64;
                        if *remaining == 0 {
                            *self = Self::Done;
                        }
                        return Poll::Ready(Ok(Piece::Held(held)));
                    }
                    // A little more than the body, so that the read is short and the next one knows
                    // that the socket is empty; and not much more, because it would be kept.
                    let most = usize::try_from(*remaining).unwrap_or(usize::MAX).saturating_add(HEAD_READ);
                    let n = ready!(fill(wire, cx, scratch, most))?;
                    let data = usize::try_from(*remaining).unwrap_or(usize::MAX).min(n);
                    wire.put_back(&scratch[data..n]);
                    *remaining -= data as u64;
                    if *remaining == 0 {
                        *self = Self::Done;
                    }
                    return Poll::Ready(Ok(Piece::Data(data)));
                }
                Self::Chunked(decoder) => {
                    let mut held = wire.take_held(u64::MAX);
                    let bytes = match &mut held {
                        Some(held) => &mut held[..],
                        None => {
                            let n = ready!(fill(wire, cx, scratch, usize::MAX))?;
                            &mut scratch[..n]
                        }
                    };
                    let decoded = decoder.decode(bytes).map_err(|_| BodyFault::Chunk)?;
                    wire.put_back(&bytes[decoded.consumed..]);
                    match decoded.until {
                        Until::More => {}
                        Until::Trailers => *self = Self::Trailers,
                        Until::End => *self = Self::Done,
                    }
                    if decoded.data > 0 {
                        let held = held.map(|mut held| {
                            held.narrow(0..decoded.data);
                            Piece::Held(held)
                        });
                        return Poll::Ready(Ok(held.unwrap_or(Piece::Data(decoded.data))));
                    }
                }
            }
        }
    }
}

/// [`Wire::poll_fill`] where the peer's end is a fault.
fn fill(wire: &mut Wire, cx: &mut Context<'_>, scratch: &mut [u8], most: usize) -> Poll<Result<usize, BodyFault>> {
    Poll::Ready(match ready!(wire.poll_fill(cx, scratch, most)) {
        Ok(0) => Err(BodyFault::Eof),
        other => other.map_err(BodyFault::Io),
    })
}

/// The trailer section; `None` if nothing of it is passed on.
fn poll_trailers(
    wire: &mut Wire,
    rules: TrailerRules,
    cx: &mut Context<'_>,
    scratch: &mut [u8],
) -> Poll<Result<Option<HeaderMap>, BodyFault>> {
    loop {
        if wire.worth_parsing() {
            // Envoy counts trailers only where it passes them on.
            let max = if rules.keep { rules.max_fields } else { rules.max_fields.max(1024) };
            let parsed = fields::parse(wire.pending(), max, |fields, len| {
                (len, if rules.keep { fields::allowed_trailers(fields) } else { HeaderMap::new() })
            });
            match parsed.map_err(BodyFault::Trailers)? {
                Some((len, _)) if len > rules.max_bytes => {
                    return Poll::Ready(Err(BodyFault::Trailers(FieldsError::TooLarge)));
                }
                Some((len, map)) => {
                    wire.consume(len);
                    return Poll::Ready(Ok(Some(map).filter(|m| !m.is_empty())));
                }
                None => wire.mark_tried(),
            }
        }
        if wire.pending().len() > rules.max_bytes {
            return Poll::Ready(Err(BodyFault::Trailers(FieldsError::TooLarge)));
        }
        let most = scratch.len().min(HEAD_READ);
        match ready!(wire.poll_read(cx, &mut scratch[..most])) {
            Ok(0) => return Poll::Ready(Err(BodyFault::Eof)),
            Ok(n) => wire.keep_more(&scratch[..n]),
            Err(e) => return Poll::Ready(Err(BodyFault::Io(e))),
        }
    }
}
