//! Bodies of known length that pass by a pipe, over real sockets: whole, in order, and told of like any others.

// Clients and upstreams of real sockets, on threads of their own.
#![allow(clippy::disallowed_methods)]

use std::fmt::Debug;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use crate::process::Process;
use crate::running::{RunningProxy, web};
use crate::safety::head;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
/// What is worth a pipe, and what is read with a head.
const WORTH_IT: usize = 48 * KIB;
const HEAD_READ: usize = 8 * KIB;

/// Bytes that tell every place from every other, and one body from the next.
fn pattern(length: usize) -> Vec<u8> {
    let mut seed = 0x9e37_79b9_u32 ^ length as u32;
    let next = std::iter::from_fn(|| {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        Some((seed >> 24) as u8)
    });
    next.take(length).collect()
}

fn field<'h>(head: &'h str, name: &str) -> Option<&'h str> {
    head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

/// A head and the body that it promises.
fn message(stream: &mut TcpStream) -> Option<(String, Vec<u8>)> {
    let head = head(stream)?;
    let length = field(&head, "content-length").map_or(0, |n| n.parse().unwrap());
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    Some((head, body))
}

/// Answers with the body that came, or with as many bytes as the path says, and tells the number of its connection.
fn upstream() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let connections = AtomicUsize::new(0);
    let serve = move |mut stream: TcpStream, number: usize| {
        while let Some((head, body)) = message(&mut stream) {
            let asked = head.split('/').nth(1).and_then(|path| path.split(' ').next()?.parse().ok());
            let body = asked.map_or(body, pattern);
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nx-connection: {number}\r\n\r\n", body.len());
            if stream.write_all(&[head.as_bytes(), &body].concat()).is_err() {
                return;
            }
        }
    };
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let number = connections.fetch_add(1, Relaxed);
            thread::spawn(move || serve(stream, number));
        }
    });
    address
}

fn cluster(name: &str, to: SocketAddr, more: &str) -> String {
    let address = format!("socket_address: {{address: {}, port_value: {}}}", to.ip(), to.port());
    format!(
        "- {{name: {name}, {more}load_assignment: {{cluster_name: {name}, endpoints: [{{lb_endpoints: [{{endpoint: \
         {{address: {{{address}}}}}}}]}}]}}}}\n"
    )
}

fn to(upstream: SocketAddr) -> String {
    web("route: {cluster: up}", "", &cluster("up", upstream, ""))
}

fn get(client: &mut TcpStream, path: &str) -> (String, Vec<u8>) {
    write!(client, "GET {path} HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
    message(client).unwrap()
}

fn post(client: &mut TcpStream, body: &[u8]) -> (String, Vec<u8>) {
    let head = format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n", body.len());
    client.write_all(&[head.as_bytes(), body].concat()).unwrap();
    message(client).unwrap()
}

#[test]
fn bodies_of_every_length_pass_whole_both_ways_and_both_connections_stay() {
    let proxy = RunningProxy::start(&to(upstream()), 1);
    let mut client = TcpStream::connect(proxy.socket("web")).unwrap();
    let edges = [WORTH_IT, HEAD_READ, HEAD_READ + WORTH_IT, 64 * KIB, 256 * KIB];
    let around = edges.iter().flat_map(|n| [n - 200, n - 1, *n, n + 1]);
    for length in [0, 1].into_iter().chain(around).chain([MIB + 3, 8 * MIB, 64 * KIB, 1]) {
        let body = pattern(length);
        let (head, got) = post(&mut client, &body);
        assert!(got == body && field(&head, "x-connection") == Some("0"), "{length} there and back: {head}");
        let (head, got) = get(&mut client, &format!("/{length}"));
        assert!(got == body && field(&head, "x-connection") == Some("0"), "{length}: {head}");
    }
}

/// A worker keeps a pipe for the next one, where its process shows it.
#[test]
fn a_large_body_takes_a_pipe_in_either_direction_and_a_small_one_does_not() {
    for (large, small) in [("/65536", "/20000"), ("/8388608", "/1")] {
        let process = Process::start(&to(upstream()));
        let mut client = TcpStream::connect(process.listener("web")).unwrap();
        let before = process.pipes();
        assert_eq!(get(&mut client, small).0.lines().next(), Some("HTTP/1.1 200 OK"));
        assert_eq!(process.pipes(), before, "{small}");
        // A connection's first body may be read together with its head.
        for _ in 0..3 {
            get(&mut client, large);
        }
        assert_eq!(process.pipes(), before + 1, "{large}");
    }
    // What answers is short.
    let process = Process::start(&to(counting()));
    let mut client = TcpStream::connect(process.listener("web")).unwrap();
    let before = process.pipes();
    for (length, pipes) in [(20_000, 0), (64 * KIB, 1), (8 * MIB, 1)] {
        for _ in 0..3 {
            assert_eq!(post(&mut client, &pattern(length)).1, length.to_string().as_bytes());
        }
        assert_eq!(process.pipes(), before + pipes, "{length}");
    }
}

/// Answers with the length of what came.
fn counting() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            thread::spawn(move || {
                while let Some((_, body)) = message(&mut stream) {
                    let length = body.len().to_string();
                    let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{length}", length.len());
                    stream.write_all(answer.as_bytes()).unwrap();
                }
            });
        }
    });
    address
}

