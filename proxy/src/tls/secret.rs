//! Secrets by name: those of the bootstrap, and those that come from elsewhere and change while the proxy runs.
//!
//! A secret is taken whole or not at all. What its files say is read at once and tried before any context hears of it,
//! so that a half-written file, or a key that is not its certificate's, leaves the old one in use; the refusal is
//! counted as `key_rotation_failed` and logged. Main alone changes secrets; workers see the context that was built of
//! them last, at their next handshake.

mod fetch;

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::SystemTime;

use nuncio_api::pb::envoy::config::core::v3::ConfigSource as ConfigSourceProto;
use nuncio_api::pb::envoy::extensions::transport_sockets::tls::v3::{
    self as pb, common_tls_context::ValidationContextType, secret::Type,
};
use nuncio_api::prost::Message;
use nuncio_api::supports;
use nuncio_core::error::ConfigError;
use nuncio_core::stats::{Kind, NamedCounter, ScopeId, Store};
use nuncio_discovery::xds::ConfigSource;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::CertificateDer;
use tokio::sync::Notify;

use super::certificate::{self, SubjectName};
use super::identity::Identity;
use super::source;
use super::validation::Validator;

supports!(pub(super) SECRET = "envoy.extensions.transport_sockets.tls.v3.Secret" {
    name, tls_certificate, validation_context
});
supports!(pub(super) SDS = "envoy.extensions.transport_sockets.tls.v3.SdsSecretConfig" { name, sds_config });
supports!(pub(super) COMBINED =
    "envoy.extensions.transport_sockets.tls.v3.CommonTlsContext.CombinedCertificateValidationContext" {
    default_validation_context, validation_context_sds_secret_config
});

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
    /// Its secret's, or what Envoy calls those that have none.
    pub label: Arc<str>,
}

/// The certificates of one context.
#[derive(Debug, Clone, Default)]
pub struct ContextFacts {
    pub authorities: Vec<CertificateFacts>,
    pub chains: Vec<CertificateFacts>,
}

/// A context with its secrets in their places, and what those are called.
pub(super) struct Filled {
    pub(super) common: pb::CommonTlsContext,
    chains: Vec<Arc<str>>,
    authorities: Option<Arc<str>>,
}

impl Filled {
    /// Names what was built of it.
    pub(super) fn label(&self, facts: &mut ContextFacts) {
        // Its own certificates stand before those of secrets.
        for (certificate, name) in facts.chains.iter_mut().rev().zip(self.chains.iter().rev()) {
            certificate.label = name.clone();
        }
        let name = self.authorities.clone().unwrap_or_else(|| "unnamed_ca_cert_e3b0c442".into());
        facts.authorities.iter_mut().for_each(|certificate| certificate.label = name.clone());
    }
}

/// A secret from elsewhere, as `/config_dump` shows it.
#[derive(Debug, Clone)]
pub struct SecretView {
    pub name: Arc<str>,
    /// Encoded; none while it is waited for.
    pub secret: Option<Vec<u8>>,
    pub version: String,
    pub updated: Option<SystemTime>,
}

/// All secrets of the process.
#[derive(Debug, Clone, Default)]
pub struct Secrets(Arc<Registry>);

#[derive(Debug, Default)]
struct Registry {
    state: Mutex<State>,
    /// There is a new wish, or a secret came for the first time.
    news: Notify,
}

#[derive(Debug, Default)]
struct State {
    of_bootstrap: HashMap<String, OfBootstrap>,
    asked: Vec<Arc<Asked>>,
    /// Those of them that nobody fetches yet.
    wishes: Vec<Arc<Asked>>,
    contexts: Vec<Weak<dyn Context>>,
}

/// A secret of the bootstrap. Its files are read when a context is made, and never again: contexts that are built more
/// than once, because another secret of theirs changes, are built of what the files said at the start.
#[derive(Debug)]
struct OfBootstrap {
    secret: Arc<pb::Secret>,
    read: Arc<pb::Secret>,
}

/// A secret that some context asked for.
#[derive(Debug)]
struct Asked {
    name: Arc<str>,
    proto: ConfigSourceProto,
    source: ConfigSource,
    current: Mutex<Current>,
}

