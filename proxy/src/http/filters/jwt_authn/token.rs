//! A JSON Web Token (RFC 7519) in the compact form of RFC 7515, as far as it can be read without a key.

use base64::Engine;
use base64::alphabet::URL_SAFE;
use base64::engine::general_purpose::NO_PAD;
use base64::engine::{GeneralPurpose, GeneralPurposeConfig};
use serde_json::{Map, Value};

use super::status::Status;

/// Without padding; bits beyond the last byte may be anything: what is signed is the text.
const BASE64URL: GeneralPurpose = {
    let config: GeneralPurposeConfig = NO_PAD;
    GeneralPurpose::new(&URL_SAFE, config.with_decode_allow_trailing_bits(true))
};

/// Signature algorithms (RFC 7518 §3.1, RFC 8037). `none` is none of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Algorithm {
    Hs256,
    Hs384,
    Hs512,
    Rs256,
    Rs384,
    Rs512,
    Ps256,
    Ps384,
    Ps512,
    Es256,
    Es384,
    Es512,
    EdDsa,
}

impl Algorithm {
    pub(super) fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "HS256" => Self::Hs256,
            "HS384" => Self::Hs384,
            "HS512" => Self::Hs512,
            "RS256" => Self::Rs256,
            "RS384" => Self::Rs384,
            "RS512" => Self::Rs512,
            "PS256" => Self::Ps256,
            "PS384" => Self::Ps384,
            "PS512" => Self::Ps512,
            "ES256" => Self::Es256,
            "ES384" => Self::Es384,
            "ES512" => Self::Es512,
            "EdDSA" => Self::EdDsa,
            _ => return None,
        })
    }
}

#[derive(Debug)]
pub(super) struct Jwt {
    pub(super) header: Map<String, Value>,
    pub(super) claims: Map<String, Value>,
    pub(super) algorithm: Algorithm,
    pub(super) kid: Option<String>,
    pub(super) issuer: String,
    pub(super) subject: String,
    pub(super) audiences: Vec<String>,
    pub(super) not_before: Option<u64>,
    pub(super) expires: Option<u64>,
    /// The payload as it came, and header, dot and payload: what is signed.
    pub(super) payload_text: String,
    pub(super) signed: String,
    pub(super) signature: Vec<u8>,
}

impl Jwt {
    pub(super) fn parse(text: &[u8]) -> Result<Self, Status> {
        let text = std::str::from_utf8(text).map_err(|_| Status::BadFormat)?;
        let mut parts = text.split('.');
        let (Some(header), Some(payload), Some(signature), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(Status::BadFormat);
        };
        if header.is_empty() || payload.is_empty() || signature.is_empty() {
            return Err(Status::BadFormat);
        }
        let head = object(header, Status::HeaderBadBase64, Status::HeaderBadJson)?;
        let algorithm = head.get("alg").and_then(Value::as_str).ok_or(Status::HeaderBadAlg)?;
        let algorithm = Algorithm::from_name(algorithm).ok_or(Status::HeaderNotImplementedAlg)?;
        let kid = string(&head, "kid", Status::HeaderBadKid)?;
        let claims = object(payload, Status::PayloadBadBase64, Status::PayloadBadJson)?;
        time(&claims, "iat", Status::IatNotInteger, Status::IatOutOfRange)?;
        string(&claims, "jti", Status::JtiNotString)?;
        Ok(Self {
            algorithm,
            kid: kid.filter(|kid| !kid.is_empty()),
            issuer: string(&claims, "iss", Status::IssNotString)?.unwrap_or_default(),
            subject: string(&claims, "sub", Status::SubNotString)?.unwrap_or_default(),
            not_before: time(&claims, "nbf", Status::NbfNotInteger, Status::NbfOutOfRange)?,
            expires: time(&claims, "exp", Status::ExpNotInteger, Status::ExpOutOfRange)?,
            audiences: audiences(&claims)?,
            payload_text: payload.to_owned(),
            signed: text[..header.len() + 1 + payload.len()].to_owned(),
            signature: BASE64URL.decode(signature).map_err(|_| Status::SignatureBadBase64)?,
            header: head,
            claims,
        })
    }
}

fn object(part: &str, bad_base64: Status, bad_json: Status) -> Result<Map<String, Value>, Status> {
    let bytes = BASE64URL.decode(part).map_err(|_| bad_base64)?;
    match serde_json::from_slice(&bytes) {
        Ok(Value::Object(object)) => Ok(object),
        _ => Err(bad_json),
    }
}

fn string(object: &Map<String, Value>, name: &str, wrong: Status) -> Result<Option<String>, Status> {
    match object.get(name) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(wrong),
    }
}

/// Seconds since 1970; RFC 7519 allows fractions, which do not count.
fn time(claims: &Map<String, Value>, name: &str, wrong: Status, out_of_range: Status) -> Result<Option<u64>, Status> {
    match claims.get(name).map(Value::as_f64) {
        None => Ok(None),
        Some(None) => Err(wrong),
        Some(Some(seconds)) if (0.0..u64::MAX as f64).contains(&seconds) => Ok(Some(seconds as u64)),
        Some(Some(_)) => Err(out_of_range),
    }
}

fn audiences(claims: &Map<String, Value>) -> Result<Vec<String>, Status> {
    match claims.get("aud") {
        None => Ok(Vec::new()),
        Some(Value::String(one)) => Ok(vec![one.clone()]),
        Some(Value::Array(list)) => {
            list.iter().map(|v| v.as_str().map(str::to_owned).ok_or(Status::AudNotString)).collect()
        }
        Some(_) => Err(Status::AudNotString),
    }
}
