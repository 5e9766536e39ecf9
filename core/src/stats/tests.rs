//! The whole path: counting on workers, births, sums on main, folding, removal.

use super::histogram::{Buckets, QUANTILES};
use super::*;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc;

crate::stats! {
    /// For these tests.
    Dog at ["", "puppy."] {
        counter BARKS;
        histogram(milliseconds) NAP_MS;
        gauge BONES_BURIED;
        counter CATS_SEEN = "cats.seen";
        gauge FLEAS;
        histogram(percent) HUNGER;
    }
}

static DOGS: Scope = Scope { root: "dog.", lists: &[<Dog as List>::descriptors] };

fn store_with_rex() -> (Store, ScopeId, Rc<WorkerStats>) {
    let mut store = Store::new();
    let rex = store.scope(&DOGS, &Arc::from("rex"));
    let worker = store.main().clone();
    (store, rex, worker)
}

fn histogram(store: &mut Store, name: &str) -> (Sparse, Sparse) {
    let mut found = None;
    for scope in store.view().scopes() {
        scope.visit(&mut |_, list, stat, value| {
            if let Value::Histogram(histogram) = value
                && list.is_empty()
                && stat == name
                && found.is_none()
            {
                found = Some((histogram.cumulative.counts.clone(), histogram.interval.counts.clone()));
            }
        });
    }
    found.expect("a histogram of this name")
}

#[test]
fn an_unborn_list_reads_as_zeros_and_unused() {
    let (mut store, _, _) = store_with_rex();
    assert_eq!(store.value("dog.rex.barks"), Some(0));
    assert_eq!(store.value("dog.rex.puppy.cats.seen"), Some(0));
    assert_eq!(store.value("dog.rex.meows"), None);
    let view = store.view();
    view.scopes()[0].visit(&mut |_, _, _, value| {
        assert!(matches!(
            value,
            Value::Counter { used: false, .. } | Value::Gauge { used: false, .. } | Value::Histogram(_)
        ));
    });
}

#[test]
fn counts_under_each_prefix_stay_apart() {
    let (mut store, rex, worker) = store_with_rex();
    let old = Stats::<Dog>::new(&worker, rex);
    let young = Stats::<Dog>::under(&worker, rex, 1);
    old.inc(BARKS);
    young.add(BARKS, 5);
    young.inc(CATS_SEEN);
    assert_eq!(store.value("dog.rex.barks"), Some(1));
    assert_eq!(store.value("dog.rex.puppy.barks"), Some(5));
    assert_eq!(store.value("dog.rex.puppy.cats.seen"), Some(1));
}

#[test]
fn gauges_are_undone_by_dropping_their_guards() {
    let (mut store, rex, worker) = store_with_rex();
    let stats = Stats::<Dog>::new(&worker, rex);
    let bone = stats.gauge(BONES_BURIED);
    let mut fleas = stats.amount(FLEAS);
    fleas.set(40);
    fleas.set(7);
    assert_eq!(store.value("dog.rex.bones_buried"), Some(1));
    assert_eq!(store.value("dog.rex.fleas"), Some(7));
    drop((bone, fleas));
    assert_eq!(store.value("dog.rex.bones_buried"), Some(0));
    assert_eq!(store.value("dog.rex.fleas"), Some(0));
}

#[test]
fn a_gauge_that_is_zero_again_counts_as_used() {
    let (mut store, rex, worker) = store_with_rex();
    let stats = Stats::<Dog>::new(&worker, rex);
    drop(stats.gauge(FLEAS));
    drop(stats);
    store.flush();
    let mut used = Vec::new();
    store.view().scopes()[0].visit(&mut |_, list, name, value| {
        if let Value::Counter { used: true, .. } | Value::Gauge { used: true, .. } = value {
            used.push(format!("{list}{name}"));
        }
    });
    assert_eq!(used, ["fleas"]);
}

#[test]
fn a_dead_block_is_folded_and_its_gauges_forgotten() {
    let (mut store, rex, worker) = store_with_rex();
    for round in 1..=3 {
        let stats = Stats::<Dog>::new(&worker, rex);
        stats.add(BARKS, 10);
        stats.set(BONES_BURIED, 4);
        stats.record(NAP_MS, 42);
        assert_eq!(store.value("dog.rex.barks"), Some(10 * round));
        // Not the sum of this object's and of those that it replaced, flushed or not.
        assert_eq!(store.value("dog.rex.bones_buried"), Some(4));
        assert_eq!(store.total(&DOGS, "bones_buried"), 4);
        drop(stats);
    }
    assert_eq!(store.value("dog.rex.barks"), Some(30));
    assert_eq!(store.value("dog.rex.bones_buried"), Some(0));
    store.flush();
    let (cumulative, _) = histogram(&mut store, "nap_ms");
    assert_eq!(cumulative.total(), 3);
}

