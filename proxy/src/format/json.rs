//! Records as JSON objects: a `google.protobuf.Struct` whose strings are formats.
//!
//! A string that is one command keeps the command's type; keys are sorted; a value that is missing
//! is null, or with `omit_empty_values` is left out, as is an object with nothing in it.

use nuncio_api::pb::google::protobuf::{Struct, Value, value};
use nuncio_core::access_log::LogContext;
use nuncio_core::error::ConfigError;

use super::evaluate::Kind;
use super::operator::Extensions;
use super::{Command, Part, escape, parse, value as plain};

/// A compiled JSON format.
#[derive(Debug)]
pub struct JsonFormatter {
    root: Node,
    omit_empty: bool,
}

#[derive(Debug)]
enum Node {
    /// JSON that is the same in every record.
    Constant(Box<[u8]>),
    Null,
    Command(Command),
    /// Text and commands: always a string.
    Mixed(Box<[Part]>),
    /// Keys as JSON with their colon.
    Map(Box<[(Box<[u8]>, Node)]>),
    List(Box<[Node]>),
}

/// Far beyond any real format, and within what recursion can bear.
const MAX_DEPTH: usize = 100;

impl JsonFormatter {
    pub fn new(format: &Struct, omit_empty: bool, extensions: Extensions) -> Result<Self, ConfigError> {
        Ok(Self { root: map(format, extensions, 0)?, omit_empty })
    }

    /// Appends the object for one stream, and a line break.
    pub fn format(&self, context: &LogContext<'_>, out: &mut Vec<u8>) {
        if !self.append(&self.root, context, out) {
            out.extend_from_slice(b"{}");
        }
        out.push(b'\n');
    }

    /// Says whether there was a value; without one nothing is appended, but null unless such
    /// values are left out.
    fn append(&self, node: &Node, context: &LogContext<'_>, out: &mut Vec<u8>) -> bool {
        match node {
            Node::Constant(json) => out.extend_from_slice(json),
            Node::Null => return self.null(out),
            Node::Command(command) => return self.append_command(command, context, out),
            Node::Mixed(parts) => self.append_mixed(parts, context, out),
            Node::Map(entries) => {
                let start = out.len();
                out.push(b'{');
                let mut any = false;
                for (key, node) in entries {
                    let before = out.len();
                    if any {
                        out.push(b',');
                    }
                    out.extend_from_slice(key);
                    if self.append(node, context, out) { any = true } else { out.truncate(before) }
                }
                if !any && self.omit_empty {
                    out.truncate(start);
                    return false;
                }
                out.push(b'}');
            }
            Node::List(nodes) => {
                out.push(b'[');
                let mut any = false;
                for node in nodes {
                    let before = out.len();
                    if any {
                        out.push(b',');
                    }
                    if self.append(node, context, out) { any = true } else { out.truncate(before) }
                }
                out.push(b']');
            }
        }
        true
    }

    fn null(&self, out: &mut Vec<u8>) -> bool {
        if !self.omit_empty {
            out.extend_from_slice(b"null");
        }
        !self.omit_empty
    }

    fn append_command(&self, command: &Command, context: &LogContext<'_>, out: &mut Vec<u8>) -> bool {
        let start = out.len();
        out.push(b'"');
        match command.append_typed(context, out) {
            Kind::Missing | Kind::Blank => {
                out.truncate(start);
                return self.null(out);
            }
            Kind::Text => {
                escape::json_string(out, start + 1);
                out.push(b'"');
            }
            Kind::Number | Kind::Json => drop(out.remove(start)),
        }
        true
    }

    fn append_mixed(&self, parts: &[Part], context: &LogContext<'_>, out: &mut Vec<u8>) {
        out.push(b'"');
        for part in parts {
            let start = out.len();
            match part {
                Part::Literal(text) => out.extend_from_slice(text),
                Part::Command(command) => {
                    if command.append_text(context, out) == Kind::Missing && !self.omit_empty {
                        out.push(b'-');
                    }
                    escape::json_string(out, start);
                }
            }
        }
        out.push(b'"');
    }
}

fn map(format: &Struct, extensions: Extensions, depth: usize) -> Result<Node, ConfigError> {
    let mut entries: Vec<_> = format.fields.iter().collect();
    entries.sort_by_key(|(key, _)| *key);
    let compile = |(key, value): (&String, &Value)| {
        let mut json = Vec::new();
        plain::append_string(key.as_bytes(), &mut json);
        json.push(b':');
        Ok((json.into_boxed_slice(), node(value, extensions, depth).map_err(|e| e.within(key))?))
    };
    Ok(Node::Map(entries.into_iter().map(compile).collect::<Result<_, _>>()?))
}

fn node(value: &Value, extensions: Extensions, depth: usize) -> Result<Node, ConfigError> {
    if depth >= MAX_DEPTH {
        return Err(ConfigError::new("", format!("more than {MAX_DEPTH} levels")));
    }
    match &value.kind {
        None | Some(value::Kind::NullValue(_)) => Ok(Node::Null),
        Some(value::Kind::StringValue(text)) => string(text, extensions),
        Some(value::Kind::StructValue(fields)) => map(fields, extensions, depth + 1),
        Some(value::Kind::ListValue(list)) => {
            let compile =
                |(i, value)| node(value, extensions, depth + 1).map_err(|e: ConfigError| e.within(&format!("[{i}]")));
            Ok(Node::List(list.values.iter().enumerate().map(compile).collect::<Result<_, _>>()?))
        }
        Some(value::Kind::NumberValue(_) | value::Kind::BoolValue(_)) => {
            let mut json = Vec::new();
            plain::append(value, &mut json);
            Ok(Node::Constant(json.into()))
        }
    }
}

fn string(text: &str, extensions: Extensions) -> Result<Node, ConfigError> {
    let parts = parse::parts(text, extensions).map_err(|reason| ConfigError::new("", reason))?;
    let mut parts = parts.into_vec();
    if matches!(*parts, [Part::Command(_)])
        && let Some(Part::Command(command)) = parts.pop()
    {
        return Ok(Node::Command(command));
    }
    if let [] | [Part::Literal(_)] = *parts {
        let text = match parts.first() {
            Some(Part::Literal(text)) => text,
            _ => &Box::default(),
        };
        let mut json = Vec::new();
        plain::append_string(text, &mut json);
        return Ok(Node::Constant(json.into()));
    }
    for part in &mut parts {
        if let Part::Literal(text) = part {
            let mut escaped = std::mem::take(text).into_vec();
            escape::json_string(&mut escaped, 0);
            *text = escaped.into();
        }
    }
    Ok(Node::Mixed(parts.into()))
}
