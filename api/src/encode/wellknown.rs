//! The messages of google.protobuf that have a text form of their own: durations, wrappers, `Any`, `Struct`.

use prost::encoding::{WireType, encode_key, encode_varint};

use super::{Encoder, Scalar};
use crate::any;
use crate::diag::Path;
use crate::pool::TYPED_STRUCTS;
use crate::read::{Kind as NodeKind, Node};
use crate::shape::{Form, Shape};
use crate::wire::{put, put_with};

impl Encoder<'_> {
    pub(super) fn well_known(&mut self, node: Node<'_>, shape: &'static Shape, path: &Path<'_>, out: &mut Vec<u8>) {
        match shape.form {
            Form::Object => self.object(node, shape, path, out),
            Form::Any => self.any(node, path, out),
            Form::Duration | Form::Timestamp if node.kind() == NodeKind::Map => self.object(node, shape, path, out),
            Form::Duration => self.seconds(node, path, duration(node), out),
            Form::Timestamp => self.seconds(node, path, timestamp(node), out),
            Form::FieldMask => self.field_mask(node, path, out),
            Form::Struct => self.structure(node, path, out),
            Form::Value => self.value(node, path, out),
            Form::ListValue => self.list_value(node, path, out),
            Form::Wrapper if node.kind() == NodeKind::Map => self.object(node, shape, path, out),
            Form::Wrapper => {
                if let Some(field) = shape.fields.first() {
                    self.single(field, node, path, true, out);
                }
            }
        }
    }

    fn seconds(&mut self, node: Node<'_>, path: &Path<'_>, read: Result<(i64, i32), String>, out: &mut Vec<u8>) {
        match read {
            Ok((seconds, nanos)) => {
                for (number, value) in [(1, seconds), (2, i64::from(nanos))].into_iter().filter(|(_, v)| *v != 0) {
                    encode_key(number, WireType::Varint, out);
                    encode_varint(value as u64, out);
                }
            }
            Err(text) => self.error(node, path, text),
        }
    }

    /// `a.b,c.dE`: the paths' words are written in camel case.
    fn field_mask(&mut self, node: Node<'_>, path: &Path<'_>, out: &mut Vec<u8>) {
        if node.kind() != NodeKind::Text {
            return self.error(node, path, format!("expected field names joined by commas, found {}", node.describe()));
        }
        for name in node.text().split(',').filter(|n| !n.is_empty()) {
            let mut snake = String::with_capacity(name.len() + 4);
            for c in name.chars() {
                if c.is_ascii_uppercase() {
                    snake.push('_');
                }
                snake.push(c.to_ascii_lowercase());
            }
            put(out, 1, snake.as_bytes());
        }
    }

    fn structure(&mut self, node: Node<'_>, path: &Path<'_>, out: &mut Vec<u8>) {
        if node.kind() != NodeKind::Map {
            return self.error(node, path, format!("expected an object, found {}", node.describe()));
        }
        for (key, value) in node.entries() {
            let here = Path::Key(path, key.text());
            put_with(out, 1, |out| {
                put(out, 1, key.text().as_bytes());
                put_with(out, 2, |out| self.value(value, &here, out));
            });
        }
    }

    fn value(&mut self, node: Node<'_>, path: &Path<'_>, out: &mut Vec<u8>) {
        match node.kind() {
            NodeKind::Null => Scalar::Varint(0).put(1, out),
            NodeKind::Number => match node.text().parse::<f64>().ok().filter(|n| n.is_finite()) {
                Some(n) => Scalar::Fixed64(n.to_bits()).put(2, out),
                None => self.error(node, path, format!("{} is out of the range of a double", node.describe())),
            },
            NodeKind::Text | NodeKind::Ignored => put(out, 3, node.text().as_bytes()),
            NodeKind::True => Scalar::Varint(1).put(4, out),
            NodeKind::False => Scalar::Varint(0).put(4, out),
            NodeKind::Map => put_with(out, 5, |out| self.structure(node, path, out)),
            NodeKind::List => put_with(out, 6, |out| self.list_value(node, path, out)),
        }
    }

    fn list_value(&mut self, node: Node<'_>, path: &Path<'_>, out: &mut Vec<u8>) {
        if node.kind() != NodeKind::List {
            return self.error(node, path, format!("expected a list, found {}", node.describe()));
        }
        for (at, item) in node.items().enumerate() {
            put_with(out, 1, |out| self.value(item, &Path::Index(path, at), out));
        }
    }

    /// `{"@type": URL, …}`; the type need not come first.
    fn any(&mut self, node: Node<'_>, path: &Path<'_>, out: &mut Vec<u8>) {
        if node.kind() != NodeKind::Map {
            return self.error(node, path, format!("expected an object with an `@type`, found {}", node.describe()));
        }
        let Some((_, url)) = node.entries().filter(|(key, _)| key.text() == "@type").last() else {
            if node.entries().next().is_some() {
                self.error(node, path, "has no `@type`: say which message this is");
            }
            return;
        };
        if url.kind() != NodeKind::Text {
            return self.error(url, path, format!("`@type`: expected a string, found {}", url.describe()));
        }
        let inner = match any::shape_of(url.text()) {
            Ok(inner) => inner,
            Err(text) => return self.error(url, path, text),
        };
        if TYPED_STRUCTS.contains(&inner.name()) {
            return self.typed_struct(node, path, out);
        }
        put(out, 1, url.text().as_bytes());
        put_with(out, 2, |out| self.any_value(node, inner, path, out));
    }

    fn any_value(&mut self, node: Node<'_>, inner: &'static Shape, path: &Path<'_>, out: &mut Vec<u8>) {
        if inner.form == Form::Object {
            return self.fields(node, inner, path, "@type", out);
        }
        let value = node.entries().filter(|(key, _)| key.text() == "value").last();
        if let Some((_, value)) = value.filter(|(_, v)| v.kind() != NodeKind::Null || inner.form == Form::Value) {
            self.message(value, inner, &Path::Field(path, "value"), out);
        }
    }

    /// A message that travels as a generic object: `value` is read as the message that `type_url` names.
    fn typed_struct(&mut self, node: Node<'_>, path: &Path<'_>, out: &mut Vec<u8>) {
        let entry = |names: [&str; 2]| node.entries().filter(|(key, _)| names.contains(&key.text())).last();
        for (key, _) in node.entries().filter(|(k, _)| !matches!(k.text(), "@type" | "type_url" | "typeUrl" | "value"))
        {
            self.error(key, path, format!("unknown field `{}` in {}", key.text(), TYPED_STRUCTS[0]));
        }
        let Some((_, url)) = entry(["type_url", "typeUrl"]).filter(|(_, url)| url.kind() == NodeKind::Text) else {
            return self.error(node, path, "a TypedStruct needs a `type_url`");
        };
        let inner = match any::shape_of(url.text()) {
            Ok(inner) => inner,
            Err(text) => return self.error(url, &Path::Field(path, "type_url"), text),
        };
        put(out, 1, url.text().as_bytes());
        put_with(out, 2, |out| {
            if let Some((_, value)) = entry(["value", "value"]).filter(|(_, v)| v.kind() != NodeKind::Null) {
                self.message(value, inner, &Path::Field(path, "value"), out);
            }
        });
    }
}

