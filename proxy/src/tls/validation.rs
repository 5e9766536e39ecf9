//! `CertificateValidationContext`: whose certificates are accepted. One long file, because what is asked and what is said
//! of a refusal must be read side by side.
//!
//! Building the path to an authority is the TLS library's; what Envoy adds is ours: names, pins, and that all of it may
//! be switched off in part. Envoy says of each refusal what exactly it was, so this does too, which makes the file long.

use std::sync::Arc;

use aws_lc_rs::digest::{self, SHA256};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use nuncio_api::pb::envoy::extensions::transport_sockets::tls::v3 as pb;
use nuncio_api::pb::envoy::extensions::transport_sockets::tls::v3::certificate_validation_context::TrustChainVerification;
use nuncio_api::supports;
use nuncio_core::error::ConfigError;
use nuncio_core::matcher::SanMatcher;
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, TrustAnchor, UnixTime};
use rustls::{CertificateError, DistinguishedName};
use webpki::{
    CertRevocationList, EndEntityCert, Error, KeyUsage, OwnedCertRevocationList, RevocationCheckDepth,
    RevocationOptionsBuilder,
};
use x509_parser::prelude::X509Certificate;

use super::certificate::{self, SubjectName};
use super::san::{self, is_expected};
use super::secret::CertificateFacts;
use super::source::{Source, read_field};

supports!(pub(super) VALIDATION = "envoy.extensions.transport_sockets.tls.v3.CertificateValidationContext" {
    trusted_ca, system_root_certs, verify_certificate_spki, verify_certificate_hash, match_typed_subject_alt_names,
    match_subject_alt_names, crl, allow_expired_certificate, trust_chain_verification, only_verify_leaf_cert_crl,
    max_verify_depth, suppress_client_ca_list, watched_directory
} values {
    require_signed_certificate_timestamp: ["false"],
});
supports!(pub(super) SYSTEM_ROOTS = "envoy.extensions.transport_sockets.tls.v3.CertificateValidationContext.SystemRootCerts" {});

/// Where systems keep the authorities they trust; the first that is there counts.
const SYSTEM_ROOTS_AT: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
    "/usr/local/etc/openssl/cert.pem",
];

/// Which counter a refusal goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalKind {
    /// `fail_verify_error`.
    Chain,
    /// `fail_verify_san`.
    San,
    /// `fail_verify_cert_hash`.
    Hash,
}

/// Why a certificate was not accepted, in Envoy's words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) kind: RefusalKind,
    pub(super) text: String,
}

/// Everything that is asked of a peer's certificate.
#[derive(Debug, Default)]
pub(super) struct Validator {
    authorities: Option<Authorities>,
    sans: Vec<SanMatcher>,
    hashes: Vec<[u8; 32]>,
    spkis: Vec<[u8; 32]>,
    accept_untrusted: bool,
    allow_expired: bool,
    leaf_crl_only: bool,
    max_depth: Option<usize>,
    suppress_ca_list: bool,
}

#[derive(Debug)]
struct Authorities {
    anchors: Vec<TrustAnchor<'static>>,
    /// The same certificates, in the same order.
    certificates: Vec<CertificateDer<'static>>,
    subjects: Vec<DistinguishedName>,
    crls: Vec<CertRevocationList<'static>>,
    path: String,
}

/// What the peer is to us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PeerRole {
    Client,
    Server,
}

// === impl Validator ===

