//! Answers that a route gives by itself.

use std::borrow::Cow;

use bytes::Bytes;
use nuncio_api::pb::envoy::config::core::v3::{DataSource, data_source::Specifier};
use nuncio_api::pb::envoy::config::route::v3::DirectResponseAction;
use nuncio_api::supports;
use nuncio_core::access_log::LogContext;
use nuncio_core::error::ConfigError;
use nuncio_core::http::{LocalReply, RequestHead};

use crate::format::BodyFormat;

supports!(pub(super) DIRECT_RESPONSE = "envoy.config.route.v3.DirectResponseAction" { status, body, body_format });
supports!(pub(super) FORMAT = "envoy.config.core.v3.SubstitutionFormatString" {
    text_format, text_format_source, json_format, omit_empty_values, content_type, formatters
});
supports!(pub(super) BODY = "envoy.config.core.v3.DataSource" {
    filename, inline_bytes, inline_string, environment_variable
});

#[derive(Debug)]
pub struct DirectResponse {
    pub status: u16,
    body: Bytes,
    /// Makes the body anew for each request; the configured body is `%LOCAL_REPLY_BODY%` in it.
    format: Option<BodyFormat>,
}

impl DirectResponse {
    /// Reads the body now; it may have `limit` bytes.
    pub(super) fn from_proto(message: &DirectResponseAction, limit: u32) -> Result<Self, ConfigError> {
        let body = match &message.body {
            Some(source) => read_body(source, limit).map_err(|e| e.within("body"))?,
            None => Bytes::new(),
        };
        let format = message.body_format.as_ref().map(BodyFormat::from_proto).transpose();
        let format = format.map_err(|e| e.within("body_format"))?;
        Ok(Self { status: message.status.min(999) as u16, body, format })
    }

    /// The answer to `head`.
    pub(super) fn reply(&self, head: &RequestHead, context: &LogContext<'_>) -> LocalReply {
        let reply = LocalReply::new(self.status, Cow::Borrowed("direct_response"));
        let Some(format) = &self.format else { return reply.body(Bytes::clone(&self.body)) };
        let mut body = Vec::new();
        let context = LogContext { request: Some(head), local_reply_body: &self.body, ..*context };
        format.format(&context, &mut body);
        reply.body(body).header("content-type", format.content_type().to_owned())
    }

    /// A 201 or a redirect made by hand gets the request's own address as its location.
    pub(super) fn has_location(&self) -> bool {
        self.status == 201 || (300..400).contains(&self.status)
    }
}

/// The bytes of a body that the configuration holds; a file is read now.
pub fn read_body(source: &DataSource, limit: u32) -> Result<Bytes, ConfigError> {
    let limit = u64::from(limit);
    let too_large = |size: u64| ConfigError::new("", format!("response body size is {size} bytes; maximum is {limit}"));
    let body = match &source.specifier {
        Some(Specifier::InlineString(text)) => Bytes::copy_from_slice(text.as_bytes()),
        Some(Specifier::InlineBytes(bytes)) => Bytes::copy_from_slice(bytes),
        Some(Specifier::Filename(path)) => {
            let unreadable = |e: std::io::Error| {
                let reason = match e.kind() {
                    std::io::ErrorKind::NotFound => format!("file {path} does not exist"),
                    _ => format!("unable to read file: {path}: {e}"),
                };
                ConfigError::new("filename", reason)
            };
            let size = std::fs::metadata(path).map_err(unreadable)?.len();
            if size > limit {
                return Err(too_large(size));
            }
            Bytes::from(std::fs::read(path).map_err(unreadable)?)
        }
        Some(Specifier::EnvironmentVariable(name)) => match std::env::var_os(name) {
            Some(value) => Bytes::from(value.into_encoded_bytes()),
            None => {
                let reason = format!("Environment variable doesn't exist: {name}");
                return Err(ConfigError::new("environment_variable", reason));
            }
        },
        None => return Err(ConfigError::new("specifier", "value is required")),
    };
    if body.len() as u64 > limit { Err(too_large(body.len() as u64)) } else { Ok(body) }
}
