//! Writes header blocks (RFC 7541 §6). What is worth a place in the table is what comes again: a field is indexed when
//! the connection has seen it before, so that ids, dates and lengths go by without pushing out what repeats. What could
//! be guessed by its size never goes in.

use super::dynamic_table::{self, DynamicTable};
use super::lookup::{Hash, Lookup};
use super::static_table::{self, NEXT, Name, Policy};
use super::{DEFAULT_SIZE, huffman, integer};

/// A secret below this length could be found by trying; it must stay a literal on every hop (§7.1.3).
const GUESSABLE: usize = 20;

/// The first bits of a literal that is never indexed.
const NEVER: u8 = 0x10;

/// How many fields are remembered as seen.
const SEEN: usize = 64;

pub struct Encoder {
    table: DynamicTable,
    /// Taken with the first entry.
    lookup: Option<Box<Lookup>>,
    /// A part of the hash of each field that went by lately, in a ring. A false memory indexes a field too early, no more.
    seen: [u16; SEEN],
    /// Where the ring goes on.
    next: usize,
    pending: Option<Sizes>,
}

/// Table sizes that the peer set since the last block, of which it has to hear the lowest and the last (§4.2).
#[derive(Clone, Copy)]
struct Sizes {
    lowest: u32,
    last: u32,
}

impl Encoder {
    pub fn new() -> Self {
        Self { table: DynamicTable::new(), lookup: None, seen: [0; SEEN], next: 0, pending: None }
    }

    /// The peer's SETTINGS_HEADER_TABLE_SIZE. We use no more than the default; a change is announced at the start of the
    /// next block.
    pub fn set_max_size(&mut self, max: u32) {
        let last = max.min(DEFAULT_SIZE);
        let lowest = self.pending.map_or(last, |pending| pending.lowest.min(last));
        self.pending = (lowest != last || last != self.table.max_size()).then_some(Sizes { lowest, last });
    }

    /// Must come first in each block.
    #[inline]
    pub fn begin(&mut self, out: &mut Vec<u8>) {
        if let Some(Sizes { lowest, last }) = self.pending.take() {
            self.resize(lowest, out);
            if last != lowest {
                self.resize(last, out);
            }
        }
    }

    /// One field; the name is in lower case.
    pub fn encode(&mut self, name: &[u8], value: &[u8], out: &mut Vec<u8>) {
        let Some(known) = static_table::name(name) else { return self.remembered(0, name, value, out) };
        if let Some(index) = known.with_value(value) {
            out.push(0x80 | index);
            return;
        }
        match known.policy {
            Policy::Usual => self.remembered(known.index.into(), name, value, out),
            Policy::Passing => literal::<4>(0, known.index.into(), name, value, out),
            Policy::Secret => {
                let flags = if value.len() < GUESSABLE { NEVER } else { 0 };
                literal::<4>(flags, known.index.into(), name, value, out);
            }
        }
    }

    /// A field that came to us as one never indexed: it goes on as one (§6.2.3), whatever the tables hold.
    #[cold]
    pub fn encode_never_indexed(&mut self, name: &[u8], value: &[u8], out: &mut Vec<u8>) {
        let index = static_table::name(name).map_or(0, |known| known.index.into());
        literal::<4>(NEVER, index, name, value, out);
    }

    /// `:status`, the commonest: by the static table where it has it.
    #[inline]
    pub fn encode_status(&mut self, status: u16, out: &mut Vec<u8>) {
        match static_table::status(status) {
            Some(index) => out.push(0x80 | index),
            None => {
                let digit = |place: u16| b'0' + (status / place % 10) as u8;
                let text = [digit(100), digit(10), digit(1)];
                self.remembered(Name::STATUS.index.into(), b":status", &text, out);
            }
        }
    }

    /// Heap memory held.
    pub fn memory(&self) -> usize {
        self.table.memory() + self.lookup.as_ref().map_or(0, |_| size_of::<Lookup>())
    }

    fn resize(&mut self, size: u32, out: &mut Vec<u8>) {
        self.table.set_max_size(size);
        integer::encode::<5>(0x20, size as usize, out);
    }

    /// By the table if it is there, into it if it was seen before. `index` is the name's in the static table, or 0.
    fn remembered(&mut self, index: usize, name: &[u8], value: &[u8], out: &mut Vec<u8>) {
        // A large field would push out many small ones, and hashing it costs.
        if dynamic_table::size(name, value) > self.table.max_size() / 2 {
            return literal::<4>(0, index, name, value, out);
        }
        let hash = Hash::new(name, value);
        let mut index = index;
        if let Some(lookup) = &self.lookup {
            if let Some(age) = lookup.field(&self.table, hash, name, value) {
                return integer::encode::<7>(0x80, NEXT as usize + age, out);
            }
            if index == 0 {
                index = lookup.name(&self.table, hash, name).map_or(0, |age| NEXT as usize + age);
            }
        }
        if !self.was_seen(hash) {
            return literal::<4>(0, index, name, value, out);
        }
        literal::<6>(0x40, index, name, value, out);
        if self.table.insert(name, value) {
            self.lookup.get_or_insert_with(|| Box::new(Lookup::new())).inserted(hash);
        }
    }

    fn was_seen(&mut self, hash: Hash) -> bool {
        // Zero is an empty place.
        let mark = (hash.field >> 19) as u16 | 1;
        let seen = self.seen.contains(&mark);
        if !seen {
            self.seen[self.next] = mark;
            self.next = (self.next + 1) % SEEN;
        }
        seen
    }

    #[cfg(test)]
    pub(super) fn table(&self) -> &DynamicTable {
        &self.table
    }
}

/// §6.2, with the name's index in `BITS` or as text.
fn literal<const BITS: u32>(flags: u8, index: usize, name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    integer::encode::<BITS>(flags, index, out);
    if index == 0 {
        string(name, out);
    }
    string(value, out);
}

/// §5.2, coded where that is shorter.
fn string(text: &[u8], out: &mut Vec<u8>) {
    const ONE_BYTE: usize = 0x7f;
    // Two codes are never shorter than two bytes.
    if text.len() < 3 {
        out.push(text.len() as u8);
        out.extend_from_slice(text);
    } else if text.len() < ONE_BYTE {
        // The length is of one byte either way, so that what came out decides.
        let start = out.len() + 1;
        out.push(0);
        huffman::encode(text, out);
        let coded = out.len() - start;
        if coded < text.len() {
            out[start - 1] = 0x80 | coded as u8;
        } else {
            out.truncate(start);
            out[start - 1] = text.len() as u8;
            out.extend_from_slice(text);
        }
    } else {
        let coded = huffman::encoded_len(text);
        if coded < text.len() {
            integer::encode::<7>(0x80, coded, out);
            huffman::encode(text, out);
        } else {
            integer::encode::<7>(0, text.len(), out);
            out.extend_from_slice(text);
        }
    }
}
