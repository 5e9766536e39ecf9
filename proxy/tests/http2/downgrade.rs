//! From HTTP/2 to HTTP/1: whatever is accepted goes upstream as exactly one request with the same
//! body, and nothing that a client writes becomes a second one. The upstream reads by the rules of
//! [`strict`](crate::strict).

use nuncio_testkit::http2::frame::{flag, frame, kind::*, padded, rst_stream};
use nuncio_testkit::http2::hpack::{Literal, block, indexed, indexed_name, literal, string};
use nuncio_testkit::http2::{Answer, Ended};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::running::RunningProxy;
use crate::stage::{Upstream, configuration, connect, stat_becomes, within};
use crate::strict::Request;

type Fields = Vec<(Vec<u8>, Vec<u8>)>;

/// What comes of frames on stream 1, and of how many requests the upstream hears.
async fn outcome(proxy: &RunningProxy, upstream: &Upstream, says: &[Vec<u8>]) -> (Result<Answer, Ended>, usize) {
    let mut client = connect(proxy).await;
    client.greet(&[]).await;
    client.write(&says.concat()).await;
    let answer = within("an outcome", client.answer(1)).await;
    // All that the connection could have caused has happened once it is closed.
    drop(client);
    stat_becomes(proxy, "http.in.downstream_cx_active", 0).await;
    assert!(upstream.broken().iter().all(|b| b.starts_with("ended")), "what went upstream is no HTTP/1");
    (answer, upstream.take().len())
}

async fn house() -> (RunningProxy, Upstream) {
    let upstream = Upstream::start();
    (RunningProxy::start(&configuration(upstream.address, "", ""), 1), upstream)
}

// Envoy 1.40 answers the same on either protocol.
#[tokio::test(flavor = "local")]
async fn r46_a_fragment_in_a_path_is_answered_400_and_goes_nowhere() {
    let (proxy, upstream) = house().await;
    let fields = [(":method", "GET"), (":scheme", "http"), (":authority", "a"), (":path", "/a#b")];
    let (answer, heard) = outcome(&proxy, &upstream, &[frame(HEADERS, flag::WHOLE, 1, &block(&fields))]).await;
    assert_eq!((answer.map(|answer| answer.status), heard), (Ok(400), 0));
}

// === the property ===

/// A request as a hostile client would write it.
#[derive(Clone)]
struct Hostile {
    fields: Fields,
    /// Of the body, with padding.
    pieces: Vec<(Vec<u8>, Option<u8>)>,
    trailers: Option<Fields>,
    ends: bool,
    resets: bool,
    /// The head in several frames.
    split: bool,
}

/// Text that could be taken for the end of a message and the begin of another.
fn bait() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        Just(b"0\r\n\r\nGET /smuggled HTTP/1.1\r\nhost: a\r\n\r\n".to_vec()),
        Just(b"\r\n\r\nGET /smuggled HTTP/1.1\r\nhost: a\r\n\r\n".to_vec()),
        Just(b"GET /smuggled HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n".to_vec()),
        Just(b"\r\n".to_vec()),
        Just(b"3\r\nabc\r\n0\r\n\r\n".to_vec()),
        prop::collection::vec(any::<u8>(), 0..40),
    ]
}

fn method() -> impl Strategy<Value = Vec<u8>> {
    let strange = ["GET /smuggled HTTP/1.1\r\nx:", "GET ", "get", "", "P\0ST", "FROB", "CONNECT", "TRACE"];
    prop_oneof![
        15 => prop::sample::select(vec!["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS"]),
        1 => prop::sample::select(strange.to_vec()),
    ]
    .prop_map(|m| m.as_bytes().to_vec())
}

fn path() -> impl Strategy<Value = Vec<u8>> {
    let strange =
        ["/ HTTP/1.1\r\nx: y", "/a b", "/#f", "*", "http://b/x", "//x", "/%0d%0a", "/a\tb", "/\u{e9}", "?q", ""];
    prop_oneof![
        15 => "/[a-z0-9/?&=%._~!$'()*+,;:@-]{0,20}".prop_map(String::into_bytes),
        2 => prop::sample::select(strange.to_vec()).prop_map(|p| p.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..12),
    ]
}

