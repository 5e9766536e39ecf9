//! `nuncio demo`: upstreams that say who they are and register themselves, the registry that they register with, an
//! authorizer, the proxy in front of them on `configs/nuncio/demo-sds.yaml`, and what to type to see it work.
//!
//! All of it is one process on loopback: Ctrl-C ends everything, and nothing is written anywhere.
//! A port of the file that is taken is replaced by a free one.

use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use hyper::{Request, Response, header};
use nuncio_authz::demo_server::Rules;
use nuncio_core::net::Address;
use nuncio_core::time::WallClock;
use nuncio_discovery::sds_server::{Server, Settings};

use super::{authz_server, sds_server};
use crate::net::ListeningSocket;
use crate::server::main_thread::{self, Started};
use crate::server::worker::runtime;
use crate::server::{Options, bootstrap, signals};
use crate::{extensions, logging, small_server};

const CONFIG: &str = include_str!("../../../configs/nuncio/demo-sds.yaml");

/// The ports of the file that the proxy listens on.
const LISTENERS: [u16; 3] = [9901, 10000, 10100];
/// The port of the file that the registry listens on.
const REGISTRY: u16 = 10004;
/// The host of the file that does not register.
const CANARY: u16 = 10003;
/// The port of the file that the authorizer listens on.
const AUTHORIZER: u16 = 10005;

/// Who does not check in for so long is forgotten.
const HOST_TTL: Duration = Duration::from_secs(30);

#[derive(clap::Args, Debug)]
pub struct Arguments {
    /// Seconds after which a fourth upstream registers
    #[arg(long, default_value_t = 10, value_name = "SECONDS")]
    fourth_after: u64,
}

/// Runs until Ctrl-C.
pub fn run(arguments: &Arguments) -> ExitCode {
    match demo(Duration::from_secs(arguments.fourth_after)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("demo: {error}");
            ExitCode::FAILURE
        }
    }
}

fn demo(fourth_after: Duration) -> io::Result<()> {
    let (config, registry) = start_upstreams(CONFIG.to_owned(), fourth_after)?;
    let on = |is_free: &dyn Fn(u16) -> bool| {
        let moved = |config: String, port| if is_free(port) { config } else { with_port(&config, port, 0) };
        LISTENERS.into_iter().fold(config.clone(), moved)
    };
    match serve(&on(&|port| listen(port).is_ok()), registry) {
        // Somebody else took one of them in this moment.
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => serve(&on(&|_| false), registry),
        result => result,
    }
}

