//! Rows of the adversarial table about what an upstream sends, and what is never sent to it.

use super::*;

const OK: &str = "HTTP/1.1 200 OK\r\n";

fn get(response: &str) -> Client {
    Client::ask("GET", &[response.as_bytes()])
}

/// A whole exchange: status, body, and whether the connection may be used again.
fn exchange(method: &str, response: &str) -> (u16, String, bool) {
    let mut c = Client::ask(method, &[response.as_bytes()]);
    let status = c.status().unwrap();
    let body = String::from_utf8(c.body().unwrap()).unwrap();
    (status, body, c.conn.is_reusable())
}

#[test]
fn r40_responses_that_say_two_things_are_protocol_errors() {
    for fields in [
        "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        "Content-Length: 2\r\nContent-Length: 3\r\n\r\nok",
        "Content-Length: 2\r\nContent-Length: 2\r\n\r\nok",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: gzip\r\n\r\nok",
        "Transfer-Encoding: identity\r\n\r\nok",
        "Content-Length: -1\r\n\r\n",
        "X : a\r\nContent-Length: 2\r\n\r\nok",
        "X: a\0\r\nContent-Length: 2\r\n\r\nok",
        "X: a\r\n b\r\nContent-Length: 2\r\n\r\nok",
        "X: a\rb\r\nContent-Length: 2\r\n\r\nok",
        "foo\r\nContent-Length: 2\r\n\r\nok",
        ":status: 500\r\nContent-Length: 2\r\n\r\nok",
    ] {
        let mut c = get(&format!("{OK}{fields}"));
        assert!(matches!(c.response(), Poll::Ready(Err(UpstreamError::Protocol(_)))), "{fields:?}");
        assert!(!c.conn.is_reusable());
        assert_eq!(c.head.headers.len(), 0);
    }
    for head in [
        "HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\nhello",
        "HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 100 Continue\r\nContent-Length: 3\r\n\r\n",
    ] {
        assert!(matches!(get(head).response(), Poll::Ready(Err(UpstreamError::Protocol(_)))), "{head:?}");
    }
}

#[test]
fn r41_bytes_after_a_response_are_never_the_next_one() {
    let poison = format!("{OK}Content-Length: 6\r\n\r\npoison");
    assert_eq!(exchange("GET", &format!("{OK}Content-Length: 2\r\n\r\nok{poison}")), (200, "ok".into(), false));
    assert_eq!(exchange("HEAD", &format!("{OK}Content-Length: 2\r\n\r\nok")), (200, String::new(), false));
    let chunked = format!("{OK}Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n");
    assert_eq!(exchange("GET", &chunked), (200, "ok".into(), true));
    assert_eq!(exchange("GET", &(chunked + &poison)), (200, "ok".into(), false));

    // It comes later, while the connection is pooled.
    let mut c = get(&format!("{OK}Content-Length: 2\r\n\r\nok"));
    assert_eq!((c.status(), c.body()), (Ok(200), Ok(b"ok".to_vec())));
    assert!(c.conn.is_reusable());
    let cx = &mut Context::from_waker(Waker::noop());
    assert!(c.conn.poll_idle(cx).is_pending());
    c.peer.says(poison.as_bytes());
    assert!(c.conn.poll_idle(cx).is_ready());
    assert!(!c.conn.is_reusable());
}

#[test]
fn a_pooled_connection_that_closes_is_not_used_again() {
    let mut c = get(&format!("{OK}Content-Length: 0\r\n\r\n"));
    assert_eq!(c.status(), Ok(200));
    assert!(c.conn.is_reusable() && c.conn.response_complete());
    c.peer.0.borrow_mut().fin = true;
    assert!(c.conn.poll_idle(&mut Context::from_waker(Waker::noop())).is_ready());
    assert!(!c.conn.is_reusable());
}

#[test]
fn a_connection_serves_one_request_after_the_other_and_holds_nothing_between() {
    let mut c = Client::new(ClientOptions::default());
    for i in 0..3 {
        c.send("GET", &[format!("{OK}Content-Length: 1\r\n\r\n{i}").as_bytes()]);
        assert_eq!((c.status(), c.body()), (Ok(200), Ok(i.to_string().into_bytes())));
        assert!(c.conn.is_reusable());
        c.conn.release(&c.buffers);
        assert_eq!(c.conn.held_capacity(), 0);
    }
}

