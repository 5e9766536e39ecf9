//! The upstream role against another implementation's server.

use super::*;

fn connect(options: ClientOptions) -> (ClientConn, tokio::task::JoinHandle<ClientEnd>, DuplexStream) {
    let (io, theirs) = pipe();
    let buffers = Rc::new(Buffers::default());
    let (conn, driver) = ClientConn::new(io, Rc::new(options), buffers, &Rng::with_seed(1));
    (conn, tokio::task::spawn_local(driver), theirs)
}

type Requests = h2::server::Connection<DuplexStream, Bytes>;

async fn next(server: &mut Requests) -> (http::Request<h2::RecvStream>, h2::server::SendResponse<Bytes>) {
    server.accept().await.unwrap().unwrap()
}

fn drive_server(mut server: Requests) {
    tokio::task::spawn_local(async move { while let Some(Ok(_)) = server.accept().await {} });
}

async fn answer(stream: &mut ClientStream) -> Result<ResponseHead, StreamError> {
    let mut head = ResponseHead::default();
    poll_fn(|cx| stream.poll_response(cx, &mut head)).await?;
    Ok(head)
}

async fn body_of(stream: &mut ClientStream) -> Result<(Vec<u8>, Option<HeaderMap>), StreamError> {
    let mut body = Vec::new();
    loop {
        match poll_fn(|cx| stream.poll_body(cx)).await? {
            Body::Data(chunk) => body.extend_from_slice(chunk.as_slice()),
            Body::Trailers(trailers) => return Ok((body, Some(trailers))),
            Body::End => return Ok((body, None)),
        }
    }
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn a_request_goes_and_its_answer_comes_with_interim_heads_and_trailers() {
    local()
        .run_until(async {
            let (conn, _driver, theirs) = connect(ClientOptions::default());
            let mut head = get("/p?q");
            head.headers.append("x-up", "1");
            let mut stream = conn.open(&head, true, false).ok().unwrap();
            let mut server = h2::server::handshake(theirs).await.unwrap();
            let (request, mut respond) = next(&mut server).await;
            assert_eq!(
                (request.uri().to_string().as_str(), &request.headers()["x-up"]),
                ("http://a.test/p?q", &"1".parse().unwrap())
            );
            respond.send_informational(http::Response::builder().status(103).body(()).unwrap()).unwrap();
            let mut send =
                respond.send_response(http::Response::builder().header("a", "b").body(()).unwrap(), false).unwrap();
            send.send_data("hello".into(), false).unwrap();
            let mut trailers = http::HeaderMap::new();
            trailers.insert("grpc-status", "0".parse().unwrap());
            send.send_trailers(trailers).unwrap();
            drive_server(server);
            assert_eq!(answer(&mut stream).await.unwrap().status, 103);
            let response = answer(&mut stream).await.unwrap();
            assert_eq!(
                (response.status, response.headers.get("a"), response.framing),
                (200, Some(&b"b"[..]), Framing::Streamed)
            );
            let (body, trailers) = body_of(&mut stream).await.unwrap();
            assert_eq!((body, trailers.unwrap().get_str("grpc-status")), (b"hello".to_vec(), Some("0")));
            assert!(stream.response_complete() && stream.request_complete());
        })
        .await;
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn resets_are_told_apart() {
    local()
        .run_until(async {
            let (conn, _driver, theirs) = connect(ClientOptions::default());
            let mut server = h2::server::handshake(theirs).await.unwrap();
            for (reason, wanted) in [
                (h2::Reason::INTERNAL_ERROR, StreamError::Reset),
                (h2::Reason::REFUSED_STREAM, StreamError::Refused),
                (h2::Reason::NO_ERROR, StreamError::Satisfied),
            ] {
                let mut stream = conn.open(&get("/"), false, false).ok().unwrap();
                let (_, mut respond) = next(&mut server).await;
                respond.send_reset(reason);
                let told = tokio::select! {
                    told = answer(&mut stream) => told.unwrap_err(),
                    _ = server.accept() => panic!("closed"),
                };
                assert_eq!(told, wanted);
            }
        })
        .await;
}

// RFC 9113 §8.1: a server that has answered may say that it wants no more of the request.
#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn a_whole_answer_counts_although_the_rest_of_the_request_is_not_wanted() {
    local()
        .run_until(async {
            let (conn, _driver, theirs) = connect(ClientOptions::default());
            let mut server = h2::server::handshake(theirs).await.unwrap();
            for whole in [true, false] {
                let mut stream = conn.open(&get("/"), false, false).ok().unwrap();
                let (request, mut respond) = next(&mut server).await;
                let mut send = respond.send_response(http::Response::new(()), false).unwrap();
                send.send_data("early".into(), whole).unwrap();
                tokio::time::timeout(Duration::from_secs(1), server.accept()).await.unwrap_err();
                if !whole {
                    send.send_reset(h2::Reason::NO_ERROR);
                }
                drop((request, respond, send));
                tokio::time::timeout(Duration::from_secs(1), server.accept()).await.unwrap_err();
                answer(&mut stream).await.unwrap();
                let body = body_of(&mut stream).await;
                match whole {
                    true => assert_eq!(body.unwrap().0, b"early"),
                    false => assert_eq!(body.unwrap_err(), StreamError::Satisfied),
                }
                let sent =
                    poll_fn(|cx| Poll::Ready(stream.send_data(cx, &Chunk::Own(Bytes::from_static(b"more")), true)))
                        .await;
                assert!(sent.is_ok(), "the upstream does not listen, which is no failure");
            }
        })
        .await;
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn streams_beyond_a_goaway_are_refused_and_the_others_finish() {
    use tokio::io::AsyncWriteExt;
    local()
        .run_until(async {
            let (conn, driver, mut theirs) = connect(ClientOptions::default());
            let mut first = conn.open(&get("/1"), true, false).ok().unwrap();
            let mut second = conn.open(&get("/2"), true, false).ok().unwrap();
            // SETTINGS, and GOAWAY whose last stream is 1.
            theirs.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
            theirs.write_all(&[0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0]).await.unwrap();
            assert_eq!(answer(&mut second).await.unwrap_err(), StreamError::Refused);
            assert!(conn.is_closing());
            assert_eq!(
                conn.open(&get("/3"), true, false).err(),
                Some(super::super::OpenError::Stream(StreamError::Refused))
            );
            // `:status: 200` and the end.
            theirs.write_all(&[0, 0, 1, 1, 5, 0, 0, 0, 1, 0x88]).await.unwrap();
            assert_eq!(answer(&mut first).await.unwrap().status, 200);
            drop((conn, first, second));
            assert_eq!(driver.await.unwrap(), ClientEnd::Remote);
        })
        .await;
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn a_dropped_stream_is_cancelled_and_an_unused_connection_closes() {
    local()
        .run_until(async {
            let (conn, driver, theirs) = connect(ClientOptions::default());
            let mut server = h2::server::handshake(theirs).await.unwrap();
            let stream = conn.open(&get("/"), false, false).ok().unwrap();
            let (request, _respond) = next(&mut server).await;
            assert_eq!(conn.streams(), 1);
            drop(stream);
            assert_eq!(conn.streams(), 0);
            let mut recv = request.into_body();
            let reset = tokio::select! {
                data = recv.data() => data.unwrap().unwrap_err(),
                _ = server.accept() => panic!("closed"),
            };
            assert_eq!(reset.reason(), Some(h2::Reason::CANCEL));
            drop(conn);
            drive_server(server);
            assert_eq!(driver.await.unwrap(), ClientEnd::Local);
        })
        .await;
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn an_upstream_that_speaks_something_else_breaks_the_protocol() {
    use tokio::io::AsyncWriteExt;
    local()
        .run_until(async {
            let (conn, driver, mut theirs) = connect(ClientOptions::default());
            let mut stream = conn.open(&get("/"), true, false).ok().unwrap();
            theirs.write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n").await.unwrap();
            let error = answer(&mut stream).await.unwrap_err();
            assert!(matches!(error, StreamError::Protocol(_)), "{error:?}");
            assert!(matches!(driver.await.unwrap(), ClientEnd::Protocol(_)));
            assert!(conn.open(&get("/"), true, false).is_err());
        })
        .await;
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn the_smaller_limit_of_streams_counts() {
    local()
        .run_until(async {
            let (conn, _driver, theirs) = connect(ClientOptions::default());
            let mut server =
                h2::server::Builder::new().max_concurrent_streams(3).handshake::<_, Bytes>(theirs).await.unwrap();
            tokio::time::timeout(Duration::from_secs(1), server.accept()).await.unwrap_err();
            assert_eq!(conn.max_streams(), 3);
        })
        .await;
}

/// Frames of an upstream that is no more than its bytes.
mod raw {
    pub(super) use nuncio_testkit::http2::frame::kind::*;
    pub(super) use nuncio_testkit::http2::frame::{flag, frame};
    pub(super) use nuncio_testkit::http2::hpack::block;
}

// A client that leaves cancels all its requests at once; their answers are on their way, and the upstream connection
// carries those of other clients. RFC 9113 §5.1 lets such frames be ignored for as long as one likes.
#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn answers_to_many_cancelled_requests_do_not_end_the_connection() {
    use raw::*;
    use tokio::io::AsyncWriteExt;
    local()
        .run_until(async {
            let (conn, _driver, mut theirs) = connect(ClientOptions::default());
            theirs.write_all(&frame(SETTINGS, 0, 0, &[])).await.unwrap();
            let open = |path: &str| conn.open(&get(path), true, false).ok().unwrap();
            let cancelled: Vec<_> = (0..200).map(|n| open(&format!("/{n}"))).collect();
            let mut kept = open("/kept");
            drop(cancelled);
            for n in 0..200 {
                let head = frame(HEADERS, flag::END_HEADERS, 2 * n + 1, &block(&[(":status", "200")]));
                let trailers = frame(HEADERS, flag::WHOLE, 2 * n + 1, &block(&[("grpc-status", "0")]));
                theirs.write_all(&[head, frame(DATA, 0, 2 * n + 1, b"late"), trailers].concat()).await.unwrap();
            }
            theirs.write_all(&frame(HEADERS, flag::WHOLE, 401, &block(&[(":status", "204")]))).await.unwrap();
            assert_eq!(answer(&mut kept).await.unwrap().status, 204);
            assert!(!conn.is_closing());
        })
        .await;
}

// RFC 9110 §6.4.1, RFC 9113 §8.1.1: there is none, so that what comes is malformed.
#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn a_body_where_there_can_be_none_is_malformed() {
    use raw::*;
    use tokio::io::AsyncWriteExt;
    local()
        .run_until(async {
            let mut head_request = get("/");
            head_request.headers.set(":method", "HEAD");
            for (what, request, status, length, good) in [
                ("HEAD", &head_request, "200", Some("5"), false),
                ("HEAD without a length", &head_request, "200", None, false),
                ("204", &get("/"), "204", None, false),
                ("304", &get("/"), "304", Some("5"), false),
                ("200", &get("/"), "200", Some("5"), true),
            ] {
                for body in [&b"hello"[..], b""] {
                    let (conn, _driver, mut theirs) = connect(ClientOptions::default());
                    let mut stream = conn.open(request, true, false).ok().unwrap();
                    let fields: Vec<_> = [Some((":status", status)), length.map(|n| ("content-length", n))]
                        .into_iter()
                        .flatten()
                        .collect();
                    let says = [
                        frame(SETTINGS, 0, 0, &[]),
                        frame(HEADERS, flag::END_HEADERS, 1, &block(&fields)),
                        frame(DATA, flag::END_STREAM, 1, body),
                    ];
                    theirs.write_all(&says.concat()).await.unwrap();
                    let head = answer(&mut stream).await.unwrap();
                    assert_eq!(head.framing.is_none(), length.is_none() && status != "200", "{what}");
                    let got = body_of(&mut stream).await;
                    assert_eq!(got.is_ok(), good != body.is_empty(), "{what} with {body:?}: {got:?}");
                }
            }
            // RFC 9110 §8.6, and Envoy 1.40: no length at all with 204.
            for (length, good) in [("0", true), ("5", false)] {
                let (conn, _driver, mut theirs) = connect(ClientOptions::default());
                let mut stream = conn.open(&get("/"), true, false).ok().unwrap();
                let head = block(&[(":status", "204"), ("content-length", length)]);
                theirs
                    .write_all(&[frame(SETTINGS, 0, 0, &[]), frame(HEADERS, flag::WHOLE, 1, &head)].concat())
                    .await
                    .unwrap();
                assert_eq!(answer(&mut stream).await.is_ok(), good, "{length}");
            }
        })
        .await;
}

/// What came of an answer before it was cut, in whichever way, goes on (Envoy 1.40 does the same).
#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn what_came_of_an_answer_that_is_cut_is_not_lost() {
    use raw::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    local()
        .run_until(async {
            let reset = |code: u8| frame(RST_STREAM, 0, 1, &[0, 0, 0, code]);
            for (what, cut, wanted) in [
                ("a reset", reset(2), StreamError::Reset),
                ("a reset without a reproach", reset(0), StreamError::Satisfied),
                ("refused", reset(7), StreamError::Refused),
                (
                    "trailers that are none",
                    frame(HEADERS, flag::WHOLE, 1, &block(&[(":status", "200")])),
                    StreamError::Protocol("http2.invalid.header.field"),
                ),
                ("the end of the connection", Vec::new(), StreamError::Closed),
            ] {
                let (conn, driver, mut theirs) = connect(ClientOptions::default());
                let mut stream = conn.open(&get("/"), true, false).ok().unwrap();
                assert!(theirs.read(&mut [0; 1024]).await.unwrap() > 0);
                let says = [
                    frame(SETTINGS, 0, 0, &[]),
                    frame(HEADERS, flag::END_HEADERS, 1, &block(&[(":status", "200")])),
                    frame(DATA, 0, 1, b"abc"),
                    cut,
                ];
                theirs.write_all(&says.concat()).await.unwrap();
                drop(theirs);
                // All of it lies there before anybody looks.
                assert_eq!(driver.await.unwrap(), ClientEnd::Remote);
                assert_eq!(answer(&mut stream).await.unwrap().status, 200, "{what}");
                match poll_fn(|cx| stream.poll_body(cx)).await {
                    Ok(Body::Data(data)) => assert_eq!(data.as_slice(), b"abc", "{what}"),
                    other => panic!("{what}: {other:?}"),
                }
                assert_eq!(poll_fn(|cx| stream.poll_body(cx)).await.err(), Some(wanted), "{what}");
            }
        })
        .await;
}

/// An upstream that takes nothing gets no more requests: those that are given up would leave their heads behind.
#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn an_upstream_that_takes_nothing_has_no_room() {
    local()
        .run_until(async {
            let (conn, _driver, _theirs) = connect(ClientOptions::default());
            let long = format!("/{}", "p".repeat(1000));
            let mut opened = 0;
            while opened < 10_000 && conn.max_streams() > 0 {
                drop(conn.open(&get(&long), true, false).ok().unwrap());
                tokio::task::yield_now().await;
                opened += 1;
            }
            // The pipe's 64 KiB, and what may wait.
            assert!((100..500).contains(&opened), "{opened}");
            assert!(!conn.is_closing());
        })
        .await;
}