const MOST_SECONDS: i64 = 315_576_000_000;

fn duration(node: Node<'_>) -> Result<(i64, i32), String> {
    let wrong = |text: &str| Err(format!("invalid duration `{text}`: write seconds with an `s`, such as `0.25s`"));
    if node.kind() != NodeKind::Text {
        if node.kind() == NodeKind::Number {
            return wrong(node.text());
        }
        return Err(format!("expected a duration such as `0.25s`, found {}", node.describe()));
    }
    let text = node.text();
    let Some(number) = text.strip_suffix('s') else { return wrong(text) };
    let (negative, number) = number.strip_prefix('-').map_or((false, number), |n| (true, n));
    let (whole, fraction) = number.split_once('.').map_or((number, None), |(w, f)| (w, Some(f)));
    let digits = |t: &str| !t.is_empty() && t.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || fraction.is_some_and(|f| !digits(f) || f.len() > 9) {
        return wrong(text);
    }
    let Some(seconds) = whole.parse::<i64>().ok().filter(|s| *s <= MOST_SECONDS) else {
        return Err(format!("the duration `{text}` is out of range"));
    };
    let nanos = fraction
        .map_or(0, |f| f.bytes().chain(std::iter::repeat(b'0')).take(9).fold(0, |n, b| n * 10 + i32::from(b - b'0')));
    Ok(if negative { (-seconds, -nanos) } else { (seconds, nanos) })
}

