//! A pool of HTTP/2 connections to one host, for one priority, on one thread.
//!
//! Requests share one connection until it carries as many as it may; only then is there another. Each connection has a
//! task that reads and writes for all its streams, closes it when it lay idle too long or is too old, and takes it out of
//! the pool when the upstream wants no more requests on it: those that run end in peace.

mod member;
mod pending;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use nuncio_core::http::RequestHead;
use nuncio_core::net::{Address, TlsInfo};
use nuncio_core::stats::GaugeGuard;
use nuncio_core::stats::lists::cluster as stat;
use nuncio_core::stats::lists::http2::{self as codec_stat, Codec as Http2Codec};
use nuncio_core::upstream::Host;

use self::member::{Member, MemberTask};
use self::pending::Waiting;
use super::account::{ConnectionAccount, Counted, PendingAccount, RequestAccount};
use super::connecting::{self, Asked, Established, Parked};
use super::stream::{NotSent, UpstreamEnd};
use super::{PoolFailure, PoolFailureReason, PoolProtocol, PoolUse};
use crate::codec::http2::{ClientConn, ClientOptions, ClientStream, OpenError};
use crate::upstream::circuit_breaker::{Permit, Priority, Resource};
use crate::upstream::thread_local::ClusterLocal;

pub use self::pending::PendingSlot;

/// What a pool answers to a request.
#[allow(clippy::large_enum_variant, reason = "moved once or twice a request, and never boxed for it")]
pub enum Acquire {
    Ready(Slot),
    Pending(PendingSlot),
    Failed(PoolFailure),
}

pub struct Http2Pool {
    cluster: Rc<ClusterLocal>,
    host: Arc<Host>,
    priority: Priority,
    purpose: PoolUse,
    options: Rc<ClientOptions>,
    state: RefCell<State>,
    /// Requests that waited, have their place, and did not run since.
    untaken: Cell<usize>,
    weak: Weak<Self>,
    _permit: Permit,
}

#[derive(Default)]
struct State {
    /// Those that take requests, oldest first.
    open: Vec<Rc<Member>>,
    /// Those that end when their requests have.
    draining: Vec<Rc<Member>>,
    connecting: usize,
    pending: VecDeque<Rc<Waiting>>,
    /// No request will come any more.
    retired: bool,
}

