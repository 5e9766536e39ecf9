//! One question to one host, in whatever protocol.

use std::borrow::Cow;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use futures_util::future::LocalBoxFuture;
use nuncio_api::pb::envoy::config::core::v3::HeaderValueOption;
use nuncio_core::error::ConfigError;
use nuncio_core::http::RequestHead;
use nuncio_core::random::Rng;
use nuncio_core::runtime::Runtime;
use nuncio_core::upstream::{DialFailure, Host, HostDialer};

use crate::judge::FailureType;

/// Asks one host again and again, and may keep a connection for that.
pub trait Probe {
    /// A future that is dropped, because the time is up, takes the connection with it.
    fn check<'p>(&'p mut self, host: &'p Arc<Host>) -> LocalBoxFuture<'p, Answer>;

    /// What is asked of whom, for logs: `GET http://10.0.0.1:80/ok (Host: web)`.
    fn describe(&self, host: &Host) -> String;
}

/// What a probe found out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub verdict: Verdict,
    /// The HTTP status, if there was one.
    pub status: Option<u16>,
    /// For people: `HTTP 503`, `cannot connect: Connection refused`.
    pub note: Cow<'static, str>,
    /// The host said that it must not be used.
    pub fails_at_once: bool,
    /// The name of its service was looked at.
    pub verified: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Passed { degraded: bool },
    Failed { failure: FailureType, retriable: bool },
}

impl Answer {
    pub fn passed(degraded: bool, note: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Verdict::Passed { degraded }, note.into())
    }

    pub fn failed(failure: FailureType, note: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Verdict::Failed { failure, retriable: false }, note.into())
    }

    fn new(verdict: Verdict, note: Cow<'static, str>) -> Self {
        Self { verdict, status: None, note, fails_at_once: false, verified: false }
    }

    /// Not within `timeout`.
    pub fn timed_out() -> Self {
        Self::failed(FailureType::NetworkTimeout, "timeout")
    }

    pub fn is_passed(&self) -> bool {
        matches!(self.verdict, Verdict::Passed { .. })
    }
}

impl From<DialFailure> for Answer {
    fn from(failure: DialFailure) -> Self {
        Self::failed(FailureType::Network, failure.to_string())
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.note)
    }
}

/// Changes the head of a check's request for a host: `request_headers_to_add` and `_remove`, `initial_metadata`.
pub type HeaderMutation = Rc<dyn Fn(&mut RequestHead, &Arc<Host>)>;

/// Reads lists of header additions and removals. Their operators are the owner's business.
pub type ReadMutation<'a> = &'a dyn Fn(&[HeaderValueOption], &[String]) -> Result<HeaderMutation, ConfigError>;

/// What probes of one cluster share.
#[derive(Clone)]
pub struct ProbeContext {
    pub dialer: Rc<dyn HostDialer>,
    /// The name of the cluster, which is the host that checks ask for unless configuration says another.
    pub cluster: Arc<str>,
    pub reuse_connection: bool,
    pub runtime: Rc<dyn Runtime>,
    pub rng: Rng,
}

impl ProbeContext {
    /// Whether so many percent, or what runtime says instead, include this time.
    pub fn is_enabled(&self, key: &str, percent: u64) -> bool {
        is_enabled(&*self.runtime, &self.rng, key, percent)
    }
}

/// A percentage that operators may change while the proxy runs.
pub fn is_enabled(runtime: &dyn Runtime, rng: &Rng, key: &str, percent: u64) -> bool {
    rng.below(100) < runtime.integer(key).unwrap_or(percent)
}

/// The host's own name for checks wins over the configured one, and that over the cluster's.
pub fn authority<'a>(host: &'a Host, configured: &'a str, cluster: &'a str) -> &'a str {
    let own = &host.spec().health_check_hostname;
    match () {
        () if !own.is_empty() => own,
        () if !configured.is_empty() => configured,
        () => cluster,
    }
}

/// Where checks of this host go.
pub fn target(host: &Host) -> String {
    match &host.spec().health_check_address {
        Some(address) => address.to_string(),
        None => host.address_text().to_string(),
    }
}
