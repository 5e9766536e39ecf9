use std::future::poll_fn;
use std::time::Duration;

use nuncio_api::pb::envoy::config::cluster::v3 as pb;
use nuncio_api::pb::envoy::config::core::v3 as core_pb;
use nuncio_api::pb::google::protobuf::{Duration as ProtoDuration, UInt32Value};
use nuncio_core::http::{RequestHead, ResponseHead};

use super::*;
use crate::codec::Buffers;
use crate::upstream::testing::{FarEnd, House, Script, settle};

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

/// Limits of the default priority: connections, pending requests, requests.
fn limits(connections: u32, pending: u32, requests: u32) -> pb::Cluster {
    let value = |value| Some(UInt32Value { value });
    let thresholds = vec![pb::circuit_breakers::Thresholds {
        max_connections: value(connections),
        max_pending_requests: value(pending),
        max_requests: value(requests),
        ..Default::default()
    }];
    pb::Cluster {
        circuit_breakers: Some(pb::CircuitBreakers { thresholds, ..Default::default() }),
        ..Default::default()
    }
}

#[allow(deprecated)]
fn common(options: core_pb::HttpProtocolOptions) -> pb::Cluster {
    pb::Cluster { common_http_protocol_options: Some(options), ..Default::default() }
}

fn time(nanos: i32) -> Option<ProtoDuration> {
    Some(ProtoDuration { seconds: 0, nanos })
}

impl House {
    fn acquire(&self) -> Acquire {
        self.cluster().acquire(&self.hosts[0], Priority::Default)
    }

    fn pending(&self) -> PendingConn {
        match self.acquire() {
            Acquire::Pending(pending) => pending,
            Acquire::Ready(_) => panic!("ready"),
            Acquire::Failed(failure) => panic!("{failure}"),
        }
    }

    fn ready(&self) -> PooledConn {
        match self.acquire() {
            Acquire::Ready(conn) => conn,
            Acquire::Pending(_) => panic!("pending"),
            Acquire::Failed(failure) => panic!("{failure}"),
        }
    }

    fn failed(&self) -> PoolFailure {
        match self.acquire() {
            Acquire::Failed(failure) => failure,
            _ => panic!("not refused"),
        }
    }

    async fn connection(&self) -> PooledConn {
        match self.acquire() {
            Acquire::Ready(conn) => conn,
            Acquire::Pending(mut pending) => served(&mut pending).await.unwrap(),
            Acquire::Failed(failure) => panic!("{failure}"),
        }
    }

    /// Idle, in use, being made.
    fn counts(&self) -> (usize, usize, usize) {
        self.cluster().pool(&self.hosts[0], Priority::Default).unwrap().counts()
    }

    fn far(&self) -> FarEnd {
        self.net.accepted().expect("a connection was made")
    }
}

async fn served(pending: &mut PendingConn) -> Result<PooledConn, PoolFailure> {
    poll_fn(|cx| pending.poll(cx)).await
}

