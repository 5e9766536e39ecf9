//! `header_to_metadata`: headers and cookies become dynamic metadata
//! (`envoy.extensions.filters.http.header_to_metadata.v3.Config`, also per route).
//!
//! A header that is there but empty is neither present nor missing. Values over 8 KiB, numbers
//! that are none and broken base64 are left out.

use std::any::Any;
use std::borrow::Cow;
use std::sync::Arc;

use base64::Engine;
use nuncio_api::pb::envoy::extensions::filters::http::header_to_metadata::v3::{self as pb, config as rules};
use nuncio_api::pb::google::protobuf::{Any as ProtoAny, Struct, Value, value::Kind};
use nuncio_api::support::Entry;
use nuncio_api::{supports, unpack};
use nuncio_core::error::ConfigError;
use nuncio_core::extension::{FactoryContext, WorkerContext};
use nuncio_core::http::{
    DecodeFilter, EncodeFilter, FilterHalves, HeaderMap, HttpFilter, HttpFilterFactory, MakeFilter, RequestHead,
    ResponseHead, Step, StreamControl,
};
use nuncio_core::matcher::cookie::cookie;
use nuncio_core::matcher::header::lookup_name;
use nuncio_core::matcher::regex::RegexRewrite;

supports!(CONFIG = "envoy.extensions.filters.http.header_to_metadata.v3.Config" { request_rules, response_rules });
supports!(RULE = "envoy.extensions.filters.http.header_to_metadata.v3.Config.Rule" {
    header, cookie, on_header_present, on_header_missing, remove
});
supports!(PAIR = "envoy.extensions.filters.http.header_to_metadata.v3.Config.KeyValuePair" {
    metadata_namespace, key, value, regex_value_rewrite, encode
} values {
    r#type: ["STRING", "NUMBER"],
});
pub(super) static SUPPORTED: &[&Entry] = &[&CONFIG, &RULE, &PAIR];

/// Longer values are not for metadata.
const MAX_VALUE: usize = 8 * 1024;

pub struct Factory;

impl HttpFilterFactory for Factory {
    fn name(&self) -> &'static str {
        "envoy.filters.http.header_to_metadata"
    }

    fn config_type(&self) -> &'static str {
        CONFIG.message
    }

    fn route_config_type(&self) -> Option<&'static str> {
        Some(CONFIG.message)
    }

    fn create(&self, config: &ProtoAny, context: &FactoryContext<'_>) -> Result<Arc<dyn HttpFilter>, ConfigError> {
        Ok(Arc::new(Config { name: context.name.into(), rules: Arc::new(Rules::new(&unpack(config)?)?) }))
    }

    fn create_route_config(
        &self,
        config: &ProtoAny,
        _context: &FactoryContext<'_>,
    ) -> Result<Arc<dyn Any + Send + Sync>, ConfigError> {
        Ok(Arc::new(Rules::new(&unpack(config)?)?))
    }
}

struct Config {
    name: Arc<str>,
    rules: Arc<Rules>,
}

struct Rules {
    request: Vec<Rule>,
    response: Vec<Rule>,
}

struct Rule {
    source: Source,
    present: Option<Pair>,
    missing: Option<Pair>,
    remove: bool,
}

enum Source {
    Header(String),
    Cookie(String),
}

struct Pair {
    namespace: String,
    key: String,
    /// Instead of what the header says.
    value: String,
    rewrite: Option<RegexRewrite>,
    number: bool,
    base64: bool,
}

impl Rules {
    fn new(proto: &pb::Config) -> Result<Self, ConfigError> {
        let list = |field: &str, rules: &[rules::Rule]| {
            let at = |i: usize, e: ConfigError| e.within(&format!("{field}[{i}]"));
            rules.iter().enumerate().map(|(i, r)| Rule::new(r).map_err(|e| at(i, e))).collect::<Result<_, _>>()
        };
        Ok(Self {
            request: list("request_rules", &proto.request_rules)?,
            response: list("response_rules", &proto.response_rules)?,
        })
    }
}

impl Rule {
    fn new(proto: &rules::Rule) -> Result<Self, ConfigError> {
        let refuse = |reason: &str| Err(ConfigError::new("", reason));
        let source = match (proto.header.is_empty(), proto.cookie.is_empty()) {
            (true, true) => return refuse("One of Cookie or Header option needs to be specified"),
            (false, false) => return refuse("Cannot specify both header and cookie"),
            (false, true) => Source::Header(lookup_name(&proto.header)),
            (true, false) => Source::Cookie(proto.cookie.clone()),
        };
        if proto.on_header_present.is_none() && proto.on_header_missing.is_none() {
            return refuse(
                "header to metadata filter: rule has neither `on_header_present` nor `on_header_missing` set",
            );
        }
        if proto.on_header_missing.as_ref().is_some_and(|p| p.value.is_empty()) {
            return refuse("Cannot specify on_header_missing rule with an empty value");
        }
        if proto.remove && matches!(source, Source::Cookie(_)) {
            return refuse("Cannot specify remove for cookie");
        }
        Ok(Self {
            source,
            present: proto.on_header_present.as_ref().map(Pair::new).transpose()?,
            missing: proto.on_header_missing.as_ref().map(Pair::new).transpose()?,
            remove: proto.remove,
        })
    }

    fn apply(&self, headers: &mut HeaderMap, stream: &StreamControl) {
        let value = match &self.source {
            Source::Header(name) => headers.get_joined(name, ","),
            Source::Cookie(name) => cookie(headers, name.as_bytes()).map(Cow::Borrowed),
        };
        let found = value.is_some();
        match (value, &self.present, &self.missing) {
            (Some(value), Some(pair), _) if !value.is_empty() => pair.store(&value, stream),
            (None, _, Some(pair)) => pair.store(&[], stream),
            _ => {}
        }
        if let (true, true, Source::Header(name)) = (self.remove, found, &self.source) {
            headers.remove(name);
        }
    }
}