impl Validator {
    pub(super) fn from_proto(message: &pb::CertificateValidationContext) -> Result<Self, ConfigError> {
        let mut validator = Self {
            accept_untrusted: message.trust_chain_verification() == TrustChainVerification::AcceptUntrusted,
            allow_expired: message.allow_expired_certificate,
            leaf_crl_only: message.only_verify_leaf_cert_crl,
            max_depth: message.max_verify_depth.as_ref().map(|depth| depth.value as usize),
            suppress_ca_list: message.suppress_client_ca_list,
            ..Self::default()
        };
        let crl = read_field(message.crl.as_ref(), "crl")?;
        let mut trusted = read_field(message.trusted_ca.as_ref(), "trusted_ca")?;
        if trusted.is_none() && message.system_root_certs.is_some() {
            trusted = Some(system_roots()?);
        }
        match trusted {
            Some(source) => validator.authorities = Some(Authorities::read(&source, crl.as_ref())?),
            None if crl.is_some() => {
                return Err(ConfigError::new(
                    "crl",
                    "Failed to load CRL: there is no trusted_ca it could be checked by",
                ));
            }
            None if message.allow_expired_certificate => {
                let reason = "Certificate validity period is always ignored without trusted CA";
                return Err(ConfigError::new("allow_expired_certificate", reason));
            }
            None => {}
        }
        for (i, matcher) in message.match_typed_subject_alt_names.iter().enumerate() {
            let at = format!("match_typed_subject_alt_names[{i}]");
            validator.sans.push(SanMatcher::from_proto(matcher).map_err(|e| e.within(&at))?);
        }
        if message.match_typed_subject_alt_names.is_empty() {
            #[allow(deprecated)]
            for (i, matcher) in message.match_subject_alt_names.iter().enumerate() {
                let at = format!("match_subject_alt_names[{i}]");
                validator.sans.extend(SanMatcher::untyped(matcher).map_err(|e| e.within(&at))?);
            }
        }
        if !validator.sans.is_empty() && validator.authorities.is_none() && !validator.accept_untrusted {
            let reason = "SAN-based verification of peer certificates without trusted CA is insecure and not allowed";
            return Err(ConfigError::new("match_typed_subject_alt_names", reason));
        }
        for (i, text) in message.verify_certificate_hash.iter().enumerate() {
            let hash = from_hex(text).ok_or_else(|| {
                let reason = format!("Invalid hex-encoded SHA-256 {text}");
                ConfigError::new(format!("verify_certificate_hash[{i}]"), reason)
            })?;
            validator.hashes.push(hash);
        }
        for (i, text) in message.verify_certificate_spki.iter().enumerate() {
            let hash = STANDARD.decode(text).ok().and_then(|bytes| bytes.try_into().ok()).ok_or_else(|| {
                let reason = format!("Invalid base64-encoded SHA-256 {text}");
                ConfigError::new(format!("verify_certificate_spki[{i}]"), reason)
            })?;
            validator.spkis.push(hash);
        }
        Ok(validator)
    }

    /// Anything at all is asked: without that no certificate is requested of a client.
    pub(super) fn asks(&self) -> bool {
        self.authorities.is_some() || self.asks_names_or_pins()
    }

    fn asks_names_or_pins(&self) -> bool {
        !self.sans.is_empty() || !self.hashes.is_empty() || !self.spkis.is_empty()
    }

    /// Nothing that decides about a connection is looked at.
    pub(super) fn accepts_all(&self) -> bool {
        self.accept_untrusted || !self.asks()
    }

    /// A client without a certificate cannot pass.
    pub(super) fn needs_certificate(&self) -> bool {
        self.asks_names_or_pins() && !self.accept_untrusted
    }

    /// Whom to name to clients that choose among their certificates.
    pub(super) fn authority_names(&self) -> &[DistinguishedName] {
        match &self.authorities {
            Some(authorities) if !self.suppress_ca_list => &authorities.subjects,
            _ => &[],
        }
    }

    /// For `/certs`, and for the gauges of expiry.
    pub(super) fn facts(&self) -> Vec<CertificateFacts> {
        let Some(authorities) = &self.authorities else { return Vec::new() };
        authorities.certificates.iter().filter_map(|der| CertificateFacts::read(der, &authorities.path)).collect()
    }

