//! The way back: an encoded message to JSON as Envoy's admin pages print it. It reads the wire, so a dump of ten
//! thousand clusters holds one field at a time and the text that was not fetched yet. Names are those of the protos, unset
//! fields are left out, `Any` is opened, private keys and secrets read `[redacted]`.

mod frame;
mod number;
mod time;

use std::borrow::Cow;
use std::collections::HashMap;

use serde_json::Value;

use crate::any;
use crate::pool::TYPED_STRUCTS;
use crate::shape::{Field, FieldKind, Form, Repeat, Shape, shape_named};
use crate::wire::{Wire, fields};

/// Writes JSON with one space a level. What was written can be taken away at any time (`take`), so that a large answer
/// leaves in pieces.
#[derive(Debug, Default)]
pub struct JsonWriter {
    out: String,
    /// Of each open object and list: whether something is in it.
    open: Vec<bool>,
    after_key: bool,
    /// Print secrets as they are.
    reveal: bool,
}

/// The message as a JSON value, secrets redacted. `name` is a full name or a type URL.
pub fn json_value(name: &str, bytes: &[u8]) -> Value {
    let mut writer = JsonWriter::default();
    writer.message(name, bytes);
    serde_json::from_str(&writer.take()).unwrap_or(Value::Null)
}

// === impl JsonWriter: messages ===

const DEEPEST: usize = 100;

impl JsonWriter {
    /// A message as an object. `name` is a full name or a type URL.
    pub fn message(&mut self, name: &str, bytes: &[u8]) {
        match shape_named(any::type_name(name)) {
            Some(shape) => self.shaped(shape, bytes, false, 0),
            None => self.raw("{}"),
        }
    }

    /// A message as `Any` is printed: `@type` first.
    pub fn any(&mut self, type_url: &str, bytes: &[u8]) {
        self.any_parts(type_url, bytes, false, 0);
    }

    /// The fields of a message, inside an object that is open: to add fields of lists that were cut out.
    pub fn fields(&mut self, name: &str, bytes: &[u8]) {
        if let Some(shape) = shape_named(any::type_name(name)) {
            self.object_fields(shape, bytes, false, 0);
        }
    }

    fn shaped(&mut self, shape: &'static Shape, bytes: &[u8], secret: bool, depth: usize) {
        if depth > DEEPEST {
            return self.raw("{}");
        }
        match shape.form {
            Form::Object => {
                self.begin_object();
                self.object_fields(shape, bytes, secret, depth);
                self.end_object();
            }
            Form::Any => {
                let (url, value) = url_and_value(bytes);
                if url.is_empty() { self.raw("{}") } else { self.any_parts(&url, value, secret, depth) }
            }
            Form::Duration => self.string(&time::duration(bytes)),
            Form::Timestamp => self.string(&time::timestamp(bytes)),
            Form::FieldMask => {
                let paths = fields(bytes).flatten().filter_map(|(_, v, _)| text_of(v).map(|t| lower_camel(&t)));
                self.string(&paths.collect::<Vec<_>>().join(","));
            }
            Form::Struct => self.structure(bytes, secret, depth),
            Form::Value => self.struct_value(bytes, secret, depth),
            Form::ListValue => self.list_value(bytes, secret, depth),
            Form::Wrapper => {
                let Some(inner) = shape.fields.first() else { return self.raw("{}") };
                let value = fields(bytes).flatten().last().map_or(zero(inner), |(_, value, _)| value);
                self.scalar(inner, value, secret);
            }
        }
    }

