//! The two roles over a scripted stream, and the rows of the adversarial table.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use nuncio_core::http::{Chunk, Framing, HeaderMap, RequestHead, ResponseHead};
use nuncio_core::net::{Io, Stream};

mod bodies;
mod framing;
mod heads;
mod pipelining;
mod relay;
mod upstream;

use super::*;
use crate::codec::{Body, Buffers};

/// What a peer does and sees: each entry of `reads` is what one read brings, at most.
#[derive(Default)]
struct Peer {
    reads: VecDeque<Vec<u8>>,
    fin: bool,
    wrote: Vec<u8>,
    /// The socket takes so much before it blocks.
    room: usize,
    writes: usize,
    shut: bool,
}

#[derive(Clone)]
struct Script(Rc<RefCell<Peer>>);

impl Script {
    fn new(reads: &[&[u8]]) -> Self {
        let reads = reads.iter().map(|r| r.to_vec()).collect();
        Self(Rc::new(RefCell::new(Peer { reads, room: usize::MAX, ..Peer::default() })))
    }

    fn io(&self) -> Io {
        Io::Other(Box::new(self.clone()))
    }

    fn says(&self, bytes: &[u8]) {
        self.0.borrow_mut().reads.push_back(bytes.to_vec());
    }

    fn sees(&self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.0.borrow_mut().wrote)).into_owned()
    }
}

impl Stream for Script {
    fn poll_read(&mut self, _: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut peer = self.0.borrow_mut();
        let Some(mut next) = peer.reads.pop_front() else {
            return if peer.fin { Poll::Ready(Ok(0)) } else { Poll::Pending };
        };
        let n = next.len().min(buf.len());
        buf[..n].copy_from_slice(&next[..n]);
        if n < next.len() {
            peer.reads.push_front(next.split_off(n));
        }
        Poll::Ready(Ok(n))
    }

    fn poll_write(&mut self, _: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let mut peer = self.0.borrow_mut();
        let mut n = 0;
        for buf in bufs {
            let take = buf.len().min(peer.room);
            peer.wrote.extend_from_slice(&buf[..take]);
            peer.room -= take;
            n += take;
        }
        peer.writes += 1;
        if n == 0 { Poll::Pending } else { Poll::Ready(Ok(n)) }
    }

    fn poll_flush(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.borrow_mut().shut = true;
        Poll::Ready(Ok(()))
    }

    fn poll_read_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let peer = self.0.borrow();
        if peer.fin || !peer.reads.is_empty() { Poll::Ready(Ok(())) } else { Poll::Pending }
    }
}

/// A server connection in a test's hands.
struct Server {
    peer: Script,
    conn: ServerConn,
    buffers: Buffers,
    scratch: Vec<u8>,
    head: RequestHead,
}

impl Server {
    fn new(options: ServerOptions, reads: &[&[u8]]) -> Self {
        let peer = Script::new(reads);
        let conn = ServerConn::new(peer.io(), Vec::new(), Rc::new(options));
        Self { peer, conn, buffers: Buffers::default(), scratch: vec![0; 128 * 1024], head: RequestHead::default() }
    }

    fn request(&mut self) -> Poll<Result<Option<()>, RequestError>> {
        let cx = &mut Context::from_waker(Waker::noop());
        self.conn.poll_request(cx, &self.buffers, &mut self.scratch, &mut self.head)
    }

    /// The body to its end, or what ended it.
    fn body(&mut self) -> Result<Vec<u8>, BodyError> {
        let mut body = Vec::new();
        let cx = &mut Context::from_waker(Waker::noop());
        loop {
            match self.conn.poll_body(cx, &mut self.scratch) {
                Poll::Ready(Ok(Body::Data(chunk))) => body.extend_from_slice(chunk.as_slice()),
                Poll::Ready(Ok(Body::End | Body::Trailers(_))) => return Ok(body),
                Poll::Ready(Err(e)) => return Err(e),
                Poll::Pending => panic!("the body does not end: {body:?}"),
            }
        }
    }

    /// The body's next piece.
    fn piece(&mut self) -> &[u8] {
        match self.conn.poll_body(&mut Context::from_waker(Waker::noop()), &mut self.scratch) {
            Poll::Ready(Ok(Body::Data(Chunk::Lent(piece)))) => piece,
            other => panic!("{other:?}"),
        }
    }

