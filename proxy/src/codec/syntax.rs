//! What the parts of a head may be made of, whichever protocol carried them.

/// `1*DIGIT` that fits; nothing else is a length.
pub(in crate::codec) fn content_length(value: &[u8]) -> Option<u64> {
    if value.is_empty() {
        return None;
    }
    value.iter().try_fold(0u64, |n, b| {
        if !b.is_ascii_digit() {
            return None;
        }
        n.checked_mul(10)?.checked_add(u64::from(b - b'0'))
    })
}

/// The bytes that Envoy lets an authority have.
pub(in crate::codec) fn is_authority(value: &[u8]) -> bool {
    value.iter().all(|b| b.is_ascii_alphanumeric() || b"-._~%!$&'()*+,;=:@[]".contains(b))
}

/// tchar of RFC 9110.
pub(in crate::codec) fn is_token(b: u8) -> bool {
    const TOKEN: [bool; 256] = {
        let mut table = [false; 256];
        let mut i = 0;
        while i < 128 {
            let b = i as u8;
            table[i] = b.is_ascii_alphanumeric()
                || matches!(
                    b,
                    b'!' | b'#'
                        | b'$'
                        | b'%'
                        | b'&'
                        | b'\''
                        | b'*'
                        | b'+'
                        | b'-'
                        | b'.'
                        | b'^'
                        | b'_'
                        | b'`'
                        | b'|'
                        | b'~'
                );
            i += 1;
        }
        table
    };
    TOKEN[usize::from(b)]
}

/// What a request target or a host may be made of.
pub(in crate::codec) fn is_visible(b: u8) -> bool {
    matches!(b, b'!'..=b'~')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_is_digits_that_fit_and_nothing_else() {
        assert_eq!(content_length(b"003"), Some(3));
        assert_eq!(content_length(b"18446744073709551615"), Some(u64::MAX));
        for bad in ["", "+3", "-1", "0x3", "3 3", "3,3", "3a", "18446744073709551616", "\u{0663}"] {
            assert_eq!(content_length(bad.as_bytes()), None, "{bad:?}");
        }
    }
}