fn field() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
    let names = [
        "content-length",
        "transfer-encoding",
        "connection",
        "te",
        "host",
        "cookie",
        "expect",
        "upgrade",
        "trailer",
        "keep-alive",
        "x",
        "x_y",
        "Content-Length",
        "content-length ",
        "transfer-encoding\0",
        "x:y",
        ":path",
        ":authority",
        ":protocol",
        ":status",
        "",
        "x\r\nhost",
        "proxy-connection",
        "http2-settings",
    ];
    let values = [
        "0",
        "1",
        "3",
        "5",
        "5 ",
        " 5",
        "+5",
        "5, 5",
        "chunked",
        "identity, chunked",
        "trailers",
        "close",
        "upgrade",
        "a",
        "b\r\nx: y",
        "\r\n",
        "a\0b",
        "a\rb",
        "100-continue",
        "websocket",
        "h2c",
        "\t",
        "x, content-length",
    ];
    let name = prop_oneof![
        8 => prop::sample::select(names.to_vec()).prop_map(|n| n.as_bytes().to_vec()),
        2 => prop::collection::vec(any::<u8>(), 0..10),
    ];
    let value = prop_oneof![
        8 => prop::sample::select(values.to_vec()).prop_map(|v| v.as_bytes().to_vec()),
        2 => prop::collection::vec(any::<u8>(), 0..20),
    ];
    (name, value)
}

fn hostile() -> impl Strategy<Value = Hostile> {
    let mostly = |p: f64| prop::bool::weighted(p);
    (
        (method(), path(), mostly(0.97), mostly(0.97)),
        prop_oneof![3 => Just(Vec::new()), 2 => prop::collection::vec(field(), 1..3)],
        prop::collection::vec((bait(), prop::option::weighted(0.2, any::<u8>())), 0..4),
        prop::option::weighted(0.1, prop::collection::vec(field(), 0..3)),
        (mostly(0.95), mostly(0.05), mostly(0.2), mostly(0.7)),
    )
        .prop_map(|((method, path, scheme, authority), more, pieces, trailers, (ends, resets, split, honest))| {
            let mut fields = vec![(b":method".to_vec(), method), (b":path".to_vec(), path)];
            if scheme {
                fields.push((b":scheme".to_vec(), b"http".to_vec()));
            }
            if authority {
                fields.push((b":authority".to_vec(), b"a".to_vec()));
            }
            if honest {
                let length: usize = pieces.iter().map(|(p, _)| p.len()).sum();
                fields.push((b"content-length".to_vec(), length.to_string().into_bytes()));
            }
            fields.extend(more);
            Hostile { fields, pieces, trailers, ends, resets, split }
        })
}

impl std::fmt::Debug for Hostile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let lines = |fields: &Fields| {
            fields.iter().map(|(n, v)| format!("{}={}", n.escape_ascii(), v.escape_ascii())).collect::<Vec<_>>()
        };
        write!(f, "{:?} {:?} trailers {:?}", lines(&self.fields), self.pieces, self.trailers.as_ref().map(lines))?;
        write!(f, " ends {} resets {} split {}", self.ends, self.resets, self.split)
    }
}

impl Hostile {
    fn body(&self) -> Vec<u8> {
        self.pieces.iter().flat_map(|(piece, _)| piece.clone()).collect()
    }

    fn frames(&self, case: usize, stream: u32) -> Vec<u8> {
        let mut head: Vec<u8> = block(&self.fields);
        head.extend(literal(Literal::Incremental, &string(b"x-id"), &string(format!("{case}-{stream}").as_bytes())));
        // Once more from the table, and a name of the static one.
        head.extend(indexed(62));
        head.extend(indexed_name(Literal::Never, 58, &string(b"hostile")));
        let ends_early = self.ends && self.pieces.is_empty() && self.trailers.is_none();
        let end = |last: bool| if last { flag::END_STREAM } else { 0 };
        let mut out = if self.split && head.len() > 3 {
            let mut out = frame(HEADERS, end(ends_early), stream, &head[..3]);
            out.extend(frame(CONTINUATION, flag::END_HEADERS, stream, &head[3..]));
            out
        } else {
            frame(HEADERS, end(ends_early) | flag::END_HEADERS, stream, &head)
        };
        for (i, (piece, padding)) in self.pieces.iter().enumerate() {
            let last = self.ends && self.trailers.is_none() && i + 1 == self.pieces.len();
            out.extend(match padding {
                Some(n) => frame(DATA, end(last) | flag::PADDED, stream, &padded(piece, *n)),
                None => frame(DATA, end(last), stream, piece),
            });
        }
        if let Some(trailers) = &self.trailers {
            out.extend(frame(HEADERS, end(self.ends) | flag::END_HEADERS, stream, &block(trailers)));
        }
        if self.resets {
            out.extend(rst_stream(stream, 8));
        }
        out
    }
}

