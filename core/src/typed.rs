//! Extensions that a message names by type (`TypedExtensionConfig`, bare `Any`), where one or a few are known.

use nuncio_api::any::type_name;
use nuncio_api::pb::envoy::config::core::v3::TypedExtensionConfig;
use nuncio_api::pb::google::protobuf::Any;
use nuncio_api::prost::{Message, Name};
use nuncio_api::unpack;

use crate::error::ConfigError;

/// Reads the one message that is known at this place.
pub fn decode<M: Message + Name + Default>(extension: &TypedExtensionConfig) -> Result<M, ConfigError> {
    match &extension.typed_config {
        Some(any) if type_name(&any.type_url) == M::full_name() => unpack(any).map_err(|e| e.within("typed_config")),
        Some(any) => Err(unknown(&extension.name, any)),
        None => Err(ConfigError::new("typed_config", "value is required")),
    }
}

/// Envoy's words for an extension that is not in the binary.
pub fn unknown(name: &str, any: &Any) -> ConfigError {
    let kind = type_name(&any.type_url);
    ConfigError::new("", format!("Didn't find a registered implementation for '{name}' with type URL: '{kind}'"))
}
