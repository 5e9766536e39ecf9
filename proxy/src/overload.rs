//! What the server gives up while it has too little of something, as every thread may ask: the actions of the overload
//! manager. Written by the main thread when it has looked at its resources; asked for each connection and request.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

use nuncio_core::random::Rng;

/// An action, by its number in [`ACTIONS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Action {
    /// Requests are answered 503.
    StopAcceptingRequests = 0,
    /// HTTP/1 connections end after their response, HTTP/2 connections are told to go.
    DisableHttpKeepalive = 1,
    /// Accept loops rest.
    StopAcceptingConnections = 2,
    /// Connections are accepted and closed.
    RejectIncomingConnections = 3,
    /// Free memory goes back to the system.
    ShrinkHeap = 4,
}

/// Envoy's names, by [`Action`].
pub const ACTIONS: [&str; 5] = [
    "envoy.overload_actions.stop_accepting_requests",
    "envoy.overload_actions.disable_http_keepalive",
    "envoy.overload_actions.stop_accepting_connections",
    "envoy.overload_actions.reject_incoming_connections",
    "envoy.overload_actions.shrink_heap",
];

/// How far each action goes, in percent; and how many connections there may be.
#[derive(Debug)]
pub struct Overload {
    percent: [AtomicU8; ACTIONS.len()],
    max_connections: AtomicU64,
}

impl Default for Overload {
    fn default() -> Self {
        Self { percent: Default::default(), max_connections: AtomicU64::new(u64::MAX) }
    }
}

impl Overload {
    pub fn set(&self, action: Action, percent: u8) {
        self.percent[action as usize].store(percent, Relaxed);
    }

    pub fn percent(&self, action: Action) -> u8 {
        self.percent[action as usize].load(Relaxed)
    }

    /// Whether the action befalls this request or connection: always, or by chance while it is not fully on.
    pub fn befalls(&self, action: Action, rng: &Rng) -> bool {
        match self.percent(action) {
            0 => false,
            100.. => true,
            percent => rng.f64() * 100.0 < f64::from(percent),
        }
    }

    /// `downstream_connections`: a limit for all listeners together.
    pub fn limit_connections(&self, max: u64) {
        self.max_connections.store(max, Relaxed);
    }

    pub fn max_connections(&self) -> u64 {
        self.max_connections.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_action_that_is_half_on_befalls_about_half() {
        let (overload, rng) = (Overload::default(), Rng::with_seed(1));
        let share =
            |overload: &Overload| (0..1000).filter(|_| overload.befalls(Action::StopAcceptingRequests, &rng)).count();
        assert_eq!(share(&overload), 0);
        overload.set(Action::StopAcceptingRequests, 50);
        assert!((400..600).contains(&share(&overload)));
        overload.set(Action::StopAcceptingRequests, 100);
        assert_eq!(share(&overload), 1000);
    }
}
