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
    const AUTHORITY: [bool; 256] = table(b"-._~%!$&'()*+,;=:@[]");
    value.iter().fold(true, |good, &b| good & AUTHORITY[usize::from(b)])
}

/// tchar of RFC 9110.
pub(in crate::codec) const fn is_token(b: u8) -> bool {
    const TOKEN: [bool; 256] = table(b"!#$%&'*+-.^_`|~");
    TOKEN[b as usize]
}

/// True for letters, digits and `others`.
const fn table(others: &[u8]) -> [bool; 256] {
    let mut table = [false; 256];
    let mut b = 0;
    while b < 128 {
        table[b] = (b as u8).is_ascii_alphanumeric();
        b += 1;
    }
    let mut i = 0;
    while i < others.len() {
        table[others[i] as usize] = true;
        i += 1;
    }
    table
}

/// What a request target or a host may be made of.
pub(in crate::codec) fn is_visible(b: u8) -> bool {
    matches!(b, b'!'..=b'~')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_what_rfc_9110_says() {
        let tokens: Vec<u8> = (0..=255).filter(|&b| is_token(b)).collect();
        let text = b"!#$%&'*+-.0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ^_`abcdefghijklmnopqrstuvwxyz|~";
        assert_eq!(tokens, text);
    }

    #[test]
    fn a_length_is_digits_that_fit_and_nothing_else() {
        assert_eq!(content_length(b"003"), Some(3));
        assert_eq!(content_length(b"18446744073709551615"), Some(u64::MAX));
        for bad in ["", "+3", "-1", "0x3", "3 3", "3,3", "3a", "18446744073709551616", "\u{0663}"] {
            assert_eq!(content_length(bad.as_bytes()), None, "{bad:?}");
        }
    }
}
