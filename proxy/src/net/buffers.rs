//! Buffers that a worker lends to whoever reads or writes right now, so that idle connections
//! hold none and the hot path allocates none.
//!
//! Buffers are taken and given back, never borrowed across a poll: a filter's future may do
//! HTTP/1 of its own inside the same poll and then takes a second one.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use nuncio_core::http::Held;

use super::splice::Pipes;

/// Large enough that a 64 KiB body passes in one read (measured: 16, 64, 128 KiB took the 64 KiB
/// download from 59 to 39 to 35 µs).
pub const SCRATCH_SIZE: usize = 128 * 1024;

/// Above this a returned buffer is freed rather than kept.
const KEEP_CAPACITY: usize = 64 * 1024;
const KEEP_COUNT: usize = 64;
const KEEP_SCRATCH: usize = 4;
/// So many read buffers may be kept over a poll at a time: more would be memory that slow peers decide about.
const MAX_HELD: usize = 4;

/// A worker's free lists.
#[derive(Default)]
pub struct Buffers {
    held: Cell<usize>,
    scratch: RefCell<Vec<Box<[u8]>>>,
    vectors: RefCell<Vec<Vec<u8>>>,
    /// For bytes that need no buffer.
    pub pipes: Pipes,
}

thread_local! {
    static OWN: Rc<Buffers> = Rc::default();
}

impl Buffers {
    /// This thread's. A worker gets them here, and so does whoever is only told of the thread it is on.
    pub fn of_this_thread() -> Rc<Self> {
        OWN.with(Rc::clone)
    }

    /// A read buffer of [`SCRATCH_SIZE`]. Its content is whatever the last user left.
    pub fn take_scratch(&self) -> Box<[u8]> {
        self.scratch.borrow_mut().pop().unwrap_or_else(|| vec![0; SCRATCH_SIZE].into_boxed_slice())
    }

    /// The same for somebody who may keep it over a poll, unless enough of this thread's are kept already.
    pub fn hold() -> Option<Held> {
        OWN.with(|own| {
            let more = own.held.get() + 1;
            (more <= MAX_HELD).then(|| {
                own.held.set(more);
                Held::new(own.take_scratch(), Self::take_back)
            })
        })
    }

    fn take_back(buffer: Box<[u8]>) {
        // As the thread ends there may be nobody left to give it to.
        let _ = OWN.try_with(|own| {
            own.held.set(own.held.get().saturating_sub(1));
            own.give_scratch(buffer);
        });
    }

    pub fn give_scratch(&self, buffer: Box<[u8]>) {
        let mut list = self.scratch.borrow_mut();
        if list.len() < KEEP_SCRATCH {
            list.push(buffer);
        }
    }

    /// An empty vector for output or carried-over input.
    pub fn take(&self) -> Vec<u8> {
        self.vectors.borrow_mut().pop().unwrap_or_default()
    }

    pub fn give(&self, mut buffer: Vec<u8>) {
        if buffer.capacity() == 0 || buffer.capacity() > KEEP_CAPACITY {
            return;
        }
        let mut list = self.vectors.borrow_mut();
        if list.len() < KEEP_COUNT {
            buffer.clear();
            list.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_read_buffers_are_held_at_a_time_and_each_comes_back() {
        let mut held: Vec<Held> = std::iter::from_fn(Buffers::hold).collect();
        assert_eq!(held.len(), MAX_HELD);
        drop(held.pop());
        assert_eq!(Buffers::hold().map(|buffer| buffer.len()), Some(SCRATCH_SIZE));
        drop(held);
        assert_eq!(std::iter::from_fn(Buffers::hold).collect::<Vec<_>>().len(), MAX_HELD);
    }

    #[test]
    fn a_huge_buffer_is_not_kept() {
        let buffers = Buffers::default();
        buffers.give(Vec::with_capacity(KEEP_CAPACITY + 1));
        assert_eq!(buffers.take().capacity(), 0);
        buffers.give(Vec::with_capacity(100));
        assert_eq!(buffers.take().capacity(), 100);
    }
}
