//! Where the encoder finds a field among those it has indexed: two small hash tables of serial numbers beside the dynamic
//! table. They are never cleaned: a number whose entry has left is known by its age, and what they propose is compared
//! with the bytes.

use super::dynamic_table::DynamicTable;

/// Entries that a table of the default size can have.
const MOST: usize = 128;

/// How many entries of one chain are looked at. Fields are chosen by peers, and so are the chains they make.
const STEPS: usize = 16;

/// A field's hash, and its name's.
#[derive(Clone, Copy)]
pub(super) struct Hash {
    pub(super) name: u64,
    pub(super) field: u64,
}

impl Hash {
    #[inline]
    pub(super) fn new(name: &[u8], value: &[u8]) -> Self {
        let name = mix(0, name);
        Self { name: finish(name), field: finish(mix(name, value)) }
    }

    #[inline]
    fn slot(self) -> usize {
        (self.field >> 57) as usize
    }

    #[inline]
    fn tag(self) -> u16 {
        (self.field >> 41) as u16
    }

    #[inline]
    fn name_slot(self) -> usize {
        (self.name >> 58) as usize
    }
}

const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// Eight bytes a step: rotate, exclusive or, multiply. Spreads well enough for what is verified afterwards.
#[inline]
fn mix(state: u64, bytes: &[u8]) -> u64 {
    let step = |state: u64, word: u64| (state.rotate_left(5) ^ word).wrapping_mul(FACTOR);
    let mut state = step(state, bytes.len() as u64);
    // The last bytes once more rather than the rest one by one.
    if let Some(last) = bytes.last_chunk::<8>() {
        let (words, _) = bytes[..bytes.len() - 1].as_chunks::<8>();
        for word in words {
            state = step(state, u64::from_le_bytes(*word));
        }
        return step(state, u64::from_le_bytes(*last));
    }
    let word = match (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        (Some(first), Some(last)) => u64::from(u32::from_le_bytes(*first)) << 32 | u64::from(u32::from_le_bytes(*last)),
        _ => bytes.iter().fold(0, |word, &byte| word << 8 | u64::from(byte)),
    };
    step(state, word)
}

#[inline]
fn finish(state: u64) -> u64 {
    (state ^ state >> 32).wrapping_mul(FACTOR)
}

#[derive(Clone, Copy)]
struct Link {
    /// The entry before it in the same chain.
    next: u16,
    tag: u16,
}

pub(super) struct Lookup {
    /// The newest entry's number.
    newest: u16,
    chains: [u16; 128],
    names: [u16; 64],
    /// By the number modulo their length.
    links: [Link; MOST],
}

impl Lookup {
    pub(super) fn new() -> Self {
        // As far as can be from what the empty places say.
        Self { newest: 0x8000, chains: [0; 128], names: [0; 64], links: [Link { next: 0, tag: 0 }; MOST] }
    }

    fn age(&self, number: u16) -> usize {
        usize::from(self.newest.wrapping_sub(number))
    }

    /// The age of the entry that is exactly this field.
    pub(super) fn field(&self, table: &DynamicTable, hash: Hash, name: &[u8], value: &[u8]) -> Option<usize> {
        let mut number = self.chains[hash.slot()];
        for _ in 0..STEPS {
            let age = self.age(number);
            if age >= table.len() {
                return None;
            }
            let link = self.links[usize::from(number) % MOST];
            if link.tag == hash.tag() && table.get(age) == Some((name, value)) {
                return Some(age);
            }
            number = link.next;
        }
        None
    }

    /// The age of an entry with this name.
    pub(super) fn name(&self, table: &DynamicTable, hash: Hash, name: &[u8]) -> Option<usize> {
        let age = self.age(self.names[hash.name_slot()]);
        (age < table.len() && table.get(age).is_some_and(|entry| entry.0 == name)).then_some(age)
    }

    /// The table has a new entry.
    pub(super) fn inserted(&mut self, hash: Hash) {
        self.newest = self.newest.wrapping_add(1);
        let chain = &mut self.chains[hash.slot()];
        self.links[usize::from(self.newest) % MOST] = Link { next: *chain, tag: hash.tag() };
        *chain = self.newest;
        self.names[hash.name_slot()] = self.newest;
    }
}
