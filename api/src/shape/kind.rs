//! What a field holds, and the values of enums, copied out of the descriptors so that those can be let go.

use std::collections::HashMap;
use std::sync::{Mutex, OnceLock, PoisonError};

use prost::encoding::WireType;
use prost_reflect::{EnumDescriptor, Kind};

/// The type of a field, without repetition.
pub(crate) enum FieldKind {
    Double,
    Float,
    Int32,
    Int64,
    Uint32,
    Uint64,
    Sint32,
    Sint64,
    Fixed32,
    Fixed64,
    Sfixed32,
    Sfixed64,
    Bool,
    String,
    Bytes,
    /// The full name: the shape is made when somebody asks for it.
    Message(Box<str>),
    Enum(&'static EnumShape),
}

/// An enum's values. One per enum that a shape mentions lives as long as the process.
pub(crate) struct EnumShape {
    name: Box<str>,
    /// By number; names of one number stand together.
    values: Vec<(i32, Box<str>)>,
}

// === impl FieldKind ===

impl FieldKind {
    pub(crate) fn new(kind: &Kind) -> Self {
        match kind {
            Kind::Double => Self::Double,
            Kind::Float => Self::Float,
            Kind::Int32 => Self::Int32,
            Kind::Int64 => Self::Int64,
            Kind::Uint32 => Self::Uint32,
            Kind::Uint64 => Self::Uint64,
            Kind::Sint32 => Self::Sint32,
            Kind::Sint64 => Self::Sint64,
            Kind::Fixed32 => Self::Fixed32,
            Kind::Fixed64 => Self::Fixed64,
            Kind::Sfixed32 => Self::Sfixed32,
            Kind::Sfixed64 => Self::Sfixed64,
            Kind::Bool => Self::Bool,
            Kind::String => Self::String,
            Kind::Bytes => Self::Bytes,
            Kind::Message(desc) => Self::Message(desc.full_name().into()),
            Kind::Enum(desc) => Self::Enum(enum_shape(desc)),
        }
    }

    pub(crate) fn wire_type(&self) -> WireType {
        match self {
            Self::Double | Self::Fixed64 | Self::Sfixed64 => WireType::SixtyFourBit,
            Self::Float | Self::Fixed32 | Self::Sfixed32 => WireType::ThirtyTwoBit,
            Self::String | Self::Bytes | Self::Message(_) => WireType::LengthDelimited,
            _ => WireType::Varint,
        }
    }
}

// === impl EnumShape ===

static ENUMS: OnceLock<Mutex<HashMap<&'static str, &'static EnumShape>>> = OnceLock::new();

fn enum_shape(desc: &EnumDescriptor) -> &'static EnumShape {
    let mut enums = ENUMS.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = enums.get(desc.full_name()) {
        return known;
    }
    let values = desc.values().map(|v| (v.number(), v.name().into())).collect();
    let new: &'static EnumShape = Box::leak(Box::new(EnumShape { name: desc.full_name().into(), values }));
    enums.insert(new.name(), new);
    new
}

impl EnumShape {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Names of values, by number.
    pub(crate) fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.values.iter().map(|(_, name)| &**name)
    }

    pub(crate) fn name_of(&self, number: i32) -> Option<&str> {
        let at = self.values.binary_search_by_key(&number, |(n, _)| *n).ok()?;
        Some(&self.values[at].1)
    }

    pub(crate) fn number_of(&self, name: &str) -> Option<i32> {
        self.values.iter().find(|(_, n)| **n == *name).map(|(number, _)| *number)
    }

    /// As [`Self::number_of`], in any case.
    pub(crate) fn number_of_any_case(&self, name: &str) -> Option<i32> {
        self.values.iter().find(|(_, n)| n.eq_ignore_ascii_case(name)).map(|(number, _)| *number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enums_and_kinds_answer_as_their_descriptors() {
        let pool = crate::pool::pool();
        for desc in pool.all_enums() {
            let shape = enum_shape(&desc);
            for value in desc.values() {
                let (name, number) = (value.name(), value.number());
                assert_eq!(shape.name_of(number), desc.get_value(number).as_ref().map(|v| v.name()));
                assert_eq!(shape.number_of(name), Some(number));
                assert_eq!(shape.number_of_any_case(&name.to_ascii_lowercase()), Some(number), "{}", shape.name());
            }
            assert_eq!(shape.name_of(-77), None);
        }
        for field in pool.all_messages().flat_map(|m| m.fields().collect::<Vec<_>>()) {
            assert_eq!(FieldKind::new(&field.kind()).wire_type(), field.kind().wire_type(), "{}", field.full_name());
        }
    }
}
