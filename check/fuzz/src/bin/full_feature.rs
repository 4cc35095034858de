//! Any bytes after an iSCSI login.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lunar_iscsi::fuzzing::fuzz_full_feature(data));
