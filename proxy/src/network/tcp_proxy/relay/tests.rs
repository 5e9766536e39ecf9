//! A direction between two ends that do as they are told.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::IoSlice;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Wake, Waker};

use nuncio_core::net::Stream;

use super::*;

#[derive(Default)]
struct Script {
    reads: VecDeque<io::Result<Vec<u8>>>,
    /// Reads never block.
    endless: bool,
    /// How much is taken before writes block.
    room: usize,
    written: Vec<u8>,
    shut: bool,
    broken: bool,
}

#[derive(Clone, Default)]
struct End(Rc<RefCell<Script>>);

impl End {
    fn io(&self) -> Io {
        Io::Other(Box::new(self.clone()))
    }

    fn sends(&self, bytes: &[u8]) {
        self.0.borrow_mut().reads.push_back(Ok(bytes.to_vec()));
    }

    fn taking(room: usize) -> Self {
        let end = Self::default();
        end.0.borrow_mut().room = room;
        end
    }
}

impl Stream for End {
    fn poll_read(&mut self, _: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut script = self.0.borrow_mut();
        if script.endless {
            return Poll::Ready(Ok(buf.len()));
        }
        match script.reads.pop_front() {
            None => Poll::Pending,
            Some(Err(e)) => Poll::Ready(Err(e)),
            Some(Ok(mut bytes)) => {
                let n = bytes.len().min(buf.len());
                buf[..n].copy_from_slice(&bytes[..n]);
                if n < bytes.len() {
                    script.reads.push_front(Ok(bytes.split_off(n)));
                }
                Poll::Ready(Ok(n))
            }
        }
    }

    fn poll_write(&mut self, _: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let mut script = self.0.borrow_mut();
        if script.broken {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let n = bufs[0].len().min(script.room);
        if n == 0 {
            return Poll::Pending;
        }
        script.room -= n;
        script.written.extend_from_slice(&bufs[0][..n]);
        Poll::Ready(Ok(n))
    }

    fn poll_flush(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.borrow_mut().shut = true;
        Poll::Ready(Ok(()))
    }

    fn poll_read_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Relaxed);
    }
}

struct Bench {
    from: End,
    to: End,
    direction: Direction,
    buffers: Buffers,
    limit: usize,
    wakes: Arc<Wakes>,
}

impl Bench {
    fn new(from: End, to: End) -> Self {
        let (direction, buffers) = (Direction::default(), Buffers::default());
        Self { from, to, direction, buffers, limit: 1 << 20, wakes: Arc::default() }
    }

    fn poll(&mut self) -> (Result<(), Failed>, Moved) {
        let waker = Waker::from(self.wakes.clone());
        let lent = Lent { buffers: &self.buffers, limit: self.limit };
        let mut moved = Moved::default();
        let (mut from, mut to) = (self.from.io(), self.to.io());
        let result = self.direction.poll(&mut from, &mut to, &mut Context::from_waker(&waker), &lent, &mut moved);
        (result, moved)
    }
}

#[test]
fn bytes_pass_and_then_the_end() {
    let mut bench = Bench::new(End::default(), End::taking(1 << 20));
    bench.from.sends(b"abc");
    bench.from.sends(b"");
    let (result, moved) = bench.poll();
    result.unwrap();
    assert_eq!(moved, Moved { read: 3, written: 3, paused: false, resumed: false });
    assert_eq!(bench.to.0.borrow().written, b"abc");
    assert!(bench.to.0.borrow().shut && bench.direction.is_done());
}

#[test]
fn no_more_than_one_read_is_held_while_the_other_side_takes_nothing() {
    let mut bench = Bench::new(End::default(), End::taking(10));
    bench.limit = 100;
    bench.from.sends(&[7; 1000]);
    let (result, moved) = bench.poll();
    result.unwrap();
    assert_eq!(moved, Moved { read: 100, written: 10, paused: true, resumed: false });
    assert_eq!(bench.direction.held(), 90);
    let (result, moved) = bench.poll();
    result.unwrap();
    assert_eq!(moved, Moved::default(), "still paused, told once, nothing read");
    bench.to.0.borrow_mut().room = 100;
    let (result, moved) = bench.poll();
    result.unwrap();
    assert_eq!((moved.read, moved.written, moved.paused, moved.resumed), (100, 100, true, true));
    assert_eq!(bench.direction.held(), 90);
}

#[test]
fn the_end_waits_for_what_is_held() {
    let mut bench = Bench::new(End::default(), End::taking(1));
    bench.from.sends(b"ab");
    bench.from.sends(b"");
    bench.poll().0.unwrap();
    assert!(!bench.to.0.borrow().shut);
    bench.to.0.borrow_mut().room = 1;
    bench.poll().0.unwrap();
    assert_eq!(bench.to.0.borrow().written, b"ab");
    assert!(bench.to.0.borrow().shut && bench.direction.is_done());
}

#[test]
fn it_is_told_which_side_failed() {
    let mut bench = Bench::new(End::default(), End::taking(10));
    bench.from.0.borrow_mut().reads.push_back(Err(io::ErrorKind::ConnectionReset.into()));
    assert!(matches!(bench.poll().0, Err(Failed::Reading(_))));
    let mut bench = Bench::new(End::default(), End::default());
    bench.to.0.borrow_mut().broken = true;
    bench.from.sends(b"a");
    assert!(matches!(bench.poll().0, Err(Failed::Writing(_))));
}

#[test]
fn a_source_that_never_stops_lets_others_have_their_turn() {
    let mut bench = Bench::new(End::default(), End::taking(usize::MAX));
    bench.limit = 10;
    bench.from.0.borrow_mut().endless = true;
    let (result, moved) = bench.poll();
    result.unwrap();
    assert_eq!(moved.read, 10 * ROUNDS as u64);
    assert_eq!(bench.wakes.0.load(Relaxed), 1);
}

#[test]
fn bytes_read_before_go_first() {
    let mut bench = Bench::new(End::default(), End::taking(100));
    bench.direction = Direction::with(b"first ".to_vec());
    bench.from.sends(b"second");
    bench.poll().0.unwrap();
    assert_eq!(bench.to.0.borrow().written, b"first second");
}
