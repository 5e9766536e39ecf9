//! One TCP session: a host is chosen and connected, bytes are relayed, and the end is told to the log.
//!
//! The task is one hand-written future. It has one timer, for whatever is due next, which is set
//! anew only when it fires: activity only notes its moment.
//!
//! The file is long because the states of a session, its timer and its record for the log read each other's fields.

use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::SystemTime;

use futures_util::future::LocalBoxFuture;
use nuncio_core::access_log::{LogContext, LogType};
use nuncio_core::net::connection::CloseType;
use nuncio_core::net::{Address, ConnectionInfo, Io, TlsInfo};
use nuncio_core::stats::AmountGuard;
use nuncio_core::stats::lists::{cluster, tcp};
use nuncio_core::stream_info::{ResponseFlag, ResponseFlags, StreamInfo};
use nuncio_core::upstream::{Choice, ClusterInfo, Host, LbContext, Outcome};
use tokio::time::{Instant, Sleep, sleep_until};

use super::relay::{Direction, Failed, Lent, Moved};
use super::{PER_CONNECTION_CLUSTER, TcpProxy, hash_of};
use crate::network::{Connection, ConnectionRecord};
use crate::upstream::ThreadLocalCluster;
use crate::upstream::pool::tcp::{TcpConnecting, TcpGuard};
use crate::upstream::pool::{PoolFailure, PoolFailureReason};

pin_project_lite::pin_project! {
    /// The task of a connection.
    pub struct Session {
        parts: Parts,
        #[pin]
        timer: Option<Sleep>,
    }

    impl PinnedDrop for Session {
        fn drop(this: Pin<&mut Self>) {
            // However the task ends, it ends in the log.
            this.project().parts.finish();
        }
    }
}

struct Parts {
    proxy: Rc<TcpProxy>,
    connection: Connection,
    state: State,
    record: Record,
    max_due: Option<Instant>,
    log_due: Option<Instant>,
    idle_due: Option<Instant>,
}