    /// Whether the certificate passes; `expected`: names of which one must be in it. `Ok(false)`: accepted, though
    /// nothing vouches for it.
    pub(super) fn verify(
        &self,
        role: PeerRole,
        algorithms: &WebPkiSupportedAlgorithms,
        (leaf, rest): (&CertificateDer<'_>, &[CertificateDer<'_>]),
        expected: &[Box<str>],
        now: UnixTime,
    ) -> Result<bool, (Refusal, CertificateError)> {
        let mut validated = false;
        if let Some(authorities) = &self.authorities {
            match self.verify_chain(authorities, role, algorithms, leaf, rest, now) {
                Ok(()) => validated = true,
                Err(_) if self.accept_untrusted => return Ok(false),
                Err(refused) => return Err(refused),
            }
        }
        match self.verify_leaf(leaf, expected) {
            Ok(true) => Ok(true),
            Ok(false) => Ok(validated),
            Err(_) if self.accept_untrusted => Ok(false),
            Err(refusal) => Err((refusal, CertificateError::ApplicationVerificationFailure)),
        }
    }

    /// Names and pins; `Ok(false)` if none are asked for.
    fn verify_leaf(&self, leaf: &CertificateDer<'_>, expected: &[Box<str>]) -> Result<bool, Refusal> {
        if expected.is_empty() && !self.asks_names_or_pins() {
            return Ok(false);
        }
        let Some(parsed) = certificate::parse(leaf) else {
            return Err(chain_refusal(0, "certificate cannot be parsed"));
        };
        let names = certificate::names(&parsed);
        if !expected.is_empty() && !expected.iter().any(|wanted| names.iter().any(|name| is_expected(wanted, name))) {
            let text = format!(
                "verify cert failed: verify SAN list, expected SANs: [{}], certificate SANs: [{}]",
                expected.join(", "),
                listed(&names)
            );
            return Err(Refusal { kind: RefusalKind::San, text });
        }
        if !self.sans.is_empty()
            && !self.sans.iter().any(|matcher| names.iter().any(|name| san::matches(matcher, name)))
        {
            let text = format!("verify cert failed: SAN matcher, certificate SANs are [{}]", listed(&names));
            return Err(Refusal { kind: RefusalKind::San, text });
        }
        if !self.hashes.is_empty() || !self.spkis.is_empty() {
            let is = |pins: &[[u8; 32]], bytes: &[u8]| {
                !pins.is_empty() && pins.iter().any(|pin| pin[..] == *digest::digest(&SHA256, bytes).as_ref())
            };
            if !is(&self.hashes, leaf) && !is(&self.spkis, parsed.public_key().raw) {
                let text = "verify cert failed: cert hash and spki".to_owned();
                return Err(Refusal { kind: RefusalKind::Hash, text });
            }
        }
        Ok(true)
    }

    fn verify_chain(
        &self,
        authorities: &Authorities,
        role: PeerRole,
        algorithms: &WebPkiSupportedAlgorithms,
        leaf: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), (Refusal, CertificateError)> {
        let refuse = |error: &Error| {
            let (depth, words) = explain(error, leaf, rest, now);
            (chain_refusal(depth, words), certificate_error(error))
        };
        if authorities.certificates.contains(leaf) {
            // Trusted by itself. Path building would not take an authority for an end.
            return self.check_trusted_leaf(leaf, role, now);
        }
        let end = EndEntityCert::try_from(leaf).map_err(|e| refuse(&e))?;
        let (path, time) = match authorities.path_from(self, &end, role, algorithms, rest, now) {
            Err(Error::CertExpired { .. } | Error::CertNotValidYet { .. }) if self.allow_expired => {
                let time = latest_begin(leaf, rest).unwrap_or(now);
                (authorities.path_from(self, &end, role, algorithms, rest, time), None)
            }
            other => (other, Some(now)),
        };
        let (anchor, depth) = path.map_err(|e| refuse(&e))?;
        if self.max_depth.is_some_and(|max| depth > max + 1) {
            return Err((chain_refusal(depth, "certificate chain too long"), CertificateError::UnknownIssuer));
        }
        // The library takes authorities for valid at all times; Envoy does not.
        if let Some(now) = time
            && let Some(authority) = authorities.certificates.get(anchor).and_then(certificate::parse)
            && let Err(words) = valid_at(&authority, now)
            && !self.allow_expired
        {
            return Err((chain_refusal(depth, words), CertificateError::Expired));
        }
        Ok(())
    }

    fn check_trusted_leaf(
        &self,
        leaf: &CertificateDer<'_>,
        role: PeerRole,
        now: UnixTime,
    ) -> Result<(), (Refusal, CertificateError)> {
        let Some(parsed) = certificate::parse(leaf) else {
            return Err((chain_refusal(0, "certificate cannot be parsed"), CertificateError::BadEncoding));
        };
        if let Err(words) = valid_at(&parsed, now)
            && !self.allow_expired
        {
            return Err((chain_refusal(0, words), CertificateError::Expired));
        }
        let usage = parsed.extended_key_usage().ok().flatten();
        let fits = usage.is_none_or(|usage| {
            usage.value.any
                || match role {
                    PeerRole::Client => usage.value.client_auth,
                    PeerRole::Server => usage.value.server_auth,
                }
        });
        if !fits {
            let refusal = chain_refusal(0, "unsupported certificate purpose");
            return Err((refusal, CertificateError::InvalidPurpose));
        }
        Ok(())
    }
}

