//! Making a value fit for the place it is printed in. Values stand at the end of a buffer and are
//! rewritten there, so that the usual case, nothing to escape, is one scan and no copy.

/// Escapes control characters of `out[start..]`, all but the tab: `\n`, `\r`, `\x1b`.
///
/// Envoy prints them raw. They come from metadata, filter state, TLS names and failure texts, and
/// would let a peer forge records or steer the terminal that shows them.
pub fn controls(out: &mut Vec<u8>, start: usize) {
    if !out[start..].iter().any(|b| is_control(*b) || *b == C1_LEAD) {
        return;
    }
    rewrite(out, start, |out, at| {
        let byte = out[at];
        match byte {
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            _ if is_control(byte) => hex(out, b"\\x", byte),
            _ => match c1(out, at) {
                Some(control) => {
                    hex(out, b"\\u00", control);
                    return 2;
                }
                None => out.push(byte),
            },
        }
        1
    });
}

/// Makes `out[start..]` the inside of a JSON string. Bytes that are not UTF-8 are taken for
/// Latin-1, all of them, as Envoy does.
pub fn json_string(out: &mut Vec<u8>, start: usize) {
    let plain = |b: &u8| !matches!(b, 0..=0x1f | b'"' | b'\\' | 0x7f..);
    if out[start..].iter().all(plain) {
        return;
    }
    if std::str::from_utf8(&out[start..]).is_err() {
        return rewrite(out, start, |out, at| {
            let byte = out[at];
            if plain(&byte) {
                out.push(byte)
            } else {
                hex(out, b"\\u00", byte)
            }
            1
        });
    }
    if !out[start..].iter().any(|b| matches!(b, 0..=0x1f | b'"' | b'\\' | 0x7f | &C1_LEAD)) {
        return;
    }
    rewrite(out, start, |out, at| {
        let byte = out[at];
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            8 => out.extend_from_slice(b"\\b"),
            12 => out.extend_from_slice(b"\\f"),
            0..=0x1f | 0x7f => hex(out, b"\\u00", byte),
            _ => match c1(out, at) {
                Some(control) => {
                    hex(out, b"\\u00", control);
                    return 2;
                }
                None => out.push(byte),
            },
        }
        1
    });
}

/// First byte of U+0080 to U+00BF in UTF-8; up to U+009F these are control characters, and U+009B
/// starts a terminal's escape sequence.
const C1_LEAD: u8 = 0xc2;

fn is_control(byte: u8) -> bool {
    matches!(byte, 0..=8 | 10..=0x1f | 0x7f)
}

fn c1(bytes: &[u8], at: usize) -> Option<u8> {
    let next = *bytes.get(at + 1)?;
    (bytes[at] == C1_LEAD && (0x80..=0x9f).contains(&next)).then_some(next)
}

/// Replaces `out[start..]` by what `step` appends for it; `step` says how many bytes it took.
fn rewrite(out: &mut Vec<u8>, start: usize, step: impl Fn(&mut Vec<u8>, usize) -> usize) {
    let end = out.len();
    let mut at = start;
    while at < end {
        at += step(out, at);
    }
    let written = out.len() - end;
    out.copy_within(end.., start);
    out.truncate(start + written);
}

fn hex(out: &mut Vec<u8>, prefix: &[u8], byte: u8) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    out.extend_from_slice(prefix);
    out.extend_from_slice(&[DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(value: &[u8]) -> String {
        let mut out = b"<".to_vec();
        out.extend_from_slice(value);
        controls(&mut out, 1);
        String::from_utf8_lossy(&out[1..]).into_owned()
    }

    fn json(value: &[u8]) -> String {
        let mut out = b"<".to_vec();
        out.extend_from_slice(value);
        json_string(&mut out, 1);
        String::from_utf8(out.split_off(1)).unwrap()
    }

    #[test]
    fn text_keeps_tabs_quotes_and_high_bytes_and_escapes_controls() {
        assert_eq!(text("é \"q\" \\ \ttab".as_bytes()), "é \"q\" \\ \ttab");
        assert_eq!(text(b"a\nb\r\x1b[31m\x7f\0"), "a\\nb\\r\\x1b[31m\\x7f\\x00");
        assert_eq!(text("\u{9b}31m £".as_bytes()), "\\u009b31m £");
    }

    /// As Envoy 1.40 printed it.
    #[test]
    fn json_strings_are_those_of_envoy() {
        assert_eq!(json("é</script>\u{2028}'&/\tok".as_bytes()), "é</script>\u{2028}'&/\\tok");
        assert_eq!(json(b"va\nl\x1b\""), "va\\nl\\u001b\\\"");
        assert_eq!(
            json(b"\xe9\xff\xf0\x9f\x98\x80 \"q\" \\ \ttab"),
            "\\u00e9\\u00ff\\u00f0\\u009f\\u0098\\u0080 \\u0022q\\u0022 \\u005c \\u0009tab"
        );
    }

    #[test]
    fn json_escapes_control_characters_that_envoy_prints_raw() {
        assert_eq!(json("\u{7f}\u{9b}£".as_bytes()), "\\u007f\\u009b£");
        assert_eq!(json(b"\x08\x0c\r\n"), "\\b\\f\\r\\n");
    }
}
