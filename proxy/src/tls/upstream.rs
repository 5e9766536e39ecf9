//! `UpstreamTlsContext`: connections to hosts by TLS.
//!
//! As in Envoy nothing is verified unless an authority, a name or a pin is given, and 1.2 is the newest version unless
//! it is said. What a request wants of its connection (a server name, names that must be in the certificate) comes with
//! each connection; sessions are only resumed for the same name and the same expectations.

use std::borrow::Cow;
use std::cell::RefCell;
use std::future::poll_fn;
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::sync::{Arc, OnceLock, Weak};

use arc_swap::ArcSwapOption;
use nuncio_api::pb::envoy::extensions::transport_sockets::tls::v3 as pb;
use nuncio_api::supports;
use nuncio_core::error::ConfigError;
use nuncio_core::net::{Io, OriginalSource, PeerCertificate};
use nuncio_core::stats::ScopeId;
use rustls::client::{ClientSessionMemoryCache, Resumption, UnbufferedClientConnection};
use rustls::pki_types::{DnsName, ServerName};
use rustls::{ClientConfig, HandshakeKind};

use super::downstream::{describe, identities, validator};
use super::failure::TlsFailure;
use super::identity::ClientIdentity;
use super::parameters::{Parameters, Side};
use super::secret::{self, Context, ContextFacts, Filled, Secrets};
use super::stream::TlsStream;
use super::validation::{PeerRole, SharedValidator};
use super::verifier::Verifier;
use super::{Secured, TlsCounts};
use crate::net::Buffers;
use crate::net::proxy_protocol::ProxyProtocolData;

supports!(pub(super) CONTEXT = "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext" {
    common_tls_context, sni, auto_host_sni, auto_sni_san_validation, max_session_keys
} noop {
    enforce_rsa_key_usage: "a certificate is never used against its key usage",
} values {
    allow_renegotiation: ["false"],
});

/// Configurations for expected names that a worker keeps for one context.
const KEPT: usize = 64;

/// How a cluster, or some of its hosts, is connected to.
#[derive(Debug)]
pub struct UpstreamTls {
    message: pb::UpstreamTlsContext,
    common: pb::CommonTlsContext,
    secrets: Secrets,
    /// Its cluster's, which is made after it.
    scope: OnceLock<ScopeId>,
    /// None until every secret is there.
    current: ArcSwapOption<ClientContext>,
    sni: Option<Arc<str>>,
    auto_host_sni: bool,
    auto_sni_san_validation: bool,
}

#[derive(Debug)]
struct ClientContext {
    config: Arc<ClientConfig>,
    parameters: Parameters,
    validator: SharedValidator,
    identity: Arc<ClientIdentity>,
    sessions: usize,
    facts: ContextFacts,
}

/// What one connection wants of its server, and as whose it comes.
#[derive(Debug, Default, Clone, PartialEq, Eq, Hash)]
pub struct ServerWanted {
    /// Overrides the context's server name.
    pub server_name: Option<Box<str>>,
    /// Names of which one must be in the certificate.
    pub subject_names: Vec<Box<str>>,
    /// Whose connection it is, if the server is told.
    pub client: Option<Arc<ProxyProtocolData>>,
    /// Where it comes from, if not from here.
    pub source: Option<OriginalSource>,
    /// The protocols to offer, whatever the context has.
    pub alpn: Vec<Box<str>>,
}

/// A worker's part: configurations for what requests expected, and what is counted.
pub struct Connectors {
    kept: RefCell<Vec<Kept>>,
    pub counts: Rc<TlsCounts>,
}

#[derive(Debug)]
struct Kept {
    context: Arc<ClientContext>,
    expected: Vec<Box<str>>,
    config: Arc<ClientConfig>,
}

// === impl UpstreamTls ===