/// Which case and stream a request that arrived belongs to.
fn origin(heard: &Request) -> Option<(usize, u32)> {
    let mut ids = heard.fields.iter().filter(|(name, _)| name == "x-id").map(|(_, value)| value);
    let (first, second) = (ids.next()?, ids.next()?);
    let (case, stream) = std::str::from_utf8(first).ok()?.split_once('-')?;
    (first == second && ids.next().is_none()).then_some((case.parse().ok()?, stream.parse().ok()?))
}

/// Sends the requests on one connection and checks what the upstream made of them: how many it heard.
async fn exchange(
    (proxy, upstream): (&RunningProxy, &Upstream),
    case: usize,
    requests: &[Hostile],
) -> Result<usize, TestCaseError> {
    let mut client = connect(proxy).await;
    client.greet(&[]).await;
    let ids: Vec<u32> = (0..requests.len() as u32).map(|n| 2 * n + 1).collect();
    let frames: Vec<u8> = ids.iter().zip(requests).flat_map(|(id, request)| request.frames(case, *id)).collect();
    client.write(&frames).await;
    let mut answered = Vec::new();
    for (id, request) in ids.iter().zip(requests) {
        // What does not end gets no answer.
        if request.ends && !request.resets {
            let outcome = within("an outcome", client.answer(*id)).await;
            answered.push((*id, matches!(outcome, Ok(answer) if answer.status == 200)));
        }
    }
    drop(client);
    stat_becomes(proxy, "http.in.downstream_cx_active", 0).await;
    stat_becomes(proxy, "cluster.c.upstream_rq_active", 0).await;
    let broken: Vec<_> = upstream.broken().into_iter().filter(|b| !b.starts_with("ended")).collect();
    prop_assert_eq!(broken, Vec::<String>::new(), "the upstream could not read what came");
    let mut heard = Vec::new();
    for request in upstream.take() {
        let Some((of, id)) = origin(&request) else {
            return Err(TestCaseError::fail(format!("a request that nobody sent: {request:?}")));
        };
        // One that its client gave up may be read late.
        if of == case {
            let sent = &requests[(id as usize - 1) / 2];
            prop_assert_eq!(&request.body, &sent.body());
            prop_assert_eq!(request.method.as_bytes(), &sent.fields[0].1[..]);
            heard.push(id);
        }
    }
    for (id, fine) in answered {
        let seen = heard.iter().filter(|heard| **heard == id).count();
        prop_assert!(seen <= 1, "stream {} reached the upstream {} times", id, seen);
        prop_assert!(!fine || seen == 1, "stream {} was answered by somebody else", id);
    }
    Ok(heard.len())
}

#[test]
fn what_is_accepted_is_exactly_one_request_with_the_same_body() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build_local(Default::default()).unwrap();
    let (proxy, upstream) = runtime.block_on(house());
    let config = Config { cases: 500, failure_persistence: None, ..Config::default() };
    let (passed, case) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
    let outcome = TestRunner::new(config).run(&prop::collection::vec(hostile(), 1..4), |requests| {
        case.set(case.get() + 1);
        let heard = runtime.block_on(exchange((&proxy, &upstream), case.get(), &requests))?;
        passed.set(passed.get() + heard);
        Ok(())
    });
    outcome.unwrap_or_else(|e| panic!("{e}"));
    // Otherwise nothing was tried.
    assert!(passed.get() > 50, "{} requests passed", passed.get());
}