#[derive(Debug, Default)]
struct Current {
    secret: Option<Arc<pb::Secret>>,
    version: String,
    updated: Option<SystemTime>,
    /// Whoever waits for the first one has it, or has waited long enough.
    settled: bool,
    users: Vec<Weak<dyn Context>>,
}

/// A TLS context that is built of secrets.
pub(super) trait Context: Send + Sync + std::fmt::Debug {
    /// Builds itself anew; what it was stays if that fails. `Ok(false)`: a secret is missing.
    fn rebuild(&self) -> Result<bool, ConfigError>;
    fn facts(&self) -> Option<ContextFacts>;
    /// Where its updates are counted, and which prefix of the list is its own.
    fn counted_at(&self) -> Option<(ScopeId, u8)>;
}

/// Nobody panics while holding one.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

// === impl Secrets ===

/// Adds to a list of those who may be gone. They would keep their places in memory for as long as they are remembered, so
/// they are looked for whenever the list would grow: ten thousand contexts of a start are not walked for each of them.
fn remember(list: &mut Vec<Weak<dyn Context>>, context: Weak<dyn Context>) {
    if list.len() == list.capacity() {
        list.retain(|context| context.strong_count() > 0);
    }
    list.push(context);
}

impl Secrets {
    /// One of `static_resources.secrets`.
    pub fn add_static(&self, secret: pb::Secret) -> Result<(), ConfigError> {
        let checked = try_out(&secret);
        let mut state = lock(&self.0.state);
        if state.of_bootstrap.contains_key(&secret.name) {
            return Err(ConfigError::new("name", format!("Duplicate static secret name {}", secret.name)));
        }
        let mut read = secret.clone();
        let done = source::read_all(source::of_secret(&mut read));
        let (name, secret, read) = (secret.name.clone(), Arc::new(secret), Arc::new(read));
        state.of_bootstrap.insert(name, OfBootstrap { secret, read });
        checked.and(done)
    }

    /// Every secret that contexts asked for was brought, or waited for long enough.
    pub async fn settled(&self) {
        loop {
            let news = self.0.news.notified();
            if lock(&self.0.state).asked.iter().all(|asked| lock(&asked.current).settled) {
                return;
            }
            news.await;
        }
    }

    /// The certificates of every context that lives, in the order in which they were made.
    pub fn contexts(&self) -> Vec<ContextFacts> {
        let mut state = lock(&self.0.state);
        state.contexts.retain(|context| context.strong_count() > 0);
        state.contexts.iter().filter_map(|context| context.upgrade()?.facts()).collect()
    }

    /// What came from elsewhere.
    pub fn views(&self) -> Vec<SecretView> {
        let view = |asked: &Arc<Asked>| {
            let current = lock(&asked.current);
            SecretView {
                name: asked.name.clone(),
                secret: current.secret.as_ref().map(|secret| secret.encode_to_vec()),
                version: current.version.clone(),
                updated: current.updated,
            }
        };
        lock(&self.0.state).asked.iter().map(view).collect()
    }

    /// How long all certificates in use are valid yet, in whole days.
    pub fn days_until_first_expires(&self, now: i64) -> Option<u64> {
        let contexts = self.contexts();
        let all = contexts.iter().flat_map(|context| context.authorities.iter().chain(&context.chains));
        all.map(|certificate| certificate.days_left(now)).min()
    }

