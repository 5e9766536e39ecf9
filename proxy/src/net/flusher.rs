//! Small writes are put off until the other connections that have something to do have read it.
//!
//! A look at the sockets makes many connections ready at once. Where each of them reads, works and writes in turn, every
//! write wakes a peer that has finished with the one before, and the code of reading and of writing drive each other out
//! of the processor's caches. Here their writes wait, and go out one behind the other as soon as all that could run has
//! run: within the same round of the event loop, as Envoy's connections do it.
//!
//! Only who may write later says so here; a thread on which [`run`] does not run writes at once.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Something that has bytes to write.
pub trait Flush {
    /// Writes them. `cx` wakes whoever they belong to: when there is room again, or to hear why there never will be.
    fn flush(&self, cx: &mut Context<'_>);
}

#[derive(Default)]
struct Flusher {
    /// Of the task that is to flush, while there is one.
    task: RefCell<Option<Waker>>,
    waiting: RefCell<Vec<(Rc<dyn Flush>, Waker)>>,
    running: Cell<bool>,
}

thread_local! {
    static OWN: Flusher = Flusher::default();
}

/// Has it flushed soon, and says so; or does nothing, if nobody would. Once it waits it must not be added again.
pub fn flush_soon(what: Rc<dyn Flush>, owner: &Waker) -> bool {
    OWN.with(|own| {
        if !own.running.get() {
            return false;
        }
        let mut waiting = own.waiting.borrow_mut();
        if waiting.is_empty()
            && let Some(task) = &*own.task.borrow()
        {
            task.wake_by_ref();
        }
        waiting.push((what, owner.clone()));
        true
    })
}

/// Flushes what this thread's connections put off. For a task of its own: its turn comes behind those that can run.
pub async fn run() {
    struct Running;

    impl Drop for Running {
        fn drop(&mut self) {
            // As the thread ends there may be nothing left.
            let _ = OWN.try_with(|own| {
                own.running.set(false);
                own.task.take();
                own.flush();
            });
        }
    }

    OWN.with(|own| own.running.set(true));
    let _running = Running;
    poll_fn(|cx| {
        OWN.with(|own| {
            own.task.borrow_mut().get_or_insert_with(|| cx.waker().clone()).clone_from(cx.waker());
            own.flush();
        });
        Poll::<()>::Pending
    })
    .await;
}

impl Flusher {
    fn flush(&self) {
        // Nothing is borrowed meanwhile: who is flushed may close, and what it held go with it.
        let mut batch = self.waiting.take();
        for (what, owner) in batch.drain(..) {
            what.flush(&mut Context::from_waker(&owner));
        }
        let mut waiting = self.waiting.borrow_mut();
        if waiting.is_empty() {
            *waiting = batch;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::task::{spawn_local, yield_now};

    use super::*;

    struct Note(&'static str, Rc<RefCell<Vec<&'static str>>>);

    impl Flush for Note {
        fn flush(&self, cx: &mut Context<'_>) {
            self.1.borrow_mut().push(self.0);
            cx.waker().wake_by_ref();
        }
    }

    #[tokio::test(flavor = "local")]
    async fn what_can_run_runs_before_anything_is_flushed() {
        let told: Rc<RefCell<Vec<&'static str>>> = Rc::default();
        let note = |text| Rc::new(Note(text, told.clone()));
        let add = |what: Rc<Note>| poll_fn(move |cx| Poll::Ready(flush_soon(what.clone(), cx.waker())));
        assert!(!add(note("too early")).await, "nobody flushes");
        let flusher = spawn_local(run());
        yield_now().await;
        for (works, writes) in [("a works", "a writes"), ("b works", "b writes")] {
            let (told, adding) = (told.clone(), add(note(writes)));
            spawn_local(async move {
                told.borrow_mut().push(works);
                assert!(adding.await);
            });
        }
        yield_now().await;
        yield_now().await;
        assert_eq!(*told.borrow(), ["a works", "b works", "a writes", "b writes"]);
        assert!(add(note("last")).await);
        flusher.abort();
        assert!(flusher.await.is_err());
        assert_eq!(told.borrow().last(), Some(&"last"), "what waits when it ends is flushed");
        assert!(!add(note("too late")).await);
    }

    #[tokio::test(flavor = "local")]
    async fn its_owner_is_woken_by_what_it_waits_for() {
        spawn_local(run());
        yield_now().await;
        let (told, mut added) = (Rc::default(), false);
        poll_fn(|cx| {
            if std::mem::replace(&mut added, true) {
                return Poll::Ready(());
            }
            assert!(flush_soon(Rc::new(Note("", Rc::clone(&told))), cx.waker()));
            Poll::Pending
        })
        .await;
        assert_eq!(told.borrow().len(), 1);
    }
}
