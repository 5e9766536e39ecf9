//! Integers with a prefix (RFC 7541 §5.1): the lower bits of a first byte, and seven bits in each that follows.

use super::Malformed;

/// The value that begins in the lower `BITS` of `first`, and what stands behind it. No value of HTTP/2 needs more than
/// 32 bits; more than five bytes would be padding, or an attempt to overflow.
#[inline]
pub(super) fn decode<const BITS: u32>(first: u8, rest: &[u8]) -> Result<(u32, &[u8]), Malformed> {
    let full = u8::MAX >> (8 - BITS);
    let value = first & full;
    if value < full { Ok((u32::from(value), rest)) } else { continued(u32::from(full), rest) }
}

fn continued(prefix: u32, rest: &[u8]) -> Result<(u32, &[u8]), Malformed> {
    let mut value = u64::from(prefix);
    for (at, &byte) in rest.iter().enumerate().take(5) {
        value += u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            let value = u32::try_from(value).map_err(|_| Malformed("an integer above 32 bits"))?;
            return Ok((value, &rest[at + 1..]));
        }
    }
    Err(Malformed(if rest.len() < 5 { "an integer that does not end" } else { "an integer of too many bytes" }))
}

/// Appends `value` with a prefix of `BITS`, below the bits of `flags`.
#[inline]
pub(super) fn encode<const BITS: u32>(flags: u8, value: usize, out: &mut Vec<u8>) {
    let full = (1usize << BITS) - 1;
    if value < full {
        out.push(flags | value as u8);
        return;
    }
    out.push(flags | full as u8);
    let mut left = value - full;
    while left >= 0x80 {
        out.push(left as u8 | 0x80);
        left >>= 7;
    }
    out.push(left as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(bytes: &[u8]) -> Result<(u32, &[u8]), Malformed> {
        decode::<5>(bytes[0], &bytes[1..])
    }

    /// RFC 7541 C.1.
    #[test]
    fn the_examples_of_the_rfc_read_and_write() {
        let mut out = Vec::new();
        for (value, bytes) in [(10, &[0x0a][..]), (1337, &[0x1f, 0x9a, 0x0a])] {
            assert_eq!(decoded(bytes), Ok((value, &[][..])));
            encode::<5>(0, value as usize, &mut out);
            assert_eq!(out, bytes);
            out.clear();
        }
        assert_eq!(decode::<8>(42, b"x"), Ok((42, &b"x"[..])));
        // The bits above the prefix mean something else.
        assert_eq!(decoded(&[0xea]), Ok((10, &[][..])));
    }

    #[test]
    fn every_length_of_an_integer_round_trips() {
        for shift in 0..32 {
            for value in [(1u64 << shift) - 1, 1 << shift, (1 << shift) + 1, u64::from(u32::MAX)] {
                let mut out = Vec::new();
                encode::<5>(0x40, value as usize, &mut out);
                out.push(7);
                assert_eq!(decoded(&out), Ok((value as u32, &[7][..])), "{value}");
            }
        }
    }

    #[test]
    fn an_integer_that_does_not_end_or_does_not_fit_is_malformed() {
        let kind = |bytes| decoded(bytes).expect_err("malformed").0;
        assert_eq!(kind(&[0x1f]), "an integer that does not end");
        assert_eq!(kind(&[0x1f, 0x80, 0xff]), "an integer that does not end");
        assert_eq!(kind(&[0x1f, 0xff, 0xff, 0xff, 0xff, 0x0f]), "an integer above 32 bits");
        assert_eq!(kind(&[0x1f, 0xff, 0xff, 0xff, 0xff, 0x7f]), "an integer above 32 bits");
        assert_eq!(kind(&[0x1f, 0x80, 0x80, 0x80, 0x80, 0x80, 0x00]), "an integer of too many bytes");
        // Zeros at the end are allowed, and the largest value fits.
        assert_eq!(decoded(&[0x1f, 0x80, 0x80, 0x80, 0x80, 0x00]), Ok((31, &[][..])));
        assert_eq!(decoded(&[0x1f, 0xe0, 0xff, 0xff, 0xff, 0x0f]), Ok((u32::MAX, &[][..])));
    }
}
