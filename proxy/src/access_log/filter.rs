//! Which streams are logged: `config.accesslog.v3.AccessLogFilter`.

use nuncio_api::pb::envoy::config::accesslog::v3::{
    self as pb, access_log_filter::FilterSpecifier, comparison_filter::Op,
};
use nuncio_api::pb::envoy::r#type::matcher::v3::metadata_matcher::path_segment::Segment;
use nuncio_api::support::Entry;
use nuncio_api::supports;
use nuncio_core::access_log::LogContext;
use nuncio_core::error::ConfigError;
use nuncio_core::http::grpc_status;
use nuncio_core::matcher::{HeaderMatcher, ValueMatcher};
use nuncio_core::random::Rng;
use nuncio_core::runtime::{FractionalPercent, Runtime};
use nuncio_core::stream_info::ResponseFlag;
use tokio::time::Instant;

supports!(FILTER = "envoy.config.accesslog.v3.AccessLogFilter" {
    status_code_filter, duration_filter, not_health_check_filter, traceable_filter, runtime_filter, and_filter,
    or_filter, header_filter, response_flag_filter, grpc_status_filter, metadata_filter, log_type_filter
});
supports!(COMPARISON = "envoy.config.accesslog.v3.ComparisonFilter" { op, value });
supports!(RUNTIME_NUMBER = "envoy.config.core.v3.RuntimeUInt32" { default_value, runtime_key });
supports!(STATUS_CODE = "envoy.config.accesslog.v3.StatusCodeFilter" { comparison });
supports!(DURATION = "envoy.config.accesslog.v3.DurationFilter" { comparison });
supports!(NOT_HEALTH_CHECK = "envoy.config.accesslog.v3.NotHealthCheckFilter" {});
supports!(TRACEABLE = "envoy.config.accesslog.v3.TraceableFilter" {});
supports!(RUNTIME = "envoy.config.accesslog.v3.RuntimeFilter" {
    runtime_key, percent_sampled, use_independent_randomness
});
supports!(AND = "envoy.config.accesslog.v3.AndFilter" { filters });
supports!(OR = "envoy.config.accesslog.v3.OrFilter" { filters });
supports!(HEADER = "envoy.config.accesslog.v3.HeaderFilter" { header });
supports!(FLAG = "envoy.config.accesslog.v3.ResponseFlagFilter" { flags });
supports!(GRPC = "envoy.config.accesslog.v3.GrpcStatusFilter" { statuses, exclude });
supports!(METADATA = "envoy.config.accesslog.v3.MetadataFilter" { matcher, match_if_key_not_found });
supports!(LOG_TYPE = "envoy.config.accesslog.v3.LogTypeFilter" { types, exclude });

/// What is honoured of the messages read here.
pub static SUPPORTED: &[&Entry] = &[
    &FILTER,
    &COMPARISON,
    &RUNTIME_NUMBER,
    &STATUS_CODE,
    &DURATION,
    &NOT_HEALTH_CHECK,
    &TRACEABLE,
    &RUNTIME,
    &AND,
    &OR,
    &HEADER,
    &FLAG,
    &GRPC,
    &METADATA,
    &LOG_TYPE,
];

/// A compiled filter.
#[derive(Debug)]
pub enum Filter {
    StatusCode(Comparison),
    Duration(Comparison),
    NotHealthCheck,
    /// Streams that are traced: none are.
    Traceable,
    Runtime {
        key: Box<str>,
        fraction: FractionalPercent,
        independent: bool,
    },
    And(Box<[Filter]>),
    Or(Box<[Filter]>),
    Header(Box<HeaderMatcher>),
    /// One of these, or any at all.
    ResponseFlag(Box<[ResponseFlag]>),
    GrpcStatus {
        statuses: Box<[i64]>,
        exclude: bool,
    },
    Metadata {
        namespace: Box<str>,
        path: Box<[String]>,
        value: Option<Box<ValueMatcher>>,
        absent: bool,
    },
    LogType {
        types: Box<[i32]>,
        exclude: bool,
    },
}

