//! What of a request with a body a mirror gets, and when. As Envoy 1.40 does it, but for the mirror that takes nothing.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::spawn_local;
use tokio::time::Duration;

use crate::races::proxy_of;
use crate::running::RunningProxy;
use crate::stage::{stat, stat_becomes, within};

/// How an upstream deals with a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Manner {
    /// Answers what is complete.
    Usual,
    /// Answers the head, and reads on.
    Early,
    /// Reads a little at a time.
    Slow,
    /// Reads nothing.
    Deaf,
}

/// An HTTP/1 upstream that remembers what came of its requests.
#[derive(Clone, Default)]
struct Upstream {
    head: Rc<RefCell<String>>,
    /// Bytes behind the head.
    body: Rc<Cell<usize>>,
    requests: Rc<Cell<usize>>,
    /// Connections that ended under a request.
    cut: Rc<Cell<usize>>,
}

impl Upstream {
    async fn start(&self, manner: Manner) -> SocketAddr {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(64 * 1024).unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener: TcpListener = socket.listen(16).unwrap();
        let (address, this) = (listener.local_addr().unwrap(), self.clone());
        spawn_local(async move {
            let mut deaf = Vec::new();
            while let Ok((stream, _)) = listener.accept().await {
                match manner {
                    Manner::Deaf => deaf.push(stream),
                    _ => drop(spawn_local(this.clone().serve(stream, manner))),
                }
            }
        });
        address
    }

