//! A message type, compiled once from its descriptor for the two things done with it at every load: finding a field by
//! name or number, and knowing the rules of its annotations. Shapes refer to each other and live as long as the
//! process; there are at most as many as message types that were met. They own all that they say: no descriptor is
//! held, because one keeps the memory of all of them.

mod kind;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use prost::encoding::WireType;
use prost_reflect::{FieldDescriptor, MessageDescriptor};

use crate::rules::{self, FieldRules};
use crate::wire::{Wire, varint};

pub(crate) use kind::{EnumShape, FieldKind};

/// What stands in a text for a message: most are objects of their fields, the well-known ones have forms of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Object,
    Any,
    Duration,
    Timestamp,
    FieldMask,
    Struct,
    Value,
    ListValue,
    /// `google.protobuf.UInt32Value` and its like: the bare value.
    Wrapper,
}

pub(crate) struct Shape {
    name: Arc<str>,
    /// Length of the package in the name.
    package: usize,
    pub(crate) form: Form,
    /// By number.
    pub(crate) fields: Vec<Field>,
    pub(crate) oneofs: Vec<Oneof>,
    names: HashMap<Box<str>, u16>,
    /// The message's annotations are switched off.
    pub(crate) unchecked: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repeat {
    One,
    List,
    Map,
}

pub(crate) struct Field {
    name: Box<str>,
    /// Full name of the message that it is a field of.
    pub(crate) parent: Arc<str>,
    pub(crate) number: u32,
    pub(crate) kind: FieldKind,
    pub(crate) repeat: Repeat,
    /// Set and unset can be told apart (messages, members of a oneof, `optional`).
    pub(crate) presence: bool,
    pub(crate) oneof: Option<u16>,
    pub(crate) rules: Option<Box<FieldRules>>,
    pub(crate) deprecated: Deprecated,
    /// Holds a secret: not to be printed.
    pub(crate) sensitive: bool,
    message: OnceLock<&'static Shape>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deprecated {
    No,
    Warned,
    /// Refused unless runtime says otherwise.
    Refused,
}

pub(crate) struct Oneof {
    name: Box<str>,
    pub(crate) required: bool,
    pub(crate) members: Vec<u16>,
}

impl Oneof {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

static SHAPES: OnceLock<Mutex<HashMap<Arc<str>, &'static Shape>>> = OnceLock::new();

/// The shape of a message type by its full name. Descriptors are asked only for types that have no shape yet.
pub(crate) fn shape_named(full_name: &str) -> Option<&'static Shape> {
    let mut shapes = SHAPES.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = shapes.get(full_name) {
        return Some(known);
    }
    let new: &'static Shape = Box::leak(Box::new(Shape::new(&crate::pool::message(full_name)?)));
    shapes.insert(Arc::clone(&new.name), new);
    Some(new)
}

// === impl Shape ===

impl Shape {
    fn new(desc: &MessageDescriptor) -> Self {
        let name: Arc<str> = desc.full_name().into();
        let mut fields = Vec::with_capacity(desc.fields().len());
        let mut names = HashMap::with_capacity(fields.capacity() * 2);
        for (at, field) in desc.fields().enumerate() {
            names.insert(field.json_name().into(), at as u16);
            names.insert(field.name().into(), at as u16);
            fields.push(Field::new(&field, &name));
        }
        let mut oneofs: Vec<Oneof> = Vec::new();
        for oneof in desc.oneofs().filter(|o| !o.is_synthetic()) {
            let numbers: Vec<u32> = oneof.fields().map(|f| f.number()).collect();
            let members: Vec<u16> =
                (0..fields.len()).filter(|&i| numbers.contains(&fields[i].number)).map(|i| i as u16).collect();
            for member in &members {
                fields[usize::from(*member)].oneof = Some(oneofs.len() as u16);
            }
            oneofs.push(Oneof { required: rules::oneof_required(&oneof), name: oneof.name().into(), members });
        }
        let unchecked = rules::message_unchecked(desc);
        Self { form: form(&name), package: desc.package_name().len(), name, fields, oneofs, names, unchecked }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The name within the package, of a nested message with those it is nested in.
    pub(crate) fn local_name(&self) -> &str {
        self.name[self.package..].trim_start_matches('.')
    }

    pub(crate) fn field_named(&self, name: &str) -> Option<usize> {
        self.names.get(name).map(|&at| usize::from(at))
    }

    pub(crate) fn field_numbered(&self, number: u32) -> Option<usize> {
        let guess = (number as usize).wrapping_sub(1);
        if self.fields.get(guess).is_some_and(|f| f.number == number) {
            return Some(guess);
        }
        self.fields.binary_search_by_key(&number, |f| f.number).ok()
    }

    pub(crate) fn field_names(&self) -> impl Iterator<Item = &str> {
        self.fields.iter().map(Field::name)
    }
}

fn form(full_name: &str) -> Form {
    let Some(name) = full_name.strip_prefix("google.protobuf.") else { return Form::Object };
    match name {
        "Any" => Form::Any,
        "Duration" => Form::Duration,
        "Timestamp" => Form::Timestamp,
        "FieldMask" => Form::FieldMask,
        "Struct" => Form::Struct,
        "Value" => Form::Value,
        "ListValue" => Form::ListValue,
        "DoubleValue" | "FloatValue" | "Int64Value" | "UInt64Value" | "Int32Value" | "UInt32Value" | "BoolValue"
        | "StringValue" | "BytesValue" => Form::Wrapper,
        _ => Form::Object,
    }
}

// === impl Field ===

impl Field {
    fn new(desc: &FieldDescriptor, parent: &Arc<str>) -> Self {
        let repeat = if desc.is_map() {
            Repeat::Map
        } else if desc.is_list() {
            Repeat::List
        } else {
            Repeat::One
        };
        Self {
            name: desc.name().into(),
            parent: Arc::clone(parent),
            number: desc.number(),
            kind: FieldKind::new(&desc.kind()),
            repeat,
            presence: desc.supports_presence(),
            oneof: None,
            rules: rules::compile(desc).map(Box::new),
            deprecated: rules::deprecated(desc),
            sensitive: rules::sensitive(desc),
            message: OnceLock::new(),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Numbers, booleans and enums: what a list may pack.
    pub(crate) fn is_number(&self) -> bool {
        !matches!(self.kind, FieldKind::Message(_) | FieldKind::String | FieldKind::Bytes)
    }

    /// The next number of a packed list.
    pub(crate) fn unpack_one<'b>(&self, packed: &mut &'b [u8]) -> Option<Wire<'b>> {
        if packed.is_empty() {
            return None;
        }
        match self.kind.wire_type() {
            WireType::SixtyFourBit => {
                let (bytes, rest) = packed.split_first_chunk::<8>()?;
                *packed = rest;
                Some(Wire::Fixed64(u64::from_le_bytes(*bytes)))
            }
            WireType::ThirtyTwoBit => {
                let (bytes, rest) = packed.split_first_chunk::<4>()?;
                *packed = rest;
                Some(Wire::Fixed32(u32::from_le_bytes(*bytes)))
            }
            _ => varint(packed).map(Wire::Varint),
        }
    }

    /// The shape of the field's message; None for scalars. Of a map's field it is the entry's.
    pub(crate) fn message(&self) -> Option<&'static Shape> {
        let FieldKind::Message(name) = &self.kind else { return None };
        if let Some(known) = self.message.get() {
            return Some(known);
        }
        let found = shape_named(name)?;
        Some(*self.message.get_or_init(|| found))
    }
}
