//! Both roles back to back between scripted peers, on a paused clock: what the wakers must hold.

use std::future::poll_fn;
use std::time::Duration;

use nuncio_core::net::Address;
use nuncio_testkit::http1::{self as peers, Reply, Upstream};
use nuncio_testkit::net::{End, Link, Network};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::*;

fn address(text: &str) -> Address {
    Address::Ip(text.parse().unwrap())
}

/// The least that can be called a proxy: one direction after the other.
async fn relay(downstream: End, network: Network, to: Address) -> Result<(), String> {
    let mut server = ServerConn::new(downstream.into_io(), Vec::new(), Rc::new(ServerOptions::default()));
    let end = network.connect_to(&to).await.map_err(|e| e.to_string())?;
    let mut client = ClientConn::new(end.into_io(), Rc::new(ClientOptions::default()));
    let (buffers, mut scratch) = (Buffers::default(), vec![0; 128 * 1024]);
    let (mut request, mut response) = (RequestHead::default(), ResponseHead::default());
    let text = |e: &dyn std::fmt::Debug| format!("{e:?}");
    loop {
        let next = poll_fn(|cx| server.poll_request(cx, &buffers, &mut scratch, &mut request)).await;
        if next.map_err(|e| text(&e))?.is_none() {
            return Ok(());
        }
        client.send_head(&buffers, &request, server.request_complete())?;
        while !server.request_complete() {
            poll_fn(|cx| {
                let body = std::task::ready!(server.poll_body(cx, &mut scratch)).map_err(|e| text(&e))?;
                let (data, end) = match &body {
                    Body::Data(chunk) => (chunk.as_slice(), false),
                    _ => (&b""[..], true),
                };
                Poll::Ready(client.send_data(cx, &buffers, data, end).map_err(|e| text(&e)))
            })
            .await?;
            poll_fn(|cx| client.poll_flush(cx, &buffers)).await.map_err(|e| text(&e))?;
        }
        if !client.request_complete() {
            poll_fn(|cx| Poll::Ready(client.send_data(cx, &buffers, b"", true))).await.map_err(|e| text(&e))?;
        }
        poll_fn(|cx| client.poll_flush(cx, &buffers)).await.map_err(|e| text(&e))?;
        loop {
            let head = poll_fn(|cx| {
                // A client that goes away while the upstream thinks ends the exchange.
                if let Poll::Ready(gone) = server.poll_gone(cx, &mut scratch) {
                    return Poll::Ready(Err(text(&gone)));
                }
                client.poll_response(cx, &buffers, &mut scratch, &mut response).map_err(|e| text(&e))
            });
            head.await?;
            if !response.is_interim() {
                break;
            }
        }
        server.send_head(&buffers, &response, client.response_complete(), false);
        while !server.response_complete() {
            poll_fn(|cx| {
                let body = std::task::ready!(client.poll_body(cx, &mut scratch)).map_err(|e| text(&e))?;
                let (data, end) = match &body {
                    Body::Data(chunk) => (chunk.as_slice(), false),
                    _ => (&b""[..], true),
                };
                Poll::Ready(server.send_data(cx, &buffers, data, end).map_err(|e| text(&e)))
            })
            .await?;
            assert!(server.write_buffered() <= 256 * 1024, "what is buffered is bounded by what was read");
            poll_fn(|cx| server.poll_flush(cx, &buffers)).await.map_err(|e| text(&e))?;
        }
        poll_fn(|cx| server.poll_flush(cx, &buffers)).await.map_err(|e| text(&e))?;
        assert!(server.reusable_after_response() && client.is_reusable());
        server.next_request(&buffers);
        client.release(&buffers);
        assert_eq!((server.held_capacity(), client.held_capacity()), (0, 0));
    }
}

struct Setup {
    upstream: Upstream,
    client: peers::Client,
    relay: JoinHandle<Result<(), String>>,
}