const TYPE: &str = "type.googleapis.com/envoy.extensions.filters.http";

/// Whoever wants to see a body sees it: a filter, a retry that would send it again, a mirror's copy, a limit of what may
/// be held that is too small.
#[test]
fn who_wants_to_see_a_body_keeps_it_from_the_pipe() {
    let up = cluster("up", upstream(), "");
    let compressor = format!(
        "- name: c\n  typed_config: {{\"@type\": {TYPE}.compressor.v3.Compressor, compressor_library: {{name: g, \
         typed_config: {{\"@type\": type.googleapis.com/envoy.extensions.compression.gzip.compressor.v3.Gzip}}}}}}"
    );
    let filtered = web("route: {cluster: up}", &compressor, &up);
    let limited = web("route: {cluster: up}", "", &up)
        .replace("  - name: web\n", "  - name: web\n    per_connection_buffer_limit_bytes: 1024\n");
    for (what, yaml) in [("filter", &filtered), ("limit", &limited)] {
        let process = Process::start(yaml);
        let mut client = TcpStream::connect(process.listener("web")).unwrap();
        let before = process.pipes();
        for _ in 0..3 {
            assert!(get(&mut client, "/1048576").1 == pattern(MIB), "{what}");
        }
        assert_eq!(process.pipes(), before, "{what}");
    }
    let buffer =
        format!("- name: b\n  typed_config: {{\"@type\": {TYPE}.buffer.v3.Buffer, max_request_bytes: 2097152}}");
    let retried = "route: {cluster: up, retry_policy: {retry_on: 5xx}}";
    let mirrored = "route: {cluster: up, request_mirror_policies: [{cluster: copy}]}";
    let up = cluster("up", counting(), "");
    let both = up.clone() + &cluster("copy", counting(), "");
    for (what, yaml) in [
        ("filter", web("route: {cluster: up}", &buffer, &up)),
        ("retry", web(retried, "", &up)),
        ("mirror", web(mirrored, "", &both)),
    ] {
        let process = Process::start(&yaml);
        let mut client = TcpStream::connect(process.listener("web")).unwrap();
        let before = process.pipes();
        for _ in 0..3 {
            assert_eq!(post(&mut client, &pattern(MIB)).1, b"1048576", "{what}");
        }
        assert_eq!(process.pipes(), before, "{what}");
    }
}

#[test]
fn what_follows_a_body_on_its_connection_is_the_next_request() {
    let proxy = RunningProxy::start(&to(upstream()), 1);
    let mut client = TcpStream::connect(proxy.socket("web")).unwrap();
    for length in [64 * KIB, MIB + 3] {
        let body = pattern(length);
        let first = format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n");
        let both = [first.as_bytes(), &body, b"GET /70000 HTTP/1.1\r\nhost: a\r\n\r\n"].concat();
        thread::scope(|scope| {
            let mut writer = client.try_clone().unwrap();
            scope.spawn(move || writer.write_all(&both).unwrap());
            assert!(message(&mut client).unwrap().1 == body, "{length}");
            assert!(message(&mut client).unwrap().1 == pattern(70_000), "{length}");
        });
    }
}