#[test]
fn a_guard_outlives_its_object_and_keeps_the_block() {
    let (mut store, rex, worker) = store_with_rex();
    let stats = Stats::<Dog>::new(&worker, rex);
    let bone = stats.gauge(BONES_BURIED);
    drop(stats);
    store.flush();
    assert_eq!(store.value("dog.rex.bones_buried"), Some(1));
    drop(bone);
    store.flush();
    assert_eq!(store.value("dog.rex.bones_buried"), Some(0));
}

#[test]
fn histograms_have_interval_and_cumulative_values() {
    let (mut store, rex, worker) = store_with_rex();
    let stats = Stats::<Dog>::new(&worker, rex);
    stats.record(NAP_MS, 3);
    stats.record(NAP_MS, 1234);
    assert!(histogram(&mut store, "nap_ms").0.is_empty(), "nothing before the flush");
    store.flush();
    stats.record(NAP_MS, 3);
    assert_eq!(histogram(&mut store, "nap_ms").1.total(), 2);
    store.flush();
    let (cumulative, interval) = histogram(&mut store, "nap_ms");
    assert_eq!((cumulative.total(), interval.total()), (3, 1));
    store.flush();
    assert!(histogram(&mut store, "nap_ms").1.is_empty());
}

#[test]
fn reset_begins_counters_again_and_leaves_gauges() {
    let (mut store, rex, worker) = store_with_rex();
    let stats = Stats::<Dog>::new(&worker, rex);
    let codes = CodeStats::new(&worker, rex, Codes::Other);
    let named = worker.named(rex, "tricks", Kind::Counter);
    let _flea = stats.gauge(FLEAS);
    stats.add(BARKS, 3);
    codes.charge(404);
    named.inc();
    store.reset_counters();
    for (name, value) in [("barks", 0), ("fleas", 1), ("upstream_rq_404", 0), ("upstream_rq_4xx", 0), ("tricks", 0)] {
        assert_eq!(store.value(&format!("dog.rex.{name}")), Some(value), "{name}");
    }
    stats.inc(BARKS);
    codes.charge(404);
    named.add(2);
    for (name, value) in [("barks", 1), ("upstream_rq_404", 1), ("upstream_rq_completed", 1), ("tricks", 2)] {
        assert_eq!(store.value(&format!("dog.rex.{name}")), Some(value), "{name}");
    }
}

#[test]
fn code_counters_are_listed_from_their_first_use() {
    let (mut store, rex, worker) = store_with_rex();
    let codes = CodeStats::new(&worker, rex, Codes::External);
    assert_eq!(store.value("dog.rex.external.upstream_rq_200"), None);
    for code in [200, 200, 503, 418, 599, 700] {
        codes.charge(code);
    }
    let expected =
        [("200", 2), ("2xx", 2), ("503", 1), ("5xx", 2), ("418", 1), ("599", 1), ("700", 1), ("completed", 6)];
    for (name, value) in expected {
        assert_eq!(store.value(&format!("dog.rex.external.upstream_rq_{name}")), Some(value), "{name}");
    }
    assert_eq!(store.value("dog.rex.external.upstream_rq_201"), None);
    assert_eq!(store.value("dog.rex.external.upstream_rq_7xx"), None);
    drop(codes);
    store.flush();
    assert_eq!(store.value("dog.rex.external.upstream_rq_completed"), Some(6));
}

#[test]
fn a_birth_after_the_removal_of_its_scope_finds_nothing() {
    let (mut store, rex, worker) = store_with_rex();
    let stats = Stats::<Dog>::new(&worker, rex);
    store.release(rex);
    let again = store.scope(&DOGS, &Arc::from("rex"));
    assert_ne!(rex, again);
    stats.inc(BARKS);
    assert_eq!(store.value("dog.rex.barks"), Some(0));
}

#[test]
fn a_shared_scope_lives_until_its_last_holder() {
    let (mut store, rex, worker) = store_with_rex();
    assert_eq!(store.scope(&DOGS, &Arc::from("rex")), rex);
    Stats::<Dog>::new(&worker, rex).inc(BARKS);
    store.release(rex);
    assert_eq!(store.value("dog.rex.barks"), Some(1));
    store.release(rex);
    assert_eq!(store.value("dog.rex.barks"), None);
    assert!(store.view().scopes().is_empty());
}

