//! A request through the whole server costs its worker no allocation once it is warm: listener,
//! connection manager, route table, router, pool, both codecs and a text access log, over real
//! sockets. The clients and the upstream run on other threads, and each thread counts its own.
//!
//! `NUNCIO_TRACE_ALLOCATIONS=1` prints where the worker allocates while it should not.

// What fails ends the test.
#![allow(clippy::unwrap_used)]
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

#[path = "wire/running.rs"]
#[allow(dead_code)]
mod running;

use running::RunningProxy;

/// More threads than a test ever has.
const THREADS: usize = 64;

struct Counting;

/// A thread's place in the lists, from its first allocation on.
static NEXT: AtomicUsize = AtomicUsize::new(0);
static THREAD_IDS: [AtomicUsize; THREADS] = [const { AtomicUsize::new(0) }; THREADS];
static ALLOCATIONS: [AtomicUsize; THREADS] = [const { AtomicUsize::new(0) }; THREADS];
/// The place of the thread whose allocations are printed.
static TRACED: AtomicUsize = AtomicUsize::new(usize::MAX);
static TRACING: AtomicBool = AtomicBool::new(false);

thread_local! {
    static PLACE: Cell<usize> = const { Cell::new(usize::MAX) };
}

fn count() {
    let mut place = PLACE.get();
    if place == usize::MAX {
        place = NEXT.fetch_add(1, Relaxed);
        PLACE.set(place);
        if let Some(id) = THREAD_IDS.get(place) {
            id.store(nix::unistd::gettid().as_raw() as usize, Relaxed);
        }
    }
    if let Some(allocations) = ALLOCATIONS.get(place) {
        allocations.fetch_add(1, Relaxed);
    }
    if TRACED.load(Relaxed) == place && TRACING.swap(false, Relaxed) {
        eprintln!("allocation on the worker:\n{}", std::backtrace::Backtrace::force_capture());
        TRACING.store(true, Relaxed);
    }
}

// SAFETY: hands every call to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        unsafe { System.dealloc(pointer, layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The place of the thread of that name.
fn place(name: &str) -> usize {
    for task in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
        if std::fs::read_to_string(task.path().join("comm")).unwrap().trim_end() == name {
            let id: usize = task.file_name().to_str().unwrap().parse().unwrap();
            return THREAD_IDS.iter().position(|known| known.load(Relaxed) == id).unwrap();
        }
    }
    panic!("no thread {name}");
}

/// Bytes of a body that goes by a pipe.
const LARGE: usize = 64 * 1024;

/// Answers every request on every connection with the same response.
fn upstream() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serve = move || {
        for stream in listener.incoming().flatten() {
            std::thread::Builder::new().spawn(move || connection(stream)).unwrap();
        }
    };
    std::thread::Builder::new().spawn(serve).unwrap();
    address
}

fn connection(mut stream: TcpStream) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    while let Some((head, _)) = message(&mut reader) {
        let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n5\r\ndefgh\r\n0\r\n\r\n";
        let length = "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 8\r\n\r\nabcdefgh";
        if head.contains(" /large") {
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {LARGE}\r\n\r\n");
            stream.write_all(&[head.as_bytes(), &[b'x'; LARGE]].concat()).unwrap();
            continue;
        }
        let answer = if head.contains(" /chunked") { chunked } else { length };
        stream.write_all(answer.as_bytes()).unwrap();
    }
}

/// A head and how many bytes of body followed it; `None` at the end.
fn message(reader: &mut impl BufRead) -> Option<(String, usize)> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).unwrap() == 0 {
            return None;
        }
    }
    let lower = head.to_ascii_lowercase();
    if lower.contains("transfer-encoding: chunked") {
        let mut total = 0;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            let size = usize::from_str_radix(line.trim_end(), 16).unwrap();
            std::io::copy(&mut reader.take(size as u64 + 2), &mut std::io::sink()).unwrap();
            total += size;
            if size == 0 {
                return Some((head, total));
            }
        }
    }
    let length = lower.split_once("content-length: ").map_or("0", |(_, rest)| rest.split_once("\r\n").unwrap().0);
    let length: usize = length.parse().unwrap();
    std::io::copy(&mut reader.take(length as u64), &mut std::io::sink()).unwrap();
    Some((head, length))
}

