//! Access logs: which records are written, in which form, and to which file.
//!
//! - [`filter`]: which records
//! - [`mod@file`]: the files and the one thread that writes them
//!
//! ```text
//! AccessLog messages ── check (main) ──► AccessLogConfig ── instantiate (worker) ──► AccessLog::log
//!      record ──► Filter ──► Format ──► the worker's buffer ──► bounded queue ──► writer thread ──► file
//! ```

pub mod file;
pub mod filter;

use std::rc::Rc;
use std::sync::Arc;

use nuncio_api::pb::envoy::config::accesslog::v3::{self as pb, access_log::ConfigType};
use nuncio_api::pb::envoy::config::core::v3::SubstitutionFormatString;
use nuncio_api::pb::envoy::extensions::access_loggers::file::v3::{FileAccessLog, file_access_log::AccessLogFormat};
use nuncio_api::pb::envoy::extensions::access_loggers::stream::v3::{
    StderrAccessLog, StdoutAccessLog, stderr_access_log, stdout_access_log,
};
use nuncio_api::pb::google::protobuf::Any;
use nuncio_api::support::Entry;
use nuncio_api::supports;
use nuncio_core::access_log::{AccessLog, AccessLogConfig, LogBuffer, LogContext, LogFile, LogTarget};
use nuncio_core::error::ConfigError;
use nuncio_core::extension::{FactoryContext, WorkerContext};
use nuncio_core::random::Rng;
use nuncio_core::runtime::Runtime;

use crate::format::{Extensions, Format, Formatter, JsonFormatter};
use filter::Filter;

supports!(ACCESS_LOG = "envoy.config.accesslog.v3.AccessLog" { name, filter, typed_config });
supports!(FILE = "envoy.extensions.access_loggers.file.v3.FileAccessLog" {
    path, format, json_format, typed_json_format, log_format
});
supports!(STDOUT = "envoy.extensions.access_loggers.stream.v3.StdoutAccessLog" { log_format });
supports!(STDERR = "envoy.extensions.access_loggers.stream.v3.StderrAccessLog" { log_format });

/// What is honoured of the messages read here.
pub static SUPPORTED: &[&Entry] = &[&ACCESS_LOG, &FILE, &STDOUT, &STDERR];

/// Reads the list of access logs that stands at `path`: all that is wrong with it at once. Opens their files.
pub fn check(
    path: &str,
    logs: &[pb::AccessLog],
    context: &FactoryContext<'_>,
) -> Result<Vec<Arc<dyn AccessLogConfig>>, Vec<ConfigError>> {
    let (mut made, mut errors) = (Vec::new(), Vec::new());
    for (i, log) in logs.iter().enumerate() {
        match check_one(log, context) {
            Ok(config) => made.push(config),
            Err(error) => errors.push(error.within(&format!("{path}[{i}]"))),
        }
    }
    if errors.is_empty() { Ok(made) } else { Err(errors) }
}

fn check_one(log: &pb::AccessLog, context: &FactoryContext<'_>) -> Result<Arc<dyn AccessLogConfig>, ConfigError> {
    let filter = log.filter.as_ref().map(Filter::from_proto).transpose().map_err(|e| e.within("filter"))?;
    let none = Any::default();
    let config = match &log.config_type {
        Some(ConfigType::TypedConfig(config)) => config,
        None => &none,
    };
    let (target, format) = destination(&log.name, config).map_err(|e| e.within("typed_config"))?;
    let file = context.log_files.open(&target).map_err(|e| e.within("typed_config"))?;
    Ok(Arc::new(FileLogConfig { filter: filter.map(Arc::new), format: Arc::new(format), file }))
}

fn destination(name: &str, config: &Any) -> Result<(LogTarget, Format), ConfigError> {
    use nuncio_api::prost::Name;
    let opened = nuncio_api::any::open(config)?;
    if opened.type_name == FileAccessLog::full_name() {
        let message: FileAccessLog = nuncio_api::any::decode(&opened.bytes)?;
        return Ok((LogTarget::Path(message.path), file_format(message.access_log_format.as_ref())?));
    }
    if opened.type_name == StdoutAccessLog::full_name() {
        let message: StdoutAccessLog = nuncio_api::any::decode(&opened.bytes)?;
        let format = message.access_log_format.map(|stdout_access_log::AccessLogFormat::LogFormat(format)| format);
        return Ok((LogTarget::Stdout, log_format(format.as_ref())?));
    }
    if opened.type_name == StderrAccessLog::full_name() {
        let message: StderrAccessLog = nuncio_api::any::decode(&opened.bytes)?;
        let format = message.access_log_format.map(|stderr_access_log::AccessLogFormat::LogFormat(format)| format);
        return Ok((LogTarget::Stderr, log_format(format.as_ref())?));
    }
    let kind = &opened.type_name;
    Err(if kind.starts_with("envoy.extensions.access_loggers.") {
        ConfigError::new("", format!("{kind} is not implemented"))
    } else {
        ConfigError::new("", format!("Didn't find a registered implementation for '{name}' with type URL: '{kind}'"))
    })
}

#[allow(deprecated)]
fn file_format(format: Option<&AccessLogFormat>) -> Result<Format, ConfigError> {
    match format {
        None => Ok(Format::default_text()),
        Some(AccessLogFormat::Format(text)) if text.is_empty() => Ok(Format::default_text()),
        Some(AccessLogFormat::Format(text)) => {
            Formatter::parse(text, false).map(Format::Text).map_err(|e| e.within("format"))
        }
        // Envoy keeps types in both.
        Some(AccessLogFormat::JsonFormat(fields) | AccessLogFormat::TypedJsonFormat(fields)) => {
            JsonFormatter::new(fields, false, Extensions::default())
                .map(Format::Json)
                .map_err(|e| e.within("json_format"))
        }
        Some(AccessLogFormat::LogFormat(format)) => log_format(Some(format)),
    }
}

fn log_format(format: Option<&SubstitutionFormatString>) -> Result<Format, ConfigError> {
    match format {
        None => Ok(Format::default_text()),
        Some(format) => Format::from_proto(format).map_err(|e| e.within("log_format")),
    }
}

/// A checked log to a file or a standard stream.
struct FileLogConfig {
    filter: Option<Arc<Filter>>,
    format: Arc<Format>,
    file: Arc<dyn LogFile>,
}

/// The same on one worker.
struct FileLog {
    filter: Option<Arc<Filter>>,
    format: Arc<Format>,
    buffer: Rc<dyn LogBuffer>,
    rng: Rng,
    runtime: Rc<dyn Runtime>,
}

impl AccessLogConfig for FileLogConfig {
    fn instantiate(&self, worker: &WorkerContext) -> Box<dyn AccessLog> {
        Box::new(FileLog {
            filter: self.filter.clone(),
            format: self.format.clone(),
            buffer: self.file.buffer(),
            rng: worker.rng.clone(),
            runtime: worker.runtime.clone(),
        })
    }
}

impl AccessLog for FileLog {
    fn log(&self, record: &LogContext<'_>) {
        let record = &LogContext { rng: Some(&self.rng), ..*record };
        if self.filter.as_ref().is_none_or(|filter| filter.accepts(record, &self.rng, &*self.runtime)) {
            self.buffer.append(&mut |out| self.format.format(record, out));
        }
    }
}

#[cfg(test)]
mod tests;
