//! What a certificate says, in the forms that logs, headers and matchers show.
//!
//! Names come from whoever asked some authority for a certificate: a name with a NUL or another control character in it
//! is read by some programs up to there and by others whole, so such a name counts as none.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use aws_lc_rs::digest::{self, SHA1_FOR_LEGACY_USE_ONLY, SHA256};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use nuncio_core::net::PeerCertificate;
use rustls::pki_types::CertificateDer;
use x509_parser::der_parser::asn1_rs::Oid;
use x509_parser::prelude::{FromDer, GeneralName, ParsedExtension, X509Certificate, X509Name};

/// One subject alternative name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SubjectName {
    Dns(String),
    Uri(String),
    Ip(String),
    Email(String),
    /// Dotted object identifier, and the value as text.
    Other(String, String),
}

impl SubjectName {
    pub(super) fn text(&self) -> &str {
        match self {
            Self::Dns(text) | Self::Uri(text) | Self::Ip(text) | Self::Email(text) | Self::Other(_, text) => text,
        }
    }
}

/// A certificate that could be read.
pub(super) fn parse<'a>(der: &'a CertificateDer<'_>) -> Option<X509Certificate<'a>> {
    X509Certificate::from_der(der).ok().map(|(_, certificate)| certificate)
}

/// The subject alternative names, in the order of the certificate.
pub(super) fn names(certificate: &X509Certificate<'_>) -> Vec<SubjectName> {
    let mut names = Vec::new();
    for extension in certificate.extensions() {
        let ParsedExtension::SubjectAlternativeName(san) = extension.parsed_extension() else { continue };
        names.extend(san.general_names.iter().filter_map(name));
    }
    names
}

fn name(general: &GeneralName<'_>) -> Option<SubjectName> {
    let clean = |text: &str| (!text.chars().any(char::is_control)).then(|| text.to_owned());
    Some(match general {
        GeneralName::DNSName(text) => SubjectName::Dns(clean(text)?),
        GeneralName::URI(text) => SubjectName::Uri(clean(text)?),
        GeneralName::RFC822Name(text) => SubjectName::Email(clean(text)?),
        GeneralName::IPAddress(bytes) => SubjectName::Ip(match <[u8; 4]>::try_from(*bytes) {
            Ok(v4) => Ipv4Addr::from(v4).to_string(),
            Err(_) => Ipv6Addr::from(<[u8; 16]>::try_from(*bytes).ok()?).to_string(),
        }),
        GeneralName::OtherName(oid, value) => SubjectName::Other(oid.to_id_string(), clean(&other_text(value)?)?),
        _ => return None,
    })
}

/// The value of an otherName is explicitly tagged 0; texts of all kinds are shown.
fn other_text(value: &[u8]) -> Option<String> {
    use x509_parser::der_parser::asn1_rs::Any;
    let (_, outer) = Any::from_der(value).ok()?;
    let inner = if outer.tag().0 == 0 && outer.class() as u8 == 2 { Any::from_der(outer.data).ok()?.1 } else { outer };
    std::str::from_utf8(inner.data).ok().map(str::to_owned)
}

