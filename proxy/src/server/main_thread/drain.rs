//! The end that loses nothing: who asks for connections is told that the server goes, those that are there are asked
//! to go, and when none is left, or the time is over, the process ends.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::time::Instant;

use super::Main;
use crate::listener::{ListenerCommand, ListenerId};

/// How often it is looked whether anybody is left.
pub(super) const LOOK: Duration = Duration::from_millis(50);

/// An end that has begun.
pub(super) struct Ending {
    reason: String,
    until: Instant,
    /// Nobody was there the last time.
    empty: bool,
}

impl Main {
    /// Connections are asked to go. `accept`: new ones are still taken, since whoever sends them may not know yet.
    pub(super) fn begin_to_end(&mut self, reason: String, accept: bool, time: Duration) {
        tracing::info!(target: "main", "{reason}: draining for {} s at most", time.as_secs());
        self.lifecycle.set_health_failed(true);
        let ids: Vec<ListenerId> = self.listeners.active().iter().map(|l| l.id).collect();
        if accept {
            for id in ids {
                self.command(|| ListenerCommand::Drain { id });
            }
        } else {
            self.stop(ids);
        }
        self.ending = Some(Ending { reason, until: Instant::now() + time, empty: false });
    }

    /// Whether the end is here: nobody is left, or the time is over.
    pub(super) fn has_ended(&mut self) -> Option<String> {
        let left = self.lifecycle.downstream_connections().load(Relaxed);
        let ending = self.ending.as_mut()?;
        if Instant::now() >= ending.until {
            return Some(format!("{}: the drain time is over, {left} connections are left", ending.reason));
        }
        if left > 0 {
            ending.empty = false;
            return None;
        }
        if !std::mem::replace(&mut ending.empty, true) {
            // What waits in the queues of the sockets is taken before they close.
            let ids: Vec<ListenerId> = self.listeners.active().iter().map(|l| l.id).collect();
            self.stop(ids);
            return None;
        }
        self.ending.as_ref().map(|ending| format!("{}: no connection is left", ending.reason))
    }
}
