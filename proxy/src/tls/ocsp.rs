//! A certificate's status that is shown with it (stapling, RFC 6066 §8): what is read of a response of RFC 6960, and
//! what becomes of a handshake when there is none that holds.
//!
//! As in Envoy nothing of it is verified, which is the client's business. Only whose status it is counts, and until when
//! it holds: a response that does not say so never does.

use std::sync::Arc;

use nuncio_api::pb::envoy::extensions::transport_sockets::tls::v3::downstream_tls_context::OcspStaplePolicy;
use nuncio_core::error::ConfigError;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::sign::CertifiedKey;
use x509_parser::der_parser::asn1_rs::{Any, Class, FromDer, Tag};
use x509_parser::der_parser::oid;
use x509_parser::time::ASN1Time;

use super::certificate;
use super::identity::Identity;

/// One certificate's status, shown or not by policy.
#[derive(Debug)]
pub(super) struct Stapling {
    policy: OcspStaplePolicy,
    response: Option<(Holds, Arc<CertifiedKey>)>,
}

/// What a client that asks for the status gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shown {
    Stapled,
    /// The certificate alone.
    Omitted,
    /// No handshake.
    Refused,
}

/// Until when a response holds, in seconds since 1970.
type Holds = Option<i64>;

impl Stapling {
    pub(super) fn new(identity: &Identity, policy: OcspStaplePolicy) -> Result<Self, ConfigError> {
        let error = |reason: &str| ConfigError::new("ocsp_staple", reason);
        let leaf = identity.key.cert.first();
        let demanded = leaf.is_some_and(demands_status);
        let policy = if demanded { OcspStaplePolicy::MustStaple } else { policy };
        let Some(bytes) = &identity.staple else {
            return match policy {
                OcspStaplePolicy::MustStaple if demanded => {
                    Err(error("OCSP response is required for must-staple certificate"))
                }
                OcspStaplePolicy::MustStaple => Err(error("Required OCSP response is missing from TLS context")),
                _ => Ok(Self { policy, response: None }),
            };
        };
        let status =
            read(bytes).ok_or_else(|| error("it is not one successful OCSP response in DER about one certificate"))?;
        let parsed = leaf.and_then(certificate::parse);
        if parsed.is_none_or(|parsed| number(parsed.raw_serial()) != number(status.serial)) {
            return Err(error("OCSP response does not match its TLS certificate"));
        }
        let stapled = CertifiedKey { ocsp: Some(bytes.clone()), ..(*identity.key).clone() };
        Ok(Self { policy, response: Some((status.until, Arc::new(stapled))) })
    }

    /// `plain` is the certificate without it.
    pub(super) fn show(&self, plain: &Arc<CertifiedKey>, now: UnixTime) -> (Shown, Option<Arc<CertifiedKey>>) {
        let holds = |until: &Holds| until.is_some_and(|until| until > now.as_secs() as i64);
        match (&self.response, self.policy) {
            (Some((until, stapled)), _) if holds(until) => (Shown::Stapled, Some(stapled.clone())),
            (_, OcspStaplePolicy::MustStaple) | (Some(_), OcspStaplePolicy::StrictStapling) => (Shown::Refused, None),
            _ => (Shown::Omitted, Some(plain.clone())),
        }
    }
}

/// Whether the certificate wants nobody to believe it without its status (RFC 7633).
fn demands_status(der: &CertificateDer<'_>) -> bool {
    const STATUS_REQUEST: &[u8] = &[5];
    let features = |mut value| {
        let mut list = next(&mut value, Class::Universal, Tag::Sequence).unwrap_or_default();
        std::iter::from_fn(move || next(&mut list, Class::Universal, Tag::Integer))
    };
    let is_tls_features = oid!(1.3.6.1.5.5.7.1.24);
    certificate::parse(der).is_some_and(|parsed| {
        let mut extensions = parsed.extensions().iter().filter(|extension| extension.oid == is_tls_features);
        extensions.any(|extension| features(extension.value).any(|feature| feature == STATUS_REQUEST))
    })
}

struct Status<'a> {
    serial: &'a [u8],
    until: Holds,
}