#[test]
fn close_and_old_versions_are_not_reused() {
    for (head, reusable) in [
        ("HTTP/1.1 200 OK\r\nConnection: close\r\n", false),
        ("HTTP/1.1 200 OK\r\nConnection: foo, Close\r\n", false),
        ("HTTP/1.0 200 OK\r\n", false),
        ("HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n", true),
        ("HTTP/1.1 200 OK\r\n", true),
    ] {
        let got = exchange("GET", &format!("{head}Content-Length: 2\r\n\r\nok"));
        assert_eq!(got, (200, "ok".into(), reusable), "{head:?}");
    }
}

#[test]
fn a_body_without_length_ends_with_the_connection() {
    let mut c = get(&format!("{OK}\r\nok"));
    c.peer.0.borrow_mut().fin = true;
    assert_eq!(c.status(), Ok(200));
    assert_eq!(c.head.framing, Framing::UntilClose);
    assert_eq!(c.body(), Ok(b"ok".to_vec()));
    assert!(!c.conn.is_reusable());
}

#[test]
fn a_body_cut_short_is_a_protocol_error_and_no_answer_is_a_closed_connection() {
    for body in ["Content-Length: 5\r\n\r\nok", "Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n"] {
        let mut c = get(&format!("{OK}{body}"));
        c.peer.0.borrow_mut().fin = true;
        assert_eq!(c.status(), Ok(200));
        assert!(c.body().is_err_and(|e| e.starts_with("protocol error")));
        assert!(!c.conn.is_reusable());
    }
    for (start, protocol) in [("", false), ("H", true), ("HTTP/1.1 200 OK\r\nContent-", true)] {
        let reads: Vec<&[u8]> = Some(start.as_bytes()).filter(|s| !s.is_empty()).into_iter().collect();
        let mut c = Client::ask("GET", &reads);
        c.peer.0.borrow_mut().fin = true;
        let Poll::Ready(Err(e)) = c.response() else { panic!() };
        assert_eq!(matches!(e, UpstreamError::Protocol(_)), protocol, "{start:?}: {e}");
    }
    let mut c = get("HTTP/1.1 103 E\r\n\r\n");
    c.peer.0.borrow_mut().fin = true;
    assert_eq!(c.status(), Ok(103));
    assert!(matches!(c.response(), Poll::Ready(Err(UpstreamError::Closed))));
}

#[test]
fn responses_without_body_have_none_whatever_they_say() {
    let length = "Content-Length: 5\r\n\r\n";
    assert_eq!(exchange("HEAD", &format!("{OK}{length}")), (200, String::new(), true));
    assert_eq!(exchange("HEAD", &format!("{OK}Transfer-Encoding: chunked\r\n\r\n")), (200, String::new(), true));
    assert_eq!(exchange("GET", &format!("HTTP/1.1 304 Not Modified\r\n{length}")), (304, String::new(), true));
    assert_eq!(exchange("GET", "HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n"), (204, String::new(), true));
    let mut c = Client::ask("HEAD", &[format!("{OK}{length}").as_bytes()]);
    assert_eq!((c.status(), c.head.framing), (Ok(200), Framing::Length(5)), "for the client to see");
}

#[test]
fn interim_responses_are_given_as_such_and_bounded() {
    let mut c = get(&format!("HTTP/1.1 103 E\r\nLink: a\r\n\r\nHTTP/1.1 100 C\r\n\r\n{OK}Content-Length: 2\r\n\r\nok"));
    assert_eq!((c.status(), c.head.is_interim()), (Ok(103), true));
    assert_eq!(c.head.headers.get("link"), Some(&b"a"[..]));
    assert_eq!((c.status(), c.head.headers.len()), (Ok(100), 0));
    assert_eq!((c.status(), c.body()), (Ok(200), Ok(b"ok".to_vec())));
    assert!(c.conn.is_reusable());

    let mut c = get(&"HTTP/1.1 103 E\r\n\r\n".repeat(40));
    let heads = std::iter::repeat_with(|| c.status()).take_while(Result::is_ok).count();
    assert_eq!(heads, 32);
    assert!(!c.conn.is_reusable());
}

