//! `DownstreamTlsContext`: clients that connect by TLS.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use futures_util::future::LocalBoxFuture;
use nuncio_api::pb::envoy::extensions::transport_sockets::tls::v3::{
    self as pb, common_tls_context::ValidationContextType, downstream_tls_context::SessionTicketKeysType,
};
use nuncio_api::supports;
use nuncio_core::error::ConfigError;
use nuncio_core::extension::{FactoryContext, WorkerContext};
use nuncio_core::net::{ConnectionInfo, Io, TlsInfo};
use nuncio_core::network::{
    DownstreamTransportSocket, DownstreamTransportSocketConfig, DownstreamTransportSocketFactory, TransportFailure,
};
use nuncio_core::stats::lists::tls::{SocketFactory, Ssl};
use nuncio_core::stats::{List, ScopeId, lists};
use rustls::crypto::CryptoProvider;
use rustls::server::{
    NoServerSessionStorage, ProducesTickets, ResolvesServerCert, ServerSessionMemoryCache, StoresServerSessions,
    UnbufferedServerConnection,
};
use rustls::{CommonState, HandshakeKind, ProtocolVersion, ServerConfig};
use tokio::time::Instant;

use super::certificate;
use super::client_hello::{self, ClientHello, Reading};
use super::failure::TlsFailure;
use super::identity::{Identity, ServerIdentities};
use super::ocsp::Shown;
use super::parameters::{Parameters, Side, group_name, scheme_name, suite_name, without_preference_for_aes};
use super::secret::{self, Context, ContextFacts, Filled, Secrets};
use super::stream::TlsStream;
use super::validation::{PeerRole, SharedValidator, Validator};
use super::verifier::Verifier;
use super::witness::Witness;
use super::{Secured, TlsCounts};
use crate::net::Buffers;

supports!(pub(super) CONTEXT = "envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext" {
    common_tls_context, require_client_certificate, require_sni, disable_stateful_session_resumption,
    disable_stateless_session_resumption, full_scan_certs_on_sni_mismatch, prefer_client_ciphers, ocsp_staple_policy
} noop {
    session_timeout: "sessions are kept for the library's time, which is shorter",
});

/// Envoy has no limit unless the chain says one; a client that never finishes would hold its connection for ever.
const HANDSHAKE_TIME: Duration = Duration::from_secs(60);
/// Sessions that are remembered for clients without tickets, by context.
const SESSIONS: usize = 4096;

/// What a filter chain does to its connections first.
#[derive(Debug)]
pub struct DownstreamTls {
    message: pb::DownstreamTlsContext,
    common: pb::CommonTlsContext,
    secrets: Secrets,
    scope: Option<ScopeId>,
    /// None until every secret is there.
    current: ArcSwapOption<ServerContext>,
}

/// One state of a context: its own session store and ticket keys, so that nothing that was decided under other
/// certificates, authorities or names is taken for decided here.
#[derive(Debug)]
struct ServerContext {
    alpn: Vec<Vec<u8>>,
    usual: Variants,
    /// For clients that would rather have ChaCha20 than AES.
    chacha: Variants,
    validator: SharedValidator,
    facts: ContextFacts,
}

/// Settings for clients that differ in what they offer.
#[derive(Debug)]
struct Variants {
    config: Arc<ServerConfig>,
    /// For clients that offer none of our protocols; the library would refuse them.
    without_alpn: Option<Arc<ServerConfig>>,
}

/// The same for one listener, on a worker.
struct Socket {
    tls: Arc<DownstreamTls>,
    counts: Rc<TlsCounts>,
    buffers: Rc<Buffers>,
}

/// A checked context of a listener.
struct SocketConfig {
    tls: Arc<DownstreamTls>,
    scope: ScopeId,
}

/// `envoy.transport_sockets.tls` of filter chains.
pub(super) struct Factory {
    pub(super) secrets: Secrets,
}

