//! `%COMMAND%` operators: what access logs, header mutations and local replies print of a stream.
//!
//! A format string is compiled once; a record is then appended to a buffer without allocating.
//! Flow: `parse` text → parts → `operator` what a command names → `evaluate` its value for one
//! stream → [`escape`] as the place that prints it needs.
//!
//! - [`Formatter`]: text with commands in it
//! - [`JsonFormatter`]: a JSON object whose strings are such texts, types kept
//! - [`Format`]: either of them, as `core.v3.SubstitutionFormatString` says; [`BodyFormat`] for
//!   local replies
//! - [`header_mutation`]: lists of header additions and removals
//!
//! Values come from the network, so they never break the record they stand in: control bytes are
//! escaped (Envoy prints some of them raw), and JSON is valid whatever the bytes are.

mod date;
pub mod escape;
mod evaluate;
pub mod fuzz_bodies;
pub mod header_mutation;
mod json;
mod operator;
mod parse;
mod substitution;
mod value;

use std::sync::Arc;

use nuncio_api::support::Entry;
use nuncio_core::access_log::{LogContext, TextFormat, TextFormats};
use nuncio_core::error::ConfigError;

pub use header_mutation::{HeaderMutations, MutationValues};
pub use json::JsonFormatter;
pub use operator::Extensions;
pub use substitution::{BodyFormat, Format};

use evaluate::Kind;
use operator::Operator;

/// What is honoured of the messages read here.
pub static SUPPORTED: &[&Entry] = &[
    &substitution::FORMAT,
    &substitution::JSON_OPTIONS,
    &substitution::SOURCE,
    &substitution::EXTENSION,
    &substitution::REQ_WITHOUT_QUERY,
    &substitution::METADATA,
    &header_mutation::OPTION,
    &header_mutation::VALUE,
];

/// Envoy's format of HTTP and TCP records when none is configured.
pub const DEFAULT_FORMAT: &str = concat!(
    "[%START_TIME%] \"%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%\" ",
    "%RESPONSE_CODE% %RESPONSE_FLAGS% %BYTES_RECEIVED% %BYTES_SENT% %DURATION% ",
    "%RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)% \"%REQ(X-FORWARDED-FOR)%\" \"%REQ(USER-AGENT)%\" ",
    "\"%REQ(X-REQUEST-ID)%\" \"%REQ(:AUTHORITY)%\" \"%UPSTREAM_HOST%\"\n"
);

/// A compiled text format.
#[derive(Debug)]
pub struct Formatter {
    parts: Box<[Part]>,
    /// A command without a value prints nothing instead of `-`.
    omit_empty: bool,
}

#[derive(Debug)]
enum Part {
    Literal(Box<[u8]>),
    Command(Command),
}

/// An operator and the number of bytes its text may have.
#[derive(Debug)]
struct Command {
    operator: Operator,
    max_length: Option<usize>,
}

impl Formatter {
    pub fn parse(text: &str, omit_empty: bool) -> Result<Self, ConfigError> {
        Self::with_extensions(text, omit_empty, Extensions::default())
    }

    /// [`parse`](Self::parse) where formatter extensions add commands.
    pub fn with_extensions(text: &str, omit_empty: bool, extensions: Extensions) -> Result<Self, ConfigError> {
        let parts = parse::parts(text, extensions).map_err(|reason| ConfigError::new("", reason))?;
        Ok(Self { parts, omit_empty })
    }

    /// The text, if no command is in it.
    pub fn as_literal(&self) -> Option<&[u8]> {
        match &*self.parts {
            [] => Some(b""),
            [Part::Literal(text)] => Some(text),
            _ => None,
        }
    }

    /// Appends the text for one stream. Control bytes in values are escaped: what was one line in
    /// the format stays one line, and is a legal header value.
    pub fn format(&self, context: &LogContext<'_>, out: &mut Vec<u8>) {
        self.append(context, out, escape::controls);
    }

    /// [`format`](Self::format) for bodies, where every byte may stand.
    pub fn format_body(&self, context: &LogContext<'_>, out: &mut Vec<u8>) {
        self.append(context, out, |_, _| {});
    }

    fn append(&self, context: &LogContext<'_>, out: &mut Vec<u8>, escape: impl Fn(&mut Vec<u8>, usize)) {
        for part in &self.parts {
            match part {
                Part::Literal(text) => out.extend_from_slice(text),
                Part::Command(command) => {
                    let start = out.len();
                    match command.append_text(context, out) {
                        Kind::Missing if !self.omit_empty => out.push(b'-'),
                        Kind::Text => escape(out, start),
                        Kind::Missing | Kind::Blank | Kind::Number | Kind::Json => {}
                    }
                }
            }
        }
    }
}

/// Compiles formats for the rooms below this crate.
pub struct Formats;

impl TextFormats for Formats {
    fn compile(&self, text: &str) -> Result<Arc<dyn TextFormat>, ConfigError> {
        Ok(Arc::new(Formatter::parse(text, true)?))
    }
}

impl TextFormat for Formatter {
    fn append(&self, context: &LogContext<'_>, out: &mut Vec<u8>) {
        self.format(context, out);
    }
}

impl Command {
    /// Appends the value as text, cut to its maximum.
    fn append_text(&self, context: &LogContext<'_>, out: &mut Vec<u8>) -> Kind {
        let start = out.len();
        let kind = self.operator.append(context, out);
        self.cut(start, out);
        kind
    }

    /// Appends the value in its own type: numbers and structures are not cut.
    fn append_typed(&self, context: &LogContext<'_>, out: &mut Vec<u8>) -> Kind {
        let start = out.len();
        let kind = self.operator.append(context, out);
        if matches!(kind, Kind::Text) {
            self.cut(start, out);
        }
        kind
    }

    fn cut(&self, start: usize, out: &mut Vec<u8>) {
        if let Some(max) = self.max_length {
            out.truncate(start.saturating_add(max));
        }
    }
}

#[cfg(test)]
mod tests;
