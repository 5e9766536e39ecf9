//! How header names are written (`header_key_format`): in lower case, in Proper-Case, or as the other side's codec kept
//! them (`preserve_case`). A head whose names were kept is written with them whatever this side's own setting is, as
//! in Envoy.

use nuncio_api::pb::envoy::config::core::v3::http1_protocol_options::{
    HeaderKeyFormat, header_key_format::HeaderFormat,
};
use nuncio_api::pb::envoy::extensions::http::header_formatters::preserve_case::v3 as pb;
use nuncio_api::support::Entry;
use nuncio_api::{supports, unpack};
use nuncio_core::error::ConfigError;
use nuncio_core::http::{HeaderMap, Spelling};

supports!(FORMAT = "envoy.config.core.v3.Http1ProtocolOptions.HeaderKeyFormat" {
    proper_case_words, stateful_formatter
});
supports!(PROPER = "envoy.config.core.v3.Http1ProtocolOptions.HeaderKeyFormat.ProperCaseWords" {});
supports!(PRESERVE = "envoy.extensions.http.header_formatters.preserve_case.v3.PreserveCaseFormatterConfig" {
    forward_reason_phrase, formatter_type_on_envoy_headers
});

/// What is honoured of the messages read here.
pub static SUPPORTED: &[&Entry] = &[&FORMAT, &PROPER, &PRESERVE];

/// `header_key_format`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HeaderCase {
    #[default]
    Lower,
    /// `proper_case_words`: the first letter, and each one after a character that is no letter or digit.
    Proper,
    /// `preserve_case`: what comes in on this side is remembered, and written by the other.
    Preserve {
        /// `formatter_type_on_envoy_headers`: names that did not come are in Proper-Case.
        proper_others: bool,
        /// `forward_reason_phrase`
        reason: bool,
    },
}

impl HeaderCase {
    pub fn from_proto(proto: Option<&HeaderKeyFormat>) -> Result<Self, ConfigError> {
        match proto.and_then(|format| format.header_format.as_ref()) {
            None => Ok(Self::Lower),
            Some(HeaderFormat::ProperCaseWords(_)) => Ok(Self::Proper),
            Some(HeaderFormat::StatefulFormatter(extension)) => {
                let at = |e: ConfigError| e.within("stateful_formatter").within("header_key_format");
                let Some(config) = &extension.typed_config else {
                    return Err(at(ConfigError::new("typed_config", "value is required")));
                };
                if nuncio_api::any::type_name(&config.type_url) != PRESERVE.message {
                    let text = format!(
                        "Didn't find a registered implementation for '{}' with type URL: '{}'",
                        extension.name, config.type_url
                    );
                    return Err(at(ConfigError::new("typed_config", text)));
                }
                let config: pb::PreserveCaseFormatterConfig =
                    unpack(config).map_err(|e| at(ConfigError::new(e.path, e.reason)))?;
                use pb::preserve_case_formatter_config::FormatterTypeOnEnvoyHeaders as Others;
                Ok(Self::Preserve {
                    proper_others: config.formatter_type_on_envoy_headers() == Others::ProperCase,
                    reason: config.forward_reason_phrase,
                })
            }
        }
    }

    /// Keeps the names of a head that came, if that is what this side does. `reason` is a response's phrase.
    pub(super) fn keep<'f>(self, headers: &mut HeaderMap, names: impl Iterator<Item = &'f str>, reason: &[u8]) {
        let Self::Preserve { proper_others, reason: keeps_reason } = self else { return };
        let spelling = headers.spell();
        spelling.set_proper_others(proper_others);
        names.for_each(|name| spelling.note(name.as_bytes()));
        if keeps_reason {
            spelling.set_reason(reason);
        }
    }
}

/// How the names of one head are written.
#[derive(Debug, Clone, Copy)]
pub(super) struct Names<'h> {
    proper: bool,
    spelling: Option<&'h Spelling>,
}

impl<'h> Names<'h> {
    pub(super) fn of(headers: &'h HeaderMap, case: HeaderCase) -> Self {
        Self { proper: case == HeaderCase::Proper, spelling: headers.spelling() }
    }

    /// Every name is written as our types hold it.
    pub(super) fn are_lower(self) -> bool {
        !self.proper && self.spelling.is_none()
    }

    pub(super) fn write(self, out: &mut Vec<u8>, name: &[u8]) {
        let mut proper = self.proper;
        if let Some(spelling) = self.spelling {
            if let Some(spelled) = spelling.of(name) {
                return out.extend_from_slice(spelled);
            }
            proper = spelling.proper_others();
        }
        let at = out.len();
        out.extend_from_slice(name);
        if proper {
            let mut capital = true;
            for b in &mut out[at..] {
                if capital {
                    b.make_ascii_uppercase();
                }
                capital = !b.is_ascii_alphanumeric();
            }
        }
    }

    pub(super) fn reason(self) -> Option<&'h [u8]> {
        self.spelling.and_then(Spelling::reason)
    }
}
