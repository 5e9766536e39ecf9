//! The proxy's own log: Envoy's levels and logger names over `tracing`, changeable while it runs.
//!
//! An event belongs to one *logger*, found from its target: a target that is one of Envoy's logger names is that
//! logger, a module path is looked up in [`OWNERS`]. Every logger has a level of its own, which `--log-level`,
//! `--component-log-level` and `POST /logging` set. A line that is not wanted costs one relaxed load: `tracing` caches
//! for each call site whether anybody listens, and a change of level empties that cache.
//!
//! Lines go to the standard error or to the file of `--log-path`, each with one write. Dates are UTC.

use std::fmt;
use std::io::{self, Write};
use std::str::FromStr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use nuncio_core::time::WallClock;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber, span};

mod pattern;

use pattern::{Line, Pattern};

/// How much is logged; what is less urgent than the level is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Level {
    Trace,
    Debug,
    Info,
    Warning,
    Error,
    /// `tracing` knows no level above error, so this silences all lines that can be silenced.
    Critical,
    Off,
}

/// Envoy's loggers, in the order in which `/logging` lists them. Start scripts name them, so all are known here,
/// also those that nothing writes to.
pub const LOGGERS: &[&str] = &[
    "a2a",
    "admin",
    "ai_protocol_manager",
    "alternate_protocols_cache",
    "aws",
    "assert",
    "backtrace",
    "basic_auth",
    "cache_filter",
    "client",
    "config",
    "connection",
    "conn_handler",
    "compression",
    "credential_injector",
    "decompression",
    "dns",
    "dubbo",
    "envoy_bug",
    "ext_authz",
    "ext_proc",
    "rocketmq",
    "file",
    "filter",
    "forward_proxy",
    "geolocation",
    "grpc",
    "happy_eyeballs",
    "hc",
    "health_checker",
    "http",
    "http2",
    "hystrix",
    "init",
    "io",
    "jwt",
    "json_rpc",
    "kafka",
    "key_value_store",
    "lua",
    "local_rate_limit",
    "main",
    "matcher",
    "mcp",
    "misc",
    "mongo",
    "multi_connection",
    "notification",
    "oauth2",
    "quic",
    "quic_stream",
    "pool",
    "rate_limit_quota",
    "rbac",
    "rds",
    "redis",
    "router",
    "runtime",
    "stats",
    "secret",
    "sse",
    "tap",
    "testing",
    "thrift",
    "tracing",
    "upstream",
    "udp",
    "wasm",
    "websocket",
    "golang",
    "stats_sinks",
    "dynamic_modules",
    "ip_tagging",
];

/// Which logger the lines of a module belong to; the longest path that fits wins, the rest is `main`.
const OWNERS: &[(&str, &str)] = &[
    ("h2", "http2"),
    ("hickory_proto", "dns"),
    ("hickory_resolver", "dns"),
    ("hyper", "admin"),
    ("nuncio::access_log", "file"),
    ("nuncio::admin", "admin"),
    ("nuncio::codec", "http"),
    ("nuncio::format", "http"),
    ("nuncio::http", "http"),
    ("nuncio::http::filters", "filter"),
    ("nuncio::http::router", "router"),
    ("nuncio::listener", "conn_handler"),
    ("nuncio::net", "connection"),
    ("nuncio::network", "filter"),
    ("nuncio::server::runtime", "runtime"),
    ("nuncio::stats_sink", "stats_sinks"),
    ("nuncio::tls", "connection"),
    ("nuncio::upstream", "upstream"),
    ("nuncio::upstream::pool", "pool"),
    ("nuncio_api", "config"),
    ("nuncio_authz", "filter"),
    ("nuncio_authz::ext_authz", "ext_authz"),
    ("nuncio_authz::rbac", "rbac"),
    ("nuncio_core::stats", "stats"),
    ("nuncio_discovery", "config"),
    ("nuncio_discovery::dns", "dns"),
    ("nuncio_discovery::sources", "upstream"),
    ("nuncio_discovery::xds", "config"),
    ("nuncio_healthcheck", "hc"),
    ("nuncio_healthcheck::outlier", "upstream"),
    ("rustls", "connection"),
];

