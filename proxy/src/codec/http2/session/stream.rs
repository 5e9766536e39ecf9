//! What a connection knows of one stream. It is there as long as the stream's object.

use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use nuncio_core::http::{Chunk, HeaderMap, ResponseHead};

use super::super::stream_error::StreamError;
use super::Session;
use crate::codec::Body;

/// Frames that are smaller than this are kept in one piece with their neighbours: each piece costs more than its bytes.
const SMALL: usize = 4 * 1024;
/// Interim responses that may wait.
pub(super) const MAX_INTERIM: usize = 32;

#[derive(Default)]
pub(super) struct Stream {
    pub(super) id: u32,

    // === what comes ===
    /// Upstream: heads that nobody has read yet.
    pub(super) heads: VecDeque<ResponseHead>,
    /// The last head has come; bodies and trailers follow.
    pub(super) head_done: bool,
    data: VecDeque<Vec<u8>>,
    pub(super) trailers: Option<Result<HeaderMap, TooMany>>,
    /// What the head said of the body's length, less what came.
    pub(super) remaining: Option<u64>,
    pub(super) may_come: i64,
    /// Passed on, and not yet told.
    pub(super) unclaimed: u32,
    pub(super) recv_ended: bool,
    pub(super) interim: u8,
    /// Upstream: the request was HEAD, so that a length without a body is right.
    pub(super) is_head: bool,
    /// Upstream: it was CONNECT, so that no length is that of what follows.
    pub(super) is_connect: bool,

    // === what goes ===
    pub(super) may_go: i64,
    pub(super) send_ended: bool,
    /// Of its body, what waits to go out.
    pub(super) held: usize,

    // === the end ===
    /// By the peer.
    pub(super) error: Option<StreamError>,
    /// By us.
    pub(super) reset: bool,

    receiver: Option<Waker>,
    sender: Option<Waker>,
    receiving: bool,
    sending: bool,
    /// It is among those that wait for the connection's window.
    pub(super) queued: bool,
}

/// Trailers over a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooMany;

/// Why a body ends before its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::codec::http2) enum BodyEnd {
    Stream(StreamError),
    /// The trailers are over a limit.
    Trailers,
}

impl Stream {
    /// For a new stream, whatever this was before.
    pub(super) fn begin(&mut self, id: u32, may_come: u32, may_go: u32) {
        self.id = id;
        self.heads.clear();
        self.data.clear();
        let (heads, data) = (std::mem::take(&mut self.heads), std::mem::take(&mut self.data));
        let (receiver, sender) = (self.receiver.take(), self.sender.take());
        *self = Self {
            id,
            heads,
            data,
            receiver,
            sender,
            may_come: may_come.into(),
            may_go: may_go.into(),
            ..Self::default()
        };
    }

    /// Its peer is through with it.
    pub(super) fn is_over_for_peer(&self) -> bool {
        (self.recv_ended && self.send_ended) || self.error.is_some() || self.reset
    }

    pub(super) fn wait_to_receive(&mut self, cx: &Context<'_>) {
        wait(&mut self.receiver, cx);
        self.receiving = true;
    }

    pub(super) fn wait_to_send(&mut self, cx: &Context<'_>) {
        wait(&mut self.sender, cx);
        self.sending = true;
    }

    /// Something came.
    pub(super) fn wake_receiver(&mut self) {
        if std::mem::take(&mut self.receiving)
            && let Some(waker) = &self.receiver
        {
            waker.wake_by_ref();
        }
    }

    /// Something may go.
    pub(super) fn wake_sender(&mut self) {
        if std::mem::take(&mut self.sending)
            && let Some(waker) = &self.sender
        {
            waker.wake_by_ref();
        }
    }

    pub(super) fn fail(&mut self, error: StreamError) {
        if self.error.is_none() {
            self.error = Some(error);
        }
        self.wake_receiver();
        self.wake_sender();
    }

    /// A piece of the body.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        match self.data.back_mut() {
            Some(last) if last.len() + bytes.len() <= SMALL.max(last.capacity()) => last.extend_from_slice(bytes),
            _ => self.data.push_back(bytes.to_vec()),
        }
    }

    pub(super) fn pop(&mut self) -> Option<Vec<u8>> {
        self.data.pop_front()
    }

    /// Everything that comes has come, and was read.
    fn is_read(&self) -> bool {
        self.recv_ended && self.data.is_empty() && self.trailers.is_none()
    }
}

fn wait(place: &mut Option<Waker>, cx: &Context<'_>) {
    if !place.as_ref().is_some_and(|w| w.will_wake(cx.waker())) {
        *place = Some(cx.waker().clone());
    }
}

impl Session {
    /// The next piece of a body, whose window is to be given back with [`release_of`](Self::release_of) when it was
    /// passed on.
    pub(in crate::codec::http2) fn poll_body(
        &mut self,
        cx: &mut Context<'_>,
        slot: usize,
    ) -> Poll<Result<Body<'static>, BodyEnd>> {
        let connection = self.connection_error();
        let server = self.is_server();
        let stream = self.streams.get(slot);
        // What came whole counts, whatever the peer said then.
        let cut = stream.error.or(connection).filter(|_| !stream.recv_ended);
        // Nobody waits for the request of a client that is gone. Of an answer what came goes on, as it would if its end had
        // come a moment later: messages of a gRPC stream, say.
        if let Some(error) = cut
            && (server || stream.data.is_empty())
        {
            return Poll::Ready(Err(BodyEnd::Stream(error)));
        }
        if let Some(piece) = stream.pop() {
            return Poll::Ready(Ok(Body::Data(Chunk::Own(Bytes::from(piece)))));
        }
        if let Some(trailers) = stream.trailers.take() {
            return Poll::Ready(match trailers {
                Ok(trailers) => Ok(Body::Trailers(trailers)),
                Err(TooMany) => Err(BodyEnd::Trailers),
            });
        }
        if stream.recv_ended {
            return Poll::Ready(Ok(Body::End));
        }
        stream.wait_to_receive(cx);
        Poll::Pending
    }

    /// The end is known, and there is nothing before it.
    pub(in crate::codec::http2) fn is_read(&mut self, slot: usize) -> bool {
        self.streams.get(slot).is_read()
    }

    /// Ready when the peer has ended the stream, or the connection is gone.
    pub(in crate::codec::http2) fn poll_gone(&mut self, cx: &mut Context<'_>, slot: usize) -> Poll<StreamError> {
        let connection = self.connection_error();
        let stream = self.streams.get(slot);
        if let Some(error) = stream.error.or(connection) {
            return Poll::Ready(error);
        }
        stream.wait_to_receive(cx);
        Poll::Pending
    }

    /// Upstream: the next head, in exchange for `head`.
    pub(in crate::codec::http2) fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
        slot: usize,
        head: &mut ResponseHead,
    ) -> Poll<Result<(), StreamError>> {
        let connection = self.connection_error();
        let stream = self.streams.get(slot);
        if let Some(mut came) = stream.heads.pop_front() {
            std::mem::swap(head, &mut came);
            self.streams.keep_head(came);
            return Poll::Ready(Ok(()));
        }
        if let Some(error) = stream.error.or(connection) {
            return Poll::Ready(Err(error));
        }
        stream.wait_to_receive(cx);
        Poll::Pending
    }

    /// Why nothing can be sent on a stream.
    pub(in crate::codec::http2) fn send_error(&mut self, slot: usize) -> Option<StreamError> {
        let connection = self.connection_error();
        self.streams.get(slot).error.or(connection)
    }
}
