//! Strings in the Huffman code of RFC 7541 §5.2. Decoding looks at eleven bits at a time, which are two symbols of most
//! text; longer codes, which no ordinary field contains, are found by their length.

mod table;

use super::Malformed;
use table::{CODES, Code, LENGTH, LONGEST, ORDER, SHORT, WINDOW};

/// Bytes that a string of `coded` bytes cannot exceed decoded: no code is shorter than five bits. Two more, because
/// symbols are stored in pairs.
fn room(coded: usize) -> usize {
    coded * 8 / 5 + 2
}

/// Decodes `input` into `scratch` from `start` on, and says where it ends there. `scratch` grows and never shrinks: what
/// is behind the end is of earlier strings.
pub(super) fn decode(input: &[u8], scratch: &mut Vec<u8>, start: usize) -> Result<usize, Malformed> {
    let end = start + room(input.len());
    if scratch.len() < end {
        scratch.resize(end, 0);
    }
    let out = &mut scratch[start..end];
    let (mut bit, mut len) = (0, 0);
    // A window of at least 57 bits: five steps of the table, or any code.
    while let Some(bytes) = input[bit / 8..].first_chunk::<8>() {
        let mut window = u64::from_be_bytes(*bytes) << (bit % 8);
        if SHORT[(window >> (64 - WINDOW)) as usize].count() == 0 {
            let (symbol, bits) = long(window);
            out[len] = u8::try_from(symbol).map_err(|_| Malformed("the end of a string within it"))?;
            len += 1;
            bit += bits as usize;
            continue;
        }
        for _ in 0..5 {
            let short = SHORT[(window >> (64 - WINDOW)) as usize];
            if short.count() == 0 {
                break;
            }
            out[len..len + 2].copy_from_slice(&short.symbols);
            len += short.count();
            window <<= short.len();
            bit += short.len() as usize;
        }
    }
    Ok(start + len + tail(input, bit, &mut out[len..])?)
}

/// The last bits, fewer than 64, with the padding behind them.
fn tail(input: &[u8], bit: usize, out: &mut [u8]) -> Result<usize, Malformed> {
    let rest = &input[bit / 8..];
    let mut bytes = [0xff; 8];
    bytes[..rest.len()].copy_from_slice(rest);
    let mut left = (rest.len() * 8 - bit % 8) as u32;
    // Ones follow the end, as in the padding, so that no code reaches beyond it unseen. Inverted they are what a shift
    // brings in.
    let mut inverted = !u64::from_be_bytes(bytes) << (bit % 8);
    let mut len = 0;
    loop {
        let short = SHORT[(!inverted >> (64 - WINDOW)) as usize];
        let bits = if short.count() > 0 && short.len() <= left {
            out[len..len + 2].copy_from_slice(&short.symbols);
            len += short.count();
            short.len()
        } else {
            let (symbol, bits) = match short.count() {
                0 => long(!inverted),
                _ => (u16::from(short.symbols[0]), short.first_len()),
            };
            if bits > left {
                return padding(!inverted, left).map(|()| len);
            }
            out[len] = u8::try_from(symbol).map_err(|_| Malformed("the end of a string within it"))?;
            len += 1;
            bits
        };
        inverted <<= bits;
        left -= bits;
    }
}

/// Up to seven bits, of the beginning of the end's code (§5.2).
fn padding(window: u64, left: u32) -> Result<(), Malformed> {
    match left {
        0 => Ok(()),
        8.. => Err(Malformed("padding of a byte or more")),
        _ if window >> (64 - left) != (1 << left) - 1 => Err(Malformed("padding that is not of ones")),
        _ => Ok(()),
    }
}

/// The symbol at the top of a window whose code is longer than the table's.
#[cold]
fn long(window: u64) -> (u16, u32) {
    let top = (window >> 32) as u32;
    let mut bits = WINDOW as usize + 1;
    while bits < LONGEST && u64::from(top) >= LENGTH[bits].end {
        bits += 1;
    }
    let length = LENGTH[bits];
    (ORDER[length.index + ((top - length.start) >> (32 - bits)) as usize], bits as u32)
}

/// Bytes that `text` takes coded.
pub(super) fn encoded_len(text: &[u8]) -> usize {
    let bits: usize = text.iter().map(|&byte| CODES[usize::from(byte)].len as usize).sum();
    bits.div_ceil(8)
}