    async fn serve(self, mut stream: TcpStream, manner: Manner) {
        const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
        let (mut head, mut tail, mut body) = (Vec::new(), Vec::new(), 0);
        let mut bytes = [0; 16 * 1024];
        let length = loop {
            let n = stream.read(&mut bytes).await.unwrap_or_default();
            if n == 0 {
                return;
            }
            head.extend_from_slice(&bytes[..n]);
            let Some(end) = head.windows(4).position(|w| w == b"\r\n\r\n") else { continue };
            tail.extend_from_slice(&head[end + 4..]);
            head.truncate(end);
            body += tail.len();
            let text = String::from_utf8(head.clone()).unwrap();
            let length = text.split("content-length: ").nth(1).and_then(|n| n.split("\r\n").next()?.parse().ok());
            *self.head.borrow_mut() = text;
            break length;
        };
        self.requests.set(self.requests.get() + 1);
        self.body.set(body);
        if manner == Manner::Early {
            stream.write_all(ANSWER).await.unwrap();
        }
        while length.map_or(!tail.ends_with(b"0\r\n\r\n"), |length| body < length) {
            if manner == Manner::Slow {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let n = stream.read(&mut bytes).await.unwrap_or_default();
            if n == 0 {
                return self.cut.set(self.cut.get() + 1);
            }
            body += n;
            self.body.set(body);
            tail.extend_from_slice(&bytes[..n]);
            tail.drain(..tail.len().saturating_sub(5));
        }
        let _ = stream.write_all(ANSWER).await;
    }

    async fn reaches(&self, what: &str, wanted: impl Fn(&Self) -> bool) {
        let reached = async {
            while !wanted(self) {
                tokio::task::yield_now().await;
            }
        };
        within(what, reached).await;
    }
}

/// An upstream and its mirror `m1`, behind a listener that buffers 16 KiB.
async fn house(upstream: Manner, mirror: Manner) -> (RunningProxy, Upstream, Upstream) {
    let (main, copy) = (Upstream::default(), Upstream::default());
    let route = "{match: {prefix: /}, route: {cluster: c, timeout: 20s, request_mirror_policies: [{cluster: m1}]}}";
    let mirrors = [("m1", copy.start(mirror).await)];
    let more = ("- name: in\n", "- name: in\n    per_connection_buffer_limit_bytes: 16384\n");
    let proxy = proxy_of(main.start(upstream).await, &mirrors, &[route.into()], more);
    (proxy, main, copy)
}

async fn connect(proxy: &RunningProxy) -> TcpStream {
    TcpStream::connect(proxy.socket("in")).await.unwrap()
}

/// The first line of the answer to this, sent on a connection of its own.
async fn post(proxy: &RunningProxy, framing: &str, body: &[u8]) -> String {
    let mut stream = connect(proxy).await;
    let head = format!("POST / HTTP/1.1\r\nhost: web.test\r\n{framing}\r\n\r\n");
    let exchange = async {
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(body).await.unwrap();
        let mut answer = [0; 4096];
        let n = stream.read(&mut answer).await.unwrap();
        String::from_utf8_lossy(&answer[..n]).lines().next().unwrap_or_default().to_owned()
    };
    within("an answer", exchange).await
}

#[tokio::test(flavor = "local")]
async fn bodies_longer_than_the_buffers_are_copied_whole() {
    let (proxy, main, copy) = house(Manner::Usual, Manner::Usual).await;
    let size = 300_000;
    let framing = format!("content-length: {size}");
    assert_eq!(post(&proxy, &framing, &vec![b'x'; size]).await, "HTTP/1.1 200 OK");
    copy.reaches("a whole copy", |copy| copy.body.get() == size).await;
    assert!(copy.head.borrow().contains("host: web.test-shadow\r\n"), "{}", copy.head.borrow());
    assert_eq!((main.body.get(), main.requests.get(), copy.requests.get()), (size, 1, 1));
    let chunks = format!("{size:x}\r\n{}\r\n0\r\n\r\n", "x".repeat(size));
    assert_eq!(post(&proxy, "transfer-encoding: chunked", chunks.as_bytes()).await, "HTTP/1.1 200 OK");
    stat_becomes(&proxy, "cluster.m1.upstream_rq_200", 2).await;
    assert!(copy.body.get() >= size, "{}", copy.body.get());
    assert_eq!(stat(&proxy, "cluster.c.retry_or_shadow_abandoned").await, 0);
}

#[tokio::test(flavor = "local")]
async fn half_a_request_is_half_a_copy_and_ends_with_it() {
    let (proxy, _, copy) = house(Manner::Usual, Manner::Usual).await;
    let mut client = connect(&proxy).await;
    client.write_all(b"POST / HTTP/1.1\r\nhost: web.test\r\ncontent-length: 1000\r\n\r\n").await.unwrap();
    client.write_all(&[b'x'; 500]).await.unwrap();
    // It goes out as it comes.
    copy.reaches("half a copy", |copy| copy.body.get() == 500).await;
    drop(client);
    copy.reaches("the copy's end", |copy| copy.cut.get() == 1).await;
    stat_becomes(&proxy, "cluster.m1.upstream_rq_active", 0).await;
    assert_eq!(stat(&proxy, "cluster.m1.upstream_cx_destroy_local_with_active_rq").await, 1);
    assert_eq!(stat(&proxy, "cluster.m1.upstream_rq_total").await, 1);
}

#[tokio::test(flavor = "local")]
async fn a_request_that_is_answered_early_takes_its_copy_with_it() {
    let (proxy, _, copy) = house(Manner::Early, Manner::Usual).await;
    let mut client = connect(&proxy).await;
    client.write_all(b"POST / HTTP/1.1\r\nhost: web.test\r\ncontent-length: 100000\r\n\r\nx").await.unwrap();
    let mut answer = [0; 4096];
    let n = within("an answer", client.read(&mut answer)).await.unwrap();
    assert!(answer[..n].starts_with(b"HTTP/1.1 200 OK\r\n"));
    copy.reaches("the copy's end", |copy| copy.cut.get() == 1).await;
}

#[tokio::test(flavor = "local")]
async fn a_slow_mirror_gets_all_of_it() {
    let (proxy, main, copy) = house(Manner::Usual, Manner::Slow).await;
    let size = 4 << 20;
    assert_eq!(post(&proxy, &format!("content-length: {size}"), &vec![b'x'; size]).await, "HTTP/1.1 200 OK");
    copy.reaches("a whole copy", |copy| copy.body.get() == size).await;
    assert_eq!(main.body.get(), size);
    assert_eq!(stat(&proxy, "cluster.m1.retry_or_shadow_abandoned").await, 0);
}

// Envoy holds the request up for as long as the mirror likes.
#[tokio::test(flavor = "local")]
async fn a_mirror_that_takes_nothing_loses_its_copy_and_the_request_goes_on() {
    let (proxy, main, _copy) = house(Manner::Usual, Manner::Deaf).await;
    // More than all sockets on the way hold.
    let size = 32 << 20;
    assert_eq!(post(&proxy, &format!("content-length: {size}"), &vec![b'x'; size]).await, "HTTP/1.1 200 OK");
    assert_eq!(main.body.get(), size);
    assert_eq!(stat(&proxy, "cluster.m1.retry_or_shadow_abandoned").await, 1);
    stat_becomes(&proxy, "cluster.m1.upstream_rq_active", 0).await;
}
