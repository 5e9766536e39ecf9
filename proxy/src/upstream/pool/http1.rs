//! A pool of HTTP/1 connections to one host, for one priority, on one thread.
//!
//! One request at a time is on a connection; the connection that was used last is used first, so that the others age
//! and go. A request that finds none free waits in order of arrival for whichever comes first: a new connection or one
//! that is given back. Connections that are being made belong to the pool, not to who asked: if the waiting request
//! goes away, the connection serves another.
//!
//! Idle connections are watched by one small task per pool ([`Watch`]): its waker is registered with every one of them,
//! so that a close by the peer is noticed when it happens and not by the request that comes next.

mod pending;
mod watch;

use std::cell::{OnceCell, RefCell};
use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Waker};

use nuncio_core::net::{Address, TlsInfo};
use nuncio_core::stats::lists::cluster as stat;
use nuncio_core::upstream::Host;
use tokio::time::Instant;

use self::pending::Waiting;
use self::watch::Watch;
use super::account::{ConnectionAccount, Counted, PendingAccount, RequestAccount};
use super::connecting::{self, Asked, Established, Parked};
use super::{PoolFailure, PoolFailureReason, PoolProtocol, PoolUse};
use crate::codec::http1::ClientConn;
use crate::upstream::circuit_breaker::{Permit, Priority, Resource};
use crate::upstream::thread_local::ClusterLocal;

pub use self::pending::PendingConn;

/// What a pool answers to a request.
pub enum Acquire {
    Ready(PooledConn),
    Pending(PendingConn),
    Failed(PoolFailure),
}

pub struct Http1Pool {
    cluster: Rc<ClusterLocal>,
    host: Arc<Host>,
    priority: Priority,
    purpose: PoolUse,
    state: RefCell<State>,
    watch: OnceCell<Watch>,
    weak: Weak<Self>,
    _permit: Permit,
}

#[derive(Default)]
struct State {
    /// The last one is the one used last. Boxed, because they move to a request and back.
    #[allow(clippy::vec_box)]
    idle: Vec<Box<Member>>,
    busy: usize,
    connecting: usize,
    pending: VecDeque<Rc<Waiting>>,
    /// Connections of an earlier one are not used again.
    generation: u32,
    /// No request will come any more.
    retired: bool,
}

/// A connection of the pool.
struct Member {
    conn: ClientConn,
    account: ConnectionAccount,
    id: u64,
    local: Option<Address>,
    tls: Option<Arc<TlsInfo>>,
    idle_since: Instant,
    /// `max_connection_duration`.
    expires: Option<Instant>,
    generation: u32,
}

/// Envoy makes at most this many connections at once for requests that wait.
const MOST_AT_ONCE: usize = 3;

impl Http1Pool {
    pub(in crate::upstream) fn new(
        cluster: &Rc<ClusterLocal>,
        host: &Arc<Host>,
        priority: Priority,
        purpose: PoolUse,
        permit: Permit,
    ) -> Rc<Self> {
        Rc::new_cyclic(|weak| Self {
            cluster: cluster.clone(),
            host: host.clone(),
            priority,
            purpose,
            state: RefCell::default(),
            watch: OnceCell::new(),
            weak: weak.clone(),
            _permit: permit,
        })
    }

    pub fn host(&self) -> &Arc<Host> {
        &self.host
    }

    /// Nobody uses or waits for a connection; some may lie idle.
    pub(in crate::upstream) fn is_unused(&self) -> bool {
        let state = self.state.borrow();
        state.busy == 0 && state.connecting == 0 && state.pending.is_empty()
    }

    /// There is no connection, and none to come.
    pub(in crate::upstream) fn is_empty(&self) -> bool {
        self.is_unused() && self.state.borrow().idle.is_empty()
    }

    /// Connections now: idle, in use, being made.
    #[cfg(test)]
    fn counts(&self) -> (usize, usize, usize) {
        let state = self.state.borrow();
        (state.idle.len(), state.busy, state.connecting)
    }

    /// A connection for one request.
    pub fn acquire(self: &Rc<Self>) -> Acquire {
        while let Some(mut member) = self.take_idle() {
            // Its close may be known to the socket and not yet to the watch.
            if member.conn.poll_idle(&mut Context::from_waker(Waker::noop())).is_ready() {
                member.account.closed_by_peer = true;
                continue;
            }
            return match self.attach(member) {
                Ok(conn) => Acquire::Ready(conn),
                Err(failure) => Acquire::Failed(failure),
            };
        }
        let Some(account) = PendingAccount::begin(&self.cluster, &self.host, self.priority) else {
            return Acquire::Failed(PoolFailure::new(PoolFailureReason::Overflow, None));
        };
        let waiting = Waiting::new(account);
        self.state.borrow_mut().pending.push_back(waiting.clone());
        self.connect_for_pending();
        Acquire::Pending(PendingConn::new(self, waiting))
    }

    fn take_idle(&self) -> Option<Box<Member>> {
        self.state.borrow_mut().idle.pop()
    }