#[test]
fn a_101_that_nobody_asked_for_is_a_protocol_error() {
    let switch = "HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: foo\r\n\r\nhello";
    assert!(matches!(get(switch).response(), Poll::Ready(Err(UpstreamError::Protocol(_)))));

    let mut c = Client::new(ClientOptions::default());
    let mut head = request("GET", "/ws", Framing::None);
    head.headers.append("connection", "Upgrade");
    head.headers.append("upgrade", "foo");
    c.conn.send_upgrade_head(&c.buffers, &head).unwrap();
    let cx = &mut Context::from_waker(Waker::noop());
    assert!(c.conn.poll_flush(cx, &c.buffers).is_ready());
    assert_eq!(c.peer.sees(), "GET /ws HTTP/1.1\r\nhost: a.test\r\nconnection: Upgrade\r\nupgrade: foo\r\n\r\n");
    c.peer.says(switch.as_bytes());
    assert_eq!((c.status(), c.conn.is_tunnel()), (Ok(101), true));
    assert_eq!(c.head.headers.get("upgrade"), Some(&b"foo"[..]));
    assert!(!c.conn.is_reusable() && !c.conn.response_complete());
    assert_eq!(c.piece(), b"hello");
}

#[test]
fn f7_only_101_switches_and_a_refused_upgrade_is_not_reused() {
    let mut c = Client::new(ClientOptions::default());
    c.conn.send_upgrade_head(&c.buffers, &request("GET", "/ws", Framing::None)).unwrap();
    assert!(c.conn.poll_flush(&mut Context::from_waker(Waker::noop()), &c.buffers).is_ready());
    c.peer.says(format!("{OK}Content-Length: 2\r\n\r\nok").as_bytes());
    assert_eq!((c.status(), c.conn.is_tunnel()), (Ok(200), false));
    assert_eq!(c.body(), Ok(b"ok".to_vec()));
    assert!(!c.conn.is_reusable());
}

#[test]
fn a_2xx_to_connect_is_a_tunnel_and_another_answer_has_a_body() {
    let mut c = Client::new(ClientOptions::default());
    let mut head = request("CONNECT", "/", Framing::None);
    head.headers.remove(":path");
    c.conn.send_head(&c.buffers, &head, false).unwrap();
    assert!(c.conn.poll_flush(&mut Context::from_waker(Waker::noop()), &c.buffers).is_ready());
    assert_eq!(c.peer.sees(), "CONNECT a.test HTTP/1.1\r\nhost: a.test\r\n\r\n");
    c.peer.says(format!("{OK}Content-Length: 5\r\n\r\nearly").as_bytes());
    assert_eq!((c.status(), c.conn.is_tunnel()), (Ok(200), true));
    assert_eq!(c.piece(), b"early");

    let mut c = Client::new(ClientOptions::default());
    c.conn.send_head(&c.buffers, &head, false).unwrap();
    c.peer.says(b"HTTP/1.1 407 No\r\nContent-Length: 2\r\n\r\nno");
    assert_eq!((c.status(), c.conn.is_tunnel(), c.body()), (Ok(407), false, Ok(b"no".to_vec())));
}

#[test]
fn status_lines_are_read_as_envoy_reads_them_but_for_blanks() {
    let rest = "Content-Length: 2\r\n\r\nok";
    for (line, status) in [
        ("HTTP/1.1 200", 200),
        ("HTTP/1.1 200 ", 200),
        ("HTTP/1.1 200 Fine by me", 200),
        ("HTTP/1.1 999 Odd", 999),
        ("HTTP/1.2 200 OK", 200),
    ] {
        assert_eq!(exchange("GET", &format!("{line}\r\n{rest}")), (status, "ok".into(), true), "{line:?}");
    }
    assert_eq!(exchange("GET", "HTTP/1.1 200 OK\nContent-Length: 2\n\nok"), (200, "ok".into(), true));
    for line in [
        "HTTP/1.1 099 Odd",
        "HTTP/1.1 99 Odd",
        "HTTP/1.1  200 OK",
        "http/1.1 200 OK",
        "HTTP/1.1 2000 X",
        "ok",
        "\r\nHTTP/1.1 200 OK",
    ] {
        let mut c = get(&format!("{line}\r\n{rest}"));
        assert!(matches!(c.response(), Poll::Ready(Err(UpstreamError::Protocol(_)))), "{line:?}");
    }
    // Refused before the line ends: this is no HTTP.
    assert!(matches!(get("SSH-2.0-x").response(), Poll::Ready(Err(UpstreamError::Protocol(_)))));
}

