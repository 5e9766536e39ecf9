//! Mirroring: a copy of a request goes to another cluster, piece by piece as the request does, and what comes back is
//! read and dropped. Of what becomes of it nothing reaches the request, but that its body waits for a mirror that takes
//! it more slowly than the upstream does, so that only a bounded part of it is held. How many copies there may be at
//! once is what that cluster's circuit breakers say.

use std::net::IpAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use nuncio_core::http::{Chunk, RequestHead, ResponseHead, StreamControl};
use nuncio_core::stats::lists::cluster as stat;
use nuncio_core::stream_info::StreamInfo;
use nuncio_core::upstream::LbContext;
use tokio::time::Instant;

use self::feed::{Fed, Piece};
use super::domains::port_start;
use super::failure::{Failure, Reset};
use super::policy::{Mirror, MirrorTarget};
use super::upstream_request::{Kind, UpstreamRequest};
use crate::alarm::Alarm;
use crate::codec::Body;
use crate::upstream::circuit_breaker::Priority;
use crate::upstream::{ThreadLocalCluster, Worker};

mod feed;

pub(super) use self::feed::Feed;

/// A mirror that takes nothing for so long while the request waits for it loses its copy.
const PATIENCE: Duration = Duration::from_secs(1);

/// How much of a body may wait for a mirror, where connections have this limit of their buffers.
pub(super) fn limit(of_connections: u32) -> usize {
    if of_connections == 0 { 1024 * 1024 } else { of_connections as usize }
}

/// A request as it was when the route had done with it.
pub(super) struct Original {
    pub head: RequestHead,
    pub timeout: Option<Duration>,
    /// Of the client.
    pub connection: u64,
    /// How much of the body may wait for a mirror.
    pub limit: usize,
}

/// Begins a copy, whose body is to be fed to it.
pub(super) fn begin(mirror: &Mirror, original: &Original, local: Option<IpAddr>, worker: &Rc<Worker>) -> Option<Feed> {
    let name = match &mirror.target {
        MirrorTarget::Cluster(name) => Some(&**name),
        MirrorTarget::Header(header) => original.head.headers.get_str(header),
    };
    let Some(cluster) = name.and_then(|name| worker.clusters.get(name)) else {
        tracing::debug!(target: "router", "no cluster {} to mirror to", name.unwrap_or_default());
        return None;
    };
    let mut head = original.head.clone();
    disguise(&mut head, mirror, local);
    let now = Instant::now();
    let (feed, fed) = feed::feed(original.limit);
    let shadow = Shadow {
        head,
        fed,
        control: StreamControl::new(StreamInfo::new(worker.context.clock.now(), now)),
        upstream: UpstreamRequest::default(),
        response: ResponseHead::default(),
        at: At::Open,
        complete: None,
        stalled: None,
        timeout: original.timeout,
        alarm: Alarm::default(),
        cluster,
        worker: worker.clone(),
    };
    drop(worker.spawn(original.connection, shadow));
    Some(feed)
}

