//! Rows of the adversarial table about how a request says where its body ends, and about chunks.

use super::*;

fn post(fields: &str) -> String {
    format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\n")
}

const UNIMPLEMENTED: Option<(u16, &str)> = Some((501, "http1.invalid_transfer_encoding"));
const BOTH: Option<(u16, &str)> = Some((400, "http1.content_length_and_chunked_not_allowed"));

#[test]
fn r01_a_length_beside_chunked_is_refused_in_either_order() {
    let bytes = post("Content-Length: 6\r\nTransfer-Encoding: chunked\r\n") + "0\r\n\r\nG";
    assert_eq!(refused(&bytes), BOTH);
    assert_eq!(refused(&post("Transfer-Encoding: chunked\r\nContent-Length: 6\r\n")), BOTH);
    assert_eq!(refused(&post("Transfer-Encoding: identity\r\nContent-Length: 3\r\n")), BOTH);
}

#[test]
fn allow_chunked_length_lets_chunked_win_and_forgets_the_length() {
    let options = ServerOptions { allow_chunked_length: true, ..ServerOptions::default() };
    let bytes = post("Content-Length: 6\r\nTransfer-Encoding: chunked\r\n") + "1\r\nx\r\n0\r\n\r\n";
    let mut s = Server::new(options.clone(), &[bytes.as_bytes()]);
    assert!(matches!(s.request(), Poll::Ready(Ok(Some(())))));
    assert_eq!(s.head.framing, Framing::Streamed);
    assert!(!s.head.headers.contains("content-length"));
    assert_eq!(s.body().unwrap(), b"x");
    let gzip = post("Content-Length: 6\r\nTransfer-Encoding: gzip\r\n");
    assert_eq!(refusal(options, gzip.as_bytes()), BOTH);
}

#[test]
fn r03_two_transfer_encoding_lines_are_not_implemented() {
    assert_eq!(refused(&post("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n")), UNIMPLEMENTED);
    assert_eq!(refused(&post("Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n")), UNIMPLEMENTED);
}

#[test]
fn r04_and_r05_lists_of_codings_are_not_implemented() {
    for value in ["gzip, chunked", "chunked, gzip", ",chunked", "chunked,", "gzip", "identity", ""] {
        assert_eq!(refused(&post(&format!("Transfer-Encoding: {value}\r\n"))), UNIMPLEMENTED, "{value:?}");
    }
}

#[test]
fn r07_disguised_codings_are_refused() {
    for value in ["\"chunked\"", "chunked;a=b", "xchunked", "chunked, identity"] {
        assert_eq!(refused(&post(&format!("Transfer-Encoding: {value}\r\n"))), UNIMPLEMENTED, "{value:?}");
    }
    assert_eq!(
        refused(&post("Transfer-Encoding: \u{b}chunked\r\n")),
        Some((400, "http1.invalid_characters")),
        "vertical tab"
    );
    let nbsp = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: \xa0chunked\r\n\r\n";
    assert_eq!(refusal(ServerOptions::default(), nbsp), UNIMPLEMENTED);
}

#[test]
fn chunked_in_any_case_and_behind_a_tab_is_chunked() {
    for value in ["CHUNKED", "\tchunked", "  chunked \t"] {
        let bytes = post(&format!("Transfer-Encoding:{value}\r\n")) + "3\r\nabc\r\n0\r\n\r\n";
        let mut s = Server::new(ServerOptions::default(), &[bytes.as_bytes()]);
        assert!(matches!(s.request(), Poll::Ready(Ok(Some(())))));
        assert_eq!(s.body().unwrap(), b"abc");
    }
}

#[test]
fn r09_and_r10_more_than_one_length_is_refused_also_when_they_agree() {
    for fields in [
        "Content-Length: 0\r\nContent-Length: 3\r\n",
        "Content-Length: 3\r\nContent-Length: 3\r\n",
        "Content-Length: 3, 3\r\n",
    ] {
        assert_eq!(refused(&(post(fields) + "abc")), BAD, "{fields:?}");
    }
}

