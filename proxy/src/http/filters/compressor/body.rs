//! One direction of a stream as it is being compressed.

use bytes::Bytes;
use nuncio_core::http::{Chunk, Framing, HeaderMap, LocalReply, Step};
use nuncio_core::stats::Stats;

use super::{Direction, Settings, TOTAL_COMPRESSED_BYTES, TOTAL_UNCOMPRESSED_BYTES};
use crate::http::compression;

/// The coder of one direction of one stream, if there is one.
#[derive(Default)]
pub(super) struct Body {
    encoder: Option<Box<dyn compression::Encoder>>,
    /// Made of nothing but the end of the coding, while trailers pass.
    tail: Option<Bytes>,
}

impl Body {
    /// The body is compressed from here on, as the head says now.
    pub(super) fn begin(&mut self, settings: &Settings, headers: &mut HeaderMap, framing: &mut Framing) -> bool {
        let Ok(encoder) = settings.library.start() else { return false };
        headers.remove("content-length");
        headers.set("content-encoding", settings.library.encoding);
        if matches!(framing, Framing::Length(_)) {
            *framing = Framing::Streamed;
        }
        self.encoder = Some(encoder);
        true
    }

    pub(super) fn push(&mut self, chunk: &mut Chunk<'_>, end: bool, stats: &Stats<Direction>) -> Step {
        let Some(encoder) = &mut self.encoder else { return Step::CONTINUE };
        if chunk.is_empty() && !end {
            return Step::CONTINUE;
        }
        let mut out = Vec::new();
        if let Err(error) = encoder.push(chunk.as_slice(), end, &mut out) {
            return Step::respond(LocalReply::new(500, format!("compression_failed{{{error}}}")));
        }
        stats.add(TOTAL_UNCOMPRESSED_BYTES, chunk.len() as u64);
        stats.add(TOTAL_COMPRESSED_BYTES, out.len() as u64);
        *chunk = Chunk::Own(out.into());
        Step::CONTINUE
    }

    pub(super) fn trailers(&mut self, stats: &Stats<Direction>) -> Step {
        let mut chunk = Chunk::Lent(&[]);
        let step = self.push(&mut chunk, true, stats);
        self.tail = Some(chunk.into_bytes());
        step
    }

    pub(super) fn take_tail(&mut self) -> Option<Bytes> {
        self.tail.take()
    }

    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }
}
