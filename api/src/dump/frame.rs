//! The frame of a JSON text: brackets, commas, indentation, quoting.

use std::fmt::Write as _;

use serde_json::Value;

use super::{JsonWriter, number};

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