enum State {
    Begin,
    /// The cluster looks for a host.
    Waiting(Rc<ThreadLocalCluster>, LocalBoxFuture<'static, Option<Arc<Host>>>),
    Connecting(TcpConnecting),
    Relaying(Box<Relay>),
    Over,
}

struct Relay {
    io: Io,
    guard: TcpGuard,
    to_host: Direction,
    to_client: Direction,
    /// What waits for the client, once something did.
    buffered: Option<AmountGuard<tcp::TcpProxy>>,
}

/// What the log wants to know.
struct Record {
    start: Instant,
    start_wall: SystemTime,
    flags: ResponseFlags,
    attempts: u32,
    cluster_name: Arc<str>,
    cluster: Option<Arc<ClusterInfo>>,
    host: Option<Arc<Host>>,
    upstream: Option<(u64, Option<Address>)>,
    upstream_tls: Option<Arc<TlsInfo>>,
    transport_failure: Arc<str>,
    connect: (Option<Instant>, Option<Instant>),
    host_close: CloseType,
    host_close_reason: Option<&'static str>,
    /// From the client and to it; to the host and from it.
    received: u64,
    sent: u64,
    wire_sent: u64,
    wire_to_host: u64,
}

/// Why a session ends.
enum Ended {
    /// Both sides said so.
    Done,
    /// Before there was a host; Envoy's words for the close, and the flags tell more.
    NoHost(&'static str),
    Client(io::Error),
    Host(io::Error),
    /// Its checks do, and connections must not outlive that.
    HostFailed,
    Idle,
    MaxDuration,
}

// === impl Session ===

impl Session {
    pub fn new(proxy: Rc<TcpProxy>, connection: Connection) -> Self {
        proxy.stats.inc(tcp::DOWNSTREAM_CX_TOTAL);
        let worker = &proxy.worker.context;
        let start = Instant::now();
        let max_due = proxy
            .config
            .max_duration
            .map(|(base, jitter)| start + base + base.mul_f64(worker.rng.f64() * jitter / 100.0));
        let log_due = proxy.config.log_interval.filter(|_| !proxy.logs.is_empty()).map(|interval| start + interval);
        let idle = proxy.config.idle_timeout.map(|idle| start + idle);
        let timer = [max_due, log_due, idle].into_iter().flatten().min().map(sleep_until);
        let record = Record::new(&proxy, &connection.info, start);
        let parts = Parts { proxy, connection, state: State::Begin, record, max_due, log_due, idle_due: None };
        if parts.proxy.config.log_on_start {
            parts.log(LogType::TcpConnectionStart);
        }
        Self { parts, timer }
    }
}

impl Future for Session {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
        while let Some(mut timer) = this.timer.as_mut().as_pin_mut()
            && timer.as_mut().poll(cx).is_ready()
        {
            match this.parts.due(Instant::now()) {
                Ok(Some(next)) => timer.reset(next),
                Ok(None) => this.timer.set(None),
                Err(ended) => {
                    this.parts.end(ended);
                    return Poll::Ready(());
                }
            }
        }
        match this.parts.poll(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(ended) => {
                this.parts.end(ended);
                Poll::Ready(())
            }
        }
    }
}

// === impl Parts ===

impl Parts {
    /// Does what is due; tells when something is again.
    fn due(&mut self, now: Instant) -> Result<Option<Instant>, Ended> {
        if self.max_due.is_some_and(|due| due <= now) {
            return Err(Ended::MaxDuration);
        }
        if self.idle_due.is_some_and(|due| due <= now) {
            return Err(Ended::Idle);
        }
        if let (Some(due), Some(interval)) = (self.log_due, self.proxy.config.log_interval)
            && due <= now
        {
            self.log(LogType::TcpPeriodic);
            self.log_due = Some(now + interval);
        }
        // Until there is a host nothing is idle; the timer looks again after a whole timeout.
        let idle = self.idle_due.or_else(|| self.proxy.config.idle_timeout.map(|idle| now + idle));
        Ok([self.max_due, self.log_due, idle].into_iter().flatten().min())
    }

    fn active(&mut self, now: Instant) {
        self.idle_due = self.proxy.config.idle_timeout.map(|idle| now + idle);
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Ended> {
        loop {
            match &mut self.state {
                State::Begin => match self.begin() {
                    Ok(state) => self.state = state,
                    Err(ended) => return Poll::Ready(ended),
                },
                State::Waiting(cluster, host) => match host.as_mut().poll(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(host) => {
                        let cluster = cluster.clone();
                        match self.connect(&cluster, host) {
                            Ok(state) => self.state = state,
                            Err(ended) => return Poll::Ready(ended),
                        }
                    }
                },
                State::Connecting(attempt) => match Pin::new(attempt).poll(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Ok(connection)) => {
                        let now = Instant::now();
                        self.record.connect.1 = Some(now);
                        self.report(Outcome::ConnectedForBytes);
                        self.record.upstream = Some((connection.id, connection.local));
                        self.record.upstream_tls = connection.tls;
                        self.active(now);
                        let preread = std::mem::take(&mut self.connection.preread);
                        self.state = State::Relaying(Box::new(Relay {
                            io: connection.io,
                            guard: connection.guard,
                            to_host: Direction::with(preread),
                            to_client: Direction::default(),
                            buffered: None,
                        }));
                        if self.proxy.config.log_on_connected {
                            self.log(LogType::TcpUpstreamConnected);
                        }
                    }
                    Poll::Ready(Err(failure)) => self.failed(&failure),
                },
                State::Relaying(_) => return self.relay(cx),
                State::Over => return Poll::Ready(Ended::Done),
            }
        }
    }

