//! JSON as Envoy prints it: one blank more for each level, written piece by piece.

use std::fmt;

use serde_json::Value;

/// Prints a value without a line break at its end.
pub struct Pretty<'a>(pub &'a Value);

impl fmt::Display for Pretty<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_pretty(self.0, 0, f)
    }
}

/// Writes a value that stands `depth` levels deep; its first line is not indented.
pub fn write_pretty(value: &Value, depth: usize, out: &mut dyn fmt::Write) -> fmt::Result {
    match value {
        Value::Array(items) if !items.is_empty() => {
            out.write_char('[')?;
            for (at, item) in items.iter().enumerate() {
                begin(at, depth + 1, out)?;
                write_pretty(item, depth + 1, out)?;
            }
            end(depth, out)?;
            out.write_char(']')
        }
        Value::Object(members) if !members.is_empty() => {
            out.write_char('{')?;
            for (at, (name, member)) in members.iter().enumerate() {
                begin(at, depth + 1, out)?;
                write_text(name, out)?;
                out.write_str(": ")?;
                write_pretty(member, depth + 1, out)?;
            }
            end(depth, out)?;
            out.write_char('}')
        }
        Value::String(text) => write_text(text, out),
        scalar => write!(out, "{scalar}"),
    }
}

/// A JSON string, quotes included.
pub fn write_text(text: &str, out: &mut dyn fmt::Write) -> fmt::Result {
    out.write_char('"')?;
    let mut plain = 0;
    for (at, c) in text.char_indices() {
        let escaped = match c {
            '"' => "\\\"",
            '\\' => "\\\\",
            '\n' => "\\n",
            '\r' => "\\r",
            '\t' => "\\t",
            // As protobuf's JSON has them, so that a value is harmless where HTML is expected.
            '<' | '>' | '\u{0}'..='\u{1f}' | '\u{7f}' => "",
            _ => continue,
        };
        out.write_str(&text[plain..at])?;
        match escaped {
            "" => write!(out, "\\u{:04x}", u32::from(c))?,
            escaped => out.write_str(escaped)?,
        }
        plain = at + c.len_utf8();
    }
    out.write_str(&text[plain..])?;
    out.write_char('"')
}

fn begin(at: usize, depth: usize, out: &mut dyn fmt::Write) -> fmt::Result {
    out.write_str(if at == 0 { "\n" } else { ",\n" })?;
    indent(depth, out)
}

fn end(depth: usize, out: &mut dyn fmt::Write) -> fmt::Result {
    out.write_char('\n')?;
    indent(depth, out)
}

fn indent(depth: usize, out: &mut dyn fmt::Write) -> fmt::Result {
    (0..depth).try_for_each(|_| out.write_char(' '))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_indented_by_one_blank() {
        let value = serde_json::json!({"a": {"b": [1, "x"], "c": {}, "d": [], "e": null}});
        let text = "{\n \"a\": {\n  \"b\": [\n   1,\n   \"x\"\n  ],\n  \"c\": {},\n  \"d\": [],\n  \"e\": null\n }\n}";
        assert_eq!(Pretty(&value).to_string(), text);
    }

    #[test]
    fn strings_come_back_from_a_parser_and_hold_no_markup() {
        let text = "a\"\\\n\r\t\u{1}\u{7f}<img>\u{20ac}";
        let mut out = String::new();
        write_text(text, &mut out).unwrap();
        assert_eq!(serde_json::from_str::<String>(&out).unwrap(), text);
        assert!(!out.contains('<'));
    }
}
