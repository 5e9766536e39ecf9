//! The pattern of a log line, in the language of `--log-format` (spdlog's).
//!
//! A pattern is read once into pieces. `%` and a letter is a field, optionally with a width between them (`%8l` is
//! right-aligned, `%-8l` left-aligned, `%=8l` centred); an unknown field is kept as text, as spdlog does.
//! Envoy's own `%_` and `%j` write the message with line breaks, or all that JSON forbids, as escapes.
//! `%t` is the thread's name, which says more than the number that Envoy has there.

use std::fmt::Write;
use std::time::Duration;

use super::Level;
use crate::calendar::Date;

/// What one line is made of.
pub(super) struct Line<'a> {
    pub(super) since_epoch: Duration,
    pub(super) thread: &'a str,
    pub(super) level: Level,
    pub(super) logger: &'a str,
    pub(super) file: &'a str,
    pub(super) line: u32,
    pub(super) module: &'a str,
    pub(super) message: &'a str,
    /// Each with a blank before it.
    pub(super) fields: &'a str,
}

pub(super) struct Pattern {
    pieces: Vec<Piece>,
    escaped: bool,
}

enum Piece {
    Text(String),
    Field { letter: char, pad: Pad, width: usize },
}

#[derive(Clone, Copy)]
enum Pad {
    Left,
    Right,
    Both,
}

/// No wider than this: spdlog's own limit.
const WIDEST: usize = 64;

// === impl Pattern ===

impl Pattern {
    pub(super) fn new(text: &str, escaped: bool) -> Pattern {
        let mut pieces = Vec::new();
        let mut plain = String::new();
        let mut rest = text;
        while let Some(at) = rest.find('%') {
            plain.push_str(&rest[..at]);
            let mut after = &rest[at + 1..];
            let pad = match after.chars().next() {
                Some('-') => Pad::Right,
                Some('=') => Pad::Both,
                _ => Pad::Left,
            };
            if !matches!(pad, Pad::Left) {
                after = &after[1..];
            }
            let digits = after.len() - after.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            let width = after[..digits].parse().unwrap_or(0).min(WIDEST);
            let letter = after[digits..].chars().next();
            let Some(letter) = letter else {
                plain.push('%');
                rest = &rest[at + 1..];
                continue;
            };
            rest = &after[digits + letter.len_utf8()..];
            match letter {
                '%' => plain.push('%'),
                // Colours, which a log in a file or a pipe does not have.
                '^' | '$' => {}
                _ => {
                    if !plain.is_empty() {
                        pieces.push(Piece::Text(std::mem::take(&mut plain)));
                    }
                    pieces.push(Piece::Field { letter, pad, width });
                }
            }
        }
        plain.push_str(rest);
        if !plain.is_empty() {
            pieces.push(Piece::Text(plain));
        }
        Pattern { pieces, escaped }
    }

    pub(super) fn render(&self, line: &Line<'_>, out: &mut String) {
        let date = Date::new(line.since_epoch);
        for piece in &self.pieces {
            match piece {
                Piece::Text(text) => out.push_str(text),
                Piece::Field { letter, pad, width } => {
                    let from = out.len();
                    // Writing to a String cannot fail.
                    let _ = self.field(*letter, line, &date, out);
                    align(out, from, *pad, *width);
                }
            }
        }
    }

    fn field(&self, letter: char, line: &Line<'_>, date: &Date, out: &mut String) -> std::fmt::Result {
        match letter {
            'v' => {
                for part in [line.message, line.fields] {
                    if self.escaped { escape(part, false, out) } else { out.push_str(part) }
                }
            }
            '_' => [line.message, line.fields].iter().for_each(|part| escape(part, false, out)),
            'j' => [line.message, line.fields].iter().for_each(|part| escape(part, true, out)),
            't' => out.push_str(line.thread),
            'P' => write!(out, "{}", std::process::id())?,
            'n' => out.push_str(line.logger),
            'l' => out.push_str(line.level.name()),
            'L' => out.push_str(&line.level.name()[..1].to_ascii_uppercase()),
            'g' => out.push_str(line.file),
            's' => out.push_str(line.file.rsplit('/').next().unwrap_or_default()),
            '#' => write!(out, "{}", line.line)?,
            '@' => write!(out, "{}:{}", line.file, line.line)?,
            '!' => out.push_str(line.module),
            _ => date.field(letter, out)?,
        }
        Ok(())
    }
}

/// Puts blanks around what was written from `from` on.
fn align(out: &mut String, from: usize, pad: Pad, width: usize) {
    let have = out[from..].chars().count();
    let Some(missing) = width.checked_sub(have).filter(|missing| *missing > 0) else { return };
    let before = match pad {
        Pad::Left => missing,
        Pad::Right => 0,
        Pad::Both => missing / 2,
    };
    out.insert_str(from, &" ".repeat(before));
    out.push_str(&" ".repeat(missing - before));
}

/// C-style escapes; with `json` also the quotes that would end a string.
fn escape(text: &str, json: bool, out: &mut String) {
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\'' if !json => out.push_str("\\'"),
            c if c.is_control() => {
                let _ =
                    if json { write!(out, "\\u{:04x}", u32::from(c)) } else { write!(out, "\\x{:02x}", u32::from(c)) };
            }
            c => out.push(c),
        }
    }
}
