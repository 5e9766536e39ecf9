//! The common part of both contexts: versions, cipher suites, key exchange, application protocols.
//!
//! The library knows TLS 1.2 and 1.3 with forward secrecy and authenticated encryption. Whatever else a configuration
//! names is refused by its name: a handshake that quietly needs something else would be found by users.

use std::fs::File;
use std::io::Write;
use std::sync::{Arc, Mutex};

use nuncio_api::pb::envoy::extensions::transport_sockets::tls::v3::{self as pb, tls_parameters::TlsProtocol};
use nuncio_api::supports;
use nuncio_core::error::ConfigError;
use rustls::crypto::aws_lc_rs::{self, cipher_suite as suite, kx_group as group};
use rustls::crypto::{CryptoProvider, SupportedKxGroup};
use rustls::{CipherSuite, KeyLog, NamedGroup, SignatureScheme, SupportedCipherSuite, SupportedProtocolVersion};

supports!(pub(super) COMMON = "envoy.extensions.transport_sockets.tls.v3.CommonTlsContext" {
    tls_params, tls_certificates, tls_certificate_sds_secret_configs, validation_context,
    validation_context_sds_secret_config, combined_validation_context, alpn_protocols, key_log
});
supports!(pub(super) PARAMETERS = "envoy.extensions.transport_sockets.tls.v3.TlsParameters" {
    cipher_suites, ecdh_curves
} values {
    tls_minimum_protocol_version: ["TLS_AUTO", "TLSv1_2", "TLSv1_3"],
    tls_maximum_protocol_version: ["TLS_AUTO", "TLSv1_2", "TLSv1_3"],
});
supports!(pub(super) KEY_LOG = "envoy.extensions.transport_sockets.tls.v3.TlsKeyLog" { path });

/// Checked, for one context.
#[derive(Debug, Clone)]
pub(super) struct Parameters {
    pub(super) provider: Arc<CryptoProvider>,
    pub(super) versions: Vec<&'static SupportedProtocolVersion>,
    pub(super) alpn: Vec<Vec<u8>>,
    pub(super) key_log: Option<Arc<dyn KeyLog>>,
}

/// TLS 1.3's are not configured by name; the others stand in Envoy's order. AES-128 comes first, as Envoy's clients have
/// it: processors hash SHA-256 by themselves, and a handshake hashes a lot.
const TLS13: [SupportedCipherSuite; 3] =
    [suite::TLS13_AES_128_GCM_SHA256, suite::TLS13_AES_256_GCM_SHA384, suite::TLS13_CHACHA20_POLY1305_SHA256];
const TLS12: [(&str, SupportedCipherSuite); 6] = [
    ("ECDHE-ECDSA-AES128-GCM-SHA256", suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256),
    ("ECDHE-ECDSA-CHACHA20-POLY1305", suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256),
    ("ECDHE-RSA-AES128-GCM-SHA256", suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256),
    ("ECDHE-RSA-CHACHA20-POLY1305", suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256),
    ("ECDHE-ECDSA-AES256-GCM-SHA384", suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384),
    ("ECDHE-RSA-AES256-GCM-SHA384", suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384),
];
const GROUPS: [(&str, &dyn SupportedKxGroup); 5] = [
    ("X25519MLKEM768", group::X25519MLKEM768),
    ("X25519", group::X25519),
    ("P-256", group::SECP256R1),
    ("P-384", group::SECP384R1),
    ("SecP256r1MLKEM768", group::SECP256R1MLKEM768),
];
/// Envoy's own choice.
const DEFAULT_GROUPS: usize = 3;

/// Which way connections go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Client,
    Server,
}

impl Parameters {
    pub(super) fn from_proto(message: &pb::CommonTlsContext, side: Side) -> Result<Self, ConfigError> {
        let params = message.tls_params.clone().unwrap_or_default();
        let within = |e: ConfigError| e.within("tls_params");
        let mut provider = aws_lc_rs::default_provider();
        provider.cipher_suites = suites(&params.cipher_suites).map_err(within)?;
        provider.kx_groups = groups(&params.ecdh_curves).map_err(within)?;
        let key_log = match &message.key_log {
            Some(log) if !log.path.is_empty() => Some(KeyLogFile::open(&log.path).map_err(|e| e.within("key_log"))?),
            _ => None,
        };
        let mut alpn = Vec::new();
        for (i, name) in message.alpn_protocols.iter().enumerate() {
            // Old configurations have them all in one string.
            for name in name.split(',') {
                if name.is_empty() || name.len() > 255 {
                    let reason = "Invalid ALPN protocol string";
                    return Err(ConfigError::new(format!("alpn_protocols[{i}]"), reason));
                }
                alpn.push(name.as_bytes().to_vec());
            }
        }
        let versions = versions(&params, side).map_err(within)?;
        Ok(Self { provider: Arc::new(provider), versions, alpn, key_log })
    }
}

