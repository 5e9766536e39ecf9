//! The task of one HTTP/2 stream.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use nuncio_core::stats::GaugeGuard;
use nuncio_core::stats::lists::http2::{self as codec_stat, Codec as Http2Codec};
use tokio::time::Instant;

use super::HttpConnectionManager;
use super::connection_http2::Streams;
use super::down::Down;
use super::stream::{ActiveStream, End};
use crate::codec::http2::ServerStream;

/// It ends with its stream, or with the connection, which the stream then tells.
pub struct StreamTask {
    stream: ServerStream,
    active: Option<Box<ActiveStream>>,
    manager: Rc<HttpConnectionManager>,
    streams: Rc<Streams>,
    _active: GaugeGuard<Http2Codec>,
}

impl StreamTask {
    pub fn new(
        stream: ServerStream,
        active: Box<ActiveStream>,
        manager: Rc<HttpConnectionManager>,
        streams: Rc<Streams>,
    ) -> Self {
        streams.begin();
        let gauge = manager.http2.gauge(codec_stat::STREAMS_ACTIVE);
        Self { stream, active: Some(active), manager, streams, _active: gauge }
    }

    fn finish(&mut self, end: End) {
        let Some(active) = self.active.take() else { return };
        let premature = active.is_premature();
        self.manager.give_stream(active);
        match end {
            End::Reset => self.stream.reset(),
            // What is incomplete is reset when the stream is dropped.
            End::KeepAlive | End::Close | End::ClientGone | End::HandedOver => {}
        }
        self.streams.end(premature, end == End::Close);
    }
}

impl Future for StreamTask {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        loop {
            let Some(active) = this.active.as_mut() else { return Poll::Ready(()) };
            let mut scratch = this.manager.worker.buffers.take_scratch();
            let polled = active.poll(cx, &mut Down::Http2(&mut this.stream), &this.manager, &mut scratch);
            this.manager.worker.buffers.give_scratch(scratch);
            if let Poll::Ready(end) = polled {
                this.finish(end);
                return Poll::Ready(());
            }
            let Some(deadline) = active.deadline() else { return Poll::Pending };
            if !active.alarm.rings(cx, deadline) {
                return Poll::Pending;
            }
            active.expire(Instant::now(), &mut Down::Http2(&mut this.stream), &this.manager);
        }
    }
}

impl Drop for StreamTask {
    fn drop(&mut self) {
        if let Some(mut active) = self.active.take() {
            active.client_gone(None);
            self.manager.give_stream(active);
            self.streams.end(false, false);
        }
    }
}
