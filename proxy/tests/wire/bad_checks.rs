//! What answers active checks and is no answer: ten megabytes, heads and bodies without end, a byte now and then, noise,
//! TLS where plain bytes are due and the other way round. Each is counted, is named in the log and on `/health` with
//! what was asked, and takes no memory.

use std::convert::Infallible;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Response, body::Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use nuncio_testkit::http2::frame::{frame, kind, settings};

use crate::process::Process;

const TEN_MEGABYTES: usize = 10_000_000;

/// How often each of them is asked: a hundred megabytes from those that say ten.
const ASKED: u64 = 10;

/// What the checks of all of them may add to the memory of a process that never got an answer.
const ROOM: u64 = 12 << 20;

type Say = fn(&mut TcpStream) -> std::io::Result<()>;

/// One cluster of one host.
struct Case {
    name: &'static str,
    check: &'static str,
    /// Of its cluster.
    more: &'static str,
    say: Say,
    /// What is said of it; nothing of an answer that is good enough.
    reason: &'static str,
    /// It counts as a failure of the network.
    network: bool,
}

const WEB: &str = "http_health_check: {path: /hc}";
const BYTES: &str = "tcp_health_check: {send: {text: '50'}, receive: [{text: '504f4e47'}]}";
const GRPC: &str = "grpc_health_check: {}";
const HTTP2: &str = "typed_extension_protocol_options: {envoy.extensions.upstreams.http.v3.HttpProtocolOptions: {'@type': \
                     type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions, explicit_http_config: \
                     {http2_protocol_options: {}}}},";
const TLS: &str = "transport_socket: {name: tls, typed_config: {'@type': \
                   type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext}},";

const CASES: [Case; 18] = {
    const fn web(name: &'static str, say: Say, reason: &'static str) -> Case {
        Case { name, check: WEB, more: "", say, reason, network: !reason.is_empty() }
    }
    const fn bytes(name: &'static str, say: Say, reason: &'static str) -> Case {
        Case { name, check: BYTES, more: "", say, reason, network: true }
    }
    const fn grpc(name: &'static str, say: Say, reason: &'static str) -> Case {
        Case { name, check: GRPC, more: HTTP2, say, reason, network: true }
    }
    [
        // No more of it is kept than the check wants to see, which is nothing.
        web("web-huge", huge, ""),
        web("web-head", endless_head, "protocol error: too many headers"),
        web("web-line", endless_line, "protocol error: headers too large"),
        web("web-body", endless_body, "timeout"),
        web("web-interim", endless_interim, "protocol error: too many interim responses"),
        web("web-drip", |stream| drip(stream, b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"), "timeout"),
        web("web-noise", noise, "protocol error: malformed status line"),
        web("web-alert", alert, "protocol error: malformed status line"),
        Case { more: TLS, ..web("web-plain", plain, "TLS_error") },
        bytes(
            "bytes-huge",
            |stream| stream.write_all(&vec![b'x'; TEN_MEGABYTES]),
            "more came than can be what is expected",
        ),
        bytes("bytes-drip", |stream| drip(stream, b"PPPPPPPPPPPPPPPPPPPPPPPPPPPPPPPPPPPPP"), "timeout"),
        bytes("bytes-noise", noise, "closed before the expected bytes"),
        bytes("bytes-alert", alert, "closed before the expected bytes"),
        grpc("grpc-http1", huge, "protocol error"),
        grpc("grpc-noise", noise, "protocol error"),
        grpc("grpc-drip", |stream| drip(stream, &[0; 40]), "timeout"),
        // Too short to be a frame.
        grpc("grpc-alert", alert, "closed before an answer"),
        grpc("grpc-head", endless_head_block, "protocol error: http2.too_many_header_frames"),
    ]
};

fn asked(stream: &mut TcpStream) -> std::io::Result<()> {
    stream.read(&mut [0; 1024]).map(drop)
}

fn huge(stream: &mut TcpStream) -> std::io::Result<()> {
    asked(stream)?;
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10000000\r\n\r\n")?;
    stream.write_all(&vec![b'x'; TEN_MEGABYTES])?;
    asked(stream)
}

fn endless_head(stream: &mut TcpStream) -> std::io::Result<()> {
    asked(stream)?;
    stream.write_all(b"HTTP/1.1 200 OK\r\n")?;
    loop {
        stream.write_all(b"x-again: and again and again and again and again\r\n")?;
    }
}

fn endless_line(stream: &mut TcpStream) -> std::io::Result<()> {
    asked(stream)?;
    stream.write_all(b"HTTP/1.1 200 OK\r\nx-line: ")?;
    loop {
        stream.write_all(&[b'x'; 4096])?;
    }
}

fn endless_body(stream: &mut TcpStream) -> std::io::Result<()> {
    asked(stream)?;
    stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")?;
    let chunk = [&b"10000\r\n"[..], &[b'x'; 0x10000], b"\r\n"].concat();
    loop {
        stream.write_all(&chunk)?;
    }
}

fn endless_interim(stream: &mut TcpStream) -> std::io::Result<()> {
    asked(stream)?;
    loop {
        stream.write_all(b"HTTP/1.1 102 Processing\r\n\r\n")?;
    }
}

fn drip(stream: &mut TcpStream, bytes: &[u8]) -> std::io::Result<()> {
    for byte in bytes {
        stream.write_all(&[*byte])?;
        std::thread::sleep(Duration::from_secs(1));
    }
    Ok(())
}

fn noise(stream: &mut TcpStream) -> std::io::Result<()> {
    asked(stream)?;
    stream.write_all(&[0xff, 0, 0x80, 7, b'\n', 1, 2, 3].repeat(8))
}

/// As servers answer who does not speak TLS to them.
fn alert(stream: &mut TcpStream) -> std::io::Result<()> {
    asked(stream)?;
    stream.write_all(&[0x15, 3, 1, 0, 2, 2, 10])
}

/// As servers answer who does speak TLS to them, and should not.
fn plain(stream: &mut TcpStream) -> std::io::Result<()> {
    asked(stream)?;
    stream.write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
}

/// CONTINUATION without end.
fn endless_head_block(stream: &mut TcpStream) -> std::io::Result<()> {
    asked(stream)?;
    stream.write_all(&settings(&[]))?;
    stream.write_all(&frame(kind::HEADERS, 0, 1, &[0x88]))?;
    // A field without indexing: `a: a`.
    let more = frame(kind::CONTINUATION, 0, 1, &[0, 1, b'a', 1, b'a'].repeat(1000));
    loop {
        stream.write_all(&more)?;
    }
}

/// Says nothing until `speaks`.
fn server(say: Say, speaks: &Arc<AtomicBool>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, speaks) = (listener.local_addr().unwrap(), speaks.clone());
    let serve = move || {
        for mut stream in listener.incoming().flatten() {
            let speaks = speaks.load(Relaxed);
            let one = move || match speaks {
                true => drop(say(&mut stream)),
                false => drop(stream.read_to_end(&mut Vec::new())),
            };
            std::thread::Builder::new().spawn(one).unwrap();
        }
    };
    std::thread::Builder::new().spawn(serve).unwrap();
    address
}

/// A server of HTTP/2 as it should be, whose answer to everything has ten megabytes.
#[allow(clippy::disallowed_methods, reason = "a server that knows nothing of our threads")]
fn large_http2_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let serve = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            let answer = async |_: Request<Incoming>| Ok::<_, Infallible>(Response::new("x".repeat(TEN_MEGABYTES)));
            while let Ok((stream, _)) = listener.accept().await {
                let builder = http2::Builder::new(TokioExecutor::new());
                tokio::spawn(builder.serve_connection(TokioIo::new(stream), service_fn(answer)));
            }
        });
    };
    std::thread::Builder::new().spawn(serve).unwrap();
    address
}

