//! Where certificates, keys and lists of authorities come from: `core.v3.DataSource`.

use nuncio_api::pb::envoy::config::core::v3::{DataSource, data_source::Specifier};
use nuncio_api::pb::envoy::extensions::transport_sockets::tls::v3::{
    self as pb, common_tls_context::ValidationContextType, secret::Type,
};
use nuncio_api::supports;
use nuncio_core::error::ConfigError;

supports!(pub(super) DATA_SOURCE = "envoy.config.core.v3.DataSource" {
    filename, inline_bytes, inline_string, environment_variable
});

/// Bytes, and what to call where they are from.
#[derive(Debug, Clone, Default)]
pub(super) struct Source {
    pub(super) bytes: Vec<u8>,
    /// The file, or `<inline>` as Envoy shows it.
    pub(super) path: String,
}

/// Reads it now. Nothing set is nothing read.
pub(super) fn read(source: &DataSource) -> Result<Option<Source>, ConfigError> {
    let inline = |bytes: Vec<u8>| Ok(Some(Source { bytes, path: "<inline>".to_owned() }));
    match &source.specifier {
        Some(Specifier::InlineString(text)) => inline(text.clone().into_bytes()),
        Some(Specifier::InlineBytes(bytes)) => inline(bytes.clone()),
        Some(Specifier::Filename(path)) => match std::fs::read(path) {
            Ok(bytes) => Ok(Some(Source { bytes, path: path.clone() })),
            Err(e) => Err(ConfigError::new("filename", format!("Invalid path: {path}: {e}"))),
        },
        Some(Specifier::EnvironmentVariable(name)) => match std::env::var(name) {
            Ok(text) => inline(text.into_bytes()),
            Err(_) => {
                Err(ConfigError::new("environment_variable", format!("Environment variable doesn't exist: {name}")))
            }
        },
        None => Ok(None),
    }
}

/// The same for an optional field, with its name in errors. What is empty counts as not set.
pub(super) fn read_field(source: Option<&DataSource>, field: &str) -> Result<Option<Source>, ConfigError> {
    let read = source.map(read).transpose().map_err(|e| e.within(field))?;
    Ok(read.flatten().filter(|read| !read.bytes.is_empty()))
}

/// Puts what is read in the place of where it was read from.
pub(super) fn read_all(sources: Vec<&mut DataSource>) -> Result<(), ConfigError> {
    for source in sources {
        if let Some(read) = read(source)? {
            source.specifier = Some(Specifier::InlineBytes(read.bytes));
        }
    }
    Ok(())
}

/// Everything that a secret is read from.
pub(super) fn of_secret(secret: &mut pb::Secret) -> Vec<&mut DataSource> {
    match &mut secret.r#type {
        Some(Type::TlsCertificate(certificate)) => of_certificate(certificate),
        Some(Type::ValidationContext(context)) => of_validation(context),
        _ => Vec::new(),
    }
}

/// The same of what a context has itself.
pub(super) fn of_context(common: &mut pb::CommonTlsContext) -> Vec<&mut DataSource> {
    let mut all: Vec<_> = common.tls_certificates.iter_mut().flat_map(of_certificate).collect();
    match &mut common.validation_context_type {
        Some(ValidationContextType::ValidationContext(context)) => all.extend(of_validation(context)),
        Some(ValidationContextType::CombinedValidationContext(both)) => {
            all.extend(both.default_validation_context.iter_mut().flat_map(of_validation));
        }
        _ => {}
    }
    all
}

fn of_certificate(certificate: &mut pb::TlsCertificate) -> Vec<&mut DataSource> {
    let parts = [&mut certificate.certificate_chain, &mut certificate.private_key, &mut certificate.ocsp_staple];
    parts.into_iter().flatten().collect()
}

fn of_validation(context: &mut pb::CertificateValidationContext) -> Vec<&mut DataSource> {
    [&mut context.trusted_ca, &mut context.crl].into_iter().flatten().collect()
}