/// What tells a copy from the original.
fn disguise(head: &mut RequestHead, mirror: &Mirror, local: Option<IpAddr>) {
    if let Some(host) = &mirror.host_rewrite {
        head.headers.set(":authority", host.as_bytes());
    } else if !mirror.keep_host {
        let mut host = head.authority().unwrap_or_default().to_vec();
        let end = port_start(&host).unwrap_or(host.len());
        host.splice(end..end, *b"-shadow");
        head.headers.set(":authority", &host);
    }
    head.headers.set("x-envoy-internal", "true");
    if let Some(local) = local {
        head.headers.append_to_value("x-forwarded-for", ",", local.to_string());
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Open,
    Head,
    Body,
}

/// One copy on its way.
struct Shadow {
    head: RequestHead,
    fed: Fed,
    control: StreamControl,
    upstream: UpstreamRequest,
    response: ResponseHead,
    at: At,
    /// When all of the request was sent; from then on its time runs.
    complete: Option<Instant>,
    /// Since when the request has waited for this copy.
    stalled: Option<Instant>,
    timeout: Option<Duration>,
    alarm: Alarm,
    cluster: Rc<ThreadLocalCluster>,
    worker: Rc<Worker>,
}

/// Why a copy ends without an answer.
enum End {
    /// Its request did not go on.
    Cut,
    Failed(Failure),
}

impl From<Failure> for End {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl Shadow {
    fn poll_exchange(&mut self, cx: &mut Context<'_>, scratch: &mut [u8]) -> Poll<Result<(), End>> {
        if self.complete.is_none() && self.fed.poll_cut(cx).is_ready() {
            return Poll::Ready(Err(End::Cut));
        }
        let worker = self.worker.clone();
        let buffers = &worker.buffers;
        if self.at == At::Open {
            if self.upstream.is_idle() {
                let choice = self.cluster.choose(&LbContext::default());
                let wanted = self.cluster.wanted(self.head.authority().unwrap_or_default(), None, None, None);
                let kind = (self.head.version, Kind::Request);
                self.upstream.begin(&self.cluster, Priority::Default, choice, kind, wanted)?;
            }
            ready!(self.upstream.poll_open(cx, &self.cluster, Priority::Default, &self.control))?;
            self.upstream.send_head(&self.head, self.fed.is_empty(), &self.control, buffers)?;
            self.complete = self.fed.is_empty().then(Instant::now);
            self.at = At::Head;
        }
        self.send_body(cx)?;
        self.upstream.flush(cx, buffers)?;
        while self.at == At::Head {
            ready!(self.upstream.poll_response(cx, &mut self.response, buffers, scratch))?;
            if !self.response.is_interim() {
                self.upstream.count_status(self.response.status);
                self.cluster.stats().charge(self.response.status, true);
                self.at = At::Body;
            }
        }
        if self.response.framing.is_none() || self.head.is_head() {
            return Poll::Ready(Ok(()));
        }
        while let Body::Data(_) = ready!(self.upstream.poll_body(cx, scratch))? {}
        Poll::Ready(Ok(()))
    }

    /// Sends what has come of the body and is taken.
    fn send_body(&mut self, cx: &mut Context<'_>) -> Result<(), End> {
        let buffers = &self.worker.buffers;
        while self.complete.is_none() && self.upstream.poll_writable(cx, buffers)?.is_ready() {
            match self.fed.poll_next(cx) {
                Poll::Pending => break,
                Poll::Ready(Piece::Data(piece)) => {
                    self.upstream.send_data(cx, buffers, &Chunk::Own(piece), false)?;
                    self.stalled = None;
                }
                Poll::Ready(Piece::End(trailers)) => {
                    match trailers {
                        None => self.upstream.send_data(cx, buffers, &Chunk::Lent(&[]), true)?,
                        Some(trailers) => self.upstream.send_trailers(&trailers, buffers)?,
                    }
                    self.complete = Some(Instant::now());
                }
            }
        }
        Ok(())
    }

    /// When it is given up, and what for.
    fn deadline(&mut self) -> Option<(Instant, Reset)> {
        if let Some(complete) = self.complete {
            return Some((complete + self.timeout?, Reset::ResponseTimeout));
        }
        if !self.fed.is_full() {
            self.stalled = None;
            return None;
        }
        let since = *self.stalled.get_or_insert_with(Instant::now);
        Some((since + PATIENCE, Reset::LocalReset))
    }

    fn expire(&mut self, reset: Reset) -> Failure {
        let stats = &self.cluster.stats().retries;
        if reset == Reset::ResponseTimeout {
            stats.inc(stat::UPSTREAM_RQ_TIMEOUT);
            self.upstream.count_timeout(504);
        } else {
            tracing::debug!(target: "router", "a mirror in {} takes nothing: its copy ends", self.cluster.info().name);
            stats.inc(stat::RETRY_OR_SHADOW_ABANDONED);
        }
        Failure::new(reset)
    }

    fn failed(&mut self, failure: &Failure) {
        let answered = self.upstream.is_answered();
        self.upstream.failed(failure);
        if !answered {
            self.cluster.stats().charge(failure.reply(false).status, true);
        }
    }

    fn answered(&mut self) {
        self.upstream.complete(&self.control);
        if let Some(complete) = self.complete {
            self.cluster.stats().charge_time(complete.elapsed().as_millis() as u64, true);
        }
    }
}

impl Future for Shadow {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        this.control.set_now(Instant::now());
        let mut scratch = this.worker.buffers.take_scratch();
        let result = this.poll_exchange(cx, &mut scratch);
        this.worker.buffers.give_scratch(scratch);
        match result {
            Poll::Ready(Ok(())) => this.answered(),
            Poll::Ready(Err(End::Cut)) => this.upstream.cancel(),
            Poll::Ready(Err(End::Failed(failure))) => this.failed(&failure),
            Poll::Pending => {
                let Some((at, reset)) = this.deadline() else { return Poll::Pending };
                if !this.alarm.rings(cx, at) {
                    return Poll::Pending;
                }
                let failure = this.expire(reset);
                this.failed(&failure);
            }
        }
        Poll::Ready(())
    }
}

#[cfg(test)]
mod tests {
    use nuncio_api::pb::envoy::config::route::v3::route_action::RequestMirrorPolicy;

    use super::*;

    fn told(policy: RequestMirrorPolicy, host: &str) -> RequestHead {
        let policy = RequestMirrorPolicy { cluster: "shadow".into(), ..policy };
        let mirror = &Mirror::list(&[policy]).unwrap()[0];
        let mut head = RequestHead::default();
        head.headers.append(":authority", host);
        disguise(&mut head, mirror, Some(IpAddr::from([192, 0, 2, 1])));
        head
    }

    // As seen upstream of Envoy 1.40 (router_mirror).
    #[test]
    fn a_copy_says_that_it_is_one() {
        let plain = told(RequestMirrorPolicy::default(), "web.test");
        assert_eq!(plain.authority(), Some(&b"web.test-shadow"[..]));
        assert_eq!(plain.headers.get_str("x-envoy-internal"), Some("true"));
        assert_eq!(plain.headers.get_str("x-forwarded-for"), Some("192.0.2.1"));
        let port = told(RequestMirrorPolicy::default(), "web.test:8080");
        assert_eq!(port.authority(), Some(&b"web.test-shadow:8080"[..]));
        let kept =
            told(RequestMirrorPolicy { disable_shadow_host_suffix_append: true, ..Default::default() }, "web.test");
        assert_eq!(kept.authority(), Some(&b"web.test"[..]));
        let other =
            told(RequestMirrorPolicy { host_rewrite_literal: "other.test".into(), ..Default::default() }, "web.test");
        assert_eq!(other.authority(), Some(&b"other.test"[..]));
    }
}
