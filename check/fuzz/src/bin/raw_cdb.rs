//! Any CDB at all.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lunar_scsi::testing::fuzz::raw(data));
