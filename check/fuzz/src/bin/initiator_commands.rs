//! Data-In, R2T and responses of a target, to a read and a write of our own initiator.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lunar_iscsi_initiator::fuzzing::commands(data));
