//! Extensions that routes name by type (`TypedExtensionConfig`, bare `Any`).

use nuncio_api::pb::envoy::config::core::v3::TypedExtensionConfig;
use nuncio_api::pb::google::protobuf::Any;
use nuncio_core::error::ConfigError;
use prost::Message;

/// The message name in a type URL.
pub(super) fn message_name(any: &Any) -> &str {
    any.type_url.rsplit('/').next().unwrap_or_default()
}

/// Reads the one message that is known at this place.
pub(super) fn decode<M: Message + Default>(extension: &TypedExtensionConfig, name: &str) -> Result<M, ConfigError> {
    match &extension.typed_config {
        Some(any) if message_name(any) == name => read(any).map_err(|e| e.within("typed_config")),
        Some(any) => Err(unknown(&extension.name, any)),
        None => Err(ConfigError::new("typed_config", "value is required")),
    }
}

pub(super) fn read<M: Message + Default>(any: &Any) -> Result<M, ConfigError> {
    M::decode(any.value.as_slice()).map_err(|e| ConfigError::new("", format!("cannot read {}: {e}", any.type_url)))
}

/// Envoy's words for an extension that is not in the binary.
pub(super) fn unknown(name: &str, any: &Any) -> ConfigError {
    let reason = format!("Didn't find a registered implementation for '{name}' with type URL: '{}'", message_name(any));
    ConfigError::new("", reason)
}
