//! Lists of header additions and removals, as routes, virtual hosts and clusters have them.
//!
//! In Envoy's order: removals first; then every value is formatted, against the head as it is
//! then; then the overwrites, then the additions. So an addition does not see the one before it,
//! and of two `ADD_IF_ABSENT` for one name both are added.

use nuncio_api::pb::envoy::config::core::v3::{HeaderValueOption, header_value_option::HeaderAppendAction};
use nuncio_api::supports;
use nuncio_core::access_log::LogContext;
use nuncio_core::error::ConfigError;
use nuncio_core::http::{HeaderMap, RequestHead, ResponseHead};
use nuncio_core::matcher::header::lookup_name;

use super::Formatter;

supports!(pub(super) OPTION = "envoy.config.core.v3.HeaderValueOption" {
    header, append, append_action, keep_empty_value
});
// Envoy takes a raw_value and sends nothing: refused here.
supports!(pub(super) VALUE = "envoy.config.core.v3.HeaderValue" { key, value });

/// A compiled list.
#[derive(Debug, Default)]
pub struct HeaderMutations {
    remove: Box<[Box<str>]>,
    add: Box<[Addition]>,
}

#[derive(Debug)]
struct Addition {
    name: Box<str>,
    value: Formatter,
    action: Action,
    keep_empty: bool,
    /// Where Envoy keeps one value of this header, a second one is joined with a comma.
    joins: Joins,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    AppendOrAdd,
    AddIfAbsent,
    OverwriteOrAdd,
    OverwriteIfPresent,
}

#[derive(Debug, Clone, Copy)]
struct Joins {
    request: bool,
    response: bool,
}

/// The formatted values of one list, recycled by whoever applies lists.
#[derive(Debug, Default)]
pub struct MutationValues {
    bytes: Vec<u8>,
    /// Index of the addition and end of its value in `bytes`.
    values: Vec<(usize, usize)>,
}

impl HeaderMutations {
    pub fn new(add: &[HeaderValueOption], remove: &[String]) -> Result<Self, ConfigError> {
        let remove = remove.iter().enumerate().map(|(i, name)| {
            if is_protected(name) {
                return Err(ConfigError::new(format!("remove[{i}]"), ":-prefixed or host headers may not be removed"));
            }
            Ok(name.to_ascii_lowercase().into_boxed_str())
        });
        let add =
            add.iter().enumerate().map(|(i, option)| Addition::new(option).map_err(|e| e.within(&format!("add[{i}]"))));
        Ok(Self { remove: remove.collect::<Result<_, _>>()?, add: add.collect::<Result<_, _>>()? })
    }

    pub fn is_empty(&self) -> bool {
        self.remove.is_empty() && self.add.is_empty()
    }

    /// Changes a request. `context` tells all but the request, which is seen as it is here.
    pub fn apply_to_request(&self, head: &mut RequestHead, context: &LogContext<'_>, values: &mut MutationValues) {
        self.remove_from(&mut head.headers);
        self.evaluate(&LogContext { request: Some(&*head), ..*context }, &head.headers, values);
        self.write(&mut head.headers, values, |joins| joins.request);
    }

    /// Changes a response. `context` tells all but the response, which is seen as it is here.
    pub fn apply_to_response(&self, head: &mut ResponseHead, context: &LogContext<'_>, values: &mut MutationValues) {
        self.remove_from(&mut head.headers);
        self.evaluate(&LogContext { response: Some(&*head), ..*context }, &head.headers, values);
        self.write(&mut head.headers, values, |joins| joins.response);
    }

    /// Changes trailers.
    pub fn apply_to_trailers(&self, trailers: &mut HeaderMap, context: &LogContext<'_>, values: &mut MutationValues) {
        self.remove_from(trailers);
        self.evaluate(context, trailers, values);
        self.write(trailers, values, |_| false);
    }

    fn remove_from(&self, headers: &mut HeaderMap) {
        for name in &self.remove {
            headers.remove(name);
        }
    }

    fn evaluate(&self, context: &LogContext<'_>, headers: &HeaderMap, values: &mut MutationValues) {
        values.bytes.clear();
        values.values.clear();
        for (index, addition) in self.add.iter().enumerate() {
            let wanted = match addition.action {
                Action::AddIfAbsent => !headers.contains(&addition.name),
                Action::OverwriteIfPresent => headers.contains(&addition.name),
                Action::AppendOrAdd | Action::OverwriteOrAdd => true,
            };
            if !wanted {
                continue;
            }
            let start = values.bytes.len();
            addition.value.format(context, &mut values.bytes);
            if values.bytes.len() > start || addition.keep_empty {
                values.values.push((index, values.bytes.len()));
            }
        }
    }

