//! Rows of the adversarial table about what follows a request on its connection.

use super::*;

#[test]
fn pipelined_requests_are_answered_in_order_and_an_idle_connection_holds_nothing() {
    let bytes = b"POST /1 HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabcGET /2 HTTP/1.1\r\nHost: a\r\n\r\n";
    for split in 0..=bytes.len() {
        let (one, two) = bytes.split_at(split);
        let reads: Vec<&[u8]> = [one, two].into_iter().filter(|r| !r.is_empty()).collect();
        let mut s = Server::new(ServerOptions::default(), &reads);
        assert!(matches!(s.request(), Poll::Ready(Ok(Some(())))));
        assert_eq!(s.head.path(), Some(&b"/1"[..]));
        assert_eq!(s.body().unwrap(), b"abc");
        assert_eq!(s.answer(200, "x"), "HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nx");
        assert!(s.conn.reusable_after_response());
        s.conn.next_request(&s.buffers);
        assert!(matches!(s.request(), Poll::Ready(Ok(Some(())))));
        assert_eq!(s.head.path(), Some(&b"/2"[..]));
        assert_eq!(s.answer(404, ""), "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n");
        s.conn.next_request(&s.buffers);
        assert!(s.request().is_pending());
        assert!(s.conn.is_idle() && s.conn.held_capacity() == 0);
        assert_eq!(s.conn.totals().0, bytes.len() as u64);
    }
}

#[test]
fn r24_nothing_is_read_after_a_refused_head() {
    let bad = "GET /1 HTTP/1.1\r\nHost: a\r\nBad Header: x\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\n";
    assert_eq!(refused(bad), BAD);
    let mut s =
        Server::new(ServerOptions::default(), &[("GET /0 HTTP/1.1\r\nHost: a\r\n\r\n".to_owned() + bad).as_bytes()]);
    assert!(matches!(s.request(), Poll::Ready(Ok(Some(())))));
    s.answer(200, "");
    s.conn.next_request(&s.buffers);
    assert!(matches!(s.request(), Poll::Ready(Err(RequestError { status: 400, .. }))));
    assert_eq!(s.head.headers.len(), 0, "nothing of the request before is left in it");
}