    fn object_fields(&mut self, shape: &'static Shape, bytes: &[u8], secret: bool, depth: usize) {
        let mut there: Vec<(usize, Wire<'_>)> = fields(bytes)
            .flatten()
            .filter_map(|(number, value, _)| Some((shape.field_numbered(number)?, value)))
            .collect();
        there.sort_by_key(|(index, _)| *index);
        for group in there.chunk_by(|a, b| a.0 == b.0) {
            let (index, last) = group[group.len() - 1];
            let field = &shape.fields[index];
            let secret = secret || field.sensitive && !self.reveal;
            match field.repeat {
                Repeat::One => self.single(field, group, last, secret, depth),
                Repeat::List => self.list(field, group, secret, depth),
                Repeat::Map => self.map(field, group, secret, depth),
            }
        }
    }

    fn single(
        &mut self,
        field: &'static Field,
        group: &[(usize, Wire<'_>)],
        last: Wire<'_>,
        secret: bool,
        depth: usize,
    ) {
        let Some(inner) = field.message() else {
            let redacted = secret && !matches!(field.kind, FieldKind::String | FieldKind::Bytes);
            if redacted || !field.presence && last == zero_like(last) {
                return;
            }
            self.key(field.name());
            return self.scalar(field, last, secret);
        };
        // A message that came in parts is the parts joined.
        let parts: Vec<&[u8]> = group.iter().filter_map(|(_, v)| bytes_of(*v)).collect();
        let whole = if let [one] = parts[..] { Cow::Borrowed(one) } else { Cow::Owned(parts.concat()) };
        self.key(field.name());
        self.shaped(inner, &whole, secret, depth + 1);
    }

    fn list(&mut self, field: &'static Field, group: &[(usize, Wire<'_>)], secret: bool, depth: usize) {
        if secret && !matches!(field.kind, FieldKind::String | FieldKind::Bytes | FieldKind::Message(_)) {
            return;
        }
        self.key(field.name());
        self.begin_list();
        for &(_, value) in group {
            match (field.message(), value) {
                (Some(inner), Wire::Bytes(bytes)) => self.shaped(inner, bytes, secret, depth + 1),
                (None, Wire::Bytes(mut packed)) if field.is_number() => {
                    while let Some(one) = field.unpack_one(&mut packed) {
                        self.scalar(field, one, secret);
                    }
                }
                (_, value) => self.scalar(field, value, secret),
            }
        }
        self.end_list();
    }

    fn map(&mut self, field: &'static Field, group: &[(usize, Wire<'_>)], secret: bool, depth: usize) {
        let Some(entry) = field.message() else { return };
        let (Some(key_field), Some(value_field)) = (entry.fields.first(), entry.fields.get(1)) else { return };
        let mut entries: Vec<(Cow<'_, str>, Wire<'_>)> = Vec::with_capacity(group.len());
        for (_, value) in group {
            let (mut key, mut inner) = (zero(key_field), zero(value_field));
            for (number, value, _) in fields(bytes_of(*value).unwrap_or_default()).flatten() {
                match number {
                    1 => key = value,
                    2 => inner = value,
                    _ => {}
                }
            }
            entries.push((Cow::Owned(crate::support::value_text(key_field, key)), inner));
        }
        self.key(field.name());
        self.begin_object();
        for (key, value) in last_of_each(entries) {
            self.key(&key);
            match (value_field.message(), value) {
                (Some(inner), Wire::Bytes(bytes)) => self.shaped(inner, bytes, secret, depth + 1),
                _ => self.scalar(value_field, value, secret),
            }
        }
        self.end_object();
    }

    fn any_parts(&mut self, url: &str, value: &[u8], secret: bool, depth: usize) {
        self.begin_object();
        self.key("@type");
        self.string(url);
        let name = any::type_name(url);
        match shape_named(name) {
            Some(inner) if TYPED_STRUCTS.contains(&name) => self.typed_struct(inner, value, secret, depth),
            Some(inner) if inner.form == Form::Object && depth < DEEPEST => {
                self.object_fields(inner, value, secret, depth + 1);
            }
            Some(inner) => {
                self.key("value");
                self.shaped(inner, value, secret, depth + 1);
            }
            None => {
                self.key("value");
                self.string(&base64(value));
            }
        }
        self.end_object();
    }

    /// A message that came as a generic object and stays one: what it names decides what is secret in it.
    fn typed_struct(&mut self, inner: &'static Shape, value: &[u8], secret: bool, depth: usize) {
        let opened = any::open_typed_struct(value, crate::unknown::UnknownFields::Ignore);
        let Ok((shape, bytes)) = opened else { return self.object_fields(inner, value, true, depth + 1) };
        self.key("type_url");
        self.string(&format!("type.googleapis.com/{}", shape.name()));
        self.key("value");
        self.shaped(shape, &bytes, secret, depth + 1);
    }

    fn structure(&mut self, bytes: &[u8], secret: bool, depth: usize) {
        self.begin_object();
        let mut entries = Vec::new();
        for (_, entry, _) in fields(bytes).flatten() {
            let (mut key, mut value) = (Cow::Borrowed(""), &[][..]);
            for (number, wire, _) in fields(bytes_of(entry).unwrap_or_default()).flatten() {
                match (number, wire) {
                    (1, Wire::Bytes(text)) => key = String::from_utf8_lossy(text),
                    (2, Wire::Bytes(bytes)) => value = bytes,
                    _ => {}
                }
            }
            entries.push((key, value));
        }
        for (key, value) in last_of_each(entries) {
            self.key(&key);
            self.struct_value(value, secret, depth + 1);
        }
        self.end_object();
    }

    fn struct_value(&mut self, bytes: &[u8], secret: bool, depth: usize) {
        if depth > DEEPEST {
            return self.raw("null");
        }
        match fields(bytes).flatten().last().map(|(number, value, _)| (number, value)) {
            Some((2, Wire::Fixed64(bits))) if !secret => self.number(f64::from_bits(bits)),
            Some((3, Wire::Bytes(_))) if secret => self.string(REDACTED),
            Some((3, Wire::Bytes(text))) => self.string(&String::from_utf8_lossy(text)),
            Some((4, Wire::Varint(n))) if !secret => self.bool(n != 0),
            Some((5, Wire::Bytes(inner))) => self.structure(inner, secret, depth + 1),
            Some((6, Wire::Bytes(inner))) => self.list_value(inner, secret, depth + 1),
            _ => self.raw("null"),
        }
    }

    fn list_value(&mut self, bytes: &[u8], secret: bool, depth: usize) {
        self.begin_list();
        for (_, item, _) in fields(bytes).flatten() {
            self.struct_value(bytes_of(item).unwrap_or_default(), secret, depth + 1);
        }
        self.end_list();
    }

    fn scalar(&mut self, field: &Field, value: Wire<'_>, secret: bool) {
        match (&field.kind, value) {
            (FieldKind::String, Wire::Bytes(_)) if secret => self.string(REDACTED),
            (FieldKind::Bytes, Wire::Bytes(_)) if secret => self.string(&base64(REDACTED.as_bytes())),
            (FieldKind::String, Wire::Bytes(text)) => self.string(&String::from_utf8_lossy(text)),
            (FieldKind::Bytes, Wire::Bytes(bytes)) => self.string(&base64(bytes)),
            (FieldKind::Bool, Wire::Varint(n)) => self.bool(n != 0),
            (FieldKind::Double, Wire::Fixed64(bits)) => self.number(f64::from_bits(bits)),
            (FieldKind::Float, Wire::Fixed32(bits)) => {
                let value = f32::from_bits(bits);
                let text = number::float(value);
                if value.is_finite() { self.raw(&text) } else { self.string(&text) }
            }
            (FieldKind::Enum(of), Wire::Varint(n)) => match of.name_of(n as i32) {
                Some(_) if of.name() == "google.protobuf.NullValue" && n as i32 == 0 => self.raw("null"),
                Some(name) => self.string(name),
                None => self.raw(&(n as i32).to_string()),
            },
            (kind, value) => {
                let number = crate::rules::whole(value, kind).unwrap_or_default().to_string();
                // 64 bits do not fit into JavaScript's numbers: text.
                let long = matches!(
                    kind,
                    FieldKind::Int64 | FieldKind::Uint64 | FieldKind::Sint64 | FieldKind::Fixed64 | FieldKind::Sfixed64
                );
                if long { self.string(&number) } else { self.raw(&number) }
            }
        }
    }
}

