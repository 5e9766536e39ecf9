//! The memory a worker counts in: cache lines of its own, so that no other thread's count ever moves them.
//!
//! One thread writes a block and any thread reads it. The writer does not need an atomic addition, only loads and stores
//! that do not tear; a reader sees each word at some recent value.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Words in a [`Line`].
pub const WORDS_PER_LINE: usize = 8;

/// One cache line of counts.
#[repr(align(64))]
#[derive(Debug, Default)]
pub struct Line([AtomicU64; WORDS_PER_LINE]);

impl Line {
    pub const fn zero() -> Self {
        Self([const { AtomicU64::new(0) }; WORDS_PER_LINE])
    }
}

/// Lines needed for so many words.
pub const fn lines_for(words: usize) -> usize {
    words.div_ceil(WORDS_PER_LINE)
}

/// Adds with wrapping, for the only writer of these lines. A wrapped share is right again once all shares are summed.
#[inline(always)]
pub(super) fn add(lines: &[Line], word: usize, n: u64) {
    let cell = &lines[word / WORDS_PER_LINE].0[word % WORDS_PER_LINE];
    cell.store(cell.load(Relaxed).wrapping_add(n), Relaxed);
}

#[inline(always)]
pub(super) fn set(lines: &[Line], word: usize, value: u64) {
    lines[word / WORDS_PER_LINE].0[word % WORDS_PER_LINE].store(value, Relaxed);
}

/// Sets bits that are mostly set already: the line is written only when something changes.
#[inline(always)]
pub(super) fn mark(lines: &[Line], word: usize, bits: u64) {
    let cell = &lines[word / WORDS_PER_LINE].0[word % WORDS_PER_LINE];
    let old = cell.load(Relaxed);
    if old & bits != bits {
        cell.store(old | bits, Relaxed);
    }
}

#[inline(always)]
pub(super) fn get(lines: &[Line], word: usize) -> u64 {
    lines[word / WORDS_PER_LINE].0[word % WORDS_PER_LINE].load(Relaxed)
}
