//! Encoded messages without decoding them: a list of 10,000 routes is walked and cut field by field, where the typed
//! message of all of them would take fifty megabytes.

use prost::encoding::{WireType, encode_key, encode_varint};

/// What an encoded message is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("not an encoded protobuf message")
    }
}

impl std::error::Error for Malformed {}

/// The value of one field as it stands on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wire<'b> {
    Varint(u64),
    Fixed64(u64),
    Fixed32(u32),
    Bytes(&'b [u8]),
}

/// The fields of an encoded message, in order: number, value, and all bytes of the field. Groups, which Envoy's
/// messages do not use, are malformed.
#[derive(Debug, Clone)]
pub struct Fields<'b> {
    rest: &'b [u8],
}

pub fn fields(bytes: &[u8]) -> Fields<'_> {
    Fields { rest: bytes }
}

impl<'b> Fields<'b> {
    fn one(&mut self) -> Option<(u32, Wire<'b>, &'b [u8])> {
        let whole = self.rest;
        let key = varint(&mut self.rest)?;
        let number = u32::try_from(key >> 3).ok().filter(|n| *n > 0)?;
        let value = match key & 7 {
            0 => Wire::Varint(varint(&mut self.rest)?),
            1 => Wire::Fixed64(u64::from_le_bytes(*take(&mut self.rest, 8)?.first_chunk()?)),
            2 => {
                let len = usize::try_from(varint(&mut self.rest)?).ok()?;
                Wire::Bytes(take(&mut self.rest, len)?)
            }
            5 => Wire::Fixed32(u32::from_le_bytes(*take(&mut self.rest, 4)?.first_chunk()?)),
            _ => return None,
        };
        Some((number, value, &whole[..whole.len() - self.rest.len()]))
    }
}

impl<'b> Iterator for Fields<'b> {
    type Item = Result<(u32, Wire<'b>, &'b [u8]), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let one = self.one();
        if one.is_none() {
            self.rest = &[];
        }
        Some(one.ok_or(Malformed))
    }
}

fn take<'b>(rest: &mut &'b [u8], len: usize) -> Option<&'b [u8]> {
    let (taken, after) = rest.split_at_checked(len)?;
    *rest = after;
    Some(taken)
}

pub(crate) fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..70).step_by(7) {
        let (&byte, after) = rest.split_first()?;
        *rest = after;
        value |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

/// Payloads that were cut out, each with its field's number.
pub type Parts<'b> = Vec<(u32, &'b [u8])>;

/// The message without the fields of these numbers, and their payloads in order. Payloads of a field that is not
/// length-delimited are left out.
pub fn split<'b>(bytes: &'b [u8], numbers: &[u32]) -> Result<(Vec<u8>, Parts<'b>), Malformed> {
    let mut rest = Vec::new();
    let mut parts = Vec::new();
    for field in fields(bytes) {
        let (number, value, whole) = field?;
        match value {
            Wire::Bytes(payload) if numbers.contains(&number) => parts.push((number, payload)),
            _ => rest.extend_from_slice(whole),
        }
    }
    Ok((rest, parts))
}

/// Appends a length-delimited field: how cut parts are put back, and lists are joined.
pub fn put(out: &mut Vec<u8>, number: u32, payload: &[u8]) {
    encode_key(number, WireType::LengthDelimited, out);
    encode_varint(payload.len() as u64, out);
    out.extend_from_slice(payload);
}

/// Appends a length-delimited field whose payload `body` writes.
pub(crate) fn put_with<T>(out: &mut Vec<u8>, number: u32, body: impl FnOnce(&mut Vec<u8>) -> T) -> T {
    encode_key(number, WireType::LengthDelimited, out);
    let at = out.len();
    out.push(0);
    let result = body(out);
    let len = out.len() - at - 1;
    if len < 0x80 {
        out[at] = len as u8;
    } else {
        // The payload moves a few bytes to make room for a longer length.
        let mut length = Vec::with_capacity(10);
        encode_varint(len as u64, &mut length);
        out.splice(at..=at, length);
    }
    result
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;
    use crate::pb::envoy::config::route::v3::{Route, VirtualHost};

    #[test]
    fn a_message_is_cut_and_put_back() {
        let routes: Vec<Route> = (0..300).map(|i| Route { name: format!("r{i}"), ..Route::default() }).collect();
        let host =
            VirtualHost { name: "v".to_owned(), domains: vec!["*".to_owned()], routes, ..VirtualHost::default() };
        let bytes = host.encode_to_vec();
        let (mut rest, parts) = split(&bytes, &[3]).unwrap();
        assert_eq!(parts.len(), 300);
        let head = VirtualHost::decode(&*rest).unwrap();
        assert_eq!((head.name.as_str(), head.routes.len()), ("v", 0));
        for (number, payload) in parts {
            put(&mut rest, number, payload);
        }
        assert_eq!(VirtualHost::decode(&*rest).unwrap(), host);
    }

    #[test]
    fn lengths_of_every_size_are_written() {
        for len in [0usize, 1, 127, 128, 16_383, 16_384, 3_000_000] {
            let mut out = vec![7];
            put_with(&mut out, 1, |o| o.extend(std::iter::repeat_n(1, len)));
            let (_, value, whole) = fields(&out[1..]).next().unwrap().unwrap();
            assert!(matches!(value, Wire::Bytes(b) if b.len() == len));
            assert_eq!(whole.len(), out.len() - 1);
        }
    }

    #[test]
    fn damaged_bytes_are_malformed_and_nothing_worse() {
        for bytes in [&[0x0a][..], &[0x0a, 5, 1], &[0xff; 11], &[0x0b], &[0x00], &[0x09, 1], &[0x0d, 1, 2]] {
            assert_eq!(fields(bytes).last(), Some(Err(Malformed)), "{bytes:?}");
        }
    }
}
