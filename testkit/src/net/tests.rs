use std::io::ErrorKind;
use std::time::Duration;

use nuncio_core::net::Address;
use tokio::time::{Instant, timeout};

use super::*;

fn address(text: &str) -> Address {
    Address::Ip(text.parse().unwrap())
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn bytes_arrive_after_the_delay_of_the_link_and_the_end_behind_them() {
    let (mut a, mut b) = pair(Link { delay: Duration::from_millis(30), ..Link::default() });
    let begin = Instant::now();
    a.write("hello").await.unwrap();
    a.finish();
    assert_eq!(b.read_to_end().await.unwrap(), b"hello");
    assert_eq!(begin.elapsed(), Duration::from_millis(30));
    b.write("still open").await.unwrap();
    assert_eq!(a.read().await.unwrap(), b"still open");
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn a_reader_that_does_not_read_blocks_its_writer() {
    let (mut a, mut b) = pair(Link { window: 4, ..Link::default() });
    assert!(timeout(Duration::from_secs(60), a.write("more than four")).await.is_err());
    assert_eq!(b.read().await.unwrap(), b"more");
    a.write("x").await.unwrap();
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn closing_is_an_end_but_with_unread_bytes_a_reset() {
    let (a, mut b) = pair(Link::default());
    drop(a);
    assert_eq!(b.read().await.unwrap(), b"");
    assert_eq!(b.write("x").await.unwrap_err().kind(), ErrorKind::BrokenPipe);

    let (a, mut b) = pair(Link::default());
    b.write("never read").await.unwrap();
    drop(a);
    assert_eq!(b.read().await.unwrap_err().kind(), ErrorKind::ConnectionReset);

    let (a, mut b) = pair(Link::default());
    a.reset();
    assert_eq!(b.write("x").await.unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn a_connection_can_be_cut_and_stalled_from_outside() {
    let (mut a, mut b) = pair(Link::default());
    let trouble = a.trouble();
    trouble.stall();
    a.write("late").await.unwrap();
    assert!(timeout(Duration::from_secs(3600), b.read()).await.is_err());
    trouble.resume();
    assert_eq!(b.read().await.unwrap(), b"late");
    trouble.cut();
    assert_eq!(a.read().await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(b.write("x").await.unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn a_read_can_be_split() {
    let (mut a, mut b) = pair(Link { most_per_read: 2, ..Link::default() });
    a.write("abc").await.unwrap();
    assert_eq!(b.read().await.unwrap(), b"ab");
    assert_eq!(b.read().await.unwrap(), b"c");
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn connecting_goes_as_the_network_says() {
    let (network, here) = (Network::new(), address("10.0.0.1:80"));
    let refused = |e: std::io::Result<End>| e.err().map(|e| e.kind()) == Some(ErrorKind::ConnectionRefused);
    assert!(refused(network.connect_to(&here).await));

    let mut listening = network.listen(here.clone());
    let source = address("10.1.1.1:1234");
    let (mut client, local) = network.connect_from(Some(source.clone()), &here).await.unwrap();
    let (mut server, from) = listening.accept().await;
    assert_eq!((local, from), (source.clone(), source));
    client.write("hi").await.unwrap();
    assert_eq!(server.read().await.unwrap(), b"hi");

    network.route(&here, Route::Refused);
    assert!(refused(network.connect_to(&here).await));
    network.route(&here, Route::Silent);
    assert!(timeout(Duration::from_secs(3600), network.connect_to(&here)).await.is_err());
    network.route(&here, Route::Slow(Duration::from_secs(5)));
    let begin = Instant::now();
    assert!(network.connect_to(&here).await.is_ok());
    assert_eq!(begin.elapsed(), Duration::from_secs(5));
    assert_eq!((network.attempts(&here), network.troubles(&here).len()), (5, 2));

    drop(listening);
    assert!(refused(network.connect_to(&here).await));
    network.listen(here);
}
