//! Structured metadata as JSON: keys sorted, numbers in the shorter of the plain and the
//! scientific form, as Envoy prints them.

use nuncio_api::pb::google::protobuf::{ListValue, Struct, Value, value::Kind};
use nuncio_core::http::header_map::decimal;

use super::escape;

/// Deeper values print as null: configuration cannot be so deep, a filter's metadata might.
const MAX_DEPTH: usize = 100;

pub(super) fn append(value: &Value, out: &mut Vec<u8>) {
    append_at(value, 0, out);
}

pub(super) fn append_struct(fields: &Struct, out: &mut Vec<u8>) {
    struct_at(fields, 0, out);
}

pub(super) fn append_string(text: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    let start = out.len();
    out.extend_from_slice(text);
    escape::json_string(out, start);
    out.push(b'"');
}

fn append_at(value: &Value, depth: usize, out: &mut Vec<u8>) {
    match &value.kind {
        Some(Kind::NumberValue(number)) => append_number(*number, out),
        Some(Kind::BoolValue(flag)) => out.extend_from_slice(if *flag { b"true" } else { b"false" }),
        Some(Kind::StringValue(text)) => append_string(text.as_bytes(), out),
        Some(Kind::StructValue(fields)) if depth < MAX_DEPTH => struct_at(fields, depth, out),
        Some(Kind::ListValue(list)) if depth < MAX_DEPTH => list_at(list, depth, out),
        _ => out.extend_from_slice(b"null"),
    }
}

fn list_at(list: &ListValue, depth: usize, out: &mut Vec<u8>) {
    out.push(b'[');
    for (i, value) in list.values.iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        append_at(value, depth + 1, out);
    }
    out.push(b']');
}

fn struct_at(fields: &Struct, depth: usize, out: &mut Vec<u8>) {
    out.push(b'{');
    // The map is unordered. Structures in logs have a handful of keys: the next one is searched
    // each time, which needs no memory.
    let mut last: Option<&String> = None;
    while let Some((key, value)) =
        fields.fields.iter().filter(|(key, _)| last.is_none_or(|last| *key > last)).min_by_key(|(key, _)| *key)
    {
        if last.is_some() {
            out.push(b',');
        }
        append_string(key.as_bytes(), out);
        out.push(b':');
        append_at(value, depth + 1, out);
        last = Some(key);
    }
    out.push(b'}');
}

/// The shortest digits that read back as `number`, plain unless `1e+05` is shorter.
pub(super) fn append_number(number: f64, out: &mut Vec<u8>) {
    use std::io::Write;
    if !number.is_finite() {
        return out.extend_from_slice(b"null");
    }
    if number.is_sign_negative() {
        out.push(b'-');
    }
    let number = number.abs();
    // d.ddde±x: at most 17 digits.
    let mut buffer = [0u8; 32];
    let mut rest = &mut buffer[..];
    if write!(rest, "{number:e}").is_err() {
        return;
    }
    let left = rest.len();
    let text = &buffer[..buffer.len() - left];
    let Some(at) = text.iter().position(|b| *b == b'e') else { return };
    let (mantissa, exponent) = (&text[..at], &text[at + 1..]);
    let exponent: i32 = std::str::from_utf8(exponent).ok().and_then(|e| e.parse().ok()).unwrap_or(0);
    let digits = mantissa.len() as i32 - i32::from(mantissa.len() > 1);
    let exponent_len = if exponent.abs() >= 100 { 3 } else { 2 };
    let scientific = mantissa.len() as i32 + 2 + exponent_len;
    let plain = match exponent {
        e if e < 0 => 1 - e + digits,
        e if e + 1 >= digits => e + 1,
        _ => digits + 1,
    };
    if scientific < plain {
        out.extend_from_slice(mantissa);
        out.extend_from_slice(if exponent < 0 { b"e-" } else { b"e+" });
        if exponent.abs() < 10 {
            out.push(b'0');
        }
        out.extend_from_slice(decimal(u64::from(exponent.unsigned_abs()), &mut [0; 20]));
    } else if exponent + 1 >= digits {
        // Beyond 2^53 the exact value, not zeros: 2^80 at most, or the other form were shorter.
        let _ = write!(out, "{}", number as u128);
    } else {
        let _ = write!(out, "{number}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(n: f64) -> String {
        let mut out = Vec::new();
        append_number(n, &mut out);
        String::from_utf8(out).unwrap()
    }

    /// Pairs that Envoy 1.40 printed.
    #[test]
    fn numbers_have_the_shorter_form() {
        for (n, text) in [
            (0.0, "0"),
            (-0.0, "-0"),
            (1.0, "1"),
            (1000.0, "1000"),
            (100_000.0, "1e+05"),
            (-100_000.0, "-1e+05"),
            (123_456_789.0, "123456789"),
            (12_345_678_901.0, "12345678901"),
            (0.1, "0.1"),
            (0.0001, "1e-04"),
            (1e-7, "1e-07"),
            (1.5, "1.5"),
            (2.14159265358979, "2.14159265358979"),
            (1e15, "1e+15"),
            (9_007_199_254_740_992.0, "9007199254740992"),
            (123_456_789_012_345_680_000.0, "123456789012345683968"),
            (1e30, "1e+30"),
            (2.5e300, "2.5e+300"),
        ] {
            assert_eq!(number(n), text);
        }
        assert_eq!(number(f64::NAN), "null");
    }

    #[test]
    fn structures_are_sorted_json() {
        let text = |t: &str| Value { kind: Some(Kind::StringValue(t.to_owned())) };
        let fields = Struct {
            fields: [
                ("z".to_owned(), text("a\"b")),
                ("a\n".to_owned(), Value { kind: Some(Kind::NullValue(0)) }),
                (
                    "m".to_owned(),
                    Value {
                        kind: Some(Kind::ListValue(ListValue {
                            values: vec![text("x"), Value { kind: Some(Kind::BoolValue(true)) }],
                        })),
                    },
                ),
            ]
            .into_iter()
            .collect(),
        };
        let mut out = Vec::new();
        append_struct(&fields, &mut out);
        assert_eq!(String::from_utf8(out).unwrap(), r#"{"a\n":null,"m":["x",true],"z":"a\"b"}"#);
    }
}
