//! A table from byte strings to numbers, filled once and probed with a hash that the caller
//! builds up byte by byte: one pass over a host or a path finds every configured prefix of it.
//!
//! The hash has no secret. Only the configuration fills the table, so a peer can choose what is
//! looked up but cannot make chains longer.

/// FNV-1a, 64 bits.
pub(super) const SEED: u64 = 0xcbf2_9ce4_8422_2325;

#[inline]
pub(super) fn step(hash: u64, byte: u8) -> u64 {
    (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
}

pub(super) fn hash(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(SEED, step)
}

#[derive(Debug, Default)]
pub(super) struct Names {
    /// Index into `entries` plus one; 0 is free. A power of two long, at most half full.
    slots: Vec<u32>,
    entries: Vec<Entry>,
    bytes: Vec<u8>,
}

#[derive(Debug)]
struct Entry {
    /// Folded to half.
    hash: u32,
    start: u32,
    len: u32,
    value: u32,
}

impl Names {
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds `name` under `hash`; the value it has already, if any, stays.
    pub(super) fn insert(&mut self, hash: u64, name: &[u8], value: u32) -> Result<(), u32> {
        if let Some(old) = self.get(hash, name) {
            return Err(old);
        }
        if (self.entries.len() + 1) * 2 > self.slots.len() {
            self.grow();
        }
        let start = self.bytes.len() as u32;
        self.bytes.extend_from_slice(name);
        self.entries.push(Entry { hash: fold(hash), start, len: name.len() as u32, value });
        let at = self.free_slot(fold(hash));
        self.slots[at] = self.entries.len() as u32;
        Ok(())
    }

    #[inline]
    pub(super) fn get(&self, hash: u64, name: &[u8]) -> Option<u32> {
        let mask = self.slots.len().checked_sub(1)?;
        let hash = fold(hash);
        let mut at = hash as usize & mask;
        loop {
            let entry = &self.entries[self.slots[at].checked_sub(1)? as usize];
            if entry.hash == hash && self.name(entry) == name {
                return Some(entry.value);
            }
            at = (at + 1) & mask;
        }
    }

    pub(super) fn shrink(&mut self) {
        self.entries.shrink_to_fit();
        self.bytes.shrink_to_fit();
    }

    fn grow(&mut self) {
        self.slots = vec![0; (self.slots.len() * 2).max(8)];
        for i in 0..self.entries.len() {
            let at = self.free_slot(self.entries[i].hash);
            self.slots[at] = i as u32 + 1;
        }
    }

    fn free_slot(&self, hash: u32) -> usize {
        let mask = self.slots.len() - 1;
        let mut at = hash as usize & mask;
        while self.slots[at] != 0 {
            at = (at + 1) & mask;
        }
        at
    }

    fn name(&self, entry: &Entry) -> &[u8] {
        &self.bytes[entry.start as usize..(entry.start + entry.len) as usize]
    }
}

/// FNV's low bits alone are weak for short names.
#[inline]
fn fold(hash: u64) -> u32 {
    (hash ^ (hash >> 32)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn h(name: &str) -> u64 {
        hash(name.bytes())
    }

    #[test]
    fn every_name_is_found_and_no_other() {
        let mut names = Names::default();
        assert_eq!(names.get(h("x"), b"x"), None);
        for i in 0..2000u32 {
            let name = format!("name-{i}");
            assert_eq!(names.insert(h(&name), name.as_bytes(), i), Ok(()));
        }
        for i in 0..2000u32 {
            let name = format!("name-{i}");
            assert_eq!(names.get(h(&name), name.as_bytes()), Some(i));
        }
        assert_eq!(names.get(h("name-2000"), b"name-2000"), None);
        assert_eq!(names.insert(h("name-7"), b"name-7", 9), Err(7));
    }

    #[test]
    fn equal_hashes_do_not_make_equal_names() {
        let mut names = Names::default();
        names.insert(1, b"a", 1).unwrap();
        names.insert(1, b"b", 2).unwrap();
        assert_eq!((names.get(1, b"a"), names.get(1, b"b"), names.get(1, b"c")), (Some(1), Some(2), None));
    }
}
