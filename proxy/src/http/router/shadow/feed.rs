//! The body of a request on its way to a copy of it: a piece goes in as it goes upstream, and comes out when the mirror
//! takes more. What waits is bounded, since the request waits then.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use nuncio_core::http::HeaderMap;

/// What a copy gets next.
#[derive(Debug)]
pub(super) enum Piece {
    Data(Bytes),
    End(Option<HeaderMap>),
}

enum End {
    Whole(Option<HeaderMap>),
    /// The request ended before its end: so must the copy.
    Cut,
}

struct Shared {
    pieces: RefCell<VecDeque<Bytes>>,
    /// Bytes of them, of which there may be so many before the request waits.
    waiting: Cell<usize>,
    limit: usize,
    end: RefCell<Option<End>>,
    /// The copy wants no more.
    closed: Cell<bool>,
    reader: RefCell<Option<Waker>>,
    writer: RefCell<Option<Waker>>,
}

/// The request's end of it. Dropping it before it was finished cuts the copy.
pub(in crate::http::router) struct Feed(Rc<Shared>);

/// The copy's end of it.
pub(super) struct Fed(Rc<Shared>);

pub(super) fn feed(limit: usize) -> (Feed, Fed) {
    let shared = Rc::new(Shared {
        pieces: RefCell::default(),
        waiting: Cell::new(0),
        limit,
        end: RefCell::default(),
        closed: Cell::new(false),
        reader: RefCell::default(),
        writer: RefCell::default(),
    });
    (Feed(shared.clone()), Fed(shared))
}

impl Feed {
    pub fn push(&self, piece: Bytes) {
        let shared = &*self.0;
        if shared.closed.get() || piece.is_empty() {
            return;
        }
        shared.waiting.set(shared.waiting.get() + piece.len());
        shared.pieces.borrow_mut().push_back(piece);
        wake(&shared.reader);
    }

    /// Ready when more may be pushed.
    pub fn poll_room(&self, cx: &Context<'_>) -> Poll<()> {
        let shared = &*self.0;
        if shared.closed.get() || shared.waiting.get() < shared.limit {
            return Poll::Ready(());
        }
        wait(&shared.writer, cx);
        // It has to know that the request waits.
        wake(&shared.reader);
        Poll::Pending
    }

    /// All of the request was pushed.
    pub fn finish(self, trailers: Option<HeaderMap>) {
        self.end(End::Whole(trailers));
    }

    fn end(&self, how: End) {
        self.0.end.borrow_mut().get_or_insert(how);
        wake(&self.0.reader);
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.end(End::Cut);
    }
}

impl Fed {
    pub fn poll_next(&self, cx: &Context<'_>) -> Poll<Piece> {
        let shared = &*self.0;
        if let Some(piece) = shared.pieces.borrow_mut().pop_front() {
            shared.waiting.set(shared.waiting.get() - piece.len());
            wake(&shared.writer);
            return Poll::Ready(Piece::Data(piece));
        }
        if let Some(End::Whole(trailers)) = &mut *shared.end.borrow_mut() {
            return Poll::Ready(Piece::End(trailers.take()));
        }
        wait(&shared.reader, cx);
        Poll::Pending
    }

    /// Ready when nothing more may go to the mirror, whatever waits.
    pub fn poll_cut(&self, cx: &Context<'_>) -> Poll<()> {
        if matches!(*self.0.end.borrow(), Some(End::Cut)) {
            return Poll::Ready(());
        }
        wait(&self.0.reader, cx);
        Poll::Pending
    }

    /// There is nothing but a head.
    pub fn is_empty(&self) -> bool {
        self.0.pieces.borrow().is_empty() && matches!(*self.0.end.borrow(), Some(End::Whole(None)))
    }

    /// The request waits.
    pub fn is_full(&self) -> bool {
        self.0.writer.borrow().is_some()
    }
}

impl Drop for Fed {
    fn drop(&mut self) {
        self.0.closed.set(true);
        self.0.pieces.borrow_mut().clear();
        wake(&self.0.writer);
    }
}

fn wake(place: &RefCell<Option<Waker>>) {
    if let Some(waker) = place.take() {
        waker.wake();
    }
}

fn wait(place: &RefCell<Option<Waker>>, cx: &Context<'_>) {
    let mut place = place.borrow_mut();
    if !place.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
        *place = Some(cx.waker().clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cx() -> Context<'static> {
        Context::from_waker(Waker::noop())
    }

    #[test]
    fn what_is_pushed_comes_out_in_order_and_then_the_end() {
        let (feed, fed) = feed(4);
        assert!(fed.poll_next(&cx()).is_pending() && !fed.is_empty());
        assert!(feed.poll_room(&cx()).is_ready());
        feed.push(Bytes::from_static(b"abc"));
        feed.push(Bytes::from_static(b"def"));
        assert!(feed.poll_room(&cx()).is_pending() && fed.is_full());
        assert!(matches!(fed.poll_next(&cx()), Poll::Ready(Piece::Data(piece)) if piece == "abc"));
        assert!(feed.poll_room(&cx()).is_ready() && !fed.is_full());
        let trailers: HeaderMap = [("a", "b")].into_iter().collect();
        feed.finish(Some(trailers));
        assert!(matches!(fed.poll_next(&cx()), Poll::Ready(Piece::Data(piece)) if piece == "def"));
        assert!(matches!(fed.poll_next(&cx()), Poll::Ready(Piece::End(Some(_)))));
    }

    #[test]
    fn a_request_that_is_cut_cuts_its_copy() {
        let (feed, fed) = feed(4);
        feed.push(Bytes::from_static(b"abc"));
        assert!(fed.poll_cut(&cx()).is_pending());
        drop(feed);
        assert!(fed.poll_cut(&cx()).is_ready());
    }

    #[test]
    fn a_copy_that_is_over_holds_nobody_up() {
        let (feed, fed) = feed(4);
        feed.push(Bytes::from_static(b"abcd"));
        assert!(feed.poll_room(&cx()).is_pending());
        drop(fed);
        feed.push(Bytes::from_static(b"efgh"));
        assert!(feed.poll_room(&cx()).is_ready());
    }
}
