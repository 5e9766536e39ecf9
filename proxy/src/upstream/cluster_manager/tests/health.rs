//! Discovery against health, with a manager, the real sources, checks and hosts in memory: the table cell by cell, and
//! chance.

mod town;

use std::collections::BTreeSet;

use nuncio_core::upstream::{Host, Outcome};
use proptest::prelude::{Just, ProptestConfig, Strategy, prop_oneof, proptest};

use super::*;
use town::{KINDS, Kind, Peers, Town, Way};

/// What is known of the health of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nobody asks it.
    WithoutChecks,
    /// It is new, and has not answered yet.
    Unchecked,
    Answers(Way),
}

const STATES: [State; 6] = [
    State::WithoutChecks,
    State::Unchecked,
    State::Answers(Way::Well),
    State::Answers(Way::Failing),
    State::Answers(Way::Silent),
    State::Answers(Way::Refusing),
];

/// One cell of the table: host 2 ends up so, beside host 1 which is always there and well.
#[derive(Debug, Clone, Copy)]
struct TableCell {
    kind: Kind,
    present: bool,
    state: State,
    /// Discovery's last word comes before the answer to the check.
    discovery_first: bool,
    ignores_health: bool,
}

/// Flags, and whether it is routed to; none if it is deleted.
fn expected(cell: &TableCell) -> Option<(&'static str, bool)> {
    match (cell.present, cell.state) {
        (true, State::WithoutChecks | State::Answers(Way::Well)) => Some(("healthy", true)),
        (true, State::Answers(Way::Silent)) => Some(("/failed_active_hc/active_hc_timeout", false)),
        // Its first answer did not come.
        (true, State::Unchecked) if !cell.discovery_first => Some(("/failed_active_hc/active_hc_timeout", false)),
        (true, _) => Some(("/failed_active_hc", false)),
        (false, State::Answers(Way::Well)) if !cell.ignores_health => Some(("/pending_dynamic_removal", true)),
        (false, _) => None,
    }
}