impl DownstreamTransportSocketFactory for Factory {
    fn name(&self) -> &'static str {
        "envoy.transport_sockets.tls"
    }

    fn message(&self) -> &'static str {
        "envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext"
    }

    fn check(
        &self,
        config: &[u8],
        _: &[String],
        context: &FactoryContext<'_>,
    ) -> Result<Arc<dyn DownstreamTransportSocketConfig>, Vec<ConfigError>> {
        let message: pb::DownstreamTlsContext = nuncio_api::any::decode(config).map_err(|e| vec![e])?;
        let scope = context.scope(&lists::listener::SCOPE, &context.stat_prefix.into());
        let tls = DownstreamTls::from_proto(message, &self.secrets, Some(scope)).map_err(|e| vec![e])?;
        let mut store = context.stats.borrow_mut();
        store.declare(scope, &Ssl::descriptors()[0]);
        store.declare(scope, &SocketFactory::descriptors()[1]);
        Ok(Arc::new(SocketConfig { tls, scope }))
    }
}

impl DownstreamTransportSocketConfig for SocketConfig {
    fn on_worker(&self, worker: &WorkerContext) -> Rc<dyn DownstreamTransportSocket> {
        let counts = Rc::new(TlsCounts::new(&worker.stats, self.scope));
        Rc::new(Socket { tls: self.tls.clone(), counts, buffers: Buffers::of_this_thread() })
    }
}

impl DownstreamTransportSocket for Socket {
    fn accept<'a>(
        &'a self,
        io: Io,
        preread: Vec<u8>,
        connection: &'a mut ConnectionInfo,
    ) -> LocalBoxFuture<'a, Result<Io, TransportFailure>> {
        Box::pin(async move {
            let accepted = self.tls.accept(io, preread, &self.buffers, &self.counts);
            let secured = match tokio::time::timeout(HANDSHAKE_TIME, accepted).await {
                Ok(Ok(secured)) => secured,
                Ok(Err(failure)) => {
                    self.counts.failed(&failure);
                    return Err(TransportFailure(failure.text.into()));
                }
                Err(_) => return Err(TransportFailure("TLS handshake took too long".into())),
            };
            self.counts.handshake(&secured);
            let mut timings = connection.timings.get();
            timings.handshake_complete = Some(Instant::now());
            connection.timings.set(timings);
            if connection.requested_server_name.is_none() {
                connection.requested_server_name = secured.info.server_name.clone();
            }
            connection.tls = Some(secured.info);
            Ok(secured.io)
        })
    }
}

// === impl DownstreamTls ===

impl DownstreamTls {
    /// Paths of errors are relative to the message.
    pub fn from_proto(
        message: pb::DownstreamTlsContext,
        secrets: &Secrets,
        scope: Option<ScopeId>,
    ) -> Result<Arc<Self>, ConfigError> {
        let common = secret::kept(message.common_tls_context.as_ref())?;
        let secrets_of = secrets.clone();
        let own = Arc::new(Self { message, common, secrets: secrets_of, scope, current: ArcSwapOption::empty() });
        let user: Weak<dyn Context> = Arc::<Self>::downgrade(&own);
        secrets.subscribe(&own.common, &user).map_err(|e| e.within("common_tls_context"))?;
        own.rebuild()?;
        secrets.note_context(user);
        Ok(own)
    }

    /// The handshake with a client. No deadline of its own: the caller has one.
    pub async fn accept(
        &self,
        io: Io,
        preread: Vec<u8>,
        buffers: &Rc<Buffers>,
        counts: &Rc<TlsCounts>,
    ) -> Result<Secured, TlsFailure> {
        let Some(context) = self.current.load_full() else { return Err(TlsFailure::not_ready()) };
        let (mut io, mut preread) = (io, preread);
        let mut hello = ClientHello::default();
        loop {
            match client_hello::read(&preread) {
                Reading::Incomplete if preread.len() <= client_hello::LIMIT => {}
                Reading::Hello(read) => {
                    hello = read;
                    break;
                }
                // The library says what is wrong with it.
                Reading::Incomplete | Reading::Other => break,
            }
            let read = poll_fn(|cx| {
                let mut scratch = buffers.take_scratch();
                let read = io.poll_read(cx, &mut scratch).map_ok(|n| {
                    preread.extend_from_slice(&scratch[..n]);
                    n
                });
                buffers.give_scratch(scratch);
                read
            });
            match read.await {
                Ok(n) if n > 0 => {}
                _ => return Err(TlsFailure::closed()),
            }
        }
        let config = context.config_for(&hello);
        let session = UnbufferedServerConnection::new(config.clone()).map_err(|e| TlsFailure::new(&e, None, b""))?;
        let mut stream = TlsStream::new(io, session, preread, buffers.clone());
        stream.witness.status = hello.wants_status.then_some(Shown::Omitted);
        poll_fn(|cx| stream.poll_handshake(cx)).await?;
        let mut info = describe(stream.state(), &stream.witness);
        info.server_name = hello.server_name.map(Into::into);
        if info.peer.is_some() && stream.state().handshake_kind() == Some(HandshakeKind::Resumed) {
            info.peer_validated = !context.validator.accepts_all();
        }
        stream.tell_failure = Some((counts.clone(), info.failure.clone()));
        let resumed = stream.state().handshake_kind() == Some(HandshakeKind::Resumed);
        let status = stream.witness.status.filter(|_| !resumed).map(|shown| shown == Shown::Stapled);
        Ok(Secured { status, ..Secured::new(stream, info) })
    }
}

