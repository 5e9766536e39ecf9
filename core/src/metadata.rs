//! Structured metadata: what configuration says of hosts, clusters and routes, and what filters
//! say of a stream (Envoy's `core.v3.Metadata`).

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use nuncio_api::pb::google::protobuf::{Struct, Value, value::Kind};

/// Namespaces (reverse DNS names by convention) to structured values.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Metadata(pub BTreeMap<String, Struct>);

impl Metadata {
    /// The metadata of all that have none.
    pub fn none() -> Arc<Self> {
        static NONE: LazyLock<Arc<Metadata>> = LazyLock::new(Arc::default);
        NONE.clone()
    }

    pub fn from_proto(message: &nuncio_api::pb::envoy::config::core::v3::Metadata) -> Self {
        Self(message.filter_metadata.iter().map(|(k, v)| (k.clone(), v.clone())).collect())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The value at `path` inside `namespace`; every step but the last must be a struct.
    pub fn get(&self, namespace: &str, path: &[impl AsRef<str>]) -> Option<&Value> {
        let (last, steps) = path.split_last()?;
        let mut at = self.0.get(namespace)?;
        for step in steps {
            match at.fields.get(step.as_ref())?.kind.as_ref()? {
                Kind::StructValue(inner) => at = inner,
                _ => return None,
            }
        }
        at.fields.get(last.as_ref())
    }

    /// Adds the fields of `value` to `namespace`; equal keys are replaced, as protobuf's merge does.
    pub fn merge(&mut self, namespace: &str, value: Struct) {
        self.0.entry(namespace.to_owned()).or_default().fields.extend(value.fields);
    }
}