    /// Puts a request on a connection, which goes back to the pool if the limit of requests is reached.
    fn attach(self: &Rc<Self>, mut member: Box<Member>) -> Result<PooledConn, PoolFailure> {
        let stats = self.cluster.stats();
        let Some(permit) = Permit::ask(&self.cluster, self.priority, Resource::Requests) else {
            stats.failures.inc(stat::UPSTREAM_RQ_ACTIVE_OVERFLOW);
            self.put_idle(member);
            return Err(PoolFailure::new(PoolFailureReason::Overflow, Some(&self.host)));
        };
        let reused = member.account.requests > 0;
        member.account.requests += 1;
        let max = self.cluster.config().http.max_requests_per_connection;
        if max == Some(member.account.requests) {
            stats.failures.inc(stat::UPSTREAM_CX_MAX_REQUESTS);
        }
        let request = RequestAccount::begin(&self.cluster, &self.host, permit);
        self.state.borrow_mut().busy += 1;
        Ok(PooledConn { pool: self.clone(), member: Some(member), request: Some(request), reused })
    }

    /// A connection that was in use comes back.
    fn give_back(self: &Rc<Self>, mut member: Box<Member>) {
        self.state.borrow_mut().busy -= 1;
        member.account.bytes(member.conn.totals());
        if !member.conn.is_reusable() || !self.may_stay(&mut member) {
            drop(member);
            return self.connect_for_pending();
        }
        self.put(member);
    }

    fn may_stay(&self, member: &mut Member) -> bool {
        let state = self.state.borrow();
        let max = self.cluster.config().http.max_requests_per_connection;
        if member.generation != state.generation || max.is_some_and(|max| member.account.requests >= max) {
            return false;
        }
        let expired = member.expires.is_some_and(|at| at <= Instant::now());
        if expired {
            self.cluster.stats().failures.inc(stat::UPSTREAM_CX_MAX_DURATION_REACHED);
        }
        let unwanted = state.retired && state.pending.is_empty();
        !expired && !unwanted
    }

    /// A usable connection is free: for who waits longest, or to lie idle.
    fn put(self: &Rc<Self>, member: Box<Member>) {
        let mut free = Some(member);
        while let Some(member) = free.take() {
            let next = self.state.borrow_mut().pending.pop_front();
            let Some(waiting) = next else { return self.put_idle(member) };
            match self.attach(member) {
                Ok(conn) => waiting.serve(Ok(conn)),
                Err(failure) => {
                    waiting.serve(Err(failure));
                    free = self.take_idle();
                }
            }
        }
        self.connect_for_pending();
    }

    fn put_idle(self: &Rc<Self>, mut member: Box<Member>) {
        member.conn.release(&self.cluster.context.buffers);
        member.idle_since = Instant::now();
        let watch = self.watch.get_or_init(|| Watch::spawn(&self.weak));
        if watch.register(&mut member.conn) {
            member.account.closed_by_peer = true;
            return;
        }
        watch.deadline(self.deadline(&member));
        self.state.borrow_mut().idle.push(member);
    }

    /// When an idle connection is to be closed.
    fn deadline(&self, member: &Member) -> Option<Instant> {
        let idle = self.cluster.config().http.idle_timeout.and_then(|after| member.idle_since.checked_add(after));
        match (idle, member.expires) {
            (Some(idle), Some(expires)) => Some(idle.min(expires)),
            (idle, expires) => idle.or(expires),
        }
    }

    // === new connections ===

    /// As many as requests wait for, within the limits, three at a time.
    fn connect_for_pending(self: &Rc<Self>) {
        for _ in 0..MOST_AT_ONCE {
            {
                let state = self.state.borrow();
                if state.pending.len() <= state.connecting {
                    return;
                }
                let limits = self.cluster.config().thresholds(self.priority);
                let room = self.host.load.active_connections.load(Relaxed) < limits.max_connections_per_host
                    && self.cluster.breakers().has_room(limits, self.priority, Resource::Connections);
                if !room {
                    self.cluster.stats().failures.inc(stat::UPSTREAM_CX_OVERFLOW);
                    // Without any connection the requests would wait for ever: one is always made.
                    if state.idle.len() + state.busy + state.connecting > 0 {
                        return;
                    }
                }
            }
            self.connect();
        }
    }

    fn connect(self: &Rc<Self>) {
        self.state.borrow_mut().connecting += 1;
        let auto = self.purpose.auto;
        let counted = if auto { Counted::Bytes } else { Counted::Http1 };
        let mut account = ConnectionAccount::begin(&self.cluster, &self.host, self.priority, counted);
        let pool = self.clone();
        tokio::task::spawn_local(async move {
            let alpn: &[&str] = if auto { &["h2", "http/1.1"] } else { &["http/1.1"] };
            let asked = Asked { wanted: pool.purpose.wanted.as_deref(), alpn };
            let result = connecting::connect(&pool.cluster, &pool.host, &mut account, asked).await;
            pool.state.borrow_mut().connecting -= 1;
            match result {
                Ok(established) if auto => pool.negotiated(Parked { established, account }),
                Ok(established) => pool.connected(established, account),
                Err(failure) => {
                    drop(account);
                    pool.connect_failed(&failure);
                }
            }
        });
    }

