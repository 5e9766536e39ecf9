//! One timer for whatever is due next.

use std::pin::Pin;
use std::task::Context;
use std::time::Duration;

use tokio::time::{Instant, Sleep};

/// Made at the first deadline, and moved only when something is due earlier than it: a deadline that is put off costs
/// nothing until the old one passes.
#[derive(Default)]
pub struct Alarm(Option<Pin<Box<Sleep>>>);

impl Alarm {
    /// Whether `deadline` has passed; else `cx` is woken when it does.
    pub fn rings(&mut self, cx: &mut Context<'_>, deadline: Instant) -> bool {
        let timer = self.0.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        if timer.deadline() > deadline {
            timer.as_mut().reset(deadline);
        }
        while timer.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            if deadline <= now {
                // Far away until the next deadline is known.
                timer.as_mut().reset(now + Duration::from_secs(86_400));
                return true;
            }
            timer.as_mut().reset(deadline);
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::task::Poll;

    use super::*;

    #[tokio::test(flavor = "current_thread", start_paused = true)]
    async fn it_rings_at_the_deadline_also_when_that_was_moved() {
        let start = Instant::now();
        let mut alarm = Alarm::default();
        let mut deadline = start + Duration::from_secs(5);
        let mut wait = async |deadline: Instant| {
            poll_fn(|cx| if alarm.rings(cx, deadline) { Poll::Ready(()) } else { Poll::Pending }).await;
            start.elapsed().as_secs()
        };
        let before = tokio::time::timeout(Duration::from_secs(1), wait(deadline)).await;
        assert!(before.is_err());
        deadline += Duration::from_secs(5);
        assert_eq!(wait(deadline).await, 10);
        assert_eq!(wait(deadline + Duration::from_secs(1)).await, 11);
    }
}
