//! `core.v3.SubstitutionFormatString`: a text or a JSON format, and the content type of a body
//! that is made by it.

use nuncio_api::pb::envoy::config::core::v3::{
    self as pb, data_source::Specifier, substitution_format_string::Format as Choice,
};
use nuncio_api::supports;
use nuncio_core::access_log::LogContext;
use nuncio_core::error::ConfigError;

use super::operator::Extensions;
use super::{DEFAULT_FORMAT, Formatter, JsonFormatter};

supports!(pub(super) FORMAT = "envoy.config.core.v3.SubstitutionFormatString" {
    text_format, text_format_source, json_format, omit_empty_values, content_type, formatters
} noop {
    json_format_options: "properties are always sorted",
});
supports!(pub(super) JSON_OPTIONS = "envoy.config.core.v3.JsonFormatOptions" { sort_properties });
supports!(pub(super) SOURCE = "envoy.config.core.v3.DataSource" {
    filename, inline_bytes, inline_string, environment_variable
});
supports!(pub(super) EXTENSION = "envoy.config.core.v3.TypedExtensionConfig" { name, typed_config });
supports!(pub(super) REQ_WITHOUT_QUERY = "envoy.extensions.formatter.req_without_query.v3.ReqWithoutQuery" {});
supports!(pub(super) METADATA = "envoy.extensions.formatter.metadata.v3.Metadata" {});

/// A compiled format of either kind.
#[derive(Debug)]
pub enum Format {
    Text(Formatter),
    Json(JsonFormatter),
}

impl Format {
    /// Envoy's default text format.
    pub fn default_text() -> Self {
        Self::Text(Formatter::parse(DEFAULT_FORMAT, false).expect("the default format is one that Envoy accepts"))
    }

    /// Reads a file of `text_format_source`, so it belongs on the main thread.
    pub fn from_proto(message: &pb::SubstitutionFormatString) -> Result<Self, ConfigError> {
        let extensions = extensions(&message.formatters)?;
        let omit = message.omit_empty_values;
        match &message.format {
            None => Err(ConfigError::new("format", "is required")),
            #[allow(deprecated)]
            Some(Choice::TextFormat(text)) => {
                Formatter::with_extensions(text, omit, extensions).map(Self::Text).map_err(|e| e.within("text_format"))
            }
            Some(Choice::TextFormatSource(source)) => read(source)
                .and_then(|text| Formatter::with_extensions(&text, omit, extensions))
                .map(Self::Text)
                .map_err(|e| e.within("text_format_source")),
            Some(Choice::JsonFormat(fields)) => {
                JsonFormatter::new(fields, omit, extensions).map(Self::Json).map_err(|e| e.within("json_format"))
            }
        }
    }

    /// Appends one record.
    pub fn format(&self, context: &LogContext<'_>, out: &mut Vec<u8>) {
        match self {
            Self::Text(text) => text.format(context, out),
            Self::Json(json) => json.format(context, out),
        }
    }
}

/// How the body of a local reply is made, and what it then is.
#[derive(Debug)]
pub struct BodyFormat {
    format: Format,
    content_type: Box<str>,
}

impl BodyFormat {
    pub fn from_proto(message: &pb::SubstitutionFormatString) -> Result<Self, ConfigError> {
        let format = Format::from_proto(message)?;
        let content_type = match (&*message.content_type, &format) {
            ("", Format::Text(_)) => "text/plain",
            ("", Format::Json(_)) => "application/json",
            (set, _) => set,
        };
        Ok(Self { content_type: content_type.into(), format })
    }

    pub fn content_type(&self) -> &str {
        &self.content_type
    }

    /// Appends the body: text with any byte in it, or a JSON object and a line break.
    pub fn format(&self, context: &LogContext<'_>, out: &mut Vec<u8>) {
        match &self.format {
            Format::Text(text) => text.format_body(context, out),
            Format::Json(json) => json.format(context, out),
        }
    }
}

fn extensions(list: &[pb::TypedExtensionConfig]) -> Result<Extensions, ConfigError> {
    let mut extensions = Extensions::default();
    for (i, extension) in list.iter().enumerate() {
        let url = extension.typed_config.as_ref().map_or("", |any| &any.type_url);
        match url.rsplit('/').next().unwrap_or_default() {
            "envoy.extensions.formatter.req_without_query.v3.ReqWithoutQuery" => extensions.req_without_query = true,
            // Its command is always there.
            "envoy.extensions.formatter.metadata.v3.Metadata" => {}
            "" => return Err(ConfigError::new(format!("formatters[{i}].typed_config"), "value is required")),
            known if known.starts_with("envoy.extensions.formatter.") => {
                return Err(ConfigError::new(format!("formatters[{i}]"), format!("{known} is not implemented")));
            }
            _ => {
                let reason = format!("Formatter not found: {}", extension.name);
                return Err(ConfigError::new(format!("formatters[{i}]"), reason));
            }
        }
    }
    Ok(extensions)
}

fn read(source: &pb::DataSource) -> Result<String, ConfigError> {
    let not_text = |_| ConfigError::new("", "is not UTF-8");
    match &source.specifier {
        None => Err(ConfigError::new("specifier", "is required")),
        Some(Specifier::InlineString(text)) => Ok(text.clone()),
        Some(Specifier::InlineBytes(bytes)) => String::from_utf8(bytes.clone()).map_err(not_text),
        Some(Specifier::Filename(path)) => {
            let bytes =
                std::fs::read(path).map_err(|_| ConfigError::new("filename", format!("Invalid path: {path}")))?;
            String::from_utf8(bytes).map_err(not_text)
        }
        Some(Specifier::EnvironmentVariable(name)) => std::env::var(name).map_err(|_| {
            ConfigError::new("environment_variable", format!("Environment variable doesn't exist: {name}"))
        }),
    }
}
