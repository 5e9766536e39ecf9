//! The fields that one direction of a connection has indexed (RFC 7541 §2.3.2, §4), newest first. Names and values lie
//! behind one another in one piece of memory that grows to the table's size at most; entries leave at its beginning, and
//! when its end is reached what lives is moved to the front. Nothing is held before the first entry.

use std::collections::VecDeque;

use super::DEFAULT_SIZE;

/// What an entry counts beside its bytes (§4.1).
const OVERHEAD: u32 = 32;

/// The smallest piece of memory that is taken.
const FIRST: usize = 256;

#[derive(Clone, Copy)]
struct Entry {
    /// Where its name begins, counted from the table's first byte ever; it wraps, which the arithmetic with it does too.
    at: u32,
    name: u32,
    value: u32,
}

pub(super) struct DynamicTable {
    bytes: Vec<u8>,
    /// What stands at the front of `bytes`, in the count of [`Entry::at`].
    front: u32,
    /// The oldest first.
    entries: VecDeque<Entry>,
    size: u32,
    max_size: u32,
}

/// What a field counts in a table; beyond 32 bits it is larger than any table.
pub(super) fn size(name: &[u8], value: &[u8]) -> u32 {
    u32::try_from(name.len() + value.len() + OVERHEAD as usize).unwrap_or(u32::MAX)
}

impl DynamicTable {
    pub(super) fn new() -> Self {
        Self { bytes: Vec::new(), front: 0, entries: VecDeque::new(), size: 0, max_size: DEFAULT_SIZE }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn max_size(&self) -> u32 {
        self.max_size
    }

    pub(super) fn memory(&self) -> usize {
        self.bytes.capacity() + self.entries.capacity() * size_of::<Entry>()
    }

    /// §4.3.
    pub(super) fn set_max_size(&mut self, max_size: u32) {
        self.max_size = max_size;
        self.evict(max_size);
    }

    /// The entry that `age` newer ones stand before.
    #[inline]
    pub(super) fn get(&self, age: usize) -> Option<(&[u8], &[u8])> {
        let entry = self.entries.get(self.entries.len().wrapping_sub(age + 1))?;
        let bytes = &self.bytes[entry.at.wrapping_sub(self.front) as usize..];
        let (name, rest) = bytes.split_at(entry.name as usize);
        Some((name, &rest[..entry.value as usize]))
    }

    /// §4.4: makes room first. A field larger than the table empties it and is not in it: whether it is.
    pub(super) fn insert(&mut self, name: &[u8], value: &[u8]) -> bool {
        let size = size(name, value);
        if size > self.max_size {
            self.evict(0);
            return false;
        }
        self.evict(self.max_size - size);
        self.reserve(name.len() + value.len());
        let at = self.front.wrapping_add(self.bytes.len() as u32);
        self.bytes.extend_from_slice(name);
        self.bytes.extend_from_slice(value);
        self.entries.push_back(Entry { at, name: name.len() as u32, value: value.len() as u32 });
        self.size += size;
        true
    }

    fn evict(&mut self, size: u32) {
        while self.size > size
            && let Some(oldest) = self.entries.pop_front()
        {
            self.size -= oldest.name + oldest.value + OVERHEAD;
        }
        if self.entries.is_empty() {
            self.bytes.clear();
        }
    }

    /// Room for `more` behind the end: what is free already, what the table may still grow by, or what is dead in front.
    fn reserve(&mut self, more: usize) {
        let need = self.bytes.len() + more;
        if need <= self.bytes.capacity() {
            return;
        }
        let limit = self.max_size as usize;
        if need > limit {
            self.compact();
        }
        let need = self.bytes.len() + more;
        if need > self.bytes.capacity() {
            let capacity = need.max(self.bytes.capacity() * 2).max(FIRST).min(limit);
            self.bytes.reserve_exact(capacity - self.bytes.len());
        }
    }

    fn compact(&mut self) {
        let Some(oldest) = self.entries.front() else { return };
        let dead = oldest.at.wrapping_sub(self.front) as usize;
        self.front = oldest.at;
        self.bytes.copy_within(dead.., 0);
        self.bytes.truncate(self.bytes.len() - dead);
    }
}
