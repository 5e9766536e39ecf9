//! Header blocks of RFC 7541, each representation as a test asks for it; and of answers, the status.

/// A request that everybody takes.
pub const GET: &[(&str, &str)] = &[(":method", "GET"), (":scheme", "http"), (":authority", "a"), (":path", "/")];

/// How a literal field is to be remembered (RFC 7541 §6.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Literal {
    Incremental,
    Without,
    Never,
}

/// An integer with a prefix of `bits`, whose other bits are those of `first` (§5.1).
pub fn integer(first: u8, bits: u8, value: usize) -> Vec<u8> {
    let most = (1usize << bits) - 1;
    if value < most {
        return vec![first | value as u8];
    }
    let mut out = vec![first | most as u8];
    let mut rest = value - most;
    while rest >= 128 {
        out.push(rest as u8 | 128);
        rest >>= 7;
    }
    out.push(rest as u8);
    out
}

/// A string without Huffman coding (§5.2).
pub fn string(text: &[u8]) -> Vec<u8> {
    let mut out = integer(0, 7, text.len());
    out.extend_from_slice(text);
    out
}

/// A string whose bytes are Huffman code already.
pub fn huffman(coded: &[u8]) -> Vec<u8> {
    let mut out = integer(0x80, 7, coded.len());
    out.extend_from_slice(coded);
    out
}

/// A field of one of the tables (§6.1).
pub fn indexed(index: usize) -> Vec<u8> {
    integer(0x80, 7, index)
}

/// A field whose name is in a table; `value` is a coded string.
pub fn indexed_name(how: Literal, index: usize, value: &[u8]) -> Vec<u8> {
    let mut out = match how {
        Literal::Incremental => integer(0x40, 6, index),
        Literal::Without => integer(0, 4, index),
        Literal::Never => integer(0x10, 4, index),
    };
    out.extend_from_slice(value);
    out
}

/// A field with both in full; `name` and `value` are coded strings.
pub fn literal(how: Literal, name: &[u8], value: &[u8]) -> Vec<u8> {
    indexed_name(how, 0, &[name, value].concat())
}

/// A dynamic table size update (§6.3).
pub fn table_size(size: usize) -> Vec<u8> {
    integer(0x20, 5, size)
}

/// All fields as literals without indexing, so that blocks do not depend on each other.
pub fn block<N: AsRef<[u8]>, V: AsRef<[u8]>>(fields: &[(N, V)]) -> Vec<u8> {
    let one = |(name, value): &(N, V)| literal(Literal::Without, &string(name.as_ref()), &string(value.as_ref()));
    fields.iter().flat_map(one).collect()
}

/// [`GET`] and more fields behind it.
pub fn get_with<'a>(more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    GET.iter().copied().chain(more.iter().copied()).collect()
}

/// The status of a response's header block: its first field, in whichever form encoders write it.
pub fn status(block: &[u8]) -> Option<u16> {
    // The size updates that may stand before it.
    let begin = block.iter().position(|b| b & 0xe0 != 0x20)?;
    let (&first, rest) = block[begin..].split_first()?;
    let known = [200, 204, 206, 304, 400, 404, 500];
    match first {
        0x88..=0x8e => Some(known[usize::from(first - 0x88)]),
        // A literal whose name is one of those entries.
        0x08..=0x0e | 0x18..=0x1e | 0x48..=0x4e => digits(rest),
        _ => None,
    }
}

/// Three digits, plain or by the Huffman code: 0, 1 and 2 are 00000 to 00010, 3 to 9 are 011001 to 011111.
fn digits(coded: &[u8]) -> Option<u16> {
    let (&length, rest) = coded.split_first()?;
    let bytes = rest.get(..usize::from(length & 0x7f))?;
    if length & 0x80 == 0 {
        return std::str::from_utf8(bytes).ok()?.parse().ok();
    }
    let mut bits = bytes.iter().flat_map(|b| (0..8).rev().map(move |i| u16::from(b >> i & 1)));
    let mut take = |n: u32| (0..n).try_fold(0u16, |all, _| Some(all << 1 | bits.next()?));
    let mut status = 0;
    for _ in 0..3 {
        let five = take(5)?;
        let digit = if five <= 2 { five } else { (five << 1 | take(1)?).checked_sub(0x19)? + 3 };
        status = status * 10 + digit;
    }
    Some(status)
}