/// The same for clients that would rather not have AES, because their processors do not know it.
pub(super) fn without_preference_for_aes(provider: &CryptoProvider) -> CryptoProvider {
    let mut provider = provider.clone();
    let chacha = [CipherSuite::TLS13_CHACHA20_POLY1305_SHA256];
    provider.cipher_suites.sort_by_key(|suite| !chacha.contains(&suite.suite()));
    provider
}

fn versions(params: &pb::TlsParameters, side: Side) -> Result<Vec<&'static SupportedProtocolVersion>, ConfigError> {
    // As Envoy: towards upstream 1.2 is the newest unless it is said.
    let newest = if side == Side::Server { TlsProtocol::TlSv13 } else { TlsProtocol::TlSv12 };
    let number = |version: TlsProtocol, default, field: &str| match version {
        TlsProtocol::TlsAuto => Ok(default),
        TlsProtocol::TlSv12 => Ok(TlsProtocol::TlSv12),
        TlsProtocol::TlSv13 => Ok(TlsProtocol::TlSv13),
        old => {
            let reason = format!("{} is not implemented: TLSv1_2 is the oldest", old.as_str_name());
            Err(ConfigError::new(field, reason))
        }
    };
    let min = number(params.tls_minimum_protocol_version(), TlsProtocol::TlSv12, "tls_minimum_protocol_version")?;
    let max = number(params.tls_maximum_protocol_version(), newest, "tls_maximum_protocol_version")?;
    let mut versions: Vec<&'static SupportedProtocolVersion> = Vec::new();
    if max == TlsProtocol::TlSv13 {
        versions.push(&rustls::version::TLS13);
    }
    if min == TlsProtocol::TlSv12 {
        versions.push(&rustls::version::TLS12);
    }
    if versions.is_empty() {
        let reason = "is newer than tls_maximum_protocol_version, which is TLSv1_2";
        return Err(ConfigError::new("tls_minimum_protocol_version", reason));
    }
    Ok(versions)
}

fn suites(names: &[String]) -> Result<Vec<SupportedCipherSuite>, ConfigError> {
    let mut chosen = TLS13.to_vec();
    if names.is_empty() {
        chosen.extend(TLS12.iter().map(|(_, suite)| *suite));
        return Ok(chosen);
    }
    for (i, entry) in names.iter().enumerate() {
        // `[A|B]`: of equal preference. `-ALL` and the like are languages of another library.
        for name in entry.trim_start_matches('[').trim_end_matches(']').split(['|', ':']) {
            let Some((_, suite)) = TLS12.iter().find(|(known, _)| *known == name) else {
                let known: Vec<_> = TLS12.iter().map(|(known, _)| *known).collect();
                let reason = format!("cipher suite '{name}' is not implemented; there are {}", known.join(", "));
                return Err(ConfigError::new(format!("cipher_suites[{i}]"), reason));
            };
            if !chosen.contains(suite) {
                chosen.push(*suite);
            }
        }
    }
    Ok(chosen)
}

fn groups(names: &[String]) -> Result<Vec<&'static dyn SupportedKxGroup>, ConfigError> {
    if names.is_empty() {
        return Ok(GROUPS[..DEFAULT_GROUPS].iter().map(|(_, group)| *group).collect());
    }
    let mut chosen = Vec::new();
    for (i, entry) in names.iter().enumerate() {
        for name in entry.split(':') {
            let name = if name == "prime256v1" || name == "secp256r1" { "P-256" } else { name };
            let Some((_, group)) = GROUPS.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)) else {
                let known: Vec<_> = GROUPS.iter().map(|(known, _)| *known).collect();
                let reason = format!("curve '{name}' is not implemented; there are {}", known.join(", "));
                return Err(ConfigError::new(format!("ecdh_curves[{i}]"), reason));
            };
            chosen.push(*group);
        }
    }
    Ok(chosen)
}

/// OpenSSL's name, as logs and counters have it.
pub(super) fn suite_name(suite: CipherSuite) -> &'static str {
    match suite {
        CipherSuite::TLS13_AES_128_GCM_SHA256 => "TLS_AES_128_GCM_SHA256",
        CipherSuite::TLS13_AES_256_GCM_SHA384 => "TLS_AES_256_GCM_SHA384",
        CipherSuite::TLS13_CHACHA20_POLY1305_SHA256 => "TLS_CHACHA20_POLY1305_SHA256",
        other => TLS12.iter().find(|(_, suite)| suite.suite() == other).map_or("", |(name, _)| *name),
    }
}

pub(super) fn group_name(group: NamedGroup) -> &'static str {
    GROUPS.iter().find(|(_, known)| known.name() == group).map_or("", |(name, _)| *name)
}