    fn write(&self, headers: &mut HeaderMap, values: &MutationValues, joins: impl Fn(Joins) -> bool) {
        for overwrites in [true, false] {
            let mut start = 0;
            for (index, end) in &values.values {
                let value = &values.bytes[start..*end];
                start = *end;
                let addition = &self.add[*index];
                match addition.action {
                    Action::OverwriteOrAdd | Action::OverwriteIfPresent if overwrites => {
                        headers.set_given(&addition.name, value);
                    }
                    Action::AppendOrAdd | Action::AddIfAbsent if !overwrites => {
                        if joins(addition.joins) {
                            headers.append_to_value(&addition.name, ",", value);
                        } else {
                            headers.append(&*addition.name, value);
                        }
                    }
                    _ => {}
                }
            }
        }
    }
}

// === impl Addition ===

impl Addition {
    fn new(option: &HeaderValueOption) -> Result<Self, ConfigError> {
        let header = option.header.as_ref().ok_or_else(|| ConfigError::new("header", "value is required"))?;
        if is_protected(&header.key) {
            return Err(ConfigError::new("header.key", ":-prefixed or host headers may not be modified"));
        }
        let unset = option.append_action() == HeaderAppendAction::AppendIfExistsOrAdd;
        #[allow(deprecated)]
        let append = option.append.map(|append| append.value);
        let action = match (append, option.append_action()) {
            (Some(_), _) if !unset => {
                let reason = "Both append and append_action are set and it's not allowed";
                return Err(ConfigError::new("append_action", reason));
            }
            (Some(false), _) | (None, HeaderAppendAction::OverwriteIfExistsOrAdd) => Action::OverwriteOrAdd,
            (None, HeaderAppendAction::AddIfAbsent) => Action::AddIfAbsent,
            (None, HeaderAppendAction::OverwriteIfExists) => Action::OverwriteIfPresent,
            (Some(true), _) | (None, HeaderAppendAction::AppendIfExistsOrAdd) => Action::AppendOrAdd,
        };
        let name = lookup_name(&header.key);
        Ok(Self {
            joins: Joins {
                request: JOINED_IN_REQUESTS.contains(&&*name),
                response: JOINED_IN_RESPONSES.contains(&&*name),
            },
            name: name.into(),
            value: Formatter::parse(&header.value, true).map_err(|e| e.within("header.value"))?,
            action,
            keep_empty: option.keep_empty_value,
        })
    }
}

fn is_protected(name: &str) -> bool {
    name.starts_with(':') || name.eq_ignore_ascii_case("host")
}

/// Headers of which Envoy 1.40 keeps one value in a request.
const JOINED_IN_REQUESTS: [&str; 58] = [
    "accept",
    "accept-encoding",
    "access-control-request-headers",
    "access-control-request-method",
    "access-control-request-private-network",
    "authentication",
    "authorization",
    "cache-control",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "expect",
    "grpc-accept-encoding",
    "grpc-timeout",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "keep-alive",
    "origin",
    "pragma",
    "proxy-connection",
    "proxy-status",
    "referer",
    "te",
    "transfer-encoding",
    "upgrade",
    "user-agent",
    "via",
    "x-client-trace-id",
    "x-envoy-attempt-count",
    "x-envoy-decorator-operation",
    "x-envoy-downstream-service-cluster",
    "x-envoy-downstream-service-node",
    "x-envoy-expected-rq-timeout-ms",
    "x-envoy-external-address",
    "x-envoy-force-trace",
    "x-envoy-hedge-on-per-try-timeout",
    "x-envoy-internal",
    "x-envoy-is-timeout-retry",
    "x-envoy-max-retries",
    "x-envoy-original-host",
    "x-envoy-original-path",
    "x-envoy-retriable-header-names",
    "x-envoy-retriable-status-codes",
    "x-envoy-retry-grpc-on",
    "x-envoy-retry-on",
    "x-envoy-upstream-rq-per-try-timeout-ms",
    "x-envoy-upstream-rq-timeout-ms",
    "x-envoy-upstream-stream-duration-ms",
    "x-forwarded-client-cert",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-proto",
    "x-request-id",
];

/// The same for responses.
const JOINED_IN_RESPONSES: [&str; 36] = [
    "access-control-allow-credentials",
    "access-control-allow-headers",
    "access-control-allow-methods",
    "access-control-allow-origin",
    "access-control-expose-headers",
    "access-control-max-age",
    "age",
    "cache-control",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "date",
    "etag",
    "expires",
    "grpc-message",
    "grpc-status",
    "keep-alive",
    "last-modified",
    "location",
    "proxy-connection",
    "proxy-status",
    "server",
    "transfer-encoding",
    "upgrade",
    "vary",
    "via",
    "x-envoy-attempt-count",
    "x-envoy-decorator-operation",
    "x-envoy-degraded",
    "x-envoy-immediate-health-check-fail",
    "x-envoy-ratelimited",
    "x-envoy-upstream-canary",
    "x-envoy-upstream-healthchecked-cluster",
    "x-envoy-upstream-service-time",
    "x-request-id",
];