    /// The first attempt, or one more, in the order in which Envoy asks.
    fn begin(&mut self) -> Result<State, Ended> {
        let proxy = self.proxy.clone();
        let Some(local) = proxy.worker.clusters.get(&self.record.cluster_name) else {
            self.proxy.stats.inc(tcp::DOWNSTREAM_CX_NO_ROUTE);
            return Err(self.no_host(ResponseFlag::NoClusterFound));
        };
        self.record.cluster = Some(local.info().clone());
        if !local.has_room_for_connection() {
            return Err(self.no_host(ResponseFlag::UpstreamOverflow));
        }
        if self.record.attempts >= self.proxy.config.max_connect_attempts {
            local.stats().failures.inc(cluster::UPSTREAM_CX_CONNECT_ATTEMPTS_EXCEEDED);
            return Err(self.no_host(ResponseFlag::UpstreamRetryLimitExceeded));
        }
        let hash = || self.connection.info.remote.ip().map(hash_of);
        let hash = if self.proxy.config.hash_source_ip { hash() } else { None };
        let context = LbContext { hash, connection: Some(&self.connection.info), ..LbContext::default() };
        match local.choose(&context) {
            Choice::Host(host) => self.connect(&local, Some(host)),
            Choice::None => self.connect(&local, None),
            Choice::Refused(why) => {
                *self.connection.info.termination_details.borrow_mut() = Some(why.to_owned());
                self.connect(&local, None)
            }
            Choice::Wait(host) => Ok(State::Waiting(local, host)),
        }
    }

    fn connect(&mut self, cluster: &Rc<ThreadLocalCluster>, host: Option<Arc<Host>>) -> Result<State, Ended> {
        let Some(host) = host else { return Err(self.no_host(ResponseFlag::NoHealthyUpstream)) };
        self.record.attempts += 1;
        self.record.connect = (Some(Instant::now()), None);
        self.record.host = Some(host.clone());
        match cluster.connect_tcp(&host, cluster.wanted_by_connection(&self.connection.info)) {
            Ok(attempt) => Ok(State::Connecting(attempt)),
            Err(failure) => {
                self.failed(&failure);
                Ok(State::Begin)
            }
        }
    }

    /// As Envoy, only what the host did is a connection failure.
    fn failed(&mut self, failure: &PoolFailure) {
        self.record.transport_failure = failure.transport.clone();
        if matches!(failure.reason, PoolFailureReason::RemoteConnectionFailure | PoolFailureReason::ConnectionTimeout) {
            self.record.flags.insert(ResponseFlag::UpstreamConnectionFailure);
            self.report(match failure.reason {
                PoolFailureReason::ConnectionTimeout => Outcome::TimedOut { status: 504 },
                _ => Outcome::Failed,
            });
        }
        self.state = State::Begin;
    }

    /// To whoever judges the host.
    fn report(&self, outcome: Outcome) {
        if let Some(host) = &self.record.host {
            host.report(outcome);
        }
    }

    fn no_host(&mut self, flag: ResponseFlag) -> Ended {
        self.record.flags.insert(flag);
        // The numbers, and the spelling, are Envoy's.
        Ended::NoHost(match flag {
            ResponseFlag::NoHealthyUpstream => "tcp_initializion_failure:1",
            ResponseFlag::UpstreamOverflow => "tcp_initializion_failure:2",
            ResponseFlag::NoClusterFound => "tcp_initializion_failure:3",
            _ => "tcp_initializion_failure:0",
        })
    }

