//! Upgrades, CONNECT and extended CONNECT through a whole proxy. The statuses, fields and counters
//! are those of Envoy 1.40 (oracle scenario `hcm_websocket`); rows R20 and R22 of the table of
//! adversarial inputs.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;

use nuncio_testkit::http2::frame::{flag, frame, kind::*};
use nuncio_testkit::http2::hpack::block;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::spawn_local;

use crate::running::RunningProxy;
use crate::stage::{configuration, connect, stat, stat_becomes, within};

const WEBSOCKET: &str = "upgrade_configs: [{upgrade_type: websocket}]";
const CONNECT: &str = "upgrade_configs: [{upgrade_type: CONNECT}]";
const ASK: &str = "GET /ws HTTP/1.1\r\nhost: a\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n";
const SWITCH: &str = "HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n";

/// Says one thing to every head, then echoes what comes after it if `echoes`.
struct Peer {
    address: SocketAddr,
    state: Rc<State>,
}

#[derive(Default)]
struct State {
    heads: RefCell<Vec<String>>,
    /// What came behind heads that were not echoed.
    behind: RefCell<Vec<u8>>,
    connections: Cell<usize>,
    ended: Cell<usize>,
}

impl Peer {
    async fn start(says: &'static str, echoes: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, state) = (listener.local_addr().unwrap(), Rc::<State>::default());
        let shared = state.clone();
        spawn_local(async move {
            while let Ok((stream, _)) = listener.accept().await {
                shared.connections.set(shared.connections.get() + 1);
                let state = shared.clone();
                spawn_local(async move {
                    talk(stream, &state, says, echoes).await;
                    state.ended.set(state.ended.get() + 1);
                });
            }
        });
        Self { address, state }
    }

    fn heads(&self) -> Vec<String> {
        self.state.heads.borrow().clone()
    }

    async fn ends(&self, connections: usize) {
        let ended = async {
            while self.state.ended.get() < connections {
                tokio::task::yield_now().await;
            }
        };
        within("the upstream's connections end", ended).await;
    }
}

/// Ends at the proxy's end of the connection.
async fn talk(mut stream: TcpStream, state: &State, says: &str, echoes: bool) {
    // An upstream of plain TCP has no heads.
    if !says.is_empty() {
        let head = head(&mut stream).await;
        state.heads.borrow_mut().push(head);
        stream.write_all(says.as_bytes()).await.unwrap();
    }
    let mut piece = [0; 1024];
    while let Ok(n) = stream.read(&mut piece).await {
        if n == 0 {
            return;
        }
        if echoes {
            stream.write_all(&piece[..n]).await.unwrap();
        } else {
            state.behind.borrow_mut().extend_from_slice(&piece[..n]);
        }
    }
}

