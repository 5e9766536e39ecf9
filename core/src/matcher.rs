//! Matchers: what routes, RBAC policies, access logs and filters ask of strings, headers, paths,
//! addresses and metadata. Each is compiled once from its Envoy message and then looks at bytes,
//! so that a value which is not UTF-8 is never skipped.
//!
//! - [`string`]: exact, prefix, suffix, contains, regex
//! - [`regex`]: RE2's dialect on a linear-time engine, full match, substitution
//! - [`header`], [`query`], [`cookie`](mod@cookie), [`path`], [`uri_template`]: parts of a request head
//! - [`cidr`]: lists of address ranges
//! - [`san`]: names of a certificate
//! - [`value`], [`metadata`]: structured metadata and filter state

pub mod cidr;
pub mod cookie;
pub mod header;
pub mod metadata;
pub mod path;
pub mod query;
pub mod regex;
pub mod san;
pub mod string;
pub mod uri_template;
pub mod value;

pub use cidr::CidrList;
pub use cookie::{CookieMatcher, cookie};
pub use header::HeaderMatcher;
pub use metadata::{FilterStateMatcher, MetadataMatcher};
pub use path::PathMatcher;
pub use query::{QueryParameterMatcher, query_parameter};
pub use regex::{Regex, RegexRewrite};
pub use san::SanMatcher;
pub use string::StringMatcher;
pub use uri_template::UriTemplate;
pub use value::ValueMatcher;

use nuncio_api::support::Entry;

/// What is honoured of the messages read here.
pub static SUPPORTED: &[&Entry] = &[
    &cidr::RANGE,
    &cidr::XDS_RANGE,
    &cidr::ADDRESS,
    &cookie::COOKIE,
    &header::HEADER,
    &header::INT64_RANGE,
    &metadata::METADATA,
    &metadata::SEGMENT,
    &metadata::FILTER_STATE,
    &path::PATH,
    &query::QUERY,
    &regex::REGEX,
    &regex::SUBSTITUTE,
    &san::SAN,
    &string::STRING,
    &uri_template::MATCH,
    &value::VALUE,
    &value::NULL,
    &value::DOUBLE,
    &value::DOUBLE_RANGE,
    &value::LIST,
    &value::OR,
];
