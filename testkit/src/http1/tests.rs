use std::time::Duration;

use nuncio_core::net::Address;
use tokio::time::Instant;

use super::upstream::Then;
use super::*;
use crate::net::Network;

fn address(text: &str) -> Address {
    Address::Ip(text.parse().unwrap())
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn a_client_and_an_upstream_understand_each_other() {
    let network = Network::new();
    let upstream = Upstream::start(&network, address("10.0.0.1:80"), |r| match r.path() {
        "/chunks" => Reply { trailers: vec![("x-sum".into(), "3".into())], ..Reply::chunks(["a", "bc"]) },
        "/slow" => Reply::text("late").after(Duration::from_secs(9)),
        _ => Reply::text(r.text()).field("x-a", "b"),
    });
    let mut client = Client::connect(&network, &upstream.address).await.unwrap();
    let answer = client.request("POST", "/echo", &[("X-Q", "1")], "hello").await;
    assert_eq!((answer.status(), answer.field("X-A"), answer.text()), (200, Some("b"), "hello"));
    let request = upstream.only();
    assert_eq!((request.method(), request.path(), request.field("x-q")), ("POST", "/echo", Some("1")));

    let answer = client.get("/chunks").await;
    assert_eq!((answer.text(), &answer.trailers[..]), ("abc", &[("x-sum".into(), "3".into())][..]));
    let begin = Instant::now();
    assert_eq!(client.get("/slow").await.text(), "late");
    assert_eq!(begin.elapsed(), Duration::from_secs(9));
    assert_eq!(client.request("HEAD", "/", &[], "").await.body, b"");
    assert_eq!(upstream.connections(), 1);
    assert!(!client.has_surplus());
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn an_upstream_can_misbehave() {
    let network = Network::new();
    let upstream = Upstream::start(&network, address("10.0.0.1:80"), |r| match r.path() {
        "/close" => Reply::text("bye").then(Then::Close),
        "/reset" => Reply::nothing(Then::Reset),
        "/raw" => Reply::raw("HTTP/1.1 200 OK\nbroken\n\n"),
        _ => Reply::nothing(Then::Hang),
    });
    let mut client = Client::connect(&network, &upstream.address).await.unwrap();
    assert_eq!(client.get("/close").await.text(), "bye");
    assert_eq!(client.closed().await, Ok(()));
    for (path, what) in [("/reset", "connection reset"), ("/raw", "a line that ends in a bare LF")] {
        let mut client = Client::connect(&network, &upstream.address).await.unwrap();
        client.send(format!("GET {path} HTTP/1.1\r\n\r\n")).await;
        assert_eq!(client.response().await, Err(Broken(what.into())));
    }
    let mut client = Client::connect(&network, &upstream.address).await.unwrap();
    client.send("GET /hang HTTP/1.1\r\n\r\n").await;
    assert!(tokio::time::timeout(Duration::from_secs(3600), client.response()).await.is_err());
    drop(upstream);
    assert!(client.response().await.is_err());
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn an_upstream_tells_what_was_no_request() {
    let network = Network::new();
    let upstream = Upstream::says(&network, address("10.0.0.1:80"), "x");
    let mut client = Client::connect(&network, &upstream.address).await.unwrap();
    client.send("POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nabc").await;
    client.finish();
    assert_eq!(client.closed().await, Ok(()));
    assert_eq!((upstream.broken(), upstream.take().len()), (vec!["3 bytes of 9".to_owned()], 0));
}
