//! Any command of the table, with any of the bits that it evaluates.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lunar_scsi::testing::fuzz::cdb(data));
