//! What the operator tells a process by signals. SIGTERM and SIGINT end it at once, as in Envoy:
//! whoever wants a drain asks for it first, or always with `--drain-on-sigterm`. SIGUSR1 reopens the log files, SIGHUP
//! reloads the configuration, which Envoy cannot.
//! SIGPIPE is ignored by Rust's runtime before `main`.

use std::io;

use futures_util::future::LocalBoxFuture;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Why the server ends. Made on the main thread's runtime, when that runs.
pub type Ended = Box<dyn FnOnce() -> io::Result<LocalBoxFuture<'static, String>>>;

/// SIGTERM or SIGINT.
pub fn ended() -> Ended {
    Box::new(|| {
        let mut term = signal(SignalKind::terminate())?;
        let mut int = signal(SignalKind::interrupt())?;
        Ok(Box::pin(async move {
            tokio::select! {
                _ = term.recv() => "caught SIGTERM".to_owned(),
                _ = int.recv() => "caught SIGINT".to_owned(),
            }
        }))
    })
}

/// What is asked for by them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    ReopenLogs,
    Reload,
}

/// The signals that change nothing about the connections.
pub struct Requests {
    pub reopen_logs: Signal,
    hangup: Signal,
}

impl Requests {
    pub fn new() -> io::Result<Self> {
        Ok(Self { reopen_logs: signal(SignalKind::user_defined1())?, hangup: signal(SignalKind::hangup())? })
    }

    /// The next one.
    pub async fn next(&mut self) -> Request {
        tokio::select! {
            _ = self.reopen_logs.recv() => Request::ReopenLogs,
            _ = self.hangup.recv() => Request::Reload,
        }
    }
}
