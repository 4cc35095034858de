//! Any NVMe commands, one after another, of the table and beside it.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lunar_nvme::fuzzing::commands(data));
