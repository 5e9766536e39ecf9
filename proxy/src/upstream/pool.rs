//! Upstream connections: kept and shared for HTTP, made one by one for bytes.
//!
//! A pool belongs to one host, one priority and one thread. `connecting` is how any connection comes to be, `account`
//! is what it counts from its first packet to its close, `http1` and `http2` keep those that speak HTTP, of which `stream`
//! is one request's part, and `tcp` hands out bare ones.

mod account;
pub(super) mod connecting;
pub mod http1;
pub mod http2;
pub mod stream;
pub mod tcp;

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::rc::Rc;
use std::sync::Arc;

use nuncio_core::upstream::Host;

use super::circuit_breaker::Priority;
use crate::tls::ServerWanted;
use account::Counted;
pub(super) use connecting::describe;
use http1::Http1Pool;
use http2::Http2Pool;
use stream::AcquireStream;

/// Why there is no connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolFailure {
    pub reason: PoolFailureReason,
    /// What the transport says, as `%UPSTREAM_TRANSPORT_FAILURE_REASON%` has it; empty if it was not asked.
    pub transport: Arc<str>,
    /// The host that failed; none if a limit refused the request before a connection was chosen.
    pub host: Option<Address>,
}

type Address = Arc<str>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolFailureReason {
    /// The host refused, reset or was not there.
    RemoteConnectionFailure,
    /// It failed on this side.
    LocalConnectionFailure,
    /// Not within `connect_timeout`.
    ConnectionTimeout,
    /// A circuit breaker is open.
    Overflow,
    /// `max_connection_pools`: answered as if there were no healthy host.
    NoPool,
    /// The handshake chose another protocol than the pool's: another pool has the connection.
    Switched,
}

impl PoolFailureReason {
    /// The reset reason in Envoy's answers; with underscores it stands in the details.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RemoteConnectionFailure => "remote connection failure",
            Self::LocalConnectionFailure => "local connection failure",
            Self::ConnectionTimeout => "connection timeout",
            Self::Overflow | Self::NoPool | Self::Switched => "overflow",
        }
    }
}

impl PoolFailure {
    pub(super) fn new(reason: PoolFailureReason, host: Option<&Host>) -> Self {
        Self { reason, transport: Arc::default(), host: host.map(|host| host.address_text().to_shared()) }
    }
}

impl fmt::Display for PoolFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.reason.as_str())?;
        if self.transport.is_empty() { Ok(()) } else { write!(f, ": {}", self.transport) }
    }
}

/// A pool of either kind.
#[derive(Clone)]
pub(super) enum Pool {
    Http1(Rc<Http1Pool>),
    Http2(Rc<Http2Pool>),
}

impl Pool {
    pub(super) fn acquire(&self) -> AcquireStream {
        match self {
            Self::Http1(pool) => pool.acquire().into(),
            Self::Http2(pool) => pool.acquire().into(),
        }
    }

    /// A connection that another pool made and cannot use.
    pub(super) fn adopt(&self, parked: connecting::Parked) {
        match self {
            Self::Http1(pool) => pool.adopt(parked),
            Self::Http2(pool) => pool.adopt(parked),
        }
    }

    pub(super) fn host(&self) -> &Arc<Host> {
        match self {
            Self::Http1(pool) => pool.host(),
            Self::Http2(pool) => pool.host(),
        }
    }

    pub(super) fn is_unused(&self) -> bool {
        match self {
            Self::Http1(pool) => pool.is_unused(),
            Self::Http2(pool) => pool.is_unused(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Http1(pool) => pool.is_empty(),
            Self::Http2(pool) => pool.is_empty(),
        }
    }

    pub(super) fn drain(&self) {
        match self {
            Self::Http1(pool) => pool.drain(),
            Self::Http2(pool) => pool.drain(),
        }
    }

    pub(super) fn retire(&self) {
        match self {
            Self::Http1(pool) => pool.retire(),
            Self::Http2(pool) => pool.retire(),
        }
    }
}

/// What the connections of a pool speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PoolProtocol {
    Http1 = 0,
    Http2 = 1,
}

impl PoolProtocol {
    /// What a handshake chose: HTTP/1 unless it says the other.
    pub(super) fn of_alpn(alpn: Option<&str>) -> Self {
        if alpn == Some("h2") { Self::Http2 } else { Self::Http1 }
    }

    fn counted(self) -> Counted {
        match self {
            Self::Http1 => Counted::Http1,
            Self::Http2 => Counted::Http2,
        }
    }
}

/// Pools by host, priority and protocol.
pub(super) type PoolMap = HashMap<PoolKey, Pool, BuildHasherDefault<AddressHasher>>;

/// What a pool's connections are for.
#[derive(Debug, Clone, Default)]
pub(super) struct PoolUse {
    /// What requests want of the server; one object for equal wishes.
    pub(super) wanted: Option<Rc<ServerWanted>>,
    /// The handshake may choose the protocol.
    pub(super) auto: bool,
}

/// The address of a host object, which its pool keeps alive, with the priority and the protocol in its lowest bits; and
/// that of what is wanted of the server, which the pool keeps as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct PoolKey(usize, usize);

impl PoolKey {
    pub(super) fn new(
        host: &Arc<Host>,
        priority: Priority,
        protocol: PoolProtocol,
        wanted: Option<&Rc<ServerWanted>>,
    ) -> Self {
        // Hosts are aligned to 64 bytes: the lowest bits are free.
        let own = Arc::as_ptr(host) as usize | priority as usize | (protocol as usize) << 1;
        Self(own, wanted.map_or(0, |wanted| Rc::as_ptr(wanted) as usize))
    }

    /// The pools of that host, whatever they are for.
    pub(super) fn is_of(self, host: &Arc<Host>) -> bool {
        self.0 & !63 == Arc::as_ptr(host) as usize
    }
}

/// Spreads addresses by one multiplication: they are not chosen by peers.
#[derive(Debug, Default)]
pub(super) struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_usize(usize::from(*byte));
        }
    }

    fn write_usize(&mut self, n: usize) {
        let mixed = (self.0 ^ n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 32;
    }
}