    /// `ssl.certificate.<name>.expiration_unix_time_seconds` of every context, as they are when somebody reads them.
    pub fn expiry_gauges(&self) -> impl Fn(&mut Store) + 'static {
        let secrets = self.clone();
        let kept = RefCell::<HashMap<(ScopeId, Arc<str>), (NamedCounter, u64)>>::default();
        move |store| {
            let mut now: HashMap<(ScopeId, Arc<str>), u64> = HashMap::new();
            let contexts: Vec<_> = lock(&secrets.0.state).contexts.iter().filter_map(Weak::upgrade).collect();
            for (scope, facts) in contexts.iter().filter_map(|c| Some((c.counted_at()?.0, c.facts()?))) {
                for certificate in facts.authorities.iter().chain(&facts.chains) {
                    let end = u64::try_from(certificate.not_after).unwrap_or(0);
                    let known = now.entry((scope, certificate.label.clone())).or_insert(end);
                    *known = end.min(*known);
                }
            }
            let mut kept = kept.borrow_mut();
            kept.retain(|key, (gauge, shown)| {
                let lives = now.contains_key(key);
                if !lives {
                    gauge.sub(*shown);
                }
                lives
            });
            for (key, end) in now {
                let name = format!("ssl.certificate.{}.expiration_unix_time_seconds", key.1);
                let scope = key.0;
                let make = || (store.main().named(scope, &name, Kind::Gauge), 0);
                let (gauge, shown) = kept.entry(key).or_insert_with(make);
                gauge.sub(*shown);
                gauge.add(end);
                *shown = end;
            }
        }
    }

    pub(super) fn note_context(&self, context: Weak<dyn Context>) {
        remember(&mut lock(&self.0.state).contexts, context);
    }

    /// Tells `user` of changes of every secret that the context names.
    pub(super) fn subscribe(&self, common: &pb::CommonTlsContext, user: &Weak<dyn Context>) -> Result<(), ConfigError> {
        for (path, config) in references(common) {
            let Some(asked) = self.asked(config).map_err(|e| e.within(&path))? else { continue };
            remember(&mut lock(&asked.current).users, user.clone());
        }
        Ok(())
    }

    /// The context with all secrets in their places; none while one is missing.
    pub(super) fn fill_in(&self, common: &pb::CommonTlsContext) -> Result<Option<Filled>, ConfigError> {
        let mut filled = common.clone();
        let (mut chains, mut authorities) = (Vec::new(), None);
        for (path, config) in references(common) {
            let Some(secret) = self.find(config, changes(common)).map_err(|e| e.within(&path))? else {
                return Ok(None);
            };
            let wrong =
                |what: &str| ConfigError::new(path.clone(), format!("Invalid secret: '{}' is not {what}", config.name));
            match (&secret.r#type, &mut filled.validation_context_type) {
                (Some(Type::TlsCertificate(certificate)), _) if path.starts_with(CERTIFICATES) => {
                    filled.tls_certificates.push(certificate.clone());
                    chains.push(config.name.as_str().into());
                    continue;
                }
                (_, _) if path.starts_with(CERTIFICATES) => return Err(wrong("a TLS certificate")),
                (Some(Type::ValidationContext(own)), Some(ValidationContextType::CombinedValidationContext(both))) => {
                    let mut merged = both.default_validation_context.clone().unwrap_or_default();
                    // As protobuf merges: lists add up, what is set replaces.
                    merged
                        .merge(own.encode_to_vec().as_slice())
                        .map_err(|e| ConfigError::new(path.clone(), e.to_string()))?;
                    filled.validation_context_type = Some(ValidationContextType::ValidationContext(merged));
                }
                (Some(Type::ValidationContext(own)), to) => {
                    *to = Some(ValidationContextType::ValidationContext(own.clone()));
                }
                _ => return Err(wrong("a validation context")),
            }
            authorities = Some(config.name.as_str().into());
        }
        filled.tls_certificate_sds_secret_configs.clear();
        Ok(Some(Filled { common: filled, chains, authorities }))
    }

    /// `again`: not for this time alone.
    fn find(&self, config: &pb::SdsSecretConfig, again: bool) -> Result<Option<Arc<pb::Secret>>, ConfigError> {
        if config.sds_config.is_none() {
            let state = lock(&self.0.state);
            let unknown = || ConfigError::new("name", format!("Unknown static secret: {}", config.name));
            let found = state.of_bootstrap.get(&config.name).ok_or_else(unknown)?;
            return Ok(Some(if again { found.read.clone() } else { found.secret.clone() }));
        }
        Ok(self.asked(config)?.and_then(|asked| lock(&asked.current).secret.clone()))
    }

    /// The secret of that name from that source; asked for from now on if it is the first time.
    fn asked(&self, config: &pb::SdsSecretConfig) -> Result<Option<Arc<Asked>>, ConfigError> {
        let Some(proto) = &config.sds_config else { return Ok(None) };
        let mut state = lock(&self.0.state);
        if let Some(asked) = state.asked.iter().find(|a| *a.name == *config.name && a.proto == *proto) {
            return Ok(Some(asked.clone()));
        }
        let source = ConfigSource::from_proto(proto).map_err(|e| e.within("sds_config"))?;
        let asked = Arc::new(Asked {
            name: config.name.as_str().into(),
            proto: proto.clone(),
            source,
            current: Mutex::default(),
        });
        state.asked.push(asked.clone());
        state.wishes.push(asked.clone());
        self.0.news.notify_waiters();
        Ok(Some(asked))
    }
}