    fn relay(&mut self, cx: &mut Context<'_>) -> Poll<Ended> {
        let State::Relaying(relay) = &mut self.state else { return Poll::Pending };
        let relay = &mut **relay;
        if relay.guard.poll_host_fails(cx).is_ready() {
            return Poll::Ready(Ended::HostFailed);
        }
        let client = &mut self.connection.io;
        let worker = &self.proxy.worker;
        let lent = Lent { buffers: &worker.buffers, limit: self.proxy.config.buffer_limit };
        let (mut up, mut down) = (Moved::default(), Moved::default());
        let host_ended = relay.to_client.is_done();
        let first = relay.to_host.poll(client, &mut relay.io, cx, &lent, &mut up);
        // Also after a failure: what the host sent before it went belongs to the client.
        let second = relay.to_client.poll(&mut relay.io, client, cx, &lent, &mut down);
        let done = relay.to_host.is_done() && relay.to_client.is_done();
        if done && !host_ended {
            relay.guard.closed_by_peer();
        }
        self.account(&up, &down);
        match (first, second) {
            (Err(Failed::Reading(e)), _) | (_, Err(Failed::Writing(e))) => Poll::Ready(Ended::Client(e)),
            (Err(Failed::Writing(e)), _) | (_, Err(Failed::Reading(e))) => Poll::Ready(Ended::Host(e)),
            (Ok(()), Ok(())) if done => Poll::Ready(Ended::Done),
            (Ok(()), Ok(())) => Poll::Pending,
        }
    }

    fn account(&mut self, up: &Moved, down: &Moved) {
        let State::Relaying(relay) = &mut self.state else { return };
        let stats = &self.proxy.stats;
        let held = relay.to_client.held() as u64;
        if held > 0 || relay.buffered.is_some() {
            let buffered = || stats.amount(tcp::DOWNSTREAM_CX_TX_BYTES_BUFFERED);
            relay.buffered.get_or_insert_with(buffered).set(held);
        }
        if up.paused {
            stats.inc(tcp::DOWNSTREAM_FLOW_CONTROL_PAUSED_READING_TOTAL);
        }
        if up.resumed {
            stats.inc(tcp::DOWNSTREAM_FLOW_CONTROL_RESUMED_READING_TOTAL);
        }
        if up.read + up.written + down.read + down.written == 0 {
            return;
        }
        stats.add(tcp::DOWNSTREAM_CX_RX_BYTES_TOTAL, up.read);
        stats.add(tcp::DOWNSTREAM_CX_TX_BYTES_TOTAL, down.written);
        relay.guard.bytes(down.read, up.written);
        self.record.received += up.read;
        self.record.sent += down.read;
        self.record.wire_to_host += up.written;
        self.record.wire_sent += down.written;
        self.active(Instant::now());
    }

    fn end(&mut self, ended: Ended) {
        let stats = &self.proxy.stats;
        let client = &self.connection.info;
        match ended {
            Ended::Done => {}
            Ended::NoHost(reason) => *client.local_close_reason.borrow_mut() = Some(reason.into()),
            // What the other side has may not be all there was: it must not look like the end.
            Ended::Client(error) => {
                if error.kind() == io::ErrorKind::ConnectionReset {
                    client.close_type.set(CloseType::RemoteReset);
                }
                if let State::Relaying(relay) = &mut self.state {
                    relay.io.abort();
                }
            }
            Ended::Host(error) => {
                if error.kind() == io::ErrorKind::ConnectionReset {
                    self.record.flags.insert(ResponseFlag::UpstreamRemoteReset);
                    self.record.host_close = CloseType::RemoteReset;
                    client.close_type.set(CloseType::LocalReset);
                }
                if let State::Relaying(relay) = &mut self.state {
                    relay.guard.closed_by_peer();
                }
                self.connection.io.abort();
            }
            Ended::HostFailed => self.connection.io.abort(),
            Ended::Idle => {
                self.record.host_close_reason = Some("tcp_session_idle_timeout");
                *client.local_close_reason.borrow_mut() = Some("tcp_session_idle_timeout".into());
                stats.inc(tcp::IDLE_TIMEOUT);
            }
            Ended::MaxDuration => {
                self.record.host_close_reason = Some("max_connection_duration_reached");
                *client.local_close_reason.borrow_mut() = Some("max_connection_duration_reached".into());
                self.record.flags.insert(ResponseFlag::DurationTimeout);
                stats.inc(tcp::MAX_DOWNSTREAM_CONNECTION_DURATION);
            }
        }
        self.finish();
    }