#[test]
fn a_total_is_the_sum_over_objects_of_a_kind() {
    let (mut store, rex, worker) = store_with_rex();
    let fido = store.scope(&DOGS, &Arc::from("fido"));
    store.scope(&DOGS, &Arc::from("idle"));
    let stats = [rex, fido].map(|scope| Stats::<Dog>::new(&worker, scope));
    stats.iter().for_each(|stats| stats.add(BARKS, 2));
    assert_eq!(store.total(&DOGS, "barks"), 4);
    assert_eq!(store.total(&DOGS, "puppy.barks"), 0);
}

#[test]
fn names_are_sanitized_as_envoy_does() {
    for (name, clean) in
        [("a:b", "a_b"), ("http://x", "http_x"), ("a:/b", "a_b"), ("a.b..", "a.b"), ("[::1]:80", "[__1]_80")]
    {
        assert_eq!(sanitize(name), clean, "{name}");
    }
}

#[test]
fn texts_and_names_made_at_run_time_are_listed() {
    let (mut store, rex, worker) = store_with_rex();
    store.set_text(rex, "motto", Some(Arc::from("woof")));
    store.set_text(rex, "motto", Some(Arc::from("wow")));
    let sleeping = worker.named(rex, "sleeping", Kind::Gauge);
    sleeping.add(2);
    sleeping.sub(1);
    assert_eq!(store.value("dog.rex.sleeping"), Some(1));
    let mut texts = Vec::new();
    store.view().scopes()[0].visit(&mut |_, _, name, value| {
        if let Value::Text(text) = value {
            texts.push(format!("{name}={text}"));
        }
    });
    assert_eq!(texts, ["motto=wow"]);
}

/// Envoy 1.40 was given responses of 0, 1, 42 and 170 ms, and six times one accepted connection; these are its answers.
#[test]
fn quantiles_are_those_of_envoy() {
    let quantiles = |values: &[u64]| {
        let block = HistogramBlock::default();
        values.iter().for_each(|value| block.record(*value));
        let mut counts = Sparse::new();
        block.sum_into(&mut counts);
        Buckets { counts: &counts, unit: Unit::Milliseconds }.quantiles().expect("values")
    };
    assert_eq!(quantiles(&[170, 1, 42, 0]), [0.0, 0.0, 1.05, 42.5, 175.0, 175.0, 175.0, 175.0, 175.0, 175.0]);
    let six = quantiles(&[1; 6]);
    assert_eq!(
        six[..5],
        [1.0142857142857142, 1.0285714285714285, 1.042857142857143, 1.0714285714285714, 1.0857142857142856]
    );
    assert_eq!(QUANTILES.len(), six.len());
}

/// Envoy 1.40 was given request bodies of these sizes; these are its answers.
#[test]
fn buckets_and_sums_are_those_of_envoy() {
    let block = HistogramBlock::default();
    let sizes = [0, 0, 0, 0, 0, 0, 5, 5, 5, 7, 18, 121, 122, 123, 124, 125, 126, 127, 128, 129, 1000, 1001];
    sizes.iter().for_each(|size| block.record(*size));
    let mut counts = Sparse::new();
    block.sum_into(&mut counts);
    let buckets = Buckets { counts: &counts, unit: Unit::Bytes };
    assert_eq!(buckets.cumulative(&[120.0, 125.0, 130.0, 1000.0]), [20, 20, 20, 22]);
    assert_eq!(buckets.disjoint(&[120.0, 125.0, 130.0, 1000.0]), [20, 0, 0, 2]);
    assert_eq!(buckets.sum(), 3_259.122_741_966_138);
}

#[test]
fn every_value_falls_into_the_bucket_that_holds_it() {
    for value in [0, 1, 9, 10, 11, 99, 100, 101, 999, 1000, 123_456, 999_999_999, 1 << 40, u64::MAX / 2, u64::MAX] {
        let block = HistogramBlock::default();
        block.record(value);
        let mut counts = Sparse::new();
        block.sum_into(&mut counts);
        let (key, n) = counts.iter().next().expect("one bucket");
        let bucket = Bucket::of(key, Unit::Milliseconds);
        assert_eq!((n, counts.total()), (1, 1));
        let value = value as f64;
        assert!(bucket.lower <= value && (value < bucket.lower + bucket.width || value == 0.0), "{value} {bucket:?}");
    }
}