    fn answer(&mut self, status: u16, body: &str) -> String {
        let cx = &mut Context::from_waker(Waker::noop());
        let head = ResponseHead { framing: Framing::Length(body.len() as u64), ..ResponseHead::new(status) };
        self.conn.send_head(&self.buffers, &head, body.is_empty(), false);
        if !body.is_empty() {
            self.conn.send_data(cx, &self.buffers, body.as_bytes(), true).unwrap();
        }
        assert!(self.conn.poll_flush(cx, &self.buffers).is_ready());
        self.peer.sees()
    }
}

/// A client connection in a test's hands.
struct Client {
    peer: Script,
    conn: ClientConn,
    buffers: Buffers,
    scratch: Vec<u8>,
    head: ResponseHead,
}

impl Client {
    fn new(options: ClientOptions) -> Self {
        let peer = Script::new(&[]);
        let conn = ClientConn::new(peer.io(), Rc::new(options));
        Self { peer, conn, buffers: Buffers::default(), scratch: vec![0; 128 * 1024], head: ResponseHead::default() }
    }

    /// Sends a request without body and lets the upstream answer.
    fn ask(method: &str, reads: &[&[u8]]) -> Self {
        let mut c = Self::new(ClientOptions::default());
        c.send(method, reads);
        c
    }

    fn send(&mut self, method: &str, reads: &[&[u8]]) {
        let cx = &mut Context::from_waker(Waker::noop());
        self.conn.send_head(&self.buffers, &request(method, "/", Framing::None), true).unwrap();
        assert!(self.conn.poll_flush(cx, &self.buffers).is_ready());
        reads.iter().for_each(|r| self.peer.says(r));
    }

    fn response(&mut self) -> Poll<Result<(), UpstreamError>> {
        let cx = &mut Context::from_waker(Waker::noop());
        self.conn.poll_response(cx, &self.buffers, &mut self.scratch, &mut self.head)
    }

    fn status(&mut self) -> Result<u16, String> {
        match self.response() {
            Poll::Ready(Ok(())) => Ok(self.head.status),
            Poll::Ready(Err(e)) => Err(e.to_string()),
            Poll::Pending => panic!("no head"),
        }
    }

    /// The body's next piece.
    fn piece(&mut self) -> &[u8] {
        match self.conn.poll_body(&mut Context::from_waker(Waker::noop()), &mut self.scratch) {
            Poll::Ready(Ok(Body::Data(Chunk::Lent(piece)))) => piece,
            other => panic!("{other:?}"),
        }
    }

    fn body(&mut self) -> Result<Vec<u8>, String> {
        let mut body = Vec::new();
        let cx = &mut Context::from_waker(Waker::noop());
        loop {
            match self.conn.poll_body(cx, &mut self.scratch) {
                Poll::Ready(Ok(Body::Data(chunk))) => body.extend_from_slice(chunk.as_slice()),
                Poll::Ready(Ok(Body::End | Body::Trailers(_))) => return Ok(body),
                Poll::Ready(Err(e)) => return Err(e.to_string()),
                Poll::Pending => panic!("the body does not end: {body:?}"),
            }
        }
    }
}

/// A request as the manager hands it on.
fn request(method: &str, path: &str, framing: Framing) -> RequestHead {
    let headers = [(":method", method), (":path", path), (":authority", "a.test")].into_iter().collect();
    RequestHead { headers, framing, ..RequestHead::default() }
}

/// What a server connection makes of the first request in `bytes`.
fn refusal(options: ServerOptions, bytes: &[u8]) -> Option<(u16, &'static str)> {
    let mut s = Server::new(options, &[bytes]);
    match s.request() {
        Poll::Ready(Ok(Some(()))) => None,
        Poll::Ready(Err(e)) => {
            // After any refusal nothing more is read as a request.
            let answer = s.answer(e.status, e.body);
            assert!(answer.contains("\r\nconnection: close\r\n"), "{answer}");
            assert!(!s.conn.reusable_after_response());
            assert!(!s.conn.head_begun());
            Some((e.status, e.details))
        }
        other => panic!("{other:?} for {}", bytes.escape_ascii()),
    }
}

fn refused(bytes: &str) -> Option<(u16, &'static str)> {
    refusal(ServerOptions::default(), bytes.as_bytes())
}

const BAD: Option<(u16, &str)> = Some((400, "http1.codec_error"));

#[test]
fn a_connection_is_small() {
    assert!(size_of::<ServerConn>() <= 224, "{}", size_of::<ServerConn>());
    assert!(size_of::<ClientConn>() <= 224, "{}", size_of::<ClientConn>());
}