/// Of a chain: what is said of its first certificate. `None` if it cannot be read.
pub(super) fn describe(chain: &[CertificateDer<'_>]) -> Option<Arc<PeerCertificate>> {
    let leaf = chain.first()?;
    let parsed = parse(leaf)?;
    let mut described = PeerCertificate {
        subject: rfc2253(parsed.subject()),
        issuer: rfc2253(parsed.issuer()),
        serial: serial(&parsed),
        sha256: hex(digest::digest(&SHA256, leaf).as_ref()),
        sha1: hex(digest::digest(&SHA1_FOR_LEGACY_USE_ONLY, leaf).as_ref()),
        not_before: parsed.validity().not_before.timestamp(),
        not_after: parsed.validity().not_after.timestamp(),
        pem: escaped_pem(leaf),
        chain_pem: chain.iter().map(|der| escaped_pem(der)).collect(),
        chain_sha256: chain.iter().map(|der| hex(digest::digest(&SHA256, der).as_ref())).collect(),
        chain_sha1: chain.iter().map(|der| hex(digest::digest(&SHA1_FOR_LEGACY_USE_ONLY, der).as_ref())).collect(),
        chain_serials: chain.iter().filter_map(|der| parse(der).map(|c| serial(&c))).collect(),
        ..PeerCertificate::default()
    };
    if let Some(issuer) = chain.get(1) {
        described.issuer_sha256 = hex(digest::digest(&SHA256, issuer).as_ref());
        described.issuer_serial = parse(issuer).map(|c| serial(&c)).unwrap_or_default();
    }
    for name in names(&parsed) {
        match name {
            SubjectName::Dns(text) => described.dns_sans.push(text),
            SubjectName::Uri(text) => described.uri_sans.push(text),
            SubjectName::Ip(text) => described.ip_sans.push(text),
            SubjectName::Email(text) => described.email_sans.push(text),
            SubjectName::Other(oid, text) => described.other_name_sans.push((oid, text)),
        }
    }
    Some(Arc::new(described))
}

/// Without leading zeros, in small letters.
pub(super) fn serial(certificate: &X509Certificate<'_>) -> String {
    let digits = hex(certificate.raw_serial());
    let short = digits.trim_start_matches('0');
    if short.is_empty() { "0".to_owned() } else { short.to_owned() }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// PEM with what must not stand in a header field escaped, as Envoy does.
fn escaped_pem(der: &[u8]) -> String {
    let mut text = String::from("-----BEGIN%20CERTIFICATE-----%0A");
    let body = STANDARD.encode(der);
    for line in body.as_bytes().chunks(64) {
        for byte in line {
            match byte {
                b'+' => text.push_str("%2B"),
                b'/' => text.push_str("%2F"),
                b'=' => text.push_str("%3D"),
                other => text.push(char::from(*other)),
            }
        }
        text.push_str("%0A");
    }
    text.push_str("-----END%20CERTIFICATE-----%0A");
    text
}

/// A name as RFC 2253 writes it: the last part first, `CN=web,O=Example`.
pub(super) fn rfc2253(name: &X509Name<'_>) -> String {
    let mut text = String::new();
    let parts: Vec<_> = name.iter_rdn().collect();
    for (i, part) in parts.iter().rev().enumerate() {
        for (j, attribute) in part.iter().enumerate() {
            if j > 0 {
                text.push('+');
            } else if i > 0 {
                text.push(',');
            }
            text.push_str(&short_name(attribute.attr_type()));
            text.push('=');
            match attribute.as_str() {
                Ok(value) => escape(value, &mut text),
                // No text: the encoding itself, in hex digits.
                Err(_) => {
                    text.push('#');
                    text.push_str(&hex(attribute.as_slice()));
                }
            }
        }
    }
    text
}

fn short_name(oid: &Oid<'_>) -> String {
    let id = oid.to_id_string();
    let short = match id.as_str() {
        "2.5.4.3" => "CN",
        "2.5.4.4" => "SN",
        "2.5.4.5" => "serialNumber",
        "2.5.4.6" => "C",
        "2.5.4.7" => "L",
        "2.5.4.8" => "ST",
        "2.5.4.9" => "street",
        "2.5.4.10" => "O",
        "2.5.4.11" => "OU",
        "2.5.4.12" => "title",
        "2.5.4.42" => "GN",
        "2.5.4.43" => "initials",
        "2.5.4.46" => "dnQualifier",
        "1.2.840.113549.1.9.1" => "emailAddress",
        "0.9.2342.19200300.100.1.1" => "UID",
        "0.9.2342.19200300.100.1.25" => "DC",
        _ => return id,
    };
    short.to_owned()
}

fn escape(value: &str, text: &mut String) {
    use std::fmt::Write;
    let last = value.chars().count().saturating_sub(1);
    for (i, c) in value.chars().enumerate() {
        match c {
            ',' | '+' | '"' | '\\' | '<' | '>' | ';' => {
                text.push('\\');
                text.push(c);
            }
            '#' if i == 0 => text.push_str("\\#"),
            ' ' if i == 0 || i == last => text.push_str("\\ "),
            c if c.is_ascii_control() || !c.is_ascii() => {
                let mut bytes = [0; 4];
                for byte in c.encode_utf8(&mut bytes).bytes() {
                    let _ = write!(text, "\\{byte:02X}");
                }
            }
            c => text.push(c),
        }
    }
}