    /// Once.
    fn finish(&mut self) {
        if !matches!(std::mem::replace(&mut self.state, State::Over), State::Over) {
            self.log(LogType::TcpConnectionEnd);
            if let Some(record) = &self.connection.record {
                record.set(self.record.stream_info(&self.connection.info, LogType::TcpConnectionEnd));
            }
        }
    }

    fn log(&self, log_type: LogType) {
        if !self.proxy.logs.is_empty() {
            self.record.log(&self.proxy, &self.connection.info, log_type);
        }
    }
}

/// A connection that ended before its session began counts and is logged like any other.
pub(super) fn refused(proxy: &TcpProxy, connection: &ConnectionInfo, record: Option<Rc<ConnectionRecord>>) {
    proxy.stats.inc(tcp::DOWNSTREAM_CX_TOTAL);
    let session = Record::new(proxy, connection, Instant::now());
    session.log(proxy, connection, LogType::TcpConnectionEnd);
    if let Some(record) = record {
        record.set(session.stream_info(connection, LogType::TcpConnectionEnd));
    }
}

// === impl Record ===

impl Record {
    fn new(proxy: &TcpProxy, connection: &ConnectionInfo, start: Instant) -> Self {
        let worker = &proxy.worker.context;
        let named = connection.filter_state.borrow().get(PER_CONNECTION_CLUSTER).and_then(|cluster| cluster.text());
        let configured = || proxy.config.target.choose(|n| worker.rng.below(n)).clone();
        Self {
            start,
            start_wall: worker.clock.now(),
            flags: ResponseFlags::default(),
            attempts: 0,
            cluster_name: named.map_or_else(configured, Arc::from),
            cluster: None,
            host: None,
            upstream: None,
            upstream_tls: None,
            transport_failure: "".into(),
            connect: (None, None),
            host_close: CloseType::Normal,
            host_close_reason: None,
            received: 0,
            sent: 0,
            wire_sent: 0,
            wire_to_host: 0,
        }
    }

    fn log(&self, proxy: &TcpProxy, connection: &ConnectionInfo, log_type: LogType) {
        connection.bytes_received.set(self.received);
        connection.bytes_sent.set(self.sent);
        let info = self.stream_info(connection, log_type);
        let context = LogContext {
            request: None,
            response: None,
            trailers: None,
            info: &info,
            connection: Some(connection),
            log_type,
            local_reply_body: &[],
            rng: Some(&proxy.worker.context.rng),
            route: None,
        };
        proxy.logs.iter().for_each(|log| log.log(&context));
    }

    fn stream_info(&self, connection: &ConnectionInfo, log_type: LogType) -> StreamInfo {
        let mut info = StreamInfo::new(self.start_wall, self.start);
        info.flags = self.flags;
        connection.flags.get().iter().for_each(|flag| info.flags.insert(flag));
        info.response_code_details = connection.code_details.borrow().clone();
        info.dynamic_metadata = connection.metadata.borrow().clone();
        info.bytes_received = self.received;
        info.bytes_sent = self.sent;
        info.downstream_wire_bytes_received = self.received;
        info.downstream_wire_bytes_sent = self.wire_sent;
        info.upstream_wire_bytes_sent = self.wire_to_host;
        info.upstream_wire_bytes_received = self.sent;
        info.attempt_count = self.attempts;
        info.upstream_close_type = Some(self.host_close);
        info.upstream_local_close_reason = self.host_close_reason.map(Into::into);
        info.upstream_host = self.host.clone();
        info.upstream_cluster = self.cluster.clone();
        if let Some((id, local)) = &self.upstream {
            info.upstream_connection_id = Some(*id);
            info.upstream_local_address = local.clone();
            info.upstream_tls = self.upstream_tls.clone();
        }
        if !self.transport_failure.is_empty() {
            info.upstream_transport_failure = Some(self.transport_failure.to_string().into());
        }
        (info.timings.upstream_connect_start, info.timings.upstream_connect_end) = self.connect;
        if log_type == LogType::TcpConnectionEnd {
            info.timings.end = Some(Instant::now());
        }
        info
    }
}