async fn check(cell: TableCell) {
    let more = if cell.ignores_health { "ignore_health_on_host_removal: true," } else { "" };
    let way = match cell.state {
        State::Answers(way) => way,
        State::Unchecked => Way::Silent,
        State::WithoutChecks => Way::Well,
    };
    let listed: &[u16] = if cell.present { &[1, 2] } else { &[1] };
    let (town, host) = if cell.state == State::Unchecked {
        let town = Town::new(cell.kind, &[1], true, more);
        town.pass(1).await;
        town.peers.set(2, Way::Silent);
        town.discover(&[1, 2]).await;
        assert_eq!(town.flags(2).as_deref(), Some("/failed_active_hc"), "{cell:?}: nobody knows it yet");
        let host = town.host(2).unwrap();
        // The answer never comes: that it will not is known after three seconds.
        if !cell.discovery_first {
            town.pass(3).await;
        }
        town.discover(listed).await;
        (town, host)
    } else {
        let town = Town::new(cell.kind, &[1, 2], cell.state != State::WithoutChecks, more);
        town.pass(6).await;
        assert_eq!(town.routed(), BTreeSet::from([1, 2]), "{cell:?}: at first both");
        let host = town.host(2).unwrap();
        if cell.discovery_first {
            town.discover(listed).await;
            town.peers.set(2, way);
            town.pass(9).await;
        } else {
            town.peers.set(2, way);
            town.pass(9).await;
            town.discover(listed).await;
        }
        (town, host)
    };
    let flags = town.flags(2);
    let (want, routed) = expected(&cell).map_or((None, false), |(flags, routed)| (Some(flags), routed));
    assert_eq!(flags.as_deref(), want, "{cell:?}");
    assert_eq!(town.routed().contains(&2), routed, "{cell:?}");
    assert!(town.routed().contains(&1), "{cell:?}");
    assert_eq!(host.is_removed(), want.is_none(), "{cell:?}");
    assert_eq!(town.main.stat("cluster.c.membership_total"), 1 + u64::from(want.is_some()), "{cell:?}");
    if want.is_none() {
        // Nor does it come back, whatever it answers.
        town.peers.set(2, Way::Well);
        town.pass(6).await;
        assert_eq!((town.flags(2), town.routed()), (None, BTreeSet::from([1])), "{cell:?}");
    }
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn the_table_of_discovery_and_health_holds_in_every_cell_and_in_both_orders() {
    for kind in KINDS {
        for present in [true, false] {
            for state in STATES {
                for discovery_first in [true, false] {
                    for ignores_health in [true, false] {
                        check(TableCell { kind, present, state, discovery_first, ignores_health }).await;
                    }
                }
            }
        }
    }
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn a_host_that_comes_back_loses_the_mark_without_another_check() {
    let town = Town::new(Kind::Eds, &[1, 2], true, "");
    town.pass(6).await;
    town.discover(&[1]).await;
    let (asked, host) = (town.peers.asked.get(), town.host(2).unwrap());
    assert_eq!(town.flags(2).as_deref(), Some("/pending_dynamic_removal"));
    town.discover(&[1, 2]).await;
    assert_eq!((town.flags(2).as_deref(), town.peers.asked.get()), (Some("healthy"), asked));
    assert!(Arc::ptr_eq(&host, &town.host(2).unwrap()), "it is the same host");
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn an_empty_answer_makes_everything_absent_and_nothing_unroutable() {
    let town = Town::new(Kind::Sds, &[1, 2, 3], true, "");
    town.pass(6).await;
    town.discover(&[]).await;
    assert_eq!(town.routed(), BTreeSet::from([1, 2, 3]));
    // Each is deleted with the check that fails, and no sooner.
    town.peers.set(3, Way::Failing);
    town.pass(6).await;
    assert_eq!((town.flags(3), town.routed()), (None, BTreeSet::from([1, 2])));
    assert!(town.last_reason().contains("GET http://127.0.0.3:80/hc (Host: c): HTTP 503"));
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn discoverys_own_word_deletes_an_absent_host_and_an_ejection_does_not() {
    let ejects = "outlier_detection: {consecutive_5xx: 1, max_ejection_percent: 100, \
                  successful_active_health_check_uneject_host: false},";
    let town = Town::new(Kind::Eds, &[1, 2, 3], true, ejects);
    town.pass(6).await;
    town.discover_failed(&[1, 2, 3], &[2]).await;
    town.host(3).unwrap().report(Outcome::Answered { status: 500 });
    settle().await;
    assert_eq!(town.routed(), BTreeSet::from([1]));
    town.discover(&[1]).await;
    assert_eq!(town.flags(2), None);
    assert_eq!(town.flags(3).as_deref(), Some("/failed_outlier_check/pending_dynamic_removal"));
    assert_eq!(town.main.stat("cluster.c.outlier_detection.ejections_active"), 1);
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn a_cluster_serves_after_the_first_round_of_checks() {
    let peers = Peers::default();
    peers.set(2, Way::Silent);
    let town = Town::with(peers, Kind::Eds, &[1, 2], true, "");
    settle().await;
    assert_eq!(town.main.manager.awaited().len(), 1, "host 2 has not answered yet");
    town.pass(4).await;
    assert!(town.main.manager.awaited().is_empty());
    assert_eq!(town.routed(), BTreeSet::from([1]));
    // The failure is told with what was asked, although no flag changed by it.
    assert_eq!(town.last_reason(), "GET http://127.0.0.2:80/hc (Host: c): timeout");
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn bad_answers_fail_the_host_are_counted_and_are_named() {
    for (way, fails, reason, network) in [
        (Way::Huge, false, "", 0),
        (Way::Dripping, true, "timeout", 1),
        (Way::Silent, true, "timeout", 1),
        (Way::Noise, true, "protocol error", 1),
        (Way::Tls, true, "protocol error", 1),
        (Way::Half, true, "protocol error: closed within a head", 1),
        (Way::Refusing, true, "cannot connect: connection refused", 1),
        (Way::Failing, true, "HTTP 503", 0),
    ] {
        let town = Town::new(Kind::Eds, &[1, 2], true, "");
        town.pass(1).await;
        town.peers.set(2, way);
        town.pass(9).await;
        assert_eq!(town.routed().contains(&2), !fails, "{way:?}");
        let failures = town.main.stat("cluster.c.health_check.network_failure");
        assert_eq!(failures > 0, network > 0, "{way:?}");
        if fails {
            let told = town.last_reason();
            assert!(told.to_lowercase().contains(&reason.to_lowercase()), "{way:?}: {told}");
            assert!(told.contains("GET http://127.0.0.2:80/hc (Host: c)"), "{told}");
        }
        // And it comes back.
        town.peers.set(2, Way::Well);
        town.pass(9).await;
        assert!(town.routed().contains(&2), "{way:?}");
    }
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn a_crowd_is_spread_over_the_interval_from_the_second_round_on() {
    let hosts: Vec<u16> = (1..=1000).collect();
    let town = Town::new(Kind::Eds, &hosts, true, "");
    town.pass(5).await;
    // 1000 in 5 s are 20 in each 100 ms.
    let mut most = 0;
    for _ in 0..50 {
        let before = town.peers.asked.get();
        tokio::time::sleep(Duration::from_millis(100)).await;
        most = most.max(town.peers.asked.get() - before);
    }
    assert!(most <= 40, "{most} in 100 ms");
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn degraded_hosts_and_immediate_failure_show_in_the_rotation() {
    let town = Town::new(Kind::Eds, &[1, 2], true, "");
    town.pass(1).await;
    town.peers.set(2, Way::Degraded);
    town.pass(6).await;
    assert_eq!(town.flags(2).as_deref(), Some("/degraded_active_hc"));
    town.host(1).unwrap().report(Outcome::FailsAtOnce);
    settle().await;
    assert_eq!(town.flags(1).as_deref(), Some("/failed_active_hc/excluded_via_immediate_hc_fail"));
    assert_eq!(town.routed(), BTreeSet::from([2]));
    assert_eq!(town.main.stat("cluster.c.health_check.passive_failure"), 1);
    town.pass(6).await;
    assert_eq!(town.flags(1).as_deref(), Some("healthy"));
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn it_is_known_where_health_does_not_count_because_too_few_are_well() {
    let main = Main::new();
    main.add(&fixed("c", &[1, 2, 3, 4])).unwrap();
    main.start();
    settle().await;
    let hosts: Vec<Arc<Host>> = main.manager.active()[0].hosts.hosts().cloned().collect();
    for (failed, panic) in [(2, vec![]), (3, vec![0])] {
        let flags = HealthFlags::default().with(HealthFlag::FailedOutlierCheck);
        hosts.iter().take(failed).for_each(|host| main.manager.set_health("c", host, flags, "the test says so"));
        settle().await;
        assert_eq!(main.manager.health()[0].panic, panic, "{failed} of 4");
    }
}

#[derive(Debug, Clone)]
enum Step {
    /// What is listed, and what of it EDS calls unhealthy.
    Discover(BTreeSet<u16>, BTreeSet<u16>),
    Becomes(u16, Way),
    Pass(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let way = prop_oneof![Just(Way::Well), Just(Way::Failing), Just(Way::Silent), Just(Way::Refusing)];
    let listed = (proptest::collection::btree_set(1u16..5, 0..5), proptest::collection::btree_set(1u16..5, 0..2));
    let step = prop_oneof![
        listed.prop_map(|(listed, failed)| Step::Discover(listed, failed)),
        (1u16..5, way).prop_map(|(host, way)| Step::Becomes(host, way)),
        (1u64..10).prop_map(Step::Pass),
    ];
    proptest::collection::vec(step, 1..25)
}

async fn live(kind: Kind, steps: Vec<Step>) {
    let town = Town::new(kind, &[1, 2, 3, 4], true, "");
    let mut listed = BTreeSet::from([1, 2, 3, 4]);
    town.pass(2).await;
    for step in steps {
        let before: Vec<_> = (1..5).filter_map(|host| town.host(host)).collect();
        match &step {
            Step::Discover(hosts, failed) => {
                listed = hosts.clone();
                let failed: Vec<u16> = failed.iter().copied().collect();
                town.discover_failed(&hosts.iter().copied().collect::<Vec<_>>(), &failed).await;
            }
            Step::Becomes(host, way) => town.peers.set(*host, *way),
            Step::Pass(seconds) => town.pass(*seconds).await,
        }
        settle().await;
        let routed = town.routed();
        for host in 1..5 {
            let flags = town.flags(host);
            let failed = flags.as_ref().is_none_or(|flags| flags.contains("failed"));
            assert!(!failed || !routed.contains(&host), "{host} is used although {flags:?} after {step:?}");
            assert!(
                listed.contains(&host) || flags.is_none() || !failed,
                "{host} is absent and failed, and still there"
            );
            assert!(!listed.contains(&host) || flags.is_some(), "{host} is listed, and gone");
        }
        for host in before.iter().filter(|host| host.is_removed()) {
            let flags = host.flags();
            let failed = flags.contains(HealthFlag::FailedActiveHc) || flags.contains(HealthFlag::FailedEdsHealth);
            assert!(failed, "{} was deleted although it was {flags} at {step:?}", host.address());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_a_well_host_is_not_deleted_and_a_failed_one_that_is_absent_not_used(
        kind in prop_oneof![Just(Kind::Eds), Just(Kind::Sds), Just(Kind::StrictDns)],
        steps in steps(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build_local(tokio::runtime::LocalOptions::default())
            .unwrap();
        runtime.block_on(live(kind, steps));
    }
}
