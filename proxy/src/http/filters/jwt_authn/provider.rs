//! A `JwtProvider`: what is asked of its tokens, and what a good one brings into the request.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use nuncio_api::pb::envoy::extensions::filters::http::jwt_authn::v3::{self as pb, jwt_provider::JwksSourceSpecifier};
use nuncio_api::pb::google::protobuf::{ListValue, Struct, Value as ProtoValue, value::Kind};
use nuncio_core::error::ConfigError;
use nuncio_core::http::HeaderMap;
use nuncio_core::matcher::StringMatcher;
use nuncio_core::time::duration;
use serde_json::{Map, Value};

use super::extract::Location;
use super::jwks::Jwks;
use super::remote::RemoteConfig;
use super::status::Status;
use super::token::Jwt;
use crate::http::router::read_body;

/// RFC 7519 §4.1.4 allows some leeway; Envoy's is a minute.
const CLOCK_SKEW: u64 = 60;
const MAX_LOCAL_JWKS: u32 = 16 << 20;

pub(super) enum Source {
    Local(Jwks),
    Remote(Arc<RemoteConfig>),
}

pub(super) struct Provider {
    pub(super) issuer: String,
    pub(super) source: Source,
    pub(super) locations: Vec<Location>,
    pub(super) forward: bool,
    pub(super) failed_status: String,
    pub(super) clear_route: bool,
    audiences: Vec<String>,
    subjects: Option<StringMatcher>,
    require_expiration: bool,
    max_lifetime: Option<u64>,
    skew: u64,
    payload_header: String,
    pad_payload: bool,
    payload_in_metadata: String,
    header_in_metadata: String,
    space_delimited: Vec<String>,
    claims: Vec<(String, Vec<String>)>,
}

impl Provider {
    pub(super) fn new(name: &str, proto: &pb::JwtProvider) -> Result<Self, ConfigError> {
        let source = match &proto.jwks_source_specifier {
            Some(JwksSourceSpecifier::RemoteJwks(remote)) => {
                Source::Remote(Arc::new(RemoteConfig::new(remote).map_err(|e| e.within("remote_jwks"))?))
            }
            Some(JwksSourceSpecifier::LocalJwks(source)) => {
                let text = read_body(source, MAX_LOCAL_JWKS).map_err(|e| e.within("local_jwks"))?;
                Source::Local(Jwks::parse(&text).map_err(|reason| {
                    let reason = format!("Provider '{name}' in jwt_authn config has invalid local jwks: {reason}");
                    ConfigError::new("local_jwks", reason)
                })?)
            }
            None => return Err(ConfigError::new("jwks_source_specifier", "value is required")),
        };
        let claims = proto.claim_to_headers.iter().map(|claim| {
            let path: Vec<String> = match claim.claim_path.is_empty() {
                true => claim.claim_name.split('.').map(str::to_owned).collect(),
                false => claim.claim_path.iter().map(|segment| segment.key.clone()).collect(),
            };
            (claim.header_name.to_ascii_lowercase(), path)
        });
        Ok(Self {
            issuer: proto.issuer.clone(),
            source,
            locations: Location::of_provider(proto),
            forward: proto.forward,
            failed_status: proto.failed_status_in_metadata.clone(),
            clear_route: proto.clear_route_cache,
            audiences: audiences(&proto.audiences),
            subjects: match &proto.subjects {
                Some(subjects) => Some(StringMatcher::from_proto(subjects).map_err(|e| e.within("subjects"))?),
                None => None,
            },
            require_expiration: proto.require_expiration,
            max_lifetime: proto.max_lifetime.as_ref().map(|d| duration(d).as_secs()),
            skew: if proto.clock_skew_seconds == 0 { CLOCK_SKEW } else { proto.clock_skew_seconds.into() },
            payload_header: proto.forward_payload_header.to_ascii_lowercase(),
            pad_payload: proto.pad_forward_payload_header,
            payload_in_metadata: proto.payload_in_metadata.clone(),
            header_in_metadata: proto.header_in_metadata.clone(),
            space_delimited: proto
                .normalize_payload_in_metadata
                .as_ref()
                .map(|normalize| normalize.space_delimited_claims.clone())
                .unwrap_or_default(),
            claims: claims.collect(),
        })
    }

    /// All that can be said without a key. `now` in seconds since 1970.
    pub(super) fn check(&self, jwt: &Jwt, now: u64, audiences: Option<&[String]>) -> Status {
        if !self.issuer.is_empty() && self.issuer != jwt.issuer {
            return Status::UnknownIssuer;
        }
        if self.subjects.as_ref().is_some_and(|subjects| !subjects.matches(jwt.subject.as_bytes())) {
            return Status::VerificationFail;
        }
        // RFC 7515 §4.1.11: extensions that must be understood, and are not.
        if jwt.header.contains_key("crit") {
            return Status::VerificationFail;
        }
        if jwt.not_before.is_some_and(|from| now.saturating_add(self.skew) < from) {
            return Status::NotYetValid;
        }
        if jwt.expires.is_some_and(|until| now > until.saturating_add(self.skew)) {
            return Status::Expired;
        }
        let bounded = match (jwt.expires, self.max_lifetime) {
            (None, most) => !self.require_expiration && most.is_none(),
            (Some(until), Some(most)) => until.saturating_sub(now) <= most,
            (Some(_), None) => true,
        };
        if !bounded {
            return Status::VerificationFail;
        }
        let wanted = audiences.unwrap_or(&self.audiences);
        let named = |audience: &String| wanted.contains(&without_slash(audience));
        if !wanted.is_empty() && !jwt.audiences.iter().any(named) {
            return Status::AudienceNotAllowed;
        }
        Status::Ok
    }