#[test]
fn r11_a_length_that_is_no_plain_number_is_refused() {
    for value in ["+3", "-1", "0x3", "", "3 3", "3a", "99999999999999999999999", "18446744073709551616"] {
        assert_eq!(refused(&post(&format!("Content-Length: {value}\r\n"))), BAD, "{value:?}");
    }
}

#[test]
fn leading_zeros_of_a_length_are_not_passed_on() {
    let mut s = Server::new(ServerOptions::default(), &[(post("Content-Length: 003\r\n") + "abc").as_bytes()]);
    assert!(matches!(s.request(), Poll::Ready(Ok(Some(())))));
    assert_eq!(s.head.framing, Framing::Length(3));
    assert_eq!(s.head.headers.get("content-length"), Some(&b"3"[..]));
    assert_eq!(s.body().unwrap(), b"abc");
}

/// How a chunked body with this wire form ends: its bytes, or the refusal. With a second request
/// behind it that must only be seen after a good one.
fn chunked(wire: &str) -> Result<String, (u16, &'static str)> {
    let bytes = post("Transfer-Encoding: chunked\r\n") + wire + "GET /next HTTP/1.1\r\nHost: a\r\n\r\n";
    let mut s = Server::new(ServerOptions::default(), &[bytes.as_bytes()]);
    assert!(matches!(s.request(), Poll::Ready(Ok(Some(())))));
    match s.body() {
        Ok(body) => {
            s.answer(200, "");
            assert!(s.conn.reusable_after_response());
            s.conn.next_request(&s.buffers);
            assert!(matches!(s.request(), Poll::Ready(Ok(Some(())))));
            assert_eq!(s.head.path(), Some(&b"/next"[..]));
            Ok(String::from_utf8(body).unwrap())
        }
        Err(BodyError::Refused(e)) => {
            assert!(s.answer(e.status, e.body).contains("connection: close"));
            assert!(!s.conn.reusable_after_response() && !s.conn.head_begun());
            Err((e.status, e.details))
        }
        Err(e) => panic!("{e:?}"),
    }
}

const BAD_CHUNK: Result<String, (u16, &str)> = Err((400, "http1.codec_error"));

#[test]
fn r13_sizes_that_are_no_plain_hexadecimal_are_refused() {
    for size in ["0x1", "0_1", "+1", "-1", " 1", "", "zz", "1 x", "FFFFFFFFFFFFFFFFF", "10000000000000003"] {
        assert_eq!(chunked(&format!("{size}\r\nA\r\n0\r\n\r\n")), BAD_CHUNK, "{size:?}");
    }
}

#[test]
fn sizes_with_leading_zeros_blanks_behind_and_extensions_are_read() {
    for size in ["0001", "1 ", "1\t", "1;a=b;c", "1 ; a=b", "1;a=\"x;\\\"y\""] {
        assert_eq!(chunked(&format!("{size}\r\nA\r\n0\r\n\r\n")), Ok("A".into()), "{size:?}");
    }
    assert_eq!(chunked("a\r\n0123456789\r\nA\r\n0123456789\r\n00\r\n\r\n"), Ok("0123456789".repeat(2)));
}

#[test]
fn r15_a_bare_lf_ends_no_size_line() {
    for wire in
        ["1\nA\r\n0\r\n\r\n", "1;\nA\r\n0\r\n\r\n", "1;a\nb\r\nA\r\n0\r\n\r\n", "1\rA\r\n0\r\n\r\n", "1\nA\n0\n\n"]
    {
        assert_eq!(chunked(wire), BAD_CHUNK, "{wire:?}");
    }
}

#[test]
fn r16_nothing_but_crlf_follows_a_chunks_data() {
    for wire in ["1\r\nA\n0\r\n\r\n", "1\r\nAA\r\n0\r\n\r\n", "5\r\nAAAAAXX2\r\nbb\r\n0\r\n\r\n", "1\r\nA\r0\r\n\r\n"] {
        assert_eq!(chunked(wire), BAD_CHUNK, "{wire:?}");
    }
    assert_eq!(chunked("1\r\nA\r\n0\n\n"), BAD_CHUNK);
    assert_eq!(chunked("1\r\nA\r\n0\r\n\n"), BAD_CHUNK);
}