// === impl Authorities ===

impl Authorities {
    fn read(source: &Source, crl: Option<&Source>) -> Result<Self, ConfigError> {
        let failed = |why: String| {
            let reason = format!("Failed to load trusted CA certificates from {}{why}", source.path);
            ConfigError::new("trusted_ca", reason)
        };
        let mut read = Self {
            anchors: Vec::new(),
            certificates: Vec::new(),
            subjects: Vec::new(),
            crls: Vec::new(),
            path: source.path.clone(),
        };
        for der in CertificateDer::pem_slice_iter(&source.bytes) {
            let der = der.map_err(|e| failed(format!(": {e}")))?;
            if read.certificates.contains(&der) {
                continue;
            }
            let anchor = webpki::anchor_from_trusted_cert(&der).map_err(|e| failed(format!(": {e}")))?.to_owned();
            read.subjects.push(DistinguishedName::in_sequence(&anchor.subject));
            read.anchors.push(anchor);
            read.certificates.push(der);
        }
        if read.anchors.is_empty() {
            return Err(failed(String::new()));
        }
        for source in [Some(source), crl].into_iter().flatten() {
            let before = read.crls.len();
            for der in CertificateRevocationListDer::pem_slice_iter(&source.bytes) {
                let list = der
                    .ok()
                    .and_then(|der| OwnedCertRevocationList::from_der(&der).ok())
                    .ok_or_else(|| ConfigError::new("crl", format!("Failed to load CRL from {}", source.path)))?;
                read.crls.push(CertRevocationList::Owned(list));
            }
            if crl.is_some_and(|crl| std::ptr::eq(crl, source)) && read.crls.len() == before {
                return Err(ConfigError::new("crl", format!("Failed to load CRL from {}", source.path)));
            }
        }
        Ok(read)
    }

    /// Which authority the path ends at, and how many certificates are on it below that.
    fn path_from(
        &self,
        validator: &Validator,
        end: &EndEntityCert<'_>,
        role: PeerRole,
        algorithms: &WebPkiSupportedAlgorithms,
        rest: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(usize, usize), Error> {
        let crls: Vec<&CertRevocationList<'_>> = self.crls.iter().collect();
        let revocation = RevocationOptionsBuilder::new(&crls).ok().map(|builder| {
            let depth =
                if validator.leaf_crl_only { RevocationCheckDepth::EndEntity } else { RevocationCheckDepth::Chain };
            builder.with_depth(depth).with_expiration_policy(webpki::ExpirationPolicy::Enforce).build()
        });
        let usage = match role {
            PeerRole::Client => KeyUsage::client_auth(),
            PeerRole::Server => KeyUsage::server_auth(),
        };
        let path = end.verify_for_usage(algorithms.all, &self.anchors, rest, now, usage, revocation, None)?;
        let anchor = self.anchors.iter().position(|a| std::ptr::eq(a, path.anchor())).unwrap_or(usize::MAX);
        Ok((anchor, 1 + path.intermediate_certificates().count()))
    }
}

fn system_roots() -> Result<Source, ConfigError> {
    for path in SYSTEM_ROOTS_AT {
        if let Ok(bytes) = std::fs::read(path) {
            return Ok(Source { bytes, path: path.to_owned() });
        }
    }
    Err(ConfigError::new("system_root_certs", "Failed to find the system's trusted CA certificates"))
}

fn listed(names: &[SubjectName]) -> String {
    names.iter().map(SubjectName::text).collect::<Vec<_>>().join(", ")
}

fn chain_refusal(depth: usize, words: &str) -> Refusal {
    let text =
        format!("verify cert failed: X509_verify_cert: certificate verification error at depth {depth}: {words}");
    Refusal { kind: RefusalKind::Chain, text }
}

/// As people write them: with or without colons, in small or capital letters.
fn from_hex(text: &str) -> Option<[u8; 32]> {
    let digits: String = text.chars().filter(|c| *c != ':').collect();
    let mut hash = [0; 32];
    if digits.len() != 64 || !digits.is_ascii() {
        return None;
    }
    for (i, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[2 * i..2 * i + 2], 16).ok()?;
    }
    Some(hash)
}

