//! A connection of the pool, and the task that runs it.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use nuncio_core::net::{Address, TlsInfo};
use nuncio_core::stats::lists::cluster as stat;
use nuncio_core::stats::lists::http2 as codec_stat;
use tokio::time::Instant;

use super::super::account::ConnectionAccount;
use super::Http2Pool;
use crate::alarm::Alarm;
use crate::codec::http2::{ClientConn, ClientDriver, ClientEnd};

/// Held by the pool, by its task and by the requests on it.
pub(super) struct Member {
    pub(super) id: u64,
    pub(super) local: Option<Address>,
    pub(super) tls: Option<Arc<TlsInfo>>,
    /// Until it may close: while it is there, the connection stays open.
    conn: RefCell<Option<ClientConn>>,
    account: RefCell<Option<ConnectionAccount>>,
    streams: Cell<u32>,
    idle_since: Cell<Instant>,
    draining: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Member {
    pub(super) fn new(
        conn: ClientConn,
        account: ConnectionAccount,
        id: u64,
        local: Option<Address>,
        tls: Option<Arc<TlsInfo>>,
    ) -> Rc<Self> {
        Rc::new(Self {
            id,
            local,
            tls,
            conn: RefCell::new(Some(conn)),
            account: RefCell::new(Some(account)),
            streams: Cell::new(0),
            idle_since: Cell::new(Instant::now()),
            draining: Cell::new(false),
            waker: RefCell::default(),
        })
    }

    pub(super) fn streams(&self) -> u32 {
        self.streams.get()
    }

    pub(super) fn has_room(&self) -> bool {
        self.conn.borrow().as_ref().is_some_and(|conn| !conn.is_closing() && self.streams.get() < conn.max_streams())
    }

    /// How many requests it takes is known.
    pub(super) fn is_settled(&self) -> bool {
        self.conn.borrow().as_ref().is_none_or(ClientConn::is_settled)
    }

    /// A request begins; how many there were, with it.
    pub(super) fn begin(&self) -> u32 {
        self.streams.set(self.streams.get() + 1);
        self.account.borrow_mut().as_mut().map_or(0, |account| {
            account.requests += 1;
            account.requests
        })
    }

    /// A request is over; whether it was the last.
    pub(super) fn end(&self) -> bool {
        self.streams.set(self.streams.get() - 1);
        if let (Some(account), Some(conn)) = (&mut *self.account.borrow_mut(), &*self.conn.borrow()) {
            account.bytes(conn.totals());
        }
        let last = self.streams.get() == 0;
        if last {
            self.idle_since.set(Instant::now());
            if let Some(waker) = &*self.waker.borrow() {
                // For its idle timeout.
                waker.wake_by_ref();
            }
        }
        last
    }

    pub(super) fn drain(&self) {
        self.draining.set(true);
    }

    pub(super) fn is_draining(&self) -> bool {
        self.draining.get()
    }

    /// Nothing more is to be sent on it.
    pub(super) fn close(&self) {
        let conn = self.conn.borrow_mut().take();
        drop(conn);
    }

    pub(super) fn with_connection<T>(&self, use_it: impl FnOnce(&ClientConn) -> T) -> Option<T> {
        self.conn.borrow().as_ref().map(use_it)
    }
}

/// Runs a connection to its end.
pub(super) struct MemberTask {
    driver: ClientDriver,
    pool: Weak<Http2Pool>,
    member: Rc<Member>,
    idle_timeout: Option<Duration>,
    expires: Option<Instant>,
    alarm: Alarm,
}

impl MemberTask {
    pub(super) fn new(
        driver: ClientDriver,
        pool: &Weak<Http2Pool>,
        member: &Rc<Member>,
        idle_timeout: Option<Duration>,
        max_duration: Option<Duration>,
    ) -> Self {
        let expires = max_duration.and_then(|after| Instant::now().checked_add(after));
        Self { driver, pool: pool.clone(), member: member.clone(), idle_timeout, expires, alarm: Alarm::default() }
    }

    fn over(&mut self, end: ClientEnd) {
        let pool = self.pool.upgrade();
        if let Some(pool) = &pool {
            self.driver.count(&pool.cluster.stats().http2);
            if matches!(end, ClientEnd::Dead) {
                pool.cluster.stats().http2.inc(codec_stat::KEEPALIVE_TIMEOUT);
            }
        }
        if let Some(mut account) = self.member.account.borrow_mut().take() {
            account.bytes(self.driver.totals());
            account.closed_by_peer = matches!(end, ClientEnd::Remote);
            account.with_request = self.member.streams() > 0;
            if let (ClientEnd::Protocol(what), Some(pool)) = (end, &pool) {
                tracing::debug!(conn = self.member.id, "upstream: protocol error: {what}");
                pool.cluster.stats().failures.inc(stat::UPSTREAM_CX_PROTOCOL_ERROR);
            }
        }
        match pool {
            Some(pool) => pool.gone(&self.member),
            None => self.member.close(),
        }
    }

    fn deadline(&self) -> Option<Instant> {
        if self.member.is_draining() {
            return None;
        }
        let idle = self.idle_timeout.filter(|_| self.member.streams() == 0);
        let idle = idle.and_then(|after| self.member.idle_since.get().checked_add(after));
        [idle, self.expires].into_iter().flatten().min()
    }
}

impl Future for MemberTask {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        if !this.member.waker.borrow().as_ref().is_some_and(|w| w.will_wake(cx.waker())) {
            *this.member.waker.borrow_mut() = Some(cx.waker().clone());
        }
        if let Poll::Ready(end) = Pin::new(&mut this.driver).poll(cx) {
            this.over(end);
            return Poll::Ready(());
        }
        let Some(pool) = this.pool.upgrade() else {
            this.member.close();
            return Poll::Pending;
        };
        this.driver.count(&pool.cluster.stats().http2);
        if !this.member.is_draining() && this.member.with_connection(ClientConn::is_closing) == Some(true) {
            pool.cluster.stats().failures.inc(stat::UPSTREAM_CX_CLOSE_NOTIFY);
            pool.withdraw(&this.member);
        }
        // The upstream may have raised its limit of streams, or wants no more.
        pool.serve_pending();
        while let Some(deadline) = this.deadline() {
            if !this.alarm.rings(cx, deadline) {
                break;
            }
            let expired = this.expires.is_some_and(|at| at <= Instant::now());
            let why = if expired { stat::UPSTREAM_CX_MAX_DURATION_REACHED } else { stat::UPSTREAM_CX_IDLE_TIMEOUT };
            pool.cluster.stats().failures.inc(why);
            pool.withdraw(&this.member);
        }
        Poll::Pending
    }
}
