//! Envoy's protobuf vocabulary and the one loader of configuration.
