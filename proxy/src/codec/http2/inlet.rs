//! A stream's receiving half. The peer may send more only as its body is passed on: the window is
//! given back for a piece when the next one is asked for.

use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::RecvStream;
use nuncio_core::http::HeaderMap;

use super::fields;
use super::shared::Shared;

pub(super) struct Inlet {
    recv: RecvStream,
    shared: Rc<Shared>,
    /// Of the last piece.
    unreleased: usize,
    data_ended: bool,
    ended: bool,
    max_headers: usize,
}

/// What came.
pub(super) enum Piece {
    Data(Bytes),
    Trailers(HeaderMap),
    End,
}

/// Why nothing more comes.
pub(super) enum InletError {
    Library(h2::Error),
    Trailers,
}

impl Inlet {
    pub(super) fn new(recv: RecvStream, shared: Rc<Shared>, max_headers: usize) -> Self {
        let ended = recv.is_end_stream();
        Self { recv, shared, unreleased: 0, data_ended: ended, ended, max_headers }
    }

    /// The end is known.
    pub(super) fn is_ended(&self) -> bool {
        self.ended || self.recv.is_end_stream()
    }

    pub(super) fn end(&mut self) {
        self.release();
        self.ended = true;
    }

    fn release(&mut self) {
        if self.unreleased > 0 {
            self.shared.released(self.unreleased);
            // An error means that the stream is over.
            let _ = self.recv.flow_control().release_capacity(self.unreleased);
            self.unreleased = 0;
        }
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Piece, InletError>> {
        self.release();
        while !self.data_ended && !self.ended {
            match ready!(self.recv.poll_data(cx)) {
                Some(Ok(bytes)) if bytes.is_empty() => {}
                Some(Ok(bytes)) => {
                    self.unreleased = bytes.len();
                    return Poll::Ready(Ok(Piece::Data(bytes)));
                }
                Some(Err(error)) => return Poll::Ready(Err(InletError::Library(error))),
                None => self.data_ended = true,
            }
        }
        if self.ended {
            return Poll::Ready(Ok(Piece::End));
        }
        let trailers = ready!(self.recv.poll_trailers(cx)).map_err(InletError::Library)?;
        self.ended = true;
        match trailers {
            None => Poll::Ready(Ok(Piece::End)),
            Some(map) => match fields::read_trailers(&map, self.max_headers) {
                Some(trailers) if trailers.is_empty() => Poll::Ready(Ok(Piece::End)),
                Some(trailers) => {
                    self.shared.count(|counts| counts.trailers += 1);
                    Poll::Ready(Ok(Piece::Trailers(trailers)))
                }
                None => Poll::Ready(Err(InletError::Trailers)),
            },
        }
    }
}
