//! A request and its response on an upstream connection.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::client::ResponseFuture;
use h2::{Reason, SendStream};
use nuncio_core::http::{Chunk, Framing, HeaderMap, RequestHead, ResponseHead};

use super::fields;
use super::inlet::{Inlet, InletError, Piece};
use super::options::ClientOptions;
use super::outlet::Outlet;
use super::shared::Shared;
use super::stream_error::StreamError;
use crate::codec::Body;

/// Interim responses that one request may get.
const MAX_INTERIM: u8 = 32;

/// The methods are those of [`http1::ClientConn`](crate::codec::http1::ClientConn), where they mean the same. Dropping it
/// before both messages are complete resets the stream.
pub struct ClientStream {
    response: ResponseFuture,
    inlet: Option<Inlet>,
    outlet: Outlet,
    shared: Rc<Shared>,
    max_headers: usize,
    max_head_bytes: usize,
    id: u32,
    interim: u8,
    is_connect: bool,
    /// The upgrade that was asked for.
    upgrade: Option<Box<[u8]>>,
    tunnel: bool,
}

impl ClientStream {
    pub(super) fn new(
        response: ResponseFuture,
        body: SendStream<Bytes>,
        shared: Rc<Shared>,
        options: &ClientOptions,
        head: &RequestHead,
        end: bool,
        (is_connect, upgrade): (bool, bool),
    ) -> Self {
        shared.stream_opened();
        let length = match head.framing {
            Framing::Length(n) if !is_connect => Some(n),
            _ => None,
        };
        let id = response.stream_id().as_u32();
        Self {
            response,
            inlet: None,
            outlet: Outlet::new(body, shared.clone(), end, length, true),
            shared,
            max_headers: options.max_headers,
            max_head_bytes: options.max_head_bytes,
            id,
            interim: 0,
            is_connect,
            upgrade: head.headers.get("upgrade").filter(|_| upgrade).map(Into::into),
            tunnel: false,
        }
    }

    // === the request ===

    /// What flow control does not let through now waits here. An upstream that wants no more is no error: its answer
    /// says what happened.
    pub fn send_data(&mut self, cx: &mut Context<'_>, data: Bytes, end: bool) -> io::Result<()> {
        self.outlet.send_data(cx, data, end)
    }

    pub fn send_trailers(&mut self, trailers: &HeaderMap) -> io::Result<()> {
        self.outlet.send_trailers(fields::write_trailers(trailers))
    }

    /// Ready when everything was handed to the connection.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.outlet.poll_flush(cx)
    }

    /// Ready when the upstream takes more.
    pub fn poll_writable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.outlet.poll_writable(cx)
    }

    /// How much is worth reading for it at once.
    pub fn read_size(&self) -> usize {
        self.outlet.read_size()
    }

    pub fn write_buffered(&self) -> usize {
        self.outlet.buffered()
    }

    /// The request was sent to its end, or is not wanted any more.
    pub fn request_complete(&self) -> bool {
        self.outlet.is_done()
    }

    // === the response ===

    /// Reads the next response head into `head`, whatever it holds: interim ones too, and then it is asked again.
    pub fn poll_response(&mut self, cx: &mut Context<'_>, head: &mut ResponseHead) -> Poll<Result<(), StreamError>> {
        let limits = (self.max_headers, self.max_head_bytes);
        match self.response.poll_informational(cx) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Some(Ok(interim))) => {
                self.interim += 1;
                if self.interim > MAX_INTERIM {
                    return Poll::Ready(Err(StreamError::Protocol("too many interim responses")));
                }
                let (parts, ()) = interim.into_parts();
                let read = fields::read_response(&parts, false, limits, head);
                return Poll::Ready(read.map_err(StreamError::Protocol));
            }
            Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(StreamError::of(&error, &self.shared))),
            Poll::Ready(None) => {}
        }
        let (parts, recv) = match ready!(Pin::new(&mut self.response).poll(cx)) {
            Ok(response) => response.into_parts(),
            Err(error) => return Poll::Ready(Err(StreamError::of(&error, &self.shared))),
        };
        let end = recv.is_end_stream();
        if let Err(what) = fields::read_response(&parts, end, limits, head) {
            return Poll::Ready(Err(StreamError::Protocol(what)));
        }
        self.inlet = Some(Inlet::new(recv, self.shared.clone(), self.max_headers));
        if self.is_connect && (200..300).contains(&head.status) {
            self.tunnel = true;
            head.framing = Framing::Streamed;
            if let Some(upgrade) = &self.upgrade {
                head.status = 101;
                head.headers.append("connection", "upgrade");
                head.headers.append("upgrade", upgrade);
            }
        }
        Poll::Ready(Ok(()))
    }

    /// The next piece of the response's body.
    pub fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<Result<Body<'static>, StreamError>> {
        let Some(inlet) = &mut self.inlet else { return Poll::Ready(Ok(Body::End)) };
        Poll::Ready(match ready!(inlet.poll(cx)) {
            Ok(Piece::Data(bytes)) => Ok(Body::Data(Chunk::Own(bytes))),
            Ok(Piece::Trailers(trailers)) => Ok(Body::Trailers(trailers)),
            Ok(Piece::End) => Ok(Body::End),
            Err(InletError::Trailers) => Err(StreamError::Protocol("too many trailers")),
            Err(InletError::Library(error)) => {
                let ended = self.shared.has_peer_ended(self.id);
                inlet.end();
                match StreamError::of(&error, &self.shared) {
                    // The whole response came, and then the word that the rest of the request is not wanted.
                    StreamError::Satisfied if ended => Ok(Body::End),
                    error => Err(error),
                }
            }
        })
    }

    /// The response was read to its end.
    pub fn response_complete(&self) -> bool {
        self.inlet.as_ref().is_some_and(Inlet::is_ended)
    }

    /// The response made the stream a tunnel: 2xx to CONNECT, which also stands for 101.
    pub fn is_tunnel(&self) -> bool {
        self.tunnel
    }

    /// Nobody wants the response any more.
    pub fn reset(&mut self) {
        self.outlet.stop();
        self.outlet.stream_mut().send_reset(Reason::CANCEL);
    }
}

impl Drop for ClientStream {
    fn drop(&mut self) {
        self.shared.stream_closed(self.id);
    }
}