/// Appends `text` coded.
pub(super) fn encode(text: &[u8], out: &mut Vec<u8>) {
    let (mut window, mut bits) = (0u64, 0);
    for &byte in text {
        let code: Code = CODES[usize::from(byte)];
        window = window << code.len | u64::from(code.bits);
        bits += code.len;
        if bits >= 32 {
            bits -= 32;
            out.extend_from_slice(&((window >> bits) as u32).to_be_bytes());
        }
    }
    if bits > 0 {
        let padded = window << (32 - bits) | ((1 << (32 - bits)) - 1);
        out.extend_from_slice(&(padded as u32).to_be_bytes()[..bits.div_ceil(8) as usize]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(text: &[u8], scratch: &mut Vec<u8>) {
        let mut coded = Vec::new();
        encode(text, &mut coded);
        assert_eq!(coded.len(), encoded_len(text));
        let end = decode(&coded, scratch, 0).expect("what was coded");
        assert_eq!(&scratch[..end], text);
    }

    /// Lines of Appendix B, one of each kind of length.
    #[test]
    fn the_codes_are_those_of_the_rfc() {
        for (symbol, bits, len) in [
            (0, 0x1ff8, 13),
            (1, 0x007f_ffd8, 23),
            (10, 0x3fff_fffc, 30),
            (32, 0x14, 6),
            (b'0', 0x0, 5),
            (b'a', 0x3, 5),
            (b'z', 0x7b, 7),
            (b'&', 0xf8, 8),
            (b'!', 0x3f8, 10),
            (b'|', 0x7fc, 11),
            (b'#', 0xffa, 12),
            (b'^', 0x3ffc, 14),
            (b'<', 0x7ffc, 15),
            (b'\\', 0x7fff0, 19),
            (128, 0xfffe6, 20),
            (153, 0x001f_ffdc, 21),
            (129, 0x003f_ffd2, 22),
            (199, 0x01ff_ffec, 25),
            (192, 0x03ff_ffe0, 26),
            (203, 0x07ff_ffde, 27),
            (249, 0x0fff_fffe, 28),
            (255, 0x03ff_ffee, 26),
        ] {
            assert_eq!(CODES[usize::from(symbol)], Code { bits, len }, "{symbol}");
        }
        assert_eq!(CODES[256], Code { bits: 0x3fff_ffff, len: 30 });
    }

    #[test]
    fn every_byte_and_every_pair_round_trips() {
        let mut scratch = Vec::new();
        round_trip(b"", &mut scratch);
        for first in 0..=255 {
            round_trip(&[first], &mut scratch);
            for second in 0..=255 {
                round_trip(&[first, second], &mut scratch);
            }
        }
    }

    #[test]
    fn every_byte_round_trips_at_every_place_of_a_longer_string() {
        let mut scratch = Vec::new();
        for byte in 0..=255 {
            for before in 0..24 {
                let mut text = vec![b'8'; before];
                text.push(byte);
                text.extend_from_slice(b"and what follows");
                round_trip(&text, &mut scratch);
            }
            round_trip(&[byte; 100], &mut scratch);
        }
    }

    #[test]
    fn a_string_begins_where_it_is_told_to() {
        let mut scratch = b"kept".to_vec();
        let end = decode(&[0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff], &mut scratch, 4);
        assert_eq!(&scratch[..end.expect("C.4.1")], b"keptwww.example.com");
    }

    #[test]
    fn padding_is_the_beginning_of_the_end_and_shorter_than_a_byte() {
        // The string in front is of whole bytes: eight codes of five bits, or of sixteen.
        for front in ["", "00000000", "0000000000000000"] {
            let kind = |padding: &[u8]| {
                let mut coded = Vec::new();
                encode(front.as_bytes(), &mut coded);
                coded.extend_from_slice(padding);
                decode(&coded, &mut Vec::new(), 0).map_err(|malformed| malformed.0)
            };
            assert_eq!(kind(&[0x1f]), Ok(front.len() + 1), "'a' and three ones");
            assert_eq!(kind(&[0x1e]), Err("padding that is not of ones"));
            assert_eq!(kind(&[0xff]), Err("padding of a byte or more"));
            assert_eq!(kind(&[0x1f, 0xff]), Err("padding of a byte or more"));
            assert_eq!(kind(&[0xff, 0xff, 0xff]), Err("padding of a byte or more"));
            // EOS, alone and with something behind.
            assert_eq!(kind(&[0xff, 0xff, 0xff, 0xff]), Err("the end of a string within it"));
            assert_eq!(kind(&[0xff, 0xff, 0xff, 0xfc, 0, 0, 0, 0, 0, 0, 0]), Err("the end of a string within it"));
        }
    }
}