/// Nobody may take what an upstream sends beyond its body for the answer to the next request.
#[test]
fn an_upstream_that_sends_too_much_is_not_used_again() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = RunningProxy::start(&to(listener.local_addr().unwrap()), 1);
    let mut client = TcpStream::connect(proxy.socket("web")).unwrap();
    for length in [64 * KIB, MIB] {
        let body = pattern(length);
        let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n");
        let too_much = [answer.as_bytes(), &body, b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil"].concat();
        thread::scope(|scope| {
            let serving = scope.spawn(|| {
                let (mut server, _) = listener.accept().unwrap();
                head(&mut server).unwrap();
                server.write_all(&too_much).unwrap();
                // The other end closes it, with or without these bytes read.
                let _ = server.read(&mut [0]);
            });
            assert!(get(&mut client, "/").1 == body, "{length}");
            serving.join().unwrap();
        });
        thread::scope(|scope| {
            scope.spawn(|| {
                let (mut server, _) = listener.accept().unwrap();
                head(&mut server).unwrap();
                server.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\nconnection: close\r\n\r\ngood").unwrap();
            });
            assert_eq!(get(&mut client, "/").1, b"good");
        });
    }
}

/// Writes until nothing more is taken for a while, and tells how much was.
fn fill(stream: &mut TcpStream, bytes: &[u8]) -> usize {
    stream.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
    let mut sent = 0;
    while let Ok(n) = stream.write(&bytes[sent..]) {
        sent += n;
        assert!(sent < bytes.len(), "somebody swallows it all");
    }
    stream.set_write_timeout(None).unwrap();
    sent
}

#[test]
fn who_does_not_read_stops_the_sender_and_gets_everything_later() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = RunningProxy::start(&to(listener.local_addr().unwrap()), 1);
    let mut client = TcpStream::connect(proxy.socket("web")).unwrap();
    let body = pattern(48 * MIB);
    let length = body.len();
    write!(client, "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n").unwrap();
    let (server, _) = listener.accept().unwrap();
    let there = (client.try_clone().unwrap(), server.try_clone().unwrap());
    for (mut from, mut to) in [there, (server, client)] {
        let sent = fill(&mut from, &body);
        let mut got = vec![0; length];
        thread::scope(|scope| {
            let rest = &body[sent..];
            scope.spawn(move || from.write_all(rest).unwrap());
            head(&mut to).unwrap();
            to.read_exact(&mut got).unwrap();
        });
        assert!(got == body);
        // The way back: its head goes first.
        let _ = write!(to, "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n");
    }
}

// === failures, and what is told of them ===

/// The same with pipes and without: what the client sees, the access log, and what was counted.
fn told_alike<T: Debug + PartialEq>(scene: impl Fn(SocketAddr, &TcpListener) -> T) -> (T, String) {
    let run = |limit: &str| {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let logged = format!(
            "stat_prefix: web\n          access_log: [{{name: f, typed_config: {{\"@type\": \
             type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog, path: {}, log_format: \
             {{text_format_source: {{inline_string: \"%RESPONSE_CODE% %RESPONSE_FLAGS% %RESPONSE_CODE_DETAILS% \
             %BYTES_RECEIVED% %BYTES_SENT% %UPSTREAM_WIRE_BYTES_SENT% %UPSTREAM_WIRE_BYTES_RECEIVED%\\n\"}}}}}}}}]",
            log.display()
        );
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let yaml = to(listener.local_addr().unwrap());
        let yaml =
            yaml.replace("stat_prefix: web", &logged).replace("  - name: web\n", &format!("  - name: web\n{limit}"));
        let proxy = RunningProxy::start(&yaml, 1);
        let seen = scene(proxy.socket("web"), &listener);
        drop(proxy);
        (seen, std::fs::read_to_string(log).unwrap())
    };
    let piped = run("");
    assert_eq!(piped, run("    per_connection_buffer_limit_bytes: 1024\n"), "by pipe, and read");
    piped
}

fn to_end(mut stream: TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    let _ = stream.read_to_end(&mut all);
    all
}

const LENGTH: usize = MIB;