fn serve(config: &str, registry: u16) -> io::Result<()> {
    let options = options(config)?;
    let loggers = logging::init(&options.logging());
    let extensions = extensions::standard();
    let assembly = bootstrap::load(&options, &extensions)
        .and_then(|loaded| bootstrap::assemble(loaded, options, extensions))
        .map_err(|problems| io::Error::other(problems.iter().map(|p| format!("{p}\n")).collect::<String>()))?;
    main_thread::run(assembly, loggers, signals::ended(), |started| {
        // Whoever closed the standard output does not want to read it.
        let _ = explain(&started, registry);
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

fn explain(started: &Started, registry: u16) -> io::Result<()> {
    let of = |name: &str| {
        let found = started.listeners.iter().find(|(listener, _)| listener == name);
        found.and_then(|(_, addresses)| addresses.first()).map(Address::to_string).unwrap_or_default()
    };
    let (web, raw) = (of("web"), of("raw"));
    let opened = Rules::default().open;
    let admin = started.admin.as_ref().map(Address::to_string).unwrap_or_default();
    let mut out = io::stdout().lock();
    writeln!(out, "nuncio demo: the proxy runs on configs/nuncio/demo-sds.yaml")?;
    writeln!(out, "  http   http://{web}")?;
    writeln!(out, "  tcp    {raw}")?;
    writeln!(out, "  admin  http://{admin}")?;
    writeln!(out, "Upstreams register with the registry on 127.0.0.1:{registry}; a fourth one, delta, will soon.")?;
    writeln!(out, "An authorizer is asked over gRPC about /private before anything is forwarded.")?;
    writeln!(out, "Try, in another terminal:")?;
    writeln!(out, "  curl -s http://{web}/hello")?;
    writeln!(out, "  curl -si http://{web}/who")?;
    writeln!(out, "  curl -s -H 'x-version: canary' http://{web}/who")?;
    writeln!(out, "  curl -si http://{web}/old/page")?;
    writeln!(out, "  curl -si http://{web}/private")?;
    writeln!(out, "  curl -s -H '{}: {}' http://{web}/private", opened.name, opened.value)?;
    writeln!(out, "  curl -s http://{raw}/through-tcp")?;
    writeln!(out, "  curl -s http://127.0.0.1:{registry}/v1/registration/web")?;
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
    small_server::listen(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
}

// === The upstreams and their registry ===

/// What listens from the start.
struct Upstreams {
    registry: ListeningSocket,
    canary: ListeningSocket,
    authorizer: ListeningSocket,
    fourth_after: Duration,
}

/// Starts them on a thread of their own; it ends with the process. Returns the configuration with the ports they got,
/// and the registry's.
fn start_upstreams(config: String, fourth_after: Duration) -> io::Result<(String, u16)> {
    let registry = listen(REGISTRY).or_else(|_| listen(0))?;
    let canary = listen(CANARY).or_else(|_| listen(0))?;
    let authorizer = listen(AUTHORIZER).or_else(|_| listen(0))?;
    let port = |socket: &ListeningSocket| socket.local().port().unwrap_or_default();
    let at = port(&registry);
    let moved = [(REGISTRY, at), (CANARY, port(&canary)), (AUTHORIZER, port(&authorizer))];
    let config = moved.iter().fold(config, |config, (usual, actual)| with_port(&config, *usual, *actual));
    let upstreams = Upstreams { registry, canary, authorizer, fourth_after };
    std::thread::Builder::new().name("upstreams".into()).spawn(move || {
        let served = runtime().and_then(|runtime| runtime.block_on(upstreams.run()));
        if let Err(error) = served {
            eprintln!("demo: the upstreams ended: {error}");
        }
    })?;
    Ok((config, at))
}

impl Upstreams {
    async fn run(self) -> io::Result<()> {
        let registry = Server::start(&Settings { host_ttl: HOST_TTL, store: None }, WallClock::System)?;
        start_upstream(self.canary, "canary");
        tokio::task::spawn_local(authz_server::serve(self.authorizer, Rules::default()));
        for name in ["alpha", "beta"] {
            register(&registry, name).await?;
        }
        let asked = registry.clone();
        tokio::task::spawn_local(small_server::serve(self.registry, move |_, request| {
            sds_server::answer(asked.clone(), request)
        }));
        tokio::time::sleep(self.fourth_after).await;
        register(&registry, "delta").await?;
        // Elsewhere: whoever reads this may have stopped reading, and the upstreams go on.
        drop(tokio::task::spawn_blocking(|| writeln!(io::stdout(), "demo: delta has registered")));
        std::future::pending().await
    }
}

/// One more upstream, which checks in for as long as it lives.
async fn register(registry: &Rc<Server>, name: &'static str) -> io::Result<()> {
    let socket = listen(0)?;
    let port = socket.local().port().unwrap_or_default();
    start_upstream(socket, name);
    let tags = format!(r#"{{"az":"demo","instance_id":"{name}","region":"local"}}"#);
    let form = format!("ip=127.0.0.1&port={port}&service_repo_name=demo&revision=1&tags={tags}");
    registry.answer("POST", "/v1/registration/web", form.as_bytes()).await;
    let registry = Rc::downgrade(registry);
    tokio::task::spawn_local(async move {
        loop {
            tokio::time::sleep(HOST_TTL / 3).await;
            let Some(registry) = registry.upgrade() else { return };
            registry.answer("POST", "/v1/registration/web", form.as_bytes()).await;
        }
    });
    Ok(())
}

fn start_upstream(socket: ListeningSocket, name: &'static str) {
    tokio::task::spawn_local(small_server::serve(socket, move |peer, request| {
        std::future::ready(answer(name, &peer, &request))
    }));
}

fn answer(name: &'static str, peer: &Address, request: &Request<Bytes>) -> Response<String> {
    let field = |name| request.headers().get(name).and_then(|value| value.to_str().ok());
    let id = field("x-request-id").unwrap_or("-");
    let authorized =
        field(Rules::default().add.name.as_str()).map_or(String::new(), |by| format!(", authorized by {by}"));
    let text =
        format!("upstream {name}: {} {} from {peer}, request id {id}{authorized}\n", request.method(), request.uri());
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
        for usual in LISTENERS.into_iter().chain([REGISTRY, CANARY, AUTHORIZER]) {
            let moved = with_port(&config, usual, 0);
            assert_ne!(moved, config, "{usual}");
            config = moved;
        }
        assert_eq!(config.matches("port_value: ").count(), config.matches("port_value: 0}").count());
    }
}