    /// What a client must not be able to say in our name.
    pub(super) fn sanitize(&self, headers: &mut HeaderMap) {
        if !self.payload_header.is_empty() {
            headers.remove_aliases(&self.payload_header);
        }
        for (name, _) in &self.claims {
            headers.remove_aliases(name);
        }
    }

    /// What a good token says, for the upstream.
    pub(super) fn tell_headers(&self, jwt: &Jwt, headers: &mut HeaderMap) {
        if !self.payload_header.is_empty() {
            let mut payload = jwt.payload_text.clone();
            while self.pad_payload && !payload.len().is_multiple_of(4) {
                payload.push('=');
            }
            headers.append(&self.payload_header, payload);
        }
        for (name, path) in &self.claims {
            if let Some(text) = claim(&jwt.claims, path).and_then(claim_text) {
                headers.append(name, text);
            }
        }
    }

    /// And for filters and logs.
    pub(super) fn tell_metadata(&self, jwt: &Jwt, out: &mut Struct) {
        if !self.header_in_metadata.is_empty() {
            out.fields.insert(self.header_in_metadata.clone(), proto_object(&jwt.header, &[]));
        }
        if !self.payload_in_metadata.is_empty() {
            let payload = proto_object(&jwt.claims, &self.space_delimited);
            out.fields.insert(self.payload_in_metadata.clone(), payload);
        }
    }

    /// Whether a good token changes what routes may look at.
    pub(super) fn changes_route(&self) -> bool {
        self.clear_route && (!self.claims.is_empty() || !self.payload_in_metadata.is_empty())
    }
}

/// As Envoy compares them: a slash at the end does not count.
pub(super) fn audiences(list: &[String]) -> Vec<String> {
    list.iter().map(|audience| without_slash(audience)).collect()
}

fn without_slash(audience: &str) -> String {
    audience.strip_suffix('/').unwrap_or(audience).to_owned()
}

fn claim<'a>(claims: &'a Map<String, Value>, path: &[String]) -> Option<&'a Value> {
    let (first, rest) = path.split_first()?;
    rest.iter().try_fold(claims.get(first)?, |value, step| value.get(step))
}

/// None for what no header can hold.
fn claim_text(value: &Value) -> Option<String> {
    let text = match value {
        Value::Null => return None,
        Value::Bool(flag) => flag.to_string(),
        Value::Number(number) => number_text(number.as_f64()?),
        Value::String(text) => text.clone(),
        Value::Array(_) | Value::Object(_) => STANDARD.encode(sorted(value).to_string()),
    };
    let writable = !text.is_empty() && text.bytes().all(|b| b >= b' ' && b != 0x7f);
    writable.then_some(text)
}

fn number_text(number: f64) -> String {
    if number.fract() == 0.0 && number.abs() < 9.0e18 { (number as i64).to_string() } else { number.to_string() }
}

/// Keys in the order in which Envoy prints structures.
fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(object) => {
            let mut keys: Vec<_> = object.iter().collect();
            keys.sort_by_key(|(key, _)| *key);
            Value::Object(keys.into_iter().map(|(key, value)| (key.clone(), sorted(value))).collect())
        }
        Value::Array(list) => Value::Array(list.iter().map(sorted).collect()),
        other => other.clone(),
    }
}

fn proto_object(object: &Map<String, Value>, space_delimited: &[String]) -> ProtoValue {
    let fields = object.iter().map(|(key, value)| {
        let value = match value {
            Value::String(text) if space_delimited.contains(key) => {
                let values = text.split(' ').filter(|part| !part.is_empty());
                let values = values.map(|part| of(Kind::StringValue(part.to_owned()))).collect();
                of(Kind::ListValue(ListValue { values }))
            }
            other => proto_value(other),
        };
        (key.clone(), value)
    });
    of(Kind::StructValue(Struct { fields: fields.collect() }))
}

fn proto_value(value: &Value) -> ProtoValue {
    match value {
        Value::Null => of(Kind::NullValue(0)),
        Value::Bool(flag) => of(Kind::BoolValue(*flag)),
        Value::Number(number) => of(Kind::NumberValue(number.as_f64().unwrap_or_default())),
        Value::String(text) => of(Kind::StringValue(text.clone())),
        Value::Array(list) => of(Kind::ListValue(ListValue { values: list.iter().map(proto_value).collect() })),
        Value::Object(object) => proto_object(object, &[]),
    }
}

pub(super) fn of(kind: Kind) -> ProtoValue {
    ProtoValue { kind: Some(kind) }
}