pub(super) fn scheme_name(scheme: SignatureScheme) -> &'static str {
    match scheme {
        SignatureScheme::RSA_PKCS1_SHA1 => "rsa_pkcs1_sha1",
        SignatureScheme::ECDSA_SHA1_Legacy => "ecdsa_sha1",
        SignatureScheme::RSA_PKCS1_SHA256 => "rsa_pkcs1_sha256",
        SignatureScheme::RSA_PKCS1_SHA384 => "rsa_pkcs1_sha384",
        SignatureScheme::RSA_PKCS1_SHA512 => "rsa_pkcs1_sha512",
        SignatureScheme::ECDSA_NISTP256_SHA256 => "ecdsa_secp256r1_sha256",
        SignatureScheme::ECDSA_NISTP384_SHA384 => "ecdsa_secp384r1_sha384",
        SignatureScheme::ECDSA_NISTP521_SHA512 => "ecdsa_secp521r1_sha512",
        SignatureScheme::RSA_PSS_SHA256 => "rsa_pss_rsae_sha256",
        SignatureScheme::RSA_PSS_SHA384 => "rsa_pss_rsae_sha384",
        SignatureScheme::RSA_PSS_SHA512 => "rsa_pss_rsae_sha512",
        SignatureScheme::ED25519 => "ed25519",
        _ => "unknown",
    }
}

/// The keys of connections, for those who must read a capture of them.
#[derive(Debug)]
struct KeyLogFile(Mutex<File>);

impl KeyLogFile {
    fn open(path: &str) -> Result<Arc<dyn KeyLog>, ConfigError> {
        let file = File::options().create(true).append(true).open(path);
        let file = file.map_err(|e| ConfigError::new("path", format!("cannot open {path}: {e}")))?;
        Ok(Arc::new(Self(Mutex::new(file))))
    }
}

impl KeyLog for KeyLogFile {
    fn log(&self, label: &str, client_random: &[u8], secret: &[u8]) {
        let line = format!("{label} {} {}\n", super::certificate::hex(client_random), super::certificate::hex(secret));
        if let Ok(mut file) = self.0.lock() {
            let _ = file.write_all(line.as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(min: TlsProtocol, max: TlsProtocol, suites: &[&str], curves: &[&str]) -> pb::CommonTlsContext {
        pb::CommonTlsContext {
            tls_params: Some(pb::TlsParameters {
                tls_minimum_protocol_version: min as i32,
                tls_maximum_protocol_version: max as i32,
                cipher_suites: suites.iter().map(|s| (*s).to_owned()).collect(),
                ecdh_curves: curves.iter().map(|s| (*s).to_owned()).collect(),
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    #[test]
    fn towards_upstream_the_newest_version_is_1_2_unless_it_is_said() {
        let auto = params(TlsProtocol::TlsAuto, TlsProtocol::TlsAuto, &[], &[]);
        let versions = |side| Parameters::from_proto(&auto, side).unwrap().versions.len();
        assert_eq!((versions(Side::Client), versions(Side::Server)), (1, 2));
        let newer = params(TlsProtocol::TlSv13, TlsProtocol::TlSv12, &[], &[]);
        let error = Parameters::from_proto(&newer, Side::Server).unwrap_err();
        assert_eq!(error.path, "tls_params.tls_minimum_protocol_version");
    }

    #[test]
    fn chacha_comes_first_only_for_those_who_prefer_it() {
        let auto = params(TlsProtocol::TlsAuto, TlsProtocol::TlsAuto, &[], &[]);
        let usual = Parameters::from_proto(&auto, Side::Server).unwrap().provider;
        let other = without_preference_for_aes(&usual);
        let first = |provider: &CryptoProvider| suite_name(provider.cipher_suites[0].suite());
        assert_eq!(first(&usual), "TLS_AES_128_GCM_SHA256");
        assert_eq!(first(&other), "TLS_CHACHA20_POLY1305_SHA256");
        assert_eq!(usual.cipher_suites.len(), other.cipher_suites.len());
    }

    #[test]
    fn what_the_library_lacks_is_named() {
        let lists = params(
            TlsProtocol::TlsAuto,
            TlsProtocol::TlsAuto,
            &["[ECDHE-ECDSA-AES128-GCM-SHA256|ECDHE-ECDSA-CHACHA20-POLY1305]", "ECDHE-RSA-AES256-GCM-SHA384"],
            &["X25519", "P-256"],
        );
        let read = Parameters::from_proto(&lists, Side::Server).unwrap();
        assert_eq!(read.provider.cipher_suites.len(), 6);
        assert_eq!(read.provider.kx_groups.len(), 2);
        for (message, path, word) in [
            (
                params(TlsProtocol::TlsAuto, TlsProtocol::TlsAuto, &["AES128-SHA"], &[]),
                "cipher_suites[0]",
                "AES128-SHA",
            ),
            (params(TlsProtocol::TlsAuto, TlsProtocol::TlsAuto, &[], &["P-521"]), "ecdh_curves[0]", "P-521"),
            (params(TlsProtocol::TlSv10, TlsProtocol::TlsAuto, &[], &[]), "tls_minimum_protocol_version", "TLSv1_0"),
        ] {
            let error = Parameters::from_proto(&message, Side::Server).unwrap_err();
            assert_eq!(error.path, format!("tls_params.{path}"));
            assert!(error.reason.contains(word), "{}", error.reason);
        }
    }
}