/// What the command line says about the log.
pub struct Settings<'a> {
    pub level: Level,
    pub component_levels: &'a [(String, Level)],
    pub format: &'a str,
    /// Write control characters of a message as escapes.
    pub escaped: bool,
    /// Empty: the standard error.
    pub path: &'a str,
}

/// The loggers with their levels, and where lines go. One for the process.
pub struct Loggers {
    levels: Vec<AtomicU8>,
    pattern: Pattern,
    clock: WallClock,
    path: String,
    /// `None` where the standard error is meant or the file could not be opened. Held for one write; the data path
    /// does not log.
    file: Mutex<Option<std::fs::File>>,
}

/// Begins to log. To be called once, before the first thread is made.
pub fn init(settings: &Settings<'_>) -> Arc<Loggers> {
    let loggers = Arc::new(Loggers::new(settings, WallClock::System));
    let failure = loggers.reopen().err();
    // A second call, as in tests, keeps the first subscriber.
    let _ = tracing::subscriber::set_global_default(Log(Arc::clone(&loggers)));
    if let Some(error) = failure {
        tracing::error!(target: "main", "cannot open the log file '{}': {error}", settings.path);
    }
    loggers
}

/// Whether a logger has that name.
pub fn is_logger(name: &str) -> bool {
    LOGGERS.contains(&name)
}

fn index_of(name: &str) -> Option<usize> {
    LOGGERS.iter().position(|logger| *logger == name)
}

/// The logger an event's target belongs to.
fn owner(target: &str) -> usize {
    if let Some(index) = index_of(target) {
        return index;
    }
    let fits = |path: &str| target.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"));
    let name =
        OWNERS.iter().filter(|(path, _)| fits(path)).max_by_key(|(path, _)| path.len()).map_or("main", |(_, n)| n);
    index_of(name).unwrap_or_default()
}

// === impl Level ===

impl Level {
    pub const ALL: [Level; 7] =
        [Level::Trace, Level::Debug, Level::Info, Level::Warning, Level::Error, Level::Critical, Level::Off];

    /// As `/logging` and log lines have it.
    pub fn name(self) -> &'static str {
        match self {
            Level::Trace => "trace",
            Level::Debug => "debug",
            Level::Info => "info",
            Level::Warning => "warning",
            Level::Error => "error",
            Level::Critical => "critical",
            Level::Off => "off",
        }
    }

    fn from_index(index: u8) -> Level {
        Level::ALL.get(usize::from(index)).copied().unwrap_or(Level::Off)
    }
}

impl FromStr for Level {
    type Err = ();

    fn from_str(text: &str) -> Result<Level, ()> {
        let text = if text == "warn" { "warning" } else { text };
        Level::ALL.into_iter().find(|level| level.name() == text).ok_or(())
    }
}

impl From<&tracing::Level> for Level {
    fn from(level: &tracing::Level) -> Level {
        match *level {
            tracing::Level::TRACE => Level::Trace,
            tracing::Level::DEBUG => Level::Debug,
            tracing::Level::INFO => Level::Info,
            tracing::Level::WARN => Level::Warning,
            tracing::Level::ERROR => Level::Error,
        }
    }
}

// === impl Loggers ===

impl Loggers {
    pub fn new(settings: &Settings<'_>, clock: WallClock) -> Loggers {
        let levels = LOGGERS.iter().map(|_| AtomicU8::new(settings.level as u8)).collect();
        let loggers = Loggers {
            levels,
            pattern: Pattern::new(settings.format, settings.escaped),
            clock,
            path: settings.path.to_owned(),
            file: Mutex::new(None),
        };
        for (name, level) in settings.component_levels {
            loggers.set(name, *level);
        }
        loggers
    }

