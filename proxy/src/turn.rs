//! Turns. A worker's one thread serves all its connections, so that a task which could work on and on stops when it has
//! had its share, and goes on when the others, and what came on their sockets meanwhile, had theirs.
//!
//! Work is counted and not timed: the same bytes stop at the same place on every machine. Bytes that are moved are
//! counted where they move, in [`Io`](nuncio_core::net::Io), and those that go by a pipe where they do; here is what they
//! cost beyond that.

use std::future::Future;
use std::pin::pin;
use std::task::Context;

/// What is left of a connection's turn, in bytes of heads; whatever else costs is counted as so many of them. A byte of
/// a head costs some nanoseconds until its request is upstream, so that a turn is well below a millisecond.
#[derive(Debug)]
pub struct Turn {
    left: usize,
}

/// A whole turn: 32 requests of the usual size, or four whose heads are as large as they may be.
const WHOLE: usize = 256 * 1024;
/// A request, beside the bytes of its head.
const REQUEST: usize = 8 * 1024;
/// A frame of HTTP/2, beside its payload.
const FRAME: usize = 64;

impl Default for Turn {
    fn default() -> Self {
        Self { left: WHOLE }
    }
}

impl Turn {
    pub fn spend_request(&mut self, head_bytes: usize) {
        self.spend(REQUEST + head_bytes);
    }

    pub fn spend_frame(&mut self, payload: usize) {
        self.spend(FRAME + payload);
    }

    fn spend(&mut self, cost: usize) {
        self.left = self.left.saturating_sub(cost);
    }

    pub fn is_over(&self) -> bool {
        self.left == 0
    }

    /// Whether the task has to stop; then it is woken for a turn that is whole again.
    pub fn ends(&mut self, cx: &mut Context<'_>) -> bool {
        let over = self.is_over();
        if over {
            *self = Self::default();
            go_on_later(cx);
        }
        over
    }
}

/// Wakes the task after all others that can run, and after a look at the sockets. Waking it as usual would put it among
/// the tasks that run before that look.
pub fn go_on_later(cx: &mut Context<'_>) {
    // Its first answer is always no, and by then it has left the waker where it has to be.
    let _ = pin!(tokio::task::yield_now()).poll(cx);
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::poll_fn;
    use std::rc::Rc;
    use std::task::Poll;

    use tokio::io::AsyncReadExt;
    use tokio::task::spawn_local;

    use super::*;

    #[tokio::test(flavor = "local")]
    async fn a_turn_ends_after_so_much_work_and_the_next_is_whole() {
        let mut turn = Turn::default();
        let mut begun = 0;
        for ends in [32, 64] {
            poll_fn(|cx| {
                while !turn.ends(cx) {
                    turn.spend_request(0);
                    begun += 1;
                }
                Poll::Ready(())
            })
            .await;
            assert_eq!(begun, ends);
        }
    }

    /// A task that is woken as usual keeps the sockets waiting for dozens of its turns.
    #[tokio::test(flavor = "local")]
    async fn what_came_on_a_socket_goes_first() {
        let (mut reader, writer) = tokio::net::UnixStream::pair().unwrap();
        let turns = Rc::new(Cell::new(0));
        let counting = turns.clone();
        let busy = spawn_local(poll_fn(move |cx| {
            if counting.get() == 5 {
                writer.try_write(b"x").unwrap();
            }
            counting.set(counting.get() + 1);
            go_on_later(cx);
            Poll::<()>::Pending
        }));
        reader.read_exact(&mut [0]).await.unwrap();
        assert!(turns.get() <= 7, "{} turns", turns.get());
        busy.abort();
    }
}
