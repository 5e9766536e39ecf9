//! Tree to encoded message, by the protobuf JSON mapping as Envoy's reader takes it. There is no message in memory in
//! between: the bytes are the product, the checks walk over them, and typed messages are decoded one at a time by who
//! needs them.

mod text;
mod wellknown;

use prost::encoding::{WireType, encode_key, encode_varint};

use crate::diag::{About, Finding, Findings, Path, Severity, nearest};
use crate::read::{Kind as NodeKind, Node};
use crate::shape::{Field, FieldKind, Form, Repeat, Shape};
use crate::unknown::UnknownFields;
use crate::wire::put_with;

/// Where elements of a list go that must not stay in their parent: (field's full name, index, node).
pub(crate) trait Cut {
    /// True: taken.
    fn take(&mut self, field: &Field, index: usize, node: Node<'_>) -> bool;
}

/// Nothing is cut.
pub(crate) struct Whole;

impl Cut for Whole {
    fn take(&mut self, _: &Field, _: usize, _: Node<'_>) -> bool {
        false
    }
}

pub(crate) struct Encoder<'e> {
    pub(crate) findings: &'e mut Findings,
    pub(crate) unknown: UnknownFields,
    /// Unknown fields passed over, where they are not errors.
    pub(crate) unknown_seen: u64,
    pub(crate) cut: &'e mut dyn Cut,
    /// Of equal keys the last one counts, as in YAML; JSON has protobuf join what they say.
    pub(crate) last_key_wins: bool,
}

/// Whether a value was there (not null).
type Written = bool;

impl Encoder<'_> {
    pub(crate) fn error(&mut self, node: Node<'_>, path: &Path<'_>, text: impl Into<String>) {
        self.tell(Severity::Error, About::Reading, node, path, text.into());
    }

    fn tell(&mut self, severity: Severity, about: About, node: Node<'_>, path: &Path<'_>, text: String) {
        let (line, column) = node.position();
        let found = Finding::new(severity, about, path.to_string(), text);
        self.findings.push(Finding { line, column, ..found });
    }

    /// Appends the fields of a message.
    pub(crate) fn message(&mut self, node: Node<'_>, shape: &'static Shape, path: &Path<'_>, out: &mut Vec<u8>) {
        match shape.form {
            Form::Object => self.object(node, shape, path, out),
            _ => self.well_known(node, shape, path, out),
        }
    }

    pub(crate) fn object(&mut self, node: Node<'_>, shape: &'static Shape, path: &Path<'_>, out: &mut Vec<u8>) {
        if node.kind() != NodeKind::Map {
            return self.error(node, path, format!("expected an object ({}), found {}", shape.name(), node.describe()));
        }
        self.fields(node, shape, path, "", out);
    }

    /// The fields of an object; `except` is a key that is not one (`@type`).
    fn fields(&mut self, node: Node<'_>, shape: &'static Shape, path: &Path<'_>, except: &str, out: &mut Vec<u8>) {
        let mut seen = [0u64; 4];
        let mut members: Vec<(u16, usize)> = Vec::new();
        let repeated = self.repeated_keys(node, shape);
        for (at, (key, value)) in node.entries().enumerate() {
            if !except.is_empty() && key.text() == except {
                continue;
            }
            let Some(index) = shape.field_named(key.text()) else {
                self.unknown_field(key, shape, path);
                continue;
            };
            let field = &shape.fields[index];
            let here = Path::Field(path, field.name());
            let (word, bit) = (index / 64 % 4, 1u64 << (index % 64));
            if seen[word] & bit != 0 {
                let text = "is given more than once: the last one counts".to_owned();
                self.tell(Severity::Warning, About::Other, key, &here, text);
            }
            seen[word] |= bit;
            if repeated && self.last_key_wins && same_key_later(node, at, key.text()) {
                continue;
            }
            if value.kind() != NodeKind::Null && !self.alternative(field, index, key, shape, &here, &mut members) {
                continue;
            }
            self.field(field, value, &here, repeated, out);
        }
    }

    /// Notes a member of a oneof; false if another one is set already.
    fn alternative(
        &mut self,
        field: &Field,
        index: usize,
        key: Node<'_>,
        shape: &Shape,
        path: &Path<'_>,
        members: &mut Vec<(u16, usize)>,
    ) -> bool {
        let Some(oneof) = field.oneof else { return true };
        let Some((_, other)) = members.iter().find(|(o, _)| *o == oneof) else {
            members.push((oneof, index));
            return true;
        };
        let (name, other) = (shape.oneofs[usize::from(oneof)].name(), shape.fields[*other].name());
        let text = if other == field.name() {
            format!("`{other}` is given twice (oneof {name})")
        } else {
            format!("`{}` and `{other}` are alternatives (oneof {name})", field.name())
        };
        self.error(key, path, text);
        false
    }

    /// Whether any field is given twice (also once in snake and once in camel case).
    fn repeated_keys(&self, node: Node<'_>, shape: &Shape) -> bool {
        let mut seen = [0u64; 4];
        node.entries().filter_map(|(key, _)| shape.field_named(key.text())).any(|index| {
            let (word, bit) = (index / 64 % 4, 1u64 << (index % 64));
            let before = seen[word];
            seen[word] |= bit;
            before & bit != 0
        })
    }

    fn unknown_field(&mut self, key: Node<'_>, shape: &Shape, path: &Path<'_>) {
        self.unknown_seen += 1;
        let severity = match self.unknown {
            UnknownFields::Refuse => Severity::Error,
            UnknownFields::Warn => Severity::Warning,
            UnknownFields::Ignore => return,
        };
        let name: String = key.text().chars().take(80).collect();
        let mut text = format!("unknown field `{name}` in {}", shape.name());
        if name == "<<" {
            text.push_str(": merge keys are not supported");
        } else if let Some(near) = nearest(&name, shape.field_names()) {
            text.push_str(&format!(", did you mean `{near}`?"));
        }
        self.tell(severity, About::Reading, key, path, text);
    }

    /// `again`: the field may be given more than once, and then a default must overwrite what came before.
    fn field(&mut self, field: &Field, node: Node<'_>, path: &Path<'_>, again: bool, out: &mut Vec<u8>) {
        match field.repeat {
            Repeat::One => {
                self.single(field, node, path, !field.presence && !again, out);
            }
            Repeat::List => {
                let mut count = 0;
                self.list(field, node, path, &mut count, out);
            }
            Repeat::Map => self.map(field, node, path, out),
        }
    }

    /// Envoy takes a single value for a list of one, and flattens a list within a list.
    fn list(&mut self, field: &Field, node: Node<'_>, path: &Path<'_>, count: &mut usize, out: &mut Vec<u8>) {
        if node.kind() == NodeKind::List && !matches!(field.message().map(|m| m.form), Some(Form::ListValue)) {
            for item in node.items() {
                if item.kind() == NodeKind::List && !matches!(field.message().map(|m| m.form), Some(Form::Value)) {
                    self.list(field, item, path, count, out);
                } else {
                    self.item(field, item, path, count, out);
                }
            }
        } else if node.kind() != NodeKind::Null {
            self.item(field, node, path, count, out);
        }
    }

    fn item(&mut self, field: &Field, node: Node<'_>, path: &Path<'_>, count: &mut usize, out: &mut Vec<u8>) {
        let index = *count;
        *count += 1;
        if !self.cut.take(field, index, node) && !self.single(field, node, &Path::Index(path, index), false, out) {
            // Null or unreadable: a default keeps the count and the places of the others.
            match &field.kind {
                FieldKind::Message(_) | FieldKind::String | FieldKind::Bytes => put_with(out, field.number, |_| ()),
                kind => {
                    encode_key(field.number, kind.wire_type(), out);
                    out.extend(std::iter::repeat_n(0, size_of_zero(kind.wire_type())));
                }
            }
        }
    }

    fn map(&mut self, field: &Field, node: Node<'_>, path: &Path<'_>, out: &mut Vec<u8>) {
        let Some(entry) = field.message() else { return };
        if node.kind() == NodeKind::Null {
            return;
        }
        if node.kind() != NodeKind::Map {
            return self.error(node, path, format!("expected an object, found {}", node.describe()));
        }
        let (Some(key_field), Some(value_field)) = (entry.fields.first(), entry.fields.get(1)) else { return };
        for (key, value) in node.entries() {
            let here = Path::Key(path, key.text());
            put_with(out, field.number, |out| {
                self.single(key_field, key, &here, true, out);
                self.single(value_field, value, &here, true, out);
            });
        }
    }

    /// One value with its tag. A default is not written where nobody could tell it from unset.
    fn single(&mut self, field: &Field, node: Node<'_>, path: &Path<'_>, skip: bool, out: &mut Vec<u8>) -> Written {
        if let Some(shape) = field.message() {
            if node.kind() == NodeKind::Null && shape.form != Form::Value {
                return false;
            }
            put_with(out, field.number, |out| self.message(node, shape, path, out));
            return true;
        }
        if node.kind() == NodeKind::Null {
            return false;
        }
        match text::scalar(&field.kind, node) {
            Ok(value) => {
                if !(skip && value.is_default()) {
                    value.put(field.number, out);
                }
                true
            }
            Err(text) => {
                self.error(node, path, text);
                false
            }
        }
    }
}

