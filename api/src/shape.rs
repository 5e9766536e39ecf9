//! A message type, compiled once from its descriptor for the two things done with it at every load: finding a field by
//! name or number, and knowing the rules of its annotations. Shapes refer to each other and live as long as the
//! process; there are at most as many as message types.

use std::collections::HashMap;
use std::sync::{Mutex, OnceLock, PoisonError};

use prost::encoding::WireType;
use prost_reflect::{FieldDescriptor, Kind, MessageDescriptor, OneofDescriptor};

use crate::rules::{self, FieldRules};
use crate::wire::{Wire, varint};

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
    pub(crate) desc: MessageDescriptor,
    pub(crate) form: Form,
    /// By number.
    pub(crate) fields: Vec<Field>,
    pub(crate) oneofs: Vec<Oneof>,
    names: HashMap<String, u16>,
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
    pub(crate) desc: FieldDescriptor,
    pub(crate) number: u32,
    pub(crate) kind: Kind,
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
    desc: OneofDescriptor,
    pub(crate) required: bool,
    pub(crate) members: Vec<u16>,
}

impl Oneof {
    pub(crate) fn name(&self) -> &str {
        self.desc.name()
    }
}

static SHAPES: OnceLock<Mutex<HashMap<String, &'static Shape>>> = OnceLock::new();

/// The shape of a message type.
pub(crate) fn shape(desc: &MessageDescriptor) -> &'static Shape {
    let mut shapes = SHAPES.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = shapes.get(desc.full_name()) {
        return known;
    }
    let new: &'static Shape = Box::leak(Box::new(Shape::new(desc)));
    shapes.insert(desc.full_name().to_owned(), new);
    new
}

/// The shape of a message type by its full name.
pub(crate) fn shape_named(full_name: &str) -> Option<&'static Shape> {
    crate::pool::message(full_name).map(|desc| shape(&desc))
}

// === impl Shape ===

impl Shape {
    fn new(desc: &MessageDescriptor) -> Self {
        let fields: Vec<Field> = desc.fields().map(Field::new).collect();
        let mut names = HashMap::with_capacity(fields.len() * 2);
        for (at, field) in fields.iter().enumerate() {
            names.insert(field.desc.json_name().to_owned(), at as u16);
            names.insert(field.desc.name().to_owned(), at as u16);
        }
        let mut oneofs: Vec<Oneof> = Vec::new();
        let mut fields = fields;
        for oneof in desc.oneofs().filter(|o| !o.is_synthetic()) {
            let numbers: Vec<u32> = oneof.fields().map(|f| f.number()).collect();
            let members: Vec<u16> =
                (0..fields.len()).filter(|&i| numbers.contains(&fields[i].number)).map(|i| i as u16).collect();
            for member in &members {
                fields[usize::from(*member)].oneof = Some(oneofs.len() as u16);
            }
            oneofs.push(Oneof { required: rules::oneof_required(&oneof), desc: oneof, members });
        }
        Self { form: form(desc), fields, oneofs, names, unchecked: rules::message_unchecked(desc), desc: desc.clone() }
    }

    pub(crate) fn name(&self) -> &str {
        self.desc.full_name()
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
        self.fields.iter().map(|f| f.desc.name())
    }
}

fn form(desc: &MessageDescriptor) -> Form {
    let Some(name) = desc.full_name().strip_prefix("google.protobuf.") else { return Form::Object };
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
    fn new(desc: FieldDescriptor) -> Self {
        let repeat = if desc.is_map() {
            Repeat::Map
        } else if desc.is_list() {
            Repeat::List
        } else {
            Repeat::One
        };
        Self {
            number: desc.number(),
            kind: desc.kind(),
            repeat,
            presence: desc.supports_presence(),
            oneof: None,
            rules: rules::compile(&desc).map(Box::new),
            deprecated: rules::deprecated(&desc),
            sensitive: rules::sensitive(&desc),
            message: OnceLock::new(),
            desc,
        }
    }

    pub(crate) fn name(&self) -> &str {
        self.desc.name()
    }

    /// Numbers, booleans and enums: what a list may pack.
    pub(crate) fn is_number(&self) -> bool {
        !matches!(self.kind, Kind::Message(_) | Kind::String | Kind::Bytes)
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
        let Kind::Message(desc) = &self.kind else { return None };
        Some(*self.message.get_or_init(|| shape(desc)))
    }
}
