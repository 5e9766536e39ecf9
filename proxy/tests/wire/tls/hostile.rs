//! Clients that mean no good: hellos of every kind, handshakes that never end, noise, and floods of what costs the
//! server and says nothing.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nuncio_testkit::tls::records::{ALERT, APPLICATION_DATA, HANDSHAKE};
use nuncio_testkit::tls::{TlsClient, TlsConnection, Versions};

use super::{ECHO, Pki, TYPE, eventually, hcm, listener, own_certificate, proxy, stat};
use crate::running::RunningProxy;

/// The server and the clients of a test are one process.
pub(super) fn allow_descriptors(wanted: u64) {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    if soft < wanted {
        assert!(hard >= wanted, "this test needs {wanted} descriptors");
        setrlimit(Resource::RLIMIT_NOFILE, wanted, hard).unwrap();
    }
}

/// Sends `bytes`, and reads what is said until the end.
fn exchange(to: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut socket = TcpStream::connect(to).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    socket.write_all(bytes).unwrap();
    let mut answer = Vec::new();
    // A reset is an end as well.
    if let Err(e) = socket.read_to_end(&mut answer) {
        assert_ne!(e.kind(), ErrorKind::WouldBlock, "still open after {} bytes", answer.len());
    }
    answer
}

/// The first bytes of a client's first message.
fn half_hello(to: SocketAddr) -> TcpStream {
    let mut socket = TcpStream::connect(to).unwrap();
    socket.write_all(&[22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3]).unwrap();
    socket
}

#[test]
fn half_open_handshakes_end_in_time_and_hold_nobody_up() {
    const HALVES: usize = 1000;
    allow_descriptors(3 * HALVES as u64);
    let pki = Pki::new();
    let proxy = proxy(&[listener("in", &hcm(), "", &own_certificate(&pki), &pki)]);
    let address = proxy.socket("in");
    let mut halves: Vec<_> = (0..HALVES).map(|_| half_hello(address)).collect();
    assert!(TlsClient::new(None, Versions::Both, &[]).get(address, "web.test", "/").is_ok());
    for half in &mut halves {
        half.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let closed = half.read(&mut [0; 16]);
        assert!(matches!(closed, Ok(0)) || closed.is_err_and(|e| e.kind() != ErrorKind::WouldBlock));
    }
    let timeouts = "listener.in.downstream_cx_transport_socket_connect_timeout";
    eventually("all are counted", || stat(&proxy, timeouts) == HALVES as u64);
    eventually("none is left", || stat(&proxy, "listener.in.downstream_cx_active") == 0);
}

#[test]
fn noise_on_the_port_of_tls_is_closed_and_counted() {
    let pki = Pki::new();
    let proxy = proxy(&[listener("in", &hcm(), "", &own_certificate(&pki), &pki)]);
    let noises: [&[u8]; 4] = [
        b"GET / HTTP/1.1\r\nhost: a\r\n\r\n",
        b"\x00\x01\x02\x03\x04\x05\x06\x07",
        // A record that is too long.
        b"\x16\x03\x01\xff\xff\x01\x00\xff\xfb",
        // A message that ends before its fields do.
        b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00",
    ];
    for noise in noises {
        let mut socket = TcpStream::connect(proxy.socket("in")).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        socket.write_all(noise).unwrap();
        let mut rest = Vec::new();
        // An alert may come first; a reset is a close as well.
        let _ = socket.read_to_end(&mut rest);
        assert!(rest.len() < 64, "{rest:?}");
    }
    assert!(TlsClient::new(None, Versions::Both, &[]).get(proxy.socket("in"), "web.test", "/").is_ok());
    eventually("each is counted", || stat(&proxy, "listener.in.ssl.connection_error") == 4);
    drop(proxy);
    let log = pki.log();
    assert!(log.contains("268435612:SSL_routines:OPENSSL_internal:HTTP_REQUEST"), "{log}");
}

// === Hellos ===

fn field(length_bytes: usize, value: &[u8]) -> Vec<u8> {
    let length = u32::try_from(value.len()).unwrap().to_be_bytes();
    [&length[4 - length_bytes..], value].concat()
}

fn extension(kind: u16, value: &[u8]) -> Vec<u8> {
    [&kind.to_be_bytes()[..], &field(2, value)].concat()
}

pub(super) fn server_name(name: &[u8]) -> Vec<u8> {
    extension(0, &field(2, &[&[0], &field(2, name)[..]].concat()))
}

/// A client's first message of TLS 1.3 that a server can answer, in one record.
pub(super) fn hello(more: &[u8]) -> Vec<u8> {
    let share = [&[0, 29][..], &field(2, &[9; 32])].concat();
    let extensions = [
        extension(43, &field(1, &[3, 4])),
        extension(13, &field(2, &[4, 3, 8, 4])),
        extension(10, &field(2, &[0, 29])),
        extension(51, &field(2, &share)),
        more.to_vec(),
    ];
    let body =
        [&[3, 3], &[7; 32][..], &field(1, &[1; 32]), &field(2, &[0x13, 1]), &[1, 0], &field(2, &extensions.concat())];
    let message = [&[1][..], &field(3, &body.concat())].concat();
    message.chunks(1 << 14).flat_map(|chunk| [&[22, 3, 1][..], &field(2, chunk)].concat()).collect()
}