impl UpstreamTls {
    /// Paths of errors are relative to the message.
    pub fn from_proto(message: pb::UpstreamTlsContext, secrets: &Secrets) -> Result<Arc<Self>, ConfigError> {
        if !message.sni.is_empty() && message.auto_host_sni {
            tracing::debug!("sni is set beside auto_host_sni, which counts where a host has a name");
        }
        if message.auto_sni_san_validation && !message.auto_host_sni && message.sni.is_empty() {
            // The name may also come with each request.
            tracing::debug!("auto_sni_san_validation without a server name of the context's own");
        }
        let own = Arc::new(Self {
            common: secret::kept(message.common_tls_context.as_ref())?,
            secrets: secrets.clone(),
            scope: OnceLock::new(),
            current: ArcSwapOption::empty(),
            sni: (!message.sni.is_empty()).then(|| message.sni.as_str().into()),
            auto_host_sni: message.auto_host_sni,
            auto_sni_san_validation: message.auto_sni_san_validation,
            message,
        });
        let user: Weak<dyn Context> = Arc::<Self>::downgrade(&own);
        secrets.subscribe(&own.common, &user).map_err(|e| e.within("common_tls_context"))?;
        own.rebuild()?;
        secrets.note_context(user);
        Ok(own)
    }

    /// Where its cluster counts.
    pub fn count_at(&self, scope: ScopeId) {
        let _ = self.scope.set(scope);
    }

    /// Whoever answers is believed.
    pub fn verifies_nothing(&self) -> bool {
        self.current.load().as_ref().is_some_and(|context| context.validator.accepts_all())
            && !self.auto_sni_san_validation
    }

    /// The handshake with a host. `host_name` is the endpoint's, `fallback` the protocols to offer if the context has
    /// no list of its own. No deadline: the caller has one.
    pub async fn connect(
        &self,
        io: Io,
        (wanted, host_name, fallback): (&ServerWanted, &str, &[&str]),
        connectors: &Connectors,
        buffers: &Rc<Buffers>,
    ) -> Result<Secured, TlsFailure> {
        let Some(context) = self.current.load_full() else { return Err(TlsFailure::not_ready()) };
        let server_name: Option<Cow<'_, str>> = if let Some(name) = &wanted.server_name {
            Some(Cow::Borrowed(name))
        } else if self.auto_host_sni && !host_name.is_empty() {
            Some(Cow::Borrowed(host_name))
        } else {
            self.sni.as_deref().map(Cow::Borrowed)
        };
        let mut expected = Cow::Borrowed(&wanted.subject_names);
        if self.auto_sni_san_validation
            && expected.is_empty()
            && let Some(name) = &server_name
        {
            expected = Cow::Owned(vec![Box::from(&**name)]);
        }
        let config =
            if expected.is_empty() { context.config.clone() } else { connectors.config(&context, &expected)? };
        let alpn: Vec<Vec<u8>> = if !wanted.alpn.is_empty() {
            wanted.alpn.iter().map(|name| name.as_bytes().to_vec()).collect()
        } else if context.parameters.alpn.is_empty() {
            fallback.iter().map(|name| name.as_bytes().to_vec()).collect()
        } else {
            context.parameters.alpn.clone()
        };
        // An address is never sent as a name; here it stands for none at all.
        let none = || ServerName::IpAddress(IpAddr::V4(Ipv4Addr::UNSPECIFIED).into());
        let name = server_name.as_deref().map_or_else(none, |name| match DnsName::try_from(name) {
            Ok(name) => ServerName::DnsName(name.to_owned()),
            Err(_) => none(),
        });
        let session = UnbufferedClientConnection::new_with_alpn(config, name, alpn)
            .map_err(|e| TlsFailure::new(&e, None, b""))?;
        let mut stream = TlsStream::new(io, session, Vec::new(), buffers.clone());
        poll_fn(|cx| stream.poll_handshake(cx)).await?;
        let mut info = describe(stream.state(), &stream.witness);
        info.server_name = server_name.map(|name| name.as_ref().into());
        info.local = context.local();
        if stream.state().handshake_kind() == Some(HandshakeKind::Resumed) {
            info.peer_validated = !context.validator.accepts_all() || !expected.is_empty();
        }
        stream.tell_failure = Some((connectors.counts.clone(), info.failure.clone()));
        Ok(Secured::new(stream, info))
    }
}

