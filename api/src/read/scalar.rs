//! How Envoy types a plain YAML scalar before it knows the field: null, YAML 1.1 booleans, integers with `0x` and
//! leading-zero octal; everything else, floats too, stays text. All of it was seen on the real reader.

use std::borrow::Cow;

use super::Kind;

pub(super) fn typed(text: &str) -> (Kind, Cow<'_, str>) {
    if matches!(text, "" | "~" | "null" | "Null" | "NULL") {
        return (Kind::Null, Cow::Borrowed(text));
    }
    if let Some(value) = boolean(text) {
        return (if value { Kind::True } else { Kind::False }, Cow::Borrowed(text));
    }
    match integer(text) {
        // Small ones become numbers, larger ones text: both are read back by whoever knows the field.
        Some(n) if i32::try_from(n).is_ok() => (Kind::Number, number(text, n)),
        Some(n) => (Kind::Text, number(text, n)),
        None => (Kind::Text, Cow::Borrowed(text)),
    }
}

fn number(text: &str, n: i64) -> Cow<'_, str> {
    let as_written = text.bytes().all(|b| b.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    if as_written { Cow::Borrowed(text) } else { Cow::Owned(n.to_string()) }
}

/// `yes`, `Yes` and `YES`, but not `yEs`.
fn boolean(text: &str) -> Option<bool> {
    if text.len() > 5 {
        return None;
    }
    let rest = text.get(1..)?;
    let flexible = text.bytes().all(|b| b.is_ascii_uppercase()) || rest.bytes().all(|b| b.is_ascii_lowercase());
    if !flexible {
        return None;
    }
    match text.to_ascii_lowercase().as_str() {
        "y" | "yes" | "true" | "on" => Some(true),
        "n" | "no" | "false" | "off" => Some(false),
        _ => None,
    }
}

fn integer(text: &str) -> Option<i64> {
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let (radix, digits) = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => (16, &digits[2..]),
        [b'0', _, ..] => (8, &digits[1..]),
        _ => (10, digits),
    };
    if !digits.bytes().all(|b| b.is_ascii_alphanumeric()) {
        return None;
    }
    let magnitude = i128::from_str_radix(digits, radix).ok()?;
    i64::try_from(if negative { -magnitude } else { magnitude }).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_scalars_are_typed_as_envoy_types_them() {
        for (text, kind, value) in [
            ("12", Kind::Number, "12"),
            ("0x10", Kind::Number, "16"),
            ("012", Kind::Number, "10"),
            ("+5", Kind::Number, "5"),
            ("-5", Kind::Number, "-5"),
            ("0", Kind::Number, "0"),
            ("09", Kind::Text, "09"),
            ("0o7", Kind::Text, "0o7"),
            ("1_0", Kind::Text, "1_0"),
            ("1.5", Kind::Text, "1.5"),
            ("99999999999", Kind::Text, "99999999999"),
            ("12345678901234567890123", Kind::Text, "12345678901234567890123"),
            ("yes", Kind::True, "yes"),
            ("TRUE", Kind::True, "TRUE"),
            ("tRUE", Kind::Text, "tRUE"),
            ("n", Kind::False, "n"),
            ("nO", Kind::Text, "nO"),
            ("~", Kind::Null, "~"),
            ("Null", Kind::Null, "Null"),
            ("nULL", Kind::Text, "nULL"),
            (".inf", Kind::Text, ".inf"),
            ("-", Kind::Text, "-"),
            ("0x", Kind::Text, "0x"),
        ] {
            assert_eq!(typed(text), (kind, Cow::Borrowed(value)), "{text}");
        }
    }
}
