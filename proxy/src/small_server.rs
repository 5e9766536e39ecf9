//! HTTP for the small servers of subcommands: whole requests in, whole answers out, and nobody holds anything for long.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body as _, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use nuncio_core::net::{Accept, Address, Connected};
use tokio::sync::Semaphore;

use crate::admin::{HyperClock, HyperIo};
use crate::net::{Acceptor, BindOptions, BoundAddress, ListeningSocket};

/// How long a client may not read, or not finish what it asks.
pub const STALL: Duration = Duration::from_secs(30);

const MOST_CONNECTIONS: usize = 1024;
const MOST_BODY: usize = 64 * 1024;

/// A listening socket.
pub fn listen(address: SocketAddr) -> io::Result<ListeningSocket> {
    let bound = BoundAddress::bind(&Address::Ip(address), BindOptions::default(), 1)?;
    bound.listen()?;
    bound.socket(0)
}

/// Answers what comes to `socket`, for ever. `answer` is told who asks.
pub async fn serve<A, F>(socket: ListeningSocket, answer: A) -> io::Result<()>
where
    A: Fn(Address, Request<Bytes>) -> F + 'static,
    F: Future<Output = Response<String>> + 'static,
{
    let answer = Rc::new(answer);
    accept(socket, move |connected| connection(connected, answer.clone())).await
}

/// Runs `serve` for each connection to `socket`, for ever and for so many at once.
pub async fn accept<F>(socket: ListeningSocket, serve: impl Fn(Connected) -> F) -> io::Result<()>
where
    F: Future<Output = ()> + 'static,
{
    let mut listener = Acceptor::new(socket)?;
    let room = std::sync::Arc::new(Semaphore::new(MOST_CONNECTIONS));
    loop {
        let Ok(permit) = room.clone().acquire_owned().await else { return Ok(()) };
        match poll_fn(|cx| listener.poll_accept(cx)).await {
            Ok(connected) => {
                let connection = serve(connected);
                tokio::task::spawn_local(async move {
                    connection.await;
                    drop(permit);
                });
            }
            // Out of descriptors, mostly: it passes, or it would fail at once again.
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

async fn connection<A, F>(Connected { io, remote, .. }: Connected, answer: Rc<A>)
where
    A: Fn(Address, Request<Bytes>) -> F + 'static,
    F: Future<Output = Response<String>> + 'static,
{
    let service = service_fn(|request: Request<Incoming>| {
        let (answer, remote) = (answer.clone(), remote.clone());
        async move {
            let (head, body) = request.into_parts();
            Ok::<_, Infallible>(match whole(body).await {
                Some(body) => answer(remote, Request::from_parts(head, body)).await,
                None => refused(),
            })
        }
    });
    let mut builder = http1::Builder::new();
    builder.timer(HyperClock).header_read_timeout(STALL).max_buf_size(MOST_BODY);
    // A client that breaks off is no news.
    let _ = builder.serve_connection(HyperIo::new(io, STALL), service).await;
}

fn refused() -> Response<String> {
    let mut response = Response::new("the body is too long, too slow or broken\n".to_owned());
    *response.status_mut() = StatusCode::BAD_REQUEST;
    response
}

/// The body, unless it is too long or never ends.
pub async fn whole(mut body: Incoming) -> Option<Bytes> {
    let collect = async {
        let mut bytes = Vec::new();
        while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
            let Ok(data) = frame.ok()?.into_data() else { continue };
            if bytes.len() + data.len() > MOST_BODY {
                return None;
            }
            bytes.extend_from_slice(&data);
        }
        Some(Bytes::from(bytes))
    };
    tokio::time::timeout(STALL, collect).await.ok()?
}