impl Context for DownstreamTls {
    fn rebuild(&self) -> Result<bool, ConfigError> {
        let filled = self.secrets.fill_in(&self.common).map_err(|e| e.within("common_tls_context"))?;
        let Some(filled) = filled else { return Ok(false) };
        self.current.store(Some(Arc::new(ServerContext::build(&self.message, &filled)?)));
        Ok(true)
    }

    fn facts(&self) -> Option<ContextFacts> {
        self.current.load().as_ref().map(|context| context.facts.clone())
    }

    fn counted_at(&self) -> Option<(ScopeId, u8)> {
        self.scope.map(|scope| (scope, 1))
    }
}

// === impl ServerContext ===

impl ServerContext {
    fn build(message: &pb::DownstreamTlsContext, filled: &Filled) -> Result<Self, ConfigError> {
        let common = &filled.common;
        let within = |e: ConfigError| e.within("common_tls_context");
        let parameters = Parameters::from_proto(common, Side::Server).map_err(within)?;
        let identities = identities(common, &parameters).map_err(within)?;
        if identities.is_empty() {
            return Err(ConfigError::new("common_tls_context", "No TLS certificates found for server context"));
        }
        let validator = validator(common).map_err(within)?;
        let mut facts = ContextFacts {
            authorities: validator.facts(),
            chains: identities.iter().flat_map(|identity| identity.facts.clone()).collect(),
        };
        filled.label(&mut facts);
        let chooser: Arc<dyn ResolvesServerCert> = Arc::new(ServerIdentities::new(identities, message)?);
        let requires = message.require_client_certificate.as_ref().is_some_and(|requires| requires.value);
        let library = |e: rustls::Error| ConfigError::new("common_tls_context", e.to_string());
        let verifier = validator.asks().then(|| {
            Arc::new(Verifier {
                validator: validator.clone(),
                algorithms: parameters.provider.signature_verification_algorithms,
                role: PeerRole::Client,
                expected: Vec::new(),
                mandatory: requires || validator.needs_certificate(),
            })
        });
        let sessions = Sessions::new(message).map_err(library)?;
        let variants = |provider: Arc<CryptoProvider>| {
            let builder = ServerConfig::builder_with_provider(provider).with_protocol_versions(&parameters.versions)?;
            let builder = match &verifier {
                Some(verifier) => builder.with_client_cert_verifier(verifier.clone()),
                // As Envoy, even if a certificate is required: nobody could say whether it is a right one.
                None => builder.with_no_client_auth(),
            };
            let mut config = builder.with_cert_resolver(chooser.clone());
            config.ignore_client_order = !message.prefer_client_ciphers;
            if let Some(log) = &parameters.key_log {
                config.key_log = log.clone();
            }
            sessions.put_into(&mut config);
            let without_alpn = (!parameters.alpn.is_empty()).then(|| Arc::new(config.clone()));
            config.alpn_protocols = parameters.alpn.clone();
            Ok(Variants { config: Arc::new(config), without_alpn })
        };
        let usual = variants(parameters.provider.clone()).map_err(library)?;
        let chacha = variants(Arc::new(without_preference_for_aes(&parameters.provider))).map_err(library)?;
        Ok(Self { usual, chacha, alpn: parameters.alpn, validator, facts })
    }

