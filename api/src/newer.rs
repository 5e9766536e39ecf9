//! What Envoy 1.40 knows and the pinned `envoy-types` does not yet have: facts (message, field, number, type). The
//! fields are added to the descriptors by the build script, so that a configuration that sets one is told "not
//! implemented" and not "unknown field". Entries that the package has learnt meanwhile are skipped.

/// A field to add to a message of the descriptor set.
pub struct NewerField {
    pub message: &'static str,
    pub name: &'static str,
    pub number: u32,
    pub repeated: bool,
    /// A scalar's protobuf name, or a message's full name with a dot before it.
    pub kind: &'static str,
}

const fn field(message: &'static str, name: &'static str, number: u32, kind: &'static str) -> NewerField {
    NewerField { message, name, number, repeated: false, kind }
}

/// In the order of the messages' names.
pub const FIELDS: &[NewerField] = &[
    field(
        "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "record_route_resolution_stats",
        63,
        "bool",
    ),
    field("envoy.config.core.v3.HealthCheck", "name", 27, "string"),
];