#[test]
fn f9_an_unread_body_is_never_read_as_a_request() {
    let hidden = "GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n";
    let head = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", hidden.len());
    let next = "GET /next HTTP/1.1\r\nHost: a\r\n\r\n";
    // Arrived in full: it is dropped, and the connection goes on behind it.
    let mut s = Server::new(ServerOptions::default(), &[format!("{head}{hidden}{next}").as_bytes()]);
    assert!(matches!(s.request(), Poll::Ready(Ok(Some(())))));
    assert_eq!(s.answer(403, ""), "HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n");
    assert!(s.conn.reusable_after_response());
    s.conn.next_request(&s.buffers);
    assert!(matches!(s.request(), Poll::Ready(Ok(Some(())))));
    assert_eq!(s.head.path(), Some(&b"/next"[..]));
    // Arrived in part: the connection closes.
    let mut s = Server::new(ServerOptions::default(), &[format!("{head}{}", &hidden[..10]).as_bytes()]);
    assert!(matches!(s.request(), Poll::Ready(Ok(Some(())))));
    assert_eq!(s.answer(403, ""), "HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    assert!(!s.conn.reusable_after_response());
    // Chunked: where it ends is not known without reading it.
    let chunked = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n";
    let mut s = Server::new(ServerOptions::default(), &[format!("{chunked}{next}").as_bytes()]);
    assert!(matches!(s.request(), Poll::Ready(Ok(Some(())))));
    assert!(s.answer(403, "").contains("connection: close"));
    assert!(!s.conn.reusable_after_response());
}

#[test]
fn r20_what_follows_an_upgrade_request_is_handed_over_and_not_parsed() {
    let bytes = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: foo\r\n\r\nGET /smug HTTP/1.1\r\n\r\n";
    let mut s = Server::new(ServerOptions::default(), &[bytes]);
    assert!(matches!(s.request(), Poll::Ready(Ok(Some(())))));
    assert_eq!(s.head.headers.get("upgrade"), Some(&b"foo"[..]));
    let cx = &mut Context::from_waker(Waker::noop());
    let headers = [("connection", "upgrade"), ("upgrade", "foo")].into_iter().collect();
    s.conn.send_upgrade_head(&s.buffers, &ResponseHead { headers, ..ResponseHead::new(101) });
    assert!(s.conn.poll_flush(cx, &s.buffers).is_ready());
    assert_eq!(s.peer.sees(), "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: foo\r\n\r\n");
    assert!(!s.conn.reusable_after_response());
    assert_eq!(s.piece(), b"GET /smug HTTP/1.1\r\n\r\n");
}

#[test]
fn r20_and_r22_a_refused_upgrade_or_connect_closes_and_what_follows_is_no_request() {
    for head in [
        "GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: foo\r\n\r\n",
        "CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n",
    ] {
        let bytes = format!("{head}GET /smug HTTP/1.1\r\nHost: a\r\n\r\n");
        let mut s = Server::new(ServerOptions::default(), &[bytes.as_bytes()]);
        assert!(matches!(s.request(), Poll::Ready(Ok(Some(())))));
        assert_eq!(s.answer(403, ""), "HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        assert!(!s.conn.reusable_after_response());
    }
}

#[test]
fn f17_a_final_answer_instead_of_continue_closes() {
    let bytes = b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n";
    let mut s = Server::new(ServerOptions::default(), &[bytes]);
    assert!(matches!(s.request(), Poll::Ready(Ok(Some(())))));
    assert_eq!(s.answer(403, ""), "HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    assert!(!s.conn.reusable_after_response());
}

#[test]
fn close_is_understood_and_said() {
    for fields in [
        "Connection: close\r\n",
        "Connection: foo, CLOSE\r\n",
        "Proxy-Connection: close\r\n",
        "Connection: keep-alive, close\r\n",
    ] {
        let bytes = format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        let mut s = Server::new(ServerOptions::default(), &[bytes.as_bytes()]);
        assert!(matches!(s.request(), Poll::Ready(Ok(Some(())))));
        assert_eq!(
            s.answer(200, "x"),
            "HTTP/1.1 200 OK\r\ncontent-length: 1\r\nconnection: close\r\n\r\nx",
            "{fields}"
        );
        assert!(!s.conn.reusable_after_response());
    }
}

#[test]
fn the_client_going_away_is_seen_while_nobody_reads_and_nothing_is_lost() {
    let head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\n\r\n";
    let mut s = Server::new(ServerOptions::default(), &[head]);
    assert!(matches!(s.request(), Poll::Ready(Ok(Some(())))));
    let cx = &mut Context::from_waker(Waker::noop());
    s.peer.says(b"abc");
    assert!(s.conn.poll_gone(cx, &mut s.scratch).is_pending());
    s.peer.says(b"def");
    s.peer.0.borrow_mut().fin = true;
    assert!(matches!(s.conn.poll_gone(cx, &mut s.scratch), Poll::Ready(crate::codec::GoneReason::Eof)));
    assert_eq!(s.body().unwrap(), b"abcdef");
}

#[test]
fn what_is_read_ahead_is_bounded() {
    let big = vec![b'x'; 200_000];
    let mut s = Server::new(ServerOptions::default(), &[b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", &big]);
    assert!(matches!(s.request(), Poll::Ready(Ok(Some(())))));
    let cx = &mut Context::from_waker(Waker::noop());
    assert!(s.conn.poll_gone(cx, &mut s.scratch).is_pending());
    assert!(s.conn.totals().0 <= 70_000);
}

#[test]
fn a_client_that_ends_within_a_body_is_gone() {
    for head in [
        "Content-Length: 6\r\n\r\nabc",
        "Transfer-Encoding: chunked\r\n\r\n6\r\nabc",
        "Transfer-Encoding: chunked\r\n\r\n0\r\nx: y\r\n",
    ] {
        let mut s =
            Server::new(ServerOptions::default(), &[format!("POST / HTTP/1.1\r\nHost: a\r\n{head}").as_bytes()]);
        s.peer.0.borrow_mut().fin = true;
        assert!(matches!(s.request(), Poll::Ready(Ok(Some(())))));
        assert!(matches!(s.body(), Err(BodyError::Gone(crate::codec::GoneReason::Eof))));
    }
}

#[test]
fn the_end_between_requests_or_within_a_head_is_no_request() {
    for start in [&b""[..], b"GET / HT"] {
        let reads: Vec<&[u8]> = Some(start).filter(|s| !s.is_empty()).into_iter().collect();
        let mut s = Server::new(ServerOptions::default(), &reads);
        s.peer.0.borrow_mut().fin = true;
        assert!(matches!(s.request(), Poll::Ready(Ok(None))));
        assert_eq!(s.conn.head_begun(), !start.is_empty());
    }
}

#[test]
fn closing_flushes_says_fin_and_reads_on_within_its_allowance() {
    let mut s = Server::new(ServerOptions::default(), &[b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\nrest"]);
    assert!(matches!(s.request(), Poll::Ready(Ok(Some(())))));
    s.conn.send_head(&s.buffers, &ResponseHead::new(204), true, false);
    let cx = &mut Context::from_waker(Waker::noop());
    let mut allowance = 64 * 1024;
    assert!(s.conn.poll_drain_and_close(cx, &s.buffers, &mut s.scratch, &mut allowance).is_pending());
    assert_eq!(s.peer.sees(), "HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n");
    assert!(s.peer.0.borrow().shut);
    s.peer.says(&[0; 65_000]);
    assert!(s.conn.poll_drain_and_close(cx, &s.buffers, &mut s.scratch, &mut allowance).is_pending());
    s.peer.says(&[0; 1000]);
    assert!(s.conn.poll_drain_and_close(cx, &s.buffers, &mut s.scratch, &mut allowance).is_ready());
}
