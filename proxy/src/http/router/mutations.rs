//! The header changes that each level of a configuration asks for.

use nuncio_api::pb::envoy::config::core::v3::HeaderValueOption;
use nuncio_api::supports;
use nuncio_core::access_log::LogContext;
use nuncio_core::error::ConfigError;
use nuncio_core::http::{RequestHead, ResponseHead};

use crate::format::header_mutation::{HeaderMutations, MutationValues};

supports!(pub(super) OPTION = "envoy.config.core.v3.HeaderValueOption" {
    header, append, append_action, keep_empty_value
});
supports!(pub(super) VALUE = "envoy.config.core.v3.HeaderValue" { key, value });

/// Of one level: route configuration, virtual host, route or weighted cluster.
#[derive(Debug, Default)]
pub(super) struct LevelMutations(Option<Box<Both>>);

#[derive(Debug)]
struct Both {
    request: HeaderMutations,
    response: HeaderMutations,
}

/// Additions and removals as all four messages have them.
pub(super) struct MutationFields<'a> {
    pub(super) request_add: &'a [HeaderValueOption],
    pub(super) request_remove: &'a [String],
    pub(super) response_add: &'a [HeaderValueOption],
    pub(super) response_remove: &'a [String],
}

/// The fields of a message that has them.
macro_rules! mutation_fields {
    ($message:expr) => {
        $crate::http::router::mutations::MutationFields {
            request_add: &$message.request_headers_to_add,
            request_remove: &$message.request_headers_to_remove,
            response_add: &$message.response_headers_to_add,
            response_remove: &$message.response_headers_to_remove,
        }
    };
}
pub(super) use mutation_fields;

impl LevelMutations {
    pub(super) fn new(fields: &MutationFields<'_>) -> Result<Self, ConfigError> {
        let compile = |side: &str, add, remove| {
            // Their paths are `add[i]…` and `remove[i]…`.
            HeaderMutations::new(add, remove)
                .map_err(|e| ConfigError::new(format!("{side}_headers_to_{}", e.path), e.reason))
        };
        let request = compile("request", fields.request_add, fields.request_remove)?;
        let response = compile("response", fields.response_add, fields.response_remove)?;
        let any = !request.is_empty() || !response.is_empty();
        Ok(Self(any.then(|| Box::new(Both { request, response }))))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub(super) fn request(&self, head: &mut RequestHead, context: &LogContext<'_>, values: &mut MutationValues) {
        if let Some(both) = &self.0 {
            both.request.apply_to_request(head, context, values);
        }
    }

    pub(super) fn response(&self, head: &mut ResponseHead, context: &LogContext<'_>, values: &mut MutationValues) {
        if let Some(both) = &self.0 {
            both.response.apply_to_response(head, context, values);
        }
    }
}

/// Buffers for the changes a route makes, recycled by whoever finishes heads.
#[derive(Debug, Default)]
pub struct Scratch {
    pub(super) bytes: Vec<u8>,
    pub(super) values: MutationValues,
}

impl Scratch {
    pub(in crate::http) fn values_mut(&mut self) -> &mut MutationValues {
        &mut self.values
    }
}
