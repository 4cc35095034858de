//! Any bytes before an iSCSI login is over.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lunar_iscsi::fuzzing::fuzz_login(data));