async fn setup(link: Link, script: impl FnMut(&peers::Message) -> Reply + 'static) -> Setup {
    let network = Network::new();
    let (here, there) = (address("10.0.0.1:80"), address("10.0.0.2:80"));
    network.link(&here, link);
    network.link(&there, link);
    let upstream = Upstream::start(&network, there.clone(), script);
    let mut listening = network.listen(here.clone());
    let client = peers::Client::connect(&network, &here).await.unwrap();
    let (downstream, _) = listening.accept().await;
    let relay = tokio::task::spawn_local(relay(downstream, network, there));
    Setup { upstream, client, relay }
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn bodies_pass_both_ways_over_slow_links_that_split_everything() {
    let big: String = (0..20_000).map(|i| char::from(b'a' + (i % 26) as u8)).collect();
    for most_per_read in [1, 7, 4096, usize::MAX] {
        let link = Link { delay: Duration::from_millis(20), window: 10_000, most_per_read };
        let mut s = setup(link, |r| match r.path() {
            "/chunks" => Reply::chunks(r.body.chunks(1000).map(<[u8]>::to_vec)),
            _ => Reply::text(r.text()),
        })
        .await;
        for path in ["/echo", "/chunks"] {
            assert!(s.client.request("POST", path, &[], &big).await.text() == big, "{path} {most_per_read}");
        }
        let chunked = "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6;x\r\n world\r\n0\r\n\r\n";
        s.client.send(chunked).await;
        assert_eq!(s.client.response().await.unwrap().text(), "hello world");
        assert_eq!(s.client.request("HEAD", "/", &[], "").await.body, b"");
        assert_eq!((s.upstream.connections(), s.upstream.broken().len()), (1, 0));
        s.client.finish();
        assert_eq!(s.client.closed().await, Ok(()));
        assert_eq!(s.relay.await.unwrap(), Ok(()));
    }
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn a_client_that_goes_away_ends_the_wait_for_the_upstream() {
    let mut s = setup(Link::default(), |_| Reply::text("late").after(Duration::from_secs(60))).await;
    let begin = Instant::now();
    s.client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    s.client.reset();
    let ended = s.relay.await.unwrap().unwrap_err();
    assert!(ended.starts_with("Reset"), "{ended}");
    assert_eq!(begin.elapsed(), Duration::from_secs(1));
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn a_pooled_connection_wakes_its_owner_when_it_closes() {
    let (here, mut there) = nuncio_testkit::net::pair(Link::default());
    let mut conn = ClientConn::new(here.into_io(), Rc::new(ClientOptions::default()));
    assert!(timeout(Duration::from_secs(60), poll_fn(|cx| conn.poll_idle(cx))).await.is_err());
    there.finish();
    poll_fn(|cx| conn.poll_idle(cx)).await;
    assert!(!conn.is_reusable());
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn the_lingering_close_lets_the_client_read_its_answer() {
    let (here, there) = nuncio_testkit::net::pair(Link::default());
    let mut conn = ServerConn::new(here.into_io(), Vec::new(), Rc::new(ServerOptions::default()));
    let (buffers, mut scratch, mut head) = (Buffers::default(), vec![0; 8192], RequestHead::default());
    let mut client = peers::Client::new(there);
    client.send("GET / HTTP/1.1\r\nBad Header: x\r\n\r\nand more that nobody reads").await;
    let refused = poll_fn(|cx| conn.poll_request(cx, &buffers, &mut scratch, &mut head)).await.unwrap_err();
    let answer =
        ResponseHead { framing: Framing::Length(refused.body.len() as u64), ..ResponseHead::new(refused.status) };
    conn.send_head(&buffers, &answer, false, false);
    poll_fn(|cx| Poll::Ready(conn.send_data(cx, &buffers, refused.body.as_bytes(), true))).await.unwrap();
    let closing = tokio::task::spawn_local(async move {
        let mut allowance = 64 * 1024;
        poll_fn(|cx| conn.poll_drain_and_close(cx, &buffers, &mut scratch, &mut allowance)).await;
    });
    client.send("still talking").await;
    let answer = client.response().await.unwrap();
    assert_eq!((answer.status(), answer.field("connection"), answer.text()), (400, Some("close"), "Bad Request"));
    assert_eq!(client.closed().await, Ok(()));
    client.finish();
    closing.await.unwrap();
}
