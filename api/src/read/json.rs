//! JSON text to tree, keeping line and column. As lenient as Envoy's own reader: single quotes, keys without quotes, a
//! comma before the closing bracket, raw control characters in strings; no comments, nothing after the object.

use std::borrow::Cow;
use std::iter::Peekable;
use std::str::CharIndices;

use super::tree::{Builder, Kind, Tree};
use super::{ReadLimits, SyntaxError};
use crate::pb::google::protobuf::{Struct, Value, value};

pub(super) fn read(text: &str, limits: &ReadLimits) -> Result<Tree, SyntaxError> {
    let mut reader =
        Reader { text, chars: text.char_indices().peekable(), line: 1, column: 1, builder: Builder::new(limits) };
    reader.space();
    if reader.chars.peek().is_none() {
        return Err(reader.error("the file is empty"));
    }
    reader.value()?;
    reader.space();
    if reader.chars.peek().is_some() {
        return Err(reader.error("something follows the end of the object"));
    }
    Ok(reader.builder.finish())
}

struct Reader<'t> {
    text: &'t str,
    chars: Peekable<CharIndices<'t>>,
    line: u32,
    column: u32,
    builder: Builder,
}

impl<'t> Reader<'t> {
    fn error(&mut self, text: &str) -> SyntaxError {
        let found = match self.chars.peek() {
            Some((_, c)) => format!(", found `{}`", c.escape_debug()),
            None => ", but the file ends here".to_owned(),
        };
        let found = if text.starts_with("expected") { found } else { String::new() };
        SyntaxError { line: self.line, column: self.column, text: format!("JSON: {text}{found}") }
    }

    fn peek(&mut self) -> Option<char> {
        self.chars.peek().map(|(_, c)| *c)
    }

    fn next(&mut self) -> Option<char> {
        let (_, c) = self.chars.next()?;
        if c == '\n' {
            self.line += 1;
            self.column = 1;
        } else {
            self.column += 1;
        }
        Some(c)
    }