fn cluster(Case { name, check, more, reason, .. }: &Case, at: SocketAddr) -> String {
    // As long as it takes on a busy machine, unless it is waited for.
    let timeout = if *reason == "timeout" { "0.3s" } else { "20s" };
    format!(
        "{{name: {name}, health_checks: [{{timeout: {timeout}, interval: 0.02s, no_traffic_interval: 0.02s, unhealthy_threshold: 1, \
         healthy_threshold: 1, {check}}}], {more} load_assignment: {{cluster_name: {name}, endpoints: [{{lb_endpoints: \
         [{{endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {}}}}}}}}}]}}]}}}},",
        at.port()
    )
}

fn run(clusters: &str) -> Process {
    let admin = "{address: {socket_address: {address: 127.0.0.1, port_value: 0}}}";
    Process::start(&format!("{{admin: {admin}, static_resources: {{clusters: [{clusters}]}}}}"))
}

#[test]
fn what_is_no_answer_is_counted_and_named_and_takes_no_memory() {
    let speaks = Arc::<AtomicBool>::default();
    let mut clusters: String = CASES.iter().map(|case| cluster(case, server(case.say, &speaks))).collect();
    let silence = {
        let process = run(&clusters);
        let attempts = "cluster.web-drip.health_check.attempt";
        process.until(attempts, |process| process.stat(attempts) > ASKED);
        process.peak()
    };
    speaks.store(true, Relaxed);
    let large = Case { name: "grpc-huge", reason: "no grpc-status", network: false, ..CASES[CASES.len() - 1] };
    clusters += &cluster(&large, large_http2_server());
    let process = run(&clusters);
    for case in CASES.iter().chain([&large]) {
        judge(&process, case);
    }
    let peak = process.peak();
    assert!(peak < silence + ROOM, "{} MiB, where silence took {} MiB", peak >> 20, silence >> 20);
}

fn judge(process: &Process, Case { name, check, reason, network, .. }: &Case) {
    let count = |what: &str| process.stat(&format!("cluster.{name}.health_check.{what}"));
    let (good, wanted) = (reason.is_empty(), if reason.is_empty() { "success" } else { "failure" });
    process.until(name, |_| count(wanted) > ASKED);
    let page = process.page(&format!("/health?cluster={name}"));
    assert_eq!(page.contains(": route since"), good, "{name}: {page}");
    if good {
        return;
    }
    assert_eq!(count("network_failure") > 0, *network, "{name}: {page}");
    let asked = match check.split('_').next() {
        Some("http") => "GET http://127.0.0.1:",
        Some("tcp") => "tcp 127.0.0.1:",
        _ => "grpc 127.0.0.1:",
    };
    let names_it = |text: &str| {
        let mut lines = text.lines();
        lines.any(|line| line.contains(name) && line.contains(asked) && line.contains(reason))
    };
    assert!(names_it(&page), "{name} ({reason}): {page}");
    process.until(&format!("{name} ({reason}) in the log"), |process| names_it(&process.log()));
}