/// RFC 3339.
fn timestamp(node: Node<'_>) -> Result<(i64, i32), String> {
    if node.kind() == NodeKind::Text
        && let Some(read) = rfc3339(node.text())
    {
        return Ok(read);
    }
    Err(format!("expected a time such as `2025-01-31T23:59:59Z`, found {}", node.describe()))
}

fn rfc3339(text: &str) -> Option<(i64, i32)> {
    let number = |range: std::ops::Range<usize>| -> Option<i64> {
        let part = text.get(range)?;
        part.bytes().all(|b| b.is_ascii_digit()).then(|| part.parse().ok())?
    };
    let separators = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':')];
    if !separators.iter().all(|(at, c)| text.as_bytes().get(*at).is_some_and(|b| b.eq_ignore_ascii_case(c))) {
        return None;
    }
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    let (hour, minute, second) = (number(11..13)?, number(14..16)?, number(17..19)?);
    if year == 0 || !(1..=12).contains(&month) || !(1..=31).contains(&day) || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let mut rest = text.get(19..)?;
    let mut nanos = 0;
    if let Some(fraction) = rest.strip_prefix('.') {
        let len = fraction.bytes().take_while(u8::is_ascii_digit).count();
        if len == 0 || len > 9 {
            return None;
        }
        nanos = fraction
            .bytes()
            .take(len)
            .chain(std::iter::repeat(b'0'))
            .take(9)
            .fold(0, |n, b| n * 10 + i32::from(b - b'0'));
        rest = &fraction[len..];
    }
    let offset = match rest.as_bytes() {
        [b'Z' | b'z'] => 0,
        [sign @ (b'+' | b'-'), h1, h2, b':', m1, m2] => {
            let two = |a: &u8, b: &u8| {
                (a.is_ascii_digit() && b.is_ascii_digit()).then(|| i64::from((a - b'0') * 10 + (b - b'0')))
            };
            let seconds = two(h1, h2)? * 3600 + two(m1, m2)? * 60;
            if *sign == b'-' { -seconds } else { seconds }
        }
        _ => return None,
    };
    Some((days_since_1970(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second - offset, nanos))
}

/// Days of the proleptic Gregorian calendar, counted from years that begin in March.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let month = (month + 9) % 12;
    365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1 - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_rfc_3339_says() {
        assert_eq!(rfc3339("1970-01-01T00:00:00Z"), Some((0, 0)));
        assert_eq!(rfc3339("2000-03-01T00:00:00Z"), Some((951_868_800, 0)));
        assert_eq!(rfc3339("2024-02-29T12:30:15.25+01:00"), Some((1_709_206_215, 250_000_000)));
        for bad in ["2024-13-01T00:00:00Z", "2024-01-01 00:00:00Z", "2024-01-01T00:00:00", "2024-01-01T00:00:00.Z", ""]
        {
            assert_eq!(rfc3339(bad), None, "{bad}");
        }
    }
}