    fn offset(&mut self) -> usize {
        self.chars.peek().map_or(self.text.len(), |(at, _)| *at)
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(' ' | '\t' | '\r' | '\n')) {
            self.next();
        }
    }

    fn accept(&mut self, c: char) -> bool {
        let there = self.peek() == Some(c);
        if there {
            self.next();
        }
        there
    }

    fn value(&mut self) -> Result<(), SyntaxError> {
        self.space();
        let (line, column) = (self.line, self.column);
        match self.peek() {
            Some('{') => self.object(line, column),
            Some('[') => self.list(line, column),
            Some(quote @ ('"' | '\'')) => {
                let text = self.string(quote)?;
                self.builder.scalar(Kind::Text, &text, line, column)
            }
            Some('-' | '0'..='9') => {
                let text = self.number()?;
                self.builder.scalar(Kind::Number, text, line, column)
            }
            Some('a'..='z') => {
                let kind = match self.word() {
                    "true" => Kind::True,
                    "false" => Kind::False,
                    "null" => Kind::Null,
                    other => {
                        let text = format!("JSON: `{other}` is not a value: strings need quotes");
                        return Err(SyntaxError { line, column, text });
                    }
                };
                let text = if kind == Kind::True {
                    "true"
                } else if kind == Kind::False {
                    "false"
                } else {
                    "null"
                };
                self.builder.scalar(kind, text, line, column)
            }
            _ => Err(self.error("expected a value")),
        }
    }

    fn object(&mut self, line: u32, column: u32) -> Result<(), SyntaxError> {
        self.builder.open(Kind::Map, line, column)?;
        self.next();
        self.space();
        if !self.accept('}') {
            loop {
                self.key()?;
                self.space();
                if !self.accept(':') {
                    return Err(self.error("expected `:` after the key"));
                }
                self.value()?;
                self.space();
                let comma = self.accept(',');
                self.space();
                if self.accept('}') {
                    break;
                }
                if !comma {
                    return Err(self.error("expected `,` or `}`"));
                }
            }
        }
        self.builder.close();
        Ok(())
    }

    fn key(&mut self) -> Result<(), SyntaxError> {
        let (line, column) = (self.line, self.column);
        let key = match self.peek() {
            Some(quote @ ('"' | '\'')) => self.string(quote)?,
            Some('a'..='z' | 'A'..='Z' | '_' | '$') => Cow::Borrowed(self.word()),
            _ => return Err(self.error("expected a key")),
        };
        self.builder.scalar(Kind::Text, &key, line, column)
    }

    fn list(&mut self, line: u32, column: u32) -> Result<(), SyntaxError> {
        self.builder.open(Kind::List, line, column)?;
        self.next();
        self.space();
        if !self.accept(']') {
            loop {
                self.value()?;
                self.space();
                let comma = self.accept(',');
                self.space();
                if self.accept(']') {
                    break;
                }
                if !comma {
                    return Err(self.error("expected `,` or `]`"));
                }
            }
        }
        self.builder.close();
        Ok(())
    }

    fn word(&mut self) -> &'t str {
        let start = self.offset();
        while self.peek().is_some_and(|c| c.is_ascii_alphanumeric() || c == '_') {
            self.next();
        }
        let end = self.offset();
        &self.text[start..end]
    }

    fn digits(&mut self) -> usize {
        let mut count = 0;
        while self.peek().is_some_and(|c| c.is_ascii_digit()) {
            self.next();
            count += 1;
        }
        count
    }

    fn number(&mut self) -> Result<&'t str, SyntaxError> {
        let start = self.offset();
        self.accept('-');
        let zero = self.peek() == Some('0');
        let whole = self.digits();
        if whole == 0 {
            return Err(self.error("expected a digit"));
        }
        if zero && whole > 1 {
            return Err(self.error("a number cannot begin with an extra 0"));
        }
        if self.accept('.') && self.digits() == 0 {
            return Err(self.error("expected a digit"));
        }
        if self.accept('e') || self.accept('E') {
            let _ = self.accept('+') || self.accept('-');
            if self.digits() == 0 {
                return Err(self.error("expected a digit"));
            }
        }
        let end = self.offset();
        Ok(&self.text[start..end])
    }

    fn string(&mut self, quote: char) -> Result<Cow<'t, str>, SyntaxError> {
        self.next();
        let start = self.offset();
        let mut owned: Option<String> = None;
        loop {
            let at = self.offset();
            let Some(c) = self.next() else { return Err(self.error("a string does not end")) };
            if c == quote {
                return Ok(owned.map_or(Cow::Borrowed(&self.text[start..at]), Cow::Owned));
            }
            if c == '\\' {
                let mut text = owned.take().unwrap_or_else(|| self.text[start..at].to_owned());
                text.push(self.escape()?);
                owned = Some(text);
            } else if let Some(text) = &mut owned {
                text.push(c);
            }
        }
    }

    fn escape(&mut self) -> Result<char, SyntaxError> {
        let Some(c) = self.next() else { return Err(self.error("a string does not end")) };
        Ok(match c {
            'n' => '\n',
            't' => '\t',
            'r' => '\r',
            'b' => '\u{8}',
            'f' => '\u{c}',
            '"' | '\'' | '\\' | '/' => c,
            'u' => {
                let mut code = u32::from(self.hex()?);
                if (0xd800..0xdc00).contains(&code) && self.accept('\\') && self.accept('u') {
                    let low = u32::from(self.hex()?);
                    if (0xdc00..0xe000).contains(&low) {
                        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
                    }
                }
                let Some(c) = char::from_u32(code) else { return Err(self.error("half of a surrogate pair")) };
                c
            }
            _ => return Err(self.error("no such escape in a string")),
        })
    }

    fn hex(&mut self) -> Result<u16, SyntaxError> {
        let mut value = 0;
        for _ in 0..4 {
            let Some(digit) = self.peek().and_then(|c| c.to_digit(16)) else {
                return Err(self.error("expected four hexadecimal digits"));
            };
            self.next();
            value = value << 4 | digit as u16;
        }
        Ok(value)
    }
}

/// A tree of a `google.protobuf.Struct`, for messages that travel as one (`TypedStruct`). It has no positions.
pub(crate) fn tree_of_struct(fields: &Struct, limits: &ReadLimits) -> Result<Tree, String> {
    let mut builder = Builder::new(limits);
    build_struct(&mut builder, fields).map_err(|e| e.text)?;
    Ok(builder.finish())
}

fn build_struct(builder: &mut Builder, fields: &Struct) -> Result<(), SyntaxError> {
    builder.open(Kind::Map, 0, 0)?;
    for (key, value) in &fields.fields {
        builder.scalar(Kind::Text, key, 0, 0)?;
        build_value(builder, value)?;
    }
    builder.close();
    Ok(())
}

fn build_value(builder: &mut Builder, value: &Value) -> Result<(), SyntaxError> {
    match &value.kind {
        None | Some(value::Kind::NullValue(_)) => builder.scalar(Kind::Null, "null", 0, 0),
        Some(value::Kind::BoolValue(true)) => builder.scalar(Kind::True, "true", 0, 0),
        Some(value::Kind::BoolValue(false)) => builder.scalar(Kind::False, "false", 0, 0),
        Some(value::Kind::NumberValue(n)) => builder.scalar(Kind::Number, &n.to_string(), 0, 0),
        Some(value::Kind::StringValue(text)) => builder.scalar(Kind::Text, text, 0, 0),
        Some(value::Kind::StructValue(inner)) => build_struct(builder, inner),
        Some(value::Kind::ListValue(list)) => {
            builder.open(Kind::List, 0, 0)?;
            for item in &list.values {
                build_value(builder, item)?;
            }
            builder.close();
            Ok(())
        }
    }
}