impl Pair {
    fn new(proto: &rules::KeyValuePair) -> Result<Self, ConfigError> {
        if !proto.value.is_empty() && proto.regex_value_rewrite.is_some() {
            return Err(ConfigError::new("", "Cannot specify both value and regex_value_rewrite"));
        }
        let namespace = match proto.metadata_namespace.as_str() {
            "" => "envoy.filters.http.header_to_metadata",
            namespace => namespace,
        };
        Ok(Self {
            namespace: namespace.to_owned(),
            key: proto.key.clone(),
            value: proto.value.clone(),
            rewrite: proto.regex_value_rewrite.as_ref().map(RegexRewrite::from_proto).transpose()?,
            number: proto.r#type() == rules::ValueType::Number,
            base64: proto.encode() == rules::ValueEncode::Base64,
        })
    }

    fn store(&self, found: &[u8], stream: &StreamControl) {
        let mut value = Cow::Borrowed(if self.value.is_empty() { found } else { self.value.as_bytes() });
        if let Some(rewrite) = &self.rewrite {
            let mut out = Vec::new();
            rewrite.rewrite(&value, &mut out);
            value = Cow::Owned(out);
        }
        if value.is_empty() || value.len() >= MAX_VALUE {
            return;
        }
        if self.base64 {
            match base64::engine::general_purpose::STANDARD.decode(&value) {
                Ok(plain) => value = Cow::Owned(plain),
                Err(_) => return,
            }
        }
        let Ok(text) = std::str::from_utf8(&value) else { return };
        let kind = match self.number {
            true => match text.trim().parse() {
                Ok(number) => Kind::NumberValue(number),
                Err(_) => return,
            },
            false => Kind::StringValue(text.to_owned()),
        };
        let fields = [(self.key.clone(), Value { kind: Some(kind) })].into_iter().collect();
        stream.info_mut().dynamic_metadata.merge(&self.namespace, Struct { fields });
    }
}

impl HttpFilter for Config {
    fn on_worker(&self, _worker: &WorkerContext) -> MakeFilter {
        let half = Half { name: self.name.clone(), own: self.rules.clone() };
        Box::new(move || FilterHalves { decode: Some(Box::new(half.clone())), encode: Some(Box::new(half.clone())) })
    }
}

#[derive(Clone)]
struct Half {
    name: Arc<str>,
    own: Arc<Rules>,
}

impl Half {
    fn rules(&self, stream: &StreamControl) -> Arc<Rules> {
        stream.route_config(&self.name).unwrap_or_else(|| self.own.clone())
    }
}

impl DecodeFilter for Half {
    fn decode_headers(&mut self, head: &mut RequestHead, _end: bool, stream: &StreamControl) -> Step {
        self.rules(stream).request.iter().for_each(|rule| rule.apply(&mut head.headers, stream));
        Step::CONTINUE
    }

    fn reset(&mut self) {}
}

impl EncodeFilter for Half {
    fn encode_headers(&mut self, head: &mut ResponseHead, _end: bool, stream: &StreamControl) -> Step {
        self.rules(stream).response.iter().for_each(|rule| rule.apply(&mut head.headers, stream));
        Step::CONTINUE
    }

    fn reset(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Bench, FILTERS};

    // Expected: recorded from Envoy 1.40 (filter_csrf_metadata).
    #[tokio::test(flavor = "local", start_paused = true)]
    async fn headers_and_cookies_become_metadata() {
        let filter = format!(
            r#"{{name: hm, typed_config: {{"@type": {FILTERS}.header_to_metadata.v3.Config, request_rules: [
            {{header: x-ver, on_header_present: {{metadata_namespace: a, key: ver}}, on_header_missing:
              {{metadata_namespace: a, key: ver, value: v1}}, remove: true}},
            {{header: x-num, on_header_present: {{metadata_namespace: a, key: num, type: NUMBER}}}},
            {{header: x-b64, on_header_present: {{metadata_namespace: a, key: b, encode: BASE64}}}},
            {{header: ":path", on_header_present: {{metadata_namespace: a, key: seg, regex_value_rewrite:
              {{pattern: {{regex: "^/m/([a-z]+).*$"}}, substitution: "<\\1>"}}}}}},
            {{cookie: sid, on_header_present: {{metadata_namespace: a, key: sid}}, on_header_missing:
              {{metadata_namespace: a, key: sid, value: nobody}}}}]}}}}"#
        );
        let route = "{match: {prefix: /}, route: {cluster: c}, request_headers_to_add: [{header: {key: x-all, value: \
                     '%DYNAMIC_METADATA(a)%'}}]}";
        let bench = Bench::new(&filter, route);
        let fields = "x-ver: v7\r\nx-num: 12.5\r\nx-b64: aGVsbG8=\r\ncookie: a=1; sid=joe\r\n";
        let answer = bench.get("/m/two", fields).await;
        let all = r#"{"b":"hello","num":12.5,"seg":"<two>","sid":"joe","ver":"v7"}"#;
        assert_eq!((answer.upstream_field("x-all"), answer.upstream_field("x-ver")), (Some(all), None));
        let answer = bench.get("/m/bad", "x-ver: \r\nx-num: many\r\nx-b64: !!!\r\n").await;
        assert_eq!(answer.upstream_field("x-all"), Some(r#"{"seg":"<bad>","sid":"nobody"}"#));
        let answer = bench.get("/m/one", "x-ver: v1\r\nx-ver: v2\r\n").await;
        assert_eq!(answer.upstream_field("x-all"), Some(r#"{"seg":"<one>","sid":"nobody","ver":"v1,v2"}"#));
    }
}