#[test]
fn percents_are_recorded_in_millionths() {
    let (mut store, rex, worker) = store_with_rex();
    Stats::<Dog>::new(&worker, rex).record(HUNGER, 250_000);
    store.flush();
    let (counts, _) = histogram(&mut store, "hunger");
    let (key, _) = counts.iter().next().expect("one bucket");
    assert_eq!(Bucket::of(key, Unit::Percent), Bucket { lower: 0.25, width: 0.01 });
}

/// Two workers count while main accepts, sums and folds; every object is rebuilt many times. Nothing is lost.
#[test]
fn sums_are_exact_while_two_workers_count_and_objects_are_rebuilt() {
    const REBUILDS: u64 = 200;
    const EACH: u64 = 500;
    let mut store = Store::new();
    let scopes: Vec<ScopeId> = (0..20).map(|i| store.scope(&DOGS, &Arc::from(format!("dog{i}")))).collect();
    let (births, arrivals) = mpsc::channel();
    let mut last = 0;
    std::thread::scope(|threads| {
        for _ in 0..2 {
            let (births, scopes) = (births.clone(), &scopes);
            threads.spawn(move || {
                let worker = WorkerStats::new(move |birth| drop(births.send(birth)));
                for _ in 0..REBUILDS {
                    for scope in scopes {
                        let stats = Stats::<Dog>::new(&worker, *scope);
                        let _flea = stats.gauge(FLEAS);
                        for value in 0..EACH {
                            stats.inc(BARKS);
                            if value % 100 == 0 {
                                stats.record(NAP_MS, value);
                            }
                        }
                    }
                }
            });
        }
        drop(births);
        let mut accepted = 0;
        while let Ok(birth) = arrivals.recv() {
            store.accept(birth);
            accepted += 1;
            if accepted % 50 == 0 {
                store.flush();
                let now = store.value("dog.dog0.barks").expect("listed");
                assert!(now >= last, "a sum never goes back");
                last = now;
            }
        }
    });
    store.flush();
    store.flush();
    let view = store.view();
    for i in 0..20 {
        assert_eq!(view.value(&format!("dog.dog{i}.barks")), Some(2 * REBUILDS * EACH));
        assert_eq!(view.value(&format!("dog.dog{i}.fleas")), Some(0));
    }
    assert_eq!(histogram(&mut store, "nap_ms").0.total(), 2 * REBUILDS * EACH / 100);
}

#[test]
fn a_view_keeps_reading_after_its_scope_is_gone() {
    let (mut store, rex, worker) = store_with_rex();
    let births = Rc::new(RefCell::new(Vec::new()));
    let queue = births.clone();
    let other = WorkerStats::new(move |birth| queue.borrow_mut().push(birth));
    let stats = Stats::<Dog>::new(&other, rex);
    stats.inc(BARKS);
    births.take().into_iter().for_each(|birth| store.accept(birth));
    Stats::<Dog>::new(&worker, rex).inc(BARKS);
    let view = store.view();
    store.release(rex);
    stats.inc(BARKS);
    assert_eq!(view.value("dog.rex.barks"), Some(3));
}

#[test]
fn each_address_leads_to_the_stat_that_was_visited() {
    let (mut store, rex, worker) = store_with_rex();
    let codes = CodeStats::new(&worker, rex, Codes::External);
    codes.charge(418);
    Stats::<Dog>::under(&worker, rex, 1).inc(BARKS);
    let _named = worker.named(rex, "tricks", Kind::Counter);
    store.set_text(rex, "motto", Some(Arc::from("woof")));
    let view = store.view();
    let scope = &view.scopes()[0];
    let mut visited = Vec::new();
    scope.visit(&mut |at, list, name, value| visited.push((at, format!("{list}{name} {value:?}"))));
    assert_eq!(visited.len(), 12 + 3 + 2);
    for (at, expected) in visited {
        let mut found = Vec::new();
        scope.visit_one(at, &mut |list, name, value| found.push(format!("{list}{name} {value:?}")));
        assert_eq!(found, [expected]);
    }
}

#[test]
fn an_idle_scope_is_forty_bytes() {
    assert_eq!(store::SLOT_SIZE, 40);
    assert_eq!(size_of::<GaugeGuard<Dog>>(), 16);
    assert!(size_of::<Stats<lists::cluster::Traffic>>() <= 32);
}