    /// Sets one logger's level. False: there is no such logger.
    pub fn set(&self, name: &str, level: Level) -> bool {
        let Some(slot) = index_of(name).and_then(|index| self.levels.get(index)) else { return false };
        slot.store(level as u8, Ordering::Relaxed);
        tracing::callsite::rebuild_interest_cache();
        true
    }

    pub fn set_all(&self, level: Level) {
        for slot in &self.levels {
            slot.store(level as u8, Ordering::Relaxed);
        }
        tracing::callsite::rebuild_interest_cache();
    }

    /// Every logger and its level, in Envoy's order.
    pub fn levels(&self) -> impl Iterator<Item = (&'static str, Level)> {
        let level = |slot: &AtomicU8| Level::from_index(slot.load(Ordering::Relaxed));
        LOGGERS.iter().copied().zip(self.levels.iter().map(level))
    }

    /// Opens the file of `--log-path` anew, for log rotation. Without a file there is nothing to do.
    pub fn reopen(&self) -> io::Result<()> {
        if self.path.is_empty() {
            return Ok(());
        }
        let file = std::fs::OpenOptions::new().create(true).append(true).open(&self.path)?;
        *self.file.lock().unwrap_or_else(PoisonError::into_inner) = Some(file);
        Ok(())
    }

    fn wants(&self, metadata: &Metadata<'_>) -> bool {
        let slot = self.levels.get(owner(metadata.target()));
        slot.is_some_and(|slot| Level::from(metadata.level()) as u8 >= slot.load(Ordering::Relaxed))
    }

    fn most_talkative(&self) -> LevelFilter {
        match self.levels().map(|(_, level)| level).min() {
            Some(Level::Trace) => LevelFilter::TRACE,
            Some(Level::Debug) => LevelFilter::DEBUG,
            Some(Level::Info) => LevelFilter::INFO,
            Some(Level::Warning) => LevelFilter::WARN,
            Some(Level::Error) => LevelFilter::ERROR,
            Some(Level::Critical | Level::Off) | None => LevelFilter::OFF,
        }
    }

    /// A log that cannot be written must not hurt: what fails here is lost.
    fn write(&self, line: &str) {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = match file.as_mut() {
            Some(file) => file.write_all(line.as_bytes()),
            None => io::stderr().write_all(line.as_bytes()),
        };
    }
}

// === The subscriber ===

/// Spans are not used in this proxy, and libraries' spans are not shown.
struct Log(Arc<Loggers>);

impl Subscriber for Log {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if metadata.is_event() && self.0.wants(metadata) { Interest::always() } else { Interest::never() }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.0.most_talkative())
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && self.0.wants(metadata)
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let metadata = event.metadata();
        let mut text = Text::default();
        event.record(&mut text);
        let thread = std::thread::current();
        let line = Line {
            since_epoch: self.0.clock.since_epoch(),
            thread: thread.name().unwrap_or("-"),
            level: Level::from(metadata.level()),
            logger: LOGGERS[owner(metadata.target())],
            file: metadata.file().unwrap_or("-"),
            line: metadata.line().unwrap_or(0),
            module: metadata.module_path().unwrap_or("-"),
            message: &text.message,
            fields: &text.fields,
        };
        let mut out = String::with_capacity(160);
        self.0.pattern.render(&line, &mut out);
        out.push('\n');
        self.0.write(&out);
    }
}

/// An event's message, and its fields as ` name=value`.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, format_args!("{value:?}"));
    }
}

impl Text {
    fn add(&mut self, field: &Field, value: fmt::Arguments<'_>) {
        use fmt::Write;
        // Writing to a String cannot fail, but a value's own formatter may say so: the rest of the line still counts.
        let _ = match field.name() {
            "message" => self.message.write_fmt(value),
            name => write!(self.fields, " {name}={value}"),
        };
    }
}

#[cfg(test)]
mod tests;
