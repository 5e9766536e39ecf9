//! What traffic tells of a host, for whoever judges hosts by it.

use std::fmt;

/// One thing that happened between a worker and a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// A connection for requests was there. What its host is worth is told by the answers.
    Connected,
    /// A connection for bytes was made: nothing more will be told of it.
    ConnectedForBytes,
    /// There was no connection, or it broke before an answer.
    Failed,
    /// No answer in time. `status` is what the client got instead.
    TimedOut { status: u16 },
    /// The host's answer; for gRPC what its status means as HTTP.
    Answered { status: u16 },
    /// The host said that it must not be used, `x-envoy-immediate-health-check-fail`.
    FailsAtOnce,
    /// The host's answer was no failure, and said that it is degraded, `x-envoy-degraded`.
    Degraded,
}

/// Hears of one host from all workers. Called on the request path: it neither waits nor locks nor allocates while
/// nothing is to be reported.
pub trait HostMonitor: Send + Sync + fmt::Debug {
    fn report(&self, outcome: Outcome);
}
