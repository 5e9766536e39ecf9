//! Peers that cost more than they should, and messages that are none. Rows R31 to R37 of the table of
//! adversarial inputs are named where they are.

use super::frames::*;
use super::*;

const ENHANCE_YOUR_CALM: u32 = 11;
const PROTOCOL_ERROR: u32 = 1;
const INTERNAL_ERROR: u32 = 2;

/// Writes `first` and then `again` over and over; how the connection ended, and after how many.
async fn flood(first: &[u8], again: &[u8]) -> (ConnectionError, usize, Option<u32>) {
    let (mut client, task) = connect(ServerOptions::default()).await;
    client.write(first).await;
    let (mut sent, mut code) = (0, None);
    while sent < 200_000 && !task.is_finished() && client.write(again).await {
        sent += 1;
        tokio::task::yield_now().await;
        if sent % 64 == 0 {
            // What it says must be read, or it could not say more.
            while let Ok(Some(seen)) = tokio::time::timeout(Duration::ZERO, client.read()).await {
                code = code.or((seen.kind == GOAWAY).then(|| seen.code()));
            }
        }
    }
    if code.is_none() {
        code = client.complaint().await.map(|seen| seen.code());
    }
    drop(client);
    (task.await.unwrap().error.expect("the connection was not ended"), sent, code)
}

