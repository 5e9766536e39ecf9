//! `cargo fuzz run config_reader`: any bytes as a configuration file.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| nuncio_api::fuzz::config_reader(input));
