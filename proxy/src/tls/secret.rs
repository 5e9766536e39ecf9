//! What is known of the certificates in use, without their keys.

use std::sync::Arc;

use rustls::pki_types::CertificateDer;

use super::certificate::{self, SubjectName};

/// A certificate as `/certs` shows it.
#[derive(Debug, Clone)]
pub struct CertificateFacts {
    /// The file, or `<inline>`.
    pub path: Arc<str>,
    pub serial: String,
    /// `dns`, `uri` or `ip_address`, and the name.
    pub names: Vec<(&'static str, String)>,
    /// Seconds since 1970.
    pub not_before: i64,
    pub not_after: i64,
}

/// The certificates of one context.
#[derive(Debug, Clone, Default)]
pub struct ContextFacts {
    pub authorities: Vec<CertificateFacts>,
    pub chains: Vec<CertificateFacts>,
}

impl CertificateFacts {
    pub(super) fn read(der: &CertificateDer<'_>, path: &str) -> Option<Self> {
        let parsed = certificate::parse(der)?;
        let name = |name| match name {
            SubjectName::Dns(text) => Some(("dns", text)),
            SubjectName::Uri(text) => Some(("uri", text)),
            SubjectName::Ip(text) => Some(("ip_address", text)),
            SubjectName::Email(_) | SubjectName::Other(..) => None,
        };
        Some(Self {
            path: path.into(),
            serial: certificate::serial(&parsed),
            names: certificate::names(&parsed).into_iter().filter_map(name).collect(),
            not_before: parsed.validity().not_before.timestamp(),
            not_after: parsed.validity().not_after.timestamp(),
        })
    }
}
