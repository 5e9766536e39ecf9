//! What is known of a downstream connection, from accept to close.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use tokio::time::Instant;

use super::Address;
use crate::metadata::Metadata;
use crate::stream_info::{FilterState, ResponseFlags};

/// Facts of one connection. Shared (by `Rc`) between the connection and its streams on the
/// worker that accepted it; listener filters complete it before any filter chain is chosen.
#[derive(Debug)]
pub struct ConnectionInfo {
    /// Process-wide number, from 0; Envoy's `%CONNECTION_ID%`.
    pub id: u64,
    /// The peer as the connection's source is understood now (PROXY protocol may restore it).
    pub remote: Address,
    /// The socket's own peer.
    pub direct_remote: Address,
    /// Where the connection was meant for; differs from the socket when `local_restored`.
    pub local: Address,
    /// The address the socket was accepted on.
    pub direct_local: Address,
    /// A listener filter (original_dst, proxy_protocol) restored `local`.
    pub local_restored: bool,
    /// Upstream connections on this one's behalf come from there.
    pub original_source: Option<OriginalSource>,
    pub requested_server_name: Option<Arc<str>>,
    pub application_protocols: Vec<Vec<u8>>,
    /// `tls`, `raw_buffer`, or empty while nobody looked.
    pub transport_protocol: &'static str,
    pub tls: Option<TlsInfo>,
    pub listener_name: Option<Arc<str>>,
    pub listener_metadata: Option<Arc<Metadata>>,
    pub filter_chain_name: Option<Arc<str>>,
    pub filter_chain_metadata: Option<Arc<Metadata>>,
    pub timings: Cell<ConnectionTimings>,
    /// How the connection ended, as far as it has: `%DOWNSTREAM_DETECTED_CLOSE_TYPE%`.
    pub close_type: Cell<CloseType>,
    /// `%DOWNSTREAM_LOCAL_CLOSE_REASON%`.
    pub local_close_reason: RefCell<Option<Cow<'static, str>>>,
    /// Why the connection ended, if we ended it: `%CONNECTION_TERMINATION_DETAILS%`.
    pub termination_details: RefCell<Option<String>>,
    /// `%DOWNSTREAM_TRANSPORT_FAILURE_REASON%`.
    pub transport_failure: RefCell<Option<String>>,
    /// What network filters said of the connection; a TCP session shows them as its own.
    pub flags: Cell<ResponseFlags>,
    /// `%RESPONSE_CODE_DETAILS%` of a TCP session, by a network filter.
    pub code_details: RefCell<Option<Cow<'static, str>>>,
    pub bytes_received: Cell<u64>,
    pub bytes_sent: Cell<u64>,
    pub metadata: RefCell<Metadata>,
    pub filter_state: RefCell<FilterState>,
}

impl ConnectionInfo {
    pub fn new(id: u64, remote: Address, local: Address) -> Self {
        Self {
            id,
            direct_remote: remote.clone(),
            remote,
            direct_local: local.clone(),
            local,
            local_restored: false,
            original_source: None,
            requested_server_name: None,
            application_protocols: Vec::new(),
            transport_protocol: "",
            tls: None,
            listener_name: None,
            listener_metadata: None,
            filter_chain_name: None,
            filter_chain_metadata: None,
            timings: Cell::default(),
            close_type: Cell::default(),
            local_close_reason: RefCell::default(),
            termination_details: RefCell::default(),
            transport_failure: RefCell::default(),
            flags: Cell::default(),
            code_details: RefCell::default(),
            bytes_received: Cell::new(0),
            bytes_sent: Cell::new(0),
            metadata: RefCell::default(),
            filter_state: RefCell::default(),
        }
    }
}

/// The client's own address, which upstream connections on its behalf come from instead of the proxy's (original_src).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OriginalSource {
    pub address: IpAddr,
    /// What the kernel's routing rules know those connections by; 0 sets no mark.
    pub mark: u32,
}

impl OriginalSource {
    /// `None`: the client has no IP address, or one that nobody can connect from.
    pub fn of(client: &Address, mark: u32) -> Option<Self> {
        let address = client.ip()?.to_canonical();
        (!address.is_unspecified()).then_some(Self { address, mark })
    }
}

/// Moments of a connection, on the monotonic clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct ConnectionTimings {
    pub begin: Option<Instant>,
    pub handshake_complete: Option<Instant>,
    pub end: Option<Instant>,
}

/// Who ended a connection by a reset. `Normal` also while it lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CloseType {
    #[default]
    Normal,
    LocalReset,
    RemoteReset,
}

impl CloseType {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::LocalReset => "LocalReset",
            Self::RemoteReset => "RemoteReset",
        }
    }
}

/// What a finished TLS handshake tells.
#[derive(Debug, Clone, Default)]
pub struct TlsInfo {
    pub version: &'static str,
    pub cipher: &'static str,
    /// The key exchange, e.g. `X25519`.
    pub group: &'static str,
    pub server_name: Option<Arc<str>>,
    pub alpn: Option<Arc<str>>,
    /// The peer sent a certificate and it passed every configured check.
    pub peer_validated: bool,
    pub peer: Option<Arc<PeerCertificate>>,
    pub local: Option<Arc<PeerCertificate>>,
    pub session_id: Option<String>,
    /// Why the connection failed after its handshake, once it has; `%DOWNSTREAM_TRANSPORT_FAILURE_REASON%`.
    pub failure: Arc<OnceLock<String>>,
}

/// The names and prints of a certificate, read once per handshake.
#[derive(Debug, Clone, Default)]
pub struct PeerCertificate {
    pub subject: String,
    pub issuer: String,
    pub serial: String,
    pub sha256: String,
    pub sha1: String,
    pub uri_sans: Vec<String>,
    pub dns_sans: Vec<String>,
    pub ip_sans: Vec<String>,
    pub email_sans: Vec<String>,
    /// Each with its dotted object identifier.
    pub other_name_sans: Vec<(String, String)>,
    pub not_before: i64,
    pub not_after: i64,
    /// The leaf and the chain, each URL-encoded PEM as Envoy writes it.
    pub pem: String,
    pub chain_pem: String,
    /// SHA-256 of the chain's certificates in order.
    pub chain_sha256: Vec<String>,
    pub chain_sha1: Vec<String>,
    pub chain_serials: Vec<String>,
    /// Of the authority that signed it, in a chain that was verified.
    pub issuer_sha256: String,
    pub issuer_serial: String,
}
