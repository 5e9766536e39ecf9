//! Names of fields: in lower case, and by the byte that tells most of them apart.

/// Names that are looked for together.
pub struct NameList {
    names: &'static [&'static str],
    pub(super) tags: [u64; 4],
}

impl NameList {
    pub const fn new(names: &'static [&'static str]) -> Self {
        let mut tags = [0u64; 4];
        let mut i = 0;
        while i < names.len() {
            let tag = tag(names[i].as_bytes());
            tags[(tag >> 6) as usize] |= 1 << (tag & 63);
            i += 1;
        }
        Self { names, tags }
    }

    #[inline]
    pub(super) fn holds(&self, tag: u8, name: &[u8]) -> bool {
        self.tags[usize::from(tag >> 6)] & (1 << (tag & 63)) != 0 && self.names.iter().any(|n| n.as_bytes() == name)
    }
}

/// Makes `len` bytes at `at` lower case, eight at a time; names are too short for what the compiler makes of slices.
pub(super) fn lower_at(bytes: &mut [u8], at: usize, len: usize) {
    if len >= 8 {
        return lower(&mut bytes[at..at + len]);
    }
    match bytes[at..].first_chunk_mut::<8>() {
        // Only the bits of the name's own bytes.
        Some(word) => *word = lowered(u64::from_le_bytes(*word), (1 << (8 * len)) - 1),
        None => bytes[at..at + len].make_ascii_lowercase(),
    }
}

pub(super) fn lower(name: &mut [u8]) {
    let Some(last) = name.len().checked_sub(8) else { return name.make_ascii_lowercase() };
    let mut at = 0;
    loop {
        let word = name[at..].first_chunk_mut::<8>().expect("the last word begins eight bytes before the end");
        *word = lowered(u64::from_le_bytes(*word), u64::MAX);
        if at == last {
            return;
        }
        at = (at + 8).min(last);
    }
}

const EACH: u64 = 0x0101_0101_0101_0101;
const HIGH: u64 = EACH * 0x80;

#[inline]
fn lowered(bytes: u64, mask: u64) -> [u8; 8] {
    let low = bytes & !HIGH;
    // The high bit of a byte says: at least `A`; more than `Z`; ASCII. No sum leaves its byte.
    let capital = (low + EACH * (0x80 - b'A' as u64)) & !(low + EACH * (0x7f - b'Z' as u64)) & !bytes & HIGH;
    (bytes | (capital & mask) >> 2).to_le_bytes()
}

/// Whole words of `bytes`, and its last eight bytes; what is shorter is an `Err`.
#[inline]
fn words(bytes: &[u8]) -> Result<impl Iterator<Item = u64>, &[u8]> {
    let last = bytes.last_chunk::<8>().ok_or(bytes)?;
    let (words, _) = bytes.as_chunks::<8>();
    Ok(words.iter().chain([last]).map(|w| u64::from_le_bytes(*w)))
}

/// Lower case letters, digits and dashes: a token (RFC 9110 §5.6.2), as almost all names are. Not every token.
#[inline]
pub fn is_usual_name(name: &[u8]) -> bool {
    match words(name) {
        Err(short) => {
            !short.is_empty() && short.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-')
        }
        Ok(mut words) => words.all(|word| {
            let low = word & !HIGH;
            // The high bit of a byte: at least the first, and no more than the last. No sum leaves its byte.
            let within = |first: u8, last: u8| {
                (low + EACH * (0x80 - u64::from(first))) & !(low + EACH * (0x7f - u64::from(last)))
            };
            (within(b'a', b'z') | within(b'0', b'9') | within(b'-', b'-')) & !word & HIGH == HIGH
        }),
    }
}

/// Whether a byte is a control character other than tab: no field of HTTP/1 may hold it (RFC 9110 §5.5).
#[inline]
pub fn has_controls(value: &[u8]) -> bool {
    let control = |b: u8| (b < b' ' && b != b'\t') || b == 0x7f;
    match words(value) {
        Err(short) => short.iter().any(|&b| control(b)),
        Ok(mut words) => words.any(|word| {
            let low = word & !HIGH;
            // The high bit of a byte: ASCII, and below blank or DEL.
            let suspect = !(low + EACH * (0x80 - u64::from(b' '))) | (low + EACH);
            suspect & !word & HIGH != 0 && word.to_le_bytes().iter().any(|&b| control(b))
        }),
    }
}

/// A name's byte in the set of those seen.
#[inline]
pub(super) const fn tag(name: &[u8]) -> u8 {
    let n = name.len();
    if n == 0 {
        return 0;
    }
    let mixed = (name[0] as u32) | (name[n / 2] as u32) << 8 | (name[n - 1] as u32) << 16 | (n as u32) << 24;
    (mixed.wrapping_mul(0x9e37_79b1) >> 24) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_every_length_and_byte_become_lower_case() {
        for len in 1..40 {
            for byte in 0..=255u8 {
                let mut name = vec![b'Q'; len];
                name[len / 2] = byte;
                let mut swift = name.clone();
                lower(&mut swift);
                assert_eq!(swift, name.to_ascii_lowercase());
                for around in [0, 9] {
                    let mut bytes = [vec![b'Z'; around], name.clone(), vec![b'Z'; around]].concat();
                    lower_at(&mut bytes, around, len);
                    assert_eq!(bytes, [vec![b'Z'; around], name.to_ascii_lowercase(), vec![b'Z'; around]].concat());
                }
            }
        }
    }
    #[test]
    fn what_no_line_may_hold_is_found_wherever_it_stands() {
        for len in 1..20 {
            for at in 0..len {
                for byte in 0..=255u8 {
                    let mut value = vec![if at % 2 == 0 { b'a' } else { 0xff }; len];
                    value[at] = byte;
                    let control = byte.is_ascii_control() && byte != b'\t';
                    assert_eq!(has_controls(&value), control, "{byte} at {at} of {len}");
                    let mut name = vec![b'x'; len];
                    name[at] = byte;
                    let usual = byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
                    assert_eq!(is_usual_name(&name), usual, "{byte} at {at} of {len}");
                }
            }
        }
        assert!(!has_controls(b"") && !has_controls(b"\t\t\t\t\t\t\t\t") && has_controls(b"\t\0\t\t\t\t\t\t"));
        assert!(!is_usual_name(b""));
    }
}
