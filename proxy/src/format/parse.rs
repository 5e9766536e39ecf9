//! Format strings: literal text, `%%`, and `%NAME(parameters):max%`.

use super::operator::{Extensions, compile};
use super::{Command, Part};

pub(super) fn parts(text: &str, extensions: Extensions) -> Result<Box<[Part]>, String> {
    let mut parts = Vec::new();
    let mut literal = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        if !rest.starts_with('%') {
            let run = rest.find('%').unwrap_or(rest.len());
            literal.extend_from_slice(&rest.as_bytes()[..run]);
            at += run;
        } else if rest.starts_with("%%") {
            literal.push(b'%');
            at += 2;
        } else {
            let Some(found) = Written::at_start(rest) else {
                return Err(format!("Incorrect configuration: {text}. Couldn't find valid command at position {at}"));
            };
            if !literal.is_empty() {
                parts.push(Part::Literal(std::mem::take(&mut literal).into()));
            }
            let operator = compile(found.name, found.parameters, found.max_length, extensions)?;
            parts.push(Part::Command(Command { operator, max_length: found.max_length }));
            at += found.len;
        }
    }
    if !literal.is_empty() {
        parts.push(Part::Literal(literal.into()));
    }
    Ok(parts.into())
}

/// A command as it stands in the text.
struct Written<'a> {
    name: &'a str,
    parameters: &'a str,
    max_length: Option<usize>,
    len: usize,
}

impl<'a> Written<'a> {
    fn at_start(text: &'a str) -> Option<Self> {
        let after = text.strip_prefix('%')?;
        let name_len = after.find(|c: char| !matches!(c, 'A'..='Z' | '0'..='9' | '_'))?;
        if name_len == 0 {
            return None;
        }
        let name = &after[..name_len];
        let rest = &after[name_len..];
        let Some(inside) = rest.strip_prefix('(') else {
            let (max_length, tail) = ending(rest)?;
            return Some(Self { name, parameters: "", max_length, len: text.len() - tail.len() });
        };
        // The first `)` that ends a command ends it, so that parameters may hold others; they
        // may not hold a line break.
        let line = &inside[..inside.find('\n').unwrap_or(inside.len())];
        line.match_indices(')').find_map(|(close, _)| {
            let (max_length, tail) = ending(&inside[close + 1..])?;
            Some(Self { name, parameters: &inside[..close], max_length, len: text.len() - tail.len() })
        })
    }
}

/// `:max%` or `%`, and what follows it.
fn ending(text: &str) -> Option<(Option<usize>, &str)> {
    if let Some(tail) = text.strip_prefix('%') {
        return Some((None, tail));
    }
    let digits = text.strip_prefix(':')?;
    let (number, tail) = digits.split_once('%')?;
    if !number.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    Some((Some(number.parse().ok()?), tail))
}
