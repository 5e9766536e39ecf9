//! Counting allocates nothing once an object's blocks are born.

#![allow(unsafe_code)]

use nuncio_core::stats::lists::cluster;
use nuncio_core::stats::{CodeStats, Codes, Stats, Store};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: hands every call to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn counting_allocates_nothing_after_birth() {
    let mut store = Store::new();
    let scope = store.scope(&cluster::SCOPE, &Arc::from("c"));
    let worker = store.main().clone();
    let traffic = Stats::<cluster::Traffic>::new(&worker, scope);
    let times = Stats::<cluster::ResponseTime>::new(&worker, scope);
    let codes = CodeStats::new(&worker, scope, Codes::Cluster);
    let count = || {
        traffic.inc(cluster::UPSTREAM_RQ_TOTAL);
        let _active = traffic.gauge(cluster::UPSTREAM_RQ_ACTIVE);
        let mut buffered = traffic.amount(cluster::UPSTREAM_CX_RX_BYTES_BUFFERED);
        buffered.set(17);
        for value in [0, 5, 50, 500] {
            times.record(cluster::UPSTREAM_RQ_TIME, value);
        }
        codes.charge(200);
        codes.charge(418);
    };
    count();
    let before = ALLOCATIONS.get();
    for _ in 0..1000 {
        count();
    }
    assert_eq!(ALLOCATIONS.get(), before);
    assert_eq!(store.value("cluster.c.upstream_rq_total"), Some(1001));
    assert_eq!(store.value("cluster.c.upstream_rq_418"), Some(1001));
}

#[test]
fn ten_thousand_idle_clusters_cost_little() {
    let names: Vec<Arc<str>> = (0..10_000).map(|i| Arc::from(format!("cluster-{i}"))).collect();
    let mut store = Store::new();
    let before = ALLOCATIONS.get();
    for name in &names {
        store.scope(&cluster::SCOPE, name);
    }
    // Two growing tables, and one short-lived copy to sanitize each name.
    assert!(ALLOCATIONS.get() - before < 5 * 10_000, "{}", ALLOCATIONS.get() - before);
}