/// `OCSPResponse` down to its one `SingleResponse`.
fn read(response: &[u8]) -> Option<Status<'_>> {
    let sequence = |from: &mut _| next(from, Class::Universal, Tag::Sequence);
    let mut rest = response;
    let mut response = sequence(&mut rest).filter(|_| rest.is_empty())?;
    let successful = next(&mut response, Class::Universal, Tag::Enumerated)? == [0];
    let mut bytes = next(&mut response, Class::ContextSpecific, Tag(0)).filter(|_| successful)?;
    let mut bytes = sequence(&mut bytes)?;
    next(&mut bytes, Class::Universal, Tag::Oid)?;
    let mut basic = next(&mut bytes, Class::Universal, Tag::OctetString)?;
    let mut data = sequence(&mut sequence(&mut basic)?)?;
    // A version is told only if it is not the first; the responder is a name or a key.
    next(&mut data, Class::ContextSpecific, Tag(0));
    next(&mut data, Class::ContextSpecific, Tag(1)).or_else(|| next(&mut data, Class::ContextSpecific, Tag(2)))?;
    next(&mut data, Class::Universal, Tag::GeneralizedTime)?;
    let mut all = sequence(&mut data)?;
    let mut single = sequence(&mut all).filter(|_| all.is_empty())?;
    let mut id = sequence(&mut single)?;
    sequence(&mut id)?;
    next(&mut id, Class::Universal, Tag::OctetString)?;
    next(&mut id, Class::Universal, Tag::OctetString)?;
    let serial = next(&mut id, Class::Universal, Tag::Integer)?;
    let (after_status, _) = Any::from_der(single).ok()?;
    single = after_status;
    next(&mut single, Class::Universal, Tag::GeneralizedTime)?;
    let until = match next(&mut single, Class::ContextSpecific, Tag(0)) {
        Some(time) => Some(ASN1Time::from_der(time).ok()?.1.timestamp()),
        None => None,
    };
    Some(Status { serial, until })
}

/// Without the zeros in front, which say nothing.
fn number(integer: &[u8]) -> &[u8] {
    let zeros = integer.iter().take_while(|byte| **byte == 0).count();
    &integer[zeros..]
}

/// The content of the next value, if it is of that kind.
fn next<'a>(from: &mut &'a [u8], class: Class, tag: Tag) -> Option<&'a [u8]> {
    let (rest, value) = Any::from_der(from).ok()?;
    if value.class() != class || value.tag() != tag {
        return None;
    }
    *from = rest;
    Some(value.data)
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;

    // Both by `openssl ocsp` about the serial number A1B2C3, the second without a next update.
    const GOOD: &str = "MIIBBQoBAKCB/zCB/AYJKwYBBQUHMAEBBIHuMIHrMIGSohYEFBO1pgWl+sjQ/xQO5mwI8xn3SHAdGA8yMDI2MTEzMDA5MDEyOFowZzBl\
        MD0wCQYFKw4DAhoFAAQUEQSM0gyzWSMH0Bn9CIlWK2LTZJIEFBO1pgWl+sjQ/xQO5mwI8xn3SHAdAgQAobLDgAAYDzIwMjYxMTMwMDkwMTI4WqARGA8y\
        MDI2MTIwNzA5MDEyOFowCgYIKoZIzj0EAwIDSAAwRQIhANu3X/xfAIQsfPYD4mJsDgDmv39cOvv/fge7DwyYDsgGAiBQXqWFRR1eyjL/LxcU02tDipyR\
        CGn6aFcCGfXzF7o8Ww==";
    const ENDLESS: &str = "MIHpCgEAoIHjMIHgBgkrBgEFBQcwAQEEgdIwgc8weKEPMA0xCzAJBgNVBAMMAmNhGA8yMDI2MTEzMDA5MDEyOFowVDBSMD0wCQYFKw4DAh\
        oFAAQUEQSM0gyzWSMH0Bn9CIlWK2LTZJIEFBO1pgWl+sjQ/xQO5mwI8xn3SHAdAgQAobLDgAAYDzIwMjYxMTMwMDkwMTI4WjAKBggqhkjOPQQDAgNHAD\
        BEAiAacOW42k2E3fof9lq/pFLG878ki5uJyR0sc9y6yDeqoAIgY/WDR5WH7hSAnnoAUrVrLwDIWq8YoopoSKe9TGpKEVE=";

    #[test]
    fn a_response_tells_whose_status_it_is_and_until_when_it_holds() {
        // 2026-12-07 09:01:28.
        for (text, until) in [(GOOD, Some(1_796_634_088)), (ENDLESS, None)] {
            let response = STANDARD.decode(text).unwrap();
            let status = read(&response).unwrap();
            assert_eq!((status.serial, status.until), (&[0, 0xa1, 0xb2, 0xc3][..], until));
            // Cut or with something behind it, it is none.
            assert!((0..response.len()).all(|end| read(&response[..end]).is_none()));
            assert!(read(&[&response[..], &[0]].concat()).is_none());
        }
        // "Try later" has no status in it.
        assert!(read(&[0x30, 3, 0x0a, 1, 3]).is_none());
    }
}
