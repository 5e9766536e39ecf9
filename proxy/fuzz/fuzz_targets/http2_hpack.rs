//! See `nuncio::codec::http2::fuzz_bodies::hpack_decode`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| nuncio::codec::http2::fuzz_bodies::hpack_decode(data));