fn valid_at(certificate: &X509Certificate<'_>, now: UnixTime) -> Result<(), &'static str> {
    let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    if now > certificate.validity().not_after.timestamp() {
        return Err("certificate has expired");
    }
    if now < certificate.validity().not_before.timestamp() {
        return Err("certificate is not yet valid");
    }
    Ok(())
}

/// A moment at which all of them had begun.
fn latest_begin(leaf: &CertificateDer<'_>, rest: &[CertificateDer<'_>]) -> Option<UnixTime> {
    let begin = |der| Some(certificate::parse(der)?.validity().not_before.timestamp());
    let seconds = std::iter::once(leaf).chain(rest).filter_map(begin).max()?;
    let seconds = u64::try_from(seconds).ok()?;
    Some(UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds)))
}

/// At which certificate it failed, and in OpenSSL's words why.
fn explain(
    error: &Error,
    leaf: &CertificateDer<'_>,
    rest: &[CertificateDer<'_>],
    now: UnixTime,
) -> (usize, &'static str) {
    let chain: Vec<_> = std::iter::once(leaf).chain(rest).filter_map(certificate::parse).collect();
    let first_outside = || chain.iter().position(|c| valid_at(c, now).is_err()).unwrap_or(0);
    match error {
        Error::CertExpired { .. } => (first_outside(), "certificate has expired"),
        Error::CertNotValidYet { .. } => (first_outside(), "certificate is not yet valid"),
        Error::CertRevoked => (0, "certificate revocation check against provided CRLs failed: certificate revoked"),
        Error::UnknownRevocationStatus => {
            (0, "certificate revocation check against provided CRLs failed: unable to get certificate CRL")
        }
        Error::CrlExpired { .. } => (0, "certificate revocation check against provided CRLs failed: CRL has expired"),
        Error::UnknownIssuer => unknown_issuer(&chain),
        Error::InvalidSignatureForPublicKey => (0, "certificate signature failure"),
        Error::RequiredEkuNotFoundContext(_) => (0, "unsupported certificate purpose"),
        Error::NameConstraintViolation => (0, "permitted subtree violation"),
        Error::PathLenConstraintViolated => (0, "path length constraint exceeded"),
        Error::EndEntityUsedAsCa => (1, "invalid CA certificate"),
        Error::CaUsedAsEndEntity => (0, "CA certificate used as an end entity's"),
        Error::UnsupportedCertVersion => (0, "certificate is of an unsupported version"),
        Error::UnsupportedCriticalExtension => (0, "unhandled critical extension"),
        Error::MaximumPathDepthExceeded
        | Error::MaximumPathBuildCallsExceeded
        | Error::MaximumSignatureChecksExceeded
        | Error::MaximumNameConstraintComparisonsExceeded => (0, "certificate chain too long"),
        _ => (0, "certificate cannot be verified"),
    }
}

fn unknown_issuer(chain: &[X509Certificate<'_>]) -> (usize, &'static str) {
    let Some(mut current) = chain.first() else { return (0, "unable to get local issuer certificate") };
    let own = |c: &X509Certificate<'_>| c.issuer().as_raw() == c.subject().as_raw();
    if own(current) {
        return (0, "self signed certificate");
    }
    let mut depth = 0;
    while depth < chain.len()
        && let Some(next) = chain.iter().find(|c| c.subject().as_raw() == current.issuer().as_raw())
    {
        depth += 1;
        if own(next) {
            return (depth, "self signed certificate in certificate chain");
        }
        current = next;
    }
    (depth, "unable to get local issuer certificate")
}

/// What the peer is told by an alert.
fn certificate_error(error: &Error) -> CertificateError {
    match error {
        Error::CertExpired { .. } | Error::CrlExpired { .. } => CertificateError::Expired,
        Error::CertNotValidYet { .. } => CertificateError::NotValidYet,
        Error::CertRevoked => CertificateError::Revoked,
        Error::UnknownIssuer | Error::UnknownRevocationStatus | Error::EndEntityUsedAsCa => {
            CertificateError::UnknownIssuer
        }
        Error::InvalidSignatureForPublicKey => CertificateError::BadSignature,
        Error::RequiredEkuNotFoundContext(_) => CertificateError::InvalidPurpose,
        _ => CertificateError::BadEncoding,
    }
}

/// Shared by all connections that use it.
pub(super) type SharedValidator = Arc<Validator>;
