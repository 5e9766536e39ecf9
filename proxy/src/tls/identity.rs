//! Our own certificates: `TlsCertificate`, and which of several is shown to a client.

use std::collections::HashMap;
use std::sync::Arc;

use nuncio_api::pb::envoy::extensions::transport_sockets::tls::v3 as pb;
use nuncio_api::pb::google::protobuf::BoolValue;
use nuncio_api::supports;
use nuncio_core::error::ConfigError;
use nuncio_core::net::PeerCertificate;
use rustls::CipherSuite;
use rustls::client::ResolvesClientCert;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{SignatureAlgorithm, SignatureScheme};

use super::certificate::{self, SubjectName};
use super::ocsp::Stapling;
use super::secret::CertificateFacts;
use super::source::read_field;
use super::witness;

supports!(pub(super) CERTIFICATE = "envoy.extensions.transport_sockets.tls.v3.TlsCertificate" {
    certificate_chain, private_key, ocsp_staple, watched_directory
});

/// A chain, its key, and what it says.
#[derive(Debug, Clone)]
pub(super) struct Identity {
    /// Without the certificate's status.
    pub(super) key: Arc<CertifiedKey>,
    /// The certificate's status, as it was given.
    pub(super) staple: Option<Vec<u8>>,
    pub(super) described: Arc<PeerCertificate>,
    pub(super) facts: Vec<CertificateFacts>,
    /// Host names it is for, in small letters.
    names: Vec<String>,
}

impl Identity {
    pub(super) fn from_proto(message: &pb::TlsCertificate, provider: &CryptoProvider) -> Result<Self, ConfigError> {
        let Some(chain) = read_field(message.certificate_chain.as_ref(), "certificate_chain")? else {
            return Err(ConfigError::new("certificate_chain", "No certificate chain is given"));
        };
        let Some(secret) = read_field(message.private_key.as_ref(), "private_key")? else {
            return Err(ConfigError::new("private_key", "No private key is given"));
        };
        let no_chain = |why: String| {
            ConfigError::new("certificate_chain", format!("Failed to load certificate chain from {}{why}", chain.path))
        };
        let certificates: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(&chain.bytes)
            .collect::<Result<_, _>>()
            .map_err(|e| no_chain(format!(": {e}")))?;
        let leaf = certificates.first().ok_or_else(|| no_chain(String::new()))?;
        let described =
            certificate::describe(&certificates).ok_or_else(|| no_chain(": it is not a certificate".to_owned()))?;
        let names = host_names(leaf);
        let no_key = |why: String| {
            let reason = format!("Failed to load private key from {}, Cause: {why}", secret.path);
            ConfigError::new("private_key", reason)
        };
        let key = PrivateKeyDer::from_pem_slice(&secret.bytes).map_err(|e| no_key(e.to_string()))?;
        let signing = provider.key_provider.load_private_key(key).map_err(|e| no_key(e.to_string()))?;
        let facts = certificates.iter().take(1).filter_map(|der| CertificateFacts::read(der, &chain.path)).collect();
        let key = CertifiedKey::new(certificates, signing);
        key.keys_match().map_err(|e| match e {
            rustls::Error::InconsistentKeys(rustls::InconsistentKeys::KeyMismatch) => {
                no_key("KEY_VALUES_MISMATCH: the key is not the certificate's".to_owned())
            }
            other => no_key(other.to_string()),
        })?;
        let staple = read_field(message.ocsp_staple.as_ref(), "ocsp_staple")?.map(|staple| staple.bytes);
        Ok(Self { key: Arc::new(key), staple, described, facts, names })
    }

    fn is_ecdsa(&self) -> bool {
        self.key.key.algorithm() == SignatureAlgorithm::ECDSA
    }

    fn can_sign(&self, schemes: &[SignatureScheme]) -> bool {
        self.key.key.choose_scheme(schemes).is_some()
    }
}

/// The names of the certificate; the subject's if it has no others, as Envoy does.
fn host_names(leaf: &CertificateDer<'_>) -> Vec<String> {
    let Some(parsed) = certificate::parse(leaf) else { return Vec::new() };
    let names = certificate::names(&parsed);
    let hosts: Vec<String> = names
        .iter()
        .filter_map(|name| match name {
            SubjectName::Dns(host) => Some(host.to_ascii_lowercase()),
            _ => None,
        })
        .collect();
    if !names.is_empty() {
        return hosts;
    }
    parsed.subject().iter_common_name().filter_map(|cn| cn.as_str().ok()).map(str::to_ascii_lowercase).collect()
}

