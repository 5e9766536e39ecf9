//! Clients of HTTP/2 that cost more than they should, against a whole proxy: rows R29 to R37 of the
//! table of adversarial inputs, and the stalls of §2.2. What must hold for each: the connection ends
//! or is held back as listed, the memory that one connection takes stays small, and a well-behaved
//! client beside it sees no error and no long waits.
//!
//! The allocator counts what the whole process holds, so these tests run one after the other.

// What fails ends the test.
#![allow(clippy::unwrap_used)]
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicIsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

mod fields;
mod floods;
#[path = "../wire/running.rs"]
#[allow(dead_code)]
mod running;
#[path = "../http2/stage.rs"]
#[allow(dead_code)]
mod stage;
mod stalls;
#[path = "../http2/strict.rs"]
#[allow(dead_code)]
mod strict;

use running::RunningProxy;
use stage::{Upstream, configuration};

const MIB: isize = 1 << 20;

struct Counting;

/// Bytes that are allocated now, and the most since it was last asked.
static LIVE: AtomicIsize = AtomicIsize::new(0);
static PEAK: AtomicIsize = AtomicIsize::new(0);

fn count(bytes: isize) {
    let live = LIVE.fetch_add(bytes, Relaxed) + bytes;
    PEAK.fetch_max(live, Relaxed);
}

// SAFETY: hands every call to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        unsafe { System.dealloc(pointer, layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize - layout.size() as isize);
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A proxy before one upstream, alone in the process.
struct House {
    proxy: RunningProxy,
    upstream: Upstream,
    quiet: Duration,
    _alone: MutexGuard<'static, ()>,
}

/// What an attack cost.
struct Cost {
    /// More than before at its worst, the client's own bytes included.
    bytes: isize,
    took: Duration,
}

impl House {
    /// `manager` is put among the fields of the connection manager.
    fn new(manager: &str) -> Self {
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let upstream = Upstream::start();
        let proxy = RunningProxy::start(&configuration(upstream.address, manager, ""), 1);
        // Also warms everything that is made once.
        let mut latencies = Neighbour::start(&proxy).stop();
        latencies.sort();
        let quiet = latencies[latencies.len() * 99 / 100];
        upstream.take();
        Self { proxy, upstream, quiet, _alone: alone }
    }

    /// Runs the attack, beside a client that wants nothing but answers.
    async fn beside<T>(&self, attack: impl Future<Output = T>) -> (T, Cost) {
        let neighbour = Neighbour::start(&self.proxy);
        let (before, began) = (LIVE.load(Relaxed), Instant::now());
        PEAK.store(before, Relaxed);
        let came = stage::within("the attack", attack).await;
        let took = began.elapsed();
        let bytes = PEAK.load(Relaxed) - before;
        let mut latencies = neighbour.stop();
        latencies.sort();
        let slow = latencies[latencies.len() * 99 / 100];
        // A machine that is busy with other things delays a few answers too.
        let allowed = 5 * self.quiet.max(Duration::from_millis(50));
        assert!(slow <= allowed, "the neighbour waited {slow:?}, in quiet times {:?}", self.quiet);
        (came, Cost { bytes, took })
    }
}

/// A well-behaved client of HTTP/1 on a thread of its own: any error fails the test.
struct Neighbour {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<Vec<Duration>>,
}

impl Neighbour {
    fn start(proxy: &RunningProxy) -> Self {
        use std::io::{Read, Write};
        let (stop, address) = (Arc::new(AtomicBool::new(false)), proxy.socket("in"));
        let stopped = stop.clone();
        let mut latencies = Vec::with_capacity(1 << 16);
        let run = move || {
            let mut stream = std::net::TcpStream::connect(address).unwrap();
            stream.set_nodelay(true).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            let mut buffer = [0; 4096];
            while !stopped.load(Relaxed) || latencies.len() < 200 {
                let began = Instant::now();
                stream.write_all(b"GET /neighbour HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
                let mut got = 0;
                while !buffer[..got].ends_with(b"\r\n\r\nbody") {
                    let n = stream.read(&mut buffer[got..]).unwrap();
                    assert!(n > 0, "the neighbour was closed");
                    got += n;
                }
                assert!(buffer.starts_with(b"HTTP/1.1 200 OK"));
                latencies.push(began.elapsed());
                // Not the load, only a witness.
                std::thread::sleep(Duration::from_micros(300));
            }
            latencies
        };
        Self { stop, thread: std::thread::Builder::new().name("neighbour".into()).spawn(run).unwrap() }
    }

    /// What each of its requests took; at least 200 are made.
    fn stop(self) -> Vec<Duration> {
        self.stop.store(true, Relaxed);
        self.thread.join().unwrap()
    }
}
