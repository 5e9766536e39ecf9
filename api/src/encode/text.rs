//! One scalar of a text to one scalar of protobuf, as lenient as Envoy's reader is seen to be: numbers in quotes, enum
//! names in any case, booleans as words. What it refuses is refused here.

use super::Scalar;
use crate::diag::nearest;
use crate::read::{Kind as NodeKind, Node};
use crate::shape::{EnumShape, FieldKind};

/// The value, or what is wrong with it.
pub(super) fn scalar<'t>(kind: &FieldKind, node: Node<'t>) -> Result<Scalar<'t>, String> {
    let zigzag = |n: i64| (n << 1 ^ n >> 63) as u64;
    match kind {
        FieldKind::Bool => boolean(node).map(|b| Scalar::Varint(u64::from(b))),
        FieldKind::Int32 => {
            integer(node, "an int32", i32::MIN.into(), i32::MAX.into()).map(|n| Scalar::Varint(n as i64 as u64))
        }
        FieldKind::Int64 => {
            integer(node, "an int64", i64::MIN.into(), i64::MAX.into()).map(|n| Scalar::Varint(n as i64 as u64))
        }
        FieldKind::Uint32 => integer(node, "a uint32", 0, u32::MAX.into()).map(|n| Scalar::Varint(n as u64)),
        FieldKind::Uint64 => integer(node, "a uint64", 0, u64::MAX.into()).map(|n| Scalar::Varint(n as u64)),
        FieldKind::Sint32 => {
            integer(node, "an int32", i32::MIN.into(), i32::MAX.into()).map(|n| Scalar::Varint(zigzag(n as i64)))
        }
        FieldKind::Sint64 => {
            integer(node, "an int64", i64::MIN.into(), i64::MAX.into()).map(|n| Scalar::Varint(zigzag(n as i64)))
        }
        FieldKind::Fixed32 => integer(node, "a uint32", 0, u32::MAX.into()).map(|n| Scalar::Fixed32(n as u32)),
        FieldKind::Sfixed32 => {
            integer(node, "an int32", i32::MIN.into(), i32::MAX.into()).map(|n| Scalar::Fixed32(n as i32 as u32))
        }
        FieldKind::Fixed64 => integer(node, "a uint64", 0, u64::MAX.into()).map(|n| Scalar::Fixed64(n as u64)),
        FieldKind::Sfixed64 => {
            integer(node, "an int64", i64::MIN.into(), i64::MAX.into()).map(|n| Scalar::Fixed64(n as i64 as u64))
        }
        FieldKind::Float => float(node).and_then(|f| {
            if f.is_finite() && f.abs() > f64::from(f32::MAX) {
                return Err(format!("{} is out of the range of a float", node.describe()));
            }
            Ok(Scalar::Fixed32((f as f32).to_bits()))
        }),
        FieldKind::Double => float(node).map(|f| Scalar::Fixed64(f.to_bits())),
        FieldKind::String => match node.kind() {
            NodeKind::Text => Ok(Scalar::Text(node.text())),
            NodeKind::Number | NodeKind::True | NodeKind::False => {
                Err(format!("expected a string, found {}: put it in quotes", node.describe()))
            }
            _ => Err(format!("expected a string, found {}", node.describe())),
        },
        FieldKind::Bytes => match node.kind() {
            NodeKind::Text => base64(node.text())
                .map(Scalar::Bytes)
                .ok_or_else(|| format!("expected base64, found {}", node.describe())),
            _ => Err(format!("expected a string of base64, found {}", node.describe())),
        },
        FieldKind::Enum(of) => enumeration(of, node).map(|n| Scalar::Varint(i64::from(n) as u64)),
        FieldKind::Message(_) => Err("expected an object".to_owned()),
    }
}

fn boolean(node: Node<'_>) -> Result<bool, String> {
    let wrong = || Err(format!("expected a boolean, found {}", node.describe()));
    match node.kind() {
        NodeKind::True => Ok(true),
        NodeKind::False => Ok(false),
        NodeKind::Text => match node.text().to_ascii_lowercase().as_str() {
            "true" | "t" | "yes" | "y" | "1" => Ok(true),
            "false" | "f" | "no" | "n" | "0" => Ok(false),
            _ => wrong(),
        },
        _ => wrong(),
    }
}

