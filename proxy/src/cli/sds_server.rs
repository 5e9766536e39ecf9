//! `nuncio sds-server`: the REST service discovery API that preceded EDS, served.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use hyper::{Request, Response, StatusCode, header};
use nuncio_core::time::WallClock;
use nuncio_discovery::sds_server::{Server, Settings};

use crate::server::signals;
use crate::server::worker::runtime;
use crate::small_server::{listen, serve};

#[derive(clap::Args, Debug)]
pub struct Arguments {
    /// Where to listen
    #[arg(long, default_value = "127.0.0.1:8080", value_name = "ADDRESS:PORT")]
    listen: SocketAddr,
    /// Seconds after which a host that does not check in is forgotten
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..=86_400 * 365), value_name = "SECONDS")]
    host_ttl: u64,
    /// Keep registrations in this file over a restart
    #[arg(long, value_name = "FILE")]
    store: Option<PathBuf>,
}

pub fn run(arguments: Arguments) -> ExitCode {
    let served = runtime().and_then(|runtime| {
        let served = runtime.block_on(run_until_ended(arguments));
        runtime.shutdown_timeout(Duration::from_secs(5));
        served
    });
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sds-server: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run_until_ended(arguments: Arguments) -> io::Result<()> {
    let settings = Settings { host_ttl: Duration::from_secs(arguments.host_ttl), store: arguments.store };
    let server = Server::start(&settings, WallClock::System)?;
    let socket = listen(arguments.listen)?;
    // Whoever closed the standard output does not want to read it.
    let _ = writeln!(io::stdout(), "sds-server: listens on http://{}", socket.local());
    let ended = signals::ended()()?;
    tokio::select! {
        served = serve(socket, move |_, request| answer(server.clone(), request)) => served,
        _ = ended => Ok(()),
    }
}

pub(super) async fn answer(server: Rc<Server>, request: Request<Bytes>) -> Response<String> {
    let target = request.uri().path_and_query().map_or("/", |target| target.as_str());
    let answer = server.answer(request.method().as_str(), target, request.body()).await;
    let mut response = Response::new(answer.body);
    *response.status_mut() = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    if answer.status != 204 {
        let json = header::HeaderValue::from_static("application/json");
        response.headers_mut().insert(header::CONTENT_TYPE, json);
    }
    response
}
