//! `nuncio authz-server`: a small gRPC authorizer for `ext_authz` filters, for demonstrations and tests.

use std::convert::Infallible;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::pin::Pin;
use std::process::ExitCode;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming};
use hyper::header::{HeaderMap, HeaderValue};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Response};
use nuncio_authz::demo_server::{Field, Rules};
use nuncio_core::net::Connected;

use crate::admin::{HyperClock, HyperIo};
use crate::net::ListeningSocket;
use crate::server::signals;
use crate::server::worker::runtime;
use crate::small_server::{self, STALL, listen};

#[derive(clap::Args, Debug)]
pub struct Arguments {
    /// Where to listen, for gRPC in clear text
    #[arg(long, default_value = "127.0.0.1:9191", value_name = "ADDRESS:PORT")]
    listen: SocketAddr,
    /// Paths that begin so are refused (may be given several times)
    #[arg(long, default_values_t = Rules::default().deny, value_name = "PREFIX")]
    deny: Vec<String>,
    /// The header that opens them
    #[arg(long, default_value_t = Rules::default().open, value_name = "NAME=VALUE")]
    open: Field,
    /// The header that everything that passes gets
    #[arg(long, default_value_t = Rules::default().add, value_name = "NAME=VALUE")]
    add: Field,
}

pub fn run(arguments: Arguments) -> ExitCode {
    let served = runtime().and_then(|runtime| runtime.block_on(run_until_ended(arguments)));
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("authz-server: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run_until_ended(arguments: Arguments) -> io::Result<()> {
    let rules = Rules { deny: arguments.deny, open: arguments.open, add: arguments.add };
    let socket = listen(arguments.listen)?;
    // Whoever closed the standard output does not want to read it.
    let _ = writeln!(io::stdout(), "authz-server: listens on {}", socket.local());
    let ended = signals::ended()()?;
    tokio::select! {
        served = serve(socket, rules) => served,
        _ = ended => Ok(()),
    }
}

/// Answers what comes to `socket`, for ever.
pub(super) async fn serve(socket: ListeningSocket, rules: Rules) -> io::Result<()> {
    let rules = Rc::new(rules);
    small_server::accept(socket, move |connected| connection(connected, rules.clone())).await
}

async fn connection(Connected { io, .. }: Connected, rules: Rc<Rules>) {
    let service = service_fn(|request: Request<Incoming>| {
        let rules = rules.clone();
        async move {
            let (head, body) = request.into_parts();
            let result = match small_server::whole(body).await {
                Some(body) => rules.answer(head.uri.path(), &body),
                None => Err(RESOURCE_EXHAUSTED),
            };
            Ok::<_, Infallible>(response(result))
        }
    });
    let mut builder = http2::Builder::new(LocalTasks);
    builder.timer(HyperClock).keep_alive_interval(STALL).max_concurrent_streams(1000);
    // A client that breaks off is no news.
    let _ = builder.serve_connection(HyperIo::new(io, STALL), service).await;
}

const RESOURCE_EXHAUSTED: i64 = 8;

fn response(result: Result<Bytes, i64>) -> Response<Answer> {
    let (message, status) = match result {
        Ok(frame) => (Some(frame), 0),
        Err(status) => (None, status),
    };
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from(status));
    let mut response = Response::new(Answer { message, trailers: Some(trailers) });
    response.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    response
}

/// One message, then the status.
struct Answer {
    message: Option<Bytes>,
    trailers: Option<HeaderMap>,
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let message = self.message.take().map(Frame::data);
        let frame = message.or_else(|| self.trailers.take().map(Frame::trailers));
        Poll::Ready(frame.map(Ok))
    }
}

/// The streams of a connection run on its thread.
#[derive(Clone, Copy)]
struct LocalTasks;

impl<F> hyper::rt::Executor<F> for LocalTasks
where
    F: Future + 'static,
    F::Output: 'static,
{
    fn execute(&self, future: F) {
        tokio::task::spawn_local(future);
    }
}