const CERTIFICATES: &str = "tls_certificate_sds_secret_configs";

/// Whether a context is built again when a secret changes.
fn changes(common: &pb::CommonTlsContext) -> bool {
    references(common).iter().any(|(_, config)| config.sds_config.is_some())
}

/// The context's part as it is kept: what it reads itself, it reads once.
pub(super) fn kept(common: Option<&pb::CommonTlsContext>) -> Result<pb::CommonTlsContext, ConfigError> {
    let mut common = common.cloned().unwrap_or_default();
    if changes(&common) {
        source::read_all(source::of_context(&mut common)).map_err(|e| e.within("common_tls_context"))?;
    }
    Ok(common)
}

/// The secrets that a context names, with the places where it does.
fn references(common: &pb::CommonTlsContext) -> Vec<(String, &pb::SdsSecretConfig)> {
    let certificates = common.tls_certificate_sds_secret_configs.iter().enumerate();
    let mut found: Vec<_> = certificates.map(|(i, config)| (format!("{CERTIFICATES}[{i}]"), config)).collect();
    match &common.validation_context_type {
        Some(ValidationContextType::ValidationContextSdsSecretConfig(config)) => {
            found.push(("validation_context_sds_secret_config".to_owned(), config));
        }
        Some(ValidationContextType::CombinedValidationContext(both)) => {
            if let Some(config) = &both.validation_context_sds_secret_config {
                found.push(("combined_validation_context.validation_context_sds_secret_config".to_owned(), config));
            }
        }
        _ => {}
    }
    found
}

/// Whether a secret is one, whoever uses it.
fn try_out(secret: &pb::Secret) -> Result<(), ConfigError> {
    match &secret.r#type {
        Some(Type::TlsCertificate(certificate)) => {
            let tried = Identity::from_proto(certificate, &aws_lc_rs::default_provider());
            tried.map(drop).map_err(|e| e.within("tls_certificate"))
        }
        Some(Type::ValidationContext(context)) => {
            Validator::from_proto(context).map(drop).map_err(|e| e.within("validation_context"))
        }
        // Whoever names it as what it is not is told.
        Some(Type::GenericSecret(_) | Type::SessionTicketKeys(_)) | None => Ok(()),
    }
}

// === impl Asked ===

impl Asked {
    /// A new value, already tried. Says which contexts were built anew of it.
    fn set(&self, secret: Arc<pb::Secret>, version: String, now: SystemTime) -> Vec<(ScopeId, u8)> {
        let users = {
            let mut current = lock(&self.current);
            current.secret = Some(secret);
            current.version = version;
            current.updated = Some(now);
            current.users.retain(|user| user.strong_count() > 0);
            current.users.clone()
        };
        let mut updated = Vec::new();
        for user in users.iter().filter_map(Weak::upgrade) {
            match user.rebuild() {
                Ok(true) => updated.extend(user.counted_at()),
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(
                        resource = &*self.name,
                        "a TLS context cannot use the secret and keeps the old one: {error}"
                    );
                }
            }
        }
        updated
    }
}

// === impl CertificateFacts ===

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
            label: "unnamed_cert_e3b0c442".into(),
        })
    }

    /// Whole days until it expires; 0 if it has.
    pub fn days_left(&self, now: i64) -> u64 {
        u64::try_from((self.not_after - now) / 86_400).unwrap_or(0)
    }
}
