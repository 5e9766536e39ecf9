//! `hash_policy`: the number by which ring hash and Maglev choose a host. Rules, hash function and
//! the way rules combine are Envoy's, so that the same request goes to the same host.

use std::io::Write;

use nuncio_api::pb::envoy::config::route::v3::route_action::{
    HashPolicy as HashPolicyProto, hash_policy::Cookie as CookieProto, hash_policy::PolicySpecifier,
};
use nuncio_core::error::ConfigError;
use nuncio_core::http::RequestHead;
use nuncio_core::matcher::header::lookup_name;
use nuncio_core::matcher::{RegexRewrite, cookie, query_parameter};
use nuncio_core::net::{Address, ConnectionInfo};
use nuncio_core::stream_info::StreamInfo;
use xxhash_rust::xxh64::xxh64;

/// What the rules look at.
#[derive(Clone, Copy)]
pub struct HashInput<'a> {
    pub head: &'a RequestHead,
    pub connection: Option<&'a ConnectionInfo>,
    pub info: Option<&'a StreamInfo>,
}

impl HashInput<'_> {
    /// The client as the stream understands it: `x-forwarded-for` may have its say.
    fn client(&self) -> Option<&Address> {
        let told = self.info.and_then(|i| i.remote_address.as_ref());
        told.or(self.connection.map(|c| &c.remote))
    }
}

#[derive(Debug, Default)]
pub struct HashPolicy(Vec<Rule>);

#[derive(Debug)]
struct Rule {
    source: Source,
    /// If there is a hash after this rule, the rest is not asked.
    terminal: bool,
}

#[derive(Debug)]
enum Source {
    Header { name: Box<str>, rewrite: Option<Box<RegexRewrite>> },
    Cookie(Box<Cookie>),
    Client,
    Query(Box<[u8]>),
    FilterState(Box<str>),
}

/// A cookie that keeps a client on its host; given to clients that have none if it has a `ttl`.
#[derive(Debug)]
struct Cookie {
    name: Box<str>,
    path: Box<str>,
    ttl: Option<i64>,
    attributes: Vec<(String, String)>,
}

impl HashPolicy {
    pub fn from_proto(messages: &[HashPolicyProto]) -> Result<Self, ConfigError> {
        let mut rules = Vec::with_capacity(messages.len());
        for (i, message) in messages.iter().enumerate() {
            let at = |e: ConfigError| e.within(&format!("[{i}]"));
            let source = match &message.policy_specifier {
                Some(PolicySpecifier::Header(h)) => {
                    let rewrite = h.regex_rewrite.as_ref().map(RegexRewrite::from_proto).transpose();
                    let rewrite = rewrite.map_err(|e| at(e.within("header.regex_rewrite")))?;
                    Source::Header { name: lookup_name(&h.header_name).into(), rewrite: rewrite.map(Box::new) }
                }
                Some(PolicySpecifier::Cookie(c)) => Source::Cookie(Box::new(Cookie::from_proto(c))),
                Some(PolicySpecifier::ConnectionProperties(c)) if c.source_ip => Source::Client,
                Some(PolicySpecifier::ConnectionProperties(_)) => continue,
                Some(PolicySpecifier::QueryParameter(q)) => Source::Query(q.name.as_bytes().into()),
                Some(PolicySpecifier::FilterState(f)) => Source::FilterState(f.key.as_str().into()),
                None => return Err(at(ConfigError::new("policy_specifier", "value is required"))),
            };
            rules.push(Rule { source, terminal: message.terminal });
        }
        Ok(Self(rules))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The hash of a request. Values for `set-cookie`, for a client that lacks a cookie with a
    /// lifetime, go to `set_cookies`; without it such a cookie counts for nothing.
    pub fn hash(&self, input: &HashInput<'_>, mut set_cookies: Option<&mut Vec<String>>) -> Option<u64> {
        let mut hash = None;
        for rule in &self.0 {
            if let Some(new) = rule.source.hash(input, set_cookies.as_deref_mut()) {
                // Rotation keeps two equal rules from cancelling each other.
                hash = Some(hash.unwrap_or(0u64).rotate_left(1) ^ new);
            }
            if rule.terminal && hash.is_some() {
                break;
            }
        }
        hash
    }
}

impl Source {
    fn hash(&self, input: &HashInput<'_>, set_cookies: Option<&mut Vec<String>>) -> Option<u64> {
        match self {
            Self::Header { name, rewrite } => hash_header(input.head, name, rewrite.as_deref()),
            Self::Cookie(c) => c.hash(input, set_cookies),
            Self::Client => {
                let mut text = [0u8; 64];
                let mut rest = &mut text[..];
                write!(rest, "{}", input.client()?.ip()?).ok()?;
                let left = rest.len();
                Some(xxh64(&text[..text.len() - left], 0))
            }
            Self::Query(name) => query_parameter(input.head.path()?, name).map(|v| xxh64(v, 0)),
            Self::FilterState(key) => {
                let text = input.info?.filter_state.get(key)?.text()?;
                Some(xxh64(text.as_bytes(), 0))
            }
        }
    }
}

/// Several values are sorted, so that their order does not matter.
fn hash_header(head: &RequestHead, name: &str, rewrite: Option<&RegexRewrite>) -> Option<u64> {
    let mut values = head.headers.get_all(name);
    let first = values.next()?;
    let second = values.next();
    if let (None, None) = (second, rewrite) {
        return Some(xxh64(first, 0));
    }
    let rewritten = |value: &[u8]| {
        let mut out = Vec::new();
        match rewrite {
            Some(rewrite) => rewrite.rewrite(value, &mut out),
            None => out.extend_from_slice(value),
        }
        out
    };
    let mut all: Vec<Vec<u8>> = head.headers.get_all(name).map(rewritten).collect();
    all.sort_unstable();
    Some(all.iter().fold(0, |hash, value| xxh64(value, hash)))
}

impl Cookie {
    fn from_proto(message: &CookieProto) -> Self {
        Self {
            name: message.name.as_str().into(),
            path: message.path.as_str().into(),
            ttl: message.ttl.as_ref().map(|t| t.seconds),
            attributes: message.attributes.iter().map(|a| (a.name.clone(), a.value.clone())).collect(),
        }
    }

    fn hash(&self, input: &HashInput<'_>, set_cookies: Option<&mut Vec<String>>) -> Option<u64> {
        let value = cookie(&input.head.headers, self.name.as_bytes()).unwrap_or_default();
        if !value.is_empty() {
            return Some(xxh64(value, 0));
        }
        let (Some(ttl), Some(set_cookies), Some(connection)) = (self.ttl, set_cookies, input.connection) else {
            return None;
        };
        // The same for all streams of a connection, which may race for it.
        let client = input.client().unwrap_or(&connection.remote);
        let ends = format!("{client}{}", connection.local);
        let value = format!("{:016x}", xxh64(ends.as_bytes(), 0));
        set_cookies.push(self.set_cookie(&value, ttl));
        Some(xxh64(value.as_bytes(), 0))
    }

    fn set_cookie(&self, value: &str, ttl: i64) -> String {
        let mut text = format!("{}=\"{value}\"", self.name);
        if ttl != 0 {
            text.push_str(&format!("; Max-Age={ttl}"));
        }
        if !self.path.is_empty() {
            text.push_str(&format!("; Path={}", self.path));
        }
        for (name, value) in &self.attributes {
            text.push_str(&format!("; {name}"));
            if !value.is_empty() {
                text.push_str(&format!("={value}"));
            }
        }
        text.push_str("; HttpOnly");
        text
    }
}

#[cfg(test)]
mod tests;
