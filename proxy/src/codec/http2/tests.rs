//! Both roles against another implementation's ends and against raw frames, over an in-memory stream.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use nuncio_core::http::{Chunk, Framing, HeaderMap, RequestHead, ResponseHead};
use nuncio_core::net::{Io, Stream};
use nuncio_core::random::Rng;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};

mod abuse;
mod downstream;
mod frames;
mod heads;
mod turns;
mod upstream;

use super::*;
use crate::codec::{Body, Buffers};

/// One end of an in-memory connection.
struct Pipe(DuplexStream);

impl Stream for Pipe {
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut buf = ReadBuf::new(buf);
        ready!(Pin::new(&mut self.0).poll_read(cx, &mut buf))?;
        Poll::Ready(Ok(buf.filled().len()))
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, &bufs[0])
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }

    fn poll_read_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Pending
    }
}

fn pipe() -> (Io, DuplexStream) {
    let (ours, theirs) = tokio::io::duplex(64 * 1024);
    (Io::Other(Box::new(Pipe(ours))), theirs)
}

fn fields(map: &HeaderMap) -> Vec<String> {
    map.iter().map(|(n, v)| format!("{}: {}", n.escape_ascii(), v.escape_ascii())).collect()
}

/// A server connection over `options`, and the client's end of its stream.
fn server(options: ServerOptions) -> (ServerConn, DuplexStream) {
    let (io, theirs) = pipe();
    let buffers = Rc::new(Buffers::default());
    (ServerConn::new(io, Vec::new(), Rc::new(options), buffers, &Rng::with_seed(1)), theirs)
}

async fn accept(conn: &mut ServerConn, head: &mut RequestHead) -> Result<Option<Accepted>, ConnectionError> {
    poll_fn(|cx| conn.poll_accept(cx, head)).await
}

async fn stream(conn: &mut ServerConn, head: &mut RequestHead) -> ServerStream {
    match accept(conn, head).await {
        Ok(Some(Accepted::Stream(stream))) => stream,
        Ok(Some(Accepted::Refused(why))) => panic!("refused: {why}"),
        Ok(None) => panic!("closed"),
        Err(error) => panic!("{error:?}"),
    }
}

/// Runs a connection in the background until it ends.
fn drive(mut conn: ServerConn) -> tokio::task::JoinHandle<Result<(), ConnectionError>> {
    tokio::task::spawn_local(async move {
        let mut head = RequestHead::default();
        while accept(&mut conn, &mut head).await?.is_some() {}
        Ok(())
    })
}

fn get(path: &str) -> RequestHead {
    let headers = [(":method", "GET"), (":scheme", "http"), (":path", path), (":authority", "a.test")];
    RequestHead { headers: headers.into_iter().collect(), ..RequestHead::default() }
}

fn local() -> tokio::task::LocalSet {
    tokio::task::LocalSet::new()
}
