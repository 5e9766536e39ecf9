//! The fields that both sides know from the beginning (RFC 7541 Appendix A), and for the encoder: where a name stands
//! among them, and how much a field of that name may be remembered.

/// The first index of the dynamic table.
pub(super) const NEXT: u32 = 62;

/// Index 1 first.
static FIELDS: [(&str, &str); 61] = APPENDIX_A;

#[rustfmt::skip]
const APPENDIX_A: [(&str, &str); 61] = [
    (":authority", ""), (":method", "GET"), (":method", "POST"), (":path", "/"), (":path", "/index.html"),
    (":scheme", "http"), (":scheme", "https"), (":status", "200"), (":status", "204"), (":status", "206"),
    (":status", "304"), (":status", "400"), (":status", "404"), (":status", "500"), ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"), ("accept-language", ""), ("accept-ranges", ""), ("accept", ""),
    ("access-control-allow-origin", ""), ("age", ""), ("allow", ""), ("authorization", ""), ("cache-control", ""),
    ("content-disposition", ""), ("content-encoding", ""), ("content-language", ""), ("content-length", ""),
    ("content-location", ""), ("content-range", ""), ("content-type", ""), ("cookie", ""), ("date", ""), ("etag", ""),
    ("expect", ""), ("expires", ""), ("from", ""), ("host", ""), ("if-match", ""), ("if-modified-since", ""),
    ("if-none-match", ""), ("if-range", ""), ("if-unmodified-since", ""), ("last-modified", ""), ("link", ""),
    ("location", ""), ("max-forwards", ""), ("proxy-authenticate", ""), ("proxy-authorization", ""), ("range", ""),
    ("referer", ""), ("refresh", ""), ("retry-after", ""), ("server", ""), ("set-cookie", ""),
    ("strict-transport-security", ""), ("transfer-encoding", ""), ("user-agent", ""), ("vary", ""), ("via", ""),
    ("www-authenticate", ""),
];

/// How a field may go into a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Policy {
    /// Into the table once it comes again.
    Usual,
    /// The same name has another value next time: in the table it would only push others out.
    Passing,
    /// Never into the table: who else sends requests over the connection could guess it by what its own take (§7.1).
    Secret,
}

/// A name that the table knows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Name {
    pub(super) index: u8,
    /// How many entries with values follow from that one on.
    valued: u8,
    pub(super) policy: Policy,
}

impl Name {
    pub(super) const STATUS: Name = Name { index: 8, valued: 7, policy: Policy::Usual };

    /// The index of the whole field, if the value is one that the table has.
    #[inline]
    pub(super) fn with_value(self, value: &[u8]) -> Option<u8> {
        if self.valued == 0 {
            return value.is_empty().then_some(self.index);
        }
        (self.index..self.index + self.valued).find(|&index| FIELDS[usize::from(index) - 1].1.as_bytes() == value)
    }
}

/// The field of an index from 1 on.
#[inline]
pub(super) fn field(index: u32) -> Option<(&'static [u8], &'static [u8])> {
    let (name, value) = FIELDS.get((index as usize).wrapping_sub(1))?;
    Some((name.as_bytes(), value.as_bytes()))
}

/// `:status` values that have an entry of their own.
#[inline]
pub(super) fn status(status: u16) -> Option<u8> {
    Some(match status {
        200 => 8,
        204 => 9,
        206 => 10,
        304 => 11,
        400 => 12,
        404 => 13,
        500 => 14,
        _ => return None,
    })
}

/// One look and one comparison: the names have places of their own in a table of 128.
#[inline]
pub(super) fn name(name: &[u8]) -> Option<Name> {
    let known = NAMES[place(name)];
    (known.index != 0 && FIELDS[usize::from(known.index) - 1].0.as_bytes() == name).then_some(known)
}

/// Length, first, middle and last byte tell all names of the table apart; the multiplier was searched for until no two
/// fell on one place, which the compiler checks.
#[inline]
const fn place(name: &[u8]) -> usize {
    if name.is_empty() {
        return 0;
    }
    let (first, middle, last) = (name[0], name[name.len() / 2], name[name.len() - 1]);
    let key = u32::from_le_bytes([name.len() as u8, first, middle, last]);
    (key.wrapping_mul(0x84f4_b44f) >> 25) as usize
}

static NAMES: [Name; 128] = names();

const fn names() -> [Name; 128] {
    let mut names = [Name { index: 0, valued: 0, policy: Policy::Usual }; 128];
    let mut at = 0;
    while at < APPENDIX_A.len() {
        let (name, value) = APPENDIX_A[at];
        let index = at as u8 + 1;
        let entry = &mut names[place(name.as_bytes())];
        if entry.index == 0 {
            *entry = Name { index, valued: 0, policy: policy(index) };
        } else {
            assert!(index == entry.index + entry.valued, "two names on one place");
        }
        if !value.is_empty() {
            entry.valued += 1;
        }
        at += 1;
    }
    names
}

const fn policy(index: u8) -> Policy {
    match index {
        // authorization, cookie, proxy-authorization, set-cookie
        23 | 32 | 49 | 55 => Policy::Secret,
        // :path, age, content-length, etag, if-modified-since, if-none-match, location
        4 | 21 | 28 | 34 | 40 | 41 | 46 => Policy::Passing,
        _ => Policy::Usual,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_is_found_at_its_first_index_and_each_value_at_its_own() {
        let mut first = 0;
        for index in 1..=61 {
            let (text, value) = field(index).expect("an entry");
            if index == 1 || field(index - 1).is_none_or(|before| before.0 != text) {
                first = index;
            }
            let found = name(text).expect("a name of the table");
            assert_eq!(u32::from(found.index), first, "{}", text.escape_ascii());
            assert_eq!(found.with_value(value), Some(index as u8), "{}", text.escape_ascii());
            assert_eq!(found.with_value(b"another"), None);
        }
        assert_eq!((field(0), field(62)), (None, None));
        assert_eq!(name(b":status").expect("known").index, Name::STATUS.index);
        for code in 0..1000 {
            assert_eq!(status(code), Name::STATUS.with_value(code.to_string().as_bytes()));
        }
    }

    #[test]
    fn other_names_are_not_found() {
        for other in ["", "x", "x-request-id", ":protocol", "te", "acceqt", "accept-encodinh", "cookies", "\0"] {
            assert!(name(other.as_bytes()).is_none(), "{other}");
        }
    }

    #[test]
    fn what_is_secret_or_passing_is_known_by_its_name() {
        for (policy, names) in [
            (Policy::Secret, &["authorization", "cookie", "proxy-authorization", "set-cookie"][..]),
            (
                Policy::Passing,
                &[":path", "age", "content-length", "etag", "if-modified-since", "if-none-match", "location"],
            ),
            (Policy::Usual, &[":authority", ":status", "content-type", "date", "server", "user-agent", "vary"]),
        ] {
            for text in names {
                assert_eq!(name(text.as_bytes()).expect("known").policy, policy, "{text}");
            }
        }
    }
}
