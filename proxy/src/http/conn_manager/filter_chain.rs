//! Runs a stream's filters, one direction at a time.
//!
//! Each direction is a small machine: a head passes filter by filter; a filter may answer, wait
//! for a future, or ask for the body first. Chunks pass the same way; when a filter waits in the
//! middle of data that one chunk is parked here and the manager stops reading the direction.
//! Nothing here borrows across a wait, and a chain without filters costs nothing.

use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use nuncio_core::http::{
    Chunk, DecodeFilter, EncodeFilter, HeaderMap, LocalReply, Outcome, RequestHead, ResponseHead, Step, StreamControl,
    Verdict,
};

/// What became of a head.
pub enum HeadOutcome {
    /// Every filter let it pass.
    Passed,
    Reply(Box<LocalReply>),
    /// The body is wanted first: call [`Chain::collected`] with it.
    Collect {
        limit: usize,
        partial: bool,
    },
    /// A filter cleared the route: match it again, then poll on.
    Reroute,
}

/// What became of a chunk or of trailers.
pub enum DataOutcome {
    Passed(Option<Bytes>),
    Reply(Box<LocalReply>),
}

/// A filter half as the chain sees it: the two traits with their heads made one.
pub trait Half {
    type Head;
    fn head(&mut self, head: &mut Self::Head, end: bool, stream: &StreamControl) -> Step;
    fn data(&mut self, chunk: &mut Chunk<'_>, end: bool, stream: &StreamControl) -> Step;
    fn body(&mut self, head: &mut Self::Head, body: &mut Vec<u8>, complete: bool, stream: &StreamControl) -> Step;
    fn trailers(&mut self, trailers: &mut HeaderMap, stream: &StreamControl) -> Step;
    fn tail(&mut self) -> Option<Bytes>;
    fn resume(&mut self, outcome: Outcome, head: &mut Self::Head, stream: &StreamControl) -> Step;
    fn complete(&mut self, stream: &StreamControl);
    fn reset(&mut self);
}

macro_rules! half {
    ($object:ty, $head:ty, $on_head:ident, $on_data:ident, $on_body:ident, $on_trailers:ident, $tail:ident) => {
        impl Half for $object {
            type Head = $head;
            fn head(&mut self, head: &mut $head, end: bool, stream: &StreamControl) -> Step {
                self.as_mut().$on_head(head, end, stream)
            }
            fn data(&mut self, chunk: &mut Chunk<'_>, end: bool, stream: &StreamControl) -> Step {
                self.as_mut().$on_data(chunk, end, stream)
            }
            fn body(&mut self, head: &mut $head, body: &mut Vec<u8>, whole: bool, stream: &StreamControl) -> Step {
                self.as_mut().$on_body(head, body, whole, stream)
            }
            fn trailers(&mut self, trailers: &mut HeaderMap, stream: &StreamControl) -> Step {
                self.as_mut().$on_trailers(trailers, stream)
            }
            fn tail(&mut self) -> Option<Bytes> {
                self.as_mut().$tail()
            }
            fn resume(&mut self, outcome: Outcome, head: &mut $head, stream: &StreamControl) -> Step {
                self.as_mut().resume(outcome, head, stream)
            }
            fn complete(&mut self, stream: &StreamControl) {
                self.as_mut().on_complete(stream);
            }
            fn reset(&mut self) {
                self.as_mut().reset();
            }
        }
    };
}

half!(Box<dyn DecodeFilter>, RequestHead, decode_headers, decode_data, decode_body, decode_trailers, decode_tail);
half!(Box<dyn EncodeFilter>, ResponseHead, encode_headers, encode_data, encode_body, encode_trailers, encode_tail);

/// One direction of one stream.
pub struct Chain<H: Half> {
    /// In the order they run.
    filters: Vec<(u8, H)>,
    /// Bit per position in the configured list: not for this stream.
    skip: u64,
    /// Where the head, or the parked chunk, or the trailers are.
    at: usize,
    waiting: Option<LocalBoxFuture<'static, Outcome>>,
    parked: Option<(Bytes, bool)>,
    /// While trailers pass: what the filter at `at` has seen of them.
    tail_seen: bool,
    trailers_seen: bool,
}

pub type DecodeChain = Chain<Box<dyn DecodeFilter>>;
pub type EncodeChain = Chain<Box<dyn EncodeFilter>>;

impl<H: Half> Default for Chain<H> {
    fn default() -> Self {
        Self {
            filters: Vec::new(),
            skip: 0,
            at: 0,
            waiting: None,
            parked: None,
            tail_seen: false,
            trailers_seen: false,
        }
    }
}

impl<H: Half> Chain<H> {
    /// `position` is the filter's place in the configured list; at most 64 filters can be skipped.
    pub fn push(&mut self, position: u8, filter: H) {
        self.filters.push((position, filter));
    }

