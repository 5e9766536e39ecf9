//! Envoy's protobuf vocabulary and the one loader of configuration.
pub use envoy_types::pb;
