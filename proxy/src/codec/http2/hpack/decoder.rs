//! Reads header blocks (RFC 7541 §3, §6). What is wrong with one is wrong with the connection: the two tables have
//! parted.

use std::ops::Range;

use super::dynamic_table::DynamicTable;
use super::static_table::NEXT;
use super::{DEFAULT_SIZE, Malformed, huffman, integer, static_table};

pub struct Decoder {
    table: DynamicTable,
    /// The size that we announced.
    announced: u32,
    /// Above what the peer may not set its table: what we announced, and the default until it knows of that.
    allowed: u32,
    /// The peer knows of a smaller size than its table has, and has to say so first (§4.2).
    overdue: bool,
}

/// Where the bytes of a string are.
enum Text<'a> {
    Block(&'a [u8]),
    Scratch(Range<usize>),
}

impl Text<'_> {
    fn of<'b>(&'b self, scratch: &'b [u8]) -> &'b [u8] {
        match self {
            Self::Block(bytes) => bytes,
            Self::Scratch(range) => &scratch[range.clone()],
        }
    }
}

impl Decoder {
    /// `max_size`: the SETTINGS_HEADER_TABLE_SIZE that we announced. Until [`acknowledged`](Self::acknowledged) the peer
    /// may still work with the default.
    pub fn new(max_size: u32) -> Self {
        Self { table: DynamicTable::new(), announced: max_size, allowed: max_size.max(DEFAULT_SIZE), overdue: false }
    }

    /// The peer acknowledged our settings: a table above the announced size has to shrink in the next block.
    pub fn acknowledged(&mut self) {
        self.allowed = self.announced;
        self.overdue = self.table.max_size() > self.announced;
    }

    /// One whole block, CONTINUATIONs joined. Calls `field(name, value, never_indexed)` for each field in order; one that
    /// the caller does not want goes through the table nevertheless. `scratch` is memory for decoded strings: it grows to what the
    /// largest field needs, and keeps no meaning between calls.
    pub fn decode(
        &mut self,
        mut block: &[u8],
        scratch: &mut Vec<u8>,
        mut field: impl FnMut(&[u8], &[u8], bool),
    ) -> Result<(), Malformed> {
        while let [first @ 0x20..=0x3f, rest @ ..] = block {
            block = self.resize(*first, rest)?;
        }
        if self.overdue {
            return Err(Malformed("a table that did not shrink as agreed"));
        }
        while let Some((&first, rest)) = block.split_first() {
            if first >= 0x80 {
                let (index, rest) = integer::decode::<7>(first, rest)?;
                let (name, value) = self.entry(index)?;
                field(name, value, false);
                block = rest;
            } else if first >= 0x40 {
                block = self.literal::<6>(first, rest, scratch, &mut field)?;
            } else if first >= 0x20 {
                return Err(Malformed("a table size behind a field"));
            } else {
                // Never indexed (§6.2.3) or only now not (§6.2.2).
                block = self.literal::<4>(first, rest, scratch, &mut field)?;
            }
        }
        Ok(())
    }

    /// Heap memory held.
    pub fn memory(&self) -> usize {
        self.table.memory()
    }

    #[cfg(test)]
    pub(super) fn table(&self) -> &DynamicTable {
        &self.table
    }

    #[inline]
    fn entry(&self, index: u32) -> Result<(&[u8], &[u8]), Malformed> {
        let entry = match index.checked_sub(NEXT) {
            None => static_table::field(index),
            Some(age) => self.table.get(age as usize),
        };
        entry.ok_or(Malformed("an index that is in no table"))
    }

    /// §6.3.
    #[cold]
    fn resize<'a>(&mut self, first: u8, rest: &'a [u8]) -> Result<&'a [u8], Malformed> {
        let (size, rest) = integer::decode::<5>(first, rest)?;
        if size > self.allowed {
            return Err(Malformed("a table size above the agreed one"));
        }
        self.table.set_max_size(size);
        // All sizes after it are within what is agreed as well.
        self.overdue = false;
        Ok(rest)
    }

    /// A literal (§6.2), whose name is an index of `BITS` or text; with six bits it is indexed.
    fn literal<'a, const BITS: u32>(
        &mut self,
        first: u8,
        rest: &'a [u8],
        scratch: &mut Vec<u8>,
        field: &mut impl FnMut(&[u8], &[u8], bool),
    ) -> Result<&'a [u8], Malformed> {
        let (index, rest) = integer::decode::<BITS>(first, rest)?;
        let insert = BITS == 6;
        let never_indexed = !insert && first & 0x10 != 0;
        if index == 0 {
            let (name, used, rest) = string(rest, scratch, 0)?;
            let (value, _, rest) = string(rest, scratch, used)?;
            let (name, value) = (name.of(scratch), value.of(scratch));
            field(name, value, never_indexed);
            if insert {
                self.table.insert(name, value);
            }
            return Ok(rest);
        }
        if insert && index >= NEXT {
            // The entry that lends its name may have to leave for the new one (§4.4).
            let name = self.entry(index)?.0;
            let used = name.len();
            if scratch.len() < used {
                scratch.resize(used, 0);
            }
            scratch[..used].copy_from_slice(name);
            let (value, _, rest) = string(rest, scratch, used)?;
            let (name, value) = (&scratch[..used], value.of(scratch));
            field(name, value, false);
            self.table.insert(name, value);
            return Ok(rest);
        }
        let (value, _, rest) = string(rest, scratch, 0)?;
        let value = value.of(scratch);
        if insert {
            let (name, _) = static_table::field(index).ok_or(Malformed("an index that is in no table"))?;
            field(name, value, false);
            self.table.insert(name, value);
        } else {
            field(self.entry(index)?.0, value, never_indexed);
        }
        Ok(rest)
    }
}

/// A string (§5.2), decoded behind the first `used` bytes of `scratch` if it has to be: it, how much of `scratch` is used
/// then, and what follows.
#[inline]
fn string<'a>(block: &'a [u8], scratch: &mut Vec<u8>, used: usize) -> Result<(Text<'a>, usize, &'a [u8]), Malformed> {
    let (&first, rest) = block.split_first().ok_or(Malformed("a string that is missing"))?;
    let (len, rest) = integer::decode::<7>(first, rest)?;
    let (bytes, rest) = rest.split_at_checked(len as usize).ok_or(Malformed("a string that does not end"))?;
    if first & 0x80 == 0 {
        return Ok((Text::Block(bytes), used, rest));
    }
    let end = huffman::decode(bytes, scratch, used)?;
    Ok((Text::Scratch(used..end), end, rest))
}