/// Of equal keys of a map the last one counts.
fn last_of_each<'b, V>(entries: Vec<(Cow<'b, str>, V)>) -> impl Iterator<Item = (Cow<'b, str>, V)> {
    let last: HashMap<String, usize> = entries.iter().enumerate().map(|(at, (key, _))| (key.to_string(), at)).collect();
    entries.into_iter().enumerate().filter(move |(at, (key, _))| last.get(&**key) == Some(at)).map(|(_, entry)| entry)
}

const REDACTED: &str = "[redacted]";

fn zero(field: &Field) -> Wire<'static> {
    match field.kind.wire_type() {
        prost::encoding::WireType::SixtyFourBit => Wire::Fixed64(0),
        prost::encoding::WireType::ThirtyTwoBit => Wire::Fixed32(0),
        prost::encoding::WireType::Varint => Wire::Varint(0),
        _ => Wire::Bytes(&[]),
    }
}

fn zero_like(value: Wire<'_>) -> Wire<'static> {
    match value {
        Wire::Varint(_) => Wire::Varint(0),
        Wire::Fixed64(_) => Wire::Fixed64(0),
        Wire::Fixed32(_) => Wire::Fixed32(0),
        Wire::Bytes(_) => Wire::Bytes(&[]),
    }
}

fn bytes_of(value: Wire<'_>) -> Option<&[u8]> {
    if let Wire::Bytes(bytes) = value { Some(bytes) } else { None }
}

fn text_of(value: Wire<'_>) -> Option<Cow<'_, str>> {
    bytes_of(value).map(String::from_utf8_lossy)
}

fn url_and_value(bytes: &[u8]) -> (Cow<'_, str>, &[u8]) {
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

fn lower_camel(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    let mut upper = false;
    for c in path.chars() {
        if c == '_' {
            upper = true;
        } else {
            out.push(if std::mem::take(&mut upper) { c.to_ascii_uppercase() } else { c });
        }
    }
    out
}

fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let group = chunk.iter().fold(0u32, |n, b| n << 8 | u32::from(*b)) << (8 * (3 - chunk.len()));
        for at in 0..4 {
            let index = (group >> (18 - 6 * at)) as usize & 63;
            out.push(if at <= chunk.len() { char::from(ALPHABET[index]) } else { '=' });
        }
    }
    out
}

#[cfg(test)]
mod tests;