fn integer(node: Node<'_>, what: &str, min: i128, max: i128) -> Result<i128, String> {
    if !matches!(node.kind(), NodeKind::Number | NodeKind::Text) {
        return Err(format!("expected {what}, found {}", node.describe()));
    }
    let text = node.text();
    let value = match text.strip_prefix('+').unwrap_or(text).parse::<i128>() {
        Ok(n) => n,
        Err(_) => match decimal(text) {
            Some(f) if f.fract() != 0.0 => {
                return Err(format!("expected {what}, found {}, which has a fraction", node.describe()));
            }
            // Beyond 2^100 no integer type is in range whatever the exact value.
            Some(f) if f.abs() < 1e30 => f as i128,
            Some(_) => i128::MAX,
            None => return Err(format!("expected {what}, found {}", node.describe())),
        },
    };
    if value < min || value > max {
        return Err(format!("{} is out of range: {what} is between {min} and {max}", node.describe()));
    }
    Ok(value)
}

fn float(node: Node<'_>) -> Result<f64, String> {
    let wrong = || Err(format!("expected a number, found {}", node.describe()));
    match node.kind() {
        NodeKind::Number | NodeKind::Text => {
            let text = node.text().trim();
            match decimal(text) {
                Some(f) => Ok(f),
                None => match text.trim_start_matches(['+', '-']).to_ascii_lowercase().as_str() {
                    "inf" | "infinity" if text.starts_with('-') => Ok(f64::NEG_INFINITY),
                    "inf" | "infinity" => Ok(f64::INFINITY),
                    "nan" => Ok(f64::NAN),
                    _ => wrong(),
                },
            }
        }
        _ => wrong(),
    }
}

/// A finite number, decimal or `0x`.
fn decimal(text: &str) -> Option<f64> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if let Some(hex) = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        let n = u64::from_str_radix(hex, 16).ok()? as f64;
        return Some(if text.starts_with('-') { -n } else { n });
    }
    if !digits.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return None;
    }
    text.parse::<f64>().ok().filter(|f| f.is_finite())
}

fn enumeration(of: &EnumShape, node: Node<'_>) -> Result<i32, String> {
    let text = node.text();
    match node.kind() {
        NodeKind::Number => integer(node, "an int32", i32::MIN.into(), i32::MAX.into()).map(|n| n as i32),
        NodeKind::Text => {
            if let Some(number) = of.number_of(text).or_else(|| of.number_of_any_case(text)) {
                return Ok(number);
            }
            text.parse::<i32>().map_err(|_| unknown_value(of, text))
        }
        _ => Err(format!("expected a value of {}, found {}", of.name(), node.describe())),
    }
}

fn unknown_value(of: &EnumShape, text: &str) -> String {
    let text: String = text.chars().take(60).collect();
    let mut sentence = format!("unknown value `{text}` for enum {}", of.name());
    if let Some(near) = nearest(&text, of.names()) {
        sentence.push_str(&format!(", did you mean `{near}`?"));
    }
    if of.names().len() <= 12 {
        sentence.push_str(&format!(" (one of {})", of.names().collect::<Vec<_>>().join(", ")));
    }
    sentence
}

/// Both alphabets, padded or not.
fn base64(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=');
    if digits.len() % 4 == 1 || text.len() - digits.len() > 2 {
        return None;
    }
    let mut out = Vec::with_capacity(digits.len() / 4 * 3 + 2);
    let (mut bits, mut have) = (0u32, 0);
    for byte in digits.bytes() {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' | b'-' => 62,
            b'/' | b'_' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        have += 6;
        if have >= 8 {
            have -= 8;
            out.push((bits >> have) as u8);
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_read_in_both_alphabets_padded_or_not() {
        assert_eq!(base64("YQ==").as_deref(), Some(&b"a"[..]));
        assert_eq!(base64("YQ").as_deref(), Some(&b"a"[..]));
        assert_eq!(base64("-_-_").as_deref(), base64("+/+/").as_deref());
        assert_eq!(base64("a*b"), None);
        assert_eq!(base64("YWJjZ"), None);
        assert_eq!(base64(""), Some(Vec::new()));
    }
}