const CONFIG: &str = r#"
admin: {address: {socket_address: {address: 127.0.0.1, port_value: 0}}}
static_resources:
  listeners:
  - name: in
    address: {socket_address: {address: 127.0.0.1, port_value: 0}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: in
          use_remote_address: true
          normalize_path: true
          stream_idle_timeout: 300s
          access_log:
          - name: file
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog
              path: @LOG@
          route_config:
            name: r
            request_headers_to_add:
            - header: {key: x-from, value: "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%"}
            response_headers_to_remove: [x-powered-by]
            virtual_hosts:
            - name: v
              domains: ["web.test", "*"]
              routes:
              - match: {path: /answer}
                direct_response: {status: 200, body: {inline_string: "here"}}
              - match: {safe_regex: {regex: "/[0-9]+/x"}}
                route: {cluster: up, timeout: 15s}
              - match: {prefix: "/retried"}
                route: {cluster: up, retry_policy: {retry_on: "5xx,reset", num_retries: 2, per_try_timeout: 5s}}
              - match: {prefix: "/split"}
                route: {weighted_clusters: {clusters: [{name: up, weight: 1}, {name: also, weight: 1}]}}
              - match: {prefix: "/old", headers: [{name: x-version, string_match: {exact: canary}}]}
                route: {cluster: up, prefix_rewrite: /new}
              - match: {prefix: "/"}
                route: {cluster: up, timeout: 15s}
                response_headers_to_add:
                - header: {key: x-served-by, value: "%UPSTREAM_HOST%"}
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
  clusters:
  - name: also
    type: STATIC
    lb_policy: LEAST_REQUEST
    load_assignment:
      cluster_name: also
      endpoints:
      - lb_endpoints:
        - endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: @PORT@}}}
  - name: up
    type: STATIC
    connect_timeout: 1s
    load_assignment:
      cluster_name: up
      endpoints:
      - lb_endpoints:
        - endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: @PORT@}}}
"#;

/// Warms up by the same requests, then counts. On a busy machine two things may come late: the log's
/// writer gives a buffer back, and a duration falls into a decade that its histogram had no page for
/// (once for each). So it is the best of some rounds that counts; what every request did, each shows.
fn allocations_of(proxy: &RunningProxy, request: &str, warm: usize, counted: usize) -> usize {
    let mut client = TcpStream::connect(proxy.socket("in")).unwrap();
    client.set_nodelay(true).unwrap();
    let mut reader = BufReader::new(client.try_clone().unwrap());
    let mut exchange = |n: usize| {
        for _ in 0..n {
            client.write_all(request.as_bytes()).unwrap();
            let (head, length) = message(&mut reader).unwrap();
            assert!(head.starts_with("HTTP/1.1 200 OK") && length > 0, "{head}");
        }
    };
    exchange(warm);
    // By now it has a name, which a thread gives itself.
    let worker = place("wrk:0");
    TRACED.store(worker, Relaxed);
    let mut least = usize::MAX;
    for _ in 0..10 {
        TRACING.store(std::env::var_os("NUNCIO_TRACE_ALLOCATIONS").is_some(), Relaxed);
        let before = ALLOCATIONS[worker].load(Relaxed);
        exchange(counted);
        TRACING.store(false, Relaxed);
        least = least.min(ALLOCATIONS[worker].load(Relaxed) - before);
        if least == 0 {
            break;
        }
    }
    least
}

#[test]
fn a_warm_request_allocates_nothing_on_its_worker() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("access.log");
    let config = CONFIG.replace("@PORT@", &upstream().port().to_string()).replace("@LOG@", log.to_str().unwrap());
    let proxy = RunningProxy::start(&config, 1);
    let post = format!("POST / HTTP/1.1\r\nhost: web.test\r\ncontent-length: 5000\r\n\r\n{}", "x".repeat(5000));
    let large = format!("POST / HTTP/1.1\r\nhost: web.test\r\ncontent-length: {LARGE}\r\n\r\n{}", "x".repeat(LARGE));
    let requests = [
        ("GET", "GET /some/path?a=b HTTP/1.1\r\nhost: web.test\r\nuser-agent: test\r\naccept: */*\r\n\r\n"),
        ("own answer", "GET /answer HTTP/1.1\r\nhost: web.test\r\n\r\n"),
        ("regex", "GET /1234/x HTTP/1.1\r\nhost: web.test\r\n\r\n"),
        ("rewrite", "GET /old/x HTTP/1.1\r\nhost: web.test\r\nx-version: canary\r\n\r\n"),
        ("retry policy", "GET /retried HTTP/1.1\r\nhost: web.test\r\n\r\n"),
        ("weighted clusters", "GET /split HTTP/1.1\r\nhost: web.test\r\n\r\n"),
        ("chunked response", "GET /chunked HTTP/1.1\r\nhost: web.test\r\n\r\n"),
        ("body", &post),
        ("large body", &large),
        ("large response", "GET /large HTTP/1.1\r\nhost: web.test\r\n\r\n"),
        (
            "chunked body",
            "POST / HTTP/1.1\r\nhost: web.test\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n",
        ),
    ];
    // More than two buffers of the log (64 KiB each) hold, so that none has to grow any more.
    let mut warm = 1000;
    let mut found = Vec::new();
    for (name, request) in requests {
        let counted = 100;
        let allocations = allocations_of(&proxy, request, warm, counted);
        if allocations > 0 {
            found.push(format!("{name}: {allocations} allocations in {counted} requests"));
        }
        warm = 20;
    }
    assert!(found.is_empty(), "{found:#?}");
}