#[test]
fn r18_extensions_of_a_body_are_bounded_in_total() {
    assert_eq!(chunked(&format!("1;{}\r\nA\r\n0\r\n\r\n", "x".repeat(16 * 1024))), Ok("A".into()));
    assert_eq!(chunked(&format!("1;{}\r\nA\r\n0\r\n\r\n", "x".repeat(20_000))), BAD_CHUNK);
    let each = format!("1;{}\r\nA\r\n", "x".repeat(10_000));
    assert_eq!(chunked(&(each.repeat(200) + "0\r\n\r\n")), BAD_CHUNK);
    assert_eq!(chunked(&format!("{}1\r\nA\r\n0\r\n\r\n", "0".repeat(20_000))), BAD_CHUNK);
    for byte in ['\r', '\0', '\u{1}', '\u{7f}'] {
        assert_eq!(chunked(&format!("1;a{byte}b\r\nA\r\n0\r\n\r\n")), BAD_CHUNK, "{byte:?}");
    }
}

#[test]
fn r19_old_versions_are_told_to_upgrade_and_never_chunked() {
    let te = b"POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
    assert_eq!(refusal(ServerOptions::default(), te), Some((426, "low_version")));
    let options = ServerOptions { accept_http_10: true, ..ServerOptions::default() };
    assert_eq!(refusal(options.clone(), te), BAD);

    let mut s = Server::new(options, &[b"POST / HTTP/1.0\r\nHost: a\r\n\r\nhello"]);
    assert!(matches!(s.request(), Poll::Ready(Ok(Some(())))));
    assert_eq!(s.head.framing, Framing::None);
    assert!(s.conn.request_complete());
    assert_eq!(s.answer(200, "x"), "HTTP/1.0 200 OK\r\ncontent-length: 1\r\nconnection: close\r\n\r\nx");
    assert!(!s.conn.reusable_after_response(), "`hello` is never a request");
}

#[test]
fn trailers_are_checked_and_dropped_unless_enabled() {
    let wire = "0\r\nX-Sum: 1\r\nContent-Length: 10\r\nHost: evil\r\n\r\n";
    assert_eq!(chunked(wire), Ok(String::new()));
    for bad in ["bad trailer line\r\n", "X : y\r\n", "X: a\r\n folded\r\n", "X: a\0\r\n"] {
        let got = chunked(&format!("0\r\n{bad}\r\n"));
        assert!(matches!(got, Err((400, _))), "{bad:?}: {got:?}");
    }
    assert_eq!(chunked(&format!("0\r\nX: {}\r\n\r\n", "y".repeat(61_500))), Err((431, "http1.headers_too_large")));

    let options = ServerOptions { enable_trailers: true, ..ServerOptions::default() };
    let bytes = post("Transfer-Encoding: chunked\r\n") + "1\r\nA\r\n" + wire;
    // The section arrives byte by byte.
    let reads: Vec<&[u8]> = bytes.as_bytes().chunks(1).collect();
    let mut s = Server::new(options.clone(), &reads);
    assert!(matches!(s.request(), Poll::Ready(Ok(Some(())))));
    let cx = &mut Context::from_waker(Waker::noop());
    assert!(matches!(s.conn.poll_body(cx, &mut s.scratch), Poll::Ready(Ok(Body::Data(_)))));
    let Poll::Ready(Ok(Body::Trailers(trailers))) = s.conn.poll_body(cx, &mut s.scratch) else { panic!() };
    assert_eq!(trailers.iter().collect::<Vec<_>>(), [(&b"x-sum"[..], &b"1"[..])], "never one that frames or routes");
    assert!(s.conn.request_complete());

    let many = post("Transfer-Encoding: chunked\r\n") + "0\r\n" + &"x: y\r\n".repeat(101) + "\r\n";
    let mut s = Server::new(options, &[many.as_bytes()]);
    assert!(matches!(s.request(), Poll::Ready(Ok(Some(())))));
    assert!(matches!(s.body(), Err(BodyError::Refused(RequestError { details: "http1.too_many_headers", .. }))));
}
