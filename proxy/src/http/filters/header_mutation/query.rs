//! Changes of the query of a path (`core.v3.KeyValueMutation`). What is written is percent-encoded, and
//! the parameters that nobody changes stay as they came.

use nuncio_api::pb::envoy::config::core::v3::{KeyValueMutation, key_value_append::KeyValueAppendAction};
use nuncio_api::pb::google::protobuf::value::Kind;
use nuncio_core::access_log::LogContext;
use nuncio_core::error::ConfigError;

use crate::format::Formatter;

pub(super) enum QueryMutation {
    Remove(String),
    Add { key: String, value: Formatter, action: KeyValueAppendAction },
}

impl QueryMutation {
    pub(super) fn new(proto: &KeyValueMutation) -> Result<Self, ConfigError> {
        let Some(append) = &proto.append else {
            return match &*proto.remove {
                "" => Err(ConfigError::new("", "Either append or remove must be specified")),
                key => Ok(Self::Remove(key.to_owned())),
            };
        };
        if !proto.remove.is_empty() {
            return Err(ConfigError::new("", "Only one of 'append'/'remove can be specified"));
        }
        let record = append.record.as_ref().ok_or_else(|| ConfigError::new("append.record", "value is required"))?;
        let text = match record.value.as_ref().and_then(|value| value.kind.as_ref()) {
            Some(Kind::StringValue(text)) => text,
            _ => return Err(ConfigError::new("append.record.value", "Only string value is allowed for record value")),
        };
        let value = Formatter::parse(text, true).map_err(|e| e.within("append.record.value"))?;
        Ok(Self::Add { key: record.key.clone(), value, action: append.action() })
    }

    /// The path with its query changed.
    pub(super) fn apply(&self, path: &[u8], context: &LogContext<'_>) -> Vec<u8> {
        let at = path.iter().position(|b| *b == b'?').unwrap_or(path.len());
        let query = path.get(at + 1..).unwrap_or_default();
        let mut parameters: Vec<Vec<u8>> =
            query.split(|b| *b == b'&').filter(|p| !p.is_empty()).map(<[u8]>::to_vec).collect();
        match self {
            Self::Remove(key) => parameters.retain(|parameter| !is_called(parameter, key)),
            Self::Add { key, value, action } => {
                let there = parameters.iter().any(|parameter| is_called(parameter, key));
                match action {
                    KeyValueAppendAction::AddIfAbsent if there => return path.to_vec(),
                    KeyValueAppendAction::OverwriteIfExists if !there => return path.to_vec(),
                    KeyValueAppendAction::OverwriteIfExistsOrAdd | KeyValueAppendAction::OverwriteIfExists => {
                        parameters.retain(|parameter| !is_called(parameter, key));
                    }
                    _ => {}
                }
                let mut plain = Vec::new();
                value.format(context, &mut plain);
                let mut parameter = encoded(key.as_bytes());
                parameter.push(b'=');
                parameter.extend(encoded(&plain));
                parameters.push(parameter);
            }
        }
        let mut out = path[..at].to_vec();
        if !parameters.is_empty() {
            out.push(b'?');
            out.extend(parameters.join(&b"&"[..]));
        }
        out
    }
}

fn is_called(parameter: &[u8], key: &str) -> bool {
    let name = parameter.split(|b| *b == b'=').next().unwrap_or_default();
    name == key.as_bytes() || decoded(name) == key.as_bytes()
}

fn decoded(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, tail)) = rest.split_first() {
        let hex = tail.get(..2).filter(|_| *first == b'%').and_then(|hex| std::str::from_utf8(hex).ok());
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                out.push(byte);
                rest = &tail[2..];
            }
            None => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    out
}

/// All but what RFC 3986 calls unreserved.
fn encoded(text: &[u8]) -> Vec<u8> {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    let mut out = Vec::with_capacity(text.len());
    for b in text {
        if b.is_ascii_alphanumeric() || b"-._~".contains(b) {
            out.push(*b);
        } else {
            out.extend([b'%', HEX[usize::from(b >> 4)], HEX[usize::from(b & 15)]]);
        }
    }
    out
}
