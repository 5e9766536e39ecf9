//! What an upstream connection and the request on it count, and what they give back when they end.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use nuncio_core::stats::GaugeGuard;
use nuncio_core::stats::lists::cluster::{self as stat, Traffic};
use nuncio_core::upstream::Host;
use tokio::time::Instant;

use crate::upstream::circuit_breaker::{Permit, Priority, Resource};
use crate::upstream::thread_local::ClusterLocal;

/// What a connection is counted as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::upstream) enum Counted {
    Http1,
    Http2,
    Bytes,
}

/// One connection, from its first packet to its close.
pub(in crate::upstream) struct ConnectionAccount {
    cluster: Rc<ClusterLocal>,
    host: Arc<Host>,
    begun: Instant,
    /// Who closed it, if it is not us.
    pub(super) closed_by_peer: bool,
    /// It closed under a request.
    pub(super) with_request: bool,
    /// Requests that were sent on it, for pools of HTTP.
    pub(super) requests: u32,
    counted: Counted,
    totals: (u64, u64),
    _permit: Permit,
    _active: GaugeGuard<Traffic>,
}

impl ConnectionAccount {
    pub(super) fn begin(cluster: &Rc<ClusterLocal>, host: &Arc<Host>, priority: Priority, counted: Counted) -> Self {
        let stats = cluster.stats();
        stats.traffic.inc(stat::UPSTREAM_CX_TOTAL);
        cluster.breakers().note_use();
        host.load.connection_begun();
        host.load.active_connections.fetch_add(1, Relaxed);
        let mut account = Self {
            _permit: Permit::take(cluster, priority, Resource::Connections),
            _active: stats.traffic.gauge(stat::UPSTREAM_CX_ACTIVE),
            cluster: cluster.clone(),
            host: host.clone(),
            begun: Instant::now(),
            closed_by_peer: false,
            with_request: false,
            requests: 0,
            counted: Counted::Bytes,
            totals: (0, 0),
        };
        account.speaks(counted);
        account
    }

    /// Once it is known.
    pub(super) fn speaks(&mut self, counted: Counted) {
        self.counted = counted;
        let traffic = &self.cluster.stats().traffic;
        match counted {
            Counted::Http1 => traffic.inc(stat::UPSTREAM_CX_HTTP1_TOTAL),
            Counted::Http2 => traffic.inc(stat::UPSTREAM_CX_HTTP2_TOTAL),
            Counted::Bytes => {}
        }
    }

    pub(super) fn connected(&self) {
        let elapsed = self.begun.elapsed().as_millis() as u64;
        self.cluster.stats().connections.record(stat::UPSTREAM_CX_CONNECT_MS, elapsed);
    }

    /// All bytes so far: received, sent.
    pub(super) fn bytes(&mut self, (received, sent): (u64, u64)) {
        let traffic = &self.cluster.stats().traffic;
        traffic.add(stat::UPSTREAM_CX_RX_BYTES_TOTAL, received - self.totals.0);
        traffic.add(stat::UPSTREAM_CX_TX_BYTES_TOTAL, sent - self.totals.1);
        self.totals = (received, sent);
    }
}

impl Drop for ConnectionAccount {
    fn drop(&mut self) {
        self.host.load.active_connections.fetch_sub(1, Relaxed);
        let stats = self.cluster.stats();
        stats.traffic.inc(stat::UPSTREAM_CX_DESTROY);
        let (destroyed, with_request) = if self.closed_by_peer {
            (stat::UPSTREAM_CX_DESTROY_REMOTE, stat::UPSTREAM_CX_DESTROY_REMOTE_WITH_ACTIVE_RQ)
        } else {
            (stat::UPSTREAM_CX_DESTROY_LOCAL, stat::UPSTREAM_CX_DESTROY_LOCAL_WITH_ACTIVE_RQ)
        };
        stats.traffic.inc(destroyed);
        if self.with_request {
            stats.failures.inc(stat::UPSTREAM_CX_DESTROY_WITH_ACTIVE_RQ);
            stats.failures.inc(with_request);
        }
        stats.connections.record(stat::UPSTREAM_CX_LENGTH_MS, self.begun.elapsed().as_millis() as u64);
        if self.counted != Counted::Bytes {
            stats.connections.record(stat::UPSTREAM_RQ_PER_CX, self.requests.into());
        }
    }
}

/// A request on a connection.
pub(in crate::upstream) struct RequestAccount {
    host: Arc<Host>,
    _permit: Permit,
    _active: GaugeGuard<Traffic>,
}

impl RequestAccount {
    /// Takes the unit; whether there is room was asked before, where it is asked at all.
    pub(super) fn begin(cluster: &Rc<ClusterLocal>, host: &Arc<Host>, permit: Permit) -> Self {
        let traffic = &cluster.stats().traffic;
        traffic.inc(stat::UPSTREAM_RQ_TOTAL);
        host.load.request_begun();
        host.load.active_requests.fetch_add(1, Relaxed);
        Self { host: host.clone(), _permit: permit, _active: traffic.gauge(stat::UPSTREAM_RQ_ACTIVE) }
    }
}

impl Drop for RequestAccount {
    fn drop(&mut self) {
        self.host.load.active_requests.fetch_sub(1, Relaxed);
    }
}

/// A request that waits for a connection.
pub(super) struct PendingAccount {
    host: Arc<Host>,
    _permit: Permit,
    _active: GaugeGuard<Traffic>,
}

impl PendingAccount {
    /// `None`, and counted, if too many wait already.
    pub(super) fn begin(cluster: &Rc<ClusterLocal>, host: &Arc<Host>, priority: Priority) -> Option<Self> {
        let stats = cluster.stats();
        let Some(permit) = Permit::ask(cluster, priority, Resource::PendingRequests) else {
            stats.failures.inc(stat::UPSTREAM_RQ_PENDING_OVERFLOW);
            return None;
        };
        stats.traffic.inc(stat::UPSTREAM_RQ_PENDING_TOTAL);
        host.load.pending_requests.fetch_add(1, Relaxed);
        let active = stats.traffic.gauge(stat::UPSTREAM_RQ_PENDING_ACTIVE);
        Some(Self { host: host.clone(), _permit: permit, _active: active })
    }
}

impl Drop for PendingAccount {
    fn drop(&mut self) {
        self.host.load.pending_requests.fetch_sub(1, Relaxed);
    }
}
