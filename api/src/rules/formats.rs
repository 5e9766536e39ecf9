//! The named forms of strings.

/// RFC 1035, with letters and digits as RFC 1123 has them; a trailing dot is fine.
pub(super) fn hostname(text: &str) -> bool {
    let text = text.strip_suffix('.').unwrap_or(text);
    !text.is_empty()
        && text.len() <= 253
        && text.split('.').all(|label| {
            (1..=63).contains(&label.len())
                && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
                && !label.starts_with('-')
                && !label.ends_with('-')
        })
}

/// One `@`, a plausible local part, a host name.
pub(super) fn email(text: &str) -> bool {
    let Some((local, host)) = text.rsplit_once('@') else { return false };
    let atom = |b: u8| b.is_ascii_alphanumeric() || b".!#$%&'*+/=?^_`{|}~-".contains(&b);
    text.len() <= 254
        && (1..=64).contains(&local.len())
        && local.bytes().all(atom)
        && !local.starts_with('.')
        && !local.ends_with('.')
        && !local.contains("..")
        && hostname(host)
}

/// RFC 3986 as far as characters go; `absolute` asks for a scheme.
pub(super) fn uri(text: &str, absolute: bool) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"-._~:/?#[]@!$&'()*+,;=%".contains(&b);
    if text.is_empty() || !text.bytes().all(allowed) || !percent_encoded(text) {
        return false;
    }
    let scheme = text.split_once(':').is_some_and(|(scheme, rest)| {
        !rest.is_empty()
            && scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b))
    });
    scheme || !absolute
}

fn percent_encoded(text: &str) -> bool {
    text.split('%').skip(1).all(|after| after.len() >= 2 && after.bytes().take(2).all(|b| b.is_ascii_hexdigit()))
}

pub(super) fn uuid(text: &str) -> bool {
    text.len() == 36
        && text.bytes().enumerate().all(|(at, b)| match at {
            8 | 13 | 18 | 23 => b == b'-',
            _ => b.is_ascii_hexdigit(),
        })
}

/// A token of RFC 9110, or a pseudo-header.
pub(super) fn header_name(text: &str) -> bool {
    let name = text.strip_prefix(':').unwrap_or(text);
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_|~`".contains(&b))
}