/// A chain for `web.test`, one for everybody else, behind an inspector.
fn two_chains(pki: &Pki) -> RunningProxy {
    let (log, certificate, filter) = (pki.path().join("log"), own_certificate(pki), hcm());
    let chain = |name: &str, rest: &str| {
        format!(
            r#"{{name: {name}, {rest}
      transport_socket_connect_timeout: 2s,
      transport_socket: {{name: tls, typed_config: {{"@type": {TYPE}.transport_sockets.tls.v3.DownstreamTlsContext, common_tls_context: {{{certificate}}}}}}},
      filters: [{filter}]}}"#
        )
    };
    let web = chain("web", "filter_chain_match: {server_names: [web.test]},");
    let other = chain("other", "");
    let text = format!(
        r#"
  - name: in
    stat_prefix: in
    address: {{socket_address: {{address: 127.0.0.1, port_value: 0}}}}
    listener_filters:
    - name: i
      typed_config: {{"@type": {TYPE}.filters.listener.tls_inspector.v3.TlsInspector}}
    access_log:
    - name: f
      typed_config:
        "@type": {TYPE}.access_loggers.file.v3.FileAccessLog
        path: "{}"
        log_format: {{text_format_source: {{inline_string: "%FILTER_CHAIN_NAME% %REQUESTED_SERVER_NAME% %DOWNSTREAM_TRANSPORT_FAILURE_REASON%\n"}}}}
    filter_chains: [{web}, {other}]
"#,
        log.display()
    );
    proxy(&[text])
}

