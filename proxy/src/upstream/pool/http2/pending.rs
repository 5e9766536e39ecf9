//! A request that waits for a place on a connection of its pool.

use std::cell::Cell;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use nuncio_core::stats::lists::cluster as stat;

use super::super::PoolFailure;
use super::super::account::PendingAccount;
use super::{Http2Pool, Slot};

/// The pool's side of it.
pub(super) struct Waiting {
    result: Cell<Option<Result<Slot, PoolFailure>>>,
    waker: Cell<Option<Waker>>,
    account: Cell<Option<PendingAccount>>,
}

impl Waiting {
    pub(super) fn new(account: PendingAccount) -> Rc<Self> {
        Rc::new(Self { result: Cell::default(), waker: Cell::default(), account: Cell::new(Some(account)) })
    }

    pub(super) fn serve(&self, pool: &Http2Pool, result: Result<Slot, PoolFailure>) {
        self.account.take();
        self.result.set(Some(result));
        pool.untaken.set(pool.untaken.get() + 1);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// A place in the queue. Dropping it leaves the queue; a connection that was made for it stays with the pool.
pub struct PendingSlot {
    pool: Rc<Http2Pool>,
    waiting: Rc<Waiting>,
    /// It has its place, and lets those run who were woken before.
    yields: bool,
}

impl PendingSlot {
    pub(super) fn new(pool: &Rc<Http2Pool>, waiting: Rc<Waiting>) -> Self {
        Self { pool: pool.clone(), waiting, yields: false }
    }

    /// Came when there was room, and others had waited. It stands aside once and no longer: tasks run in the order in
    /// which they are woken, and one that does not look at its place must not stop those behind it.
    pub(super) fn behind_others(pool: &Rc<Http2Pool>, slot: Slot) -> Self {
        let waiting = Rc::new(Waiting { result: Cell::default(), waker: Cell::default(), account: Cell::default() });
        waiting.serve(pool, Ok(slot));
        Self { pool: pool.clone(), waiting, yields: true }
    }

    fn take(&self) -> Option<Result<Slot, PoolFailure>> {
        let result = self.waiting.result.take()?;
        self.pool.untaken.set(self.pool.untaken.get() - 1);
        Some(result)
    }

    /// Ready once.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Slot, PoolFailure>> {
        if std::mem::take(&mut self.yields) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if let Some(result) = self.take() {
            return Poll::Ready(result);
        }
        let waker = self.waiting.waker.take().filter(|waker| waker.will_wake(cx.waker()));
        self.waiting.waker.set(Some(waker.unwrap_or_else(|| cx.waker().clone())));
        Poll::Pending
    }
}

impl Drop for PendingSlot {
    fn drop(&mut self) {
        if let Some(account) = self.waiting.account.take() {
            self.pool.state.borrow_mut().pending.retain(|waiting| !Rc::ptr_eq(waiting, &self.waiting));
            self.pool.cluster.stats().failures.inc(stat::UPSTREAM_RQ_CANCELLED);
            drop(account);
        } else {
            // A place that nobody took goes back.
            drop(self.take());
        }
    }
}
