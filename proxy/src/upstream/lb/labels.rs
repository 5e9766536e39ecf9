//! What hosts say of themselves in `envoy.lb` of their metadata, and whether that is what somebody asks for.

use nuncio_api::pb::google::protobuf::{Struct, value::Kind};
use nuncio_core::metadata::Metadata;

/// The part of a host's metadata that balancing looks at.
pub const NAMESPACE: &str = "envoy.lb";

/// A host with this metadata says all that is wanted. With `list_as_any` a host may say several values of a key, of
/// which one is enough.
pub fn matches(wanted: &Struct, metadata: &Metadata, list_as_any: bool) -> bool {
    let said = metadata.0.get(NAMESPACE);
    wanted.fields.iter().all(|(key, value)| {
        said.and_then(|said| said.fields.get(key)).is_some_and(|said| match &said.kind {
            Some(Kind::ListValue(list)) if list_as_any => list.values.contains(value),
            _ => said == value,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nuncio_api::pb::google::protobuf::{ListValue, Value};

    fn text(value: &str) -> Value {
        Value { kind: Some(Kind::StringValue(value.into())) }
    }

    fn labels<const N: usize>(fields: [(&str, Value); N]) -> Struct {
        Struct { fields: fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect() }
    }

    #[test]
    fn every_wanted_label_must_be_said() {
        let mut metadata = Metadata::default();
        metadata.merge(NAMESPACE, labels([("stage", text("prod")), ("v", text("1"))]));
        assert!(matches(&labels([("stage", text("prod"))]), &metadata, false));
        assert!(!matches(&labels([("stage", text("prod")), ("v", text("2"))]), &metadata, false));
        assert!(!matches(&labels([("other", text("1"))]), &metadata, false));
        assert!(matches(&Struct::default(), &Metadata::default(), false));
    }

    #[test]
    fn a_list_can_stand_for_any_of_its_values() {
        let mut metadata = Metadata::default();
        let both = ListValue { values: vec![text("1"), text("2")] };
        metadata.merge(NAMESPACE, labels([("v", Value { kind: Some(Kind::ListValue(both)) })]));
        assert!(matches(&labels([("v", text("2"))]), &metadata, true));
        assert!(!matches(&labels([("v", text("2"))]), &metadata, false));
    }
}
