//! Values on the wire, as the walk looks at them.

use std::borrow::Cow;

use super::DEEPEST;
use crate::shape::{Field, Form, Repeat, Shape};
use crate::support;
use crate::wire::{Wire, fields};

/// How many messages deep a generic object is; stops counting when it is too deep.
pub(super) fn levels(bytes: &[u8], shape: &'static Shape, depth: usize) -> Option<usize> {
    let mut deepest = depth;
    if depth > DEEPEST {
        return Some(depth);
    }
    for field in fields(bytes) {
        let (number, value, _) = field.ok()?;
        let inner = shape.field_numbered(number).and_then(|i| shape.fields[i].message());
        if let (Some(inner), Wire::Bytes(bytes)) = (inner, value) {
            deepest = deepest.max(levels(bytes, inner, depth + 1)?);
        }
    }
    Some(deepest)
}

/// What Envoy calls the rule: people search for it.
pub(super) fn rule_name(shape: &Shape, field: &str) -> String {
    let mut camel = String::with_capacity(field.len());
    for word in field.split('_') {
        let mut chars = word.chars();
        camel.extend(chars.next().map(|c| c.to_ascii_uppercase()));
        camel.push_str(chars.as_str());
    }
    // Nested messages: `Cluster_RingHashLbConfig`.
    format!("{}ValidationError.{camel}", shape.local_name().replace('.', "_"))
}

pub(super) fn fits(field: &Field, value: Wire<'_>) -> bool {
    use prost::encoding::WireType;
    if field.repeat == Repeat::Map {
        return matches!(value, Wire::Bytes(_));
    }
    let packed = field.repeat == Repeat::List && field.is_number() && matches!(value, Wire::Bytes(_));
    packed
        || match field.kind.wire_type() {
            WireType::Varint => matches!(value, Wire::Varint(_)),
            WireType::SixtyFourBit => matches!(value, Wire::Fixed64(_)),
            WireType::ThirtyTwoBit => matches!(value, Wire::Fixed32(_)),
            _ => matches!(value, Wire::Bytes(_)),
        }
}

pub(super) fn is_default(value: Wire<'_>) -> bool {
    match value {
        Wire::Varint(n) | Wire::Fixed64(n) => n == 0,
        Wire::Fixed32(n) => n == 0,
        Wire::Bytes(bytes) => bytes.is_empty(),
    }
}

pub(super) fn wire_bytes(value: Wire<'_>) -> Vec<u8> {
    match value {
        Wire::Varint(n) | Wire::Fixed64(n) => n.to_le_bytes().to_vec(),
        Wire::Fixed32(n) => n.to_le_bytes().to_vec(),
        Wire::Bytes(bytes) => bytes.to_vec(),
    }
}

/// The value of a field that is honoured at some values only; of a wrapper what is in it.
pub(super) fn only_value(field: &'static Field, value: Wire<'_>) -> String {
    match (field.message().filter(|m| m.form == Form::Wrapper), value) {
        (Some(wrapper), Wire::Bytes(bytes)) => wrapper.fields.first().map_or_else(String::new, |inner| {
            let value = fields(bytes).flatten().last().map_or(Wire::Varint(0), |(_, v, _)| v);
            support::value_text(inner, value)
        }),
        _ => support::value_text(field, value),
    }
}

/// Seconds = 1 and nanos = 2 of a duration or a time, in nanoseconds.
pub(super) fn nanos(bytes: &[u8]) -> i128 {
    let mut total = 0;
    for (number, value, _) in fields(bytes).flatten() {
        match (number, value) {
            (1, Wire::Varint(seconds)) => total += i128::from(seconds as i64) * 1_000_000_000,
            (2, Wire::Varint(nanos)) => total += i128::from(nanos as i32),
            _ => {}
        }
    }
    total
}

/// The type URL and value of an encoded `Any`.
pub(super) fn any_parts(bytes: &[u8]) -> (Cow<'_, str>, &[u8]) {
    let (mut url, mut value) = (Cow::Borrowed(""), &[][..]);
    for (number, wire, _) in fields(bytes).flatten() {
        match (number, wire) {
            (1, Wire::Bytes(text)) => url = String::from_utf8_lossy(text),
            (2, Wire::Bytes(bytes)) => value = bytes,
            _ => {}
        }
    }
    (url, value)
}