/// To the empty line; panics at the end.
async fn head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(within("a head", stream.read_u8()).await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

async fn expect(stream: &mut TcpStream, text: &str) {
    let mut got = vec![0; text.len()];
    within(text, stream.read_exact(&mut got)).await.unwrap();
    assert_eq!(String::from_utf8_lossy(&got), text);
}

async fn rest(stream: &mut TcpStream) -> String {
    let mut rest = String::new();
    within("the end", stream.read_to_string(&mut rest)).await.unwrap();
    rest
}

fn proxy(peer: &Peer, manager: &str, route: &str) -> RunningProxy {
    let yaml = configuration(peer.address, manager, "").replace("timeout: 0s", &format!("timeout: 0s{route}"));
    RunningProxy::start(&yaml, 1)
}

async fn client(proxy: &RunningProxy, says: &str) -> TcpStream {
    let mut stream = TcpStream::connect(proxy.socket("in")).await.unwrap();
    stream.write_all(says.as_bytes()).await.unwrap();
    stream
}

#[tokio::test(flavor = "local")]
async fn a_websocket_passes_both_ways_and_its_connection_is_never_used_again() {
    let peer = Peer::start(SWITCH, true).await;
    let proxy = proxy(&peer, WEBSOCKET, "");
    // What is sent at once waits for 101.
    let mut client = client(&proxy, &format!("{ASK}early")).await;
    let answer = head(&mut client).await.to_ascii_lowercase();
    assert!(answer.starts_with("http/1.1 101 "), "{answer}");
    assert!(answer.contains("connection: upgrade\r\n") && answer.contains("upgrade: websocket\r\n"), "{answer}");
    expect(&mut client, "early").await;
    client.write_all(b"more").await.unwrap();
    expect(&mut client, "more").await;
    let asked = peer.heads()[0].to_ascii_lowercase();
    assert!(asked.starts_with("get /ws http/1.1\r\n") && asked.contains("upgrade: websocket\r\n"), "{asked}");
    assert_eq!(stat(&proxy, "http.in.downstream_cx_upgrades_active").await, 1);
    drop(client);
    peer.ends(1).await;
    stat_becomes(&proxy, "http.in.downstream_cx_upgrades_active", 0).await;
    assert_eq!(stat(&proxy, "http.in.downstream_cx_upgrades_total").await, 1);
    assert_eq!(stat(&proxy, "cluster.c.upstream_cx_active").await, 0);
}

#[tokio::test(flavor = "local")]
async fn r20_an_upgrade_that_is_not_allowed_is_403_and_nothing_behind_it_is_read() {
    let peer = Peer::start("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", false).await;
    let proxy = proxy(&peer, WEBSOCKET, "");
    let foo =
        "GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: foo\r\n\r\nGET /smug HTTP/1.1\r\nhost: a\r\n\r\n";
    let answer = rest(&mut client(&proxy, foo).await).await.to_ascii_lowercase();
    assert!(answer.starts_with("http/1.1 403 ") && answer.contains("connection: close\r\n"), "{answer}");
    assert_eq!(answer.matches("http/1.1").count(), 1, "{answer}");
    assert_eq!((peer.heads(), peer.state.connections.get()), (Vec::<String>::new(), 0));
}

#[tokio::test(flavor = "local")]
async fn an_upgrade_that_the_upstream_refuses_closes_both_and_early_bytes_stay_here() {
    for (refusal, end) in [
        ("HTTP/1.1 403 Forbidden\r\ncontent-length: 5\r\n\r\nno ws", "\r\n\r\nno ws"),
        // Not the answer to an upgrade either: CVE-2024-23326. Its body goes no further, as in Envoy 1.40.
        ("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nno ws", "\r\n\r\n"),
    ] {
        let peer = Peer::start(refusal, false).await;
        let proxy = proxy(&peer, WEBSOCKET, "");
        let mut client = client(&proxy, &format!("{ASK}GET /smug HTTP/1.1\r\nhost: a\r\n\r\n")).await;
        let answer = rest(&mut client).await;
        assert!(answer.starts_with(&refusal[..12]) && answer.ends_with(end), "{answer}");
        peer.ends(1).await;
        assert_eq!(peer.state.behind.borrow().as_slice(), b"", "{refusal}");
        assert_eq!(peer.heads().len(), 1);
    }
}

#[tokio::test(flavor = "local")]
async fn connect_is_passed_on_or_refused() {
    let ask = "CONNECT web.test:443 HTTP/1.1\r\nhost: web.test:443\r\n\r\nearly";
    let matcher = |proxy: &str| proxy.replace("match: {prefix: \"/\"}", "match: {connect_matcher: {}}");
    // Not configured.
    let peer = Peer::start("HTTP/1.1 200 OK\r\n\r\n", true).await;
    let off = RunningProxy::start(&matcher(&configuration(peer.address, "", "")), 1);
    let answer = rest(&mut client(&off, ask).await).await;
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    assert_eq!(peer.state.connections.get(), 0);
    // Passed on.
    let on = RunningProxy::start(&matcher(&configuration(peer.address, CONNECT, "")), 1);
    let mut tunnel = client(&on, ask).await;
    let answer = head(&mut tunnel).await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && !answer.to_ascii_lowercase().contains("content-length"), "{answer}");
    expect(&mut tunnel, "early").await;
    assert!(peer.heads()[0].starts_with("CONNECT web.test:443 HTTP/1.1\r\n"), "{:?}", peer.heads());
    drop(tunnel);
    peer.ends(1).await;
    // R22: the upstream wants a password first.
    let peer = Peer::start("HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n", false).await;
    let on = RunningProxy::start(&matcher(&configuration(peer.address, CONNECT, "")), 1);
    let answer = rest(&mut client(&on, ask).await).await;
    assert!(answer.starts_with("HTTP/1.1 407 "), "{answer}");
    peer.ends(1).await;
    assert_eq!(peer.state.behind.borrow().as_slice(), b"");
}

