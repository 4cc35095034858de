//! Any bytes from a target, to our own initiator.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lunar_iscsi_initiator::fuzzing::first(data));
