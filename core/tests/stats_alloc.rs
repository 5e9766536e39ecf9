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
    static LIVE_BYTES: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: hands every call to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        LIVE_BYTES.set(LIVE_BYTES.get().wrapping_add(layout.size()));
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE_BYTES.set(LIVE_BYTES.get().wrapping_sub(layout.size()));
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

fn bytes_each(of: usize, make: impl FnOnce()) -> usize {
    let before = LIVE_BYTES.get();
    make();
    LIVE_BYTES.get().wrapping_sub(before) / of
}

#[test]
fn a_cluster_costs_little_until_it_counts() {
    const CLUSTERS: usize = 10_000;
    let names: Vec<Arc<str>> = (0..CLUSTERS).map(|i| Arc::from(format!("cluster-{i}"))).collect();
    let mut store = Store::new();
    let mut scopes = Vec::with_capacity(CLUSTERS);
    // 40 bytes and an index entry, in tables that double.
    let idle = bytes_each(CLUSTERS, || scopes.extend(names.iter().map(|name| store.scope(&cluster::SCOPE, name))));
    assert!(idle <= 110, "idle: {idle}");

    let worker = store.main().clone();
    let mut members = Vec::with_capacity(CLUSTERS);
    let counted = bytes_each(CLUSTERS, || {
        for scope in &scopes {
            let membership = Stats::<cluster::Membership>::new(&worker, *scope);
            membership.set(cluster::MEMBERSHIP_TOTAL, 1);
            members.push(membership);
        }
        store.flush();
    });
    assert!(counted <= 320, "with members: {counted}");

    let mut busy = Vec::with_capacity(CLUSTERS);
    let used = bytes_each(CLUSTERS, || {
        for scope in &scopes {
            let traffic = Stats::<cluster::Traffic>::new(&worker, *scope);
            traffic.inc(cluster::UPSTREAM_RQ_TOTAL);
            let codes = CodeStats::new(&worker, *scope, Codes::Cluster);
            codes.charge(200);
            busy.push((traffic, codes));
        }
        store.flush();
    });
    assert!(used <= 1024, "used on one thread: {used}");
    println!("bytes a cluster: {idle} idle, {counted} with members, {used} used on one thread");
}
