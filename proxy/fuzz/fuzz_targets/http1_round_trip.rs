//! See `nuncio::codec::http1::fuzz_bodies::round_trip`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| nuncio::codec::http1::fuzz_bodies::round_trip(data));