#[test]
fn an_upstream_that_closes_within_a_body_cuts_the_answer() {
    let (got, log) = told_alike(|proxy, listener| {
        let mut client = TcpStream::connect(proxy).unwrap();
        write!(client, "GET / HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
        let (mut server, _) = listener.accept().unwrap();
        head(&mut server).unwrap();
        write!(server, "HTTP/1.1 200 OK\r\ncontent-length: {LENGTH}\r\n\r\n").unwrap();
        server.write_all(&pattern(LENGTH)[..LENGTH / 2]).unwrap();
        drop(server);
        head(&mut client).unwrap();
        to_end(client).len()
    });
    assert_eq!(got, LENGTH / 2);
    assert!(log.starts_with("200 UPE "), "{log}");
}

#[test]
fn a_client_that_leaves_within_its_request_is_told_of_as_ever() {
    let (got, log) = told_alike(|proxy, listener| {
        let mut client = TcpStream::connect(proxy).unwrap();
        write!(client, "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {LENGTH}\r\n\r\n").unwrap();
        client.write_all(&pattern(LENGTH)[..LENGTH / 2]).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        head(&mut server).unwrap();
        to_end(server).len()
    });
    assert_eq!(got, LENGTH / 2);
    assert!(log.starts_with("0 DC downstream_remote_disconnect 524288 0"), "{log}");
}

#[test]
fn a_client_that_leaves_within_the_answer_ends_it() {
    let ((), log) = told_alike(|proxy, listener| {
        let mut client = TcpStream::connect(proxy).unwrap();
        write!(client, "GET / HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
        let (mut server, _) = listener.accept().unwrap();
        head(&mut server).unwrap();
        write!(server, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", 64 * MIB).unwrap();
        server.write_all(&pattern(LENGTH)).unwrap();
        head(&mut client).unwrap();
        client.read_exact(&mut vec![0; LENGTH]).unwrap();
        drop(client);
        // What cannot be delivered any more is not read for ever.
        while server.write_all(&pattern(LENGTH)).is_ok() {}
    });
    assert!(log.starts_with("200 DC downstream_remote_disconnect 0 "), "{log}");
}

/// One whose first half has come to the upstream.
fn half_a_request(proxy: SocketAddr, listener: &TcpListener) -> (TcpStream, TcpStream) {
    let mut client = TcpStream::connect(proxy).unwrap();
    write!(client, "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {LENGTH}\r\n\r\n").unwrap();
    client.write_all(&pattern(LENGTH)[..LENGTH / 2]).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    head(&mut server).unwrap();
    server.read_exact(&mut vec![0; LENGTH / 2]).unwrap();
    (client, server)
}

#[test]
fn an_upstream_that_leaves_within_the_request_is_told_of_as_ever() {
    let (got, log) = told_alike(|proxy, listener| {
        let (mut client, server) = half_a_request(proxy, listener);
        drop(server);
        head(&mut client).unwrap().lines().next().unwrap().to_owned()
    });
    assert_eq!(got, "HTTP/1.1 503 Service Unavailable");
    assert!(log.starts_with("503 UC upstream_reset_before_response_started{connection_termination} 524288 "), "{log}");
}

#[test]
fn an_answer_before_the_end_of_the_request_is_heard() {
    let (got, log) = told_alike(|proxy, listener| {
        let (mut client, mut server) = half_a_request(proxy, listener);
        write!(server, "HTTP/1.1 413 Payload Too Large\r\ncontent-length: 3\r\n\r\ntoo").unwrap();
        message(&mut client).unwrap().1
    });
    assert_eq!(got, b"too");
    assert!(log.starts_with("413 - via_upstream 524288 3 "), "{log}");
}

#[test]
fn a_whole_exchange_is_told_of_alike() {
    let ((), log) = told_alike(|proxy, listener| {
        let mut client = TcpStream::connect(proxy).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                let (mut server, _) = listener.accept().unwrap();
                for _ in 0..3 {
                    let (_, body) = message(&mut server).unwrap();
                    write!(server, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len()).unwrap();
                    server.write_all(&body).unwrap();
                }
            });
            for length in [64 * KIB, 300, MIB + 3] {
                assert!(post(&mut client, &pattern(length)).1 == pattern(length));
            }
        });
    });
    assert!(log.contains("200 - via_upstream 1048579 1048579 "), "{log}");
}