    pub fn reverse(&mut self) {
        self.filters.reverse();
    }

    pub fn is_empty(&self) -> bool {
        self.filters.is_empty()
    }

    /// No filter looks at this stream.
    pub fn is_idle(&self) -> bool {
        (0..self.filters.len()).all(|at| self.skipped(at))
    }

    pub fn skip(&mut self, positions: u64) {
        self.skip = positions;
    }

    /// A filter's future is pending, or a chunk waits for one.
    pub fn is_waiting(&self) -> bool {
        self.waiting.is_some()
    }

    /// For the next stream: pending futures are dropped, filters are told.
    pub fn reset(&mut self, stream: &StreamControl) {
        self.abandon();
        self.at = 0;
        for (_, filter) in &mut self.filters {
            filter.complete(stream);
            filter.reset();
        }
        self.skip = 0;
    }

    /// The stream ends or answers: what waits is dropped, nothing resumes.
    pub fn abandon(&mut self) {
        self.waiting = None;
        self.parked = None;
        (self.tail_seen, self.trailers_seen) = (false, false);
    }

    fn skipped(&self, at: usize) -> bool {
        let position = self.filters[at].0;
        position < 64 && self.skip & (1 << position) != 0
    }

    /// Runs the head through the remaining filters.
    pub fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
        head: &mut H::Head,
        end: bool,
        stream: &StreamControl,
    ) -> Poll<HeadOutcome> {
        while self.at < self.filters.len() {
            let step = if self.waiting.is_some() {
                let outcome = ready!(self.poll_wait(cx));
                self.filters[self.at].1.resume(outcome, head, stream)
            } else if self.skipped(self.at) {
                Step::CONTINUE
            } else {
                self.filters[self.at].1.head(head, end, stream)
            };
            if let Some(outcome) = self.head_step(step, stream) {
                return Poll::Ready(outcome);
            }
        }
        self.at = 0;
        Poll::Ready(HeadOutcome::Passed)
    }

    /// The body that `Collect` asked for.
    pub fn collected(
        &mut self,
        head: &mut H::Head,
        body: &mut Vec<u8>,
        complete: bool,
        stream: &StreamControl,
    ) -> Option<HeadOutcome> {
        let step = self.filters[self.at].1.body(head, body, complete, stream);
        self.head_step(step, stream)
    }

    fn head_step(&mut self, step: Step, stream: &StreamControl) -> Option<HeadOutcome> {
        match step {
            Step::Later(future) => {
                self.waiting = Some(future);
                None
            }
            Step::Now(Verdict::Respond(reply)) => Some(HeadOutcome::Reply(reply)),
            Step::Now(Verdict::NeedBody { limit, partial }) => Some(HeadOutcome::Collect { limit, partial }),
            Step::Now(Verdict::Continue) => {
                self.at += 1;
                stream.state().route_cleared.get().then_some(HeadOutcome::Reroute)
            }
        }
    }

    fn poll_wait(&mut self, cx: &mut Context<'_>) -> Poll<Outcome> {
        let Some(future) = self.waiting.as_mut() else { return Poll::Pending };
        let outcome = ready!(future.as_mut().poll(cx));
        self.waiting = None;
        Poll::Ready(outcome)
    }

    /// Runs a chunk through all filters. `Passed(None)`: as (changed) in `chunk`. Pending: it was
    /// parked; poll [`poll_parked`](Self::poll_parked) and read no more of this direction meanwhile.
    pub fn poll_data(
        &mut self,
        cx: &mut Context<'_>,
        chunk: &mut Chunk<'_>,
        end: bool,
        head: &mut H::Head,
        stream: &StreamControl,
    ) -> Poll<DataOutcome> {
        self.at = 0;
        while self.at < self.filters.len() {
            if self.skipped(self.at) {
                self.at += 1;
                continue;
            }
            match self.filters[self.at].1.data(chunk, end, stream) {
                Step::Now(Verdict::Respond(reply)) => return Poll::Ready(DataOutcome::Reply(reply)),
                // A body cannot be asked for once it flows: go on.
                Step::Now(Verdict::Continue | Verdict::NeedBody { .. }) => self.at += 1,
                Step::Later(future) => {
                    self.waiting = Some(future);
                    let bytes = std::mem::replace(chunk, Chunk::Lent(&[])).into_bytes();
                    self.parked = Some((bytes, end));
                    return self.poll_parked(cx, head, stream);
                }
            }
        }
        self.at = 0;
        Poll::Ready(DataOutcome::Passed(None))
    }

