//! The code of RFC 7541 Appendix B. It is canonical: codes of one length ascend with their symbols, and continue where
//! the shorter ones ended. So the lengths say everything, and all tables follow from them when this is compiled.

/// The longest code.
pub(super) const LONGEST: usize = 30;

/// How many bits of input [`SHORT`] decides at once. Two of the frequent codes fit, and the table stays small beside
/// what else wants the cache.
pub(super) const WINDOW: u32 = 11;

/// Of each byte's code, and of the one behind them: the end of a string, whose beginning pads.
#[rustfmt::skip]
const LENGTHS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28,
    28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6,
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5,
    6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23,
    21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25,
    19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
    30,
];

/// A symbol's code, in the lower `len` bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Code {
    pub(super) bits: u32,
    pub(super) len: u32,
}

/// The codes of one length, as a decoder sees them: aligned to the top of 32 bits.
#[derive(Clone, Copy)]
pub(super) struct Length {
    /// The first code.
    pub(super) start: u32,
    /// Behind the last one: what is below it and has no shorter code is of this length.
    pub(super) end: u64,
    /// Where its symbols begin in [`ORDER`].
    pub(super) index: usize,
}

/// What the next [`WINDOW`] bits begin with: one symbol, two, or the beginning of a longer code (`count` is 0).
#[derive(Clone, Copy)]
pub(super) struct Short {
    pub(super) symbols: [u8; 2],
    /// Bits of the first symbol.
    first: u8,
    /// The number of symbols in the upper bits, and the bits of all of them.
    packed: u8,
}

impl Short {
    pub(super) fn count(self) -> usize {
        usize::from(self.packed >> 4)
    }

    pub(super) fn len(self) -> u32 {
        u32::from(self.packed & 15)
    }

    pub(super) fn first_len(self) -> u32 {
        u32::from(self.first)
    }
}

pub(super) static CODES: [Code; 257] = CODE_TABLES.codes;
pub(super) static LENGTH: [Length; LONGEST + 1] = CODE_TABLES.lengths;
/// The symbols in the order of their codes.
pub(super) static ORDER: [u16; 257] = CODE_TABLES.order;
pub(super) static SHORT: [Short; 1 << WINDOW] = short();

struct CodeTables {
    codes: [Code; 257],
    lengths: [Length; LONGEST + 1],
    order: [u16; 257],
}

const CODE_TABLES: CodeTables = code_tables();

const fn code_tables() -> CodeTables {
    let mut tables = CodeTables {
        codes: [Code { bits: 0, len: 0 }; 257],
        lengths: [Length { start: 0, end: 0, index: 0 }; LONGEST + 1],
        order: [0; 257],
    };
    let (mut code, mut index, mut len) = (0u64, 0, 1);
    while len <= LONGEST {
        code <<= 1;
        let start = code << (32 - len);
        tables.lengths[len] = Length { start: start as u32, end: start, index };
        let mut symbol = 0;
        while symbol < LENGTHS.len() {
            if LENGTHS[symbol] as usize == len {
                tables.codes[symbol] = Code { bits: code as u32, len: len as u32 };
                tables.order[index] = symbol as u16;
                index += 1;
                code += 1;
            }
            symbol += 1;
        }
        tables.lengths[len].end = code << (32 - len);
        len += 1;
    }
    assert!(code == 1 << LONGEST, "the code is complete");
    tables
}

const fn short() -> [Short; 1 << WINDOW] {
    const NONE: Short = Short { symbols: [0; 2], first: 0, packed: 0 };
    let mut table = [NONE; 1 << WINDOW];
    let mut symbol = 0;
    while symbol < 256 {
        let Code { bits, len } = CODE_TABLES.codes[symbol];
        if len <= WINDOW {
            let first = (bits << (WINDOW - len)) as usize;
            let mut at = first;
            while at < first + (1 << (WINDOW - len)) {
                table[at] = Short { symbols: [symbol as u8, 0], first: len as u8, packed: 1 << 4 | len as u8 };
                at += 1;
            }
        }
        symbol += 1;
    }
    // The bits behind the first symbol, aligned and padded with zeros, name the second one if it lies within them.
    let single = table;
    let mut at = 0;
    while at < table.len() {
        let first = single[at];
        if first.packed != 0 {
            let second = single[(at << first.first) & (table.len() - 1)];
            let len = first.first + second.first;
            if second.packed != 0 && len as u32 <= WINDOW {
                table[at].symbols[1] = second.symbols[0];
                table[at].packed = 2 << 4 | len;
            }
        }
        at += 1;
    }
    table
}
