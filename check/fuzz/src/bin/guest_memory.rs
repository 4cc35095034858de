//! Accesses to guest memory, held against a model of it.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lunar_guest::testing::accesses(data));