/// Chooses by the name that the client asks for, then by what it can verify.
#[derive(Debug)]
pub(super) struct ServerIdentities {
    all: Vec<Identity>,
    /// Of each of them.
    stapling: Vec<Stapling>,
    /// Exact names, and wildcards as `.example.com`, to places in `all`.
    by_name: HashMap<String, Vec<usize>>,
    full_scan: bool,
    require_sni: bool,
}

impl ServerIdentities {
    pub(super) fn new(all: Vec<Identity>, message: &pb::DownstreamTlsContext) -> Result<Self, ConfigError> {
        let is = |value: &Option<BoolValue>| value.as_ref().is_some_and(|v| v.value);
        let stapling = all.iter().enumerate().map(|(i, identity)| {
            let stapling = Stapling::new(identity, message.ocsp_staple_policy());
            stapling.map_err(|e| e.within(&format!("common_tls_context.tls_certificates[{i}]")))
        });
        let stapling = stapling.collect::<Result<_, ConfigError>>()?;
        let mut by_name: HashMap<String, Vec<usize>> = HashMap::new();
        for (i, identity) in all.iter().enumerate() {
            for name in &identity.names {
                let key = name.strip_prefix('*').filter(|rest| rest.starts_with('.')).unwrap_or(name);
                by_name.entry(key.to_owned()).or_default().push(i);
            }
        }
        let full_scan = is(&message.full_scan_certs_on_sni_mismatch);
        Ok(Self { all, stapling, by_name, full_scan, require_sni: is(&message.require_sni) })
    }

    /// Places in `all`.
    fn candidates(&self, name: Option<&str>) -> Vec<usize> {
        let everyone = || (0..self.all.len()).collect();
        let Some(name) = name else { return everyone() };
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        let wildcard = name.find('.').map(|dot| &name[dot..]);
        let found = self.by_name.get(&name).or_else(|| self.by_name.get(wildcard?));
        match found {
            Some(places) => places.clone(),
            None if self.full_scan => everyone(),
            None => vec![0],
        }
    }

    fn choose(&self, name: Option<&str>, schemes: &[SignatureScheme], ecdsa: bool) -> Option<usize> {
        let candidates = self.candidates(name);
        let is_ecdsa = |at: &&usize| self.all[**at].is_ecdsa();
        let fits = |at: &&usize| self.all[**at].can_sign(schemes) && (ecdsa || !is_ecdsa(at));
        let preferred = candidates.iter().find(|at| is_ecdsa(at) && fits(at));
        // One that does not fit makes the handshake fail with the right words.
        preferred.or_else(|| candidates.iter().find(fits)).or(candidates.first()).copied()
    }
}

impl ResolvesServerCert for ServerIdentities {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        if self.require_sni && hello.server_name().is_none() {
            return None;
        }
        let ecdsa = hello.cipher_suites().iter().any(|suite| {
            matches!(
                suite,
                CipherSuite::TLS13_AES_128_GCM_SHA256
                    | CipherSuite::TLS13_AES_256_GCM_SHA384
                    | CipherSuite::TLS13_CHACHA20_POLY1305_SHA256
                    | CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
                    | CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384
                    | CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256
            )
        });
        let at = self.choose(hello.server_name(), hello.signature_schemes(), ecdsa)?;
        let identity = &self.all[at];
        witness::note(|note| {
            note.local = Some(identity.described.clone());
            let Some(status) = &mut note.status else { return Some(identity.key.clone()) };
            let (shown, key) = self.stapling[at].show(&identity.key, UnixTime::now());
            *status = shown;
            key
        })
    }
}

/// What is shown to upstreams that ask.
#[derive(Debug)]
pub(super) struct ClientIdentity(pub(super) Option<Identity>);

impl ResolvesClientCert for ClientIdentity {
    fn resolve(&self, _: &[&[u8]], schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.0.as_ref().filter(|identity| identity.can_sign(schemes)).map(|identity| identity.key.clone())
    }

    fn has_certs(&self) -> bool {
        self.0.is_some()
    }
}