#[tokio::test(flavor = "local")]
async fn connect_is_ended_here_and_its_bytes_are_plain_tcp_beyond() {
    let peer = Peer::start("", true).await;
    let yaml = configuration(peer.address, CONNECT, "")
        .replace("match: {prefix: \"/\"}", "match: {connect_matcher: {}}")
        .replace("timeout: 0s", "timeout: 0s, upgrade_configs: [{upgrade_type: CONNECT, connect_config: {}}]");
    let proxy = RunningProxy::start(&yaml, 1);
    let mut tunnel = client(&proxy, "CONNECT web.test:443 HTTP/1.1\r\nhost: web.test:443\r\n\r\n").await;
    assert!(head(&mut tunnel).await.starts_with("HTTP/1.1 200 "));
    tunnel.write_all(b"GET / plain bytes").await.unwrap();
    expect(&mut tunnel, "GET / plain bytes").await;
    drop(tunnel);
    peer.ends(1).await;
    // And from HTTP/2.
    let mut client = connect(&proxy).await;
    client.shake_hands(&[]).await;
    let fields = [(":method", "CONNECT"), (":authority", "web.test:443")];
    client.write(&frame(HEADERS, flag::END_HEADERS, 1, &block(&fields))).await;
    let answer = within("an answer", client.find(|f| f.kind == HEADERS)).await.unwrap();
    assert_eq!(nuncio_testkit::http2::hpack::status(&answer.payload), Some(200));
    client.write(&frame(DATA, 0, 1, b"bytes")).await;
    assert_eq!(within("an echo", client.find(|f| f.kind == DATA)).await.unwrap().payload, b"bytes");
    client.write(&frame(DATA, flag::END_STREAM, 1, b"")).await;
    peer.ends(2).await;
}

#[tokio::test(flavor = "local")]
async fn extended_connect_becomes_an_upgrade_upstream() {
    let peer = Peer::start(SWITCH, true).await;
    let proxy = proxy(&peer, &format!("{WEBSOCKET}\n          http2_protocol_options: {{allow_connect: true}}"), "");
    let mut client = connect(&proxy).await;
    client.greet(&[]).await;
    let told = within("settings", client.find(|f| f.kind == SETTINGS && !f.has(flag::ACK))).await.unwrap();
    assert!(told.payload.chunks(6).any(|s| s == [0, 8, 0, 0, 0, 1]), "SETTINGS_ENABLE_CONNECT_PROTOCOL");
    let fields = [
        (":method", "CONNECT"),
        (":protocol", "websocket"),
        (":scheme", "http"),
        (":authority", "a"),
        (":path", "/ws"),
        ("sec-websocket-version", "13"),
    ];
    client.write(&frame(HEADERS, flag::END_HEADERS, 1, &block(&fields))).await;
    client.write(&frame(DATA, 0, 1, b"early")).await;
    let answer = within("an answer", client.find(|f| f.kind == HEADERS)).await.unwrap();
    assert_eq!(nuncio_testkit::http2::hpack::status(&answer.payload), Some(200));
    assert_eq!(within("an echo", client.find(|f| f.kind == DATA)).await.unwrap().payload, b"early");
    let asked = peer.heads()[0].to_ascii_lowercase();
    assert!(asked.starts_with("get /ws http/1.1\r\n") && asked.contains("upgrade: websocket\r\n"), "{asked}");
    assert!(!asked.contains(":protocol"), "{asked}");
    // The other streams of the connection go on when this one ends.
    client.write(&frame(RST_STREAM, 0, 1, &[0, 0, 0, 8])).await;
    peer.ends(1).await;
    assert!(client.is_alive().await);
}

#[tokio::test(flavor = "local")]
async fn extended_connect_that_is_not_allowed_is_refused_on_its_stream() {
    let peer = Peer::start(SWITCH, true).await;
    let proxy = proxy(&peer, "http2_protocol_options: {allow_connect: true}", "");
    let mut client = connect(&proxy).await;
    client.shake_hands(&[]).await;
    let fields = [
        (":method", "CONNECT"),
        (":protocol", "websocket"),
        (":scheme", "http"),
        (":authority", "a"),
        (":path", "/ws"),
    ];
    client.write(&frame(HEADERS, flag::END_HEADERS, 1, &block(&fields))).await;
    let answer = within("an answer", client.find(|f| f.kind == HEADERS)).await.unwrap();
    assert_eq!(nuncio_testkit::http2::hpack::status(&answer.payload), Some(403));
    assert!(client.is_alive().await);
    assert_eq!(peer.state.connections.get(), 0);
}
