//! A stream's receiving half, for either role. The peer may send more only as its body is passed on: the window is
//! given back for a piece when the next one is asked for. Dropping it gives the stream up.

use std::task::{Context, Poll, ready};

use super::session::{BodyEnd, Shared};
use crate::codec::Body;

pub(super) struct Inlet {
    session: Shared,
    slot: usize,
    /// Of the last piece of the body, until the next is asked for.
    unreleased: usize,
    /// The body gives nothing more.
    ended: bool,
}

impl Inlet {
    pub(super) fn new(session: Shared, slot: usize) -> Self {
        Self { session, slot, unreleased: 0, ended: false }
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Body<'static>, BodyEnd>> {
        let mut session = self.session.borrow_mut();
        session.release_of(self.slot, std::mem::take(&mut self.unreleased));
        let body = ready!(session.poll_body(cx, self.slot));
        if let Ok(Body::Data(chunk)) = &body {
            self.unreleased = chunk.len();
        } else {
            self.ended = true;
        }
        Poll::Ready(body)
    }

    /// The end is known, and nothing stands before it.
    pub(super) fn is_ended(&self) -> bool {
        self.ended || self.session.borrow_mut().is_read(self.slot)
    }
}

impl Drop for Inlet {
    fn drop(&mut self) {
        let mut session = self.session.borrow_mut();
        session.release_of(self.slot, self.unreleased);
        session.close_stream(self.slot);
    }
}
