//! The examples of RFC 7541 Appendix C: blocks, what they mean, and the table behind each.

use super::{decode, entries, field};
use crate::codec::http2::hpack::Decoder;

/// A block in hexadecimal, its fields, and the table's entries and size after it.
type Example<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a [(&'a str, &'a str)], usize);

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).expect("ASCII"), 16).expect("two digits");
    digits.chunks(2).map(byte).collect()
}

/// The examples of one section, which share a table.
fn hold(max_size: u32, examples: &[Example]) {
    let mut decoder = Decoder::new(4096);
    if max_size != 4096 {
        let mut block = Vec::new();
        super::integer::encode::<5>(0x20, max_size as usize, &mut block);
        decode(&mut decoder, &block).expect("a size");
    }
    for (hex, fields, table, size) in examples {
        let owned = |list: &[(&str, &str)]| list.iter().map(|(name, value)| field(name, value)).collect::<Vec<_>>();
        assert_eq!(decode(&mut decoder, &bytes(hex)), Ok(owned(fields)), "{hex}");
        let held = entries(decoder.table());
        assert_eq!(held, owned(table), "{hex}");
        assert_eq!(held.iter().map(|(name, value)| name.len() + value.len() + 32).sum::<usize>(), *size, "{hex}");
    }
}

const DATE_21: (&str, &str) = ("date", "Mon, 21 Oct 2013 20:13:21 GMT");
const DATE_22: (&str, &str) = ("date", "Mon, 21 Oct 2013 20:13:22 GMT");
const PRIVATE: (&str, &str) = ("cache-control", "private");
const LOCATION: (&str, &str) = ("location", "https://www.example.com");
const COOKIE: (&str, &str) = ("set-cookie", "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1");
const AUTHORITY: (&str, &str) = (":authority", "www.example.com");
const NO_CACHE: (&str, &str) = ("cache-control", "no-cache");
const CUSTOM: (&str, &str) = ("custom-key", "custom-value");

#[test]
fn c_2_each_representation() {
    let header = ("custom-key", "custom-header");
    hold(4096, &[("400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572", &[header], &[header], 55)]);
    hold(4096, &[("040c 2f73 616d 706c 652f 7061 7468", &[(":path", "/sample/path")], &[], 0)]);
    hold(4096, &[("1008 7061 7373 776f 7264 0673 6563 7265 74", &[("password", "secret")], &[], 0)]);
    hold(4096, &[("82", &[(":method", "GET")], &[], 0)]);
}

/// C.3 and C.4: the same requests, without and with Huffman coding.
fn requests(blocks: [&str; 3]) {
    let first = [(":method", "GET"), (":scheme", "http"), (":path", "/"), AUTHORITY];
    let second = [(":method", "GET"), (":scheme", "http"), (":path", "/"), AUTHORITY, NO_CACHE];
    let third = [(":method", "GET"), (":scheme", "https"), (":path", "/index.html"), AUTHORITY, CUSTOM];
    hold(
        4096,
        &[
            (blocks[0], &first, &[AUTHORITY], 57),
            (blocks[1], &second, &[NO_CACHE, AUTHORITY], 110),
            (blocks[2], &third, &[CUSTOM, NO_CACHE, AUTHORITY], 164),
        ],
    );
}

#[test]
fn c_3_requests_without_huffman_coding() {
    requests([
        "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
        "8286 84be 5808 6e6f 2d63 6163 6865",
        "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
    ]);
}

#[test]
fn c_4_requests_with_huffman_coding() {
    requests([
        "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
        "8286 84be 5886 a8eb 1064 9cbf",
        "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
    ]);
}

/// C.5 and C.6: the same responses in a table of 256 bytes, which evicts.
fn responses(blocks: [&str; 3]) {
    let gzip = ("content-encoding", "gzip");
    hold(
        256,
        &[
            (
                blocks[0],
                &[(":status", "302"), PRIVATE, DATE_21, LOCATION],
                &[LOCATION, DATE_21, PRIVATE, (":status", "302")],
                222,
            ),
            (
                blocks[1],
                &[(":status", "307"), PRIVATE, DATE_21, LOCATION],
                &[(":status", "307"), LOCATION, DATE_21, PRIVATE],
                222,
            ),
            (blocks[2], &[(":status", "200"), PRIVATE, DATE_22, LOCATION, gzip, COOKIE], &[COOKIE, gzip, DATE_22], 215),
        ],
    );
}

#[test]
fn c_5_responses_without_huffman_coding() {
    responses([
        "4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3120 474d \
         546e 1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
        "4803 3330 37c1 c0bf",
        "88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3220 474d 54c0 5a04 677a 6970 7738 666f \
         6f3d 4153 444a 4b48 514b 425a 584f 5157 454f 5049 5541 5851 5745 4f49 553b 206d 6178 2d61 6765 3d33 3630 303b \
         2076 6572 7369 6f6e 3d31",
    ]);
}

#[test]
fn c_6_responses_with_huffman_coding() {
    responses([
        "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e 919d 29ad 1718 63c7 \
         8f0b 97c8 e9ae 82ae 43d3",
        "4883 640e ffc1 c0bf",
        "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad 94e7 821d d7f2 e6c7 b335 \
         dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed 4ee5 b106 3d50 07",
    ]);
}
