//! See `nuncio::format::fuzz_bodies::format`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| nuncio::format::fuzz_bodies::format(data));
