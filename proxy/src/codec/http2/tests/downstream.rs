//! The downstream role against another implementation's client.

use super::*;

/// A client of another implementation, running in the background.
async fn client(theirs: DuplexStream) -> h2::client::SendRequest<Bytes> {
    let (send, connection) = h2::client::handshake(theirs).await.unwrap();
    tokio::task::spawn_local(async move { drop(connection.await) });
    send
}

async fn body_of(mut recv: h2::RecvStream) -> (Vec<u8>, Option<http::HeaderMap>) {
    let mut body = Vec::new();
    while let Some(piece) = recv.data().await {
        let piece = piece.unwrap();
        recv.flow_control().release_capacity(piece.len()).unwrap();
        body.extend_from_slice(&piece);
    }
    (body, recv.trailers().await.unwrap())
}

/// Echoes one request, with its trailers.
async fn echo(mut stream: ServerStream) {
    let mut head = ResponseHead::new(200);
    head.framing = Framing::Streamed;
    stream.send_head(&head, false);
    loop {
        match poll_fn(|cx| stream.poll_body(cx)).await.unwrap() {
            Body::Data(chunk) => {
                let mut data = Some(chunk.into_bytes());
                poll_fn(|cx| {
                    if let Some(data) = data.take() {
                        stream.send_data(cx, &Chunk::Own(data), false).unwrap();
                    }
                    stream.poll_writable(cx)
                })
                .await
                .unwrap();
            }
            Body::Trailers(trailers) => {
                stream.send_trailers(&trailers).unwrap();
                break;
            }
            Body::End => {
                poll_fn(|cx| Poll::Ready(stream.send_data(cx, &Chunk::Own(Bytes::new()), true))).await.unwrap();
                break;
            }
        }
    }
    poll_fn(|cx| stream.poll_flush(cx)).await.unwrap();
    assert!(stream.request_complete() && stream.response_complete());
}

