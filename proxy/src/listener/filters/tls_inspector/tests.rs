//! Hellos whole, cut, too long and wrong. Counts are those of Envoy 1.40 but for bad hellos, which it lets pass as
//! plain text.

use proptest::prelude::*;

use super::*;
use crate::listener::filters::testing::Bench;

fn field(length_bytes: usize, value: &[u8]) -> Vec<u8> {
    let length = u32::try_from(value.len()).unwrap().to_be_bytes();
    [&length[4 - length_bytes..], value].concat()
}

fn extension(kind: u16, value: &[u8]) -> Vec<u8> {
    [&kind.to_be_bytes()[..], &field(2, value)].concat()
}

fn server_name(name: &[u8]) -> Vec<u8> {
    extension(0, &field(2, &[&[0], &field(2, name)[..]].concat()))
}

fn alpn(protocols: &[&str]) -> Vec<u8> {
    let list: Vec<u8> = protocols.iter().flat_map(|p| field(1, p.as_bytes())).collect();
    extension(16, &field(2, &list))
}

fn message(extensions: &[u8]) -> Vec<u8> {
    let body =
        [&[3, 3], &[7; 32][..], &field(1, &[1; 32]), &field(2, &[0x13, 1]), &[1, 0], &field(2, extensions)].concat();
    [&[1][..], &field(3, &body)].concat()
}

/// In records of at most `size` bytes.
fn records(message: &[u8], size: usize) -> Vec<u8> {
    message.chunks(size).flat_map(|chunk| [&[22, 3, 1][..], &field(2, chunk)].concat()).collect()
}

fn hello(extensions: &[u8]) -> Vec<u8> {
    records(&message(extensions), 1 << 14)
}

fn bench() -> Bench {
    Bench::new(&Factory, "{}")
}

fn counts(bench: &Bench) -> [u64; 4] {
    ["client_hello_too_large", "tls_found", "tls_not_found", "sni_found"]
        .map(|s| bench.stat(&format!("tls_inspector.{s}")))
}

#[test]
fn name_and_protocols_are_found_however_the_hello_comes() {
    let extensions = [server_name(b"WEB.Test"), alpn(&["h2", "http/1.1"]), extension(0x0a0a, b"")].concat();
    for size in [1 << 14, 100, 7, 1] {
        let bench = bench();
        let (step, info) = bench.byte_by_byte(&records(&message(&extensions), size));
        assert_eq!(step, Some(ListenerStep::Continue { consumed: 0 }));
        assert_eq!(info.requested_server_name.as_deref(), Some("web.test"));
        assert_eq!(info.application_protocols, [b"h2".to_vec(), b"http/1.1".to_vec()]);
        assert_eq!((info.transport_protocol, counts(&bench)), ("tls", [0, 1, 0, 1]));
    }
    let (_, info) = bench().at_once(&[hello(b""), b"more".to_vec()].concat());
    assert_eq!((info.requested_server_name, info.transport_protocol), (None, "tls"));
}

#[test]
fn other_protocols_are_known_by_their_first_bytes() {
    for bytes in
        [&b"GET / HTTP/1.1\r\n"[..], b"\x17\x03\x01\0\x02", b"\x15\x03\x01\0\x02\x01\0", b"\x16\x02\x01", b"\x80\x2e"]
    {
        let bench = bench();
        let (step, info) = bench.byte_by_byte(bytes);
        assert_eq!(step, Some(ListenerStep::Continue { consumed: 0 }), "{}", bytes.escape_ascii());
        assert_eq!((info.transport_protocol, counts(&bench)), ("", [0, 0, 1, 0]));
    }
}

#[test]
fn fifteen_kilobytes_pass_and_seventeen_are_counted_and_closed() {
    let long = |n: usize| hello(&[server_name(b"a"), extension(51, &vec![0; n])].concat());
    let bench = bench();
    assert_eq!(bench.at_once(&long(15_000)).0, Some(ListenerStep::Continue { consumed: 0 }));
    // Known by its announced length, long before it is all there.
    assert_eq!(bench.at_once(&long(17_000)[..60]).0, Some(ListenerStep::Close));
    assert_eq!(counts(&bench), [1, 1, 0, 1]);
    let wide = Bench::new(&Factory, "{max_client_hello_size: 2000}");
    assert_eq!(wide.byte_by_byte(&long(2_000)).0, Some(ListenerStep::Close));
    assert_eq!(wide.at_once(&long(1_000)).0, Some(ListenerStep::Continue { consumed: 0 }));
}

#[test]
fn a_bad_hello_never_passes_as_plain_text() {
    let duplicate = [server_name(b"a"), server_name(b"b")].concat();
    let beyond = [&0u16.to_be_bytes()[..], &[0, 200, 1]].concat();
    let two_names = extension(0, &field(2, &[&[0][..], &field(2, b"a"), &[0], &field(2, b"b")].concat()));
    let bad = [
        hello(&server_name(b"")),
        hello(&server_name(&[b'a'; 256])),
        hello(&server_name(b"a\0b")),
        hello(&server_name(b"\xff")),
        hello(&duplicate),
        hello(&beyond),
        hello(&two_names),
        hello(&alpn(&[])),
        hello(&alpn(&[""])),
        records(&[2, 0, 0, 1, 0], 100),
        [&[22, 3, 1, 0, 1, 1][..], b"GET"].concat(),
        vec![22, 3, 1, 0, 0],
        vec![22, 3, 1, 0xff, 0xff],
    ];
    for bytes in bad {
        let bench = bench();
        assert_eq!(bench.at_once(&bytes).0, Some(ListenerStep::Close), "{}", bytes.escape_ascii());
        assert_eq!(counts(&bench), [0, 0, 1, 0]);
    }
}

#[test]
fn odd_names_are_kept_as_they_are() {
    for name in ["web.test.", "a", "xn--bcher-kva.example"] {
        let (_, info) = bench().at_once(&hello(&server_name(name.as_bytes())));
        assert_eq!(info.requested_server_name.as_deref(), Some(name));
    }
}

proptest! {
    #[test]
    fn whatever_comes_is_decided_without_panic_and_alike_in_any_pieces(
        cut in 0..400usize, flip in 0..400usize, with in any::<u8>(), size in 1..500usize,
    ) {
        let extensions = [server_name(b"a.b"), alpn(&["h2"]), extension(51, &[0; 200])].concat();
        let mut bytes = records(&message(&extensions), size);
        let at = flip % bytes.len();
        bytes[at] = with;
        let whole = parse(&bytes, MAX_CLIENT_HELLO);
        let early = parse(&bytes[..cut.min(bytes.len())], MAX_CLIENT_HELLO);
        prop_assert!(early == Found::NeedMore || early == whole, "{:?} {:?}", early, whole);
    }
}
