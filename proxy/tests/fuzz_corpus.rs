//! The fuzz bodies over their corpora, and over mutations of them, on a stable compiler.

use std::fs;
use std::path::Path;

use nuncio::codec::http1::fuzz_bodies;
use nuncio::codec::http2;
use proptest::prelude::*;

type Target = (&'static str, fn(&[u8]));

const TARGETS: [Target; 7] = [
    ("http1_request_head", fuzz_bodies::request_head),
    ("http1_response_head", fuzz_bodies::response_head),
    ("http1_chunked", fuzz_bodies::chunked),
    ("http1_round_trip", fuzz_bodies::round_trip),
    ("http2_downgrade", http2::fuzz_bodies::downgrade),
    ("http2_hpack", http2::fuzz_bodies::hpack_decode),
    ("format", nuncio::format::fuzz_bodies::format),
];

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let entries = fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    entries.map(|entry| fs::read(entry.expect("an entry").path()).expect("a seed")).collect()
}

#[test]
fn every_corpus_passes() {
    for (name, body) in TARGETS {
        let seeds = corpus(name);
        assert!(seeds.len() > 5, "{name}");
        for seed in seeds {
            body(&seed);
            for end in 0..seed.len() {
                body(&seed[..end]);
            }
        }
    }
}

/// Bytes that mean something to HTTP/1 or to a format, for a mutation to put somewhere.
const WORDS: [&str; 24] = [
    "\r\n",
    "\n",
    "\r",
    "\r\n\r\n",
    " ",
    "\t",
    ":",
    ",",
    ";",
    "0\r\n\r\n",
    "Content-Length: 3\r\n",
    "Transfer-Encoding: chunked\r\n",
    "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "Connection: close\r\n",
    "\0",
    "#",
    "1\r\nx\r\n",
    "Host: a\r\n",
    "%",
    ")%",
    ":7%",
    "%REQ(x-a)%",
    "\x1b",
    "\"\\",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn mutations_of_every_corpus_pass(
        seed in any::<prop::sample::Index>(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), 0usize..6, any::<u8>(), 0..WORDS.len()), 1..5),
    ) {
        for (name, body) in TARGETS {
            let seeds = corpus(name);
            let mut bytes = seed.get(&seeds).clone();
            for (at, length, byte, word) in &edits {
                let at = at.index(bytes.len() + 1);
                let end = (at + length).min(bytes.len());
                let put = if byte % 3 == 0 { vec![*byte] } else { WORDS[*word].into() };
                bytes.splice(at..end, put);
            }
            body(&bytes);
        }
    }

    #[test]
    fn any_bytes_pass(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        for (_, body) in TARGETS {
            body(&bytes);
        }
    }
}
