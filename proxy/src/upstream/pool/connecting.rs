//! From an address to a connection, in time; and what is said if there is none.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use nuncio_core::net::{Connect, ConnectOptions, Connected};
use nuncio_core::stats::lists::cluster as stat;
use nuncio_core::upstream::{Host, Place};

use super::account::ConnectionAccount;
use super::{PoolFailure, PoolFailureReason};
use crate::upstream::thread_local::ClusterLocal;

/// Connects within the cluster's `connect_timeout`, and counts how that went.
pub(super) async fn connect(
    cluster: &Rc<ClusterLocal>,
    host: &Arc<Host>,
    account: &mut ConnectionAccount,
) -> Result<Connected, PoolFailure> {
    let config = cluster.config();
    let connect = &cluster.context.connect;
    let mut attempt = match host.place() {
        None => connect.connect(host.address(), config.connect_options()),
        Some(place) => first_that_connects(connect, place, config.connect_options()).boxed_local(),
    };
    let mut first = true;
    let attempt = poll_fn(|cx| {
        let polled = attempt.as_mut().poll(cx).map(|result| result.map_err(|e| (e, first)));
        first = false;
        polled
    });
    let failures = &cluster.stats().failures;
    let (reason, transport) = match tokio::time::timeout(config.info.connect_timeout, attempt).await {
        Ok(Ok(connected)) => {
            account.connected();
            return Ok(connected);
        }
        Ok(Err((error, immediate))) => {
            let bound = config.connect_options().source.is_some();
            failure(&error, immediate, bound)
        }
        Err(_) => {
            failures.inc(stat::UPSTREAM_CX_CONNECT_TIMEOUT);
            (PoolFailureReason::ConnectionTimeout, String::new())
        }
    };
    if transport.starts_with(BIND) {
        failures.inc(stat::BIND_ERRORS);
    }
    failures.inc(stat::UPSTREAM_CX_CONNECT_FAIL);
    host.load.connect_failed();
    account.closed_by_peer = reason == PoolFailureReason::RemoteConnectionFailure;
    Err(PoolFailure { transport: transport.into(), ..PoolFailure::new(reason, Some(host)) })
}

/// RFC 8305, 5, with Envoy's delay: an address that does not answer holds the next one no longer than this.
const ATTEMPT_DELAY: Duration = Duration::from_millis(300);

/// One address after the other, the next as soon as one failed or took long.
async fn first_that_connects(
    connect: &Rc<dyn Connect>,
    place: Arc<Place>,
    options: &ConnectOptions,
) -> io::Result<Connected> {
    let mut left = place.addresses.iter();
    let mut running = FuturesUnordered::new();
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    loop {
        match left.next() {
            Some(address) => running.push(connect.connect(address, options)),
            None if running.is_empty() => return Err(last),
            None => {}
        }
        tokio::select! {
            biased;
            Some(result) = running.next() => match result {
                Ok(connected) => return Ok(connected),
                Err(error) => last = error,
            },
            () = tokio::time::sleep(ATTEMPT_DELAY), if left.len() > 0 => {}
        }
    }
}

const BIND: &str = "failed to bind";

/// `immediate`: the system refused at once, rather than the host after a while.
fn failure(error: &io::Error, immediate: bool, bound: bool) -> (PoolFailureReason, String) {
    use io::ErrorKind::{AddrInUse, AddrNotAvailable};
    let text = describe(error);
    if immediate && bound && matches!(error.kind(), AddrInUse | AddrNotAvailable) {
        return (PoolFailureReason::LocalConnectionFailure, format!("{BIND}: {text}"));
    }
    let when = if immediate { "immediate" } else { "delayed" };
    (PoolFailureReason::RemoteConnectionFailure, format!("{when} connect error: {text}"))
}

/// The system's words without Rust's number behind them.
pub(in crate::upstream) fn describe(error: &io::Error) -> String {
    let mut text = error.to_string();
    if error.raw_os_error().is_some()
        && let Some(at) = text.rfind(" (os error ")
    {
        text.truncate(at);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_told_in_envoys_words() {
        let refused = io::Error::from_raw_os_error(nix::libc::ECONNREFUSED);
        assert_eq!(failure(&refused, false, false).1, "delayed connect error: Connection refused");
        let missing = io::Error::from_raw_os_error(nix::libc::ENOENT);
        assert_eq!(failure(&missing, true, false).1, "immediate connect error: No such file or directory");
        let (reason, text) = failure(&io::Error::from_raw_os_error(nix::libc::EADDRNOTAVAIL), true, true);
        assert_eq!(reason, PoolFailureReason::LocalConnectionFailure);
        assert_eq!(text, "failed to bind: Cannot assign requested address");
    }
}