impl Http2Pool {
    pub(in crate::upstream) fn new(
        cluster: &Rc<ClusterLocal>,
        host: &Arc<Host>,
        priority: Priority,
        purpose: PoolUse,
        permit: Permit,
    ) -> Rc<Self> {
        let config = cluster.config();
        let options = Rc::new(config.http.http2_client_options(config.info.per_connection_buffer_limit));
        Rc::new_cyclic(|weak| Self {
            options,
            cluster: cluster.clone(),
            host: host.clone(),
            priority,
            purpose,
            state: RefCell::default(),
            untaken: Cell::default(),
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
        state.connecting == 0
            && state.pending.is_empty()
            && state.draining.is_empty()
            && state.open.iter().all(|member| member.streams() == 0)
    }

    /// There is no connection, and none to come.
    pub(in crate::upstream) fn is_empty(&self) -> bool {
        self.is_unused() && self.state.borrow().open.is_empty()
    }

    /// A place for one request on a connection.
    pub fn acquire(self: &Rc<Self>) -> Acquire {
        if let Some(member) = self.with_room() {
            return match self.attach(&member) {
                // As Envoy: those that waited are sent first, in their order, though they have yet to run.
                Ok(slot) if self.untaken.get() > 0 => Acquire::Pending(PendingSlot::behind_others(self, slot)),
                Ok(slot) => Acquire::Ready(slot),
                Err(failure) => Acquire::Failed(failure),
            };
        }
        let Some(account) = PendingAccount::begin(&self.cluster, &self.host, self.priority) else {
            return Acquire::Failed(PoolFailure::new(PoolFailureReason::Overflow, None));
        };
        let waiting = Waiting::new(account);
        self.state.borrow_mut().pending.push_back(waiting.clone());
        self.connect_for_pending();
        Acquire::Pending(PendingSlot::new(self, waiting))
    }

    fn with_room(&self) -> Option<Rc<Member>> {
        self.state.borrow().open.iter().find(|member| member.has_room()).cloned()
    }

    /// Puts a request on a connection, which takes no more if the limit of requests is reached.
    fn attach(self: &Rc<Self>, member: &Rc<Member>) -> Result<Slot, PoolFailure> {
        let stats = self.cluster.stats();
        let Some(permit) = Permit::ask(&self.cluster, self.priority, Resource::Requests) else {
            stats.failures.inc(stat::UPSTREAM_RQ_ACTIVE_OVERFLOW);
            return Err(PoolFailure::new(PoolFailureReason::Overflow, Some(&self.host)));
        };
        let request = RequestAccount::begin(&self.cluster, &self.host, permit);
        let requests = member.begin();
        if self.cluster.config().http.max_requests_per_connection.is_some_and(|max| requests >= max) {
            stats.failures.inc(stat::UPSTREAM_CX_MAX_REQUESTS);
            self.withdraw(member);
        }
        Ok(Slot { pool: self.clone(), member: member.clone(), stream: None, active: None, _request: request })
    }

    /// As many requests that wait as the connections take.
    fn serve_pending(self: &Rc<Self>) {
        while !self.state.borrow().pending.is_empty() {
            let Some(member) = self.with_room() else { return self.connect_for_pending() };
            let next = self.state.borrow_mut().pending.pop_front();
            let Some(waiting) = next else { return };
            waiting.serve(self, self.attach(&member));
        }
    }

    /// A request is over.
    fn ended(self: &Rc<Self>, member: &Rc<Member>) {
        let last = member.end();
        if member.is_draining() {
            if last {
                // Nobody needs it: its task closes it.
                member.close();
            }
        } else {
            self.serve_pending();
        }
    }

    /// A connection takes no more requests; it closes when those that run are over.
    fn withdraw(&self, member: &Rc<Member>) {
        {
            let mut state = self.state.borrow_mut();
            let Some(at) = state.open.iter().position(|open| Rc::ptr_eq(open, member)) else { return };
            let member = state.open.remove(at);
            state.draining.push(member);
        }
        member.drain();
        if member.streams() == 0 {
            member.close();
        }
    }

    /// A connection has ended.
    fn gone(self: &Rc<Self>, member: &Rc<Member>) {
        {
            let mut state = self.state.borrow_mut();
            state.open.retain(|other| !Rc::ptr_eq(other, member));
            state.draining.retain(|other| !Rc::ptr_eq(other, member));
        }
        member.drain();
        member.close();
        self.connect_for_pending();
    }

    // === new connections ===

    /// One at a time: it will carry all who wait, as far as is known.
    fn connect_for_pending(self: &Rc<Self>) {
        {
            let state = self.state.borrow();
            // One that has not said yet how many requests it takes may take them all: its task asks again.
            let unknown = state.connecting > 0 || state.open.iter().any(|member| !member.is_settled());
            if state.pending.is_empty() || unknown {
                return;
            }
            let limits = self.cluster.config().thresholds(self.priority);
            let room = self.host.load.active_connections.load(Relaxed) < limits.max_connections_per_host
                && self.cluster.breakers().has_room(limits, self.priority, Resource::Connections);
            if !room {
                self.cluster.stats().failures.inc(stat::UPSTREAM_CX_OVERFLOW);
                // Without any connection the requests would wait for ever: one is always made.
                if !state.open.is_empty() {
                    return;
                }
            }
        }
        self.state.borrow_mut().connecting += 1;
        let auto = self.purpose.auto;
        let counted = if auto { Counted::Bytes } else { Counted::Http2 };
        let mut account = ConnectionAccount::begin(&self.cluster, &self.host, self.priority, counted);
        let pool = self.clone();
        tokio::task::spawn_local(async move {
            let alpn: &[&str] = if auto { &["h2", "http/1.1"] } else { &["h2"] };
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
        if parked.negotiated(&self.cluster, &self.host) == PoolProtocol::Http2 {
            return self.connected(parked.established, parked.account);
        }
        let waiting = std::mem::take(&mut self.state.borrow_mut().pending);
        parked.hand_over(&self.cluster, &self.host, waiting, |waiting, failure| waiting.serve(self, Err(failure)));
    }

    /// A connection that another pool made.
    pub(in crate::upstream) fn adopt(self: &Rc<Self>, parked: Parked) {
        self.connected(parked.established, parked.account);
    }

    fn connected(self: &Rc<Self>, established: Established, account: ConnectionAccount) {
        let retired = {
            let state = self.state.borrow();
            if state.retired && state.pending.is_empty() {
                return;
            }
            state.retired
        };
        let Established { connected, tls } = established;
        let (io, local) = (connected.io, connected.local);
        let context = &self.cluster.context;
        let options = self.options.clone();
        let (conn, driver) = ClientConn::new(io, options, context.buffers.clone(), &context.rng);
        let member = Member::new(conn, account, context.connection_ids.next(), local, tls);
        self.state.borrow_mut().open.push(member.clone());
        let config = &self.cluster.config().http;
        let task = MemberTask::new(driver, &self.weak, &member, config.idle_timeout, config.max_connection_duration);
        tokio::task::spawn_local(task);
        self.serve_pending();
        if retired {
            self.withdraw(&member);
        }
    }

    /// As Envoy: one failed attempt fails all who wait, who then decide for themselves.
    fn connect_failed(self: &Rc<Self>, failure: &PoolFailure) {
        let waiting = std::mem::take(&mut self.state.borrow_mut().pending);
        for waiting in waiting {
            self.cluster.stats().failures.inc(stat::UPSTREAM_RQ_PENDING_FAILURE_EJECT);
            waiting.serve(self, Err(failure.clone()));
        }
    }

    // === the end of connections ===

    /// No connection takes requests any more; new requests get new connections.
    pub(in crate::upstream) fn drain(&self) {
        let open = self.state.borrow().open.clone();
        open.iter().for_each(|member| self.withdraw(member));
    }

    /// The same for good: the host or the cluster is gone. Requests that wait are still served.
    pub(in crate::upstream) fn retire(&self) {
        self.state.borrow_mut().retired = true;
        self.drain();
    }
}

/// One request's place on a connection. Dropping it gives the place back and resets what is incomplete.
pub struct Slot {
    pool: Rc<Http2Pool>,
    member: Rc<Member>,
    /// From the request's head on.
    pub(super) stream: Option<ClientStream>,
    active: Option<GaugeGuard<Http2Codec>>,
    _request: RequestAccount,
}

impl Slot {
    pub fn host(&self) -> &Arc<Host> {
        &self.pool.host
    }

    /// `%UPSTREAM_CONNECTION_ID%`.
    pub fn id(&self) -> u64 {
        self.member.id
    }

    pub fn local_address(&self) -> Option<&Address> {
        self.member.local.as_ref()
    }

    /// What the connection's handshake told.
    pub fn tls(&self) -> Option<&Arc<TlsInfo>> {
        self.member.tls.as_ref()
    }

    /// Sends a request's head, on a stream of its own.
    pub(super) fn open(&mut self, head: &RequestHead, end: bool, upgrade: bool) -> Result<(), NotSent> {
        match self.member.with_connection(|conn| conn.open(head, end, upgrade)) {
            Some(Ok(stream)) => {
                self.stream = Some(stream);
                self.active = Some(self.pool.cluster.stats().http2.gauge(codec_stat::STREAMS_ACTIVE));
                Ok(())
            }
            Some(Err(OpenError::Unwritable(what))) => Err(NotSent::Unwritable(what)),
            // However the connection ended: this request was not sent, so that it may be sent again.
            Some(Err(OpenError::Stream(_))) | None => Err(NotSent::Upstream(UpstreamEnd::Refused)),
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // The stream first: the connection counts it until then.
        self.stream = None;
        self.pool.ended(&self.member);
    }
}

#[cfg(test)]
mod tests;
