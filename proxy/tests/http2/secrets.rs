//! Fields that a sender wants in no table of a compression (RFC 7541 §7.1.3): an intermediary must keep them out too.

use nuncio_testkit::http2::frame::{flag, frame, kind::*, settings};
use nuncio_testkit::http2::hpack::{Literal, block, indexed, indexed_name, literal, string};

use crate::grpc::HTTP2;
use crate::running::RunningProxy;
use crate::stage::{configuration, connect, raw_upstream, within};

/// Two bytes are shorter plain than by Huffman's code, so that the block shows them as they are.
fn secret(name: &str, value: &str) -> Vec<u8> {
    literal(Literal::Never, &string(name.as_bytes()), &string(value.as_bytes()))
}

/// With a name of the static table.
fn secret_at(index: usize, value: &str) -> Vec<u8> {
    indexed_name(Literal::Never, index, &string(value.as_bytes()))
}

fn holds(block: &[u8], field: &[u8]) -> bool {
    block.windows(field.len()).any(|part| part == field)
}

const ROUNDS: u32 = 3;

// Envoy 1.40 loses the mark: what comes again is an index to its table.
#[tokio::test(flavor = "local")]
async fn what_is_never_indexed_stays_so_on_the_other_side() {
    let upstream = raw_upstream(async |mut server| {
        server.write(&settings(&[])).await;
        for round in 0..ROUNDS {
            let request = server.find(|f| f.kind == HEADERS && !f.has(flag::END_STREAM)).await.unwrap();
            for (what, field) in
                [("path", secret_at(4, "/s")), ("field", secret("xs", "hu")), ("cookies", secret_at(32, "a=b; c=d"))]
            {
                // A cookie of eight bytes is coded; its first byte tells enough.
                let field = if what == "cookies" { &field[..2] } else { &field[..] };
                assert!(holds(&request.payload, field), "{round} {what}: {:x?}", request.payload);
            }
            let trailers = server.find(|f| f.kind == HEADERS && f.has(flag::END_STREAM)).await.unwrap();
            assert!(holds(&trailers.payload, &secret("xt", "yt")), "{:x?}", trailers.payload);
            let head = [indexed(8), secret("xa", "ya"), secret_at(34, "e")].concat();
            server.write(&frame(HEADERS, flag::END_HEADERS, request.stream, &head)).await;
            server.write(&frame(HEADERS, flag::WHOLE, request.stream, &secret("xe", "ye"))).await;
        }
        while server.read().await.is_some() {}
    });
    let proxy = RunningProxy::start(&configuration(upstream.await, "", HTTP2), 1);
    let mut client = connect(&proxy).await;
    client.shake_hands(&[]).await;
    for round in 0..ROUNDS {
        let id = 2 * round + 1;
        let open = block(&[(":method", "POST"), (":scheme", "http"), (":authority", "a")]);
        let cookies = [secret_at(32, "a=b"), block(&[("cookie", "c=d")])].concat();
        let head = [open, secret_at(4, "/s"), secret("xs", "hu"), cookies].concat();
        client.write(&frame(HEADERS, flag::END_HEADERS, id, &head)).await;
        client.write(&frame(HEADERS, flag::WHOLE, id, &secret("xt", "yt"))).await;
        let answer = within("a head", client.find(|f| f.kind == HEADERS)).await.unwrap();
        assert!(holds(&answer.payload, &secret("xa", "ya")), "{round}: {:x?}", answer.payload);
        assert!(holds(&answer.payload, &secret_at(34, "e")), "{round}: {:x?}", answer.payload);
        let trailers = within("trailers", client.find(|f| f.kind == HEADERS)).await.unwrap();
        assert!(holds(&trailers.payload, &secret("xe", "ye")), "{round}: {:x?}", trailers.payload);
    }
}
