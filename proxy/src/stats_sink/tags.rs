//! Which parts of a stat's name are tags: `cluster.web.upstream_rq_200` is `cluster.upstream_rq` with
//! `envoy.response_code` 200 and `envoy.cluster_name` web.
//!
//! Envoy's default rules are kept as a table; most of them compare whole tokens between dots. All rules look at the whole
//! name; what they take away is removed together at the end. Rules that can only match one first token are tried only for
//! names that begin with it, and after those that may match any name: this is also the order of the labels.

use memchr::memmem::Finder;
use nuncio_api::pb::envoy::config::metrics::v3 as pb;
use nuncio_api::pb::envoy::config::metrics::v3::tag_specifier::TagValue;
use nuncio_core::error::ConfigError;
use regex::Regex;
use std::collections::HashMap;
use std::ops::Range;

/// How a default rule finds its tag.
enum How {
    /// `…_rq_200`
    ResponseCode,
    /// `…_rq_2xx`
    ResponseCodeClass,
    /// Tokens: a word, `*` any one, `**` any number, `$` the tag.
    Tokens(&'static str),
    /// Group 1 goes, group 2 is the value. Only for names with the given part; not for the given value.
    Regex(&'static str, &'static str, &'static str),
}

use How::{Regex as Rx, Tokens};

const DEFAULTS: &[(&str, How)] = &[
    ("envoy.response_code", How::ResponseCode),
    ("envoy.response_code_class", How::ResponseCodeClass),
    (
        "envoy.dynamo_partition_id",
        Rx(
            r"^http\.[^.]+\.dynamodb\.table\.[^.]+\.capacity\.[^.]+(\.__partition_id=([0-9A-Za-z_]{7}))$",
            ".dynamodb.table.",
            "",
        ),
    ),
    (
        "envoy.dynamo_operation",
        Rx(r"^http\.[^.]+\.dynamodb\.(?:operation|table\.[^.]+\.capacity)(\.([^.]+))(?:\.|$)", ".dynamodb.", ""),
    ),
    ("envoy.mongo_callsite", Tokens("mongo.*.collection.*.callsite.$.query.**")),
    ("envoy.dynamo_table", Rx(r"^http\.[^.]+\.dynamodb\.(?:table|error)\.(([^.]+)\.)", ".dynamodb.", "")),
    ("envoy.mongo_collection", Tokens("mongo.*.collection.$.**.query.*")),
    ("envoy.mongo_cmd", Tokens("mongo.*.cmd.$.**")),
    ("envoy.grpc_bridge_method", Tokens("cluster.*.grpc.*.$.**")),
    ("envoy.http_user_agent", Tokens("http.*.user_agent.$.**")),
    ("envoy.virtual_cluster", Tokens("vhost.*.vcluster.$.**")),
    ("envoy.fault_downstream_cluster", Tokens("http.*.fault.$.**")),
    ("envoy.ssl_cipher", Rx(r"^listener\..*?\.ssl\.ciphers(\.([0-9A-Za-z_-]+))$", ".ssl.ciphers.", "")),
    ("envoy.ssl_curve", Rx(r"^(?:listener|cluster)\..*?\.ssl\.curves(\.([0-9A-Za-z_-]+))$", ".ssl.curves.", "")),
    ("envoy.ssl_sigalg", Rx(r"^(?:listener|cluster)\..*?\.ssl\.sigalgs(\.([0-9A-Za-z_-]+))$", ".ssl.sigalgs.", "")),
    (
        "envoy.ssl_version",
        Rx(r"^(?:listener|cluster)\..*?\.ssl\.versions(\.(TLSv[0-9]\.[0-9]))$", ".ssl.versions.", ""),
    ),
    (
        "envoy.tls_certificate",
        Rx(r"^(?:listener|cluster)\..*?\.ssl\.certificate\.(([^.]+)\.)", ".ssl.certificate.", ""),
    ),
    ("cipher_suite", Rx(r"^cluster\.[^.]+\.ssl\.ciphers(\.([0-9A-Za-z_-]+))$", ".ssl.ciphers.", "")),
    ("envoy.grpc_bridge_service", Tokens("cluster.*.grpc.$.**")),
    ("envoy.tcp_prefix", Tokens("tcp.$.**")),
    ("envoy.udp_prefix", Tokens("udp.$.**")),
    ("envoy.clientssl_prefix", Tokens("auth.clientssl.$.**")),
    ("envoy.ratelimit_prefix", Tokens("ratelimit.$.**")),
    ("envoy.health_check_name", Rx(r"^cluster\.[^.]+\.health_check(\.name\.([^.]+))\..+", ".health_check.name.", "")),
    ("envoy.cluster_name", Tokens("cluster.$.**")),
    ("envoy.http_conn_manager_prefix", Rx(r"^listener\..*?\.http\.(([^.]+)\.)", ".http.", "")),
    ("envoy.ext_authz_prefix", Tokens("cluster.*.ext_authz.$.**")),
    ("envoy.ext_authz_prefix", Tokens("http.*.ext_authz.$.**")),
    (
        "envoy.rbac_policy_name",
        Rx(r"^http\.[^.]+\.rbac\.(?:[^.]+\.)?policy\.(([^.]+)\.)(?:shadow_)?(?:allowed|denied)$", ".policy.", ""),
    ),
    ("envoy.rbac_http_prefix", Rx(r"^http\.[^.]+\.rbac\.(([^.]+)\.)", ".rbac.", "policy")),
    ("envoy.rds_route_config", Rx(r"^http\.[^.]+\.rds\.(([0-9A-Za-z_.-]+)\.)[0-9A-Za-z_]+$", ".rds.", "")),
    (
        "envoy.scoped_rds_config",
        Rx(r"^http\.[^.]+\.scoped_rds\.(([0-9A-Za-z_.-]+)\.)[0-9A-Za-z_]+$", ".scoped_rds.", ""),
    ),
    ("envoy.http_conn_manager_prefix", Tokens("http.$.**")),
    (
        "envoy.worker_id",
        Rx(
            concat!(
                r"^(?:listener\.(?:[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}_[0-9]+|\[[0-9a-fA-F_]+\]_[0-9]+|[^.]+)",
                r"|server|listener_manager|thread_local_cluster_manager)\.worker_(([0-9]+)\.)",
            ),
            ".worker_",
            "",
        ),
    ),
    (
        "envoy.listener_address",
        Rx(
            concat!(
                r"^listener\.(([0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}_[0-9]+",
                r"|\[[0-9a-fA-F_]+\]_[0-9]+|[^.]+)\.)",
            ),
            "",
            "admin",
        ),
    ),
    ("envoy.virtual_host", Tokens("vhost.$.**")),
    ("envoy.mongo_prefix", Tokens("mongo.$.**")),
    ("envoy.route", Tokens("vhost.*.route.$.**")),
    ("envoy.thrift_prefix", Tokens("thrift.$.**")),
    ("envoy.redis_prefix", Tokens("redis.$.**")),
    ("envoy.local_http_ratelimit_prefix", Tokens("$.http_local_rate_limit.**")),
    ("envoy.local_network_ratelimit_prefix", Tokens("local_rate_limit.$.**")),
    ("envoy.local_listener_ratelimit_prefix", Tokens("listener_local_ratelimit.$.**")),
    ("envoy.dns_filter_prefix", Tokens("dns_filter.$.**")),
    ("envoy.connection_limit_prefix", Tokens("connection_limit.$.**")),
    ("envoy.rbac_prefix", Tokens("$.rbac.**")),
    ("envoy.proxy_protocol_prefix", Rx(r"^proxy_proto\.(([^.]+)\.).+$", "", "versions")),
    (
        "envoy.proxy_protocol_version",
        Rx(r"^proxy_proto\.((?:[^.]+\.)?versions\.v([12])\.)[0-9A-Za-z_]+$", ".versions.", ""),
    ),
    ("envoy.google_grpc_client_prefix", Tokens("grpc.$.**")),
    ("envoy.xds_resource_name", Rx(r"^sds\.(([^.]+)\.).+", "", "")),
];

#[derive(Debug)]
struct Rule {
    /// As a Prometheus label.
    label: String,
    pattern: Pattern,
    part: Option<Finder<'static>>,
    except: &'static str,
}

#[derive(Debug)]
enum Pattern {
    ResponseCode,
    ResponseCodeClass,
    Tokens(Vec<Token>),
    Regex(Regex),
    Fixed(String),
}

#[derive(Debug)]
enum Token {
    Word(String),
    One,
    Any,
    Tag,
}

/// The rules of one configuration.
#[derive(Debug, Default)]
pub(super) struct Tags {
    rules: Vec<Rule>,
    anywhere: Vec<u16>,
    by_first: HashMap<String, Vec<u16>>,
}

/// What was found in one name; to be used again for the next.
#[derive(Debug, Default)]
pub(super) struct Extraction {
    tokens: Vec<Range<usize>>,
    removed: Vec<Range<usize>>,
    found: Vec<(u16, Range<usize>)>,
}

impl Tags {
    pub(super) fn new(config: &pb::StatsConfig) -> Result<Self, ConfigError> {
        let mut tags = Self::default();
        let mut configured: Vec<&str> = Vec::new();
        let overrides = config.allow_default_tag_overrides.as_ref().is_some_and(|b| b.value);
        let own = |name: &str| config.stats_tags.iter().any(|tag| tag.tag_name == name && tag.tag_value.is_some());
        if config.use_all_default_tags.as_ref().is_none_or(|b| b.value) {
            for (name, how) in DEFAULTS.iter().filter(|(name, _)| !(overrides && own(name))) {
                tags.add_default(name, how)?;
                configured.push(name);
            }
        }
        for (i, tag) in config.stats_tags.iter().enumerate() {
            let name = tag.tag_name.as_str();
            // Envoy warns of a second rule for a tag and leaves it out.
            if configured.contains(&name) {
                tracing::warn!(tag = name, "skipping a duplicate tag of stats_config");
                continue;
            }
            configured.push(name);
            tags.add_configured(tag).map_err(|e| e.within(&format!("stats_tags[{i}]")))?;
        }
        Ok(tags)
    }

    fn add_configured(&mut self, tag: &pb::TagSpecifier) -> Result<(), ConfigError> {
        let name = tag.tag_name.as_str();
        match &tag.tag_value {
            Some(TagValue::FixedValue(value)) => self.add(name, Pattern::Fixed(value.clone()), None, "", ""),
            Some(TagValue::Regex(regex)) if !regex.is_empty() => {
                let compiled = compile(regex)?;
                self.add(name, Pattern::Regex(compiled), first_of_regex(regex), "", "");
            }
            _ => {
                let mut known = false;
                for (_, how) in DEFAULTS.iter().filter(|(default, _)| *default == name) {
                    self.add_default(name, how)?;
                    known = true;
                }
                if !known {
                    let reason =
                        format!("No regex specified for tag specifier and no default regex for name: '{name}'");
                    return Err(ConfigError::new("", reason));
                }
            }
        }
        Ok(())
    }

    fn add_default(&mut self, name: &str, how: &How) -> Result<(), ConfigError> {
        match how {
            How::ResponseCode => self.add(name, Pattern::ResponseCode, None, "_rq_", ""),
            How::ResponseCodeClass => self.add(name, Pattern::ResponseCodeClass, None, "_rq_", ""),
            How::Tokens(tokens) => {
                let tokens: Vec<Token> = tokens.split('.').map(Token::of).collect();
                let first = match &tokens[0] {
                    Token::Word(word) => Some(word.clone()),
                    _ => None,
                };
                self.add(name, Pattern::Tokens(tokens), first, "", "");
            }
            How::Regex(regex, part, except) => {
                self.add(name, Pattern::Regex(compile(regex)?), first_of_regex(regex), part, except);
            }
        }
        Ok(())
    }

    fn add(&mut self, name: &str, pattern: Pattern, first: Option<String>, part: &'static str, except: &'static str) {
        let number = self.rules.len() as u16;
        let mut label = String::new();
        push_sanitized(name, &mut label);
        let part = (!part.is_empty()).then(|| Finder::new(part));
        self.rules.push(Rule { label, pattern, part, except });
        match first {
            Some(first) => self.by_first.entry(first).or_default().push(number),
            None => self.anywhere.push(number),
        }
    }

    /// Finds all tags of a name.
    pub(super) fn extract(&self, name: &str, found: &mut Extraction) {
        found.removed.clear();
        found.found.clear();
        found.tokens.clear();
        let mut start = 0;
        for token in name.split('.') {
            found.tokens.push(start..start + token.len());
            start += token.len() + 1;
        }
        let own = self.by_first.get(&name[found.tokens[0].clone()]).map_or(&[][..], Vec::as_slice);
        for number in self.anywhere.iter().chain(own) {
            let rule = &self.rules[usize::from(*number)];
            let again = |(other, _): &(u16, _)| self.rules[usize::from(*other)].label == rule.label;
            if found.found.iter().any(again) {
                continue;
            }
            if let Some((removed, value)) = rule.find(name, &found.tokens) {
                found.removed.push(removed);
                found.found.push((*number, value));
            }
        }
        found.removed.sort_unstable_by_key(|range| range.start);
    }

    /// The labels that were found, with escaped values: `a="x",b="y"`.
    pub(super) fn push_labels(&self, name: &str, found: &Extraction, out: &mut String) {
        for (i, (number, value)) in found.found.iter().enumerate() {
            let rule = &self.rules[usize::from(*number)];
            if i > 0 {
                out.push(',');
            }
            out.push_str(&rule.label);
            out.push_str("=\"");
            let value = match &rule.pattern {
                Pattern::Fixed(value) => value,
                _ => &name[value.clone()],
            };
            push_escaped(value, out);
            out.push('"');
        }
    }
}

impl Extraction {
    /// The name without its tags.
    pub(super) fn push_rest(&self, name: &str, out: &mut String) {
        let mut at = 0;
        for range in &self.removed {
            if range.start > at {
                out.push_str(&name[at..range.start]);
            }
            at = at.max(range.end);
        }
        out.push_str(&name[at..]);
    }
}

impl Rule {
    /// What to remove and what the value is.
    fn find(&self, name: &str, tokens: &[Range<usize>]) -> Option<(Range<usize>, Range<usize>)> {
        if self.part.as_ref().is_some_and(|part| part.find(name.as_bytes()).is_none()) {
            return None;
        }
        let digit = |at: usize| name.as_bytes()[at].is_ascii_digit();
        let len = name.len();
        let (removed, value) = match &self.pattern {
            Pattern::ResponseCode => {
                let at = name.rfind("_rq_")? + 4;
                (len == at + 3 && (at..len).all(digit)).then_some((at - 1..len, at..len))?
            }
            Pattern::ResponseCodeClass => {
                let at = name.rfind("_rq_")? + 4;
                (len == at + 3 && digit(at) && name.ends_with("xx")).then_some((at..at + 1, at..at + 1))?
            }
            Pattern::Tokens(pattern) => {
                let token = match_tokens(pattern, name, tokens)?;
                let value = tokens[token].clone();
                let removed = match (value.end < len, value.start > 0) {
                    (true, _) => value.start..value.end + 1,
                    (false, true) => value.start - 1..value.end,
                    (false, false) => value.clone(),
                };
                (removed, value)
            }
            Pattern::Regex(regex) => {
                let groups = regex.captures(name)?;
                if groups.len() < 2 {
                    return None;
                }
                let removed = groups.get(1).map_or(0..0, |group| group.range());
                let value =
                    if groups.len() > 2 { groups.get(2).map_or(0..0, |group| group.range()) } else { removed.clone() };
                (removed, value)
            }
            Pattern::Fixed(_) => (0..0, 0..0),
        };
        (self.except.is_empty() || &name[value.clone()] != self.except).then_some((removed, value))
    }
}

impl Token {
    fn of(text: &str) -> Self {
        match text {
            "*" => Self::One,
            "**" => Self::Any,
            "$" => Self::Tag,
            word => Self::Word(word.to_owned()),
        }
    }
}

/// Which of the tokens is the tag.
fn match_tokens(pattern: &[Token], name: &str, tokens: &[Range<usize>]) -> Option<usize> {
    fn rest(pattern: &[Token], name: &str, tokens: &[Range<usize>], at: usize, tag: Option<usize>) -> Option<usize> {
        let Some((first, more)) = pattern.split_first() else {
            return if at == tokens.len() { tag } else { None };
        };
        match first {
            Token::Any if more.is_empty() => tag,
            Token::Any => (at..=tokens.len()).find_map(|at| rest(more, name, tokens, at, tag)),
            _ if at == tokens.len() => None,
            Token::Word(word) => {
                (name[tokens[at].clone()] == **word).then(|| rest(more, name, tokens, at + 1, tag)).flatten()
            }
            Token::One => rest(more, name, tokens, at + 1, tag),
            Token::Tag => rest(more, name, tokens, at + 1, Some(at)),
        }
    }
    rest(pattern, name, tokens, 0, None)
}

fn compile(regex: &str) -> Result<Regex, ConfigError> {
    Regex::new(regex).map_err(|e| {
        let reason = e.to_string();
        let reason = reason.lines().last().unwrap_or_default().trim_start_matches("error: ");
        ConfigError::new("regex", format!("Invalid regex '{regex}': {reason}"))
    })
}

/// The first token that an anchored regex asks for.
fn first_of_regex(regex: &str) -> Option<String> {
    let rest = regex.strip_prefix('^')?;
    let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_')?;
    (end > 0 && rest[end..].starts_with(r"\.")).then(|| rest[..end].to_owned())
}

/// A name as Prometheus allows it: a digit may not come first, but a prefix always does.
pub(super) fn push_sanitized(name: &str, out: &mut String) {
    out.extend(name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' || c == ':' { c } else { '_' }));
}

pub(super) fn push_escaped(value: &str, out: &mut String) {
    for c in value.chars() {
        match c {
            '\\' => out.push_str(r"\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
}