#[derive(Debug)]
pub struct Comparison {
    op: Op,
    value: u64,
    key: Box<str>,
}

/// Deeper nesting of and/or is refused: nobody writes it, and evaluation recurses.
const MAX_DEPTH: usize = 50;

impl Filter {
    pub fn from_proto(message: &pb::AccessLogFilter) -> Result<Self, ConfigError> {
        Self::at_depth(message, 0)
    }

    fn at_depth(message: &pb::AccessLogFilter, depth: usize) -> Result<Self, ConfigError> {
        let Some(specifier) = &message.filter_specifier else {
            return Err(ConfigError::new("filter_specifier", "is required"));
        };
        if depth > MAX_DEPTH {
            return Err(ConfigError::new("", format!("more than {MAX_DEPTH} levels")));
        }
        Ok(match specifier {
            FilterSpecifier::StatusCodeFilter(f) => {
                Self::StatusCode(Comparison::new(f.comparison.as_ref()).map_err(|e| e.within("status_code_filter"))?)
            }
            FilterSpecifier::DurationFilter(f) => {
                Self::Duration(Comparison::new(f.comparison.as_ref()).map_err(|e| e.within("duration_filter"))?)
            }
            FilterSpecifier::NotHealthCheckFilter(_) => Self::NotHealthCheck,
            FilterSpecifier::TraceableFilter(_) => Self::Traceable,
            FilterSpecifier::RuntimeFilter(f) => {
                let none = FractionalPercent { numerator: 0, denominator: 100 };
                let fraction = f.percent_sampled.as_ref().map_or(none, FractionalPercent::from_proto);
                Self::Runtime {
                    key: f.runtime_key.as_str().into(),
                    fraction,
                    independent: f.use_independent_randomness,
                }
            }
            FilterSpecifier::AndFilter(f) => Self::And(list(&f.filters, depth, "and_filter")?),
            FilterSpecifier::OrFilter(f) => Self::Or(list(&f.filters, depth, "or_filter")?),
            FilterSpecifier::HeaderFilter(f) => {
                let Some(header) = &f.header else {
                    return Err(ConfigError::new("header_filter.header", "value is required"));
                };
                let matcher = HeaderMatcher::from_proto(header).map_err(|e| e.within("header_filter.header"))?;
                Self::Header(Box::new(matcher))
            }
            FilterSpecifier::ResponseFlagFilter(f) => Self::ResponseFlag(flags(&f.flags)?),
            FilterSpecifier::GrpcStatusFilter(f) => {
                Self::GrpcStatus { statuses: f.statuses.iter().map(|s| i64::from(*s)).collect(), exclude: f.exclude }
            }
            FilterSpecifier::MetadataFilter(f) => metadata(f).map_err(|e| e.within("metadata_filter"))?,
            FilterSpecifier::LogTypeFilter(f) => Self::LogType { types: f.types.as_slice().into(), exclude: f.exclude },
            FilterSpecifier::ExtensionFilter(f) => {
                return Err(ConfigError::new("extension_filter", format!("'{}' is not implemented", f.name)));
            }
        })
    }

