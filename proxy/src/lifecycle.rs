//! Where the server is between its start and its end, as every thread may ask: the state that
//! `/ready` and `/server_info` show, and whether connections should be asked to go.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use nuncio_core::random::Rng;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::overload::Overload;

/// `envoy.admin.v3.ServerInfo.State`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ServerState {
    Live = 0,
    Draining = 1,
    PreInitializing = 2,
    Initializing = 3,
}

impl ServerState {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Live => "LIVE",
            Self::Draining => "DRAINING",
            Self::PreInitializing => "PRE_INITIALIZING",
            Self::Initializing => "INITIALIZING",
        }
    }
}

/// `--drain-strategy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DrainStrategy {
    #[default]
    Gradual,
    Immediate,
}

/// Shared by all threads. But for the count of connections, the main thread is its only writer.
#[derive(Debug)]
pub struct Lifecycle {
    initialization: AtomicU8,
    health_failed: AtomicBool,
    /// Connections that listeners of all threads accepted and that are open.
    downstream_connections: AtomicU64,
    pub overload: Overload,
}

impl Default for Lifecycle {
    fn default() -> Self {
        Self {
            initialization: AtomicU8::new(ServerState::PreInitializing as u8),
            health_failed: AtomicBool::new(false),
            downstream_connections: AtomicU64::new(0),
            overload: Overload::default(),
        }
    }
}

impl Lifecycle {
    /// As `/ready` and `/server_info` tell it: a failed health check shows as DRAINING, whatever
    /// the initialization does.
    pub fn state(&self) -> ServerState {
        if self.health_failed() {
            return ServerState::Draining;
        }
        match self.initialization.load(Relaxed) {
            0 => ServerState::Live,
            3 => ServerState::Initializing,
            _ => ServerState::PreInitializing,
        }
    }

    pub fn downstream_connections(&self) -> &AtomicU64 {
        &self.downstream_connections
    }

    pub fn set_initialization(&self, state: ServerState) {
        self.initialization.store(state as u8, Relaxed);
    }

    /// `/healthcheck/fail` and `/healthcheck/ok`.
    pub fn set_health_failed(&self, failed: bool) {
        self.health_failed.store(failed, Relaxed);
    }

    pub fn health_failed(&self) -> bool {
        self.health_failed.load(Relaxed)
    }
}

/// The draining of one listener on one worker, as its connections ask it.
#[derive(Debug)]
pub struct Drain {
    lifecycle: Arc<Lifecycle>,
    /// `drain_type: DEFAULT`: a failed health check drains too. `MODIFY_ONLY`: it does not.
    with_health: bool,
    strategy: DrainStrategy,
    window: Duration,
    started: Cell<Option<Instant>>,
    notify: Notify,
}

impl Drain {
    pub fn new(lifecycle: Arc<Lifecycle>, with_health: bool, strategy: DrainStrategy, window: Duration) -> Self {
        Self { lifecycle, with_health, strategy, window, started: Cell::new(None), notify: Notify::new() }
    }

    /// What the server gives up while it has too little of something.
    pub fn overload(&self) -> &Overload {
        &self.lifecycle.overload
    }

    /// Whether a connection that could end now should. Gradual draining says yes ever more often,
    /// and always once the drain time is over.
    pub fn should_close(&self, rng: &Rng) -> bool {
        if self.with_health && self.lifecycle.health_failed() {
            return true;
        }
        let Some(started) = self.started.get() else { return false };
        match self.strategy {
            DrainStrategy::Immediate => true,
            DrainStrategy::Gradual => {
                self.window.is_zero() || rng.f64() < started.elapsed().as_secs_f64() / self.window.as_secs_f64()
            }
        }
    }

    /// How long after the beginning of the draining a connection without requests is asked to go: they are spread over
    /// the drain time.
    pub fn delay(&self, rng: &Rng) -> Duration {
        match self.strategy {
            DrainStrategy::Immediate => Duration::ZERO,
            DrainStrategy::Gradual => self.window.mul_f64(rng.f64()),
        }
    }

    /// The listener began to drain.
    pub fn is_draining(&self) -> bool {
        self.started.get().is_some()
    }

    pub fn start(&self) {
        if self.started.get().is_none() {
            self.started.set(Some(Instant::now()));
            self.notify.notify_waiters();
        }
    }

    /// Resolves when the draining of the listener starts.
    pub async fn wait(&self) {
        let notified = self.notify.notified();
        if !self.is_draining() {
            notified.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_health_check_shows_as_draining_and_comes_back() {
        let life = Lifecycle::default();
        assert_eq!(life.state().as_str(), "PRE_INITIALIZING");
        life.set_initialization(ServerState::Live);
        life.set_health_failed(true);
        assert_eq!(life.state(), ServerState::Draining);
        life.set_health_failed(false);
        assert_eq!(life.state(), ServerState::Live);
    }

    #[tokio::test(flavor = "current_thread", start_paused = true)]
    async fn gradual_draining_closes_ever_more_often_and_immediate_always() {
        let life = Arc::new(Lifecycle::default());
        let rng = Rng::with_seed(1);
        let drain = Drain::new(life.clone(), true, DrainStrategy::Gradual, Duration::from_secs(100));
        assert!(!drain.should_close(&rng));
        drain.start();
        let share = |d: &Drain| (0..1000).filter(|_| d.should_close(&rng)).count();
        assert_eq!(share(&drain), 0);
        tokio::time::advance(Duration::from_secs(50)).await;
        assert!((400..600).contains(&share(&drain)));
        tokio::time::advance(Duration::from_secs(50)).await;
        assert_eq!(share(&drain), 1000);
        let now = Drain::new(life.clone(), false, DrainStrategy::Immediate, Duration::from_secs(100));
        life.set_health_failed(true);
        assert!(!now.should_close(&rng), "MODIFY_ONLY does not listen to the health check");
        now.start();
        assert!(now.should_close(&rng));
    }
}
