//! What must hold for any frames of a client, as plain functions: see the HTTP/1 codec's.

use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use nuncio_core::http::RequestHead;
use nuncio_core::random::Rng;

use super::hpack::{Decoder, Encoder};
use super::{Accepted, PREFACE, ServerConn, ServerOptions, ServerStream};
use crate::codec::http1::fuzz_bodies::{Canned, strict};
use crate::codec::{Body, Buffers, http1};

/// The property against smuggling, from HTTP/2 to HTTP/1: each request that a connection accepts becomes bytes in which
/// a strict reader finds exactly one request with the same body, or the beginning of one if it did not end. The first
/// byte says in what pieces the rest arrives; the handshake stands before it.
pub fn downgrade(data: &[u8]) {
    let Some((&step, data)) = data.split_first() else { return };
    for step in [usize::MAX, usize::from(step).max(1)] {
        for stream_error_on_invalid in [false, true] {
            let mut options = ServerOptions::default();
            options.http2.stream_error_on_invalid = stream_error_on_invalid;
            connection(data, step, options);
        }
    }
}

/// Header blocks of any bytes: memory stays within the table's size, and what they mean means the same when our encoder
/// said it. The first byte gives the blocks' length, and whether the table's size is already agreed upon.
pub fn hpack_decode(data: &[u8]) {
    let Some((&first, data)) = data.split_first() else { return };
    for size in [0, 100, 4096, 65536] {
        let mut decoder = Decoder::new(size);
        if first & 0x80 != 0 {
            decoder.acknowledged();
        }
        let (mut encoder, mut second) = (Encoder::new(), Decoder::new(4096));
        encoder.set_max_size(size);
        let (mut fields, mut scratch, mut block) = (Vec::new(), Vec::new(), Vec::new());
        for bytes in data.chunks(usize::from(first & 0x7f).max(1)) {
            fields.clear();
            let decoded = decoder.decode(bytes, &mut scratch, |name, value, secret| {
                fields.push((name.to_vec(), value.to_vec(), secret));
            });
            assert!(decoder.memory() <= 2 * size.max(4096) as usize);
            if decoded.is_err() {
                break;
            }
            block.clear();
            encoder.begin(&mut block);
            encoder.encode_status(u16::from(first), &mut block);
            for (name, value, secret) in &fields {
                if *secret {
                    encoder.encode_never_indexed(name, value, &mut block);
                } else {
                    encoder.encode(name, value, &mut block);
                }
            }
            let mut expected = fields.iter();
            let mut status = Some(format!("{first:03}"));
            let again = second.decode(&block, &mut scratch, |name, value, secret| match status.take() {
                Some(status) => assert_eq!((name, value), (&b":status"[..], status.as_bytes())),
                None => {
                    let (n, v, was_secret) = expected.next().expect("no more fields than were written");
                    assert_eq!((name, value), (&n[..], &v[..]));
                    assert!(secret || !was_secret);
                }
            });
            assert_eq!((again, expected.next()), (Ok(()), None));
            assert!(encoder.memory() <= 3 * 4096);
        }
    }
}

/// How many requests went out whole.
fn connection(data: &[u8], step: usize, options: ServerOptions) -> usize {
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    let downstream = Canned::new(&[&PREFACE[..], &settings, data].concat(), step).stay_open();
    let buffers = Rc::new(Buffers::default());
    let mut conn = ServerConn::new(downstream.io(), Vec::new(), Rc::new(options), buffers.clone(), &Rng::with_seed(1));
    let cx = &mut Context::from_waker(Waker::noop());
    let mut head = RequestHead::default();
    let mut streams = Vec::new();
    loop {
        match conn.poll_accept(cx, &mut head) {
            Poll::Ready(Ok(Some(Accepted::Stream(stream)))) => {
                let plain = head.method() != b"CONNECT" && head.path().is_some_and(|p| p[0] == b'/');
                if plain && !head.headers.contains("upgrade") {
                    streams.push((stream, head.clone()));
                }
            }
            Poll::Ready(Ok(Some(Accepted::Refused(_)))) => {}
            // All that came was looked at, or the connection is over.
            _ => break,
        }
    }
    streams.iter_mut().filter_map(|(stream, head)| forward(stream, head, &buffers).then_some(())).count()
}

/// Passes a request on as the manager would, and reads what went out: whether it is a whole request.
fn forward(stream: &mut ServerStream, head: &RequestHead, buffers: &Buffers) -> bool {
    let upstream = Canned::new(b"", 1);
    let options = Rc::new(http1::ClientOptions { enable_trailers: true, ..http1::ClientOptions::default() });
    let mut client = http1::ClientConn::new(upstream.io(), options);
    let cx = &mut Context::from_waker(Waker::noop());
    let (mut body, mut complete) = (Vec::new(), stream.request_complete());
    // What cannot be written in HTTP/1 is answered here.
    if client.send_head(buffers, head, complete && head.framing.is_none()).is_err() {
        return false;
    }
    while !client.request_complete() && !complete {
        match stream.poll_body(cx) {
            Poll::Ready(Ok(Body::Data(chunk))) => {
                body.extend_from_slice(chunk.as_slice());
                complete = stream.request_complete();
                client.send_data(cx, buffers, chunk.as_slice(), complete).expect("the length is the one it came with");
            }
            Poll::Ready(Ok(Body::Trailers(trailers))) => {
                client.send_trailers(buffers, &trailers).expect("behind chunks");
                complete = true;
            }
            Poll::Ready(Ok(Body::End)) => {
                client.send_data(cx, buffers, b"", true).expect("the end");
                complete = true;
            }
            _ => break,
        }
    }
    assert!(client.poll_flush(cx, buffers).is_ready());
    let wire = upstream.wrote();
    match strict::request(&wire) {
        Ok((request, rest)) => {
            assert!(complete, "an incomplete request went out as a complete one: {}", wire.escape_ascii());
            assert!(rest.is_empty(), "more than one request: {}", wire.escape_ascii());
            assert_eq!(request.body, body);
            assert_eq!((request.method, Some(request.target)), (head.method(), head.path()));
            assert_eq!(Some(request.host), head.authority());
        }
        Err(why) => assert!(!complete && why == strict::INCOMPLETE, "{why}: {}", wire.escape_ascii()),
    }
    complete
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_requests_get_through_the_body() {
        let get = b"\x00\x00\x06\x01\x05\x00\x00\x00\x01\x82\x86\x84\x41\x01a";
        let post = b"\x00\x00\x06\x01\x04\x00\x00\x00\x03\x83\x86\x84\x41\x01a\x00\x00\x03\x00\x01\x00\x00\x00\x03abc";
        assert_eq!(connection(&[&get[..], post].concat(), 7, ServerOptions::default()), 2);
    }
}
