//! However much lies in a connection's socket, a turn does so much of it and no more: others wait meanwhile. Counted in
//! what is done, so that the figures are the same on every machine.

use std::cell::Cell;
use std::future::Future;

use nuncio_testkit::http2::frame::flag;
use nuncio_testkit::http2::hpack::{Literal, indexed, literal, string};

use super::frame::HEAD;
use super::frames::*;
use super::*;

/// A peer that has said everything at once, and takes whatever it is told.
struct Said {
    bytes: Vec<u8>,
    at: usize,
    heard: Rc<Cell<usize>>,
}

impl Stream for Said {
    fn poll_read(&mut self, _: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        let n = buf.len().min(self.bytes.len() - self.at);
        if n == 0 {
            return Poll::Pending;
        }
        buf[..n].copy_from_slice(&self.bytes[self.at..self.at + n]);
        self.at += n;
        Poll::Ready(Ok(n))
    }

    fn poll_write(&mut self, _: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        self.heard.set(self.heard.get() + bufs[0].len());
        Poll::Ready(Ok(bufs[0].len()))
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

fn said(bytes: Vec<u8>) -> (Io, Rc<Cell<usize>>) {
    let heard = Rc::<Cell<usize>>::default();
    (Io::Other(Box::new(Said { bytes, at: 0, heard: heard.clone() })), heard)
}

fn server_after(frames: &[Vec<u8>]) -> (ServerConn, Rc<Cell<usize>>) {
    let (io, heard) = said([&crate::codec::http2::PREFACE[..], &frame(SETTINGS, 0, 0, &[]), &frames.concat()].concat());
    let options = Rc::new(ServerOptions::default());
    (ServerConn::new(io, Vec::new(), options, Rc::new(Buffers::default()), &Rng::with_seed(1)), heard)
}

/// The streams of each turn, until nothing comes any more. None of them is answered.
async fn turns(mut conn: ServerConn) -> (Vec<usize>, Vec<ServerStream>) {
    let (mut head, mut streams, mut turns) = (RequestHead::default(), Vec::new(), Vec::new());
    loop {
        let before = streams.len();
        poll_fn(|cx| {
            while let Poll::Ready(came) = conn.poll_accept(cx, &mut head) {
                match came {
                    Ok(Some(Accepted::Stream(stream))) => streams.push(stream),
                    Ok(Some(Accepted::Refused(_))) => {}
                    other => panic!("{:?}", other.err()),
                }
            }
            Poll::Ready(())
        })
        .await;
        if streams.len() == before {
            return (turns, streams);
        }
        turns.push(streams.len() - before);
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_turn_begins_some_dozens_of_requests() {
    let requests: Vec<_> = (0..100).map(|n| frame(HEADERS, flag::WHOLE, 2 * n + 1, &block(GET))).collect();
    let (turns, streams) = turns(server_after(&requests).0).await;
    assert_eq!(streams.len(), 100);
    assert!(turns[0] >= 24 && turns.iter().all(|begun| *begun <= 32), "{turns:?}");
}

/// Row R37 of the table of adversarial inputs: a byte on the wire is four kilobytes of a head.
#[tokio::test(flavor = "current_thread")]
async fn a_turn_begins_few_requests_whose_heads_are_large() {
    let large = literal(Literal::Incremental, &string(b"x"), &string(&[b'v'; 3900]));
    let again = [block(GET), indexed(62).repeat(15)].concat();
    let mut requests = vec![frame(HEADERS, flag::WHOLE, 1, &[block(GET), large].concat())];
    requests.extend((1..100).map(|n| frame(HEADERS, flag::WHOLE, 2 * n + 1, &again)));
    let (turns, streams) = turns(server_after(&requests).0).await;
    assert_eq!(streams.len(), 100);
    assert!(turns.iter().all(|begun| *begun <= 5), "{turns:?}");
}

/// Frames that begin nothing: each is answered, so that the answers count them.
#[tokio::test(flavor = "current_thread")]
async fn a_turn_looks_at_some_thousands_of_small_frames() {
    const ALL: usize = 20_000;
    for (what, small, reply) in [
        ("PING", frame(PING, 0, 0, b"pingping"), HEAD + 8),
        ("SETTINGS", frame(SETTINGS, 0, 0, &[]), HEAD),
        ("unknown", frame(0x50, 0, 0, b"unknown"), 0),
    ] {
        let (mut conn, heard) = server_after(&[small.repeat(ALL), frame(PING, 0, 0, b"the last")]);
        let (mut head, mut turns) = (RequestHead::default(), 0);
        let mut most = 0;
        loop {
            let before = heard.get();
            assert!(poll_fn(|cx| Poll::Ready(conn.poll_accept(cx, &mut head).is_pending())).await, "{what}");
            if heard.get() == before && turns > 8 {
                break;
            }
            most = most.max(heard.get() - before);
            turns += 1;
        }
        assert!(heard.get() >= ALL * reply + HEAD + 8, "{what}: {} bytes of answers", heard.get());
        assert!(turns >= 5 && most <= 4200 * reply.max(HEAD), "{what}: {turns} turns, {most} bytes at once");
    }
}

/// The same of an upstream.
#[tokio::test(flavor = "current_thread")]
async fn an_upstream_has_its_turns_too() {
    const ALL: usize = 20_000;
    let pings = frame(PING, 0, 0, b"pingping").repeat(ALL);
    let (io, heard) = said([frame(SETTINGS, 0, 0, &[]), pings].concat());
    let (_conn, mut driver) =
        ClientConn::new(io, Rc::new(ClientOptions::default()), Rc::new(Buffers::default()), &Rng::with_seed(1));
    let mut most = 0;
    while heard.get() < ALL * (HEAD + 8) {
        let before = heard.get();
        assert!(poll_fn(|cx| Poll::Ready(Pin::new(&mut driver).poll(cx).is_pending())).await);
        most = most.max(heard.get() - before);
        assert!(most > 0, "nothing moves");
    }
    assert!(most <= 4200 * (HEAD + 8), "{most} bytes at once");
}