#[test]
fn response_heads_have_limits_of_their_own() {
    let with = |fields: &str| format!("{OK}{fields}Content-Length: 2\r\n\r\nok");
    assert_eq!(get(&with(&"x: a\r\n".repeat(99))).status(), Ok(200));
    assert!(get(&with(&"x: a\r\n".repeat(100))).status().is_err());
    assert_eq!(get(&with(&format!("x: {}\r\n", "a".repeat(80_000)))).status(), Ok(200));
    assert!(get(&with(&format!("x: {}\r\n", "a".repeat(82_000)))).status().is_err());
}

#[test]
fn hop_by_hop_fields_of_a_response_are_dropped_and_nominated_ones_kept() {
    let mut c = get(&format!(
        "{OK}Connection: foo, keep-alive\r\nFoo: 1\r\nKeep-Alive: timeout=5\r\nProxy-Connection: x\r\nProxy-Authenticate: y\r\nUpgrade: foo\r\nTE: trailers\r\nTrailer: z\r\nContent-Length: 002\r\n\r\nok"
    ));
    assert_eq!(c.status(), Ok(200));
    let names: Vec<_> =
        c.head.headers.iter().map(|(n, v)| format!("{}={}", n.escape_ascii(), v.escape_ascii())).collect();
    assert_eq!(names.join(" "), "foo=1 proxy-authenticate=y te=trailers trailer=z content-length=2");
}

#[test]
fn an_early_answer_leaves_no_reusable_connection() {
    let mut c = Client::new(ClientOptions::default());
    c.conn.send_head(&c.buffers, &request("POST", "/", Framing::Length(10)), false).unwrap();
    c.peer.says(format!("{OK}Content-Length: 0\r\n\r\n").as_bytes());
    assert_eq!(c.status(), Ok(200));
    assert!(c.conn.response_complete() && !c.conn.is_reusable());
}

/// CVE-2023-27491 and its like: an HTTP/2 request, or a filter, put a line's end where none belongs.
#[test]
fn r35_nothing_that_ends_a_line_is_sent_upstream() {
    let mut c = Client::new(ClientOptions::default());
    let mut refused = |change: &dyn Fn(&mut RequestHead)| {
        let mut head = request("GET", "/", Framing::None);
        change(&mut head);
        let refused = c.conn.send_head(&c.buffers, &head, true);
        assert_eq!(c.conn.write_buffered(), 0, "not even its beginning");
        refused.is_err()
    };
    for path in ["/a HTTP/1.1\r\nX: y", "/a b", "/a\tb", "/a\0", "", "/\u{e4}"] {
        assert!(refused(&|h| h.headers.set(":path", path)), "{path:?}");
    }
    for method in ["GET /x HTTP/1.1\r\nfoo:", "", "G T", "G\u{1}T"] {
        assert!(refused(&|h| h.headers.set(":method", method)), "{method:?}");
    }
    for authority in ["a b", "a\r\nx: y", "a\0"] {
        assert!(refused(&|h| h.headers.set(":authority", authority)), "{authority:?}");
    }
    assert!(refused(&|h| assert!(h.headers.remove(":authority"))));
    assert!(refused(&|h| assert!(h.headers.remove(":path"))));
    for (name, value) in
        [("x", "a\r\nb: c"), ("x", "a\nb"), ("x", "a\rb"), ("x", "a\0b"), ("x y", "a"), ("x:", "a"), ("x\r\n", "a")]
    {
        assert!(refused(&|h| h.headers.append(name, value)), "{name:?}: {value:?}");
    }
    assert!(refused(&|h| h.framing = Framing::Length(3)), "a length without a body");
}

#[test]
fn framing_fields_that_a_filter_added_are_not_sent() {
    let mut c = Client::new(ClientOptions::default());
    let mut head = request("POST", "/", Framing::Length(1));
    for (name, value) in
        [("content-length", "99"), ("transfer-encoding", "chunked"), ("host", "evil"), ("connection", "x"), ("x", "y")]
    {
        head.headers.append(name, value);
    }
    c.conn.send_head(&c.buffers, &head, false).unwrap();
    let cx = &mut Context::from_waker(Waker::noop());
    c.conn.send_data(cx, &c.buffers, b"z", true).unwrap();
    assert!(c.conn.poll_flush(cx, &c.buffers).is_ready());
    assert_eq!(c.peer.sees(), "POST / HTTP/1.1\r\nhost: a.test\r\nx: y\r\ncontent-length: 1\r\n\r\nz");
}
