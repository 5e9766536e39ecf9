//! The encodings against the examples of RFC 7541, appendix C.

use super::hpack::{self, Literal};
use super::{Client, Ended, frame, kind};

#[test]
fn integers_and_strings_are_those_of_the_rfc() {
    assert_eq!(hpack::integer(0, 5, 10), [10]);
    assert_eq!(hpack::integer(0, 5, 1337), [31, 154, 10]);
    assert_eq!(hpack::integer(0, 8, 42), [42]);
    let name = hpack::string(b"custom-key");
    let custom = hpack::literal(Literal::Incremental, &name, &hpack::string(b"custom-header"));
    assert_eq!(custom, b"\x40\x0acustom-key\x0dcustom-header");
    assert_eq!(hpack::indexed_name(Literal::Without, 4, &hpack::string(b"/sample/path")), b"\x04\x0c/sample/path");
    assert_eq!(hpack::indexed(2), [0x82]);
}

#[test]
fn a_status_is_read_in_every_form() {
    for (block, status) in [
        (&[0x88][..], 200),
        (&[0x20, 0x8d], 404),
        (b"\x48\x03302", 302),
        // RFC 7541 C.6.1 and C.6.2.
        (&[0x48, 0x82, 0x64, 0x02], 302),
        (&[0x48, 0x83, 0x64, 0x0e, 0xff], 307),
        (&[0x08, 0x03, b'5', b'0', b'3'], 503),
    ] {
        assert_eq!(hpack::status(block), Some(status), "{block:x?}");
    }
}

#[tokio::test]
async fn an_answer_is_gathered_from_its_frames_and_others_wait() {
    let (near, far) = tokio::io::duplex(4096);
    let (mut client, mut server) = (Client::new(near), Client::new(far));
    server.write(&frame(kind::HEADERS, 4, 3, &[0x88])).await;
    server.write(&frame(kind::HEADERS, 4, 1, &[0x8d])).await;
    server.write(&frame(kind::DATA, 0, 1, b"no")).await;
    server.write(&frame(kind::DATA, 1, 1, b"pe")).await;
    server.write(&frame(kind::RST_STREAM, 0, 3, &[0, 0, 0, 8])).await;
    drop(server);
    let answer = client.answer(1).await.unwrap();
    assert_eq!((answer.status, answer.body.as_slice(), answer.trailers), (404, &b"nope"[..], false));
    assert_eq!(client.answer(3).await, Err(Ended::Reset(8)));
    assert_eq!(client.answer(5).await, Err(Ended::Closed));
}
