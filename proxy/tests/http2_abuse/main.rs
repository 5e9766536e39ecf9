//! Clients of HTTP/2 that cost more than they should, against a whole proxy: rows R29 to R37 of the
//! table of adversarial inputs, and the stalls of §2.2. What must hold for each: the connection ends
//! or is held back as listed, the memory that one connection takes stays small, and a well-behaved
//! client beside it sees no error, and 99 of 100 answers within five times what they take in quiet times.
//!
//! The allocator counts what the whole process holds, so these tests run one after the other.

// What fails ends the test.
#![allow(clippy::unwrap_used)]
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicIsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use tokio::time::Instant;

mod fields;
mod floods;
mod messages;
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
    /// The neighbour's own: what the attack sends upstream keeps the other's one thread busy, and that is the test's.
    _quiet: Upstream,
    /// What 99 of 100 answers take in quiet times.
    quiet: Duration,
    _alone: MutexGuard<'static, ()>,
}

/// What an attack cost.
struct Cost {
    /// More than before at its worst, the client's own bytes included.
    bytes: isize,
    took: Duration,
}

/// Of answers in quiet times: enough that the slowest hundredth is more than chance.
const QUIET: usize = 1000;
/// What a quiet time is at least taken for. A request of the neighbour wakes four threads one after the other (worker,
/// upstream, worker, its own) on a machine whose two processors the attacker's own thread and other programs use too.
/// Each of the four may have to wait for the rest of somebody's slice, which the kernel makes up to 3 ms long.
/// Without optimisation a hundred of the largest heads at once (R37) keep the worker and the attack's upstream busy for a
/// second on a machine that does other things too: there only a standstill shows, and the figure is one of release builds.
const SLICES: Duration = Duration::from_millis(if cfg!(debug_assertions) { 200 } else { 1 } * 4 * 3);

impl House {
    /// `manager` is put among the fields of the connection manager.
    fn new(manager: &str) -> Self {
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let (upstream, own) = (Upstream::start(), Upstream::start());
        let configuration = configuration(upstream.address, manager, &neighbours(own.address));
        let to_own = r#"routes: [{match: {prefix: "/neighbour"}, route: {cluster: own}}, "#;
        let proxy = RunningProxy::start(&configuration.replacen("routes: [", to_own, 1), 1);
        // Also warms everything that is made once.
        let quiet = Neighbour::quiet(&proxy);
        Self { proxy, upstream, _quiet: own, quiet, _alone: alone }
    }

    /// Runs the attack, beside a client that wants nothing but answers.
    async fn beside<T>(&self, attack: impl Future<Output = T>) -> (T, Cost) {
        let neighbour = Neighbour::start(&self.proxy);
        let (before, began) = (LIVE.load(Relaxed), Instant::now());
        PEAK.store(before, Relaxed);
        let came = stage::within("the attack", attack).await;
        let took = began.elapsed();
        let bytes = PEAK.load(Relaxed) - before;
        let answers = neighbour.stop();
        // Not what came before it or after it.
        let meanwhile = answers.into_iter().filter(|(asked, took)| *asked + *took >= began);
        let slow = p99(meanwhile.map(|(_, took)| took).collect());
        if slow > self.allowed(self.quiet) {
            // Perhaps other programs have begun to use the machine.
            let quiet = self.quiet.max(Neighbour::quiet(&self.proxy));
            assert!(slow <= self.allowed(quiet), "the neighbour waited {slow:?}, in quiet times {quiet:?}");
        }
        (came, Cost { bytes, took })
    }

    fn allowed(&self, quiet: Duration) -> Duration {
        (5 * quiet).max(SLICES)
    }
}

/// A cluster `own`, to stand behind another.
fn neighbours(address: SocketAddr) -> String {
    let socket = format!("{{address: {}, port_value: {}}}", address.ip(), address.port());
    format!(
        "\n  - name: own\n    load_assignment: {{cluster_name: own, endpoints: [{{lb_endpoints: [{{endpoint: {{address: \
         {{socket_address: {socket}}}}}}}]}}]}}"
    )
}

/// The slowest of the fastest 99 of 100.
fn p99(mut latencies: Vec<Duration>) -> Duration {
    latencies.sort();
    latencies[latencies.len() * 99 / 100]
}

/// A well-behaved client of HTTP/1: any error fails the test.
struct Neighbour {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<Vec<(Instant, Duration)>>,
}

impl Neighbour {
    /// On a thread of its own, from its first answer on.
    fn start(proxy: &RunningProxy) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (tell, told) = mpsc::channel();
        let (stopped, mut asking) = (stop.clone(), Asking::new(proxy));
        // What it remembers is not to be taken for the proxy's.
        let mut answers = Vec::with_capacity(1 << 16);
        let run = move || {
            asking.ask();
            tell.send(()).unwrap();
            loop {
                answers.push((Instant::now(), asking.ask()));
                if stopped.load(Relaxed) || answers.len() == answers.capacity() {
                    return answers;
                }
            }
        };
        let thread = std::thread::Builder::new().name("neighbour".into()).spawn(run).unwrap();
        told.recv().unwrap();
        Self { stop, thread }
    }

    /// When each of its requests began, and what it took.
    fn stop(self) -> Vec<(Instant, Duration)> {
        self.stop.store(true, Relaxed);
        self.thread.join().unwrap()
    }

    fn quiet(proxy: &RunningProxy) -> Duration {
        let mut asking = Asking::new(proxy);
        p99((0..QUIET).map(|_| asking.ask()).collect())
    }
}

/// A connection that asks and waits.
struct Asking(std::net::TcpStream);

impl Asking {
    fn new(proxy: &RunningProxy) -> Self {
        let stream = std::net::TcpStream::connect(proxy.socket("in")).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        Self(stream)
    }

    fn ask(&mut self) -> Duration {
        use std::io::{Read, Write};
        // Not the load, only a witness.
        std::thread::sleep(Duration::from_micros(300));
        let (began, mut buffer, mut got) = (Instant::now(), [0; 4096], 0);
        self.0.write_all(b"GET /neighbour HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
        while !buffer[..got].ends_with(b"\r\n\r\nbody") {
            let n = self.0.read(&mut buffer[got..]).unwrap();
            assert!(n > 0, "the neighbour was closed");
            got += n;
        }
        assert!(buffer.starts_with(b"HTTP/1.1 200 OK"));
        began.elapsed()
    }
}