/// Serves every request by an echo.
fn serve(mut conn: ServerConn) {
    tokio::task::spawn_local(async move {
        let mut head = RequestHead::default();
        while let Ok(Some(accepted)) = accept(&mut conn, &mut head).await {
            if let Accepted::Stream(stream) = accepted {
                tokio::task::spawn_local(echo(stream));
            }
        }
    });
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn many_streams_at_once_carry_large_bodies_both_ways() {
    local()
        .run_until(async {
            let (conn, theirs) = server(ServerOptions::default());
            serve(conn);
            let send = client(theirs).await;
            let calls = (0..20u8).map(|i| {
                let mut send = send.clone();
                async move {
                    poll_fn(|cx| send.poll_ready(cx)).await.unwrap();
                    let request = http::Request::post("http://a/").body(()).unwrap();
                    let (response, mut body) = send.send_request(request, false).unwrap();
                    let sent = vec![i; 300_000];
                    body.send_data(sent.clone().into(), false).unwrap();
                    let mut trailers = http::HeaderMap::new();
                    trailers.insert("x-sum", "9".parse().unwrap());
                    body.send_trailers(trailers).unwrap();
                    let (got, trailers) = body_of(response.await.unwrap().into_body()).await;
                    assert!(got == sent);
                    assert_eq!(trailers.unwrap()["x-sum"], "9");
                }
            });
            futures_util::future::join_all(calls).await;
        })
        .await;
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn nothing_is_read_for_a_client_that_takes_nothing() {
    local()
        .run_until(async {
            let (mut conn, theirs) = server(ServerOptions::default());
            let (mut send, connection) =
                h2::client::Builder::new().initial_window_size(10).handshake::<_, Bytes>(theirs).await.unwrap();
            tokio::task::spawn_local(async move { drop(connection.await) });
            let (response, _) = send.send_request(http::Request::get("http://a/").body(()).unwrap(), true).unwrap();
            let mut head = RequestHead::default();
            let mut stream = stream(&mut conn, &mut head).await;
            drive(conn);
            let mut head = ResponseHead::new(200);
            head.framing = Framing::Length(25);
            stream.send_head(&head, false);
            poll_fn(|cx| stream.poll_writable(cx)).await.unwrap();
            poll_fn(|cx| Poll::Ready(stream.send_data(cx, &Chunk::Own(Bytes::from_static(&[7; 25])), true)))
                .await
                .unwrap();
            assert_eq!(stream.write_buffered(), 15 + 1, "and the end");
            let writable = tokio::time::timeout(Duration::from_secs(60), poll_fn(|cx| stream.poll_writable(cx))).await;
            assert!(writable.is_err(), "the window is used up");
            let recv = response.await.unwrap().into_body();
            let (body, ()) = tokio::join!(body_of(recv), async { poll_fn(|cx| stream.poll_flush(cx)).await.unwrap() });
            assert_eq!(body.0, [7; 25]);
        })
        .await;
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn a_body_of_another_length_than_told_is_an_error_of_ours() {
    local()
        .run_until(async {
            let (mut conn, theirs) = server(ServerOptions::default());
            let mut send = client(theirs).await;
            let (_response, _) = send.send_request(http::Request::get("http://a/").body(()).unwrap(), true).unwrap();
            let mut stream = stream(&mut conn, &mut RequestHead::default()).await;
            let mut head = ResponseHead::new(200);
            head.framing = Framing::Length(2);
            stream.send_head(&head, false);
            let mut sent = |data: &'static [u8], end| {
                let cx = &mut Context::from_waker(std::task::Waker::noop());
                stream.send_data(cx, &Chunk::Own(Bytes::from_static(data)), end).map_err(|e| e.kind())
            };
            assert_eq!(sent(b"abc", false), Err(io::ErrorKind::InvalidData));
            assert_eq!(sent(b"a", true), Err(io::ErrorKind::InvalidData));
        })
        .await;
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn a_reset_is_seen_while_nobody_reads() {
    local()
        .run_until(async {
            let (mut conn, theirs) = server(ServerOptions::default());
            let mut send = client(theirs).await;
            let (response, mut body) =
                send.send_request(http::Request::post("http://a/").body(()).unwrap(), false).unwrap();
            let mut stream = stream(&mut conn, &mut RequestHead::default()).await;
            drive(conn);
            body.send_reset(h2::Reason::CANCEL);
            let gone = poll_fn(|cx| stream.poll_gone(cx)).await;
            assert!(matches!(gone, crate::codec::GoneReason::Stream(StreamError::Reset)), "{gone:?}");
            drop(response);
        })
        .await;
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn a_connection_that_is_lost_ends_its_streams() {
    local()
        .run_until(async {
            let (mut conn, theirs) = server(ServerOptions::default());
            let (mut send, mut connection) = h2::client::handshake(theirs).await.unwrap();
            let (_response, _body) =
                send.send_request(http::Request::post("http://a/").body(()).unwrap(), false).unwrap();
            let mut head = RequestHead::default();
            let mut stream = tokio::select! {
                _ = &mut connection => panic!("closed"),
                stream = stream(&mut conn, &mut head) => stream,
            };
            drive(conn);
            drop(connection);
            let gone = poll_fn(|cx| stream.poll_gone(cx)).await;
            assert!(matches!(gone, crate::codec::GoneReason::Stream(StreamError::Closed)), "{gone:?}");
        })
        .await;
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn a_quiet_connection_is_told_to_go_in_two_steps() {
    local()
        .run_until(async {
            let (mut conn, theirs) = server(ServerOptions::default());
            let (send, mut connection) = h2::client::handshake::<DuplexStream>(theirs).await.unwrap();
            let mut head = RequestHead::default();
            tokio::select! {
                _ = &mut connection => panic!("closed"),
                _ = accept(&mut conn, &mut head) => panic!("a request"),
                () = tokio::time::sleep(Duration::from_secs(1)) => {}
            }
            conn.shut_down();
            let (ours, theirs) = tokio::join!(accept(&mut conn, &mut head), connection);
            assert!(matches!(ours, Ok(None)));
            theirs.unwrap();
            drop(send);
        })
        .await;
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn a_client_that_does_not_answer_pings_is_given_up() {
    local()
        .run_until(async {
            let keepalive = Keepalive {
                interval: Some(Duration::from_secs(10)),
                timeout: Duration::from_secs(3),
                jitter: 0.0,
                idle_interval: None,
            };
            let http2 = Http2Options { keepalive: Some(keepalive), ..Http2Options::default() };
            let (mut conn, theirs) = server(ServerOptions { http2, ..ServerOptions::default() });
            let (_send, mut connection) = h2::client::handshake::<DuplexStream>(theirs).await.unwrap();
            let mut head = RequestHead::default();
            let started = tokio::time::Instant::now();
            tokio::select! {
                _ = &mut connection => panic!("closed"),
                _ = accept(&mut conn, &mut head) => panic!("given up although it answers"),
                () = tokio::time::sleep(Duration::from_secs(35)) => {}
            }
            // From now on nobody reads on the other side.
            let error = accept(&mut conn, &mut head).await.err().unwrap();
            assert!(
                matches!(error, ConnectionError::Peer { fault: Some(FaultKind::KeepaliveTimeout), .. }),
                "{error:?}"
            );
            assert_eq!(started.elapsed().as_secs(), 43);
        })
        .await;
}

/// An answer that is nothing but a head leaves no stream behind that would hold its client back.
#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn heads_that_nobody_takes_do_not_pile_up() {
    use super::frames::*;
    local()
        .run_until(async {
            let (mut conn, theirs) = server(ServerOptions::default());
            let answered = std::rc::Rc::new(std::cell::Cell::new(0));
            let counts = answered.clone();
            tokio::task::spawn_local(async move {
                let (mut head, mut answer) = (RequestHead::default(), ResponseHead::new(301));
                answer.headers.append("location", "x".repeat(1000));
                while let Ok(Some(Accepted::Stream(mut stream))) = accept(&mut conn, &mut head).await {
                    stream.send_head(&answer, true);
                    counts.set(counts.get() + 1);
                }
            });
            let mut client = RawClient::new(theirs);
            client.write(PREFACE).await;
            client.write(&frame(SETTINGS, 0, 0, &[])).await;
            let mut asked = 0;
            let mut ask = async || {
                asked += 1;
                client.write(&frame(HEADERS, 5, 2 * asked - 1, &block(GET))).await
            };
            while answered.get() < 5000 && tokio::time::timeout(Duration::from_secs(1), ask()).await == Ok(true) {}
            // Huffman's code makes five eighths of each, and the pipe takes 64 KiB.
            assert!((100..800).contains(&answered.get()), "{} answers wait", answered.get());
        })
        .await;
}

// RFC 9113 §6.8: the second GOAWAY says the last stream. Whoever does not answer the ping behind the first gets it too.
#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn the_second_goaway_needs_no_answer_to_the_ping() {
    use super::frames::*;
    local()
        .run_until(async {
            let (mut conn, theirs) = server(ServerOptions::default());
            let mut client = RawClient::new(theirs);
            client.stop_answering();
            client.write(PREFACE).await;
            client.write(&frame(SETTINGS, 0, 0, &[])).await;
            client.write(&frame(HEADERS, 5, 1, &block(GET))).await;
            let mut head = RequestHead::default();
            let mut stream = stream(&mut conn, &mut head).await;
            conn.shut_down();
            conn.insist();
            conn.insist();
            client.write(&frame(HEADERS, 5, 3, &block(GET))).await;
            stream.send_head(&ResponseHead::new(204), true);
            drop(stream);
            assert!(matches!(accept(&mut conn, &mut head).await, Ok(None)), "a stream behind the last, or no end");
            let mut last_streams = Vec::new();
            while last_streams.len() < 2 {
                let seen = client.read().await.unwrap();
                if seen.kind == GOAWAY {
                    last_streams.push(seen.last_stream());
                }
            }
            assert_eq!(last_streams, [0x7fff_ffff, 1]);
        })
        .await;
}

// A second reader would drop the blanks, as it does those of heads.
#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn blanks_around_values_are_dropped_in_trailers_as_in_heads() {
    use super::frames::*;
    local()
        .run_until(async {
            let (mut conn, theirs) = server(ServerOptions::default());
            let mut client = RawClient::new(theirs);
            client.write(PREFACE).await;
            client.write(&frame(SETTINGS, 0, 0, &[])).await;
            client.write(&frame(HEADERS, 4, 1, &block(&[GET, &[("a", " b\t")]].concat()))).await;
            client.write(&frame(HEADERS, 5, 1, &block(&[("c", "\t d ")]))).await;
            let mut head = RequestHead::default();
            let mut stream = stream(&mut conn, &mut head).await;
            drive(conn);
            assert_eq!(head.headers.get_str("a"), Some("b"));
            match poll_fn(|cx| stream.poll_body(cx)).await.unwrap() {
                Body::Trailers(trailers) => assert_eq!(fields(&trailers), ["c: d"]),
                other => panic!("{other:?}"),
            }
        })
        .await;
}
