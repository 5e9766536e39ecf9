//! What goes on with a host, as all threads count it together.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// What every worker writes about a host: what is going on now, which balancing and limits need
/// summed over the threads, and what `/clusters` counts. All of it is one cache line that a request
/// takes twice, at its begin and its end, so that the counters cost no line of their own; a block
/// per host, worker and list would cost 64 bytes each, times hosts, times workers.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct HostLoad {
    pub active_requests: AtomicU32,
    pub active_connections: AtomicU32,
    pub pending_requests: AtomicU32,
    connections: AtomicU64,
    connect_failures: AtomicU64,
    requests: AtomicU64,
    requests_succeeded: AtomicU64,
    requests_failed: AtomicU64,
    requests_timed_out: AtomicU64,
}

/// The counts of a host since it is known, as `/clusters` shows them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HostCounts {
    pub cx_active: u32,
    pub cx_connect_fail: u64,
    pub cx_total: u64,
    pub rq_active: u32,
    pub rq_pending_active: u32,
    pub rq_error: u64,
    pub rq_success: u64,
    pub rq_timeout: u64,
    pub rq_total: u64,
}

impl HostLoad {
    /// A connection was begun (`cx_total`).
    pub fn connection_begun(&self) {
        self.connections.fetch_add(1, Relaxed);
    }

    /// `cx_connect_fail`.
    pub fn connect_failed(&self) {
        self.connect_failures.fetch_add(1, Relaxed);
    }

    /// A request got its connection (`rq_total`).
    pub fn request_begun(&self) {
        self.requests.fetch_add(1, Relaxed);
    }

    /// An answer that is not 5xx (`rq_success`).
    pub fn request_succeeded(&self) {
        self.requests_succeeded.fetch_add(1, Relaxed);
    }

    /// A 5xx, also one of our own for want of an answer (`rq_error`).
    pub fn request_failed(&self) {
        self.requests_failed.fetch_add(1, Relaxed);
    }

    /// `rq_timeout`.
    pub fn request_timed_out(&self) {
        self.requests_timed_out.fetch_add(1, Relaxed);
    }

    pub fn counts(&self) -> HostCounts {
        HostCounts {
            cx_active: self.active_connections.load(Relaxed),
            cx_connect_fail: self.connect_failures.load(Relaxed),
            cx_total: self.connections.load(Relaxed),
            rq_active: self.active_requests.load(Relaxed),
            rq_pending_active: self.pending_requests.load(Relaxed),
            rq_error: self.requests_failed.load(Relaxed),
            rq_success: self.requests_succeeded.load(Relaxed),
            rq_timeout: self.requests_timed_out.load(Relaxed),
            rq_total: self.requests.load(Relaxed),
        }
    }
}
