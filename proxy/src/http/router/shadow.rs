//! Mirroring: a copy of a request goes to another cluster, once it is complete, and what comes back is read and
//! dropped. Nothing of it reaches the request it was copied from. How many there may be at once is what that cluster's
//! circuit breakers say.

use std::net::IpAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use nuncio_core::http::{Chunk, HeaderMap, RequestHead, ResponseHead, StreamControl};
use nuncio_core::stats::lists::cluster as stat;
use nuncio_core::stream_info::StreamInfo;
use nuncio_core::upstream::LbContext;
use tokio::time::{Instant, Sleep};

use super::domains::port_start;
use super::failure::{Failure, Reset};
use super::policy::{Mirror, MirrorTarget};
use super::upstream_request::{Kind, UpstreamRequest};
use crate::codec::Body;
use crate::upstream::circuit_breaker::Priority;
use crate::upstream::{ThreadLocalCluster, Worker};

/// A request as it was when the route had done with it.
pub(super) struct Original {
    pub head: RequestHead,
    pub body: Bytes,
    pub trailers: Option<HeaderMap>,
    pub timeout: Option<Duration>,
    /// Of the client.
    pub connection: u64,
}

/// Sends a copy.
pub(super) fn send(mirror: &Mirror, original: &Original, local: Option<IpAddr>, worker: &Rc<Worker>) {
    let name = match &mirror.target {
        MirrorTarget::Cluster(name) => Some(&**name),
        MirrorTarget::Header(header) => original.head.headers.get_str(header),
    };
    let Some(cluster) = name.and_then(|name| worker.clusters.get(name)) else {
        tracing::debug!(target: "router", "no cluster {} to mirror to", name.unwrap_or_default());
        return;
    };
    let mut head = original.head.clone();
    disguise(&mut head, mirror, local);
    let now = Instant::now();
    let shadow = Shadow {
        head,
        body: original.body.clone(),
        trailers: original.trailers.clone(),
        control: StreamControl::new(StreamInfo::new(worker.context.clock.now(), now)),
        upstream: UpstreamRequest::default(),
        response: ResponseHead::default(),
        at: At::Open,
        begun: now,
        deadline: original.timeout.map(|timeout| Box::pin(tokio::time::sleep(timeout))),
        cluster,
        worker: worker.clone(),
    };
    drop(worker.spawn(original.connection, shadow));
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
    body: Bytes,
    trailers: Option<HeaderMap>,
    control: StreamControl,
    upstream: UpstreamRequest,
    response: ResponseHead,
    at: At,
    begun: Instant,
    deadline: Option<Pin<Box<Sleep>>>,
    cluster: Rc<ThreadLocalCluster>,
    worker: Rc<Worker>,
}

impl Shadow {
    fn poll_exchange(&mut self, cx: &mut Context<'_>, scratch: &mut [u8]) -> Poll<Result<(), Failure>> {
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
            self.send(cx)?;
            self.at = At::Head;
        }
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

    fn send(&mut self, cx: &mut Context<'_>) -> Result<(), Failure> {
        let buffers = &self.worker.buffers;
        let end = self.head.framing.is_none() && self.body.is_empty();
        self.upstream.send_head(&self.head, end, &self.control, buffers)?;
        if end {
            return Ok(());
        }
        let body = Chunk::Own(std::mem::take(&mut self.body));
        match &self.trailers {
            None => self.upstream.send_data(cx, buffers, &body, true),
            Some(trailers) => {
                self.upstream.send_data(cx, buffers, &body, false)?;
                self.upstream.send_trailers(trailers, buffers)
            }
        }
    }

    fn failed(&mut self, failure: &Failure) {
        let answered = self.upstream.is_answered();
        self.upstream.failed(failure);
        if !answered {
            self.cluster.stats().charge(failure.reply(false).status, true);
        }
    }

    fn complete(&mut self) {
        self.upstream.complete(&self.control);
        self.cluster.stats().charge_time(self.begun.elapsed().as_millis() as u64, true);
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
            Poll::Ready(Ok(())) => this.complete(),
            Poll::Ready(Err(failure)) => this.failed(&failure),
            Poll::Pending => {
                let Some(deadline) = &mut this.deadline else { return Poll::Pending };
                ready!(deadline.as_mut().poll(cx));
                this.cluster.stats().retries.inc(stat::UPSTREAM_RQ_TIMEOUT);
                this.upstream.count_timeout(504);
                this.failed(&Failure::new(Reset::ResponseTimeout));
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
