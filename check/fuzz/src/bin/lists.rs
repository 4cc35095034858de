//! Parameter lists of every command that has one, with CDBs that fit them.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lunar_scsi::testing::lists(data));