    /// Whether a chunk is parked here.
    pub fn has_parked(&self) -> bool {
        self.parked.is_some()
    }

    /// Goes on with the parked chunk once its filter has decided.
    pub fn poll_parked(
        &mut self,
        cx: &mut Context<'_>,
        head: &mut H::Head,
        stream: &StreamControl,
    ) -> Poll<DataOutcome> {
        loop {
            if self.waiting.is_some() {
                let outcome = ready!(self.poll_wait(cx));
                match self.filters[self.at].1.resume(outcome, head, stream) {
                    Step::Later(future) => {
                        self.waiting = Some(future);
                        continue;
                    }
                    Step::Now(Verdict::Respond(reply)) => {
                        self.parked = None;
                        return Poll::Ready(DataOutcome::Reply(reply));
                    }
                    Step::Now(_) => self.at += 1,
                }
            }
            let Some((bytes, end)) = self.parked.take() else { return Poll::Ready(DataOutcome::Passed(None)) };
            let mut chunk = Chunk::Own(bytes);
            while self.at < self.filters.len() {
                if self.skipped(self.at) {
                    self.at += 1;
                    continue;
                }
                match self.filters[self.at].1.data(&mut chunk, end, stream) {
                    Step::Now(Verdict::Respond(reply)) => return Poll::Ready(DataOutcome::Reply(reply)),
                    Step::Now(_) => self.at += 1,
                    Step::Later(future) => {
                        self.waiting = Some(future);
                        break;
                    }
                }
            }
            if self.waiting.is_some() {
                self.parked = Some((chunk.into_bytes(), end));
                continue;
            }
            self.at = 0;
            return Poll::Ready(DataOutcome::Passed(Some(chunk.into_bytes())));
        }
    }

    /// Runs trailers through all filters; poll again while pending. `Passed(Some(..))`: bytes to send before them, which
    /// went through the filters behind those that made them.
    pub fn poll_trailers(
        &mut self,
        cx: &mut Context<'_>,
        trailers: &mut HeaderMap,
        head: &mut H::Head,
        stream: &StreamControl,
    ) -> Poll<DataOutcome> {
        while self.at < self.filters.len() {
            let step = if self.waiting.is_some() {
                let outcome = ready!(self.poll_wait(cx));
                self.filters[self.at].1.resume(outcome, head, stream)
            } else if self.skipped(self.at) {
                self.at += 1;
                continue;
            } else if !self.tail_seen
                && let Some((tail, _)) = self.parked.take()
            {
                self.tail_seen = true;
                let mut chunk = Chunk::Own(tail);
                let step = self.filters[self.at].1.data(&mut chunk, false, stream);
                self.parked = Some((chunk.into_bytes(), false));
                match step {
                    Step::Now(Verdict::Continue | Verdict::NeedBody { .. }) => continue,
                    step => step,
                }
            } else {
                self.trailers_seen = true;
                self.filters[self.at].1.trailers(trailers, stream)
            };
            match step {
                Step::Later(future) => self.waiting = Some(future),
                Step::Now(Verdict::Respond(reply)) => return Poll::Ready(DataOutcome::Reply(reply)),
                // That was the tail of filters before this one.
                Step::Now(_) if !self.trailers_seen => {}
                Step::Now(_) => self.trailers_passed(),
            }
        }
        self.at = 0;
        Poll::Ready(DataOutcome::Passed(self.parked.take().map(|(tail, _)| tail)))
    }

    /// One filter is done with the trailers.
    fn trailers_passed(&mut self) {
        if let Some(tail) = self.filters[self.at].1.tail().filter(|tail| !tail.is_empty()) {
            let whole = match self.parked.take() {
                Some((before, _)) if !before.is_empty() => [before, tail].concat().into(),
                _ => tail,
            };
            self.parked = Some((whole, false));
        }
        (self.tail_seen, self.trailers_seen) = (false, false);
        self.at += 1;
    }
}
