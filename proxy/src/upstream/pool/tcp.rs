//! Bare connections, each for one user: counted, limited and reported like those of pools.

use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, ready};

use futures_util::future::LocalBoxFuture;
use nuncio_core::net::{Address, Connected, Io, TlsInfo};
use nuncio_core::stats::lists::cluster as stat;
use nuncio_core::upstream::Host;
use tokio::sync::futures::OwnedNotified;

use super::account::{ConnectionAccount, Counted, PendingAccount, RequestAccount};
use super::connecting::{self, Asked, Established};
use super::{PoolFailure, PoolFailureReason};
use crate::tls::ServerWanted;
use crate::upstream::circuit_breaker::{Permit, Priority, Resource};
use crate::upstream::thread_local::ClusterLocal;

/// A connection that is being made. Dropping it gives the attempt up.
pub struct TcpConnecting {
    cluster: Rc<ClusterLocal>,
    host: Arc<Host>,
    attempt: LocalBoxFuture<'static, Result<(Established, ConnectionAccount), PoolFailure>>,
    /// Until it is decided.
    pending: Option<PendingAccount>,
}

/// A connection, and what counts it until it is dropped.
pub struct TcpConnection {
    pub io: Io,
    pub local: Option<Address>,
    pub remote: Address,
    pub tls: Option<Arc<TlsInfo>>,
    pub id: u64,
    pub guard: TcpGuard,
}

/// Drop it with the connection.
pub struct TcpGuard {
    cluster: Rc<ClusterLocal>,
    account: ConnectionAccount,
    _request: RequestAccount,
    /// With `close_connections_on_host_health_failure`.
    host_fails: Option<Pin<Box<OwnedNotified>>>,
}

impl TcpConnecting {
    pub(in crate::upstream) fn begin(
        cluster: &Rc<ClusterLocal>,
        host: &Arc<Host>,
        wanted: Option<Rc<ServerWanted>>,
    ) -> Result<Self, PoolFailure> {
        let priority = Priority::Default;
        let limits = cluster.config().thresholds(priority);
        let room = host.load.active_connections.load(Relaxed) < limits.max_connections_per_host
            && cluster.breakers().has_room(limits, priority, Resource::Connections);
        if !room {
            // Unlike a pool's, this connection would wait for one that is nobody else's to give.
            cluster.stats().failures.inc(stat::UPSTREAM_CX_OVERFLOW);
            return Err(PoolFailure::new(PoolFailureReason::Overflow, None));
        }
        let pending = PendingAccount::begin(cluster, host, priority)
            .ok_or_else(|| PoolFailure::new(PoolFailureReason::Overflow, None))?;
        let account = ConnectionAccount::begin(cluster, host, priority, Counted::Bytes);
        let attempt = Box::pin({
            let (cluster, host, mut account) = (cluster.clone(), host.clone(), account);
            async move {
                let asked = Asked { wanted: wanted.as_deref(), alpn: &[] };
                let connected = connecting::connect(&cluster, &host, &mut account, asked).await?;
                Ok((connected, account))
            }
        });
        Ok(Self { cluster: cluster.clone(), host: host.clone(), attempt, pending: Some(pending) })
    }

    pub fn host(&self) -> &Arc<Host> {
        &self.host
    }
}

impl Future for TcpConnecting {
    type Output = Result<TcpConnection, PoolFailure>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let result = ready!(this.attempt.as_mut().poll(cx));
        this.pending = None;
        let (Established { connected, tls }, mut account) = result.inspect_err(|_| {
            this.cluster.stats().failures.inc(stat::UPSTREAM_RQ_PENDING_FAILURE_EJECT);
        })?;
        // Envoy does not hold bare connections to `max_requests`.
        let permit = Permit::take(&this.cluster, Priority::Default, Resource::Requests);
        let request = RequestAccount::begin(&this.cluster, &this.host, permit);
        account.with_request = true;
        let Connected { io, local, remote } = connected;
        let id = this.cluster.context.connection_ids.next();
        let host_fails = this.cluster.host_fails(&this.host).map(Box::pin);
        let guard = TcpGuard { cluster: this.cluster.clone(), account, _request: request, host_fails };
        Poll::Ready(Ok(TcpConnection { io, local, remote, tls, id, guard }))
    }
}

impl Drop for TcpConnecting {
    fn drop(&mut self) {
        if self.pending.is_some() {
            self.cluster.stats().failures.inc(stat::UPSTREAM_RQ_CANCELLED);
        }
    }
}

impl TcpGuard {
    /// Ready when the host failed and its connections must end with that.
    pub fn poll_host_fails(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.host_fails {
            Some(fails) => fails.as_mut().poll(cx),
            None => Poll::Pending,
        }
    }

    /// The upstream closed first.
    pub fn closed_by_peer(&mut self) {
        self.account.closed_by_peer = true;
    }

    /// Bytes that came and went, for the cluster's totals.
    pub fn bytes(&self, received: u64, sent: u64) {
        let traffic = &self.cluster.stats().traffic;
        traffic.add(stat::UPSTREAM_CX_RX_BYTES_TOTAL, received);
        traffic.add(stat::UPSTREAM_CX_TX_BYTES_TOTAL, sent);
    }
}