fn same_key_later(node: Node<'_>, at: usize, key: &str) -> bool {
    node.entries().skip(at + 1).any(|(other, _)| other.text() == key)
}

/// The size of a number's zero on the wire.
fn size_of_zero(wire_type: WireType) -> usize {
    match wire_type {
        WireType::SixtyFourBit => 8,
        WireType::ThirtyTwoBit => 4,
        _ => 1,
    }
}

/// A scalar, read.
#[derive(Debug, PartialEq)]
pub(crate) enum Scalar<'t> {
    Varint(u64),
    Fixed64(u64),
    Fixed32(u32),
    Text(&'t str),
    Bytes(Vec<u8>),
}

impl Scalar<'_> {
    fn is_default(&self) -> bool {
        match self {
            Self::Varint(n) | Self::Fixed64(n) => *n == 0,
            Self::Fixed32(n) => *n == 0,
            Self::Text(text) => text.is_empty(),
            Self::Bytes(bytes) => bytes.is_empty(),
        }
    }

    pub(crate) fn put(&self, number: u32, out: &mut Vec<u8>) {
        match self {
            Self::Varint(n) => {
                encode_key(number, WireType::Varint, out);
                encode_varint(*n, out);
            }
            Self::Fixed64(n) => {
                encode_key(number, WireType::SixtyFourBit, out);
                out.extend_from_slice(&n.to_le_bytes());
            }
            Self::Fixed32(n) => {
                encode_key(number, WireType::ThirtyTwoBit, out);
                out.extend_from_slice(&n.to_le_bytes());
            }
            Self::Text(text) => crate::wire::put(out, number, text.as_bytes()),
            Self::Bytes(bytes) => crate::wire::put(out, number, bytes),
        }
    }
}

#[cfg(test)]
mod tests;