    /// Whether the record is to be written.
    pub fn accepts(&self, record: &LogContext<'_>, rng: &Rng, runtime: &dyn Runtime) -> bool {
        let info = record.info;
        match self {
            Self::StatusCode(comparison) => comparison.holds(info.response_code.map_or(0, u64::from), runtime),
            Self::Duration(comparison) => {
                let end = info.timings.end.unwrap_or_else(Instant::now);
                comparison.holds(end.saturating_duration_since(info.start).as_millis() as u64, runtime)
            }
            Self::NotHealthCheck => !info.is_health_check,
            Self::Traceable => false,
            Self::Runtime { key, fraction, independent } => {
                let fraction = runtime.fraction(key).unwrap_or(*fraction);
                let of_request = if *independent { None } else { request_number(record) };
                fraction.includes(of_request.unwrap_or_else(|| rng.u64()))
            }
            Self::And(filters) => filters.iter().all(|f| f.accepts(record, rng, runtime)),
            Self::Or(filters) => filters.iter().any(|f| f.accepts(record, rng, runtime)),
            Self::Header(matcher) => record.request.is_some_and(|head| matcher.matches(&head.headers)),
            Self::ResponseFlag(flags) if flags.is_empty() => !info.flags.is_empty(),
            Self::ResponseFlag(flags) => flags.iter().any(|flag| info.flags.contains(*flag)),
            Self::GrpcStatus { statuses, exclude } => {
                let said = grpc_status::of_response(record.response, record.trailers);
                let status = said.filter(|s| (0..=16).contains(s));
                let status = status.or_else(|| info.response_code.map(grpc_status::from_http)).unwrap_or(2);
                statuses.contains(&status) != *exclude
            }
            Self::Metadata { namespace, path, value, absent } => match info.dynamic_metadata.get(namespace, path) {
                Some(found) if found.kind.is_some() => value.as_ref().is_some_and(|m| m.matches(Some(found))),
                _ => *absent,
            },
            Self::LogType { types, exclude } => types.contains(&record.log_type.number()) != *exclude,
        }
    }
}

fn list(filters: &[pb::AccessLogFilter], depth: usize, name: &str) -> Result<Box<[Filter]>, ConfigError> {
    let compile = |(i, filter)| {
        Filter::at_depth(filter, depth + 1).map_err(|e: ConfigError| e.within(&format!("{name}.filters[{i}]")))
    };
    filters.iter().enumerate().map(compile).collect()
}

fn flags(names: &[String]) -> Result<Box<[ResponseFlag]>, ConfigError> {
    let find = |(i, name): (usize, &String)| {
        ResponseFlag::from_short(name).ok_or_else(|| {
            ConfigError::new(format!("response_flag_filter.flags[{i}]"), format!("there is no response flag '{name}'"))
        })
    };
    names.iter().enumerate().map(find).collect()
}

fn metadata(message: &pb::MetadataFilter) -> Result<Filter, ConfigError> {
    let absent = message.match_if_key_not_found.as_ref().is_none_or(|v| v.value);
    let Some(matcher) = &message.matcher else {
        return Ok(Filter::Metadata { namespace: "".into(), path: Box::default(), value: None, absent });
    };
    let path = matcher.path.iter().filter_map(|segment| segment.segment.as_ref().map(|Segment::Key(key)| key.clone()));
    let value = matcher.value.as_ref().map(ValueMatcher::from_proto).transpose();
    let value = value.map_err(|e| e.within("matcher.value"))?;
    Ok(Filter::Metadata {
        namespace: matcher.filter.as_str().into(),
        path: path.collect(),
        value: value.map(Box::new),
        absent,
    })
}

/// The number that a request id stands for, the same on every hop: its first eight hexadecimal digits.
fn request_number(record: &LogContext<'_>) -> Option<u64> {
    let id = record.request?.headers.get_str("x-request-id")?;
    u64::from_str_radix(id.get(..8)?, 16).ok()
}

// === impl Comparison ===

impl Comparison {
    fn new(message: Option<&pb::ComparisonFilter>) -> Result<Self, ConfigError> {
        let message = message.ok_or_else(|| ConfigError::new("comparison", "value is required"))?;
        let value = message.value.as_ref().ok_or_else(|| ConfigError::new("comparison.value", "value is required"))?;
        let key = value.runtime_key.as_str().into();
        Ok(Self { op: message.op(), value: u64::from(value.default_value), key })
    }

    fn holds(&self, actual: u64, runtime: &dyn Runtime) -> bool {
        let set = if self.key.is_empty() { None } else { runtime.integer(&self.key) };
        let value = set.unwrap_or(self.value);
        match self.op {
            Op::Eq => actual == value,
            Op::Ge => actual >= value,
            Op::Le => actual <= value,
            Op::Ne => actual != value,
        }
    }
}
