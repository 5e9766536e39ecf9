//! A request and its response through both roles of the HTTP/1 codec allocate nothing once the
//! worker's buffers are warm, and a connection that waits holds none.

#![allow(unsafe_code, clippy::unwrap_used)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use nuncio::codec::http1::{ClientConn, ClientOptions, ServerConn, ServerOptions};
use nuncio::codec::{Body, Buffers};
use nuncio_core::http::{RequestHead, ResponseHead};
use nuncio_core::net::{Io, Stream};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: hands every call to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A peer whose bytes are put there by the test; it counts what it is sent and keeps nothing.
#[derive(Clone)]
struct Peer(Rc<RefCell<Bytes>>);

#[derive(Default)]
struct Bytes {
    says: Vec<u8>,
    at: usize,
    got: usize,
}

impl Peer {
    fn new(says: Vec<u8>) -> Self {
        let at = says.len();
        Self(Rc::new(RefCell::new(Bytes { says, at, got: 0 })))
    }

    /// It says the same again.
    fn again(&self) {
        self.0.borrow_mut().at = 0;
    }
}

impl Stream for Peer {
    fn poll_read(&mut self, _: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        let Bytes { says, at, .. } = &mut *self.0.borrow_mut();
        let n = (says.len() - *at).min(buf.len());
        if n == 0 {
            return Poll::Pending;
        }
        buf[..n].copy_from_slice(&says[*at..*at + n]);
        *at += n;
        Poll::Ready(Ok(n))
    }

    fn poll_write(&mut self, _: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let n = bufs.iter().map(|b| b.len()).sum();
        self.0.borrow_mut().got += n;
        Poll::Ready(Ok(n))
    }

    fn poll_flush(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_read_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Pending
    }
}

struct Exchange {
    downstream: Peer,
    upstream: Peer,
    server: ServerConn,
    client: ClientConn,
    buffers: Buffers,
    scratch: Vec<u8>,
    request: RequestHead,
    response: ResponseHead,
}

impl Exchange {
    fn new(request: &str, response: &str) -> Self {
        let (downstream, upstream) = (Peer::new(request.into()), Peer::new(response.into()));
        Self {
            server: ServerConn::new(Io::Other(Box::new(downstream.clone())), Vec::new(), Rc::default()),
            client: ClientConn::new(Io::Other(Box::new(upstream.clone())), Rc::new(ClientOptions::default())),
            downstream,
            upstream,
            buffers: Buffers::default(),
            scratch: vec![0; 128 * 1024],
            request: RequestHead::default(),
            response: ResponseHead::default(),
        }
    }

    fn run(&mut self) {
        let Self { server, client, buffers, scratch, request, response, .. } = self;
        let cx = &mut Context::from_waker(Waker::noop());
        self.downstream.again();
        assert!(matches!(server.poll_request(cx, buffers, scratch, request), Poll::Ready(Ok(Some(())))));
        client.send_head(buffers, request, request.framing.is_none()).unwrap();
        while !client.request_complete() {
            match server.poll_body(cx, scratch) {
                Poll::Ready(Ok(Body::Data(chunk))) => {
                    client.send_data(cx, buffers, chunk.as_slice(), server.request_complete()).unwrap();
                }
                Poll::Ready(Ok(_)) => client.send_data(cx, buffers, b"", true).unwrap(),
                other => panic!("{other:?}"),
            }
        }
        assert!(client.poll_flush(cx, buffers).is_ready());
        self.upstream.again();
        assert!(matches!(client.poll_response(cx, buffers, scratch, response), Poll::Ready(Ok(()))));
        server.send_head(buffers, response, client.response_complete(), false);
        while !server.response_complete() {
            match client.poll_body(cx, scratch) {
                Poll::Ready(Ok(Body::Data(chunk))) => {
                    server.send_data(cx, buffers, chunk.as_slice(), client.response_complete()).unwrap();
                }
                Poll::Ready(Ok(_)) => server.send_data(cx, buffers, b"", true).unwrap(),
                other => panic!("{other:?}"),
            }
        }
        assert!(server.poll_flush(cx, buffers).is_ready());
        assert!(server.reusable_after_response() && client.is_reusable());
        server.next_request(buffers);
        client.release(buffers);
        // The connection waits for the next one.
        assert!(server.poll_request(cx, buffers, scratch, request).is_pending());
        assert!(client.poll_idle(cx).is_pending());
        assert_eq!((server.held_capacity(), client.held_capacity()), (0, 0));
    }
}

fn allocations(mut exchange: Exchange) -> usize {
    (0..3).for_each(|_| exchange.run());
    let before = ALLOCATIONS.get();
    (0..100).for_each(|_| exchange.run());
    ALLOCATIONS.get() - before
}

#[test]
fn exchanges_allocate_nothing_once_warm() {
    let head = "Host: www.example.com\r\nUser-Agent: test\r\nAccept: */*\r\nCookie: a=b\r\nConnection: keep-alive\r\n";
    let get = format!("GET /path?q HTTP/1.1\r\n{head}\r\n");
    let counted = |n: usize| format!("HTTP/1.1 200 OK\r\nContent-Length: {n}\r\n\r\n{}", "x".repeat(n));
    let chunk = |n: usize| format!("{n:x}\r\n{}\r\n", "y".repeat(n));
    let te = "Transfer-Encoding: chunked\r\n\r\n";
    let chunked = format!("HTTP/1.1 200 OK\r\n{te}{}0\r\n\r\n", chunk(1000).repeat(64));
    let post = |n: usize| format!("POST / HTTP/1.1\r\n{head}Content-Length: {n}\r\n\r\n{}", "z".repeat(n));
    let post_chunked = format!("POST / HTTP/1.1\r\n{head}{te}{}0\r\n\r\n", chunk(5000).repeat(20));
    for (request, response) in [
        (get.clone(), counted(0)),
        (get.clone(), counted(1024)),
        (get.clone(), counted(65_536)),
        (get, chunked.clone()),
        (post(1024), counted(10)),
        (post(65_536), counted(10)),
        (post_chunked, chunked),
    ] {
        let what = (request.len(), response.len());
        assert_eq!(allocations(Exchange::new(&request, &response)), 0, "request and response of {what:?} bytes");
    }
}

#[test]
fn options_have_envoys_defaults() {
    let options = ServerOptions::default();
    assert_eq!((options.max_head_bytes, options.max_headers), (61_440, 100));
    assert!(options.allow_absolute_url && !options.accept_http_10 && !options.enable_trailers);
    assert_eq!(ClientOptions::default().max_head_bytes, 80 * 1024);
}