/// One request and its answer; the connection is not released.
async fn exchange(conn: &mut PooledConn, far: &mut FarEnd, answer: &str) {
    let buffers = Buffers::default();
    let mut head = RequestHead::default();
    for (name, value) in [(":method", "GET"), (":path", "/"), (":authority", "a")] {
        head.headers.append(name, value);
    }
    conn.send_head(&buffers, &head, true).unwrap();
    poll_fn(|cx| conn.poll_flush(cx, &buffers)).await.unwrap();
    far.request().await;
    far.answer(answer).await;
    let (mut response, mut scratch) = (ResponseHead::default(), buffers.take_scratch());
    poll_fn(|cx| conn.poll_response(cx, &buffers, &mut scratch, &mut response)).await.unwrap();
    assert_eq!(response.status, 200);
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn a_connection_is_used_again_and_the_last_used_first() {
    let house = House::new(pb::Cluster::default(), 1);
    let (mut a, mut b) = (house.connection().await, house.connection().await);
    let (mut far_a, mut far_b) = (house.far(), house.far());
    assert!(!a.is_reused() && !b.is_reused());
    let ids = [a.id(), b.id()];
    exchange(&mut a, &mut far_a, OK).await;
    exchange(&mut b, &mut far_b, OK).await;
    a.release();
    b.release();
    let first = house.ready();
    assert!(first.is_reused());
    assert_eq!(first.id(), ids[1]);
    assert_eq!(house.ready().id(), ids[0]);
    assert_eq!(house.stats(["upstream_cx_total", "upstream_cx_http1_total", "upstream_rq_total"]), [2, 2, 4]);
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn requests_queue_for_the_one_connection_in_order() {
    let house = House::new(limits(1, 10, 10), 1);
    let mut first = house.connection().await;
    let (mut second, mut third) = (house.pending(), house.pending());
    let mut far = house.far();
    exchange(&mut first, &mut far, OK).await;
    first.release();
    let mut second = served(&mut second).await.unwrap();
    exchange(&mut second, &mut far, OK).await;
    second.release();
    let third = served(&mut third).await.unwrap();
    assert!(third.is_reused() && house.net.accepted().is_none());
    // As Envoy 1.40 counted this burst of three.
    assert_eq!(house.stat("upstream_cx_overflow"), 3);
    assert_eq!(house.stats(["upstream_rq_pending_total", "upstream_rq_pending_active"]), [3, 0]);
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn a_request_too_many_to_wait_is_refused_without_a_host() {
    let house = House::new(limits(1, 1, 10), 1);
    let _used = house.connection().await;
    let _waits = house.pending();
    let failure = house.failed();
    assert_eq!((failure.reason.as_str(), failure.host), ("overflow", None));
    assert_eq!(house.stat("upstream_rq_pending_overflow"), 1);
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn with_no_room_at_all_the_first_request_is_refused_as_pending() {
    // Envoy: max_requests, max_connections and max_pending_requests 0.
    let house = House::new(limits(0, 0, 0), 1);
    house.failed();
    assert_eq!(house.stats(["upstream_rq_pending_overflow", "upstream_cx_overflow"]), [1, 0]);
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn a_host_always_gets_one_connection() {
    let house = House::new(limits(0, 10, 10), 1);
    house.connection().await;
    assert_eq!(house.stats(["upstream_cx_total", "upstream_cx_overflow"]), [1, 1]);
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn the_limit_of_requests_counts_when_a_connection_is_there() {
    let house = House::new(limits(10, 10, 1), 1);
    let mut first = house.connection().await;
    let mut second = house.pending();
    let failure = served(&mut second).await.err().unwrap();
    assert_eq!(failure.reason, PoolFailureReason::Overflow);
    assert_eq!(failure.host.as_deref(), Some("127.0.0.1:1"));
    assert_eq!(house.stats(["upstream_rq_active_overflow", "upstream_rq_pending_overflow"]), [1, 0]);
    // The connection that was made for it is kept.
    assert_eq!(house.counts(), (1, 1, 0));
    exchange(&mut first, &mut house.far(), OK).await;
    first.release();
    drop(house.ready());
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn a_refused_connection_fails_all_who_wait() {
    let house = House::new(pb::Cluster::default(), 1);
    house.net.script([Script::Refuse, Script::Hang]);
    let (mut a, mut b) = (house.pending(), house.pending());
    let failure = served(&mut a).await.err().unwrap();
    assert_eq!(failure.reason.as_str(), "remote connection failure");
    assert_eq!(&*failure.transport, "delayed connect error: Connection refused");
    assert!(served(&mut b).await.is_err());
    let names = ["upstream_cx_connect_fail", "upstream_rq_pending_failure_eject", "upstream_cx_destroy_remote"];
    assert_eq!(house.stats(names), [1, 2, 1]);
    let counts = house.hosts[0].load.counts();
    assert_eq!((counts.cx_connect_fail, counts.cx_total, counts.cx_active, counts.rq_total), (1, 2, 1, 0));
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn a_host_that_does_not_answer_is_given_up_in_time() {
    let house = House::new(pb::Cluster { connect_timeout: time(250_000_000), ..Default::default() }, 1);
    house.net.script([Script::Hang]);
    let begun = Instant::now();
    let failure = served(&mut house.pending()).await.err().unwrap();
    assert_eq!(failure.reason.as_str(), "connection timeout");
    assert_eq!(begun.elapsed().as_millis(), 250);
    assert_eq!(house.stats(["upstream_cx_connect_timeout", "upstream_cx_connect_fail"]), [1, 1]);
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn whichever_connection_is_free_first_serves_who_waits() {
    let house = House::new(pb::Cluster::default(), 1);
    let mut first = house.connection().await;
    house.net.script([Script::Accept(Duration::from_secs(3))]);
    let mut second = house.pending();
    let mut far = house.far();
    exchange(&mut first, &mut far, OK).await;
    first.release();
    let served = served(&mut second).await.unwrap();
    assert!(served.is_reused());
    // The new connection comes later and stays with the pool.
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(house.counts(), (1, 1, 0));
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn who_stops_waiting_leaves_the_connection_to_the_pool() {
    let house = House::new(pb::Cluster::default(), 1);
    drop(house.pending());
    assert_eq!(house.stats(["upstream_rq_cancelled", "upstream_rq_pending_active"]), [1, 0]);
    settle().await;
    assert_eq!(house.counts(), (1, 0, 0));
    // Served, but dropped before it looked.
    let pending = [house.ready(), house.connection().await];
    drop(pending);
    let unseen = house.pending();
    settle().await;
    drop(unseen);
    assert_eq!(house.counts(), (1, 0, 0));
    assert!(!house.ready().is_reused());
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn a_close_by_the_peer_is_noticed_while_the_connection_lies_idle() {
    let house = House::new(pb::Cluster::default(), 1);
    let mut conn = house.connection().await;
    let mut far = house.far();
    exchange(&mut conn, &mut far, OK).await;
    conn.release();
    settle().await;
    assert_eq!(house.stat("upstream_cx_active"), 1);
    drop(far);
    settle().await;
    assert_eq!(house.counts(), (0, 0, 0));
    assert_eq!(house.stats(["upstream_cx_active", "upstream_cx_destroy_remote"]), [0, 1]);
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn a_close_that_the_watch_has_not_seen_yet_is_noticed_by_who_takes_the_connection() {
    let house = House::new(pb::Cluster::default(), 1);
    let mut conn = house.connection().await;
    let mut far = house.far();
    exchange(&mut conn, &mut far, OK).await;
    conn.release();
    drop(far);
    let _waits = house.pending();
    assert_eq!(house.stat("upstream_cx_destroy_remote"), 1);
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn unasked_bytes_end_an_idle_connection() {
    let house = House::new(pb::Cluster::default(), 1);
    let mut conn = house.connection().await;
    let mut far = house.far();
    exchange(&mut conn, &mut far, OK).await;
    conn.release();
    far.answer(OK).await;
    settle().await;
    assert_eq!(house.counts(), (0, 0, 0));
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn an_unused_connection_is_closed_after_the_idle_timeout() {
    let house =
        House::new(common(core_pb::HttpProtocolOptions { idle_timeout: time(300_000_000), ..Default::default() }), 1);
    let mut conn = house.connection().await;
    let mut far = house.far();
    for _ in 0..3 {
        exchange(&mut conn, &mut far, OK).await;
        conn.release();
        tokio::time::sleep(Duration::from_millis(200)).await;
        conn = house.ready();
    }
    exchange(&mut conn, &mut far, OK).await;
    let begun = Instant::now();
    conn.release();
    far.closed().await;
    assert_eq!(begun.elapsed().as_millis(), 300);
    assert_eq!(house.stats(["upstream_cx_idle_timeout", "upstream_cx_destroy_local"]), [1, 1]);
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn a_connection_ends_after_so_many_requests() {
    let max = Some(UInt32Value { value: 2 });
    let house =
        House::new(common(core_pb::HttpProtocolOptions { max_requests_per_connection: max, ..Default::default() }), 1);
    let mut far = None;
    // As Envoy 1.40 counted five requests at two a connection: three connections, two of them full.
    for _ in 0..5 {
        let mut conn = house.connection().await;
        if let Some(new) = house.net.accepted() {
            far = Some(new);
        }
        exchange(&mut conn, far.as_mut().unwrap(), OK).await;
        conn.release();
    }
    assert_eq!(house.stats(["upstream_cx_total", "upstream_cx_max_requests", "upstream_cx_active"]), [3, 2, 1]);
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn a_connection_ends_at_its_age_but_not_under_a_request() {
    let house = House::new(
        common(core_pb::HttpProtocolOptions { max_connection_duration: time(500_000_000), ..Default::default() }),
        1,
    );
    let (mut a, mut b) = (house.connection().await, house.connection().await);
    let (mut far_a, mut far_b) = (house.far(), house.far());
    exchange(&mut a, &mut far_a, OK).await;
    a.release();
    let begun = Instant::now();
    far_a.closed().await;
    assert_eq!(begun.elapsed().as_millis(), 500);
    tokio::time::sleep(Duration::from_secs(1)).await;
    exchange(&mut b, &mut far_b, OK).await;
    b.release();
    assert_eq!(house.counts(), (0, 0, 0));
    assert_eq!(house.stat("upstream_cx_max_duration_reached"), 2);
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn what_said_close_is_not_used_again() {
    let house = House::new(pb::Cluster::default(), 1);
    let mut conn = house.connection().await;
    exchange(&mut conn, &mut house.far(), "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n").await;
    conn.release();
    assert_eq!(house.counts(), (0, 0, 0));
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn a_dropped_request_closes_its_connection_and_gives_everything_back() {
    let house = House::new(limits(1, 10, 1), 1);
    let conn = house.connection().await;
    let mut waits = house.pending();
    assert_eq!(house.hosts[0].load.counts().rq_active, 1);
    drop(conn);
    // Its place is taken by a new connection for who waited.
    assert!(!served(&mut waits).await.unwrap().is_reused());
    settle().await;
    let names = ["upstream_cx_destroy_local_with_active_rq", "upstream_rq_active", "upstream_cx_active"];
    assert_eq!(house.stats(names), [2, 0, 0]);
    let counts = house.hosts[0].load.counts();
    assert_eq!((counts.rq_active, counts.cx_active, counts.rq_total, counts.rq_pending_active), (0, 0, 2, 0));
    house.connection().await.closed_by_peer();
    assert_eq!(house.stat("upstream_cx_destroy_remote_with_active_rq"), 1);
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn pools_of_a_removed_host_drain() {
    let house = House::new(pb::Cluster::default(), 2);
    let (mut idle, mut used) = (house.connection().await, house.connection().await);
    let (mut far_idle, mut far_used) = (house.far(), house.far());
    exchange(&mut idle, &mut far_idle, OK).await;
    idle.release();
    house.hosts[0].set_removed();
    let config = house.cluster().config().clone();
    house.publish(config, &house.hosts[1..]);
    far_idle.closed().await;
    exchange(&mut used, &mut far_used, OK).await;
    used.release();
    far_used.closed().await;
    assert_eq!(house.stats(["upstream_cx_active", "upstream_cx_destroy_local"]), [0, 2]);
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn a_failed_host_loses_its_idle_connections_and_may_get_new_ones() {
    let house = House::new(pb::Cluster::default(), 1);
    let mut conn = house.connection().await;
    let mut far = house.far();
    exchange(&mut conn, &mut far, OK).await;
    conn.release();
    let failed = crate::upstream::ClusterUpdate::HostFailed { cluster: "c".into(), host: house.hosts[0].clone() };
    house.clusters.apply(&[failed]);
    far.closed().await;
    assert!(!house.connection().await.is_reused());
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn a_new_configuration_keeps_the_stats_and_lets_requests_end() {
    let house = House::new(pb::Cluster::default(), 1);
    let mut conn = house.connection().await;
    let mut far = house.far();
    house.configure(limits(5, 5, 5));
    assert_eq!(house.cluster().config().thresholds(Priority::Default).max_requests, 5);
    house.connection().await;
    exchange(&mut conn, &mut far, OK).await;
    conn.release();
    far.closed().await;
    assert_eq!(house.stats(["upstream_rq_total", "upstream_cx_active"]), [2, 0]);
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn pools_whose_connections_ended_do_not_pile_up() {
    let house = House::new(pb::Cluster::default(), 40);
    let cluster = house.cluster();
    let mut used = Vec::new();
    for host in &house.hosts {
        let Acquire::Pending(mut pending) = cluster.acquire(host, Priority::Default) else { panic!("ready") };
        let conn = served(&mut pending).await.unwrap();
        // Every tenth stays in use; the others are closed at once.
        if host.address().port().unwrap() % 10 == 0 {
            used.push(conn);
        }
    }
    assert!(cluster.pool_count() <= 20, "{}", cluster.pool_count());
    assert_eq!(house.stat("upstream_cx_active"), 4);
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn a_limit_of_pools_takes_an_unused_one_before_it_refuses() {
    let value = |value| Some(UInt32Value { value });
    let thresholds = vec![pb::circuit_breakers::Thresholds { max_connection_pools: value(1), ..Default::default() }];
    let breakers = pb::CircuitBreakers { thresholds, ..Default::default() };
    let house = House::new(pb::Cluster { circuit_breakers: Some(breakers), ..Default::default() }, 2);
    let first = house.connection().await;
    let other = || house.cluster().acquire(&house.hosts[1], Priority::Default);
    let Acquire::Failed(failure) = other() else { panic!("a second pool") };
    assert_eq!(failure.reason, PoolFailureReason::NoPool);
    assert_eq!(house.stat("upstream_cx_pool_overflow"), 1);
    first.release();
    assert!(matches!(other(), Acquire::Pending(_)));
}