impl Context for UpstreamTls {
    fn rebuild(&self) -> Result<bool, ConfigError> {
        let filled = self.secrets.fill_in(&self.common).map_err(|e| e.within("common_tls_context"))?;
        let Some(filled) = filled else { return Ok(false) };
        self.current.store(Some(Arc::new(ClientContext::build(&self.message, &filled)?)));
        Ok(true)
    }

    fn facts(&self) -> Option<ContextFacts> {
        self.current.load().as_ref().map(|context| context.facts.clone())
    }

    fn counted_at(&self) -> Option<(ScopeId, u8)> {
        self.scope.get().map(|scope| (*scope, 0))
    }
}

// === impl ClientContext ===

impl ClientContext {
    fn build(message: &pb::UpstreamTlsContext, filled: &Filled) -> Result<Self, ConfigError> {
        let common = &filled.common;
        let within = |e: ConfigError| e.within("common_tls_context");
        let parameters = Parameters::from_proto(common, Side::Client).map_err(within)?;
        let mut identities = identities(common, &parameters).map_err(within)?;
        if identities.len() > 1 {
            let reason = "Multiple TLS certificates are not supported for client contexts";
            return Err(ConfigError::new("common_tls_context.tls_certificates", reason));
        }
        let validator = validator(common).map_err(within)?;
        let identity = identities.pop();
        let mut facts = ContextFacts {
            authorities: validator.facts(),
            chains: identity.iter().flat_map(|identity| identity.facts.clone()).collect(),
        };
        filled.label(&mut facts);
        let sessions = message.max_session_keys.as_ref().map_or(1, |keys| keys.value as usize);
        let identity = Arc::new(ClientIdentity(identity));
        let config = client_config(&parameters, &validator, &identity, sessions, Vec::new())
            .map_err(|e| ConfigError::new("common_tls_context", e.to_string()))?;
        Ok(Self { config, parameters, validator, identity, sessions, facts })
    }

    fn local(&self) -> Option<Arc<PeerCertificate>> {
        self.identity.0.as_ref().map(|identity| identity.described.clone())
    }
}

fn client_config(
    parameters: &Parameters,
    validator: &SharedValidator,
    identity: &Arc<ClientIdentity>,
    sessions: usize,
    expected: Vec<Box<str>>,
) -> Result<Arc<ClientConfig>, rustls::Error> {
    let verifier = Verifier {
        validator: validator.clone(),
        algorithms: parameters.provider.signature_verification_algorithms,
        role: PeerRole::Server,
        expected,
        mandatory: true,
    };
    let mut config = ClientConfig::builder_with_provider(parameters.provider.clone())
        .with_protocol_versions(&parameters.versions)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_client_cert_resolver(identity.clone());
    // A server that names another protocol, or one unasked, is taken at its word by the codec.
    config.check_selected_alpn = false;
    config.resumption = match sessions {
        0 => Resumption::disabled(),
        // The library's store counts servers.
        n => Resumption::store(Arc::new(ClientSessionMemoryCache::new(n))),
    };
    if let Some(log) = &parameters.key_log {
        config.key_log = log.clone();
    }
    Ok(Arc::new(config))
}

// === impl Connectors ===

impl Connectors {
    pub fn new(counts: TlsCounts) -> Self {
        Self { kept: RefCell::default(), counts: Rc::new(counts) }
    }

    /// The configuration that expects these names; made at their first use.
    fn config(&self, context: &Arc<ClientContext>, expected: &[Box<str>]) -> Result<Arc<ClientConfig>, TlsFailure> {
        let mut kept = self.kept.borrow_mut();
        let same = |k: &Kept| Arc::ptr_eq(&k.context, context) && k.expected == expected;
        if let Some(at) = kept.iter().position(same) {
            return Ok(kept[at].config.clone());
        }
        let config = client_config(
            &context.parameters,
            &context.validator,
            &context.identity,
            context.sessions,
            expected.to_vec(),
        )
        .map_err(|e| TlsFailure::new(&e, None, b""))?;
        if kept.len() >= KEPT {
            // Names may come from clients: the oldest goes.
            kept.remove(0);
        }
        kept.push(Kept { context: context.clone(), expected: expected.to_vec(), config: config.clone() });
        Ok(config)
    }
}