fn kind(error: ConnectionError) -> FaultKind {
    match error {
        ConnectionError::Peer { fault: Some(kind), .. } => kind,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn r31_a_head_that_does_not_end_is_cut() {
    local()
        .run_until(async {
            for (piece, wanted) in [(0, FaultKind::EmptyFrames), (1, FaultKind::Continuations)] {
                let begin = frame(HEADERS, 0, 1, &block(GET));
                let (error, sent, code) = flood(&begin, &frame(CONTINUATION, 0, 1, &vec![0x90; piece])).await;
                assert_eq!(kind(error), wanted);
                // The pipe and what is read after the end take more than the connection did.
                assert!(sent <= 16_000, "{sent} of {piece} bytes");
                assert_eq!(code, Some(ENHANCE_YOUR_CALM));
            }
        })
        .await;
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn r32_frames_without_use_end_the_connection() {
    local()
        .run_until(async {
            let open = frame(HEADERS, 4, 1, &block(GET));
            let (error, sent, _) = flood(&open, &frame(DATA, 0, 1, &[])).await;
            assert_eq!(kind(error), FaultKind::EmptyFrames);
            assert!(sent < 16_000, "{sent}");
            let (error, ..) = flood(&open, &frame(PRIORITY, 0, 3, &[0, 0, 0, 0, 5])).await;
            assert_eq!(kind(error), FaultKind::PriorityFrames);
            let (error, ..) = flood(&open, &frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1])).await;
            assert_eq!(kind(error), FaultKind::WindowUpdateFrames);
        })
        .await;
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn r32_pings_that_nobody_reads_hold_up_their_sender_only() {
    local()
        .run_until(async {
            let (mut client, task) = connect(ServerOptions::default()).await;
            let ping = frame(PING, 0, 0, &[7; 8]);
            let mut sent = 0;
            // The pipe takes 64 KiB each way, and the connection gathers as much again.
            while sent < 200_000 && tokio::time::timeout(Duration::from_secs(1), client.write(&ping)).await == Ok(true)
            {
                sent += 1;
            }
            assert!(sent < 20_000, "{sent} pings were taken");
            assert!(!task.is_finished());
        })
        .await;
}

/// What a client sees that sends this request's fields after a good one.
async fn refused(fields: &[(&str, &str)], stream_errors: bool) -> (Option<(u8, u32)>, Outcome) {
    let http2 = Http2Options { stream_error_on_invalid: stream_errors, ..Http2Options::default() };
    let (mut client, task) = connect(ServerOptions { http2, ..ServerOptions::default() }).await;
    client.write(&frame(HEADERS, 5, 1, &block(GET))).await;
    client.write(&frame(HEADERS, 5, 3, &block(fields))).await;
    let verdict = tokio::time::timeout(Duration::from_secs(1), async {
        loop {
            let seen = client.read().await?;
            if matches!(seen.kind, GOAWAY | RST_STREAM) {
                return Some((seen.kind, seen.code()));
            }
        }
    })
    .await
    .ok()
    .flatten();
    drop(client);
    (verdict, task.await.unwrap())
}

fn with<'a>(more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    GET.iter().copied().chain(more.iter().copied()).collect()
}

// What Envoy 1.40 closes the connection for (h2_downstream).
#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn a_message_that_is_none_ends_the_connection_as_envoy_does() {
    local()
        .run_until(async {
            let (m, s, a, p) = (GET[0], GET[1], GET[2], GET[3]);
            let cases: Vec<(&str, Vec<(&str, &str)>)> = vec![
                ("no path", vec![m, s, a]),
                ("empty path", vec![m, s, a, (":path", "")]),
                ("no method", vec![s, a, p]),
                ("no scheme", vec![m, a, p]),
                ("no authority", vec![m, s, p]),
                ("bad path", vec![m, s, a, (":path", "nopath")]),
                ("path twice", vec![m, s, a, p, p]),
                ("pseudo late", vec![m, s, a, ("x", "1"), p]),
                ("unknown pseudo", with(&[(":foo", "1")])),
                ("upper case name", with(&[("X-Up", "1")])),
                ("connection header", with(&[("connection", "close")])),
                ("te gzip", with(&[("te", "gzip")])),
                ("line feed in a value", with(&[("x", "a\nb")])),
                ("NUL in a value", with(&[("x", "a\0b")])),
                ("empty name", with(&[("", "1")])),
                ("colon in a name", with(&[("a:b", "1")])),
                ("path with a second line", vec![m, s, a, (":path", "/a HTTP/1.1\r\nX: y")]),
                ("method with a line", vec![(":method", "GET /x HTTP/1.1\r\nfoo:"), s, a, p]),
                ("scheme with an address", vec![m, (":scheme", "http://evil/?x="), a, p]),
                ("user and blank in the authority", vec![m, s, (":authority", "u@a b"), p]),
                ("two lengths", with(&[("content-length", "0"), ("content-length", "0")])),
                ("a length without a body", with(&[("content-length", "5")])),
                (":protocol without CONNECT", with(&[(":protocol", "websocket")])),
            ];
            for (what, fields) in cases {
                let (verdict, outcome) = refused(&fields, false).await;
                assert_eq!(verdict, Some((GOAWAY, PROTOCOL_ERROR)), "{what}");
                assert!(matches!(outcome.error, Some(ConnectionError::Peer { head: true, .. })), "{what}: {outcome:?}");
                assert!(outcome.accepted <= 1, "{what}");
            }
        })
        .await;
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn r34_with_stream_errors_only_the_stream_is_reset() {
    local()
        .run_until(async {
            let (m, s, a, p) = (GET[0], GET[1], GET[2], GET[3]);
            for (what, fields) in [
                ("no path", vec![m, s, a]),
                ("no authority", vec![m, s, p]),
                ("bad path", vec![m, s, a, (":path", "nopath")]),
                ("connection header", with(&[("connection", "close")])),
                ("two lengths", with(&[("content-length", "0"), ("content-length", "0")])),
            ] {
                let (verdict, outcome) = refused(&fields, true).await;
                assert_eq!(verdict, Some((RST_STREAM, PROTOCOL_ERROR)), "{what}");
                assert!(!matches!(outcome.error, Some(ConnectionError::Peer { .. })), "{what}: {outcome:?}");
            }
        })
        .await;
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn r37_too_many_fields_reset_the_stream_cookies_and_host_counted() {
    local()
        .run_until(async {
            for name in ["cookie", "x", "host"] {
                let (verdict, outcome) = refused(&with(&[(name, "1"); 97]), false).await;
                assert_eq!(verdict, Some((RST_STREAM, INTERNAL_ERROR)), "{name}");
                assert_eq!((outcome.accepted, outcome.refused), (1, vec!["http2.too_many_headers"]), "{name}");
            }
        })
        .await;
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn r33_a_body_that_is_not_as_long_as_told_is_no_message() {
    local()
        .run_until(async {
            for (told, sent) in [("10", 3), ("1", 12)] {
                let (mut client, task) = connect(ServerOptions::default()).await;
                client.write(&frame(HEADERS, 4, 1, &block(&with(&[("content-length", told)])))).await;
                client.write(&frame(DATA, 1, 1, &vec![b'x'; sent])).await;
                loop {
                    let seen = client.complaint().await.unwrap();
                    if seen.kind == GOAWAY {
                        assert_eq!(seen.code(), PROTOCOL_ERROR);
                        break;
                    }
                }
                drop(client);
                assert!(matches!(task.await.unwrap().error, Some(ConnectionError::Peer { .. })));
            }
        })
        .await;
}

// As upstream: many requests that were refused at once, whose trailers are on their way. A number that was passed over
// stays an error (§5.1.1).
#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn trailers_of_streams_that_were_reset_long_ago_are_dropped() {
    local()
        .run_until(async {
            let many = with(&[("x", "1"); 97]);
            for (id, alive) in [(1, true), (1001, false)] {
                let (mut client, task) = connect(ServerOptions::default()).await;
                for n in (0..100).chain([600]) {
                    client.write(&frame(HEADERS, 4, 2 * n + 1, &block(&many))).await;
                }
                client.write(&frame(HEADERS, 5, id, &block(&[("a", "b")]))).await;
                assert_eq!(client.ping(*b"still up").await.is_ok(), alive, "{id}");
                drop(client);
                assert_eq!(task.await.unwrap().refused.len(), 101);
            }
        })
        .await;
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn resets_beyond_the_burst_end_the_connection() {
    local()
        .run_until(async {
            let (mut client, task) = connect(ServerOptions::default()).await;
            let mut sent = 0u32;
            while sent < 5000 && !task.is_finished() {
                let id = 2 * sent + 1;
                client.write(&frame(HEADERS, 5, id, &block(GET))).await;
                client.write(&frame(RST_STREAM, 0, id, &[0, 0, 0, 8])).await;
                sent += 1;
                // Each is looked at on its own.
                while let Ok(Some(_)) = tokio::time::timeout(Duration::from_millis(1), client.read()).await {}
            }
            drop(client);
            let outcome = task.await.unwrap();
            assert_eq!(kind(outcome.error.unwrap()), FaultKind::Resets);
            assert!((1000..1200).contains(&outcome.accepted), "{}", outcome.accepted);
        })
        .await;
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn what_is_no_preface_is_refused() {
    local()
        .run_until(async {
            let (conn, theirs) = server(ServerOptions::default());
            let task = drive(conn);
            let mut client = RawClient::new(theirs);
            client.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
            assert!(task.await.unwrap().is_err());
        })
        .await;
}
