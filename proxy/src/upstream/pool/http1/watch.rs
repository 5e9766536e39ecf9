//! The task that watches a pool's idle connections: closes by the peer, the idle timeout, the longest life.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};

use nuncio_core::stats::lists::cluster as stat;
use tokio::task::AbortHandle;
use tokio::time::{Instant, Sleep, sleep_until};

use super::{Http1Pool, Member};
use crate::codec::http1::ClientConn;

/// The pool's handle of its task; dropping it ends the task.
pub(super) struct Watch {
    shared: Rc<Shared>,
    task: AbortHandle,
}

#[derive(Default)]
struct Shared {
    /// Known once the task ran.
    waker: RefCell<Option<Waker>>,
    /// When the task's timer fires, if it runs.
    armed: Cell<Option<Instant>>,
}

impl Watch {
    pub(super) fn spawn(pool: &Weak<Http1Pool>) -> Self {
        let shared = Rc::new(Shared::default());
        let task = Task { pool: pool.clone(), shared: shared.clone(), timer: None };
        Self { shared, task: tokio::task::spawn_local(task).abort_handle() }
    }

    /// Has the task woken when something comes on the connection; true if something is there already.
    pub(super) fn register(&self, conn: &mut ClientConn) -> bool {
        let waker = self.shared.waker.borrow();
        // A task that has not run yet registers itself at its first run.
        waker.as_ref().is_some_and(|waker| conn.poll_idle(&mut Context::from_waker(waker)).is_ready())
    }

    /// Has the task look again at that moment. Its timer usually runs for an earlier one, and is left alone.
    pub(super) fn deadline(&self, at: Option<Instant>) {
        let Some(at) = at else { return };
        if self.shared.armed.get().is_none_or(|armed| armed > at)
            && let Some(waker) = &*self.shared.waker.borrow()
        {
            waker.wake_by_ref();
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Task {
    pool: Weak<Http1Pool>,
    shared: Rc<Shared>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Future for Task {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let Some(pool) = this.pool.upgrade() else { return Poll::Ready(()) };
        {
            let mut waker = this.shared.waker.borrow_mut();
            if !waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                *waker = Some(cx.waker().clone());
            }
        }
        loop {
            let next = pool.sweep(cx);
            this.shared.armed.set(next);
            let Some(at) = next else {
                this.timer = None;
                return Poll::Pending;
            };
            let timer = this.timer.get_or_insert_with(|| Box::pin(sleep_until(at)));
            if timer.deadline() != at {
                timer.as_mut().reset(at);
            }
            if timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
    }
}

impl Http1Pool {
    /// Closes the idle connections whose time has come; registers `cx` with the others. Says when the next one's time
    /// comes.
    fn sweep(&self, cx: &mut Context<'_>) -> Option<Instant> {
        let now = Instant::now();
        let mut next: Option<Instant> = None;
        self.state.borrow_mut().idle.retain_mut(|member| {
            let closed = member.conn.poll_idle(cx).is_ready();
            let deadline = self.deadline(member);
            if closed || deadline.is_some_and(|at| at <= now) {
                member.account.closed_by_peer = closed;
                if !closed {
                    self.count_end(member, now);
                }
                return false;
            }
            next = match (next, deadline) {
                (Some(next), Some(at)) => Some(next.min(at)),
                (next, at) => next.or(at),
            };
            true
        });
        next
    }

    fn count_end(&self, member: &Member, now: Instant) {
        let why = match member.expires {
            Some(at) if at <= now => stat::UPSTREAM_CX_MAX_DURATION_REACHED,
            _ => stat::UPSTREAM_CX_IDLE_TIMEOUT,
        };
        self.cluster.stats().failures.inc(why);
    }
}
