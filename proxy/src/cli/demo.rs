//! `nuncio demo`: three upstreams that say who they are, the proxy in front of them on
//! `configs/demo.yaml`, and what to type to see it work.
//!
//! All of it is one process on loopback: Ctrl-C ends everything, and nothing is written anywhere.
//! A port of the file that is taken is replaced by a free one.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response, header};
use nuncio_core::net::{Accept, Address, Connected};

use crate::admin::HyperIo;
use crate::net::{Acceptor, BindOptions, BoundAddress, ListeningSocket};
use crate::server::main_thread::{self, Started};
use crate::server::worker::runtime;
use crate::server::{Options, bootstrap, signals};
use crate::{extensions, logging};

const CONFIG: &str = include_str!("../../../configs/demo.yaml");

/// The ports of the file that the proxy listens on.
const LISTENERS: [u16; 3] = [9901, 10000, 10100];
const UPSTREAMS: [(u16, &str); 3] = [(10001, "alpha"), (10002, "beta"), (10003, "canary")];

/// How long a client of an upstream may not read.
const STALL: Duration = Duration::from_secs(30);

/// Runs until Ctrl-C.
pub fn run() -> ExitCode {
    match demo() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("demo: {error}");
            ExitCode::FAILURE
        }
    }
}

fn demo() -> io::Result<()> {
    let config = start_upstreams(CONFIG.to_owned())?;
    let on = |is_free: &dyn Fn(u16) -> bool| {
        let moved = |config: String, port| if is_free(port) { config } else { with_port(&config, port, 0) };
        LISTENERS.into_iter().fold(config.clone(), moved)
    };
    match serve(&on(&|port| listen(port).is_ok())) {
        // Somebody else took one of them in this moment.
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => serve(&on(&|_| false)),
        result => result,
    }
}

fn serve(config: &str) -> io::Result<()> {
    let options = options(config)?;
    let loggers = logging::init(&options.logging());
    let extensions = extensions::standard();
    let assembly = bootstrap::load(&options, &extensions)
        .and_then(|loaded| bootstrap::assemble(loaded, options, extensions))
        .map_err(|problems| io::Error::other(problems.iter().map(|p| format!("{p}\n")).collect::<String>()))?;
    main_thread::run(assembly, loggers, signals::ended(), |started| {
        // Whoever closed the standard output does not want to read it.
        let _ = explain(&started);
    })?;
    let _ = writeln!(io::stdout(), "demo: ended");
    Ok(())
}

/// One worker is enough here, and a log line should be seen at once.
fn options(config: &str) -> io::Result<Options> {
    let flags = ["nuncio", "--concurrency", "1", "-l", "warning", "--file-flush-interval-msec", "100", "--config-yaml"];
    match super::parse(flags.into_iter().chain([config]).map(Into::into)) {
        Ok(super::Request::Serve(options)) => Ok(*options),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}

fn explain(started: &Started) -> io::Result<()> {
    let of = |name: &str| {
        let found = started.listeners.iter().find(|(listener, _)| listener == name);
        found.and_then(|(_, addresses)| addresses.first()).map(Address::to_string).unwrap_or_default()
    };
    let (web, raw) = (of("web"), of("raw"));
    let admin = started.admin.as_ref().map(Address::to_string).unwrap_or_default();
    let mut out = io::stdout().lock();
    writeln!(out, "nuncio demo: the proxy runs on configs/demo.yaml")?;
    writeln!(out, "  http   http://{web}")?;
    writeln!(out, "  tcp    {raw}")?;
    writeln!(out, "  admin  http://{admin}")?;
    writeln!(out, "Try, in another terminal:")?;
    writeln!(out, "  curl -s http://{web}/hello")?;
    writeln!(out, "  curl -si http://{web}/who")?;
    writeln!(out, "  curl -s -H 'x-version: canary' http://{web}/who")?;
    writeln!(out, "  curl -si http://{web}/old/page")?;
    writeln!(out, "  curl -s http://{raw}/through-tcp")?;
    writeln!(out, "  curl -s http://{admin}/clusters")?;
    writeln!(out, "  curl -s 'http://{admin}/stats?usedonly&filter=rq_'")?;
    writeln!(out, "Ctrl-C ends it. The access log follows.")?;
    out.flush()
}

fn with_port(config: &str, usual: u16, actual: u16) -> String {
    config.replace(&format!("port_value: {usual}}}"), &format!("port_value: {actual}}}"))
}

/// A listening socket on a port of loopback; 0 is any free one.
fn listen(port: u16) -> io::Result<ListeningSocket> {
    let address = Address::Ip(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    let bound = BoundAddress::bind(&address, BindOptions::default(), 1)?;
    bound.listen()?;
    bound.socket(0)
}

// === The upstreams ===

/// Starts them on a thread of their own; it ends with the process. Returns the configuration with
/// the ports they got.
fn start_upstreams(mut config: String) -> io::Result<String> {
    let mut sockets = Vec::new();
    for (usual, name) in UPSTREAMS {
        let socket = listen(usual).or_else(|_| listen(0))?;
        config = with_port(&config, usual, socket.local().port().unwrap_or_default());
        sockets.push((socket, name));
    }
    std::thread::Builder::new().name("upstreams".into()).spawn(move || {
        let served = runtime().and_then(|runtime| runtime.block_on(upstreams(sockets)));
        if let Err(error) = served {
            eprintln!("demo: the upstreams ended: {error}");
        }
    })?;
    Ok(config)
}

async fn upstreams(sockets: Vec<(ListeningSocket, &'static str)>) -> io::Result<()> {
    for (socket, name) in sockets {
        tokio::task::spawn_local(upstream(Acceptor::new(socket)?, name));
    }
    std::future::pending().await
}

async fn upstream(mut listener: Acceptor, name: &'static str) {
    loop {
        match poll_fn(|cx| listener.poll_accept(cx)).await {
            Ok(connected) => drop(tokio::task::spawn_local(connection(connected, name))),
            // Out of descriptors, mostly: it passes, or it would fail at once again.
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

async fn connection(Connected { io, remote, .. }: Connected, name: &'static str) {
    let service = service_fn(|request: Request<Incoming>| {
        let response = answer(name, &remote, &request);
        async { Ok::<_, Infallible>(response) }
    });
    // A client that breaks off is no news.
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(HyperIo::new(io, STALL), service).await;
}

fn answer(name: &'static str, peer: &Address, request: &Request<Incoming>) -> Response<String> {
    let id = request.headers().get("x-request-id").and_then(|v| v.to_str().ok()).unwrap_or("-");
    let text = format!("upstream {name}: {} {} from {peer}, request id {id}\n", request.method(), request.uri());
    let mut response = Response::new(text);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static("text/plain"));
    headers.insert("x-upstream", header::HeaderValue::from_static(name));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_port_of_the_file_can_be_moved() {
        let mut config = CONFIG.to_owned();
        for usual in LISTENERS.into_iter().chain(UPSTREAMS.map(|(port, _)| port)) {
            let moved = with_port(&config, usual, 0);
            assert_ne!(moved, config, "{usual}");
            config = moved;
        }
        assert_eq!(config.matches("port_value: ").count(), config.matches("port_value: 0}").count());
    }
}