    /// The handshake says which protocol it is.
    fn negotiated(self: &Rc<Self>, mut parked: Parked) {
        if parked.negotiated(&self.cluster, &self.host) == PoolProtocol::Http1 {
            return self.connected(parked.established, parked.account);
        }
        let waiting = std::mem::take(&mut self.state.borrow_mut().pending);
        parked.hand_over(&self.cluster, &self.host, waiting, |waiting, failure| waiting.serve(Err(failure)));
    }

    /// A connection that another pool made.
    pub(in crate::upstream) fn adopt(self: &Rc<Self>, parked: Parked) {
        self.connected(parked.established, parked.account);
    }

    fn connected(self: &Rc<Self>, established: Established, account: ConnectionAccount) {
        let generation = {
            let state = self.state.borrow();
            if state.retired && state.pending.is_empty() {
                return;
            }
            state.generation
        };
        let Established { connected, tls } = established;
        let (io, local) = (connected.io, connected.local);
        let now = Instant::now();
        let duration = self.cluster.config().http.max_connection_duration;
        self.put(Box::new(Member {
            conn: ClientConn::new(io, self.cluster.client_options()),
            account,
            id: self.cluster.context.connection_ids.next(),
            local,
            tls,
            idle_since: now,
            expires: duration.and_then(|after| now.checked_add(after)),
            generation,
        }));
    }

    /// As Envoy: one failed attempt fails all who wait, who then decide for themselves.
    fn connect_failed(self: &Rc<Self>, failure: &PoolFailure) {
        let waiting = std::mem::take(&mut self.state.borrow_mut().pending);
        for waiting in waiting {
            self.cluster.stats().failures.inc(stat::UPSTREAM_RQ_PENDING_FAILURE_EJECT);
            waiting.serve(Err(failure.clone()));
        }
    }

    // === the end of connections ===

    /// Closes what lies idle; what is in use closes after its request. New requests get new connections.
    pub(in crate::upstream) fn drain(&self) {
        let idle = {
            let mut state = self.state.borrow_mut();
            state.generation = state.generation.wrapping_add(1);
            std::mem::take(&mut state.idle)
        };
        drop(idle);
    }

    /// The same for good: the host or the cluster is gone. Requests that wait are still served.
    pub(in crate::upstream) fn retire(&self) {
        self.state.borrow_mut().retired = true;
        self.drain();
    }
}

/// An upstream connection in use by one request. Dropping it closes the connection.
pub struct PooledConn {
    pool: Rc<Http1Pool>,
    /// Until it is released.
    member: Option<Box<Member>>,
    request: Option<RequestAccount>,
    reused: bool,
}

impl PooledConn {
    /// It carried a request before this one. A reset before the first byte of the answer may then mean only that the
    /// upstream closed an idle connection at the wrong moment.
    pub fn is_reused(&self) -> bool {
        self.reused
    }

    pub fn host(&self) -> &Arc<Host> {
        &self.pool.host
    }

    /// `%UPSTREAM_CONNECTION_ID%`.
    pub fn id(&self) -> u64 {
        self.member().id
    }

    pub fn local_address(&self) -> Option<&Address> {
        self.member().local.as_ref()
    }

    /// What its handshake told.
    pub fn tls(&self) -> Option<&Arc<TlsInfo>> {
        self.member().tls.as_ref()
    }

    /// The request is over: the connection goes back if it can be used again, else it is closed.
    pub fn release(mut self) {
        self.give_back();
    }

    /// [`release`](Self::release) for who drops this next, and does not move it.
    pub(super) fn give_back(&mut self) {
        self.request = None;
        if let Some(member) = self.member.take() {
            self.pool.give_back(member);
        }
    }

    /// No request was sent after all: the connection goes back as it came.
    fn release_unused(mut self) {
        self.request = None;
        if let Some(mut member) = self.member.take() {
            member.account.requests -= 1;
            self.pool.state.borrow_mut().busy -= 1;
            if self.pool.may_stay(&mut member) {
                self.pool.put(member);
            }
        }
    }

    /// The upstream closed or reset the connection under this request.
    pub fn closed_by_peer(mut self) {
        self.member_mut().account.closed_by_peer = true;
    }

    fn member(&self) -> &Member {
        self.member.as_ref().expect("asked after its release")
    }

    fn member_mut(&mut self) -> &mut Member {
        self.member.as_mut().expect("asked after its release")
    }
}

impl Deref for PooledConn {
    type Target = ClientConn;

    fn deref(&self) -> &ClientConn {
        &self.member().conn
    }
}

impl DerefMut for PooledConn {
    fn deref_mut(&mut self) -> &mut ClientConn {
        &mut self.member_mut().conn
    }
}

impl Drop for PooledConn {
    fn drop(&mut self) {
        let Some(mut member) = self.member.take() else { return };
        member.account.bytes(member.conn.totals());
        member.account.with_request = true;
        self.request = None;
        self.pool.state.borrow_mut().busy -= 1;
        drop(member);
        self.pool.connect_for_pending();
    }
}

#[cfg(test)]
mod tests;
