//! From an address to a connection, in time; and what is said if there is none.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use nuncio_core::net::{Address, Connect, ConnectOptions, Connected, Io, TlsInfo};
use nuncio_core::stats::lists::cluster as stat;
use nuncio_core::upstream::{Host, Place};

use super::account::ConnectionAccount;
use super::{PoolFailure, PoolFailureReason, PoolProtocol};
use crate::net;
use crate::tls::{ServerWanted, TlsFailure, UpstreamTls};
use crate::upstream::thread_local::ClusterLocal;

/// A connection that may be used.
pub(in crate::upstream) struct Established {
    pub(super) connected: Connected,
    /// What the handshake told, if there was one.
    pub(super) tls: Option<Arc<TlsInfo>>,
}

/// A connection that waits for the pool of the protocol that was negotiated.
pub(in crate::upstream) struct Parked {
    pub(super) established: Established,
    pub(super) account: ConnectionAccount,
}

impl Parked {
    /// The handshake has said which protocol it is: that is counted, and remembered for the host's next connection.
    pub(super) fn negotiated(&mut self, cluster: &ClusterLocal, host: &Arc<Host>) -> PoolProtocol {
        let alpn = self.established.tls.as_ref().and_then(|tls| tls.alpn.as_deref());
        let chosen = PoolProtocol::of_alpn(alpn);
        self.account.speaks(chosen.counted());
        cluster.remember_protocol(host, chosen);
        chosen
    }

    /// The pool that made it speaks another protocol: it waits for the other pool, to which those who waited here, if
    /// anybody did, are sent.
    pub(super) fn hand_over<W>(
        self,
        cluster: &ClusterLocal,
        host: &Arc<Host>,
        waiting: VecDeque<W>,
        refuse: impl Fn(W, PoolFailure),
    ) {
        if !waiting.is_empty() {
            cluster.park(host, self);
        }
        for waiting in waiting {
            refuse(waiting, PoolFailure::new(PoolFailureReason::Switched, None));
        }
    }
}

/// What a handshake is asked for: the server, and the protocols if the context names none.
pub(super) struct Asked<'a> {
    pub(super) wanted: Option<&'a ServerWanted>,
    pub(super) alpn: &'static [&'static str],
}

/// Why an attempt failed.
enum AttemptError {
    Socket(io::Error, bool),
    Tls(TlsFailure),
}

/// Connects within the cluster's `connect_timeout`, handshake included, and counts how that went.
pub(super) async fn connect(
    cluster: &Rc<ClusterLocal>,
    host: &Arc<Host>,
    account: &mut ConnectionAccount,
    asked: Asked<'_>,
) -> Result<Established, PoolFailure> {
    let config = cluster.config();
    let connect = &cluster.context.connect;
    let options = match asked.wanted.and_then(|wanted| wanted.source) {
        Some(source) => Cow::Owned(net::options::from_client(config.connect_options(), source)),
        None => Cow::Borrowed(config.connect_options()),
    };
    let mut attempt = match host.place() {
        None => connect.connect(host.address(), &options),
        Some(place) => first_that_connects(connect, place, &options).boxed_local(),
    };
    let mut first = true;
    let socket = poll_fn(|cx| {
        let polled = attempt.as_mut().poll(cx).map(|result| result.map_err(|e| (e, first)));
        first = false;
        polled
    });
    let attempt = async {
        let mut connected = socket.await.map_err(|(e, immediate)| AttemptError::Socket(e, immediate))?;
        if let Some(header) = config.transport().and_then(|sockets| sockets.header_for(host)) {
            let told = asked.wanted.and_then(|wanted| wanted.client.as_deref());
            let own = connected.local.as_ref().and_then(Address::socket).zip(connected.remote.socket());
            let sent = introduce(&mut connected.io, &header.bytes(told, own)).await;
            sent.map_err(|e| AttemptError::Socket(e, false))?;
        }
        match config.transport().and_then(|sockets| sockets.for_host(host)) {
            Some(tls) => secure(cluster, tls, host, connected, asked).await.map_err(AttemptError::Tls),
            None => Ok(Established { connected, tls: None }),
        }
    };
    let failures = &cluster.stats().failures;
    let (reason, transport) = match tokio::time::timeout(config.info.connect_timeout, attempt).await {
        Ok(Ok(established)) => {
            account.connected();
            return Ok(established);
        }
        Ok(Err(AttemptError::Socket(error, immediate))) => failure(&error, immediate, options.source.is_some()),
        Ok(Err(AttemptError::Tls(failure))) => {
            cluster.tls().connectors.counts.failed(&failure);
            (PoolFailureReason::RemoteConnectionFailure, failure.text)
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

/// The PROXY header, in front of everything else.
async fn introduce(io: &mut Io, mut header: &[u8]) -> io::Result<()> {
    while !header.is_empty() {
        match poll_fn(|cx| io.poll_write(cx, header)).await? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            n => header = &header[n..],
        }
    }
    Ok(())
}

/// The handshake.
async fn secure(
    cluster: &Rc<ClusterLocal>,
    tls: &UpstreamTls,
    host: &Host,
    connected: Connected,
    asked: Asked<'_>,
) -> Result<Established, TlsFailure> {
    let nothing = ServerWanted::default();
    let own = cluster.tls();
    let Connected { io, local, remote } = connected;
    let request = (asked.wanted.unwrap_or(&nothing), host.hostname(), asked.alpn);
    let secured = tls.connect(io, request, &own.connectors, &cluster.context.buffers).await?;
    own.connectors.counts.handshake(&secured);
    Ok(Established { connected: Connected { io: secured.io, local, remote }, tls: Some(Arc::new(secured.info)) })
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
    use io::ErrorKind::{AddrInUse, AddrNotAvailable, InvalidInput, PermissionDenied};
    let text = describe(error);
    // The last two: an address of another family than the host's, one that only a privileged process may have.
    let binding = [AddrInUse, AddrNotAvailable, InvalidInput, PermissionDenied].contains(&error.kind());
    if immediate && bound && binding {
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
