//! Any CDB at all.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lunar_scsi::fuzzing::raw(data));
