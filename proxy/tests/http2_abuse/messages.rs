//! Messages that two readers could take for different ones, and that go to an HTTP/1 upstream.

use nuncio_testkit::http2::frame::{flag, frame, kind::*};
use nuncio_testkit::http2::hpack::block;
use nuncio_testkit::http2::{Answer, Ended};

use crate::stage::{connect, stat_becomes, within};
use crate::strict::Request;
use crate::{House, MIB};

/// How often each of them is sent, so that there is something to see of what they cost.
const TIMES: usize = 50;

fn post(more: &[(&str, &str)]) -> Vec<u8> {
    let fields = [(":method", "POST"), (":scheme", "http"), (":authority", "a"), (":path", "/")];
    block(&fields.into_iter().chain(more.iter().copied()).collect::<Vec<_>>())
}

fn head(fields: &[(&str, &str)]) -> Vec<u8> {
    frame(HEADERS, flag::WHOLE, 1, &block(fields))
}

/// What comes of frames on stream 1, each time on a connection of its own, and which requests the upstream hears.
async fn outcome(house: &House, says: &[u8]) -> (Result<Answer, Ended>, Vec<Request>) {
    let mut client = connect(&house.proxy).await;
    client.greet(&[]).await;
    client.write(says).await;
    let answer = within("an outcome", client.answer(1)).await;
    // All that the connection could have caused has happened once it is closed.
    drop(client);
    stat_becomes(&house.proxy, "http.in.downstream_cx_http2_active", 0).await;
    assert!(house.upstream.broken().iter().all(|b| b.starts_with("ended")), "what went upstream is no HTTP/1");
    (answer, house.upstream.take())
}

/// Sends each of `messages`, [many times](TIMES), beside the neighbour; `judge` sees what came of it.
async fn each(messages: &[Vec<u8>], mut judge: impl FnMut(usize, Result<Answer, Ended>, Vec<Request>)) {
    let house = House::new("");
    let attack = async {
        for _ in 0..TIMES {
            for (n, message) in messages.iter().enumerate() {
                let (answer, heard) = outcome(&house, message).await;
                judge(n, answer, heard);
            }
        }
    };
    let ((), cost) = house.beside(attack).await;
    assert!(cost.bytes < 2 * MIB, "{} bytes", cost.bytes);
}

#[tokio::test(flavor = "local")]
async fn r33_a_body_of_another_length_than_told_is_no_request() {
    let bodies = [("10", "abc"), ("1", "xGET /smug HTTP/1.1\r\nhost: a\r\n\r\n"), ("0", "x")];
    let lengths: [&[&str]; 8] =
        [&["5"], &["3", "4"], &["3", "3"], &["3,3"], &["+3"], &["0x3"], &[""], &["99999999999999999999"]];
    let lengths = lengths.map(|lengths| (lengths, if lengths.len() > 1 { "abc" } else { "" }));
    let bodies = bodies.each_ref().map(|(told, body)| (std::slice::from_ref(told), *body));
    let cases: Vec<_> = bodies.into_iter().chain(lengths).collect();
    let message = |(lengths, body): &(&[&str], &str)| {
        let fields: Vec<_> = lengths.iter().map(|length| ("content-length", *length)).collect();
        [frame(HEADERS, flag::END_HEADERS, 1, &post(&fields)), frame(DATA, flag::END_STREAM, 1, body.as_bytes())]
            .concat()
    };
    let messages: Vec<_> = cases.iter().map(message).collect();
    each(&messages, |n, answer, heard| {
        assert!(answer.is_err() && heard.is_empty(), "{:?}: {answer:?} {heard:?}", cases[n]);
    })
    .await;
}

#[tokio::test(flavor = "local")]
async fn r35_a_pseudo_header_that_carries_lines_reaches_nobody() {
    let base = [(":method", "GET"), (":scheme", "http"), (":authority", "a"), (":path", "/")];
    let with = |name: &str, value: &'static str| -> Vec<(&str, &str)> {
        base.into_iter().map(|(n, v)| if n == name { (n, value) } else { (n, v) }).collect()
    };
    let cases = [
        with(":path", "/a HTTP/1.1\r\nX: y"),
        with(":path", "/a b"),
        with(":path", "admin"),
        with(":path", ""),
        with(":method", "GET /x HTTP/1.1\r\nfoo:"),
        with(":method", "GET x"),
        with(":method", ""),
        with(":scheme", "http://evil/?x="),
        with(":scheme", "ftp"),
        with(":authority", "a\r\nx: y"),
        with(":authority", "a b"),
        with(":authority", "a/b"),
        base[..3].to_vec(),
        base.into_iter().chain([base[3]]).collect(),
    ];
    let messages: Vec<_> = cases.iter().map(|fields| head(fields)).collect();
    each(&messages, |n, answer, heard| {
        let refused = !matches!(&answer, Ok(answer) if answer.status == 200);
        assert!(refused && heard.is_empty(), "{:?}: {answer:?} {heard:?}", cases[n]);
    })
    .await;
}

#[tokio::test(flavor = "local")]
async fn r36_authority_wins_over_host_and_one_of_them_is_needed() {
    type Fields = [(&'static str, &'static str)];
    let cases: [(&Fields, Option<&str>); 7] = [
        (&[(":authority", "a"), ("host", "evil")], Some("a")),
        (&[("host", "a")], Some("a")),
        (&[], None),
        (&[(":authority", "u@a b")], None),
        (&[(":authority", "u@a")], None),
        (&[("host", "a"), ("host", "a")], None),
        (&[(":authority", "a"), ("host", "a"), ("host", "b")], None),
    ];
    let get = [(":method", "GET"), (":scheme", "http"), (":path", "/")];
    let messages = cases.map(|(fields, _)| head(&[&get[..], fields].concat()));
    each(&messages, |n, answer, heard| {
        let (fields, host) = cases[n];
        match host {
            Some(host) => assert_eq!(heard[0].field("host"), Some(host), "{fields:?}: {answer:?}"),
            None => assert!(answer.is_err() && heard.is_empty(), "{fields:?}: {answer:?} {heard:?}"),
        }
    })
    .await;
}