    fn config_for(&self, hello: &ClientHello) -> &Arc<ServerConfig> {
        let Variants { config, without_alpn } = if hello.prefers_chacha { &self.chacha } else { &self.usual };
        let common = |ours: &Vec<u8>| hello.alpn.contains(ours);
        match without_alpn {
            Some(without) if !hello.alpn.is_empty() && !self.alpn.iter().any(common) => without,
            _ => config,
        }
    }
}

/// How clients are known again; what all variants of a context share.
struct Sessions {
    ticketer: Option<Arc<dyn ProducesTickets>>,
    storage: Arc<dyn StoresServerSessions>,
    /// Neither of the two.
    none: bool,
}

/// Sessions that are kept here, in a table that is made with the first of them. Hardly any context needs one beside its
/// tickets, and a listener that is replaced again and again has many contexts at once.
#[derive(Debug, Default)]
struct FirstUse(OnceLock<Arc<ServerSessionMemoryCache>>);

impl StoresServerSessions for FirstUse {
    fn put(&self, key: Vec<u8>, value: Vec<u8>) -> bool {
        self.0.get_or_init(|| ServerSessionMemoryCache::new(SESSIONS)).put(key, value)
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.0.get()?.get(key)
    }

    fn take(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.0.get()?.take(key)
    }

    fn can_cache(&self) -> bool {
        true
    }
}

impl Sessions {
    fn new(message: &pb::DownstreamTlsContext) -> Result<Self, rustls::Error> {
        let stateless = !matches!(
            message.session_ticket_keys_type,
            Some(SessionTicketKeysType::DisableStatelessSessionResumption(true))
        );
        let stateful = !message.disable_stateful_session_resumption;
        Ok(Self {
            ticketer: stateless.then(rustls::crypto::aws_lc_rs::Ticketer::new).transpose()?,
            storage: if stateful { Arc::new(FirstUse::default()) } else { Arc::new(NoServerSessionStorage {}) },
            none: !stateless && !stateful,
        })
    }

    fn put_into(&self, config: &mut ServerConfig) {
        if let Some(ticketer) = &self.ticketer {
            config.ticketer = ticketer.clone();
        }
        config.session_storage = self.storage.clone();
        if self.none {
            config.send_tls13_tickets = 0;
        }
    }
}

/// All of our certificates in a context.
pub(super) fn identities(common: &pb::CommonTlsContext, parameters: &Parameters) -> Result<Vec<Identity>, ConfigError> {
    let read = |(i, message)| {
        Identity::from_proto(message, &parameters.provider).map_err(|e| e.within(&format!("tls_certificates[{i}]")))
    };
    common.tls_certificates.iter().enumerate().map(read).collect()
}

/// What a context asks of the peer's certificate.
pub(super) fn validator(common: &pb::CommonTlsContext) -> Result<SharedValidator, ConfigError> {
    let read = match &common.validation_context_type {
        Some(ValidationContextType::ValidationContext(message)) => {
            Validator::from_proto(message).map_err(|e| e.within("validation_context"))?
        }
        _ => Validator::default(),
    };
    Ok(Arc::new(read))
}

/// What a finished handshake tells.
pub(super) fn describe(state: &CommonState, witness: &Witness) -> TlsInfo {
    TlsInfo {
        version: match state.protocol_version() {
            Some(ProtocolVersion::TLSv1_3) => "TLSv1.3",
            Some(ProtocolVersion::TLSv1_2) => "TLSv1.2",
            _ => "",
        },
        cipher: state.negotiated_cipher_suite().map_or("", |suite| suite_name(suite.suite())),
        group: state.negotiated_key_exchange_group().map_or("", |group| group_name(group.name())),
        server_name: None,
        alpn: state.alpn_protocol().map(|name| String::from_utf8_lossy(name).into()),
        peer_validated: witness.validated,
        peer: state.peer_certificates().and_then(certificate::describe),
        local: witness.local.clone(),
        session_id: None,
        failure: Arc::default(),
    }
}

impl Secured {
    pub(super) fn new<S: super::stream::Session>(stream: TlsStream<S>, info: TlsInfo) -> Self {
        let scheme = stream.witness.scheme.map(scheme_name);
        let resumed = stream.state().handshake_kind() == Some(HandshakeKind::Resumed);
        Self { io: Io::Other(Box::new(stream)), info, scheme, resumed, status: None }
    }
}