// R57. Envoy 1.40 has the same chains; it gives what is no hello to the chains for plain text, where we close.
#[test]
fn every_hello_gets_the_right_chain_or_a_close() {
    let pki = Pki::new();
    let proxy = two_chains(&pki);
    let address = proxy.socket("in");
    let web = server_name(b"web.test");
    // With a share of 1.2 kB for a key exchange that withstands quantum computers, and without.
    let padded = |n: usize| [web.clone(), extension(0x5a5a, &vec![0; n])].concat();
    let sealed = [&[0, 0, 1, 0, 1, 7][..], &field(2, &[9; 32]), &field(2, &[0; 144])].concat();
    let grease = [web.clone(), extension(0xfe0d, &sealed)].concat();
    let twice = "web web.test TLS_error:|268435595:SSL_routines:OPENSSL_internal:\
                 DECRYPTION_FAILED_OR_BAD_RECORD_MAC:TLS_error_end";
    let hellos: [(&str, Vec<u8>, Option<&str>); 11] = [
        ("plain", hello(&web), Some("web web.test -")),
        ("upper case", hello(&server_name(b"WEB.Test")), Some("web web.test -")),
        ("15 kB", hello(&padded(15_000)), Some("web web.test -")),
        ("ECH GREASE", hello(&grease), Some("web web.test -")),
        ("no name", hello(b""), Some("other - -")),
        ("a trailing dot", hello(&server_name(b"web.test.")), Some("other web.test. -")),
        ("two hellos", [hello(&web), hello(&web)].concat(), Some(twice)),
        ("17 kB", hello(&padded(17_000)), None),
        ("NUL", hello(&server_name(b"web.test\0")), None),
        ("256 bytes", hello(&server_name(&[b'a'; 256])), None),
        ("no hello", b"\x16\x03\x01\0\x05\x02\0\0\x01\0".to_vec(), None),
    ];
    for (what, bytes, chain) in &hellos {
        let mut socket = TcpStream::connect(address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        socket.write_all(bytes).unwrap();
        let mut first = [0; 1];
        let answered = socket.read(&mut first).is_ok_and(|n| n == 1);
        assert_eq!(answered, chain.is_some(), "{what}");
    }
    eventually("none is left", || stat(&proxy, "listener.in.downstream_cx_active") == 0);
    assert_eq!(stat(&proxy, "tls_inspector.client_hello_too_large"), 1);
    assert_eq!(stat(&proxy, "tls_inspector.tls_not_found"), 3);
    // The second of two hellos.
    let errors = stat(&proxy, "listener.in.ssl.connection_error");
    drop(proxy);
    let log = pki.log();
    assert_eq!(errors, 1, "{log}");
    let mut chosen: Vec<_> = log.lines().filter(|line| !line.starts_with('-')).collect();
    let mut expected: Vec<_> = hellos.iter().filter_map(|(_, _, chain)| *chain).collect();
    chosen.sort_unstable();
    expected.sort_unstable();
    assert_eq!(chosen, expected);
}

// === After the handshake ===

const MANY: usize = 10_000;

/// A flood of records, and what Envoy calls it.
type Flood = (&'static str, Versions, u8, Vec<u8>, &'static str);

fn floods_of_records() -> [Flood; 4] {
    [
        ("empty records", Versions::Only13, APPLICATION_DATA, Vec::new(), "TOO_MANY_EMPTY_FRAGMENTS"),
        ("empty records", Versions::Only12, APPLICATION_DATA, Vec::new(), "TOO_MANY_EMPTY_FRAGMENTS"),
        // "User cancelled", which ends nothing by itself.
        ("warnings", Versions::Only12, ALERT, vec![1, 90], "TOO_MANY_WARNING_ALERTS"),
        ("another hello", Versions::Only12, HANDSHAKE, hello(b"")[5..].to_vec(), "NO_RENEGOTIATION"),
    ]
}

fn connect(to: SocketAddr, versions: Versions) -> TlsConnection {
    TlsClient::new(None, versions, &[]).connect(to, "web.test").unwrap()
}

/// Each of them on a connection of its own, then as many new keys. All five connections are closed.
pub(super) fn floods(to: SocketAddr) {
    for (what, versions, kind, content, _) in floods_of_records() {
        let mut records = connect(to, versions).into_records();
        // The proxy may close in the middle of it.
        let _ = records.send(kind, &content, MANY);
        assert!(records.is_closed(), "{what}");
    }
    let mut updating = connect(to, Versions::Only13);
    let updated = (0..MANY).take_while(|_| updating.refresh_keys().is_ok() && updating.flush().is_ok()).count();
    assert!(updated == MANY || updated > 32, "{updated} updates were taken");
    let ended = updating.read(&mut [0; 1]);
    assert!(!ended.is_err_and(|e| e.kind() == ErrorKind::WouldBlock), "still open");
}

// R59. BoringSSL allows as many; the names are Envoy's.
#[test]
fn floods_of_what_says_nothing_end_the_connection() {
    let pki = Pki::new();
    let proxy = proxy(&[listener("in", ECHO, "", &own_certificate(&pki), &pki)]);
    let address = proxy.socket("in");
    floods(address);
    let all = floods_of_records().len() as u64 + 1;
    eventually("each is counted", || stat(&proxy, "listener.in.ssl.connection_error") == all);
    // A few of them are fine.
    for (what, versions, kind, content, _) in floods_of_records().iter().filter(|flood| flood.0 != "another hello") {
        let mut records = connect(address, *versions).into_records();
        records.send(*kind, content, 4).unwrap();
        records.finish().unwrap();
        assert!(records.is_closed(), "{what}");
    }
    let errors = stat(&proxy, "listener.in.ssl.connection_error");
    drop(proxy);
    let log = pki.log();
    assert_eq!(errors, all, "{log}");
    assert!(log.contains("TOO_MANY_KEY_UPDATES"), "{log}");
    for (what, .., words) in floods_of_records() {
        assert!(log.contains(words), "{what}\n{log}");
    }
}

#[test]
fn nobody_may_speak_before_the_handshake() {
    let pki = Pki::new();
    let proxy = proxy(&[listener("in", &hcm(), "", &own_certificate(&pki), &pki)]);
    let client = TlsClient::new(None, Versions::Only13, &[]);
    client.get(proxy.socket("in"), "web.test", "/").unwrap();
    assert!(!client.may_speak_early("web.test").unwrap());
    assert!(client.connect(proxy.socket("in"), "web.test").unwrap().resumed());
}

// R59: as Envoy.
#[test]
fn a_hello_on_the_port_of_plain_http_is_a_bad_request() {
    let proxy = RunningProxy::start(&crate::running::web("direct_response: {status: 200}", "", ""), 1);
    let answer = exchange(proxy.socket("web"), &hello(&server_name(b"web.test")));
    assert!(answer.starts_with(b"HTTP/1.1 400 "), "{}", answer.escape_ascii());
}

/// Envoy 1.40 closes before it says anything, too.
#[test]
fn one_connection_too_many_costs_no_handshake() {
    let pki = Pki::new();
    let limit = format!(
        "{{name: l, typed_config: {{\"@type\": {TYPE}.filters.network.connection_limit.v3.ConnectionLimit, \
         stat_prefix: l, max_connections: 1}}}}, {}",
        hcm()
    );
    let proxy = proxy(&[listener("in", &limit, "", &own_certificate(&pki), &pki)]);
    let address = proxy.socket("in");
    let first = TlsClient::new(None, Versions::Both, &[]).connect(address, "web.test").unwrap();
    eventually("there is one", || stat(&proxy, "listener.in.ssl.handshake") == 1);
    assert_eq!(exchange(address, &hello(&server_name(b"web.test"))), b"");
    assert_eq!(stat(&proxy, "connection_limit.l.limited_connections"), 1);
    drop(first);
    eventually("there is room", || stat(&proxy, "connection_limit.l.active_connections") == 0);
    assert!(TlsClient::new(None, Versions::Both, &[]).get(address, "web.test", "/").is_ok());
    assert_eq!(stat(&proxy, "listener.in.ssl.connection_error"), 0);
}
