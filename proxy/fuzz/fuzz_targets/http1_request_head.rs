//! See `nuncio::codec::http1::fuzz_bodies::request_head`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| nuncio::codec::http1::fuzz_bodies::request_head(data));
