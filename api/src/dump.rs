//! The way back: an encoded message to JSON as Envoy's admin pages print it. It reads the wire, so a dump of ten
//! thousand clusters holds one field at a time and the text that was not fetched yet. Names are those of the protos, unset
//! fields are left out, `Any` is opened, private keys and secrets read `[redacted]`.

mod number;

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt::Write as _;

use prost_reflect::Kind;
use serde_json::Value;

use crate::any;
use crate::pool::TYPED_STRUCTS;
use crate::rules::seconds_text;
use crate::shape::{Field, Form, Repeat, Shape, shape, shape_named};
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

// === impl JsonWriter: the frame ===

impl JsonWriter {
    /// One that prints secrets too: for files that must be loaded again, never for a page.
    pub fn revealing() -> Self {
        Self { reveal: true, ..Self::default() }
    }

    /// What was written since the last time.
    pub fn take(&mut self) -> String {
        std::mem::take(&mut self.out)
    }

    pub fn len(&self) -> usize {
        self.out.len()
    }

    pub fn is_empty(&self) -> bool {
        self.out.is_empty()
    }

    pub fn begin_object(&mut self) {
        self.item();
        self.out.push('{');
        self.open.push(false);
    }

    pub fn end_object(&mut self) {
        self.end('}');
    }

    pub fn begin_list(&mut self) {
        self.item();
        self.out.push('[');
        self.open.push(false);
    }

    pub fn end_list(&mut self) {
        self.end(']');
    }

    pub fn key(&mut self, key: &str) {
        self.item();
        quote(key, &mut self.out);
        self.out.push_str(": ");
        self.after_key = true;
    }

    pub fn string(&mut self, text: &str) {
        self.item();
        quote(text, &mut self.out);
    }

    pub fn bool(&mut self, value: bool) {
        self.raw(if value { "true" } else { "false" });
    }

    pub fn number(&mut self, value: f64) {
        let text = number::double(value);
        if value.is_finite() { self.raw(&text) } else { self.string(&text) }
    }

    /// A value that is JSON already: an integer, `null`.
    pub fn raw(&mut self, json: &str) {
        self.item();
        self.out.push_str(json);
    }

    /// Any value of serde's.
    pub fn value(&mut self, value: &Value) {
        match value {
            Value::String(text) => self.string(text),
            Value::Array(items) => {
                self.begin_list();
                items.iter().for_each(|item| self.value(item));
                self.end_list();
            }
            Value::Object(entries) => {
                self.begin_object();
                for (key, value) in entries {
                    self.key(key);
                    self.value(value);
                }
                self.end_object();
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => self.raw(&value.to_string()),
        }
    }

    fn item(&mut self) {
        if std::mem::take(&mut self.after_key) {
            return;
        }
        let Some(some) = self.open.last_mut() else { return };
        if std::mem::replace(some, true) {
            self.out.push(',');
        }
        self.line();
    }

    fn line(&mut self) {
        self.out.push('\n');
        self.out.extend(std::iter::repeat_n(' ', self.open.len()));
    }

    fn end(&mut self, bracket: char) {
        if self.open.pop() == Some(true) {
            self.line();
        }
        self.out.push(bracket);
    }
}

/// Envoy's printer escapes `<` and `>` too, and the line separators that JavaScript trips over.
fn quote(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '<' | '>' | '\u{7f}'..='\u{9f}' | '\u{2028}' | '\u{2029}' | '\0'..='\u{1f}' => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
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
            Form::Duration => self.string(&duration(bytes)),
            Form::Timestamp => self.string(&timestamp(bytes)),
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
            let redacted = secret && !matches!(field.kind, Kind::String | Kind::Bytes);
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
        if secret && !matches!(field.kind, Kind::String | Kind::Bytes | Kind::Message(_)) {
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
        let Ok((desc, bytes)) = opened else { return self.object_fields(inner, value, true, depth + 1) };
        self.key("type_url");
        self.string(&format!("type.googleapis.com/{}", desc.full_name()));
        self.key("value");
        self.shaped(shape(&desc), &bytes, secret, depth + 1);
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
            (Kind::String, Wire::Bytes(_)) if secret => self.string(REDACTED),
            (Kind::Bytes, Wire::Bytes(_)) if secret => self.string(&base64(REDACTED.as_bytes())),
            (Kind::String, Wire::Bytes(text)) => self.string(&String::from_utf8_lossy(text)),
            (Kind::Bytes, Wire::Bytes(bytes)) => self.string(&base64(bytes)),
            (Kind::Bool, Wire::Varint(n)) => self.bool(n != 0),
            (Kind::Double, Wire::Fixed64(bits)) => self.number(f64::from_bits(bits)),
            (Kind::Float, Wire::Fixed32(bits)) => {
                let value = f32::from_bits(bits);
                let text = number::float(value);
                if value.is_finite() { self.raw(&text) } else { self.string(&text) }
            }
            (Kind::Enum(desc), Wire::Varint(n)) => match desc.get_value(n as i32) {
                Some(value) if desc.full_name() == "google.protobuf.NullValue" && value.number() == 0 => {
                    self.raw("null")
                }
                Some(value) => self.string(value.name()),
                None => self.raw(&(n as i32).to_string()),
            },
            (kind, value) => {
                let number = crate::rules::whole(value, kind).unwrap_or_default().to_string();
                // 64 bits do not fit into JavaScript's numbers: text.
                let long = matches!(kind, Kind::Int64 | Kind::Uint64 | Kind::Sint64 | Kind::Fixed64 | Kind::Sfixed64);
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

/// Seconds and nanoseconds of a duration or a time.
fn seconds_and_nanos(bytes: &[u8]) -> (i64, i32) {
    let (mut seconds, mut nanos) = (0, 0);
    for (number, value, _) in fields(bytes).flatten() {
        match (number, value) {
            (1, Wire::Varint(n)) => seconds = n as i64,
            (2, Wire::Varint(n)) => nanos = n as i32,
            _ => {}
        }
    }
    (seconds, nanos)
}

/// With 3, 6 or 9 digits after the point, or none.
fn duration(bytes: &[u8]) -> String {
    let (seconds, nanos) = seconds_and_nanos(bytes);
    let total = i128::from(seconds) * 1_000_000_000 + i128::from(nanos);
    let text = seconds_text(total);
    let Some((whole, fraction)) = text.trim_end_matches('s').split_once('.') else { return text };
    let width = fraction.len().div_ceil(3) * 3;
    format!("{whole}.{fraction:0<width$}s")
}

/// RFC 3339 in UTC.
fn timestamp(bytes: &[u8]) -> String {
    let (seconds, nanos) = seconds_and_nanos(bytes);
    let (days, rest) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = civil(days);
    let mut text = format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}", rest / 3600, rest / 60 % 60, rest % 60);
    if nanos > 0 {
        let fraction = format!("{nanos:09}");
        let short = fraction.trim_end_matches('0');
        let width = short.len().div_ceil(3) * 3;
        let _ = write!(text, ".{short:0<width$}");
    }
    text.push('Z');
    text
}

/// Year, month and day of a day counted from 1970, by eras of 400 years that begin in March.
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days.saturating_add(719_468);
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + i64::from(month <= 2), month, day)
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
